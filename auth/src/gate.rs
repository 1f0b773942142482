//! The gate: checks whether the credential of a request allows its action.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tidings_engine::Clock;
use tidings_model::{Pattern, ProjectId, StreamId, Timestamp};

use crate::pass::{Asked, Basis, Pass};
use crate::principal::Principal;
use crate::token::InvalidToken;
use crate::topics::TopicGrants;
use crate::{Action, Projects, Resource};

/// What a request wants, according to its method and path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The action.
    pub action: Action,
    /// The project.
    pub project: ProjectId,
    /// The resource on which to act.
    pub resource: Resource,
}

/// The credential of a request. Its `Debug` output does not contain the text.
#[derive(Clone)]
pub struct Credential(Arc<str>);

impl Credential {
    /// Wraps the text that was sent.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The secret itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(..)")
    }
}

/// Why a request is denied. The message may be shown to the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The request has no credential.
    #[error("this needs a token; send it as `Authorization: Bearer`, or as `token` in the query")]
    Missing,
    /// The request has something that cannot be a credential.
    #[error("the Authorization header must be one `Bearer` and a token")]
    Malformed,
    /// The credential is unknown, or the project does not exist.
    #[error("the credential is not one of this project")]
    Unknown,
    /// The credential is not a valid token.
    #[error(transparent)]
    Token(#[from] InvalidToken),
    /// The token has expired, perhaps while the body of its request arrived.
    #[error("the token has expired")]
    Expired,
    /// The token is not valid yet.
    #[error("the token is not valid yet")]
    TooEarly,
    /// The token was revoked, or the credential was accepted and then its key was removed. A long-poll that ends with its
    /// credential says so, whatever the reason.
    #[error("the credential is no longer valid")]
    Revoked,
    /// The credential is valid in another project.
    #[error("the credential belongs to another project")]
    WrongProject,
    /// The credential is valid, but does not allow the action.
    #[error("the credential does not allow this")]
    Forbidden,
    /// The embedding application does not recognise the credential.
    #[error("{0}")]
    Unauthenticated(String),
    /// The embedding application denies the action.
    #[error("{0}")]
    Refused(String),
}

/// Replaces the built-in rules in applications that embed the server.
pub trait Authorize: Send + Sync + 'static {
    /// Decides whether the credential allows the action. Called for each request, and every few seconds while
    /// one stays open.
    fn authorize<'a>(
        &'a self,
        route: &'a Route,
        credential: Option<&'a Credential>,
    ) -> BoxFuture<'a, Result<Allowed, Denied>>;
}

/// The result of an [`Authorize`] that allows a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Id of the application's user.
    pub user: Option<String>,
    /// Time at which the permission expires; `None` if it does not.
    pub expires_at: Option<Timestamp>,
    /// Topics that may be used, for [`Action::UseTopics`]; `None` for all.
    pub topics: Option<TopicGrants>,
    /// Entities that may be watched or changed, as patterns of `code:id`, for [`Action::WatchEntities`] and
    /// [`Action::ChangeEntities`]; `None` for all.
    pub entities: Option<Vec<Pattern>>,
}

/// Id of the user when everybody is admitted and the request has no credential.
pub const DEV_USER: &str = "dev";

/// Who is admitted.
#[derive(Clone)]
pub enum Admission {
    /// Requests with a credential of the project.
    Credentials,
    /// Everybody, in any project. A credential that is sent must still be valid.
    Everybody,
    /// Requests that the embedding application allows.
    Custom(Arc<dyn Authorize>),
}

/// The gate of a server. Clones share the same projects.
#[derive(Clone)]
pub struct Gate {
    projects: Projects,
    admission: Admission,
    clock: Arc<dyn Clock>,
}

impl Gate {
    /// Creates a gate to the projects.
    pub fn new(projects: Projects, admission: Admission, clock: Arc<dyn Clock>) -> Self {
        Self { projects, admission, clock }
    }

    /// The projects behind the gate.
    pub fn projects(&self) -> &Projects {
        &self.projects
    }

    /// The clock by which tokens expire.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Whether everybody is admitted.
    pub fn is_open(&self) -> bool {
        matches!(self.admission, Admission::Everybody)
    }

    /// The project that a credential claims to be for. Nothing is verified; [`Gate::enter`] does that.
    pub fn project_named_by(&self, credential: &Credential) -> Option<ProjectId> {
        Projects::named_by(credential.reveal())
    }

    /// Checks a request. The pass tells later whether it is still valid.
    pub async fn enter(&self, route: Route, credential: Option<&Credential>) -> Result<Pass, Denied> {
        match &self.admission {
            Admission::Custom(authorize) => {
                let asked = Asked::ask(authorize.clone(), route, credential.cloned(), self.clock.clone());
                asked.await.map(|(principal, asked)| Pass::new(principal, Basis::Asked(asked)))
            }
            Admission::Credentials | Admission::Everybody => self.validate(&route, credential),
        }
    }

    fn validate(&self, route: &Route, credential: Option<&Credential>) -> Result<Pass, Denied> {
        // Read before the project, so that a concurrent change is noticed when the pass is asked.
        let seen = self.projects.generation();
        let Route { action, project, resource } = route;
        let Some(credential) = credential else {
            if self.is_open() {
                let user = Some(DEV_USER.into());
                return Ok(Pass::new(
                    Some(Principal { user, ..Principal::admin_of(project.clone()) }),
                    Basis::Open,
                ));
            }
            return self.public(route, seen).ok_or(Denied::Missing);
        };
        if !self.is_open() && !self.projects.exists(project) {
            return Err(Denied::Unknown);
        }
        let verified = self.projects.verify(project, credential.reveal(), self.clock.now())?;
        if !verified.principal.may(*action, resource) {
            return self.public(route, seen).ok_or(Denied::Forbidden);
        }
        let (principal, basis) = Basis::granted(&self.projects, verified, seen);
        Ok(Pass::new(Some(principal), basis))
    }

    /// A pass to read a public stream; `None` if the request is anything else.
    fn public(&self, route: &Route, seen: u64) -> Option<Pass> {
        let (Action::Read, Resource::Stream(stream)) = (route.action, &route.resource) else { return None };
        let open = is_public(&self.projects, &route.project, stream);
        open.then(|| Pass::new(None, Basis::public(&self.projects, &route.project, stream, seen)))
    }

    /// Checks a request to administer the server.
    pub fn administer(&self, credential: Option<&Credential>) -> Result<(), Denied> {
        match credential.map(Credential::reveal) {
            None if self.is_open() => Ok(()),
            None => Err(Denied::Missing),
            Some(text) if self.projects.verify_admin_key(text).is_some() => Ok(()),
            Some(text) if self.projects.knows(text, self.clock.now()) => Err(Denied::Forbidden),
            Some(_) => Err(Denied::Unknown),
        }
    }
}

pub(crate) fn is_public(projects: &Projects, project: &ProjectId, stream: &StreamId) -> bool {
    projects.get(project).is_some_and(|known| known.config.is_public(stream.as_str()))
}
