//! What is stored of projects, how it changes, and what a store must be able to do.

use std::sync::Arc;

use tidings_engine::log::{self, ChangeFeed, Commits, SnapshotMap, Snapshots};
use tidings_model::{Pattern, ProjectId, limits};

use crate::revocation::{self, Holder, Revocation, Revocations, Revoked};
use crate::{AdminDigest, Key, Kid};

/// What projects need of a store: to change them, and to hear how they change.
pub trait Store: Commits<Table> + ChangeFeed<Table> {}

impl<S: Commits<Table> + ChangeFeed<Table>> Store for S {}

/// A project: its signing keys and settings.
#[derive(Clone, Debug, Default)]
pub struct Project {
    /// Signing keys, newest first. New tokens are signed with the first; tokens of all keys are valid.
    pub keys: Vec<Key>,
    /// Settings of the project.
    pub config: Config,
    /// Whether the project can be used.
    pub state: ProjectState,
}

impl Project {
    /// The key with this id.
    pub fn key(&self, kid: &Kid) -> Option<&Key> {
        self.keys.iter().find(|key| key.kid() == kid)
    }
}

/// Whether a project can be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProjectState {
    /// The project can be used.
    #[default]
    Active,
    /// The project was removed, and its data is being deleted. Its id is not free yet.
    Removing,
}

/// Settings of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Origins whose pages may use the project from a browser; `*` means all.
    pub cors_origins: Vec<Box<str>>,
    /// Patterns of the streams that anybody may read.
    pub public: Vec<Pattern>,
    /// Additional sources of events for hooks.
    pub hook_sources: Vec<Box<str>>,
}

/// The sources of events that hooks may name.
const HOOK_SOURCES: [&str; 5] = ["stream", "room", "topic", "collection", "hook"];

/// The sources that hooks hear in every project, whatever its settings.
pub(crate) const STANDING_SOURCES: [&str; 2] = ["collection", "hook"];

/// Why settings are invalid. The message may be shown to the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    /// A list has more entries than the limit.
    #[error("a list may have at most {} entries", limits::CONFIG_ENTRIES)]
    TooMany,
    /// The text is not an origin as browsers send it.
    #[error("`{0}` is not an origin; expected one such as `https://example.com`, or `*`")]
    Origin(Box<str>),
    /// The text is not a source of events for hooks.
    #[error("`{0}` is not a source of hooks; expected stream, room, topic, collection or hook")]
    HookSource(Box<str>),
}

impl Config {
    /// Checks the settings.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        let Self { cors_origins, public, hook_sources } = self;
        if [cors_origins.len(), public.len(), hook_sources.len()]
            .into_iter()
            .any(|n| n > limits::CONFIG_ENTRIES)
        {
            return Err(InvalidConfig::TooMany);
        }
        if let Some(bad) = cors_origins.iter().find(|origin| !is_origin(origin)) {
            return Err(InvalidConfig::Origin(bad.clone()));
        }
        match hook_sources.iter().find(|source| !HOOK_SOURCES.contains(&&***source)) {
            Some(bad) => Err(InvalidConfig::HookSource(bad.clone())),
            None => Ok(()),
        }
    }

    /// The sources that hooks hear in addition to those of every project, each once.
    pub(crate) fn added_sources(&self) -> Vec<&'static str> {
        let added = |source: &&str| {
            !STANDING_SOURCES.contains(source) && self.hook_sources.iter().any(|named| **named == **source)
        };
        HOOK_SOURCES.into_iter().filter(added).collect()
    }

    /// Whether anybody may read the stream with this id.
    pub fn is_public(&self, stream: &str) -> bool {
        self.public.iter().any(|glob| glob.matches(stream))
    }
}

/// Whether a text is an origin as browsers print it: scheme, host and an optional port.
fn is_origin(text: &str) -> bool {
    if text == "*" {
        return true;
    }
    let Some((scheme, host)) = text.split_once("://") else { return false };
    let plain = |c: char| c.is_ascii_graphic() && !c.is_ascii_uppercase();
    let beside = |c: char| matches!(c, '/' | '?' | '#' | '@' | ',' | '*' | '"');
    text.len() <= limits::ORIGIN_BYTES
        && !scheme.is_empty()
        && scheme.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c))
        && !host.is_empty()
        && host.chars().all(|c| plain(c) && !beside(c))
}

