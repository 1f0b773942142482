//! What responses show of hooks, deliveries and dead letters. Secrets are never among it.

use serde::Serialize;
use serde_json::Value;
use tidings_hooks::history::{Delivery, DeliveryPage, Described, Letter};
use tidings_hooks::{Attempt, AttemptOutcome, DeliveryId, Hook, HookId, Settings, pattern};
use tidings_model::Ulid;
use utoipa::ToSchema;

use super::tenant::{namespace, shard_label};
use crate::wire::offset;

/// Bits of the number of an attempt in the id of its log entry.
const ATTEMPT_BITS: u32 = 8;

/// A subscription.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "id": "01JCZ8T5N3QK4W8Y2V6X0ABCDE", "workerId": "my-worker", "workerBinding": null, "pattern": "webhook.github.*",
    "patternPrefix": "webhook.github", "rpcMethod": "handleGitHubEvent", "maxRetries": 5, "timeoutMs": 30000, "active": true,
    "createdAt": 1768473000000u64, "updatedAt": 1768473000000u64, "batchEnabled": false, "batchSize": 100,
    "batchWindowMs": 1000, "namespace": "acme", "format": "envelope", "retrySchedule": [], "ordering": "none",
    "concurrency": 32, "headerNames": []
}))]
pub struct Subscription {
    #[schema(example = "01JCZ8T5N3QK4W8Y2V6X0ABCDE")]
    id: String,
    /// Worker that is called, or `null`.
    worker_id: Option<String>,
    /// Name of a handler in the server's process, or `null`.
    worker_binding: Option<String>,
    #[schema(example = "webhook.github.*")]
    pattern: String,
    /// Literal part of the pattern before its first wildcard.
    pattern_prefix: String,
    /// Method of the worker that is called, or `null`.
    rpc_method: Option<String>,
    /// Attempts of a delivery in all.
    max_retries: u32,
    /// Time that an attempt may take, in milliseconds.
    timeout_ms: u32,
    /// Whether events are delivered.
    active: bool,
    /// Time of the creation, in milliseconds since 1970.
    created_at: u64,
    /// Time of the last change, in milliseconds since 1970.
    updated_at: u64,
    /// Always `false`: each event is a request of its own.
    batch_enabled: bool,
    /// Always 100; without effect.
    batch_size: u32,
    /// Always 1000; without effect.
    batch_window_ms: u32,
    /// Namespace of the subscription; `null` for the default project.
    namespace: Option<String>,
    #[serde(flatten)]
    options: DeliveryOptions,
    /// Shard of the pattern. Only in lists that are not confined to one shard.
    #[serde(rename = "_shard", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    shard: Option<String>,
}

/// How events are delivered.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryOptions {
    /// Endpoint that is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    url: Option<String>,
    /// Form of a delivery: `envelope`, `raw`, `cloudevents-structured` or `cloudevents-binary`.
    format: String,
    /// Delays after the first, second, … failed attempt, in milliseconds. Empty for the default schedule.
    retry_schedule: Vec<u64>,
    /// Which deliveries wait for earlier ones: `none`, `subscription` (all) or `key` (those with the same key).
    ordering: String,
    /// JSON pointer into the event to the ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    ordering_key: Option<String>,
    /// Maximum number of deliveries per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    rate_limit: Option<u32>,
    /// Maximum number of attempts at a time.
    concurrency: u32,
    /// Conditions on the event beside its type.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    filter: Option<Value>,
    /// Names of the additional request headers. Their values may be secrets and are not shown.
    header_names: Vec<String>,
}

impl DeliveryOptions {
    fn of(settings: &Settings) -> Self {
        Self {
            url: settings.url.clone(),
            format: settings.format.as_str().to_owned(),
            retry_schedule: settings.retry_schedule.clone(),
            ordering: settings.ordering.as_str().to_owned(),
            ordering_key: settings.ordering_key.clone(),
            rate_limit: settings.rate_limit,
            concurrency: settings.concurrency,
            filter: settings.filter.as_deref().and_then(|filter| serde_json::from_str(filter).ok()),
            header_names: settings.headers.iter().map(|(name, _)| name.clone()).collect(),
        }
    }
}

