//! Errors as clients of topics are told them: `{"code","message","retryable","details"?,"retryAfterMs"?}`.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

/// Why a request or a frame was rejected.
#[derive(Clone, Debug, PartialEq)]
pub struct WireError {
    /// Code for programs.
    pub code: &'static str,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// Text for people.
    pub message: String,
    /// Details for programs.
    pub details: Option<Value>,
    /// Time after which to try again.
    pub retry_after: Option<Duration>,
}

/// Codes of rejected requests, beside those of `tidings_topics`.
pub mod code {
    /// The frame or its payload is malformed.
    pub const INVALID_ARGUMENT: &str = "INVALID_ARGUMENT";
    /// The type is not known.
    pub const UNIMPLEMENTED: &str = "UNIMPLEMENTED";
    /// The state does not allow it.
    pub const FAILED_PRECONDITION: &str = "FAILED_PRECONDITION";
    /// Too many or too large frames.
    pub const RESOURCE_EXHAUSTED: &str = "RESOURCE_EXHAUSTED";
    /// The token of `$auth` is not valid.
    pub const UNAUTHENTICATED: &str = "UNAUTHENTICATED";
    /// The right is missing.
    pub const PERMISSION_DENIED: &str = "PERMISSION_DENIED";
    /// The request was cancelled before it took effect.
    pub const CANCELLED: &str = "CANCELLED";
    /// The time that the request allowed has passed.
    pub const DEADLINE_EXCEEDED: &str = "DEADLINE_EXCEEDED";
    /// The connection is closing.
    pub const CONNECTION_CLOSED: &str = "CONNECTION_CLOSED";
    /// A fault of the server.
    pub const INTERNAL: &str = "INTERNAL";
}

impl WireError {
    /// An error that stays the same however often the request is repeated.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, retryable: false, message: message.into(), details: None, retry_after: None }
    }

    /// An error after which the same request may succeed.
    pub fn retryable(code: &'static str, message: impl Into<String>) -> Self {
        Self { retryable: true, ..Self::new(code, message) }
    }

    /// Adds details.
    #[must_use]
    pub fn with(self, details: Value) -> Self {
        Self { details: Some(details), ..self }
    }

    /// A frame that cannot be understood, and what about it.
    pub fn frame(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(code::INVALID_ARGUMENT, message).with(json!({ "reason": reason }))
    }

    /// A payload in which one field is missing or odd.
    pub fn field(field: &str, expected: &str) -> Self {
        Self::new(code::INVALID_ARGUMENT, format!("`{field}` must be {expected}"))
            .with(json!({ "reason": "payload", "field": field }))
    }

    /// A list that is too long.
    pub fn too_many_topics(limit: usize) -> Self {
        Self::new(code::INVALID_ARGUMENT, format!("one request names at most {limit} topics"))
            .with(json!({ "reason": "too-many-topics", "limit": limit }))
    }

    /// A type of which the server knows nothing.
    pub fn unimplemented(kind: &str) -> Self {
        Self::new(code::UNIMPLEMENTED, format!("there is no request `{kind}`")).with(json!({ "type": kind }))
    }

    /// More frames than the rate limit allows.
    pub fn too_fast(retry_after: Duration) -> Self {
        let error = Self::retryable(code::RESOURCE_EXHAUSTED, "this connection sends too many frames");
        Self { retry_after: Some(retry_after), ..error }
    }

    /// A frame that is too large.
    pub fn frame_too_large(limit: usize) -> Self {
        let message = format!("a frame has at most {limit} bytes");
        Self::retryable(code::RESOURCE_EXHAUSTED, message).with(json!({ "limit": limit }))
    }

    /// A fault of the server.
    pub fn internal() -> Self {
        Self::retryable(code::INTERNAL, "the server could not do this; see its log")
    }

    /// Whether the frame could not be understood, so that the client seems not to know the protocol.
    pub fn is_misuse(&self) -> bool {
        matches!(self.code, code::INVALID_ARGUMENT | code::UNIMPLEMENTED)
    }
}

impl Serialize for WireError {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Shown<'a> {
            code: &'a str,
            message: &'a str,
            retryable: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            details: Option<&'a Value>,
            #[serde(skip_serializing_if = "Option::is_none")]
            retry_after_ms: Option<u64>,
        }
        let Self { code, retryable, message, details, retry_after } = self;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (details, retry_after_ms) = (details.as_ref(), retry_after.map(millis));
        Shown { code, message, retryable: *retryable, details, retry_after_ms }.serialize(serializer)
    }
}
