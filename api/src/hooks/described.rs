//! What the OpenAPI description says of bodies that handlers read member by member, and of errors.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::openapi::{RefOr, Response};
use utoipa::{IntoResponses, ToSchema};

use crate::document::{ANY, CALLER, OURS, PROJECT, refusals, refusals_as};

/// Settings of a hook apart from its pattern.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct HookSettings {
    /// Endpoint that is called, `https:` or `http:`. Without it, `workerId` and `rpcMethod` are required.
    #[schema(example = "https://example.com/events")]
    url: Option<String>,
    /// Worker that is called by way of the server's target template: 1 to 63 lower-case letters, digits and hyphens.
    worker_id: Option<String>,
    /// Method of the worker that is called: a letter, then letters, digits and underscores.
    rpc_method: Option<String>,
    /// Name of a handler in the server's process that is called instead, if one is bound.
    worker_binding: Option<String>,
    /// Attempts of a delivery in all, 0 to 100; 0 means one. Default 5.
    #[schema(minimum = 0, maximum = 100)]
    max_retries: Option<u32>,
    /// Time that an attempt may take in milliseconds, 1 to 300,000. Default 30,000.
    #[schema(minimum = 1, maximum = 300_000)]
    timeout_ms: Option<u32>,
    /// Form of a delivery: `envelope` (default), `raw`, `cloudevents-structured` or `cloudevents-binary`.
    format: Option<String>,
    /// Delays after the first, second, … failed attempt, in milliseconds; the last one repeats. Default: exponential.
    retry_schedule: Option<Vec<u64>>,
    /// Which deliveries wait for earlier ones: `none` (default), `subscription` (all) or `key` (those with the same key).
    ordering: Option<String>,
    /// JSON pointer into the event to the key of `ordering` `key`.
    ordering_key: Option<String>,
    /// Maximum number of deliveries per second. Default: none.
    rate_limit: Option<u32>,
    /// Maximum number of attempts at a time, 1 to 256. Default 32.
    #[schema(minimum = 1, maximum = 256)]
    concurrency: Option<u32>,
    /// Conditions on the event: for each JSON pointer an object with `eq`, `in`, `gt`, `lt`, `prefix` or `exists`.
    #[schema(value_type = Option<Object>)]
    filter: Option<Value>,
    /// Additional request headers. Their values are not shown again.
    #[schema(value_type = Option<Object>)]
    headers: Option<Value>,
}

/// A subscription to create.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase", example = json!({
    "workerId": "my-worker", "pattern": "webhook.github.*", "rpcMethod": "handleGitHubEvent", "maxRetries": 5
}))]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct SubscribeBody {
    /// Pattern of the event types to deliver: `*` stands for one segment, `**` for any number.
    pattern: String,
    #[serde(flatten)]
    settings: HookSettings,
}

/// Settings of a subscription to change.
#[derive(ToSchema)]
#[schema(example = json!({ "maxRetries": 10, "timeoutMs": 5000 }))]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct SubscriptionChangeBody {
    #[serde(flatten)]
    settings: HookSettings,
}

/// A hook to create.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase", example = json!({ "url": "https://example.com/events", "pattern": "orders.*" }))]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct NewHookBody {
    /// Pattern of the event types to deliver: `*` stands for one segment, `**` for any number.
    pattern: String,
    #[serde(flatten)]
    settings: HookSettings,
}

/// Settings of a hook to change.
#[derive(ToSchema)]
#[schema(example = json!({ "maxRetries": 10, "rateLimit": null }))]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct HookChangeBody {
    #[serde(flatten)]
    settings: HookSettings,
}

/// A subscription.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct SubscriptionReferenceBody {
    /// Subscription id.
    #[schema(example = "01JCZ8T5N3QK4W8Y2V6X0ABCDE")]
    subscription_id: String,
    /// Shard of the subscription; without effect.
    shard: Option<String>,
}

/// A subscription to reactivate.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct SubscriptionReactivationBody {
    /// Subscription id.
    #[schema(example = "01JCZ8T5N3QK4W8Y2V6X0ABCDE")]
    subscription_id: String,
    /// Shard of the subscription; without effect.
    shard: Option<String>,
    /// Whether events that arrived while it was inactive are delivered now. Default `false`.
    replay: Option<bool>,
}

