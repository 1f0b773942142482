//! How far a peer can make a connection grow.

use std::time::Duration;

use tidings_model::limits;

/// Bounds of one connection. Those that read little can be held shorter than the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of payload in one frame.
    pub frame_bytes: usize,
    /// Bytes of one message, all its fragments together.
    pub message_bytes: usize,
    /// Frames of one message.
    pub fragments: u32,
    /// How long a message may take from its first byte to its last, since its buffer waits as long.
    pub message_time: Duration,
    /// How long the peer may take to answer a close frame.
    pub close_time: Duration,
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
