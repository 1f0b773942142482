//! What owners do with subscriptions: create, look, list, link streams, retry, remove; and the public keys.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, RequestPartsExt};
use serde::Serialize;
use tidings_auth::{Action, Pass, Resource};
use tidings_engine::DetachOnDrop;
use tidings_model::{ProjectId, limits};
use tidings_subscriptions::keys::PublicKey;
use tidings_subscriptions::store::Numbered;
use tidings_subscriptions::{CreateRequest, Created, SubscriptionId};
use utoipa::ToSchema;

use super::Named;
use super::described::{NewStreamSubscription, StreamSubscriptionRefusals, StreamsBody};
use super::error::Refusal;
use super::request::{self, Members};
use super::shown::{StreamSubscription, StreamSubscriptionAnswer};
use crate::Api;
use crate::credential::Caller;
use crate::document::ProjectRefusals;
use crate::document::params::{ProjectParam, StreamSubscriptionParam};
use crate::streams;
use crate::wire::query;

/// Create a subscription, or confirm that it exists with this configuration. Streams that exist are linked at their tails.
#[utoipa::path(
    put,
    path = "/v1/{project}/stream/__ds/subscriptions/{id}",
    tag = "subscriptions to streams",
    operation_id = "create_stream_subscription",
    params(ProjectParam, StreamSubscriptionParam),
    request_body = NewStreamSubscription,
    responses(
        (status = 201, description = "The subscription was created.", body = StreamSubscriptionAnswer),
        (status = 200, description = "The subscription exists with this configuration.", body = StreamSubscriptionAnswer),
        StreamSubscriptionRefusals,
    )
)]
pub async fn create(State(api): State<Api>, caller: Caller, request: Request) -> Result<Response, Refusal> {
    let (mut parts, body) = request.into_parts();
    let named: Named = parts.extract_with_state(&api).await?;
    let (pass, members) = body_of(&api, &caller, &named.project, body).await?;
    let (id, wanted) = (named.subscription()?, members.wanted()?);
    caller.may_still(&pass).await?;
    let public = &api.subscriptions.options().public_url;
    let base =
        if public.is_empty() { streams::base(&parts)? } else { public.trim_end_matches('/').to_owned() };
    let path = parts.uri.path();
    let root = format!("{base}{}", path.split("/__ds/").next().unwrap_or(path));
    let request = CreateRequest { id, config: wanted.config, streams: wanted.streams, root };
    let (subscriptions, project) = (api.subscriptions.clone(), named.project.clone());
    let creating = async move { subscriptions.create(&project, request).await };
    let (created, numbered) = DetachOnDrop::new(creating).await?;
    let status = match created {
        Created::New => StatusCode::CREATED,
        Created::Existing => StatusCode::OK,
    };
    shown(&api, status, &named.project, &numbered, &Page { after: None, limit: limits::SUBSCRIPTION_PAGE })
        .await
}

/// Get a subscription with the streams that it is linked to.
#[utoipa::path(
    get,
    path = "/v1/{project}/stream/__ds/subscriptions/{id}",
    tag = "subscriptions to streams",
    operation_id = "get_stream_subscription",
    params(
        ProjectParam,
        StreamSubscriptionParam,
        ("streams_after" = Option<String>, Query, description = "`streams_next` of the previous response."),
        ("limit" = Option<String>, Query, description = "Maximum number of streams in the response, 1 to 1,000; default 1,000.", example = "10"),
    ),
    responses((status = 200, description = "The subscription.", body = StreamSubscriptionAnswer), StreamSubscriptionRefusals)
)]
pub async fn get(
    State(api): State<Api>,
    named: Named,
    caller: Caller,
    uri: Uri,
) -> Result<Response, Refusal> {
    caller.may_in(&named.project, Action::ReadHooks, Resource::Project).await?;
    let page = Page::of(&uri, "streams_after")?;
    let numbered = api.subscriptions.get(&named.project, &named.subscription()?).await?;
    shown(&api, StatusCode::OK, &named.project, &numbered, &page).await
}