/// How to resume a hook.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct ResumeBody {
    /// Whether events that arrived while it was paused are delivered now. Default `false`.
    replay: Option<bool>,
}

/// Which dead letters to deliver again. Without conditions, all.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct LetterFilterBody {
    /// Those given up at this time or later, in ISO 8601.
    #[schema(example = "2026-01-15T10:30:00Z")]
    from: Option<String>,
    /// Those given up before this time, in ISO 8601.
    to: Option<String>,
    /// Those whose last error contains this text.
    error: Option<String>,
}

/// How to replace a secret.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct RotationBody {
    /// Seconds for which the old secret signs as well, at most 2,592,000. Default 86,400.
    #[schema(minimum = 0, maximum = 2_592_000)]
    overlap_seconds: Option<u64>,
}

/// Which events to deliver once more.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct ReplayBody {
    /// Those that arrived at this time or later, in ISO 8601, or after this position.
    #[schema(example = "2026-01-15T10:30:00Z")]
    from: String,
    /// Those that arrived until this time, or up to this position. Default: all.
    to: Option<String>,
}

/// Which records to remove.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct CleanUpBody {
    /// Those created before this time, in milliseconds since 1970.
    before: u64,
}

/// Events to submit.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct IngestBody {
    /// Events, at most 1,000.
    events: Vec<IngestedEvent>,
    /// Id of the batch, 1 to 256 bytes. A second batch with the same id within a day is ignored.
    batch_id: Option<String>,
}

/// An event. All its members are delivered; at most 10,240 bytes as JSON.
#[derive(ToSchema)]
#[schema(example = json!({ "type": "orders.paid", "ts": "2026-01-15T10:30:00.000Z", "id": "paid-7", "order": 7 }))]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct IngestedEvent {
    /// Event type: 1 to 128 letters, digits, `.`, `_` and `-`, in at most 10 segments, none empty.
    #[serde(rename = "type")]
    event_type: String,
    /// Time of the event in ISO 8601, at most 7 days ago and at most 1 hour ahead.
    ts: String,
    /// Id of the event, 1 to 256 bytes. A hook receives an event of an id once.
    id: Option<String>,
}

/// Body of every error response of subscriptions.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what `Refusal` writes")]
pub struct SubscriptionErrorAnswer {
    /// Always `false`.
    #[schema(example = false)]
    ok: bool,
    /// Message for people.
    error: String,
    /// Path that does not exist.
    path: Option<String>,
}

/// Body of every error response of ingest.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what `IngestRefusal` writes")]
pub struct IngestErrorAnswer {
    /// Message for people; its wording may change.
    error: String,
    /// Stable code for programs.
    #[schema(pattern = "^[A-Z_]+$")]
    code: String,
    /// The first 10 invalid events of a batch.
    details: Option<Vec<InvalidEventAnswer>>,
}

/// An invalid event of a batch.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what `IngestRefusal` writes")]
pub struct InvalidEventAnswer {
    /// Index in the batch, from 0.
    index: u64,
    /// What is wrong.
    message: String,
}

/// Error responses of subscriptions.
pub struct SubscriptionRefusals;

/// Error responses of ingest.
pub struct IngestRefusals;

/// Error responses of the hooks of a project.
pub struct HookRefusals;

/// Error responses of ingest into a project.
pub struct EventRefusals;

const SUBSCRIPTIONS: &[(u16, &str)] = &[
    (400, "The request is malformed, or a setting is invalid."),
    (401, "The credential is missing or not valid."),
    (403, "The credential does not allow this, or not for the namespace."),
    (404, "The subscription, dead letter, namespace or path does not exist."),
    (408, "The body arrived too slowly."),
    (409, "Another subscription has the same worker, pattern and method."),
    (413, "The body is too large."),
    (429, "The project has its maximum number of subscriptions or replays, or exceeds its rate limit."),
    (500, "The server failed; the details are in its log."),
    (503, "The server is at its limit; `Retry-After` says when to try again."),
    (507, "The store is out of disk space."),
];

