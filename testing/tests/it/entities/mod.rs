//! Entities over WebSocket and HTTP, a file per promise, with a small client of the protocol.

mod callback;
mod changes;
mod claims;
mod connecting;
mod hearing;
mod journal;
mod limits;
mod many;
mod misuse;
mod projects;
mod resume;
mod settings;
mod slow;
mod statistics;
mod subscriptions;
mod survival;
mod tabs;
mod tokens;

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tidings_auth::{Claims, Key, Resources, Scope};
use tidings_engine::Clock;
use tidings_model::{Pattern, ProjectId};
use tidings_server::EntityOptions;
use tidings_testing::http::{Method, StatusCode};
use tidings_testing::{Doors, Harness, SLEEPERS, Setup, TestStore, http, until};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::Request;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::sockets::let_pass;

/// The socket of the project under test.
const PATH: &str = "/v1/app/sync";
const KEY: &str = "the-signing-key-of-app";
const OTHER_KEY: &str = "the-signing-key-of-other";
const HOUR: Duration = Duration::from_secs(3600);

/// A client of the protocol.
pub struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// Payload of `CONNECTED`.
    connected: Value,
    /// Messages that came while an answer was waited for.
    heard: VecDeque<Value>,
}

/// What a client hears.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    Message(Value),
    Close(u16, String),
    /// The connection ended without a close frame.
    Gone,
}

/// A change as it was told: id, action and version.
type Told = (String, String, u64);

impl Client {
    /// Connects to the project `app`, as everybody may.
    pub async fn connect(server: &Harness) -> Self {
        Self::opened(server, PATH, None).await.admitted().await
    }

    /// Connects with a token in the header.
    pub async fn with_token(server: &Harness, token: &str) -> Self {
        Self::opened(server, PATH, Some(token)).await.admitted().await
    }

    /// Opens a WebSocket, whatever is said on it first.
    pub async fn opened(server: &Harness, path: &str, token: Option<&str>) -> Self {
        Self::at(&server.url(path), token).await.expect("a WebSocket")
    }

