//! Deliveries: an event on its way to one hook, and the attempts to deliver it.

use std::fmt;

use tidings_model::{CommitNumber, LogId, Position, Timestamp, Ulid};

/// Bits of the position's index in a [`DeliveryId`].
const INDEX_BITS: u32 = 24;
/// Bits of the queue's number in a [`DeliveryId`].
const QUEUE_BITS: u32 = 50;

/// Id of a delivery: where it stands in the queue of its hook. It is derived, so it is the same after a crash, and
/// receivers can recognise a repetition by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryId {
    /// Queue of the hook.
    pub queue: LogId,
    /// Position in the queue.
    pub position: Position,
    /// Makes the printed ids of this store differ from those of other stores.
    pub mask: IdMask,
}

/// A random number that all hooks of a store have in common. Two servers may call the same endpoint, and their
/// deliveries must not have the same ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdMask(pub u128);

impl DeliveryId {
    /// The printed id as a number: commit, index in the commit, queue.
    fn number(self) -> u128 {
        let (commit, index) = self.position.parts();
        let index = u128::from(index) & ((1 << INDEX_BITS) - 1);
        let queue = u128::from(self.queue.get()) & ((1 << QUEUE_BITS) - 1);
        (u128::from(commit.get()) << (INDEX_BITS + QUEUE_BITS) | index << QUEUE_BITS | queue) ^ self.mask.0
    }

    /// Parses an id that was printed with this mask. Returns `None` if no delivery can have it.
    pub fn parse(text: &str, mask: IdMask) -> Option<Self> {
        let number = Ulid::parse(text).ok()?.get() ^ mask.0;
        let queue = (number & ((1 << QUEUE_BITS) - 1)) as u64;
        let index = (number >> QUEUE_BITS & ((1 << INDEX_BITS) - 1)) as u64;
        let commit = (number >> (INDEX_BITS + QUEUE_BITS)) as u64;
        let position = Position::in_commit(CommitNumber::from_number(commit), index);
        Some(Self { queue: LogId::new(queue), position, mask })
    }
}

impl fmt::Display for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ulid::new(self.number()).fmt(f)
    }
}

impl fmt::Debug for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeliveryId({self})")
    }
}

/// Where a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeliveryStatus {
    /// No attempt has ended yet.
    Pending,
    /// An attempt failed, and another one will be made.
    Failed,
    /// The endpoint accepted it.
    Delivered,
    /// It was given up and is, or was, among the dead letters.
    Dead,
}

impl DeliveryStatus {
    /// The status of this name on the wire.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Pending, Self::Failed, Self::Delivered, Self::Dead]
            .into_iter()
            .find(|status| status.as_str() == text)
    }

    /// Name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Failed => "failed",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }
}

/// One attempt to deliver, as the delivery log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Number of the attempt; the first is 1.
    pub number: u32,
    /// Time at which it ended.
    pub at: Timestamp,
    /// How long it took, in milliseconds.
    pub duration_ms: u32,
    /// What came of it.
    pub outcome: AttemptOutcome,
}

/// What came of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The endpoint accepted the delivery. Holds the beginning of its response.
    Success(String),
    /// The attempt failed, for this reason.
    Failed(String),
}

/// Why a delivery was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeathReason {
    /// All attempts failed.
    MaxRetriesExceeded,
    /// The endpoint answered that it is gone, and the hook was deactivated.
    EndpointGone,
    /// The delivery was not made within the time for which events are kept.
    Expired,
    /// More deliveries waited than the queue may hold.
    QueueFull,
}

impl DeathReason {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::MaxRetriesExceeded, Self::EndpointGone, Self::Expired, Self::QueueFull];

    /// Name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MaxRetriesExceeded => "max_retries_exceeded",
            Self::EndpointGone => "endpoint_gone",
            Self::Expired => "expired",
            Self::QueueFull => "queue_full",
        }
    }
}

/// A delivery that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Id of the dead letter.
    pub id: Ulid,
    /// Position of the delivery in the queue.
    pub position: Position,
    /// Why it was given up.
    pub reason: DeathReason,
    /// Error of the last attempt. Empty if there was no attempt.
    pub last_error: String,
    /// Time at which it was given up.
    pub at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidings_model::Era;

    proptest! {
        #[test]
        fn a_delivery_is_found_by_its_printed_id(
            era in 0u16..=999, count in 1u64..CommitNumber::PER_ERA, index in 0u64..1 << 24, queue in 0u64..1 << 50,
            mask in any::<u128>(),
        ) {
            let commit = CommitNumber::new(Era::new(era).expect("in range"), count);
            let id = DeliveryId { queue: LogId::new(queue), position: Position::in_commit(commit, index), mask: IdMask(mask) };
            let printed = id.to_string();
            prop_assert_eq!(printed.len(), 26);
            prop_assert_eq!(DeliveryId::parse(&printed, id.mask), Some(id));
        }
    }
}
