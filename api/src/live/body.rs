//! A feed as a body that is polled: for TLS, HTTP/2 and later requests of a connection.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::Frame;
use tidings_engine::Clock;
use tidings_model::Timestamp;
use tokio::sync::Notify;

use super::feed::{Ask, End, Feed};
use super::lives::{Life, Lives};

/// Put into a request by whoever can cut its connection: a body that is not polled cannot end by itself.
#[derive(Clone, Debug, Default)]
pub struct Cut(pub Arc<Notify>);

/// The body.
pub struct LiveBody(Arc<Shared>);

struct Shared {
    feed: Mutex<Feed>,
    clock: Arc<dyn Clock>,
    task: AtomicWaker,
    cut: Option<Cut>,
}

impl LiveBody {
    pub fn new(feed: Feed, clock: Arc<dyn Clock>, cut: Option<Cut>, lives: &Lives) -> Self {
        let shared = Arc::new(Shared { feed: Mutex::new(feed), clock, task: AtomicWaker::new(), cut });
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
        feed.sent(0);
        let Poll::Ready(outbox) = feed.poll_outbox(cx, || shared.clock.now()) else { return Poll::Pending };
        let piece = outbox.pop();
        if piece.is_some() {
            feed.stuck(shared.clock.now());
        }
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }
}

impl Drop for LiveBody {
    fn drop(&mut self) {
        self.0.feed().abandon();
    }
}

impl Shared {
    fn feed(&self) -> MutexGuard<'_, Feed> {
        self.feed.lock().expect("nobody panics while sending")
    }
}

impl Life for Shared {
    fn tick(self: Arc<Self>, now: Timestamp) {
        let ask = self.feed().tick(now);
        match ask {
            Ask::Nothing => {}
            Ask::Send => self.task.wake(),
            Ask::Cut => {
                if let Some(Cut(cut)) = &self.cut {
                    cut.notify_one();
                }
            }
        }
    }

    fn drain(self: Arc<Self>, now: Timestamp) {
        self.feed().end(End::Draining, now);
        self.task.wake();
    }
}
