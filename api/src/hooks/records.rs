//! `/subscriptions`: deliveries, their log and dead letters of subscriptions, replays, secrets and clean-up.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;
use serde_json::{Map, Value};
use tidings_auth::Action;
use tidings_engine::DetachOnDrop;
use tidings_hooks::HookError;
use tidings_hooks::manage::Removed;
use utoipa::ToSchema;

use super::described::{CleanUpBody, LetterFilterBody, ReplayBody, RotationBody, SubscriptionRefusals};
use super::error::Refusal;
use super::request::{self, Pairs};
use super::shown::{DeliveriesAnswer, LogEntry, SubscriptionDeadLetter};
use super::subscriptions::{Ids, SubscriptionRecordsAnswer, body, uncached};
use super::tenant::Tenant;
use crate::Api;
use crate::credential::Caller;
use crate::document::params::{SubscriptionParam, TenantHeader};

/// List the deliveries of a subscription, oldest first.
#[utoipa::path(
    get,
    path = "/subscriptions/{id}/deliveries",
    tag = "subscriptions",
    operation_id = "list_subscription_deliveries",
    params(
        SubscriptionParam,
        ("status" = Option<String>, Query, description = "Only deliveries with this status: `pending`, `failed`, `delivered` or `dead`."),
        ("limit" = Option<String>, Query, description = "Maximum number of deliveries in the response, 1 to 1,000; default 100.", example = "10"),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the previous response."),
        TenantHeader,
    ),
    responses((status = 200, description = "One page of deliveries.", body = DeliveriesAnswer), SubscriptionRefusals)
)]
pub async fn deliveries(
    State(api): State<Api>,
    ids: Ids,
    caller: Caller,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Refusal> {
    let tenant = Tenant::enter(&caller, &headers, Action::ReadHooks).await?;
    let query = Pairs::of(&uri)?;
    let (status, after, limit) = (query.status()?, query.position()?, query.limit()?);
    let id = ids.required()?;
    let page = api.hooks.deliveries(tenant.within.as_ref(), id, status, after, limit).await?;
    Ok(uncached(StatusCode::OK, DeliveriesAnswer::of(page)))
}

/// The log of a delivery.
#[derive(Serialize, ToSchema)]
pub struct DeliveryLogAnswer {
    /// Attempts, oldest first.
    logs: Vec<LogEntry>,
}

/// Get the log of a delivery: its attempts, oldest first. An unknown id is no error.
#[utoipa::path(
    get,
    path = "/subscriptions/deliveries/{id}/logs",
    tag = "subscriptions",
    operation_id = "get_delivery_log",
    params(
        ("id" = String, Path, description = "Delivery id.", example = "0000000J5G00004000000000C8"),
        TenantHeader,
    ),
    responses((status = 200, description = "The log of the delivery.", body = DeliveryLogAnswer), SubscriptionRefusals)
)]
pub async fn logs(
    State(api): State<Api>,
    ids: Ids,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let tenant = Tenant::enter(&caller, &headers, Action::ReadHooks).await?;
    let within = tenant.within.as_ref();
    let mut logs = Vec::new();
    if let Some(delivery) = ids.delivery(&api.hooks)
        && let Some(hook) = api.hooks.hook_of(within, delivery).await?
    {
        let attempts = api.hooks.attempts(within, delivery).await?;
        logs.extend(attempts.into_iter().map(|attempt| LogEntry::of(hook, delivery, attempt)));
    }
    Ok(uncached(StatusCode::OK, DeliveryLogAnswer { logs }))
}

/// One page of dead letters.
#[derive(Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionDeadLettersAnswer {
    dead_letters: Vec<SubscriptionDeadLetter>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_cursor: Option<String>,
}

