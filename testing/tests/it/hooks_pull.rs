//! A consumer that no webhook can reach reads the queue of its hook as a stream.

use std::time::Duration;

use serde_json::{Value, json};
use tidings_engine::Clock;
use tidings_hooks::ingest::time_text;
use tidings_testing::http::{Method, Response};
use tidings_testing::sse::Events;
use tidings_testing::{Behaviour, Endpoint, Harness, SLEEPERS, Setup, TestStore, until};

async fn answer(server: &Harness, method: Method, path: &str, body: &Value) -> Value {
    let answer = server.request(method, path).json(body).send().await.expect("an answer");
    assert!(answer.status().is_success(), "{path}: {}", answer.status());
    answer.json().await.unwrap_or_default()
}

/// Creates a hook of the project `shop` and returns the path of its events.
async fn hook(server: &Harness, pattern: &str, endpoint: &Endpoint) -> String {
    let settings = json!({ "pattern": pattern, "url": endpoint.url("/") });
    let created = answer(server, Method::POST, "/v1/shop/hooks", &settings).await;
    format!("/v1/shop/hooks/{}", created["id"].as_str().expect("an id"))
}

/// Publishes an event with a number.
async fn publish(server: &Harness, event_type: &str, n: u64) {
    let event = json!({ "type": event_type, "ts": time_text(server.clock.now()), "n": n });
    answer(server, Method::POST, "/v1/shop/events", &json!({ "events": [event] })).await;
}

fn header<'a>(answer: &'a Response, name: &str) -> &'a str {
    let value = answer.headers().get(name).unwrap_or_else(|| panic!("{name} in {:?}", answer.headers()));
    value.to_str().expect("text")
}

/// Messages after an offset, and the next offset. They must reach the tail.
async fn pull(server: &Harness, hook: &str, offset: &str) -> (Vec<Value>, String) {
    let answer = server.get(&format!("{hook}/events?offset={offset}")).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(header(&answer, "content-type"), "application/json");
    assert_eq!(header(&answer, "stream-up-to-date"), "true");
    let next = header(&answer, "stream-next-offset").to_owned();
    (answer.json().await.expect("a list"), next)
}

fn numbers(messages: &[Value]) -> Vec<u64> {
    messages.iter().map(|message| message["payload"]["n"].as_u64().expect("a number")).collect()
}

#[tokio::test]
async fn a_queue_is_read_from_any_offset_and_has_what_a_webhook_would_bring() {
    for store in [TestStore::Memory, TestStore::Embedded] {
        let server = Harness::with(Setup { store, ..Setup::default() }).await;
        let endpoint = Endpoint::start().await;
        let hook = hook(&server, "a.*", &endpoint).await;
        assert_eq!(pull(&server, &hook, "-1").await.0, Vec::<Value>::new());
        for (n, event_type) in ["a.x", "b.x", "a.y"].into_iter().enumerate() {
            publish(&server, event_type, n as u64).await;
        }
        let delivered = endpoint.receives(2).await;
        let (messages, next) = pull(&server, &hook, "-1").await;
        for (message, delivered) in messages.iter().zip(&delivered) {
            let mut expected = delivered.json();
            expected["deliveryId"] = delivered.header("webhook-id").expect("a header").into();
            assert_eq!(*message, expected);
        }
        assert_eq!(numbers(&messages), [0, 2]);
        assert_eq!(pull(&server, &hook, &next).await, (Vec::new(), next.clone()));
        publish(&server, "a.z", 3).await;
        let (messages, _) = pull(&server, &hook, &next).await;
        assert_eq!(numbers(&messages), [3]);
        assert_eq!(pull(&server, &hook, "now").await.0, Vec::<Value>::new());
        if matches!(store, TestStore::Embedded) {
            let server = server.restart().await;
            assert_eq!(numbers(&pull(&server, &hook, &next).await.0), [3], "an offset outlives a restart");
        }
    }
}

#[tokio::test]
async fn a_dead_endpoint_or_a_pause_takes_nothing_from_who_pulls() {
    let server = Harness::start().await;
    let endpoint = Endpoint::start().await;
    endpoint.usually(Behaviour::status(410));
    let hook = hook(&server, "a", &endpoint).await;
    publish(&server, "a", 1).await;
    until("it is over", || server.server().hooks().is_at_rest() && endpoint.received().len() == 1).await;
    assert_eq!(answer(&server, Method::GET, &hook, &Value::Null).await["active"], false);
    assert_eq!(numbers(&pull(&server, &hook, "-1").await.0), [1]);
}

