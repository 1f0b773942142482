//! `/subscriptions`: subscriptions as clients of events.do create, list, change and remove them.

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};
use tidings_auth::Action;
use tidings_engine::DetachOnDrop;
use tidings_hooks::manage::{Missed, Removed};
use tidings_hooks::{DeliveryId, Hook, HookError, HookId, Hooks, pattern};
use tidings_model::{Ulid, limits};
use utoipa::ToSchema;

use super::described::{
    SubscribeBody, SubscriptionChangeBody, SubscriptionReactivationBody, SubscriptionReferenceBody,
    SubscriptionRefusals,
};
use super::error::Refusal;
use super::request::{self, Pairs};
use super::settings::{Face, Wanted};
use super::shown::{Subscription, SubscriptionStats};
use super::tenant::{Tenant, in_namespace, shard_label};
use crate::Api;
use crate::credential::Caller;
use crate::document::params::{SubscriptionParam, TenantHeader};
use crate::sessions::UNCACHED;

/// The ids in a path. An id consists of capitals and digits; a path with anything else in its place does not exist.
pub struct Ids(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Ids {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let ids = Path::<Vec<(String, String)>>::from_request_parts(parts, state).await;
        let is_id = |text: &str| text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
        match ids {
            Ok(Path(ids)) if ids.iter().all(|(_, id)| is_id(id)) => Ok(Self(ids)),
            Ok(_) | Err(_) => Err(Refusal::no_such_path(parts.uri.path())),
        }
    }
}

impl Ids {
    fn named(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// The subscription; `None` if there cannot be one with this id.
    pub fn hook(&self) -> Option<HookId> {
        HookId::parse(self.named("id"))
    }

    /// The subscription, or an error if there cannot be one with this id.
    pub fn required(&self) -> Result<HookId, HookError> {
        self.hook().ok_or(HookError::NoSuchHook)
    }

    /// The delivery; `None` if there cannot be one with this id.
    pub fn delivery(&self, hooks: &Hooks) -> Option<DeliveryId> {
        hooks.delivery_id(self.named("id"))
    }

    /// The dead letter, or an error if there cannot be one with this id.
    pub fn letter(&self) -> Result<Ulid, HookError> {
        Ulid::parse(self.named("letter")).map_err(|_| HookError::NoSuchDeadLetter)
    }
}

/// A response that caches must not keep.
pub fn uncached(status: StatusCode, answer: impl Serialize) -> Response {
    (status, UNCACHED, Json(answer)).into_response()
}

/// The answer `{"ok":true}` with further members.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionOkAnswer {
    #[schema(example = true)]
    ok: bool,
    /// Number of missed events that are delivered now. Only if a replay was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    events: Option<u64>,
}

impl SubscriptionOkAnswer {
    fn plain() -> Self {
        Self { ok: true, events: None }
    }
}

/// A subscription that was created.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubscribeAnswer {
    #[schema(example = true)]
    ok: bool,
    #[schema(example = "01JCZ8T5N3QK4W8Y2V6X0ABCDE")]
    subscription_id: String,
    /// Shard of the pattern; a label without effect.
    #[schema(example = "acme:webhook")]
    shard: String,
    /// Namespace of the subscription; `null` for the default project.
    #[schema(example = "acme")]
    namespace: Option<String>,
    /// Always `false`.
    dynamic_sharding: bool,
    /// Secret that signs the deliveries. It is shown only in this response.
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    secret: String,
}

/// Create a subscription: every event whose type matches the pattern is delivered to the worker or URL.
#[utoipa::path(
    post,
    path = "/subscriptions/subscribe",
    tag = "subscriptions",
    operation_id = "create_subscription",
    params(TenantHeader),
    request_body = SubscribeBody,
    responses(
        (status = 200, description = "The subscription was created.", body = SubscribeAnswer),
        SubscriptionRefusals,
    )
)]
pub async fn subscribe(
    State(api): State<Api>,
    caller: Caller,
    headers: HeaderMap,
    sent: Body,
) -> Result<Response, Refusal> {
    let (tenant, body) = body(&api, &caller, &headers, sent).await?;
    let settings = Wanted::new(body, Face::Subscriptions).create()?;
    caller.may_still(&tenant.pass).await?;
    let (hooks, project) = (api.hooks.clone(), tenant.project.clone());
    let creating = async move { hooks.create(&project, settings).await };
    let created = DetachOnDrop::new(creating).await.map_err(|error| match error {
        HookError::Exists => Refusal::from(error).at(StatusCode::BAD_REQUEST),
        error => error.into(),
    })?;
    let answer = SubscribeAnswer {
        ok: true,
        subscription_id: created.hook.id.to_string(),
        shard: shard_label(&tenant.project, &created.hook.settings.pattern),
        namespace: tenant.namespace(),
        dynamic_sharding: false,
        secret: created.secret.reveal(),
    };
    Ok(uncached(StatusCode::OK, answer))
}

