//! A connection as hyper gets it. Its other side must take what it is sent: one that stops reading does not hold its answer
//! for ever. While an answer stays on it, it is seen when the client goes. And what hyper itself says to a request that it
//! cannot read is kept from the client, which is told more by whoever gets the connection back ([`Withheld`]).

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tidings_api::live::ConnectionHandle;
use tidings_engine::LimitHits;
use tidings_model::limits::Limit;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A connection under hyper. Ends with an error when a write waits for longer than it may; one that nothing is written to may
/// stay.
pub struct Progress<I> {
    /// None when it was given back.
    io: Option<I>,
    patience: Patience,
    /// Where to tell that the client has closed its side.
    connection_handle: Option<ConnectionHandle>,
    /// What was read to see whether the client is there.
    ahead: Ahead,
    /// The status that hyper chose by itself, once it has, and where the connection is given back.
    withheld: Option<(Option<u16>, Withheld<I>)>,
}

/// What comes of a request that hyper cannot read.
pub struct Withheld<I>(Arc<Mutex<Option<Unread<I>>>>);

/// The status that hyper chose for a request that it cannot read, and the connection.
type Unread<I> = (u16, Box<I>);

impl<I> Clone for Withheld<I> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<I> Default for Withheld<I> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<I> Withheld<I> {
    /// The status that hyper chose, and the connection, on which nothing was said about it yet.
    pub fn take(&self) -> Option<Unread<I>> {
        self.0.lock().expect("nobody panics while holding it").take()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ahead {
    Nothing,
    /// The client said something, which is read first.
    Byte(u8),
    /// The client sends nothing more.
    End,
}

impl<I> Progress<I> {
    /// Waits for at most so long until something is taken.
    pub fn new(io: I, timeout: Duration, limit_hits: LimitHits) -> Self {
        let patience = Patience { timeout, limit_hits, waits: Waits::Not };
        Self { io: Some(io), patience, connection_handle: None, ahead: Ahead::Nothing, withheld: None }
    }

    /// The same under HTTP/1.1: tells a connection_handle when the client has closed its side, and gives the connection back when hyper
    /// cannot read a request.
    #[must_use]
    pub fn telling(self, connection_handle: ConnectionHandle, withheld: Withheld<I>) -> Self {
        Self { connection_handle: Some(connection_handle), withheld: Some((None, withheld)), ..self }
    }

    /// Whether these bytes are hyper's own answer, which is kept from the client.
    fn withholds(&mut self, bytes: &[u8]) -> bool {
        let Some((status, _)) = &mut self.withheld else { return false };
        *status = status.or(refusal_of_hyper(bytes));
        status.is_some()
    }
}

/// The status of an answer that hyper gives by itself: an error without a body. Ours have a request id.
fn refusal_of_hyper(bytes: &[u8]) -> Option<u16> {
    const BYTES_MAX: usize = 256;
    let status = bytes.strip_prefix(b"HTTP/1.1 ")?.get(..3).filter(|status| status[0] == b'4')?;
    let head = std::str::from_utf8(bytes.get(..bytes.len().min(BYTES_MAX))?).ok()?;
    let bare = head.ends_with("\r\n\r\n") && head.contains("content-length: 0\r\n");
    let ours = head.contains("x-request-id");
    (bare && !ours).then(|| std::str::from_utf8(status).ok()?.parse().ok())?
}

impl<I: AsyncRead + Unpin> Progress<I> {
    /// Looks whether the client is there while nobody else reads.
    fn watch(&mut self, cx: &mut Context<'_>) {
        let Some(connection_handle) =
            self.connection_handle.as_ref().filter(|connection_handle| connection_handle.is_watched())
        else {
            return;
        };
        let Some(io) = self.io.as_mut().filter(|_| self.ahead == Ahead::Nothing) else { return };
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        let Poll::Ready(read) = Pin::new(io).poll_read(cx, &mut buffer) else { return };
        self.ahead = match (read, buffer.filled()) {
            (Ok(()), &[byte]) => Ahead::Byte(byte),
            (Ok(()), _) | (Err(_), _) => {
                connection_handle.leave();
                // The answer is asked once more, and ends.
                cx.waker().wake_by_ref();
                Ahead::End
            }
        };
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
    fn validate<T>(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
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

fn given_back<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
}

impl<I: AsyncRead + Unpin> AsyncRead for Progress<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.ahead {
            Ahead::Nothing => {}
            Ahead::Byte(_) if buffer.remaining() == 0 => return Poll::Ready(Ok(())),
            Ahead::Byte(byte) => {
                buffer.put_slice(&[byte]);
                self.ahead = Ahead::Nothing;
                return Poll::Ready(Ok(()));
            }
            Ahead::End => return Poll::Ready(Ok(())),
        }
        let Some(io) = &mut self.io else { return given_back() };
        Pin::new(io).poll_read(cx, buffer)
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Progress<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.withholds(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let Self { io: Some(io), patience, .. } = &mut *self else { return given_back() };
        let wrote = Pin::new(io).poll_write(cx, bytes);
        patience.validate(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if parts.first().is_some_and(|first| self.withholds(first)) {
            return Poll::Ready(Ok(parts.iter().map(|part| part.len()).sum()));
        }
        let Self { io: Some(io), patience, .. } = &mut *self else { return given_back() };
        let wrote = Pin::new(io).poll_write_vectored(cx, parts);
        patience.validate(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watch(cx);
        let Self { io: Some(io), patience, .. } = &mut *self else { return Poll::Ready(Ok(())) };
        let flushed = Pin::new(io).poll_flush(cx);
        patience.validate(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Self { io, withheld: Some((Some(status), withheld)), .. } = &mut *self
            && let Some(io) = io.take()
        {
            *withheld.0.lock().expect("nobody panics while holding it") = Some((*status, Box::new(io)));
        }
        let Self { io: Some(io), patience, .. } = &mut *self else { return Poll::Ready(Ok(())) };
        let shut = Pin::new(io).poll_shutdown(cx);
        patience.validate(cx, shut)
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

    #[test]
    fn only_what_hyper_says_by_itself_is_kept_from_the_client() {
        let bare = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        assert_eq!(refusal_of_hyper(bare.as_bytes()), Some(400));
        for other in [
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\nx-request-id: 1\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 4",
            "",
        ] {
            assert_eq!(refusal_of_hyper(other.as_bytes()), None, "{other}");
        }
    }
}
