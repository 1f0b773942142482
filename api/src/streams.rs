//! Streams over HTTP: the Durable Streams protocol.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use tidings_auth::{Action, Pass};
use tidings_engine::deliver::{Batch, Encode, Frame, FrameChunks};
use tidings_model::{Position, Producer};
use tidings_streams::{
    Appended, Chunk, Created, Expiry, Found, Freshness, From as Start, ReaderFormat, Retention, Stream,
    StreamError, StreamKey,
};
use utoipa::OpenApi;

use crate::capability::Capability;
use crate::credential::Caller;
use crate::document::params::{ProjectParam, StreamParam};
use crate::document::{Content, ErrorAnswer, StreamRefusals, WriteRefusals};
use crate::encoded::{Encoded, Form};
use crate::error::ApiError;
use crate::fast_path::{self, Admitted, FastHandler};
use crate::live::{FeedOptions, Transport};
use crate::messages::Messages;
use crate::path::{self, StreamPath, refuse_reserved};
use crate::routes::Routes;
use crate::sse::{self, Encoding, Sse};
use crate::websocket::{Limits, Upgrade};
use crate::wire::coding::{Coding, varies};
use crate::wire::query::{Live, ReadQuery};
use crate::wire::{body, header as names, offset, payload, request, time};
use crate::{Api, listing, long_poll};
use tidings_engine::DetachOnDrop;

/// What streams bring to the interface.
pub const CAPABILITY: Capability =
    Capability { stays_open, fast_path, ..Capability::new(routes, Description::openapi) };

/// What is described of streams.
#[derive(OpenApi)]
#[openapi(paths(read, describe, create, append, delete, listing::list))]
struct Description;

/// A stream of the default project.
const UNNAMED: &str = "/v1/stream/{*id}";
/// A stream of a project.
const NAMED: &str = "/v1/{project}/stream/{*id}";

fn routes(routes: Routes) -> Routes {
    let methods = || get(read).head(describe).put(create).post(append).delete(delete);
    routes
        .route(UNNAMED, methods())
        .route(NAMED, methods())
        .route("/v1/{project}/streams", get(listing::list))
}

fn stays_open(_path: &str, query: &str) -> bool {
    query.split('&').any(|pair| pair == "live=sse" || pair == "live=websocket")
}

/// Appends.
fn fast_path(api: &Api, request: &mut Request) -> Option<BoxFuture<'static, Response>> {
    if request.method() != Method::POST {
        return None;
    }
    let (template, appending) = Appending::to(request.uri().path())?;
    Some(fast_path::serve(api, template, request, appending))
}

/// What is appended to.
struct Appending(StreamKey);

impl Appending {
    /// The stream of a path, and the template that the path has. What is not plain is for the router.
    fn to(path: &str) -> Option<(&'static str, Self)> {
        let rest = path.strip_prefix("/v1/")?;
        if rest.starts_with("stream/") {
            let stream = path::stream_at(path).ok().filter(|stream| stream.id.reserved().is_none())?;
            return Some((UNNAMED, Self(stream)));
        }
        // Seen before an error would be made for it.
        rest.split_once('/').filter(|(_, rest)| rest.starts_with("stream/"))?;
        let stream = path::stream_at(path).ok().filter(|stream| !stream.project.is_reserved())?;
        let stream = Some(stream).filter(|stream| stream.id.reserved().is_none())?;
        Some((NAMED, Self(stream)))
    }
}

impl FastHandler for Appending {
    async fn answer(&self, request: Admitted<'_>) -> Response {
        let Admitted { api, caller, headers, body } = request;
        append_to(api, &self.0, caller, headers, body).await.into_response()
    }
}

