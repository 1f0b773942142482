//! How a client ends.

use std::fmt;

/// Anything that went wrong.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a client has stopped. Connecting again would not help.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// The token is refused, and so is the one that was got instead, or there was none to be got.
    #[error("the token is refused: {0}")]
    Unauthorized(Refusal),
    /// The reader is no member of the room, or is none any more.
    #[error("the room is closed to this reader: {0}")]
    Forbidden(Refusal),
    /// The server refuses the request itself.
    #[error("the request is refused: {0}")]
    Refused(Refusal),
    /// The application could not handle an event. Its cursor is not stored.
    #[error("an event could not be handled: {0}")]
    Handler(#[source] BoxError),
    /// The last cursor could not be read or stored.
    #[error("the last cursor could not be read or stored: {0}")]
    LastSeen(#[source] BoxError),
}

/// What a server says when it refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status.
    pub status: u16,
    /// The name of the error, such as `NotMember`; empty if there is none.
    pub error: String,
    /// What it means; empty if nothing was said.
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
