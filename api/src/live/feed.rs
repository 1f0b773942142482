//! What is sent to one client that stays, and when that ends. No I/O: whoever has the connection asks and tells.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tidings_auth::{Denied, Pass};
use tidings_engine::deliver::{Step, Subscription};
use tidings_engine::metrics::Held;
use tidings_model::{Timestamp, limits};

use super::outbox::Outbox;
use crate::websocket::{self, Close, Code, Event, Tick};

/// Bytes that are taken from a subscription at a time.
const ROOM: usize = 32 * 1024;

/// On which terms a feed lasts.
pub struct Terms {
    /// When the client is asked to come again.
    lasts: Option<Duration>,
    /// When it began.
    began: Timestamp,
    /// How long it may take nothing of what waits for it.
    slow: Duration,
    /// What lets the client in, for as long as it holds.
    pass: Pass,
    /// Counts the reader.
    _counted: Option<Held>,
}

impl Terms {
    /// Terms for somebody whose pass holds; from now on it is watched.
    pub fn new(lasts: Option<Duration>, slow: Duration, pass: Pass, now: Timestamp) -> Result<Self, Denied> {
        if pass.holds(now) {
            Ok(Self { lasts, began: now, slow, pass, _counted: None })
        } else {
            Err(Denied::Revoked)
        }
    }

    /// The same for a reader that is counted as long as it is fed.
    #[must_use]
    pub fn counted(self, counted: Held) -> Self {
        Self { _counted: Some(counted), ..self }
    }
}

/// Why a feed ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// There is nothing more: the log is closed, and the last frame said so.
    Complete,
    /// The log is gone, or what the client has not heard yet.
    Lost,
    /// Its time is over.
    TimeOver,
    /// Its token has expired, or what let it in does not hold any more.
    Revoked,
    /// The server is about to stop.
    Draining,
    /// The client took nothing for too long.
    Slow,
    /// The client said something where nothing is heard.
    Spoken,
    /// The client closed, or broke the rules so that it had to be closed.
    Left,
}

impl End {
    /// What a WebSocket is told.
    fn close(self) -> Close {
        match self {
            Self::Complete => Close::new(Code::NORMAL, "closed"),
            Self::Lost => Close::new(Code::GOING_AWAY, "gone"),
            Self::TimeOver => Close::new(Code::GOING_AWAY, "come-again"),
            Self::Revoked => Close::new(Code::POLICY_VIOLATION, "access-ended"),
            Self::Draining => Close::new(Code::SERVICE_RESTART, "server-restart"),
            Self::Slow => Close::new(Code::POLICY_VIOLATION, "slow-consumer"),
            Self::Spoken => Close::new(Code::UNSUPPORTED_DATA, "nothing is read from this socket"),
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
    wire: Wire,
    terms: Terms,
    /// Since when the client has taken nothing though something waits for it.
    stuck_since: Option<Timestamp>,
    ended: Option<(End, Timestamp)>,
    /// Something was sent since it was last asked.
    moved: bool,
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
    /// Feeds what a subscription gives.
    pub fn new(subscription: Subscription, wire: Wire, terms: Terms) -> Self {
        Self {
            subscription: Some(subscription),
            outbox: Outbox::default(),
            wire,
            terms,
            stuck_since: None,
            ended: None,
            moved: false,
            gone: false,
            hung_up: false,
        }
    }

    /// Puts bytes before everything else: the head of the answer.
    pub fn begin_with(&mut self, head: Bytes) {
        self.outbox.push(head);
    }

    /// What is to be sent; taken from the subscription if it is empty. Ready with an empty outbox means that all is said.
    pub fn poll_outbox(&mut self, cx: &mut Context<'_>, now: impl Fn() -> Timestamp) -> Poll<&mut Outbox> {
        if self.outbox.is_empty() {
            self.take_owed();
        }
        if self.outbox.is_empty()
            && let Some(subscription) = &mut self.subscription
        {
            let outbox = &mut self.outbox;
            let step = subscription.poll_frames(cx, ROOM, &mut |frame| outbox.push(frame.bytes.clone()));
            match step {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Step::Frames) => {}
                Poll::Ready(Step::Closed) => self.end(End::Complete, now()),
                Poll::Ready(Step::Lost) => self.end(End::Lost, now()),
            }
        }
        Poll::Ready(&mut self.outbox)
    }

    /// Takes what a WebSocket owes its peer: pongs, pings, a close.
    fn take_owed(&mut self) {
        if let Wire::WebSocket(socket) = &mut self.wire {
            while let Some(frame) = socket.outgoing() {
                self.outbox.push(frame);
            }
        }
    }

    /// The client said something.
    pub fn heard(&mut self, mut bytes: &[u8], now: Timestamp) -> Ask {
        let Wire::WebSocket(socket) = &mut self.wire else { return Ask::Nothing };
        let mut end = None;
        while let Some(event) = socket.feed(&mut bytes, now) {
            match event {
                Event::Ping(_) | Event::Pong(_) => {}
                Event::Text(_) | Event::Binary(_) => end = end.or(Some(End::Spoken)),
                Event::Closed(_) | Event::Failed(_) => end = Some(End::Left),
            }
        }
        if let Some(end) = end {
            self.end(end, now);
        }
        Ask::Send
    }

    /// Something was sent.
    pub fn sent(&mut self, bytes: usize) {
        self.outbox.advance(bytes);
        self.stuck_since = None;
        self.moved = true;
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
        self.ended = Some((end, now));
        self.subscription = None;
        if matches!(end, End::Slow | End::Revoked) {
            // What was taken and not begun waits for one who cannot have it, or may not.
            self.outbox.keep_begun();
        }
        // A comment: whoever reads on after all learns why it ends, and resumes where it was.
        let slow = end == End::Slow;
        match &mut self.wire {
            Wire::Plain if slow => self.outbox.push(Bytes::from_static(b": slow-consumer\n\n")),
            Wire::Plain => {}
            Wire::Chunked if slow => {
                self.outbox.push(Bytes::from_static(b"11\r\n: slow-consumer\n\n\r\n0\r\n\r\n"));
            }
            Wire::Chunked => self.outbox.push(Bytes::from_static(b"0\r\n\r\n")),
            // If the peer closed first, its own answer is owed already, and this adds nothing.
            Wire::WebSocket(socket) => socket.close(&end.close(), now),
        }
        self.take_owed();
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
                End::Revoked => limits::REVOKED_TIMEOUT,
                _ => limits::LAST_WORD_TIMEOUT,
            };
            // Whoever takes what is left may take its time.
            *since = if moved && *end != End::Revoked { now } else { now.min(*since) };
            return if now.since(*since) >= patience { Ask::Cut } else { Ask::Nothing };
        }
        if let Some(since) = &mut self.stuck_since {
            *since = now.min(*since);
        }
        self.terms.began = now.min(self.terms.began);
        if self.stuck_since.is_some_and(|since| now.since(since) >= self.terms.slow) {
            self.end(End::Slow, now);
            return Ask::Send;
        }
        if !self.terms.pass.holds(now) {
            self.end(End::Revoked, now);
            return Ask::Send;
        }
        if self.terms.lasts.is_some_and(|lasts| now.since(self.terms.began) >= lasts) {
            self.end(End::TimeOver, now);
            return Ask::Send;
        }
        match &mut self.wire {
            Wire::Plain | Wire::Chunked => Ask::Nothing,
            Wire::WebSocket(socket) => match socket.tick(now) {
                Tick::Wait(_) => Ask::Send,
                Tick::Over(_) => Ask::Cut,
            },
        }
    }
}