/// A change of the table of projects.
#[derive(Clone, Debug)]
pub enum Change {
    /// Creates a project.
    Create {
        /// Id of the project.
        project: ProjectId,
        /// The first key.
        key: Key,
    },
    /// Adds a key, which becomes the first.
    AddKey {
        /// Id of the project.
        project: ProjectId,
        /// The new key.
        key: Key,
    },
    /// Removes a key. Its tokens are no longer valid.
    RemoveKey {
        /// Id of the project.
        project: ProjectId,
        /// Id of the key.
        kid: Kid,
        /// Whether the last key may be removed.
        last: LastKey,
    },
    /// Replaces the settings of a project. The default project, which exists without being stored, is stored
    /// by this.
    Configure {
        /// Id of the project.
        project: ProjectId,
        /// The new settings.
        config: Config,
    },
    /// Removes a project. Its data is deleted afterwards.
    Remove {
        /// Id of the project.
        project: ProjectId,
    },
    /// Frees the id of a removed project after all its data was deleted.
    Forget {
        /// Id of the project.
        project: ProjectId,
    },
    /// Sets the admin key.
    SetAdmin(AdminDigest),
    /// Revokes tokens of a project, or topics of them. Drops the revocations of the project that have expired by then.
    Revoke(Revocation),
    /// Restores a project from a snapshot.
    Restore {
        /// Id of the project.
        project: ProjectId,
        /// The project as it was stored.
        is: Project,
    },
}

/// Whether the last stored key of a project may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastKey {
    /// It must stay, otherwise no token of the project would be valid.
    Stays,
    /// It may be removed, because the project has keys elsewhere.
    MayGo,
}

/// Why a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// The project exists.
    #[error("the project exists")]
    Exists,
    /// A project with this id was removed, but its data is still being deleted.
    #[error("a project with this id is being removed; the id is free once its data is deleted")]
    Removing,
    /// The project does not exist.
    #[error("the project does not exist")]
    NoSuchProject,
    /// The project has no such key.
    #[error("the project has no key with this id")]
    NoSuchKey,
    /// The key is the last one of its project.
    #[error("this is the project's last key; rotate it first")]
    LastKey,
    /// The project has the key already.
    #[error("the project has this key already")]
    SameKey,
    /// The project has the maximum number of keys.
    #[error("a project may have at most {} keys; remove one first", limits::KEYS_PER_PROJECT)]
    TooManyKeys,
    /// The server has the maximum number of projects.
    #[error("a server may have at most {} projects", limits::PROJECTS)]
    TooManyProjects,
    /// The project has the maximum number of revocations.
    #[error(
        "a project may have at most {} revocations; remove a key to end all of its tokens instead",
        limits::REVOCATIONS_PER_PROJECT
    )]
    TooManyRevocations,
    /// The user or token has the maximum number of revoked topics.
    #[error(
        "at most {} patterns of topics may be revoked of one user or token; revoke its tokens whole instead",
        limits::REVOKED_TOPICS
    )]
    TooManyRevokedTopics,
}

impl log::Change for Change {
    type Refusal = Declined;
}

impl Change {
    /// The project that it changes; none when it changes the admin key.
    pub(crate) fn project(&self) -> Option<&ProjectId> {
        match self {
            Self::Create { project, .. }
            | Self::AddKey { project, .. }
            | Self::RemoveKey { project, .. }
            | Self::Configure { project, .. }
            | Self::Remove { project }
            | Self::Forget { project }
            | Self::Restore { project, .. } => Some(project),
            Self::Revoke(revocation) => Some(&revocation.project),
            Self::SetAdmin(_) => None,
        }
    }
}

/// All projects that are stored.
#[derive(Debug, Default)]
pub struct Table {
    projects: SnapshotMap<ProjectId, Arc<Project>>,
    revocations: Revocations,
    admin: Option<AdminDigest>,
    /// The admin key when a snapshot began, until it is read.
    admin_before: Option<AdminDigest>,
}

/// A row of the table, as it is stored.
#[derive(Clone, Debug)]
pub enum Row {
    /// A project.
    Project(ProjectId, Arc<Project>),
    /// The digest of the admin key.
    Admin(AdminDigest),
    /// A revocation.
    Revocation(Revocation),
}

impl Row {
    /// The change that restores the row.
    pub fn restored(self) -> Change {
        match self {
            Self::Project(project, is) => Change::Restore { project, is: Project::clone(&is) },
            Self::Admin(digest) => Change::SetAdmin(digest),
            Self::Revocation(revocation) => Change::Revoke(revocation),
        }
    }
}

impl Table {
    /// The project with this id.
    pub fn get(&self, id: &ProjectId) -> Option<&Arc<Project>> {
        self.projects.get(id)
    }

