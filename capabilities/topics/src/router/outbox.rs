//! Outboxes: the frames that a connection is to be sent.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use tidings_engine::deliver::{BundleReader, Step};
use tokio_util::sync::CancellationToken;

/// Bytes that are taken at once.
const ROOM: usize = 64 * 1024;

/// The frames of one connection, replies first. The connection is closed when it is dropped.
pub struct Outbox {
    reader: BundleReader,
    taken: VecDeque<Bytes>,
    ended: CancellationToken,
    too_slow: bool,
}

impl Outbox {
    pub(crate) fn new(reader: BundleReader, ended: CancellationToken) -> Self {
        Self { reader, taken: VecDeque::new(), ended, too_slow: false }
    }

    /// The next frame, once there is one. `None` when the session is closed and everything was taken, or when the client
    /// has fallen too far behind.
    pub async fn next(&mut self) -> Option<Bytes> {
        let Self { reader, taken, ended, too_slow } = self;
        let mut ended = pin!(ended.cancelled());
        poll_fn(|cx| {
            if let Some(frame) = taken.pop_front() {
                return Poll::Ready(Some(frame));
            }
            // Before the frames are looked for: what comes before the end is taken.
            let over = ended.as_mut().poll(cx).is_ready();
            let mut take =
                |frame: &tidings_engine::deliver::Frame| taken.push_back(frame.bytes.clone().joined());
            match reader.poll_frames(cx, ROOM, &mut take) {
                Poll::Ready(Step::Frames) => Poll::Ready(taken.pop_front()),
                Poll::Ready(step) => {
                    *too_slow = step == Step::TooSlow;
                    Poll::Ready(None)
                }
                Poll::Pending if over => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Whether the client has fallen too far behind.
    pub fn is_too_slow(&self) -> bool {
        self.too_slow
    }
}
