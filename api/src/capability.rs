//! What each capability contributes to the HTTP interface. Adding a capability takes one entry in [`CAPABILITIES`];
//! nothing else in this file names one.

use axum::extract::Request;
use axum::response::Response;
use futures_util::future::BoxFuture;
use utoipa::openapi::OpenApi;

use crate::routes::Routes;
use crate::{
    Api, entities, hooks, operations, projects, revocations, rooms, sessions, streams, subscriptions, topics,
};

/// All capabilities, plus administration and operations. Their fast paths are tried in this order.
pub const CAPABILITIES: &[Capability] = &[
    streams::CAPABILITY,
    subscriptions::CAPABILITY,
    sessions::CAPABILITY,
    rooms::CAPABILITY,
    hooks::CAPABILITY,
    topics::CAPABILITY,
    entities::CAPABILITY,
    projects::CAPABILITY,
    revocations::CAPABILITY,
    operations::CAPABILITY,
];

/// What one capability contributes to the HTTP interface. [`Capability::new`] creates one that has only routes and
/// their description.
pub struct Capability {
    /// Adds the routes of the capability.
    pub routes: fn(Routes) -> Routes,
    /// Returns the OpenAPI description of the routes.
    pub description: fn() -> OpenApi,
    /// Returns whether a successful response to a `GET` of this path and query stays open (SSE, WebSocket).
    pub stays_open: fn(path: &str, query: &str) -> bool,
    /// Answers a request without the router, if the capability has a fast path for it. Takes the request with
    /// [`fast_path::serve`](crate::fast_path::serve), or leaves it unchanged and returns `None`. Not used while
    /// requests are traced with spans.
    pub fast_path: FastRoute,
    /// Paths that name no project; their project is taken from the token. `None` for every other path.
    pub project_of_token: fn(path: &str) -> Option<Preflight>,
    /// Answers a request to a path that does not exist, or with a method that the path does not support, if the path is
    /// one of the capability and its errors have a format of their own.
    pub unserved: fn(path: &str, why: Unserved) -> Option<Response>,
}

/// Which origins a CORS preflight of a path without a project is judged by. A preflight is sent without the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preflight {
    /// Those of all projects. The actual request is then checked against the project of its token.
    AnyProject,
    /// Those of the default project.
    DefaultProject,
}

/// Why a request has no handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// The path does not exist.
    Path,
    /// The path does not support the method.
    Method,
}

/// Function type of [`Capability::fast_path`].
pub type FastRoute = fn(&Api, &mut Request) -> Option<BoxFuture<'static, Response>>;

impl Capability {
    /// Creates a capability without fast paths or live responses.
    pub const fn new(routes: fn(Routes) -> Routes, description: fn() -> OpenApi) -> Self {
        Self {
            routes,
            description,
            stays_open: |_, _| false,
            fast_path: |_, _| None,
            project_of_token: |_| None,
            unserved: |_, _| None,
        }
    }
}

/// Returns the routes of all capabilities.
pub fn routes() -> Routes {
    CAPABILITIES.iter().fold(Routes::new(), |routes, capability| (capability.routes)(routes))
}

/// Returns whether a successful response to a `GET` of this path and query stays open (SSE, WebSocket).
pub fn stays_open(path_and_query: &str) -> bool {
    let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
    CAPABILITIES.iter().any(|capability| (capability.stays_open)(path, query))
}

/// Answers a request on the fast path of the first capability that has one for it. Otherwise leaves the request
/// unchanged and returns `None`.
pub fn fast_path(api: &Api, request: &mut Request) -> Option<BoxFuture<'static, Response>> {
    CAPABILITIES.iter().find_map(|capability| (capability.fast_path)(api, request))
}

/// Returns how to judge a preflight of a path that names no project, so that the project is taken from the token. `None`
/// for every other path.
pub fn project_of_token(path: &str) -> Option<Preflight> {
    CAPABILITIES.iter().find_map(|capability| (capability.project_of_token)(path))
}

/// Answers a request that has no handler, if the errors of the path have a format of their own.
pub fn unserved(path: &str, why: Unserved) -> Option<Response> {
    CAPABILITIES.iter().find_map(|capability| (capability.unserved)(path, why))
}