impl Subscription {
    /// A subscription as it is shown by itself.
    pub fn of(hook: &Hook) -> Self {
        let settings = &hook.settings;
        Self {
            id: hook.id.to_string(),
            worker_id: settings.worker_id.clone(),
            worker_binding: settings.worker_binding.clone(),
            pattern: settings.pattern.clone(),
            pattern_prefix: pattern::prefix(&settings.pattern).to_owned(),
            rpc_method: settings.rpc_method.clone(),
            max_retries: settings.max_retries,
            timeout_ms: settings.timeout_ms,
            active: hook.is_active(),
            created_at: hook.created_at.as_millis(),
            updated_at: hook.updated_at.as_millis(),
            batch_enabled: false,
            batch_size: 100,
            batch_window_ms: 1000,
            namespace: namespace(&hook.project),
            options: DeliveryOptions::of(settings),
            shard: None,
        }
    }

    /// A subscription in a list of all shards.
    pub fn with_shard(hook: &Hook) -> Self {
        Self { shard: Some(shard_label(&hook.project, &hook.settings.pattern)), ..Self::of(hook) }
    }
}

/// Statistics of the deliveries of a subscription.
#[derive(Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "pendingDeliveries": 0, "failedDeliveries": 2, "deadLetters": 1, "successRate": 0.95, "totalDelivered": 100,
    "totalAttempts": 105
}))]
pub struct SubscriptionStats {
    /// Deliveries of which no attempt has ended.
    pending_deliveries: u64,
    /// Deliveries that wait for a retry.
    failed_deliveries: u64,
    /// Current dead letters.
    dead_letters: u64,
    /// Accepted deliveries per attempt, 0 without attempts.
    success_rate: f64,
    /// Deliveries that were accepted, ever.
    total_delivered: u64,
    /// Attempts that ended, ever.
    total_attempts: u64,
}

impl SubscriptionStats {
    /// The statistics of a subscription.
    pub fn of(described: &Described) -> Self {
        Self {
            pending_deliveries: described.pending,
            failed_deliveries: described.failed,
            dead_letters: described.dead_letters,
            success_rate: described.success_rate(),
            total_delivered: described.delivered,
            total_attempts: described.attempts,
        }
    }
}

/// A hook.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "id": "01JCZ8T5N3QK4W8Y2V6X0ABCDE", "pattern": "orders.*", "active": true, "url": "https://example.com/events",
    "maxRetries": 5, "timeoutMs": 30000, "format": "envelope", "retrySchedule": [], "ordering": "none", "concurrency": 32,
    "headerNames": [], "createdAt": 1768473000000u64, "updatedAt": 1768473000000u64
}))]
pub struct HookAnswer {
    #[schema(example = "01JCZ8T5N3QK4W8Y2V6X0ABCDE")]
    id: String,
    /// Pattern of the event types that are delivered.
    #[schema(example = "orders.*")]
    pattern: String,
    /// Whether events are delivered.
    active: bool,
    /// Worker that is called by way of the server's target template.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    worker_id: Option<String>,
    /// Name of a handler in the server's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    worker_binding: Option<String>,
    /// Method of the worker that is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    rpc_method: Option<String>,
    /// Attempts of a delivery in all.
    max_retries: u32,
    /// Time that an attempt may take, in milliseconds.
    timeout_ms: u32,
    #[serde(flatten)]
    options: DeliveryOptions,
    /// Time of the creation, in milliseconds since 1970.
    created_at: u64,
    /// Time of the last change, in milliseconds since 1970.
    updated_at: u64,
}

impl HookAnswer {
    /// A hook as it is shown.
    pub fn of(hook: &Hook) -> Self {
        let settings = &hook.settings;
        Self {
            id: hook.id.to_string(),
            pattern: settings.pattern.clone(),
            active: hook.is_active(),
            worker_id: settings.worker_id.clone(),
            worker_binding: settings.worker_binding.clone(),
            rpc_method: settings.rpc_method.clone(),
            max_retries: settings.max_retries,
            timeout_ms: settings.timeout_ms,
            options: DeliveryOptions::of(settings),
            created_at: hook.created_at.as_millis(),
            updated_at: hook.updated_at.as_millis(),
        }
    }
}

/// A hook with statistics of its deliveries.
#[derive(Serialize, ToSchema)]
pub struct DescribedHook {
    #[serde(flatten)]
    hook: HookAnswer,
    stats: HookStats,
}

