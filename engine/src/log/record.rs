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
    /// What readers are shown before the payload, when a capability wants them to see it in something. Not stored.
    pub head: Option<Box<str>>,
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
    /// When it was put there.
    pub at: Timestamp,
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
    /// All that was ever appended, trimmed or not.
    pub total: LogTotals,
}

/// How much some records are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogTotals {
    /// Their number.
    pub records: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
}

impl LogTotals {
    /// What payloads weigh.
    pub fn of<'a>(payloads: impl IntoIterator<Item = &'a Bytes>) -> Self {
        let one = |totals: Self, payload: &Bytes| totals + Self::one(payload);
        payloads.into_iter().fold(Self::default(), one)
    }

    /// What one payload weighs.
    pub fn one(payload: &Bytes) -> Self {
        Self { records: 1, bytes: payload.len() as u64 }
    }
}

impl std::ops::Add for LogTotals {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { records: self.records + other.records, bytes: self.bytes + other.bytes }
    }
}

impl std::ops::Sub for LogTotals {
    type Output = Self;

    /// What is left, and nothing where there was less.
    fn sub(self, other: Self) -> Self {
        Self {
            records: self.records.saturating_sub(other.records),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
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
