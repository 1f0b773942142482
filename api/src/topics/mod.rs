//! Topics over WebSocket and HTTP: `GET /v1/{project}/topics`, and `/v1/{project}/topics/{topic}` for publishers without
//! a connection. `tidings_topics` decides; this module only translates.
//!
//! Read `connect` (the handshake), `connection` (frames in, answers out), then `envelope` and `request` (what clients
//! say), `operation` (what becomes of it), `encode` and `error` (what clients are told), `waiting` (requests that cannot
//! be answered at once), and `http`. `hubs` has the topics of each project, `policy` asks the grants of tokens.
//!
//! Invariants: a payload is passed on as it was sent, and encoded once for all subscribers. The answer to a request comes
//! before the first message that it causes. An idle connection has no task, queue or buffer of its own.
//! Not here: which topics there are and who hears what (`tidings_topics`), framing (`websocket`).

mod connect;
mod connection;
mod encode;
mod envelope;
mod error;
mod http;
mod hubs;
mod metrics;
mod operation;
mod options;
mod policy;
mod rate;
mod request;
mod speaker;
mod waiting;

use axum::routing::get;
use tidings_model::ProjectId;
use utoipa::OpenApi;

use crate::capability::Capability;
use crate::routes::Routes;

pub use hubs::{Cluster, TopicHubs};
pub use options::TopicOptions;
pub use policy::Normalize;

/// What topics bring to the interface.
pub const CAPABILITY: Capability =
    Capability { stays_open, fast_path: http::fast_path, ..Capability::new(routes, Description::openapi) };

/// What is described of topics.
#[derive(OpenApi)]
#[openapi(paths(connect::connect, http::publish, http::count))]
struct Description;

fn routes(routes: Routes) -> Routes {
    let of_topic = || get(http::count).post(http::publish);
    routes
        .route("/v1/{project}/topics", get(connect::connect))
        .route(http::TOPIC, of_topic())
        .near(http::NO_TOPIC, of_topic())
}

/// Whether the answer to a `GET` of this path stays.
fn stays_open(path: &str, _query: &str) -> bool {
    let project = path.strip_prefix("/v1/").and_then(|rest| rest.strip_suffix("/topics"));
    project.is_some_and(is_project)
}

/// Whether a segment of a path can name a project. Others belong to other routes.
fn is_project(segment: &str) -> bool {
    ProjectId::parse(segment).is_ok_and(|project| !project.is_reserved())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_path_of_the_socket_stays() {
        assert!(stays_open("/v1/app/topics", "") && stays_open("/v1/app/topics", "token=x"));
        for path in [
            "/v1/stream/topics",
            "/v1/app/topics/",
            "/v1/app/topics/a",
            "/v1/a/b/topics",
            "/topics",
            "/v1/topics",
        ] {
            assert!(!stays_open(path, ""), "{path}");
        }
    }
}
