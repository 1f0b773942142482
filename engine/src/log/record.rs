//! What is read from a log.

use bytes::Bytes;
use tidings_model::{CommitNumber, LogId, Position, Timestamp, limits};

/// One record of one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it lies in its log.
    pub position: Position,
    /// The commit that put it there.
    pub commit: CommitNumber,
    /// When that was.
    pub at: Timestamp,
    /// Its bytes, shared with whoever else holds them.
    pub payload: Bytes,
    /// The record it refers to, when it is a reference.
    pub origin: Option<Origin>,
    /// Whether the append that made it had more to come.
    pub boundary: Boundary,
}

/// The record a reference refers to. It may be gone from there by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Its log.
    pub log: LogId,
    /// Its position there.
    pub position: Position,
}

/// Where a record stands in the append that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// More records of the same append follow.
    Inside,
    /// It is the last one.
    Last,
}

/// A log as readers see it: durable facts only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Position of the last record ever appended, zero when there was none.
    pub tail: Position,
    /// Records at or below this are gone; zero when none was trimmed.
    pub floor: Position,
    /// Whether the log takes no further append.
    pub closed: bool,
}

/// Which records to read, and how many at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// From the first record after this. Zero means the oldest that is kept.
    pub after: Position,
    /// Up to and with this.
    pub through: Position,
    /// Stop before the payloads exceed this; the first record is returned whatever its size.
    pub bytes: usize,
    /// Stop at this many records.
    pub records: usize,
}

impl Span {
    /// What follows a position, as much as one answer may hold.
    pub fn after(position: Position) -> Self {
        Self {
            after: position,
            through: Position::MAX,
            bytes: limits::READ_CHUNK_BYTES,
            records: limits::READ_CHUNK_RECORDS,
        }
    }
}

/// Consecutive records of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The records in order.
    pub records: Vec<Record>,
    /// The log as it was when they were read.
    pub status: Status,
}

impl Page {
    /// Position of the last record, or `after` when there is none.
    pub fn last(&self, after: Position) -> Position {
        self.records.last().map_or(after, |record| record.position)
    }

    /// Bytes of all payloads.
    pub fn bytes(&self) -> usize {
        self.records.iter().map(|record| record.payload.len()).sum()
    }
}
