//! Passes: the authorization of a request, which can be checked again while the request lasts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tidings_engine::Clock;
use tidings_model::{ProjectId, StreamId, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::gate::{Allowed, Authorize, Credential, Denied, Route, is_public};
use crate::principal::{Grants, Principal, Reach, Scope};
use crate::projects::{Ground, Projects};

/// Interval at which the application is asked again about requests that are still in progress.
const ASK_AGAIN: Duration = Duration::from_secs(4);

/// Age up to which a decision of the application is reused without asking again.
const FRESH: Duration = Duration::from_secs(1);

/// Authorization of a request. It can be revoked while the request lasts. Clones share the same state.
#[derive(Clone)]
pub struct Pass {
    principal: Option<Arc<Principal>>,
    hold: Hold,
}

/// What a pass is based on.
#[derive(Clone)]
pub(crate) enum Hold {
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
    /// Generation of the projects at which the reason was last found valid.
    seen: AtomicU64,
}

enum Reason {
    Ground(Ground),
    Public(StreamId),
}

impl Pass {
    pub(crate) fn new(principal: Option<Principal>, hold: Hold) -> Self {
        Self { principal: principal.map(Arc::new), hold }
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

    /// Whether the pass is still valid. Cheap unless projects have changed since the last call: it compares two
    /// numbers. A pass that is invalid never becomes valid again.
    pub fn holds(&self, now: Timestamp) -> bool {
        match &self.hold {
            Hold::Open => true,
            Hold::Granted(granted) => granted.holds(now),
            Hold::Asked(asked) => asked.holds(now),
        }
    }

    /// Resolves when the pass is no longer valid.
    pub async fn ended(&self, clock: &dyn Clock) {
        match &self.hold {
            Hold::Open => std::future::pending().await,
            Hold::Granted(granted) => granted.ended(clock).await,
            Hold::Asked(asked) => asked.ended(clock).await,
        }
    }

    /// Checks the pass again after an operation that may have taken long, such as receiving a body.
    pub async fn again(&self, now: Timestamp) -> Result<(), Denied> {
        match &self.hold {
            Hold::Asked(asked) => asked.again(now).await,
            Hold::Open | Hold::Granted(_) if self.holds(now) => Ok(()),
            Hold::Open | Hold::Granted(_) => Err(Denied::Revoked),
        }
    }
}

impl Hold {
    pub(crate) fn granted(
        projects: &Projects,
        project: &ProjectId,
        ground: Ground,
        expires_at: Option<Timestamp>,
        seen: u64,
    ) -> Self {
        Self::of(projects, project, Reason::Ground(ground), expires_at, seen)
    }

    pub(crate) fn public(projects: &Projects, project: &ProjectId, stream: &StreamId, seen: u64) -> Self {
        Self::of(projects, project, Reason::Public(stream.clone()), None, seen)
    }

    fn of(
        projects: &Projects,
        project: &ProjectId,
        reason: Reason,
        expires_at: Option<Timestamp>,
        seen: u64,
    ) -> Self {
        Self::Granted(Arc::new(Granted {
            projects: projects.clone(),
            project: project.clone(),
            reason,
            expires_at,
            seen: AtomicU64::new(seen),
        }))
    }
}

/// Value of `seen` for a pass that was found invalid. It stays invalid whatever changes later.
const FALLEN: u64 = u64::MAX;

impl Granted {
    fn holds(&self, now: Timestamp) -> bool {
        if self.expires_at.is_some_and(|at| now >= at) {
            return false;
        }
        let generation = self.projects.generation();
        let seen = self.seen.load(Ordering::Relaxed);
        if seen == generation || seen == FALLEN {
            return seen == generation;
        }
        let stands = match &self.reason {
            Reason::Ground(ground) => self.projects.stands(&self.project, ground),
            Reason::Public(stream) => is_public(&self.projects, &self.project, stream),
        };
        self.seen.store(if stands { generation } else { FALLEN }, Ordering::Relaxed);
        stands
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
    question: Arc<Question>,
    at: Timestamp,
    expires_at: Option<Timestamp>,
    stands: watch::Sender<bool>,
    runtime: Handle,
    asking: OnceLock<Asking>,
}

struct Question {
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

impl Question {
    async fn ask(&self) -> Result<Allowed, Denied> {
        self.authorize.authorize(&self.route, self.credential.as_ref()).await
    }

    async fn ask_again_and_again(&self, stands: watch::Sender<bool>) {
        loop {
            self.clock.sleep(ASK_AGAIN).await;
            if self.ask().await.is_err() {
                stands.send_replace(false);
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
        let question = Arc::new(Question { authorize, route, credential, clock });
        let Allowed { user, expires_at } = question.ask().await?;
        let project = question.route.project.clone();
        // The application decides on each action separately, so the principal has every scope.
        let principal =
            Principal { project, user: user.map(Into::into), scope: Scope::Manage, grants: Grants::Project };
        let asked = Self {
            question,
            at,
            expires_at,
            stands: watch::Sender::new(true),
            runtime: Handle::current(),
            asking: OnceLock::new(),
        };
        Ok((Some(principal), Arc::new(asked)))
    }

    fn keep_fresh(&self) {
        self.asking.get_or_init(|| {
            let (question, stands) = (self.question.clone(), self.stands.clone());
            Asking(self.runtime.spawn(async move { question.ask_again_and_again(stands).await }))
        });
    }

    fn holds(&self, now: Timestamp) -> bool {
        self.keep_fresh();
        *self.stands.borrow() && self.expires_at.is_none_or(|at| now < at)
    }

    async fn ended(&self, clock: &dyn Clock) {
        self.keep_fresh();
        let mut stands = self.stands.subscribe();
        let expiry = async {
            match self.expires_at {
                Some(at) => clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = stands.wait_for(|stands| !stands) => {}
            () = expiry => {}
        }
    }

    async fn again(&self, now: Timestamp) -> Result<(), Denied> {
        if self.expires_at.is_some_and(|at| now >= at) {
            return Err(Denied::Revoked);
        }
        if now.since(self.at) < FRESH {
            return Ok(());
        }
        self.question.ask().await.map(drop)
    }
}
