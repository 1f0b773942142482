//! Streams over HTTP: the Durable Streams protocol.

use std::convert::Infallible;
use std::pin::Pin;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use bytes::Bytes;
use futures_util::stream;
use tidings_engine::metrics::Held;
use tidings_model::Producer;
use tidings_streams::{
    Appended, Chunk, Created, Expiry, Found, Freshness, From as Start, Reader, Stream, StreamKey,
};

use crate::Api;
use crate::document::{Content, ErrorAnswer, StreamRefusals, WriteRefusals};
use crate::error::ApiError;
use crate::path::StreamPath;
use crate::sse::{self, Encoding};
use crate::wire::query::{Live, ReadQuery};
use crate::wire::{body, cursor, header as names, offset, payload, request, time};

/// What can be done with a stream.
pub fn methods() -> MethodRouter<Api> {
    get(read).head(describe).put(create).post(append).delete(delete)
}

/// Creates a stream, with its first content.
#[utoipa::path(
    put,
    path = "/v1/{project}/stream/{id}",
    tag = "streams",
    params(
        ("project" = String, Path, description = "The project.", example = "shop"),
        ("id" = String, Path, description = "The stream; slashes are part of it.", example = "orders"),
        ("Stream-TTL" = Option<String>, Header, description = "Seconds without use until it expires."),
        ("Stream-Expires-At" = Option<String>, Header, description = "When it expires, as RFC 3339 writes it."),
        ("Stream-Closed" = Option<String>, Header, description = "`true` to close it at once."),
        ("Stream-Forked-From" = Option<String>, Header, description = "The path of the stream to fork."),
        ("Stream-Fork-Offset" = Option<String>, Header, description = "Where to fork it; its tail otherwise."),
        ("Stream-Fork-Sub-Offset" = Option<String>, Header, description = "So many messages further on."),
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
        (status = 201, description = "Created.", headers(
            ("location" = String, description = "Its address."),
            ("stream-next-offset" = String, description = "Where to read on."),
        )),
        (status = 200, description = "It was there, and is as it was asked for.", headers(
            ("stream-next-offset" = String, description = "Where to read on."),
        )),
        WriteRefusals,
    )
)]
pub async fn create(
    State(api): State<Api>,
    StreamPath(stream): StreamPath,
    request: Request,
) -> Result<Response, ApiError> {
    refuse_reserved(stream.id.as_str())?;
    let (parts, body) = request.into_parts();
    let body = body::bytes(body, api.streams.options().max_append_bytes, &**api.streams.clock()).await?;
    let wanted = request::create(&parts.headers, body)?;
    // Before anything is created: an answer that fails must not leave a stream behind.
    let location = location(&parts)?;
    let mut headers = HeaderMap::new();
    let (status, found) = match api.streams.create(&stream, &wanted).await? {
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

/// `session:{id}` is another name of a session's stream, and what begins with `__ds/` is the protocol's own.
fn refuse_reserved(id: &str) -> Result<(), ApiError> {
    let message = if id.starts_with("session:") {
        "ids that begin with `session:` name the streams of sessions, which `subscribe` creates"
    } else if id == "__ds" || id.starts_with("__ds/") {
        "ids that begin with `__ds/` are kept for the protocol"
    } else {
        return Ok(());
    };
    Err(ApiError::bad_request("reserved_id", message))
}

/// Appends to a stream, closes it, or both. Durable when it is answered.
#[utoipa::path(
    post,
    path = "/v1/{project}/stream/{id}",
    tag = "streams",
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
            ("producer-epoch" = String, description = "Its epoch."),
            ("producer-seq" = String, description = "The highest number that was accepted from it."),
        )),
        (status = 204, description = "Appended, closed, or made before.", headers(
            ("stream-next-offset" = String, description = "Where to read on."),
        )),
        WriteRefusals,
    )
)]
pub async fn append(
    State(api): State<Api>,
    StreamPath(stream): StreamPath,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::bytes(body, api.streams.options().max_append_bytes, &**api.streams.clock()).await?;
    let wanted = request::append(&parts.headers, body)?;
    let producer = wanted.conditions.producer.clone();
    let appended = api.streams.append(&stream, wanted).await?;
    Ok(appended_answer(&appended, producer.as_ref()))
}

/// Describes a stream.
#[utoipa::path(
    head,
    path = "/v1/{project}/stream/{id}",
    tag = "streams",
    params(
        ("project" = String, Path, description = "The project.", example = "shop"),
        ("id" = String, Path, description = "The stream; slashes are part of it.", example = "orders"),
    ),
    responses(
        (status = 200, description = "What there is to know of it, in headers.", headers(
            ("stream-next-offset" = String, description = "Its tail."),
            ("stream-closed" = String, description = "`true` if it is."),
            ("stream-ttl" = String, description = "Seconds without use until it expires."),
            ("stream-expires-at" = String, description = "When it expires."),
        )),
        StreamRefusals,
    )
)]
pub async fn describe(State(api): State<Api>, StreamPath(stream): StreamPath) -> Result<Response, ApiError> {
    let found = api.streams.describe(&stream).await?;
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
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(headers.into_response())
}