/// Deactivate a subscription: nothing more is delivered, and events that arrive meanwhile are not queued.
#[utoipa::path(
    post,
    path = "/subscriptions/unsubscribe",
    tag = "subscriptions",
    operation_id = "deactivate_subscription",
    params(TenantHeader),
    request_body = SubscriptionReferenceBody,
    responses((status = 200, description = "The subscription is inactive.", body = SubscriptionOkAnswer), SubscriptionRefusals)
)]
pub async fn unsubscribe(
    State(api): State<Api>,
    caller: Caller,
    headers: HeaderMap,
    sent: Body,
) -> Result<Response, Refusal> {
    let (tenant, body) = body(&api, &caller, &headers, sent).await?;
    let id = referred(&body)?;
    caller.may_still(&tenant.pass).await?;
    let (hooks, id) = (api.hooks.clone(), id.ok_or(HookError::NoSuchHook)?);
    DetachOnDrop::new(async move { hooks.deactivate(tenant.within.as_ref(), id).await }).await?;
    Ok(uncached(StatusCode::OK, SubscriptionOkAnswer::plain()))
}

/// Reactivate a subscription. Deliveries that waited are due at once.
#[utoipa::path(
    post,
    path = "/subscriptions/reactivate",
    tag = "subscriptions",
    operation_id = "reactivate_subscription",
    params(TenantHeader),
    request_body = SubscriptionReactivationBody,
    responses((status = 200, description = "The subscription is active.", body = SubscriptionOkAnswer), SubscriptionRefusals)
)]
pub async fn reactivate(
    State(api): State<Api>,
    caller: Caller,
    headers: HeaderMap,
    sent: Body,
) -> Result<Response, Refusal> {
    let (tenant, body) = body(&api, &caller, &headers, sent).await?;
    let id = referred(&body)?;
    let replays = request::wants_replay(&body)?;
    caller.may_still(&tenant.pass).await?;
    let (hooks, id) = (api.hooks.clone(), id.ok_or(HookError::NoSuchHook)?);
    let missed = if replays { Missed::Replayed } else { Missed::Skipped };
    let reactivating = async move { hooks.reactivate(tenant.within.as_ref(), id, missed).await };
    let events = DetachOnDrop::new(reactivating).await?;
    Ok(uncached(StatusCode::OK, SubscriptionOkAnswer { ok: true, events: replays.then_some(events) }))
}

/// One page of subscriptions.
#[derive(Serialize, ToSchema)]
pub struct SubscriptionListAnswer {
    subscriptions: Vec<Subscription>,
    /// Shard to which the list is confined.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    shard: Option<String>,
    /// Namespace to which the list is confined; `null` for the default project, and for an admin without a tenant.
    namespace: Option<String>,
}

