//! The socket of a connection, with or without TLS, and how much was received through it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tidings_model::limits;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A socket that counts what it receives, and fails beyond [`limits::EGRESS_RECEIVED_BYTES`].
pub(crate) struct Metered {
    stream: Stream,
    received: Received,
}

/// A socket with or without TLS.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Bytes received since the current request began, without those of TLS. Clones share the same number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received(Arc<AtomicUsize>);

/// Why reading failed: more was received for one request than is allowed.
#[derive(Debug, thiserror::Error)]
#[error("more than {} bytes for one request", limits::EGRESS_RECEIVED_BYTES)]
pub(crate) struct ReceivedTooMuch;

impl Metered {
    pub(crate) fn new(stream: Stream, received: Received) -> Self {
        Self { stream, received }
    }
}

impl Received {
    /// A new request begins.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Bytes received since the request began.
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.received.bytes() > limits::EGRESS_RECEIVED_BYTES {
            return Poll::Ready(Err(io::Error::other(ReceivedTooMuch)));
        }
        let before = buffer.filled().len();
        match &mut self.stream {
            Stream::Plain(socket) => ready!(Pin::new(socket).poll_read(cx, buffer))?,
            Stream::Tls(socket) => match ready!(Pin::new(socket).poll_read(cx, buffer)) {
                // The end without a closing message of TLS. HTTP tells whether the response was complete.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                read => read?,
            },
        }
        self.received.0.fetch_add(buffer.filled().len() - before, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Stream::Tls(socket) => Pin::new(socket).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, slices),
            Stream::Tls(socket) => Pin::new(socket).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(socket) => socket.is_write_vectored(),
            Stream::Tls(socket) => socket.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Stream::Tls(socket) => Pin::new(socket).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Stream::Tls(socket) => Pin::new(socket).poll_shutdown(cx),
        }
    }
}
