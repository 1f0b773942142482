use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidings_model::limits;
use tokio::sync::Notify;

/// The connection under a request, put into it by whoever serves the connection.
#[derive(Clone)]
pub struct ConnectionHandle {
    line: Arc<Line>,
    /// Whether other requests may be under way on it.
    shared: bool,
    /// Counts the connection; held for as long as anything of it is used.
    held: Arc<dyn Any + Send + Sync>,
}

#[derive(Default)]
struct Line {
    cut: Notify,
    /// An answer stays on it, so it is worth knowing whether the client is there.
    watched: AtomicBool,
    /// The client sends nothing more.
    left: AtomicBool,
}

impl ConnectionHandle {
    /// A connection that is counted by what is held.
    pub fn new(held: Arc<dyn Any + Send + Sync>) -> Self {
        Self { line: Arc::default(), shared: false, held }
    }

    /// The same, on which requests overlap.
    #[must_use]
    pub fn shared(self) -> Self {
        Self { shared: true, ..self }
    }

    /// How much longer than others one reader that takes nothing is borne, because the connection is not its own.
    pub(super) fn forbearance(&self) -> Duration {
        if self.shared { limits::IDLE_TIMEOUT } else { Duration::ZERO }
    }

    /// Asks for the connection to be cut.
    pub fn cut(&self) {
        self.line.cut.notify_one();
    }

    /// Resolves when somebody has asked for that.
    pub async fn is_cut(&self) {
        self.line.cut.notified().await;
    }

    /// An answer stays on it from now on, or does no longer.
    pub(super) fn watch(&self, watched: bool) {
        self.line.watched.store(watched, Ordering::Relaxed);
    }

    /// Whether an answer stays on it. Whoever has the connection then looks whether the client still does: nobody reads from
    /// it, and nothing may be written for long.
    pub fn is_watched(&self) -> bool {
        self.line.watched.load(Ordering::Relaxed)
    }

    /// The client has closed its side. It may have gone, or wait for what there is.
    pub fn leave(&self) {
        self.line.left.store(true, Ordering::Relaxed);
    }

    /// Whether the client has closed its side.
    pub(super) fn has_left(&self) -> bool {
        self.line.left.load(Ordering::Relaxed)
    }

    /// What counts the connection.
    pub(super) fn held(&self) -> Arc<dyn Any + Send + Sync> {
        self.held.clone()
    }
}
