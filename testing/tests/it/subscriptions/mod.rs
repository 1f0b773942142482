//! Subscriptions to streams: who is woken, when, by what, and what becomes of it.

mod access;
mod claims;
mod hooks;
mod links;
mod survival;
mod webhooks;

use std::time::Duration;

use serde_json::{Value, json};
use tidings_engine::Clock;
use tidings_testing::http::{Client, Method};
use tidings_testing::{Behaviour, Harness, Process, eventually};

/// A client of the streams of one project.
#[derive(Clone)]
struct Root {
    client: Client,
    base: String,
    token: Option<String>,
}

/// An answer: its status and its body, `null` if that is empty.
type Answer = (u16, Value);

impl Root {
    fn of(server: &Harness) -> Self {
        Self::at(server.url("/v1/shop/stream"))
    }

    fn on(server: &Process) -> Self {
        Self::at(server.url("/v1/shop/stream"))
    }

    fn at(base: String) -> Self {
        Self { client: Client::new(), base, token: None }
    }

    fn with(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let mut request = self.client.request(method, format!("{}/{path}", self.base));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();
        let text = answer.text().await.expect("text");
        (status, if text.is_empty() { Value::Null } else { serde_json::from_str(&text).expect("JSON") })
    }

    async fn get(&self, path: &str) -> Value {
        let (status, body) = self.send(Method::GET, path, None).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Creates a JSON stream without messages.
    async fn stream(&self, path: &str) {
        let (status, body) = self.send(Method::PUT, path, Some(&json!([]))).await;
        assert_eq!(status, 201, "{path}: {body}");
    }

    /// Appends a message.
    async fn append(&self, path: &str, message: Value) {
        let (status, body) = self.send(Method::POST, path, Some(&json!([message]))).await;
        assert_eq!(status, 204, "{path}: {body}");
    }

    /// The messages of a stream.
    async fn messages(&self, path: &str) -> Vec<Value> {
        self.get(path).await.as_array().expect("an array").clone()
    }

    async fn put(&self, id: &str, wanted: Value) -> Answer {
        self.send(Method::PUT, &format!("__ds/subscriptions/{id}"), Some(&wanted)).await
    }

    /// Creates a subscription; fails if it is refused.
    async fn subscribe(&self, id: &str, wanted: Value) -> Value {
        let (status, body) = self.put(id, wanted).await;
        assert_eq!(status, 201, "{id}: {body}");
        body
    }

    async fn subscription(&self, id: &str) -> Value {
        self.get(&format!("__ds/subscriptions/{id}")).await
    }

    async fn post(&self, id: &str, action: &str, body: Value) -> Answer {
        self.send(Method::POST, &format!("__ds/subscriptions/{id}/{action}"), Some(&body)).await
    }

    /// Claims the work of a subscription; fails if it is refused.
    async fn claim(&self, id: &str, worker: &str) -> Value {
        let (status, body) = self.post(id, "claim", json!({ "worker": worker })).await;
        assert_eq!(status, 200, "{id}: {body}");
        body
    }

    /// Waits until a subscription shows something.
    async fn shows(&self, id: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(what, async || holds(&self.subscription(id).await)).await;
        self.subscription(id).await
    }
}

/// A subscription of type `webhook` to everything below `events`.
fn webhook(url: String) -> Value {
    json!({ "type": "webhook", "pattern": "events/**", "webhook": { "url": url }, "lease_ttl_ms": 30_000 })
}

/// A subscription of type `pull-wake` to everything below `events`.
fn pull_wake() -> Value {
    json!({ "type": "pull-wake", "pattern": "events/**", "wake_stream": "wake/pool", "lease_ttl_ms": 10_000 })
}

/// An endpoint's answer that it is done.
fn done() -> Behaviour {
    Behaviour::Answer(200, Vec::new(), r#"{"done":true}"#.to_owned())
}

/// A report that acknowledges what a wake or a claim told.
fn report(told: &Value, done: bool) -> Value {
    let streams = told["streams"].as_array().expect("streams");
    let acks: Vec<Value> =
        streams.iter().map(|one| json!({ "stream": one["path"], "offset": one["tail_offset"] })).collect();
    json!({ "wake_id": told["wake_id"], "generation": told["generation"], "acks": acks, "done": done })
}

fn code(answer: &Answer) -> (u16, &str) {
    (answer.0, answer.1["error"]["code"].as_str().unwrap_or_default())
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("{name}: {value}"))
}

const SECOND: Duration = Duration::from_secs(1);
