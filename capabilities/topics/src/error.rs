//! Why a change of subscriptions fails.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::driver::Verification;

/// A cause that can be shared.
pub type Cause = Arc<dyn Error + Send + Sync>;

/// A change of subscriptions that failed. Nothing has changed, unless the details tell of a failed rollback.
#[derive(Clone, Debug)]
pub struct PubSubError {
    /// What kind of failure it is.
    pub code: PubSubErrorCode,
    /// A sentence for people.
    pub message: String,
    /// What programs may want to know.
    pub details: ErrorDetails,
    /// The failure below, if there is one.
    pub cause: Option<Cause>,
}

/// The kinds of [`PubSubError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PubSubErrorCode {
    /// The topic is too long, empty, or has a character that is not allowed.
    InvalidTopic,
    /// The policy denied the operation.
    AclSubscribe,
    /// The connection holds as many topics as it may, or all connections of the hub together do, or the topic has as many
    /// subscribers as it may, or there are too many patterns.
    TopicLimitExceeded,
    /// The connection is closed.
    ConnectionClosed,
    /// The driver failed.
    AdapterError,
}

/// What a [`PubSubError`] tells programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorDetails {
    /// Nothing more.
    None,
    /// The topic has too many characters, or none.
    Length {
        /// Characters of the topic.
        length: usize,
        /// Characters that it may have.
        max: usize,
    },
    /// The topic has a character that is not allowed.
    Pattern {
        /// The normalized topic.
        topic: String,
    },
    /// Who was denied what.
    Acl(AclDetails),
    /// A subscription beyond the limit.
    Limit {
        /// Topics that a connection may hold.
        limit: usize,
        /// Topics that it holds, with those that it is about to hold.
        current: usize,
        /// New topics that were asked for.
        requested: usize,
    },
    /// A set beyond the limit.
    SetLimit {
        /// Topics that a connection may hold.
        limit: usize,
        /// Topics that it holds, with those that it is about to hold.
        current: usize,
        /// Topics that the operation would add.
        to_add: usize,
        /// Topics that the operation would remove.
        to_remove: usize,
    },
    /// A subscription beyond what the connections of the hub may hold together.
    HubLimit {
        /// Subscriptions that they may hold.
        limit: usize,
        /// New topics that were asked for.
        requested: usize,
    },
    /// There are too many patterns that one topic can match.
    PatternLimit,
    /// A subscription beyond what one topic may have.
    TopicLimit {
        /// Subscriptions that the topic may have.
        limit: usize,
        /// The normalized topic.
        topic: Arc<str>,
    },
    /// The driver failed.
    Adapter {
        /// Name of the driver.
        adapter: &'static str,
        /// Whether the driver says that another attempt may succeed.
        transient: Option<bool>,
        /// Topics of which the driver could not take back what it had done, in the order of the attempts.
        failed_rollback_topics: Vec<Arc<str>>,
    },
}

/// Details of a denial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclDetails {
    /// What was denied.
    pub op: crate::policy::Action,
    /// Whether credentials are missing or do not suffice.
    pub kind: crate::policy::DenialKind,
    /// A reason for programs.
    pub reason: String,
    /// Name of the policy that denied it.
    pub policy: Option<String>,
    /// The normalized topic.
    pub topic: Arc<str>,
}

/// Why a change of subscriptions did not end well.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MutateError {
    /// It failed.
    #[error(transparent)]
    PubSub(#[from] PubSubError),
    /// Its caller did not wait for the end.
    #[error(transparent)]
    Aborted(#[from] Aborted),
    /// It was done, but strict verification did not confirm it.
    #[error("the driver does not confirm the subscription to `{topic}`: {verification}")]
    Unverified {
        /// The first topic that was not confirmed.
        topic: Arc<str>,
        /// What the driver says.
        verification: Verification,
    },
}

/// The caller cancelled the operation, or its time was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operation was aborted: {reason}")]
pub struct Aborted {
    /// Why.
    pub reason: AbortReason,
    /// `Some(false)`: nothing has changed. `None`: the driver was called, and the operation runs to its end
    /// without its caller.
    pub changed: Option<bool>,
}

/// Why an operation was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortReason {
    /// Its token was cancelled.
    Cancelled,
    /// It took longer than its timeout.
    TimedOut,
}

