//! [`Handler`], the application's side of the client.

use std::time::Duration;

use super::{Cursor, Event, Info};

/// Receives events and notifications of a [`Client`](super::Client).
pub trait Handler: Send {
    /// Error of handling an event. It stops the client.
    type Error: Into<Box<dyn std::error::Error + Send + Sync>>;

    /// Handles an event. The next event waits for it, and the cursor is stored after it has succeeded. It
    /// should take less than a heartbeat, 15 seconds: meanwhile nothing is read, and pings of a WebSocket are
    /// not answered.
    fn event(&mut self, event: &Event) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Called when events were missed for good: they are no longer stored, or the reader's cursor belongs to
    /// another history. An application that shows a conversation should say so, or reload it.
    fn skipped(&mut self, skip: &MissedEvents) {
        let _ = skip;
    }

    /// Called for each info of the server about the stream.
    fn info(&mut self, info: &Info) {
        let _ = info;
    }

    /// Called when the client enters a state.
    fn state(&mut self, state: &ConnectionState) {
        let _ = state;
    }
}

/// Why events were missed, and what the server still has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissedEvents {
    /// Name of the error or reason: `CursorCompacted`, `FutureCursor`, `compacted` or `reset`.
    pub name: String,
    /// Last position that is no longer stored.
    pub floor: Option<Cursor>,
    /// First position that is still stored.
    pub oldest: Option<Cursor>,
    /// Newest position.
    pub head: Option<Cursor>,
}

impl MissedEvents {
    pub(super) fn of(name: &str, detail: &serde_json::Value) -> Self {
        let cursor = |field: &str| detail[field].as_str().and_then(|text| text.parse().ok());
        Self { name: name.to_owned(), floor: cursor("floor"), oldest: cursor("oldest"), head: cursor("head") }
    }
}

/// State of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// Not started, or stopped.
    Disconnected,
    /// Requesting the stream.
    Connecting,
    /// The stream is open.
    Streaming,
    /// Waiting before the next connection.
    Backoff {
        /// Time to wait.
        wait: Duration,
        /// Reason to wait.
        why: BackoffReason,
    },
}

/// Why the client waits before it connects again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackoffReason {
    /// The server ended the stream because the client read too little for too long.
    SlowConsumer,
    /// The stream ended normally.
    Ended,
    /// The server is stopping.
    ServerRestart,
    /// The cursor was refused; the client continues at the head.
    Skipped,
    /// The token was refused; the client has a new one.
    TokenRefused,
    /// The server cannot serve the request now; the value is the status.
    Unavailable(u16),
    /// The connection failed; the value is the error.
    Network(String),
}
