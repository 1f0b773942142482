//! Clocks: the time is passed in, so that a test can hold it still.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use tidings_model::Timestamp;
use tokio::sync::oneshot;

/// A source of time and of timers.
pub trait Clock: Send + Sync + 'static {
    /// The current wall-clock time.
    fn now(&self) -> Timestamp;

    /// Time since a fixed but unspecified moment. Monotonic, with the clock's finest resolution; for
    /// measuring durations.
    fn elapsed(&self) -> Duration {
        self.now().since(Timestamp::from_millis(0))
    }

    /// Resolves once `now()` is at or after `moment`.
    fn sleep_until(&self, moment: Timestamp) -> BoxFuture<'static, ()>;

    /// Resolves once `duration` has passed.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.now() + duration)
    }
}

/// The clock of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn elapsed(&self) -> Duration {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed()
    }

    fn sleep_until(&self, moment: Timestamp) -> BoxFuture<'static, ()> {
        self.sleep(moment.since(self.now()))
    }

    /// Sleeps on the monotonic clock, so that a step of the wall clock neither shortens nor lengthens the wait.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A clock for tests that moves only when told. Clones share the same time.
#[derive(Clone, Debug)]
pub struct ManualClock {
    state: Arc<Mutex<ManualState>>,
}

#[derive(Debug)]
struct ManualState {
    now: Timestamp,
    elapsed: Duration,
    /// Pending sleeps, by the elapsed time at which they end and the order in which they were started.
    sleepers: BTreeMap<(Duration, u64), oneshot::Sender<()>>,
    slept: u64,
}

impl ManualClock {
    /// Creates a clock that stands at `now`.
    pub fn at(now: Timestamp) -> Self {
        let elapsed = now.since(Timestamp::from_millis(0));
        let state = ManualState { now, elapsed, sleepers: BTreeMap::new(), slept: 0 };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Steps the wall clock without letting time pass: no sleep ends because of it.
    pub fn set(&self, now: Timestamp) {
        self.lock().now = now;
    }

    /// Lets time pass and ends the sleeps that are due, earliest first.
    pub fn advance(&self, by: Duration) {
        let mut state = self.lock();
        state.now = state.now + by;
        state.elapsed += by;
        let elapsed = state.elapsed;
        while let Some(first) = state.sleepers.first_entry() {
            if first.key().0 > elapsed {
                break;
            }
            // The send fails when the sleeping future was dropped; there is nobody to wake then.
            let _ = first.remove().send(());
        }
    }

    /// Number of pending sleeps. A test waits until its sleeper is counted, then calls
    /// [`ManualClock::advance`].
    pub fn sleepers(&self) -> usize {
        let mut state = self.lock();
        state.sleepers.retain(|_, sleeper| !sleeper.is_closed());
        state.sleepers.len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ManualState> {
        self.state.lock().expect("nobody panics while holding the clock")
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.lock().now
    }

    fn elapsed(&self) -> Duration {
        self.lock().elapsed
    }

    fn sleep_until(&self, moment: Timestamp) -> BoxFuture<'static, ()> {
        let mut state = self.lock();
        if moment <= state.now {
            return Box::pin(std::future::ready(()));
        }
        let (tx, rx) = oneshot::channel();
        state.slept += 1;
        let key = (state.elapsed + moment.since(state.now), state.slept);
        state.sleepers.insert(key, tx);
        Box::pin(async move {
            // An error means that the clock was dropped, which happens only when the test is over.
            let _ = rx.await;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_manual_clock_wakes_whom_it_passes_and_nobody_else() {
        let clock = ManualClock::at(Timestamp::from_millis(1000));
        let mut soon = clock.sleep(Duration::from_millis(10));
        let mut late = clock.sleep(Duration::from_millis(20));
        assert!((&mut soon).now_or_never().is_none());
        assert_eq!(clock.sleepers(), 2);
        clock.advance(Duration::from_millis(10));
        assert!((&mut soon).now_or_never().is_some());
        assert!((&mut late).now_or_never().is_none());
        assert_eq!(clock.now(), Timestamp::from_millis(1010));
        drop(late);
        assert_eq!(clock.sleepers(), 0, "a dropped sleeper is forgotten");
    }

    #[test]
    fn a_clock_that_is_set_neither_cuts_nor_stretches_a_wait() {
        let clock = ManualClock::at(Timestamp::from_millis(1000));
        let mut soon = clock.sleep(Duration::from_millis(10));
        let before = clock.elapsed();
        clock.set(Timestamp::from_millis(5000));
        assert!((&mut soon).now_or_never().is_none());
        clock.set(Timestamp::from_millis(10));
        clock.advance(Duration::from_millis(10));
        assert!((&mut soon).now_or_never().is_some());
        assert_eq!(clock.now(), Timestamp::from_millis(20));
        assert_eq!(clock.elapsed(), before + Duration::from_millis(10));
    }

    #[test]
    fn a_moment_that_has_come_is_not_waited_for() {
        let clock = ManualClock::at(Timestamp::from_millis(5));
        assert!(clock.sleep_until(Timestamp::from_millis(5)).now_or_never().is_some());
    }
}
