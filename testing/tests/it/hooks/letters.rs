//! What is shown of deliveries that were attempted: their log, their statistics and dead letters, and what is done with those.

use std::time::Duration;

use serde_json::{Value, json};
use tidings_testing::{Behaviour, Endpoint, Harness, Setup, eventually};

use super::*;

/// A server in dev mode, which delivers to this machine, and an endpoint that answers 503.
async fn scene() -> (Harness, Endpoint) {
    let endpoint = Endpoint::start().await;
    endpoint.usually(Behaviour::Answer(503, Vec::new(), "busy".into()));
    (Harness::start().await, endpoint)
}

/// A subscription of `shop` to an endpoint, with so many attempts.
async fn subscribes(client: &Client<'_>, endpoint: &Endpoint, path: &str, retries: u32) -> String {
    let body = json!({
        "url": endpoint.url(path), "pattern": "a.*", "maxRetries": retries, "retrySchedule": [1000], "ordering": "subscription",
    });
    let told = client.post("/subscriptions/subscribe", body).await;
    assert_eq!(told.status, 200, "{told:?}");
    told.json()["subscriptionId"].as_str().expect("an id").to_owned()
}

fn shop(server: &Harness) -> Client<'_> {
    Client::nobody(server).for_tenant("shop")
}

async fn ingests(client: &Client<'_>, ids: &[&str]) {
    let events: Vec<_> =
        ids.iter().map(|id| json!({ "type": format!("a.{id}"), "ts": TS, "id": id })).collect();
    client.ingests(json!(events)).await;
}

async fn letters(client: &Client<'_>, id: &str, query: &str) -> Vec<Value> {
    let page = client.gets(&format!("/subscriptions/{id}/dead-letters{query}")).await;
    page["deadLetters"].as_array().expect("an array").clone()
}

/// Waits until a subscription has so many dead letters, and returns them.
async fn has_letters(client: &Client<'_>, id: &str, count: usize) -> Vec<Value> {
    eventually("the deliveries are given up", async || {
        letters(client, id, "?limit=1000").await.len() == count
    })
    .await;
    letters(client, id, "?limit=1000").await
}

async fn stats(client: &Client<'_>, id: &str) -> Value {
    client.gets(&format!("/subscriptions/status/{id}")).await["stats"].clone()
}

fn events_of(letters: &[Value]) -> Vec<&str> {
    letters.iter().map(|letter| letter["eventId"].as_str().expect("an id")).collect()
}

#[tokio::test]
async fn the_log_of_a_delivery_has_each_attempt_and_the_statistics_count_them() {
    let (server, endpoint) = scene().await;
    let shop = shop(&server);
    let id = subscribes(&shop, &endpoint, "/in", 5).await;
    ingests(&shop, &["e1"]).await;
    eventually("the first attempt has failed", async || stats(&shop, &id).await["failedDeliveries"] == 1)
        .await;
    let deliveries = shop.gets(&format!("/subscriptions/{id}/deliveries?status=failed")).await;
    let delivery = deliveries["deliveries"][0].clone();
    assert_eq!(
        [
            &delivery["eventId"],
            &delivery["type"],
            &delivery["status"],
            &delivery["attempts"],
            &delivery["lastError"]
        ],
        [&json!("e1"), &json!("a.e1"), &json!("failed"), &json!(1), &json!("HTTP 503: busy")]
    );
    assert_eq!(delivery.get("deliveredAt"), None);
    let expected = json!({
        "pendingDeliveries": 0, "failedDeliveries": 1, "deadLetters": 0, "successRate": 0.0, "totalDelivered": 0,
        "totalAttempts": 1,
    });
    assert_eq!(stats(&shop, &id).await, expected);
    endpoint.usually(Behaviour::Answer(200, Vec::new(), "{\"processed\":true}".into()));
    server.clock.advance(Duration::from_secs(1));
    eventually("it is delivered", async || stats(&shop, &id).await["totalDelivered"] == 1).await;
    let expected = json!({
        "pendingDeliveries": 0, "failedDeliveries": 0, "deadLetters": 0, "successRate": 0.5, "totalDelivered": 1,
        "totalAttempts": 2,
    });
    assert_eq!(stats(&shop, &id).await, expected);
    let delivery_id = delivery["id"].as_str().expect("an id");
    let logs = shop.gets(&format!("/subscriptions/deliveries/{delivery_id}/logs")).await;
    let logs = logs["logs"].as_array().expect("an array").clone();
    assert_eq!(logs.len(), 2);
    for (n, entry) in logs.iter().enumerate() {
        assert!(is_id(&entry["id"]) && entry["durationMs"].is_u64(), "{entry}");
        let expected = [json!(delivery_id), json!(id), json!(n + 1)];
        assert_eq!(
            [&entry["deliveryId"], &entry["subscriptionId"], &entry["attemptNumber"]].map(Value::clone),
            expected
        );
    }
    assert_ne!(logs[0]["id"], logs[1]["id"]);
    assert_eq!((&logs[0]["status"], &logs[0]["errorMessage"]), (&json!("failed"), &json!("HTTP 503: busy")));
    assert_eq!(
        (&logs[1]["status"], &logs[1]["workerResponse"]),
        (&json!("success"), &json!("{\"processed\":true}"))
    );
    assert_eq!((logs[0].get("workerResponse"), logs[1].get("errorMessage")), (None, None));
    assert_eq!(logs[1]["createdAt"], 1_763_294_401_123u64);
    let delivered = shop.gets(&format!("/subscriptions/{id}/deliveries?status=delivered")).await;
    assert_eq!(delivered["deliveries"][0]["deliveredAt"], 1_763_294_401_123u64);
    let attempts = shop.gets(&format!("/v1/shop/hooks/{id}/deliveries/{delivery_id}/attempts")).await;
    let attempts = attempts["attempts"].as_array().expect("an array").clone();
    assert_eq!(
        (&attempts[0]["number"], &attempts[0]["status"], &attempts[0]["error"]),
        (&json!(1), &json!("failed"), &json!("HTTP 503: busy"))
    );
    assert_eq!(
        (&attempts[1]["number"], &attempts[1]["response"]),
        (&json!(2), &json!("{\"processed\":true}"))
    );
    let shown = shop.gets(&format!("/v1/shop/hooks/{id}")).await;
    assert_eq!(
        shown["stats"],
        json!({ "pending": 0, "failed": 0, "deadLetters": 0, "delivered": 1, "attempts": 2 })
    );
    // Nobody else sees them.
    let other = Client::nobody(&server).for_tenant("other");
    assert_eq!(
        other.gets(&format!("/subscriptions/deliveries/{delivery_id}/logs")).await,
        json!({ "logs": [] })
    );
    let told = other.get(&format!("/v1/other/hooks/{id}/deliveries/{delivery_id}/attempts")).await;
    assert_eq!(told.status, 404);
}

