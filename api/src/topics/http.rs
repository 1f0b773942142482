//! Topics over HTTP: publishing without a connection, and how many would hear it.

use std::borrow::Cow;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde_json::Value;
use tidings_auth::{Action, Resource, Wanted};
use tidings_model::ProjectId;
use tidings_model::limits::Limit;
use tidings_topics::{
    Connection, CountError, HistoryState, Payload, PresentMember, PublishEnvelope, PublishError,
    PublishFailure, PublishOptions, PublishResult, Sent,
};
use utoipa::ToSchema;

use super::error::WireError;
use super::is_project;
use super::metrics::Via;
use super::request::HttpPublish;
use crate::Api;
use crate::credential::Caller;
use crate::document::params::ProjectParam;
use crate::document::{ErrorAnswer, ProjectRefusals};
use crate::error::{ApiError, Refused};
use crate::fast_path::{self, Admitted, FastHandler};
use crate::live::PassHandle;
use crate::wire::body;

/// The path of a topic.
pub const TOPIC: &str = "/v1/{project}/topics/{*topic}";

/// The path of the empty topic, which is never valid.
pub const NO_TOPIC: &str = "/v1/{project}/topics/";

/// Project and topic as a path names them. The topic is not validated.
pub struct TopicPath {
    project: ProjectId,
    topic: String,
}

impl<S: Send + Sync> FromRequestParts<S> for TopicPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(pairs) = Path::<Vec<(String, String)>>::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::bad_request("invalid_path", error.body_text()))?;
        let find = |name| pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let project = ProjectId::parse(find("project").unwrap_or_default())?;
        Ok(Self { project, topic: find("topic").unwrap_or_default().to_owned() })
    }
}

/// A message to publish.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it only describes what is read")]
pub struct NewMessage {
    /// Type of the message, 1 to 128 characters.
    #[schema(example = "SAID")]
    r#type: String,
    /// What is known of the message beside its payload.
    #[schema(nullable = false)]
    meta: Option<serde_json::Map<String, Value>>,
    /// Any JSON value. Absent is not the same as `null`.
    payload: Option<Value>,
    /// Without effect: the sender has no connection.
    #[schema(nullable = false)]
    exclude_self: Option<bool>,
    /// Hint for a message bus that has partitions.
    #[schema(nullable = false)]
    partition_key: Option<String>,
}

/// The outcome of a publish.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it only describes what is written")]
pub struct PublishAnswer {
    /// Whether the message was handed to everybody who subscribes.
    ok: bool,
    /// What `matched` means: `exact`, `estimate` or `unknown`.
    #[schema(nullable = false)]
    capability: Option<String>,
    /// Number of connections that matched.
    #[schema(nullable = false)]
    matched: Option<u64>,
    /// Life of the topic's history, if it has one.
    #[schema(nullable = false)]
    epoch: Option<String>,
    /// Number of the message in the topic's history, if it has one.
    #[schema(nullable = false)]
    offset: Option<u64>,
    /// Code of the failure.
    #[schema(nullable = false)]
    error: Option<String>,
    /// Whether the same request may succeed later.
    #[schema(nullable = false)]
    retryable: Option<bool>,
    /// Name of the driver that failed.
    #[schema(nullable = false)]
    adapter: Option<String>,
    /// Values that a program may need.
    #[schema(nullable = false)]
    details: Option<serde_json::Map<String, Value>>,
    /// Description of the failure below.
    #[schema(nullable = false)]
    cause: Option<String>,
}

/// A publish that was refused, by topics or before they were asked.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what is written")]
pub struct PublishRefusal {
    /// `false` if topics refused it; then the other fields are those of `PublishAnswer`.
    #[schema(nullable = false)]
    ok: Option<bool>,
    /// Code of the failure; or an object with `code` and `message`, if the request was refused before.
    error: Value,
}

/// Body of the response to a question about an invalid topic.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what is written")]
pub struct TopicErrorAnswer {
    error: TopicErrorDetail,
}

/// Code and message of an error, with details.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it only describes what is written")]
pub struct TopicErrorDetail {
    /// Stable code for programs.
    #[schema(example = "INVALID_TOPIC")]
    code: String,
    /// Message for people; its wording may change.
    message: String,
    /// What is wrong with the topic.
    #[schema(nullable = false)]
    details: Option<serde_json::Map<String, Value>>,
}

/// Publish a message to a topic.
#[utoipa::path(
    post,
    path = "/v1/{project}/topics/{topic}",
    tag = "topics",
    operation_id = "publish_topic",
    params(
        ProjectParam,
        ("topic" = String, Path, description = "Topic; it may contain slashes.", example = "room:1"),
        ("type" = Option<String>, Query, description = "Type of the message, if the body is not `application/json`."),
    ),
    request_body(
        description = "A message as JSON; a body of any other content type is the payload, as bytes.",
        content((NewMessage = "application/json"), (crate::document::Content = "application/octet-stream"))
    ),
    responses(
        (status = 200, description = "The message was published.", body = PublishAnswer),
        ProjectRefusals,
        (status = 400, description = "`VALIDATION`: topic, type or body are not valid. Or the request is malformed.", body = PublishRefusal),
        (status = 403, description = "`ACL_PUBLISH`: the credential does not grant the topic. Or `wrong_project` or `forbidden`.", body = PublishRefusal),
        (status = 408, description = "`body_too_slow`: the body arrived too slowly.", body = ErrorAnswer),
        (status = 409, description = "`STATE`: the server is stopping.", body = PublishAnswer),
        (status = 413, description = "`PAYLOAD_TOO_LARGE`: the payload is too large.", body = PublishAnswer),
    )
)]
pub async fn publish(
    State(api): State<Api>,
    TopicPath { project, topic }: TopicPath,
    caller: Caller,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let publishing = Publishing { project, topic, kind: type_of(&uri) };
    publishing.answer_to(&api, &caller, &headers, body).await
}

