//! Why the server closes a connection, and the code and reason of the close frame.

use crate::websocket::{Close, Code};

/// Why the server closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// A newer connection of the user has asked for it.
    TakenOver,
    /// The client has shown no token, or not in time.
    MissingToken,
    /// The token is not valid here.
    InvalidToken,
    /// The token has expired, and the grace is over.
    TokenExpired,
    /// The token was revoked, or its key or project was removed.
    TokenRevoked,
    /// The user has as many connections as are allowed.
    TooManyConnections,
    /// The server stops.
    ShuttingDown,
    /// The client has taken nothing of what was sent for too long.
    SlowConsumer,
    /// The client answers no ping.
    Silent,
    /// A message was too large.
    MessageTooLarge,
    /// The framing of messages was broken.
    ProtocolError,
    /// A fault of the server.
    Internal,
}

impl Closing {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::TakenOver,
        Self::MissingToken,
        Self::InvalidToken,
        Self::TokenExpired,
        Self::TokenRevoked,
        Self::TooManyConnections,
        Self::ShuttingDown,
        Self::SlowConsumer,
        Self::Silent,
        Self::MessageTooLarge,
        Self::ProtocolError,
        Self::Internal,
    ];

    /// The reason in metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::TakenOver => "taken-over",
            Self::MissingToken => "missing-token",
            Self::InvalidToken => "invalid-token",
            Self::TokenExpired => "token-expired",
            Self::TokenRevoked => "token-revoked",
            Self::TooManyConnections => "too-many-connections",
            Self::ShuttingDown => "shutting-down",
            Self::SlowConsumer => "slow-consumer",
            Self::Silent => "silent",
            Self::MessageTooLarge => "message-too-large",
            Self::ProtocolError => "protocol-error",
            Self::Internal => "internal",
        }
    }

    /// The close frame.
    pub fn close(self) -> Close {
        let own = |number| Code::new(number).expect("codes from 4000 to 4999 are free to use");
        match self {
            Self::TakenOver => Close::new(own(4000), "New connection"),
            Self::MissingToken => Close::new(own(4001), "Missing token"),
            Self::InvalidToken => Close::new(own(4002), "Invalid token"),
            Self::TokenExpired => Close::new(own(4401), "Token expired"),
            Self::TokenRevoked => Close::new(own(4401), "Token revoked"),
            Self::TooManyConnections => Close::new(own(4429), "Too many connections"),
            Self::ShuttingDown => Close::new(Code::GOING_AWAY, "Server shutting down"),
            Self::SlowConsumer => Close::new(Code::POLICY_VIOLATION, "Slow consumer"),
            Self::Silent => Close::new(Code::POLICY_VIOLATION, "No answer to a ping"),
            Self::MessageTooLarge => Close::new(Code::TOO_BIG, "Message too large"),
            Self::ProtocolError => Close::new(Code::PROTOCOL_ERROR, "Protocol error"),
            Self::Internal => Close::new(Code::INTERNAL_ERROR, "The server failed"),
        }
    }
}
