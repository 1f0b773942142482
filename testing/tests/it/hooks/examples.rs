//! The requests that the seed prints, as they are printed, and what all answers have in common.

use serde_json::{Value, json};
use tidings_auth::Scope;

use super::claims::routes;
use super::*;

#[tokio::test]
async fn the_first_request_of_the_seed_works_as_it_is_printed() {
    let server = closed().await;
    let admin = Client::admin(&server);
    let text = r#"{
    "workerId": "my-worker",
    "pattern": "webhook.github.*",
    "rpcMethod": "handleGitHubEvent",
    "maxRetries": 5,
    "timeoutMs": 30000
  }"#;
    let request =
        admin.request("POST", "/subscriptions/subscribe").header("content-type", "application/json");
    let told = answered(request.body(text)).await;
    let answer = told.json();
    assert_eq!((told.status, &answer["ok"]), (200, &json!(true)), "{told:?}");
    assert!(is_id(&answer["subscriptionId"]), "{answer}");
    assert_eq!((&answer["shard"], &answer["namespace"]), (&json!("webhook"), &Value::Null));
    assert!(answer.as_object().is_some_and(|answer| answer.contains_key("namespace")), "null, not left out");
    let id = answer["subscriptionId"].as_str().expect("text");
    let shown = admin.gets(&format!("/subscriptions/{id}")).await;
    let shown = &shown["subscription"];
    assert_eq!((&shown["maxRetries"], &shown["timeoutMs"]), (&json!(5), &json!(30_000)));
    assert_eq!((&shown["workerId"], &shown["rpcMethod"]), (&json!("my-worker"), &json!("handleGitHubEvent")));
    let status = admin.gets(&format!("/subscriptions/status/{id}")).await;
    assert_eq!(status["subscription"], *shown, "the status shows it as `get` does");
}

#[tokio::test]
async fn the_tenants_request_of_the_seed_works_as_it_is_printed_whatever_its_content_type() {
    let server = closed().await;
    let acme = Client::of(&server, "acme").for_tenant("acme");
    let text = r#"{
    "workerId": "acme-handler",
    "pattern": "webhook.stripe.*",
    "rpcMethod": "handleStripe"
  }"#;
    // curl sends a form's content type with `-d`, unless it is told otherwise.
    for content_type in [None, Some("application/x-www-form-urlencoded"), Some("text/plain; charset=x")] {
        let request = acme.request("POST", "/subscriptions/subscribe").body(text);
        let request = match content_type {
            Some(content_type) => request.header("content-type", content_type),
            None => request,
        };
        let told = answered(request).await;
        let answer = told.json();
        assert_eq!(told.status, 200, "{content_type:?}: {told:?}");
        assert_eq!((&answer["shard"], &answer["namespace"]), (&json!("acme:webhook"), &json!("acme")));
        let id = answer["subscriptionId"].as_str().expect("an id");
        let removed = answered(acme.request("DELETE", &format!("/subscriptions/{id}"))).await;
        assert_eq!(removed.status, 200, "{removed:?}");
    }
}

#[tokio::test]
async fn every_answer_of_subscriptions_is_json_and_every_error_has_the_form_of_the_seed() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let id = acme.subscribes("w", "a.*").await;
    let clients = [
        acme.clone(),
        Client::nobody(&server),
        Client::with(&server, plain_token(&server, "acme", Scope::Read)),
        Client::of(&server, "beta"),
        acme.clone().for_tenant("beta"),
    ];
    let (mut good, mut statuses) = (0, std::collections::BTreeSet::new());
    // Its own client comes last, because its last request removes the subscription.
    for client in clients.iter().rev() {
        for (name, _, request) in routes(client, &id) {
            if !name.contains(" /subscriptions") {
                continue;
            }
            let told = answered(request).await;
            assert_eq!(told.header("content-type"), Some("application/json"), "{name}: {told:?}");
            let answer = told.json();
            if told.status == 200 || told.status == 202 {
                good += 1;
                continue;
            }
            statuses.insert(told.status);
            if name.contains("/shards") {
                continue;
            }
            let fields: Vec<_> = answer.as_object().expect("an object").keys().collect();
            assert_eq!((&answer["ok"], fields.len()), (&json!(false), 2), "{name}: {answer}");
            assert!(answer["error"].as_str().is_some_and(|error| !error.is_empty()), "{name}: {answer}");
        }
    }
    assert!(good > 20 && statuses.is_superset(&[401, 403, 404].into()), "{good} {statuses:?}");
}

#[tokio::test]
async fn the_fixed_words_of_paths_are_never_taken_for_an_id() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    for word in ["list", "match", "subscribe", "unsubscribe", "reactivate", "cleanup"] {
        for method in ["PUT", "DELETE"] {
            let told = answered(acme.request(method, &format!("/subscriptions/{word}")).body("{}")).await;
            assert_eq!(
                (told.status, &told.json()["error"]),
                (405, &json!("Method not allowed")),
                "{method} {word}"
            );
        }
    }
    for (method, path) in [
        ("GET", "status"),
        ("GET", "deliveries"),
        ("PUT", "status"),
        ("DELETE", "deliveries"),
        ("GET", "List"),
    ] {
        let told = answered(acme.request(method, &format!("/subscriptions/{path}")).body("{}")).await;
        assert_eq!(told.json()["error"], "Unknown subscription endpoint", "{method} {path}: {told:?}");
    }
    for (method, body) in [("GET", ""), ("PUT", "{}"), ("DELETE", "")] {
        let told = answered(acme.request(method, &format!("/subscriptions/{NOBODY}")).body(body)).await;
        let expected = json!({ "ok": false, "error": "Subscription not found" });
        assert_eq!((told.status, told.json()), (404, expected), "{method}");
    }
}
