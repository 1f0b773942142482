//! Options of a feed: how long it lasts, heartbeats, and when its reader is too slow.

use std::time::Duration;

use tidings_auth::{Denied, Pass};
use tidings_engine::metrics::Held;
use tidings_model::Timestamp;

use super::protocol::{FeedProtocol, Plain};
use crate::websocket;

/// How long a feed lasts, and when its reader is too slow.
pub struct FeedOptions {
    /// Time after which the response ends, so that the client reconnects; `None` for no limit.
    pub(super) lasts: Option<Duration>,
    /// Time at which the response began.
    pub(super) began: Timestamp,
    /// When the reader is too slow.
    pub(super) bounds: Bounds,
    /// Silence after which a heartbeat is sent; `None` for no heartbeats.
    pub(super) heartbeat: Option<Duration>,
    /// Time limits for a silent WebSocket client.
    pub(super) patience: websocket::Patience,
    /// The pass of the client. The response ends when it is no longer valid.
    pub(super) pass: Pass,
    /// The capability's side of the conversation.
    pub(super) protocol: Box<dyn FeedProtocol>,
    /// Counts the reader in a gauge.
    _counted: Option<Held>,
}

impl FeedOptions {
    /// Options for a client with a valid pass, which is checked from now on.
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

    /// Counts the reader in a gauge for as long as the feed lives.
    #[must_use]
    pub fn counted(self, counted: Held) -> Self {
        Self { _counted: Some(counted), ..self }
    }

    /// Tolerates lag: once the reader has caught up, it is too slow only if it is more than `max_lag` records
    /// behind and takes nothing, or more than ten times as many behind.
    #[must_use]
    pub fn with_max_lag(self, max_lag: u64) -> Self {
        let bounds = Bounds { max_lag: Some(max_lag), ..self.bounds };
        Self { bounds, ..self }
    }

    /// Sends a heartbeat after this much silence. A WebSocket client that is silent for three times as long
    /// is cut.
    #[must_use]
    pub fn with_heartbeat(self, heartbeat: Duration) -> Self {
        let patience = websocket::Patience { ping_after: heartbeat, dead_after: heartbeat * 3 };
        Self { heartbeat: Some(heartbeat), patience, ..self }
    }

    /// Sets the capability's side of the conversation.
    #[must_use]
    pub fn with_protocol(self, protocol: Box<dyn FeedProtocol>) -> Self {
        Self { protocol, ..self }
    }
}

/// When a reader is too slow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Time for which it may take none of its pending data.
    stall: Duration,
    /// Number of records by which it may lag once it has caught up; `None` for any.
    max_lag: Option<u64>,
}

impl Bounds {
    /// Whether a reader is too slow that has taken nothing for `stuck` and lags by `lag` (`None` until it
    /// caught up once).
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
        let tolerant = Bounds { stall, max_lag: Some(5000) };
        for (stuck, lag, slow) in [
            (seconds(60), Some(5000), false),
            (seconds(5), Some(5001), true),
            (seconds(4), Some(5001), false),
            (None, Some(50_000), false),
            (None, Some(50_001), true),
            (seconds(5), None, true),
            (seconds(4), None, false),
        ] {
            assert_eq!(tolerant.exceeded(stuck, lag), slow, "{stuck:?} {lag:?}");
        }
    }
}
