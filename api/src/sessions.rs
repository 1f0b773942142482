//! Sessions over HTTP: subscribe, unsubscribe, publish, get, touch and delete. A session's stream is read like any stream.

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::routing::{delete as delete_at, get, post};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use tidings_auth::{Action, Resource};
use tidings_model::{ProjectId, StreamId, limits};
use tidings_sessions::{Fanout, SubscribeRequest};
use tidings_streams::StreamKey;
use utoipa::{OpenApi, ToSchema};

use crate::Api;
use crate::capability::Capability;
use crate::credential::Caller;
use crate::document::params::{ProjectParam, SessionParam, StreamParam};
use crate::document::{Content, SessionRefusals, StreamRefusals, WriteRefusals};
use crate::error::ApiError;
use crate::path::{ProjectPath, Segments, StreamPath, refuse_reserved, unaliased};
use crate::routes::Routes;
use crate::streams::appended_answer;
use crate::wire::{body, header as names, request};
use tidings_engine::DetachOnDrop;

/// What sessions bring to the interface.
pub const CAPABILITY: Capability = Capability::new(routes, Description::openapi);

/// What is described of sessions.
#[derive(OpenApi)]
#[openapi(paths(subscribe, unsubscribe, publish, describe, touch, delete))]
struct Description;

fn routes(routes: Routes) -> Routes {
    routes
        .route("/v1/{project}/subscribe", post(subscribe))
        .route("/v1/{project}/unsubscribe", delete_at(unsubscribe))
        .route("/v1/{project}/publish/{*id}", post(publish))
        .route("/v1/{project}/session/{session}", get(describe).delete(delete))
        .route("/v1/{project}/session/{session}/touch", post(touch))
}

/// What stands in a path as it is.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// A subscription to end.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pair {
    /// Session id: any text without control characters and slashes.
    #[schema(example = "user-alice", min_length = 1, max_length = 512)]
    session_id: String,
    /// Id of the source stream.
    #[schema(example = "orders", min_length = 1, max_length = 512)]
    stream_id: String,
}

/// A subscription to create.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewSubscription {
    /// Session id: any text without control characters and slashes.
    #[schema(example = "user-alice", min_length = 1, max_length = 512)]
    session_id: String,
    /// Id of the source stream.
    #[schema(example = "orders", min_length = 1, max_length = 512)]
    stream_id: String,
    /// Whether the session's stream shows each message of this source as `{"stream","offset","ts","payload"}`. Default: unchanged, and `false` for a new subscription.
    envelope: Option<bool>,
}

/// A subscription of a session to a stream.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubscribedAnswer {
    /// Session id.
    session_id: String,
    /// Stream id.
    stream_id: String,
    /// Path of the session's stream.
    session_stream_path: String,
    /// Time at which the session expires unless it is used, in milliseconds since 1970.
    expires_at: u64,
    /// Whether this request created the session.
    is_new_session: bool,
}

/// A session and its subscriptions.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionAnswer {
    /// Session id.
    session_id: String,
    /// Path of the session's stream.
    session_stream_path: String,
    /// Time at which the session expires unless it is used, in milliseconds since 1970.
    expires_at: u64,
    /// Content type of the session's messages.
    content_type: String,
    /// Streams that the session subscribes to.
    subscriptions: Vec<SubscriptionAnswer>,
}

/// A subscription of a session.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionAnswer {
    /// Stream id.
    stream_id: String,
    /// Time of the subscription, in milliseconds since 1970.
    subscribed_at: u64,
    /// Whether messages of this stream are shown in envelopes.
    envelope: bool,
}

/// A session whose expiry was renewed.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TouchedAnswer {
    /// Session id.
    session_id: String,
    /// Time at which the session expires unless it is used, in milliseconds since 1970.
    expires_at: u64,
}

/// Subscribe a session to a stream. Creates the session if it does not exist.
#[utoipa::path(
    post,
    path = "/v1/{project}/subscribe",
    tag = "sessions",
    params(ProjectParam),
    request_body = NewSubscription,
    responses(
        (status = 201, description = "Subscribed; the session was created.", body = SubscribedAnswer),
        (status = 200, description = "Subscribed; the session already existed.", body = SubscribedAnswer),
        SessionRefusals,
    )
)]
pub async fn subscribe(
    State(api): State<Api>,
    ProjectPath(project): ProjectPath,
    caller: Caller,
    sent: Body,
) -> Result<Response, ApiError> {
    // Before the body: strangers must not take the memory for it.
    caller.is_known_in(&project).await?;
    let wanted: NewSubscription = json_body(&api, &project, sent).await?;
    let session = session_id(&api, &wanted.session_id)?;
    let source = StreamId::parse(unaliased(&wanted.stream_id))?;
    if session == source {
        return Err(ApiError::bad_request("source_is_session", "a session cannot subscribe to itself"));
    }
    let resource = subscription(&session, &source);
    caller.may_in(&project, Action::Subscribe, resource).await?;
    let envelope = wanted.envelope;
    let request = SubscribeRequest { project: project.clone(), session: session.clone(), source, envelope };
    let subscribed = api.sessions.subscribe(&request).await?;
    let status = if subscribed.is_new { StatusCode::CREATED } else { StatusCode::OK };
    let answer = SubscribedAnswer {
        session_stream_path: path_of(&project, &session),
        session_id: wanted.session_id,
        stream_id: wanted.stream_id,
        expires_at: subscribed.expires_at.as_millis(),
        is_new_session: subscribed.is_new,
    };
    Ok((status, UNCACHED, Json(answer)).into_response())
}

