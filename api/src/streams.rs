//! Streams over HTTP: the Durable Streams protocol.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use bytes::Bytes;
use futures_util::future::{Either, select};
use futures_util::stream;
use tidings_model::Producer;
use tidings_streams::{
    Appended, Chunk, Created, Expiry, Found, Freshness, From as Start, Reader, Stream, StreamKey,
};

use crate::Api;
use crate::error::ApiError;
use crate::path::StreamPath;
use crate::sse::{self, Encoding};
use crate::wire::query::{Live, ReadQuery};
use crate::wire::{cursor, header as names, offset, payload, request};

/// In paths `session:{id}` is another name of a session's stream, so no stream can be created under it.
const SESSION_PREFIX: &str = "session:";

/// What can be done with a stream.
pub fn methods() -> MethodRouter<Api> {
    get(read).head(describe).put(create).post(append).delete(delete)
}

async fn create(
    State(api): State<Api>,
    StreamPath(stream): StreamPath,
    request: Request,
) -> Result<Response, ApiError> {
    if stream.id.as_str().starts_with(SESSION_PREFIX) {
        let message =
            "ids that begin with `session:` name the streams of sessions, which `subscribe` creates";
        return Err(ApiError::bad_request("reserved_id", message));
    }
    let (parts, body) = request.into_parts();
    let body = request::bytes(body, api.streams.options().max_append_bytes).await?;
    let wanted = request::create(&parts.headers, body)?;
    let mut headers = HeaderMap::new();
    let (status, found) = match api.streams.create(&stream, &wanted).await? {
        Created::New(found) => {
            headers.insert(header::LOCATION, location(&parts.headers, &parts.uri)?);
            (StatusCode::CREATED, found)
        }
        Created::Existed(found) => (StatusCode::OK, found),
    };
    put_content_type(&mut headers, &found.stream);
    put_end(&mut headers, &found);
    Ok((status, headers).into_response())
}

async fn append(
    State(api): State<Api>,
    StreamPath(stream): StreamPath,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = request::bytes(body, api.streams.options().max_append_bytes).await?;
    let wanted = request::append(&parts.headers, body)?;
    let producer = wanted.conditions.producer.clone();
    let appended = api.streams.append(&stream, wanted).await?;
    Ok(appended_answer(&appended, producer.as_ref()))
}

async fn describe(State(api): State<Api>, StreamPath(stream): StreamPath) -> Result<Response, ApiError> {
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
            let at = jiff::Timestamp::from_millisecond(i64::try_from(at.as_millis()).unwrap_or(i64::MAX));
            let text = at.unwrap_or(jiff::Timestamp::MAX).to_string();
            headers.insert(
                names::STREAM_EXPIRES_AT,
                HeaderValue::from_str(&text).expect("a time is plain text"),
            );
        }
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(headers.into_response())
}

async fn delete(State(api): State<Api>, StreamPath(stream): StreamPath) -> Result<StatusCode, ApiError> {
    api.streams.delete(&stream).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn read(
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
    let mut reader = api.streams.read(stream, query.from).await?;
    let chunk = reader.poll().await?;
    let mut headers = chunk_headers(reader.stream(), &chunk);
    if query.from == Start::Tail {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        return Ok(
            (headers, payload::body(&chunk.records, reader.stream().content_type.is_json())).into_response()
        );
    }
    let etag = etag(reader.stream(), &chunk);
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
    Ok((headers, payload::body(&chunk.records, reader.stream().content_type.is_json())).into_response())
}

async fn long_poll(api: &Api, stream: &StreamKey, query: ReadQuery) -> Result<Response, ApiError> {
    let mut reader = api.streams.read(stream, query.from).await?;
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
    let reader = api.streams.read(stream, query.from).await?;
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
    let state = Some((reader, over, Wait::First));
    stream::unfold(state, move |state| {
        let api = api.clone();
        async move {
            let (mut reader, over, wait) = state?;
            let (chunk, over) = match wait {
                Wait::First => (reader.poll().await, over),
                Wait::Next => {
                    let next = Box::pin(reader.next());
                    match select(next, over).await {
                        Either::Left((chunk, over)) => (chunk, over),
                        Either::Right(_) => return None,
                    }
                }
            };
            // A reader that fails was cut off: the stream is gone. The client hears why when it comes again.
            let chunk = chunk.ok()?;
            let cursor = current_cursor(&api, cursor);
            let events = sse::events(&chunk, encoding, cursor);
            let state = if chunk.closed { None } else { Some((reader, over, Wait::Next)) };
            Some((Ok(events), state))
        }
    })
}

/// Whether to answer with what is there, or to wait for more.
enum Wait {
    First,
    Next,
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
    let closed = if chunk.closed { ":c" } else { "" };
    let text = format!("\"{}:{after}:{next}{closed}\"", stream.log.get());
    HeaderValue::from_str(&text).expect("digits, underscores and quotes are a header value")
}

fn names_etag(asked: &HeaderValue, etag: &HeaderValue) -> bool {
    let Ok(asked) = asked.to_str() else { return false };
    asked
        .split(',')
        .map(|one| one.trim().trim_start_matches("W/"))
        .any(|one| one == "*" || one.as_bytes() == etag)
}

fn location(headers: &HeaderMap, uri: &Uri) -> Result<HeaderValue, ApiError> {
    let host = uri.authority().map(|authority| authority.as_str());
    let host = host.or(names::text(headers, &header::HOST)?).unwrap_or("localhost");
    HeaderValue::from_str(&format!("http://{host}{}", uri.path()))
        .map_err(|_| ApiError::bad_request("invalid_path", "the path is not plain text"))
}
