//! Publishing never fails with an error: each outcome is a value.

use bytes::Bytes;
use serde_json::{Value, json};
use tidings_topics::contract::Call;
use tidings_topics::{
    Connection, Payload, PublishEnvelope, PublishError, PublishOptions, PublishResult, RESERVED_META,
    TopicRules,
};

use crate::recorder::*;
use crate::support::*;

fn send(client: &Client, envelope: PublishEnvelope) -> PublishResult {
    now(client.topics.publish(envelope, PublishOptions::default()))
}

#[tokio::test]
async fn a_publish_tells_how_many_it_reached() {
    let world = world();
    let clients = ["a", "b", "c"].map(|id| world.client(id));
    assert_eq!(
        world.publishes("t", "-").to_json(),
        json!({ "ok": true, "capability": "exact", "matched": 0 })
    );
    for client in &clients {
        client.subscribes("t");
    }
    let sent = clients[0].publishes("t", "x").to_json();
    assert_eq!(sent, json!({ "ok": true, "capability": "exact", "matched": 3 }));
    let outsider = world.client("d");
    assert_eq!(outsider.publishes("t", "x").matched(), Some(3), "nobody needs to subscribe to publish");
    let hint = PublishOptions { partition_key: Some("k".to_owned()), ..PublishOptions::default() };
    assert_eq!(now(outsider.topics.publish(message("t", "x"), hint)).matched(), Some(3));
    let alone = PublishOptions { exclude_self: true, ..PublishOptions::default() };
    assert_eq!(now(outsider.topics.publish(message("t", "x"), alone.clone())).matched(), Some(3));
    assert_eq!(now(world.hub.publish(message("t", "x"), alone)).matched(), Some(3), "nobody to exclude");
}

#[tokio::test]
async fn a_bad_topic_is_a_failed_validation_with_the_details_of_the_topic() {
    let world = watched(None);
    let client = world.client();
    let failed = send(&client, message("no spaces", "x")).to_json();
    let details = json!({ "reason": "pattern", "topic": "no spaces" });
    assert_eq!(
        (&failed["error"], &failed["retryable"], &failed["details"]),
        (&json!("VALIDATION"), &json!(false), &details)
    );
    let failed = send(&client, message(&"x".repeat(129), "x")).to_json();
    assert_eq!(failed["details"], json!({ "reason": "length", "length": 129, "max": 128 }));
    assert_eq!(send(&client, message("room:*", "x")).error(), Some(PublishError::Validation));
    world.is_untouched();
}

#[tokio::test]
async fn a_reserved_or_empty_type_is_a_failed_validation() {
    let world = world();
    let client = world.client("a");
    for kind in ["", "$reply", "$anything", "__heartbeat", "ERROR", "RPC_ERROR", &"x".repeat(129)] {
        let failed = send(&client, PublishEnvelope::new("t", kind)).to_json();
        let expected = json!({ "ok": false, "error": "VALIDATION", "retryable": false, "details": { "reason": "type" } });
        assert_eq!(failed, expected, "{kind}");
    }
    assert!(send(&client, PublishEnvelope::new("t", "x".repeat(128))).is_ok());
    assert!(send(&client, PublishEnvelope::new("t", "error")).is_ok());
}

#[tokio::test]
async fn a_payload_that_cannot_be_encoded_is_reported() {
    let world = world();
    let client = world.client("a");
    client.subscribes("t");
    let binary =
        PublishEnvelope::new("t", "BYTES").with_payload(Payload::Binary(Bytes::from_static(b"\xff")));
    let failed = send(&client, binary).to_json();
    assert_eq!((&failed["error"], &failed["adapter"]), (&json!("VALIDATION"), &json!("memory")));
    assert_eq!(failed["details"], json!({ "reason": "encoding" }));
    assert!(failed["cause"].as_str().is_some_and(|cause| cause.contains("binary")), "{failed}");
    let broken = PublishEnvelope::new("t", "X").with_payload(Payload::Json(Bytes::from_static(b"{")));
    assert_eq!(send(&client, broken).error(), Some(PublishError::Validation));
}

#[tokio::test]
async fn a_payload_that_is_too_large_is_refused_with_the_limit() {
    let driver = tidings_topics::MemoryDriver::new(local(""));
    let rules = TopicRules::default().with_max_payload_bytes(Some(10));
    let world = with::<()>(std::sync::Arc::new(driver), rules, std::sync::Arc::new(tidings_topics::AllowAll));
    let client = world.client("a");
    let sized = |bytes: usize| {
        let payload = Payload::Json(Bytes::from(format!("\"{}\"", "x".repeat(bytes - 2))));
        PublishEnvelope::new("t", "X").with_payload(payload)
    };
    assert!(send(&client, sized(10)).is_ok());
    let expected =
        json!({ "ok": false, "error": "PAYLOAD_TOO_LARGE", "retryable": false, "details": { "limit": 10 } });
    assert_eq!(send(&client, sized(11)).to_json(), expected);
    assert_eq!(now(world.hub.publish(sized(11), PublishOptions::default())).to_json(), expected);
}

#[tokio::test]
async fn the_policy_is_asked_on_every_publish_about_the_normal_topic() {
    let world = watched(None);
    let client = world.client();
    for _ in 0..2 {
        assert!(send(&client, message("Room:1", "x")).is_ok());
    }
    assert_eq!(world.policy.noted(), ["a publish room:1", "a publish room:1"]);
    assert_eq!(world.calls(), ">room:1 >room:1");
    let denied = send(&client, message("Secret", "x")).to_json();
    let expected = json!({
        "ok": false, "error": "ACL_PUBLISH", "retryable": false,
        "details": { "op": "publish", "kind": "forbidden", "reason": "policy", "policy": "recorder", "topic": "secret" },
    });
    assert_eq!(denied, expected);
    assert_eq!(world.calls(), "");
}

