//! What the OpenAPI description says of bodies that handlers read member by member, and of errors.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::openapi::{RefOr, Response};
use utoipa::{IntoResponses, ToSchema};

use crate::document::{ANY, PROJECT, refusals_as};

/// A subscription to create. `pattern` or `streams` is required.
#[derive(ToSchema)]
#[schema(example = json!({
    "type": "webhook", "pattern": "events/*", "webhook": { "url": "https://worker.example/hooks" }
}))]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct NewStreamSubscription {
    /// `webhook` or `pull-wake`.
    #[schema(rename = "type")]
    r#type: String,
    /// Glob on paths of streams: `*` stands for one segment, `**` for any number.
    pattern: Option<String>,
    /// Paths of streams, at most 1,000.
    #[schema(max_items = 1000)]
    streams: Option<Vec<String>>,
    /// Endpoint, for `webhook`.
    webhook: Option<NewWebhook>,
    /// Path of the stream that gets wake events, for `pull-wake`.
    wake_stream: Option<String>,
    /// Lease in milliseconds. Default 30,000.
    #[schema(minimum = 1000, maximum = 600_000)]
    lease_ttl_ms: Option<u64>,
    /// Description for people, at most 1,024 bytes.
    description: Option<String>,
    /// Whether webhooks bring messages. Default `false`.
    payload: Option<bool>,
    /// Failed attempts in a row after which it is given up. Default 1,440.
    #[schema(minimum = 1, maximum = 1_000_000)]
    max_attempts: Option<u32>,
}

/// Endpoint of a subscription.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct NewWebhook {
    /// URL, with `https:`.
    url: String,
}

/// Streams to link.
#[derive(ToSchema)]
#[schema(example = json!({ "streams": ["events/x", "events/y"] }))]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct StreamsBody {
    /// Paths of streams.
    #[schema(min_items = 1, max_items = 1000)]
    streams: Vec<String>,
}

/// Who claims.
#[derive(ToSchema)]
#[schema(example = json!({ "worker": "worker-1" }))]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct ClaimBody {
    /// Name of the worker, at most 256 bytes.
    #[schema(min_length = 1)]
    worker: String,
}

/// A report of a worker.
#[derive(ToSchema)]
#[schema(example = json!({
    "wake_id": "w_2f6b0a1c9d8e7f6a5b4c3d2e", "generation": 7,
    "acks": [{ "stream": "events/abc", "offset": "0000000000000002_0000000000000084" }], "done": true
}))]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct ReportBody {
    /// Id of the wake.
    wake_id: String,
    /// Number of the wake.
    #[schema(minimum = 0)]
    generation: u64,
    /// What was processed.
    acks: Option<Vec<Acknowledgement>>,
    /// Whether the wake is over. Default `false`: the lease begins anew.
    done: Option<bool>,
}

/// What was processed of a stream.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct Acknowledgement {
    /// Path of the stream.
    stream: String,
    /// Offset of the last message that was processed.
    offset: String,
}

/// A stream as workers are told of it.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what is written")]
pub struct WokenStream {
    /// Path of the stream, below the root.
    path: String,
    /// `glob` or `explicit`.
    link_type: String,
    /// Offset up to which it was acknowledged.
    acked_offset: String,
    /// Offset of its tail.
    tail_offset: String,
    /// Whether it has anything that was not acknowledged.
    has_pending: bool,
}

/// Body of every error response of subscriptions to streams.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what `Refusal` writes")]
pub struct StreamSubscriptionError {
    error: StreamSubscriptionErrorDetail,
}

/// Code and message of an error.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what `Refusal` writes")]
pub struct StreamSubscriptionErrorDetail {
    /// Stable code for programs.
    #[schema(pattern = "^[a-zA-Z0-9_]+$")]
    code: String,
    /// Message for people; its wording may change.
    message: String,
    /// Name of the worker that has claimed the work, with `ALREADY_CLAIMED`.
    #[schema(nullable = false)]
    current_holder: Option<String>,
    /// Number of the wake that it has claimed, with `ALREADY_CLAIMED`.
    #[schema(nullable = false)]
    generation: Option<u64>,
    /// Details for programs.
    #[schema(nullable = false)]
    details: Option<Value>,
}

/// Error responses of requests about subscriptions to streams.
pub struct StreamSubscriptionRefusals;

const REFUSALS: &[(u16, &str)] = &[
    (
        400,
        "`INVALID_REQUEST`: the request is malformed; `WEBHOOK_URL_REJECTED`: the URL is not one that may be called; or one of the \
         codes of every request.",
    ),
    (
        401,
        "`TOKEN_INVALID` or `TOKEN_EXPIRED`: the token is not one of a wake or claim of this subscription, or too old; or one of the \
         codes of every request with a credential.",
    ),
    (403, "`wrong_project` or `forbidden`: the credential does not allow this."),
    (404, "`SUBSCRIPTION_NOT_FOUND`: there is no such subscription."),
    (408, "`body_too_slow`: the body arrived too slowly."),
    (
        409,
        "`SUBSCRIPTION_ALREADY_EXISTS`: it has another configuration; `FENCED`: the wake is not the current one; `ALREADY_CLAIMED`; \
         `NO_PENDING_WORK`; `INVALID_OFFSET`.",
    ),
    (413, "`body_too_large`: the body is too large."),
    (
        429,
        "`too_many_subscriptions` or `too_many_links`: the limit is reached; `too_many_requests`: the project exceeds its rate limit, \
         `Retry-After` says when to try again.",
    ),
    (500, "`internal`: the server failed; the details are in its log."),
    (
        503,
        "`too_many_bodies` or `too_many_connections`, with `Retry-After`: the limit is reached; `contended`: too many concurrent \
         changes.",
    ),
    (507, "`no_space`: the store is out of disk space."),
];

impl IntoResponses for StreamSubscriptionRefusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        refusals_as("StreamSubscriptionError", &[ANY, PROJECT, REFUSALS])
    }
}
