//! `/v1/{project}/hooks/subscriptions`: the subscriptions to streams of a project, as hooks show what is delivered and what was given
//! up. They are made and changed below `{root}/__ds`.
//!
//! No hook has the id `subscriptions`: ids of hooks are ULIDs.

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;
use tidings_auth::{Action, Resource};
use tidings_engine::DetachOnDrop;
use tidings_model::ProjectId;
use tidings_subscriptions::{Delivery, Glob, Subscription, SubscriptionError, SubscriptionId};
use utoipa::ToSchema;

use super::described::HookRefusals;
use super::request::Pairs;
use super::subscriptions::uncached;
use crate::Api;
use crate::credential::Caller;
use crate::document::params::{ProjectParam, StreamSubscriptionParam};
use crate::error::ApiError;
use crate::path::{ProjectPath, Segments};
use crate::subscriptions::Refusal;

/// One page of subscriptions to streams.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookSubscriptionsAnswer {
    subscriptions: Vec<HookSubscription>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_cursor: Option<String>,
}

/// A subscription to streams, and how its deliveries go.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookSubscription {
    /// Id, chosen by its owner.
    #[schema(example = "sub-1")]
    id: String,
    /// `webhook` or `pull-wake`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// Endpoint, for `webhook`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    url: Option<String>,
    /// Path of the stream that gets wake events, for `pull-wake`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    wake_stream: Option<String>,
    /// Glob on paths of streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pattern: Option<String>,
    /// `active`, or `failed` while the last attempt to wake a worker has failed.
    status: &'static str,
    /// Failed attempts in a row.
    attempts: u32,
    /// Failed attempts in a row after which it is given up.
    max_attempts: u32,
    /// Why the last attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    last_error: Option<String>,
    /// Time of the next attempt after a failed one, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_attempt_at: Option<u64>,
    /// Present when it was given up: nothing is attempted until it is retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    dead_letter: Option<HookSubscriptionDeath>,
    /// Time of the creation, in milliseconds since 1970.
    created_at: u64,
}

/// Why and when a subscription to streams was given up.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookSubscriptionDeath {
    /// Reason: `max_retries_exceeded`.
    #[schema(example = "max_retries_exceeded")]
    reason: &'static str,
    /// Error of the last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    last_error: Option<String>,
    /// Time at which it was given up, in milliseconds since 1970.
    created_at: u64,
}

impl HookSubscription {
    fn of(subscription: &Subscription) -> Self {
        let Subscription { config, state, .. } = subscription;
        let (kind, url, wake_stream) = match &config.delivery {
            Delivery::Webhook { url } => ("webhook", Some(url.to_string()), None),
            Delivery::PullWake { stream } => ("pull-wake", None, Some(stream.as_str().to_owned())),
        };
        let last_error = || state.last_error.as_ref().map(ToString::to_string);
        Self {
            id: subscription.id.to_string(),
            kind,
            url,
            wake_stream,
            pattern: config.pattern.as_ref().map(Glob::as_str).map(str::to_owned),
            status: if state.failures > 0 { "failed" } else { "active" },
            attempts: state.failures,
            max_attempts: config.max_attempts,
            last_error: last_error(),
            next_attempt_at: state.next_attempt_at.map(|at| at.as_millis()),
            dead_letter: state.dead_since.map(|since| HookSubscriptionDeath {
                reason: "max_retries_exceeded",
                last_error: last_error(),
                created_at: since.as_millis(),
            }),
            created_at: subscription.created_at.as_millis(),
        }
    }
}

/// Which subscriptions are listed.
#[derive(Clone, Copy)]
enum Wanted {
    All,
    Active,
    /// Those whose last attempt has failed, also if they were given up.
    Failed,
    /// Those that were given up.
    Dead,
}

impl Wanted {
    fn of(query: &Pairs) -> Result<Self, ApiError> {
        match query.once("status")? {
            None => Ok(Self::All),
            Some("active") => Ok(Self::Active),
            Some("failed") => Ok(Self::Failed),
            Some("dead") => Ok(Self::Dead),
            Some(_) => {
                Err(ApiError::bad_request("invalid_status", "status must be `active`, `failed` or `dead`"))
            }
        }
    }

    fn includes(self, subscription: &Subscription) -> bool {
        match self {
            Self::All => true,
            Self::Active => subscription.state.failures == 0,
            Self::Failed => subscription.state.failures > 0,
            Self::Dead => subscription.state.dead_since.is_some(),
        }
    }
}

/// List the subscriptions to streams of a project, in the order of their ids, with what became of their last attempts.
#[utoipa::path(
    get,
    path = "/v1/{project}/hooks/subscriptions",
    tag = "hooks",
    operation_id = "list_hook_subscriptions",
    params(
        ProjectParam,
        ("status" = Option<String>, Query, description = "Only those that are `active`, `failed` (the last attempt has failed, or they were given up) or `dead` (they were given up).", example = "failed"),
        ("limit" = Option<String>, Query, description = "Maximum number of subscriptions in the response, 1 to 1,000; default 100. With `status`, a page may be shorter.", example = "10"),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the previous response."),
    ),
    responses((status = 200, description = "One page of subscriptions.", body = HookSubscriptionsAnswer), HookRefusals)
)]
pub async fn list(
    State(api): State<Api>,
    ProjectPath(project): ProjectPath,
    caller: Caller,
    uri: Uri,
) -> Result<Response, ApiError> {
    caller.may_in(&project, Action::ReadHooks, Resource::Project).await?;
    let query = Pairs::of(&uri)?;
    let (wanted, limit) = (Wanted::of(&query)?, query.limit()?);
    let after = query.once("cursor")?.map(SubscriptionId::parse).transpose();
    let after = after.map_err(|why| ApiError::bad_request("invalid_cursor", why))?;
    let selecting =
        api.subscriptions.select(&project, after.as_ref(), limit, |one| wanted.includes(one)).await;
    let selection = selecting.map_err(refusal)?;
    let answer = HookSubscriptionsAnswer {
        subscriptions: selection.subscriptions.iter().map(|(_, one)| HookSubscription::of(one)).collect(),
        next_cursor: selection.next.map(|next| next.to_string()),
    };
    Ok(uncached(StatusCode::OK, answer))
}

/// Let attempts of a subscription to streams begin again at once, after failures or when it was given up.
#[utoipa::path(
    post,
    path = "/v1/{project}/hooks/subscriptions/{id}/retry",
    tag = "hooks",
    operation_id = "retry_hook_subscription",
    params(ProjectParam, StreamSubscriptionParam),
    responses((status = 204, description = "Attempts begin again."), HookRefusals)
)]
pub async fn retry(
    State(api): State<Api>,
    Segments((project, id)): Segments<(String, String)>,
    caller: Caller,
) -> Result<StatusCode, ApiError> {
    let project = ProjectId::parse(&project)?;
    caller.may_in(&project, Action::Hooks, Resource::Project).await?;
    let id = SubscriptionId::parse(&id).map_err(|_| refusal(SubscriptionError::NotFound))?;
    let subscriptions = api.subscriptions.clone();
    DetachOnDrop::new(async move { subscriptions.revive(&project, &id).await }).await.map_err(refusal)?;
    Ok(StatusCode::NO_CONTENT)
}

/// An error of subscriptions, with a code of the common form.
fn refusal(error: SubscriptionError) -> ApiError {
    match error {
        SubscriptionError::NotFound => ApiError::new(StatusCode::NOT_FOUND, "subscription_not_found", error),
        error => Refusal::from(error).into(),
    }
}
