//! What the application does with what comes, and what it is told.

use std::time::Duration;

use super::{Cursor, Event, Info};

/// The application's part.
pub trait Handler: Send {
    /// Why an event could not be handled. It ends the client.
    type Error: Into<Box<dyn std::error::Error + Send + Sync>>;

    /// Handles an event. The next one waits for it, and its cursor is stored when this has succeeded. It should take less
    /// than a heartbeat, 15 seconds: meanwhile nothing is read, and a WebSocket's pings are not answered.
    fn event(&mut self, event: &Event) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Events were missed for good: they are not kept any more, or the reader's cursor is of another history. Whoever shows
    /// a conversation says so, or loads it anew.
    fn skipped(&mut self, skip: &Skip) {
        let _ = skip;
    }

    /// The server said something about the stream.
    fn info(&mut self, info: &Info) {
        let _ = info;
    }

    /// The client has entered a state.
    fn state(&mut self, state: &ConnectionState) {
        let _ = state;
    }
}

/// Why events were missed, and what the server still has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// What the server calls it: `CursorCompacted`, `FutureCursor`, `compacted`, `reset`.
    pub name: String,
    /// The last position that is not kept any more.
    pub floor: Option<Cursor>,
    /// The first one that is.
    pub oldest: Option<Cursor>,
    /// The newest one.
    pub head: Option<Cursor>,
}

impl Skip {
    pub(super) fn of(name: &str, detail: &serde_json::Value) -> Self {
        let cursor = |field: &str| detail[field].as_str().and_then(|text| text.parse().ok());
        Self { name: name.to_owned(), floor: cursor("floor"), oldest: cursor("oldest"), head: cursor("head") }
    }
}

/// What the client does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// Nothing: it has not begun, or it has stopped.
    Disconnected,
    /// It asks for the stream.
    Connecting,
    /// The stream is open.
    Streaming,
    /// It waits before it connects again.
    Backoff {
        /// For so long.
        wait: Duration,
        /// What happened.
        why: Why,
    },
}

/// Why the client waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It took too little for too long.
    SlowConsumer,
    /// The stream came to its end.
    Ended,
    /// The server stops.
    ServerRestart,
    /// Its cursor was refused, and it goes on at the head.
    Skipped,
    /// Its token was refused, and it has another one.
    TokenRefused,
    /// The server cannot serve it now; the status.
    Unavailable(u16),
    /// Whatever else can happen between two machines.
    Network(String),
}
