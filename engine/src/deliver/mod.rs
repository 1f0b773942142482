//! Live delivery: each record is encoded once and sent to every connected reader.
//!
//! A [`Channel`] belongs to a log and a wire form. Its pump reads new records from the log, encodes each
//! append as one [`Frame`] and pushes the frames into a ring. A [`Subscription`] is a reader's cursor: into
//! the ring, or, when it is too far behind, into the log itself, which it reads until it reaches the ring. It
//! has no queue and no task. Whoever drives it, a response body or a socket, takes the frames between cursor
//! and head whenever it can send; while it cannot, the cursor stays where it is.
//!
//! What is not stored goes through [`Rings`] instead: frames are published under a name, and a [`Bundle`] has
//! cursors in the rings of many names. A ring keeps a frame only until its members have taken it. [`Patterns`] have rings of
//! their own, which get the frames of all names that they match. What replaces itself, so that only the latest is worth sending, goes into a [`Conflated`] inbox of each client.
//!
//! Read [`Channels`] (joining a channel), `channel` (ring and readers), `pump` (from the log to the ring),
//! then [`Subscription`] (from the ring to a reader); [`Rings`], `ring` and [`Bundle`]; [`Conflated`]; and [`Inbox`], which is
//! any of the three.
//!
//! Invariants: a reader gets every record after its position, in order, once. It moves from the log to the
//! ring only at the start of a frame. The memory of a channel is bounded by [`Limits`], whatever its readers
//! do. What a bundle has not taken pins at most as many bytes as it may be behind. A conflated inbox has one value of a key.
//! Not here: sockets, framing, time limits for slow readers (`api`).

mod bundle;
mod channel;
mod channels;
mod conflated;
mod frame_chunks;
mod inbox;
mod patterns;
mod published;
mod pump;
mod ring;
mod rings;
mod subscription;
mod sync;

use futures_util::future::BoxFuture;
use tidings_model::{CommitNumber, Position};

use crate::log::{Page, ReadError, Record, Span};

pub use bundle::{Bundle, BundleReader, Closed};
pub use channel::Channel;
pub use channels::{Channels, Join, Limits};
pub use conflated::{Conflate, Conflated, ConflatedReader, Full};
pub use frame_chunks::FrameChunks;
pub use inbox::Inbox;
pub use patterns::{Patterns, Refused};
pub use rings::Rings;
pub use subscription::{Step, Subscription};

/// Where a channel reads its records: a log, or a combination of logs that a capability makes.
pub trait Source: Send + Sync + 'static {
    /// Reads records in order, with the status of the log to which new records are appended.
    fn read(&self, span: Span) -> BoxFuture<'_, Result<Page, Lost>>;

    /// Reads new records for the connected readers: those of [`Source::read`] and, between them, ephemeral
    /// ones that are not stored. An ephemeral record has commit number zero, and the status has the last
    /// record of either kind as its tail.
    fn fresh(&self, span: Span) -> BoxFuture<'_, Result<Page, Lost>> {
        self.read(span)
    }

    /// Called from time to time while the channel has readers, so that a source can renew what would
    /// otherwise expire.
    fn keep(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Why a source cannot be read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The log was deleted, or the next records were trimmed.
    Gone,
    /// The read failed. A new attempt may succeed.
    Failed,
}

impl From<ReadError> for Lost {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NoSuchLog(_) | ReadError::Trimmed { .. } => Self::Gone,
            ReadError::Store(_) => Self::Failed,
        }
    }
}

/// Encodes records for clients. The result is shared by all readers of a channel.
pub trait Encode: Send + Sync + 'static {
    /// A number that grows with time and is written into frames. A reader may ask for frames of at least some
    /// stamp.
    fn stamp(&self) -> u64 {
        0
    }

    /// Encodes the records of a batch, of which there may be none, and the state at its end.
    fn encode(&self, batch: &Batch<'_>, stamp: u64) -> FrameChunks;
}

/// Consecutive records that are encoded together.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The records, in order.
    pub records: &'a [Record],
    /// Position from which a reader resumes after the batch.
    pub next: Position,
    /// Whether the batch reaches the tail of the log.
    pub up_to_date: bool,
    /// Whether the log is closed and the batch reaches its end.
    pub closed: bool,
}

/// Encoded records, as they are sent to readers.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The encoded bytes, shared by all readers.
    pub bytes: FrameChunks,
    /// Position of a reader before the frame.
    pub after: Position,
    /// Position of a reader after the frame.
    pub next: Position,
    /// Number of stored records in the frame; ephemeral ones are not counted.
    pub records: usize,
    /// Whether the frame reaches the tail of the log.
    pub up_to_date: bool,
    /// Whether the log is closed and this is its last frame.
    pub closed: bool,
    /// The stamp that was encoded into the frame.
    pub stamp: u64,
}

impl Frame {
    /// A frame that is not of a log.
    fn ephemeral(bytes: FrameChunks) -> Self {
        let position = Position::default();
        Self { bytes, after: position, next: position, records: 0, up_to_date: true, closed: false, stamp: 0 }
    }

    fn of(batch: &Batch<'_>, after: Position, encode: &dyn Encode, stamp: u64) -> Self {
        Self {
            bytes: encode.encode(batch, stamp),
            after,
            next: batch.next,
            records: batch.records.iter().filter(|record| record.commit != CommitNumber::ZERO).count(),
            up_to_date: batch.up_to_date,
            closed: batch.closed,
            stamp,
        }
    }
}

#[cfg(test)]
mod bundle_tests;
#[cfg(all(test, shuttle))]
mod interleavings;
#[cfg(test)]
mod pattern_tests;
#[cfg(test)]
mod tests;