/// Create a stream, optionally with initial content.
#[utoipa::path(
    put,
    path = "/v1/{project}/stream/{id}",
    tag = "streams",
    params(
        ProjectParam,
        StreamParam,
        ("Stream-TTL" = Option<String>, Header, description = "Seconds after its last use until the stream expires."),
        ("Stream-Expires-At" = Option<String>, Header, description = "Time at which the stream expires, in RFC 3339 format."),
        ("Stream-Closed" = Option<String>, Header, description = "`true` to create the stream closed."),
        ("Stream-Max-Age" = Option<String>, Header, description = "Maximum age of a message, in seconds."),
        ("Stream-Max-Bytes" = Option<String>, Header, description = "Maximum total size of the messages, in bytes; the oldest are removed."),
        ("Stream-Max-Messages" = Option<String>, Header, description = "Maximum number of messages; the oldest are removed."),
        ("Stream-Forked-From" = Option<String>, Header, description = "Path of the stream to fork."),
        ("Stream-Fork-Offset" = Option<String>, Header, description = "Offset of the source at which the fork begins; default: its tail."),
        ("Stream-Fork-Sub-Offset" = Option<String>, Header, description = "How much of the append after `Stream-Fork-Offset` the fork includes: messages in JSON mode, bytes otherwise."),
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
        (status = 201, description = "The stream was created.", headers(
            ("location" = String, description = "URL of the stream."),
            ("stream-next-offset" = String, description = "Offset from which to continue reading."),
        )),
        (status = 200, description = "The stream already exists with the requested configuration.", headers(
            ("stream-next-offset" = String, description = "Offset from which to continue reading."),
        )),
        WriteRefusals,
    )
)]
pub async fn create(
    State(api): State<Api>,
    StreamPath(stream): StreamPath,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    let pass = caller.may(Action::Create, &stream).await?;
    refuse_reserved(&stream.id)?;
    let (parts, body) = request.into_parts();
    let context = api.context(Some(&stream.project));
    let (body, reserved) = body::bytes(body, api.streams.options().max_append_bytes, context).await?;
    let wanted = request::create(&parts.headers, body)?;
    caller.may_still(&pass).await?;
    // The answer tells of what is there.
    caller.reaches_stream(&pass, &stream).await?;
    // A fork shows what its source has. One of another project is refused whoever asks.
    if let Some(fork) = wanted.fork.as_ref().filter(|fork| fork.source.project == stream.project) {
        let source = caller.may_also(Action::Read, &fork.source).await?;
        caller.reaches_stream(&source, &fork.source).await?;
    }
    // Before anything is created: an answer that fails must not leave a stream behind.
    let location = location(&parts)?;
    let mut headers = HeaderMap::new();
    let creating = async move {
        let _reserved = reserved;
        api.streams.create(&stream, &wanted).await
    };
    let (status, found) = match DetachOnDrop::new(creating).await? {
        Created::New(found) => {
            headers.insert(header::LOCATION, location);
            (StatusCode::CREATED, found)
        }
        Created::Existed(found) => (StatusCode::OK, found),
    };
    put_content_type(&mut headers, &found.stream);
    put_end(&mut headers, &found);
    Ok((status, headers).into_response())
}

/// Append to a stream, close it, or both. The append is durable when the response arrives.
#[utoipa::path(
    post,
    path = "/v1/{project}/stream/{id}",
    tag = "streams",
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
            ("producer-epoch" = String, description = "Epoch of the producer."),
            ("producer-seq" = String, description = "Highest sequence number accepted from the producer."),
        )),
        (status = 204, description = "Appended or closed, or a repetition of an earlier request of the producer.", headers(
            ("stream-next-offset" = String, description = "Offset from which to continue reading."),
        )),
        WriteRefusals,
    )
)]
pub async fn append(
    State(api): State<Api>,
    StreamPath(stream): StreamPath,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    append_to(&api, &stream, &caller, &parts.headers, body).await
}

