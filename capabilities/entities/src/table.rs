//! The table of change logs: which log has the changes of which project.
//!
//! [`Store`](crate::Store) lists the queries on this table.

use std::ops::Bound;

use tidings_engine::log::{self, SnapshotMap, Snapshots, StateMachine, Status};
use tidings_model::{LogId, ProjectId};

/// The change log of a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The log.
    pub log: LogId,
    /// A number that no other change log has, in this store or another. It is part of every cursor.
    pub epoch: u64,
}

/// A change of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates the change log of a project, or restores it from a snapshot.
    Create {
        /// The project.
        project: ProjectId,
        /// Its change log.
        row: Row,
    },
    /// Removes the change log of a project.
    Remove {
        /// The project.
        project: ProjectId,
        /// The log. Refused if the project has another one by now.
        log: LogId,
    },
}

/// Why a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// The row was changed concurrently.
    #[error("the change log was created or removed concurrently")]
    Moved,
}

impl log::Change for Change {
    type Refusal = Declined;
}

/// The change logs of all projects.
#[derive(Debug, Default)]
pub struct Table {
    rows: SnapshotMap<ProjectId, Row>,
}

/// The change log of a project and its status, as of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The row.
    pub row: Row,
    /// Status of its log.
    pub status: Status,
}

impl Table {
    /// See [`crate::Store::change_log`]. `status` returns the status of a log at the same moment.
    pub fn change_log(&self, project: &ProjectId, status: &dyn Fn(LogId) -> Option<Status>) -> Option<Found> {
        let row = *self.rows.get(project)?;
        Some(Found { row, status: status(row.log)? })
    }

    /// See [`crate::Store::change_logs`].
    pub fn change_logs(&self, after: Option<&ProjectId>, most: usize) -> Vec<(ProjectId, Row)> {
        let from = after.cloned().map_or(Bound::Unbounded, Bound::Excluded);
        let rows = self.rows.range((from, Bound::Unbounded));
        rows.take(most).map(|(project, row)| (project.clone(), *row)).collect()
    }

    /// All rows, in order of the projects.
    pub fn rows(&self) -> impl Iterator<Item = (&ProjectId, &Row)> {
        self.rows.iter()
    }
}

impl StateMachine for Table {
    type Change = Change;

    fn validate(&self, change: &Change) -> Result<(), Declined> {
        let expected = match change {
            Change::Create { project, .. } => !self.rows.contains_key(project),
            Change::Remove { project, log } => self.rows.get(project).is_some_and(|row| row.log == *log),
        };
        if expected { Ok(()) } else { Err(Declined::Moved) }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Create { project, row } => self.rows.insert(project, row),
            Change::Remove { project, .. } => self.rows.remove(&project),
        };
    }
}

impl Snapshots for Table {
    type Row = (ProjectId, Row);

    fn begin_snapshot(&mut self) {
        self.rows.begin_snapshot();
    }

    fn next_rows(&mut self, most: usize) -> Option<Vec<Self::Row>> {
        self.rows.next_rows(most)
    }

    fn end_snapshot(&mut self) {
        self.rows.end_snapshot();
    }

    fn restore((project, row): Self::Row, change: &mut dyn FnMut(Change)) {
        change(Change::Create { project, row });
    }
}
