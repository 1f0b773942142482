//! A feed: what is sent to one client of a live response, and when that ends. No I/O: the transport asks and
//! reports.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tidings_engine::deliver::{Lost, Step, Subscription};
use tidings_model::{Timestamp, limits};

use super::feed_options::FeedOptions;
use super::outbox::Outbox;
use super::protocol::{CaughtUp, LastWord, Reply};
use crate::sse::chunk;
use crate::websocket::{self, Close, Code, Event, Opcode, Tick, frame};

/// Bytes taken from the subscription at a time.
const ROOM: usize = 32 * 1024;

/// Why a feed ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The log is closed, and the client has its last frame.
    Complete,
    /// The log is gone, or the records that the client has not received yet.
    Lost,
    /// The log could not be read.
    Failed,
    /// The response has lasted for its maximum time.
    TimeOver,
    /// The token has expired, or the pass is no longer valid.
    Revoked,
    /// The server is stopping.
    Draining,
    /// The client was too slow.
    Slow,
    /// The client is no longer among those who may receive this, such as a removed member of a room.
    Expelled,
    /// The client closed the connection, or violated the protocol.
    Left,
}

impl End {
    /// Whether pending frames that were not begun are dropped, because the client cannot take them or must
    /// not get them.
    fn is_abrupt(self) -> bool {
        matches!(self, Self::Slow | Self::Revoked | Self::Expelled)
    }

    /// The close frame of a WebSocket.
    pub fn close(self) -> Close {
        match self {
            Self::Complete => Close::new(Code::NORMAL, "closed"),
            Self::Lost => Close::new(Code::GOING_AWAY, "gone"),
            Self::Failed => Close::new(Code::INTERNAL_ERROR, "it could not be read"),
            Self::TimeOver => Close::new(Code::GOING_AWAY, "come-again"),
            Self::Revoked | Self::Expelled => Close::new(Code::POLICY_VIOLATION, "access-ended"),
            Self::Draining => Close::new(Code::SERVICE_RESTART, "server-restart"),
            Self::Slow => Close::new(Code::POLICY_VIOLATION, "slow-consumer"),
            Self::Left => Close::new(Code::NORMAL, ""),
        }
    }
}

/// The wire format of a feed.
pub enum Wire {
    /// Server-sent events in a body that the transport frames.
    Plain,
    /// Server-sent events as chunks of HTTP/1.1.
    Chunked,
    /// WebSocket messages; a frame is one or more of them.
    WebSocket(Box<websocket::Connection>),
}

/// A subscription that is sent to a client.
pub struct Feed {
    subscription: Option<Subscription>,
    outbox: Outbox,
    /// The answer to a message of the client. Only the last is kept, so that a client that does not read
    /// cannot pile up answers.
    answer: Option<Bytes>,
    wire: Wire,
    options: FeedOptions,
    /// Time since when the client has taken nothing although data is pending.
    stuck_since: Option<Timestamp>,
    ended: Option<(End, Timestamp)>,
    /// Set until it is decided where the client begins.
    waiting: bool,
    /// Set once the client has caught up and the protocol has been informed.
    caught_up: bool,
    /// Set when bytes were sent since the last tick.
    moved: bool,
    /// Time of the last tick.
    asked: Timestamp,
    /// Time of the last tick before bytes were sent.
    last_sent: Timestamp,
    /// Set when the client has closed its side: it still gets what is there, but nothing new.
    left: bool,
    /// Set when the connection is gone.
    gone: bool,
    /// Set when the transport has shut down its sending side.
    pub(super) hung_up: bool,
}

/// What a feed asks of its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Nothing.
    Nothing,
    /// Send what is pending.
    Send,
    /// Cut the connection.
    Cut,
}

impl Feed {
    /// Creates a feed of a subscription. Without one, the client and the protocol decide where to begin.
    pub fn new(subscription: Option<Subscription>, wire: Wire, options: FeedOptions) -> Self {
        let waiting = subscription.is_none();
        let outbox = Outbox::at(subscription.as_ref().map(Subscription::position).unwrap_or_default());
        Self {
            subscription,
            outbox,
            answer: None,
            wire,
            asked: options.began,
            last_sent: options.began,
            options,
            stuck_since: None,
            ended: None,
            waiting,
            caught_up: false,
            moved: false,
            left: false,
            gone: false,
            hung_up: false,
        }
    }

    /// Puts the head of the response before everything else.
    pub fn begin_with(&mut self, head: Bytes) {
        self.outbox.push_front(head);
    }

    /// Adds a text of the protocol.
    pub fn say(&mut self, words: &[u8]) {
        self.outbox.push(match &self.wire {
            Wire::Plain => Bytes::copy_from_slice(words),
            Wire::Chunked => chunk(words),
            Wire::WebSocket(_) => frame::frame(Opcode::Text, words),
        });
    }

