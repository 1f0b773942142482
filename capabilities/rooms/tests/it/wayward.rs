//! A store in memory that is not always as quick, or as able, as one would like.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::log::{
    ChangeFeed, Commit, CommitError, Commits, Committed, Logs, Memory, Observer, Page, ReadError, Span,
    Status, StoreError,
};
use tidings_model::{LogId, Position, ProjectId, RoomId, Timestamp, UserId};
use tidings_rooms::store::{Found, MemberChange, MemberPage, Old, Removal, Silent};
use tidings_rooms::table::Devices;
use tidings_rooms::{Change, Declined, Store, Table};
use tokio::sync::{OwnedRwLockWriteGuard, RwLock, oneshot};

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
    /// What the next look at how far somebody has seen waits for, before it tells what it saw.
    look: Mutex<Option<oneshot::Receiver<()>>>,
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

    /// The next look at how far somebody has seen is answered when what is returned is dropped.
    pub fn hold_look(&self) -> oneshot::Sender<()> {
        let (held, look) = oneshot::channel();
        *self.0.look.lock().expect("no panic") = Some(look);
        held
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

impl Logs for Wayward {
    fn reserve(&self) -> BoxFuture<'_, Result<LogId, StoreError>> {
        self.memory.reserve()
    }

    fn status(&self, log: LogId) -> BoxFuture<'_, Result<Status, ReadError>> {
        self.memory.status(log)
    }

    fn read(&self, log: LogId, span: Span) -> BoxFuture<'_, Result<Page, ReadError>> {
        async move {
            let page = self.memory.read(log, span).await?;
            self.faults.0.read.fetch_add(page.records.len(), Ordering::SeqCst);
            Ok(page)
        }
        .boxed()
    }

    fn accepting(&self) -> Result<(), StoreError> {
        self.memory.accepting()
    }
}

impl Commits<Table> for Wayward {
    fn commit(&self, commit: Commit<Change>) -> BoxFuture<'_, Result<Committed, CommitError<Declined>>> {
        let faults = &self.faults.0;
        let number = faults.commits.fetch_add(1, Ordering::SeqCst);
        let is_full = faults.full_from.lock().expect("no panic").is_some_and(|from| number >= from);
        if is_full {
            return std::future::ready(Err(CommitError::Store(StoreError::NoSpace))).boxed();
        }
        async move {
            let committed = self.memory.commit(commit).await;
            let _answered = faults.answers.read().await;
            committed
        }
        .boxed()
    }
}

impl ChangeFeed<Table> for Wayward {
    fn observe(&self, observer: &Arc<dyn Observer<Table>>) {
        self.memory.observe(observer);
    }
}

impl Store for Wayward {
    fn epoch(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.memory.epoch()
    }

    fn room<'a>(
        &'a self,
        project: &'a ProjectId,
        id: &'a RoomId,
    ) -> BoxFuture<'a, Result<Option<LogId>, StoreError>> {
        self.memory.room(project, id)
    }

    fn found(&self, log: LogId) -> BoxFuture<'_, Result<Option<Found>, StoreError>> {
        self.faults.0.looked.fetch_add(1, Ordering::SeqCst);
        self.memory.found(log)
    }

    fn member<'a>(
        &'a self,
        log: LogId,
        user: &'a UserId,
    ) -> BoxFuture<'a, Result<Option<Position>, StoreError>> {
        self.memory.member(log, user)
    }

    fn members<'a>(
        &'a self,
        log: LogId,
        after: Option<&'a UserId>,
        most: usize,
    ) -> BoxFuture<'a, Result<Option<MemberPage>, StoreError>> {
        self.memory.members(log, after, most)
    }

    fn validate_members<'a>(
        &'a self,
        log: LogId,
        change: MemberChange<'a>,
    ) -> BoxFuture<'a, Result<Result<(), Declined>, StoreError>> {
        self.memory.validate_members(log, change)
    }

    fn old<'a>(
        &'a self,
        through: Timestamp,
        after: Option<Old>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Old>, StoreError>> {
        self.memory.old(through, after, most)
    }

    fn reacted(&self, after: Option<LogId>, most: usize) -> BoxFuture<'_, Result<Vec<LogId>, StoreError>> {
        self.memory.reacted(after, most)
    }

    fn rooms_of<'a>(
        &'a self,
        project: &'a ProjectId,
        most: Removal,
    ) -> BoxFuture<'a, Result<Vec<LogId>, StoreError>> {
        self.memory.rooms_of(project, most)
    }

    fn seen<'a>(
        &'a self,
        log: LogId,
        user: &'a UserId,
    ) -> BoxFuture<'a, Result<Option<Arc<Devices>>, StoreError>> {
        let held = self.faults.0.look.lock().expect("no panic").take();
        async move {
            let seen = self.memory.seen(log, user).await;
            if let Some(held) = held {
                let _ = held.await;
            }
            seen
        }
        .boxed()
    }

    fn silent<'a>(
        &'a self,
        after: Option<&'a (LogId, UserId)>,
        before: Timestamp,
        most: usize,
    ) -> BoxFuture<'a, Result<Silent, StoreError>> {
        self.memory.silent(after, before, most)
    }
}
