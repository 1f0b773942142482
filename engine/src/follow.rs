//! From history to live, written once.
//!
//! A [`Follower`] hears every record after its position, in order, once: first what is there, then what
//! comes. It listens before it reads, so what is appended in between is in the read or wakes it.

use std::sync::Arc;

use tidings_model::{LogId, Position};

use crate::log::{Logs, Page, ReadError, Span};
use crate::{Bus, Listener};

/// One reader of one log, from a position on.
pub struct Follower<L: Logs + ?Sized> {
    logs: Arc<L>,
    log: LogId,
    after: Position,
    listener: Listener,
}

impl<L: Logs + ?Sized> Follower<L> {
    /// Follows a log from the first record after the position.
    pub fn new(logs: Arc<L>, bus: &Bus, log: LogId, after: Position) -> Self {
        // Before the first read: a record appended in between would be in neither.
        let listener = bus.listen(log);
        Self { logs, log, after, listener }
    }

    /// Position of the last record heard.
    pub fn position(&self) -> Position {
        self.after
    }

    /// What there is now: records, or none at the tail. Does not wait for more.
    pub async fn poll(&mut self, bytes: usize) -> Result<Page, ReadError> {
        let page = self.logs.read(self.log, Span { bytes, ..Span::after(self.after) }).await?;
        self.after = page.last(self.after);
        Ok(page)
    }

    /// The next records; waits for them at the tail. A page without records means the log is closed and
    /// all of it was heard. Nothing is lost when the caller stops waiting.
    pub async fn next(&mut self, bytes: usize) -> Result<Page, ReadError> {
        loop {
            let page = self.poll(bytes).await?;
            if !page.records.is_empty() || page.status.closed {
                return Ok(page);
            }
            self.listener.woken().await;
        }
    }
}
