//! The link of brokers that speak a protocol over a byte stream.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tidings_model::limits;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::link::{Command, Event, Link};
use crate::stream::Stream;

/// Bytes to be sent above which no further command begins.
const FULL_BYTES: usize = 256 * 1024;
/// Bytes that are read at once.
const READ_BYTES: usize = 64 * 1024;
/// Bytes of an event that is not complete: a message on its channel, and what the protocol writes around them.
const INPUT_BYTES: usize = limits::BUS_MESSAGE_BYTES + limits::BUS_CHANNEL_BYTES + 1024 * 1024;

/// What is said over a byte stream, without I/O.
pub trait Protocol: Send + 'static {
    /// Writes a command.
    fn begin(&mut self, command: Command<'_>, out: &mut BytesMut);

    /// Called before what was written is sent: asks for answers to the commands since the last time.
    fn flush(&mut self, _out: &mut BytesMut) {}

    /// Takes the next event out of what was received; `None` if it is not complete. What is to be said at once is written.
    fn read(&mut self, input: &mut BytesMut, out: &mut BytesMut) -> Result<Option<Event>, String>;
}

/// A [`Link`] over a byte stream.
pub struct Wire<P> {
    stream: Stream,
    protocol: P,
    input: BytesMut,
    out: BytesMut,
}

impl<P: Protocol> Wire<P> {
    /// Speaks a protocol, beginning with these bytes.
    pub fn new(stream: Stream, protocol: P, out: BytesMut) -> Self {
        Self { stream, protocol, input: BytesMut::new(), out }
    }

    /// Waits until the broker has accepted us.
    pub async fn ready(&mut self) -> Result<(), String> {
        loop {
            match std::future::poll_fn(|cx| self.poll_event(cx)).await? {
                Event::Ready => return Ok(()),
                Event::Refused(why) => return Err(why),
                Event::Done(_) | Event::Message { .. } => {}
            }
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        while !self.out.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.out)) {
                Ok(0) => return Poll::Ready(Err("the connection takes nothing more".to_owned())),
                Ok(sent) => self.out.advance(sent),
                Err(error) => return Poll::Ready(Err(format!("cannot send: {error}"))),
            }
        }
        Pin::new(&mut self.stream).poll_flush(cx).map_err(|error| format!("cannot send: {error}"))
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        if self.input.len() > INPUT_BYTES {
            return Poll::Ready(Err(format!("the broker has sent more than {INPUT_BYTES} bytes at once")));
        }
        self.input.reserve(READ_BYTES);
        let before = self.input.len();
        self.input.resize(before + READ_BYTES, 0);
        let mut room = ReadBuf::new(&mut self.input[before..]);
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut room);
        let received = room.filled().len();
        self.input.truncate(before + received);
        match ready!(polled) {
            Ok(()) if received == 0 => Poll::Ready(Err("the broker has closed the connection".to_owned())),
            Ok(()) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(format!("cannot receive: {error}"))),
        }
    }
}

impl<P: Protocol> Link for Wire<P> {
    fn begin(&mut self, command: Command<'_>) {
        self.protocol.begin(command, &mut self.out);
    }

    fn is_full(&self) -> bool {
        self.out.len() >= FULL_BYTES
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event, String>> {
        loop {
            if let Some(event) = self.protocol.read(&mut self.input, &mut self.out)? {
                return Poll::Ready(Ok(event));
            }
            self.protocol.flush(&mut self.out);
            // Pending means only that the rest is sent later.
            if let Poll::Ready(Err(error)) = self.poll_send(cx) {
                return Poll::Ready(Err(error));
            }
            ready!(self.poll_receive(cx))?;
        }
    }
}
