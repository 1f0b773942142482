//! A feed as a response body that hyper polls: for TLS, HTTP/2 and later requests of a connection.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use tidings_engine::Clock;

use super::connection_handle::ConnectionHandle;
use super::connections::LiveConnections;
use super::driven_feed::DrivenFeed;
use super::feed::Feed;

/// The body of a live response.
pub struct LiveBody(Arc<DrivenFeed<Option<ConnectionHandle>>>);

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
        let shared = DrivenFeed::new(feed, clock, connection_handle);
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
        if shared.closer.as_ref().is_some_and(ConnectionHandle::has_left) {
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
        if let Some(connection_handle) = &self.0.closer {
            connection_handle.watch(false);
        }
    }
}
