//! Guards cursors against a wall clock that jumps far ahead: it is followed only after a while, because
//! cursors never go back.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidings_engine::Clock;
use tidings_model::Timestamp;

/// A wall clock that runs ahead of the monotonic clock by more than this is not followed at once.
const JUMP: Duration = Duration::from_secs(10 * 60);
/// A wall clock that stays ahead for this long is followed.
const BELIEVED_AFTER: Duration = Duration::from_secs(60);

/// Minimum interval between two warnings that the clock is behind.
const WARNED_EVERY: Duration = Duration::from_secs(60);

/// The clock from which cursors are made.
pub(crate) struct ClockGuard(Mutex<Followed>);

/// The wall clock when it was last followed.
#[derive(Clone, Copy, Debug)]
struct Followed {
    wall: Timestamp,
    elapsed: Duration,
    /// Monotonic time since when the wall clock has been ahead; `None` while it is followed.
    ahead_since: Option<Duration>,
    /// Monotonic time of the last warning that the clock is behind.
    warned: Option<Duration>,
}

/// The time for cursors, and whether the wall clock has just jumped away from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CursorTime {
    pub(crate) now: Timestamp,
    pub(crate) jumped: bool,
}

impl ClockGuard {
    pub(crate) fn new(clock: &dyn Clock) -> Self {
        let (wall, elapsed) = (clock.now(), clock.elapsed());
        Self(Mutex::new(Followed { wall, elapsed, ahead_since: None, warned: None }))
    }

    /// Whether a warning that the clock is behind is due. If so, the next one is due after [`WARNED_EVERY`].
    pub(crate) fn may_warn(&self, clock: &dyn Clock) -> bool {
        let (mut followed, elapsed) = (self.lock(), clock.elapsed());
        let may = followed.warned.is_none_or(|warned| elapsed.saturating_sub(warned) >= WARNED_EVERY);
        if may {
            followed.warned = Some(elapsed);
        }
        may
    }

    fn lock(&self) -> MutexGuard<'_, Followed> {
        // Ignores poison: no update of this state is ever left half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time for cursors.
    pub(crate) fn ask(&self, clock: &dyn Clock) -> CursorTime {
        self.lock().ask(clock.now(), clock.elapsed())
    }
}

impl Followed {
    fn ask(&mut self, wall: Timestamp, elapsed: Duration) -> CursorTime {
        let expected = self.wall + elapsed.saturating_sub(self.elapsed);
        if wall.since(expected) <= JUMP {
            *self = Self { wall, elapsed, ahead_since: None, ..*self };
            return CursorTime { now: wall, jumped: false };
        }
        let jumped = self.ahead_since.is_none();
        let since = *self.ahead_since.get_or_insert(elapsed);
        if elapsed.saturating_sub(since) >= BELIEVED_AFTER {
            *self = Self { wall, elapsed, ahead_since: None, ..*self };
            return CursorTime { now: wall, jumped: false };
        }
        CursorTime { now: expected, jumped }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_engine::ManualClock;

    const NOW: Timestamp = Timestamp::from_millis(1_763_294_400_000);
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    #[test]
    fn a_clock_that_jumps_far_ahead_is_followed_when_it_has_stayed_there_for_a_minute() {
        let clock = ManualClock::at(NOW);
        let guard = ClockGuard::new(&clock);
        clock.set(NOW + DAY);
        assert_eq!(guard.ask(&clock), CursorTime { now: NOW, jumped: true });
        clock.advance(Duration::from_secs(59));
        assert_eq!(guard.ask(&clock), CursorTime { now: NOW + Duration::from_secs(59), jumped: false });
        clock.advance(Duration::from_secs(1));
        assert_eq!(guard.ask(&clock).now, NOW + DAY + Duration::from_secs(60));
    }

    #[test]
    fn a_clock_that_comes_back_was_never_followed() {
        let clock = ManualClock::at(NOW);
        let guard = ClockGuard::new(&clock);
        clock.set(NOW + DAY);
        assert!(guard.ask(&clock).jumped);
        clock.advance(Duration::from_secs(30));
        clock.set(NOW + Duration::from_secs(30));
        assert_eq!(guard.ask(&clock).now, NOW + Duration::from_secs(30));
        clock.set(NOW + DAY);
        clock.advance(Duration::from_secs(40));
        assert!(guard.ask(&clock).jumped, "the minute begins anew");
    }

    #[test]
    fn that_the_clock_is_behind_is_said_once_a_minute() {
        let clock = ManualClock::at(NOW);
        let guard = ClockGuard::new(&clock);
        assert!(guard.may_warn(&clock) && !guard.may_warn(&clock));
        clock.advance(WARNED_EVERY);
        assert!(guard.may_warn(&clock));
    }

    #[test]
    fn small_steps_and_steps_back_are_followed_at_once() {
        let clock = ManualClock::at(NOW);
        let guard = ClockGuard::new(&clock);
        for moment in [NOW + JUMP, NOW - DAY, NOW - DAY + JUMP] {
            clock.set(moment);
            assert_eq!(guard.ask(&clock), CursorTime { now: moment, jumped: false });
        }
        clock.advance(DAY);
        assert_eq!(guard.ask(&clock).now, NOW + JUMP, "time that has passed is no jump");
    }
}
