//! What workers do: answer a webhook, claim, acknowledge, release.

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use tidings_auth::{Action, Resource};
use tidings_engine::DetachOnDrop;
use tidings_subscriptions::{Then, Way};
use utoipa::ToSchema;

use super::Named;
use super::described::{ClaimBody, ReportBody, StreamSubscriptionRefusals, WokenStream};
use super::error::Refusal;
use super::owners::uncached;
use super::request::Members;
use crate::Api;
use crate::credential::Caller;
use crate::document::params::{ProjectParam, StreamSubscriptionParam};

/// The answer to a report.
#[derive(Serialize, ToSchema)]
pub struct ReportAnswer {
    #[schema(example = true)]
    ok: bool,
    /// Whether another wake follows.
    next_wake: bool,
}

/// Report about a webhook: acknowledge, keep the lease, be done. The token is the webhook's `callback_token`.
#[utoipa::path(
    post,
    path = "/v1/{project}/stream/__ds/subscriptions/{id}/callback",
    tag = "subscriptions to streams",
    operation_id = "report_to_stream_subscription",
    params(ProjectParam, StreamSubscriptionParam),
    request_body = ReportBody,
    responses((status = 200, description = "The report was taken.", body = ReportAnswer), StreamSubscriptionRefusals)
)]
pub async fn callback(
    State(api): State<Api>,
    named: Named,
    caller: Caller,
    sent: Body,
) -> Result<Response, Refusal> {
    report(api, named, caller, sent, Way::Webhook, None).await
}

/// A claim.
#[derive(Serialize, ToSchema)]
pub struct ClaimAnswer {
    /// Id of the wake.
    #[schema(example = "w_2f6b0a1c9d8e7f6a5b4c3d2e")]
    wake_id: String,
    /// Number of the wake.
    generation: u64,
    /// Token for `ack` and `release`.
    token: String,
    /// Streams, at most 1,000, those with something new first.
    #[schema(value_type = Vec<WokenStream>)]
    streams: Vec<Value>,
    /// Present if further streams have something new.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
    /// Time until `ack` must be called, in milliseconds.
    lease_ttl_ms: u64,
}

/// Claim the work of a subscription of type `pull-wake`.
#[utoipa::path(
    post,
    path = "/v1/{project}/stream/__ds/subscriptions/{id}/claim",
    tag = "subscriptions to streams",
    operation_id = "claim_stream_subscription",
    params(ProjectParam, StreamSubscriptionParam),
    request_body = ClaimBody,
    responses((status = 200, description = "The work is the worker's.", body = ClaimAnswer), StreamSubscriptionRefusals)
)]
pub async fn claim(
    State(api): State<Api>,
    named: Named,
    caller: Caller,
    sent: Body,
) -> Result<Response, Refusal> {
    let pass = caller.may_in(&named.project, Action::Hooks, Resource::Project).await?;
    let members = Members::read(&api, &named.project, sent).await?;
    let (id, worker) = (named.subscription()?, members.worker()?.to_owned());
    caller.may_still(&pass).await?;
    let subscriptions = api.subscriptions.clone();
    let claiming = async move { subscriptions.claim(&named.project, &id, &worker).await };
    let claim = DetachOnDrop::new(claiming).await?;
    let answer = ClaimAnswer {
        wake_id: claim.wake_id.into(),
        generation: claim.generation,
        token: claim.token,
        streams: claim.snapshot.streams.iter().map(|linked| api.subscriptions.told(linked)).collect(),
        more: claim.snapshot.more,
        lease_ttl_ms: claim.lease_ms,
    };
    Ok(uncached(StatusCode::OK, answer))
}

/// Report about a claim: acknowledge, keep the lease, be done. The token is that of the claim.
#[utoipa::path(
    post,
    path = "/v1/{project}/stream/__ds/subscriptions/{id}/ack",
    tag = "subscriptions to streams",
    operation_id = "ack_stream_subscription",
    params(ProjectParam, StreamSubscriptionParam),
    request_body = ReportBody,
    responses((status = 200, description = "The report was taken.", body = ReportAnswer), StreamSubscriptionRefusals)
)]
pub async fn ack(
    State(api): State<Api>,
    named: Named,
    caller: Caller,
    sent: Body,
) -> Result<Response, Refusal> {
    report(api, named, caller, sent, Way::PullWake, None).await
}

/// Release a claim without being done. The token is that of the claim.
#[utoipa::path(
    post,
    path = "/v1/{project}/stream/__ds/subscriptions/{id}/release",
    tag = "subscriptions to streams",
    operation_id = "release_stream_subscription",
    params(ProjectParam, StreamSubscriptionParam),
    request_body = ReportBody,
    responses((status = 204, description = "The claim was released."), StreamSubscriptionRefusals)
)]
pub async fn release(
    State(api): State<Api>,
    named: Named,
    caller: Caller,
    sent: Body,
) -> Result<StatusCode, Refusal> {
    report(api, named, caller, sent, Way::PullWake, Some(Then::Done)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Takes a report. With `then`, it acknowledges nothing.
async fn report(
    api: Api,
    named: Named,
    caller: Caller,
    sent: Body,
    way: Way,
    then: Option<Then>,
) -> Result<Response, Refusal> {
    let token = caller.bearer().ok_or_else(Refusal::no_token)?.to_owned();
    let id = named.subscription()?;
    // Before the body: strangers must not use up its memory or the project's rate.
    api.subscriptions.check_token(&named.project, &id, &token).await?;
    api.request_limiter.admit(&named.project)?;
    let members = Members::read(&api, &named.project, sent).await?;
    let mut report = members.report(token)?;
    if let Some(then) = then {
        report.then = then;
        report.acks.clear();
    }
    let reporting = async move { api.subscriptions.report(&named.project, &id, way, &report).await };
    let next_wake = DetachOnDrop::new(reporting).await?;
    Ok(uncached(StatusCode::OK, ReportAnswer { ok: true, next_wake }))
}
