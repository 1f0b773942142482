//! Observers of applied changes: keep caches in memory up to date with the tables.
//!
//! A cache that a process updates only after its own writes is wrong as soon as another process writes: a replica
//! applies changes that it never wrote. So a cache is an [`Observer`] of its table, and the store calls it with each
//! change it applies, whichever process wrote the change.

use std::sync::{Arc, Weak};

use super::{HasTable, StateMachine};

/// State in memory that follows the table `P`.
///
/// Both functions are called under the lock of the store's tables, on the committing thread: they must be fast, must
/// not panic and must not call the store. An observer must not own a handle of the store: the committing thread could
/// otherwise drop the store, or keep it open.
pub trait Observer<P: StateMachine>: Send + Sync {
    /// Receives the table as it is when the observer is added. Every change applied later is passed to
    /// [`applied`](Self::applied), and none before.
    fn begin(&self, table: &P);

    /// Receives a change that is durable and about to be applied, in commit order. All observers are called before the
    /// writer gets its answer and before any reader sees the commit. A change that is only a precondition may be left
    /// out.
    fn applied(&self, change: &P::Change);
}

/// A store that reports the changes it applies to the table `P`.
pub trait ChangeFeed<P: StateMachine>: Send + Sync {
    /// Calls the observer with all changes applied from now on. The store keeps only a weak reference: the caller must
    /// keep the observer alive.
    fn observe(&self, observer: &Arc<dyn Observer<P>>);
}

/// Observers of a store whose tables are `T`. The store keeps them under the lock of its tables.
pub struct Observers<T: StateMachine>(Vec<Tell<T>>);

/// Calls one observer with a change. Returns whether the observer still exists.
type Tell<T> = Box<dyn Fn(&<T as StateMachine>::Change) -> bool + Send + Sync>;

impl<T: StateMachine> Default for Observers<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: StateMachine> Observers<T> {
    /// Adds an observer of one part of the tables, and passes it the current state of that part.
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

    /// Calls all observers with a change that is about to be applied. Observers that no longer exist are removed.
    pub fn tell(&mut self, change: &T::Change) {
        self.0.retain(|tell| tell(change));
    }
}