/// Appends the body of a request, or closes the stream, as its headers say.
pub async fn append_to(
    api: &Api,
    stream: &StreamKey,
    caller: &Caller,
    headers: &HeaderMap,
    body: impl http_body::Body<Data = Bytes>,
) -> Result<Response, ApiError> {
    let pass = caller.may(Action::Append, stream).await?;
    let context = api.context(Some(&stream.project));
    let (body, reserved) = body::bytes(body, api.streams.options().max_append_bytes, context).await?;
    let wanted = request::append(headers, body)?;
    caller.may_still(&pass).await?;
    caller.reaches_stream(&pass, stream).await?;
    let producer = wanted.conditions.producer.clone();
    let (sessions, stream) = (api.sessions.clone(), stream.clone());
    let appending = async move {
        let _reserved = reserved;
        sessions.append(&stream, &wanted).await
    };
    let published = DetachOnDrop::new(appending).await?;
    Ok(appended_answer(&published.appended, producer.as_ref()))
}

/// Get the metadata of a stream.
#[utoipa::path(
    head,
    path = "/v1/{project}/stream/{id}",
    tag = "streams",
    params(
        ProjectParam,
        StreamParam,
    ),
    responses(
        (status = 200, description = "The stream exists; its metadata is in the headers.", headers(
            ("stream-next-offset" = String, description = "Offset of the stream's tail."),
            ("stream-closed" = String, description = "`true` if the stream is closed."),
            ("stream-ttl" = String, description = "Seconds after its last use until the stream expires."),
            ("stream-expires-at" = String, description = "Time at which the stream expires, in RFC 3339 format."),
            ("stream-max-age" = String, description = "Maximum age of a message, in seconds."),
            ("stream-max-bytes" = String, description = "Maximum total size of the messages, in bytes; the oldest are removed."),
            ("stream-max-messages" = String, description = "Maximum number of messages; the oldest are removed."),
            ("stream-oldest-offset" = String, description = "Offset before the oldest message that is kept; absent if no message was removed."),
        )),
        StreamRefusals,
    )
)]
pub async fn describe(
    State(api): State<Api>,
    StreamPath(stream): StreamPath,
    caller: Caller,
) -> Result<Response, ApiError> {
    let pass = caller.may(Action::Read, &stream).await?;
    let found = api.streams.describe(&stream).await?;
    caller.reaches(&pass, found.stream.owner)?;
    let mut headers = HeaderMap::new();
    put_content_type(&mut headers, &found.stream);
    put_end(&mut headers, &found);
    match found.stream.expiry {
        Expiry::Never => {}
        Expiry::Idle(ttl) => {
            headers.insert(names::STREAM_TTL, ttl.as_secs().into());
        }
        Expiry::At(at) => {
            let text = HeaderValue::from_str(&time::print(at)).expect("a time is plain text");
            headers.insert(names::STREAM_EXPIRES_AT, text);
        }
    }
    if !found.stream.retention().is_unlimited() {
        put_retention(&mut headers, found.stream.retention());
        let floor = api.streams.floor(&stream, &found).await?;
        headers.insert(names::STREAM_OLDEST_OFFSET, offset::value(floor.position));
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    put_vary(&mut headers, &found.stream);
    Ok(headers.into_response())
}

/// Delete a stream.
#[utoipa::path(
    delete,
    path = "/v1/{project}/stream/{id}",
    tag = "streams",
    params(
        ProjectParam,
        StreamParam,
    ),
    responses(
        (status = 204, description = "The stream was deleted."),
        (status = 507, description = "`no_space`: the store is out of disk space.", body = ErrorAnswer),
        StreamRefusals,
    )
)]
pub async fn delete(
    State(api): State<Api>,
    StreamPath(stream): StreamPath,
    caller: Caller,
) -> Result<StatusCode, ApiError> {
    let pass = caller.may(Action::Delete, &stream).await?;
    caller.reaches_stream(&pass, &stream).await?;
    api.streams.delete(&stream).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Read a stream: stored messages, or messages as they are appended.
#[utoipa::path(
    get,
    path = "/v1/{project}/stream/{id}",
    tag = "streams",
    params(
        ProjectParam,
        StreamParam,
        ("offset" = Option<String>, Query, description = "Offset to read from: `-1` (the beginning), `now` (the tail), or an offset from an earlier response."),
        ("live" = Option<String>, Query, description = "How to wait for new messages: `long-poll`, `sse` or `websocket`. Default: do not wait."),
        ("cursor" = Option<String>, Query, description = "`Stream-Cursor` of the previous response."),
        ("If-None-Match" = Option<String>, Header, description = "`ETag` of a cached response."),
        ("Last-Event-ID" = Option<String>, Header, description = "Offset of the last event received, sent by browsers when they reconnect."),
    ),
    responses(
        (status = 101, description = "The connection is now a WebSocket. Each message with records is followed by a control message with the next offset."),
        (status = 200, description = "Messages in the stream's content type, or server-sent events if `live=sse`.", content_type = "*/*", body = serde_json::Value, headers(
            ("stream-next-offset" = String, description = "Offset from which to continue reading."),
            ("stream-up-to-date" = String, description = "`true` if the response reaches the tail."),
            ("stream-closed" = String, description = "`true` if the stream is closed and the response reaches its end."),
            ("stream-cursor" = String, description = "Value to send as `cursor` with the next long-poll."),
            ("etag" = String, description = "Entity tag of this response."),
        )),
        (status = 204, description = "The long-poll timed out without new messages."),
        (status = 304, description = "The content is unchanged since the response that `If-None-Match` names."),
        (status = 426, description = "`upgrade_required` or `websocket_version`: the request is not a WebSocket handshake as in RFC 6455.", body = ErrorAnswer),
        (status = 505, description = "`http_version`: a WebSocket handshake needs HTTP/1.1.", body = ErrorAnswer),
        StreamRefusals,
    )
)]
pub async fn read(
    State(api): State<Api>,
    StreamPath(stream): StreamPath,
    caller: Caller,
    query: ReadQuery,
    mut request: Request,
) -> Result<Response, ApiError> {
    let pass = caller.may(Action::Read, &stream).await?;
    // Before it is read, which would renew it.
    caller.reaches_stream(&pass, &stream).await?;
    match query.live {
        Live::No => catch_up(&api, &stream, query, request.headers()).await,
        Live::LongPoll => long_poll(&api, &stream, query, request.headers(), &pass).await,
        Live::Sse => follow(&api, &stream, query, Transport::of(&mut request), pass).await,
        Live::WebSocket => {
            let upgrade =
                Upgrade::validate_head(request.method(), request.version(), request.headers(), &[])?;
            converse(&api, &stream, query, upgrade, Transport::of(&mut request), pass).await
        }
    }
}