    /// All projects, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (&ProjectId, &Arc<Project>)> {
        self.projects.iter()
    }

    /// Digest of the admin key, if one is set.
    pub fn admin(&self) -> Option<AdminDigest> {
        self.admin
    }

    /// Number of revocations of a project.
    pub fn revocations(&self, project: &ProjectId) -> usize {
        self.revocations.count(project)
    }

    /// What was revoked of a token.
    pub(crate) fn revoked(&self, project: &ProjectId, holder: &Holder) -> Revoked {
        self.revocations.of(project, holder)
    }

    /// All revocations.
    pub(crate) fn all_revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// A table of the same projects, to be changed apart from this one.
    pub(crate) fn copied(&self) -> Self {
        let revocations = self.revocations.copied();
        let mut copy = Self { admin: self.admin, revocations, ..Self::default() };
        for (id, project) in self.iter() {
            copy.projects.insert(id.clone(), project.clone());
        }
        copy
    }

    fn active(&self, id: &ProjectId) -> Result<&Project, Declined> {
        match self.get(id) {
            None => Err(Declined::NoSuchProject),
            Some(project) if project.state == ProjectState::Removing => Err(Declined::Removing),
            Some(project) => Ok(project),
        }
    }

    /// The project, if it is not being removed. The default project may not be stored yet; then the result is
    /// `Ok(None)`.
    fn active_or_default(&self, id: &ProjectId) -> Result<Option<&Project>, Declined> {
        match self.active(id) {
            Err(Declined::NoSuchProject) if *id == ProjectId::default_project() => Ok(None),
            found => found.map(Some),
        }
    }

    fn edit(&mut self, id: ProjectId) -> &mut Project {
        Arc::make_mut(self.projects.or_insert_with(id, Arc::default))
    }
}

impl Snapshots for Table {
    type Row = Row;

    fn begin_snapshot(&mut self) {
        self.admin_before = self.admin;
        self.projects.begin_snapshot();
        self.revocations.rows.begin_snapshot();
    }

    fn next_rows(&mut self, most: usize) -> Option<Vec<Row>> {
        if let Some(digest) = self.admin_before.take() {
            return Some(vec![Row::Admin(digest)]);
        }
        if let Some(rows) = self.projects.next_rows(most) {
            return Some(rows.into_iter().map(|(id, project)| Row::Project(id, project)).collect());
        }
        let rows = self.revocations.rows.next_rows(most)?;
        let row = |(key, at): (revocation::Key, _)| Row::Revocation(Revocation::of_row(key, at));
        Some(rows.into_iter().map(row).collect())
    }

    fn end_snapshot(&mut self) {
        self.admin_before = None;
        self.projects.end_snapshot();
        self.revocations.rows.end_snapshot();
    }

    fn restore(row: Row, change: &mut dyn FnMut(Change)) {
        change(row.restored());
    }
}

impl log::StateMachine for Table {
    type Change = Change;

