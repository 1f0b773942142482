//! `/v1/{project}/hooks`: the hooks of a project.

use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;
use serde_json::{Map, Value};
use tidings_auth::{Action, Pass, Resource};
use tidings_engine::DetachOnDrop;
use tidings_hooks::manage::Missed;
use tidings_hooks::{HookError, HookId, pattern};
use tidings_model::{ProjectId, limits};
use utoipa::ToSchema;

use super::described::{HookChangeBody, HookRefusals, NewHookBody, ResumeBody, RotationBody};
use super::request::{self, Pairs};
use super::settings::{Face, Wanted};
use super::shown::{DescribedHook, HookAnswer};
use super::subscriptions::uncached;
use crate::Api;
use crate::credential::Caller;
use crate::document::params::{HookParam, ProjectParam};
use crate::error::ApiError;
use crate::path::{ProjectPath, Segments};

/// A hook that was created.
#[derive(Serialize, ToSchema)]
pub struct NewHookAnswer {
    #[serde(flatten)]
    hook: HookAnswer,
    /// Secret that signs the deliveries. It is shown only in this response.
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    secret: String,
}

/// Create a hook: every event whose type matches its pattern is delivered to its endpoint.
#[utoipa::path(
    post,
    path = "/v1/{project}/hooks",
    tag = "hooks",
    operation_id = "create_hook",
    params(ProjectParam),
    request_body = NewHookBody,
    responses((status = 201, description = "The hook was created.", body = NewHookAnswer), HookRefusals)
)]
pub async fn create(
    State(api): State<Api>,
    ProjectPath(project): ProjectPath,
    caller: Caller,
    sent: Body,
) -> Result<Response, ApiError> {
    let (pass, body) = body(&api, &caller, &project, sent).await?;
    let settings = Wanted::new(body, Face::Project).create()?;
    caller.may_still(&pass).await?;
    let hooks = api.hooks.clone();
    let created = DetachOnDrop::new(async move { hooks.create(&project, settings).await }).await?;
    let answer = NewHookAnswer { hook: HookAnswer::of(&created.hook), secret: created.secret.reveal() };
    Ok(uncached(StatusCode::CREATED, answer))
}

/// One page of hooks.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookListAnswer {
    hooks: Vec<DescribedHook>,
    /// Cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next_cursor: Option<String>,
}

/// List the hooks of a project, newest first.
#[utoipa::path(
    get,
    path = "/v1/{project}/hooks",
    tag = "hooks",
    operation_id = "list_hooks",
    params(
        ProjectParam,
        ("limit" = Option<String>, Query, description = "Maximum number of hooks in the response, 1 to 1,000; default 100.", example = "10"),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the previous response."),
    ),
    responses((status = 200, description = "One page of hooks.", body = HookListAnswer), HookRefusals)
)]
pub async fn list(
    State(api): State<Api>,
    ProjectPath(project): ProjectPath,
    caller: Caller,
    uri: Uri,
) -> Result<Response, ApiError> {
    caller.may_in(&project, Action::ReadHooks, Resource::Project).await?;
    let query = Pairs::of(&uri)?;
    let (limit, before) = (query.limit()?, query.ulid()?.map(HookId));
    let mut listed = api.hooks.list(Some(&project), before, 0, limit + 1, |_| true).await?;
    let more = listed.len() > limit;
    listed.truncate(limit);
    let last = listed.last().filter(|_| more);
    let answer = HookListAnswer {
        next_cursor: last.map(|last| last.hook.id.to_string()),
        hooks: listed.iter().map(DescribedHook::of).collect(),
    };
    Ok(uncached(StatusCode::OK, answer))
}

/// The hooks that match.
#[derive(Serialize, ToSchema)]
pub struct HookMatchAnswer {
    hooks: Vec<HookAnswer>,
}

/// List the active hooks of a project whose pattern matches an event type, oldest first, at most 10,000.
#[utoipa::path(
    get,
    path = "/v1/{project}/hooks/match",
    tag = "hooks",
    operation_id = "match_hooks",
    params(
        ProjectParam,
        ("type" = String, Query, description = "Event type. Filters are not applied, since there is no event.", example = "orders.paid"),
    ),
    responses((status = 200, description = "The hooks that match.", body = HookMatchAnswer), HookRefusals)
)]
pub async fn matching(
    State(api): State<Api>,
    ProjectPath(project): ProjectPath,
    caller: Caller,
    uri: Uri,
) -> Result<Response, ApiError> {
    caller.may_in(&project, Action::ReadHooks, Resource::Project).await?;
    let query = Pairs::of(&uri)?;
    let event_type = query.text("type")?.filter(|text| pattern::is_event_type(text));
    let event_type = event_type.ok_or_else(|| {
        let message =
            "type is required: 1 to 128 letters, digits, `.`, `_` or `-`, in at most 10 segments, none empty";
        ApiError::bad_request("invalid_type", message)
    })?;
    let matching = api.hooks.matching(&project, event_type, limits::HOOK_MATCHES).await?;
    let hooks = matching.iter().map(|described| HookAnswer::of(&described.hook)).collect();
    Ok(uncached(StatusCode::OK, HookMatchAnswer { hooks }))
}

