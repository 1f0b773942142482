use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use tidings_model::limits;
use tokio::sync::Notify;

/// The connection under a request, put into it by whoever serves the connection.
#[derive(Clone)]
pub struct Conduit {
    cut: Arc<Notify>,
    /// Whether other requests may be under way on it.
    shared: bool,
    /// Counts the connection; held for as long as anything of it is used.
    held: Arc<dyn Any + Send + Sync>,
}

impl Conduit {
    /// A connection that is counted by what is held.
    pub fn new(held: Arc<dyn Any + Send + Sync>) -> Self {
        Self { cut: Arc::default(), shared: false, held }
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
        self.cut.notify_one();
    }

    /// Resolves when somebody has asked for that.
    pub async fn is_cut(&self) {
        self.cut.notified().await;
    }

    /// What counts the connection.
    pub(super) fn held(&self) -> Arc<dyn Any + Send + Sync> {
        self.held.clone()
    }
}