/// Statistics of the deliveries of a hook.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookStats {
    /// Deliveries of which no attempt has ended.
    pending: u64,
    /// Deliveries that wait for a retry.
    failed: u64,
    /// Current dead letters.
    dead_letters: u64,
    /// Deliveries that were accepted, ever.
    delivered: u64,
    /// Attempts that ended, ever.
    attempts: u64,
}

impl DescribedHook {
    /// A hook as it is shown with its statistics.
    pub fn of(described: &Described) -> Self {
        let &Described { pending, failed, dead_letters, delivered, attempts, .. } = described;
        let stats = HookStats { pending, failed, dead_letters, delivered, attempts };
        Self { hook: HookAnswer::of(&described.hook), stats }
    }
}

/// One page of deliveries, oldest first.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeliveriesAnswer {
    deliveries: Vec<DeliveryAnswer>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_cursor: Option<String>,
}

/// A delivery: an event on its way to one endpoint.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "id": "0000000J5G00004000000000C8", "eventId": "paid-7", "type": "orders.paid", "status": "failed", "attempts": 1,
    "position": "0010000000000042_0000000000000000", "createdAt": 1768473000000u64, "lastError": "HTTP 503: busy"
}))]
pub struct DeliveryAnswer {
    /// Id of the delivery, which is the `webhook-id` of all its attempts.
    #[schema(example = "0000000J5G00004000000000C8")]
    id: String,
    /// Id of the event.
    event_id: String,
    /// Type of the event.
    #[serde(rename = "type")]
    #[schema(example = "orders.paid")]
    event_type: String,
    /// Status: `pending`, `failed` (waits for a retry), `delivered` or `dead`.
    status: String,
    /// Number of attempts that ended.
    attempts: u32,
    /// Position of the event, from which a replay can begin.
    #[schema(example = "0010000000000042_0000000000000000")]
    position: String,
    /// Time at which the delivery was queued, in milliseconds since 1970.
    created_at: u64,
    /// Time at which the endpoint accepted it, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    delivered_at: Option<u64>,
    /// Error of the last failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    last_error: Option<String>,
}

impl DeliveriesAnswer {
    /// A page as it is shown.
    pub fn of(page: DeliveryPage) -> Self {
        let delivery = |delivery: Delivery| {
            let (event_id, event_type) =
                delivery.event.map(|event| (event.id, event.event_type)).unwrap_or_default();
            DeliveryAnswer {
                id: delivery.id.to_string(),
                event_id,
                event_type,
                status: delivery.status.as_str().to_owned(),
                attempts: delivery.attempts,
                position: offset::print(delivery.event_position),
                created_at: delivery.created_at.as_millis(),
                delivered_at: delivery.delivered_at.map(|at| at.as_millis()),
                last_error: delivery.last_error,
            }
        };
        let next_cursor = page.next.map(offset::print);
        Self { deliveries: page.deliveries.into_iter().map(delivery).collect(), next_cursor }
    }
}

/// An entry of the delivery log: one attempt.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "id": "01JCZ8T5N3QK4W8Y2V6X0ABCDE", "deliveryId": "0000000J5G00004000000000C8",
    "subscriptionId": "01JCZ8T5N3QK4W8Y2V6X0ABCDE", "attemptNumber": 1, "status": "failed", "durationMs": 12,
    "errorMessage": "HTTP 503: busy", "createdAt": 1768473000000u64
}))]
pub struct LogEntry {
    id: String,
    delivery_id: String,
    subscription_id: String,
    /// Number of the attempt, from 1.
    attempt_number: u32,
    /// Status: `success` or `failed`.
    status: String,
    /// Time that the attempt took, in milliseconds.
    duration_ms: u32,
    /// Error, if the attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error_message: Option<String>,
    /// Beginning of the response, if the attempt succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    worker_response: Option<String>,
    /// Time at which the attempt ended, in milliseconds since 1970.
    created_at: u64,
}

