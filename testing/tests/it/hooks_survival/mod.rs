//! Hooks: what was accepted reaches its endpoints, or is among the dead letters, whatever happens to the server.

mod growth;
mod load;
mod loss;
mod power;
mod states;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tidings_hooks::ingest::time_text;
use tidings_model::Timestamp;
use tidings_testing::http::{Client, Method, RequestBuilder};
use tidings_testing::{Launch, Process};

/// How long something may take that a loaded machine does.
const PATIENCE: Duration = Duration::from_secs(120);

/// Starts the real server with variables of the environment, without pauses for destinations that fail.
async fn serve(variables: &[(&str, &str)]) -> Process {
    let first = [("TIDINGS_HOOKS_BREAKER_FAILURES", "1000000")];
    Process::launch(Launch::new(&["--dev", "--listen", "127.0.0.1:0"], &[&first, variables].concat())).await
}

/// A client of a server.
#[derive(Clone)]
struct Api {
    client: Client,
    base: String,
    key: Option<&'static str>,
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
    fn of(server: &Process) -> Self {
        Self::at(server.url("/v1/p"))
    }

    fn at(base: String) -> Self {
        Self { client: Client::new(), base, key: None }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.base));
        match self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Posts something, which must succeed.
    async fn post(&self, path: &str, body: Value) -> Value {
        let answer = self.request(Method::POST, path).json(&body).send().await;
        let answer = answer.unwrap_or_else(|error| panic!("POST {path}: {error}"));
        let status = answer.status().as_u16();
        let body: Value = answer.json().await.expect("JSON");
        assert!((200..300).contains(&status), "POST {path}: {status} {body}");
        body
    }

    /// Gets something, which must be there.
    async fn get(&self, path: &str) -> Value {
        let answer = self.request(Method::GET, path).send().await;
        let answer = answer.unwrap_or_else(|error| panic!("GET {path}: {error}"));
        assert_eq!(answer.status(), 200, "GET {path}");
        answer.json().await.expect("JSON")
    }

    /// Creates a hook and returns its id.
    async fn hook(&self, settings: Value) -> String {
        let created = self.post("/hooks", settings).await;
        created["id"].as_str().unwrap_or_else(|| panic!("{created}")).to_owned()
    }

    /// Publishes so many events of a type, with a number `n` from 0.
    async fn publish(&self, event_type: &str, count: usize) {
        let numbers: Vec<usize> = (0..count).collect();
        for some in numbers.chunks(1000) {
            let events: Vec<_> = some.iter().map(|n| event(event_type, json!({ "n": n }))).collect();
            self.post("/events", json!({ "events": events })).await;
        }
    }

    async fn stats(&self, hook: &str) -> Stats {
        let shown = self.get(&format!("/hooks/{hook}")).await;
        let number =
            |name: &str| shown["stats"][name].as_u64().unwrap_or_else(|| panic!("{name} in {shown}"));
        Stats {
            pending: number("pending"),
            failed: number("failed"),
            dead: number("deadLetters"),
            delivered: number("delivered"),
            attempts: number("attempts"),
        }
    }

    /// Waits until the statistics of a hook are as wanted, and returns them.
    async fn comes_to(&self, hook: &str, what: &str, wanted: impl Fn(Stats) -> bool) -> Stats {
        let mut last = Stats::default();
        let waiting = async {
            loop {
                last = self.stats(hook).await;
                if wanted(last) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
            panic!("it never came to this: {what}; the hook has {last:?}");
        }
        last
    }

    /// Everything in a list of a hook.
    async fn all(&self, hook: &str, path: &str, list: &str) -> Vec<Value> {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.get(&format!("/hooks/{hook}/{path}?limit=1000{cursor}")).await;
            all.extend(page[list].as_array().unwrap_or_else(|| panic!("{page}")).iter().cloned());
            match page["nextCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return all,
            }
        }
    }

    async fn deliveries(&self, hook: &str) -> Vec<Value> {
        self.all(hook, "deliveries", "deliveries").await
    }

    async fn dead_letters(&self, hook: &str) -> Vec<Value> {
        self.all(hook, "dead-letters", "deadLetters").await
    }
}

/// An event of this moment.
fn event(event_type: &str, mut members: Value) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_millis();
    members["type"] = event_type.into();
    members["ts"] = time_text(Timestamp::from_millis(now as u64)).into();
    members
}

/// A member of an object as text.
fn text(object: &Value, member: &str) -> String {
    object[member].as_str().unwrap_or_else(|| panic!("{member} in {object}")).to_owned()
}
