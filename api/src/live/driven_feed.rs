//! A feed that somebody else drives: hyper by polling a body, or a task that has an upgraded connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tidings_auth::Revocation;
use tidings_engine::Clock;
use tidings_model::Timestamp;

use super::connection_handle::ConnectionHandle;
use super::connections::{Cut, LiveConnection};
use super::feed::{Ask, End, Feed};

/// A feed with the task that drives it and the way to close its connection.
pub(super) struct DrivenFeed<C> {
    feed: Mutex<Feed>,
    pub(super) clock: Arc<dyn Clock>,
    /// The task that sends; it is woken when there is something to do.
    pub(super) task: AtomicWaker,
    pub(super) closer: C,
}

/// Closes the connection under a feed whose client takes nothing.
pub(super) trait Closer: Send + Sync {
    /// Asks for the connection to be closed.
    fn close(&self);

    /// Time that a feed which has ended may take longer than others, because its connection is shared.
    fn extra_time(&self) -> Duration {
        Duration::ZERO
    }
}

/// The connection of hyper under a body, if it can be cut.
impl Closer for Option<ConnectionHandle> {
    fn close(&self) {
        if let Some(handle) = self {
            handle.cut();
        }
    }

    fn extra_time(&self) -> Duration {
        self.as_ref().map_or(Duration::ZERO, ConnectionHandle::extra_time)
    }
}

/// A flag that the driving task looks at when it is woken.
impl Closer for AtomicBool {
    fn close(&self) {
        self.store(true, Ordering::SeqCst);
    }
}

impl<C> DrivenFeed<C> {
    pub(super) fn new(feed: Feed, clock: Arc<dyn Clock>, closer: C) -> Arc<Self> {
        Arc::new(Self { feed: Mutex::new(feed), clock, task: AtomicWaker::new(), closer })
    }

    /// Locks the feed, ignoring poison: after a panic while sending it is only released.
    pub(super) fn feed(&self) -> MutexGuard<'_, Feed> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Closer> LiveConnection for DrivenFeed<C> {
    fn tick(self: Arc<Self>, now: Timestamp) {
        let ask = self.feed().tick(now);
        match ask {
            Ask::Nothing => {}
            Ask::Send => self.task.wake(),
            // Whoever drives it is stuck, so only closing the connection ends it.
            Ask::Cut => {
                if self.feed().ended_for(now) >= self.closer.extra_time() {
                    self.cut();
                }
            }
        }
    }

    fn drain(self: Arc<Self>, now: Timestamp) {
        self.feed().end(End::Draining, now);
        self.task.wake();
    }

    fn revoke(self: Arc<Self>, revocation: &Revocation, now: Timestamp) -> Cut {
        let cut = self.feed().revoke(revocation, now);
        if cut != Cut::default() {
            self.task.wake();
        }
        cut
    }

    fn cut(&self) {
        self.closer.close();
        self.task.wake();
    }
}
