//! `/v1/{project}/hooks`: deliveries, attempts and dead letters of hooks, replays and clean-up.

use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;
use tidings_auth::Action;
use tidings_engine::DetachOnDrop;
use tidings_hooks::HookError;
use tidings_model::{ProjectId, Ulid};
use utoipa::ToSchema;

use super::described::{CleanUpBody, HookRefusals, LetterFilterBody, ReplayBody};
use super::project::{body, body_or_nothing, enter, hook_id};
use super::request::{self, Pairs};
use super::shown::{AttemptAnswer, DeadLetterAnswer, DeliveriesAnswer};
use super::subscriptions::uncached;
use crate::Api;
use crate::credential::Caller;
use crate::document::params::{HookParam, ProjectParam};
use crate::error::ApiError;
use crate::path::{ProjectPath, Segments};

/// List the deliveries of a hook, oldest first.
#[utoipa::path(
    get,
    path = "/v1/{project}/hooks/{hook}/deliveries",
    tag = "hooks",
    operation_id = "list_deliveries",
    params(
        ProjectParam,
        HookParam,
        ("status" = Option<String>, Query, description = "Only deliveries with this status: `pending`, `failed`, `delivered` or `dead`."),
        ("limit" = Option<String>, Query, description = "Maximum number of deliveries in the response, 1 to 1,000; default 100.", example = "10"),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the previous response."),
    ),
    responses((status = 200, description = "One page of deliveries.", body = DeliveriesAnswer), HookRefusals)
)]
pub async fn deliveries(
    State(api): State<Api>,
    Segments(path): Segments<(String, String)>,
    caller: Caller,
    uri: Uri,
) -> Result<Response, ApiError> {
    let (project, id) = enter(&caller, &path, Action::ReadHooks).await?;
    let query = Pairs::of(&uri)?;
    let (status, after, limit) = (query.status()?, query.position()?, query.limit()?);
    let page = api.hooks.deliveries(Some(&project), id, status, after, limit).await?;
    Ok(uncached(StatusCode::OK, DeliveriesAnswer::of(page)))
}

/// The attempts of a delivery.
#[derive(Serialize, ToSchema)]
pub struct AttemptsAnswer {
    /// Attempts, oldest first.
    attempts: Vec<AttemptAnswer>,
}

/// List the attempts of a delivery, oldest first.
#[utoipa::path(
    get,
    path = "/v1/{project}/hooks/{hook}/deliveries/{delivery}/attempts",
    tag = "hooks",
    operation_id = "list_attempts",
    params(
        ProjectParam,
        HookParam,
        ("delivery" = String, Path, description = "Delivery id.", example = "0000000J5G00004000000000C8"),
    ),
    responses((status = 200, description = "The attempts.", body = AttemptsAnswer), HookRefusals)
)]
pub async fn attempts(
    State(api): State<Api>,
    Segments((project, id, delivery)): Segments<(String, String, String)>,
    caller: Caller,
) -> Result<Response, ApiError> {
    let (project, id) = enter(&caller, &(project, id), Action::ReadHooks).await?;
    let within = Some(&project);
    let delivery = api.hooks.delivery_id(&delivery).ok_or_else(no_such_delivery)?;
    if api.hooks.hook_of(within, delivery).await? != Some(id) {
        return Err(no_such_delivery());
    }
    let attempts = api.hooks.attempts(within, delivery).await?;
    let attempts = attempts.into_iter().map(AttemptAnswer::of).collect();
    Ok(uncached(StatusCode::OK, AttemptsAnswer { attempts }))
}

fn no_such_delivery() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "delivery_not_found", "the hook has no such delivery")
}

/// One page of dead letters.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLettersAnswer {
    dead_letters: Vec<DeadLetterAnswer>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_cursor: Option<String>,
}

/// List the dead letters of a hook, newest first.
#[utoipa::path(
    get,
    path = "/v1/{project}/hooks/{hook}/dead-letters",
    tag = "hooks",
    operation_id = "list_dead_letters",
    params(
        ProjectParam,
        HookParam,
        ("limit" = Option<String>, Query, description = "Maximum number of dead letters in the response, 1 to 1,000; default 100. Large events make a page shorter.", example = "10"),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the previous response."),
    ),
    responses((status = 200, description = "One page of dead letters.", body = DeadLettersAnswer), HookRefusals)
)]
pub async fn dead_letters(
    State(api): State<Api>,
    Segments(path): Segments<(String, String)>,
    caller: Caller,
    uri: Uri,
) -> Result<Response, ApiError> {
    let (project, id) = enter(&caller, &path, Action::ReadHooks).await?;
    let query = Pairs::of(&uri)?;
    let (after, limit) = (query.ulid()?, query.limit()?);
    let page = request::dead_letters(&api.hooks, Some(&project), id, after, limit).await?;
    let answer = DeadLettersAnswer {
        dead_letters: page
            .letters
            .into_iter()
            .map(|(letter, payload)| DeadLetterAnswer::of(letter, &payload))
            .collect(),
        next_cursor: page.next.map(|next| next.to_string()),
    };
    Ok(uncached(StatusCode::OK, answer))
}

/// A dead letter that is delivered again.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetryAnswer {
    /// Id of the new delivery.
    delivery_id: String,
}

