//! Queries that change logs make to a store, and their implementation for stores that hold the table in memory.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::log::{ChangeFeed, Commits, ReadsTable, StoreError};
use tidings_model::ProjectId;

use crate::table::{Found, Row, Table};

/// Queries that change logs need from a store beside its logs.
pub trait Store: Commits<Table> + ChangeFeed<Table> {
    /// Looks up the change log of a project, with its status at the same moment.
    fn change_log<'a>(&'a self, project: &'a ProjectId) -> BoxFuture<'a, Result<Option<Found>, StoreError>>;

    /// Lists up to `most` change logs after that of a project, in the order of the projects.
    fn change_logs<'a>(
        &'a self,
        after: Option<&'a ProjectId>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<(ProjectId, Row)>, StoreError>>;
}

impl<S: ReadsTable<Table> + ChangeFeed<Table>> Store for S {
    fn change_log<'a>(&'a self, project: &'a ProjectId) -> BoxFuture<'a, Result<Option<Found>, StoreError>> {
        let found = self.with_table(|table, status| table.change_log(project, status));
        std::future::ready(Ok(found)).boxed()
    }

    fn change_logs<'a>(
        &'a self,
        after: Option<&'a ProjectId>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<(ProjectId, Row)>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.change_logs(after, most)))).boxed()
    }
}
