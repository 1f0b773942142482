//! What a read of a log returns: records, pages and the status of the log.

use bytes::Bytes;
use tidings_model::{CommitNumber, LogId, Position, Timestamp, limits};

/// One record of one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Position of the record in its log.
    pub position: Position,
    /// The commit that appended the record.
    pub commit: CommitNumber,
    /// Time of that commit.
    pub at: Timestamp,
    /// The payload. The bytes are shared, not copied, between all who hold them.
    pub payload: Bytes,
    /// Text that a capability adds in front of the payload for readers, such as an envelope. Not stored.
    pub head: Option<Box<str>>,
    /// The referenced record, if this one is a reference.
    pub origin: Option<Origin>,
    /// Whether more records of the same append follow.
    pub boundary: Boundary,
}

/// The record that a reference points to. It may have been trimmed or deleted since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Log of the referenced record.
    pub log: LogId,
    /// Position of the referenced record in its log.
    pub position: Position,
    /// Time at which the referenced record was committed.
    pub at: Timestamp,
}

/// Whether a record ends the append that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// More records of the same append follow.
    Inside,
    /// The record is the last one of its append.
    Last,
}

/// The state of a log as readers see it. Contains only what is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Position of the last record ever appended; zero when there was none.
    pub tail: Position,
    /// Records at or below this position are gone; zero when none was trimmed.
    pub floor: Position,
    /// Whether the log refuses further appends.
    pub closed: bool,
    /// Everything ever appended, including records trimmed since.
    pub total: LogTotals,
}

/// A number of records and the bytes of their payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogTotals {
    /// Number of records.
    pub records: u64,
    /// Bytes of the payloads.
    pub bytes: u64,
}

impl LogTotals {
    /// Totals of some payloads, one record each.
    pub fn of<'a>(payloads: impl IntoIterator<Item = &'a Bytes>) -> Self {
        let one = |totals: Self, payload: &Bytes| totals + Self::one(payload);
        payloads.into_iter().fold(Self::default(), one)
    }

    /// Totals of one record with this payload.
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

    /// Subtracts both numbers, stopping at zero.
    fn sub(self, other: Self) -> Self {
        Self {
            records: self.records.saturating_sub(other.records),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// A range of positions to read, with limits on the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Read from the first record after this position. Zero means the oldest record that is kept.
    pub after: Position,
    /// Read up to and including this position.
    pub through: Position,
    /// Stop before the payloads exceed this many bytes. The first record is returned whatever its size.
    pub bytes: usize,
    /// Stop after this many records.
    pub records: usize,
}

impl Span {
    /// All records after a position, up to the default size of one page.
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
    /// The records, in ascending order of their positions.
    pub records: Vec<Record>,
    /// Status of the log at the time of the read.
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
