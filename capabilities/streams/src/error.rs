use tidings_engine::log::{CommitError, ReadError, Refusal, StoreError};
use tidings_model::{Position, limits};

use crate::ContentType;
use crate::table::Declined;

/// Why a stream does not do what it was asked. In the words of streams, fit for the client.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// There is no such stream, or it has expired.
    #[error("the stream does not exist")]
    NotFound,
    /// It was deleted while forks live on; its name is not free.
    #[error("the stream was deleted; forks still hold its data")]
    Gone,
    /// There is a stream of that name with another configuration.
    #[error("the stream exists with another configuration: {0} differs")]
    Conflict(&'static str),
    /// The body's type is not the stream's.
    #[error("the stream has content type `{expected}`, not `{received}`")]
    ContentTypeMismatch {
        /// What the stream has.
        expected: ContentType,
        /// What the request has.
        received: ContentType,
    },
    /// The body of a JSON stream is not JSON.
    #[error("the body is not valid JSON: {0}")]
    InvalidJson(String),
    /// An append of nothing.
    #[error("an append needs a body, or `Stream-Closed: true`")]
    EmptyAppend,
    /// An empty array has no message to append.
    #[error("an empty JSON array has no message to append")]
    EmptyArray,
    /// More messages than one append may have.
    #[error("an append has at most {} messages", limits::MESSAGES_PER_APPEND)]
    TooManyMessages,
    /// The stream takes nothing more.
    #[error("the stream is closed")]
    Closed {
        /// Its final position.
        tail: Position,
    },
    /// A later incarnation of the producer has written.
    #[error("a later epoch of this producer has written")]
    ProducerFenced {
        /// The epoch that counts.
        epoch: u64,
    },
    /// A request of the producer is missing.
    #[error("expected producer sequence {expected}, received {received}")]
    ProducerGap {
        /// What would be accepted.
        expected: u64,
        /// What came.
        received: u64,
    },
    /// A new epoch that does not begin at zero.
    #[error("a new producer epoch begins with sequence 0")]
    ProducerEpochStart,
    /// The stream remembers as many producers as it may.
    #[error("the stream has {} active producers already", limits::PRODUCERS_PER_LOG)]
    TooManyProducers,
    /// `Stream-Seq` does not sort after the last one.
    #[error("the sequence does not sort after the last one of the stream")]
    OutOfOrder,
    /// The tail is not where the request expects it.
    #[error("the stream's tail is not the expected one")]
    TailMoved {
        /// Where it is.
        tail: Position,
    },
    /// The source of a fork does not exist.
    #[error("the source stream does not exist")]
    SourceNotFound,
    /// The source of a fork was deleted.
    #[error("the source stream was deleted")]
    SourceGone,
    /// The source of a fork belongs to another project.
    #[error("a stream can be forked only within its project")]
    SourceForeign,
    /// A fork's offset lies behind the source's tail.
    #[error("the fork offset lies beyond the tail of the source")]
    ForkBeyondTail,
    /// A fork's offset is none that the source gave.
    #[error("the fork offset is not one that the source gave")]
    ForkBetweenRecords,
    /// A fork's sub-offset lies behind the next append.
    #[error("the fork sub-offset lies beyond the append that follows the fork offset")]
    SubOffsetBeyondAppend,
    /// Forks of forks of forks.
    #[error("a fork descends from at most {} streams", limits::FORK_DEPTH)]
    ForkTooDeep,
    /// Records after the asked position are gone.
    #[error("records after this offset are no longer kept")]
    Trimmed {
        /// Reading from here gives the oldest that is kept.
        floor: Position,
        /// The tail.
        tail: Position,
    },
    /// As many live readers as one stream may have.
    #[error("the stream has as many live readers as it may")]
    TooManyReaders,
    /// Others changed the stream at the same time, again and again.
    #[error("the stream is being changed by others; try again")]
    Contended,
    /// The store could not.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store refused what this crate should not have asked.
    #[error("unexpected refusal: {0}")]
    Unexpected(Refusal),
}

impl From<ReadError> for StreamError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NoSuchLog(_) => Self::NotFound,
            ReadError::Trimmed { floor, tail } => Self::Trimmed { floor, tail },
            ReadError::Store(error) => Self::Store(error),
        }
    }
}

impl From<Refusal> for StreamError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoSuchLog(_) => Self::NotFound,
            Refusal::Closed { tail } => Self::Closed { tail },
            Refusal::Fenced { epoch } => Self::ProducerFenced { epoch },
            Refusal::Gap { expected, received } => Self::ProducerGap { expected, received },
            Refusal::EpochStart => Self::ProducerEpochStart,
            Refusal::TooManyProducers => Self::TooManyProducers,
            Refusal::OutOfOrder => Self::OutOfOrder,
            Refusal::TailMoved { tail } => Self::TailMoved { tail },
            Refusal::Duplicate { .. }
            | Refusal::LogExists(_)
            | Refusal::PositionNotAbove { .. }
            | Refusal::Malformed(_) => Self::Unexpected(refusal),
        }
    }
}

impl From<CommitError<Declined>> for StreamError {
    fn from(error: CommitError<Declined>) -> Self {
        match error {
            CommitError::Refused(refusal) => refusal.into(),
            CommitError::Declined(Declined::NotThere) => Self::NotFound,
            CommitError::Declined(
                Declined::Exists
                | Declined::SourceGone
                | Declined::SourceTrimmed
                | Declined::HasForks
                | Declined::NotDue,
            ) => Self::Contended,
            CommitError::Store(error) => Self::Store(error),
        }
    }
}
