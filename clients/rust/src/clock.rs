//! Source of time, provided by the caller so that tests can control it.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

/// Measures time and waits for it to pass.
pub trait Clock: Send + Sync + 'static {
    /// Time since a fixed point in the life of the process. Never decreases.
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
