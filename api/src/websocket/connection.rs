//! One WebSocket after its handshake, without the socket.
//!
//! Whoever has the socket gives what it reads to [`Connection::feed`], asks [`Connection::tick`] when time has
//! passed, writes what [`Connection::outgoing`] gives, between two whole frames of its own, and lets go of the
//! socket when [`Connection::is_over`].

use bytes::Bytes;
use tidings_model::Timestamp;

use super::close::{Close, Closing};
use super::frame::{self, Opcode};
use super::keep_alive::{Check, KeepAlive, Patience};
use super::message::{Message, Reader, Text};
use super::{Limits, Violation};

/// What a peer did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It sent a text.
    Text(Text),
    /// It sent bytes.
    Binary(Bytes),
    /// It asked whether we are there. The answer is owed already.
    Ping(Bytes),
    /// It is there. The payload of a ping of ours is the moment it was sent, in milliseconds since 1970.
    Pong(Bytes),
    /// It closed, or answered our close, with this to say if anything. No further event comes.
    Closed(Option<Close>),
    /// It broke a rule, which the close frame that is owed tells it. No further event comes.
    Failed(Violation),
}

/// What time has brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tick {
    /// Write what is owed, and ask again at that moment.
    Wait(Timestamp),
    /// Write what is owed, if it can be written at once, and let go of the socket.
    Over(Why),
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// All was said.
    Closed,
    /// Nothing was heard, not even after a ping.
    Silent,
    /// Our close frame was not answered.
    CloseUnanswered,
    /// The peer broke a rule.
    Failed(Violation),
}

/// A WebSocket that is open or about to end.
///
/// ```
/// use tidings_api::websocket::{Connection, Event, Limits, Patience};
/// use tidings_model::Timestamp;
///
/// let now = Timestamp::from_millis(0);
/// let mut connection = Connection::new(Limits::default(), Patience::default(), now);
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
    /// Since when something is half received.
    incomplete: Option<Timestamp>,
    keep_alive: KeepAlive,
    closing: Closing,
    owed: Owed,
}

/// What is to be written. A place for each kind, so that a flood of pings makes nothing grow: the last one is
/// answered, which answers those before it.
#[derive(Debug, Default)]
struct Owed {
    pong: Option<Bytes>,
    ping: Option<[u8; 8]>,
    close: Option<Bytes>,
}

impl Connection {
    /// A connection whose handshake was just answered.
    pub fn new(limits: Limits, patience: Patience, now: Timestamp) -> Self {
        Self {
            limits,
            reader: Reader::new(),
            incomplete: None,
            keep_alive: KeepAlive::new(patience, now),
            closing: Closing::Open,
            owed: Owed::default(),
        }
    }

    /// Takes what was read from the front of `input` up to the next event. To be called until it gives none;
    /// then `input` is empty, and what is not complete is remembered.
    pub fn feed(&mut self, input: &mut &[u8], now: Timestamp) -> Option<Event> {
        if !input.is_empty() {
            self.keep_alive.heard(now);
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

    /// The next frame to write, whole. Nothing follows a close frame.
    pub fn outgoing(&mut self) -> Option<Bytes> {
        let Owed { pong, ping, close } = &mut self.owed;
        if let Some(payload) = pong.take() {
            return Some(frame::frame(Opcode::Pong, &payload));
        }
        if let Some(payload) = ping.take() {
            return Some(frame::frame(Opcode::Ping, &payload));
        }
        close.take()
    }

    /// Sees to what depends on time: pings, and giving up on a peer that is silent, slow with a message, or
    /// does not answer a close.
    pub fn tick(&mut self, now: Timestamp) -> Tick {
        match &mut self.closing {
            Closing::Done => return Tick::Over(Why::Closed),
            Closing::Asked { since } => {
                *since = now.min(*since);
                let due = *since + self.limits.close_time;
                return if now < due { Tick::Wait(due) } else { self.end(Why::CloseUnanswered) };
            }
            Closing::Open => {}
        }
        let mut deadline = None;
        if let Some(since) = &mut self.incomplete {
            *since = now.min(*since);
            let due = *since + self.limits.message_time;
            if now >= due {
                self.fail(Violation::MessageTooSlow);
                return Tick::Over(Why::Failed(Violation::MessageTooSlow));
            }
            deadline = Some(due);
        }
        let mut check = self.keep_alive.check(now);
        if let Check::Ping(payload) = check {
            self.owed.ping = Some(payload);
            check = self.keep_alive.check(now);
        }
        match check {
            Check::Wait(due) => Tick::Wait(deadline.map_or(due, |deadline| due.min(deadline))),
            // A question takes time to be answered, so there is no second one in the same moment.
            Check::Dead | Check::Ping(_) => self.end(Why::Silent),
        }
    }

    /// Begins to close. The frame is owed; the peer's answer, or the lack of it, ends the connection.
    pub fn close(&mut self, close: &Close, now: Timestamp) {
        if let Some(frame) = self.closing.ask(close, now) {
            self.owed.close = Some(frame);
        }
    }

    /// Whether messages may still be sent: neither side has closed.
    pub fn is_open(&self) -> bool {
        self.closing == Closing::Open
    }

    /// Whether all is said and handed out to be written, so that the socket can go.
    pub fn is_over(&self) -> bool {
        let Owed { pong, ping, close } = &self.owed;
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
                // A close frame of ours may be out already, and is the last that we send.
                if self.is_open() {
                    self.owed.pong = Some(payload.clone());
                }
                Event::Ping(payload)
            }
            Message::Pong(payload) => Event::Pong(payload),
            Message::Close(payload) => match Close::read(&payload) {
                Ok(close) => {
                    let answer = self.closing.heard(close.as_ref());
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

    /// All is said but for this.
    fn done(&mut self, last: Option<Bytes>) {
        self.owed.close = last.or(self.owed.close.take());
        self.reader = Reader::new();
        self.incomplete = None;
    }

    /// There is nobody to say anything to.
    fn end(&mut self, why: Why) -> Tick {
        self.closing = Closing::Done;
        self.owed = Owed::default();
        self.done(None);
        Tick::Over(why)
    }

    /// Bytes that buffers take now.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.reader.held()
    }
}
