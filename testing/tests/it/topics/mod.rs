//! Topics over WebSocket and HTTP, a file per promise, with a small client of the protocol.

mod abuse;
mod admission;
mod attacks;
mod audience;
mod closing;
mod errors;
mod frames;
pub mod grants;
mod history;
mod http;
mod order;
mod patterns;
mod presence;
mod publish;
mod reconnect;
mod remedies;
mod requests;
mod subscriptions;
mod survival;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tidings_server::TopicOptions;
use tidings_testing::{Harness, Setup};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::Request;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::sockets::let_pass;

/// The socket of every project under test.
const PATH: &str = "/v1/app/topics";

/// A client of the protocol.
pub struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// Payload of the first frame.
    pub hello: Value,
    /// Frames that came while an answer was waited for.
    heard: VecDeque<Value>,
    next_id: u64,
}

/// What a client hears.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    Text(Value),
    /// The header of a binary frame, and the bytes behind it.
    Binary(Value, Bytes),
    Close(u16, String),
    /// The connection ended without a close frame.
    Gone,
}

impl Client {
    /// Connects to the project `app`.
    pub async fn connect(server: &Harness) -> Self {
        Self::at(server, PATH, None).await.expect("a WebSocket")
    }

    /// Connects with a token.
    pub async fn with_token(server: &Harness, token: &str) -> Self {
        Self::at(server, PATH, Some(token)).await.expect("a WebSocket")
    }

