//! A feed as a response body that hyper polls: for TLS, HTTP/2 and later requests of a connection.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::Frame;
use tidings_engine::Clock;
use tidings_model::Timestamp;

use super::connection_handle::ConnectionHandle;
use super::connections::{LiveConnection, LiveConnections};
use super::feed::{Ask, End, Feed};

/// The body of a live response.
pub struct LiveBody(Arc<PolledFeed>);

struct PolledFeed {
    feed: Mutex<Feed>,
    clock: Arc<dyn Clock>,
    task: AtomicWaker,
    connection_handle: Option<ConnectionHandle>,
}

impl LiveBody {
    pub fn new(
        feed: Feed,
        clock: Arc<dyn Clock>,
        connection_handle: Option<ConnectionHandle>,
        live_connections: &LiveConnections,
    ) -> Self {
        if let Some(connection_handle) = &connection_handle {
            connection_handle.watch(true);
        }
        let shared = Arc::new(PolledFeed {
            feed: Mutex::new(feed),
            clock,
            task: AtomicWaker::new(),
            connection_handle,
        });
        live_connections.enter(shared.clone());
        Self(shared)
    }
}

impl http_body::Body for LiveBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let shared = &self.0;
        shared.task.register(cx.waker());
        let mut feed = shared.feed();
        // Being polled again means that the last chunk was taken.
        feed.taken();
        if shared.connection_handle.as_ref().is_some_and(ConnectionHandle::has_left) {
            feed.leave();
        }
        if feed.poll_outbox(cx, || shared.clock.now()).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(feed.give(shared.clock.now()).map(|piece| Ok(Frame::data(piece))))
    }
}

impl Drop for LiveBody {
    fn drop(&mut self) {
        self.0.feed().abandon();
        if let Some(connection_handle) = &self.0.connection_handle {
            connection_handle.watch(false);
        }
    }
}

impl PolledFeed {
    /// Locks the feed, ignoring poison: after a panic while sending it is only released.
    fn feed(&self) -> MutexGuard<'_, Feed> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveConnection for PolledFeed {
    fn tick(self: Arc<Self>, now: Timestamp) {
        let ask = self.feed().tick(now);
        match ask {
            Ask::Nothing => {}
            Ask::Send => self.task.wake(),
            // The body is not polled, so only cutting the connection ends it.
            Ask::Cut => {
                let Some(connection_handle) = &self.connection_handle else { return };
                if self.feed().ended_for(now) >= connection_handle.extra_patience() {
                    connection_handle.cut();
                }
            }
        }
    }

    fn drain(self: Arc<Self>, now: Timestamp) {
        self.feed().end(End::Draining, now);
        self.task.wake();
    }

    fn cut(&self) {
        if let Some(connection_handle) = &self.connection_handle {
            connection_handle.cut();
        }
    }
}
