//! Hooks: every event that was accepted reaches the endpoints that asked for it.

mod dead_letters;
mod endpoints;
mod examples;
mod handlers;
mod ordering;
mod pace;
mod process;
mod removal;
mod replays;
mod retries;
mod sending;
mod sources;
mod targets;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tidings_engine::Clock;
use tidings_hooks::Options;
use tidings_hooks::ingest::time_text;
use tidings_server::HookOptions;
use tidings_testing::http::{Client, Method};
use tidings_testing::{ADMIN_KEY, Behaviour, Doors, Endpoint, Harness, Received, Setup, TestStore, until};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The interface of a server, as somebody uses it who may do everything.
#[derive(Clone)]
struct Api {
    client: Client,
    base: String,
    clock: Arc<dyn Clock>,
    /// Project in which it acts, unless that is the default.
    project: Option<String>,
    key: Option<String>,
}

/// A hook that was created.
#[derive(Clone, Debug)]
struct Hook {
    id: String,
    secret: String,
}

/// Statistics of a hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stats {
    pending: u64,
    failed: u64,
    dead: u64,
    delivered: u64,
    attempts: u64,
}

impl Api {
    fn of(server: &Harness) -> Self {
        let clock = Arc::new(server.clock.clone());
        Self { client: Client::new(), base: server.url(""), clock, project: None, key: None }
    }

    /// The same with a project.
    fn within(&self, project: &str) -> Self {
        Self { project: Some(project.to_owned()), ..self.clone() }
    }

    /// The same with a credential.
    fn with_key(&self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self.clone() }
    }

    /// Sends a request and returns status and body.
    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let mut request = self.client.request(method.clone(), format!("{}{path}", self.base));
        if let Some(project) = &self.project {
            request = request.header("x-tenant-namespace", project);
        }
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        let answer = request.send().await.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        let status = answer.status().as_u16();
        let text = answer.text().await.expect("text");
        let body = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).expect("JSON") };
        (status, body)
    }

    /// Posts something, which must succeed.
    async fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.call(Method::POST, path, Some(body)).await;
        assert!((200..300).contains(&status), "POST {path}: {status} {answer}");
        answer
    }

    /// Gets something, which must be there.
    async fn get(&self, path: &str) -> Value {
        let (status, answer) = self.call(Method::GET, path, None).await;
        assert_eq!(status, 200, "GET {path}: {answer}");
        answer
    }

    /// Creates a hook.
    async fn subscribes(&self, settings: Value) -> Hook {
        let created = self.post("/subscriptions/subscribe", &settings).await;
        let text = |name: &str| created[name].as_str().unwrap_or_else(|| panic!("{created}")).to_owned();
        Hook { id: text("subscriptionId"), secret: text("secret") }
    }

    /// Creates a hook of a pattern for an endpoint.
    async fn hears(&self, pattern: &str, endpoint: &Endpoint) -> Hook {
        self.subscribes(json!({ "url": endpoint.url("/hook"), "pattern": pattern })).await
    }

    /// An event of this moment, with the type and what else it has.
    fn event(&self, event_type: &str, mut members: Value) -> Value {
        members["type"] = event_type.into();
        members["ts"] = time_text(self.clock.now()).into();
        members
    }

    /// Publishes an event, with what it has beside type and time.
    async fn publishes(&self, event_type: &str, members: Value) {
        self.ingests(vec![self.event(event_type, members)]).await;
    }

    /// Publishes so many events, with a number `n` from 0.
    async fn publishes_many(&self, event_type: &str, count: usize) {
        let events: Vec<_> = (0..count).map(|n| self.event(event_type, json!({ "n": n }))).collect();
        for some in events.chunks(1000) {
            self.ingests(some.to_vec()).await;
        }
    }

    async fn ingests(&self, events: Vec<Value>) {
        let received = events.len();
        let answer = self.post("/e", &json!({ "events": events })).await;
        assert_eq!(answer["received"], received, "{answer}");
    }

    async fn stats(&self, hook: &Hook) -> Stats {
        let status = self.get(&format!("/subscriptions/status/{}", hook.id)).await;
        let stats = &status["stats"];
        let number = |name: &str| stats[name].as_u64().unwrap_or_else(|| panic!("{name} in {status}"));
        let stats = Stats {
            pending: number("pendingDeliveries"),
            failed: number("failedDeliveries"),
            dead: number("deadLetters"),
            delivered: number("totalDelivered"),
            attempts: number("totalAttempts"),
        };
        let rate = status["stats"]["successRate"].as_f64().expect("a number");
        let expected = stats.delivered as f64 / stats.attempts.max(1) as f64;
        assert!((rate - expected).abs() < 1e-9, "{status}");
        stats
    }

    /// All deliveries of a hook, oldest first.
    async fn deliveries(&self, hook: &Hook) -> Vec<Value> {
        self.pages(&format!("/subscriptions/{}/deliveries?limit=1000", hook.id), "deliveries").await
    }

    /// The only delivery of a hook.
    async fn delivery(&self, hook: &Hook) -> Value {
        let mut deliveries = self.deliveries(hook).await;
        assert_eq!(deliveries.len(), 1, "{deliveries:?}");
        deliveries.remove(0)
    }

    /// All dead letters of a hook, newest first.
    async fn dead_letters(&self, hook: &Hook) -> Vec<Value> {
        self.pages(&format!("/subscriptions/{}/dead-letters?limit=1000", hook.id), "deadLetters").await
    }

    async fn pages(&self, path: &str, list: &str) -> Vec<Value> {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.get(&format!("{path}{cursor}")).await;
            all.extend(page[list].as_array().unwrap_or_else(|| panic!("{page}")).iter().cloned());
            match page["nextCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return all,
            }
        }
    }

    /// The attempts of a delivery, oldest first.
    async fn log(&self, delivery: &Value) -> Vec<Value> {
        let id = delivery["id"].as_str().expect("an id");
        let log = self.get(&format!("/subscriptions/deliveries/{id}/logs")).await;
        log["logs"].as_array().expect("a list").clone()
    }

    /// Posts `{"subscriptionId": …}`, and more if there is more.
    async fn tells(&self, verb: &str, hook: &Hook, mut more: Value) -> Value {
        more["subscriptionId"] = hook.id.clone().into();
        self.post(&format!("/subscriptions/{verb}"), &more).await
    }

    async fn removes(&self, hook: &Hook) -> Value {
        let (status, answer) = self.call(Method::DELETE, &format!("/subscriptions/{}", hook.id), None).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }
}