    /// Connects to a path; fails with the error of the handshake.
    pub async fn at(server: &Harness, path: &str, token: Option<&str>) -> Result<Self, tungstenite::Error> {
        let mut request: Request<()> =
            server.url(path).replace("http://", "ws://").into_client_request().expect("an address");
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().expect("a header");
            request.headers_mut().insert("authorization", value);
        }
        let (socket, _) = tokio_tungstenite::connect_async(request).await?;
        Ok(Self::on(socket).await)
    }

    /// Takes a socket whose handshake is done, and its first frame.
    pub async fn on(socket: WebSocketStream<MaybeTlsStream<TcpStream>>) -> Self {
        let mut client = Self { socket, hello: Value::Null, heard: VecDeque::new(), next_id: 1 };
        let first = client.text().await;
        assert_eq!(first["type"], "$hello", "{first}");
        assert_eq!(first.get("meta"), None);
        client.hello = first["payload"].clone();
        client
    }

    /// Sends a text as it is.
    pub async fn say(&mut self, text: impl Into<String>) {
        self.socket.send(Message::text(text.into())).await.expect("sent");
    }

    /// Sends bytes as they are.
    pub async fn say_bytes(&mut self, bytes: impl Into<Bytes>) {
        self.socket.send(Message::binary(bytes.into())).await.expect("sent");
    }

    /// Sends a request without waiting for its answer, and returns its id.
    pub async fn begin(&mut self, kind: &str, payload: Value) -> String {
        let id = self.next_id.to_string();
        self.next_id += 1;
        let meta = json!({ "correlationId": id });
        self.say(json!({ "type": kind, "meta": meta, "payload": payload }).to_string()).await;
        id
    }

    /// The payload of the answer to a request: `Err` if it is an error.
    pub async fn answer_to(&mut self, id: &str) -> Result<Value, Value> {
        let is_it = |frame: &Value| {
            ["$reply", "RPC_ERROR"].contains(&frame["type"].as_str().unwrap_or_default())
                && frame["meta"]["correlationId"] == id
        };
        let frame = match self.heard.iter().position(is_it) {
            Some(at) => self.heard.remove(at).expect("it is there"),
            None => loop {
                let frame = self.text().await;
                if is_it(&frame) {
                    break frame;
                }
                self.heard.push_back(frame);
            },
        };
        assert_eq!(frame["meta"], json!({ "correlationId": id }), "{frame}");
        let payload = frame["payload"].clone();
        if frame["type"] == "$reply" { Ok(payload) } else { Err(payload) }
    }

    /// Sends a request and returns the payload of its answer.
    pub async fn ask(&mut self, kind: &str, payload: Value) -> Result<Value, Value> {
        let id = self.begin(kind, payload).await;
        self.answer_to(&id).await
    }

    /// Sends a request that must succeed.
    pub async fn done(&mut self, kind: &str, payload: Value) -> Value {
        match self.ask(kind, payload.clone()).await {
            Ok(answer) => answer,
            Err(error) => panic!("{kind} {payload} failed: {error}"),
        }
    }

    /// Sends a request that must fail; its error.
    pub async fn fails(&mut self, kind: &str, payload: Value) -> Value {
        match self.ask(kind, payload.clone()).await {
            Ok(answer) => panic!("{kind} {payload} was answered: {answer}"),
            Err(error) => error,
        }
    }

    pub async fn subscribe(&mut self, topic: &str) -> Value {
        self.done("$subscribe", json!({ "topic": topic })).await
    }

    pub async fn publish(&mut self, topic: &str, payload: Value) -> Value {
        let message = json!({ "type": "SAID", "payload": payload });
        self.done("$publish", json!({ "topic": topic, "message": message })).await
    }

    /// The topics that the connection subscribes to.
    pub async fn list(&mut self) -> Value {
        self.done("$list", json!({})).await["topics"].clone()
    }

    /// The next frame that is text.
    pub async fn text(&mut self) -> Value {
        match self.frame().await {
            Heard::Text(frame) => frame,
            other => panic!("expected text: {other:?}"),
        }
    }

    /// The next frame that nobody asked for.
    pub async fn hear(&mut self) -> Value {
        match self.heard.pop_front() {
            Some(frame) => frame,
            None => self.text().await,
        }
    }

    /// The payload of the next message, which must be of this topic.
    pub async fn message(&mut self, topic: &str) -> Value {
        let frame = self.hear().await;
        assert_eq!(frame["meta"]["topic"], topic, "{frame}");
        frame["payload"].clone()
    }

    /// Whatever comes next, without pings.
    pub async fn frame(&mut self) -> Heard {
        loop {
            // So long, because thousands of clients may come at once.
            let message = tokio::time::timeout(Duration::from_secs(120), self.socket.next());
            match message.await.expect("something comes within two minutes") {
                Some(Ok(Message::Text(text))) => {
                    return Heard::Text(serde_json::from_str(&text).expect("JSON"));
                }
                Some(Ok(Message::Binary(bytes))) => {
                    let (length, rest) = bytes.split_first_chunk::<2>().expect("a length");
                    let length = usize::from(u16::from_be_bytes(*length));
                    let header = serde_json::from_slice(&rest[..length]).expect("JSON");
                    return Heard::Binary(header, Bytes::copy_from_slice(&rest[length..]));
                }
                Some(Ok(Message::Close(Some(close)))) => {
                    return Heard::Close(close.code.into(), close.reason.to_string());
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(None)) | Err(_)) | None => return Heard::Gone,
            }
        }
    }

    /// Reads to the end: the payload of `$close`, and code and reason of the close frame, which must be the same. Other
    /// frames before it are kept.
    pub async fn closed(&mut self) -> Value {
        let mut last = None;
        loop {
            match self.frame().await {
                Heard::Text(frame) if frame["type"] == "$close" => last = Some(frame["payload"].clone()),
                Heard::Text(frame) => {
                    assert_eq!(last, None, "`$close` is the last frame: {frame}");
                    self.heard.push_back(frame);
                }
                Heard::Close(code, reason) => {
                    let last = last.expect("`$close` comes before the close frame");
                    assert_eq!((last["code"].clone(), last["reason"].clone()), (json!(code), json!(reason)));
                    return last;
                }
                other => panic!("expected a close: {other:?}"),
            }
        }
    }

    /// Closes the connection and waits until the server has answered.
    pub async fn leave(mut self) {
        self.socket.close(None).await.expect("closed");
        while self.socket.next().await.is_some_and(|message| message.is_ok()) {}
    }
}

/// A server with other options of topics.
pub async fn server(change: impl FnOnce(&mut TopicOptions)) -> Harness {
    let mut setup = Setup::default();
    change(&mut setup.topics);
    Harness::with(setup).await
}

/// Number of subscribers of a topic.
pub async fn subscribers(server: &Harness, topic: &str) -> u64 {
    let answer = server.get(&format!("{PATH}/{topic}")).await;
    assert_eq!(answer.status(), 200, "{topic}");
    let answer: Value = answer.json().await.expect("JSON");
    assert_eq!(answer["capability"], "exact");
    answer["subscribers"].as_u64().expect("a number")
}

/// Publishes over HTTP; the status and the answer.
pub async fn post(server: &Harness, topic: &str, body: &Value) -> (u16, Value) {
    let answer = server.post(&format!("{PATH}/{topic}")).json(body).send().await.expect("an answer");
    (answer.status().as_u16(), answer.json().await.expect("JSON"))
}

/// Waits until no connection is left, and nothing of one.
pub async fn nobody_is_left(server: &Harness) {
    crate::sockets::nobody_is_left(server).await;
    assert_eq!(server.server().topics().subscribed(), 0, "no topic has subscribers");
}