/// Remove a subscription. What its workers report afterwards is refused.
#[utoipa::path(
    delete,
    path = "/v1/{project}/stream/__ds/subscriptions/{id}",
    tag = "subscriptions to streams",
    operation_id = "remove_stream_subscription",
    params(ProjectParam, StreamSubscriptionParam),
    responses((status = 204, description = "There is no such subscription any more."), StreamSubscriptionRefusals)
)]
pub async fn remove(State(api): State<Api>, named: Named, caller: Caller) -> Result<StatusCode, Refusal> {
    caller.may_in(&named.project, Action::Hooks, Resource::Project).await?;
    let id = named.subscription()?;
    let removing = async move { api.subscriptions.remove(&named.project, &id).await };
    DetachOnDrop::new(removing).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A page of subscriptions.
#[derive(Serialize, ToSchema)]
pub struct StreamSubscriptionsAnswer {
    subscriptions: Vec<StreamSubscription>,
    /// Id after which the next page begins: `after`. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
}

/// List the subscriptions of a project, in the order of their ids.
#[utoipa::path(
    get,
    path = "/v1/{project}/stream/__ds/subscriptions",
    tag = "subscriptions to streams",
    operation_id = "list_stream_subscriptions",
    params(
        ProjectParam,
        ("after" = Option<String>, Query, description = "`next` of the previous response."),
        ("limit" = Option<String>, Query, description = "Maximum number of subscriptions in the response, 1 to 1,000; default 1,000.", example = "10"),
    ),
    responses((status = 200, description = "One page of subscriptions.", body = StreamSubscriptionsAnswer), StreamSubscriptionRefusals)
)]
pub async fn list(
    State(api): State<Api>,
    named: Named,
    caller: Caller,
    uri: Uri,
) -> Result<Response, Refusal> {
    caller.may_in(&named.project, Action::ReadHooks, Resource::Project).await?;
    let page = Page::of(&uri, "after")?;
    let after = page.after.as_deref().map(SubscriptionId::parse).transpose().map_err(Refusal::invalid)?;
    let mut listed = api.subscriptions.list(&named.project, after.as_ref(), page.limit + 1).await?;
    let more = listed.len() > page.limit;
    listed.truncate(page.limit);
    let key = api.subscriptions.public_keys(&named.project).await?.pop();
    let next = listed.last().filter(|_| more).map(|(_, last)| last.id.to_string());
    let subscriptions = listed.iter().map(|one| StreamSubscription::of(one, key.as_ref())).collect();
    Ok(uncached(StatusCode::OK, StreamSubscriptionsAnswer { subscriptions, next }))
}

