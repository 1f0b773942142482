//! What a capability adds to a live response beside the frames of its subscription.

use bytes::Bytes;
use tidings_engine::deliver::Subscription;
use tidings_model::{Position, Timestamp};

use super::feed::End;
use crate::websocket::{Close, Code};

/// A capability's side of the conversation with one client. Its texts are events of an event stream, or the
/// texts of WebSocket messages, whichever the client reads.
pub trait FeedProtocol: Send {
    /// Whether the client may still receive frames. Called before frames are taken, so it must be cheap.
    fn may_receive(&self) -> bool {
        true
    }

    /// The text of a heartbeat; `None` for no heartbeat. The client has received everything up to `reached`.
    fn heartbeat(&mut self, _reached: Position) -> Option<Bytes> {
        None
    }

    /// Called when the client has received everything up to `reached`, until the result is not
    /// [`CaughtUp::NotYet`].
    fn caught_up(&mut self, _reached: Position, _now: Timestamp) -> CaughtUp {
        CaughtUp::Silently
    }

    /// Handles a text message of the client.
    fn on_text(&mut self, _text: &str, _now: Timestamp) -> Reply {
        Reply::Close(Close::new(Code::UNSUPPORTED_DATA, "nothing is read from this socket"))
    }

    /// Deadline of a client that may still say where to begin; `None` once that is decided.
    fn begin_deadline(&self) -> Option<Timestamp> {
        None
    }

    /// Whether that deadline has passed.
    fn is_due(&self, _now: Timestamp) -> bool {
        false
    }

    /// Called when the deadline has passed: decides where to begin.
    fn begin(&mut self, _now: Timestamp) -> Reply {
        Reply::Nothing
    }

    /// The last texts before the end. The client can resume at `resume`.
    fn last_word(&mut self, end: End, _resume: Position, _lag: Option<u64>, _now: Timestamp) -> LastWord {
        // A comment, so that a slow reader that reads on learns why it was cut.
        let event = (end == End::Slow).then(|| Bytes::from_static(b": slow-consumer\n\n"));
        LastWord { event, message: None, close: end.close() }
    }
}

/// How a client is told that it has caught up.
pub enum CaughtUp {
    /// It has not: there were events when it came that it has not received.
    NotYet,
    /// It is not told.
    Silently,
    /// It is sent this text.
    Saying(Bytes),
}

/// The reaction to a message of the client.
pub enum Reply {
    /// None.
    Nothing,
    /// Send a text.
    Say(Bytes),
    /// Send some texts, and then a subscription.
    Begin(Vec<Bytes>, Subscription),
    /// Close the connection.
    Close(Close),
}

/// The last texts of a live response.
pub struct LastWord {
    /// Sent on an event stream.
    pub event: Option<Bytes>,
    /// Sent to a WebSocket.
    pub message: Option<Bytes>,
    /// Close frame of a WebSocket, sent after the message.
    pub close: Close,
}

/// A protocol that adds nothing.
pub struct Plain;

impl FeedProtocol for Plain {}
