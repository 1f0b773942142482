//! Failures of handlers, as clients see them.

use serde_json::{Map, Value, json};

use crate::error::{AbortReason, MutateError, PubSubError, PubSubErrorCode};

/// What a handler returns.
pub type HandlerResult = Result<(), HandlerError>;

/// A failure that the client is told.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct HandlerError {
    /// What kind of failure it is, in capitals.
    pub code: String,
    /// A sentence for people.
    pub message: String,
    /// Whether the same message may succeed later.
    pub retryable: bool,
    /// What programs may want to know.
    pub details: Map<String, Value>,
}

impl HandlerError {
    /// A failure that another attempt does not change.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), retryable: false, details: Map::new() }
    }

    /// A failure that may be over soon.
    pub fn retryable(self) -> Self {
        Self { retryable: true, ..self }
    }

    /// Adds a detail.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    /// A fault of the program, about which the client is told nothing.
    pub(crate) fn internal() -> Self {
        Self::new("INTERNAL", "the message could not be handled").retryable()
    }
}

impl From<PubSubError> for HandlerError {
    fn from(error: PubSubError) -> Self {
        let PubSubError { code, message, details, .. } = error;
        Self {
            code: code.as_str().to_owned(),
            message,
            retryable: PubSubErrorCode::is_retryable(code),
            details: details.to_json(),
        }
    }
}

impl From<MutateError> for HandlerError {
    fn from(error: MutateError) -> Self {
        let message = error.to_string();
        match error {
            MutateError::PubSub(error) => error.into(),
            MutateError::Aborted(aborted) => {
                let (code, retryable) = match aborted.reason {
                    AbortReason::Cancelled => ("CANCELLED", false),
                    AbortReason::TimedOut => ("DEADLINE_EXCEEDED", true),
                };
                Self { retryable, ..Self::new(code, message) }.with("changed", json!(aborted.changed))
            }
            MutateError::Unverified { verification, .. } => {
                Self::new("FAILED_PRECONDITION", message).with("kind", verification.as_str())
            }
        }
    }
}
