//! Secrets are shown once: when a subscription is created, and when its secret is replaced.

use serde_json::{Value, json};

use super::*;

const OF_ENDPOINT: &str = "Bearer known-to-the-endpoint";

/// Everything that can be read of a hook, and what changes of it answer.
async fn all_answers(client: &Client<'_>, id: &str) -> String {
    let mut all = String::new();
    for path in [
        format!("/subscriptions/{id}"),
        format!("/subscriptions/status/{id}"),
        "/subscriptions/list".to_owned(),
        "/subscriptions/list?shard=default".to_owned(),
        "/subscriptions/match?eventType=a.1".to_owned(),
        format!("/subscriptions/{id}/deliveries"),
        format!("/subscriptions/{id}/dead-letters"),
        "/v1/acme/hooks".to_owned(),
        "/v1/acme/hooks/match?type=a.1".to_owned(),
        format!("/v1/acme/hooks/{id}"),
        format!("/v1/acme/hooks/{id}/deliveries"),
    ] {
        all.push_str(&client.gets(&path).await.to_string());
    }
    let reference = json!({ "subscriptionId": id });
    for (method, path, body) in [
        ("PUT", format!("/subscriptions/{id}"), json!({ "maxRetries": 3 })),
        ("POST", "/subscriptions/unsubscribe".to_owned(), reference.clone()),
        ("POST", "/subscriptions/reactivate".to_owned(), reference),
        ("PATCH", format!("/v1/acme/hooks/{id}"), json!({ "maxRetries": 4 })),
        ("PATCH", format!("/v1/acme/hooks/{id}"), json!({ "headers": { "host": OF_ENDPOINT } })),
        ("PUT", format!("/subscriptions/{id}"), json!({ "headers": { "x-a": format!("{OF_ENDPOINT}\n") } })),
        ("POST", format!("/v1/acme/hooks/{id}/test"), json!({})),
    ] {
        all.push_str(&client.send(method, &path, body).await.text);
    }
    all
}

fn secret(answer: &Value) -> String {
    let secret = answer["secret"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert!(secret.starts_with("whsec_"), "{secret}");
    secret["whsec_".len()..].to_owned()
}

#[tokio::test]
async fn a_secret_is_shown_when_it_is_made_and_never_again() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let body = json!({ "url": "https://example.com/", "pattern": "a.*", "headers": { "authorization": OF_ENDPOINT } });
    let created = acme.post("/subscriptions/subscribe", body.clone()).await;
    let id = created.json()["subscriptionId"].as_str().expect("an id").to_owned();
    acme.ingests(json!([event("a.1")])).await;
    let mut secrets = vec![secret(&created.json())];
    let duplicate = acme.post("/subscriptions/subscribe", body).await;
    assert_eq!(duplicate.status, 400);
    for path in [format!("/subscriptions/{id}/rotate-secret"), format!("/v1/acme/hooks/{id}/rotate-secret")] {
        let rotated = acme.post(&path, json!({})).await;
        assert_eq!((rotated.status, rotated.header("cache-control")), (200, Some("no-store")));
        secrets.push(secret(&rotated.json()));
    }
    let all = all_answers(&acme, &id).await + &duplicate.text;
    for (n, secret) in secrets.iter().enumerate() {
        assert!(!secrets[..n].contains(secret), "each is new");
        assert!(!all.contains(secret.as_str()), "secret {n} in {all}");
    }
    assert!(!all.contains("whsec_") && !all.contains("known-to-the-endpoint"), "{all}");
    assert!(all.contains("authorization"), "the name of the header is shown");
}

#[tokio::test]
async fn a_secret_is_replaced_with_an_overlap_of_up_to_30_days() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let id = acme.subscribes("w", "a.*").await;
    let path = format!("/subscriptions/{id}/rotate-secret");
    let plain = answered(acme.request("POST", &path)).await;
    assert_eq!((plain.status, &plain.json()["ok"]), (200, &json!(true)), "a body is optional");
    for seconds in [json!(0), json!(86_400), json!(2_592_000), json!(null)] {
        assert_eq!(acme.post(&path, json!({ "overlapSeconds": seconds })).await.status, 200, "{seconds}");
    }
    for seconds in [json!(-1), json!(2_592_001), json!("1"), json!(u64::MAX), json!(0.5)] {
        assert_eq!(acme.post(&path, json!({ "overlapSeconds": seconds })).await.status, 400, "{seconds}");
    }
    let unknown = acme.post(&format!("/subscriptions/{NOBODY}/rotate-secret"), json!({})).await;
    assert_eq!((unknown.status, &unknown.json()["error"]), (404, &json!("Subscription not found")));
}
