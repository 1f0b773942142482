//! Webhooks: what an endpoint is told, and what follows from its answers.

use tidings_egress::AllowList;
use tidings_testing::{Endpoint, Setup, until};

use super::*;

/// A time as milliseconds since 1970.
fn millis(time: &str) -> f64 {
    let time: jiff::Timestamp = time.parse().expect("a time");
    time.as_millisecond() as f64
}

async fn scene() -> (Harness, Root, Endpoint) {
    let server = Harness::start().await;
    let root = Root::of(&server);
    (server, root, Endpoint::start().await)
}

#[tokio::test]
async fn an_append_wakes_the_endpoint_once_until_it_is_done() {
    let (_server, root, endpoint) = scene().await;
    root.stream("events/a").await;
    root.append("events/a", json!(1)).await;
    let created = root.subscribe("s", webhook(endpoint.url("/hook"))).await;
    assert_eq!(created["streams"][0]["link_type"], "glob");
    root.append("events/a", json!(2)).await;
    let received = endpoint.receives(1).await;
    let told = received[0].json();
    assert_eq!((text(&told, "subscription_id"), &told["generation"]), ("s", &json!(1)));
    assert_eq!(told["callback_url"], json!(format!("{}/__ds/subscriptions/s/callback", root.base)));
    let stream = &told["streams"][0];
    assert_eq!((text(stream, "path"), &stream["has_pending"]), ("events/a", &json!(true)));
    assert_eq!(stream["acked_offset"], created["streams"][0]["acked_offset"]);
    let signature = received[0].header("webhook-signature").expect("it is signed");
    let keys = root.get("__ds/jwks.json").await;
    assert!(signature.contains(&format!(",kid={},ed25519=", text(&keys["keys"][0], "kid"))), "{signature}");
    // More during the wake is for the next one.
    root.append("events/a", json!(3)).await;
    let token = root.with(text(&told, "callback_token"));
    let first = token.post("s", "callback", report(&told, true)).await;
    assert_eq!(first, (200, json!({ "ok": true, "next_wake": true })));
    let next = endpoint.receives(2).await[1].json();
    assert_eq!(next["generation"], 2);
    assert_eq!(next["streams"][0]["acked_offset"], stream["tail_offset"]);
    let stale = token.post("s", "callback", report(&told, true)).await;
    assert_eq!(code(&stale), (409, "FENCED"));
    let token = root.with(text(&next, "callback_token"));
    assert_eq!(
        token.post("s", "callback", report(&next, true)).await,
        (200, json!({ "ok": true, "next_wake": false }))
    );
    assert_eq!(endpoint.received().len(), 2);
}

#[tokio::test]
async fn an_endpoint_that_is_done_at_once_acknowledges_what_it_was_told() {
    let (_server, root, endpoint) = scene().await;
    endpoint.usually(done());
    root.subscribe("s", webhook(endpoint.url("/"))).await;
    root.stream("events/a").await;
    for n in 1..=3 {
        root.append("events/a", json!(n)).await;
        let tail = endpoint.receives(n).await[n - 1].json()["streams"][0]["tail_offset"].clone();
        root.shows("s", "it is acknowledged", |shown| shown["streams"][0]["acked_offset"] == tail).await;
    }
    let generations: Vec<_> =
        endpoint.received().iter().map(|one| one.json()["generation"].clone()).collect();
    assert_eq!(generations, [json!(1), json!(2), json!(3)]);
}

#[tokio::test]
async fn a_webhook_that_fails_is_repeated_after_one_second_to_a_minute() {
    let (server, root, endpoint) = scene().await;
    endpoint.usually(Behaviour::status(503));
    root.subscribe("s", webhook(endpoint.url("/"))).await;
    root.stream("events/a").await;
    root.append("events/a", json!(1)).await;
    for (failures, seconds) in (1..).zip([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]) {
        let shown = root.shows("s", "an attempt has failed", |shown| shown["failures"] == failures).await;
        assert_eq!(
            (text(&shown, "status"), text(&shown, "last_error")),
            ("failed", "the endpoint answered 503 Service Unavailable")
        );
        let now = server.clock.now().as_millis() as f64;
        let at = millis(text(&shown, "next_attempt_at")) - now;
        let range = seconds * 800.0 - 1.0..=seconds * 1200.0 + 1.0;
        assert!(range.contains(&at), "{at} ms after {failures} failures");
        assert_eq!(endpoint.received().len(), failures);
        server.clock.advance(Duration::from_secs_f64(seconds * 1.2 + 0.01));
    }
    endpoint.usually(done());
    server.clock.advance(SECOND * 73);
    let shown = root.shows("s", "it works again", |shown| shown["status"] == "active").await;
    assert_eq!((&shown["failures"], &shown["next_attempt_at"]), (&json!(0), &Value::Null));
}