async fn catch_up(
    api: &Api,
    stream: &StreamKey,
    query: ReadQuery,
    asked: &HeaderMap,
) -> Result<Response, ApiError> {
    let (found, chunk) = api.streams.read(stream, query.from).await?;
    let coding = chunk_coding(asked, &found, &chunk);
    let mut headers = HeaderMap::new();
    put_content_type(&mut headers, &found);
    put_bounds(&mut headers, ReadBounds::from(&chunk));
    if query.from == Start::Tail {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        return chunk_answer(headers, &found, &chunk, coding).await;
    }
    let etag = etag(&found, &chunk, coding);
    // What lies before the tail never changes. At the tail of an open stream a cache must ask each time, and of one that
    // does not keep everything: what was read may have gone.
    let lasts = found.retention().is_unlimited() && (!chunk.up_to_date || chunk.closed);
    let cache = if !lasts { "private, no-cache" } else { "private, max-age=60, stale-while-revalidate=300" };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    let known = asked.get_all(header::IF_NONE_MATCH).iter().any(|value| names_etag(value, &etag));
    headers.insert(header::ETAG, etag);
    if known {
        headers.remove(header::CONTENT_TYPE);
        put_vary(&mut headers, &found);
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    chunk_answer(headers, &found, &chunk, coding).await
}

async fn long_poll(
    api: &Api,
    stream: &StreamKey,
    query: ReadQuery,
    asked: &HeaderMap,
    pass: &Pass,
) -> Result<Response, ApiError> {
    let (found, mut subscription) = api.streams.listen(stream, query.from, bodies(api)).await?;
    let Some(frame) = long_poll::wait(api, pass, &mut subscription).await? else {
        // It has ended: whoever reads it now is told how. If it can be read after all, the client comes again.
        api.streams.read(stream, query.from).await?;
        return Err(StreamError::Contended.into());
    };
    let mut headers = HeaderMap::new();
    put_content_type(&mut headers, &found);
    put_bounds(&mut headers, ReadBounds::from(&frame));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(nothing) = long_poll::finish(api, query.cursor, &frame, &mut headers) {
        return Ok(nothing);
    }
    let coding = Coding::choose(asked, &found.content_type, frame.bytes.len());
    coded_answer(headers, &found, frame.bytes.joined(), coding).await
}

/// Encodes records as the body of a response.
pub struct Bodies {
    /// Whether the records are one JSON array.
    pub json: bool,
    /// Cache of encoded records.
    pub encoded: Arc<Encoded>,
}

impl Encode for Bodies {
    fn encode(&self, batch: &Batch<'_>, _: u64) -> FrameChunks {
        let body = || payload::body(batch.records, self.json);
        // What is not JSON is sent as it is stored, which is shared already.
        let shared = if self.json { self.encoded.records(Form::JsonBody, batch.records, body) } else { None };
        shared.unwrap_or_else(body).into()
    }
}

fn bodies(api: &Api) -> ReaderFormat<impl FnOnce(&Stream) -> Arc<dyn Encode>> {
    let encoded = api.live.live_connections.encoded().clone();
    let encode = |stream: &Stream| -> Arc<dyn Encode> {
        Arc::new(Bodies { json: stream.content_type.is_json(), encoded })
    };
    ReaderFormat { form: "body", encode, stamp: 0 }
}

async fn follow(
    api: &Api,
    stream: &StreamKey,
    query: ReadQuery,
    transport: Transport,
    pass: Pass,
) -> Result<Response, ApiError> {
    let clock = api.streams.clock().clone();
    let framing = transport.framing();
    // A cursor that the client has had is not shown again. It is ahead by one at most, so that the client is soon shown what all
    // others are.
    let stamp = query.cursor.map_or(0, |cursor| cursor.saturating_add(1));
    let encoded = api.live.live_connections.encoded().clone();
    let encode = |stream: &Stream| -> Arc<dyn Encode> {
        Arc::new(Sse::new(&stream.content_type, framing, clock.clone(), encoded))
    };
    let format = ReaderFormat { form: Sse::form(framing), encode, stamp };
    let (found, subscription) = api.streams.listen(stream, query.from, format).await?;
    let mut headers = sse::head();
    if Encoding::of(&found.content_type) == Encoding::Base64 {
        headers.insert(names::STREAM_SSE_DATA_ENCODING, HeaderValue::from_static("base64"));
    }
    let options = api.streams.options();
    let options =
        FeedOptions::new(Some(options.sse_duration), options.slow_reader_timeout, pass, clock.now())?
            .counted(api.observe.sse_readers.hold());
    Ok(transport.events(headers, &[], subscription, options, &api.live))
}

async fn converse(
    api: &Api,
    stream: &StreamKey,
    query: ReadQuery,
    upgrade: Upgrade,
    transport: Transport,
    pass: Pass,
) -> Result<Response, ApiError> {
    let encoded = api.live.live_connections.encoded().clone();
    let encode =
        |stream: &Stream| -> Arc<dyn Encode> { Arc::new(Messages::new(&stream.content_type, encoded)) };
    let format = ReaderFormat { form: Messages::FORM, encode, stamp: 0 };
    let (_, subscription) = api.streams.listen(stream, query.from, format).await?;
    let slow = api.streams.options().slow_reader_timeout;
    let options = FeedOptions::new(None, slow, pass, api.streams.clock().now())?
        .counted(api.observe.websocket_readers.hold());
    transport.websocket(upgrade, Some(subscription.into()), Limits::unheard(), options, &api.live)
}

/// Response to an append.
pub fn appended_answer(appended: &Appended, producer: Option<&Producer>) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(names::STREAM_NEXT_OFFSET, offset::value(appended.next));
    if appended.closed {
        headers.insert(names::STREAM_CLOSED, HeaderValue::from_static("true"));
    }
    let Some(producer) = producer else { return (StatusCode::NO_CONTENT, headers).into_response() };
    let (epoch, sequence) = appended.stamp(producer);
    headers.insert(names::PRODUCER_EPOCH, epoch.into());
    headers.insert(names::PRODUCER_SEQ, sequence.into());
    let status = match appended.freshness {
        Freshness::New => StatusCode::OK,
        Freshness::Repeated { .. } | Freshness::ClosedNow | Freshness::WasClosed => StatusCode::NO_CONTENT,
    };
    (status, headers).into_response()
}

