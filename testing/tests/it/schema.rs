//! `/openapi.json`: it says what is served, and what is served does as it says.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tidings_api::MetricsAccess;
use tidings_engine::{Clock, WallClock};
use tidings_hooks::ingest::time_text;
use tidings_server::{Duty, ObserveOptions};
use tidings_streams::Options;
use tidings_testing::http::Method;
use tidings_testing::{Behaviour, Endpoint, Harness, Setup, TestStore, eventually};
use tokio::process::Command;

const METHODS: [&str; 7] = ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "TRACE"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tree").to_owned()
}

/// Every method and template that the description has.
fn described() -> BTreeSet<(String, String)> {
    let description: Value = serde_json::from_str(tidings_api::openapi()).expect("JSON");
    let paths = description["paths"].as_object().expect("there are paths");
    let operations = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().expect("an object").keys();
        methods.map(|method| (method.to_uppercase(), path.clone()))
    });
    operations.collect()
}

#[tokio::test]
async fn what_is_described_is_served_and_what_is_served_is_described() {
    let server = Harness::start().await;
    let described = described();
    let is_described = |method: &str, path: &str| described.contains(&(method.to_owned(), path.to_owned()));
    let mut served = BTreeSet::new();
    for template in tidings_api::templates() {
        let template = template.replace("{*", "{");
        let path = template.replace("{id}", "a").replace("{project}", "p");
        for method in METHODS {
            let request = server.request(Method::from_bytes(method.as_bytes()).expect("a method"), &path);
            let answer = request.send().await.expect("an answer");
            // Whatever is answered with GET is answered with HEAD as well, which need not be said.
            let implied =
                method == "HEAD" && is_described("GET", &template) && !is_described("HEAD", &template);
            if answer.status() != 405 && !implied {
                served.insert((method.to_owned(), template.clone()));
            }
        }
    }
    assert_eq!(described, served);
}

#[tokio::test]
async fn the_description_is_served_and_the_copy_among_the_documents_is_the_same() {
    let server = Harness::start().await;
    let answer = server.get("/openapi.json").await;
    assert_eq!(answer.headers()["content-type"], "application/json");
    let served = answer.text().await.expect("text");
    let copy = root().join("docs/openapi.json");
    if std::env::var_os("TIDINGS_WRITE_OPENAPI").is_some() {
        std::fs::write(&copy, &served).expect("written");
    }
    let kept = std::fs::read_to_string(copy).expect("docs/openapi.json is there");
    assert!(kept == served, "docs/openapi.json is not what is served; `make openapi` writes it anew");
}

/// Responses that stay open for a moment only.
fn brief() -> Options {
    Options {
        long_poll_timeout: Duration::from_millis(20),
        sse_duration: Duration::from_millis(20),
        ..Options::default()
    }
}

/// Requests that schemathesis makes up from the description find no answer of 5xx and none that is not described.
#[tokio::test(flavor = "multi_thread")]
async fn requests_made_from_the_description_are_answered_as_it_says() {
    let streams = brief();
    let observe = ObserveOptions { metrics_access: MetricsAccess::Open, ..ObserveOptions::default() };
    // Hooks that are made up must not call anybody.
    let duties = ["hook-dispatcher", "subscription-dispatcher"];
    let duties = duties.map(|name| Duty::lasting(name, std::future::pending)).to_vec();
    let server =
        Harness::with(Setup { streams, observe, duties, wall_clock: true, ..Setup::default() }).await;
    for path in ["/v1/stream/orders", "/v1/shop/stream/orders"] {
        let json = server.put(path).header("content-type", "application/json");
        assert_eq!(json.send().await.expect("an answer").status(), 201);
    }
    // A credential that is made up is refused, whatever else a request says; so once without any.
    let described: Value = serde_json::from_str(tidings_api::openapi()).expect("JSON");
    let mut open = described.clone();
    assert!(open.as_object_mut().expect("an object").remove("security").is_some());
    for description in [open, described] {
        answers_as(&server, &description, ".*").await;
    }
}

/// Hooks, and ids of what belongs to them.
#[derive(Default)]
struct Known {
    hooks: Vec<String>,
    /// Hooks that may be removed.
    disposable: Vec<String>,
    deliveries: Vec<String>,
    letters: Vec<String>,
}

impl Known {
    /// Makes the description ask for these instead of for ids that are made up.
    fn put_into(&self, description: &mut Value) {
        for (path, item) in description["paths"].as_object_mut().expect("an object") {
            for (method, operation) in item.as_object_mut().expect("an object") {
                let Some(parameters) = operation.get_mut("parameters").and_then(Value::as_array_mut) else {
                    continue;
                };
                for parameter in parameters {
                    let known = match parameter["name"].as_str().expect("text") {
                        "hook" | "id" if method == "delete" => json!(self.disposable),
                        "id" if path.contains("/deliveries/{id}") => json!(self.deliveries),
                        "hook" | "id" => json!(self.hooks),
                        "delivery" => json!(self.deliveries),
                        "letter" => json!(self.letters),
                        "project" | "X-Tenant-Namespace" => json!(["shop"]),
                        _ => continue,
                    };
                    parameter["schema"] = json!({ "type": "string", "enum": known });
                    parameter["example"] = known[0].clone();
                }
            }
        }
        let schemas = &mut description["components"]["schemas"];
        // The first one is of a request that removes the hook.
        for (body, hooks) in
            [("SubscriptionReferenceBody", &self.disposable), ("SubscriptionReactivationBody", &self.hooks)]
        {
            let id =
                schemas[body].pointer_mut("/properties/subscriptionId").expect("it names a subscription");
            *id = json!({ "type": "string", "enum": hooks });
        }
        let ts = schemas["IngestedEvent"].pointer_mut("/properties/ts").expect("an event has a time");
        *ts = json!({ "type": "string", "enum": [time_text(WallClock.now()), "never"] });
        let from = schemas["ReplayBody"].pointer_mut("/properties/from").expect("a replay begins somewhere");
        *from =
            json!({ "type": "string", "enum": ["2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z", "never"] });
    }
}

