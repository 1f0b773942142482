//! What a publish comes to, and what subscribers receive of it.

use super::*;

async fn publish(client: &mut Client, payload: Value) -> Value {
    client.done("$publish", payload).await
}

#[tokio::test]
async fn a_message_reaches_all_who_subscribe_as_it_was_sent() {
    let server = Harness::start().await;
    let mut alice = Client::connect(&server).await;
    let mut bob = Client::connect(&server).await;
    alice.subscribe("chat:1").await;
    bob.subscribe("chat:1").await;
    let message = json!({ "type": "SAID", "meta": { "lang": "en" }, "payload": { "text": "hi" } });
    let result = publish(&mut alice, json!({ "topic": "chat:1", "message": message })).await;
    assert_eq!(result, json!({ "ok": true, "capability": "exact", "matched": 2 }));
    let expected = json!({
        "type": "SAID", "meta": { "lang": "en", "topic": "chat:1" }, "payload": { "text": "hi" },
    });
    for client in [&mut alice, &mut bob] {
        assert_eq!(client.hear().await, expected);
    }
}

#[tokio::test]
async fn digits_nulls_and_absence_survive() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("t").await;
    for payload in [
        r#","payload":18446744073709551615"#,
        r#","payload":-9223372036854775808"#,
        r#","payload":{"big":9007199254740993,"deep":[null,{"x":[]}],"é":"\u00e9"}"#,
        r#","payload":null"#,
        r#","payload":"""#,
        r#","payload":[]"#,
        r#","payload":false"#,
        "",
    ] {
        let frame =
            format!(r#"{{"type":"$publish","payload":{{"topic":"t","message":{{"type":"T"{payload}}}}}}}"#);
        client.say(frame).await;
        let expected = format!(r#"{{"type":"T","meta":{{"topic":"t"}}{payload}}}"#);
        let Some(Ok(Message::Text(heard))) = client.socket.next().await else { panic!("a message") };
        assert_eq!(heard.as_str(), expected, "byte for byte");
    }
}

#[tokio::test]
async fn meta_that_only_the_server_sets_never_comes_from_a_client() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("t").await;
    let meta = json!({
        "topic": "x", "epoch": "e", "offset": 1, "clientId": "c", "receivedAt": 1, "excludeClientId": "c",
        "correlationId": "1", "mine": 1,
    });
    let message = json!({ "type": "T", "meta": meta });
    publish(&mut client, json!({ "topic": "t", "message": message })).await;
    let heard = client.hear().await;
    assert_eq!(heard, json!({ "type": "T", "meta": { "mine": 1, "topic": "t" } }));
    let body = json!({ "type": "T", "meta": { "clientId": "c", "topic": "x" } });
    assert_eq!(post(&server, "t", &body).await.0, 200);
    assert_eq!(client.hear().await["meta"], json!({ "topic": "t" }));
}

#[tokio::test]
async fn whoever_excludes_itself_hears_nothing_of_it_and_is_not_counted() {
    let server = Harness::start().await;
    let mut alice = Client::connect(&server).await;
    let mut bob = Client::connect(&server).await;
    for client in [&mut alice, &mut bob] {
        client.subscribe("t").await;
    }
    let message = |text: &str| json!({ "type": "T", "payload": text });
    let first = json!({ "topic": "t", "message": message("first"), "excludeSelf": true });
    assert_eq!(publish(&mut alice, first).await["matched"], 1);
    let second = json!({ "topic": "t", "message": message("second"), "excludeSelf": false });
    assert_eq!(publish(&mut alice, second).await["matched"], 2);
    assert_eq!(alice.message("t").await, "second", "the first was not for her");
    assert_eq!(bob.message("t").await, "first");
    assert_eq!(bob.message("t").await, "second");
    // Who does not subscribe can be excluded without effect.
    let mut carol = Client::connect(&server).await;
    let third =
        json!({ "topic": "t", "message": message("third"), "excludeSelf": true, "partitionKey": "k" });
    assert_eq!(publish(&mut carol, third).await["matched"], 2);
}

#[tokio::test]
async fn publishing_needs_no_subscription_and_no_subscriber() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let result = client.publish("nobody", json!(1)).await;
    assert_eq!(result, json!({ "ok": true, "capability": "exact", "matched": 0 }));
    assert_eq!(client.list().await, json!([]));
}

