//! What a publish comes to. It is never an `Err`: failures are values with a code.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::error::Cause;
use crate::history::Position;

/// The outcome of a publish.
#[derive(Clone, Debug)]
#[must_use]
pub enum PublishResult {
    /// The message was handed to everybody who was found to subscribe.
    Sent(Sent),
    /// The message was not sent.
    Failed(PublishFailure),
}

/// A publish that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// What `matched` means.
    pub capability: Capability,
    /// Number of connections that matched, without an excluded sender. `None` if it is unknown.
    pub matched: Option<u64>,
    /// Its place in the topic's history, if the topic has one.
    pub position: Option<Position>,
}

/// What a driver knows of the number of subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Capability {
    /// The exact number.
    Exact,
    /// A lower bound.
    Estimate,
    /// Nothing.
    Unknown,
}

/// A publish that failed.
#[derive(Clone, Debug)]
pub struct PublishFailure {
    /// What kind of failure it is.
    pub error: PublishError,
    /// Name of the driver that refused, if it was one.
    pub adapter: Option<&'static str>,
    /// What programs may want to know.
    pub details: Map<String, Value>,
    /// The failure below, if there is one.
    pub cause: Option<Cause>,
}

/// The kinds of [`PublishFailure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PublishError {
    /// Topic, type or payload are not valid.
    Validation,
    /// The policy denied it.
    AclPublish,
    /// Nothing can be published in this state: the drivers were not started, or the server is about to stop.
    State,
    /// A queue of the driver is full.
    Backpressure,
    /// The payload has more bytes than it may.
    PayloadTooLarge,
    /// The driver does not have this feature.
    Unsupported,
    /// The driver failed.
    AdapterError,
    /// The connection is closed.
    ConnectionClosed,
}

impl Sent {
    /// An exact number of connections.
    pub fn exact(matched: u64) -> Self {
        Self { capability: Capability::Exact, matched: Some(matched), position: None }
    }

    /// At least so many connections.
    pub fn at_least(matched: u64) -> Self {
        Self { capability: Capability::Estimate, matched: Some(matched), position: None }
    }

    /// An unknown number of connections.
    pub fn unknown() -> Self {
        Self { capability: Capability::Unknown, matched: None, position: None }
    }
}

impl Sent {
    /// Says at which place of the topic's history the message is.
    pub fn at(self, position: Position) -> Self {
        Self { position: Some(position), ..self }
    }
}

impl Capability {
    /// The capability as it is written on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Estimate => "estimate",
            Self::Unknown => "unknown",
        }
    }
}

impl PublishError {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Validation,
        Self::AclPublish,
        Self::State,
        Self::Backpressure,
        Self::PayloadTooLarge,
        Self::Unsupported,
        Self::AdapterError,
        Self::ConnectionClosed,
    ];

    /// The code as it is written on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Validation => "VALIDATION",
            Self::AclPublish => "ACL_PUBLISH",
            Self::State => "STATE",
            Self::Backpressure => "BACKPRESSURE",
            Self::PayloadTooLarge => "PAYLOAD_TOO_LARGE",
            Self::Unsupported => "UNSUPPORTED",
            Self::AdapterError => "ADAPTER_ERROR",
            Self::ConnectionClosed => "CONNECTION_CLOSED",
        }
    }

    /// Whether the same publish may succeed later.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Backpressure | Self::ConnectionClosed | Self::AdapterError => true,
            Self::Validation | Self::AclPublish | Self::State | Self::PayloadTooLarge | Self::Unsupported => {
                false
            }
        }
    }
}

impl PublishFailure {
    /// A failure without details.
    pub fn new(error: PublishError) -> Self {
        Self { error, adapter: None, details: Map::new(), cause: None }
    }

    /// Adds a detail.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    /// Names the driver.
    pub fn by(self, adapter: &'static str) -> Self {
        Self { adapter: Some(adapter), ..self }
    }

    /// Adds the failure below.
    pub fn because(self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { cause: Some(Arc::new(cause)), ..self }
    }

    /// Whether the same publish may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.error.is_retryable()
    }
}

impl PublishResult {
    /// Whether the message was sent.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Sent(_))
    }

    /// Number of connections that matched, if the publish succeeded and it is known.
    pub fn matched(&self) -> Option<u64> {
        match self {
            Self::Sent(sent) => sent.matched,
            Self::Failed(_) => None,
        }
    }

    /// The kind of failure, if it failed.
    pub fn error(&self) -> Option<PublishError> {
        match self {
            Self::Sent(_) => None,
            Self::Failed(failure) => Some(failure.error),
        }
    }

    /// The result as `Result`, for callers who prefer that.
    pub fn into_result(self) -> Result<Sent, PublishFailure> {
        match self {
            Self::Sent(sent) => Ok(sent),
            Self::Failed(failure) => Err(failure),
        }
    }

    /// The result as the JSON object of the wire.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        match self {
            Self::Sent(sent) => {
                object.insert("ok".to_owned(), json!(true));
                object.insert("capability".to_owned(), json!(sent.capability.as_str()));
                if let Some(matched) = sent.matched {
                    object.insert("matched".to_owned(), json!(matched));
                }
                if let Some(Position { epoch, offset }) = sent.position {
                    object.insert("epoch".to_owned(), json!(epoch.to_string()));
                    object.insert("offset".to_owned(), json!(offset));
                }
            }
            Self::Failed(failure) => {
                object.insert("ok".to_owned(), json!(false));
                object.insert("error".to_owned(), json!(failure.error.as_str()));
                object.insert("retryable".to_owned(), json!(failure.is_retryable()));
                if let Some(adapter) = failure.adapter {
                    object.insert("adapter".to_owned(), json!(adapter));
                }
                if !failure.details.is_empty() {
                    object.insert("details".to_owned(), Value::Object(failure.details.clone()));
                }
                if let Some(cause) = &failure.cause {
                    object.insert("cause".to_owned(), json!(cause.to_string()));
                }
            }
        }
        Value::Object(object)
    }
}

impl From<PublishFailure> for PublishResult {
    fn from(failure: PublishFailure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Result<Sent, PublishFailure>> for PublishResult {
    fn from(result: Result<Sent, PublishFailure>) -> Self {
        match result {
            Ok(sent) => Self::Sent(sent),
            Err(failure) => Self::Failed(failure),
        }
    }
}
