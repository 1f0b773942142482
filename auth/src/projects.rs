//! [`Projects`]: the handle that changes projects in the store and reads them from memory.

use std::sync::{Arc, RwLockReadGuard};

use tidings_engine::log::{Commit, CommitError, Observer, StoreError};
use tidings_model::{ProjectId, Timestamp, limits};
use tokio::sync::{broadcast, watch};

use crate::gate::Denied;
use crate::key::{API_KEY_PREFIX, digest, split_api_key};
use crate::principal::{Grants, Principal, Scope};
use crate::registry::{Known, Registry};
use crate::revocation::digests::{BucketSet, Digests};
use crate::revocation::{self, Holder, Revocation, Revoked, RowPage};
use crate::table::{Change, Config, Declined, InvalidConfig, LastKey, Project, ProjectState, Store, Table};
use crate::token::Unverified;
use crate::{AdminDigest, AdminKey, ApiKey, Claims, Key, Kid, Randomness};

/// Handle to the projects of a server. Clones share the same state.
#[derive(Clone)]
pub struct Projects {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    randomness: Arc<dyn Randomness>,
    registry: Arc<Registry>,
    /// Tells the revocations that were made here to the exchange with other nodes, if there is one.
    revoked_here: broadcast::Sender<Revocation>,
}

/// Projects and keys from the configuration, in addition to those stored. Several servers may share one configuration.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Projects with their keys, newest key first.
    pub projects: Vec<(ProjectId, Vec<Key>)>,
    /// Further API keys. A project that one names exists.
    pub api_keys: Vec<ApiKey>,
    /// Digest of an additional admin key.
    pub admin: Option<AdminDigest>,
}

/// Error of an operation on a project.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    /// The id is reserved because it would shadow a path.
    #[error(
        "ids that begin with `_` and the ids stream, streams, config and projects are kept for the server"
    )]
    Reserved,
    /// The project or key comes from the configuration and cannot be changed here.
    #[error("the project or its keys are given by the configuration; change them there")]
    Given,
    /// The default project cannot be removed.
    #[error("the default project cannot be removed")]
    Default,
    /// The project has no key to sign with.
    #[error("the project has no key yet; rotate its key to give it one")]
    NoKey,
    /// The project configuration is invalid.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// The table refused the change.
    #[error(transparent)]
    Declined(#[from] Declined),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<CommitError<Declined>> for ProjectError {
    fn from(error: CommitError<Declined>) -> Self {
        match error {
            CommitError::Declined(declined) => Self::Declined(declined),
            CommitError::Store(error) => Self::Store(error),
            CommitError::Refused(refusal) => Self::Store(StoreError::Unavailable(refusal.to_string())),
        }
    }
}

/// A newly created key. Its secret is shown only once.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// Project of the key.
    pub project: ProjectId,
    /// The key.
    pub key: Key,
}

impl NewKey {
    /// The API key derived from the key.
    pub fn api_key(&self) -> String {
        self.key.api_key(&self.project)
    }
}

/// Entry of the list of projects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Id of the project.
    pub project: ProjectId,
    /// Ids of its keys, newest first.
    pub kids: Vec<Kid>,
}

/// What a credential is based on. The credential is valid as long as this exists.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum KeyRef {
    Key(Kid),
    /// An API key of the configuration, which stays as long as the process runs.
    GivenApiKey,
    Admin(AdminDigest),
}

/// A credential that was verified.
pub(crate) struct Verified {
    pub(crate) principal: Principal,
    pub(crate) key_ref: KeyRef,
    pub(crate) expires_at: Option<Timestamp>,
    /// What revocations are compared with; `None` if the credential is not a token.
    pub(crate) holder: Option<Holder>,
}

impl Projects {
    /// Opens the projects of a store, together with those of the configuration.
    pub fn open(store: Arc<dyn Store>, randomness: Arc<dyn Randomness>, given: Given) -> Self {
        let registry = Arc::new(Registry::new(given));
        let observer: Arc<dyn Observer<Table>> = registry.clone();
        store.observe(&observer);
        let revoked_here = broadcast::Sender::new(limits::REVOCATIONS_UNSENT);
        Self { inner: Arc::new(Inner { store, randomness, registry, revoked_here }) }
    }

    fn given_keys(&self, id: &ProjectId) -> impl Iterator<Item = &Key> {
        self.inner.registry.given_keys(id)
    }