/// A server with options of hooks, on the store in memory and on the embedded one.
async fn both_stores(change: impl Fn(&mut Options)) -> [Harness; 2] {
    [on(TestStore::Memory, &change).await, on(TestStore::Embedded, &change).await]
}

/// A server with options of hooks.
async fn with_options(change: impl FnOnce(&mut Options)) -> Harness {
    on(TestStore::Memory, change).await
}

async fn on(store: TestStore, change: impl FnOnce(&mut Options)) -> Harness {
    let mut hooks = HookOptions::default();
    change(&mut hooks.hooks);
    Harness::with(Setup { store, hooks, ..Setup::default() }).await
}

/// Waits until everything is delivered that is due, and recorded.
async fn rests(server: &Harness) {
    until("hooks have nothing to do", || server.server().hooks().is_at_rest()).await;
}

/// Lets time pass and waits until everything is delivered that became due.
async fn passes(server: &Harness, time: Duration) {
    server.clock.advance(time);
    rests(server).await;
}

/// Waits until a hook has these statistics.
async fn comes_to(api: &Api, hook: &Hook, expected: Stats) {
    let mut last = Stats::default();
    let waiting = async {
        loop {
            last = api.stats(hook).await;
            if last == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(30), waiting).await.is_err() {
        panic!("{last:?} and not {expected:?}");
    }
}

/// An endpoint that always answers this status, with a body.
async fn answering(status: u16, body: &str) -> Endpoint {
    let endpoint = Endpoint::start().await;
    endpoint.usually(Behaviour::Answer(status, Vec::new(), body.to_owned()));
    endpoint
}

/// The numbers `n` of events that were received in the form of the envelope.
fn numbers(received: &[Received]) -> Vec<u64> {
    let number = |one: &Received| one.json()["payload"]["n"].as_u64().expect("a number");
    received.iter().map(number).collect()
}

/// The texts of a member of some objects.
fn texts(objects: &[Value], member: &str) -> Vec<String> {
    let text = |object: &Value| object[member].as_str().unwrap_or_else(|| panic!("{object}")).to_owned();
    objects.iter().map(text).collect()
}
