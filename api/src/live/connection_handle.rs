//! A handle of the connection under a request: to cut it, and to learn whether the client is there.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidings_model::limits;
use tokio::sync::Notify;

/// The connection of a request, as an extension that the server sets.
#[derive(Clone)]
pub struct ConnectionHandle {
    line: Arc<Line>,
    /// Whether other requests may be in flight on the connection.
    shared: bool,
    /// Counts the connection; held as long as any part of it is in use.
    held: Arc<dyn Any + Send + Sync>,
}

#[derive(Default)]
struct Line {
    cut: Notify,
    /// Set while a live response is on the connection, so that the server watches whether the client is there.
    watched: AtomicBool,
    /// Set when the client has closed its side.
    left: AtomicBool,
    /// Set when the connection has become a WebSocket, which has a limit of its own for a client that takes nothing.
    limits_itself: AtomicBool,
}

impl ConnectionHandle {
    /// A handle of a connection that is counted by `held`.
    pub fn new(held: Arc<dyn Any + Send + Sync>) -> Self {
        Self { line: Arc::default(), shared: false, held }
    }

    /// Marks the connection as one with concurrent requests.
    #[must_use]
    pub fn shared(self) -> Self {
        Self { shared: true, ..self }
    }

    /// Extra time for a reader that takes nothing, because the connection is shared with other requests.
    pub(super) fn extra_time(&self) -> Duration {
        if self.shared { limits::IDLE_TIMEOUT } else { Duration::ZERO }
    }

    /// Asks for the connection to be cut.
    pub fn cut(&self) {
        self.line.cut.notify_one();
    }

    /// Waits until somebody asks for the connection to be cut.
    pub async fn is_cut(&self) {
        self.line.cut.notified().await;
    }

    /// Sets whether a live response is on the connection.
    pub(super) fn watch(&self, watched: bool) {
        self.line.watched.store(watched, Ordering::Relaxed);
    }

    /// Whether a live response is on the connection. If so, the server checks whether the client is still
    /// there: nothing else reads from the connection, and nothing may be written for long.
    pub fn is_watched(&self) -> bool {
        self.line.watched.load(Ordering::Relaxed)
    }

    /// Reports that the client has closed its side. It may be gone, or still read.
    pub fn leave(&self) {
        self.line.left.store(true, Ordering::Relaxed);
    }

    /// Whether the client has closed its side.
    pub(super) fn has_left(&self) -> bool {
        self.line.left.load(Ordering::Relaxed)
    }

    /// Reports that the connection has become a WebSocket.
    pub(super) fn limit_itself(&self) {
        self.line.limits_itself.store(true, Ordering::Relaxed);
    }

    /// Whether the connection has a limit of its own for a client that takes nothing, so that the server's does not apply.
    pub fn limits_itself(&self) -> bool {
        self.line.limits_itself.load(Ordering::Relaxed)
    }

    /// The value that counts the connection.
    pub(super) fn held(&self) -> Arc<dyn Any + Send + Sync> {
        self.held.clone()
    }
}