    /// Whether the configuration gives the project's signing keys.
    fn gives_keys(&self, id: &ProjectId) -> bool {
        self.inner.registry.gives_keys(id)
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.inner.registry.known()
    }

    /// Creates a project with the given key, or with a generated one.
    pub async fn create(&self, project: &ProjectId, key: Option<Key>) -> Result<NewKey, ProjectError> {
        if project.is_reserved() {
            return Err(ProjectError::Reserved);
        }
        if self.gives_keys(project) {
            return Err(Declined::Exists.into());
        }
        let key = key.unwrap_or_else(|| Key::draw(&*self.inner.randomness));
        self.change(Change::Create { project: project.clone(), key: key.clone() }).await?;
        Ok(NewKey { project: project.clone(), key })
    }

    /// All active projects, stored or configured, ordered by id.
    pub fn list(&self) -> Vec<Listed> {
        let known = self.known();
        let active = known.projects.iter().filter(|(_, project)| project.state == ProjectState::Active);
        let listed = |(id, project): (&ProjectId, &Arc<Project>)| Listed {
            project: id.clone(),
            kids: project.keys.iter().map(|key| key.kid().clone()).collect(),
        };
        let mut all: Vec<_> = active.map(listed).collect();
        all.sort_by(|a, b| a.project.cmp(&b.project));
        all
    }

    /// Adds a key as the newest key of a project, generated unless one is given. Older keys stay valid until they are
    /// removed.
    pub async fn rotate_key(&self, project: &ProjectId, key: Option<Key>) -> Result<NewKey, ProjectError> {
        if self.gives_keys(project) {
            return Err(ProjectError::Given);
        }
        let key = key.unwrap_or_else(|| Key::draw(&*self.inner.randomness));
        match self.change(Change::AddKey { project: project.clone(), key: key.clone() }).await {
            // The project exists because the configuration has API keys of it, but nothing of it is stored.
            Err(ProjectError::Declined(Declined::NoSuchProject)) if self.inner.registry.names(project) => {
                self.create(project, Some(key)).await
            }
            done => done.map(|()| NewKey { project: project.clone(), key }),
        }
    }

    /// Removes a key. Everything signed with it becomes invalid.
    pub async fn remove_key(&self, project: &ProjectId, kid: &Kid) -> Result<(), ProjectError> {
        if self.given_keys(project).any(|key| key.kid() == kid) {
            return Err(ProjectError::Given);
        }
        // A leaked key must be removable even when the configuration has since given the project other keys.
        let last = if self.gives_keys(project) { LastKey::MayGo } else { LastKey::Stays };
        let change = Change::RemoveKey { project: project.clone(), kid: kid.clone(), last };
        match self.change(change).await {
            // The project exists in the configuration, but nothing of it is stored.
            Err(ProjectError::Declined(Declined::NoSuchProject)) if self.inner.registry.names(project) => {
                Err(Declined::NoSuchKey.into())
            }
            done => done,
        }
    }

    /// Removes a project. It cannot be used from now on; its data is removed in the background.
    pub async fn remove(&self, project: &ProjectId) -> Result<(), ProjectError> {
        if *project == ProjectId::default_project() {
            return Err(ProjectError::Default);
        }
        if self.inner.registry.names(project) {
            return Err(ProjectError::Given);
        }
        self.change(Change::Remove { project: project.clone() }).await
    }

    /// Removed projects whose data may not be completely deleted yet.
    pub fn removing(&self) -> Vec<ProjectId> {
        let known = self.known();
        let removing = known.projects.iter().filter(|(_, project)| project.state == ProjectState::Removing);
        removing.map(|(id, _)| id.clone()).collect()
    }

    /// Resolves when a project was removed since the last call resolved.
    pub async fn some_removed(&self) {
        self.inner.registry.removed.notified().await;
    }

    /// Frees the id of a removed project whose data is completely deleted.
    pub async fn forget(&self, project: &ProjectId) -> Result<(), ProjectError> {
        self.change(Change::Forget { project: project.clone() }).await
    }

    /// Returns the configuration of a project, or `None` when it does not exist.
    pub fn config(&self, project: &ProjectId) -> Option<Config> {
        match self.get(project) {
            Some(known) => Some(known.config.clone()),
            None if self.exists(project) => Some(Config::default()),
            None => None,
        }
    }

