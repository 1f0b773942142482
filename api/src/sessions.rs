//! Sessions over HTTP: subscribe, publish, and what becomes of a session. Its stream is read as any stream.

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

/// Who is to hear what.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pair {
    /// The session: any text without control characters and slashes.
    #[schema(example = "user-alice", min_length = 1, max_length = 512)]
    session_id: String,
    /// The stream that is heard.
    #[schema(example = "orders", min_length = 1, max_length = 512)]
    stream_id: String,
}

/// Who is to hear what, and how.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewSubscription {
    /// The session: any text without control characters and slashes.
    #[schema(example = "user-alice", min_length = 1, max_length = 512)]
    session_id: String,
    /// The stream that is heard.
    #[schema(example = "orders", min_length = 1, max_length = 512)]
    stream_id: String,
    /// Whether each message is shown as `{"stream","offset","ts","payload"}`. Left out, it stays as it is.
    envelope: Option<bool>,
}

/// A session that hears a stream.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubscribedAnswer {
    /// The session.
    session_id: String,
    /// The stream.
    stream_id: String,
    /// Where the session is read.
    session_stream_path: String,
    /// When the session expires if nobody uses it, in milliseconds since 1970.
    expires_at: u64,
    /// Whether it has just begun.
    is_new_session: bool,
}

/// What is known of a session.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionAnswer {
    /// The session.
    session_id: String,
    /// Where it is read.
    session_stream_path: String,
    /// When it expires if nobody uses it, in milliseconds since 1970.
    expires_at: u64,
    /// What its messages are.
    content_type: String,
    /// What it hears.
    subscriptions: Vec<SubscriptionAnswer>,
}

/// A stream that a session hears.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionAnswer {
    /// The stream.
    stream_id: String,
    /// Since when, in milliseconds since 1970.
    subscribed_at: u64,
    /// Whether its messages are shown in envelopes.
    envelope: bool,
}

/// A session that was touched.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TouchedAnswer {
    /// The session.
    session_id: String,
    /// When it expires if nobody uses it, in milliseconds since 1970.
    expires_at: u64,
}

/// Lets a session hear a stream, and begins the session if there is none.
#[utoipa::path(
    post,
    path = "/v1/{project}/subscribe",
    tag = "sessions",
    params(("project" = String, Path, description = "The project.", example = "shop")),
    request_body = NewSubscription,
    responses(
        (status = 201, description = "The session has begun.", body = SubscribedAnswer),
        (status = 200, description = "The session was there.", body = SubscribedAnswer),
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

/// Ends that a session hears a stream.
#[utoipa::path(
    delete,
    path = "/v1/{project}/unsubscribe",
    tag = "sessions",
    params(("project" = String, Path, description = "The project.", example = "shop")),
    request_body = Pair,
    responses((status = 204, description = "It does not hear it, or did not."), SessionRefusals)
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

/// Appends to a stream as a `POST` to it does, and tells how its subscribers hear it.
#[utoipa::path(
    post,
    path = "/v1/{project}/publish/{id}",
    tag = "sessions",
    params(
        ("project" = String, Path, description = "The project.", example = "shop"),
        ("id" = String, Path, description = "The stream; slashes are part of it.", example = "orders"),
        ("Producer-Id" = Option<String>, Header, description = "Who appends; with the next two, once however often."),
        ("Producer-Epoch" = Option<String>, Header, description = "Which instance of the producer."),
        ("Producer-Seq" = Option<String>, Header, description = "Which of its appends."),
        ("Stream-Seq" = Option<String>, Header, description = "Must be greater than the one before."),
        ("Stream-Closed" = Option<String>, Header, description = "`true` to close the stream with it."),
        ("If-Match" = Option<String>, Header, description = "Only if this offset is the tail."),
    ),
    request_body(
        description = "In JSON mode an array holds a message in each element.",
        content(
            (String = "text/plain"),
            (serde_json::Value = "application/json"),
            (Content = "application/octet-stream"),
        )
    ),
    responses(
        (status = 200, description = "Appended, for a producer.", headers(
            ("stream-next-offset" = String, description = "Where to read on."),
            ("stream-fanout-mode" = String, description = "How the subscribers hear it."),
        )),
        (status = 204, description = "Appended, closed, or made before.", headers(
            ("stream-next-offset" = String, description = "Where to read on."),
            ("stream-fanout-count" = String, description = "How many subscribe."),
            ("stream-fanout-successes" = String, description = "How many have it."),
            ("stream-fanout-failures" = String, description = "How many could not be given it."),
            ("stream-fanout-mode" = String, description = "How they hear it."),
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
    let intake = api.intake(Some(&stream.project));
    let (body, reserved) = body::bytes(body, api.streams.options().max_append_bytes, intake).await?;
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

/// What is known of a session. Does not renew it.
#[utoipa::path(
    get,
    path = "/v1/{project}/session/{session}",
    tag = "sessions",
    params(
        ("project" = String, Path, description = "The project.", example = "shop"),
        ("session" = String, Path, description = "The session.", example = "user-alice"),
    ),
    responses((status = 200, description = "It is there.", body = SessionAnswer), SessionRefusals)
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

/// Keeps a session alive.
#[utoipa::path(
    post,
    path = "/v1/{project}/session/{session}/touch",
    tag = "sessions",
    params(
        ("project" = String, Path, description = "The project.", example = "shop"),
        ("session" = String, Path, description = "The session.", example = "user-alice"),
    ),
    responses((status = 200, description = "It lives on.", body = TouchedAnswer), SessionRefusals)
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

/// Ends a session, its stream and its subscriptions.
#[utoipa::path(
    delete,
    path = "/v1/{project}/session/{session}",
    tag = "sessions",
    params(
        ("project" = String, Path, description = "The project.", example = "shop"),
        ("session" = String, Path, description = "The session.", example = "user-alice"),
    ),
    responses((status = 204, description = "It has ended."), SessionRefusals, StreamRefusals)
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

/// What no cache keeps: it changes with time.
pub const UNCACHED: AppendHeaders<[(header::HeaderName, &str); 1]> =
    AppendHeaders([(header::CACHE_CONTROL, "no-store")]);

/// The session that a path names, if the caller may do this with it.
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

/// 8-4-4-4-12 hexadecimal digits.
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
    body::json(sent, limits::SUBSCRIBE_BODY_BYTES, api.intake(Some(project))).await
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
