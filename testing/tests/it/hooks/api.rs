//! Requests to the interfaces of hooks, and their answers.

use serde_json::{Value, json};
use tidings_auth::{Claims, Key, Resources, Scope};
use tidings_engine::Clock;
use tidings_model::ProjectId;
use tidings_server::Duty;
use tidings_testing::http::header::HeaderMap;
use tidings_testing::http::{Method, RequestBuilder};
use tidings_testing::{ADMIN_KEY, Doors, Harness, Setup};

pub const ACME_KEY: &str = "the-signing-key-of-acme";
pub const BETA_KEY: &str = "the-signing-key-of-beta";
/// A time that is valid for events by the clock of the harness.
pub const TS: &str = "2025-11-16T12:00:00.000Z";
/// An id that nothing has.
pub const NOBODY: &str = "00000000000000000000000000";

/// A server with the projects `acme` and `beta`.
pub async fn closed() -> Harness {
    closed_with(Setup::default()).await
}

/// The same with options.
pub async fn closed_with(setup: Setup) -> Harness {
    let created = vec![("acme", ACME_KEY), ("beta", BETA_KEY)];
    Harness::with(undelivered(Setup { doors: Doors::Closed { created, given: vec![] }, ..setup })).await
}

/// A server in dev mode.
pub async fn open() -> Harness {
    Harness::with(undelivered(Setup::default())).await
}

/// A server that delivers nothing: these tests are about what is queued and answered, and call nobody.
fn undelivered(mut setup: Setup) -> Setup {
    setup.duties.push(Duty::lasting("hook-dispatcher", std::future::pending));
    setup
}

fn project(id: &str) -> (ProjectId, Key) {
    let key = if id == "beta" { BETA_KEY } else { ACME_KEY };
    (ProjectId::parse(id).expect("an id"), Key::parse(key).expect("a key"))
}

/// The API key of a project.
pub fn api_key(id: &str) -> String {
    let (id, key) = project(id);
    key.api_key(&id)
}

/// A token of a project, confined to some resources.
pub fn token(server: &Harness, id: &str, scope: Scope, resources: Resources) -> String {
    let (project, key) = project(id);
    let expires_at = server.clock.now() + std::time::Duration::from_secs(24 * 60 * 60 * 365);
    Claims { resources, ..Claims::new(project, scope, expires_at) }.sign(&key)
}

/// A token of a project without resource claims.
pub fn plain_token(server: &Harness, id: &str, scope: Scope) -> String {
    token(server, id, scope, Resources::default())
}

/// An answer.
#[derive(Debug)]
pub struct Answered {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answered {
    /// The body as JSON; `null` if it is empty.
    pub fn json(&self) -> Value {
        if self.text.is_empty() {
            return Value::Null;
        }
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("{}", self.text))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("plain text"))
    }
}

/// Sends a request.
pub async fn answered(request: RequestBuilder) -> Answered {
    let answer = request.send().await.expect("an answer");
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    Answered { status, headers, text: answer.text().await.expect("text") }
}

/// A client with a credential, if it has one.
#[derive(Clone)]
pub struct Client<'a> {
    pub server: &'a Harness,
    pub credential: Option<String>,
    pub headers: Vec<(&'static str, String)>,
}

impl<'a> Client<'a> {
    pub fn with(server: &'a Harness, credential: impl Into<String>) -> Self {
        Self { server, credential: Some(credential.into()), headers: Vec::new() }
    }

    /// A client of a project with its API key.
    pub fn of(server: &'a Harness, project: &str) -> Self {
        Self::with(server, api_key(project))
    }

    /// A client with the admin key.
    pub fn admin(server: &'a Harness) -> Self {
        Self::with(server, ADMIN_KEY)
    }

    /// A client without a credential.
    pub fn nobody(server: &'a Harness) -> Self {
        Self { server, credential: None, headers: Vec::new() }
    }

    /// The same for a tenant.
    pub fn for_tenant(mut self, namespace: &str) -> Self {
        self.headers.push(("x-tenant-namespace", namespace.to_owned()));
        self
    }

    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let request = self.server.request(Method::from_bytes(method.as_bytes()).expect("a method"), path);
        let request =
            self.headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
        match &self.credential {
            Some(credential) => request.bearer_auth(credential),
            None => request,
        }
    }

    pub async fn get(&self, path: &str) -> Answered {
        answered(self.request("GET", path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answered {
        answered(self.request("POST", path).json(&body)).await
    }

    pub async fn send(&self, method: &str, path: &str, body: Value) -> Answered {
        answered(self.request(method, path).json(&body)).await
    }

    /// The body of a successful `GET`.
    pub async fn gets(&self, path: &str) -> Value {
        let told = self.get(path).await;
        assert_eq!(told.status, 200, "{path}: {told:?}");
        told.json()
    }

    /// Creates a subscription, which must succeed, and returns its id.
    pub async fn subscribes(&self, worker: &str, pattern: &str) -> String {
        let body = json!({ "workerId": worker, "pattern": pattern, "rpcMethod": "handle" });
        let told = self.post("/subscriptions/subscribe", body).await;
        assert_eq!(told.status, 200, "{told:?}");
        told.json()["subscriptionId"].as_str().expect("an id").to_owned()
    }

    /// Submits events, which must be accepted.
    pub async fn ingests(&self, events: Value) {
        let told = self.post("/e", json!({ "events": events })).await;
        assert_eq!(told.status, 200, "{told:?}");
    }

    /// Ids of the subscriptions of a list.
    pub async fn lists(&self, query: &str) -> Vec<String> {
        ids(&self.gets(&format!("/subscriptions/list{query}")).await["subscriptions"])
    }
}

/// The ids of an array of objects.
pub fn ids(array: &Value) -> Vec<String> {
    let array = array.as_array().unwrap_or_else(|| panic!("{array}"));
    array.iter().map(|one| one["id"].as_str().expect("an id").to_owned()).collect()
}

/// An event of a type.
pub fn event(event_type: &str) -> Value {
    json!({ "type": event_type, "ts": TS })
}

/// Whether a text is an id: 26 digits of Crockford's base 32, in capitals.
pub fn is_id(text: &Value) -> bool {
    let is_digit = |c: char| "0123456789ABCDEFGHJKMNPQRSTVWXYZ".contains(c);
    text.as_str().is_some_and(|text| text.len() == 26 && text.chars().all(is_digit))
}
