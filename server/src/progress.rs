//! A connection whose other side must take what it is sent: one that stops reading does not hold its answer for ever.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tidings_engine::LimitHits;
use tidings_model::limits::Limit;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Ends with an error when a write waits for longer than it may. One that nothing is written to may stay.
pub struct Progress<I> {
    io: I,
    patience: Patience,
}

impl<I> Progress<I> {
    /// Waits for at most so long until something is taken.
    pub fn new(io: I, timeout: Duration, limit_hits: LimitHits) -> Self {
        Self { io, patience: Patience { timeout, limit_hits, waits: Waits::Not } }
    }
}

struct Patience {
    timeout: Duration,
    limit_hits: LimitHits,
    waits: Waits,
}

enum Waits {
    Not,
    /// Since something could not be written. There is no timer as long as all that is written is taken.
    Until(Pin<Box<Sleep>>),
    TooLong,
}

impl Patience {
    /// What came of a write, or the error of one that has waited for too long.
    fn judge<T>(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.waits = Waits::Not;
            return wrote;
        }
        let timeout = self.timeout;
        if matches!(self.waits, Waits::Not) {
            self.waits = Waits::Until(Box::pin(sleep(timeout)));
        }
        if let Waits::Until(due) = &mut self.waits {
            if due.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.limit_hits.count(Limit::WriteTime);
            self.waits = Waits::TooLong;
        }
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the other side takes nothing")))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Progress<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Progress<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.patience.judge(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.io).poll_write_vectored(cx, parts);
        self.patience.judge(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.patience.judge(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.patience.judge(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_engine::Metrics;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const SOON: Duration = Duration::from_millis(50);

    #[tokio::test]
    async fn a_write_that_nobody_takes_ends_and_one_that_is_taken_goes_on() {
        let (ours, mut theirs) = tokio::io::duplex(4);
        let mut io = Progress::new(ours, SOON, LimitHits::new(&Metrics::new()));
        io.write_all(b"1234").await.expect("there is room");
        assert!(matches!(io.patience.waits, Waits::Not), "there is no timer for it");
        let read = tokio::spawn(async move {
            let mut taken = [0; 8];
            theirs.read_exact(&mut taken).await.expect("all of it");
            (taken, theirs)
        });
        io.write_all(b"5678").await.expect("it is taken");
        let (taken, _theirs) = read.await.expect("no panic");
        assert_eq!(&taken, b"12345678");
        io.write_all(b"1234").await.expect("there is room");
        let error = io.write_all(b"5").await.expect_err("nobody takes it");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