/// List subscriptions, newest first. An admin without a tenant sees those of all namespaces.
#[utoipa::path(
    get,
    path = "/subscriptions/list",
    tag = "subscriptions",
    operation_id = "list_subscriptions",
    params(
        ("active" = Option<String>, Query, description = "`true` or `false`: only active or inactive subscriptions."),
        ("workerId" = Option<String>, Query, description = "Only subscriptions of this worker."),
        ("patternPrefix" = Option<String>, Query, description = "Prefix that the literal part of the pattern must have."),
        ("shard" = Option<String>, Query, description = "Only subscriptions of this shard."),
        ("limit" = Option<String>, Query, description = "Maximum number of subscriptions in the response, 1 to 1,000; default 100.", example = "10"),
        ("offset" = Option<String>, Query, description = "Number of subscriptions to leave out; default 0.", example = "0"),
        TenantHeader,
    ),
    responses((status = 200, description = "One page of subscriptions.", body = SubscriptionListAnswer), SubscriptionRefusals)
)]
pub async fn list(
    State(api): State<Api>,
    caller: Caller,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Refusal> {
    let tenant = Tenant::enter(&caller, &headers, Action::ReadHooks).await?;
    let query = Pairs::of(&uri)?;
    let (limit, offset) = (query.limit()?, query.offset()?);
    let (active, worker, prefix) =
        (query.flag("active")?, query.text("workerId")?, query.text("patternPrefix")?);
    // A shard may be named with its namespace or without.
    let shard = query.text("shard")?.map(|shard| match tenant.namespace() {
        Some(namespace) if shard.starts_with(&format!("{namespace}:")) => shard.to_owned(),
        _ => in_namespace(&tenant.project, shard),
    });
    let wanted = |hook: &Hook| {
        let settings = &hook.settings;
        active.is_none_or(|active| hook.is_active() == active)
            && worker.is_none_or(|worker| settings.worker_id.as_deref() == Some(worker))
            && prefix.is_none_or(|prefix| pattern::prefix(&settings.pattern).starts_with(prefix))
            && shard.as_ref().is_none_or(|shard| shard_label(&hook.project, &settings.pattern) == *shard)
    };
    let listed = api.hooks.list(tenant.within.as_ref(), None, offset, limit, wanted).await?;
    let show = if shard.is_some() { Subscription::of } else { Subscription::with_shard };
    let subscriptions = listed.iter().map(|described| show(&described.hook)).collect();
    Ok(uncached(
        StatusCode::OK,
        SubscriptionListAnswer { subscriptions, shard, namespace: tenant.namespace() },
    ))
}

/// The subscriptions that match.
#[derive(Serialize, ToSchema)]
pub struct SubscriptionMatchAnswer {
    subscriptions: Vec<Subscription>,
    /// Namespace in which was matched; `null` for the default project.
    namespace: Option<String>,
}

/// List the active subscriptions whose pattern matches an event type, oldest first, at most 10,000.
#[utoipa::path(
    get,
    path = "/subscriptions/match",
    tag = "subscriptions",
    operation_id = "match_subscriptions",
    params(
        ("eventType" = String, Query, description = "Event type. Filters are not applied, since there is no event.", example = "webhook.github.push"),
        TenantHeader,
    ),
    responses((status = 200, description = "The subscriptions that match.", body = SubscriptionMatchAnswer), SubscriptionRefusals)
)]
pub async fn matching(
    State(api): State<Api>,
    caller: Caller,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Refusal> {
    let tenant = Tenant::enter(&caller, &headers, Action::ReadHooks).await?;
    let query = Pairs::of(&uri)?;
    let missing = || Refusal::invalid("Missing required query param: eventType");
    let event_type = query.text("eventType")?.ok_or_else(missing)?;
    let matching = match pattern::is_event_type(event_type) {
        true => api.hooks.matching(&tenant.project, event_type, limits::HOOK_MATCHES).await?,
        false => Vec::new(),
    };
    let subscriptions = matching.iter().map(|described| Subscription::of(&described.hook)).collect();
    Ok(uncached(StatusCode::OK, SubscriptionMatchAnswer { subscriptions, namespace: tenant.namespace() }))
}

/// One subscription.
#[derive(Serialize, ToSchema)]
pub struct OneSubscriptionAnswer {
    subscription: Subscription,
}

/// Get a subscription.
#[utoipa::path(
    get,
    path = "/subscriptions/{id}",
    tag = "subscriptions",
    operation_id = "get_subscription",
    params(
        SubscriptionParam,
        TenantHeader,
    ),
    responses((status = 200, description = "The subscription.", body = OneSubscriptionAnswer), SubscriptionRefusals)
)]
pub async fn get(
    State(api): State<Api>,
    ids: Ids,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let tenant = Tenant::enter(&caller, &headers, Action::ReadHooks).await?;
    let described = api.hooks.get(tenant.within.as_ref(), ids.required()?).await?;
    let subscription = Subscription::of(&described.hook);
    Ok(uncached(StatusCode::OK, OneSubscriptionAnswer { subscription }))
}

/// Change the settings of a subscription, apart from its pattern. What is left out stays as it is; `null` restores a default.
#[utoipa::path(
    put,
    path = "/subscriptions/{id}",
    tag = "subscriptions",
    operation_id = "change_subscription",
    params(
        SubscriptionParam,
        TenantHeader,
    ),
    request_body = SubscriptionChangeBody,
    responses((status = 200, description = "The subscription was changed.", body = SubscriptionOkAnswer), SubscriptionRefusals)
)]
pub async fn change(
    State(api): State<Api>,
    ids: Ids,
    caller: Caller,
    headers: HeaderMap,
    sent: Body,
) -> Result<Response, Refusal> {
    let (tenant, body) = body(&api, &caller, &headers, sent).await?;
    let wanted = Wanted::new(body, Face::Subscriptions);
    wanted.check_change()?;
    caller.may_still(&tenant.pass).await?;
    let (hooks, id) = (api.hooks.clone(), ids.required()?);
    let changing = async move {
        hooks.update(tenant.within.as_ref(), id, |settings| Ok(wanted.change(settings)?)).await
    };
    DetachOnDrop::new(changing).await?;
    Ok(uncached(StatusCode::OK, SubscriptionOkAnswer::plain()))
}

