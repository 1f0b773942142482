//! The traits a store implements, and what it can say instead of an answer.

use futures_util::future::BoxFuture;
use tidings_model::{LogId, Position};

use super::{Commit, Committed, Page, Refusal, Span, Status};

/// Reading side of a store. See the [module](super) for what it promises.
pub trait Logs: Send + Sync + 'static {
    /// A number for a log to be created. It may stay unused.
    fn reserve(&self) -> BoxFuture<'_, Result<LogId, StoreError>>;

    /// The log as it is.
    fn status(&self, log: LogId) -> BoxFuture<'_, Result<Status, ReadError>>;

    /// Records of a log in order, with the log's status at the same moment.
    fn read(&self, log: LogId, span: Span) -> BoxFuture<'_, Result<Page, ReadError>>;

    /// Whether a commit that takes space would be taken now, as far as can be told without making one.
    fn accepting(&self) -> Result<(), StoreError>;
}

/// Writing side of a store, for a capability whose tables are `P`.
pub trait Commits<P: StateMachine>: Logs {
    /// Makes a commit. Durable and visible when it returns. A caller that stops waiting learns nothing:
    /// the commit may or may not be made, but never in part.
    fn commit(&self, commit: Commit<P::Change>) -> BoxFuture<'_, Result<Committed, CommitError<Refused<P>>>>;
}

/// A store that holds the tables `P` in memory. What a capability asks of its tables needs no other answer from one such
/// store than from another.
pub trait ReadsTable<P: StateMachine>: Commits<P> {
    /// Looks at the tables and, with the function given to `look`, at logs, both at one moment.
    fn with_table<R>(&self, look: impl FnOnce(&P, &dyn Fn(LogId) -> Option<Status>) -> R) -> R;
}

/// A capability's own change, carried by a commit beside the operations on logs.
pub trait Change: Send + Sync + 'static {
    /// Why the capability's tables refuse one.
    type Refusal: std::error::Error + Send + Sync + 'static;
}

/// A capability's tables as a state machine, for stores that hold them in memory. Pure: a change is validated
/// and applied without I/O, the clock or randomness, so that replaying the same changes gives the same tables.
pub trait StateMachine: Default + Send + Sync + 'static {
    /// What can be done to them.
    type Change: Change;

    /// Whether the change may be applied to the tables as they are.
    fn validate(&self, change: &Self::Change) -> Result<(), <Self::Change as Change>::Refusal>;

    /// Applies a change that was validated good.
    fn apply(&mut self, change: Self::Change);
}

/// Why tables refuse a change.
pub type Refused<T> = <<T as StateMachine>::Change as Change>::Refusal;

/// StateMachine of which `P` are a part. A store keeps one value of tables, a catalog; each capability sees its own part
/// of it and commits its own changes, and a commit is atomic over all parts because the catalog is one.
pub trait HasTable<P: StateMachine>: StateMachine {
    /// The part.
    fn table(&self) -> &P;

    /// The part's change as one of the whole. A part whose changes may hold those of another routes them there, so
    /// that one commit changes both.
    fn wrap(change: P::Change) -> Self::Change;

    /// The part's change in one of the whole; none when that is another part's. What [`Self::wrap`] routes to another part
    /// is a change of that one.
    fn part(change: &Self::Change) -> Option<&P::Change>;

    /// The refusal in the part's words; none when the part could not have caused it.
    fn refused(refusal: Refused<Self>) -> Option<Refused<P>>;
}

/// A table that stands on another table of the same catalog, its base: its changes may carry changes of the base, and it
/// keeps in step with what happens there.
pub trait StandsOn<B: StateMachine>: StateMachine {
    /// The base's change that a change of this table carries, or the change itself if it carries none.
    fn base_change(change: Self::Change) -> Result<B::Change, Self::Change>;

    /// A refusal of the base in this table's words.
    fn base_refusal(refusal: Refused<B>) -> Refused<Self>;

    /// Keeps in step with a change of the base, which is applied right after.
    fn on_base_change(&mut self, change: &B::Change);
}

/// A table that stands alone is its own catalog.
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

/// Why a commit was not made. Nothing of it holds.
#[derive(Debug, thiserror::Error)]
pub enum CommitError<R: std::error::Error + 'static> {
    /// A log refused its operation.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The capability's tables refused a change.
    #[error(transparent)]
    Declined(R),
    /// The store could not.
    #[error(transparent)]
    Store(StoreError),
}

impl<R: std::error::Error + 'static> CommitError<R> {
    /// The same in the words of a part, for a commit of that part to a catalog that refuses with `R`.
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

/// Why a read gives nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is no such log, or no longer.
    #[error("{0} does not exist")]
    NoSuchLog(LogId),
    /// Records after the asked position are gone.
    #[error("records up to {floor:?} are gone")]
    Trimmed {
        /// Reading from here gives the oldest that is kept.
        floor: Position,
        /// The tail at that moment.
        tail: Position,
    },
    /// The store could not.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Trouble of the store itself, not of the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The disk is full. Writes are accepted again when there is space.
    #[error("the store is out of space")]
    NoSpace,
    /// The commit is larger than this store can make durable at once. Nothing is wrong with the store, and a smaller one is
    /// accepted.
    #[error("the commit takes {bytes} bytes, and the store takes at most {most} in one")]
    TooLarge {
        /// About what it takes.
        bytes: usize,
        /// The limit.
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

    /// A part: a number that only grows.
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

    /// A part that stands on the other: its changes may be those of a mark.
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

    /// The marks that were told, after the one that was there.
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
