//! Deliveries, their log, dead letters, replays and clean-up on `/subscriptions`.

use std::time::Duration;

use serde_json::{Value, json};
use tidings_testing::eventually;

use super::*;

#[tokio::test]
async fn deliveries_are_listed_oldest_first_and_paged() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let id = acme.subscribes("w", "a.*").await;
    for n in 0..7 {
        acme.ingests(json!([{ "type": format!("a.{n}"), "ts": TS, "id": format!("e{n}") }, event("b")]))
            .await;
        server.clock.advance(Duration::from_millis(1));
    }
    let path = format!("/subscriptions/{id}/deliveries");
    let whole = acme.gets(&path).await;
    let deliveries = whole["deliveries"].as_array().expect("an array");
    assert_eq!((deliveries.len(), whole.get("nextCursor")), (7, None));
    for (n, delivery) in deliveries.iter().enumerate() {
        let fields: Vec<_> = delivery.as_object().expect("an object").keys().map(String::as_str).collect();
        for field in ["id", "eventId", "type", "status", "attempts", "position", "createdAt"] {
            assert!(fields.contains(&field), "{field} in {delivery}");
        }
        assert!(is_id(&delivery["id"]), "{delivery}");
        assert_eq!(
            (&delivery["eventId"], &delivery["type"]),
            (&json!(format!("e{n}")), &json!(format!("a.{n}")))
        );
        assert_eq!(delivery["createdAt"], 1_763_294_400_123u64 + n as u64);
    }
    for pair in deliveries.windows(2) {
        assert!(pair[0]["position"].as_str() < pair[1]["position"].as_str(), "positions grow");
    }
    let (mut cursor, mut paged) = (String::new(), Vec::new());
    loop {
        let page = acme.gets(&format!("{path}?limit=3{cursor}")).await;
        paged.extend(page["deliveries"].as_array().expect("an array").clone());
        let Some(next) = page.get("nextCursor") else { break };
        cursor = format!("&cursor={}", next.as_str().expect("text"));
    }
    assert_eq!(ids(&json!(paged)), ids(&whole["deliveries"]));
    for bad in ["limit=0", "limit=1001", "status=lost", "status=", "cursor=x"] {
        let told = acme.get(&format!("{path}?{bad}")).await;
        assert_eq!((told.status, &told.json()["ok"]), (400, &json!(false)), "{bad}");
    }
    assert_eq!(acme.gets(&format!("{path}?status=delivered")).await["deliveries"], json!([]));
    for unknown in [NOBODY, "ABC"] {
        let told = acme.get(&format!("/subscriptions/{unknown}/deliveries")).await;
        assert_eq!((told.status, &told.json()["error"]), (404, &json!("Subscription not found")));
    }
}