/// Headers that describe where a read ended.
pub struct ReadBounds {
    /// Offset from which to go on.
    pub next: Position,
    /// Whether it reached the tail.
    pub up_to_date: bool,
    /// Whether it reached the end of what is closed.
    pub closed: bool,
}

impl From<&Chunk> for ReadBounds {
    fn from(chunk: &Chunk) -> Self {
        Self { next: chunk.next, up_to_date: chunk.up_to_date, closed: chunk.closed }
    }
}

impl From<&Frame> for ReadBounds {
    fn from(frame: &Frame) -> Self {
        Self { next: frame.next, up_to_date: frame.up_to_date, closed: frame.closed }
    }
}

/// Adds the headers that describe where a read ended.
pub fn put_bounds(headers: &mut HeaderMap, bounds: ReadBounds) {
    headers.insert(names::STREAM_NEXT_OFFSET, offset::value(bounds.next));
    if bounds.up_to_date {
        headers.insert(names::STREAM_UP_TO_DATE, HeaderValue::from_static("true"));
    }
    if bounds.closed {
        headers.insert(names::STREAM_CLOSED, HeaderValue::from_static("true"));
    }
}

fn chunk_coding(asked: &HeaderMap, stream: &Stream, chunk: &Chunk) -> Coding {
    let length = payload::length(&chunk.records, stream.content_type.is_json());
    Coding::choose(asked, &stream.content_type, length)
}

