//! In-memory registry of projects: the stored ones, kept up to date with applied changes, merged with the
//! configuration.

use std::collections::HashMap;
use std::sync::{Arc, RwLock, RwLockReadGuard};

use tidings_engine::log::{Observer, StateMachine};
use tidings_model::ProjectId;
use tokio::sync::{Notify, watch};

use crate::revocation::{Holder, Revocations, Revoked};
use crate::table::{Change, Config, Project, STANDING_SOURCES, Table};
use crate::{AdminDigest, ApiKey, Given, Key};

/// Registry of projects in memory. It observes the changes that the store applies, whichever node made them.
pub(crate) struct Registry {
    given: Given,
    known: RwLock<Known>,
    /// Number of changes so far. A pass granted at an earlier generation is checked again.
    generation: watch::Sender<u64>,
    /// Notified when a project is removed.
    pub(crate) removed: Notify,
    /// Notified when a project is created.
    pub(crate) created: Notify,
}

/// Current projects.
#[derive(Default)]
pub(crate) struct Known {
    stored: Table,
    /// All stored or configured projects, each with its stored and configured keys.
    pub(crate) projects: HashMap<ProjectId, Arc<Project>>,
    /// Sources that hooks hear in addition, for the projects that have any: usually few, because every append asks.
    sources: HashMap<ProjectId, Vec<&'static str>>,
}

impl Known {
    /// Stored digest of the admin key.
    pub(crate) fn admin(&self) -> Option<AdminDigest> {
        self.stored.admin()
    }

    /// All revocations.
    pub(crate) fn revocations(&self) -> &Revocations {
        self.stored.all_revocations()
    }

    /// What was revoked of a token.
    pub(crate) fn revoked(&self, id: &ProjectId, holder: &Holder) -> Revoked {
        self.stored.revoked(id, holder)
    }

    /// Whether hooks of a project hear events of the source.
    pub(crate) fn hears(&self, id: &ProjectId, source: &str) -> bool {
        let added = || self.sources.get(id).is_some_and(|added| added.contains(&source));
        STANDING_SOURCES.contains(&source) || added()
    }

    fn set_sources(&mut self, id: &ProjectId, config: &Config) {
        match config.added_sources() {
            none if none.is_empty() => drop(self.sources.remove(id)),
            some => drop(self.sources.insert(id.clone(), some)),
        }
    }
}

impl Registry {
    pub(crate) fn new(given: Given) -> Self {
        let generation = watch::Sender::new(0);
        let (removed, created) = (Notify::new(), Notify::new());
        Self { given, known: RwLock::default(), generation, removed, created }
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

    pub(crate) fn given_api_keys(&self, id: &ProjectId) -> impl Iterator<Item = &ApiKey> {
        self.given.api_keys.iter().filter(move |key| key.project() == id)
    }

    /// Whether the configuration gives the project's signing keys.
    pub(crate) fn gives_keys(&self, id: &ProjectId) -> bool {
        self.given.projects.iter().any(|(given, _)| given == id)
    }

    /// Whether the configuration names the project, which then exists whether it is stored or not.
    pub(crate) fn names(&self, id: &ProjectId) -> bool {
        self.gives_keys(id) || self.given_api_keys(id).next().is_some()
    }

    /// Merges the stored project with the keys from the configuration. Returns `None` if it is neither stored nor
    /// named by the configuration.
    fn with_given(&self, id: &ProjectId, stored: Option<&Arc<Project>>) -> Option<Arc<Project>> {
        if !self.names(id) {
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
        let given = given.chain(self.given.api_keys.iter().map(ApiKey::project));
        let ids = given.chain(stored.iter().map(|(id, _)| id));
        let merged = |id: &ProjectId| Some((id.clone(), self.with_given(id, stored.get(id))?));
        let projects: HashMap<_, _> = ids.filter_map(merged).collect();
        self.change(|known| {
            *known = Known { stored, ..Known::default() };
            projects.iter().for_each(|(id, project)| known.set_sources(id, &project.config));
            known.projects = projects;
        });
    }

    fn applied(&self, change: &Change) {
        self.change(|known| {
            known.stored.apply(change.clone());
            if let Change::Revoke(_) = change {
                return;
            }
            let Some(id) = change.project() else { return };
            let project = self.with_given(id, known.stored.get(id));
            known.set_sources(id, project.as_ref().map_or(&Config::default(), |project| &project.config));
            match project {
                Some(project) => known.projects.insert(id.clone(), project),
                None => known.projects.remove(id),
            };
        });
        match change {
            Change::Remove { .. } => self.removed.notify_one(),
            Change::Create { .. } => self.created.notify_one(),
            _ => {}
        }
    }
}