#[tokio::test]
async fn dead_letters_are_listed_newest_first_with_their_events_and_paged() {
    let (server, endpoint) = scene().await;
    let shop = shop(&server);
    let id = subscribes(&shop, &endpoint, "/in", 1).await;
    for event in ["e1", "e2", "e3"] {
        ingests(&shop, &[event]).await;
        let count = event[1..].parse().expect("a number");
        has_letters(&shop, &id, count).await;
        server.clock.advance(Duration::from_millis(1));
    }
    let all = letters(&shop, &id, "").await;
    assert_eq!(events_of(&all), ["e3", "e2", "e1"]);
    let oldest = &all[2];
    assert!(is_id(&oldest["id"]) && is_id(&oldest["deliveryId"]), "{oldest}");
    assert_eq!(oldest["subscriptionId"], id);
    assert_eq!(
        (&oldest["reason"], &oldest["lastError"]),
        (&json!("max_retries_exceeded"), &json!("HTTP 503: busy"))
    );
    assert_eq!(oldest["createdAt"], 1_763_294_400_123u64);
    let payload: Value = serde_json::from_str(oldest["eventPayload"].as_str().expect("text")).expect("JSON");
    assert_eq!(payload, json!({ "type": "a.e1", "ts": TS, "id": "e1", "_namespace": "shop" }));
    assert_eq!(events_of(&letters(&shop, &id, "?limit=2").await), ["e3", "e2"]);
    let first = shop.gets(&format!("/subscriptions/{id}/dead-letters?limit=2")).await;
    let next = first["nextCursor"].as_str().expect("a cursor");
    let rest = shop.gets(&format!("/subscriptions/{id}/dead-letters?limit=2&cursor={next}")).await;
    assert_eq!(events_of(rest["deadLetters"].as_array().expect("an array")), ["e1"]);
    assert_eq!(rest.get("nextCursor"), None);
    let exact = shop.gets(&format!("/subscriptions/{id}/dead-letters?limit=3")).await;
    assert_eq!(exact.get("nextCursor"), None);
    let plain = shop.gets(&format!("/v1/shop/hooks/{id}/dead-letters?limit=1")).await;
    let letter = &plain["deadLetters"][0];
    assert_eq!(
        (&letter["eventId"], &letter["type"], &letter["event"]["_namespace"]),
        (&json!("e3"), &json!("a.e3"), &json!("shop"))
    );
    assert_eq!(plain["nextCursor"], letter["id"]);
    let dead = shop.gets(&format!("/subscriptions/{id}/deliveries?status=dead")).await;
    assert_eq!(dead["deliveries"].as_array().map(Vec::len), Some(3));
    let other = Client::nobody(&server).for_tenant("other");
    assert!(letters(&other, &id, "").await.is_empty());
}

