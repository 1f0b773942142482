//! The description of this interface for programs, `/openapi.json`, made from what is written beside the handlers.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{self, ContentBuilder, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, Modify, OpenApi, ToSchema};

use crate::capability::CAPABILITIES;

/// Every answer that says no.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what `ApiError` writes")]
pub struct ErrorAnswer {
    error: ErrorDetail,
}

/// What is wrong.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what `ApiError` writes")]
pub struct ErrorDetail {
    /// For programs; it does not change.
    #[schema(pattern = "^[a-z0-9_]+$")]
    code: String,
    /// For people; it may change.
    message: String,
}

/// Every answer of rooms that says no.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it only describes what `rooms::Refusal` writes")]
pub struct RoomErrorAnswer {
    /// For programs; it does not change.
    error: String,
    /// For people; it may change.
    message: String,
    /// After how many seconds it may be tried again.
    retry_after: Option<f64>,
    /// What a program needs to go on.
    detail: Option<serde_json::Value>,
}

/// Bytes of any kind.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "it only describes what is sent")]
pub struct Content(Vec<u8>);

/// How it is.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what the handlers write")]
pub struct StatusAnswer {
    /// `ok` or `ready`.
    status: String,
}

/// What any request may be told.
pub struct AnyRefusals;

/// What a request that needs a credential may be told.
pub struct CallerRefusals;

/// What a request within a project may be told.
pub struct ProjectRefusals;

/// What a request that administers may be told.
pub struct AdminRefusals;

/// What a request to a stream may be told.
pub struct StreamRefusals;

/// What a request about a session may be told.
pub struct SessionRefusals;

/// What a request that writes to a stream may be told.
pub struct WriteRefusals;

/// What a request to a room may be told.
pub struct RoomRefusals;

const ANY: &[(u16, &str)] = &[
    (400, "The request cannot be understood; `invalid_host`: it has no `Host`, or several."),
    (414, "`uri_too_long`: path and query are too long."),
    (415, "`content_encoding_unsupported`: the body has a `Content-Encoding`."),
    (431, "`headers_too_large`: first line and headers are too large."),
    (501, "`transfer_encoding_unknown`: a `Transfer-Encoding` other than `chunked`."),
];

const NOT_NOW: &str = "`too_many_connections` or `too_many_bodies`: as much is in use as may be; `Retry-After` says when to come \
    again.";

const CALLER: &[(u16, &str)] = &[
    (
        401,
        "`token_missing`, `token_malformed`, `token_expired`, `token_too_early`, `token_revoked` or `unauthorized`: \
         nobody whom the server knows.",
    ),
    (403, "`wrong_project` or `forbidden`: somebody who may not do this."),
    (503, NOT_NOW),
];

const OURS: &[(u16, &str)] = &[(500, "`internal`: our fault.")];

const PROJECT: &[(u16, &str)] = &[(
    429,
    "`too_many_requests`: the project makes too many requests; `Retry-After` says when to come again.",
)];

const ADMIN: &[(u16, &str)] = &[
    (404, "`project_not_found` or `key_not_found`."),
    (408, "`body_too_slow`: the body came too slowly."),
    (
        409,
        "`project_exists`, `project_removing`, `project_given`, `default_project`, `no_key`, `last_key`, `key_exists`, \
         `too_many_keys` or `too_many_projects`: it does not go with what is there.",
    ),
    (413, "`body_too_large`."),
    (507, "`no_space`: the store is out of space."),
];

const STREAM: &[(u16, &str)] = &[
    (404, "`stream_not_found`: there is no such stream."),
    (
        410,
        "`stream_gone`: the stream was deleted and is kept for its forks; `offset_trimmed`: what was asked is gone.",
    ),
    (
        503,
        "`too_many_readers`, `too_many_bodies` or `too_many_connections`, with `Retry-After`, or `contended`: not now.",
    ),
];

