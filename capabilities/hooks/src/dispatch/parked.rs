//! Deliveries of a hook that wait for a retry. Pure.
//!
//! There may be very many, so nothing of an event is kept here: it is read again when its retry is due.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use tidings_model::{Position, Timestamp};

use crate::table;

/// Deliveries of a hook that wait for a retry, or whose retry is running.
#[derive(Debug, Default)]
pub(super) struct Parked {
    deliveries: BTreeMap<Position, Waiting>,
    /// Deliveries by the time at which they are due. An entry counts only if the delivery still waits until that time.
    by_due: BinaryHeap<Reverse<Due>>,
}

/// A delivery that waits for a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    /// Attempts that failed.
    attempts: u32,
    step: Step,
    /// Time on the monotonic clock at which it is due, in milliseconds.
    due: u64,
    /// Time at which it was queued, in milliseconds since 1970. Zero if that is not known.
    at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Its time has not come.
    Waiting,
    /// It is due, but has not begun.
    Due,
    /// Its attempt is running.
    Running,
}

/// When a delivery is due. The position is in two halves, because a `u128` would take more room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: u64,
    position: [u64; 2],
}

/// The oldest delivery that is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Oldest {
    /// Its position.
    pub(super) position: Position,
    /// Time at which it was queued, if that is known.
    pub(super) at: Option<Timestamp>,
    /// Whether an attempt is running.
    pub(super) is_running: bool,
}

impl Parked {
    /// The deliveries as they are stored. However the wall clock was set, none waits longer than its delay.
    pub(super) fn restored(
        stored: &BTreeMap<Position, table::Parked>,
        now: Timestamp,
        elapsed: Duration,
    ) -> Self {
        let (mut deliveries, mut by_due) =
            (Vec::with_capacity(stored.len()), Vec::with_capacity(stored.len()));
        for (&position, parked) in stored {
            let delay = Duration::from_millis(u64::from(parked.delay_ms));
            let due = millis(elapsed.saturating_add(parked.due.since(now).min(delay)));
            deliveries
                .push((position, Waiting { attempts: parked.attempts, step: Step::Waiting, due, at: 0 }));
            by_due.push(Reverse(Due::new(due, position)));
        }
        Self { deliveries: deliveries.into_iter().collect(), by_due: by_due.into() }
    }

    /// Number of deliveries.
    pub(super) fn len(&self) -> usize {
        self.deliveries.len()
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.deliveries.is_empty()
    }

    /// Positions of the deliveries, in order.
    pub(super) fn positions(&self) -> impl Iterator<Item = Position> {
        self.deliveries.keys().copied()
    }

    /// Attempts of a delivery that failed. `None` if it is not parked.
    pub(super) fn attempts(&self, position: Position) -> Option<u32> {
        self.deliveries.get(&position).map(|waiting| waiting.attempts)
    }

    /// Whether a delivery is due and has not begun.
    pub(super) fn is_due(&self, position: Position) -> bool {
        self.deliveries.get(&position).is_some_and(|waiting| waiting.step == Step::Due)
    }

    /// Whether the retry of a delivery is running.
    pub(super) fn is_running(&self, position: Position) -> bool {
        self.deliveries.get(&position).is_some_and(|waiting| waiting.step == Step::Running)
    }

    /// The oldest delivery.
    pub(super) fn oldest(&self) -> Option<Oldest> {
        self.deliveries.first_key_value().map(|(&position, waiting)| Oldest {
            position,
            at: Some(waiting.at).filter(|at| *at > 0).map(Timestamp::from_millis),
            is_running: waiting.step == Step::Running,
        })
    }

    /// Notes when a delivery was queued.
    pub(super) fn queued_at(&mut self, position: Position, at: Timestamp) {
        if let Some(waiting) = self.deliveries.get_mut(&position) {
            waiting.at = at.as_millis();
        }
    }

    /// Lets a delivery wait until a time. `queued` is the time at which it was queued.
    pub(super) fn park(&mut self, position: Position, attempts: u32, due: Duration, queued: Timestamp) {
        let due = millis(due);
        let waiting = Waiting { attempts, step: Step::Waiting, due, at: queued.as_millis() };
        self.deliveries.insert(position, waiting);
        self.by_due.push(Reverse(Due::new(due, position)));
    }

    /// The time on the monotonic clock at which the next delivery is due.
    pub(super) fn next_due(&mut self) -> Option<Duration> {
        while let Some(Reverse(first)) = self.by_due.peek() {
            if self.counts(first) {
                return Some(Duration::from_millis(first.at));
            }
            self.by_due.pop();
        }
        None
    }

