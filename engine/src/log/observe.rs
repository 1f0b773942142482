//! Observers of applied changes: how state that is kept in memory beside the tables follows them.
//!
//! A cache that this process updates when it has written something is wrong as soon as another process writes: a replica
//! applies changes that it never wrote. So a cache is an [`Observer`] of its table, and a store tells it each change where
//! the change is applied, whoever wrote it.

use std::sync::{Arc, Weak};

use super::{HasTable, StateMachine};

/// State in memory that follows the table `P`.
///
/// Both functions are called under the lock of the store's tables, by whoever commits: they must be quick, must not panic
/// and must not call the store. An observer must not own a handle of the store, which could otherwise be dropped, or kept
/// open, by the thread that commits.
pub trait Observer<P: StateMachine>: Send + Sync {
    /// The table as it is when the observer is added. Every change that is applied later is told, and none before.
    fn begin(&self, table: &P);

    /// A change that is durable and is being applied. Changes come in the order of commits. When the writer is answered,
    /// or a reader sees anything of the commit, all observers have been told. A change that is only a precondition, and
    /// changes nothing, may be left out.
    fn applied(&self, change: &P::Change);
}

/// A store that tells which changes it applies to the table `P`.
pub trait ChangeFeed<P: StateMachine>: Send + Sync {
    /// Tells the observer all changes that are applied from now on, for as long as somebody else owns it.
    fn observe(&self, observer: &Arc<dyn Observer<P>>);
}

/// The observers of a store whose tables are `T`. The store keeps them under the lock of its tables.
pub struct Observers<T: StateMachine>(Vec<Tell<T>>);

/// Tells one observer of a change. Returns whether the observer is still there.
type Tell<T> = Box<dyn Fn(&<T as StateMachine>::Change) -> bool + Send + Sync>;

impl<T: StateMachine> Default for Observers<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: StateMachine> Observers<T> {
    /// Adds an observer of one part of the tables, and shows it the part as it is.
    pub fn add<P: StateMachine>(&mut self, tables: &T, observer: &Arc<dyn Observer<P>>)
    where
        T: HasTable<P>,
    {
        observer.begin(tables.table());
        let observer: Weak<dyn Observer<P>> = Arc::downgrade(observer);
        self.0.push(Box::new(move |change| match T::part(change) {
            None => observer.strong_count() > 0,
            Some(change) => observer.upgrade().map(|observer| observer.applied(change)).is_some(),
        }));
    }

    /// Tells all observers of a change that is about to be applied. Those that have gone are forgotten.
    pub fn tell(&mut self, change: &T::Change) {
        self.0.retain(|tell| tell(change));
    }
}
