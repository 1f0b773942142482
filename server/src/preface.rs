//! Detects the HTTP version of a plain-text connection: HTTP/2 if it begins with the HTTP/2 preface, HTTP/1
//! otherwise.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::http::Version;

/// The preface that begins every HTTP/2 connection (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Reads until the HTTP version is known. The returned connection yields the bytes read so far again.
pub async fn detect<I: AsyncRead + Unpin>(mut io: I) -> io::Result<(Rewound<I>, Version)> {
    let mut head = [0; PREFACE.len()];
    let mut read = 0;
    while read < PREFACE.len() && head[..read] == PREFACE[..read] {
        match io.read(&mut head[read..]).await? {
            0 => break,
            more => read += more,
        }
    }
    let version = if head == *PREFACE { Version::Two } else { Version::One };
    Ok((Rewound { head, next: 0, end: read, io }, version))
}

/// A connection that first yields bytes which were already read from it.
pub struct Rewound<I> {
    head: [u8; PREFACE.len()],
    next: usize,
    end: usize,
    io: I,
}

impl<I: AsyncRead + Unpin> AsyncRead for Rewound<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.next == self.end {
            return Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        let part = (self.end - self.next).min(buffer.remaining());
        buffer.put_slice(&self.head[self.next..self.next + part]);
        self.next += part;
        if buffer.remaining() > 0 {
            // More in the same read, if it is there: hyper doubles the size of its buffer for the rest of a head
            // that comes in two. An error is that of the connection, so the next read meets it again.
            let _ = Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Rewound<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_read_to_tell_the_version_is_read_again() {
        let two = [PREFACE.as_slice(), b"more"].concat();
        for (sent, two) in
            [(&b""[..], false), (b"GET / HTTP/1.1\r\n\r\n", false), (b"PRI * no", false), (&two, true)]
        {
            let (mut io, version) = detect(sent).await.expect("readable");
            assert_eq!(version == Version::Two, two, "{sent:?}");
            let mut read = Vec::new();
            io.read_to_end(&mut read).await.expect("readable");
            assert_eq!(read, sent);
        }
    }

    #[tokio::test]
    async fn what_was_read_comes_in_one_read_with_what_follows() {
        let sent = &b"GET /v1/stream/orders?offset=-1 HTTP/1.1\r\n"[..];
        let (mut io, _) = detect(sent).await.expect("readable");
        let mut read = [0; 100];
        assert_eq!(io.read(&mut read).await.expect("readable"), sent.len());
        let (mut io, _) = detect(sent).await.expect("readable");
        assert_eq!(io.read(&mut read[..10]).await.expect("readable"), 10, "no more than there is room for");
        assert_eq!(io.read(&mut read[10..]).await.expect("readable"), sent.len() - 10);
        assert_eq!(&read[..sent.len()], sent);
    }
}
