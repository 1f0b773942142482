//! In-memory registry of projects: the stored ones, kept up to date with applied changes, merged with the
//! configuration.

use std::collections::HashMap;
use std::sync::{Arc, RwLock, RwLockReadGuard};

use tidings_engine::log::{Observer, StateMachine};
use tidings_model::ProjectId;
use tokio::sync::{Notify, watch};

use crate::table::{Change, Project, Table};
use crate::{AdminDigest, Given, Key};

/// Registry of projects in memory. It observes the changes that the store applies, whichever node made them.
pub(crate) struct Registry {
    given: Given,
    known: RwLock<Known>,
    /// Number of changes so far. A pass granted at an earlier generation is checked again.
    generation: watch::Sender<u64>,
    /// Notified when a project is removed.
    pub(crate) removed: Notify,
}

/// Current projects.
#[derive(Default)]
pub(crate) struct Known {
    stored: Table,
    /// All stored or configured projects, each with its stored and configured keys.
    pub(crate) projects: HashMap<ProjectId, Arc<Project>>,
}

impl Known {
    /// Stored digest of the admin key.
    pub(crate) fn admin(&self) -> Option<AdminDigest> {
        self.stored.admin()
    }
}

impl Registry {
    pub(crate) fn new(given: Given) -> Self {
        let (generation, removed) = (watch::Sender::new(0), Notify::new());
        Self { given, known: RwLock::default(), generation, removed }
    }

    pub(crate) fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().expect("nobody panics while writing")
    }

    pub(crate) fn generation(&self) -> &watch::Sender<u64> {
        &self.generation
    }

    pub(crate) fn given(&self) -> &Given {
        &self.given
    }

    pub(crate) fn given_keys(&self, id: &ProjectId) -> impl Iterator<Item = &Key> {
        let given = self.given.projects.iter().filter(move |(given, _)| given == id);
        given.flat_map(|(_, keys)| keys)
    }

    pub(crate) fn is_given(&self, id: &ProjectId) -> bool {
        self.given.projects.iter().any(|(given, _)| given == id)
    }

    /// Merges the stored project with the keys from the configuration. Returns `None` if it is neither stored nor
    /// configured.
    fn with_given(&self, id: &ProjectId, stored: Option<&Arc<Project>>) -> Option<Arc<Project>> {
        if !self.is_given(id) {
            return stored.cloned();
        }
        let stored = stored.map(|project| Project::clone(project)).unwrap_or_default();
        let keys = self.given_keys(id).cloned().chain(stored.keys).collect();
        Some(Arc::new(Project { keys, ..stored }))
    }

    fn change(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.known.write().expect("nobody panics while writing"));
        self.generation.send_modify(|generation| *generation += 1);
    }
}

impl Observer<Table> for Registry {
    fn begin(&self, table: &Table) {
        let stored = table.copied();
        let given = self.given.projects.iter().map(|(id, _)| id);
        let ids = given.chain(stored.iter().map(|(id, _)| id));
        let merged = |id: &ProjectId| Some((id.clone(), self.with_given(id, stored.get(id))?));
        let projects = ids.filter_map(merged).collect();
        self.change(|known| *known = Known { stored, projects });
    }

    fn applied(&self, change: &Change) {
        self.change(|known| {
            known.stored.apply(change.clone());
            let Some(id) = change.project() else { return };
            match self.with_given(id, known.stored.get(id)) {
                Some(project) => known.projects.insert(id.clone(), project),
                None => known.projects.remove(id),
            };
        });
        if let Change::Remove { .. } = change {
            self.removed.notify_one();
        }
    }
}
