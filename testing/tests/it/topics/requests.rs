//! What each request answers.

use tidings_testing::until;

use super::*;

#[tokio::test]
async fn the_first_frame_tells_who_one_is_and_what_the_limits_are() {
    let server = Harness::start().await;
    let client = Client::connect(&server).await;
    let hello = &client.hello;
    assert_eq!(hello["project"], "app");
    assert_eq!(hello["user"], "dev", "without a token, in dev mode");
    assert_eq!(hello["expiresAt"], Value::Null);
    assert_eq!(hello["heartbeatMs"], 25_000);
    let limits = json!({
        "topicLength": 128, "topicsPerConnection": 1000, "topicsPerRequest": 1000,
        "frameBytes": 1_114_112, "payloadBytes": 1_048_576,
    });
    assert_eq!(hello["limits"], limits);
    let other = Client::connect(&server).await;
    for name in ["clientId", "memberId", "session"] {
        let (one, other) = (hello[name].as_str().expect("text"), other.hello[name].as_str().expect("text"));
        assert!(!one.is_empty() && one != other, "{name}: {one} {other}");
    }
}

#[tokio::test]
async fn a_session_is_kept_over_connections_and_its_subscriptions_are_not() {
    let server = Harness::start().await;
    let mut first = Client::connect(&server).await;
    first.subscribe("a").await;
    let session = first.hello["session"].as_str().expect("text").to_owned();
    first.leave().await;
    let mut second =
        Client::at(&server, &format!("{PATH}?session={session}"), None).await.expect("a WebSocket");
    assert_eq!(second.hello["session"], json!(session));
    assert_eq!(second.list().await, json!([]));
    for odd in ["", "a%20b", &"x".repeat(65)] {
        let client = Client::at(&server, &format!("{PATH}?session={odd}"), None).await.expect("a WebSocket");
        assert_ne!(client.hello["session"], json!(odd));
    }
}

#[tokio::test]
async fn changes_answer_counts_and_the_list_is_in_order_of_subscription() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    for (kind, payload, answer) in [
        ("$subscribe", json!({ "topic": "a" }), json!({ "added": 1, "total": 1 })),
        ("$subscribe", json!({ "topic": "a" }), json!({ "added": 0, "total": 1 })),
        ("$subscribeMany", json!({ "topics": ["b", "a", "c", "b"] }), json!({ "added": 2, "total": 3 })),
        ("$list", json!({}), json!({ "topics": ["a", "b", "c"], "total": 3 })),
        ("$unsubscribe", json!({ "topic": "a" }), json!({ "removed": 1, "total": 2 })),
        ("$unsubscribe", json!({ "topic": "a" }), json!({ "removed": 0, "total": 2 })),
        ("$subscribe", json!({ "topic": "a" }), json!({ "added": 1, "total": 3 })),
        ("$list", json!({}), json!({ "topics": ["b", "c", "a"], "total": 3 })),
        ("$unsubscribeMany", json!({ "topics": ["x", "c", "c"] }), json!({ "removed": 1, "total": 2 })),
        ("$set", json!({ "topics": ["d", "a", "d"] }), json!({ "added": 1, "removed": 1, "total": 2 })),
        ("$set", json!({ "topics": ["a", "d"] }), json!({ "added": 0, "removed": 0, "total": 2 })),
        ("$list", json!({}), json!({ "topics": ["a", "d"], "total": 2 })),
        (
            "$update",
            json!({ "add": ["e", "a"], "remove": ["a", "d", "x"] }),
            json!({ "added": 1, "removed": 1, "total": 2 }),
        ),
        ("$update", json!({}), json!({ "added": 0, "removed": 0, "total": 2 })),
        ("$subscribeMany", json!({ "topics": [] }), json!({ "added": 0, "total": 2 })),
        ("$clear", json!({}), json!({ "removed": 2 })),
        ("$clear", json!({}), json!({ "removed": 0 })),
        ("$list", json!({}), json!({ "topics": [], "total": 0 })),
    ] {
        assert_eq!(client.done(kind, payload.clone()).await, answer, "{kind} {payload}");
    }
}

#[tokio::test]
async fn all_options_of_a_change_are_accepted() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    for wait_for in ["optimistic", "settled"] {
        for verify in ["off", "best-effort", "strict"] {
            let options = json!({ "waitFor": wait_for, "verify": verify, "timeoutMs": 60_000 });
            let payload = json!({ "topic": "a", "options": options });
            assert_eq!(client.done("$subscribe", payload.clone()).await["added"], 1, "{options}");
            assert_eq!(client.done("$unsubscribe", payload).await["removed"], 1, "{options}");
            let payload = json!({ "topics": ["a"], "options": options });
            assert_eq!(client.done("$set", payload).await["added"], 1, "{options}");
            assert_eq!(client.done("$clear", json!({ "options": options })).await["removed"], 1, "{options}");
        }
    }
}

