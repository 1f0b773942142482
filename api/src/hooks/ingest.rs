//! Submitting events: `POST /e`, its older name `POST /ingest`, and `POST /v1/{project}/events`.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use tidings_auth::{Action, Pass, Resource};
use tidings_engine::DetachOnDrop;
use tidings_hooks::ingest::Batch;
use tidings_model::{ProjectId, limits};
use utoipa::ToSchema;

use super::described::{EventRefusals, IngestBody, IngestRefusals};
use super::error::IngestRefusal;
use super::subscriptions::uncached;
use super::tenant::{Tenant, namespace};
use crate::Api;
use crate::credential::Caller;
use crate::document::params::{ProjectParam, TenantHeader};
use crate::error::ApiError;
use crate::path::ProjectPath;
use crate::wire::body;

const DEPRECATION: HeaderName = HeaderName::from_static("deprecation");

/// Events that were accepted.
#[derive(Serialize, ToSchema)]
pub struct IngestAnswer {
    #[schema(example = true)]
    ok: bool,
    /// Number of events in the batch.
    #[schema(example = 1)]
    received: usize,
    /// `true` if a batch with the same id was accepted before, so that this one was ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    deduplicated: Option<bool>,
    /// Namespace of the events; `null` for the default project.
    namespace: Option<String>,
}

/// Submit events. They are durable when the response arrives, and then delivered to every hook that matches.
#[utoipa::path(
    post,
    path = "/e",
    tag = "events",
    operation_id = "ingest",
    params(TenantHeader),
    request_body = IngestBody,
    responses((status = 200, description = "The events were accepted.", body = IngestAnswer), IngestRefusals)
)]
pub async fn ingest(
    State(api): State<Api>,
    caller: Caller,
    headers: HeaderMap,
    sent: Body,
) -> Result<Response, IngestRefusal> {
    ingest_from(&api, &caller, &headers, sent).await
}

/// Submit events under the older name of `/e`.
#[utoipa::path(
    post,
    path = "/ingest",
    tag = "events",
    operation_id = "ingest_deprecated",
    params(TenantHeader),
    request_body = IngestBody,
    responses(
        (status = 200, description = "The events were accepted.", body = IngestAnswer, headers(
            ("deprecation" = String, description = "Always `true`."),
            ("link" = String, description = "Path to use instead."),
        )),
        IngestRefusals,
    )
)]
#[deprecated]
pub async fn ingest_deprecated(
    State(api): State<Api>,
    caller: Caller,
    headers: HeaderMap,
    sent: Body,
) -> Response {
    deprecated(ingest_from(&api, &caller, &headers, sent).await.into_response())
}

/// Marks a response as one of the older name.
pub fn deprecated(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(DEPRECATION, HeaderValue::from_static("true"));
    headers.insert(header::LINK, HeaderValue::from_static("</e>; rel=\"successor-version\""));
    response
}

/// Submits events in the project of the caller.
pub async fn ingest_from(
    api: &Api,
    caller: &Caller,
    headers: &HeaderMap,
    sent: impl http_body::Body<Data = Bytes>,
) -> Result<Response, IngestRefusal> {
    let ingesting = async {
        let tenant = Tenant::enter(caller, headers, Action::Ingest).await?;
        accept(api, caller, &tenant.project, &tenant.pass, sent).await
    };
    ingesting.await.map_err(|error| IngestRefusal::of(error, caller.kind()))
}

/// Submit events to a project. They are durable when the response arrives, and then delivered to every hook that matches.
#[utoipa::path(
    post,
    path = "/v1/{project}/events",
    tag = "events",
    operation_id = "ingest_into_project",
    params(ProjectParam),
    request_body = IngestBody,
    responses((status = 200, description = "The events were accepted.", body = IngestAnswer), EventRefusals)
)]
pub async fn ingest_into_project(
    State(api): State<Api>,
    ProjectPath(project): ProjectPath,
    caller: Caller,
    sent: Body,
) -> Result<Response, ApiError> {
    ingest_into(&api, &project, &caller, sent).await
}

/// Submits events to a project.
pub async fn ingest_into(
    api: &Api,
    project: &ProjectId,
    caller: &Caller,
    sent: impl http_body::Body<Data = Bytes>,
) -> Result<Response, ApiError> {
    let pass = caller.may_in(project, Action::Ingest, Resource::Project).await?;
    accept(api, caller, project, &pass, sent).await
}

async fn accept(
    api: &Api,
    caller: &Caller,
    project: &ProjectId,
    pass: &Pass,
    sent: impl http_body::Body<Data = Bytes>,
) -> Result<Response, ApiError> {
    let (body, reserved) = body::bytes(sent, limits::INGEST_BYTES, api.context(Some(project))).await?;
    let batch = Batch::parse(&body, api.gate.clock().now())?;
    caller.may_still(pass).await?;
    let (hooks, into) = (api.hooks.clone(), project.clone());
    let ingesting = async move {
        let _reserved = reserved;
        hooks.ingest(&into, batch).await
    };
    let ingested = DetachOnDrop::new(ingesting).await?;
    let answer = IngestAnswer {
        ok: true,
        received: ingested.received,
        deduplicated: ingested.deduplicated.then_some(true),
        namespace: namespace(project),
    };
    Ok(uncached(StatusCode::OK, answer))
}
