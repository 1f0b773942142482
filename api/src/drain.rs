//! Graceful shutdown: lets handlers end requests that wait for new records.

use tokio::sync::watch;

/// Announces the shutdown; held by the server.
#[derive(Debug)]
pub struct Drain(watch::Sender<bool>);

/// Observes the shutdown; held by the handlers.
#[derive(Clone, Debug)]
pub struct Drained(watch::Receiver<bool>);

impl Drain {
    /// Creates a connected pair.
    pub fn new() -> (Self, Drained) {
        let (tx, rx) = watch::channel(false);
        (Self(tx), Drained(rx))
    }

    /// Announces the shutdown to all current and future waiters.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }
}

impl Drained {
    /// Returns whether the server is shutting down.
    pub fn is_draining(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the server shuts down. Never resolves if the [`Drain`] was dropped without announcing it.
    pub async fn wait(&mut self) {
        if self.0.wait_for(|&draining| draining).await.is_err() {
            std::future::pending().await
        }
    }
}
