//! Why a client stops.

use std::fmt;

/// Any error of the application.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a client has stopped. Connecting again would not help.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// The token was refused, and a new one was refused as well or could not be obtained.
    #[error("the token is refused: {0}")]
    Unauthorized(Refusal),
    /// The reader is not a member of the room.
    #[error("the room is closed to this reader: {0}")]
    Forbidden(Refusal),
    /// The server refused the request as invalid.
    #[error("the request is refused: {0}")]
    Refused(Refusal),
    /// The handler failed. The cursor of the event is not stored.
    #[error("an event could not be handled: {0}")]
    Handler(#[source] BoxError),
    /// The last cursor could not be read or stored.
    #[error("the last cursor could not be read or stored: {0}")]
    LastSeen(#[source] BoxError),
}

/// Error response of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// Name of the error, such as `NotMember`; empty if there is none.
    pub error: String,
    /// Description of the error; empty if there is none.
    pub message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.status)?;
        if !self.error.is_empty() {
            write!(formatter, " {}", self.error)?;
        }
        if !self.message.is_empty() {
            write!(formatter, ": {}", self.message)?;
        }
        Ok(())
    }
}