/// Unsubscribe a session from a stream.
#[utoipa::path(
    delete,
    path = "/v1/{project}/unsubscribe",
    tag = "sessions",
    params(ProjectParam),
    request_body = Pair,
    responses((status = 204, description = "Unsubscribed, or there was no such subscription."), SessionRefusals)
)]
pub async fn unsubscribe(
    State(api): State<Api>,
    ProjectPath(project): ProjectPath,
    caller: Caller,
    sent: Body,
) -> Result<StatusCode, ApiError> {
    caller.is_known_in(&project).await?;
    let wanted: Pair = json_body(&api, &project, sent).await?;
    let session = session_id(&api, &wanted.session_id)?;
    let source = StreamId::parse(unaliased(&wanted.stream_id))?;
    caller.may_in(&project, Action::Unsubscribe, subscription(&session, &source)).await?;
    api.sessions.unsubscribe(&project, &session, &source).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Append to a stream, as `POST` to the stream does, and report the delivery to its subscribers.
#[utoipa::path(
    post,
    path = "/v1/{project}/publish/{id}",
    tag = "sessions",
    params(
        ProjectParam,
        StreamParam,
        ("Producer-Id" = Option<String>, Header, description = "Producer id. With `Producer-Epoch` and `Producer-Seq`, a repeated request is stored once."),
        ("Producer-Epoch" = Option<String>, Header, description = "Epoch of the producer; a restarted producer uses a higher one, which fences the old one."),
        ("Producer-Seq" = Option<String>, Header, description = "Sequence number of the append within the producer's epoch, from 0."),
        ("Stream-Seq" = Option<String>, Header, description = "Application sequence; must sort after the previous one (byte order)."),
        ("Stream-Closed" = Option<String>, Header, description = "`true` to close the stream after this append."),
        ("If-Match" = Option<String>, Header, description = "Offset that must be the stream's tail; otherwise the request is refused with 412."),
    ),
    request_body(
        description = "Content of the stream. If the stream is `application/json`, each element of an array is one message.",
        content(
            (String = "text/plain"),
            (serde_json::Value = "application/json"),
            (Content = "application/octet-stream"),
        )
    ),
    responses(
        (status = 200, description = "Appended; the request had producer headers.", headers(
            ("stream-next-offset" = String, description = "Offset from which to continue reading."),
            ("stream-fanout-mode" = String, description = "How sessions that subscribe receive the message: `inline`, `queued`, `circuit-open` or `skipped`."),
        )),
        (status = 204, description = "Appended or closed, or a repetition of an earlier request of the producer.", headers(
            ("stream-next-offset" = String, description = "Offset from which to continue reading."),
            ("stream-fanout-count" = String, description = "Number of sessions that subscribe to the stream."),
            ("stream-fanout-successes" = String, description = "Number of sessions that the message was delivered to."),
            ("stream-fanout-failures" = String, description = "Number of sessions that the message could not be delivered to."),
            ("stream-fanout-mode" = String, description = "How sessions that subscribe receive the message: `inline`, `queued`, `circuit-open` or `skipped`."),
        )),
        WriteRefusals,
    )
)]
pub async fn publish(
    State(api): State<Api>,
    StreamPath(stream): StreamPath,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    let pass = caller.may(Action::Publish, &stream).await?;
    let (parts, body) = request.into_parts();
    let context = api.context(Some(&stream.project));
    let (body, reserved) = body::bytes(body, api.streams.options().max_append_bytes, context).await?;
    let wanted = request::append(&parts.headers, body)?;
    caller.may_still(&pass).await?;
    caller.reaches_stream(&pass, &stream).await?;
    let producer = wanted.conditions.producer.clone();
    let publishing = async move {
        let _reserved = reserved;
        api.sessions.publish(&stream, &wanted).await
    };
    let published = DetachOnDrop::new(publishing).await?;
    let mut answer = appended_answer(&published.appended, producer.as_ref());
    put_fanout(answer.headers_mut(), &published.fanout);
    Ok(answer)
}

