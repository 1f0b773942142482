//! A feed as a body that is polled: for TLS, HTTP/2 and later requests of a connection.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::Frame;
use tidings_engine::Clock;
use tidings_model::Timestamp;

use super::conduit::Conduit;
use super::feed::{Ask, End, Feed};
use super::lives::{Life, Lives};

/// The body.
pub struct LiveBody(Arc<Shared>);

struct Shared {
    feed: Mutex<Feed>,
    clock: Arc<dyn Clock>,
    task: AtomicWaker,
    conduit: Option<Conduit>,
}

impl LiveBody {
    pub fn new(feed: Feed, clock: Arc<dyn Clock>, conduit: Option<Conduit>, lives: &Lives) -> Self {
        if let Some(conduit) = &conduit {
            conduit.watch(true);
        }
        let shared = Arc::new(Shared { feed: Mutex::new(feed), clock, task: AtomicWaker::new(), conduit });
        lives.enter(shared.clone());
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
        // Being asked for more means that the last was taken.
        feed.taken();
        if shared.conduit.as_ref().is_some_and(Conduit::has_left) {
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
        if let Some(conduit) = &self.0.conduit {
            conduit.watch(false);
        }
    }
}

impl Shared {
    /// Also after a panic while sending: then it is only let go.
    fn feed(&self) -> MutexGuard<'_, Feed> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Life for Shared {
    fn tick(self: Arc<Self>, now: Timestamp) {
        let ask = self.feed().tick(now);
        match ask {
            Ask::Nothing => {}
            Ask::Send => self.task.wake(),
            // It is not polled, so it cannot end by itself.
            Ask::Cut => {
                let Some(conduit) = &self.conduit else { return };
                if self.feed().ended_for(now) >= conduit.forbearance() {
                    conduit.cut();
                }
            }
        }
    }

    fn drain(self: Arc<Self>, now: Timestamp) {
        self.feed().end(End::Draining, now);
        self.task.wake();
    }

    fn cut(&self) {
        if let Some(conduit) = &self.conduit {
            conduit.cut();
        }
    }
}
