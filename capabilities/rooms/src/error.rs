use tidings_engine::log::{CommitError, ReadError, Refusal, StoreError};
use tidings_model::limits;

use crate::Declined;

/// Why something could not be done with a room. The message is fit for the client.
#[derive(Debug, thiserror::Error)]
pub enum RoomError {
    /// There is no such room.
    #[error("there is no such room")]
    NotFound,
    /// A write of nothing.
    #[error("there is no event to write")]
    NoEvents,
    /// More events than one write may have.
    #[error("a write has at most {} events", limits::EVENTS_PER_WRITE)]
    TooManyEvents,
    /// A payload above the limit.
    #[error("the payload of an event has at most {most} bytes")]
    PayloadTooLarge {
        /// The limit.
        most: usize,
    },
    /// What is not kept cannot be known to have been written before.
    #[error("a typingEvent is not kept, so it cannot have a Producer-Id")]
    TypingByProducer,
    /// The room would have too many members.
    #[error("a room has at most {most} members")]
    TooManyMembers {
        /// The limit.
        most: usize,
    },
    /// Somebody is to be added and removed.
    #[error("a user cannot be added and removed at once")]
    AddedAndRemoved,
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
    /// The room remembers as many producers as it may.
    #[error("the room has {} active producers already", limits::PRODUCERS_PER_LOG)]
    TooManyProducers,
    /// The request was made before, but what it wrote is not kept any more, or lies too far back to be found.
    #[error("this request was made before, and what it wrote is no longer kept or lies too far back")]
    Forgotten,
    /// Another server has taken the rooms over.
    #[error("another server has taken over; try again there")]
    Fenced,
    /// Others changed the same at the same time, again and again.
    #[error("others are changing this; try again")]
    Contended,
    /// The store could not.
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
            Refusal::Fenced { epoch } => Self::ProducerFenced { epoch },
            Refusal::Gap { expected, received } => Self::ProducerGap { expected, received },
            Refusal::EpochStart => Self::ProducerEpochStart,
            Refusal::TooManyProducers => Self::TooManyProducers,
            // Who knows that it was made before looks for the first answer; the rest is never asked for.
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
