//! The table of histories: which log has the messages of which topic.
//!
//! [`Store`](crate::Store) lists the queries on this table.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;

use tidings_engine::log::{self, SnapshotMap, Snapshots, StateMachine, Status};
use tidings_model::{LogId, ProjectId, limits};

/// A topic of a project that is known, and its history.
pub type OfProject = (Arc<str>, Row);

/// Names a history.
pub type Key = (ProjectId, Arc<str>);

/// The history of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The log with its messages.
    pub log: LogId,
    /// A number that no other history has, in this store or another.
    pub number: u64,
}

/// A change of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates the history of a topic, or restores it from a snapshot.
    Create {
        /// The project.
        project: ProjectId,
        /// The topic, normalized.
        topic: Arc<str>,
        /// Its history.
        row: Row,
    },
    /// Removes the history of a topic.
    Remove {
        /// The project.
        project: ProjectId,
        /// The topic, normalized.
        topic: Arc<str>,
        /// The log. Refused if the topic has another one by now.
        log: LogId,
    },
}

/// Why a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// The row was changed concurrently.
    #[error("the history was created or removed concurrently")]
    Moved,
    /// The project has as many histories as it may.
    #[error("a project has at most {} topics with history", limits::HISTORIES_PER_PROJECT)]
    Full,
}

impl log::Change for Change {
    type Refusal = Declined;
}

/// The histories of all projects.
#[derive(Debug, Default)]
pub struct Table {
    rows: SnapshotMap<Key, Row>,
    counts: HashMap<ProjectId, usize>,
}

/// The history of a topic and its status, as of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The row.
    pub row: Row,
    /// Status of its log.
    pub status: Status,
}

impl Table {
    /// See [`crate::Store::history`]. `status` returns the status of a log at the same moment.
    pub fn history(&self, key: &Key, status: &dyn Fn(LogId) -> Option<Status>) -> Option<Found> {
        let row = *self.rows.get(key)?;
        Some(Found { row, status: status(row.log)? })
    }

    /// See [`crate::Store::histories`].
    pub fn histories(&self, after: Option<&Key>, most: usize) -> Vec<(Key, Row)> {
        let from = after.cloned().map_or(Bound::Unbounded, Bound::Excluded);
        let rows = self.rows.range((from, Bound::Unbounded));
        rows.take(most).map(|(key, row)| (key.clone(), *row)).collect()
    }

    /// See [`crate::Store::histories_of`].
    pub fn histories_of(&self, project: &ProjectId, most: usize) -> Vec<OfProject> {
        let from = (project.clone(), Arc::from(""));
        let rows = self.rows.range((Bound::Included(from), Bound::Unbounded));
        let own = rows.take_while(|((of, _), _)| of == project);
        own.take(most).map(|((_, topic), row)| (topic.clone(), *row)).collect()
    }

    /// All rows, in order.
    pub fn rows(&self) -> impl Iterator<Item = (&Key, &Row)> {
        self.rows.iter()
    }
}

impl StateMachine for Table {
    type Change = Change;

    fn validate(&self, change: &Change) -> Result<(), Declined> {
        match change {
            Change::Create { project, topic, .. } => {
                if self.rows.contains_key(&(project.clone(), topic.clone())) {
                    return Err(Declined::Moved);
                }
                let count = self.counts.get(project).copied().unwrap_or_default();
                if count < limits::HISTORIES_PER_PROJECT { Ok(()) } else { Err(Declined::Full) }
            }
            Change::Remove { project, topic, log } => {
                let row = self.rows.get(&(project.clone(), topic.clone()));
                if row.is_some_and(|row| row.log == *log) { Ok(()) } else { Err(Declined::Moved) }
            }
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Create { project, topic, row } => {
                *self.counts.entry(project.clone()).or_default() += 1;
                self.rows.insert((project, topic), row);
            }
            Change::Remove { project, topic, .. } => {
                if let Some(count) = self.counts.get_mut(&project) {
                    *count -= 1;
                    if *count == 0 {
                        self.counts.remove(&project);
                    }
                }
                self.rows.remove(&(project, topic));
            }
        }
    }
}

impl Snapshots for Table {
    type Row = (Key, Row);

    fn begin_snapshot(&mut self) {
        self.rows.begin_snapshot();
    }

    fn next_rows(&mut self, most: usize) -> Option<Vec<Self::Row>> {
        self.rows.next_rows(most)
    }

    fn end_snapshot(&mut self) {
        self.rows.end_snapshot();
    }

    fn restore(((project, topic), row): Self::Row, change: &mut dyn FnMut(Change)) {
        change(Change::Create { project, topic, row });
    }
}
