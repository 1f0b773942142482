//! Traits that a store implements, and its errors.

use futures_util::future::BoxFuture;
use tidings_model::{Era, LogId, Position};

use super::{Commit, Committed, Page, Refusal, Span, Status};

/// Reading side of a store. See the [module](super) for its guarantees.
pub trait Logs: Send + Sync + 'static {
    /// Reserves an id for a log to be created. It may stay unused.
    fn reserve(&self) -> BoxFuture<'_, Result<LogId, StoreError>>;

    /// Returns the current status of a log.
    fn status(&self, log: LogId) -> BoxFuture<'_, Result<Status, ReadError>>;

    /// Reads records of a log in order, with the log's status at the same moment.
    fn read(&self, log: LogId, span: Span) -> BoxFuture<'_, Result<Page, ReadError>>;

    /// Era of the store. It is higher than before after the store went back in time, so that what somebody remembers of a log
    /// from before is recognised.
    fn era(&self) -> Era;

    /// Whether the store would currently accept a commit that takes space, as far as it can tell without making one.
    fn accepting(&self) -> Result<(), StoreError>;
}

/// Writing side of a store, for a capability whose tables are `P`.
pub trait Commits<P: StateMachine>: Logs {
    /// Makes a commit. It is durable and visible when this returns. If the future is dropped, the outcome is unknown:
    /// the commit is made completely or not at all.
    fn commit(&self, commit: Commit<P::Change>) -> BoxFuture<'_, Result<Committed, CommitError<Refused<P>>>>;
}

/// A store that holds the tables `P` in memory. A capability implements its queries once for all such stores.
pub trait ReadsTable<P: StateMachine>: Commits<P> {
    /// Runs `look` with the tables and a function that returns the status of a log, both as of one moment.
    fn with_table<R>(&self, look: impl FnOnce(&P, &dyn Fn(LogId) -> Option<Status>) -> R) -> R;
}

/// A capability's own change, carried by a commit beside the operations on logs.
pub trait Change: Send + Sync + 'static {
    /// Reason for which the capability's tables refuse a change.
    type Refusal: std::error::Error + Send + Sync + 'static;
}

/// A capability's tables as a state machine, for stores that hold them in memory. Pure: changes are validated and
/// applied without I/O, the clock or randomness, so that replaying the same changes gives the same tables.
pub trait StateMachine: Default + Send + Sync + 'static {
    /// Type of the changes.
    type Change: Change;

    /// Whether the change may be applied to the current tables.
    fn validate(&self, change: &Self::Change) -> Result<(), <Self::Change as Change>::Refusal>;

    /// Applies a change that passed validation.
    fn apply(&mut self, change: Self::Change);
}

/// Reason for which tables refuse a change.
pub type Refused<T> = <<T as StateMachine>::Change as Change>::Refusal;

/// Tables that contain `P` as a part. A store keeps one value of tables, the catalog. Each capability sees its own part
/// and commits its own changes. A commit is atomic over all parts because there is only one catalog.
pub trait HasTable<P: StateMachine>: StateMachine {
    /// Returns the part.
    fn table(&self) -> &P;

    /// Converts a change of the part to a change of the catalog. When a part's change carries a change of another part,
    /// it is routed to that part, so that one commit can change both.
    fn wrap(change: P::Change) -> Self::Change;

    /// Returns the part's change that a change of the catalog contains, or `None` when it belongs to another part. A
    /// change that [`Self::wrap`] routed to another part belongs to that part.
    fn part(change: &Self::Change) -> Option<&P::Change>;

    /// Converts a refusal of the catalog to one of the part, or `None` when the part could not have caused it.
    fn refused(refusal: Refused<Self>) -> Option<Refused<P>>;
}

/// A table that depends on another table of the same catalog, its base: its changes may carry changes of the base, and
/// it is updated when the base changes.
pub trait StandsOn<B: StateMachine>: StateMachine {
    /// Returns the base's change that a change of this table carries, or the change itself if it carries none.
    fn base_change(change: Self::Change) -> Result<B::Change, Self::Change>;

