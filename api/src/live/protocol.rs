//! How a capability speaks on an answer that stays, beside the frames of its subscription.

use bytes::Bytes;
use tidings_engine::deliver::Subscription;
use tidings_model::{Position, Timestamp};

use super::feed::End;
use crate::websocket::{Close, Code};

/// A capability's manners towards one client. What it says is text: an event of an event stream, or the text of a
/// WebSocket message, whichever the client reads.
pub trait FeedProtocol: Send {
    /// Whether the client may hear what comes next. Asked before anything is taken for it, so it must be cheap.
    fn may_hear(&self) -> bool {
        true
    }

    /// What is said when nothing was for a while. The client has been told of everything up to a position.
    fn heartbeat(&mut self, _reached: Position) -> Option<Bytes> {
        None
    }

    /// The client has had all there is, up to a position. Asked until it has.
    fn caught_up(&mut self, _reached: Position, _now: Timestamp) -> CaughtUp {
        CaughtUp::Silently
    }

    /// The client has said something.
    fn heard(&mut self, _text: &str, _now: Timestamp) -> Reply {
        Reply::Close(Close::new(Code::UNSUPPORTED_DATA, "nothing is read from this socket"))
    }

    /// Until when a client that has not said anything yet may say where to begin; none when that is known.
    fn begins_at(&self) -> Option<Timestamp> {
        None
    }

    /// Whether that time is over.
    fn is_due(&self, _now: Timestamp) -> bool {
        false
    }

    /// It is over.
    fn begin(&mut self, _now: Timestamp) -> Reply {
        Reply::Nothing
    }

    /// The end: what is said last. The client can resume at a position.
    fn last_word(&mut self, end: End, _resume: Position, _lag: Option<u64>, _now: Timestamp) -> LastWord {
        // A comment: whoever reads on after all learns why it ends.
        let event = (end == End::Slow).then(|| Bytes::from_static(b": slow-consumer\n\n"));
        LastWord { event, message: None, close: end.close() }
    }
}

/// What comes of a client's having had all there is.
pub enum CaughtUp {
    /// There was more when it came.
    NotYet,
    /// Nothing.
    Silently,
    /// It is told.
    Saying(Bytes),
}

/// What comes of what a client has said.
pub enum Reply {
    /// Nothing.
    Nothing,
    /// An answer.
    Say(Bytes),
    /// It hears these words, and then a subscription.
    Begin(Vec<Bytes>, Subscription),
    /// The end.
    Close(Close),
}

/// What is said at the end.
pub struct LastWord {
    /// On an event stream.
    pub event: Option<Bytes>,
    /// To a WebSocket.
    pub message: Option<Bytes>,
    /// To a WebSocket then.
    pub close: Close,
}

/// Says what there is and nothing else.
pub struct Plain;

impl FeedProtocol for Plain {}