#[tokio::test]
async fn a_dead_letter_is_delivered_again_as_a_new_delivery_and_only_once() {
    let (server, endpoint) = scene().await;
    let shop = shop(&server);
    let (id, other) =
        (subscribes(&shop, &endpoint, "/in", 1).await, subscribes(&shop, &endpoint, "/other", 1).await);
    ingests(&shop, &["e1"]).await;
    let letter = has_letters(&shop, &id, 1).await.remove(0);
    has_letters(&shop, &other, 1).await;
    endpoint.usually(Behaviour::status(200));
    let received = endpoint.received().len();
    let letter_id = letter["id"].as_str().expect("an id");
    let retry = async |client: &Client<'_>, id: &str| {
        client.post(&format!("/subscriptions/{id}/dead-letters/{letter_id}/retry"), json!({})).await
    };
    assert_eq!(retry(&shop, &other).await.status, 404, "it is not one of that subscription");
    assert_eq!(retry(&Client::nobody(&server).for_tenant("other"), &id).await.status, 404);
    let told = retry(&shop, &id).await;
    assert_eq!((told.status, &told.json()["ok"]), (200, &json!(true)));
    let delivery = told.json()["deliveryId"].clone();
    assert!(is_id(&delivery) && delivery != letter["deliveryId"], "{delivery}");
    let received = endpoint.receives(received + 1).await;
    let last = received.last().expect("one");
    assert_eq!((last.header("webhook-id"), &last.json()["id"]), (delivery.as_str(), &json!("e1")));
    eventually("it is delivered", async || stats(&shop, &id).await["totalDelivered"] == 1).await;
    let log = format!("/subscriptions/deliveries/{}/logs", delivery.as_str().expect("text"));
    let log = shop.gets(&log).await["logs"].clone();
    assert_eq!(
        (log.as_array().map(Vec::len), &log[0]["attemptNumber"]),
        (Some(1), &json!(1)),
        "counted anew"
    );
    assert!(letters(&shop, &id, "").await.is_empty());
    let again = retry(&shop, &id).await;
    assert_eq!((again.status, &again.json()["error"]), (404, &json!("Dead letter not found")));
    assert_eq!(letters(&shop, &other, "").await.len(), 1);
}

#[tokio::test]
async fn dead_letters_of_a_time_or_with_an_error_are_delivered_again_together() {
    let (server, endpoint) = scene().await;
    let shop = shop(&server);
    let id = subscribes(&shop, &endpoint, "/in", 1).await;
    for (n, status) in [503, 500, 503, 404].into_iter().enumerate() {
        endpoint.usually(Behaviour::Answer(status, Vec::new(), "busy".into()));
        ingests(&shop, &[&format!("e{n}")]).await;
        has_letters(&shop, &id, n + 1).await;
        server.clock.advance(Duration::from_secs(1));
    }
    endpoint.usually(Behaviour::status(200));
    let path = format!("/subscriptions/{id}/dead-letters/retry");
    let left = async || {
        letters(&shop, &id, "")
            .await
            .iter()
            .map(|one| one["eventId"].as_str().expect("text").to_owned())
            .collect::<Vec<_>>()
    };
    for (filter, retried, remaining) in [
        (json!({ "error": "HTTP 418" }), 0, vec!["e3", "e2", "e1", "e0"]),
        (
            json!({ "from": "2025-11-16T12:00:01.123Z", "to": "2025-11-16T12:00:02.123Z", "error": "503" }),
            0,
            vec!["e3", "e2", "e1", "e0"],
        ),
        (json!({ "from": "2025-11-16T12:00:01.123Z", "error": "503" }), 1, vec!["e3", "e1", "e0"]),
        (json!({ "to": "2025-11-16T13:00:01.123+01:00" }), 1, vec!["e3", "e1"]),
    ] {
        let told = shop.post(&path, filter.clone()).await;
        assert_eq!((told.status, told.json()), (200, json!({ "ok": true, "retried": retried })), "{filter}");
        assert_eq!(left().await, remaining, "{filter}");
    }
    let plain = shop.post(&format!("/v1/shop/hooks/{id}/dead-letters/retry"), json!({})).await;
    assert_eq!((plain.status, plain.json()), (202, json!({ "retried": 2 })));
    eventually("all are delivered", async || stats(&shop, &id).await["totalDelivered"] == 4).await;
    assert_eq!(stats(&shop, &id).await["deadLetters"], 0);
}