#[tokio::test]
async fn a_long_poll_waits_for_the_next_delivery_and_for_four_seconds_at_most() {
    let server = Harness::start().await;
    let endpoint = Endpoint::start().await;
    let hook = hook(&server, "a", &endpoint).await;
    let (_, tail) = pull(&server, &hook, "-1").await;
    let poll = |offset: &str| {
        let request = server.request(Method::GET, &format!("{hook}/events?live=long-poll&offset={offset}"));
        tokio::spawn(async move { request.send().await.expect("an answer") })
    };
    let waits = poll(&tail);
    until("it waits", || server.clock.sleepers() == SLEEPERS + 1).await;
    publish(&server, "a", 7).await;
    let answer = waits.await.expect("no panic");
    assert_eq!(answer.status(), 200);
    let next = header(&answer, "stream-next-offset").to_owned();
    assert!(answer.headers().contains_key("stream-cursor"));
    let messages: Vec<Value> = answer.json().await.expect("a list");
    assert_eq!(numbers(&messages), [7]);
    // What is there is not waited for.
    let answer = poll(&tail).await.expect("no panic");
    assert_eq!(header(&answer, "stream-next-offset"), next);
    until("everything is delivered", || server.server().hooks().is_at_rest()).await;
    let waits = poll(&next);
    until("it waits", || server.clock.sleepers() == SLEEPERS + 1).await;
    server.clock.advance(Duration::from_secs(4));
    let answer = waits.await.expect("no panic");
    assert_eq!((answer.status().as_u16(), header(&answer, "stream-next-offset")), (204, &*next));
}

#[tokio::test]
async fn server_sent_events_bring_what_was_there_and_what_comes_until_the_hook_is_removed() {
    let server = Harness::start().await;
    let endpoint = Endpoint::start().await;
    let hook = hook(&server, "a", &endpoint).await;
    publish(&server, "a", 1).await;
    let mut events = Events::of(server.get(&format!("{hook}/events?live=sse&offset=-1")).await);
    let next = async |events: &mut Events| {
        let data = events.next().await.expect("a data event");
        let control = events.next().await.expect("a control event");
        assert_eq!((&*data.name, &*control.name), ("data", "control"));
        assert_eq!(control.json()["streamNextOffset"], data.id.clone().expect("an id"));
        let messages = data.json();
        (numbers(messages.as_array().expect("a list")), data.id.expect("an id"))
    };
    let (first, id) = next(&mut events).await;
    assert_eq!(first, [1]);
    publish(&server, "a", 2).await;
    assert_eq!(next(&mut events).await.0, [2]);
    // As a browser comes again.
    let again = server.request(Method::GET, &format!("{hook}/events?live=sse&offset=-1"));
    let mut again = Events::of(again.header("last-event-id", &id).send().await.expect("an answer"));
    assert_eq!(next(&mut again).await.0, [2]);
    answer(&server, Method::DELETE, &hook, &Value::Null).await;
    assert_eq!((events.next().await, again.next().await), (None, None));
    assert_eq!(server.get(&format!("{hook}/events")).await.status(), 404);
}

#[tokio::test]
async fn two_hooks_that_hear_the_same_event_have_messages_of_their_own() {
    let server = Harness::start().await;
    let endpoint = Endpoint::start().await;
    let (one, other) = (hook(&server, "a", &endpoint).await, hook(&server, "**", &endpoint).await);
    let mut readers = Vec::new();
    for hook in [&one, &other] {
        readers.push(Events::of(server.get(&format!("{hook}/events?live=sse&offset=-1")).await));
    }
    for reader in &mut readers {
        assert_eq!(reader.next().await.expect("a control event").name, "control");
    }
    publish(&server, "a", 1).await;
    let mut ids = Vec::new();
    for reader in &mut readers {
        ids.push(reader.next().await.expect("a data event").json()[0]["deliveryId"].clone());
    }
    assert_ne!(ids[0], ids[1]);
    for (hook, id) in [(&one, &ids[0]), (&other, &ids[1])] {
        assert_eq!(pull(&server, hook, "-1").await.0[0]["deliveryId"], *id);
    }
}

#[tokio::test]
async fn an_offset_before_what_clean_up_left_is_410_and_others_that_are_wrong_are_400() {
    let server = Harness::start().await;
    let endpoint = Endpoint::start().await;
    let hook = hook(&server, "a", &endpoint).await;
    publish(&server, "a", 1).await;
    let (_, first) = pull(&server, &hook, "-1").await;
    publish(&server, "a", 2).await;
    publish(&server, "a", 3).await;
    until("everything is delivered", || server.server().hooks().is_at_rest()).await;
    let before = server.clock.now().as_millis() + 1;
    server.clock.advance(Duration::from_secs(1));
    answer(&server, Method::POST, "/v1/shop/hooks/cleanup", &json!({ "before": before })).await;
    let gone = server.get(&format!("{hook}/events?offset={first}")).await;
    assert_eq!(gone.status(), 410);
    assert!(gone.headers().contains_key("stream-oldest-offset"));
    let error: Value = gone.json().await.expect("JSON");
    assert_eq!(error["error"]["code"], "offset_trimmed");
    assert_eq!(numbers(&pull(&server, &hook, "-1").await.0), Vec::<u64>::new());
    for (query, code) in [
        ("offset=yesterday", "invalid_offset"),
        ("live=sse", "offset_required"),
        ("live=radio&offset=now", "invalid_live"),
        ("live=websocket&offset=now", "invalid_live"),
    ] {
        let refused = server.get(&format!("{hook}/events?{query}")).await;
        assert_eq!(refused.status(), 400, "{query}");
        let error: Value = refused.json().await.expect("JSON");
        assert_eq!(error["error"]["code"], code, "{query}");
    }
}