#[tokio::test]
async fn a_publish_that_fails_is_answered_with_a_result() {
    let server = server(|options| {
        options.rules = options.rules.clone().with_max_payload_bytes(Some(10));
    })
    .await;
    let mut client = Client::connect(&server).await;
    client.subscribe("t").await;
    let good = json!({ "type": "T" });
    let long = "x".repeat(129);
    for (topic, message, error, details) in [
        ("no spaces", good.clone(), "VALIDATION", json!({ "reason": "pattern", "topic": "no spaces" })),
        ("room:*", good.clone(), "VALIDATION", json!({ "reason": "pattern", "topic": "room:*" })),
        ("", good.clone(), "VALIDATION", json!({ "reason": "length", "length": 0, "max": 128 })),
        ("t", json!({}), "VALIDATION", json!({ "reason": "type" })),
        ("t", json!({ "type": 7 }), "VALIDATION", json!({ "reason": "type" })),
        ("t", json!({ "type": "" }), "VALIDATION", json!({ "reason": "type" })),
        ("t", json!({ "type": long }), "VALIDATION", json!({ "reason": "type" })),
        ("t", json!({ "type": "$x" }), "VALIDATION", json!({ "reason": "type" })),
        ("t", json!({ "type": "__x" }), "VALIDATION", json!({ "reason": "type" })),
        ("t", json!({ "type": "ERROR" }), "VALIDATION", json!({ "reason": "type" })),
        ("t", json!({ "type": "RPC_ERROR" }), "VALIDATION", json!({ "reason": "type" })),
        ("t", json!({ "type": "T", "payload": "123456789" }), "PAYLOAD_TOO_LARGE", json!({ "limit": 10 })),
    ] {
        let result = publish(&mut client, json!({ "topic": topic, "message": message })).await;
        assert_eq!((&result["ok"], &result["error"]), (&json!(false), &json!(error)), "{topic} {message}");
        assert_eq!(
            (&result["retryable"], &result["details"]),
            (&json!(false), &details),
            "{topic} {message}"
        );
        // Without an id it is an error with the same code.
        let frame = json!({ "type": "$publish", "payload": { "topic": topic, "message": message } });
        client.say(frame.to_string()).await;
        let told = client.hear().await;
        assert_eq!((&told["type"], &told["payload"]["code"]), (&json!("ERROR"), &json!(error)));
        assert_eq!((&told["payload"]["details"], &told["payload"]["retryable"]), (&details, &json!(false)));
    }
    client.publish("t", json!("12345678")).await;
    assert_eq!(client.message("t").await, "12345678", "ten bytes as they are sent, and nothing before it");
}

/// A binary frame with this header.
fn binary(header: &Value, body: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    let length = u16::try_from(header.len()).expect("short").to_be_bytes();
    [&length, header.as_bytes(), body].concat()
}

#[tokio::test]
async fn bytes_reach_subscribers_behind_a_header() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("t").await;
    let message = json!({ "type": "DATA", "meta": { "a": 1 }, "payload": "is not looked at" });
    let frame = json!({
        "type": "$publish", "meta": { "correlationId": "b" }, "payload": { "topic": "t", "message": message },
    });
    for body in [&b"\xff\0\xfe"[..], b"", b"{}"] {
        client.say_bytes(binary(&frame, body)).await;
        let reply = client.text().await;
        assert_eq!(reply["payload"], json!({ "ok": true, "capability": "exact", "matched": 1 }));
        let header = json!({ "type": "DATA", "meta": { "a": 1, "topic": "t" } });
        assert_eq!(client.frame().await, Heard::Binary(header, Bytes::copy_from_slice(body)));
    }
}

#[tokio::test]
async fn a_binary_frame_that_is_no_publish_is_refused() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let list = json!({ "type": "$list", "meta": { "correlationId": "c" } });
    for frame in [
        binary(&list, b""),
        vec![],
        vec![0],
        vec![0, 5, b'{'],
        vec![0, 2, 0xff, 0xff],
        b"\0\x02{}".to_vec(),
        b"\0\x02[]".to_vec(),
    ] {
        client.say_bytes(frame.clone()).await;
        let error = client.hear().await;
        let expected = json!({ "reason": "binary" });
        assert_eq!((&error["payload"]["details"]), &expected, "{frame:?}");
        assert_eq!(error["payload"]["code"], "INVALID_ARGUMENT");
    }
}

#[tokio::test]
async fn topics_are_normalized_if_that_is_configured() {
    let server = server(|options| options.normalize = tidings_api::Normalize::Lowercase).await;
    let mut client = Client::connect(&server).await;
    assert_eq!(client.subscribe("Room:A").await, json!({ "added": 1, "total": 1 }));
    assert_eq!(client.subscribe("rOOM:a").await, json!({ "added": 0, "total": 1 }));
    assert_eq!(client.list().await, json!(["room:a"]));
    assert_eq!(client.publish("ROOM:A", json!(1)).await["matched"], 1);
    assert_eq!(client.message("room:a").await, 1);
    assert_eq!(subscribers(&server, "ROOM:a").await, 1);
}

#[tokio::test]
async fn projects_do_not_hear_each_other() {
    let server = Harness::start().await;
    let mut one = Client::at(&server, "/v1/one/topics", None).await.expect("a WebSocket");
    let mut other = Client::at(&server, "/v1/other/topics", None).await.expect("a WebSocket");
    one.subscribe("t").await;
    other.subscribe("t").await;
    assert_eq!(one.publish("t", json!("for one")).await["matched"], 1);
    assert_eq!(other.publish("t", json!("for the other")).await["matched"], 1);
    assert_eq!(one.message("t").await, "for one");
    assert_eq!(other.message("t").await, "for the other");
}
