//! One connection to an endpoint, and one request on it at a time.
//!
//! Nothing runs in the background: whoever waits for a response drives the connection, and an idle connection is looked
//! at when it is about to be used again. So a request wakes no second task, and dropping it closes the connection.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::header::HeaderMap;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tidings_model::limits;

use crate::deadline::Timer;
use crate::error::{Phase, SendError};
use crate::io::{Metered, Received, ReceivedTooMuch, Stream};
use crate::pool::Slot;

/// An open connection.
pub(crate) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: Box<http1::Connection<TokioIo<Metered>, Full<Bytes>>>,
    /// Whether the driver is done. It must not be polled again.
    ended: bool,
    received: Received,
    address: IpAddr,
    slot: Slot,
}

/// A response, as far as it was read.
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Connection {
    /// Makes a connection of a socket that is connected to `address`.
    pub(crate) async fn new(stream: Stream, address: IpAddr, slot: Slot) -> Result<Self, SendError> {
        let received = Received::default();
        let io = TokioIo::new(Metered::new(stream, received.clone()));
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(limits::EGRESS_HEADER_BYTES)
            .max_header_size(limits::EGRESS_HEADER_BYTES)
            .handshake(io)
            .await
            .map_err(|error| SendError::of(&error))?;
        Ok(Self { sender, driver: Box::new(driver), ended: false, received, address, slot })
    }

    /// Address of the endpoint.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// The connection's place among those that may be open.
    pub(crate) fn slot(&mut self) -> &mut Slot {
        &mut self.slot
    }

    /// Whether another request can be sent, as far as is known without waiting. To be asked after a response, when it also
    /// takes the connection into its idle state, and before the next request, when it notices that the endpoint has closed
    /// the connection or sent something unasked.
    pub(crate) fn is_usable(&mut self) -> bool {
        // Nobody waits for an idle connection. This also lets go of the waker of whoever waited before.
        self.drive(&mut Context::from_waker(Waker::noop()));
        !self.ended && self.sender.is_ready()
    }

    /// Whether anything was received since the request began.
    pub(crate) fn has_received(&self) -> bool {
        self.received.bytes() > 0
    }

    /// Sends a request and reads the response until its end, or until [`limits::EGRESS_BODY_BYTES`] of its body; `keep`
    /// bytes of it are kept.
    pub(crate) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
        keep: usize,
        timer: &mut Timer<'_>,
    ) -> Result<Response, SendError> {
        self.received.reset();
        let mut answer = pin!(self.sender.send_request(request));
        let answer = poll_fn(|cx| {
            self.drive(cx);
            // Before anything is received there is no response, and asking for it would only have it wake us twice.
            if (self.has_received() || self.ended)
                && let Poll::Ready(answer) = answer.as_mut().poll(cx)
            {
                return Poll::Ready(answer.map_err(|error| SendError::of(&error)));
            }
            ready!(timer.poll(cx));
            Poll::Ready(Err(timer.deadline().reached(Phase::Waiting)))
        });
        let (head, body) = answer.await?.into_parts();
        let body = self.read(body, keep, timer).await?;
        Ok(Response { status: head.status, headers: head.headers, body })
    }

    async fn read(
        &mut self,
        mut body: Incoming,
        keep: usize,
        timer: &mut Timer<'_>,
    ) -> Result<Bytes, SendError> {
        let (mut kept, mut total) = (Bytes::new(), 0);
        while !body.is_end_stream() {
            let frame = poll_fn(|cx| {
                self.drive(cx);
                if let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(cx) {
                    return Poll::Ready(Ok(frame));
                }
                ready!(timer.poll(cx));
                Poll::Ready(Err(timer.deadline().reached(Phase::Reading)))
            });
            let data = match frame.await? {
                None => break,
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Err(SendError::of(&error)),
            };
            total += data.len();
            kept = joined(kept, &data, keep);
            if total > limits::EGRESS_BODY_BYTES {
                break;
            }
        }
        Ok(kept)
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        if !self.ended {
            // An error reaches whoever waits for the response. If nobody does, it is enough to know that it is over.
            self.ended = Pin::new(&mut *self.driver).poll(cx).is_ready();
        }
    }
}

/// What is kept of a body when `data` comes behind what was kept before.
fn joined(kept: Bytes, data: &Bytes, keep: usize) -> Bytes {
    let data = &data[..data.len().min(keep - kept.len())];
    match (kept.is_empty(), data.is_empty()) {
        (_, true) => kept,
        // A copy, so that little of the body does not hold the whole buffer that it was received in.
        (true, false) => Bytes::copy_from_slice(data),
        (false, false) => {
            let mut both = BytesMut::with_capacity(kept.len() + data.len());
            both.extend_from_slice(&kept);
            both.extend_from_slice(data);
            both.freeze()
        }
    }
}

fn received_too_much(error: &hyper::Error) -> bool {
    io_error(error).and_then(io::Error::get_ref).is_some_and(|inner| inner.is::<ReceivedTooMuch>())
}

/// The error of the socket that caused an error of HTTP.
fn io_error(error: &hyper::Error) -> Option<&io::Error> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref() {
            return Some(io);
        }
        cause = error.source();
    }
    None
}

impl SendError {
    /// What an error of HTTP means for a request.
    fn of(error: &hyper::Error) -> Self {
        if error.is_parse_too_large() || received_too_much(error) {
            return Self::TooLarge;
        }
        if error.is_parse() {
            return Self::Protocol(error.to_string());
        }
        match io_error(error) {
            // What cannot be decoded, such as the size of a chunk.
            Some(io) if matches!(io.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => {
                Self::Protocol(io.to_string())
            }
            _ => Self::Closed,
        }
    }
}