/// List the dead letters of a subscription, newest first. An unknown id is no error.
#[utoipa::path(
    get,
    path = "/subscriptions/{id}/dead-letters",
    tag = "subscriptions",
    operation_id = "list_subscription_dead_letters",
    params(
        SubscriptionParam,
        ("limit" = Option<String>, Query, description = "Maximum number of dead letters in the response, 1 to 1,000; default 100. Large events make a page shorter.", example = "10"),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the previous response."),
        TenantHeader,
    ),
    responses((status = 200, description = "One page of dead letters.", body = SubscriptionDeadLettersAnswer), SubscriptionRefusals)
)]
pub async fn dead_letters(
    State(api): State<Api>,
    ids: Ids,
    caller: Caller,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Refusal> {
    let tenant = Tenant::enter(&caller, &headers, Action::ReadHooks).await?;
    let query = Pairs::of(&uri)?;
    let (after, limit) = (query.ulid()?, query.limit()?);
    let within = tenant.within.as_ref();
    let page = match ids.hook() {
        Some(id) => request::dead_letters(&api.hooks, within, id, after, limit).await,
        None => Err(HookError::NoSuchHook),
    };
    let answer = match page {
        Ok(page) => SubscriptionDeadLettersAnswer {
            dead_letters: page
                .letters
                .into_iter()
                .map(|(letter, payload)| SubscriptionDeadLetter::of(letter, payload))
                .collect(),
            next_cursor: page.next.map(|next| next.to_string()),
        },
        Err(HookError::NoSuchHook) => SubscriptionDeadLettersAnswer::default(),
        Err(error) => return Err(error.into()),
    };
    Ok(uncached(StatusCode::OK, answer))
}

/// A dead letter that is delivered again.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionRetryAnswer {
    #[schema(example = true)]
    ok: bool,
    /// Id of the new delivery.
    delivery_id: String,
}

/// Deliver a dead letter again, at once, as a new delivery.
#[utoipa::path(
    post,
    path = "/subscriptions/{id}/dead-letters/{letter}/retry",
    tag = "subscriptions",
    operation_id = "retry_subscription_dead_letter",
    params(
        SubscriptionParam,
        ("letter" = String, Path, description = "Id of the dead letter.", example = "01JCZ8T5N3QK4W8Y2V6X0ABCDE"),
        TenantHeader,
    ),
    responses((status = 200, description = "The dead letter is delivered again.", body = SubscriptionRetryAnswer), SubscriptionRefusals)
)]
pub async fn retry(
    State(api): State<Api>,
    ids: Ids,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let tenant = Tenant::enter(&caller, &headers, Action::Hooks).await?;
    let (hooks, id, letter) = (api.hooks.clone(), ids.required()?, ids.letter()?);
    let retrying = async move { hooks.retry_dead_letter(tenant.within.as_ref(), id, letter).await };
    let delivery = DetachOnDrop::new(retrying).await?;
    Ok(uncached(StatusCode::OK, SubscriptionRetryAnswer { ok: true, delivery_id: delivery.to_string() }))
}

/// Dead letters that are delivered again.
#[derive(Serialize, ToSchema)]
pub struct SubscriptionRetriesAnswer {
    #[schema(example = true)]
    ok: bool,
    /// Number of the dead letters.
    retried: u64,
}

/// Deliver dead letters of a subscription again: all, or those of a time range or with an error.
#[utoipa::path(
    post,
    path = "/subscriptions/{id}/dead-letters/retry",
    tag = "subscriptions",
    operation_id = "retry_subscription_dead_letters",
    params(
        SubscriptionParam,
        TenantHeader,
    ),
    request_body = Option<LetterFilterBody>,
    responses((status = 200, description = "The dead letters are delivered again.", body = SubscriptionRetriesAnswer), SubscriptionRefusals)
)]
pub async fn retry_all(
    State(api): State<Api>,
    ids: Ids,
    caller: Caller,
    headers: HeaderMap,
    sent: Body,
) -> Result<Response, Refusal> {
    let (tenant, body) = body_or_nothing(&api, &caller, &headers, sent).await?;
    let filter = request::letter_filter(&body)?;
    caller.may_still(&tenant.pass).await?;
    let (hooks, id) = (api.hooks.clone(), ids.required()?);
    let retrying = async move { hooks.retry_dead_letters(tenant.within.as_ref(), id, &filter).await };
    let retried = DetachOnDrop::new(retrying).await?;
    Ok(uncached(StatusCode::OK, SubscriptionRetriesAnswer { ok: true, retried }))
}

/// A new secret.
#[derive(Serialize, ToSchema)]
pub struct SubscriptionSecretAnswer {
    #[schema(example = true)]
    ok: bool,
    /// Secret that signs the deliveries. It is shown only in this response.
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    secret: String,
}

