//! Sources that failed and wait for their retry.

use std::collections::VecDeque;
use std::fmt::Display;
use std::time::Duration;

use tidings_model::LogId;

use crate::Clock;

/// Delay before a failed source is tried again.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Failed sources in the order of their retries.
pub(super) struct Backoff {
    /// Name of the capability, for log messages.
    name: &'static str,
    /// Time of the retry and the source.
    sources: VecDeque<(Duration, LogId)>,
    /// Time of the last log message about a failure.
    logged_at: Option<Duration>,
}

impl Backoff {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, sources: VecDeque::new(), logged_at: None }
    }

    /// Adds a source that failed at `now`. At most one message is logged per [`RETRY_AFTER`], because many sources
    /// often fail together.
    pub(super) fn add(&mut self, source: LogId, now: Duration, error: &impl Display) {
        self.sources.push_back((now + RETRY_AFTER, source));
        if self.is_to_be_logged(now) {
            let failing = self.sources.len();
            tracing::warn!(%error, failing, "could not deliver to {}; trying again", self.name);
        }
    }

    fn is_to_be_logged(&mut self, now: Duration) -> bool {
        let due = self.logged_at.is_none_or(|at| now.saturating_sub(at) >= RETRY_AFTER);
        if due {
            self.logged_at = Some(now);
        }
        due
    }

    /// Waits for the next retry that is due and returns its source. Never resolves while there are none. Cancel-safe:
    /// no source is lost when the future is dropped.
    pub(super) async fn next(&mut self, clock: &dyn Clock) -> LogId {
        let Some(&(due, source)) = self.sources.front() else { return std::future::pending().await };
        clock.sleep(due.saturating_sub(clock.elapsed())).await;
        self.sources.pop_front();
        source
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_failures_one_is_logged_until_it_is_time_to_try_again() {
        let mut backoff = Backoff::new("tests");
        let times = [0, 0, 999, 1000, 1001, 2000].map(Duration::from_millis);
        let logged = times.map(|now| backoff.is_to_be_logged(now));
        assert_eq!(logged, [true, false, false, true, false, true]);
    }
}
