//! Live delivery: what is appended once is encoded once and heard by everybody who is connected.
//!
//! A [`Channel`] belongs to a log and a wire form. Its pump reads what is new in the log, encodes it, one [`Frame`] an
//! append, and puts the frames into a ring. A [`Subscription`] is a reader's cursor: into the ring, or, when it is further
//! behind, into the log itself, from which it reads until it reaches the ring. It has no queue and no task. Whoever
//! drives it, a body that is polled or a socket, takes what lies between the cursor and the head whenever it can send;
//! when it cannot, the cursor stays where it is.
//!
//! Read [`Channels`] (who joins what), `channel` (ring and readers), `pump` (from the log to the ring), then
//! [`Subscription`] (from the ring to a reader).
//!
//! Invariants: a reader hears every record after its position, in order, once. It passes from history to the ring only
//! where a frame begins. What a channel keeps in memory is bounded by [`Limits`], whatever its readers do.
//! Not here: sockets, framing, times without progress (`api`).

mod channel;
mod channels;
mod frame_chunks;
mod pump;
mod subscription;

use futures_util::future::BoxFuture;
use tidings_model::{CommitNumber, Position};

use crate::log::{Page, ReadError, Record, Span};

pub use channel::Channel;
pub use channels::{Channels, Join, Limits};
pub use frame_chunks::FrameChunks;
pub use subscription::{Step, Subscription};

/// Where the records of a channel come from: a log, or what a capability makes of several.
pub trait Source: Send + Sync + 'static {
    /// Records in order, and the status of the log in which new ones come.
    fn read(&self, span: Span) -> BoxFuture<'_, Result<Page, Lost>>;

    /// What is new, for all who listen now: what [`Source::read`] gives, and between it what only those hear who are
    /// there. Such a record has no commit, and the status tells the last of all as the tail.
    fn fresh(&self, span: Span) -> BoxFuture<'_, Result<Page, Lost>> {
        self.read(span)
    }

    /// Called now and then while somebody listens, so that what would go when nobody does can stay.
    fn keep(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Why the source cannot be read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It has ended, or what comes next in it is gone.
    Gone,
    /// It could not be read. Perhaps it can when somebody tries again.
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

/// How records are written for clients. The same for all readers of a channel.
pub trait Encode: Send + Sync + 'static {
    /// A number that grows with time and is written into frames; a reader may ask for at least some number.
    fn stamp(&self) -> u64 {
        0
    }

    /// Writes records, of which there may be none, and what there is to know at their end.
    fn encode(&self, batch: &Batch<'_>, stamp: u64) -> FrameChunks;
}

/// Consecutive records to be encoded.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The records.
    pub records: &'a [Record],
    /// Where to resume after them.
    pub next: Position,
    /// Whether that was the tail.
    pub up_to_date: bool,
    /// Whether the log is closed and this is all of it.
    pub closed: bool,
}

/// What a reader gets: records as they are written on the wire.
#[derive(Clone, Debug)]
pub struct Frame {
    /// What is sent. Shared by all readers.
    pub bytes: FrameChunks,
    /// Where a reader must be to hear it.
    pub after: Position,
    /// Where it is then.
    pub next: Position,
    /// How many records are in it that a commit has made.
    pub records: usize,
    /// Whether that was the tail.
    pub up_to_date: bool,
    /// Whether nothing can follow.
    pub closed: bool,
    /// The stamp that is written in it.
    pub stamp: u64,
}

impl Frame {
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
mod tests;