/// Replace the secret that signs the deliveries of a subscription. For a while, the old secret signs as well.
#[utoipa::path(
    post,
    path = "/subscriptions/{id}/rotate-secret",
    tag = "subscriptions",
    operation_id = "rotate_subscription_secret",
    params(
        SubscriptionParam,
        TenantHeader,
    ),
    request_body = Option<RotationBody>,
    responses((status = 200, description = "The secret was replaced.", body = SubscriptionSecretAnswer), SubscriptionRefusals)
)]
pub async fn rotate_secret(
    State(api): State<Api>,
    ids: Ids,
    caller: Caller,
    headers: HeaderMap,
    sent: Body,
) -> Result<Response, Refusal> {
    let (tenant, body) = body_or_nothing(&api, &caller, &headers, sent).await?;
    let overlap = request::overlap(&body)?;
    caller.may_still(&tenant.pass).await?;
    let (hooks, id) = (api.hooks.clone(), ids.required()?);
    let rotating = async move { hooks.rotate_secret(tenant.within.as_ref(), id, overlap).await };
    let secret = DetachOnDrop::new(rotating).await?;
    Ok(uncached(StatusCode::OK, SubscriptionSecretAnswer { ok: true, secret: secret.reveal() }))
}

/// A replay that has begun.
#[derive(Serialize, ToSchema)]
pub struct SubscriptionReplayAnswer {
    #[schema(example = true)]
    ok: bool,
    /// Number of events that are delivered again.
    events: u64,
}

/// Deliver events of the past once more: those that arrived in a range and match the subscription.
#[utoipa::path(
    post,
    path = "/subscriptions/{id}/replay",
    tag = "subscriptions",
    operation_id = "replay_subscription",
    params(
        SubscriptionParam,
        TenantHeader,
    ),
    request_body = ReplayBody,
    responses((status = 202, description = "The events are being delivered.", body = SubscriptionReplayAnswer), SubscriptionRefusals)
)]
pub async fn replay(
    State(api): State<Api>,
    ids: Ids,
    caller: Caller,
    headers: HeaderMap,
    sent: Body,
) -> Result<Response, Refusal> {
    let (tenant, body) = body(&api, &caller, &headers, sent).await?;
    let (from, to) = request::range(&body)?;
    caller.may_still(&tenant.pass).await?;
    let (hooks, id) = (api.hooks.clone(), ids.required()?);
    let replaying = async move { hooks.replay(tenant.within.as_ref(), id, from, to).await };
    let events = DetachOnDrop::new(replaying).await?;
    Ok(uncached(StatusCode::ACCEPTED, SubscriptionReplayAnswer { ok: true, events }))
}

/// Remove finished deliveries, their log and dead letters that were created before a time, of all subscriptions.
#[utoipa::path(
    post,
    path = "/subscriptions/cleanup",
    tag = "subscriptions",
    operation_id = "clean_up_subscriptions",
    params(TenantHeader),
    request_body = CleanUpBody,
    responses((status = 200, description = "Old records were removed.", body = SubscriptionRecordsAnswer), SubscriptionRefusals)
)]
pub async fn clean_up(
    State(api): State<Api>,
    caller: Caller,
    headers: HeaderMap,
    sent: Body,
) -> Result<Response, Refusal> {
    let (tenant, body) = body(&api, &caller, &headers, sent).await?;
    let before = request::before(&body)?;
    caller.may_still(&tenant.pass).await?;
    let hooks = api.hooks.clone();
    let cleaning = async move { hooks.clean_up(tenant.within.as_ref(), None, before).await };
    let cleaned = DetachOnDrop::new(cleaning).await?;
    let removed = Removed {
        deliveries: cleaned.deliveries,
        attempts: cleaned.attempts,
        dead_letters: cleaned.dead_letters,
    };
    Ok(uncached(StatusCode::OK, SubscriptionRecordsAnswer::of(removed)))
}

/// Admits a request that changes something and reads its body, a JSON object or nothing.
async fn body_or_nothing(
    api: &Api,
    caller: &Caller,
    headers: &HeaderMap,
    sent: Body,
) -> Result<(Tenant, Map<String, Value>), Refusal> {
    let tenant = Tenant::enter(caller, headers, Action::Hooks).await?;
    let body = request::object_or_nothing(api, &tenant.project, sent).await?;
    Ok((tenant, body.ok_or_else(Refusal::not_json)?))
}
