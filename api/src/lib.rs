//! HTTP: the only crate that knows status codes and what clients see.
//!
//! A handler translates, a capability decides. Read [`router`], then a capability's files ([`streams`], [`listing`]), then
//! [`credential`] (who asks) and [`projects`] (administration), [`wire`] (headers, offsets and bodies to values and back),
//! [`live`] (answers that stay), [`sse`] and [`error`] (which error is which status). [`websocket`] is RFC 6455 without a
//! socket, for whoever has one.
//!
//! Not here: rules of streams (`capabilities`), sockets and signals (`server`).

mod answer;
mod credential;
mod drain;
mod error;
mod listing;
pub mod live;
mod messages;
mod path;
mod projects;
mod sse;
mod streams;
pub mod websocket;
mod wire;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use tidings_auth::Gate;
use tidings_engine::Chance;
use tidings_streams::Streams;

pub use drain::{Drain, Drained};
pub use error::ApiError;
pub use live::{Lives, Stage};

/// What the handlers stand on.
#[derive(Clone)]
pub struct Api {
    /// The streams.
    pub streams: Streams,
    /// Who may use them.
    pub gate: Gate,
    /// Spreads what would otherwise come all at once.
    pub chance: Arc<Chance>,
    /// Tells waiting readers that the server is about to stop.
    pub drained: Drained,
    /// Where answers that stay live.
    pub stage: Stage,
}

/// All routes.
pub fn router(api: Api) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/v1/projects", projects::all())
        .route("/v1/projects/{project}", projects::one())
        .route("/v1/projects/{project}/keys", projects::keys())
        .route("/v1/projects/{project}/keys/{kid}", projects::key())
        .route("/v1/projects/{project}/tokens", projects::tokens())
        .route("/v1/config/{project}", projects::config())
        .route("/v1/stream/{*id}", streams::methods())
        .route("/v1/{project}/stream/{*id}", streams::methods())
        .route("/v1/{project}/streams", get(listing::list))
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(axum::middleware::from_fn_with_state(api.gate.clone(), answer::finish))
        // Around all others, also those of whoever adds more: what it takes away must not be seen.
        .layer(axum::middleware::from_fn(credential::take))
        .with_state(api)
}

/// The process serves. Needs no credentials.
async fn health() -> axum::Json<serde_json::Value> {
    axum::Json(serde_json::json!({ "status": "ok" }))
}
