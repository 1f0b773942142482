//! A feed on an upgraded connection of hyper: a WebSocket over TLS, or on a connection that was used before.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tidings_engine::Clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connections::LiveConnections;
use super::driven_feed::DrivenFeed;
use super::feed::Feed;
use super::outbox::CHUNKS;

/// Bytes read at a time.
const READ_BYTES: usize = 4096;

/// Drives a feed until it or the client ends. Both are released when this returns or is dropped.
pub async fn serve(
    mut io: impl AsyncRead + AsyncWrite + Unpin,
    feed: Feed,
    clock: Arc<dyn Clock>,
    live_connections: &LiveConnections,
) {
    let begin_deadline = feed.begin_deadline();
    let shared = DrivenFeed::new(feed, clock, AtomicBool::new(false));
    if let Some(at) = begin_deadline {
        LiveConnections::tick_at(&shared, at, shared.clock.clone());
    }
    live_connections.enter(shared.clone());
    let serving = Serving(shared);
    // An error ends the connection like anything else.
    let _ = std::future::poll_fn(|cx| serving.0.poll(cx, Pin::new(&mut io))).await;
}

impl DrivenFeed<AtomicBool> {
    fn poll<T: AsyncRead + AsyncWrite>(
        &self,
        cx: &mut Context<'_>,
        mut io: Pin<&mut T>,
    ) -> Poll<io::Result<()>> {
        self.task.register(cx.waker());
        if self.closer.load(Ordering::SeqCst) {
            return Poll::Ready(Ok(()));
        }
        loop {
            let reading = self.poll_read(cx, io.as_mut())?;
            let paused = reading.is_pending() && !self.feed().wants_input();
            // After the end, the client is still read until it closes; otherwise it might not receive the last
            // bytes.
            let _ = self.poll_write(cx, io.as_mut())?;
            // What was written may have been what the client had to take before more is read.
            if !paused || !self.feed().wants_input() {
                return reading.map(Ok);
            }
        }
    }

    /// Ready when the client is gone.
    fn poll_read<T: AsyncRead>(&self, cx: &mut Context<'_>, mut io: Pin<&mut T>) -> Poll<io::Result<()>> {
        loop {
            if !self.feed().wants_input() {
                return Poll::Pending;
            }
            let mut bytes = [0; READ_BYTES];
            let mut buffer = ReadBuf::new(&mut bytes);
            ready!(io.as_mut().poll_read(cx, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.feed().received(buffer.filled(), self.clock.now());
        }
    }

    /// Ready when everything was sent.
    fn poll_write<T: AsyncWrite>(&self, cx: &mut Context<'_>, mut io: Pin<&mut T>) -> Poll<io::Result<()>> {
        let mut feed = self.feed();
        loop {
            let Poll::Ready(outbox) = feed.poll_outbox(cx, || self.clock.now()) else {
                // Nothing is pending, so what was written must be flushed.
                ready!(io.as_mut().poll_flush(cx))?;
                return Poll::Pending;
            };
            if outbox.is_empty() {
                return if feed.hung_up { Poll::Pending } else { self.hang_up(cx, io, &mut feed) };
            }
            // In one vectored write if possible: with TLS, each write is a record of its own.
            let written = match outbox.only() {
                Some(piece) => io.as_mut().poll_write(cx, piece),
                None => io.as_mut().poll_write_vectored(cx, outbox.fill(&mut [IoSlice::new(&[]); CHUNKS])),
            };
            match written? {
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(bytes) => feed.sent(bytes),
                Poll::Pending => {
                    feed.stuck(self.clock.now());
                    return Poll::Pending;
                }
            }
        }
    }

    fn hang_up<T: AsyncWrite>(
        &self,
        cx: &mut Context<'_>,
        io: Pin<&mut T>,
        feed: &mut Feed,
    ) -> Poll<io::Result<()>> {
        ready!(io.poll_shutdown(cx))?;
        feed.hung_up = true;
        Poll::Pending
    }
}

/// Releases the subscription when dropped.
struct Serving(Arc<DrivenFeed<AtomicBool>>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.feed().abandon();
    }
}