    /// Whether the configuration of any project satisfies the predicate.
    pub fn any_config(&self, is_so: impl Fn(&Config) -> bool) -> bool {
        self.known().projects.values().any(|project| is_so(&project.config))
    }

    /// Whether hooks of the project hear events of the source. Cheap: asked for each append.
    pub fn hooks_hear(&self, project: &ProjectId, source: &str) -> bool {
        self.known().hears(project, source)
    }

    /// Sets the configuration of a project. The caller must have checked that the project exists.
    pub async fn configure(&self, project: &ProjectId, config: Config) -> Result<(), ProjectError> {
        config.check()?;
        self.change(Change::Configure { project: project.clone(), config }).await
    }

    /// Revokes tokens of a project, or topics of them. The caller must have checked that the project exists.
    pub async fn revoke(&self, revocation: Revocation) -> Result<(), ProjectError> {
        self.change(Change::Revoke(revocation.clone())).await?;
        // An error means that nobody exchanges revocations with other nodes.
        let _ = self.inner.revoked_here.send(revocation);
        Ok(())
    }

    /// Commits a revocation that was made on another node.
    pub(crate) async fn take_over(&self, revocation: Revocation) -> Result<(), ProjectError> {
        self.change(Change::Revoke(revocation)).await
    }

    /// Hears the revocations that are made here from now on.
    pub(crate) fn revoked_here(&self) -> broadcast::Receiver<Revocation> {
        self.inner.revoked_here.subscribe()
    }

    /// Resolves when a project was created since the last call resolved.
    pub(crate) async fn some_created(&self) {
        self.inner.registry.created.notified().await;
    }

    /// Digests of all revocations.
    pub(crate) fn revocation_digests(&self) -> Digests {
        self.known().revocations().digests().clone()
    }

    /// The moment up to which something is revoked.
    pub(crate) fn revoked_up_to(&self, key: &revocation::Key) -> Option<Timestamp> {
        self.known().revocations().moment(key)
    }

    /// The revocations of some buckets, from a key on. Looks at so many at most.
    pub(crate) fn revocations_of(
        &self,
        buckets: &BucketSet,
        from: Option<&revocation::Key>,
        most: usize,
    ) -> RowPage {
        self.known().revocations().page(from, buckets, most)
    }

    /// What was revoked of a token.
    pub(crate) fn revoked(&self, project: &ProjectId, holder: &Holder) -> Revoked {
        self.known().revoked(project, holder)
    }

    /// Replaces the stored admin key by the given key, or by a generated one.
    pub async fn set_admin_key(&self, key: Option<AdminKey>) -> Result<AdminKey, ProjectError> {
        let key = key.unwrap_or_else(|| AdminKey::draw(&*self.inner.randomness));
        self.change(Change::SetAdmin(key.digest())).await?;
        Ok(key)
    }

    /// Whether there is no key at all, so that no request can ever be authenticated.
    pub fn has_no_keys(&self) -> bool {
        let known = self.known();
        let keyless = known.projects.values().all(|project| project.keys.is_empty());
        let given = self.inner.registry.given();
        keyless && known.admin().is_none() && given.admin.is_none() && given.api_keys.is_empty()
    }

    /// Whether the project exists.
    pub fn exists(&self, project: &ProjectId) -> bool {
        self.get(project).is_some() || *project == ProjectId::default_project()
    }

    /// Signs a token with these claims, using the newest key of their project.
    pub fn sign(&self, claims: &Claims) -> Result<String, ProjectError> {
        if !self.exists(&claims.project) {
            return Err(Declined::NoSuchProject.into());
        }
        let known = self.get(&claims.project).ok_or(ProjectError::NoKey)?;
        Ok(claims.sign(known.keys.first().ok_or(ProjectError::NoKey)?))
    }

    pub(crate) fn get(&self, project: &ProjectId) -> Option<Arc<Project>> {
        let known = self.known();
        known.projects.get(project).filter(|project| project.state == ProjectState::Active).cloned()
    }

    /// Number of changes of projects applied so far.
    pub fn generation(&self) -> u64 {
        *self.inner.registry.generation().borrow()
    }

    /// Subscribes to changes of [`generation`](Self::generation).
    pub fn generations(&self) -> watch::Receiver<u64> {
        self.inner.registry.generation().subscribe()
    }