impl LogEntry {
    /// An attempt of a delivery as it is shown.
    pub fn of(hook: HookId, delivery: DeliveryId, attempt: Attempt) -> Self {
        // An attempt has no id of its own, so one is made of its time, its delivery and its number.
        let of_delivery = Ulid::parse(&delivery.to_string()).map_or(0, Ulid::get);
        let id = Ulid::at(attempt.at, of_delivery << ATTEMPT_BITS | u128::from(attempt.number));
        let Outcome { status, error, response } = Outcome::of(attempt.outcome);
        Self {
            id: id.to_string(),
            delivery_id: delivery.to_string(),
            subscription_id: hook.to_string(),
            attempt_number: attempt.number,
            status,
            duration_ms: attempt.duration_ms,
            error_message: error,
            worker_response: response,
            created_at: attempt.at.as_millis(),
        }
    }
}

/// An attempt to make a delivery.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "number": 1, "status": "failed", "at": 1768473000000u64, "durationMs": 12, "error": "HTTP 503: busy"
}))]
pub struct AttemptAnswer {
    /// Number of the attempt, from 1.
    number: u32,
    /// Status: `success` or `failed`.
    status: String,
    /// Time at which the attempt ended, in milliseconds since 1970.
    at: u64,
    /// Time that the attempt took, in milliseconds.
    duration_ms: u32,
    /// Error, if the attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<String>,
    /// Beginning of the response, if the attempt succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    response: Option<String>,
}

impl AttemptAnswer {
    /// An attempt as it is shown.
    pub fn of(attempt: Attempt) -> Self {
        let Outcome { status, error, response } = Outcome::of(attempt.outcome);
        let (number, at, duration_ms) = (attempt.number, attempt.at.as_millis(), attempt.duration_ms);
        Self { number, status, at, duration_ms, error, response }
    }
}

struct Outcome {
    status: String,
    error: Option<String>,
    response: Option<String>,
}

impl Outcome {
    fn of(outcome: AttemptOutcome) -> Self {
        match outcome {
            AttemptOutcome::Success(response) => {
                Self { status: "success".to_owned(), error: None, response: Some(response) }
            }
            AttemptOutcome::Failed(error) => {
                Self { status: "failed".to_owned(), error: Some(error), response: None }
            }
        }
    }
}

/// A dead letter of a subscription.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "id": "01JCZ8T5N3QK4W8Y2V6X0ABCDE", "deliveryId": "0000000J5G00004000000000C8",
    "subscriptionId": "01JCZ8T5N3QK4W8Y2V6X0ABCDE", "eventId": "paid-7",
    "eventPayload": "{\"type\":\"orders.paid\",\"ts\":\"2026-01-15T10:30:00.000Z\"}",
    "reason": "max_retries_exceeded", "lastError": "HTTP 503: busy", "createdAt": 1768473000000u64
}))]
pub struct SubscriptionDeadLetter {
    id: String,
    delivery_id: String,
    subscription_id: String,
    event_id: String,
    /// The event as JSON text. Empty if it is no longer kept.
    event_payload: String,
    /// Reason: `max_retries_exceeded`, `endpoint_gone`, `expired` or `queue_full`.
    reason: String,
    /// Error of the last attempt. Empty if there was none.
    last_error: String,
    /// Time at which the delivery was given up, in milliseconds since 1970.
    created_at: u64,
}

impl SubscriptionDeadLetter {
    /// A dead letter as it is shown. `payload` is its event.
    pub fn of(letter: Letter, payload: String) -> Self {
        Self {
            id: letter.letter.id.to_string(),
            delivery_id: letter.delivery.to_string(),
            subscription_id: letter.hook.to_string(),
            event_id: letter.event.map(|event| event.id).unwrap_or_default(),
            event_payload: payload,
            reason: letter.letter.reason.as_str().to_owned(),
            last_error: letter.letter.last_error,
            created_at: letter.letter.at.as_millis(),
        }
    }
}

/// A dead letter: a delivery that was given up.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "id": "01JCZ8T5N3QK4W8Y2V6X0ABCDE", "deliveryId": "0000000J5G00004000000000C8", "eventId": "paid-7",
    "type": "orders.paid", "event": { "type": "orders.paid", "ts": "2026-01-15T10:30:00.000Z" },
    "reason": "max_retries_exceeded", "lastError": "HTTP 503: busy", "createdAt": 1768473000000u64
}))]
pub struct DeadLetterAnswer {
    id: String,
    /// Id of the delivery that was given up.
    delivery_id: String,
    /// Id of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    event_id: Option<String>,
    /// Type of the event.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    event_type: Option<String>,
    /// The event; absent if it is no longer kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    event: Option<Value>,
    /// Reason: `max_retries_exceeded`, `endpoint_gone`, `expired` or `queue_full`.
    reason: String,
    /// Error of the last attempt, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    last_error: Option<String>,
    /// Time at which the delivery was given up, in milliseconds since 1970.
    created_at: u64,
}

