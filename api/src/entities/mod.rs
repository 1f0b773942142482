//! Entities over WebSocket and HTTP: `GET /v1/{project}/sync`, `POST /v1/{project}/changes`, and statistics.
//! `tidings_entities` decides; this module only translates.
//!
//! Read `connect` (the handshake), `connection` (admission, messages in, answers out) and `lane` (one request at a time), then
//! `message` (what clients say), `requests` (what becomes of it), `encode` and `error` (what clients are told), `telling`
//! (what they are told without being asked), `closing`, and `http` with `changes`. `sockets` has what all connections share.
//!
//! Invariants: whoever has not shown a good token hears nothing. A reply to a request precedes the changes that belong to it.
//! Not here: who watches what, and what has changed (`tidings_entities`), framing (`websocket`).

mod changes;
mod closing;
mod connect;
mod connection;
mod encode;
mod error;
mod http;
mod lane;
mod message;
mod options;
mod requests;
mod sockets;
mod telling;

use axum::routing::{get, post};
use tidings_model::ProjectId;
use utoipa::OpenApi;

use crate::capability::Capability;
use crate::routes::Routes;

pub use options::EntityOptions;
pub use sockets::EntitySockets;

/// What entities bring to the interface.
pub const CAPABILITY: Capability = Capability { stays_open, ..Capability::new(routes, Description::openapi) };

/// What is described of entities.
#[derive(OpenApi)]
#[openapi(paths(connect::connect, http::publish, http::stats, http::user_stats))]
struct Description;

fn routes(routes: Routes) -> Routes {
    routes
        .route("/v1/{project}/sync", get(connect::connect))
        .route("/v1/{project}/changes", post(http::publish))
        .route("/v1/{project}/entities/stats", get(http::stats))
        .route("/v1/{project}/entities/stats/{user}", get(http::user_stats))
}

/// Whether the answer to a `GET` of this path stays.
fn stays_open(path: &str, _query: &str) -> bool {
    let project = path.strip_prefix("/v1/").and_then(|rest| rest.strip_suffix("/sync"));
    project.is_some_and(|project| ProjectId::parse(project).is_ok_and(|project| !project.is_reserved()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_path_of_the_socket_stays() {
        assert!(stays_open("/v1/app/sync", "") && stays_open("/v1/app/sync", "token=x"));
        for path in
            ["/v1/stream/sync", "/v1/app/sync/", "/v1/app/sync/a", "/v1/a/b/sync", "/sync", "/v1/sync"]
        {
            assert!(!stays_open(path, ""), "{path}");
        }
    }
}