    /// Verifies a credential for a project.
    pub(crate) fn verify(
        &self,
        project: &ProjectId,
        credential: &str,
        now: Timestamp,
    ) -> Result<Verified, Denied> {
        if credential.starts_with(API_KEY_PREFIX) {
            self.verify_api_key(project, credential)
        } else if credential.contains('.') {
            self.verify_token(project, credential, now)
        } else {
            let key_ref = self.verify_admin_key(credential).ok_or(Denied::Unknown)?;
            let principal = Principal::admin_of(project.clone());
            Ok(Verified { principal, key_ref, expires_at: None, holder: None })
        }
    }

    fn verify_token(&self, project: &ProjectId, text: &str, now: Timestamp) -> Result<Verified, Denied> {
        let token = Unverified::parse(text)?;
        let claims = &token.claims;
        let signer = self.signer(project, &token);
        if signer.is_none() && self.signer(&claims.project, &token).is_none() {
            return Err(Denied::Unknown);
        }
        if now >= claims.expires_at {
            return Err(Denied::Expired);
        }
        if claims.not_before.is_some_and(|at| now < at) {
            return Err(Denied::TooEarly);
        }
        // A valid token of another project is reported as such, not as an invalid token.
        let kid = signer.filter(|_| claims.project == *project).ok_or(Denied::WrongProject)?;
        let principal = claims.principal();
        let id = claims.id.as_deref().map(Into::into);
        let holder = Holder { user: principal.user.clone(), id, issued_at: claims.issued_at };
        if self.revoked(project, &holder) == Revoked::Everything {
            return Err(Denied::Revoked);
        }
        let (key_ref, expires_at) = (KeyRef::Key(kid), Some(claims.expires_at));
        Ok(Verified { principal, key_ref, expires_at, holder: Some(holder) })
    }

    fn signer(&self, project: &ProjectId, token: &Unverified) -> Option<Kid> {
        token.signer(&self.get(project)?.keys).map(|key| key.kid().clone())
    }

    fn verify_api_key(&self, project: &ProjectId, text: &str) -> Result<Verified, Denied> {
        let (named, token) = split_api_key(text).ok_or(Denied::Unknown)?;
        let known = self.get(&named).ok_or(Denied::Unknown)?;
        let key_ref = match known.keys.iter().find(|key| key.has_api_token(token)) {
            Some(key) => KeyRef::Key(key.kid().clone()),
            None if self.gives_api_key(&named, text) => KeyRef::GivenApiKey,
            None => return Err(Denied::Unknown),
        };
        if named != *project {
            return Err(Denied::WrongProject);
        }
        let principal =
            Principal { project: named, user: None, scope: Scope::Write, grants: Grants::Publishing };
        Ok(Verified { principal, key_ref, expires_at: None, holder: None })
    }

    /// Whether the configuration has this API key.
    fn gives_api_key(&self, project: &ProjectId, text: &str) -> bool {
        let digest = digest(text);
        self.inner.registry.given_api_keys(project).any(|key| key.has_digest(&digest))
    }

    pub(crate) fn verify_admin_key(&self, text: &str) -> Option<KeyRef> {
        let stored = self.known().admin();
        let digests = [stored, self.inner.registry.given().admin];
        digests.into_iter().flatten().find(|digest| digest.is_of(text)).map(KeyRef::Admin)
    }

    /// Whether the text is a valid credential of the project it names.
    pub(crate) fn knows(&self, text: &str, now: Timestamp) -> bool {
        Self::named_by(text).is_some_and(|project| self.verify(&project, text, now).is_ok())
    }

    /// The project that a credential names. The credential is not verified.
    pub(crate) fn named_by(text: &str) -> Option<ProjectId> {
        match split_api_key(text) {
            Some((project, _)) => Some(project),
            None => Unverified::parse(text).ok().map(|token| token.claims.project),
        }
    }

    /// Whether the key that a credential is based on still exists.
    pub(crate) fn has_key(&self, project: &ProjectId, key_ref: &KeyRef) -> bool {
        match key_ref {
            KeyRef::Key(kid) => self.get(project).is_some_and(|known| known.key(kid).is_some()),
            KeyRef::GivenApiKey => self.get(project).is_some(),
            KeyRef::Admin(digest) => {
                let stored = self.known().admin();
                stored == Some(*digest) || self.inner.registry.given().admin == Some(*digest)
            }
        }
    }

    /// Commits a change. The registry in memory is updated when the store applies it.
    async fn change(&self, change: Change) -> Result<(), ProjectError> {
        self.inner.store.commit(Commit::new().changing(change)).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
