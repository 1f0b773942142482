//! Stopping without leaving a reader waiting.

use tokio::sync::watch;

/// The server's side: says when to stop.
#[derive(Debug)]
pub struct Drain(watch::Sender<bool>);

/// The handlers' side: waits for it.
#[derive(Clone, Debug)]
pub struct Drained(watch::Receiver<bool>);

impl Drain {
    /// A pair of both sides.
    pub fn new() -> (Self, Drained) {
        let (tx, rx) = watch::channel(false);
        (Self(tx), Drained(rx))
    }

    /// Tells all who wait, now and later.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }
}

impl Drained {
    /// Whether the server is about to stop.
    pub fn is_draining(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves when the server is about to stop. Never, when the other side has gone without saying so.
    pub async fn wait(&mut self) {
        if self.0.wait_for(|&draining| draining).await.is_err() {
            std::future::pending().await
        }
    }
}
