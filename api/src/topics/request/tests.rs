use serde_json::{Value, json};

use super::*;

fn parse(text: &str) -> Result<Request<'_>, WireError> {
    let envelope = Envelope::of_text(text).expect("an envelope");
    // What is borrowed is the text, not the envelope.
    Request::parse(&envelope, 3)
}

fn asked(kind: &str, payload: &Value) -> String {
    json!({ "type": kind, "meta": { "correlationId": "c" }, "payload": payload }).to_string()
}

fn details(text: &str) -> Value {
    let error = parse(text).expect_err(text);
    assert!(!error.message.is_empty() && !error.retryable);
    json!([error.code, error.details])
}

#[test]
fn each_request_is_parsed_with_all_it_may_have() {
    let millis = |ms| Some(Duration::from_millis(ms));
    let options = json!({ "waitFor": "settled", "timeoutMs": 5, "verify": "strict" });
    let read = Options { wait_for: WaitFor::Settled, timeout: millis(5), verify: Verify::Strict, ttl: None };
    let position = json!({ "epoch": "e", "offset": 4 });
    let since = tidings_topics::Since { epoch: "e".to_owned(), offset: 4 };
    let none = Options::default();
    for (kind, payload, expected) in [
        (
            "$subscribe",
            json!({ "topic": "a", "options": options, "recover": position }),
            Request::Subscribe {
                topic: "a".into(),
                options: read,
                recover: Some(since.clone()),
                presence: None,
            },
        ),
        (
            "$subscribe",
            json!({ "topic": "", "more": 1 }),
            Request::Subscribe { topic: "".into(), options: none, recover: None, presence: None },
        ),
        ("$unsubscribe", json!({ "topic": "a" }), Request::Unsubscribe { topic: "a".into(), options: none }),
        (
            "$subscribeMany",
            json!({ "topics": ["a", "b"], "recover": { "b": position } }),
            Request::SubscribeMany {
                topics: vec!["a".into(), "b".into()],
                options: none,
                recover: vec![("b".into(), since.clone())],
            },
        ),
        (
            "$unsubscribeMany",
            json!({ "topics": [], "options": {} }),
            Request::UnsubscribeMany { topics: vec![], options: none },
        ),
        ("$clear", json!({ "options": options }), Request::Clear { options: read }),
        (
            "$set",
            json!({ "topics": ["a"] }),
            Request::Set { topics: vec!["a".into()], options: none, recover: vec![] },
        ),
        (
            "$update",
            json!({ "add": ["a"], "remove": ["b"] }),
            Request::Update { add: vec!["a".into()], remove: vec!["b".into()], options: none },
        ),
        ("$update", json!({}), Request::Update { add: vec![], remove: vec![], options: none }),
        (
            "$settle",
            json!({ "topic": "a", "timeoutMs": 60_000 }),
            Request::Settle { topic: Some("a".into()), timeout: millis(60_000) },
        ),
        (
            "$verify",
            json!({ "topic": "a" }),
            Request::Verify { topic: "a".into(), mode: VerifyMode::BestEffort },
        ),
        (
            "$verify",
            json!({ "topic": "a", "mode": "strict" }),
            Request::Verify { topic: "a".into(), mode: VerifyMode::Strict },
        ),
        ("$localStatus", json!({ "topic": "a" }), Request::LocalStatus { topic: "a".into() }),
        ("$list", json!({}), Request::List),
        (
            "$history",
            json!({ "topic": "a", "since": position, "limit": 9 }),
            Request::History { topic: "a".into(), since: Some(since), limit: Some(9) },
        ),
        ("$auth", json!({ "token": "t" }), Request::Auth { token: "t".into() }),
        ("$ws:abort", json!({}), Request::Abort { correlation_id: "c".into() }),
        ("__heartbeat", json!(7), Request::Heartbeat),
    ] {
        assert_eq!(parse(&asked(kind, &payload)).as_ref(), Ok(&expected), "{kind} {payload}");
    }
    for (kind, expected) in [
        ("$list", Request::List),
        ("$clear", Request::Clear { options: none }),
        ("$settle", Request::Settle { topic: None, timeout: None }),
    ] {
        assert_eq!(parse(&format!(r#"{{"type":"{kind}"}}"#)), Ok(expected), "{kind} without a payload");
    }
}

#[test]
fn an_odd_field_is_named() {
    let topic = |more: Value| {
        let mut payload = json!({ "topic": "a" });
        payload.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        payload
    };
    for (kind, payload, field) in [
        ("$subscribe", json!({}), "topic"),
        ("$subscribe", json!(7), "payload"),
        ("$subscribe", json!(null), "payload"),
        ("$subscribe", json!([]), "payload"),
        ("$subscribe", json!({ "topic": 7 }), "topic"),
        ("$subscribe", json!({ "topic": null }), "topic"),
        ("$subscribe", topic(json!({ "options": 7 })), "options"),
        ("$subscribe", topic(json!({ "options": null })), "options"),
        ("$subscribe", topic(json!({ "options": { "waitFor": "later" } })), "options.waitFor"),
        ("$subscribe", topic(json!({ "options": { "waitFor": null } })), "options.waitFor"),
        ("$subscribe", topic(json!({ "options": { "verify": true } })), "options.verify"),
        ("$subscribe", topic(json!({ "options": { "timeoutMs": 0 } })), "options.timeoutMs"),
        ("$subscribe", topic(json!({ "options": { "timeoutMs": 60_001 } })), "options.timeoutMs"),
        ("$subscribe", topic(json!({ "options": { "timeoutMs": 1.5 } })), "options.timeoutMs"),
        ("$subscribe", topic(json!({ "options": { "timeoutMs": "5" } })), "options.timeoutMs"),
        ("$subscribe", topic(json!({ "recover": true })), "recover"),
        ("$subscribe", topic(json!({ "recover": { "epoch": "e" } })), "recover"),
        ("$subscribe", topic(json!({ "recover": { "epoch": 1, "offset": 1 } })), "recover"),
        ("$subscribe", topic(json!({ "presence": 7 })), "presence"),
        ("$subscribe", topic(json!({ "ttlMs": 0 })), "ttlMs"),
        ("$unsubscribe", json!({}), "topic"),
        ("$subscribeMany", json!({}), "topics"),
        ("$subscribeMany", json!({ "topics": "a" }), "topics"),
        ("$subscribeMany", json!({ "topics": ["a", 7] }), "topics"),
        ("$subscribeMany", json!({ "topics": ["a"], "recover": { "a": 7 } }), "recover"),
        ("$unsubscribeMany", json!({ "topics": null }), "topics"),
        ("$clear", json!({ "options": [] }), "options"),
        ("$set", json!({}), "topics"),
        ("$set", json!({ "topics": [], "recover": [] }), "recover"),
        ("$update", json!({ "add": 7 }), "add"),
        ("$update", json!({ "remove": [[]] }), "remove"),
        ("$settle", json!({ "topic": 7 }), "topic"),
        ("$settle", json!({ "timeoutMs": -1 }), "timeoutMs"),
        ("$verify", json!({}), "topic"),
        ("$verify", topic(json!({ "mode": "off" })), "mode"),
        ("$localStatus", json!({}), "topic"),
        ("$list", json!([]), "payload"),
        ("$publish", json!({}), "topic"),
        ("$publish", topic(json!({})), "message"),
        ("$publish", topic(json!({ "message": [] })), "message"),
        ("$publish", topic(json!({ "message": { "type": "T", "meta": 7 } })), "message.meta"),
        ("$publish", topic(json!({ "message": { "type": "T", "meta": null } })), "message.meta"),
        ("$publish", topic(json!({ "message": {}, "excludeSelf": 1 })), "excludeSelf"),
        ("$publish", topic(json!({ "message": {}, "partitionKey": 1 })), "partitionKey"),
        ("$publish", topic(json!({ "message": {}, "partitionKey": "k".repeat(257) })), "partitionKey"),
        ("$history", topic(json!({ "since": 7 })), "since"),
        ("$history", topic(json!({ "limit": 0 })), "limit"),
        ("$auth", json!({}), "token"),
    ] {
        let expected = json!(["INVALID_ARGUMENT", { "reason": "payload", "field": field }]);
        assert_eq!(details(&asked(kind, &payload)), expected, "{kind} {payload}");
    }
}

#[test]
fn a_request_names_so_many_topics_and_no_more() {
    let expected = json!(["INVALID_ARGUMENT", { "reason": "too-many-topics", "limit": 3 }]);
    let four = json!(["a", "a", "a", "a"]);
    for kind in ["$subscribeMany", "$unsubscribeMany", "$set"] {
        assert_eq!(details(&asked(kind, &json!({ "topics": four }))), expected, "{kind}");
        assert!(parse(&asked(kind, &json!({ "topics": ["a", "b", "c"] }))).is_ok());
    }
    for payload in [json!({ "add": four }), json!({ "add": ["a", "b"], "remove": ["c", "d"] })] {
        assert_eq!(details(&asked("$update", &payload)), expected, "{payload}");
    }
}

#[test]
fn a_type_that_is_not_known_is_told() {
    for kind in ["$unknown", "hello", "__heartbeats", "ERROR", "RPC_ERROR", "$reply", "$hello"] {
        let expected = json!(["UNIMPLEMENTED", { "type": kind }]);
        assert_eq!(details(&asked(kind, &json!({}))), expected, "{kind}");
    }
}

#[test]
fn an_abort_names_a_request() {
    let error = parse(r#"{"type":"$ws:abort"}"#).expect_err("no id");
    assert_eq!(error.details, Some(json!({ "reason": "envelope" })));
}

fn publish(payload: &str) -> Publish<'_> {
    let payload: &RawValue = serde_json::from_str(payload).expect("JSON");
    Publish::parse(Some(payload), None).expect("good")
}

#[test]
fn a_payload_is_left_as_it_was_sent() {
    for (sent, kept) in [
        (r#""payload": 18446744073709551615"#, Some("18446744073709551615")),
        (r#""payload": {"a" : [1.50, null]}"#, Some(r#"{"a" : [1.50, null]}"#)),
        (r#""payload": null"#, Some("null")),
        (r#""other": 1"#, None),
    ] {
        let payload = format!(r#"{{"topic":"t","message":{{"type":"T",{sent}}},"excludeSelf":true}}"#);
        let publish = publish(&payload);
        assert!(publish.exclude_self);
        let found = match publish.message.payload {
            Payload::Json(value) => Some(value.get()),
            Payload::None => None,
            Payload::Bytes(_) => panic!("bytes"),
        };
        assert_eq!(found, kept);
    }
}

#[test]
fn a_type_that_cannot_be_published_is_no_type() {
    for kind in ["$x", "__x", "ERROR", "RPC_ERROR", "", &"x".repeat(129)] {
        let payload = json!({ "topic": "t", "message": { "type": kind } }).to_string();
        assert_eq!(publish(&payload).message.kind, None, "{kind}");
    }
    for kind in ["x$", "_x", "ERRORS", "error", &"é".repeat(128)] {
        let payload = json!({ "topic": "t", "message": { "type": kind } }).to_string();
        assert_eq!(publish(&payload).message.kind.as_deref(), Some(kind));
    }
    assert_eq!(publish(r#"{"topic":"t","message":{"type":7}}"#).message.kind, None);
    assert_eq!(publish(r#"{"topic":"t","message":{}}"#).message.kind, None);
}

#[test]
fn only_a_publish_can_be_binary_and_its_payload_is_the_bytes() {
    let envelope = Envelope::of_text(r#"{"type":"$list"}"#).expect("good");
    let error = Request::parse_binary(&envelope, b"x").expect_err("no publish");
    assert_eq!(error.details, Some(json!({ "reason": "binary" })));
    let text = r#"{"type":"$publish","payload":{"topic":"t","message":{"type":"T","payload":1}}}"#;
    let envelope = Envelope::of_text(text).expect("good");
    let Ok(Request::Publish(publish)) = Request::parse_binary(&envelope, b"\xff") else { panic!("refused") };
    assert!(matches!(publish.message.payload, Payload::Bytes(b"\xff")));
}

#[test]
fn a_body_of_a_publish_is_a_message() {
    let body = HttpPublish::parse(r#"{"type":"T","payload":1,"excludeSelf":true,"partitionKey":"k"}"#);
    let body = body.expect("good");
    assert_eq!((body.message.kind.as_deref(), body.partition_key.as_deref()), (Some("T"), Some("k")));
    assert!(matches!(body.message.payload, Payload::Json(value) if value.get() == "1"));
    for (bad, reason) in [
        ("", "json"),
        ("[]", "json"),
        ("{", "json"),
        (r#"{"type":"T","meta":[]}"#, "payload"),
        (r#"{"type":"T","excludeSelf":0}"#, "payload"),
    ] {
        let error = HttpPublish::parse(bad).expect_err(bad);
        assert_eq!(error.details.expect("details")["reason"], reason, "{bad}");
    }
}