    /// Converts a refusal of the base to one of this table.
    fn base_refusal(refusal: Refused<B>) -> Refused<Self>;

    /// Updates this table for a change of the base, before the base applies it.
    fn on_base_change(&mut self, change: &B::Change);
}

/// A table on its own is its own catalog.
impl<T: StateMachine> HasTable<T> for T {
    fn table(&self) -> &T {
        self
    }

    fn wrap(change: T::Change) -> T::Change {
        change
    }

    fn part(change: &T::Change) -> Option<&T::Change> {
        Some(change)
    }

    fn refused(refusal: Refused<T>) -> Option<Refused<T>> {
        Some(refusal)
    }
}

/// Error of a commit. Nothing of the commit took effect.
#[derive(Debug, thiserror::Error)]
pub enum CommitError<R: std::error::Error + 'static> {
    /// A log refused its operation.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The capability's tables refused a change.
    #[error(transparent)]
    Declined(R),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

impl<R: std::error::Error + 'static> CommitError<R> {
    /// Converts the error of a catalog that refuses with `R` to the error of the part that made the commit.
    pub fn of_part<T: HasTable<P, Change: Change<Refusal = R>>, P: StateMachine>(
        self,
    ) -> CommitError<Refused<P>> {
        match self {
            Self::Refused(refusal) => CommitError::Refused(refusal),
            Self::Store(error) => CommitError::Store(error),
            Self::Declined(refusal) => {
                let words = refusal.to_string();
                match T::refused(refusal) {
                    Some(refusal) => CommitError::Declined(refusal),
                    None => {
                        CommitError::Store(StoreError::Unavailable(format!("another part refused: {words}")))
                    }
                }
            }
        }
    }
}

