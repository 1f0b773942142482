//! What is sent, and what counts as delivered.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidings_engine::{Clock, WallClock};
use tidings_model::Timestamp;

use super::world::{Reply, START, URL, World, event, id, timeout};
use crate::delivery::AttemptOutcome;
use crate::hook::Format;
use crate::signature::Secret;

#[tokio::test]
async fn a_delivery_is_sent_and_recorded_once() {
    let world = World::new().await;
    let queue = world.hook(|_| {}).await;
    world.endpoints.answer(URL, [Reply::Text(202, "thanks")]);
    let position = world.publish(&[queue], r#"{"type":"orders.paid","n":1}"#).await;
    world.rest().await;
    let [call] = &world.calls(1).await[..] else { panic!() };
    assert_eq!(call.url, URL);
    let body: serde_json::Value = serde_json::from_slice(&call.body).expect("JSON");
    let payload = serde_json::json!({"type": "orders.paid", "n": 1, "_namespace": "shop"});
    let expected = serde_json::json!({"id": "event-1", "type": "orders.paid", "ts": "2026-01-15T10:30:00.000Z", "payload": payload});
    assert_eq!(body, expected);
    let progress = world.progress(queue).await;
    assert_eq!((progress.done, progress.delivered, progress.attempts), (position, 1, 1));
    let [(at, attempt)] = &world.attempts(queue).await[..] else { panic!() };
    assert_eq!((*at, attempt.number, attempt.at), (position, 1, START));
    assert_eq!(attempt.outcome, AttemptOutcome::Success("thanks".into()));
    world.check(queue).await;
}

#[tokio::test]
async fn the_public_library_verifies_an_attempt() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.headers = vec![("X-Shop".into(), "a b".into())]).await;
    let old = Secret::from_bytes(&[9; 32]);
    // The library compares the timestamp with the time of the system.
    let now = WallClock.now();
    world.clock.set(now);
    let until = now + Duration::from_secs(10);
    world.change(queue, |hook| hook.secrets.previous = Some((old.clone(), until))).await;
    let position = world.publish(&[queue], "{\"n\":1}").await;
    world.rest().await;
    world.clock.advance(Duration::from_secs(10));
    world.publish(&[queue], "{\"n\":2}").await;
    let calls = world.calls(2).await;
    for (call, both) in calls.iter().zip([true, false]) {
        for (secret, counts) in [(Secret::from_bytes(&[7; 32]), true), (old.clone(), both)] {
            let webhook = standardwebhooks::Webhook::new(&secret.reveal()).expect("a secret");
            assert_eq!(webhook.verify(&call.body, &call.headers).is_ok(), counts);
        }
    }
    let first = &calls[0];
    assert_eq!(first.id(), id(queue, position));
    assert_eq!(first.header("webhook-timestamp"), (now.as_millis() / 1000).to_string());
    assert_eq!(first.header("content-type"), "application/json");
    assert_eq!(first.header("x-shop"), "a b");
    assert!(first.header("user-agent").starts_with("tidings/"));
}

#[tokio::test]
async fn cloud_events_are_sent_in_both_modes() {
    let world = World::new().await;
    let structured = world.hook(|settings| settings.format = Format::CloudEventsStructured).await;
    let binary = world.hook(|settings| settings.format = Format::CloudEventsBinary).await;
    let mut odd = event("{\"a\":1}");
    odd.id = "ä \"1\"%".into();
    world.publish_all(&[structured], [event("{\"a\":1}")]).await;
    world.rest().await;
    world.publish_all(&[binary], [odd]).await;
    let calls = world.calls(2).await;
    assert_eq!(calls[0].header("content-type"), "application/cloudevents+json");
    assert_eq!(calls[0].header("ce-id"), "");
    let body: serde_json::Value = serde_json::from_slice(&calls[0].body).expect("JSON");
    assert_eq!((&body["specversion"], &body["data"]["a"]), (&"1.0".into(), &1.into()));
    let expected = [
        ("content-type", "application/json"),
        ("ce-specversion", "1.0"),
        ("ce-id", "%C3%A4%20%221%22%25"),
        ("ce-type", "orders.paid"),
        ("ce-source", "/v1/shop"),
        ("ce-time", "2026-01-15T10:30:00.000Z"),
    ];
    for (name, value) in expected {
        assert_eq!(calls[1].header(name), value, "{name}");
    }
    assert_eq!(&calls[1].body[..], br#"{"a":1,"_namespace":"shop"}"#);
}

#[tokio::test]
async fn everything_but_a_2xx_is_a_failure_with_its_reason() {
    let world = World::new().await;
    let forbidden = tidings_egress::SendError::Closed;
    for (reply, error) in [
        (Reply::Text(500, "no"), "HTTP 500: no"),
        (Reply::Status(302), "HTTP 302: "),
        (Reply::Status(404), "HTTP 404: "),
        (timeout(), "timeout after 30000 ms while waiting for a response"),
        (Reply::Error(forbidden.clone()), &*forbidden.to_string()),
    ] {
        let queue = world.hook(|settings| settings.max_retries = 1).await;
        world.endpoints.answer(URL, [reply]);
        world.publish(&[queue], "{\"n\":1}").await;
        world.rest().await;
        let [(_, attempt)] = &world.attempts(queue).await[..] else { panic!() };
        assert_eq!(attempt.outcome, AttemptOutcome::Failed(error.into()));
        assert_eq!(world.letters(queue).await[0].last_error, error);
    }
}

#[tokio::test]
async fn a_hook_without_a_target_fails_and_says_why() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.url = None).await;
    world.publish(&[queue], "{\"n\":1}").await;
    world.rest().await;
    let [(_, attempt)] = &world.attempts(queue).await[..] else { panic!() };
    assert_eq!(attempt.outcome, AttemptOutcome::Failed("there is no target".into()));
    assert_eq!(world.progress(queue).await.parked.len(), 1);
}

