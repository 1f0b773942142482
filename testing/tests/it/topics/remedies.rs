//! Requests that fail, what helps, and what codes they have.

use tidings_api::Normalize;
use tidings_testing::Doors;

use super::grants::{KEY, closed, grants, token};
use super::*;

#[tokio::test]
async fn a_corrected_topic_is_accepted_on_the_same_connection_and_room_can_be_made_for_one_more() {
    let server = server(|options| {
        options.rules = options.rules.clone().with_max_per_connection(Some(100));
    })
    .await;
    let mut client = Client::connect(&server).await;
    assert_eq!(client.fails("$subscribe", json!({ "topic": "room 0" })).await["code"], "INVALID_TOPIC");
    for n in 0..100 {
        assert_eq!(client.subscribe(&format!("room:{n}")).await["total"], n + 1);
    }
    let error = client.fails("$subscribe", json!({ "topic": "room:100" })).await;
    assert_eq!(error["code"], "TOPIC_LIMIT_EXCEEDED");
    let details = json!({ "scope": "connection", "limit": 100, "current": 100, "requested": 1 });
    assert_eq!(error["details"], details, "the 101st is refused");
    client.done("$unsubscribe", json!({ "topic": "room:7" })).await;
    assert_eq!(client.subscribe("room:100").await, json!({ "added": 1, "total": 100 }));
}

#[tokio::test]
async fn settled_or_not_a_subscribe_fails_with_the_same_codes_and_none_but_those_of_the_protocol() {
    let server = closed().await;
    let mut client = Client::with_token(&server, &token(&server, grants(&["room:*"], &[]))).await;
    client.done("$set", json!({ "topics": (0..999).map(|n| format!("room:{n}")).collect::<Vec<_>>() })).await;
    let many: Vec<String> = (0..1001).map(|n| format!("room:{n}")).collect();
    for (kind, payload, code) in [
        ("$subscribe", json!({ "topic": "" }), "INVALID_TOPIC"),
        ("$subscribe", json!({ "topic": "no spaces" }), "INVALID_TOPIC"),
        ("$subscribe", json!({ "topic": "other" }), "ACL_SUBSCRIBE"),
        ("$subscribe", json!({}), "INVALID_ARGUMENT"),
        ("$subscribeMany", json!({ "topics": ["room:a", "no spaces"] }), "INVALID_TOPIC"),
        ("$subscribeMany", json!({ "topics": ["room:a", "other"] }), "ACL_SUBSCRIBE"),
        ("$subscribeMany", json!({ "topics": ["room:a", "room:b"] }), "TOPIC_LIMIT_EXCEEDED"),
        ("$subscribeMany", json!({ "topics": many }), "INVALID_ARGUMENT"),
        ("$set", json!({ "topics": ["room:a", "no spaces"] }), "INVALID_TOPIC"),
        ("$set", json!({ "topics": ["room:a", "other"] }), "ACL_SUBSCRIBE"),
        ("$set", json!({ "topics": many }), "INVALID_ARGUMENT"),
        ("$update", json!({ "add": ["room:a", "other"] }), "ACL_SUBSCRIBE"),
        ("$update", json!({ "add": ["room:a", "room:b"] }), "TOPIC_LIMIT_EXCEEDED"),
        ("$subscribeNone", json!({ "topic": "room:a" }), "UNIMPLEMENTED"),
    ] {
        let mut errors = Vec::new();
        for wait_for in ["optimistic", "settled"] {
            let mut payload = payload.clone();
            payload["options"] = json!({ "waitFor": wait_for, "timeoutMs": 5000 });
            errors.push(client.fails(kind, payload).await);
        }
        assert_eq!(errors[0]["code"], code, "{kind} {payload}");
        assert_eq!(errors[0], errors[1], "{kind} {payload}");
    }
    assert_eq!(client.done("$list", json!({})).await["total"], 999, "nothing of it was done");
}

#[tokio::test]
async fn a_publish_after_the_end_is_heard_by_nobody_and_succeeds_on_another_connection() {
    let server = server(|options| options.bad_frames = 1).await;
    let mut subscriber = Client::connect(&server).await;
    subscriber.subscribe("t").await;
    let mut publisher = Client::connect(&server).await;
    let publish = json!({ "topic": "t", "message": { "type": "SAID", "payload": "after" } });
    for text in [
        "not json".to_owned(),
        json!({ "type": "$publish", "meta": { "correlationId": "late" }, "payload": publish }).to_string(),
    ] {
        // Both are under way before the server has said a word.
        publisher.socket.feed(Message::text(text)).await.expect("taken");
    }
    publisher.socket.flush().await.expect("sent");
    assert_eq!(publisher.closed().await["code"], 1008);
    assert!(publisher.heard.iter().all(|frame| frame["type"] == "ERROR"), "{:?}", publisher.heard);
    assert_eq!(subscriber.list().await, json!(["t"]));
    assert!(subscriber.heard.is_empty(), "{:?}", subscriber.heard);
    let mut again = Client::connect(&server).await;
    assert_eq!(again.done("$publish", publish).await["matched"], 1);
    assert_eq!(subscriber.message("t").await, "after");
    assert_eq!(subscriber.list().await, json!(["t"]));
    assert!(subscriber.heard.is_empty(), "once");
}

#[tokio::test]
async fn it_is_the_normal_topic_that_is_checked_for_its_length_and_its_characters() {
    let server = server(|options| {
        options.normalize = Normalize::Lowercase;
        let rules = options.rules.clone().with_max_length(8);
        // Capital letters are not allowed.
        options.rules = rules.with_pattern("^[a-z0-9:]+$").expect("a pattern");
    })
    .await;
    let mut client = Client::connect(&server).await;
    assert_eq!(client.subscribe("ROOM:1").await["added"], 1);
    assert_eq!(client.publish("Room:1", json!(1)).await["matched"], 1);
    assert_eq!(client.message("room:1").await, 1);
    // Five characters as they are sent, and ten in lower case, where an `i` and a dot above are two.
    let error = client.fails("$subscribe", json!({ "topic": "İ".repeat(5) })).await;
    assert_eq!(error["details"], json!({ "reason": "length", "length": 10, "max": 8 }));
    let error = client.fails("$subscribe", json!({ "topic": "İ".repeat(4) })).await;
    assert_eq!(error["details"], json!({ "reason": "pattern", "topic": "i\u{307}".repeat(4) }));
    let error = client.fails("$subscribe", json!({ "topic": "ROOM_1" })).await;
    assert_eq!(error["details"], json!({ "reason": "pattern", "topic": "room_1" }));
}

#[tokio::test]
async fn a_grant_admits_topics_whose_normal_form_it_matches() {
    let doors = Doors::Closed { created: vec![("app", KEY)], given: vec![] };
    let mut setup = Setup { doors, ..Setup::default() };
    setup.topics.normalize = Normalize::Lowercase;
    let server = Harness::with(setup).await;
    let token = token(&server, grants(&["room:*"], &["room:*"]));
    let mut client = Client::with_token(&server, &token).await;
    assert_eq!(client.subscribe("ROOM:1").await, json!({ "added": 1, "total": 1 }));
    assert_eq!(client.list().await, json!(["room:1"]));
    assert_eq!(client.publish("Room:1", json!(7)).await["matched"], 1);
    assert_eq!(client.message("room:1").await, 7);
    let error = client.fails("$subscribe", json!({ "topic": "HALL:1" })).await;
    assert_eq!((&error["code"], &error["details"]["topic"]), (&json!("ACL_SUBSCRIBE"), &json!("hall:1")));
}
