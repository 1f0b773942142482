//! HTTP: the only crate that knows status codes and what clients see.
//!
//! A handler translates, a capability decides. Read [`router`], then a capability's file ([`streams`]), then [`credential`]
//! (who asks) and [`projects`] (administration), [`wire`] (headers, offsets and bodies to values and back), [`sse`] and [`error`] (which error is which status).
//!
//! Not here: rules of streams (`capabilities`), sockets and signals (`server`).

mod answer;
mod credential;
mod drain;
mod error;
mod path;
mod projects;
mod sse;
mod streams;
mod wire;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use tidings_auth::Gate;
use tidings_engine::Chance;
use tidings_streams::Streams;

pub use drain::{Drain, Drained};
pub use error::ApiError;

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
