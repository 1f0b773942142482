//! Passes: the authorization of a request, which can be checked again while the request lasts.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tidings_engine::Clock;
use tidings_model::{Pattern, ProjectId, StreamId, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::entities::{self, WantedEntities};
use crate::gate::{Allowed, Authorize, Credential, Denied, Route, is_public};
use crate::principal::{Grants, Principal, Reach, Scope};
use crate::projects::{KeyRef, Projects, Verified};
use crate::revocation::{Holder, Revocation, Revoked};
use crate::topics::{RefusalKind, RefusalReason, TopicGrants, TopicRefusal, Use, Wanted};

/// Interval at which the application is asked again about requests that are still in progress.
const ASK_AGAIN: Duration = Duration::from_secs(4);

/// Age up to which a decision of the application is reused without asking again.
const FRESH: Duration = Duration::from_secs(1);

/// Authorization of a request. It can be revoked while the request lasts. Clones share the same state.
#[derive(Clone)]
pub struct Pass {
    principal: Option<Arc<Principal>>,
    basis: Basis,
}

/// What a pass is based on.
#[derive(Clone)]
pub(crate) enum Basis {
    /// No condition: every request is admitted.
    Open,
    /// A credential or a public stream.
    Granted(Arc<Granted>),
    /// A decision of the application.
    Asked(Arc<Asked>),
}

pub(crate) struct Granted {
    projects: Projects,
    project: ProjectId,
    reason: Reason,
    expires_at: Option<Timestamp>,
    /// What revocations are compared with, if it is a token.
    holder: Option<Holder>,
    checked: Mutex<Checked>,
}

/// What was found when a pass was last checked.
struct Checked {
    /// Generation of the projects at that time.
    generation: u64,
    /// Generation at which something else was found than before.
    changed: u64,
    /// Whether the reason was still there. Once it is not, that is not looked for again.
    valid: bool,
    revoked: Revoked,
}

/// Why a pass is no longer valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lapse {
    /// The time of the token, or of the permission, is over.
    Expired,
    /// The token was revoked, its key was removed, or the permission was withdrawn.
    Revoked,
}

enum Reason {
    Key(KeyRef),
    Public(StreamId),
}

impl Pass {
    pub(crate) fn new(principal: Option<Principal>, basis: Basis) -> Self {
        Self { principal: principal.map(Arc::new), basis }
    }

    /// The authenticated principal, or `None` for anonymous access to a public stream.
    pub fn principal(&self) -> Option<&Principal> {
        self.principal.as_deref()
    }

    /// Kinds of streams the pass covers. Without a principal these are plain streams, because a public stream is never
    /// a session.
    pub fn reach(&self) -> Reach {
        self.principal().map_or(Reach::PlainStreams, Principal::reach)
    }

    /// Time at which the pass ends; `None` if it does not by itself.
    pub fn expires_at(&self) -> Option<Timestamp> {
        match &self.basis {
            Basis::Open => None,
            Basis::Granted(granted) => granted.expires_at,
            Basis::Asked(asked) => asked.expires_at,
        }
    }

    /// A number that changes whenever what the pass allows has changed. As cheap as [`Pass::holds`].
    pub fn generation(&self) -> u64 {
        match &self.basis {
            Basis::Granted(granted) => granted.check().changed,
            Basis::Open | Basis::Asked(_) => 0,
        }
    }

    /// Whether the pass is still valid. Cheap unless projects have changed since the last call: it compares two
    /// numbers. A pass that is invalid never becomes valid again.
    pub fn holds(&self, now: Timestamp) -> bool {
        match &self.basis {
            Basis::Open => true,
            Basis::Granted(granted) => granted.holds(now),
            Basis::Asked(asked) => asked.holds(now),
        }
    }

    /// Checks that a topic, or all topics of a pattern, may be subscribed to. Topics are given as they are after
    /// normalisation. For passes that were granted for [`Action::UseTopics`](crate::Action::UseTopics).
    pub fn may_subscribe_topic(&self, wanted: Wanted<'_>) -> Result<(), TopicRefusal> {
        self.may_use_topic(Use::Subscribe, wanted)
    }

    /// Checks that a topic may be published to. The topic is given as it is after normalisation. For passes that were
    /// granted for [`Action::UseTopics`](crate::Action::UseTopics).
    pub fn may_publish_topic(&self, topic: &str) -> Result<(), TopicRefusal> {
        self.may_use_topic(Use::Publish, Wanted::Topic(topic))
    }

