//! What is refused when a subscription is created, and with which words.

use serde_json::{Value, json};

use super::*;

fn with(field: &str, value: Value) -> Value {
    let mut body = json!({ "workerId": "w", "pattern": "a.*", "rpcMethod": "m" });
    body[field] = value;
    body
}

/// The error of a refused request to subscribe.
async fn refused(client: &Client<'_>, body: &Value) -> String {
    let told = client.post("/subscriptions/subscribe", body.clone()).await;
    assert_eq!((told.status, &told.json()["ok"]), (400, &json!(false)), "{body}: {told:?}");
    told.json()["error"].as_str().expect("text").to_owned()
}

#[tokio::test]
async fn a_body_that_is_no_object_is_refused() {
    let server = closed().await;
    let admin = Client::admin(&server);
    for path in ["subscribe", "unsubscribe", "reactivate", "cleanup"] {
        for text in ["", "{", "[]", "null", "7", "\"x\"", "{\"a\":1} x", "\u{feff}{}"] {
            let told = answered(admin.request("POST", &format!("/subscriptions/{path}")).body(text)).await;
            let expected = json!({ "ok": false, "error": "Invalid JSON body" });
            assert_eq!((told.status, told.json()), (400, expected), "{path} {text:?}");
        }
    }
}

#[tokio::test]
async fn required_fields_are_asked_for_in_order() {
    let server = closed().await;
    let admin = Client::admin(&server);
    let all = json!({ "workerId": "w", "pattern": "a", "rpcMethod": "m" });
    let mut body = json!({});
    for field in ["workerId", "pattern", "rpcMethod"] {
        let missing = format!("Missing required field: {field} (string)");
        for value in
            [None, Some(json!(null)), Some(json!("")), Some(json!(7)), Some(json!({})), Some(json!(["w"]))]
        {
            let mut body = body.clone();
            if let Some(value) = value {
                body[field] = value;
            }
            assert_eq!(refused(&admin, &body).await, missing, "{body}");
        }
        body[field] = all[field].clone();
    }
    assert_eq!(admin.post("/subscriptions/subscribe", body).await.status, 200);
    let by_url = json!({ "url": "https://example.com/", "pattern": "a" });
    assert_eq!(admin.post("/subscriptions/subscribe", by_url).await.status, 200);
}

#[tokio::test]
async fn values_of_another_type_are_refused() {
    let server = closed().await;
    let admin = Client::admin(&server);
    for (field, value, expected) in [
        ("maxRetries", json!("5"), "an integer"),
        ("maxRetries", json!(1.5), "an integer"),
        ("maxRetries", json!(true), "an integer"),
        ("maxRetries", json!(null), "an integer"),
        ("timeoutMs", json!("5"), "an integer"),
        ("timeoutMs", json!([1]), "an integer"),
        ("workerBinding", json!(7), "a string"),
        ("url", json!(7), "a string"),
        ("orderingKey", json!(7), "a string"),
        ("rateLimit", json!("7"), "an integer"),
        ("concurrency", json!({}), "an integer"),
        ("format", json!("xml"), "`envelope`, `raw`, `cloudevents-structured` or `cloudevents-binary`"),
        ("ordering", json!("fifo"), "`none`, `subscription` or `key`"),
        ("retrySchedule", json!([-1]), "an array of milliseconds"),
        ("retrySchedule", json!(5), "an array of milliseconds"),
        ("headers", json!([]), "an object of strings"),
        ("headers", json!({ "x": null }), "an object of strings"),
    ] {
        let error = format!("Invalid field: {field} must be {expected}");
        assert_eq!(refused(&admin, &with(field, value.clone())).await, error, "{field} {value}");
    }
    assert_eq!(admin.post("/subscriptions/subscribe", with("maxRetries", json!(3.0))).await.status, 200);
}

