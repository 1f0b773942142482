//! Where a request is validated: may this credential do that?

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tidings_engine::Clock;
use tidings_model::{ProjectId, StreamId, Timestamp};

use crate::pass::{Asked, Hold, Pass};
use crate::principal::Principal;
use crate::token::InvalidToken;
use crate::{Action, Projects, Resource};

/// What a request wants, as its method and path say.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Do what,
    pub action: Action,
    /// in which project,
    pub project: ProjectId,
    /// to what.
    pub resource: Resource,
}

/// What a request shows of who it is. Its text is never printed by accident.
#[derive(Clone)]
pub struct Credential(Arc<str>);

impl Credential {
    /// Takes what was sent.
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

/// Why somebody may not. The words are fit for whoever asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Nothing says who it is.
    #[error("this needs a token; send it as `Authorization: Bearer`, or as `token` in the query")]
    Missing,
    /// Something was sent that cannot be a credential.
    #[error("the Authorization header must be one `Bearer` and a token")]
    Malformed,
    /// Nobody here has such a credential, or there is no such project.
    #[error("the credential is not one of this project")]
    Unknown,
    /// It is no token.
    #[error(transparent)]
    Token(#[from] InvalidToken),
    /// Its time is over.
    #[error("the token has expired")]
    Expired,
    /// Its time has not come.
    #[error("the token does not count yet")]
    TooEarly,
    /// It was let in, and then its key was removed, or its token expired.
    #[error("the credential does not count any more")]
    Revoked,
    /// It is good, but in another project.
    #[error("the credential belongs to another project")]
    WrongProject,
    /// It is good, but not for this.
    #[error("the credential does not allow this")]
    Forbidden,
    /// An application that decides by itself does not know who this is.
    #[error("{0}")]
    Unauthenticated(String),
    /// An application that decides by itself says no.
    #[error("{0}")]
    Refused(String),
}

/// Decides instead of the built-in rules, for applications that embed the server.
pub trait Authorize: Send + Sync + 'static {
    /// Whether the credential may do that. Asked for each request, and again every few seconds while one lasts.
    fn authorize<'a>(
        &'a self,
        route: &'a Route,
        credential: Option<&'a Credential>,
    ) -> BoxFuture<'a, Result<Allowed, Denied>>;
}

/// What an [`Authorize`] says of whom it lets in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Which user of the application it is.
    pub user: Option<String>,
    /// Until when that counts, if it ends by itself.
    pub expires_at: Option<Timestamp>,
}

/// The user that acts where everybody is let in and nothing is shown.
pub const DEV_USER: &str = "dev";

/// Who is let in.
#[derive(Clone)]
pub enum Admission {
    /// Whoever has a credential of a project.
    Credentials,
    /// Everybody, in any project; but a credential that is shown must be good.
    Everybody,
    /// Whom the application lets in.
    Custom(Arc<dyn Authorize>),
}

/// The gate of a server. Clones are the same gate.
#[derive(Clone)]
pub struct Gate {
    projects: Projects,
    admission: Admission,
    clock: Arc<dyn Clock>,
}

impl Gate {
    /// A gate to the projects.
    pub fn new(projects: Projects, admission: Admission, clock: Arc<dyn Clock>) -> Self {
        Self { projects, admission, clock }
    }

    /// The projects behind it.
    pub fn projects(&self) -> &Projects {
        &self.projects
    }

    /// The clock by which tokens expire.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Whether everybody is let in.
    pub fn is_open(&self) -> bool {
        matches!(self.admission, Admission::Everybody)
    }

    /// The project that a credential says it is for. Nothing is verified: whoever validates it there does that.
    pub fn project_named_by(&self, credential: &Credential) -> Option<ProjectId> {
        Projects::named_by(credential.reveal())
    }

    /// Validates a request. The pass tells later whether it still counts.
    pub async fn enter(&self, route: Route, credential: Option<&Credential>) -> Result<Pass, Denied> {
        match &self.admission {
            Admission::Custom(authorize) => {
                let asked = Asked::ask(authorize.clone(), route, credential.cloned(), self.clock.clone());
                asked.await.map(|(principal, asked)| Pass::new(principal, Hold::Asked(asked)))
            }
            Admission::Credentials | Admission::Everybody => self.validate(&route, credential),
        }
    }

    fn validate(&self, route: &Route, credential: Option<&Credential>) -> Result<Pass, Denied> {
        // Before anything is looked at: a change in between is noticed later.
        let seen = self.projects.generation();
        let Route { action, project, resource } = route;
        let Some(credential) = credential else {
            if self.is_open() {
                let user = Some(DEV_USER.into());
                return Ok(Pass::new(
                    Some(Principal { user, ..Principal::admin_of(project.clone()) }),
                    Hold::Open,
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
        let hold = Hold::granted(&self.projects, project, verified.ground, verified.expires_at, seen);
        Ok(Pass::new(Some(verified.principal), hold))
    }

    /// A pass for whoever wants to read what everybody may.
    fn public(&self, route: &Route, seen: u64) -> Option<Pass> {
        let (Action::Read, Resource::Stream(stream)) = (route.action, &route.resource) else { return None };
        let open = is_public(&self.projects, &route.project, stream);
        open.then(|| Pass::new(None, Hold::public(&self.projects, &route.project, stream, seen)))
    }

    /// Validates a request that administers the server.
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