    fn may_use_topic(&self, usage: Use, wanted: Wanted<'_>) -> Result<(), TopicRefusal> {
        let forbidden = |reason| TopicRefusal { kind: RefusalKind::Forbidden, reason };
        let Some(principal) = self.principal() else {
            return Err(TopicRefusal { kind: RefusalKind::Unauthorized, reason: RefusalReason::Grant });
        };
        principal.may_use_topic(usage, wanted).map_err(forbidden)?;
        match &self.basis {
            Basis::Asked(asked) if !asked.allows_topic(usage, wanted) => Err(forbidden(RefusalReason::Grant)),
            Basis::Granted(granted) if granted.check().has_revoked(wanted) => {
                Err(forbidden(RefusalReason::Revoked))
            }
            Basis::Open | Basis::Granted(_) | Basis::Asked(_) => Ok(()),
        }
    }

    /// Whether these entities may be watched. For passes that were granted for
    /// [`Action::WatchEntities`](crate::Action::WatchEntities).
    pub fn may_watch_entities(&self, wanted: WantedEntities<'_>) -> bool {
        self.principal().is_some_and(|principal| principal.may_watch_entities(wanted))
            && self.asked_allows(wanted)
    }

    /// Whether changes of an entity may be published. For passes that were granted for
    /// [`Action::ChangeEntities`](crate::Action::ChangeEntities).
    pub fn may_change_entity(&self, code: &str, id: &str) -> bool {
        self.principal().is_some_and(|principal| principal.may_change_entity(code, id))
            && self.asked_allows(WantedEntities::One { code, id })
    }

    fn asked_allows(&self, wanted: WantedEntities<'_>) -> bool {
        match &self.basis {
            Basis::Asked(asked) => entities::allow(asked.entities.as_deref(), wanted),
            Basis::Open | Basis::Granted(_) => true,
        }
    }

    /// Why the pass is no longer valid; `None` if it still is.
    pub fn lapse(&self, now: Timestamp) -> Option<Lapse> {
        match self.expires_at().is_some_and(|at| now >= at) {
            true => Some(Lapse::Expired),
            false => (!self.holds(now)).then_some(Lapse::Revoked),
        }
    }

    /// Whether the pass is of a token that a revocation touches.
    pub fn is_touched_by(&self, revocation: &Revocation) -> bool {
        match &self.basis {
            Basis::Granted(granted) => granted.is_touched_by(revocation),
            Basis::Open | Basis::Asked(_) => false,
        }
    }

    /// Resolves when the pass is no longer valid.
    pub async fn ended(&self, clock: &dyn Clock) {
        match &self.basis {
            Basis::Open => std::future::pending().await,
            Basis::Granted(granted) => granted.ended(clock).await,
            Basis::Asked(asked) => asked.ended(clock).await,
        }
    }

    /// Checks the pass again after an operation that may have taken long, such as receiving a body.
    pub async fn again(&self, now: Timestamp) -> Result<(), Denied> {
        match &self.basis {
            Basis::Asked(asked) => asked.again(now).await,
            Basis::Open | Basis::Granted(_) => match self.lapse(now) {
                None => Ok(()),
                Some(Lapse::Expired) => Err(Denied::Expired),
                Some(Lapse::Revoked) => Err(Denied::Revoked),
            },
        }
    }
}

impl Basis {
    /// The basis of a credential that was verified at a generation of the projects, or later.
    pub(crate) fn granted(projects: &Projects, verified: Verified, seen: u64) -> (Principal, Self) {
        let Verified { principal, key_ref, expires_at, holder } = verified;
        let projects = projects.clone();
        let revoked = holder
            .as_ref()
            .map_or_else(Revoked::nothing, |holder| projects.revoked(&principal.project, holder));
        let granted = Granted {
            project: principal.project.clone(),
            reason: Reason::Key(key_ref),
            expires_at,
            holder,
            checked: Mutex::new(Checked::first(seen, revoked)),
            projects,
        };
        (principal, Self::Granted(Arc::new(granted)))
    }

    pub(crate) fn public(projects: &Projects, project: &ProjectId, stream: &StreamId, seen: u64) -> Self {
        Self::Granted(Arc::new(Granted {
            projects: projects.clone(),
            project: project.clone(),
            reason: Reason::Public(stream.clone()),
            expires_at: None,
            holder: None,
            checked: Mutex::new(Checked::first(seen, Revoked::nothing())),
        }))
    }
}

impl Checked {
    fn first(seen: u64, revoked: Revoked) -> Self {
        Self { generation: seen, changed: seen, valid: revoked != Revoked::Everything, revoked }
    }

    fn has_revoked(&self, wanted: Wanted<'_>) -> bool {
        !self.valid || self.revoked.has(wanted)
    }
}

impl Granted {
    fn holds(&self, now: Timestamp) -> bool {
        if self.expires_at.is_some_and(|at| now >= at) {
            return false;
        }
        self.check().valid
    }