/// Get a session and its subscriptions. Does not renew its expiry.
#[utoipa::path(
    get,
    path = "/v1/{project}/session/{session}",
    tag = "sessions",
    params(
        ProjectParam,
        SessionParam,
    ),
    responses((status = 200, description = "The session exists.", body = SessionAnswer), SessionRefusals)
)]
pub async fn describe(
    State(api): State<Api>,
    Segments((project, session)): Segments<(String, String)>,
    caller: Caller,
) -> Result<Response, ApiError> {
    let key = enter(&api, &caller, Action::GetSession, &project, &session).await?;
    let described = api.sessions.describe(&key).await?;
    let subscriptions = described.subscriptions.into_iter().map(|(id, at, envelope)| SubscriptionAnswer {
        stream_id: id.as_str().to_owned(),
        subscribed_at: at.as_millis(),
        envelope,
    });
    let answer = SessionAnswer {
        session_stream_path: path_of(&key.project, &key.id),
        session_id: session,
        expires_at: described.expires_at.as_millis(),
        content_type: described.content_type.to_string(),
        subscriptions: subscriptions.collect(),
    };
    Ok((UNCACHED, Json(answer)).into_response())
}

/// Renew the expiry of a session.
#[utoipa::path(
    post,
    path = "/v1/{project}/session/{session}/touch",
    tag = "sessions",
    params(
        ProjectParam,
        SessionParam,
    ),
    responses((status = 200, description = "The session's expiry was renewed.", body = TouchedAnswer), SessionRefusals)
)]
pub async fn touch(
    State(api): State<Api>,
    Segments((project, session)): Segments<(String, String)>,
    caller: Caller,
) -> Result<Response, ApiError> {
    let key = enter(&api, &caller, Action::TouchSession, &project, &session).await?;
    let expires_at = api.sessions.touch(&key).await?.as_millis();
    Ok((UNCACHED, Json(TouchedAnswer { session_id: session, expires_at })).into_response())
}

/// Delete a session, its stream and its subscriptions.
#[utoipa::path(
    delete,
    path = "/v1/{project}/session/{session}",
    tag = "sessions",
    params(
        ProjectParam,
        SessionParam,
    ),
    responses((status = 204, description = "The session was deleted."), SessionRefusals, StreamRefusals)
)]
pub async fn delete(
    State(api): State<Api>,
    Segments((project, session)): Segments<(String, String)>,
    caller: Caller,
) -> Result<StatusCode, ApiError> {
    let key = enter(&api, &caller, Action::DeleteSession, &project, &session).await?;
    api.sessions.delete(&key).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Header of responses that caches must not keep, because they change with time.
pub const UNCACHED: AppendHeaders<[(header::HeaderName, &str); 1]> =
    AppendHeaders([(header::CACHE_CONTROL, "no-store")]);

/// Session of a path, if the caller may do `action` with it.
async fn enter(
    api: &Api,
    caller: &Caller,
    action: Action,
    project: &str,
    session: &str,
) -> Result<StreamKey, ApiError> {
    let (project, id) = (ProjectId::parse(project)?, session_id(api, session)?);
    caller.may_in(&project, action, Resource::Session(id.as_str().into())).await?;
    Ok(StreamKey { project, id })
}

fn session_id(api: &Api, text: &str) -> Result<StreamId, ApiError> {
    let invalid = |message| Err(ApiError::bad_request("invalid_session_id", message));
    let id = StreamId::parse(text)?;
    // Clients take these for steps in the path, also when they are percent-encoded, and never send them.
    let decoded = percent_decode_str(text).decode_utf8_lossy();
    if matches!(&*decoded, "." | "..") {
        return invalid("a session id is not `.` or `..`: no path could name its stream");
    }
    if text.contains('/') {
        return invalid("a session id has no slash");
    }
    if text.starts_with("session:") {
        return invalid(
            "`session:` stands before a session's id in paths of streams; it is not part of the id",
        );
    }
    refuse_reserved(&id)?;
    if api.sessions.options().require_uuid && !is_uuid(text) {
        return invalid("a session id must be a UUID here");
    }
    Ok(id)
}

/// Whether a text has the form of a UUID: 8-4-4-4-12 hexadecimal digits.
fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn subscription(session: &StreamId, source: &StreamId) -> Resource {
    Resource::Subscription { session: session.as_str().into(), source: source.clone() }
}

fn path_of(project: &ProjectId, session: &StreamId) -> String {
    format!("/v1/{project}/stream/{}", utf8_percent_encode(session.as_str(), PLAIN))
}

async fn json_body<T: serde::de::DeserializeOwned>(
    api: &Api,
    project: &ProjectId,
    sent: Body,
) -> Result<T, ApiError> {
    body::json(sent, limits::SUBSCRIBE_BODY_BYTES, api.context(Some(project))).await
}

fn put_fanout(headers: &mut HeaderMap, fanout: &Fanout) {
    let Fanout { mode, count, successes, failures } = *fanout;
    headers.insert(names::STREAM_FANOUT_COUNT, count.into());
    headers.insert(names::STREAM_FANOUT_SUCCESSES, successes.into());
    headers.insert(names::STREAM_FANOUT_FAILURES, failures.into());
    headers.insert(names::STREAM_FANOUT_MODE, HeaderValue::from_static(mode.as_str()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_known_by_its_groups() {
        assert!(is_uuid("123e4567-e89b-12d3-a456-426614174000"));
        assert!(is_uuid("123E4567-E89B-12D3-A456-426614174000"));
        for other in
            ["", "user-alice", "123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"]
        {
            assert!(!is_uuid(other), "{other}");
        }
    }
}
