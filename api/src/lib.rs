//! The HTTP interface. This is the only crate that knows status codes and what clients see.
//!
//! A handler translates, a capability decides. Read [`capability`] (what each capability contributes) first, then the
//! files of a capability ([`streams`] and [`listing`], [`sessions`] with [`envelope`], [`subscriptions`], [`rooms`],
//! [`hooks`], [`topics`], [`entities`]), then
//! [`credential`] (who sent a request), [`projects`] (administration), [`revocations`], [`wire`] (conversion of headers, offsets and
//! bodies), [`live`] (live responses), [`sse`], [`encoded`] (cache of encoded records) and [`error`] (mapping of
//! errors to status codes). [`websocket`] implements RFC 6455 without I/O. Every route is surrounded by [`observe`]
//! (request ids, logs, metrics), [`answer`] (CORS and security headers), [`request_limiter`] (limits), [`budget`]
//! (memory for bodies) and [`upload`] (reading the rest of a body after a refusal). [`dev_mode`] protects `--dev`
//! from web pages.
//!
//! Not here: rules of streams (`capabilities`), sockets and signals (`server`).

mod answer;
mod budget;
mod capability;
mod credential;
mod dev_mode;
mod document;
mod drain;
mod encoded;
mod entities;
mod envelope;
mod error;
mod fast_path;
mod hooks;
mod listing;
pub mod live;
mod long_poll;
mod messages;
mod observe;
mod operations;
mod path;
mod projects;
mod request_limiter;
mod revocations;
mod rooms;
mod routes;
mod sessions;
mod sse;
mod streams;
mod subscriptions;
mod topics;
mod upload;
pub mod websocket;
mod wire;

use std::sync::Arc;

use axum::Router;
use tidings_auth::Gate;
use tidings_engine::Rng;
use tidings_engine::duty::Stopped;
use tidings_entities::Entities;
use tidings_hooks::Hooks;
use tidings_model::ProjectId;
use tidings_rooms::Rooms;
use tidings_sessions::Sessions;
use tidings_streams::Streams;
use tidings_subscriptions::Subscriptions;
use tokio::sync::watch;

pub use budget::BodyBudget;
pub use document::text as openapi;
pub use drain::{Drain, Drained};
pub use entities::{EntityOptions, EntitySockets};
pub use envelope::Envelopes;
pub use error::ApiError;
pub use fast_path::{Answering, FastPath};
pub use live::{LiveConnections, LiveContext};
pub use observe::{Observe, Spans};
pub use operations::MetricsAccess;
pub use request_limiter::{RequestLimiter, RequestLimits, transfer_encoding_unknown};
pub use streams::Scheme;
pub use topics::{Cluster, Normalize, TopicHubs, TopicOptions};
pub use wire::head::response_head;
pub use wire::offset::print as print_offset;

use routes::Routes;
use wire::body::BodyContext;

/// State shared by all handlers. Clones are cheap; each request makes several.
#[derive(Clone)]
pub struct Api(Arc<Parts>);

impl Api {
    /// Creates the state from its parts.
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }
}

impl Api {
    /// Returns what is needed to read request bodies of a project; `None` is for requests that belong to no project.
    fn context<'a>(&'a self, project: Option<&'a ProjectId>) -> BodyContext<'a> {
        BodyContext { clock: &*self.live.clock, budget: &self.body_budget, project }
    }
}

impl std::ops::Deref for Api {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// The parts of the state shared by all handlers.
#[derive(Clone)]
pub struct Parts {
    /// The streams.
    pub streams: Streams,
    /// The sessions, which build on the streams.
    pub sessions: Sessions,
    /// The rooms.
    pub rooms: Rooms,
    /// The hooks.
    pub hooks: Hooks,
    /// The subscriptions to streams.
    pub subscriptions: Subscriptions,
    /// The topics of all projects.
    pub topics: TopicHubs,
    /// The entities of all projects.
    pub entities: Entities,
    /// What sockets of entities share.
    pub entity_sockets: EntitySockets,
    /// Authentication and authorization.
    pub gate: Gate,
    /// Random number generator, for jitter.
    pub rng: Arc<Rng>,
    /// Tells waiting readers that the server is shutting down.
    pub drained: Drained,
    /// Clock and registry of live responses.
    pub live: LiveContext,
    /// Limits of request heads and request rates.
    pub request_limiter: Arc<RequestLimiter>,
    /// Memory budget of request bodies.
    pub body_budget: Arc<BodyBudget>,
    /// Metrics, logs and spans of requests.
    pub observe: Arc<Observe>,
    /// Who may read the metrics on this listener.
    pub metrics_access: MetricsAccess,
    /// The first of the server's duties that stopped unexpectedly; `None` until then. After that the server shuts
    /// down.
    pub stopped_duty: watch::Receiver<Option<Stopped>>,
}

/// Builds the router of all routes.
pub fn router(api: Api) -> Router {
    capability::routes().into_router(api)
}

/// Returns the templates of all routes.
pub fn templates() -> Vec<&'static str> {
    capability::routes().templates()
}

/// Builds the router for the operators' listener: metrics without credentials.
pub fn operators_router(api: Api) -> Router {
    operations::routes(Routes::new())
        .into_router(Api::new(Parts { metrics_access: MetricsAccess::Open, ..Parts::clone(&api) }))
}
