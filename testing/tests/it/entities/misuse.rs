//! Messages that are not as they should be: each is answered, and the connection stays.

use super::*;

#[tokio::test]
async fn what_is_no_message_is_told_so_and_the_connection_stays() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("project", &["1"]).await;
    for text in [
        "",
        "hello",
        "{",
        "[]",
        "7",
        "null",
        "{}",
        r#"{"type":7}"#,
        r#"{"payload":{}}"#,
        "{\"type\":\"PING\"",
    ] {
        client.say(text).await;
        let error = client.answer().await;
        assert_eq!(error["type"], "ERROR", "{text}");
        assert_eq!(
            error["payload"],
            json!({ "message": "Invalid message format", "code": "InvalidMessage" })
        );
    }
    client.socket.send(Message::binary(&br#"{"type":"PING"}"#[..])).await.expect("sent");
    assert_eq!(client.answer().await["payload"]["message"], "Invalid message format", "bytes are no message");
    update(&server, "project", "1").await;
    assert_eq!(ids(&client.changes("project").await), ["1"]);
    let rejected = server.metric(r#"tidings_entity_requests_total{type="other",result="rejected"}"#);
    assert_eq!(rejected, Some(11.0));
}

#[tokio::test]
async fn types_that_are_not_known_are_told_so_and_the_connection_stays() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    for kind in ["NORMALIZED_INVALIDATE", "LINK_CHANGE", "subscribe", "", "INVALIDATE", &"X".repeat(10_000)] {
        let error = client.ask(kind, json!({ "requestId": 1 }), "ERROR").await;
        assert_eq!((&error["code"], &error["requestId"]), (&json!("UnknownType"), &json!(1)), "{kind}");
        assert!(error["message"].as_str().expect("text").len() < 200, "it is not repeated whole");
    }
    client.ask("PING", json!({}), "PONG").await;
}

#[tokio::test]
async fn fields_that_are_missing_or_odd_are_told_by_name() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    for (kind, payload, code, field) in [
        ("SUBSCRIBE", json!({ "entityIds": [] }), "InvalidMessage", "entityCode"),
        ("SUBSCRIBE", json!({ "entityCode": "a" }), "InvalidMessage", "entityIds"),
        ("SUBSCRIBE", json!({ "entityCode": "a", "entityIds": "1" }), "InvalidMessage", "entityIds"),
        ("SUBSCRIBE", json!({ "entityCode": 7, "entityIds": [] }), "InvalidMessage", "entityCode"),
        ("SUBSCRIBE", json!({ "entityCode": "", "entityIds": [] }), "InvalidCode", "entityCode"),
        ("SUBSCRIBE", json!({ "entityCode": "x".repeat(101), "entityIds": [] }), "InvalidCode", "entityCode"),
        ("SUBSCRIBE", json!({ "entityCode": "a\n", "entityIds": [] }), "InvalidCode", "entityCode"),
        ("UNSUBSCRIBE", json!({}), "InvalidMessage", "entityCode"),
        ("UNSUBSCRIBE", json!({ "entityCode": "a", "entityIds": {} }), "InvalidMessage", "entityIds"),
        ("TOKEN_REFRESH", json!({ "token": 7 }), "InvalidMessage", "token"),
        ("PING", json!({ "requestId": { "a": 1 } }), "InvalidMessage", "requestId"),
        ("PING", json!({ "requestId": "x".repeat(500) }), "InvalidMessage", "requestId"),
    ] {
        let error = client.ask(kind, payload.clone(), "ERROR").await;
        assert_eq!(error["code"], code, "{kind} {payload}");
        assert!(error["message"].as_str().expect("text").contains(field), "{kind} {payload}: {error}");
    }
    assert_eq!(server.metric("tidings_entity_subscriptions"), Some(0.0));
}

/// A message that is made up of parts of good ones.
fn made_up(rng: &mut fastrand::Rng) -> String {
    let parts = [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"type\"",
        "\"payload\"",
        "\"SUBSCRIBE\"",
        "\"UNSUBSCRIBE\"",
        "\"PING\"",
        "\"entityCode\"",
        "\"entityIds\"",
        "\"since\"",
        "\"requestId\"",
        "\"token\"",
        "\"a\"",
        "\"\\ud800\"",
        "\"\\u0000\"",
        "1e999",
        "-0",
        "null",
        "true",
        "\"ü\"",
        "'",
        "[[[[[[",
        "\u{7f}",
        "\"",
        "\\",
        "{\"type\":\"SUBSCRIBE\",\"payload\":{\"entityCode\":\"a\",\"entityIds\":[",
        "{\"type\":\"UNSUBSCRIBE_ALL\"}",
        "\"1\"",
        "]}}",
    ];
    (0..rng.usize(1..20)).map(|_| parts[rng.usize(..parts.len())]).collect()
}

#[tokio::test]
async fn whatever_is_sent_is_answered_once_and_nothing_panics() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let mut rng = fastrand::Rng::with_seed(20_251_116);
    for _ in 0..100 {
        let many: Vec<_> = (0..20).map(|_| made_up(&mut rng)).collect();
        for text in &many {
            client.say(text).await;
        }
        client.send("PING", json!({ "requestId": "end" })).await;
        for text in &many {
            let answer = client.answer().await;
            let kind = answer["type"].as_str().expect("a type");
            assert!(["ERROR", "SUBSCRIBED", "UNSUBSCRIBED", "PONG"].contains(&kind), "{text}: {answer}");
            assert_ne!(answer["payload"]["code"], "Internal", "{text}: {answer}");
        }
        assert_eq!(client.answer().await["payload"]["requestId"], "end");
    }
    client.ask("UNSUBSCRIBE_ALL", json!({}), "UNSUBSCRIBED").await;
    client.subscribe("project", &["1"]).await;
    update(&server, "project", "1").await;
    assert_eq!(ids(&client.changes("project").await), ["1"]);
}