#[tokio::test]
async fn a_handler_in_the_process_is_called_instead_of_an_endpoint() {
    let world = World::new().await;
    let called = Arc::new(Mutex::new(Vec::new()));
    let calls = called.clone();
    world.endpoints.bind(
        "inner",
        Arc::new(move |call: crate::Call| {
            calls.lock().expect("not poisoned").push(call.clone());
            Box::pin(async move {
                match &call.payload[..] {
                    payload if payload.starts_with(b"{\"ok\"") => Ok("{\"done\":true}".to_owned()),
                    payload if payload.starts_with(b"{\"hangs\"") => std::future::pending().await,
                    payload if payload.starts_with(b"{\"panics\"") => panic!("told to"),
                    _ => Err("not now".to_owned()),
                }
            })
        }),
    );
    let queue = world
        .hook(|settings| {
            settings.worker_binding = Some("inner".into());
            settings.max_retries = 1;
            settings.timeout_ms = 5000;
        })
        .await;
    for json in ["{\"ok\":1}", "{\"no\":1}", "{\"panics\":1}"] {
        world.publish(&[queue], json).await;
        world.rest().await;
    }
    world.publish(&[queue], "{\"hangs\":1}").await;
    world.until("the handler hangs", || called.lock().expect("not poisoned").len() == 4).await;
    world.run().await;
    world.pass(Duration::from_secs(5)).await;
    let outcomes: Vec<_> =
        world.attempts(queue).await.into_iter().map(|(_, attempt)| attempt.outcome).collect();
    let failed = |text: &str| AttemptOutcome::Failed(text.into());
    let success = AttemptOutcome::Success("{\"done\":true}".into());
    assert_eq!(outcomes, [success, failed("not now"), failed("the handler panicked"), failed("RPC timeout")]);
    let calls = called.lock().expect("not poisoned");
    assert_eq!((&*calls[0].event, calls[0].delivery.len()), ("event-1", 26));
    assert_eq!(&calls[0].payload[..], br#"{"ok":1,"_namespace":"shop"}"#);
    assert!(world.endpoints.calls().is_empty());
}

#[tokio::test]
async fn the_name_of_a_handler_that_is_not_bound_goes_to_the_endpoint() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.worker_binding = Some("missing".into())).await;
    world.publish(&[queue], "{\"n\":1}").await;
    assert_eq!(world.calls(1).await[0].url, URL);
}

#[tokio::test]
async fn hooks_that_hear_the_same_event_get_the_same_body() {
    let world = World::new().await;
    let queues = [world.hook(|_| {}).await, world.hook(|_| {}).await];
    world.publish(&queues, "{\"n\":1}").await;
    let calls = world.calls(2).await;
    assert_eq!(calls[0].body.as_ptr(), calls[1].body.as_ptr());
    assert_ne!(calls[0].id(), calls[1].id());
}

#[tokio::test]
async fn successful_deliveries_share_their_commits() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.concurrency = 256).await;
    world.endpoints.answer(URL, [Reply::Hangs]);
    world.publish_many(&[queue], 100).await;
    let mut sent = 0;
    while sent < 100 {
        world.run().await;
        let hanging = world.endpoints.hanging(URL);
        world.endpoints.release(URL, hanging, &Reply::Status(200));
        sent += hanging;
    }
    world.rest().await;
    let made = world.trouble.made.load(std::sync::atomic::Ordering::Relaxed);
    assert!(made <= 10, "{made} commits for 100 deliveries");
    assert_eq!(world.progress(queue).await.delivered, 100);
    assert_eq!(world.attempts(queue).await.len(), 100);
    world.check(queue).await;
    let now: Timestamp = START;
    assert!(world.attempts(queue).await.iter().all(|(_, attempt)| attempt.at == now));
}
