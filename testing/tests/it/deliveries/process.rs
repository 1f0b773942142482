//! What only a real process shows: its environment, its log.

use tidings_testing::http::Client;
use tidings_testing::{Launch, Process, eventually};

use super::*;

#[tokio::test]
async fn proxies_of_the_environment_are_ignored_and_no_secret_is_logged_or_traced() {
    let (endpoint, proxy) = (Endpoint::start().await, Endpoint::start().await);
    let (through, collector) = (proxy.url(""), answering(200, "{}").await);
    let names = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
    let variables = names.map(|name| (name, through.as_str()));
    let collects = collector.url("");
    let arguments = ["--dev", "--listen", "127.0.0.1:0", "--log", "trace", "--otlp-endpoint", &collects];
    let server = Process::launch(Launch::new(&arguments, &variables)).await;
    let client = Client::new();
    let post = async |path: &str, body: Value| -> Value {
        let answer = client.post(server.url(path)).json(&body).send().await.expect("an answer");
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        answer.json().await.expect("JSON")
    };
    endpoint.then(Behaviour::status(500));
    let hook = json!({
        "url": endpoint.url("/in"), "pattern": "a.*", "retrySchedule": [1],
        "headers": { "authorization": "Bearer known-to-the-endpoint" },
    });
    let created = post("/v1/shop/hooks", hook).await;
    let id = created["id"].as_str().expect("an id");
    let rotated = post(&format!("/v1/shop/hooks/{id}/rotate-secret"), json!({})).await;
    let now = time_text(tidings_engine::WallClock.now());
    post("/v1/shop/events", json!({ "events": [{ "type": "a.b", "ts": now }] })).await;
    let received = endpoint.receives(2).await;
    assert_eq!(received[0].header("authorization"), Some("Bearer known-to-the-endpoint"));
    let delivered = async || {
        let shown = client.get(server.url(&format!("/v1/shop/hooks/{id}"))).send().await.expect("an answer");
        shown.json::<Value>().await.expect("JSON")["stats"]["delivered"] == 1
    };
    eventually("it is delivered", delivered).await;
    assert_eq!((proxy.connections(), proxy.received().len()), (0, 0));
    let log = server.log();
    assert!(log.contains("answered") && log.contains("/rotate-secret"), "requests are logged: {log}");
    // What is left of traces is sent at the end.
    assert_eq!(server.terminate().await.code(), Some(0));
    let bodies = collector.received().into_iter().map(|one| String::from_utf8_lossy(&one.body).into_owned());
    let traces: String = bodies.collect();
    assert!(traces.contains("/rotate-secret"), "requests are traced: {traces}");
    let signature = received[0].header("webhook-signature").expect("a signature");
    let secrets = [&created["secret"], &rotated["secret"]].map(|secret| secret.as_str().expect("a secret"));
    let mut hidden = vec!["whsec_", "known-to-the-endpoint"];
    hidden.extend(secrets.map(|secret| &secret["whsec_".len()..]));
    hidden.extend(signature.split([' ', ',']).filter(|part| *part != "v1"));
    for hidden in hidden {
        assert!(!log.contains(hidden) && !traces.contains(hidden), "{hidden} in {log} or {traces}");
    }
}
