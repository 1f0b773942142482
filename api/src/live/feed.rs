//! What is sent to one client that stays, and when that ends. No I/O: whoever has the connection asks and tells.

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

/// Bytes that are taken from a subscription at a time.
const ROOM: usize = 32 * 1024;

/// Why a feed ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// There is nothing more: the log is closed, and the last frame said so.
    Complete,
    /// The log is gone, or what the client has not heard yet.
    Lost,
    /// It could not be read.
    Failed,
    /// Its time is over.
    TimeOver,
    /// Its token has expired, or what let it in does not hold any more.
    Revoked,
    /// The server is about to stop.
    Draining,
    /// The client took nothing for too long.
    Slow,
    /// It does not belong any more to those who may hear this.
    Expelled,
    /// The client closed, or broke the rules so that it had to be closed.
    Left,
}

impl End {
    /// Whether what was taken and not begun is not sent: it waits for one who cannot have it, or may not.
    fn is_abrupt(self) -> bool {
        matches!(self, Self::Slow | Self::Revoked | Self::Expelled)
    }

    /// What a WebSocket is told.
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

/// What frames are part of.
pub enum Wire {
    /// Server-sent events in a body that somebody else frames.
    Plain,
    /// Server-sent events, in chunks as in HTTP/1.1.
    Chunked,
    /// A WebSocket, each frame one or more of its messages.
    WebSocket(Box<websocket::Connection>),
}

/// A subscription on its way to a client.
pub struct Feed {
    subscription: Option<Subscription>,
    outbox: Outbox,
    /// An answer to what the client said. One is kept: whoever asks more quickly than it listens is answered once.
    answer: Option<Bytes>,
    wire: Wire,
    options: FeedOptions,
    /// Since when the client has taken nothing though something waits for it.
    stuck_since: Option<Timestamp>,
    ended: Option<(End, Timestamp)>,
    /// It is not known yet what the client is to hear.
    waiting: bool,
    /// The client has had all there was.
    caught_up: bool,
    /// Something was sent since it was last asked.
    moved: bool,
    /// When it was last asked.
    asked: Timestamp,
    /// When it was asked for the last time before something was sent.
    last_sent: Timestamp,
    /// The client has closed its side: it hears what there is, and nothing that is still to come.
    left: bool,
    /// There is nobody to send anything to.
    gone: bool,
    /// The connection knows that nothing more comes.
    pub(super) hung_up: bool,
}

/// What a feed asks of whoever drives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Nothing.
    Nothing,
    /// There is something to send.
    Send,
    /// Cut the connection.
    Cut,
}

impl Feed {
    /// Feeds what a subscription gives. Without one, the client and the options decide what to begin with.
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

    /// Puts bytes before everything else: the head of the answer.
    pub fn begin_with(&mut self, head: Bytes) {
        self.outbox.push_front(head);
    }

    /// Says something that is no frame.
    pub fn say(&mut self, words: &[u8]) {
        self.outbox.push(match &self.wire {
            Wire::Plain => Bytes::copy_from_slice(words),
            Wire::Chunked => chunk(words),
            Wire::WebSocket(_) => frame::frame(Opcode::Text, words),
        });
    }

    /// Until when the client may say where to begin, if it may.
    pub fn begins_at(&self) -> Option<Timestamp> {
        self.options.protocol.begins_at().filter(|_| self.waiting)
    }

    /// What is to be sent; taken from the subscription if it is empty. Ready with an empty outbox means that all is said.
    pub fn poll_outbox(&mut self, cx: &mut Context<'_>, now: impl Fn() -> Timestamp) -> Poll<&mut Outbox> {
        if self.outbox.is_empty() {
            self.take_owed();
        }
        while self.outbox.is_empty()
            && let Some(subscription) = &mut self.subscription
        {
            if !self.options.protocol.may_hear() {
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
                // It was asked before they were taken, and it may have been long until then.
                Poll::Ready(Step::Frames) if !self.options.protocol.may_hear() => {
                    self.end(End::Expelled, now())
                }
                // Perhaps without a byte, for one who hears only some of them.
                Poll::Ready(Step::Frames) => {}
                Poll::Ready(Step::Closed) => self.end(End::Complete, now()),
                Poll::Ready(Step::Lost(Lost::Gone)) => self.end(End::Lost, now()),
                Poll::Ready(Step::Lost(Lost::Failed)) => self.end(End::Failed, now()),
            }
        }
        if self.waiting && self.outbox.is_empty() { Poll::Pending } else { Poll::Ready(&mut self.outbox) }
    }