/// Deliver a dead letter again, at once, as a new delivery.
#[utoipa::path(
    post,
    path = "/v1/{project}/hooks/{hook}/dead-letters/{letter}/retry",
    tag = "hooks",
    operation_id = "retry_dead_letter",
    params(
        ProjectParam,
        HookParam,
        ("letter" = String, Path, description = "Id of the dead letter.", example = "01JCZ8T5N3QK4W8Y2V6X0ABCDE"),
    ),
    responses((status = 202, description = "The dead letter is delivered again.", body = RetryAnswer), HookRefusals)
)]
pub async fn retry(
    State(api): State<Api>,
    Segments((project, id, letter)): Segments<(String, String, String)>,
    caller: Caller,
) -> Result<Response, ApiError> {
    let (project, id) = enter(&caller, &(project, id), Action::Hooks).await?;
    let letter = Ulid::parse(&letter).map_err(|_| HookError::NoSuchDeadLetter)?;
    let hooks = api.hooks.clone();
    let retrying = async move { hooks.retry_dead_letter(Some(&project), id, letter).await };
    let delivery = DetachOnDrop::new(retrying).await?;
    Ok(uncached(StatusCode::ACCEPTED, RetryAnswer { delivery_id: delivery.to_string() }))
}

/// Dead letters that are delivered again.
#[derive(Serialize, ToSchema)]
pub struct RetriesAnswer {
    /// Number of the dead letters.
    retried: u64,
}

/// Deliver dead letters of a hook again: all, or those of a time range or with an error.
#[utoipa::path(
    post,
    path = "/v1/{project}/hooks/{hook}/dead-letters/retry",
    tag = "hooks",
    operation_id = "retry_dead_letters",
    params(
        ProjectParam,
        HookParam,
    ),
    request_body = Option<LetterFilterBody>,
    responses((status = 202, description = "The dead letters are delivered again.", body = RetriesAnswer), HookRefusals)
)]
pub async fn retry_all(
    State(api): State<Api>,
    Segments((project, id)): Segments<(String, String)>,
    caller: Caller,
    sent: Body,
) -> Result<Response, ApiError> {
    let project = ProjectId::parse(&project)?;
    let (pass, body) = body_or_nothing(&api, &caller, &project, sent).await?;
    let filter = request::letter_filter(&body)?;
    caller.may_still(&pass).await?;
    let (hooks, id) = (api.hooks.clone(), hook_id(&id)?);
    let retrying = async move { hooks.retry_dead_letters(Some(&project), id, &filter).await };
    let retried = DetachOnDrop::new(retrying).await?;
    Ok(uncached(StatusCode::ACCEPTED, RetriesAnswer { retried }))
}

/// A replay that has begun.
#[derive(Serialize, ToSchema)]
pub struct ReplayAnswer {
    /// Number of events that are delivered again.
    events: u64,
}

/// Deliver events of the past once more: those that arrived in a range and match the hook.
#[utoipa::path(
    post,
    path = "/v1/{project}/hooks/{hook}/replay",
    tag = "hooks",
    operation_id = "replay_hook",
    params(
        ProjectParam,
        HookParam,
    ),
    request_body = ReplayBody,
    responses((status = 202, description = "The events are being delivered.", body = ReplayAnswer), HookRefusals)
)]
pub async fn replay(
    State(api): State<Api>,
    Segments((project, id)): Segments<(String, String)>,
    caller: Caller,
    sent: Body,
) -> Result<Response, ApiError> {
    let project = ProjectId::parse(&project)?;
    let (pass, body) = body(&api, &caller, &project, sent).await?;
    let (from, to) = request::range(&body)?;
    caller.may_still(&pass).await?;
    let (hooks, id) = (api.hooks.clone(), hook_id(&id)?);
    let replaying = async move { hooks.replay(Some(&project), id, from, to).await };
    let events = DetachOnDrop::new(replaying).await?;
    Ok(uncached(StatusCode::ACCEPTED, ReplayAnswer { events }))
}

/// Records that were removed.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CleanedAnswer {
    deliveries: u64,
    attempts: u64,
    dead_letters: u64,
}

/// Remove finished deliveries, their attempts and dead letters that were created before a time, of all hooks of a project.
#[utoipa::path(
    post,
    path = "/v1/{project}/hooks/cleanup",
    tag = "hooks",
    operation_id = "clean_up_hooks",
    params(ProjectParam),
    request_body = CleanUpBody,
    responses((status = 200, description = "Old records were removed.", body = CleanedAnswer), HookRefusals)
)]
pub async fn clean_up(
    State(api): State<Api>,
    ProjectPath(project): ProjectPath,
    caller: Caller,
    sent: Body,
) -> Result<Response, ApiError> {
    let (pass, body) = body(&api, &caller, &project, sent).await?;
    let before = request::before(&body)?;
    caller.may_still(&pass).await?;
    let hooks = api.hooks.clone();
    let cleaning = async move { hooks.clean_up(Some(&project), None, before).await };
    let cleaned = DetachOnDrop::new(cleaning).await?;
    let (deliveries, attempts, dead_letters) = (cleaned.deliveries, cleaned.attempts, cleaned.dead_letters);
    Ok(uncached(StatusCode::OK, CleanedAnswer { deliveries, attempts, dead_letters }))
}