impl PubSubErrorCode {
    /// The code as it is written on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidTopic => "INVALID_TOPIC",
            Self::AclSubscribe => "ACL_SUBSCRIBE",
            Self::TopicLimitExceeded => "TOPIC_LIMIT_EXCEEDED",
            Self::ConnectionClosed => "CONNECTION_CLOSED",
            Self::AdapterError => "ADAPTER_ERROR",
        }
    }

    /// Whether the same operation may succeed later.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::ConnectionClosed | Self::AdapterError => true,
            Self::InvalidTopic | Self::AclSubscribe | Self::TopicLimitExceeded => false,
        }
    }
}

impl PubSubError {
    pub(crate) fn new(code: PubSubErrorCode, message: String, details: ErrorDetails) -> Self {
        Self { code, message, details, cause: None }
    }

    pub(crate) fn closed() -> Self {
        Self::new(
            PubSubErrorCode::ConnectionClosed,
            "the connection is closed".to_owned(),
            ErrorDetails::None,
        )
    }

    pub(crate) fn with_cause(self, cause: Cause) -> Self {
        Self { cause: Some(cause), ..self }
    }
}

impl fmt::Display for PubSubError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for PubSubError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_ref().map(|cause| &**cause as &(dyn Error + 'static))
    }
}

impl ErrorDetails {
    /// The details as a JSON object, with the names that the wire has for them.
    pub fn to_json(&self) -> Map<String, Value> {
        let value = match self {
            Self::None => json!({}),
            Self::Length { length, max } => json!({ "reason": "length", "length": length, "max": max }),
            Self::Pattern { topic } => json!({ "reason": "pattern", "topic": topic }),
            Self::Acl(acl) => return acl.to_json(),
            Self::Limit { limit, current, requested } => {
                json!({ "scope": "connection", "limit": limit, "current": current, "requested": requested })
            }
            Self::SetLimit { limit, current, to_add, to_remove } => json!({
                "scope": "connection", "limit": limit, "current": current, "toAdd": to_add, "toRemove": to_remove,
                "resulting": (current + to_add).saturating_sub(*to_remove),
            }),
            Self::HubLimit { limit, requested } => {
                json!({ "scope": "project", "limit": limit, "requested": requested })
            }
            Self::PatternLimit => json!({ "scope": "project", "reason": "patterns" }),
            Self::TopicLimit { limit, topic } => {
                json!({ "scope": "topic", "limit": limit, "topic": &**topic })
            }
            Self::Adapter { adapter, transient, failed_rollback_topics } => {
                let mut details = Map::from_iter([("adapter".to_owned(), json!(adapter))]);
                if let Some(transient) = transient {
                    details.insert("transient".to_owned(), json!(transient));
                }
                if !failed_rollback_topics.is_empty() {
                    let topics: Vec<&str> = failed_rollback_topics.iter().map(|topic| &**topic).collect();
                    details.insert("rollbackFailed".to_owned(), json!(true));
                    details.insert("failedRollbackTopics".to_owned(), json!(topics));
                }
                return details;
            }
        };
        match value {
            Value::Object(details) => details,
            _ => Map::new(),
        }
    }

    /// Whether the driver could not take back what it had done.
    pub fn rollback_failed(&self) -> bool {
        matches!(self, Self::Adapter { failed_rollback_topics, .. } if !failed_rollback_topics.is_empty())
    }
}

impl AclDetails {
    /// The details as a JSON object.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut details = Map::from_iter([
            ("op".to_owned(), json!(self.op.as_str())),
            ("kind".to_owned(), json!(self.kind.as_str())),
            ("reason".to_owned(), json!(self.reason)),
            ("topic".to_owned(), json!(&*self.topic)),
        ]);
        if let Some(policy) = &self.policy {
            details.insert("policy".to_owned(), json!(policy));
        }
        details
    }
}

impl fmt::Display for AbortReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cancelled => "it was cancelled",
            Self::TimedOut => "its time is over",
        })
    }
}
