//! An open stream, with the same items whether it is SSE or a WebSocket.

use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::{SinkExt, StreamExt};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::upgrade::Upgraded;
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

use super::connection::{Answer, ask, refused};
use super::event::Message;
use super::retry::End;
use super::{BackoffReason, Cursor, EVENT_BYTES, MissedEvents, Refusal, Stopped, Target, Wire};
use crate::sse;

/// Response header with the position at which the stream starts.
const START: &str = "last-event-id";
/// First message on a WebSocket. The server waits up to a second for a client to send its cursor; this client
/// has sent it in the query, and any message ends the wait.
const FIRST_MESSAGE: &str = r#"{"type":"ping"}"#;

/// One item of a stream.
#[derive(Debug)]
pub(super) enum Item {
    Message(Message),
    /// A position that was reached without an event.
    Position(Cursor),
    /// Wait that the server asks for before a reconnect.
    Retry(Duration),
    /// Anything else, which only shows that the server is alive.
    Sign,
}

/// An open stream.
pub(super) struct Stream {
    /// Position at which it starts, if the server gave one.
    pub(super) start: Option<Cursor>,
    wire: Open,
    /// Drives the connection; aborted when dropped.
    _driver: JoinSet<()>,
}

enum Open {
    Sse(Box<Events>),
    WebSocket(Box<WebSocketStream<TokioIo<Upgraded>>>),
}

struct Events {
    body: Incoming,
    /// Received bytes that are not parsed yet.
    chunk: Bytes,
    parser: sse::Parser,
}

impl Stream {
    /// Requests the stream after a cursor, or from the head.
    pub(super) async fn open(
        target: &Target,
        cursor: Option<&Cursor>,
        token: Option<&str>,
    ) -> Result<Self, End> {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                .map_err(|_| End::Unauthorized(unsendable()))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        let (path, had_cursor) = (target.path(cursor), cursor.is_some());
        match target.wire {
            Wire::Sse => {
                headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
                headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
                let answer = ask(target, &path, headers).await?;
                if answer.response.status() != StatusCode::OK || !has_events(&answer.response) {
                    return Err(refused(answer, had_cursor).await);
                }
                let (start, Answer { response, driver }) = (start(&answer.response), answer);
                let (body, parser) = (response.into_body(), sse::Parser::new(EVENT_BYTES));
                let events = Box::new(Events { body, chunk: Bytes::new(), parser });
                Ok(Self { start, wire: Open::Sse(events), _driver: driver })
            }
            Wire::WebSocket => {
                let key = generate_key();
                headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
                headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
                headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
                headers
                    .insert(header::SEC_WEBSOCKET_KEY, HeaderValue::try_from(&*key).map_err(End::network)?);
                let answer = ask(target, &path, headers).await?;
                if answer.response.status() != StatusCode::SWITCHING_PROTOCOLS {
                    return Err(refused(answer, had_cursor).await);
                }
                let accept = answer.response.headers().get(header::SEC_WEBSOCKET_ACCEPT);
                if accept
                    .is_none_or(|accept| accept.as_bytes() != derive_accept_key(key.as_bytes()).as_bytes())
                {
                    return Err(End::network("the server accepts a WebSocket that nobody asked for"));
                }
                let (start, Answer { response, driver }) = (start(&answer.response), answer);
                let upgraded = hyper::upgrade::on(response).await.map_err(End::network)?;
                let config = WebSocketConfig::default()
                    .max_message_size(Some(EVENT_BYTES))
                    .max_frame_size(Some(EVENT_BYTES));
                let io = TokioIo::new(upgraded);
                let mut socket = WebSocketStream::from_raw_socket(io, Role::Client, Some(config)).await;
                socket.send(tungstenite::Message::text(FIRST_MESSAGE)).await.map_err(End::network)?;
                Ok(Self { start, wire: Open::WebSocket(Box::new(socket)), _driver: driver })
            }
        }
    }

    /// The next item, or how the stream ended. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Item, End> {
        match &mut self.wire {
            Open::Sse(events) => events.next().await,
            Open::WebSocket(socket) => match socket.next().await {
                Some(Ok(message)) => message_item(message),
                Some(Err(error)) => Err(End::network(error)),
                None => Err(End::again(BackoffReason::Ended)),
            },
        }
    }
}

impl Events {
    async fn next(&mut self) -> Result<Item, End> {
        let mut input = &self.chunk[..];
        let found = self.parser.feed(&mut input).map_err(End::network)?;
        let read = self.chunk.len() - input.len();
        self.chunk.advance(read);
        match found {
            Some(sse::Item::Retry(wait)) => Ok(Item::Retry(wait)),
            // An id that is not a cursor is not a position.
            Some(sse::Item::Id(id)) => Ok(id.parse().map_or(Item::Sign, Item::Position)),
            Some(sse::Item::Event(event)) => parsed_item(Message::parse(Some(&event.name), &event.data)),
            None => match self.body.frame().await {
                None => Err(End::again(BackoffReason::Ended)),
                Some(Err(error)) => Err(End::network(error)),
                Some(Ok(frame)) => {
                    self.chunk = frame.into_data().unwrap_or_default();
                    Ok(Item::Sign)
                }
            },
        }
    }
}

fn message_item(message: tungstenite::Message) -> Result<Item, End> {
    match message {
        tungstenite::Message::Text(text) => parsed_item(Message::parse(None, &text)),
        tungstenite::Message::Close(frame) => Err(closed(frame)),
        _ => Ok(Item::Sign),
    }
}

fn parsed_item(message: Result<Option<Message>, super::event::Malformed>) -> Result<Item, End> {
    Ok(message.map_err(End::network)?.map_or(Item::Sign, Item::Message))
}

/// Meaning of a WebSocket's close frame. An infoEvent sent before it says the same in more detail.
fn closed(frame: Option<CloseFrame>) -> End {
    let Some(frame) = frame else { return End::again(BackoffReason::Ended) };
    let refusal = |status| Refusal { status, error: String::new(), message: frame.reason.to_string() };
    match u16::from(frame.code) {
        1000 | 1001 => End::again(BackoffReason::Ended),
        1012 => End::again(BackoffReason::ServerRestart),
        4401 => End::Unauthorized(refusal(401)),
        4403 => End::Stop(Stopped::Forbidden(refusal(403))),
        4409 => End::again(BackoffReason::SlowConsumer),
        4410 => End::Gone {
            skip: MissedEvents::of(&frame.reason, &serde_json::Value::Null),
            had_cursor: true,
            retry_after: None,
        },
        code => End::network(format!("the server closed the WebSocket with {code}: {}", frame.reason)),
    }
}

fn start(response: &Response<Incoming>) -> Option<Cursor> {
    response.headers().get(START)?.to_str().ok()?.parse().ok()
}

fn has_events(response: &Response<Incoming>) -> bool {
    let content_type = response.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type.is_some_and(|text| text.to_ascii_lowercase().starts_with(b"text/event-stream"))
}

fn unsendable() -> Refusal {
    let message = "the token is not plain text in one line".to_owned();
    Refusal { status: StatusCode::UNAUTHORIZED.as_u16(), error: String::new(), message }
}