    /// Takes what a WebSocket owes its peer: an answer, pongs, pings, a close.
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

    /// The client said something.
    pub fn heard(&mut self, mut bytes: &[u8], now: Timestamp) -> Ask {
        while let Wire::WebSocket(socket) = &mut self.wire
            && let Some(event) = socket.feed(&mut bytes, now)
        {
            match event {
                Event::Ping(_) | Event::Pong(_) => {}
                Event::Closed(_) | Event::Failed(_) => self.end(End::Left, now),
                // What is said after the end is not heard.
                Event::Text(_) | Event::Binary(_) if self.ended.is_some() => {}
                Event::Text(text) => {
                    let reply = self.options.protocol.heard(text.as_str(), now);
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

    /// Something was sent.
    pub fn sent(&mut self, bytes: usize) {
        self.outbox.advance(bytes);
        self.stuck_since = None;
        self.moved = true;
    }

    /// What was given to whoever sends was taken.
    pub fn taken(&mut self) {
        self.stuck_since = None;
    }

    /// A piece for whoever sends; none if there is none.
    pub fn give(&mut self, now: Timestamp) -> Option<Bytes> {
        let piece = self.outbox.pop()?;
        self.moved = true;
        self.stuck(now);
        Some(piece)
    }

    /// Nothing more could be sent, though there is something.
    pub fn stuck(&mut self, now: Timestamp) {
        self.stuck_since.get_or_insert(now);
    }

    /// For how long it has had nothing more to say than what was taken, and nobody took that.
    pub fn ended_for(&self, now: Timestamp) -> Duration {
        self.ended.map_or(Duration::ZERO, |(_, since)| now.since(since))
    }

    /// Ends it; what was taken is still sent, and a last word.
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
        // A peer that has closed hears nothing more.
        if let Some(words) = words.filter(|_| end != End::Left) {
            self.say(&words);
        }
        match &mut self.wire {
            Wire::Plain => {}
            Wire::Chunked => self.outbox.push(Bytes::from_static(b"0\r\n\r\n")),
            // If the peer closed first, its own answer is owed already, and this adds nothing.
            Wire::WebSocket(socket) => socket.close(&last_word.close, now),
        }
        self.take_owed();
    }

    /// The client has closed its side. It is sent what there is, in case it still listens; a WebSocket ends with its own words,
    /// so one that is closed without them is gone.
    pub fn leave(&mut self) -> Ask {
        self.left = true;
        match &self.wire {
            Wire::WebSocket(_) => Ask::Cut,
            Wire::Plain | Wire::Chunked if self.hung_up => Ask::Cut,
            Wire::Plain | Wire::Chunked => Ask::Send,
        }
    }

    /// Lets go of its subscription: the connection is gone.
    pub fn abandon(&mut self) {
        self.subscription = None;
        self.gone = true;
    }

    /// Time has passed. A clock that was set back does not make any wait longer.
    pub fn tick(&mut self, now: Timestamp) -> Ask {
        if self.gone {
            return Ask::Nothing;
        }
        let moved = std::mem::take(&mut self.moved);
        if let Some((end, since)) = &mut self.ended {
            let patience = match end {
                // Who may not hear anything any more is not waited for.
                End::Revoked | End::Expelled => limits::REVOKED_TIMEOUT,
                _ => limits::LAST_WORD_TIMEOUT,
            };
            // Whoever takes what is left may take its time.
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
        if !self.options.protocol.may_hear() {
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
        // Rather a little too early than too late: somebody counts on hearing something.
        self.last_sent = now.min(if moved { asked } else { self.last_sent });
        match &mut self.wire {
            Wire::Plain | Wire::Chunked => self.beat(now),
            Wire::WebSocket(socket) => match socket.tick(now) {
                Tick::Wait(_) => Ask::Send,
                Tick::Over(_) => Ask::Cut,
            },
        }
    }
    /// Says something to a client that has not heard anything for a while, unless something waits for it.
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
