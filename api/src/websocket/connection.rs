//! A WebSocket connection after its handshake, without I/O.
//!
//! The transport passes what it reads to [`Connection::feed`], calls [`Connection::tick`] when time has
//! passed, writes what [`Connection::outgoing`] returns, between complete frames of its own, and drops the
//! socket when [`Connection::is_over`].

use std::time::Duration;

use bytes::Bytes;
use tidings_model::Timestamp;

use super::close::{Close, Closing};
use super::frame::{self, Opcode};
use super::keep_alive::{Check, KeepAlive, Timeouts};
use super::message::{Message, Reader, Text};
use super::{Limits, Violation};

/// An event of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer sent a text message.
    Text(Text),
    /// The peer sent a binary message.
    Binary(Bytes),
    /// The peer sent a ping. The pong is pending already.
    Ping(Bytes),
    /// The peer sent a pong. The payload of our pings is their time, in milliseconds since 1970.
    Pong(Bytes),
    /// The peer closed, or answered our close. No further event comes.
    Closed(Option<Close>),
    /// The peer violated the protocol. A close frame that says so is pending. No further event comes.
    Failed(Violation),
}

/// The result of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tick {
    /// Write what is pending, and call again at that moment.
    Wait(Timestamp),
    /// Write what is pending, if it can be written at once, and drop the socket.
    Over(EndReason),
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The closing handshake is complete.
    Closed,
    /// The peer was silent, even after a ping.
    Silent,
    /// The peer did not answer our close frame.
    CloseUnanswered,
    /// The peer violated the protocol.
    Failed(Violation),
}

/// A WebSocket connection that is open or closing.
///
/// ```
/// use tidings_api::websocket::{Connection, Event, Limits, Timeouts};
/// use tidings_model::Timestamp;
///
/// let now = Timestamp::from_millis(0);
/// let mut connection = Connection::new(Limits::default(), Timeouts::default(), now);
/// // A text "hi" and a ping, masked with zeros, read from a socket in two pieces.
/// for mut input in [&b"\x81\x82\0\0\0\0h"[..], b"i\x89\x80\0\0\0\0"] {
///     while let Some(event) = connection.feed(&mut input, now) {
///         if let Event::Text(text) = event {
///             assert_eq!(text.as_str(), "hi");
///         }
///     }
/// }
/// assert_eq!(connection.outgoing().as_deref(), Some(&b"\x8a\x00"[..]), "a pong to be written");
/// assert!(connection.is_open());
/// ```
#[derive(Debug)]
pub struct Connection {
    limits: Limits,
    reader: Reader,
    /// Time since when a message is incomplete.
    incomplete: Option<Timestamp>,
    keep_alive: KeepAlive,
    closing: Closing,
    pending: PendingFrames,
}

/// Pending frames. There is one slot for each kind, so that a flood of pings needs no memory: the pong for
/// the last one answers those before it, too.
#[derive(Debug, Default)]
struct PendingFrames {
    pong: Option<Bytes>,
    ping: Option<[u8; 8]>,
    close: Option<Bytes>,
}

impl Connection {
    /// A connection whose handshake was just answered.
    pub fn new(limits: Limits, timeouts: Timeouts, now: Timestamp) -> Self {
        Self {
            limits,
            reader: Reader::new(),
            incomplete: None,
            keep_alive: KeepAlive::new(timeouts, now),
            closing: Closing::Open,
            pending: PendingFrames::default(),
        }
    }

    /// Consumes `input` up to the next event. Must be called until it returns `None`; then `input` is empty,
    /// and an incomplete message is remembered.
    pub fn feed(&mut self, input: &mut &[u8], now: Timestamp) -> Option<Event> {
        if !input.is_empty() {
            self.keep_alive.received(now);
        }
        if self.closing == Closing::Done {
            *input = &[];
            return None;
        }
        match self.reader.next(input, &self.limits) {
            Ok(Some(message)) => Some(self.take(message)),
            Ok(None) => {
                let half = self.reader.is_within_message();
                self.incomplete = half.then(|| self.incomplete.unwrap_or(now));
                None
            }
            Err(violation) => Some(self.fail(violation)),
        }
    }

    /// The next complete frame to write. Nothing follows a close frame.
    pub fn outgoing(&mut self) -> Option<Bytes> {
        let PendingFrames { pong, ping, close } = &mut self.pending;
        if let Some(payload) = pong.take() {
            return Some(frame::frame(Opcode::Pong, &payload));
        }
        if let Some(payload) = ping.take() {
            return Some(frame::frame(Opcode::Ping, &payload));
        }
        close.take()
    }