async fn chunk_answer(
    headers: HeaderMap,
    stream: &Stream,
    chunk: &Chunk,
    coding: Coding,
) -> Result<Response, ApiError> {
    coded_answer(headers, stream, payload::body(&chunk.records, stream.content_type.is_json()), coding).await
}

async fn coded_answer(
    mut headers: HeaderMap,
    stream: &Stream,
    body: Bytes,
    coding: Coding,
) -> Result<Response, ApiError> {
    let body = coding.encode(body, &mut headers).await?;
    put_vary(&mut headers, stream);
    Ok((headers, body).into_response())
}

/// Adds `Vary` if the coding of the response depends on the request.
fn put_vary(headers: &mut HeaderMap, stream: &Stream) {
    if varies(&stream.content_type) {
        headers.append(header::VARY, HeaderValue::from_static("accept-encoding"));
    }
}

fn put_content_type(headers: &mut HeaderMap, stream: &Stream) {
    let value = HeaderValue::from_str(stream.content_type.as_str()).expect("it came in a header");
    headers.insert(header::CONTENT_TYPE, value);
}

fn put_end(headers: &mut HeaderMap, found: &Found) {
    headers.insert(names::STREAM_NEXT_OFFSET, offset::value(found.status.tail));
    if found.status.closed {
        headers.insert(names::STREAM_CLOSED, HeaderValue::from_static("true"));
    }
}