const SESSION: &[(u16, &str)] = &[
    (404, "`session_not_found` or `stream_not_found`: there is no such session, or nothing to subscribe to."),
    (408, "`body_too_slow`: the body came too slowly."),
    (
        409,
        "`content_type_mismatch`: the session has messages of another type; `stream_exists`: the id is that of a stream \
         which is no session.",
    ),
    (410, "`stream_gone`: the session was deleted and is kept for its forks."),
    (413, "`body_too_large`."),
    (
        429,
        "`too_many_subscriptions`, `too_many_left`, `too_many_subscribers`, `too_many_sessions`: there are as many as there \
         may be; `too_many_envelope_changes`: it was changed as often as it may be; `too_many_requests`: `Retry-After` says \
         when to come again.",
    ),
    (500, "`internal`: our fault."),
    (503, "`too_many_bodies` or `too_many_connections`, with `Retry-After`, or `contended`: not now."),
    (507, "`no_space`: the store is out of space."),
];

const WRITE: &[(u16, &str)] = &[
    (
        403,
        "`wrong_project` or `forbidden`: somebody who may not do this; `producer_fenced`: a newer instance of the producer \
         has taken over; `source_foreign`: another project's; `session_stream`: only what a session subscribes to is \
         appended to its stream.",
    ),
    (408, "`body_too_slow`: the body came too slowly."),
    (
        409,
        "`stream_exists`, `stream_closed`, `content_type_mismatch`, `producer_gap`, `sequence_conflict` or \
         `source_gone`: it does not go with what is there.",
    ),
    (412, "`tail_moved`: the tail is not where `If-Match` says."),
    (413, "`body_too_large` or `too_many_messages`."),
    (
        429,
        "`too_many_requests`: the project makes too many requests; `Retry-After` says when to come again; \
         `too_many_producers`: the stream knows as many as it can; `Retry-After` says when to try again.",
    ),
    (507, "`no_space`: the store is out of space."),
];

const ROOM: &[(u16, &str)] = &[
    (400, "`InvalidRequest` or `InvalidCursor`: the request cannot be understood."),
    (401, "`AuthRequired` or `TokenExpired`: nobody whom the server knows."),
    (
        403,
        "`NotMember`: not a member, or there is no such room; `UserRequired`: the credential names no user; `Forbidden`: it \
         does not allow this; `ProducerFenced`: a newer instance of the producer has taken over.",
    ),
    (404, "`ConvoNotFound`: there is no such room, for those who manage rooms."),
    (408, "`InvalidRequest`: the body came too slowly."),
    (
        409,
        "`SlowConsumer`: too slow a moment ago; `ProducerGap`: a request of the producer is missing before this one; \
         `ProducerForgotten`: the request was made, and what it wrote is no longer kept.",
    ),
    (
        410,
        "`CursorCompacted` or `FutureCursor`: the place is gone, or never was; `detail` says where to begin.",
    ),
    (413, "`PayloadTooLarge`: a payload, the body, or the number of events or members."),
    (414, "`uri_too_long`: path and query are too long."),
    (415, "`content_encoding_unsupported`: the body has a `Content-Encoding`."),
    (426, "`InvalidRequest`: not asked as RFC 6455 asks for a WebSocket."),
    (
        429,
        "`TooManyStreams`, `TooManyProducers` or `TooManyRequests`: `Retry-After` says when to come again.",
    ),
    (431, "`headers_too_large`: first line and headers are too large."),
    (500, "`Unavailable`: our fault."),
    (501, "`transfer_encoding_unknown`: a `Transfer-Encoding` other than `chunked`."),
    (503, "`Unavailable`: not now, and as much is in use as may be; `Retry-After` says when to come again."),
    (505, "`InvalidRequest`: a WebSocket begins with HTTP/1.1."),
    (507, "`Unavailable`: the store is out of space."),
];

fn refusals(lists: &[&[(u16, &str)]]) -> BTreeMap<String, RefOr<openapi::Response>> {
    refusals_as("ErrorAnswer", lists)
}

