//! Time comes from outside, so that a test can hold it still.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

/// Measures time and waits for it to pass.
pub trait Clock: Send + Sync + 'static {
    /// Time since a moment that stays the same while the process lives. It never goes back.
    fn elapsed(&self) -> Duration;

    /// Resolves once the duration has passed.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// The machine's monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn elapsed(&self) -> Duration {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}