#[tokio::test]
async fn a_subscription_that_fails_too_often_is_a_dead_letter_until_it_is_retried() {
    let (server, root, endpoint) = scene().await;
    endpoint.usually(Behaviour::status(500));
    let mut wanted = webhook(endpoint.url("/"));
    wanted["max_attempts"] = json!(2);
    root.subscribe("s", wanted).await;
    root.stream("events/a").await;
    root.append("events/a", json!(1)).await;
    root.shows("s", "an attempt has failed", |shown| shown["failures"] == 1).await;
    server.clock.advance(SECOND * 2);
    let shown = root.shows("s", "it is given up", |shown| !shown["dead_letter"].is_null()).await;
    assert_eq!((&shown["status"], &shown["dead_letter"]["attempts"]), (&json!("failed"), &json!(2)));
    assert_eq!(shown["next_attempt_at"], Value::Null);
    let listed = root.get("__ds/subscriptions").await;
    assert_eq!(listed["subscriptions"][0]["dead_letter"], shown["dead_letter"]);
    server.clock.advance(SECOND * 3600);
    root.append("events/a", json!(2)).await;
    assert_eq!(endpoint.received().len(), 2, "nothing is attempted");
    assert_eq!(server.metric("tidings_subscription_dead_letters_total"), Some(1.0));
    endpoint.usually(done());
    assert_eq!(root.post("s", "retry", json!({})).await.0, 204);
    endpoint.receives(3).await;
    root.shows("s", "it works again", |shown| shown["dead_letter"].is_null() && shown["failures"] == 0).await;
}

#[tokio::test]
async fn a_lease_that_ends_fences_the_endpoint_off_and_wakes_it_anew() {
    let (server, root, endpoint) = scene().await;
    root.subscribe("s", webhook(endpoint.url("/"))).await;
    root.stream("events/a").await;
    root.append("events/a", json!(1)).await;
    let first = endpoint.receives(1).await[0].json();
    let token = root.with(text(&first, "callback_token"));
    let heartbeat = json!({ "wake_id": first["wake_id"], "generation": 1 });
    server.clock.advance(SECOND * 29);
    assert_eq!(token.post("s", "callback", heartbeat.clone()).await.0, 200);
    server.clock.advance(SECOND * 29);
    assert_eq!(token.post("s", "callback", heartbeat.clone()).await.0, 200, "it was heard of");
    server.clock.advance(SECOND * 30);
    // Whether or not the server has seen to it yet.
    assert_eq!(code(&token.post("s", "callback", heartbeat.clone()).await), (409, "FENCED"));
    let second = endpoint.receives(2).await[1].json();
    assert_eq!(second["generation"], 2);
    assert_ne!(second["wake_id"], first["wake_id"]);
    assert_eq!(code(&token.post("s", "callback", report(&first, true)).await), (409, "FENCED"));
    let mut mixed = report(&second, true);
    mixed["wake_id"] = first["wake_id"].clone();
    let token = root.with(text(&second, "callback_token"));
    assert_eq!(code(&token.post("s", "callback", mixed).await), (409, "FENCED"));
    assert_eq!(token.post("s", "callback", report(&second, true)).await.0, 200);
}

