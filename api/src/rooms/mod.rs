//! Rooms over HTTP: conversations that members write to and follow, over SSE or WebSocket.
//!
//! Read `guest` (who asks, and may it), `follow` (one request that stays) with `begin` (where it begins: a table of cases),
//! `protocol` (what is said beside events) and `encode` (events as they are written), then `write` (everything that
//! changes a room) and `error` (how rooms say no, which is not how the others do).
//!
//! Each route is there twice: under `/v1/{project}/rooms/{room}`, and by the names that clients of
//! `blue.catbird.mls` know, in the project of the token.

mod begin;
mod encode;
mod error;
pub mod follow;
mod guest;
mod pairs;
mod protocol;
pub mod write;

use axum::routing::{MethodRouter, get, post};

use crate::Api;

/// Where events of a room are written and followed.
pub const EVENTS: &str = "/v1/{project}/rooms/{room}/events";

/// Paths of the protocol, which name no project: it is that of the token.
pub const PREFIX: &str = "/x/blue.catbird.mls.";

/// The path of a subscription as clients of the protocol know it; with `.ws` it is a WebSocket.
pub const SUBSCRIBE: &str = "/x/blue.catbird.mls.subscribeConvoEvents";

/// `/v1/{project}/rooms/{room}/events`.
pub fn events() -> MethodRouter<Api> {
    get(follow::follow).post(write::write_events)
}

/// `/v1/{project}/rooms/{room}/members`.
pub fn members() -> MethodRouter<Api> {
    get(write::read_members).post(write::change_members)
}

/// `/v1/{project}/rooms/{room}/seen`.
pub fn seen() -> MethodRouter<Api> {
    get(write::read_seen).post(write::write_seen)
}

/// [`SUBSCRIBE`].
pub fn subscribe() -> MethodRouter<Api> {
    get(follow::subscribe)
}

/// [`SUBSCRIBE`] with `.ws`.
pub fn subscribe_websocket() -> MethodRouter<Api> {
    get(follow::subscribe_websocket)
}

/// `/x/blue.catbird.mls.updateCursor`.
pub fn update_cursor() -> MethodRouter<Api> {
    post(write::update_cursor)
}

/// Whether the answer to a `GET` of this path stays.
pub fn stays(path: &str) -> bool {
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

/// The same, if they stand there as they are.
pub fn written_to(path: &str) -> Option<(&str, &str)> {
    events_of(path).filter(|_| !path.contains('%'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_room_stays() {
        for path in ["/v1/app/rooms/r/events", SUBSCRIBE, "/x/blue.catbird.mls.subscribeConvoEvents.ws"] {
            assert!(stays(path), "{path}");
        }
        for path in
            ["/", "/v1/app/rooms/r/members", "/v1/app/rooms/r/events/x", "/x/blue.catbird.mls.updateCursor"]
        {
            assert!(!stays(path), "{path}");
        }
    }
}
