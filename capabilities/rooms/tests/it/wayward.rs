//! A store in memory that is not always as quick, or as able, as one would like.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::log::fixture::StandIn;
use tidings_engine::log::{Memory, Operation, Page, StoreError};
use tidings_model::LogId;
use tidings_rooms::Table;
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};

/// What is wrong with a store. Clones are the same.
#[derive(Clone, Default)]
pub struct Faults(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Whoever holds it for writing keeps commits that were made from being answered.
    answers: Arc<RwLock<()>>,
    /// How many commits have come.
    commits: AtomicUsize,
    /// From which of them on there is no space; none for never.
    full_from: Mutex<Option<usize>>,
    /// What happens when somebody has next looked at the tables, before they learn what they saw.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// How many records were read.
    read: AtomicUsize,
    /// How often somebody looked at a room.
    looked: AtomicUsize,
}

impl Faults {
    /// Keeps commits that were made, and can be seen, from being answered until the guard is dropped.
    pub async fn hold_answers(&self) -> OwnedRwLockWriteGuard<()> {
        self.0.answers.clone().write_owned().await
    }

    /// Lets so many commits be made, and then no more for want of space.
    pub fn full_after(&self, commits: usize) {
        *self.0.full_from.lock().expect("no panic") = Some(self.commits() + commits);
    }

    /// There is space again.
    pub fn emptied(&self) {
        *self.0.full_from.lock().expect("no panic") = None;
    }

    /// When somebody has next looked at the tables, this happens before they learn what they saw.
    pub fn after_look(&self, meanwhile: impl FnOnce() + Send + 'static) {
        *self.0.meanwhile.lock().expect("no panic") = Some(Box::new(meanwhile));
    }

    /// How many commits have come, whether they are made or not.
    pub fn commits(&self) -> usize {
        self.0.commits.load(Ordering::SeqCst)
    }

    /// How many records were read.
    pub fn read(&self) -> usize {
        self.0.read.load(Ordering::SeqCst)
    }

    /// How often somebody looked at a room.
    pub fn looked(&self) -> usize {
        self.0.looked.load(Ordering::SeqCst)
    }
}

/// The store.
pub struct Wayward {
    pub memory: Memory<Table>,
    pub faults: Faults,
}

impl StandIn for Wayward {
    type Store = Memory<Table>;

    fn store(&self) -> &Memory<Table> {
        &self.memory
    }

    fn before_commit<'a>(&'a self, _: &'a [Operation]) -> BoxFuture<'a, Result<(), StoreError>> {
        let faults = &self.faults.0;
        let number = faults.commits.fetch_add(1, Ordering::SeqCst);
        let is_full = faults.full_from.lock().expect("no panic").is_some_and(|from| number >= from);
        std::future::ready(if is_full { Err(StoreError::NoSpace) } else { Ok(()) }).boxed()
    }

    fn after_commit(&self) -> BoxFuture<'_, ()> {
        self.faults.0.answers.read().map(drop).boxed()
    }

    fn after_read(&self, page: &Page) {
        self.faults.0.read.fetch_add(page.records.len(), Ordering::SeqCst);
    }

    fn on_status(&self, _: LogId) {
        self.faults.0.looked.fetch_add(1, Ordering::SeqCst);
    }

    fn after_look(&self) {
        let meanwhile = self.faults.0.meanwhile.lock().expect("no panic").take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
    }
}