    /// Opens a WebSocket at an address; fails with the error of the handshake.
    pub async fn at(url: &str, token: Option<&str>) -> Result<Self, tungstenite::Error> {
        let mut request: Request<()> =
            url.replace("http://", "ws://").into_client_request().expect("an address");
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().expect("a header");
            request.headers_mut().insert("authorization", value);
        }
        let (socket, _) = tokio_tungstenite::connect_async(request).await?;
        Ok(Self { socket, connected: Value::Null, heard: VecDeque::new() })
    }

    /// Takes the first message, which says that the client is admitted.
    pub async fn admitted(mut self) -> Self {
        let first = self.message().await;
        assert_eq!(first["type"], "CONNECTED", "{first}");
        self.connected = first["payload"].clone();
        self
    }

    /// Sends a text as it is.
    pub async fn say(&mut self, text: impl Into<String>) {
        self.socket.send(Message::text(text.into())).await.expect("sent");
    }

    /// Sends a message.
    pub async fn send(&mut self, kind: &str, payload: Value) {
        self.say(json!({ "type": kind, "payload": payload }).to_string()).await;
    }

    /// Sends a message and returns the payload of its answer, which must be of this type.
    pub async fn ask(&mut self, kind: &str, payload: Value, answer: &str) -> Value {
        self.send(kind, payload.clone()).await;
        let told = self.answer().await;
        assert_eq!(told["type"], answer, "{kind} {payload}: {told}");
        told["payload"].clone()
    }

    /// Sends a message that is refused; the code of the error.
    pub async fn refused(&mut self, kind: &str, payload: Value) -> String {
        let error = self.ask(kind, payload, "ERROR").await;
        assert!(error["message"].is_string(), "{error}");
        error["code"].as_str().expect("a code").to_owned()
    }

    /// The next message that is an answer. What comes before it is kept.
    pub async fn answer(&mut self) -> Value {
        loop {
            let message = self.message().await;
            match message["type"].as_str().expect("a type") {
                "INVALIDATE" | "RESYNC" | "TOKEN_EXPIRING_SOON" => self.heard.push_back(message),
                _ => return message,
            }
        }
    }

    /// Subscribes to entities; the payload of the answer.
    pub async fn subscribe(&mut self, code: &str, ids: &[&str]) -> Value {
        self.ask("SUBSCRIBE", json!({ "entityCode": code, "entityIds": ids }), "SUBSCRIBED").await
    }

    /// Subscribes and resumes at a cursor; the payload of the answer.
    pub async fn resume(&mut self, code: &str, ids: &[&str], since: &Value) -> Value {
        let payload = json!({ "entityCode": code, "entityIds": ids, "since": since });
        self.ask("SUBSCRIBE", payload, "SUBSCRIBED").await
    }

    /// Ends subscriptions; how many there were.
    pub async fn unsubscribe(&mut self, code: &str, ids: &[&str]) -> Value {
        let payload = json!({ "entityCode": code, "entityIds": ids });
        self.ask("UNSUBSCRIBE", payload, "UNSUBSCRIBED").await["count"].clone()
    }

    /// The next message that nobody asked for.
    pub async fn hear(&mut self) -> Value {
        match self.heard.pop_front() {
            Some(message) => message,
            None => self.message().await,
        }
    }

    /// The payload of the next message, which must be of this type.
    pub async fn hear_a(&mut self, kind: &str) -> Value {
        let message = self.hear().await;
        assert_eq!(message["type"], kind, "{message}");
        message["payload"].clone()
    }

    /// The changes of the next message, which must be of this code.
    pub async fn changes(&mut self, code: &str) -> Vec<Told> {
        let payload = self.hear_a("INVALIDATE").await;
        assert_eq!(payload["entityCode"], code, "{payload}");
        told(&payload)
    }

    /// All changes that are told up to one of this entity, the last included.
    pub async fn until(&mut self, id: &str) -> Vec<Told> {
        let mut all = Vec::new();
        loop {
            let changes = told(&self.hear_a("INVALIDATE").await);
            let is_there = changes.iter().any(|change| change.0 == id);
            all.extend(changes);
            if is_there {
                return all;
            }
        }
    }

    /// The next message.
    pub async fn message(&mut self) -> Value {
        match self.frame().await {
            Heard::Message(message) => message,
            other => panic!("expected a message: {other:?}"),
        }
    }

    /// Whatever comes next, without pings.
    pub async fn frame(&mut self) -> Heard {
        loop {
            let message = tokio::time::timeout(Duration::from_secs(30), self.socket.next());
            match message.await.expect("something comes within half a minute") {
                Some(Ok(Message::Text(text))) => {
                    let message: Value = serde_json::from_str(&text).expect("JSON");
                    assert!(message["type"].is_string() && message["payload"].is_object(), "{message}");
                    return Heard::Message(message);
                }
                Some(Ok(Message::Close(Some(close)))) => {
                    return Heard::Close(close.code.into(), close.reason.to_string());
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Binary(bytes))) => panic!("bytes are not spoken here: {bytes:?}"),
                Some(Ok(Message::Close(None)) | Err(_)) | None => return Heard::Gone,
            }
        }
    }

    /// Code and reason of the close frame, which must come next.
    pub async fn closed(&mut self) -> (u16, String) {
        match self.frame().await {
            Heard::Close(code, reason) => (code, reason),
            other => panic!("expected a close: {other:?}"),
        }
    }

    /// The error and the close frame behind it, which must come next: code and message of the error, and the close code.
    pub async fn turned_away(&mut self) -> (String, String, u16) {
        let error = self.message().await;
        assert_eq!(error["type"], "ERROR", "{error}");
        let text = |name: &str| error["payload"][name].as_str().expect("text").to_owned();
        (text("code"), text("message"), self.closed().await.0)
    }

    /// Closes the connection and waits until the server has answered.
    pub async fn leave(mut self) {
        self.socket.close(None).await.expect("closed");
        while self.socket.next().await.is_some_and(|message| message.is_ok()) {}
    }
}

