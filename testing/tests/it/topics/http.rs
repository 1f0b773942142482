//! Publishing and counting over HTTP.

use super::*;

#[tokio::test]
async fn a_backend_publishes_to_all_who_subscribe() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("room/1").await;
    let body = json!({
        "type": "SAID", "meta": { "a": 1 }, "payload": { "text": "hi" }, "excludeSelf": true, "partitionKey": "k",
    });
    let (status, result) = post(&server, "room/1", &body).await;
    assert_eq!((status, result), (200, json!({ "ok": true, "capability": "exact", "matched": 1 })));
    let heard = client.hear().await;
    let expected =
        json!({ "type": "SAID", "meta": { "a": 1, "topic": "room/1" }, "payload": { "text": "hi" } });
    assert_eq!(heard, expected);
    let (_, result) = post(&server, "nobody", &json!({ "type": "T" })).await;
    assert_eq!(result, json!({ "ok": true, "capability": "exact", "matched": 0 }));
}

#[tokio::test]
async fn a_topic_is_the_rest_of_the_path_decoded() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("a:b/c.d").await;
    for path in ["a:b/c.d", "a%3Ab%2Fc.d", "%61:b/c%2ed"] {
        let (status, result) = post(&server, path, &json!({ "type": "T" })).await;
        assert_eq!((status, &result["matched"]), (200, &json!(1)), "{path}");
        assert_eq!(client.hear().await["meta"]["topic"], "a:b/c.d");
        assert_eq!(subscribers(&server, path).await, 1, "{path}");
    }
}

#[tokio::test]
async fn any_other_content_is_bytes_with_a_type_in_the_query() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("t").await;
    for content_type in
        [Some("application/octet-stream"), Some("text/plain"), Some("application/jsonp"), None]
    {
        let mut request = server.post(&format!("{PATH}/t?type=A%20b&x=y")).body(b"\xff\0{".to_vec());
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), 200, "{content_type:?}");
        let header = json!({ "type": "A b", "meta": { "topic": "t" } });
        let expected = Heard::Binary(header, Bytes::from_static(b"\xff\0{"));
        assert_eq!(client.frame().await, expected, "{content_type:?}");
    }
    let request = server.post(&format!("{PATH}/t")).header("content-type", "Application/JSON; charset=utf-8");
    let answer = request.body(r#"{"type":"T"}"#).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    assert_eq!(client.hear().await["type"], "T", "JSON in any case and with parameters");
}

#[tokio::test]
async fn each_failure_has_its_status_and_its_result() {
    let server = server(|options| {
        options.rules = options.rules.clone().with_max_payload_bytes(Some(10));
        options.frame_bytes = 2000;
    })
    .await;
    let json = "application/json";
    let bytes = "application/octet-stream";
    let long = "x".repeat(129);
    let large = format!(r#"{{"type":"T","pad":"{}"}}"#, "x".repeat(2000));
    let limit = json!({ "limit": 10 });
    for (path, content_type, body, status, error, details) in [
        ("a%20b", json, r#"{"type":"T"}"#, 400, "VALIDATION", json!({ "reason": "pattern", "topic": "a b" })),
        ("a*", json, r#"{"type":"T"}"#, 400, "VALIDATION", json!({ "reason": "pattern", "topic": "a*" })),
        (
            &long,
            json,
            r#"{"type":"T"}"#,
            400,
            "VALIDATION",
            json!({ "reason": "length", "length": 129, "max": 128 }),
        ),
        ("t", json, r#"{"type":"$T"}"#, 400, "VALIDATION", json!({ "reason": "type" })),
        ("t", json, "{}", 400, "VALIDATION", json!({ "reason": "type" })),
        ("t", json, "", 400, "VALIDATION", json!({ "reason": "json" })),
        ("t", json, "[]", 400, "VALIDATION", json!({ "reason": "json" })),
        ("t", json, "{", 400, "VALIDATION", json!({ "reason": "json" })),
        (
            "t",
            json,
            r#"{"type":"T","meta":7}"#,
            400,
            "VALIDATION",
            json!({ "reason": "payload", "field": "meta" }),
        ),
        ("t", bytes, "x", 400, "VALIDATION", json!({ "reason": "type" })),
        ("t?type=__x", bytes, "x", 400, "VALIDATION", json!({ "reason": "type" })),
        ("t", json, r#"{"type":"T","payload":"123456789"}"#, 413, "PAYLOAD_TOO_LARGE", limit.clone()),
        ("t", json, &large, 413, "PAYLOAD_TOO_LARGE", limit.clone()),
        ("t?type=T", bytes, "12345678901", 413, "PAYLOAD_TOO_LARGE", limit.clone()),
    ] {
        let request = server.post(&format!("{PATH}/{path}")).header("content-type", content_type);
        let answer = request.body(body.to_owned()).send().await.expect("an answer");
        assert_eq!(answer.status(), status, "{path} {body}");
        let result: Value = answer.json().await.expect("JSON");
        assert_eq!((&result["ok"], &result["error"]), (&json!(false), &json!(error)), "{path} {body}");
        assert_eq!((&result["retryable"], &result["details"]), (&json!(false), &details), "{path} {body}");
    }
    let request = server.post(&format!("{PATH}/t?type=T")).body("1234567890");
    assert_eq!(request.send().await.expect("an answer").status(), 200);
    assert_eq!(server.metric(r#"tidings_limit_hits_total{limit="topic_payload_bytes"}"#), Some(3.0));
}

#[tokio::test]
async fn a_topic_tells_how_many_would_hear_a_message() {
    let server = Harness::start().await;
    assert_eq!(subscribers(&server, "t").await, 0, "a topic that nobody uses");
    let mut clients = Vec::new();
    for n in 1..=3 {
        let mut client = Client::connect(&server).await;
        client.subscribe("t").await;
        clients.push(client);
        assert_eq!(subscribers(&server, "t").await, n);
    }
    clients[0].done("$unsubscribe", json!({ "topic": "t" })).await;
    assert_eq!(subscribers(&server, "t").await, 2);
    let answer = server.get(&format!("{PATH}/a%20b")).await;
    assert_eq!(answer.status(), 400);
    let error: Value = answer.json().await.expect("JSON");
    assert_eq!(error["error"]["code"], "INVALID_TOPIC");
    assert_eq!(error["error"]["details"], json!({ "reason": "pattern", "topic": "a b" }));
    assert_eq!(
        server
            .request(tidings_testing::http::Method::PUT, &format!("{PATH}/t"))
            .send()
            .await
            .expect("an answer")
            .status(),
        405
    );
}

#[tokio::test]
async fn an_empty_topic_is_not_valid() {
    let server = Harness::start().await;
    let details = json!({ "reason": "length", "length": 0, "max": 128 });
    for path in ["", "?type=T"] {
        let (status, result) = post(&server, path, &json!({ "type": "T" })).await;
        assert_eq!((status, &result["error"]), (400, &json!("VALIDATION")), "{path}");
        assert_eq!(result["details"], details, "{path}");
        let answer = server.get(&format!("{PATH}/{path}")).await;
        assert_eq!(answer.status(), 400, "{path}");
        let error: Value = answer.json().await.expect("JSON");
        assert_eq!(error["error"]["code"], "INVALID_TOPIC", "{path}");
        assert_eq!(error["error"]["details"], details, "{path}");
    }
}
