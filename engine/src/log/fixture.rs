//! What the contract suites of capabilities run on: a store that can be opened again, and a way to look at it while
//! somebody writes. Also stores for tests that intervene in what is asked of a store.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_model::{Era, LogId};

use super::{
    ChangeFeed, Commit, CommitError, Commits, Committed, Logs, Memory, Observer, Operation, Page, ReadError,
    ReadsTable, Refused, Row, RowSpan, RowTable, Rows, Span, StateMachine, Status, StoreError,
};

/// A store under the contract suite of a capability.
pub trait Fixture: Send + 'static {
    /// The store, which holds the tables of the capability.
    type Store: Logs;

    /// The store as it is open now.
    fn store(&self) -> &Self::Store;

    /// Called by each promise between writing and asking. A durable store may write everything to disk, close and open
    /// again here; the answers must not depend on it.
    fn reopen(&mut self) -> BoxFuture<'_, ()>;
}

/// Nothing survives the process, so there is nothing to open again.
impl<T: StateMachine> Fixture for Memory<T> {
    type Store = Self;

    fn store(&self) -> &Self {
        self
    }

    fn reopen(&mut self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }
}

/// Does some work and looks at the store again and again meanwhile, and once more when the work is done.
pub async fn observe<W>(work: impl Future<Output = W>, mut look: impl AsyncFnMut()) -> W {
    let mut work = pin!(work);
    loop {
        let polled = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
        look().await;
        if let Poll::Ready(done) = polled {
            return done;
        }
        tokio::task::yield_now().await;
    }
}

/// A store that stands in for another and hands on to it whatever is asked, so that a test can intervene. It is a store
/// for all tables that the other one is a store for. A test overrides what it intervenes in.
pub trait StandIn: Send + Sync + 'static {
    /// The kind of the other store.
    type Store: Logs;

    /// The other store.
    fn store(&self) -> &Self::Store;

    /// Called before a commit with these operations is made. On an error it is not made, and the error is the answer.
    fn before_commit<'a>(&'a self, operations: &'a [Operation]) -> BoxFuture<'a, Result<(), StoreError>> {
        let _ = operations;
        std::future::ready(Ok(())).boxed()
    }

    /// Called when a commit was made or refused, and before that is answered.
    fn after_commit(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }

    /// Called before a log is read.
    fn before_read(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }

    /// Called with the records that were read from a log.
    fn after_read(&self, page: &Page) {
        let _ = page;
    }

    /// Called whenever the status of a log is taken together with a look at tables. Must not call the store, whose tables
    /// are locked.
    fn on_status(&self, log: LogId) {
        let _ = log;
    }

    /// Called after a look at tables, before whoever looked learns what was seen. May call the store.
    fn after_look(&self) {}
}

impl<S: StandIn> Logs for S {
    fn reserve(&self) -> BoxFuture<'_, Result<LogId, StoreError>> {
        self.store().reserve()
    }

    fn era(&self) -> Era {
        self.store().era()
    }

    fn status(&self, log: LogId) -> BoxFuture<'_, Result<Status, ReadError>> {
        self.store().status(log)
    }

    fn read(&self, log: LogId, span: Span) -> BoxFuture<'_, Result<Page, ReadError>> {
        async move {
            self.before_read().await;
            let page = self.store().read(log, span).await?;
            self.after_read(&page);
            Ok(page)
        }
        .boxed()
    }

    fn accepting(&self) -> Result<(), StoreError> {
        self.store().accepting()
    }
}

impl<P: StateMachine, S: StandIn<Store: Commits<P>>> Commits<P> for S {
    fn commit(&self, commit: Commit<P::Change>) -> BoxFuture<'_, Result<Committed, CommitError<Refused<P>>>> {
        async move {
            self.before_commit(&commit.operations).await.map_err(CommitError::Store)?;
            let committed = self.store().commit(commit).await;
            self.after_commit().await;
            committed
        }
        .boxed()
    }
}

impl<S: StandIn<Store: Rows>> Rows for S {
    fn row<'a>(&'a self, table: RowTable, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        self.store().row(table, key)
    }

    fn rows(&self, table: RowTable, span: RowSpan) -> BoxFuture<'_, Result<Vec<Row>, StoreError>> {
        self.store().rows(table, span)
    }
}

impl<P: StateMachine, S: StandIn<Store: ChangeFeed<P>>> ChangeFeed<P> for S {
    fn observe(&self, observer: &Arc<dyn Observer<P>>) {
        self.store().observe(observer);
    }
}

impl<P: StateMachine, S: StandIn<Store: ReadsTable<P>>> ReadsTable<P> for S {
    fn with_table<R>(&self, look: impl FnOnce(&P, &dyn Fn(LogId) -> Option<Status>) -> R) -> R {
        let seen = self.store().with_table(|table: &P, status| {
            let status = |log| {
                self.on_status(log);
                status(log)
            };
            look(table, &status)
        });
        self.after_look();
        seen
    }
}