/// Get a hook with statistics of its deliveries.
#[utoipa::path(
    get,
    path = "/v1/{project}/hooks/{hook}",
    tag = "hooks",
    operation_id = "get_hook",
    params(
        ProjectParam,
        HookParam,
    ),
    responses((status = 200, description = "The hook.", body = DescribedHook), HookRefusals)
)]
pub async fn get(
    State(api): State<Api>,
    Segments(path): Segments<(String, String)>,
    caller: Caller,
) -> Result<Response, ApiError> {
    let (project, id) = enter(&caller, &path, Action::ReadHooks).await?;
    let described = api.hooks.get(Some(&project), id).await?;
    Ok(uncached(StatusCode::OK, DescribedHook::of(&described)))
}

/// Change the settings of a hook, apart from its pattern. What is left out stays as it is; `null` restores a default.
#[utoipa::path(
    patch,
    path = "/v1/{project}/hooks/{hook}",
    tag = "hooks",
    operation_id = "change_hook",
    params(
        ProjectParam,
        HookParam,
    ),
    request_body = HookChangeBody,
    responses((status = 200, description = "The hook was changed.", body = HookAnswer), HookRefusals)
)]
pub async fn change(
    State(api): State<Api>,
    Segments((project, id)): Segments<(String, String)>,
    caller: Caller,
    sent: Body,
) -> Result<Response, ApiError> {
    let project = ProjectId::parse(&project)?;
    let (pass, body) = body(&api, &caller, &project, sent).await?;
    let wanted = Wanted::new(body, Face::Project);
    wanted.check_change()?;
    caller.may_still(&pass).await?;
    let (hooks, id) = (api.hooks.clone(), hook_id(&id)?);
    let changing =
        async move { hooks.update(Some(&project), id, |settings| Ok(wanted.change(settings)?)).await };
    let hook = DetachOnDrop::new(changing).await?;
    Ok(uncached(StatusCode::OK, HookAnswer::of(&hook)))
}

/// Remove a hook with its deliveries, their log and its dead letters.
#[utoipa::path(
    delete,
    path = "/v1/{project}/hooks/{hook}",
    tag = "hooks",
    operation_id = "remove_hook",
    params(
        ProjectParam,
        HookParam,
    ),
    responses((status = 204, description = "The hook was removed."), HookRefusals)
)]
pub async fn remove(
    State(api): State<Api>,
    Segments(path): Segments<(String, String)>,
    caller: Caller,
) -> Result<StatusCode, ApiError> {
    let (project, id) = enter(&caller, &path, Action::Hooks).await?;
    let hooks = api.hooks.clone();
    DetachOnDrop::new(async move { hooks.remove(Some(&project), id).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pause a hook: nothing more is delivered, and events that arrive meanwhile are not queued.
#[utoipa::path(
    post,
    path = "/v1/{project}/hooks/{hook}/pause",
    tag = "hooks",
    operation_id = "pause_hook",
    params(
        ProjectParam,
        HookParam,
    ),
    responses((status = 204, description = "The hook is paused."), HookRefusals)
)]
pub async fn pause(
    State(api): State<Api>,
    Segments(path): Segments<(String, String)>,
    caller: Caller,
) -> Result<StatusCode, ApiError> {
    let (project, id) = enter(&caller, &path, Action::Hooks).await?;
    let hooks = api.hooks.clone();
    DetachOnDrop::new(async move { hooks.deactivate(Some(&project), id).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A hook that was resumed.
#[derive(Serialize, ToSchema)]
pub struct ResumedAnswer {
    /// Number of missed events that are delivered now.
    events: u64,
}

/// Resume a hook. Deliveries that waited are due at once.
#[utoipa::path(
    post,
    path = "/v1/{project}/hooks/{hook}/resume",
    tag = "hooks",
    operation_id = "resume_hook",
    params(
        ProjectParam,
        HookParam,
    ),
    request_body = Option<ResumeBody>,
    responses((status = 200, description = "The hook is active.", body = ResumedAnswer), HookRefusals)
)]
pub async fn resume(
    State(api): State<Api>,
    Segments((project, id)): Segments<(String, String)>,
    caller: Caller,
    sent: Body,
) -> Result<Response, ApiError> {
    let project = ProjectId::parse(&project)?;
    let (pass, body) = body_or_nothing(&api, &caller, &project, sent).await?;
    let missed = if request::wants_replay(&body)? { Missed::Replayed } else { Missed::Skipped };
    caller.may_still(&pass).await?;
    let (hooks, id) = (api.hooks.clone(), hook_id(&id)?);
    let resuming = async move { hooks.reactivate(Some(&project), id, missed).await };
    let events = DetachOnDrop::new(resuming).await?;
    Ok(uncached(StatusCode::OK, ResumedAnswer { events }))
}

/// A new secret.
#[derive(Serialize, ToSchema)]
pub struct NewSecretAnswer {
    /// Secret that signs the deliveries. It is shown only in this response.
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    secret: String,
}

/// Replace the secret that signs the deliveries of a hook. For a while, the old secret signs as well.
#[utoipa::path(
    post,
    path = "/v1/{project}/hooks/{hook}/rotate-secret",
    tag = "hooks",
    operation_id = "rotate_hook_secret",
    params(
        ProjectParam,
        HookParam,
    ),
    request_body = Option<RotationBody>,
    responses((status = 200, description = "The secret was replaced.", body = NewSecretAnswer), HookRefusals)
)]
pub async fn rotate_secret(
    State(api): State<Api>,
    Segments((project, id)): Segments<(String, String)>,
    caller: Caller,
    sent: Body,
) -> Result<Response, ApiError> {
    let project = ProjectId::parse(&project)?;
    let (pass, body) = body_or_nothing(&api, &caller, &project, sent).await?;
    let overlap = request::overlap(&body)?;
    caller.may_still(&pass).await?;
    let (hooks, id) = (api.hooks.clone(), hook_id(&id)?);
    let rotating = async move { hooks.rotate_secret(Some(&project), id, overlap).await };
    let secret = DetachOnDrop::new(rotating).await?;
    Ok(uncached(StatusCode::OK, NewSecretAnswer { secret: secret.reveal() }))
}

