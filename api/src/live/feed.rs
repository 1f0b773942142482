//! A feed: what is sent to one client of a live response, and when that ends. No I/O: the transport asks and
//! reports.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tidings_auth::Revocation;
use tidings_engine::deliver::{Inbox, Lost, Step};
use tidings_model::{Timestamp, limits};

use super::connections::Cut;
use super::feed_options::FeedOptions;
use super::outbox::Outbox;
use super::protocol::{CaughtUp, FinalTexts, Refusal, Reply};
use crate::sse::chunk;
use crate::websocket::{self, Close, Code, EndReason, Event, Opcode, Tick, Violation, frame};

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
    /// The client sent nothing for too long.
    Silent,
    /// The client sent too much that is not understood.
    Misused,
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
            Self::Silent => Close::new(Code::POLICY_VIOLATION, "silent"),
            Self::Misused => Close::new(Code::POLICY_VIOLATION, "protocol-error"),
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

/// An inbox that is sent to a client.
pub struct Feed {
    inbox: Option<Inbox>,
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
    /// Creates a feed of an inbox. Without one, the client and the protocol decide where to begin.
    pub fn new(inbox: Option<Inbox>, wire: Wire, options: FeedOptions) -> Self {
        let waiting = inbox.is_none();
        let outbox = Outbox::at(inbox.as_ref().map(Inbox::position).unwrap_or_default());
        Self {
            inbox,
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

    /// The pending bytes, taken from the inbox if there are none. Ready with an empty outbox means the
    /// end.
    pub fn poll_outbox(&mut self, cx: &mut Context<'_>, now: impl Fn() -> Timestamp) -> Poll<&mut Outbox> {
        self.options.protocol.wake_with(cx.waker());
        while self.ended.is_none() && self.options.protocol.has_more() {
            let now = now();
            let reply = self.options.protocol.go_on(now);
            self.reply(reply, now);
        }
        if self.outbox.is_empty() {
            self.take_owed();
        }
        while self.outbox.is_empty()
            && let Some(inbox) = &mut self.inbox
        {
            if !self.options.protocol.may_receive() {
                self.end(End::Expelled, now());
                break;
            }
            let outbox = &mut self.outbox;
            let step = inbox.poll_frames(cx, ROOM, &mut |frame| outbox.push_frame(frame));
            let has_all = inbox.has_caught_up();
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
                Poll::Ready(Step::TooSlow) => self.end(End::Slow, now()),
            }
        }
        if self.waiting && self.outbox.is_empty() { Poll::Pending } else { Poll::Ready(&mut self.outbox) }
    }

    /// The pending bytes.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
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

    /// Whether more may be read from the client. A client that does not take its replies, or has asked for
    /// enough, has to wait.
    pub fn wants_input(&self) -> bool {
        let replies = self.inbox.as_ref().map_or(0, Inbox::reply_bytes);
        replies < limits::REPLIES_BYTES && self.options.protocol.wants_input()
    }

    /// Handles bytes received from the client.
    pub fn received(&mut self, mut bytes: &[u8], now: Timestamp) -> Ask {
        while let Wire::WebSocket(socket) = &mut self.wire
            && let Some(event) = socket.feed(&mut bytes, now)
        {
            match event {
                Event::Ping(_) | Event::Pong(_) => {}
                Event::Closed(_) => {
                    // What the client asked before it closed is answered before its close is.
                    self.take_replies();
                    self.end(End::Left, now);
                }
                // Nothing follows our close frame.
                Event::Failed(_) if self.ended.is_some() => {}
                Event::Failed(violation) => {
                    self.refuse(violation);
                    self.end(End::Left, now);
                }
                // Messages after the end are ignored.
                Event::Text(_) | Event::Binary(_) if self.ended.is_some() => {}
                Event::Text(text) => {
                    let reply = self.options.protocol.on_text(&text, now);
                    self.reply(reply, now);
                }
                Event::Binary(bytes) => {
                    let reply = self.options.protocol.on_binary(bytes, now);
                    self.reply(reply, now);
                }
            }
        }
        if matches!(self.wire, Wire::WebSocket(_)) { Ask::Send } else { Ask::Nothing }
    }

    /// Tells a client that violated the WebSocket protocol what the capability has to say to that, before the close
    /// frame. Returns whether it has something to say.
    fn refuse(&mut self, violation: Violation) -> bool {
        let Some(refusal) = self.options.protocol.on_violation(violation) else { return false };
        if let Wire::WebSocket(socket) = &mut self.wire {
            socket.reword(&refusal.close);
        }
        self.take_replies();
        refusal.texts.iter().for_each(|words| self.say(words));
        true
    }

    fn reply(&mut self, reply: Reply, now: Timestamp) {
        match reply {
            Reply::Nothing => {}
            Reply::Say(words) => self.answer = Some(words),
            Reply::Begin(words, inbox) => {
                self.waiting = false;
                self.outbox.pass(inbox.position());
                words.iter().for_each(|words| self.say(words));
                self.inbox = Some(inbox);
                if let (Wire::WebSocket(socket), Some(limits)) = (&mut self.wire, self.options.begun_limits) {
                    socket.limit(limits);
                }
            }
            Reply::End(end) => self.end(end, now),
            Reply::Close(close) => {
                self.inbox = None;
                self.finish(End::Left, FinalTexts { event: None, message: None, close }, now);
            }
            Reply::Refuse(Refusal { texts, close }) => {
                self.take_replies();
                texts.iter().for_each(|words| self.say(words));
                self.inbox = None;
                self.finish(End::Left, FinalTexts { event: None, message: None, close }, now);
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
        if !end.is_abrupt() && end != End::Left {
            self.take_replies();
        }
        let lag = self.inbox.take().and_then(|inbox| inbox.lag());
        if end.is_abrupt() {
            self.outbox.keep_begun();
        }
        let final_texts = self.options.protocol.final_texts(end, self.outbox.reaches(), lag, now);
        self.finish(end, final_texts, now);
    }

    /// Moves what cannot be read again after the end to the outbox.
    fn take_replies(&mut self) {
        if let Some(inbox) = &mut self.inbox {
            let outbox = &mut self.outbox;
            inbox.take_rest(&mut |frame| outbox.push_frame(frame));
        }
    }

    fn finish(&mut self, end: End, final_texts: FinalTexts, now: Timestamp) {
        self.ended = Some((end, now));
        self.waiting = false;
        let words = match &self.wire {
            Wire::Plain | Wire::Chunked => final_texts.event,
            Wire::WebSocket(_) => final_texts.message,
        };
        // A peer that has closed reads nothing more.
        if let Some(words) = words.filter(|_| end != End::Left) {
            self.say(&words);
        }
        match &mut self.wire {
            Wire::Plain => {}
            Wire::Chunked => self.outbox.push(Bytes::from_static(b"0\r\n\r\n")),
            // If the peer closed first, the answer to that is pending already, and this adds nothing.
            Wire::WebSocket(socket) => socket.close(&final_texts.close, now),
        }
        self.take_owed();
    }

    /// Ends the feed, or some subscriptions of the protocol, if a revocation touches the client's token.
    pub fn revoke(&mut self, revocation: &Revocation, now: Timestamp) -> Cut {
        let closed = Cut { connections: 1, subscriptions: 0 };
        if self.gone || !self.options.pass.is_touched_by(revocation) {
            return Cut::default();
        }
        match (&revocation.topics, self.ended) {
            (None, None) => {
                self.end(End::Revoked, now);
                closed
            }
            // A tick was faster.
            (None, Some((End::Revoked, since))) if since >= revocation.at => closed,
            (Some(_), None) => {
                Cut { connections: 0, subscriptions: self.options.protocol.revoked(revocation, now) }
            }
            (_, Some(_)) => Cut::default(),
        }
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

    /// Releases the inbox: the connection is gone.
    pub fn abandon(&mut self) {
        self.inbox = None;
        self.gone = true;
        self.options.protocol.is_over();
    }

    /// Handles the passing of time; called about once a second. A clock that was set back makes no wait longer.
    pub fn tick(&mut self, now: Timestamp) -> Ask {
        if self.gone {
            return Ask::Nothing;
        }
        let moved = std::mem::take(&mut self.moved);
        if !moved {
            // Most connections are idle most of the time, and there may be many.
            self.outbox.release();
        }
        if let Some((end, since)) = &mut self.ended {
            // A client that must not receive anything more is not waited for.
            let is_unwelcome = matches!(end, End::Revoked | End::Expelled);
            let timeout = match self.options.grace {
                _ if is_unwelcome => limits::REVOKED_TIMEOUT,
                Some(grace) => grace,
                None => limits::FINAL_TEXTS_TIMEOUT,
            };
            // A client that still takes the rest may take its time, unless that is limited.
            let is_patient = !is_unwelcome && self.options.grace.is_none();
            *since = if moved && is_patient { now } else { now.min(*since) };
            return if now.since(*since) >= timeout { Ask::Cut } else { Ask::Nothing };
        }
        if let Some(since) = &mut self.stuck_since {
            *since = now.min(*since);
        }
        self.options.began = now.min(self.options.began);
        let stuck = self.stuck_since.map(|since| now.since(since));
        let lag = self.inbox.as_ref().and_then(Inbox::lag);
        let behind = self.inbox.as_ref().is_some_and(Inbox::is_too_slow);
        if behind || self.options.bounds.exceeded(stuck, lag) {
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
        let reply = self.options.protocol.tick(now);
        self.reply(reply, now);
        if self.ended.is_some() {
            return Ask::Send;
        }
        let is_excused = self.options.excuses_blocked && (stuck.is_some() || !self.wants_input());
        if is_excused && let Wire::WebSocket(socket) = &mut self.wire {
            socket.excuse(now);
        }
        if self.is_silent(now) {
            self.end(End::Silent, now);
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
            Wire::Plain | Wire::Chunked => self.heartbeat(now),
            Wire::WebSocket(socket) => match socket.tick(now) {
                Tick::Wait(_) => Ask::Send,
                Tick::Over(EndReason::Failed(violation)) if self.refuse(violation) => {
                    self.end(End::Left, now);
                    Ask::Send
                }
                Tick::Over(_) => Ask::Cut,
            },
        }
    }

    /// Whether the client of a WebSocket has sent nothing for longer than the protocol allows.
    fn is_silent(&self, now: Timestamp) -> bool {
        match (&self.wire, self.options.silence) {
            (Wire::WebSocket(socket), Some(silence)) => socket.silent_for(now) >= silence,
            _ => false,
        }
    }

    /// Sends a heartbeat to a client that was sent nothing for a while, unless data is pending.
    fn heartbeat(&mut self, now: Timestamp) -> Ask {
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
