//! What a capability adds to a live response beside the frames of its subscription.

use std::task::Waker;

use bytes::Bytes;
use tidings_auth::Revocation;
use tidings_engine::deliver::Inbox;
use tidings_model::{Position, Timestamp};

use super::feed::End;
use crate::websocket::{Close, Code, Text, Violation};

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
    fn on_text(&mut self, _text: &Text, _now: Timestamp) -> Reply {
        Reply::Close(Close::new(Code::UNSUPPORTED_DATA, "nothing is read from this socket"))
    }

    /// Handles a binary message of the client.
    fn on_binary(&mut self, _bytes: Bytes, _now: Timestamp) -> Reply {
        Reply::Close(Close::new(Code::UNSUPPORTED_DATA, "bytes are not read from this socket"))
    }

    /// What a client that violated the WebSocket protocol is told; `None` for just the code of the violation.
    fn on_violation(&mut self, _violation: Violation) -> Option<Refusal> {
        None
    }

    /// Whether [`FeedProtocol::go_on`] has something to do. Called whenever the feed is asked for bytes, so it must
    /// be cheap.
    fn has_more(&self) -> bool {
        false
    }

    /// Does one thing that could not be done when the client asked for it, because something had to be waited
    /// for. When that is over, the feed must be woken.
    fn go_on(&mut self, _now: Timestamp) -> Reply {
        Reply::Nothing
    }

    /// Whoever is woken by this looks at [`has_more`](Self::has_more) again. Called whenever the feed is asked for bytes,
    /// so it must be cheap. The waker must be dropped when the connection is gone.
    fn wake_with(&mut self, _waker: &Waker) {}

    /// Called when the connection is gone.
    fn is_over(&mut self) {}

    /// Whether more messages of the client may be handled now. When that changes, the feed must be woken.
    fn wants_input(&self) -> bool {
        true
    }

    /// Handles the passing of time; called about once a second.
    fn tick(&mut self, _now: Timestamp) -> Reply {
        Reply::Nothing
    }

    /// Called when topics were revoked of the client's token: ends the subscriptions to them, and returns their number,
    /// with those that an earlier [`tick`](Self::tick) ended because of the same revocation. Called only on the node
    /// that was asked to revoke; on others a tick has to notice what the pass refuses now.
    fn revoked(&mut self, _revocation: &Revocation, _now: Timestamp) -> usize {
        0
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
    fn final_texts(&mut self, end: End, _resume: Position, _lag: Option<u64>, _now: Timestamp) -> FinalTexts {
        // A comment, so that a slow reader that reads on learns why it was cut.
        let event = (end == End::Slow).then(|| Bytes::from_static(b": slow-consumer\n\n"));
        FinalTexts { event, message: None, close: end.close() }
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
    /// Send some texts, and then what comes in.
    Begin(Vec<Bytes>, Inbox),
    /// End the feed.
    End(End),
    /// Close the connection.
    Close(Close),
    /// Say some texts, after what was said before, and close the connection.
    Refuse(Refusal),
}

/// What is told to a client that violated the WebSocket protocol, or was not admitted.
pub struct Refusal {
    /// Texts before the close frame.
    pub texts: Vec<Bytes>,
    /// The close frame.
    pub close: Close,
}

/// The last texts of a live response.
pub struct FinalTexts {
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