    /// The next delivery that is due. It counts as due from now on.
    pub(super) fn pop_due(&mut self, elapsed: Duration) -> Option<Position> {
        if self.next_due()? > elapsed {
            return None;
        }
        let position = self.by_due.pop()?.0.position();
        self.deliveries.get_mut(&position)?.step = Step::Due;
        Some(position)
    }

    /// Makes all deliveries due that wait, as of now.
    pub(super) fn make_due(&mut self, elapsed: Duration) {
        let due = millis(elapsed);
        self.by_due.clear();
        for (&position, waiting) in &mut self.deliveries {
            if waiting.step == Step::Waiting {
                waiting.due = waiting.due.min(due);
                self.by_due.push(Reverse(Due::new(waiting.due, position)));
            }
        }
    }

    /// A retry begins.
    pub(super) fn begin(&mut self, position: Position) {
        self.step(position, Step::Running);
    }

    /// A retry was not made after all.
    pub(super) fn put_back(&mut self, position: Position) {
        self.step(position, Step::Due);
    }

    /// A delivery is finished. Returns false if it was not parked.
    pub(super) fn remove(&mut self, position: Position) -> bool {
        self.deliveries.remove(&position).is_some()
    }

    fn step(&mut self, position: Position, step: Step) {
        if let Some(waiting) = self.deliveries.get_mut(&position) {
            waiting.step = step;
        }
    }

    fn counts(&self, due: &Due) -> bool {
        let waiting = self.deliveries.get(&due.position());
        waiting.is_some_and(|waiting| waiting.step == Step::Waiting && waiting.due == due.at)
    }
}

impl Due {
    fn new(at: u64, position: Position) -> Self {
        let position = position.get();
        Self { at, position: [(position >> 64) as u64, position as u64] }
    }

    fn position(&self) -> Position {
        let [high, low] = self.position;
        Position::new(u128::from(high) << 64 | u128::from(low))
    }
}

/// Whole milliseconds, rounded up.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000_000);

    fn at(position: u128) -> Position {
        Position::new(position)
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn stored(entries: &[(u128, u64, u32)]) -> BTreeMap<Position, table::Parked> {
        let entry = |&(position, due, delay)| {
            let due = Timestamp::from_millis(due);
            (at(position), table::Parked { attempts: 1, due, delay_ms: delay })
        };
        entries.iter().map(entry).collect()
    }

    #[test]
    fn a_retry_is_due_at_its_time_and_after_a_restart_no_later_than_its_delay() {
        let now = NOW.as_millis();
        let stored = stored(&[(1, now + 3000, 5000), (2, now - 1, 5000), (3, now + 86_400_000, 5000)]);
        let mut parked = Parked::restored(&stored, NOW, seconds(100));
        assert_eq!(parked.pop_due(seconds(100)), Some(at(2)));
        assert_eq!(parked.pop_due(seconds(102)), None);
        assert_eq!(parked.next_due(), Some(seconds(103)));
        assert_eq!(parked.pop_due(seconds(103)), Some(at(1)));
        assert_eq!(parked.pop_due(seconds(104)), None);
        assert_eq!(parked.pop_due(seconds(105)), Some(at(3)), "the clock was set back by a day");
        assert_eq!(parked.next_due(), None);
        assert_eq!(parked.len(), 3);
    }

    #[test]
    fn a_retry_that_was_parked_again_is_due_at_its_new_time_only() {
        let mut parked = Parked::default();
        parked.park(at(1), 1, seconds(10), NOW);
        assert_eq!(parked.pop_due(seconds(10)), Some(at(1)));
        parked.begin(at(1));
        parked.park(at(1), 2, seconds(20), NOW);
        parked.park(at(2), 1, seconds(30), NOW);
        assert!(parked.remove(at(2)) && !parked.remove(at(2)));
        assert_eq!(parked.pop_due(seconds(15)), None);
        assert_eq!(parked.pop_due(seconds(40)), Some(at(1)));
        assert_eq!(parked.pop_due(seconds(40)), None);
        assert_eq!(parked.attempts(at(1)), Some(2));
        parked.put_back(at(1));
        assert!(parked.is_due(at(1)));
    }

    #[test]
    fn deliveries_can_be_made_due_before_their_time() {
        let mut parked = Parked::default();
        for position in 1..=3 {
            parked.park(at(position), 1, seconds(100), NOW);
        }
        parked.pop_due(seconds(100));
        parked.begin(at(1));
        parked.make_due(seconds(50));
        let due: Vec<_> = std::iter::from_fn(|| parked.pop_due(seconds(50))).collect();
        assert_eq!(due, [at(2), at(3)]);
        assert_eq!(parked.oldest().map(|oldest| (oldest.position, oldest.is_running)), Some((at(1), true)));
    }
}