    /// What is so of the pass. Looks only if projects have changed since the last look.
    fn check(&self) -> MutexGuard<'_, Checked> {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        // Read before the project, so that a concurrent change is noticed at the next look.
        let generation = self.projects.generation();
        if checked.generation == generation || !checked.valid {
            return checked;
        }
        checked.generation = generation;
        checked.valid = match &self.reason {
            Reason::Key(key_ref) => self.projects.has_key(&self.project, key_ref),
            Reason::Public(stream) => is_public(&self.projects, &self.project, stream),
        };
        if let Some(holder) = &self.holder {
            let revoked = self.projects.revoked(&self.project, holder);
            checked.valid &= revoked != Revoked::Everything;
            if revoked != checked.revoked {
                checked.revoked = revoked;
                checked.changed = generation;
            }
        }
        if !checked.valid {
            checked.changed = generation;
        }
        checked
    }

    fn is_touched_by(&self, revocation: &Revocation) -> bool {
        let touched = |holder: &Holder| holder.is_touched_by(revocation);
        self.project == revocation.project && self.holder.as_ref().is_some_and(touched)
    }

    async fn ended(&self, clock: &dyn Clock) {
        let mut generations = self.projects.generations();
        loop {
            generations.mark_unchanged();
            if !self.holds(clock.now()) {
                return;
            }
            let expiry = async {
                match self.expires_at {
                    Some(at) => clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The sender lives as long as `projects`, so this cannot fail.
                _ = generations.changed() => {}
                () = expiry => {}
            }
        }
    }
}

/// Decision of the application. It is refreshed in the background from its first use on.
pub(crate) struct Asked {
    request: Arc<AuthorizeRequest>,
    at: Timestamp,
    expires_at: Option<Timestamp>,
    /// Topics that may be used; `None` for all.
    topics: Option<TopicGrants>,
    /// Entities that may be watched or changed; `None` for all.
    entities: Option<Vec<Pattern>>,
    valid: watch::Sender<bool>,
    runtime: Handle,
    asking: OnceLock<Asking>,
}

struct AuthorizeRequest {
    authorize: Arc<dyn Authorize>,
    route: Route,
    credential: Option<Credential>,
    clock: Arc<dyn Clock>,
}

/// Background task that refreshes a decision. Dropping it, together with the pass, aborts the task.
struct Asking(JoinHandle<()>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl AuthorizeRequest {
    async fn ask(&self) -> Result<Allowed, Denied> {
        self.authorize.authorize(&self.route, self.credential.as_ref()).await
    }

    async fn keep_asking(&self, valid: watch::Sender<bool>) {
        loop {
            self.clock.sleep(ASK_AGAIN).await;
            if self.ask().await.is_err() {
                valid.send_replace(false);
                return;
            }
        }
    }
}

impl Asked {
    pub(crate) async fn ask(
        authorize: Arc<dyn Authorize>,
        route: Route,
        credential: Option<Credential>,
        clock: Arc<dyn Clock>,
    ) -> Result<(Option<Principal>, Arc<Self>), Denied> {
        let at = clock.now();
        let request = Arc::new(AuthorizeRequest { authorize, route, credential, clock });
        let Allowed { user, expires_at, topics, entities } = request.ask().await?;
        let project = request.route.project.clone();
        // The application decides on each action separately, so the principal has every scope.
        let principal =
            Principal { project, user: user.map(Into::into), scope: Scope::Manage, grants: Grants::Project };
        let asked = Self {
            request,
            at,
            expires_at,
            topics,
            entities,
            valid: watch::Sender::new(true),
            runtime: Handle::current(),
            asking: OnceLock::new(),
        };
        Ok((Some(principal), Arc::new(asked)))
    }

    fn allows_topic(&self, usage: Use, wanted: Wanted<'_>) -> bool {
        self.topics.as_ref().is_none_or(|topics| topics.allow(usage, wanted))
    }

    fn keep_fresh(&self) {
        self.asking.get_or_init(|| {
            let (request, valid) = (self.request.clone(), self.valid.clone());
            Asking(self.runtime.spawn(async move { request.keep_asking(valid).await }))
        });
    }

    fn holds(&self, now: Timestamp) -> bool {
        self.keep_fresh();
        *self.valid.borrow() && self.expires_at.is_none_or(|at| now < at)
    }

    async fn ended(&self, clock: &dyn Clock) {
        self.keep_fresh();
        let mut valid = self.valid.subscribe();
        let expiry = async {
            match self.expires_at {
                Some(at) => clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = valid.wait_for(|valid| !valid) => {}
            () = expiry => {}
        }
    }

    async fn again(&self, now: Timestamp) -> Result<(), Denied> {
        if self.expires_at.is_some_and(|at| now >= at) {
            return Err(Denied::Expired);
        }
        if now.since(self.at) < FRESH {
            return Ok(());
        }
        self.request.ask().await.map(drop)
    }
}
