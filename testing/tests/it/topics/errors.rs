//! Each error, with its details and whether it may pass.

use super::*;

/// The parts of an error that programs read.
fn parts(error: &Value) -> Value {
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
    json!([error["code"], error["retryable"], error["details"]])
}

#[tokio::test]
async fn a_frame_that_is_not_understood_is_answered_and_the_connection_goes_on() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    for (frame, reason) in [
        ("not json", "json"),
        ("", "json"),
        ("{\"type\":\"$list\"", "json"),
        ("[]", "envelope"),
        ("7", "envelope"),
        ("{}", "envelope"),
        (r#"{"type":""}"#, "envelope"),
        (r#"{"type":7}"#, "envelope"),
        (r#"{"type":"$list","meta":7}"#, "envelope"),
        (r#"{"type":"$list","meta":{"correlationId":7}}"#, "envelope"),
        (r#"{"type":"$list","meta":{"correlationId":""}}"#, "envelope"),
        (r#"{"type":"$ws:abort"}"#, "envelope"),
    ] {
        client.say(frame).await;
        let error = client.hear().await;
        assert_eq!((&error["type"], error.get("meta")), (&json!("ERROR"), None), "{frame}");
        let expected = json!(["INVALID_ARGUMENT", false, { "reason": reason }]);
        assert_eq!(parts(&error["payload"]), expected, "{frame}");
    }
    let long = json!({ "type": "x".repeat(129), "meta": { "correlationId": "c" } });
    client.say(long.to_string()).await;
    let error = client.hear().await;
    assert_eq!((&error["type"], &error["meta"]["correlationId"]), (&json!("RPC_ERROR"), &json!("c")));
    assert_eq!(client.list().await, json!([]), "it goes on");
}

#[tokio::test]
async fn a_payload_that_is_not_right_names_its_field() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    for (kind, payload, field) in [
        ("$subscribe", json!({}), "topic"),
        ("$subscribe", json!([]), "payload"),
        ("$subscribe", json!({ "topic": "a", "options": { "timeoutMs": 0 } }), "options.timeoutMs"),
        ("$subscribe", json!({ "topic": "a", "presence": [] }), "presence"),
        ("$subscribe", json!({ "topic": "a", "ttlMs": 0.5 }), "ttlMs"),
        ("$set", json!({ "topics": "a" }), "topics"),
        ("$publish", json!({ "topic": "a" }), "message"),
        ("$publish", json!({ "message": { "type": "T" } }), "topic"),
        ("$publish", json!({ "topic": "a", "message": { "type": "T", "meta": 7 } }), "message.meta"),
        ("$auth", json!({}), "token"),
    ] {
        let error = client.fails(kind, payload.clone()).await;
        let expected = json!(["INVALID_ARGUMENT", false, { "reason": "payload", "field": field }]);
        assert_eq!(parts(&error), expected, "{kind} {payload}");
    }
    client.say(r#"{"type":"$subscribe"}"#).await;
    assert_eq!(client.hear().await["type"], "ERROR", "without an id");
}

#[tokio::test]
async fn too_many_topics_in_one_request_are_refused_as_a_whole() {
    let server = server(|options| options.topics_per_request = 3).await;
    let mut client = Client::connect(&server).await;
    let four = json!(["a", "b", "c", "d"]);
    for (kind, payload) in [
        ("$subscribeMany", json!({ "topics": four })),
        ("$unsubscribeMany", json!({ "topics": four })),
        ("$set", json!({ "topics": four })),
        ("$update", json!({ "add": ["a", "b"], "remove": ["c", "d"] })),
    ] {
        let error = client.fails(kind, payload).await;
        let expected = json!(["INVALID_ARGUMENT", false, { "reason": "too-many-topics", "limit": 3 }]);
        assert_eq!(parts(&error), expected, "{kind}");
    }
    assert_eq!(client.list().await, json!([]));
    let hits = server.metric(r#"tidings_limit_hits_total{limit="topics_per_request"}"#);
    assert_eq!(hits, Some(4.0));
}

#[tokio::test]
async fn a_type_that_is_not_known_is_unimplemented_reserved_or_not() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    for kind in ["$nothing", "__what", "ERROR", "hello", "$reply"] {
        let error = client.fails(kind, json!({})).await;
        assert_eq!(parts(&error), json!(["UNIMPLEMENTED", false, { "type": kind }]), "{kind}");
    }
}

#[tokio::test]
async fn a_topic_is_checked_for_its_length_first_and_then_for_its_characters() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let long = " ".repeat(129);
    for (topic, details) in [
        ("", json!({ "reason": "length", "length": 0, "max": 128 })),
        (&*long, json!({ "reason": "length", "length": 129, "max": 128 })),
        ("no spaces", json!({ "reason": "pattern", "topic": "no spaces" })),
        ("***", json!({ "reason": "pattern", "topic": "***" })),
        ("é", json!({ "reason": "pattern", "topic": "é" })),
        ("nul\0", json!({ "reason": "pattern", "topic": "nul\0" })),
    ] {
        let expected = json!(["INVALID_TOPIC", false, details]);
        let error = client.fails("$subscribe", json!({ "topic": topic })).await;
        assert_eq!(parts(&error), expected, "{topic}");
        let error = client.fails("$subscribeMany", json!({ "topics": ["good", topic] })).await;
        assert_eq!(parts(&error), expected, "{topic}");
        let error = client.fails("$set", json!({ "topics": ["good", topic] })).await;
        assert_eq!(parts(&error), expected, "{topic}");
        let error = client.fails("$update", json!({ "add": [topic] })).await;
        assert_eq!(parts(&error), expected, "{topic}");
        for kind in ["$unsubscribe", "$localStatus"] {
            client.done(kind, json!({ "topic": topic })).await;
        }
        let none = client.done("$unsubscribeMany", json!({ "topics": [topic] })).await;
        assert_eq!(none, json!({ "removed": 0, "total": 0 }), "what is not there can always be removed");
    }
    for topic in ["a", "A.b/c:d_e-f", &"x".repeat(128)] {
        client.subscribe(topic).await;
    }
}

#[tokio::test]
async fn a_connection_subscribes_to_so_many_topics_and_no_more() {
    let server = server(|options| {
        options.rules = options.rules.clone().with_max_per_connection(Some(2));
    })
    .await;
    let mut client = Client::connect(&server).await;
    client.subscribe("a").await;
    let details = json!({ "scope": "connection", "limit": 2, "current": 1, "requested": 2 });
    let error = client.fails("$subscribeMany", json!({ "topics": ["a", "b", "c"] })).await;
    assert_eq!(parts(&error), json!(["TOPIC_LIMIT_EXCEEDED", false, details]));
    assert_eq!(client.list().await, json!(["a"]), "all or nothing");
    client.subscribe("b").await;
    let error = client.fails("$subscribe", json!({ "topic": "c" })).await;
    assert_eq!(error["details"], json!({ "scope": "connection", "limit": 2, "current": 2, "requested": 1 }));
    let error = client.fails("$set", json!({ "topics": ["b", "c", "d"] })).await;
    let details = json!({
        "scope": "connection", "limit": 2, "current": 2, "toAdd": 2, "toRemove": 1, "resulting": 3,
    });
    assert_eq!(parts(&error), json!(["TOPIC_LIMIT_EXCEEDED", false, details]));
    let swapped = client.done("$set", json!({ "topics": ["c", "d"] })).await;
    assert_eq!(swapped, json!({ "added": 2, "removed": 2, "total": 2 }), "swapping at the limit works");
    let swapped = client.done("$update", json!({ "add": ["e"], "remove": ["c"] })).await;
    assert_eq!(swapped["total"], 2);
    let hits = server.metric(r#"tidings_limit_hits_total{limit="topics_per_connection"}"#);
    assert_eq!(hits, Some(3.0));
}

#[tokio::test]
async fn history_is_refused_where_there_is_none() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let error = client.fails("$history", json!({ "topic": "a", "limit": 5 })).await;
    assert_eq!((&error["code"], &error["retryable"]), (&json!("FAILED_PRECONDITION"), &json!(false)));
    let error = client.fails("$history", json!({ "topic": "no spaces" })).await;
    assert_eq!(error["code"], "INVALID_TOPIC");
}

#[tokio::test]
async fn who_sends_too_many_frames_is_told_when_to_send_more() {
    let server = server(|options| {
        options.rate_capacity = 3;
        options.rate_per_second = 2;
    })
    .await;
    let mut client = Client::connect(&server).await;
    for _ in 0..3 {
        client.list().await;
    }
    let error = client.fails("$subscribe", json!({ "topic": "a" })).await;
    assert_eq!((&error["code"], &error["retryable"]), (&json!("RESOURCE_EXHAUSTED"), &json!(true)));
    assert_eq!(error["retryAfterMs"], 500);
    client.say("not json").await;
    assert_eq!(client.hear().await["payload"]["code"], "RESOURCE_EXHAUSTED");
    server.clock.advance(Duration::from_millis(500));
    assert_eq!(client.list().await, json!([]), "what was too much did nothing");
    assert_eq!(client.fails("$list", json!({})).await["retryAfterMs"], 500);
    // Another connection has a bucket of its own.
    Client::connect(&server).await.list().await;
    let hits = server.metric(r#"tidings_limit_hits_total{limit="topic_frame_rate"}"#);
    assert_eq!(hits, Some(3.0));
}

#[tokio::test]
async fn a_failed_request_does_not_fail_the_next() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let bad = client.begin("$subscribe", json!({ "topic": "no spaces" })).await;
    let good = client.begin("$subscribe", json!({ "topic": "a" })).await;
    let worse = client.begin("$set", json!({ "topics": ["b", "no spaces"] })).await;
    let last = client.begin("$list", json!({})).await;
    assert_eq!(client.answer_to(&bad).await.expect_err("bad")["code"], "INVALID_TOPIC");
    assert_eq!(client.answer_to(&good).await, Ok(json!({ "added": 1, "total": 1 })));
    assert_eq!(client.answer_to(&worse).await.expect_err("bad")["code"], "INVALID_TOPIC");
    assert_eq!(client.answer_to(&last).await.expect("listed")["topics"], json!(["a"]));
}

#[tokio::test]
async fn a_handshake_that_is_refused_is_an_http_answer() {
    let server = Harness::start().await;
    let answer = server.get(PATH).await;
    assert_eq!(answer.status(), 426);
    let error: Value = answer.json().await.expect("JSON");
    assert_eq!(error["error"]["code"], "upgrade_required");
    for (path, status) in [("/v1/a%20b/topics", "400"), ("/v1/app/topic", "404")] {
        let refused = Client::at(&server, path, None).await.err().expect("refused");
        assert!(refused.to_string().contains(status), "{path}: {refused}");
    }
}