    /// Handles the passing of time: sends pings, and gives up a peer that is silent, slow with a message, or
    /// does not answer a close.
    pub fn tick(&mut self, now: Timestamp) -> Tick {
        match &mut self.closing {
            Closing::Done => return Tick::Over(EndReason::Closed),
            Closing::Asked { since } => {
                *since = now.min(*since);
                let due = *since + self.limits.close_time;
                return if now < due { Tick::Wait(due) } else { self.end(EndReason::CloseUnanswered) };
            }
            Closing::Open => {}
        }
        let mut deadline = None;
        if let Some(since) = &mut self.incomplete {
            *since = now.min(*since);
            let due = *since + self.limits.message_time;
            if now >= due {
                self.fail(Violation::MessageTooSlow);
                return Tick::Over(EndReason::Failed(Violation::MessageTooSlow));
            }
            deadline = Some(due);
        }
        let mut check = self.keep_alive.check(now);
        if let Check::Ping(payload) = check {
            self.pending.ping = Some(payload);
            check = self.keep_alive.check(now);
        }
        match check {
            Check::Wait(due) => Tick::Wait(deadline.map_or(due, |deadline| due.min(deadline))),
            // An answer takes time, so there is no second ping at the same moment.
            Check::Dead | Check::Ping(_) => self.end(EndReason::Silent),
        }
    }

    /// Time since the peer sent anything.
    pub fn silent_for(&self, now: Timestamp) -> Duration {
        self.keep_alive.silent_for(now)
    }

    /// Sets other limits. They count for frames whose header is not read yet.
    pub fn limit(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Counts the peer's silence from now on: it could not have been heard until now.
    pub fn excuse(&mut self, now: Timestamp) {
        self.keep_alive.received(now);
    }

    /// Begins to close. The close frame is pending; the connection ends with the peer's answer, or when it
    /// does not come.
    pub fn close(&mut self, close: &Close, now: Timestamp) {
        if let Some(frame) = self.closing.ask(close, now) {
            self.pending.close = Some(frame);
        }
    }

    /// Puts other words into the close frame that answers a violation. Must be called before it was taken.
    pub fn reword(&mut self, close: &Close) {
        if self.pending.close.is_some() {
            self.pending.close = Some(close.frame());
        }
    }

    /// Whether messages may still be sent: neither side has closed.
    pub fn is_open(&self) -> bool {
        self.closing == Closing::Open
    }

    /// Whether the closing handshake is complete and nothing is pending, so that the socket can be dropped.
    pub fn is_over(&self) -> bool {
        let PendingFrames { pong, ping, close } = &self.pending;
        self.closing == Closing::Done && pong.is_none() && ping.is_none() && close.is_none()
    }

    fn take(&mut self, message: Message) -> Event {
        match message {
            Message::Text(text) => {
                self.incomplete = None;
                Event::Text(text)
            }
            Message::Binary(bytes) => {
                self.incomplete = None;
                Event::Binary(bytes)
            }
            Message::Ping(payload) => {
                // Our close frame may have been sent already, and nothing may follow it.
                if self.is_open() {
                    self.pending.pong = Some(payload.clone());
                }
                Event::Ping(payload)
            }
            Message::Pong(payload) => Event::Pong(payload),
            Message::Close(payload) => match Close::read(&payload) {
                Ok(close) => {
                    let answer = self.closing.received(close.as_ref());
                    self.done(answer);
                    Event::Closed(close)
                }
                Err(violation) => self.fail(violation),
            },
        }
    }

    fn fail(&mut self, violation: Violation) -> Event {
        let told = self.closing.fail(violation);
        self.done(told);
        Event::Failed(violation)
    }

    /// Ends the connection after a last frame.
    fn done(&mut self, last: Option<Bytes>) {
        self.pending.close = last.or(self.pending.close.take());
        self.reader = Reader::new();
        self.incomplete = None;
    }

    /// Ends the connection without a last frame, because the peer is gone.
    fn end(&mut self, why: EndReason) -> Tick {
        self.closing = Closing::Done;
        self.pending = PendingFrames::default();
        self.done(None);
        Tick::Over(why)
    }

    /// Bytes allocated by buffers.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.reader.held()
    }
}
