//! From history to live, written once.
//!
//! A [`Follower`] hears every record after its position, in order, once: first what is there, then what
//! comes. It listens before it reads, so what is appended in between is in the read or wakes it.

use std::sync::Arc;

use tidings_model::{LogId, Position};

use crate::log::{Logs, Page, ReadError, Span};
use crate::{Bus, Listener};

/// What can be read from any position on: a log, or what a capability makes of several.
pub trait History: Send + Sync {
    /// Why it cannot be read.
    type Error;

    /// Records in order. The page's status is that of the log in which new records come.
    fn read(&self, span: Span) -> impl Future<Output = Result<Page, Self::Error>> + Send;
}

/// One log by itself.
pub struct Log<L: ?Sized> {
    logs: Arc<L>,
    log: LogId,
}

impl<L: Logs + ?Sized> History for Log<L> {
    type Error = ReadError;

    async fn read(&self, span: Span) -> Result<Page, ReadError> {
        self.logs.read(self.log, span).await
    }
}

/// One reader, from a position on.
pub struct Follower<H> {
    history: H,
    after: Position,
    listener: Listener,
}

impl<L: Logs + ?Sized> Follower<Log<L>> {
    /// Follows one log by itself.
    pub fn of_log(logs: Arc<L>, bus: &Bus, log: LogId, after: Position) -> Self {
        Self::new(Log { logs, log }, bus, log, after)
    }
}

impl<H: History> Follower<H> {
    /// Follows a history whose new records come in `log`, from the first record after the position.
    pub fn new(history: H, bus: &Bus, log: LogId, after: Position) -> Self {
        // Before the first read: a record appended in between would be in neither.
        let listener = bus.listen(log);
        Self { history, after, listener }
    }

    /// What is followed.
    pub fn history(&self) -> &H {
        &self.history
    }

    /// Position of the last record heard.
    pub fn position(&self) -> Position {
        self.after
    }

    /// Goes on from another position.
    pub fn seek(&mut self, after: Position) {
        self.after = after;
    }

    /// What there is now: records, or none at the tail. Does not wait for more.
    pub async fn poll(&mut self, bytes: usize) -> Result<Page, H::Error> {
        let page = self.history.read(Span { bytes, ..Span::after(self.after) }).await?;
        self.after = page.last(self.after);
        Ok(page)
    }

    /// The next records; waits for them at the tail. A page without records means the log is closed and
    /// all of it was heard. Nothing is lost when the caller stops waiting.
    pub async fn next(&mut self, bytes: usize) -> Result<Page, H::Error> {
        loop {
            let page = self.poll(bytes).await?;
            if !page.records.is_empty() || page.status.closed {
                return Ok(page);
            }
            self.listener.woken().await;
        }
    }
}
