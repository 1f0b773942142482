//! Errors of subscriptions.

use tidings_engine::log::{CommitError, StoreError};
use tidings_streams::StreamError;

use crate::table::Declined;

/// Why an operation on subscriptions failed.
#[derive(Debug, thiserror::Error)]
pub enum SubscriptionError {
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The URL of the endpoint is not allowed.
    #[error("{0}")]
    UrlRejected(String),
    /// There is no such subscription.
    #[error("there is no such subscription")]
    NotFound,
    /// There is a subscription of this id with another configuration.
    #[error("the subscription exists with another configuration; delete it to change it")]
    Exists,
    /// The project has the maximum number of subscriptions.
    #[error("a project has at most {most} subscriptions")]
    TooMany {
        /// The limit.
        most: usize,
    },
    /// The subscription or the project has the maximum number of links.
    #[error(
        "a subscription is linked to at most {} streams, and all of a project to at most {}",
        tidings_model::limits::LINKS_PER_SUBSCRIPTION,
        tidings_model::limits::LINKS_PER_PROJECT
    )]
    TooManyLinks,
    /// The token is none of this subscription.
    #[error("the token is not one of a wake or a claim of this subscription")]
    TokenInvalid,
    /// The token is too old.
    #[error("the token has expired")]
    TokenExpired,
    /// The wake is not the current one, or its lease is over.
    #[error("the wake is not the current one")]
    Fenced,
    /// Another worker holds the lease.
    #[error("`{holder}` has claimed the work")]
    AlreadyClaimed {
        /// Name of the worker.
        holder: Box<str>,
        /// Number of the wake.
        generation: u64,
    },
    /// No stream has anything that was not acknowledged.
    #[error("no stream of the subscription has anything new")]
    NoPendingWork,
    /// An acknowledgement is not possible.
    #[error("{0}")]
    InvalidOffset(String),
    /// Concurrent changes interfered too often.
    #[error("others changed it at the same time; try again")]
    Contended,
    /// An error of streams.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<CommitError<Declined>> for SubscriptionError {
    fn from(error: CommitError<Declined>) -> Self {
        match error {
            CommitError::Declined(Declined::Moved | Declined::Streams(_)) => Self::Contended,
            CommitError::Declined(Declined::Exists) => Self::Exists,
            CommitError::Declined(Declined::TooMany) => Self::Contended,
            CommitError::Declined(Declined::TooManyLinks) => Self::TooManyLinks,
            // No commit of subscriptions has operations on logs.
            CommitError::Refused(refusal) => Self::Store(StoreError::Unavailable(refusal.to_string())),
            CommitError::Store(error) => Self::Store(error),
        }
    }
}