/// Link streams explicitly, at their tails. Streams that are linked already stay as they are.
#[utoipa::path(
    post,
    path = "/v1/{project}/stream/__ds/subscriptions/{id}/streams",
    tag = "subscriptions to streams",
    operation_id = "link_streams",
    params(ProjectParam, StreamSubscriptionParam),
    request_body = StreamsBody,
    responses((status = 204, description = "The streams are linked."), StreamSubscriptionRefusals)
)]
pub async fn add_streams(
    State(api): State<Api>,
    named: Named,
    caller: Caller,
    sent: Body,
) -> Result<StatusCode, Refusal> {
    let (pass, members) = body_of(&api, &caller, &named.project, sent).await?;
    let (id, streams) = (named.subscription()?, members.streams()?);
    caller.may_still(&pass).await?;
    let linking = async move { api.subscriptions.add_streams(&named.project, &id, &streams).await };
    DetachOnDrop::new(linking).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Remove an explicit link. A link by the pattern stays.
#[utoipa::path(
    delete,
    path = "/v1/{project}/stream/__ds/subscriptions/{id}/streams/{stream}",
    tag = "subscriptions to streams",
    operation_id = "unlink_stream",
    params(
        ProjectParam,
        StreamSubscriptionParam,
        ("stream" = String, Path, description = "Path of the stream below the root, percent-encoded.", example = "events%2Fabc"),
    ),
    responses((status = 204, description = "There is no such explicit link any more."), StreamSubscriptionRefusals)
)]
pub async fn remove_stream(
    State(api): State<Api>,
    named: Named,
    caller: Caller,
) -> Result<StatusCode, Refusal> {
    caller.may_in(&named.project, Action::Hooks, Resource::Project).await?;
    let (id, stream) = (named.subscription()?, named.stream()?);
    let unlinking = async move { api.subscriptions.remove_stream(&named.project, &id, stream).await };
    DetachOnDrop::new(unlinking).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Let attempts begin again at once, after failures or when the subscription was given up.
#[utoipa::path(
    post,
    path = "/v1/{project}/stream/__ds/subscriptions/{id}/retry",
    tag = "subscriptions to streams",
    operation_id = "retry_stream_subscription",
    params(ProjectParam, StreamSubscriptionParam),
    responses((status = 204, description = "Attempts begin again."), StreamSubscriptionRefusals)
)]
pub async fn retry(State(api): State<Api>, named: Named, caller: Caller) -> Result<StatusCode, Refusal> {
    caller.may_in(&named.project, Action::Hooks, Resource::Project).await?;
    let id = named.subscription()?;
    let reviving = async move { api.subscriptions.revive(&named.project, &id).await };
    DetachOnDrop::new(reviving).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Public keys that verify webhooks.
#[derive(Serialize, ToSchema)]
pub struct KeySetAnswer {
    keys: Vec<PublicKeyAnswer>,
}

/// A public key, as in RFC 8037.
#[derive(Serialize, ToSchema)]
pub struct PublicKeyAnswer {
    /// `OKP`.
    kty: &'static str,
    /// `Ed25519`.
    crv: &'static str,
    /// Id of the key, as in `Webhook-Signature`.
    #[schema(example = "ds_kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k")]
    kid: String,
    /// `sig`.
    #[serde(rename = "use")]
    usage: &'static str,
    /// `EdDSA`.
    alg: &'static str,
    /// The key, in base64url.
    x: String,
}

/// Get the public keys that verify webhooks of a project, as a JSON Web Key Set.
#[utoipa::path(
    get,
    path = "/v1/{project}/stream/__ds/jwks.json",
    tag = "subscriptions to streams",
    operation_id = "get_webhook_keys",
    security(()),
    params(ProjectParam),
    responses(
        (status = 200, description = "The keys; none before the first subscription.", body = KeySetAnswer, content_type = "application/jwk-set+json"),
        ProjectRefusals,
    )
)]
pub async fn keys(State(api): State<Api>, named: Named) -> Result<Response, Refusal> {
    let keys = api.subscriptions.public_keys(&named.project).await?.into_iter();
    let shown = |PublicKey { kid, x }| PublicKeyAnswer {
        kty: "OKP",
        crv: "Ed25519",
        kid,
        usage: "sig",
        alg: "EdDSA",
        x,
    };
    let headers =
        [(header::CONTENT_TYPE, "application/jwk-set+json"), (header::CACHE_CONTROL, "public, max-age=300")];
    let answer = KeySetAnswer { keys: keys.map(shown).collect() };
    let body = serde_json::to_string(&answer).expect("keys are JSON");
    Ok((headers, body).into_response())
}

/// A page that is asked for.
struct Page {
    after: Option<String>,
    limit: usize,
}

impl Page {
    fn of(uri: &Uri, after: &str) -> Result<Self, Refusal> {
        let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri);
        let pairs = pairs.map_err(|error| Refusal::invalid(error.body_text()))?.0;
        let after = query::once(&pairs, after)?.filter(|after| !after.is_empty()).map(str::to_owned);
        let limit = match query::once(&pairs, "limit")?.map(str::parse) {
            None => limits::SUBSCRIPTION_PAGE,
            Some(Ok(limit)) if (1..=limits::SUBSCRIPTION_PAGE).contains(&limit) => limit,
            Some(_) => {
                let most = limits::SUBSCRIPTION_PAGE;
                return Err(Refusal::invalid(format!("limit must be a number from 1 to {most}")));
            }
        };
        Ok(Self { after, limit })
    }
}

async fn shown(
    api: &Api,
    status: StatusCode,
    project: &ProjectId,
    numbered: &Numbered,
    page: &Page,
) -> Result<Response, Refusal> {
    let after = page.after.as_deref().map(request::stream).transpose()?;
    let links = api.subscriptions.links(numbered.0, after.as_ref(), page.limit).await?;
    let key = api.subscriptions.public_keys(project).await?.pop();
    Ok(uncached(status, StreamSubscriptionAnswer::of(numbered, &links, key.as_ref())))
}

/// Checks that the caller may change subscriptions, and reads the body.
async fn body_of(
    api: &Api,
    caller: &Caller,
    project: &ProjectId,
    sent: Body,
) -> Result<(Pass, Members), Refusal> {
    let pass = caller.may_in(project, Action::Hooks, Resource::Project).await?;
    Ok((pass, Members::read(api, project, sent).await?))
}

/// An answer that nobody keeps.
pub(super) fn uncached(status: StatusCode, answer: impl Serialize) -> Response {
    (status, [(header::CACHE_CONTROL, "no-store")], Json(answer)).into_response()
}
