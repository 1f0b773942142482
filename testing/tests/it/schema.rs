//! `/openapi.json`: it says what is served, and what is served does as it says.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tidings_api::MetricsAccess;
use tidings_server::ObserveOptions;
use tidings_streams::Options;
use tidings_testing::http::Method;
use tidings_testing::{Harness, Setup};
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

/// Requests that schemathesis makes up from the description find no answer of 5xx and none that is not described.
#[tokio::test(flavor = "multi_thread")]
async fn requests_made_from_the_description_are_answered_as_it_says() {
    let streams = Options {
        long_poll_timeout: Duration::from_millis(20),
        sse_duration: Duration::from_millis(20),
        ..Options::default()
    };
    let observe = ObserveOptions { metrics_access: MetricsAccess::Open, ..ObserveOptions::default() };
    let server = Harness::with(Setup { streams, observe, wall_clock: true, ..Setup::default() }).await;
    for path in ["/v1/stream/orders", "/v1/shop/stream/orders"] {
        let json = server.put(path).header("content-type", "application/json");
        assert_eq!(json.send().await.expect("an answer").status(), 201);
    }
    // A credential that is made up is refused, whatever else a request says; so once without any.
    let described: Value = serde_json::from_str(tidings_api::openapi()).expect("JSON");
    let mut open = described.clone();
    assert!(open.as_object_mut().expect("an object").remove("security").is_some());
    for description in [open, described] {
        answers_as(&server, &description).await;
    }
}

async fn answers_as(server: &Harness, description: &Value) {
    let program = root().join("target/schemathesis/bin/st");
    assert!(program.exists(), "schemathesis is not installed; scripts/install-test-tools installs it");
    let examples = std::env::var("TIDINGS_SCHEMA_EXAMPLES").unwrap_or_else(|_| "15".to_owned());
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("openapi.json"), description.to_string()).expect("written");
    let output = Command::new(program)
        .args(["run", "openapi.json", "--url", &server.url("/"), "--max-examples", &examples])
        .args(["--seed", "1", "--workers", "1", "--request-timeout", "5", "--no-color"])
        .args(["--exclude-checks", UNCHECKED])
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