#[tokio::test]
async fn the_application_publishes_without_the_policy_and_others_with_it() {
    let world = watched(None);
    world.policy.noted();
    assert!(now(world.hub.publish(message("Secret", "x"), PublishOptions::default())).is_ok());
    assert_eq!(world.policy.noted(), Vec::<String>::new());
    assert_eq!(world.calls(), ">secret", "normalized all the same");
    let backend = Connection { client_id: None, data: () };
    let publish = |topic| now(world.hub.publish_as(&backend, message(topic, "x"), PublishOptions::default()));
    assert_eq!(publish("Secret").error(), Some(PublishError::AclPublish));
    assert!(publish("Open").is_ok());
    assert_eq!(world.policy.noted(), ["- publish secret", "- publish open"]);
}

#[tokio::test]
async fn failures_of_the_driver_are_told_with_its_name_and_cause() {
    let world = watched(None);
    let client = world.client();
    world.driver.breaks(Call::Publish("t".into()));
    let expected = json!({
        "ok": false, "error": "ADAPTER_ERROR", "retryable": true, "adapter": "memory",
        "details": { "transient": true }, "cause": "an injected failure",
    });
    assert_eq!(send(&client, message("t", "x")).to_json(), expected);
    world.driver.heal();
    world.driver.push_back(true);
    let expected = json!({ "ok": false, "error": "BACKPRESSURE", "retryable": true, "adapter": "memory" });
    assert_eq!(send(&client, message("t", "x")).to_json(), expected);
    world.driver.push_back(false);
    assert!(send(&client, message("t", "x")).is_ok(), "there is room again");
}

#[tokio::test]
async fn nothing_is_published_while_the_hub_is_not_ready() {
    let world = world();
    let client = world.client("a");
    client.subscribes("t");
    world.hub.set_ready(false);
    let expected = json!({ "ok": false, "error": "STATE", "retryable": false });
    assert_eq!(client.publishes("t", "x").to_json(), expected);
    assert_eq!(world.publishes("t", "x").to_json(), expected);
    world.hub.set_ready(true);
    assert_eq!(client.publishes("t", "x").matched(), Some(1));
}

#[test]
fn each_failure_says_whether_to_try_again() {
    let table = [
        (PublishError::Validation, "VALIDATION", false),
        (PublishError::AclPublish, "ACL_PUBLISH", false),
        (PublishError::State, "STATE", false),
        (PublishError::Backpressure, "BACKPRESSURE", true),
        (PublishError::PayloadTooLarge, "PAYLOAD_TOO_LARGE", false),
        (PublishError::Unsupported, "UNSUPPORTED", false),
        (PublishError::AdapterError, "ADAPTER_ERROR", true),
        (PublishError::ConnectionClosed, "CONNECTION_CLOSED", true),
    ];
    assert_eq!(table.map(|(error, ..)| error), PublishError::ALL);
    for (error, text, retryable) in table {
        assert_eq!((error.as_str(), error.is_retryable()), (text, retryable));
    }
}

#[tokio::test]
async fn a_publisher_cannot_set_what_the_server_sets() {
    let world = world();
    let mut client = world.client("a");
    client.subscribes("t");
    let mut envelope = message("t", "x");
    for name in RESERVED_META {
        envelope.meta.insert(name.to_owned(), json!("forged"));
    }
    envelope.meta.insert("lang".to_owned(), json!("de"));
    assert!(send(&client, envelope).is_ok());
    tokio::task::yield_now().await;
    let heard = client.takes();
    assert_eq!(heard[0]["meta"], json!({ "lang": "de", "topic": "t" }));
}

#[tokio::test]
async fn payloads_arrive_as_they_were_written() {
    let world = world();
    let mut client = world.client("a");
    client.subscribes("t");
    for payload in ["18446744073709551615", "null", "{\"b\":1,\"a\":[1.50,\"\u{e9}\"]}"] {
        let payload = Payload::Json(Bytes::copy_from_slice(payload.as_bytes()));
        assert!(send(&client, PublishEnvelope::new("t", "X").with_payload(payload)).is_ok());
    }
    assert!(send(&client, PublishEnvelope::new("t", "X")).is_ok());
    tokio::task::yield_now().await;
    let expected = [
        r#"{"type":"X","meta":{"topic":"t"},"payload":18446744073709551615}"#.to_owned(),
        r#"{"type":"X","meta":{"topic":"t"},"payload":null}"#.to_owned(),
        "{\"type\":\"X\",\"meta\":{\"topic\":\"t\"},\"payload\":{\"b\":1,\"a\":[1.50,\"\u{e9}\"]}}"
            .to_owned(),
        r#"{"type":"X","meta":{"topic":"t"}}"#.to_owned(),
    ];
    assert_eq!(client.takes_text(), expected);
    assert_eq!(serde_json::from_str::<Value>(&expected[3]).expect("JSON").get("payload"), None);
}

#[tokio::test]
async fn a_topic_is_told_apart_from_those_that_begin_like_it() {
    let world = world();
    let mut client = world.client("a");
    client.subscribes("room:1");
    for topic in ["room:12", "room:1:a", "Room:1", "room"] {
        assert_eq!(world.publishes(topic, "x").matched(), Some(0), "{topic}");
    }
    assert_eq!(world.publishes("room:1", "mine").matched(), Some(1));
    assert_eq!(client.hears(1).await, ["mine"]);
}
