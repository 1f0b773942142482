//! Queries that subscriptions make to a store, and their implementation for stores that hold the tables in memory.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use tidings_engine::log::{ChangeFeed, Commits, ReadsTable, StoreError};
use tidings_engine::matching::Matcher;
use tidings_model::{LogId, Pattern, ProjectId, StreamId};
use tidings_streams::StreamKey;

use crate::keys::Seed;
use crate::subscription::{Subscription, SubscriptionId};
use crate::table::{Linked, Table};

/// A subscription and its number.
pub type Numbered = (LogId, Arc<Subscription>);

/// Queries that subscriptions need from a store beside its logs.
pub trait Store: Commits<Table> + ChangeFeed<Table> + ChangeFeed<tidings_streams::Table> {
    /// The keys of a project.
    fn key<'a>(&'a self, project: &'a ProjectId) -> BoxFuture<'a, Result<Option<Seed>, StoreError>>;

    /// The subscription of this id.
    fn find<'a>(
        &'a self,
        project: &'a ProjectId,
        id: &'a SubscriptionId,
    ) -> BoxFuture<'a, Result<Option<Numbered>, StoreError>>;

    /// A subscription, also one that has ended.
    fn subscription(&self, number: LogId) -> BoxFuture<'_, Result<Option<Arc<Subscription>>, StoreError>>;

    /// Numbers of subscriptions after this one, in order, also of those that have ended, at most so many.
    fn numbers(&self, after: Option<LogId>, most: usize) -> BoxFuture<'_, Result<Vec<LogId>, StoreError>>;

    /// Subscriptions of a project whose ids sort after this one, in order, at most so many.
    fn list<'a>(
        &'a self,
        project: &'a ProjectId,
        after: Option<&'a SubscriptionId>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Numbered>, StoreError>>;

    /// Number of links of a subscription.
    fn link_count(&self, number: LogId) -> BoxFuture<'_, Result<usize, StoreError>>;

    /// Links of a subscription whose stream ids sort after this one, in order, at most so many, with the tails of the same moment.
    fn links<'a>(
        &'a self,
        number: LogId,
        after: Option<&'a StreamId>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Linked>, StoreError>>;

    /// One link of a subscription, with the tail of its stream at the same moment.
    fn link<'a>(
        &'a self,
        number: LogId,
        stream: &'a StreamId,
    ) -> BoxFuture<'a, Result<Option<Linked>, StoreError>>;

    /// The links of a stream, each with its subscription, and the tail at the same moment.
    fn of_stream<'a>(&'a self, key: &'a StreamKey)
    -> BoxFuture<'a, Result<Vec<(LogId, Linked)>, StoreError>>;

    /// Number of subscriptions that a stream is linked to.
    fn linked_to<'a>(&'a self, key: &'a StreamKey) -> BoxFuture<'a, Result<usize, StoreError>>;

    /// Whether the project's patterns stay cheap to match with this one.
    fn admits<'a>(
        &'a self,
        project: &'a ProjectId,
        pattern: &'a Pattern,
    ) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Matchers that are to be compacted.
    fn patterns_due(&self) -> Vec<Arc<Matcher<LogId>>>;
}

impl<S> Store for S
where
    S: ReadsTable<Table> + ChangeFeed<Table> + ChangeFeed<tidings_streams::Table>,
{
    fn key<'a>(&'a self, project: &'a ProjectId) -> BoxFuture<'a, Result<Option<Seed>, StoreError>> {
        ready(Ok(self.with_table(|table, _| table.key(project).cloned()))).boxed()
    }

    fn find<'a>(
        &'a self,
        project: &'a ProjectId,
        id: &'a SubscriptionId,
    ) -> BoxFuture<'a, Result<Option<Numbered>, StoreError>> {
        let found = |table: &Table| table.find(project, id).map(|(number, row)| (number, row.clone()));
        ready(Ok(self.with_table(|table, _| found(table)))).boxed()
    }

    fn subscription(&self, number: LogId) -> BoxFuture<'_, Result<Option<Arc<Subscription>>, StoreError>> {
        ready(Ok(self.with_table(|table, _| table.get(number).cloned()))).boxed()
    }

    fn numbers(&self, after: Option<LogId>, most: usize) -> BoxFuture<'_, Result<Vec<LogId>, StoreError>> {
        ready(Ok(self.with_table(|table, _| table.numbers(after, most)))).boxed()
    }

    fn list<'a>(
        &'a self,
        project: &'a ProjectId,
        after: Option<&'a SubscriptionId>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Numbered>, StoreError>> {
        ready(Ok(self.with_table(|table, _| table.list(project, after, most)))).boxed()
    }

    fn link_count(&self, number: LogId) -> BoxFuture<'_, Result<usize, StoreError>> {
        ready(Ok(self.with_table(|table, _| table.link_count(number)))).boxed()
    }

    fn links<'a>(
        &'a self,
        number: LogId,
        after: Option<&'a StreamId>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Linked>, StoreError>> {
        ready(Ok(self.with_table(|table, status| table.links(number, after, most, status)))).boxed()
    }

    fn link<'a>(
        &'a self,
        number: LogId,
        stream: &'a StreamId,
    ) -> BoxFuture<'a, Result<Option<Linked>, StoreError>> {
        ready(Ok(self.with_table(|table, status| table.link(number, stream, status)))).boxed()
    }

    fn of_stream<'a>(
        &'a self,
        key: &'a StreamKey,
    ) -> BoxFuture<'a, Result<Vec<(LogId, Linked)>, StoreError>> {
        ready(Ok(self.with_table(|table, status| table.of_stream(key, status)))).boxed()
    }

    fn linked_to<'a>(&'a self, key: &'a StreamKey) -> BoxFuture<'a, Result<usize, StoreError>> {
        ready(Ok(self.with_table(|table, _| table.linked_to(key)))).boxed()
    }

    fn admits<'a>(
        &'a self,
        project: &'a ProjectId,
        pattern: &'a Pattern,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        ready(Ok(self.with_table(|table, _| table.admits(project, pattern)))).boxed()
    }

    fn patterns_due(&self) -> Vec<Arc<Matcher<LogId>>> {
        self.with_table(|table, _| table.patterns_due())
    }
}