fn put_retention(headers: &mut HeaderMap, retention: Retention) {
    let limits = [
        (names::STREAM_MAX_AGE, retention.age.map(|age| age.as_secs())),
        (names::STREAM_MAX_BYTES, retention.bytes),
        (names::STREAM_MAX_MESSAGES, retention.messages),
    ];
    for (name, limit) in limits {
        if let Some(limit) = limit {
            headers.insert(name, limit.into());
        }
    }
}

/// Entity tag of a response: equal for the same epoch of the stream, the same records, the same end and the same coding.
fn etag(stream: &Stream, chunk: &Chunk, coding: Coding) -> HeaderValue {
    let (after, next) = (offset::print(chunk.after), offset::print(chunk.next));
    let tail = if chunk.up_to_date { ":t" } else { "" };
    let closed = if chunk.closed { ":c" } else { "" };
    let (colon, coding) = coding.name().map_or(("", ""), |name| (":", name));
    let text = format!("\"{}:{after}:{next}{tail}{closed}{colon}{coding}\"", stream.log.get());
    HeaderValue::from_str(&text).expect("digits, underscores and quotes are a header value")
}

fn names_etag(asked: &HeaderValue, etag: &HeaderValue) -> bool {
    let Ok(asked) = asked.to_str() else { return false };
    asked
        .split(',')
        .map(|one| one.trim().trim_start_matches("W/"))
        .any(|one| one == "*" || one.as_bytes() == etag)
}

/// Scheme of the connection that a request came over. The server sets it for TLS; a scheme that a client or proxy claims
/// is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plain TCP.
    Http,
    /// TLS.
    Https,
}

impl Scheme {
    /// Scheme as it begins a URL.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

fn location(parts: &Parts) -> Result<HeaderValue, ApiError> {
    HeaderValue::from_str(&format!("{}{}", base(parts)?, parts.uri.path()))
        .map_err(|_| ApiError::bad_request("invalid_path", "the path is not plain text"))
}

/// Scheme and host under which a request reached the server, as the beginning of a URL.
pub fn base(parts: &Parts) -> Result<String, ApiError> {
    let invalid = || ApiError::bad_request("invalid_host", "the Host header is not that of a server");
    let host = match parts.uri.authority() {
        Some(authority) => authority.clone(),
        None => {
            let host = names::text(&parts.headers, &header::HOST)?;
            host.unwrap_or("localhost").parse().map_err(|_| invalid())?
        }
    };
    let scheme = parts.extensions.get().copied().unwrap_or(Scheme::Http).as_str();
    Ok(format!("{scheme}://{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_paths_of_streams_have_a_fast_path() {
        let name =
            |path| Appending::to(path).map(|(template, Appending(stream))| (template, stream.to_string()));
        assert_eq!(name("/v1/stream/a/b"), Some((UNNAMED, "_default/a/b".to_owned())));
        assert_eq!(name("/v1/app/stream/a%20b"), Some((NAMED, "app/a b".to_owned())));
        assert_eq!(name("/v1/stream/rooms/r/events"), Some((UNNAMED, "_default/rooms/r/events".to_owned())));
        for other in [
            "/v1/projects/stream/tokens",
            "/v1/config/stream/x",
            "/v1/_default/stream/x",
            "/v1/a%20b/stream/x",
            "/v1/app/streams",
            "/v1/app/publish/x",
            "/v1/app/rooms/r/events",
            "/v1/stream/",
            "/v1/stream/__ds/subscriptions/s/callback",
            "/v1/app/stream/__ds/subscriptions/s/callback",
            "/v1/app/stream/%5F%5Fds/subscriptions/s/callback",
            "/health",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