impl DeadLetterAnswer {
    /// A dead letter as it is shown. `payload` is its event.
    pub fn of(letter: Letter, payload: &str) -> Self {
        let (id, delivery_id) = (letter.letter.id.to_string(), letter.delivery.to_string());
        let (event_id, event_type) = letter.event.map(|event| (event.id, event.event_type)).unzip();
        Self {
            id,
            delivery_id,
            event_id,
            event_type,
            event: serde_json::from_str(payload).ok(),
            reason: letter.letter.reason.as_str().to_owned(),
            last_error: Some(letter.letter.last_error).filter(|error| !error.is_empty()),
            created_at: letter.letter.at.as_millis(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tidings_hooks::{HookState, Secret, Secrets};
    use tidings_model::{CommitNumber, LogId, Position, ProjectId, Timestamp};

    fn hook() -> Hook {
        let settings = Settings {
            worker_id: Some("w".into()),
            rpc_method: Some("m".into()),
            headers: vec![("authorization".into(), "Bearer secret-of-endpoint".into())],
            filter: Some(r#"{"/a":{"eq":1}}"#.into()),
            ..Settings::new("webhook.github.*")
        };
        let secret = |byte: u8| Secret::draw(&|bytes: &mut [u8]| bytes.fill(byte));
        Hook {
            id: HookId(Ulid::new(1)),
            project: ProjectId::parse("acme").expect("an id"),
            settings,
            secrets: Secrets { current: secret(1), previous: Some((secret(2), Timestamp::from_millis(1))) },
            state: HookState::Active,
            id_mask: tidings_hooks::IdMask::default(),
            created_at: Timestamp::from_millis(5),
            updated_at: Timestamp::from_millis(6),
        }
    }

    #[test]
    fn a_subscription_shows_its_settings_and_no_secret() {
        let shown = serde_json::to_value(Subscription::with_shard(&hook())).expect("JSON");
        assert_eq!(
            shown,
            json!({
                "id": "00000000000000000000000001", "workerId": "w", "workerBinding": null, "rpcMethod": "m",
                "pattern": "webhook.github.*", "patternPrefix": "webhook.github", "maxRetries": 5,
                "timeoutMs": 30000, "active": true, "createdAt": 5, "updatedAt": 6, "batchEnabled": false,
                "batchSize": 100, "batchWindowMs": 1000, "namespace": "acme", "_shard": "acme:webhook",
                "format": "envelope", "retrySchedule": [], "ordering": "none", "concurrency": 32,
                "filter": {"/a": {"eq": 1}}, "headerNames": ["authorization"],
            })
        );
        assert_eq!(serde_json::to_value(Subscription::of(&hook())).expect("JSON").get("_shard"), None);
        for text in [shown.to_string(), serde_json::to_string(&HookAnswer::of(&hook())).expect("JSON")] {
            for secret in [hook().secrets.current.reveal(), "secret-of-endpoint".to_owned()] {
                assert!(!text.contains(&secret), "{text}");
            }
        }
    }

    #[test]
    fn entries_of_the_log_have_different_ids_that_stay() {
        let entry = |queue: u64, index: u64, number: u32| {
            let position = Position::in_commit(CommitNumber::from_number(77), index);
            let outcome = AttemptOutcome::Failed("HTTP 500: ".into());
            let attempt = Attempt { number, at: Timestamp::from_millis(9), duration_ms: 1, outcome };
            LogEntry::of(
                HookId(Ulid::new(1)),
                DeliveryId { queue: LogId::new(queue), position, mask: tidings_hooks::IdMask::default() },
                attempt,
            )
            .id
        };
        let ids = [entry(1, 0, 1), entry(1, 0, 2), entry(1, 1, 1), entry(2, 0, 1)];
        for (at, id) in ids.iter().enumerate() {
            assert_eq!(id.len(), 26);
            assert!(!ids[..at].contains(id), "{ids:?}");
        }
        assert_eq!(entry(1, 0, 1), ids[0]);
    }
}