#[tokio::test]
async fn status_verification_and_settling_tell_what_is_so() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("a").await;
    let settled = json!({ "status": "settled", "has": true });
    let absent = json!({ "status": "absent", "has": false });
    assert_eq!(client.done("$localStatus", json!({ "topic": "a" })).await, settled);
    assert_eq!(client.done("$localStatus", json!({ "topic": "b" })).await, absent);
    assert_eq!(client.done("$localStatus", json!({ "topic": "no topic" })).await, absent);
    for mode in [json!({}), json!({ "mode": "strict" }), json!({ "mode": "best-effort" })] {
        for (topic, kind) in [("a", "subscribed"), ("b", "unsubscribed")] {
            let mut payload = mode.clone();
            payload["topic"] = json!(topic);
            assert_eq!(client.done("$verify", payload).await, json!({ "kind": kind }), "{topic} {mode}");
        }
    }
    for payload in [json!({}), json!({ "topic": "a" }), json!({ "topic": "x", "timeoutMs": 1 })] {
        assert_eq!(client.done("$settle", payload).await, json!({}));
    }
}

#[tokio::test]
async fn who_asks_to_recover_on_a_topic_without_history_is_told_that_nothing_was() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let position = json!({ "epoch": "e5", "offset": 41 });
    let subscribe = json!({ "topic": "a", "recover": position });
    let answer = json!({ "added": 1, "total": 1, "recovered": false });
    assert_eq!(client.done("$subscribe", subscribe.clone()).await, answer);
    let again = client.done("$subscribe", subscribe).await;
    assert_eq!(again, json!({ "added": 0, "total": 1 }), "there is nothing to recover: it was there");
    let set =
        json!({ "topics": ["a", "b", "c"], "recover": { "a": position, "b": position, "x": position } });
    let answer = client.done("$set", set).await;
    let positions = json!({ "b": { "recovered": false } });
    assert_eq!(answer, json!({ "added": 2, "removed": 0, "total": 3, "positions": positions }));
    let many = json!({ "topics": ["d"], "recover": { "d": position } });
    let answer = client.done("$subscribeMany", many).await;
    assert_eq!(answer["positions"], json!({ "d": { "recovered": false } }));
}

#[tokio::test]
async fn a_heartbeat_is_acknowledged_with_the_time() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let ts = 1_763_294_400_123_u64;
    client.say(r#"{"type":"__heartbeat"}"#).await;
    assert_eq!(client.hear().await, json!({ "type": "__heartbeat_ack", "meta": { "ts": ts } }));
    client.say(r#"{"type":"__heartbeat","meta":{"correlationId":"h"}}"#).await;
    let expected = json!({ "type": "__heartbeat_ack", "meta": { "ts": ts, "correlationId": "h" } });
    assert_eq!(client.hear().await, expected);
}

#[tokio::test]
async fn success_is_silent_without_a_correlation_id() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    for (kind, payload) in [
        ("$subscribe", json!({ "topic": "a" })),
        ("$unsubscribe", json!({ "topic": "a" })),
        ("$set", json!({ "topics": ["a", "b"] })),
        ("$publish", json!({ "topic": "x", "message": { "type": "T" } })),
        ("$list", json!({})),
        ("$settle", json!({})),
    ] {
        client.say(json!({ "type": kind, "payload": payload }).to_string()).await;
    }
    assert_eq!(client.list().await, json!(["a", "b"]));
    assert!(client.heard.is_empty(), "{:?}", client.heard);
}

#[tokio::test]
async fn an_abort_of_what_has_ended_or_never_was_is_ignored() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let id = client.begin("$subscribe", json!({ "topic": "a" })).await;
    for correlation_id in [&*id, "unknown"] {
        let abort = json!({ "type": "$ws:abort", "meta": { "correlationId": correlation_id } });
        client.say(abort.to_string()).await;
    }
    assert_eq!(client.answer_to(&id).await, Ok(json!({ "added": 1, "total": 1 })));
    assert_eq!(client.list().await, json!(["a"]));
    assert!(client.heard.is_empty(), "{:?}", client.heard);
}

#[tokio::test]
async fn whatever_way_a_connection_ends_nothing_of_it_is_left() {
    let server = Harness::start().await;
    let mut left = Client::connect(&server).await;
    let mut dropped = Client::connect(&server).await;
    for client in [&mut left, &mut dropped] {
        client.done("$set", json!({ "topics": ["a", "b"] })).await;
    }
    assert_eq!(subscribers(&server, "a").await, 2);
    assert_eq!(server.metric("tidings_topics_connections"), Some(2.0));
    assert_eq!(server.metric("tidings_topics_subscribed"), Some(2.0));
    left.leave().await;
    tidings_testing::eventually("one is left", async || subscribers(&server, "a").await == 1).await;
    drop(dropped);
    tidings_testing::eventually("nobody is left", async || subscribers(&server, "a").await == 0).await;
    nobody_is_left(&server).await;
    until("no connection is counted", || server.metric("tidings_topics_connections") == Some(0.0)).await;
}
