//! Routes for operators and orchestrators: liveness, readiness, metrics.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use tidings_engine::log::StoreError;
use tidings_entities::SourceState;
use utoipa::OpenApi;

use crate::Api;
use crate::capability::Capability;
use crate::credential::Caller;
use crate::document::{self, AnyRefusals, CallerRefusals, ErrorAnswer, StatusAnswer};
use crate::error::ApiError;
use crate::routes::Routes;

/// Operations, and the description of the interface.
pub const CAPABILITY: Capability = Capability::new(
    |all| routes(all).route("/openapi.json", get(document::describe_interface)),
    Description::openapi,
);

/// What is described of operations.
#[derive(OpenApi)]
#[openapi(paths(health, ready, metrics, document::describe_interface))]
struct Description;

/// The routes that are there on a listener for operators, too.
pub fn routes(routes: Routes) -> Routes {
    routes.route("/health", get(health)).route("/ready", get(ready)).route("/metrics", get(metrics))
}

/// Who may read the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsAccess {
    /// Everybody: the metrics have a listener of their own, or the server is in dev mode.
    Open,
    /// Only callers with the admin key.
    AdminKey,
}

/// Liveness. Needs no credentials.
#[utoipa::path(
    get,
    path = "/health",
    tag = "operations",
    security(()),
    responses((status = 200, description = "The process is up and serving requests.", body = StatusAnswer), AnyRefusals)
)]
pub async fn health() -> axum::Json<Value> {
    axum::Json(json!({ "status": "ok" }))
}

/// Readiness: whether the server accepts writes. Needs no credentials.
#[utoipa::path(
    get,
    path = "/ready",
    tag = "operations",
    security(()),
    responses(
        (status = 200, description = "The server accepts reads and writes.", body = StatusAnswer),
        (status = 503, description = "The server does not accept writes. `draining`: it is shutting down; `duty_stopped`: a background task has ended; `no_space`: the store is out of disk space; `store_stopped`: the store has failed.", body = ErrorAnswer),
        AnyRefusals,
    )
)]
pub async fn ready(State(api): State<Api>) -> Result<axum::Json<Value>, ApiError> {
    let not = |code, message: &str| Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message));
    if api.drained.is_draining() {
        return not("draining", "the server is about to stop");
    }
    if let Some(stopped) = &*api.stopped_duty.borrow() {
        // Why is for the log.
        return not(
            "duty_stopped",
            &format!("the duty `{}` has stopped; the server is about to end", stopped.duty),
        );
    }
    match api.streams.accepting() {
        Ok(()) => Ok(axum::Json(status(&api))),
        Err(StoreError::NoSpace) => not("no_space", "the store is out of space"),
        // The reason may name files; the log has it.
        Err(StoreError::Unavailable(_) | StoreError::TooLarge { .. }) => {
            not("store_stopped", "the store has stopped")
        }
    }
}

/// What a server that is ready says. Databases that are away do not keep it from serving everything else.
fn status(api: &Api) -> Value {
    let states = api.entities.states();
    let mut status = json!({ "status": "ready" });
    let away = states.iter().filter(|state| state.failing.is_some()).count();
    if away > 0 {
        status["unavailableSources"] = away.into();
    }
    let misconfigured = |state: &SourceState| {
        let what = state.failing.as_ref()?.misconfigured.as_ref()?;
        Some(format!("{}: {what}", state.project))
    };
    let misconfigured: Vec<String> = states.iter().filter_map(misconfigured).collect();
    if !misconfigured.is_empty() {
        status["misconfiguredSources"] = misconfigured.into();
    }
    status
}

/// All metrics in the Prometheus text format. Needs the admin key, except in dev mode.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "operations",
    responses(
        (status = 200, description = "All metrics of the server.", body = String, content_type = "text/plain"),
        CallerRefusals,
    )
)]
pub async fn metrics(State(api): State<Api>, caller: Caller) -> Result<Response, ApiError> {
    if api.metrics_access == MetricsAccess::AdminKey {
        caller.may_administer()?;
    }
    let content_type = (header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
    Ok(([content_type], api.observe.metrics().text()).into_response())
}
