//! Rooms over HTTP: conversations that members write to and follow, over SSE or WebSocket.
//!
//! Read `admission` (who asks, and may it), `follow` (one request that stays) with `begin` (where it begins: a table of cases),
//! `protocol` (what is said beside events) and `encode` (events as they are written), then `write` (everything that
//! changes a room) and `error` (how rooms say no, which is not how the others do).
//!
//! Each route is there twice: under `/v1/{project}/rooms/{room}`, and by the names that clients of
//! `blue.catbird.mls` know, in the project of the token.

mod admission;
mod begin;
mod encode;
mod error;
mod follow;
mod pairs;
mod protocol;
mod write;

use axum::extract::Request;
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::future::BoxFuture;
use tidings_model::ProjectId;
use utoipa::OpenApi;

use crate::Api;
use crate::capability::{Capability, Preflight};
use crate::fast_path::{self, Admitted, FastHandler};
use crate::routes::Routes;

/// What rooms bring to the interface.
pub const CAPABILITY: Capability = Capability {
    stays_open,
    fast_path,
    project_of_token: |path| path.starts_with(PREFIX).then_some(Preflight::AnyProject),
    ..Capability::new(routes, Description::openapi)
};

/// What is described of rooms.
#[derive(OpenApi)]
#[openapi(paths(
    follow::follow,
    write::write_events,
    write::change_members,
    write::read_members,
    write::write_seen,
    write::read_seen,
    follow::subscribe,
    follow::subscribe_websocket,
    write::update_cursor
))]
struct Description;

/// Where events of a room are written and followed.
const EVENTS: &str = "/v1/{project}/rooms/{room}/events";

/// Paths of the protocol, which name no project: it is that of the token.
const PREFIX: &str = "/x/blue.catbird.mls.";

/// The path of a subscription as clients of the protocol know it; with `.ws` it is a WebSocket.
const SUBSCRIBE: &str = "/x/blue.catbird.mls.subscribeConvoEvents";

fn routes(routes: Routes) -> Routes {
    routes
        .route(EVENTS, get(follow::follow).post(write::write_events))
        .route("/v1/{project}/rooms/{room}/members", get(write::read_members).post(write::change_members))
        .route("/v1/{project}/rooms/{room}/seen", get(write::read_seen).post(write::write_seen))
        .route(SUBSCRIBE, get(follow::subscribe))
        .route("/x/blue.catbird.mls.subscribeConvoEvents.ws", get(follow::subscribe_websocket))
        .route("/x/blue.catbird.mls.updateCursor", post(write::update_cursor))
}

/// Whether the answer to a `GET` of this path stays.
fn stays_open(path: &str, _query: &str) -> bool {
    if let Some(rest) = path.strip_prefix(SUBSCRIBE) {
        return rest.is_empty() || rest == ".ws";
    }
    events_of(path).is_some()
}

/// The project and the room that a path of [`EVENTS`] names, as they stand there.
fn events_of(path: &str) -> Option<(&str, &str)> {
    let (project, rest) = path.strip_prefix("/v1/")?.split_once("/rooms/")?;
    let room = rest.strip_suffix("/events")?;
    let plain = |segment: &str| !segment.is_empty() && !segment.contains('/');
    (plain(project) && plain(room)).then_some((project, room))
}

/// Writes of events.
fn fast_path(api: &Api, request: &mut Request) -> Option<BoxFuture<'static, Response>> {
    if request.method() != Method::POST {
        return None;
    }
    let writing = Writing::to(request.uri().path())?;
    Some(fast_path::serve(api, EVENTS, request, writing))
}

/// Where events are written to.
struct Writing {
    project: ProjectId,
    room: String,
}

impl Writing {
    /// The room of a path, if it stands there as it is. What is not plain is for the router.
    fn to(path: &str) -> Option<Self> {
        let (project, room) = events_of(path).filter(|_| !path.contains('%'))?;
        let project = ProjectId::parse(project).ok().filter(|project| !project.is_reserved())?;
        Some(Self { project, room: room.to_owned() })
    }
}

impl FastHandler for Writing {
    async fn answer(&self, request: Admitted<'_>) -> Response {
        let Admitted { api, caller, headers, body } = request;
        write::write_to(api, &self.project, &self.room, caller, headers, body).await.into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_room_stays() {
        for path in ["/v1/app/rooms/r/events", SUBSCRIBE, "/x/blue.catbird.mls.subscribeConvoEvents.ws"] {
            assert!(stays_open(path, ""), "{path}");
        }
        for path in
            ["/", "/v1/app/rooms/r/members", "/v1/app/rooms/r/events/x", "/x/blue.catbird.mls.updateCursor"]
        {
            assert!(!stays_open(path, ""), "{path}");
        }
    }

    #[test]
    fn only_plain_paths_of_events_have_a_fast_path() {
        let name = |path| Writing::to(path).map(|it| format!("{} {}", it.project, it.room));
        assert_eq!(name("/v1/app/rooms/general/events").as_deref(), Some("app general"));
        for other in [
            "/v1/app/rooms/a%20b/events",
            "/v1/projects/rooms/r/events",
            "/v1/app/rooms//events",
            "/v1/app/rooms/r/members",
            "/v1/stream/rooms/r/events",
            "/health",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