/// Error of a read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The log does not exist, or no longer exists.
    #[error("{0} does not exist")]
    NoSuchLog(LogId),
    /// Records after the requested position have been trimmed.
    #[error("records up to {floor:?} are gone")]
    Trimmed {
        /// Position of the last trimmed record. A read after it returns the oldest kept record.
        floor: Position,
        /// Tail of the log at that moment.
        tail: Position,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Error of the store itself, not of the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The disk is full. Writes are accepted again when there is space.
    #[error("the store is out of space")]
    NoSpace,
    /// The commit is larger than this store can make durable at once. The store is healthy and accepts smaller commits.
    #[error("the commit takes {bytes} bytes, and the store takes at most {most} in one")]
    TooLarge {
        /// Approximate size of the commit in bytes.
        bytes: usize,
        /// Maximum size of a commit in bytes.
        most: usize,
    },
    /// The store has stopped.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::log::{ChangeFeed, Memory, Observer};
    use crate::{Bus, WallClock};

    /// A part of the catalog: a number that may only increase.
    #[derive(Default)]
    struct Mark(u64);

    struct Raise(u64);

    #[derive(Debug, PartialEq, thiserror::Error)]
    #[error("it is at {0} already")]
    struct TooLow(u64);

    impl Change for Raise {
        type Refusal = TooLow;
    }

    impl StateMachine for Mark {
        type Change = Raise;

        fn validate(&self, change: &Raise) -> Result<(), TooLow> {
            if change.0 > self.0 { Ok(()) } else { Err(TooLow(self.0)) }
        }

        fn apply(&mut self, change: Raise) {
            self.0 = change.0;
        }
    }

    /// A part that depends on the other: its changes may carry changes of a mark.
    #[derive(Default)]
    struct Names(Vec<&'static str>);

    enum Naming {
        Name(&'static str),
        Mark(Raise),
    }

    impl Change for Naming {
        type Refusal = TooLow;
    }

    impl StateMachine for Names {
        type Change = Naming;

        fn validate(&self, _: &Naming) -> Result<(), TooLow> {
            Ok(())
        }

        fn apply(&mut self, change: Naming) {
            if let Naming::Name(name) = change {
                self.0.push(name);
            }
        }
    }

    #[derive(Default)]
    struct Catalog {
        mark: Mark,
        names: Names,
    }

    enum Entry {
        Mark(Raise),
        Names(Naming),
    }

    impl Change for Entry {
        type Refusal = TooLow;
    }

    impl StateMachine for Catalog {
        type Change = Entry;

        fn validate(&self, change: &Entry) -> Result<(), TooLow> {
            match change {
                Entry::Mark(change) => self.mark.validate(change),
                Entry::Names(change) => self.names.validate(change),
            }
        }

        fn apply(&mut self, change: Entry) {
            match change {
                Entry::Mark(change) => self.mark.apply(change),
                Entry::Names(change) => self.names.apply(change),
            }
        }
    }

    impl HasTable<Mark> for Catalog {
        fn table(&self) -> &Mark {
            &self.mark
        }

        fn wrap(change: Raise) -> Entry {
            Entry::Mark(change)
        }

        fn part(change: &Entry) -> Option<&Raise> {
            match change {
                Entry::Mark(change) => Some(change),
                Entry::Names(_) => None,
            }
        }

        fn refused(refusal: TooLow) -> Option<TooLow> {
            Some(refusal)
        }
    }

    impl HasTable<Names> for Catalog {
        fn table(&self) -> &Names {
            &self.names
        }

        fn wrap(change: Naming) -> Entry {
            match change {
                Naming::Mark(raise) => Entry::Mark(raise),
                name => Entry::Names(name),
            }
        }

        fn part(change: &Entry) -> Option<&Naming> {
            match change {
                Entry::Names(change) => Some(change),
                Entry::Mark(_) => None,
            }
        }

        fn refused(refusal: TooLow) -> Option<TooLow> {
            Some(refusal)
        }
    }

    #[tokio::test]
    async fn one_commit_changes_two_parts_or_neither() {
        let store = Memory::<Catalog>::new(Bus::new(), Arc::new(WallClock));
        let both =
            |name, mark| Commit::new().changing(Naming::Name(name)).changing(Naming::Mark(Raise(mark)));
        Commits::<Names>::commit(&store, both("a", 2)).await.expect("made");
        let refused = Commits::<Names>::commit(&store, both("b", 2)).await;
        assert!(matches!(refused, Err(CommitError::Declined(TooLow(2)))), "{refused:?}");
        let refused = Commits::<Mark>::commit(&store, Commit::new().changing(Raise(1))).await;
        assert!(matches!(refused, Err(CommitError::Declined(TooLow(2)))), "{refused:?}");
        store.look(|catalog, _| assert_eq!((catalog.mark.0, &*catalog.names.0), (2, &["a"][..])));
    }

    /// Records the initial mark and each change reported since.
    #[derive(Default)]
    struct Marks(Mutex<Vec<u64>>);

    impl Observer<Mark> for Marks {
        fn begin(&self, table: &Mark) {
            self.0.lock().expect("not poisoned").push(table.0);
        }

        fn applied(&self, change: &Raise) {
            self.0.lock().expect("not poisoned").push(change.0);
        }
    }

    #[tokio::test]
    async fn an_observer_hears_the_changes_of_its_part_whichever_part_committed_them() {
        let store = Memory::<Catalog>::new(Bus::new(), Arc::new(WallClock));
        let mark = |mark| Commit::new().changing(Naming::Name("n")).changing(Naming::Mark(Raise(mark)));
        Commits::<Names>::commit(&store, mark(2)).await.expect("made");
        let marks = Arc::new(Marks::default());
        let observer: Arc<dyn Observer<Mark>> = marks.clone();
        store.observe(&observer);
        Commits::<Names>::commit(&store, mark(3)).await.expect("made");
        Commits::<Mark>::commit(&store, Commit::new().changing(Raise(5))).await.expect("made");
        let refused = Commits::<Mark>::commit(&store, Commit::new().changing(Raise(4))).await;
        assert!(refused.is_err());
        assert_eq!(*marks.0.lock().expect("not poisoned"), [2, 3, 5]);
    }
}