/// A publish as path and query say it.
struct Publishing {
    project: ProjectId,
    topic: String,
    /// Type of the message, if the query names one.
    kind: Option<String>,
}

/// Publishes to plain paths.
pub fn fast_path(api: &Api, request: &mut Request) -> Option<BoxFuture<'static, Response>> {
    if request.method() != Method::POST {
        return None;
    }
    let publishing = Publishing::to(request.uri())?;
    Some(fast_path::serve(api, TOPIC, request, publishing))
}

impl FastHandler for Publishing {
    async fn answer(&self, request: Admitted<'_>) -> Response {
        let Admitted { api, caller, headers, body } = request;
        self.answer_to(api, caller, headers, body).await.into_response()
    }
}

impl Publishing {
    /// The publish of an address, if it stands there as it is. What is not plain is for the router.
    fn to(uri: &Uri) -> Option<Self> {
        let path = uri.path();
        let (project, topic) = path.strip_prefix("/v1/")?.split_once("/topics/")?;
        if !is_project(project) || topic.is_empty() || path.contains('%') {
            return None;
        }
        let project = ProjectId::parse(project).ok()?;
        Some(Self { project, topic: topic.to_owned(), kind: type_of(uri) })
    }

    async fn answer_to<B>(
        &self,
        api: &Api,
        caller: &Caller,
        headers: &HeaderMap,
        sent: B,
    ) -> Result<Response, ApiError>
    where
        B: http_body::Body<Data = Bytes>,
    {
        let pass = caller.may_in(&self.project, Action::UseTopics, Resource::Project).await?;
        let options = api.topics.options();
        let is_json = is_json(headers);
        let payload_bytes = options.rules.max_payload_bytes().unwrap_or(usize::MAX);
        let most = if is_json { options.frame_bytes } else { payload_bytes };
        let read = body::bytes(sent, most, api.context(Some(&self.project))).await;
        let (body, _reserved) = match read {
            Ok(read) => read,
            Err(error) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                let failure = PublishFailure::new(PublishError::PayloadTooLarge).with("limit", payload_bytes);
                return Ok(answer(api, failure.into()));
            }
            Err(error) => return Err(error),
        };
        caller.may_still(&pass).await?;
        let message = match is_json {
            true => self.message_of(&body),
            false => Ok((self.binary(body), None)),
        };
        let (envelope, partition_key) = match message {
            Ok(message) => message,
            Err(error) => return Ok(answer(api, invalid(error).into())),
        };
        if api.drained.is_draining() {
            return Ok(answer(api, PublishFailure::new(PublishError::State).into()));
        }
        let publisher = Connection { client_id: None, data: PassHandle::from(pass) };
        let options = PublishOptions { exclude_self: false, partition_key };
        let hub = api.topics.of(&self.project);
        Ok(answer(api, hub.publish_as(&publisher, envelope, options).await))
    }

    fn message_of(&self, body: &Bytes) -> Result<(PublishEnvelope, Option<String>), WireError> {
        let text =
            std::str::from_utf8(body).map_err(|_| WireError::frame("json", "the body must be UTF-8"))?;
        let HttpPublish { message, partition_key } = HttpPublish::parse(text)?;
        let envelope = message.into_envelope(self.topic.clone(), body)?;
        Ok((envelope, partition_key.map(Cow::into_owned)))
    }

    fn binary(&self, body: Bytes) -> PublishEnvelope {
        let kind = self.kind.clone().unwrap_or_default();
        PublishEnvelope::new(self.topic.clone(), kind).with_payload(Payload::Binary(body))
    }
}