#[tokio::test]
async fn values_out_of_range_are_refused() {
    let server = closed().await;
    let admin = Client::admin(&server);
    for (field, value, range) in [
        ("maxRetries", json!(-1), "0 to 100"),
        ("maxRetries", json!(101), "0 to 100"),
        ("timeoutMs", json!(0), "1 to 300000"),
        ("timeoutMs", json!(-1), "1 to 300000"),
        ("timeoutMs", json!(300_001), "1 to 300000"),
        ("timeoutMs", json!(1e30), "1 to 300000"),
        ("concurrency", json!(0), "1 to 256"),
        ("concurrency", json!(257), "1 to 256"),
        ("rateLimit", json!(0), "1 to 1000000"),
    ] {
        let error = format!("Invalid field: {field}: expected {range}, got {value}");
        assert_eq!(refused(&admin, &with(field, value)).await, error);
    }
    for (field, value) in [
        ("workerBinding", json!("")),
        ("workerBinding", json!("x".repeat(129))),
        ("retrySchedule", json!(vec![1; 101])),
        ("retrySchedule", json!([7 * 24 * 60 * 60 * 1000 + 1])),
        ("orderingKey", json!("no-pointer")),
        ("ordering", json!("key")),
        ("filter", json!([])),
        ("filter", json!({ "no-pointer": { "eq": 1 } })),
        ("filter", json!({ "/a": { "like": "x" } })),
        ("filter", json!({ "/a": { "gt": "x" } })),
        ("filter", json!({ "/a": { "eq": "x".repeat(8192) } })),
    ] {
        let error = refused(&admin, &with(field, value.clone())).await;
        assert!(error.starts_with("Invalid field: "), "{field} {value}: {error}");
    }
    for (number, field, value) in [
        (0, "maxRetries", json!(0)),
        (1, "maxRetries", json!(100)),
        (2, "timeoutMs", json!(1)),
        (3, "timeoutMs", json!(300_000)),
        (4, "concurrency", json!(1)),
        (5, "concurrency", json!(256)),
        (6, "rateLimit", json!(1_000_000)),
        (7, "retrySchedule", json!(vec![1; 100])),
    ] {
        let mut body = with(field, value);
        body["workerId"] = format!("w{number}").into();
        assert_eq!(admin.post("/subscriptions/subscribe", body).await.status, 200, "{field}");
    }
}

#[tokio::test]
async fn patterns_are_accepted_and_refused_as_the_list_says() {
    let server = closed().await;
    let admin = Client::admin(&server);
    let long = "x".repeat(256);
    for good in [
        "exact.match",
        "prefix.*",
        "prefix.**",
        "*.middle.*",
        "**",
        "*",
        "webhook.**.push",
        "a.foo*",
        "a.f*r",
        "a.x**y",
        "A-b_1.C",
        "1.2.3.4.5.6.7.8.9.10",
        "*.*.*.*.*",
        "a.b.c.d.*.*.*.*.*",
        &long,
    ] {
        let told = admin.post("/subscriptions/subscribe", with("pattern", json!(good))).await;
        assert_eq!(told.status, 200, "{good}: {told:?}");
    }
    let longer = "x".repeat(257);
    for bad in [
        "a b",
        "a/b",
        "a:b",
        "a?b",
        "ä",
        "a\n",
        "***",
        "a.***.b",
        "a.****",
        ".a",
        "a.",
        ".",
        "a..b",
        "1.2.3.4.5.6.7.8.9.10.11",
        "*.*.*.*.*.*",
        "a.**.*.*.*.*.*",
        &longer,
    ] {
        let error = refused(&admin, &with("pattern", json!(bad))).await;
        assert!(error.starts_with("Invalid pattern: "), "{bad}: {error}");
    }
}

#[tokio::test]
async fn names_of_workers_and_methods_are_accepted_and_refused_as_the_list_says() {
    let server = closed().await;
    let admin = Client::admin(&server);
    let (label, longer) = ("x".repeat(63), "x".repeat(64));
    for good in ["a", "my-worker", "a1-b2", "internal-admin", &label] {
        let told = admin.post("/subscriptions/subscribe", with("workerId", json!(good))).await;
        assert_eq!(told.status, 200, "{good}: {told:?}");
    }
    for bad in ["A", "my_worker", "a.b", "-a", "a-", "a--b", "a b", "a/b", "http://a", "ä", &longer] {
        let error = refused(&admin, &with("workerId", json!(bad))).await;
        assert!(error.starts_with("Invalid workerId: "), "{bad}: {error}");
    }
    let (method, longer) = ("x".repeat(128), "x".repeat(129));
    for good in ["m", "handleGitHubEvent", "a_1", &method] {
        let told = admin.post("/subscriptions/subscribe", with("rpcMethod", json!(good))).await;
        assert_eq!(told.status, 200, "{good}: {told:?}");
    }
    for bad in ["1a", "_a", "a-b", "a.b", "../etc/passwd", "a b", "ä", &longer] {
        let error = refused(&admin, &with("rpcMethod", json!(bad))).await;
        assert!(error.starts_with("Invalid rpcMethod: "), "{bad}: {error}");
    }
}

