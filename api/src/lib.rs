//! HTTP: the only crate that knows status codes and what clients see.
//!
//! A handler translates, a capability decides. Read [`capability`] (what each brings), then a capability's files ([`streams`], [`listing`],
//! [`sessions`] with [`envelope`], [`rooms`]), then
//! [`credential`] (who asks) and [`projects`] (administration), [`wire`] (headers, offsets and bodies to values and back),
//! [`live`] (answers that stay), [`sse`], [`encoded`] (what sessions share of it) and [`error`] (which error is which status). [`websocket`] is RFC 6455 without a
//! socket, for whoever has one. Around every route are [`observe`] (ids, logs, numbers), [`answer`] (what browsers need),
//! [`request_limiter`] (limits), [`budget`] (memory of bodies) and [`upload`] (what is left of a body when the answer is no).
//! [`dev_mode`] is what `--dev` refuses browsers.
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
mod envelope;
mod error;
mod fast_path;
mod listing;
pub mod live;
mod messages;
mod observe;
mod operations;
mod path;
mod projects;
mod request_limiter;
mod rooms;
mod routes;
mod sessions;
mod sse;
mod streams;
mod upload;
pub mod websocket;
mod wire;

use std::sync::Arc;

use axum::Router;
use tidings_auth::Gate;
use tidings_engine::Rng;
use tidings_engine::duty::Stopped;
use tidings_model::ProjectId;
use tidings_rooms::Rooms;
use tidings_sessions::Sessions;
use tidings_streams::Streams;
use tokio::sync::watch;

pub use budget::BodyBudget;
pub use document::text as openapi;
pub use drain::{Drain, Drained};
pub use envelope::Envelopes;
pub use error::ApiError;
pub use fast_path::{Answering, FastPath};
pub use live::{LiveConnections, LiveContext};
pub use observe::{Observe, Spans};
pub use operations::MetricsAccess;
pub use request_limiter::{RequestLimiter, RequestLimits, transfer_encoding_unknown};
pub use streams::Scheme;
pub use wire::head::response_head;

use routes::Routes;
use wire::body::Intake;

/// What the handlers stand on. Every request takes some clones of it, so they cost next to nothing.
#[derive(Clone)]
pub struct Api(Arc<Parts>);

impl Api {
    /// Of these parts.
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }
}

impl Api {
    /// What takes in the bodies of a project's requests, or of those that belong to none.
    fn intake<'a>(&'a self, project: Option<&'a ProjectId>) -> Intake<'a> {
        Intake { clock: &*self.live.clock, budget: &self.body_budget, project }
    }
}

impl std::ops::Deref for Api {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// What the handlers stand on, part by part.
#[derive(Clone)]
pub struct Parts {
    /// The streams.
    pub streams: Streams,
    /// The sessions that stand on them.
    pub sessions: Sessions,
    /// The rooms.
    pub rooms: Rooms,
    /// Who may use them.
    pub gate: Gate,
    /// Spreads what would otherwise come all at once.
    pub rng: Arc<Rng>,
    /// Tells waiting readers that the server is about to stop.
    pub drained: Drained,
    /// Where answers that stay live.
    pub live: LiveContext,
    /// Lets requests in that are within their limits.
    pub request_limiter: Arc<RequestLimiter>,
    /// The memory for their bodies.
    pub body_budget: Arc<BodyBudget>,
    /// Counts and logs them.
    pub observe: Arc<Observe>,
    /// Who may read the metrics here.
    pub metrics_access: MetricsAccess,
    /// The first of the server's own duties that has stopped, once one has: the server is about to end.
    pub stopped_duty: watch::Receiver<Option<Stopped>>,
}

/// All routes.
pub fn router(api: Api) -> Router {
    capability::routes().into_router(api)
}

/// The templates of all routes.
pub fn templates() -> Vec<&'static str> {
    capability::routes().templates()
}

/// What operators ask, on a listener of its own: metrics without credentials.
pub fn operators_router(api: Api) -> Router {
    operations::routes(Routes::new())
        .into_router(Api::new(Parts { metrics_access: MetricsAccess::Open, ..Parts::clone(&api) }))
}