/// A subscription that was removed.
#[derive(Serialize, ToSchema)]
pub struct SubscriptionRecordsAnswer {
    #[schema(example = true)]
    ok: bool,
    deleted: DeletedRecords,
}

/// Numbers of records that were removed.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeletedRecords {
    deliveries: u64,
    /// Attempts.
    logs: u64,
    dead_letters: u64,
    /// Always 0.
    batch_deliveries: u64,
}

impl SubscriptionRecordsAnswer {
    /// The answer to a removal.
    pub fn of(removed: Removed) -> Self {
        let Removed { deliveries, attempts, dead_letters } = removed;
        let deleted = DeletedRecords { deliveries, logs: attempts, dead_letters, batch_deliveries: 0 };
        Self { ok: true, deleted }
    }
}

/// Remove a subscription with its deliveries, their log and its dead letters.
#[utoipa::path(
    delete,
    path = "/subscriptions/{id}",
    tag = "subscriptions",
    operation_id = "remove_subscription",
    params(
        SubscriptionParam,
        TenantHeader,
    ),
    responses((status = 200, description = "The subscription was removed.", body = SubscriptionRecordsAnswer), SubscriptionRefusals)
)]
pub async fn remove(
    State(api): State<Api>,
    ids: Ids,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let tenant = Tenant::enter(&caller, &headers, Action::Hooks).await?;
    let (hooks, id) = (api.hooks.clone(), ids.required()?);
    let removing = async move { hooks.remove(tenant.within.as_ref(), id).await };
    let removed = DetachOnDrop::new(removing).await?;
    Ok(uncached(StatusCode::OK, SubscriptionRecordsAnswer::of(removed)))
}

/// Status of a subscription.
#[derive(Serialize, ToSchema)]
pub struct SubscriptionStatusAnswer {
    /// The subscription; `null` if there is none with this id.
    subscription: Option<Subscription>,
    stats: SubscriptionStats,
}

/// Get a subscription with statistics of its deliveries. An unknown id is no error.
#[utoipa::path(
    get,
    path = "/subscriptions/status/{id}",
    tag = "subscriptions",
    operation_id = "get_subscription_status",
    params(
        SubscriptionParam,
        TenantHeader,
    ),
    responses((status = 200, description = "The status of the subscription.", body = SubscriptionStatusAnswer), SubscriptionRefusals)
)]
pub async fn status(
    State(api): State<Api>,
    ids: Ids,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let tenant = Tenant::enter(&caller, &headers, Action::ReadHooks).await?;
    let described = match ids.hook() {
        Some(id) => api.hooks.get(tenant.within.as_ref(), id).await.map(Some),
        None => Ok(None),
    };
    let answer = match described {
        Ok(Some(described)) => SubscriptionStatusAnswer {
            subscription: Some(Subscription::of(&described.hook)),
            stats: SubscriptionStats::of(&described),
        },
        Ok(None) | Err(HookError::NoSuchHook) => {
            SubscriptionStatusAnswer { subscription: None, stats: SubscriptionStats::default() }
        }
        Err(error) => return Err(error.into()),
    };
    Ok(uncached(StatusCode::OK, answer))
}

/// Admits a request that changes something and reads its body, a JSON object.
pub async fn body(
    api: &Api,
    caller: &Caller,
    headers: &HeaderMap,
    sent: Body,
) -> Result<(Tenant, Map<String, Value>), Refusal> {
    let tenant = Tenant::enter(caller, headers, Action::Hooks).await?;
    let body = request::object(api, &tenant.project, sent).await?;
    Ok((tenant, body.ok_or_else(Refusal::not_json)?))
}

/// The subscription that a body refers to; `None` if there cannot be one with this id.
fn referred(body: &Map<String, Value>) -> Result<Option<HookId>, Refusal> {
    match body.get("subscriptionId") {
        Some(Value::String(id)) if !id.is_empty() => Ok(HookId::parse(id)),
        _ => Err(super::settings::Fault::Missing("subscriptionId").into()),
    }
}
