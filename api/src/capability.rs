//! What each capability brings to the interface. A new capability is one entry of [`CAPABILITIES`]; nothing else here names it.

use axum::extract::Request;
use axum::response::Response;
use futures_util::future::BoxFuture;
use utoipa::openapi::OpenApi;

use crate::routes::Routes;
use crate::{Api, operations, projects, rooms, sessions, streams};

/// All capabilities, with administration and operations. Fast paths are asked in this order.
pub const CAPABILITIES: &[Capability] = &[
    streams::CAPABILITY,
    sessions::CAPABILITY,
    rooms::CAPABILITY,
    projects::CAPABILITY,
    operations::CAPABILITY,
];

/// What one capability brings to the interface. Made from [`Capability::new`], which has its routes, described, and nothing more.
pub struct Capability {
    /// Adds its routes.
    pub routes: fn(Routes) -> Routes,
    /// Describes its routes for programs.
    pub description: fn() -> OpenApi,
    /// Whether the answer to a `GET` of this path and query stays open, if it is not refused.
    pub stays_open: fn(path: &str, query: &str) -> bool,
    /// Answers a request without the router, if there is a shorter way: takes the request with
    /// [`fast_path::serve`](crate::fast_path::serve), or leaves it as it is. Asked only where requests have no spans.
    pub fast_path: FastRoute,
    /// How those of its paths begin that name no project: it is that of the token.
    pub token_project_prefix: Option<&'static str>,
}

/// See [`Capability::fast_path`].
pub type FastRoute = fn(&Api, &mut Request) -> Option<BoxFuture<'static, Response>>;

impl Capability {
    /// A capability of which every request goes through the router and is answered at once.
    pub const fn new(routes: fn(Routes) -> Routes, description: fn() -> OpenApi) -> Self {
        Self {
            routes,
            description,
            stays_open: |_, _| false,
            fast_path: |_, _| None,
            token_project_prefix: None,
        }
    }
}

/// The routes of all capabilities.
pub fn routes() -> Routes {
    CAPABILITIES.iter().fold(Routes::new(), |routes, capability| (capability.routes)(routes))
}

/// Whether the answer to a `GET` of this path and query stays open, if it is not refused.
pub fn stays_open(path_and_query: &str) -> bool {
    let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
    CAPABILITIES.iter().any(|capability| (capability.stays_open)(path, query))
}

/// The answer of whichever capability has a fast path for a request. Takes the request only then.
pub fn fast_path(api: &Api, request: &mut Request) -> Option<BoxFuture<'static, Response>> {
    CAPABILITIES.iter().find_map(|capability| (capability.fast_path)(api, request))
}

/// Whether a path names no project because it is that of the token.
pub fn has_project_of_token(path: &str) -> bool {
    let mut prefixes = CAPABILITIES.iter().filter_map(|capability| capability.token_project_prefix);
    prefixes.any(|prefix| path.starts_with(prefix))
}
