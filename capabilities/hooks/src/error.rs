//! Errors of hooks.

use tidings_engine::log::{CommitError, ReadError, Refusal, StoreError};
use tidings_model::Position;

use crate::hook::InvalidSettings;
use crate::ingest::InvalidBatch;
use crate::table::Declined;

/// Why an operation on hooks failed.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// There is no such hook, or it is in another project.
    #[error("there is no such hook")]
    NoSuchHook,
    /// There is no such dead letter.
    #[error("there is no such dead letter")]
    NoSuchDeadLetter,
    /// A setting is invalid.
    #[error("{field}: {why}")]
    Invalid {
        /// Name of the field on the wire.
        field: &'static str,
        /// What is wrong. May be shown to the client.
        why: String,
    },
    /// A hook with the same target, pattern and method exists.
    #[error("the project has a hook with this target, pattern and method already")]
    Exists,
    /// The project has the maximum number of hooks.
    #[error("a project has at most {most} hooks")]
    TooMany {
        /// The limit.
        most: usize,
    },
    /// The hook has the maximum number of replays under way.
    #[error("a hook has at most {most} replays under way; wait until one has ended")]
    TooManyReplays {
        /// The limit.
        most: usize,
    },
    /// Some events of a batch are invalid.
    #[error(transparent)]
    InvalidBatch(#[from] InvalidBatch),
    /// The queue of the hook has the maximum number of live readers.
    #[error("the hook has the maximum of {most} live readers; try again later")]
    TooManyReaders {
        /// The limit.
        most: usize,
    },
    /// The deliveries after this position of a queue were removed.
    #[error("deliveries after this offset were removed; read from the beginning")]
    Trimmed {
        /// Position after which deliveries are kept.
        floor: Position,
        /// The tail.
        tail: Position,
    },
    /// The project has ingested as much as it may in this minute.
    #[error("the limit of {most} {what} per minute is reached")]
    RateLimited {
        /// What is limited.
        what: &'static str,
        /// The limit.
        most: u64,
        /// Seconds until more is accepted.
        retry_after: u64,
    },
    /// The project has ingested as much as it may today.
    #[error("the quota of {most} events per day is used up")]
    QuotaExceeded {
        /// The limit.
        most: u64,
    },
    /// Concurrent changes interfered every time.
    #[error("the hooks are being changed; try again")]
    Contended,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A refusal that the operation rules out.
    #[error("unexpected refusal: {0}")]
    Unexpected(String),
}

impl From<InvalidSettings> for HookError {
    fn from(InvalidSettings { field, why }: InvalidSettings) -> Self {
        Self::Invalid { field, why }
    }
}

impl From<ReadError> for HookError {
    fn from(error: ReadError) -> Self {
        match error {
            // The queue went together with its hook.
            ReadError::NoSuchLog(_) => Self::NoSuchHook,
            ReadError::Trimmed { .. } => Self::Unexpected(error.to_string()),
            ReadError::Store(error) => Self::Store(error),
        }
    }
}

impl From<CommitError<Declined>> for HookError {
    fn from(error: CommitError<Declined>) -> Self {
        match error {
            CommitError::Declined(Declined::Moved) => Self::Contended,
            CommitError::Declined(Declined::NoSuchHook) => Self::NoSuchHook,
            CommitError::Declined(Declined::Exists) => Self::Exists,
            CommitError::Declined(Declined::TooMany { most }) => Self::TooMany { most },
            CommitError::Declined(Declined::TooManyReplays { most }) => Self::TooManyReplays { most },
            CommitError::Refused(Refusal::NoSuchLog(_)) => Self::NoSuchHook,
            CommitError::Refused(refusal) => Self::Unexpected(refusal.to_string()),
            CommitError::Store(error) => Self::Store(error),
        }
    }
}
