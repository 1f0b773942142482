//! Errors of streams, in the words of the protocol and without HTTP.

use tidings_engine::log::{CommitError, ProducerRefusal, ReadError, Refusal, StoreError};
use tidings_model::{Position, limits};

use crate::ContentType;
use crate::table::Declined;

/// Why an operation on a stream failed. The message may be shown to the client.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The stream does not exist, or has expired.
    #[error("the stream does not exist")]
    NotFound,
    /// The stream was deleted, but is kept for its forks; its name is not free.
    #[error("the stream was deleted; forks still hold its data")]
    Gone,
    /// A stream of that name exists with another configuration.
    #[error("the stream exists with another configuration: {0} differs")]
    Conflict(&'static str),
    /// The content type of the body differs from that of the stream.
    #[error("the stream has content type `{expected}`, not `{received}`")]
    ContentTypeMismatch {
        /// Content type of the stream.
        expected: ContentType,
        /// Content type of the request.
        received: ContentType,
    },
    /// The stream is in JSON mode, and the body is not JSON.
    #[error("the body is not valid JSON: {0}")]
    InvalidJson(String),
    /// The append has no body and does not close the stream.
    #[error("an append needs a body, or `Stream-Closed: true`")]
    EmptyAppend,
    /// The body is an empty JSON array, which has no messages.
    #[error("an empty JSON array has no message to append")]
    EmptyArray,
    /// The append has more messages than the limit.
    #[error("an append may have at most {} messages", limits::MESSAGES_PER_APPEND)]
    TooManyMessages,
    /// The stream is closed.
    #[error("the stream is closed")]
    Closed {
        /// Final position of the stream.
        tail: Position,
    },
    /// The producer may not write this request now.
    #[error(transparent)]
    Producer(ProducerRefusal),
    /// `Stream-Seq` does not sort after the previous one.
    #[error("the sequence does not sort after the last one of the stream")]
    OutOfOrder,
    /// The tail is not at the position that the request expects.
    #[error("the stream's tail is not the expected one")]
    TailMoved {
        /// The actual tail.
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
    /// The offset of a fork lies beyond the tail of its source.
    #[error("the fork offset lies beyond the tail of the source")]
    ForkBeyondTail,
    /// The offset of a fork is not one that the source has printed.
    #[error("the fork offset is not an offset of the source, such as a read returns")]
    ForkBetweenRecords,
    /// The sub-offset of a fork lies beyond the append that follows its offset.
    #[error("the fork sub-offset lies beyond the append that follows the fork offset")]
    SubOffsetBeyondAppend,
    /// The fork would descend from more streams than the limit.
    #[error("a fork may descend from at most {} streams", limits::FORK_DEPTH)]
    ForkTooDeep,
    /// Records after the requested position were removed by retention.
    #[error("records after this offset are no longer kept")]
    Trimmed {
        /// Position from which a read returns the oldest record that is kept.
        floor: Position,
        /// Position of the last record.
        tail: Position,
    },
    /// The stream has the maximum number of live readers.
    #[error("the stream has the maximum number of live readers; try again later")]
    TooManyReaders,
    /// Concurrent changes of the stream kept this one from being made.
    #[error("the stream is being changed concurrently; try again")]
    Contended,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store refused an operation for a reason that should be impossible.
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
            Refusal::Producer(refusal) => Self::Producer(refusal),
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
