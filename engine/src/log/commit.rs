//! The operations of a commit, and what a store answers.

use std::sync::Arc;

use bytes::Bytes;
use tidings_model::{CommitNumber, LogId, Position, Producer};

use super::{HasTable, RowChange, StateMachine};

/// Operations, changes of tables and changes of cold rows that hold together or not at all. Operations and changes of rows take
/// effect in their order; the changes of tables are validated against what was before the commit, so they must not build on each
/// other.
#[derive(Clone, Debug)]
pub struct Commit<C> {
    /// Operations on logs, in the order in which they take effect.
    pub operations: Vec<Operation>,
    /// Changes of the capability's own tables.
    pub changes: Vec<C>,
    /// Changes of cold rows, in the order in which they take effect.
    pub rows: Vec<RowChange>,
}

impl<C> Default for Commit<C> {
    fn default() -> Self {
        Self { operations: Vec::new(), changes: Vec::new(), rows: Vec::new() }
    }
}

impl<C> Commit<C> {
    /// Creates an empty commit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an operation.
    #[must_use]
    pub fn with(mut self, operation: impl Into<Operation>) -> Self {
        self.operations.push(operation.into());
        self
    }

    /// Adds a change.
    #[must_use]
    pub fn changing(mut self, change: C) -> Self {
        self.changes.push(change);
        self
    }

    /// Adds a change of cold rows.
    #[must_use]
    pub fn with_row(mut self, change: RowChange) -> Self {
        self.rows.push(change);
        self
    }

    /// The same commit for a catalog that contains the table `P`.
    pub fn wrapped<T: HasTable<P>, P: StateMachine<Change = C>>(self) -> Commit<T::Change> {
        let Self { operations, changes, rows } = self;
        Commit { operations, changes: changes.into_iter().map(T::wrap).collect(), rows }
    }

    /// Adds a reference to the records of the last operation, which must be an append, to a journal: a log
    /// that refers to every record of many logs, for readers that need all of them.
    #[must_use]
    pub fn journaled(self, journal: LogId) -> Self {
        let of = Of::Append(self.operations.len().saturating_sub(1));
        self.with(Refer { of, into: Arc::new([journal]) })
    }
}

/// An operation on logs.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Creates a log. Its id comes from [`Logs::reserve`](super::Logs::reserve).
    Create {
        /// Id of the new log.
        log: LogId,
        /// Initial tail: zero, or a position of another log that this one continues.
        tail: Position,
    },
    /// Appends records, closes the log, or both.
    Append(Append),
    /// Appends references to records.
    Refer(Refer),
    /// Removes all records at or below the floor. A floor never sinks; a lower one changes nothing.
    Trim {
        /// The log to trim.
        log: LogId,
        /// The last position to remove.
        floor: Position,
    },
    /// Deletes a log. Its id is never used again; references to its records stay readable.
    Delete(LogId),
}

impl Operation {
    /// Creates a log with its tail at zero.
    pub fn create(log: LogId) -> Self {
        Self::Create { log, tail: Position::ZERO }
    }
}

impl From<Append> for Operation {
    fn from(append: Append) -> Self {
        Self::Append(append)
    }
}

impl From<Refer> for Operation {
    fn from(refer: Refer) -> Self {
        Self::Refer(refer)
    }
}

/// Appends payloads to a log, if the conditions hold and the log is open.
#[derive(Clone, Debug)]
pub struct Append {
    /// The log to append to.
    pub log: LogId,
    /// Payloads of the records, in order. May be empty when the append closes the log.
    pub payloads: Vec<Bytes>,
    /// Who assigns the positions.
    pub positions: Positions,
    /// Conditions that must hold for the append to be made.
    pub conditions: Conditions,
    /// Whether the log is closed by this append.
    pub then: Then,
}

impl Append {
    /// An unconditional append at positions that the store assigns.
    pub fn new(log: LogId, payloads: Vec<Bytes>) -> Self {
        Self {
            log,
            payloads,
            positions: Positions::ByStore,
            conditions: Conditions::default(),
            then: Then::StayOpen,
        }
    }
}

/// Who assigns the positions of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Positions {
    /// The store assigns them: commit number and index in the commit.
    ByStore,
    /// The caller gives one for each payload, ascending and above the tail.
    Given(Vec<Position>),
    /// The store assigns them, from this position or just above the tail, whichever is higher; each further
    /// record lies just above the one before. So concurrent appends need not know of each other.
    AtLeast(Position),
}

/// Conditions of an append. Validated in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The request must be new, and no later epoch of its producer may have written.
    pub producer: Option<Producer>,
    /// The text must sort, byte by byte, after that of the last append that had one.
    pub order: Option<Box<str>>,
    /// The tail must be exactly this position.
    pub tail: Option<Position>,
}

/// State of a log after an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The log accepts further appends.
    StayOpen,
    /// The log is closed and never accepts another append.
    Close,
}

/// Appends references to some records to each of some logs. A target that is missing or closed does not
/// refuse the commit; [`Referred`] lists it.
#[derive(Clone, Debug)]
pub struct Refer {
    /// The records to refer to.
    pub of: Of,
    /// The logs that get the references. A log that is listed twice gets them once.
    pub into: Arc<[LogId]>,
}

/// The records that a reference operation refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Of {
    /// The records of an append in the same commit, given as its index among the operations.
    Append(usize),
    /// Records that a log contains already.
    Stored {
        /// Log of the records.
        log: LogId,
        /// Refer to the records after this position.
        after: Position,
        /// Refer to the records up to and including this position.
        through: Position,
    },
}

/// A commit that is durable and visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Number of the commit. Commits that the store writes together may share one.
    pub number: CommitNumber,
    /// The outcome of each operation, in order.
    pub outcomes: Vec<Outcome>,
}

impl Committed {
    /// The outcome of the first append.
    ///
    /// # Panics
    /// When the commit had no append.
    pub fn appended(&self) -> Appended {
        let appended = self.outcomes.iter().find_map(|outcome| match outcome {
            Outcome::Appended(appended) => Some(*appended),
            Outcome::Done | Outcome::Referred(_) => None,
        });
        appended.expect("the commit has an append")
    }
}

/// The outcome of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The operation was done and has no result.
    Done,
    /// The result of an append.
    Appended(Appended),
    /// The result of a reference operation.
    Referred(Referred),
}

/// The positions of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Position of the first record; the tail when the append had no records.
    pub first: Position,
    /// Position of the last record; the tail when the append had no records.
    pub last: Position,
}

/// The targets of a reference operation that did not get the references.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Referred {
    /// Targets that do not exist.
    pub missing: Vec<LogId>,
    /// Targets that are closed.
    pub closed: Vec<LogId>,
}