/// A body that is not a message.
fn invalid(error: WireError) -> PublishFailure {
    let details = match error.details {
        Some(Value::Object(details)) => details,
        _ => serde_json::Map::new(),
    };
    let failure = PublishFailure::new(PublishError::Validation).because(Invalid(error.message));
    PublishFailure { details, ..failure }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Invalid(String);

fn answer(api: &Api, result: PublishResult) -> Response {
    let metrics = api.topics.metrics();
    metrics.published(Via::Http, &result);
    written(&result)
}

fn written(result: &PublishResult) -> Response {
    if let PublishResult::Sent(sent @ Sent { position: None, .. }) = result {
        return success(*sent);
    }
    let mut response = (status(result.error()), axum::Json(result.to_json())).into_response();
    if let Some(error) = result.error() {
        let limit = (error == PublishError::PayloadTooLarge).then_some(Limit::TopicPayloadBytes);
        response.extensions_mut().insert(Refused { code: error.as_str(), limit, failure: None });
    }
    response
}

/// The answer to a publish that succeeded and has no place in a history: most are. The same as by way of a JSON value,
/// without its allocations.
fn success(sent: Sent) -> Response {
    let capability = sent.capability.as_str();
    let text = match sent.matched {
        Some(matched) => format!(r#"{{"capability":"{capability}","matched":{matched},"ok":true}}"#),
        None => format!(r#"{{"capability":"{capability}","ok":true}}"#),
    };
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn status(error: Option<PublishError>) -> StatusCode {
    match error {
        None => StatusCode::OK,
        Some(PublishError::Validation) => StatusCode::BAD_REQUEST,
        Some(PublishError::AclPublish) => StatusCode::FORBIDDEN,
        Some(PublishError::State) => StatusCode::CONFLICT,
        Some(PublishError::PayloadTooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
        Some(PublishError::Backpressure) => StatusCode::TOO_MANY_REQUESTS,
        Some(PublishError::Unsupported) => StatusCode::NOT_IMPLEMENTED,
        Some(PublishError::AdapterError | PublishError::ConnectionClosed) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next()).unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

fn type_of(uri: &Uri) -> Option<String> {
    query(uri, "type")
}

/// The first value of a parameter.
fn query(uri: &Uri, name: &str) -> Option<String> {
    let pairs = uri.query()?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.into_iter().find(|(key, _)| *key == name)?;
    let spaced = value.replace('+', " ");
    Some(percent_decode_str(&spaced).decode_utf8_lossy().into_owned())
}

/// Subscribers of a topic.
#[derive(Serialize, ToSchema)]
pub struct TopicAnswer {
    /// The topic in its normal form.
    #[schema(example = "room:1")]
    topic: String,
    /// Number of connections that would receive a message now.
    #[schema(example = 3)]
    subscribers: u64,
    /// What the number means: `exact`, `estimate` or `unknown`.
    #[schema(example = "exact")]
    capability: &'static str,
    /// Its history, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    history: Option<TopicHistory>,
    /// Its members, if they are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    members: Option<Vec<Value>>,
}

/// What is known of the history of a topic.
#[derive(Serialize, ToSchema)]
pub struct TopicHistory {
    /// Life of the history; offsets of different ones cannot be compared.
    epoch: String,
    /// Offset of the last message.
    #[schema(example = 42)]
    offset: u64,
    /// Number of messages that are kept.
    #[schema(example = 42)]
    count: u64,
}

/// Tell how many connections subscribe to a topic.
#[utoipa::path(
    get,
    path = "/v1/{project}/topics/{topic}",
    tag = "topics",
    operation_id = "count_topic",
    params(
        ProjectParam,
        ("topic" = String, Path, description = "Topic; it may contain slashes.", example = "room:1"),
        ("presence" = Option<bool>, Query, description = "Whether to list the members, at most 1,000."),
    ),
    responses(
        (status = 200, description = "Number of subscribers; 0 for a topic that nobody uses.", body = TopicAnswer),
        ProjectRefusals,
        (status = 400, description = "`INVALID_TOPIC`: the topic is not valid. Or the request is malformed.", body = TopicErrorAnswer),
    )
)]
pub async fn count(
    State(api): State<Api>,
    TopicPath { project, topic }: TopicPath,
    caller: Caller,
    uri: Uri,
) -> Result<axum::Json<TopicAnswer>, ApiError> {
    let pass = caller.may_in(&project, Action::UseTopics, Resource::Project).await?;
    let hub = api.topics.of(&project);
    let counted = match hub.count(&topic).await {
        Ok(counted) => counted,
        Err(CountError::Topic(error)) => {
            let details = Value::Object(error.details.to_json());
            return Err(ApiError::bad_request(error.code.as_str(), error.message).detailed(details));
        }
        Err(CountError::Driver(error)) => {
            let message = "the number is not known at the moment";
            tracing::warn!(%error, "the subscribers of a topic could not be counted");
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "adapter_error", message));
        }
    };
    if pass.may_subscribe_topic(Wanted::Topic(&counted.topic)).is_err() {
        let message = "the credential does not grant this topic";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", message));
    }
    let (subscribers, capability) = (counted.count.subscribers, counted.count.capability.as_str());
    let history = hub.history(&counted.topic).await.map_err(|error| {
        tracing::warn!(%error, "the history of a topic cannot be read");
        let message = "the history is not known at the moment";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "adapter_error", message)
    })?;
    let history = history.map(|HistoryState { head, count }| TopicHistory {
        epoch: head.epoch.to_string(),
        offset: head.offset,
        count,
    });
    let asks = query(&uri, "presence").is_some_and(|value| value == "true");
    let members = asks.then(|| {
        let presence = hub.presence(&counted.topic);
        presence.members.iter().map(PresentMember::to_json).collect()
    });
    Ok(axum::Json(TopicAnswer { topic: counted.topic, subscribers, capability, history, members }))
}

#[cfg(test)]
mod tests;