/// Deletes a stream.
#[utoipa::path(
    delete,
    path = "/v1/{project}/stream/{id}",
    tag = "streams",
    params(
        ("project" = String, Path, description = "The project.", example = "shop"),
        ("id" = String, Path, description = "The stream; slashes are part of it.", example = "orders"),
    ),
    responses(
        (status = 204, description = "Deleted."),
        (status = 507, description = "`no_space`: the store is out of space.", body = ErrorAnswer),
        StreamRefusals,
    )
)]
pub async fn delete(State(api): State<Api>, StreamPath(stream): StreamPath) -> Result<StatusCode, ApiError> {
    api.streams.delete(&stream).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Reads a stream: what is there, or what comes.
#[utoipa::path(
    get,
    path = "/v1/{project}/stream/{id}",
    tag = "streams",
    params(
        ("project" = String, Path, description = "The project.", example = "shop"),
        ("id" = String, Path, description = "The stream; slashes are part of it.", example = "orders"),
        ("offset" = Option<String>, Query, description = "`-1`, `now`, or an offset that was answered."),
        ("live" = Option<String>, Query, description = "`long-poll` or `sse`, to wait for what comes."),
        ("cursor" = Option<String>, Query, description = "The `Stream-Cursor` of the answer before."),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of an answer that is known."),
        ("Last-Event-ID" = Option<String>, Header, description = "The offset of the last event that was heard."),
    ),
    responses(
        (status = 200, description = "Content of the stream's type, or events.", content_type = "*/*", body = serde_json::Value, headers(
            ("stream-next-offset" = String, description = "Where to read on."),
            ("stream-up-to-date" = String, description = "`true` at the tail."),
            ("stream-closed" = String, description = "`true` if that was all there will ever be."),
            ("stream-cursor" = String, description = "To be sent with the next long-poll."),
            ("etag" = String, description = "Names this content."),
        )),
        (status = 204, description = "A long-poll during which nothing came."),
        (status = 304, description = "The content that `If-None-Match` names."),
        StreamRefusals,
    )
)]
pub async fn read(
    State(api): State<Api>,
    StreamPath(stream): StreamPath,
    query: ReadQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    match query.live {
        Live::No => catch_up(&api, &stream, query, &headers).await,
        Live::LongPoll => long_poll(&api, &stream, query).await,
        Live::Sse => follow(api, &stream, query).await,
    }
}