#[tokio::test]
async fn urls_that_are_no_targets_are_refused() {
    let server = closed().await;
    let admin = Client::admin(&server);
    for bad in [
        "",
        "example.com",
        "ftp://example.com/",
        "file:///etc/passwd",
        "https://",
        "https://user:secret@example.com/",
        "https://user@example.com/",
        "javascript:alert(1)",
    ] {
        let error = refused(&admin, &with("url", json!(bad))).await;
        assert!(error.starts_with("Invalid url: "), "{bad}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
    for forbidden in [
        "http://127.0.0.1:9000/",
        "https://10.0.0.1/",
        "https://169.254.169.254/latest/meta-data/",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://[fd00::1]/",
        "http://0.0.0.0/",
    ] {
        let error = refused(&admin, &with("url", json!(forbidden))).await;
        assert!(error.starts_with("Invalid url: target not allowed: "), "{forbidden}: {error}");
    }
    for odd in ["http://2130706433/", "http://0x7f.1/", "http://127.1/", "http://0177.0.0.1/"] {
        let error = refused(&admin, &with("url", json!(odd))).await;
        assert!(error.starts_with("Invalid url: "), "{odd}: {error}");
    }
}

#[tokio::test]
async fn headers_that_a_client_may_not_choose_are_refused() {
    let server = closed().await;
    let admin = Client::admin(&server);
    for (name, value) in [
        ("host", "a.example"),
        ("connection", "close"),
        ("Transfer-Encoding", "chunked"),
        ("te", "trailers"),
        ("upgrade", "h2c"),
        ("content-length", "1"),
        ("Content-Type", "text/plain"),
        ("webhook-id", "1"),
        ("webhook-signature", "v1,x"),
        ("x-a", "a\r\nx-b: c"),
        ("x-a", "a\nb"),
        ("x-a\r\n", "a"),
        ("x a", "a"),
        ("", "a"),
    ] {
        let error = refused(&admin, &with("headers", json!({ name: value }))).await;
        assert!(error.starts_with("Invalid field: headers: "), "{name:?}: {value:?}: {error}");
        assert!(!error.contains("x-b: c"), "{error}");
    }
    let many: serde_json::Map<String, Value> = (0..33).map(|n| (format!("x-{n}"), json!("v"))).collect();
    refused(&admin, &with("headers", Value::Object(many))).await;
    refused(&admin, &with("headers", json!({ "x-a": "v".repeat(8 * 1024) }))).await;
}

#[tokio::test]
async fn without_a_target_template_a_url_is_required() {
    let mut setup = tidings_testing::Setup::default();
    setup.hooks.hooks.target_template = String::new();
    let server = closed_with(setup).await;
    let admin = Client::admin(&server);
    let error = refused(&admin, &with("maxRetries", json!(1))).await;
    assert!(error.starts_with("Invalid url: "), "{error}");
    let told = admin.post("/subscriptions/subscribe", with("url", json!("https://example.com/"))).await;
    assert_eq!(told.status, 200);
}

#[tokio::test]
async fn a_project_has_a_maximum_number_of_subscriptions() {
    let mut setup = tidings_testing::Setup::default();
    setup.hooks.hooks.max_per_project = 2;
    let server = closed_with(setup).await;
    let acme = Client::of(&server, "acme");
    acme.subscribes("a", "x").await;
    let second = acme.subscribes("b", "x").await;
    let body = json!({ "workerId": "c", "pattern": "x", "rpcMethod": "handle" });
    let told = acme.post("/subscriptions/subscribe", body.clone()).await;
    assert_eq!((told.status, &told.json()["ok"]), (429, &json!(false)));
    let told = acme.post("/v1/acme/hooks", body.clone()).await;
    assert_eq!((told.status, &told.json()["error"]["code"]), (429, &json!("too_many_hooks")));
    Client::of(&server, "beta").subscribes("a", "x").await;
    assert_eq!(answered(acme.request("DELETE", &format!("/subscriptions/{second}"))).await.status, 200);
    assert_eq!(acme.post("/subscriptions/subscribe", body).await.status, 200);
}