    fn validate(&self, change: &Change) -> Result<(), Declined> {
        match change {
            Change::Create { project, .. } => match self.active(project) {
                Ok(_) => Err(Declined::Exists),
                Err(Declined::NoSuchProject) if self.projects.len() >= limits::PROJECTS => {
                    Err(Declined::TooManyProjects)
                }
                Err(Declined::NoSuchProject) => Ok(()),
                Err(declined) => Err(declined),
            },
            Change::AddKey { project, key } => match self.active_or_default(project)? {
                Some(known) if known.key(key.kid()).is_some() => Err(Declined::SameKey),
                Some(known) if known.keys.len() >= limits::KEYS_PER_PROJECT => Err(Declined::TooManyKeys),
                _ => Ok(()),
            },
            Change::RemoveKey { project, kid, last } => match self.active(project)? {
                known if known.key(kid).is_none() => Err(Declined::NoSuchKey),
                known if known.keys.len() == 1 && *last == LastKey::Stays => Err(Declined::LastKey),
                _ => Ok(()),
            },
            Change::Configure { project, .. } => match self.active(project) {
                Ok(_) | Err(Declined::NoSuchProject) => Ok(()),
                Err(declined) => Err(declined),
            },
            Change::Remove { project } => self.active(project).map(drop),
            Change::Forget { project } => match self.active(project) {
                Err(Declined::Removing) => Ok(()),
                Ok(_) => Err(Declined::Exists),
                Err(declined) => Err(declined),
            },
            Change::SetAdmin(_) => Ok(()),
            // A project of the configuration is not stored.
            Change::Revoke(revocation) => match self.active(&revocation.project) {
                Ok(_) | Err(Declined::NoSuchProject) => self.revocations.validate(revocation),
                Err(declined) => Err(declined),
            },
            Change::Restore { project, .. } => match self.get(project) {
                Some(_) => Err(Declined::Exists),
                None => Ok(()),
            },
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Create { project, key } | Change::AddKey { project, key } => {
                self.edit(project).keys.insert(0, key);
            }
            Change::RemoveKey { project, kid, .. } => {
                self.edit(project).keys.retain(|key| *key.kid() != kid);
            }
            Change::Configure { project, config } => self.edit(project).config = config,
            Change::Remove { project } => {
                self.revocations.clear(&project);
                *self.edit(project) = Project { state: ProjectState::Removing, ..Project::default() };
            }
            Change::Forget { project } => {
                self.projects.remove(&project);
            }
            Change::SetAdmin(digest) => self.admin = Some(digest),
            Change::Revoke(revocation) => self.revocations.apply(revocation),
            Change::Restore { project, is } => {
                self.projects.insert(project, Arc::new(is));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_engine::log::StateMachine;

    fn id(text: &str) -> ProjectId {
        ProjectId::parse(text).expect("a valid id")
    }

    fn key(text: &str) -> Key {
        Key::parse(&format!("a-key-of-length-{text}")).expect("long enough")
    }

    fn make(table: &mut Table, change: Change) -> Result<(), Declined> {
        table.validate(&change)?;
        table.apply(change);
        Ok(())
    }

    #[test]
    fn the_newest_key_is_first_and_the_last_one_stays() {
        let mut table = Table::default();
        let project = id("app");
        let create = |name: &str| Change::Create { project: id("app"), key: key(name) };
        let add = |name: &str| Change::AddKey { project: id("app"), key: key(name) };
        let remove = |name: &str| Change::RemoveKey {
            project: id("app"),
            kid: key(name).kid().clone(),
            last: LastKey::Stays,
        };
        assert_eq!(make(&mut table, add("a")), Err(Declined::NoSuchProject));
        assert_eq!(make(&mut table, create("a")), Ok(()));
        assert_eq!(make(&mut table, create("b")), Err(Declined::Exists));
        assert_eq!(make(&mut table, remove("a")), Err(Declined::LastKey));
        assert_eq!(make(&mut table, add("a")), Err(Declined::SameKey));
        assert_eq!(make(&mut table, add("b")), Ok(()));
        let kids: Vec<_> =
            table.get(&project).expect("there").keys.iter().map(|key| key.kid().clone()).collect();
        assert_eq!(kids, [key("b").kid().clone(), key("a").kid().clone()]);
        assert_eq!(make(&mut table, remove("c")), Err(Declined::NoSuchKey));
        assert_eq!(make(&mut table, remove("a")), Ok(()));
        for number in 1..limits::KEYS_PER_PROJECT {
            assert_eq!(make(&mut table, add(&format!("number-{number}"))), Ok(()));
        }
        assert_eq!(make(&mut table, add("one-more")), Err(Declined::TooManyKeys));
        let keys = table.get(&project).expect("there").keys.clone();
        for key in keys {
            let change =
                Change::RemoveKey { project: id("app"), kid: key.kid().clone(), last: LastKey::MayGo };
            assert_eq!(make(&mut table, change), Ok(()));
        }
        assert!(table.get(&project).expect("still there").keys.is_empty());
    }

    #[test]
    fn the_default_project_gets_its_first_key_by_rotation() {
        let mut table = Table::default();
        let project = ProjectId::default_project();
        assert_eq!(make(&mut table, Change::AddKey { project: project.clone(), key: key("a") }), Ok(()));
        assert_eq!(table.get(&project).expect("there").keys.len(), 1);
    }

    #[test]
    fn the_id_of_a_removed_project_is_free_when_nothing_is_left() {
        let mut table = Table::default();
        let create = || Change::Create { project: id("app"), key: key("a") };
        assert_eq!(make(&mut table, create()), Ok(()));
        assert_eq!(make(&mut table, Change::Forget { project: id("app") }), Err(Declined::Exists));
        assert_eq!(make(&mut table, Change::Remove { project: id("app") }), Ok(()));
        assert!(table.get(&id("app")).expect("still there").keys.is_empty());
        for refused in [
            create(),
            Change::AddKey { project: id("app"), key: key("b") },
            Change::Configure { project: id("app"), config: Config::default() },
            Change::Remove { project: id("app") },
        ] {
            assert_eq!(make(&mut table, refused), Err(Declined::Removing));
        }
        assert_eq!(make(&mut table, Change::Forget { project: id("app") }), Ok(()));
        assert_eq!(make(&mut table, create()), Ok(()));
    }

    #[test]
    fn an_origin_is_what_browsers_send() {
        for good in ["*", "https://example.com", "http://localhost:3000", "https://[::1]:8080", "app://x"] {
            assert!(is_origin(good), "{good}");
        }
        for bad in [
            "",
            "example.com",
            "https://",
            "https://example.com/",
            "https://*.example.com",
            "https://A.com",
            "null",
        ] {
            assert!(!is_origin(bad), "{bad}");
        }
        let config = Config { hook_sources: vec!["nothing".into()], ..Config::default() };
        assert_eq!(config.check(), Err(InvalidConfig::HookSource("nothing".into())));
    }
}