fn refusals_as(schema: &str, lists: &[&[(u16, &str)]]) -> BTreeMap<String, RefOr<openapi::Response>> {
    let one = |(status, description): &(u16, &str)| {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(schema))).build();
        let response = ResponseBuilder::new().description(*description).content("application/json", content);
        (status.to_string(), RefOr::T(response.build()))
    };
    lists.iter().flat_map(|list| list.iter()).map(one).collect()
}

impl IntoResponses for AnyRefusals {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        refusals(&[ANY])
    }
}

impl IntoResponses for CallerRefusals {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        refusals(&[ANY, CALLER])
    }
}

impl IntoResponses for ProjectRefusals {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        refusals(&[ANY, CALLER, PROJECT, OURS])
    }
}

impl IntoResponses for AdminRefusals {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        refusals(&[ANY, CALLER, PROJECT, OURS, ADMIN])
    }
}

impl IntoResponses for StreamRefusals {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        refusals(&[ANY, CALLER, PROJECT, OURS, STREAM])
    }
}

impl IntoResponses for SessionRefusals {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        refusals(&[ANY, CALLER, OURS, SESSION])
    }
}

impl IntoResponses for WriteRefusals {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        refusals(&[ANY, CALLER, PROJECT, OURS, STREAM, WRITE])
    }
}

impl IntoResponses for RoomRefusals {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        refusals_as("RoomErrorAnswer", &[ROOM])
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "tidings",
        description = "Publish once; every subscriber hears it, its own way, and nothing acknowledged is lost.",
        license(name = "Apache-2.0 OR MIT", identifier = "Apache-2.0 OR MIT")
    ),
    components(schemas(Content, ErrorAnswer, ErrorDetail, RoomErrorAnswer, StatusAnswer)),
    security(("bearer" = []), ("token_in_query" = [])),
    modifiers(&Credentials)
)]
struct Interface;

/// How a request says who it is.
struct Credentials;

impl Modify for Credentials {
    fn modify(&self, document: &mut openapi::OpenApi) {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("A token or an API key of the project, or the admin key."))
            .build();
        let in_query = ApiKeyValue::with_description("token", "The same, for those who cannot set headers.");
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
        components.add_security_scheme("token_in_query", SecurityScheme::ApiKey(ApiKey::Query(in_query)));
    }
}

/// The description: what is written beside the handlers of each capability, and the paths of the default project, which are the same
/// without a project.
pub fn document() -> openapi::OpenApi {
    let mut document = Interface::openapi();
    for capability in CAPABILITIES {
        document.merge((capability.description)());
    }
    let projects = document.paths.paths.iter();
    let default: Vec<_> = projects
        .filter_map(|(path, item)| {
            let short = path.strip_prefix("/v1/{project}/stream/")?;
            Some((format!("/v1/stream/{short}"), without_project(item.clone())))
        })
        .collect();
    document.paths.paths.extend(default);
    document
}

fn without_project(mut item: PathItem) -> PathItem {
    let change = |operation: &mut Operation| {
        if let Some(id) = &mut operation.operation_id {
            id.push_str("_of_default_project");
        }
        if let Some(parameters) = &mut operation.parameters {
            parameters.retain(|parameter| match parameter {
                RefOr::T(parameter) => parameter.name != "project",
                RefOr::Ref(_) => true,
            });
        }
    };
    let operations = [&mut item.get, &mut item.head, &mut item.put, &mut item.post, &mut item.delete];
    operations.into_iter().flatten().for_each(change);
    item
}

/// The description as text, as it is served.
pub fn text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut text = serde_json::to_string_pretty(&document()).expect("a description is JSON");
        text.push('\n');
        text
    })
}

/// This description.
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "operations",
    security(()),
    responses((status = 200, description = "This document.", content_type = "application/json"), AnyRefusals)
)]
pub async fn describe_interface() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text()).into_response()
}
