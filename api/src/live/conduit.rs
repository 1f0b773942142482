use std::any::Any;
use std::sync::Arc;

use tokio::sync::Notify;

/// The connection under a request, put into it by whoever serves the connection.
#[derive(Clone)]
pub struct Conduit {
    cut: Arc<Notify>,
    /// Counts the connection; held for as long as anything of it is used.
    held: Arc<dyn Any + Send + Sync>,
}

impl Conduit {
    /// A connection that is counted by what is held.
    pub fn new(held: Arc<dyn Any + Send + Sync>) -> Self {
        Self { cut: Arc::default(), held }
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