/// A sample event that is delivered.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TestAnswer {
    /// Id of the delivery.
    delivery_id: String,
}

/// Deliver a sample event of the type `hook.test` to a hook, whatever its pattern.
#[utoipa::path(
    post,
    path = "/v1/{project}/hooks/{hook}/test",
    tag = "hooks",
    operation_id = "test_hook",
    params(
        ProjectParam,
        HookParam,
    ),
    responses((status = 202, description = "The event is being delivered.", body = TestAnswer), HookRefusals)
)]
pub async fn test(
    State(api): State<Api>,
    Segments(path): Segments<(String, String)>,
    caller: Caller,
) -> Result<Response, ApiError> {
    let (project, id) = enter(&caller, &path, Action::Hooks).await?;
    let hooks = api.hooks.clone();
    let delivery = DetachOnDrop::new(async move { hooks.send_test(Some(&project), id).await }).await?;
    Ok(uncached(StatusCode::ACCEPTED, TestAnswer { delivery_id: delivery.to_string() }))
}

/// Admits a request that changes something and reads its body, a JSON object.
pub async fn body(
    api: &Api,
    caller: &Caller,
    project: &ProjectId,
    sent: Body,
) -> Result<(Pass, Map<String, Value>), ApiError> {
    let pass = caller.may_in(project, Action::Hooks, Resource::Project).await?;
    let body = request::object(api, project, sent).await?;
    Ok((pass, body.ok_or_else(not_json)?))
}

/// The same for a body that may be empty.
pub async fn body_or_nothing(
    api: &Api,
    caller: &Caller,
    project: &ProjectId,
    sent: Body,
) -> Result<(Pass, Map<String, Value>), ApiError> {
    let pass = caller.may_in(project, Action::Hooks, Resource::Project).await?;
    let body = request::object_or_nothing(api, project, sent).await?;
    Ok((pass, body.ok_or_else(not_json)?))
}

fn not_json() -> ApiError {
    ApiError::bad_request("invalid_json", "expected an object, in JSON")
}

/// Project and hook of a path, if the caller may do this in the project.
pub async fn enter(
    caller: &Caller,
    (project, id): &(String, String),
    action: Action,
) -> Result<(ProjectId, HookId), ApiError> {
    let project = ProjectId::parse(project)?;
    caller.may_in(&project, action, Resource::Project).await?;
    Ok((project, hook_id(id)?))
}

/// The hook that a path names.
pub fn hook_id(text: &str) -> Result<HookId, HookError> {
    HookId::parse(text).ok_or(HookError::NoSuchHook)
}
