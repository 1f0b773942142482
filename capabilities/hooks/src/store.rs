//! Queries that hooks make to a store, and their implementation for stores that hold the tables in memory.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::log::{ChangeFeed, Commits, ReadsTable, Rows, Status, StoreError};
use tidings_model::{LogId, ProjectId};

use crate::hook::{Hook, HookId};
use crate::table::{Feed, Progress, Replay, ReplayId, Table};

/// Queries that hooks need from a store beside its logs and cold rows.
pub trait Store: Commits<Table> + ChangeFeed<Table> + Rows {
    /// The feed of a project.
    fn feed<'a>(&'a self, project: &'a ProjectId) -> BoxFuture<'a, Result<Option<FoundFeed>, StoreError>>;

    /// The feed to which a journal belongs, and its project.
    fn feed_of(&self, journal: LogId) -> BoxFuture<'_, Result<Option<(ProjectId, FoundFeed)>, StoreError>>;

    /// All projects with a feed.
    fn projects(&self) -> BoxFuture<'_, Result<Vec<ProjectId>, StoreError>>;

    /// Journals that have entries after their cursor.
    fn unmatched(&self) -> BoxFuture<'_, Result<Vec<LogId>, StoreError>>;

    /// A hook by its id.
    fn hook(&self, id: HookId) -> BoxFuture<'_, Result<Option<Found>, StoreError>>;

    /// A hook by its queue.
    fn found(&self, queue: LogId) -> BoxFuture<'_, Result<Option<Found>, StoreError>>;

    /// Up to `most` hooks of a project, or of all projects, newest first, older than the given one.
    fn newest<'a>(
        &'a self,
        project: Option<&'a ProjectId>,
        before: Option<HookId>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Found>, StoreError>>;

    /// Number of hooks of a project.
    fn hooks_of<'a>(&'a self, project: &'a ProjectId) -> BoxFuture<'a, Result<usize, StoreError>>;

    /// Examines up to `most` hooks after the given queue.
    fn examine(&self, after: Option<LogId>, most: usize) -> BoxFuture<'_, Result<Examined, StoreError>>;

    /// Replays that have not reached their end.
    fn replays(&self) -> BoxFuture<'_, Result<Vec<(ReplayId, Replay)>, StoreError>>;

    /// A replay.
    fn replay(&self, id: ReplayId) -> BoxFuture<'_, Result<Option<Replay>, StoreError>>;
}

/// The feed of a project and the status of its logs, as of one moment.
#[derive(Clone, Debug)]
pub struct FoundFeed {
    /// The feed.
    pub feed: Arc<Feed>,
    /// Status of the log of events.
    pub events: Status,
    /// Status of the journal.
    pub journal: Status,
}

/// A hook with the state of its deliveries, as of one moment.
#[derive(Clone, Debug)]
pub struct Found {
    /// Queue of the hook.
    pub queue: LogId,
    /// The hook.
    pub hook: Arc<Hook>,
    /// State of its deliveries.
    pub progress: Arc<Progress>,
    /// Status of the queue.
    pub status: Status,
}

impl Found {
    /// Deliveries of which no attempt has ended.
    pub fn pending(&self) -> u64 {
        self.progress.pending(self.status.total.records)
    }

    /// Whether deliveries are pending or wait for a retry.
    pub fn has_work(&self) -> bool {
        !self.progress.parked.is_empty() || self.pending() > 0
    }
}

/// Result of examining hooks.
#[derive(Clone, Debug, Default)]
pub struct Examined {
    /// Queues of examined hooks that have deliveries which are pending or wait for a retry.
    pub with_work: Vec<LogId>,
    /// The examined queues.
    pub queues: Vec<LogId>,
    /// Last queue examined, or `None` if no hooks are left.
    pub last: Option<LogId>,
}

/// Looks up the status of a log.
type Statuses<'a> = &'a dyn Fn(LogId) -> Option<Status>;