    /// Deadline of a client that may still say where to begin.
    pub fn begin_deadline(&self) -> Option<Timestamp> {
        self.options.protocol.begin_deadline().filter(|_| self.waiting)
    }

    /// The pending bytes, taken from the subscription if there are none. Ready with an empty outbox means the
    /// end.
    pub fn poll_outbox(&mut self, cx: &mut Context<'_>, now: impl Fn() -> Timestamp) -> Poll<&mut Outbox> {
        if self.outbox.is_empty() {
            self.take_owed();
        }
        while self.outbox.is_empty()
            && let Some(subscription) = &mut self.subscription
        {
            if !self.options.protocol.may_receive() {
                self.end(End::Expelled, now());
                break;
            }
            let outbox = &mut self.outbox;
            let step = subscription.poll_frames(cx, ROOM, &mut |frame| outbox.push_frame(frame));
            let has_all = subscription.has_caught_up();
            match step {
                Poll::Pending if !has_all => return Poll::Pending,
                Poll::Pending if self.caught_up && self.left => self.end(End::Left, now()),
                Poll::Pending if self.caught_up => return Poll::Pending,
                Poll::Pending => match self.options.protocol.caught_up(self.outbox.reaches(), now()) {
                    CaughtUp::NotYet if self.left => self.end(End::Left, now()),
                    CaughtUp::NotYet => return Poll::Pending,
                    CaughtUp::Silently => self.caught_up = true,
                    CaughtUp::Saying(words) => {
                        self.caught_up = true;
                        self.say(&words);
                    }
                },
                // Checked before they were taken as well, but the read may have taken long.
                Poll::Ready(Step::Frames) if !self.options.protocol.may_receive() => {
                    self.end(End::Expelled, now())
                }
                // Possibly without a byte, for a client that filters events.
                Poll::Ready(Step::Frames) => {}
                Poll::Ready(Step::Closed) => self.end(End::Complete, now()),
                Poll::Ready(Step::Lost(Lost::Gone)) => self.end(End::Lost, now()),
                Poll::Ready(Step::Lost(Lost::Failed)) => self.end(End::Failed, now()),
            }
        }
        if self.waiting && self.outbox.is_empty() { Poll::Pending } else { Poll::Ready(&mut self.outbox) }
    }

    /// Moves what the WebSocket has to send to the outbox: an answer, pongs, pings, a close.
    fn take_owed(&mut self) {
        if let Some(answer) = self.answer.take().filter(|_| self.ended.is_none()) {
            self.say(&answer);
        }
        if let Wire::WebSocket(socket) = &mut self.wire {
            while let Some(frame) = socket.outgoing() {
                self.outbox.push(frame);
            }
        }
    }

    /// Handles bytes received from the client.
    pub fn received(&mut self, mut bytes: &[u8], now: Timestamp) -> Ask {
        while let Wire::WebSocket(socket) = &mut self.wire
            && let Some(event) = socket.feed(&mut bytes, now)
        {
            match event {
                Event::Ping(_) | Event::Pong(_) => {}
                Event::Closed(_) | Event::Failed(_) => self.end(End::Left, now),
                // Messages after the end are ignored.
                Event::Text(_) | Event::Binary(_) if self.ended.is_some() => {}
                Event::Text(text) => {
                    let reply = self.options.protocol.on_text(text.as_str(), now);
                    self.reply(reply, now);
                }
                Event::Binary(_) => {
                    let close = Close::new(Code::UNSUPPORTED_DATA, "bytes are not read from this socket");
                    self.reply(Reply::Close(close), now);
                }
            }
        }
        if matches!(self.wire, Wire::WebSocket(_)) { Ask::Send } else { Ask::Nothing }
    }

    fn reply(&mut self, reply: Reply, now: Timestamp) {
        match reply {
            Reply::Nothing => {}
            Reply::Say(words) => self.answer = Some(words),
            Reply::Begin(words, subscription) => {
                self.waiting = false;
                self.outbox.pass(subscription.position());
                words.iter().for_each(|words| self.say(words));
                self.subscription = Some(subscription);
            }
            Reply::Close(close) => {
                self.subscription = None;
                self.finish(End::Left, LastWord { event: None, message: None, close }, now);
            }
        }
    }

