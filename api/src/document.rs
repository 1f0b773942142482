//! The OpenAPI description, `/openapi.json`, generated from the attributes and doc comments of the handlers.

pub mod params;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{self, ContentBuilder, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, Modify, OpenApi, ToSchema};

use crate::capability::CAPABILITIES;

/// Body of every error response, except those of rooms, subscriptions and ingest.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what `ApiError` writes")]
pub struct ErrorAnswer {
    error: ErrorDetail,
}

/// Code and message of an error.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what `ApiError` writes")]
pub struct ErrorDetail {
    /// Stable code for programs.
    #[schema(pattern = "^[a-z0-9_]+$")]
    code: String,
    /// Message for people; its wording may change.
    message: String,
}

/// Body of every error response of rooms.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it only describes what `rooms::Refusal` writes")]
pub struct RoomErrorAnswer {
    /// Stable code for programs.
    error: String,
    /// Message for people; its wording may change.
    message: String,
    /// Seconds after which the request may be repeated.
    retry_after: Option<f64>,
    /// Values that a program needs to recover, such as the cursor to resume from.
    detail: Option<serde_json::Value>,
}

/// Content of any type.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "it only describes what is sent")]
pub struct Content(Vec<u8>);

/// Status of the server.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it only describes what the handlers write")]
pub struct StatusAnswer {
    /// Status: `ok` (`/health`) or `ready` (`/ready`).
    status: String,
    /// Databases that changes of entities are read from and that cannot be reached at the moment; absent if there are none.
    #[schema(nullable = false)]
    unavailable_sources: Option<u32>,
    /// Projects whose database is not set up for what is configured, each with what is missing; absent if there are none.
    #[schema(nullable = false)]
    misconfigured_sources: Option<Vec<String>>,
}

/// Error responses of every request.
pub struct AnyRefusals;

/// Error responses of a request that needs a credential.
pub struct CallerRefusals;

/// Error responses of a request within a project.
pub struct ProjectRefusals;

/// Error responses of an administrative request.
pub struct AdminRefusals;

/// Error responses of a request to a stream.
pub struct StreamRefusals;

/// Error responses of a request about a session.
pub struct SessionRefusals;

/// Error responses of a request that writes to a stream.
pub struct WriteRefusals;

/// Error responses of a request to a room.
pub struct RoomRefusals;

/// Error responses of every request.
pub const ANY: &[(u16, &str)] = &[
    (400, "The request is malformed. `invalid_host`: it has no `Host` header, or more than one."),
    (414, "`uri_too_long`: the path and query are too long."),
    (415, "`content_encoding_unsupported`: the request has a `Content-Encoding` other than `identity`."),
    (431, "`headers_too_large`: the request line and headers are too large."),
    (501, "`transfer_encoding_unknown`: the `Transfer-Encoding` is not `chunked`."),
];

const NOT_NOW: &str = "`too_many_connections` or `too_many_bodies`: the server is at its limit; `Retry-After` says when to try again.";

/// Error responses of a request that needs a credential.
pub const CALLER: &[(u16, &str)] = &[
    (
        401,
        "`token_missing`, `token_malformed`, `token_expired`, `token_too_early`, `token_revoked` or `unauthorized`: \
         the credential is missing or not valid.",
    ),
    (
        403,
        "`wrong_project` or `forbidden`: the credential does not allow this; `origin_not_allowed`: a page of this origin may not \
         open a WebSocket.",
    ),
    (503, NOT_NOW),
];

/// Error responses for failures of the server.
pub const OURS: &[(u16, &str)] = &[(500, "`internal`: the server failed; the details are in its log.")];

/// Error responses of a request within a project.
pub const PROJECT: &[(u16, &str)] = &[(
    429,
    "`too_many_requests`: the project exceeds its rate limit; `Retry-After` says when to try again.",
)];

const ADMIN: &[(u16, &str)] = &[
    (404, "`project_not_found` or `key_not_found`: the project or key does not exist."),
    (408, "`body_too_slow`: the body arrived too slowly."),
    (
        409,
        "`project_exists`, `project_removing`, `project_given`, `default_project`, `no_key`, `last_key`, `key_exists`, \
         `too_many_keys`, `too_many_projects`, `too_many_revocations` or `too_many_revoked_topics`: the request conflicts with \
         the current state.",
    ),
    (413, "`body_too_large`: the body is too large."),
    (507, "`no_space`: the store is out of disk space."),
];

const STREAM: &[(u16, &str)] = &[
    (404, "`stream_not_found`: the stream does not exist."),
    (
        410,
        "`stream_gone`: the stream was deleted and is kept only for its forks; `offset_trimmed`: messages at the offset were \
         removed by retention.",
    ),
    (
        503,
        "`too_many_readers`, `too_many_bodies` or `too_many_connections`, with `Retry-After`: the limit is reached; `contended`: too many \
         concurrent changes.",
    ),
];