#[tokio::test]
async fn unknown_deliveries_and_subscriptions_have_empty_logs_and_no_dead_letters() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let id = acme.subscribes("w", "a.*").await;
    for unknown in [NOBODY, "ABC", &id] {
        assert_eq!(
            acme.gets(&format!("/subscriptions/deliveries/{unknown}/logs")).await,
            json!({ "logs": [] })
        );
        let letters = acme.gets(&format!("/subscriptions/{unknown}/dead-letters")).await;
        assert_eq!(letters, json!({ "deadLetters": [] }));
    }
    for bad in ["limit=0", "limit=1001", "cursor=x"] {
        assert_eq!(acme.get(&format!("/subscriptions/{id}/dead-letters?{bad}")).await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn a_dead_letter_that_is_unknown_is_404() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let id = acme.subscribes("w", "a.*").await;
    for (subscription, letter, error) in [
        (id.as_str(), NOBODY, "Dead letter not found"),
        (&id, "ABC", "Dead letter not found"),
        (NOBODY, NOBODY, "Subscription not found"),
        ("ABC", NOBODY, "Subscription not found"),
    ] {
        let told =
            acme.post(&format!("/subscriptions/{subscription}/dead-letters/{letter}/retry"), json!({})).await;
        assert_eq!((told.status, told.json()), (404, json!({ "ok": false, "error": error })));
    }
    let path = format!("/subscriptions/{id}/dead-letters/retry");
    let none = json!({ "ok": true, "retried": 0 });
    assert_eq!(answered(acme.request("POST", &path)).await.json(), none, "a body is optional");
    let filter = json!({ "from": TS, "to": "2025-11-17T00:00:00+01:00", "error": "HTTP 5" });
    assert_eq!(acme.post(&path, filter).await.json(), none);
    for bad in [json!({ "from": 7 }), json!({ "to": "later" }), json!({ "error": [] })] {
        assert_eq!(acme.post(&path, bad.clone()).await.status, 400, "{bad}");
    }
    let unknown = acme.post(&format!("/subscriptions/{NOBODY}/dead-letters/retry"), json!({})).await;
    assert_eq!(unknown.status, 404);
}

/// How many deliveries of a subscription there are.
async fn count(client: &Client<'_>, id: &str) -> usize {
    let page = client.gets(&format!("/subscriptions/{id}/deliveries?limit=1000")).await;
    page["deliveries"].as_array().expect("an array").len()
}

#[tokio::test]
async fn events_of_the_past_are_replayed_from_a_time_or_after_a_position() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let early = acme.subscribes("early", "a.*").await;
    for n in 0..5 {
        acme.ingests(json!([event(&format!("a.{n}")), event("b")])).await;
        server.clock.advance(Duration::from_secs(1));
    }
    let late = acme.subscribes("late", "a.*").await;
    let replays = async |body: Value| acme.post(&format!("/subscriptions/{late}/replay"), body).await;
    let page = acme.gets(&format!("/subscriptions/{early}/deliveries")).await;
    let position = |n: usize| page["deliveries"][n]["position"].clone();
    let mut expected = 0;
    for (body, events) in [
        (json!({ "from": "2025-11-16T12:00:00.123Z" }), 5),
        (json!({ "from": "2025-11-16T12:00:02.123Z" }), 3),
        (json!({ "from": "2025-11-16T12:00:02.124Z" }), 2),
        (json!({ "from": "1970-01-01T00:00:00Z", "to": "2025-11-16T12:00:01.123Z" }), 2),
        (json!({ "from": position(1) }), 3),
        (json!({ "from": position(1), "to": position(2) }), 1),
        (json!({ "from": position(4) }), 0),
        (json!({ "from": "2030-01-01T00:00:00Z" }), 0),
    ] {
        let told = replays(body.clone()).await;
        assert_eq!((told.status, told.json()), (202, json!({ "ok": true, "events": events })), "{body}");
        expected += events as usize;
    }
    eventually("all are queued", async || count(&acme, &late).await == expected).await;
    for bad in [
        json!({}),
        json!({ "from": null }),
        json!({ "from": 7 }),
        json!({ "from": "now" }),
        json!({ "from": TS, "to": "x" }),
    ] {
        assert_eq!(replays(bad.clone()).await.status, 400, "{bad}");
    }
    let unknown = acme.post(&format!("/subscriptions/{NOBODY}/replay"), json!({ "from": TS })).await;
    assert_eq!((unknown.status, &unknown.json()["error"]), (404, &json!("Subscription not found")));
}

#[tokio::test]
async fn clean_up_answers_what_it_removed_and_needs_a_time() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    acme.subscribes("w", "a.*").await;
    let deleted = json!({ "deliveries": 0, "logs": 0, "deadLetters": 0, "batchDeliveries": 0 });
    let told = acme.post("/subscriptions/cleanup", json!({ "before": 1_763_294_400_123u64 })).await;
    assert_eq!((told.status, told.json()), (200, json!({ "ok": true, "deleted": deleted })));
    for bad in [json!({}), json!({ "before": "2025" }), json!({ "before": -1 }), json!({ "before": 1.5 })] {
        let told = acme.post("/subscriptions/cleanup", bad.clone()).await;
        assert_eq!((told.status, &told.json()["ok"]), (400, &json!(false)), "{bad}");
    }
}
