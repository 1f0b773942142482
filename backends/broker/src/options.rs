//! Limits of a bus, and what it is given by the server.

use std::sync::Arc;
use std::time::Duration;

use tidings_engine::{Clock, Metrics, Rng};
use tidings_model::limits;

/// Limits of a bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of messages that wait to be sent. Default: 64 MiB.
    pub queue_bytes: usize,
    /// Number of messages that wait to be sent. Default: 65,536.
    pub queue_messages: usize,
    /// Time that a message may wait to be sent. Default: 1 s.
    pub queue_timeout: Duration,
    /// Time that the broker may take to answer a command. Default: 5 s.
    pub answer_timeout: Duration,
    /// Time that connecting may take. Default: 5 s.
    pub connect_timeout: Duration,
    /// Time without a sign of life of the broker after which it is asked for one. Default: 5 s.
    pub ping_after: Duration,
    /// Shortest pause before connecting again. It doubles with each failure. Default: 100 ms.
    pub pause_min: Duration,
    /// Longest pause before connecting again. Default: 5 s.
    pub pause_max: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue_bytes: limits::BUS_QUEUE_BYTES,
            queue_messages: limits::BUS_QUEUE_MESSAGES,
            queue_timeout: Duration::from_secs(1),
            answer_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            ping_after: Duration::from_secs(5),
            pause_min: Duration::from_millis(100),
            pause_max: Duration::from_secs(5),
        }
    }
}

/// What a bus is given by the server.
#[derive(Clone)]
pub struct Context {
    /// Source of timers.
    pub clock: Arc<dyn Clock>,
    /// Random numbers, for the pauses before connecting again.
    pub rng: Arc<Rng>,
    /// Registry of metrics.
    pub metrics: Metrics,
}
