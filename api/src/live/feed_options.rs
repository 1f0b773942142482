//! Options of a feed: how long it lasts, heartbeats, and when its reader is too slow.

use std::time::Duration;

use tidings_auth::Denied;
use tidings_engine::metrics::GaugeGuard;
use tidings_model::{Timestamp, limits};

use super::pass_handle::PassHandle;
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
    pub(super) timeouts: websocket::Timeouts,
    /// Time for which a WebSocket client may send nothing before the feed ends; `None` if only `timeouts` count.
    pub(super) silence: Option<Duration>,
    /// Whether a client is not held to be silent while it is not read from, or cannot have seen a ping.
    pub(super) excuses_blocked: bool,
    /// Limits of a WebSocket's messages once it is decided where the client begins; `None` if they stay as they are.
    pub(super) begun_limits: Option<websocket::Limits>,
    /// Time for which the last texts are offered after the end, however slowly they are taken; `None` for the usual
    /// time since something was taken.
    pub(super) grace: Option<Duration>,
    /// The pass of the client. The response ends when the current one is no longer valid.
    pub(super) pass: PassHandle,
    /// The capability's side of the conversation.
    pub(super) protocol: Box<dyn FeedProtocol>,
    /// Counts the reader in a gauge.
    _counted: Option<GaugeGuard>,
}

impl FeedOptions {
    /// Options for a client with a valid pass, which is checked from now on. A protocol that replaces the pass passes a
    /// clone of its handle.
    pub fn new(
        lasts: Option<Duration>,
        slow: Duration,
        pass: impl Into<PassHandle>,
        now: Timestamp,
    ) -> Result<Self, Denied> {
        let pass = pass.into();
        if !pass.holds(now) {
            return Err(Denied::Revoked);
        }
        Ok(Self {
            lasts,
            began: now,
            bounds: Bounds { stall: slow, max_lag: None },
            heartbeat: None,
            timeouts: websocket::Timeouts::default(),
            silence: None,
            excuses_blocked: false,
            begun_limits: None,
            grace: None,
            pass,
            protocol: Box::new(Plain),
            _counted: None,
        })
    }

    /// Counts the reader in a gauge for as long as the feed lives.
    #[must_use]
    pub fn counted(self, counted: GaugeGuard) -> Self {
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
        let timeouts = websocket::Timeouts { ping_after: heartbeat, dead_after: heartbeat * 3 };
        Self { heartbeat: Some(heartbeat), timeouts, ..self }
    }

    /// Pings a WebSocket client that is silent for `ping_after`, and ends the feed after `silence`, with last
    /// texts. Must be called after [`FeedOptions::with_heartbeat`], if both are.
    #[must_use]
    pub fn with_pings(self, ping_after: Duration, silence: Duration) -> Self {
        // A client that does not take the last texts either is cut.
        let timeouts = websocket::Timeouts { ping_after, dead_after: silence + limits::FINAL_TEXTS_TIMEOUT };
        Self { timeouts, silence: Some(silence), ..self }
    }

    /// Does not count the silence of a client whose socket is blocked, so that it cannot have seen a ping, or that is not
    /// read from.
    #[must_use]
    pub fn excusing_blocked(self) -> Self {
        Self { excuses_blocked: true, ..self }
    }

    /// Gives a WebSocket other limits once it is decided where its client begins.
    #[must_use]
    pub fn with_begun_limits(self, limits: websocket::Limits) -> Self {
        Self { begun_limits: Some(limits), ..self }
    }

    /// Drops the connection so long after the end, however slowly the last texts are taken.
    #[must_use]
    pub fn with_grace(self, grace: Duration) -> Self {
        Self { grace: Some(grace), ..self }
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