#[tokio::test]
async fn a_webhook_brings_messages_if_it_is_asked_to() {
    let (_server, root, endpoint) = scene().await;
    endpoint.usually(done());
    let mut wanted = webhook(endpoint.url("/"));
    wanted["payload"] = json!(true);
    root.subscribe("s", wanted).await;
    root.send(Method::PUT, "events/a", Some(&json!([{ "n": 1 }, { "n": 2 }]))).await;
    let told = endpoint.receives(1).await[0].json();
    let stream = &told["streams"][0];
    let payload = &stream["payload"];
    assert_eq!(payload["messages"], json!([{ "n": 1 }, { "n": 2 }]));
    assert_eq!((text(payload, "encoding"), &payload["next_offset"]), ("json", &stream["tail_offset"]));
    // Two messages that together are more than one wake brings come in two wakes.
    root.shows("s", "it is done", |shown| shown["streams"][0]["acked_offset"] == stream["tail_offset"]).await;
    let large = json!(["x".repeat(200_000), "y".repeat(200_000)]);
    assert_eq!(root.send(Method::POST, "events/a", Some(&large)).await.0, 204);
    let received = endpoint.receives(3).await;
    let first = |n: usize| {
        let messages = received[n].json()["streams"][0]["payload"]["messages"].clone();
        let messages = messages.as_array().expect("messages").clone();
        assert_eq!(messages.len(), 1);
        messages[0].as_str().expect("text")[..1].to_owned()
    };
    assert_eq!((first(1), first(2)), ("x".to_owned(), "y".to_owned()));
}

#[tokio::test]
async fn an_endpoint_that_hangs_delays_no_other() {
    let (_server, root, slow) = scene().await;
    slow.usually(Behaviour::Hang);
    let quick = Endpoint::start().await;
    for n in 0..40 {
        root.subscribe(&format!("slow-{n}"), webhook(slow.url("/"))).await;
    }
    root.subscribe("quick", webhook(quick.url("/"))).await;
    root.stream("events/a").await;
    root.append("events/a", json!(1)).await;
    quick.receives(1).await;
    until("the slow endpoint has its part", || slow.open() == 32).await;
    assert_eq!(slow.most(), 32);
}

#[tokio::test]
async fn urls_that_may_not_be_called_are_refused_when_they_are_set_or_when_they_are_called() {
    let mut setup = Setup::default();
    setup.hooks.allow_targets = Some(AllowList::none());
    let server = Harness::with(setup).await;
    let root = Root::of(&server);
    let rejected = [
        "http://10.0.0.1/hook",
        "https://10.0.0.1/hook",
        "https://192.168.1.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://127.0.0.1/",
        "http://example.com/",
        "ftp://example.com/",
        "https://user:secret@example.com/",
        "nonsense",
    ];
    for url in rejected {
        let refused = root.put("s", webhook(url.to_owned())).await;
        assert_eq!(code(&refused), (400, "WEBHOOK_URL_REJECTED"), "{url}");
    }
    // What a name resolves to is seen when it is called.
    let endpoint = Endpoint::start().await;
    let port = endpoint.authority().rsplit(':').next().expect("a port").to_owned();
    root.subscribe("s", webhook(format!("http://localhost:{port}/"))).await;
    root.stream("events/a").await;
    root.append("events/a", json!(1)).await;
    let shown = root.shows("s", "it was attempted", |shown| shown["failures"] == 1).await;
    assert!(text(&shown, "last_error").contains("not public"), "{shown}");
    assert_eq!(endpoint.connections(), 0);
}

#[tokio::test]
async fn a_subscription_that_is_removed_takes_no_more_reports() {
    let (server, root, endpoint) = scene().await;
    root.subscribe("s", webhook(endpoint.url("/"))).await;
    root.stream("events/a").await;
    root.append("events/a", json!(1)).await;
    let told = endpoint.receives(1).await[0].json();
    let token = root.with(text(&told, "callback_token"));
    for _ in 0..2 {
        assert_eq!(root.send(Method::DELETE, "__ds/subscriptions/s", None).await, (204, Value::Null));
    }
    let gone = token.post("s", "callback", report(&told, true)).await;
    assert_eq!(code(&gone), (404, "SUBSCRIPTION_NOT_FOUND"));
    // Another of the same id has nothing to do with it.
    root.subscribe("s", webhook(endpoint.url("/"))).await;
    let other = token.post("s", "callback", report(&told, true)).await;
    assert_eq!(code(&other), (401, "TOKEN_INVALID"));
    server.clock.advance(SECOND * 60);
    root.append("events/a", json!(2)).await;
    assert_eq!(endpoint.receives(2).await[1].json()["generation"], 1);
}
