//! Limits of the resources that a peer can make a connection use.

use std::time::Duration;

use tidings_model::limits;

/// Limits of one connection. Endpoints that read little should set lower ones than the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of payload in one frame.
    pub frame_bytes: usize,
    /// Maximum bytes of one message, all fragments together.
    pub message_bytes: usize,
    /// Maximum number of fragments of one message.
    pub fragments: u32,
    /// Maximum time from the first byte of a message to the last, because its buffer is held for so long.
    pub message_time: Duration,
    /// Maximum time for the peer to answer a close frame.
    pub close_time: Duration,
}

impl Limits {
    /// Limits of a connection on which clients have little to say, so that little of it is buffered.
    pub fn unheard() -> Self {
        Self {
            frame_bytes: limits::UNHEARD_MESSAGE_BYTES,
            message_bytes: limits::UNHEARD_MESSAGE_BYTES,
            message_time: limits::UNHEARD_MESSAGE_TIMEOUT,
            ..Self::default()
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            frame_bytes: limits::WEBSOCKET_FRAME_BYTES,
            message_bytes: limits::WEBSOCKET_MESSAGE_BYTES,
            fragments: limits::WEBSOCKET_FRAGMENTS,
            message_time: limits::WEBSOCKET_MESSAGE_TIMEOUT,
            close_time: limits::WEBSOCKET_CLOSE_TIMEOUT,
        }
    }
}
