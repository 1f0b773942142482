use std::time::Duration;

use tidings_auth::{Denied, Pass};
use tidings_engine::metrics::Held;
use tidings_model::Timestamp;

use super::protocol::{FeedProtocol, Plain};
use crate::websocket;

/// On which options a feed lasts.
pub struct FeedOptions {
    /// When the client is asked to come again.
    pub(super) lasts: Option<Duration>,
    /// When it began.
    pub(super) began: Timestamp,
    /// When it is too slow.
    pub(super) bounds: Bounds,
    /// After how much silence something is said.
    pub(super) heartbeat: Option<Duration>,
    /// How much silence of a WebSocket client is too much.
    pub(super) patience: websocket::Patience,
    /// What lets the client in, for as long as it holds.
    pub(super) pass: Pass,
    /// How it is spoken to.
    pub(super) protocol: Box<dyn FeedProtocol>,
    /// Counts the reader.
    _counted: Option<Held>,
}

impl FeedOptions {
    /// FeedOptions for somebody whose pass holds; from now on it is watched.
    pub fn new(lasts: Option<Duration>, slow: Duration, pass: Pass, now: Timestamp) -> Result<Self, Denied> {
        if !pass.holds(now) {
            return Err(Denied::Revoked);
        }
        Ok(Self {
            lasts,
            began: now,
            bounds: Bounds { stall: slow, max_lag: None },
            heartbeat: None,
            patience: websocket::Patience::default(),
            pass,
            protocol: Box::new(Plain),
            _counted: None,
        })
    }

    /// The same for a reader that is counted as long as it is fed.
    #[must_use]
    pub fn counted(self, counted: Held) -> Self {
        Self { _counted: Some(counted), ..self }
    }

    /// The same for a reader who, once it has had all there was, is slow only when it is so many records behind: and takes
    /// nothing, or is ten times as many behind.
    #[must_use]
    pub fn bearing(self, max_lag: u64) -> Self {
        let bounds = Bounds { max_lag: Some(max_lag), ..self.bounds };
        Self { bounds, ..self }
    }

    /// The same for a reader who hears something at least so often, and who is gone when it is silent for three times as
    /// long.
    #[must_use]
    pub fn beating(self, heartbeat: Duration) -> Self {
        let patience = websocket::Patience { ping_after: heartbeat, dead_after: heartbeat * 3 };
        Self { heartbeat: Some(heartbeat), patience, ..self }
    }

    /// The same for a reader who is spoken to like this.
    #[must_use]
    pub fn speaking(self, protocol: Box<dyn FeedProtocol>) -> Self {
        Self { protocol, ..self }
    }
}

/// When a reader is too slow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// How long it may take nothing of what waits for it.
    stall: Duration,
    /// How many records it may be behind, once it has had all there was.
    max_lag: Option<u64>,
}

impl Bounds {
    /// Whether a reader is too slow that has taken nothing for so long, and lags so much if it has ever had all.
    pub fn exceeded(&self, stuck: Option<Duration>, lag: Option<u64>) -> bool {
        let stalled = stuck.is_some_and(|stuck| stuck >= self.stall);
        match (self.max_lag, lag) {
            (Some(max), Some(lag)) => (stalled && lag > max) || lag > max.saturating_mul(10),
            (None, _) | (_, None) => stalled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_may_lag_is_slow_when_it_is_far_behind_and_stalled_or_very_far_behind() {
        let seconds = |count| Some(Duration::from_secs(count));
        let stall = Duration::from_secs(5);
        let plain = Bounds { stall, max_lag: None };
        for (stuck, slow) in [(None, false), (seconds(4), false), (seconds(5), true)] {
            assert_eq!(plain.exceeded(stuck, Some(1_000_000)), slow, "{stuck:?}");
        }
        let bearing = Bounds { stall, max_lag: Some(5000) };
        for (stuck, lag, slow) in [
            (seconds(60), Some(5000), false),
            (seconds(5), Some(5001), true),
            (seconds(4), Some(5001), false),
            (None, Some(50_000), false),
            (None, Some(50_001), true),
            (seconds(5), None, true),
            (seconds(4), None, false),
        ] {
            assert_eq!(bearing.exceeded(stuck, lag), slow, "{stuck:?} {lag:?}");
        }
    }
}
