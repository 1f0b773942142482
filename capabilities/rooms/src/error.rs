//! Errors of rooms, without HTTP.

use tidings_engine::log::{CommitError, ProducerRefusal, ReadError, Refusal, StoreError};
use tidings_model::limits;

use crate::Declined;

/// Why an operation on a room failed. The message may be shown to the client.
#[derive(Debug, thiserror::Error)]
pub enum RoomError {
    /// The room does not exist.
    #[error("there is no such room")]
    NotFound,
    /// The write has no events.
    #[error("there is no event to write")]
    NoEvents,
    /// The write has more events than the limit.
    #[error("a write has at most {} events", limits::EVENTS_PER_WRITE)]
    TooManyEvents,
    /// The payload of an event is larger than the limit.
    #[error("the payload of an event has at most {most} bytes")]
    PayloadTooLarge {
        /// The limit, in bytes.
        most: usize,
    },
    /// A typing event has a producer. It is not stored, so a repeated request could not be recognised.
    #[error("a typingEvent is not kept, so it cannot have a Producer-Id")]
    TypingByProducer,
    /// The room would have more members than the limit.
    #[error("a room has at most {most} members")]
    TooManyMembers {
        /// The limit, in members.
        most: usize,
    },
    /// The same user is to be added and removed.
    #[error("a user cannot be added and removed at once")]
    AddedAndRemoved,
    /// The producer may not write this request now.
    #[error(transparent)]
    Producer(ProducerRefusal),
    /// The request is a repetition, but its events are not stored any more, or are too old to be found.
    #[error("this request was made before, and what it wrote is no longer kept or lies too far back")]
    Forgotten,
    /// Another server has taken over the rooms.
    #[error("another server has taken over; try again there")]
    Fenced,
    /// Concurrent changes kept this one from being made.
    #[error("others are changing this; try again")]
    Contended,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<CommitError<Declined>> for RoomError {
    fn from(error: CommitError<Declined>) -> Self {
        match error {
            CommitError::Refused(refusal) => refusal.into(),
            CommitError::Store(error) => Self::Store(error),
            CommitError::Declined(Declined::Fenced) => Self::Fenced,
            CommitError::Declined(Declined::Moved) => Self::Contended,
            CommitError::Declined(Declined::NoSuchRoom) => Self::NotFound,
            CommitError::Declined(Declined::TooManyMembers { most }) => Self::TooManyMembers { most },
        }
    }
}

impl From<Refusal> for RoomError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoSuchLog(_) => Self::NotFound,
            Refusal::Producer(refusal) => Self::Producer(refusal),
            // A duplicate is handled before, by looking up the first answer; the others cannot be the result
            // of a write.
            Refusal::Duplicate { .. }
            | Refusal::LogExists(_)
            | Refusal::Closed { .. }
            | Refusal::OutOfOrder
            | Refusal::TailMoved { .. }
            | Refusal::PositionNotAbove { .. }
            | Refusal::Malformed(_) => Self::Store(StoreError::Unavailable(refusal.to_string())),
        }
    }
}

impl From<ReadError> for RoomError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NoSuchLog(_) => Self::NotFound,
            ReadError::Trimmed { .. } => Self::Contended,
            ReadError::Store(error) => Self::Store(error),
        }
    }
}
