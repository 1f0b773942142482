//! Errors as clients of entities are told them: `{"message","code","requestId"?,"retryAfter"?}`.

use std::time::Duration;

use serde_json::value::RawValue;

/// Why a message, or a connection, was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireError {
    /// Code for programs.
    pub code: &'static str,
    /// Text for people.
    pub message: String,
    /// Time after which to try again, where that helps.
    pub retry_after: Option<Duration>,
}

/// An error and the id of the request that it answers.
#[derive(Debug)]
pub struct Refusal<'a> {
    /// Id of the request as it was sent, if it has one.
    pub request_id: Option<&'a RawValue>,
    /// What is wrong.
    pub error: WireError,
}

/// Codes of errors.
pub mod code {
    /// The client has shown no token, or not in time.
    pub const MISSING_TOKEN: &str = "MissingToken";
    /// The token is not valid, or is one of another project.
    pub const INVALID_TOKEN: &str = "InvalidToken";
    /// The token names no user.
    pub const USER_REQUIRED: &str = "UserRequired";
    /// The token of a `TOKEN_REFRESH` is not valid, or is one of another user.
    pub const INVALID_REFRESH_TOKEN: &str = "InvalidRefreshToken";
    /// The token has expired.
    pub const TOKEN_EXPIRED: &str = "TokenExpired";
    /// The message is not JSON, or not as it has to be.
    pub const INVALID_MESSAGE: &str = "InvalidMessage";
    /// The type of the message is not known.
    pub const UNKNOWN_TYPE: &str = "UnknownType";
    /// The text in `entityCode` cannot be the code of a type.
    pub const INVALID_CODE: &str = "InvalidCode";
    /// The text in `since` is not a cursor.
    pub const INVALID_CURSOR: &str = "InvalidCursor";
    /// The user may not watch the whole type.
    pub const FORBIDDEN: &str = "Forbidden";
    /// More than one message, connection or user may have.
    pub const LIMIT_EXCEEDED: &str = "LimitExceeded";
    /// The source of changes is away.
    pub const UNAVAILABLE: &str = "Unavailable";
    /// A fault of the server.
    pub const INTERNAL: &str = "Internal";
}

impl WireError {
    /// An error that stays the same however often the message is repeated.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retry_after: None }
    }

    /// A message that cannot be read at all.
    pub fn unreadable() -> Self {
        Self::new(code::INVALID_MESSAGE, "Invalid message format")
    }

    /// A message of which one field is missing or odd.
    pub fn field(field: &str, expected: &str) -> Self {
        let message = format!("Invalid message format: `{field}` must be {expected}");
        Self::new(code::INVALID_MESSAGE, message)
    }

    /// A limit that was exceeded.
    pub fn limit(message: impl Into<String>) -> Self {
        Self::new(code::LIMIT_EXCEEDED, message)
    }

    /// A fault of the server.
    pub fn internal() -> Self {
        Self::new(code::INTERNAL, "The server could not do this; see its log")
    }
}
