//! Queries that histories make to a store, and their implementation for stores that hold the table in memory.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::log::{Commits, ReadsTable, StoreError};
use tidings_model::ProjectId;

use crate::table::{Found, Key, OfProject, Row, Table};

/// Queries that histories need from a store beside its logs.
pub trait Store: Commits<Table> {
    /// Looks up the history of a topic, with its status at the same moment.
    fn history<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Found>, StoreError>>;

    /// Lists up to `most` histories after another one, in the order of projects and topics.
    fn histories<'a>(
        &'a self,
        after: Option<&'a Key>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<(Key, Row)>, StoreError>>;

    /// Lists up to `most` histories of a project.
    fn histories_of<'a>(
        &'a self,
        project: &'a ProjectId,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<OfProject>, StoreError>>;
}

impl<S: ReadsTable<Table>> Store for S {
    fn history<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Found>, StoreError>> {
        let found = self.with_table(|table, status| table.history(key, status));
        std::future::ready(Ok(found)).boxed()
    }

    fn histories<'a>(
        &'a self,
        after: Option<&'a Key>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<(Key, Row)>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.histories(after, most)))).boxed()
    }

    fn histories_of<'a>(
        &'a self,
        project: &'a ProjectId,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<OfProject>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.histories_of(project, most)))).boxed()
    }
}