    /// Reports that bytes of the outbox were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.outbox.advance(bytes);
        self.stuck_since = None;
        self.moved = true;
    }

    /// Reports that the transport wants more: it has taken what it was given.
    pub fn taken(&mut self) {
        self.stuck_since = None;
    }

    /// The next chunk for a transport that polls; `None` if there is none.
    pub fn give(&mut self, now: Timestamp) -> Option<Bytes> {
        let piece = self.outbox.pop()?;
        self.moved = true;
        self.stuck(now);
        Some(piece)
    }

    /// Reports that the client takes no more for now although data is pending.
    pub fn stuck(&mut self, now: Timestamp) {
        self.stuck_since.get_or_insert(now);
    }

    /// Time since the end in which the client has taken nothing; zero if the feed has not ended.
    pub fn ended_for(&self, now: Timestamp) -> Duration {
        self.ended.map_or(Duration::ZERO, |(_, since)| now.since(since))
    }

    /// Ends the feed. What is pending is still sent, followed by the last texts.
    pub fn end(&mut self, end: End, now: Timestamp) {
        if self.ended.is_some() {
            return;
        }
        let lag = self.subscription.take().and_then(|subscription| subscription.lag());
        if end.is_abrupt() {
            self.outbox.keep_begun();
        }
        let last_word = self.options.protocol.last_word(end, self.outbox.reaches(), lag, now);
        self.finish(end, last_word, now);
    }

    fn finish(&mut self, end: End, last_word: LastWord, now: Timestamp) {
        self.ended = Some((end, now));
        self.waiting = false;
        let words = match &self.wire {
            Wire::Plain | Wire::Chunked => last_word.event,
            Wire::WebSocket(_) => last_word.message,
        };
        // A peer that has closed reads nothing more.
        if let Some(words) = words.filter(|_| end != End::Left) {
            self.say(&words);
        }
        match &mut self.wire {
            Wire::Plain => {}
            Wire::Chunked => self.outbox.push(Bytes::from_static(b"0\r\n\r\n")),
            // If the peer closed first, the answer to that is pending already, and this adds nothing.
            Wire::WebSocket(socket) => socket.close(&last_word.close, now),
        }
        self.take_owed();
    }

    /// Reports that the client has closed its side. An event stream is still sent what is there, in case the
    /// client reads on. A WebSocket closes with a close frame, so one that is closed without it is gone.
    pub fn leave(&mut self) -> Ask {
        self.left = true;
        match &self.wire {
            Wire::WebSocket(_) => Ask::Cut,
            Wire::Plain | Wire::Chunked if self.hung_up => Ask::Cut,
            Wire::Plain | Wire::Chunked => Ask::Send,
        }
    }

    /// Releases the subscription: the connection is gone.
    pub fn abandon(&mut self) {
        self.subscription = None;
        self.gone = true;
    }

    /// Handles the passing of time; called about once a second. A clock that was set back makes no wait longer.
    pub fn tick(&mut self, now: Timestamp) -> Ask {
        if self.gone {
            return Ask::Nothing;
        }
        let moved = std::mem::take(&mut self.moved);
        if let Some((end, since)) = &mut self.ended {
            let patience = match end {
                // A client that must not receive anything more is not waited for.
                End::Revoked | End::Expelled => limits::REVOKED_TIMEOUT,
                _ => limits::LAST_WORD_TIMEOUT,
            };
            // A client that still takes the rest may take its time.
            *since =
                if moved && !matches!(end, End::Revoked | End::Expelled) { now } else { now.min(*since) };
            return if now.since(*since) >= patience { Ask::Cut } else { Ask::Nothing };
        }
        if let Some(since) = &mut self.stuck_since {
            *since = now.min(*since);
        }
        self.options.began = now.min(self.options.began);
        let stuck = self.stuck_since.map(|since| now.since(since));
        let lag = self.subscription.as_ref().and_then(Subscription::lag);
        if self.options.bounds.exceeded(stuck, lag) {
            self.end(End::Slow, now);
            return Ask::Send;
        }
        if !self.options.pass.holds(now) {
            self.end(End::Revoked, now);
            return Ask::Send;
        }
        if !self.options.protocol.may_receive() {
            self.end(End::Expelled, now);
            return Ask::Send;
        }
        if self.waiting && self.options.protocol.is_due(now) {
            let reply = self.options.protocol.begin(now);
            self.reply(reply, now);
            return Ask::Send;
        }
        if self.options.lasts.is_some_and(|lasts| now.since(self.options.began) >= lasts) {
            self.end(End::TimeOver, now);
            return Ask::Send;
        }
        let asked = std::mem::replace(&mut self.asked, now);
        // Rather a little early than late: the client relies on heartbeats.
        self.last_sent = now.min(if moved { asked } else { self.last_sent });
        match &mut self.wire {
            Wire::Plain | Wire::Chunked => self.beat(now),
            Wire::WebSocket(socket) => match socket.tick(now) {
                Tick::Wait(_) => Ask::Send,
                Tick::Over(_) => Ask::Cut,
            },
        }
    }
    /// Sends a heartbeat to a client that was sent nothing for a while, unless data is pending.
    fn beat(&mut self, now: Timestamp) -> Ask {
        let due = self.options.heartbeat.is_some_and(|every| now.since(self.last_sent) >= every);
        if !due || !self.outbox.is_empty() || self.stuck_since.is_some() {
            return Ask::Nothing;
        }
        let Some(words) = self.options.protocol.heartbeat(self.outbox.reaches()) else { return Ask::Nothing };
        self.last_sent = now;
        self.say(&words);
        Ask::Send
    }
}