/// Errors that precede the handler, in the format of all other routes.
const BEFORE: &[(u16, &str)] = &[
    (414, "`uri_too_long`: the path and query are too long."),
    (415, "`content_encoding_unsupported`: the request has a `Content-Encoding` other than `identity`."),
    (431, "`headers_too_large`: the request line and headers are too large."),
    (501, "`transfer_encoding_unknown`: the `Transfer-Encoding` is not `chunked`."),
];

const INGEST: &[(u16, &str)] = &[
    (
        400,
        "`INVALID_JSON`, `INVALID_BATCH`, `INVALID_EVENT`, `EVENT_TOO_LARGE` or `INVALID_NAMESPACE`: the batch is refused as a \
         whole.",
    ),
    (
        401,
        "`AUTH_REQUIRED`, `INVALID_AUTH_FORMAT`, `INVALID_API_KEY` or `INVALID_NAMESPACE_KEY`: the credential is missing or not \
         valid.",
    ),
    (
        403,
        "`FORBIDDEN`: the credential does not allow this; `ADMIN_REQUIRED`: only an admin acts for another namespace.",
    ),
    (404, "`NAMESPACE_NOT_FOUND`: there is no such namespace."),
    (408, "`TIMEOUT`: the body arrived too slowly."),
    (413, "`PAYLOAD_TOO_LARGE`: the body has more than 1,048,576 bytes."),
    (
        429,
        "`RATE_LIMITED` or `QUOTA_EXCEEDED`: the project exceeds a limit; `Retry-After` says when to try again.",
    ),
    (500, "`INTERNAL_ERROR`: the server failed; the details are in its log."),
    (503, "`SERVICE_UNAVAILABLE`: the server is at its limit; `Retry-After` says when to try again."),
    (507, "`NO_SPACE`: the store is out of disk space."),
];

const HOOKS: &[(u16, &str)] = &[
    (
        404,
        "`hook_not_found`, `dead_letter_not_found`, `delivery_not_found` or `subscription_not_found`: it does not exist in this \
         project.",
    ),
    (408, "`body_too_slow`: the body arrived too slowly."),
    (409, "`hook_exists`: another hook of the project has the same target, pattern and method."),
    (413, "`body_too_large`: the body is too large."),
    (
        429,
        "`too_many_hooks` or `too_many_replays`: the limit is reached; `too_many_requests`: the project exceeds its rate limit, \
         `Retry-After` says when to try again.",
    ),
    (
        503,
        "`too_many_bodies` or `too_many_connections`, with `Retry-After`: the limit is reached; `contended`: too many \
         concurrent changes.",
    ),
    (507, "`no_space`: the store is out of disk space."),
];

const EVENTS: &[(u16, &str)] = &[
    (
        400,
        "`invalid_json`, `invalid_batch`, `invalid_event` or `event_too_large`: the batch is refused as a whole; `details` has \
         the first 10 invalid events.",
    ),
    (408, "`body_too_slow`: the body arrived too slowly."),
    (413, "`body_too_large`: the body has more than 1,048,576 bytes."),
    (
        429,
        "`rate_limited`, `quota_exceeded` or `too_many_requests`: the project exceeds a limit; `Retry-After` says when to try \
         again.",
    ),
    (
        503,
        "`too_many_bodies` or `too_many_connections`, with `Retry-After`: the limit is reached; `contended`: too many \
         concurrent changes.",
    ),
    (507, "`no_space`: the store is out of disk space."),
];

impl IntoResponses for SubscriptionRefusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = refusals_as("SubscriptionErrorAnswer", &[SUBSCRIPTIONS]);
        all.extend(refusals(&[BEFORE]));
        all
    }
}

impl IntoResponses for IngestRefusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let mut all = refusals_as("IngestErrorAnswer", &[INGEST]);
        all.extend(refusals(&[BEFORE]));
        all
    }
}

impl IntoResponses for HookRefusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        refusals(&[ANY, CALLER, PROJECT, OURS, HOOKS])
    }
}

impl IntoResponses for EventRefusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        refusals(&[ANY, CALLER, PROJECT, OURS, EVENTS])
    }
}