#[tokio::test]
async fn a_page_of_dead_letters_ends_early_if_their_events_are_large() {
    let mut setup = Setup::default();
    setup.hooks.hooks.breaker_failures = u32::MAX;
    let (server, endpoint) = (Harness::with(setup).await, Endpoint::start().await);
    endpoint.usually(Behaviour::status(503));
    let shop = shop(&server);
    let body = json!({ "url": endpoint.url("/"), "pattern": "a", "maxRetries": 1, "concurrency": 256 });
    let told = shop.post("/subscriptions/subscribe", body).await;
    let id = told.json()["subscriptionId"].as_str().expect("an id").to_owned();
    let event = json!({ "type": "a", "ts": TS, "x": "y".repeat(10_000) });
    for _ in 0..5 {
        shop.ingests(json!(vec![event.clone(); 100])).await;
    }
    eventually("all are given up", async || stats(&shop, &id).await["deadLetters"] == 500).await;
    let page = shop.gets(&format!("/subscriptions/{id}/dead-letters?limit=1000")).await;
    let first = page["deadLetters"].as_array().expect("an array").len();
    assert!((100..450).contains(&first), "{first} of 500, each with 10 KB");
    let next = page["nextCursor"].as_str().expect("there are more");
    let rest = shop.gets(&format!("/subscriptions/{id}/dead-letters?limit=1000&cursor={next}")).await;
    assert_eq!(rest["deadLetters"].as_array().expect("an array").len() + first, 500);
    assert_eq!(rest.get("nextCursor"), None);
}

#[tokio::test]
async fn clean_up_removes_what_is_finished_and_old_in_the_namespace_only() {
    let (server, endpoint) = scene().await;
    let (shop, other) = (shop(&server), Client::nobody(&server).for_tenant("other"));
    let (id, of_other) =
        (subscribes(&shop, &endpoint, "/in", 1).await, subscribes(&other, &endpoint, "/other", 1).await);
    for client in [&shop, &other] {
        ingests(client, &["e1"]).await;
    }
    has_letters(&shop, &id, 1).await;
    has_letters(&other, &of_other, 1).await;
    endpoint.usually(Behaviour::status(200));
    ingests(&shop, &["e2"]).await;
    eventually("it is delivered", async || stats(&shop, &id).await["totalDelivered"] == 1).await;
    let finished = shop.gets(&format!("/subscriptions/{id}/deliveries")).await["deliveries"].clone();
    let log = format!("/subscriptions/deliveries/{}/logs", finished[0]["id"].as_str().expect("an id"));
    assert_eq!(shop.gets(&log).await["logs"].as_array().map(Vec::len), Some(1));
    let clean = async |client: &Client<'_>, before: u64| {
        let told = client.post("/subscriptions/cleanup", json!({ "before": before })).await;
        assert_eq!(told.status, 200, "{told:?}");
        told.json()["deleted"].clone()
    };
    let now = 1_763_294_400_123u64;
    let nothing = json!({ "deliveries": 0, "logs": 0, "deadLetters": 0, "batchDeliveries": 0 });
    assert_eq!(clean(&shop, now).await, nothing, "nothing was created before");
    let all = json!({ "deliveries": 2, "logs": 2, "deadLetters": 1, "batchDeliveries": 0 });
    assert_eq!(clean(&shop, now + 1).await, all);
    assert!(letters(&shop, &id, "").await.is_empty());
    assert_eq!(shop.gets(&format!("/subscriptions/{id}/deliveries")).await["deliveries"], json!([]));
    assert_eq!(shop.gets(&log).await, json!({ "logs": [] }));
    let after = stats(&shop, &id).await;
    assert_eq!(
        (&after["totalDelivered"], &after["totalAttempts"], &after["deadLetters"]),
        (&json!(1), &json!(2), &json!(0))
    );
    assert_eq!(letters(&other, &of_other, "").await.len(), 1);
    let everywhere = clean(&Client::nobody(&server), now + 1).await;
    assert_eq!(everywhere["deadLetters"], 1, "an admin without a tenant cleans up in all namespaces");
}

#[tokio::test]
async fn a_removed_subscription_tells_what_went_with_it() {
    let (server, endpoint) = scene().await;
    let shop = shop(&server);
    let id = subscribes(&shop, &endpoint, "/in", 1).await;
    ingests(&shop, &["e1", "e2"]).await;
    has_letters(&shop, &id, 2).await;
    let told = answered(shop.request("DELETE", &format!("/subscriptions/{id}"))).await;
    let deleted = json!({ "deliveries": 2, "logs": 2, "deadLetters": 2, "batchDeliveries": 0 });
    assert_eq!((told.status, told.json()), (200, json!({ "ok": true, "deleted": deleted })));
    assert!(letters(&shop, &id, "").await.is_empty());
}