/// The changes of a payload.
fn told(payload: &Value) -> Vec<Told> {
    let change = |change: &Value| {
        let text = |name: &str| change[name].as_str().expect("text").to_owned();
        (text("entityId"), text("action"), change["version"].as_u64().expect("a version"))
    };
    payload["changes"].as_array().expect("changes").iter().map(change).collect()
}

/// Ids of changes.
fn ids(changes: &[Told]) -> Vec<&str> {
    changes.iter().map(|change| &*change.0).collect()
}

/// A server with other options of entities, which everybody may use.
pub async fn server(change: impl FnOnce(&mut EntityOptions)) -> Harness {
    let mut setup = Setup::default();
    change(&mut setup.entities);
    Harness::with(setup).await
}

/// A server with the projects `app` and `other`, and their keys.
pub async fn closed() -> Harness {
    closed_with(|_| {}).await
}

/// The same with other options.
pub async fn closed_with(change: impl FnOnce(&mut Setup)) -> Harness {
    let doors = Doors::Closed { created: vec![("app", KEY), ("other", OTHER_KEY)], given: vec![] };
    let mut setup = Setup { doors, ..Setup::default() };
    change(&mut setup);
    Harness::with(setup).await
}

/// Claims of a user on the project `app`, for an hour.
pub fn claims(server: &Harness, user: &str, scope: Scope) -> Claims {
    let app = ProjectId::parse("app").expect("an id");
    Claims { user: Some(user.into()), ..Claims::new(app, scope, server.clock.now() + HOUR) }
}

/// The token of claims, signed with the key of `app`.
pub fn signed(claims: &Claims) -> String {
    claims.sign(&Key::parse(KEY).expect("a key"))
}

/// A token of a user that may do everything in `app`.
pub fn token(server: &Harness, user: &str) -> String {
    signed(&claims(server, user, Scope::Manage))
}

/// A token of a user that names these entities.
pub fn token_for(server: &Harness, user: &str, globs: &[&str]) -> String {
    let globs = globs.iter().map(|text| Pattern::parse(text).expect("a pattern")).collect();
    let resources = Resources { entities: Some(globs), ..Resources::default() };
    signed(&Claims { resources, ..claims(server, user, Scope::Write) })
}

/// A change to publish.
pub fn change(code: &str, id: &str, action: &str) -> Value {
    json!({ "entityCode": code, "entityId": id, "action": action })
}

/// Publishes changes in a project; status and answer.
pub async fn post_to(server: &Harness, project: &str, token: Option<&str>, body: &Value) -> (u16, Value) {
    let request = server.post(&format!("/v1/{project}/changes")).json(body);
    let request = match token {
        Some(token) => request.bearer_auth(token),
        None => request,
    };
    let answer = request.send().await.expect("an answer");
    (answer.status().as_u16(), answer.json().await.expect("JSON"))
}

/// Publishes changes in `app`, which must be accepted; the cursor after them.
pub async fn publish(server: &Harness, changes: &[Value]) -> Value {
    let token = token(server, "publisher");
    let token = server.projects().exists(&ProjectId::parse("app").expect("an id")).then_some(&*token);
    let (status, answer) = post_to(server, "app", token, &Value::from(changes)).await;
    assert_eq!((status, &answer["accepted"]), (200, &json!(changes.len())), "{answer}");
    answer["cursor"].clone()
}

/// Publishes the update of an entity.
pub async fn update(server: &Harness, code: &str, id: &str) -> Value {
    publish(server, &[change(code, id, "UPDATE")]).await
}

/// Waits until no connection is left, and nothing of one.
pub async fn nobody_is_left(server: &Harness) {
    crate::sockets::nobody_is_left(server).await;
    assert_eq!(server.metric("tidings_entity_connections"), Some(0.0));
    assert_eq!(server.metric("tidings_entity_subscriptions"), Some(0.0));
}