const SESSION: &[(u16, &str)] = &[
    (
        404,
        "`session_not_found` or `stream_not_found`: the session, or the stream to subscribe to, does not exist.",
    ),
    (408, "`body_too_slow`: the body arrived too slowly."),
    (
        409,
        "`content_type_mismatch`: the session has another content type; `stream_exists`: a stream that is not a session has \
         this id.",
    ),
    (410, "`stream_gone`: the session was deleted and is kept only for its forks."),
    (413, "`body_too_large`: the body is too large."),
    (
        429,
        "`too_many_subscriptions`, `too_many_left`, `too_many_subscribers`, `too_many_sessions`: the limit is reached; \
         `too_many_envelope_changes`: the envelope setting was changed too often; `too_many_requests`: the project exceeds \
         its rate limit, `Retry-After` says when to try again.",
    ),
    (500, "`internal`: the server failed; the details are in its log."),
    (
        503,
        "`too_many_bodies` or `too_many_connections`, with `Retry-After`: the limit is reached; `contended`: too many \
         concurrent changes.",
    ),
    (507, "`no_space`: the store is out of disk space."),
];

const WRITE: &[(u16, &str)] = &[
    (
        403,
        "`wrong_project` or `forbidden`: the credential does not allow this; `producer_fenced`: a newer instance of the producer \
         has taken over; `source_foreign`: the source of the fork belongs to another project; `session_stream`: clients \
         cannot append to the stream of a session.",
    ),
    (408, "`body_too_slow`: the body arrived too slowly."),
    (
        409,
        "`stream_exists`, `stream_closed`, `content_type_mismatch`, `producer_gap`, `sequence_conflict` or \
         `source_gone`: the request conflicts with the current state.",
    ),
    (412, "`tail_moved`: the tail is not at the offset in `If-Match`."),
    (413, "`body_too_large` or `too_many_messages`: the body is too large or has too many messages."),
    (
        429,
        "`too_many_requests`: the project exceeds its rate limit; \
         `too_many_producers`: the stream has its maximum number of producers. `Retry-After` says when to try again.",
    ),
    (507, "`no_space`: the store is out of disk space."),
];

const ROOM: &[(u16, &str)] = &[
    (400, "`InvalidRequest` or `InvalidCursor`: the request or its cursor is malformed."),
    (401, "`AuthRequired` or `TokenExpired`: the credential is missing, not valid or expired."),
    (
        403,
        "`NotMember`: the user is not a member, or the room does not exist; `UserRequired`: the credential names no user; \
         `Forbidden`: the credential does not allow this; `ProducerFenced`: a newer instance of the producer has taken over.",
    ),
    (
        404,
        "`ConvoNotFound`: the room does not exist (only with the scope `manage`; others get 403 `NotMember`).",
    ),
    (408, "`InvalidRequest`: the body arrived too slowly."),
    (
        409,
        "`SlowConsumer`: the reader was disconnected for being too slow a moment ago; `ProducerGap`: the producer skipped a \
         sequence number; `ProducerForgotten`: the request is a repetition whose events are no longer stored.",
    ),
    (
        410,
        "`CursorCompacted`: events after the cursor were removed; `FutureCursor`: the cursor is beyond the newest event. \
         `detail` says where to resume.",
    ),
    (413, "`PayloadTooLarge`: the body or a payload is too large, or there are too many events or members."),
    (414, "`uri_too_long`: the path and query are too long."),
    (415, "`content_encoding_unsupported`: the request has a `Content-Encoding` other than `identity`."),
    (426, "`InvalidRequest`: the request is not a WebSocket handshake as in RFC 6455."),
    (
        429,
        "`TooManyStreams`, `TooManyProducers` or `TooManyRequests`: the limit is reached; `Retry-After` says when to try again.",
    ),
    (431, "`headers_too_large`: the request line and headers are too large."),
    (500, "`Unavailable`: the server failed; the details are in its log."),
    (501, "`transfer_encoding_unknown`: the `Transfer-Encoding` is not `chunked`."),
    (503, "`Unavailable`: the server is at its limit; `Retry-After` says when to try again."),
    (505, "`InvalidRequest`: a WebSocket handshake needs HTTP/1.1."),
    (507, "`Unavailable`: the store is out of disk space."),
];

/// Error responses of these lists, in the common format.
pub fn refusals(lists: &[&[(u16, &str)]]) -> BTreeMap<String, RefOr<openapi::Response>> {
    refusals_as("ErrorAnswer", lists)
}

/// Error responses of these lists, with a body of this schema.
pub fn refusals_as(schema: &str, lists: &[&[(u16, &str)]]) -> BTreeMap<String, RefOr<openapi::Response>> {
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
        description = "A self-hosted subscription server: publish once, and every subscriber receives it. Nothing acknowledged is lost.",
        license(name = "Apache-2.0 OR MIT", identifier = "Apache-2.0 OR MIT")
    ),
    components(schemas(Content, ErrorAnswer, ErrorDetail, RoomErrorAnswer, StatusAnswer)),
    security(("bearer" = []), ("token_in_query" = [])),
    modifiers(&Credentials)
)]
struct Interface;

/// Adds the ways to send a credential.
struct Credentials;

impl Modify for Credentials {
    fn modify(&self, document: &mut openapi::OpenApi) {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("A token or an API key of the project, or the admin key."))
            .build();
        let in_query = ApiKeyValue::with_description(
            "token",
            "The same credential as a query parameter, for clients that cannot set headers.",
        );
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

/// The description as JSON text.
pub fn text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut text = serde_json::to_string_pretty(&document()).expect("a description is JSON");
        text.push('\n');
        text
    })
}

/// Get the OpenAPI description of the server.
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "operations",
    security(()),
    responses((status = 200, description = "The OpenAPI description.", content_type = "application/json"), AnyRefusals)
)]
pub async fn describe_interface() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text()).into_response()
}