fn found_feed(table: &Table, project: &ProjectId, status: Statuses<'_>) -> Option<FoundFeed> {
    let feed = table.feed(project)?.clone();
    Some(FoundFeed { events: status(feed.events)?, journal: status(feed.journal)?, feed })
}

fn found(table: &Table, queue: LogId, status: Statuses<'_>) -> Option<Found> {
    let hook = table.hook(queue)?.clone();
    let progress = table.progress(queue).cloned().unwrap_or_default();
    Some(Found { queue, hook, progress, status: status(queue)? })
}

fn ready<T: Send + 'static>(value: T) -> BoxFuture<'static, Result<T, StoreError>> {
    std::future::ready(Ok(value)).boxed()
}

impl<S: ReadsTable<Table> + ChangeFeed<Table> + Rows> Store for S {
    fn feed<'a>(&'a self, project: &'a ProjectId) -> BoxFuture<'a, Result<Option<FoundFeed>, StoreError>> {
        ready(self.with_table(|table, status| found_feed(table, project, status)))
    }

    fn feed_of(&self, journal: LogId) -> BoxFuture<'_, Result<Option<(ProjectId, FoundFeed)>, StoreError>> {
        ready(self.with_table(|table, status| {
            let project = table.project_of_journal(journal)?;
            Some((project.clone(), found_feed(table, project, status)?))
        }))
    }

    fn projects(&self) -> BoxFuture<'_, Result<Vec<ProjectId>, StoreError>> {
        ready(self.with_table(|table, _| table.feeds().map(|(project, _)| project.clone()).collect()))
    }

    fn unmatched(&self) -> BoxFuture<'_, Result<Vec<LogId>, StoreError>> {
        ready(self.with_table(|table, status| {
            let behind =
                |feed: &Feed| status(feed.journal).is_some_and(|journal| journal.tail > feed.cursor.done);
            table.feeds().filter(|(_, feed)| behind(feed)).map(|(_, feed)| feed.journal).collect()
        }))
    }

    fn hook(&self, id: HookId) -> BoxFuture<'_, Result<Option<Found>, StoreError>> {
        ready(self.with_table(|table, status| found(table, table.queue(id)?, status)))
    }

    fn found(&self, queue: LogId) -> BoxFuture<'_, Result<Option<Found>, StoreError>> {
        ready(self.with_table(|table, status| found(table, queue, status)))
    }

    fn newest<'a>(
        &'a self,
        project: Option<&'a ProjectId>,
        before: Option<HookId>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Found>, StoreError>> {
        ready(self.with_table(|table, status| {
            let hooks = table.newest(project, before).take(most);
            hooks.filter_map(|(queue, _)| found(table, queue, status)).collect()
        }))
    }

    fn hooks_of<'a>(&'a self, project: &'a ProjectId) -> BoxFuture<'a, Result<usize, StoreError>> {
        ready(self.with_table(|table, _| table.hooks_of(project)))
    }

    fn examine(&self, after: Option<LogId>, most: usize) -> BoxFuture<'_, Result<Examined, StoreError>> {
        ready(self.with_table(|table, status| {
            let queues = table.queues(after, most);
            let has_work = |queue: &LogId| found(table, *queue, status).is_some_and(|found| found.has_work());
            let with_work = queues.iter().copied().filter(has_work).collect();
            let last = queues.last().copied().filter(|_| queues.len() == most);
            Examined { with_work, last, queues }
        }))
    }

    fn replays(&self) -> BoxFuture<'_, Result<Vec<(ReplayId, Replay)>, StoreError>> {
        ready(self.with_table(|table, _| table.replays().map(|(id, replay)| (id, *replay)).collect()))
    }

    fn replay(&self, id: ReplayId) -> BoxFuture<'_, Result<Option<Replay>, StoreError>> {
        ready(self.with_table(|table, _| table.replay(id).copied()))
    }
}