/// Gets an array from a server and returns its ids.
async fn ids(server: &Harness, path: &str, list: &str) -> Vec<String> {
    let page: Value = server.get(path).await.json().await.expect("JSON");
    let all = page[list].as_array().unwrap_or_else(|| panic!("{page}"));
    all.iter().map(|one| one["id"].as_str().expect("an id").to_owned()).collect()
}

/// The same for hooks that exist, with deliveries, attempts and dead letters.
#[tokio::test(flavor = "multi_thread")]
async fn requests_about_hooks_that_exist_are_answered_as_the_description_says() {
    let endpoint = Endpoint::start().await;
    endpoint.usually(Behaviour::status(500));
    let mut setup =
        Setup { store: TestStore::Embedded, streams: brief(), wall_clock: true, ..Setup::default() };
    setup.hooks.hooks.breaker_failures = u32::MAX;
    let server = Harness::with(setup).await;
    let mut known = Known::default();
    for n in 0..100 {
        let retries = if n % 2 == 0 { json!([]) } else { json!([3_600_000]) };
        let hook = json!({
            "url": endpoint.url(&format!("/{n}")), "pattern": "orders.*", "retrySchedule": retries,
            "maxRetries": 1 + n % 2,
        });
        let created = server.post("/v1/shop/hooks").json(&hook).send().await.expect("an answer");
        let created: Value = created.json().await.expect("JSON");
        let id = created["id"].as_str().expect("an id").to_owned();
        if n < 2 { known.hooks.push(id) } else { known.disposable.push(id) }
    }
    let event = json!({ "type": "orders.paid", "ts": time_text(WallClock.now()) });
    let events = json!({ "events": vec![event; 50] });
    let accepted = server.post("/v1/shop/events").json(&events).send().await.expect("an answer");
    assert_eq!(accepted.status(), 200);
    for (hook, status) in known.hooks.iter().zip(["dead", "failed"]) {
        let path = format!("/v1/shop/hooks/{hook}");
        let tried = format!("{path}/deliveries?status={status}");
        eventually("all are tried", async || ids(&server, &tried, "deliveries").await.len() == 50).await;
        known.deliveries.extend(ids(&server, &format!("{path}/deliveries"), "deliveries").await);
        known.letters.extend(ids(&server, &format!("{path}/dead-letters"), "deadLetters").await);
    }
    assert_eq!((known.deliveries.len(), known.letters.len()), (100, 50));
    // Hooks that are made up must not call anybody.
    let silent = Duty::lasting("hook-dispatcher", std::future::pending);
    let server = server.restart_with(|setup| setup.duties.push(silent)).await;
    let mut description: Value = serde_json::from_str(tidings_api::openapi()).expect("JSON");
    assert!(description.as_object_mut().expect("an object").remove("security").is_some());
    known.put_into(&mut description);
    answers_as(&server, &description, r"^/subscriptions|^/e$|^/ingest$|/hooks|^/v1/\{project\}/events$")
        .await;
    // By name: among those that were made up, a list of them has many pages.
    let left = async |hooks: &[String]| {
        let mut left = 0;
        for hook in hooks {
            left += usize::from(server.get(&format!("/v1/shop/hooks/{hook}")).await.status() == 200);
        }
        left
    };
    assert_eq!(left(&known.hooks).await, known.hooks.len(), "they were there all the time");
    assert!(left(&known.disposable).await < known.disposable.len(), "some were removed");
    let letters = format!("/v1/shop/hooks/{}/dead-letters", known.hooks[0]);
    assert!(
        ids(&server, &letters, "deadLetters").await.len() < 50,
        "some were delivered again or cleaned up"
    );
}

async fn answers_as(server: &Harness, description: &Value, paths: &str) {
    let program = root().join("target/schemathesis/bin/st");
    assert!(program.exists(), "schemathesis is not installed; scripts/install-test-tools installs it");
    let examples = std::env::var("TIDINGS_SCHEMA_EXAMPLES").unwrap_or_else(|_| "15".to_owned());
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("openapi.json"), description.to_string()).expect("written");
    let output = Command::new(program)
        .args(["run", "openapi.json", "--url", &server.url("/"), "--max-examples", &examples])
        .args(["--seed", "1", "--workers", "1", "--request-timeout", "5", "--no-color"])
        .args(["--exclude-checks", UNCHECKED, "--include-path-regex", paths])
        .current_dir(folder.path())
        .output()
        .await
        .expect("schemathesis starts");
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{complained}");
}

/// Not checked: that all that fits the description is accepted and nothing else, since offsets, times and the like have
/// rules that a description cannot say; and credentials, which nobody needs here.
const UNCHECKED: &str =
    "positive_data_acceptance,negative_data_rejection,ignored_auth,object_level_authorization";
