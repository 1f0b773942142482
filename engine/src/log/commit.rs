//! What can be asked of a store in one commit, and what it answers.

use std::sync::Arc;

use bytes::Bytes;
use tidings_model::{CommitNumber, LogId, Position, Producer};

use super::{HasTable, StateMachine};

/// Operations and changes that hold together or not at all. Operations take effect in their order; the
/// changes of one commit are validated against what was before it, so they must not build on each other.
#[derive(Clone, Debug)]
pub struct Commit<C> {
    /// What is done to logs.
    pub operations: Vec<Operation>,
    /// What is done to the capability's own tables.
    pub changes: Vec<C>,
}

impl<C> Default for Commit<C> {
    fn default() -> Self {
        Self { operations: Vec::new(), changes: Vec::new() }
    }
}

impl<C> Commit<C> {
    /// A commit of nothing, to add to.
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

    /// The same commit to a catalog of which `P`, whose changes these are, is a part.
    pub fn wrapped<T: HasTable<P>, P: StateMachine<Change = C>>(self) -> Commit<T::Change> {
        Commit { operations: self.operations, changes: self.changes.into_iter().map(T::wrap).collect() }
    }

    /// Adds a reference to the records of the last operation, an append, to a journal: one log in which
    /// whoever must hear everything finds everything.
    #[must_use]
    pub fn journaled(self, journal: LogId) -> Self {
        let of = Of::Append(self.operations.len().saturating_sub(1));
        self.with(Refer { of, into: Arc::new([journal]) })
    }
}

/// One thing done to logs.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Begins a log. Its number comes from [`Logs::reserve`](super::Logs::reserve).
    Create {
        /// Its number.
        log: LogId,
        /// The tail it begins with: zero, or a position of another log that this one continues.
        tail: Position,
    },
    /// Appends records, closes the log, or both.
    Append(Append),
    /// Appends references to records.
    Refer(Refer),
    /// Lets go of all records at or below the floor. A floor never sinks; a lower one changes nothing.
    Trim {
        /// Of this log.
        log: LogId,
        /// The last position that is gone.
        floor: Position,
    },
    /// Ends a log. Its number is not used again; references to its records stay readable.
    Delete(LogId),
}

impl Operation {
    /// Begins a log that continues none.
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
    /// The log.
    pub log: LogId,
    /// One record each, in order. May be empty when the append closes the log.
    pub payloads: Vec<Bytes>,
    /// Who gives the positions.
    pub positions: Positions,
    /// What must hold.
    pub conditions: Conditions,
    /// What becomes of the log.
    pub then: Then,
}

impl Append {
    /// An append without conditions at positions the store gives.
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

/// Who gives an append its positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Positions {
    /// The store: commit number and index in it.
    ByStore,
    /// The caller: one for each payload, growing, above the tail.
    Given(Vec<Position>),
    /// Both: the first record lies at this or just above the tail, whichever is higher, and each further one just above
    /// the one before. So appends that are on their way at the same time need not know of each other.
    AtLeast(Position),
}

/// What must hold of the log for an append to be made. Validated in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// This request was not made before, and no later incarnation of its producer has written.
    pub producer: Option<Producer>,
    /// This text sorts, byte by byte, after that of the last append that had one.
    pub order: Option<Box<str>>,
    /// The tail is just here.
    pub tail: Option<Position>,
}

/// What becomes of a log after an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It takes further appends.
    StayOpen,
    /// It takes no further append, ever.
    Close,
}

/// Appends a reference to each of some records to each of some logs. A target that is missing or closed
/// does not refuse the commit; the outcome tells.
#[derive(Clone, Debug)]
pub struct Refer {
    /// The records.
    pub of: Of,
    /// The logs that get references; each at most once.
    pub into: Arc<[LogId]>,
}

/// Records to refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Of {
    /// Those that an append of the same commit makes: its place among the operations.
    Append(usize),
    /// Those that a log has already.
    Stored {
        /// The log.
        log: LogId,
        /// From the first record after this.
        after: Position,
        /// Up to and with this.
        through: Position,
    },
}

/// A commit that is durable and visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its number. Commits that the store writes together may share one.
    pub number: CommitNumber,
    /// What came of each operation, in order.
    pub outcomes: Vec<Outcome>,
}

impl Committed {
    /// What came of the first append.
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

/// What came of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done; there is nothing to tell.
    Done,
    /// Of an append.
    Appended(Appended),
    /// Of a reference.
    Referred(Referred),
}

/// Where an append lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Position of its first record; the tail when it had none.
    pub first: Position,
    /// Position of its last record; the tail when it had none.
    pub last: Position,
}

/// Which targets of a reference did not get it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Referred {
    /// They do not exist.
    pub missing: Vec<LogId>,
    /// They are closed.
    pub closed: Vec<LogId>,
}