async fn catch_up(
    api: &Api,
    stream: &StreamKey,
    query: ReadQuery,
    asked: &HeaderMap,
) -> Result<Response, ApiError> {
    let (found, chunk) = api.streams.read(stream, query.from).await?;
    let body = || payload::body(&chunk.records, found.content_type.is_json());
    let mut headers = chunk_headers(&found, &chunk);
    if query.from == Start::Tail {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        return Ok((headers, body()).into_response());
    }
    let etag = etag(&found, &chunk);
    // What lies before the tail never changes. At the tail of an open stream a cache must ask each time.
    let cache = if chunk.up_to_date && !chunk.closed {
        "private, no-cache"
    } else {
        "private, max-age=60, stale-while-revalidate=300"
    };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    let known = asked.get_all(header::IF_NONE_MATCH).iter().any(|value| names_etag(value, &etag));
    headers.insert(header::ETAG, etag);
    if known {
        headers.remove(header::CONTENT_TYPE);
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    Ok((headers, body()).into_response())
}

async fn long_poll(api: &Api, stream: &StreamKey, query: ReadQuery) -> Result<Response, ApiError> {
    let mut reader = api.streams.follow(stream, query.from).await?;
    let _counted = api.observe.long_poll_readers.hold();
    let timeout = api.streams.clock().sleep(api.streams.options().long_poll_timeout);
    let mut drained = api.drained.clone();
    let chunk = match tokio::select! {
        biased;
        chunk = reader.next() => Some(chunk?),
        () = timeout => None,
        () = drained.wait() => None,
    } {
        Some(chunk) => chunk,
        None => reader.poll().await?,
    };
    let mut headers = chunk_headers(reader.stream(), &chunk);
    headers.insert(names::STREAM_CURSOR, current_cursor(api, query.cursor).into());
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if chunk.records.is_empty() {
        headers.remove(header::CONTENT_TYPE);
        return Ok((StatusCode::NO_CONTENT, headers).into_response());
    }
    Ok((headers, payload::body(&chunk.records, reader.stream().content_type.is_json())).into_response())
}

async fn follow(api: Api, stream: &StreamKey, query: ReadQuery) -> Result<Response, ApiError> {
    let reader = api.streams.follow(stream, query.from).await?;
    let encoding = Encoding::of(&reader.stream().content_type);
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that buffer would hold events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    if encoding == Encoding::Base64 {
        headers.insert(names::STREAM_SSE_DATA_ENCODING, HeaderValue::from_static("base64"));
    }
    Ok((headers, Body::from_stream(event_stream(api, reader, encoding, query.cursor))).into_response())
}

/// All events of one SSE answer: what is there, then what comes, until the stream is closed or deleted, the
/// server drains, or it is time for the client to come again.
fn event_stream(
    api: Api,
    reader: Reader,
    encoding: Encoding,
    cursor: Option<u64>,
) -> impl stream::Stream<Item = Result<Bytes, Infallible>> {
    let mut drained = api.drained.clone();
    let time_over = api.streams.clock().sleep(api.streams.options().sse_duration);
    let over = Box::pin(async move {
        tokio::select! { () = time_over => {}, () = drained.wait() => {} }
    });
    let cursor = current_cursor(&api, cursor);
    let counted = api.observe.sse_readers.hold();
    let first = Some(Following { api, reader, over, cursor, wait: Wait::First, _counted: counted });
    stream::unfold(first, move |following| async move {
        let mut following = following?;
        let chunk = following.next().await?;
        // Cursors only grow, also within one answer.
        following.cursor = following.cursor.max(current_cursor(&following.api, None));
        let events = sse::events(&chunk, encoding, following.cursor);
        Some((Ok(events), if chunk.closed { None } else { Some(following) }))
    })
}

/// An SSE answer on its way.
struct Following {
    api: Api,
    reader: Reader,
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
    cursor: u64,
    wait: Wait,
    /// Among the live readers.
    _counted: Held,
}

/// Whether to answer with what is there, or to wait for more.
enum Wait {
    First,
    Next,
}

impl Following {
    /// The next chunk; none when the answer ends. A reader that fails was cut off: the stream is gone, and the client
    /// hears why when it comes again.
    async fn next(&mut self) -> Option<Chunk> {
        match std::mem::replace(&mut self.wait, Wait::Next) {
            Wait::First => self.reader.poll().await.ok(),
            Wait::Next => tokio::select! {
                biased;
                () = &mut self.over => None,
                chunk = self.reader.next() => chunk.ok(),
            },
        }
    }
}

fn appended_answer(appended: &Appended, producer: Option<&Producer>) -> Response {
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

fn chunk_headers(stream: &Stream, chunk: &Chunk) -> HeaderMap {
    let mut headers = HeaderMap::new();
    put_content_type(&mut headers, stream);
    headers.insert(names::STREAM_NEXT_OFFSET, offset::value(chunk.next));
    if chunk.up_to_date {
        headers.insert(names::STREAM_UP_TO_DATE, HeaderValue::from_static("true"));
    }
    if chunk.closed {
        headers.insert(names::STREAM_CLOSED, HeaderValue::from_static("true"));
    }
    headers
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

fn current_cursor(api: &Api, client: Option<u64>) -> u64 {
    cursor::next(api.streams.clock().now(), client, &api.chance)
}

/// Names the bytes of an answer: the same life of the stream, the same records, the same end.
fn etag(stream: &Stream, chunk: &Chunk) -> HeaderValue {
    let (after, next) = (offset::print(chunk.after), offset::print(chunk.next));
    let tail = if chunk.up_to_date { ":t" } else { "" };
    let closed = if chunk.closed { ":c" } else { "" };
    let text = format!("\"{}:{after}:{next}{tail}{closed}\"", stream.log.get());
    HeaderValue::from_str(&text).expect("digits, underscores and quotes are a header value")
}

fn names_etag(asked: &HeaderValue, etag: &HeaderValue) -> bool {
    let Ok(asked) = asked.to_str() else { return false };
    asked
        .split(',')
        .map(|one| one.trim().trim_start_matches("W/"))
        .any(|one| one == "*" || one.as_bytes() == etag)
}

/// What a connection speaks under HTTP. The server puts it on requests that came over TLS; what a client or a proxy says
/// of it is not known to be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plain TCP.
    Http,
    /// TLS.
    Https,
}

fn location(parts: &Parts) -> Result<HeaderValue, ApiError> {
    let invalid = || ApiError::bad_request("invalid_host", "the Host header is not that of a server");
    let host = match parts.uri.authority() {
        Some(authority) => authority.clone(),
        None => {
            let host = names::text(&parts.headers, &header::HOST)?;
            host.unwrap_or("localhost").parse().map_err(|_| invalid())?
        }
    };
    let scheme = match parts.extensions.get::<Scheme>() {
        Some(Scheme::Https) => "https",
        Some(Scheme::Http) | None => "http",
    };
    HeaderValue::from_str(&format!("{scheme}://{host}{}", parts.uri.path()))
        .map_err(|_| ApiError::bad_request("invalid_path", "the path is not plain text"))
}
