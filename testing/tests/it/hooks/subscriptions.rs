//! `/subscriptions` row by row: what each request answers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tidings_testing::Harness;

use super::*;

fn wanted() -> Value {
    json!({ "workerId": "my-worker", "pattern": "webhook.github.*", "rpcMethod": "handleGitHubEvent" })
}

#[tokio::test]
async fn a_subscription_is_created_and_shown_with_all_fields_and_defaults() {
    let server = closed().await;
    let admin = Client::admin(&server);
    let told = admin.post("/subscriptions/subscribe", wanted()).await;
    assert_eq!((told.status, told.header("content-type")), (200, Some("application/json")));
    assert_eq!(told.header("cache-control"), Some("no-store"), "it has a secret");
    let mut created = told.json();
    let (id, secret) = (created["subscriptionId"].take(), created["secret"].take());
    assert!(is_id(&id), "{id}");
    let bytes =
        secret.as_str().and_then(|secret| secret.strip_prefix("whsec_")).map(|text| STANDARD.decode(text));
    assert!(matches!(bytes, Some(Ok(bytes)) if (24..=64).contains(&bytes.len())), "{secret}");
    let expected = json!({
        "ok": true, "subscriptionId": null, "shard": "webhook", "namespace": null, "dynamicSharding": false,
        "secret": null,
    });
    assert_eq!(created, expected);
    let id = id.as_str().expect("text");
    let shown = admin.gets(&format!("/subscriptions/{id}")).await;
    let now = 1_763_294_400_123u64;
    let expected = json!({ "subscription": {
        "id": id, "workerId": "my-worker", "workerBinding": null, "pattern": "webhook.github.*",
        "patternPrefix": "webhook.github", "rpcMethod": "handleGitHubEvent", "maxRetries": 5, "timeoutMs": 30000,
        "active": true, "createdAt": now, "updatedAt": now, "batchEnabled": false, "batchSize": 100,
        "batchWindowMs": 1000, "namespace": null, "format": "envelope", "retrySchedule": [], "ordering": "none",
        "concurrency": 32, "headerNames": [],
    }});
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn every_setting_that_is_sent_is_shown() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let body = json!({
        "url": "https://example.com/in?x=1", "pattern": "**", "workerBinding": "LOCAL", "maxRetries": 0,
        "timeoutMs": 300_000, "format": "cloudevents-binary", "retrySchedule": [10, 2000], "ordering": "key",
        "orderingKey": "/user/id", "rateLimit": 7, "concurrency": 1, "filter": { "/amount": { "gt": 100 } },
        "headers": { "x-one": "1", "authorization": "Bearer of-the-endpoint" }, "unknown": "is ignored",
    });
    let created = acme.post("/subscriptions/subscribe", body).await;
    assert_eq!(created.status, 200, "{created:?}");
    assert_eq!(
        (&created.json()["shard"], &created.json()["namespace"]),
        (&json!("acme:default"), &json!("acme"))
    );
    let id = created.json()["subscriptionId"].as_str().expect("an id").to_owned();
    let shown = acme.gets(&format!("/subscriptions/{id}")).await["subscription"].clone();
    for (field, value) in [
        ("url", json!("https://example.com/in?x=1")),
        ("workerId", json!(null)),
        ("rpcMethod", json!(null)),
        ("workerBinding", json!("LOCAL")),
        ("pattern", json!("**")),
        ("patternPrefix", json!("")),
        ("maxRetries", json!(0)),
        ("timeoutMs", json!(300_000)),
        ("format", json!("cloudevents-binary")),
        ("retrySchedule", json!([10, 2000])),
        ("ordering", json!("key")),
        ("orderingKey", json!("/user/id")),
        ("rateLimit", json!(7)),
        ("concurrency", json!(1)),
        ("filter", json!({ "/amount": { "gt": 100 } })),
        ("namespace", json!("acme")),
    ] {
        assert_eq!(shown[field], value, "{field}");
    }
    let names = shown["headerNames"].as_array().expect("an array");
    assert!(names.len() == 2 && names.contains(&json!("x-one")) && names.contains(&json!("authorization")));
}

#[tokio::test]
async fn a_shard_is_a_known_first_segment_or_default_with_the_namespace_before_it() {
    let server = closed().await;
    let (admin, acme) = (Client::admin(&server), Client::of(&server, "acme"));
    for (pattern, shard) in [
        ("collection.users.insert", "collection"),
        ("webhook.github.push", "webhook"),
        ("rpc.UserService.getUser", "rpc"),
        ("ws.connect", "ws"),
        ("do.created", "do"),
        ("custom.my-event", "default"),
        ("**", "default"),
        ("*.x", "default"),
    ] {
        let body = json!({ "workerId": "w", "pattern": pattern, "rpcMethod": "m" });
        let of = async |client: &Client<'_>| {
            client.post("/subscriptions/subscribe", body.clone()).await.json()["shard"].clone()
        };
        assert_eq!(of(&admin).await, shard);
        assert_eq!(of(&acme).await, format!("acme:{shard}"));
    }
}

#[tokio::test]
async fn the_same_worker_pattern_and_method_is_subscribed_once() {
    let server = closed().await;
    let admin = Client::admin(&server);
    assert_eq!(admin.post("/subscriptions/subscribe", wanted()).await.status, 200);
    let mut again = wanted();
    again["maxRetries"] = 9.into();
    let again = admin.post("/subscriptions/subscribe", again).await;
    let error = "Subscription already exists for this worker/pattern/method combination";
    assert_eq!((again.status, again.json()), (400, json!({ "ok": false, "error": error })));
    for (field, value) in [
        ("workerId", "other"),
        ("pattern", "webhook.**"),
        ("rpcMethod", "other"),
        ("url", "https://a.example/"),
    ] {
        let mut other = wanted();
        other[field] = value.into();
        assert_eq!(admin.post("/subscriptions/subscribe", other).await.status, 200, "{field}");
    }
    assert_eq!(Client::of(&server, "acme").post("/subscriptions/subscribe", wanted()).await.status, 200);
    let mut by_url = wanted();
    by_url["url"] = "https://a.example/".into();
    by_url["workerId"] = "whoever".into();
    let by_url = admin.post("/subscriptions/subscribe", by_url).await;
    assert_eq!(by_url.status, 400, "the URL counts instead of the worker: {by_url:?}");
}

#[tokio::test]
async fn lists_are_newest_first_filtered_and_paged() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let mut made = Vec::new();
    for (worker, pattern) in [
        ("one", "webhook.github.push"),
        ("two", "webhook.**"),
        ("one", "orders.paid"),
        ("one", "rpc.*"),
        ("two", "**"),
    ] {
        made.push(acme.subscribes(worker, pattern).await);
        server.clock.advance(std::time::Duration::from_millis(1));
    }
    made.reverse();
    let [all, rpc, paid, webhooks, push] = made.try_into().expect("five");
    let newest_first = vec![all.clone(), rpc.clone(), paid.clone(), webhooks.clone(), push.clone()];
    assert_eq!(acme.lists("").await, newest_first);
    let off = acme.post("/subscriptions/unsubscribe", json!({ "subscriptionId": paid })).await;
    assert_eq!(off.status, 200);
    for (query, expected) in [
        ("?active=true", vec![&all, &rpc, &webhooks, &push]),
        ("?active=false", vec![&paid]),
        ("?workerId=two", vec![&all, &webhooks]),
        ("?workerId=nobody", vec![]),
        ("?workerId=", newest_first.iter().collect()),
        ("?patternPrefix=webhook", vec![&webhooks, &push]),
        ("?patternPrefix=webh", vec![&webhooks, &push]),
        ("?patternPrefix=webhook.g", vec![&push]),
        ("?patternPrefix=rpc.", vec![]),
        ("?shard=webhook", vec![&webhooks, &push]),
        ("?shard=acme:webhook", vec![&webhooks, &push]),
        ("?shard=beta:webhook", vec![]),
        ("?shard=default&active=true", vec![&all]),
        ("?limit=2", vec![&all, &rpc]),
        ("?limit=2&offset=1", vec![&rpc, &paid]),
        ("?offset=3", vec![&webhooks, &push]),
        ("?offset=5", vec![]),
        ("?workerId=one&limit=1&offset=1", vec![&paid]),
        ("?unknown=1", newest_first.iter().collect()),
    ] {
        let expected: Vec<String> = expected.into_iter().cloned().collect();
        assert_eq!(acme.lists(query).await, expected, "{query}");
    }
    let whole = acme.gets("/subscriptions/list").await;
    assert_eq!((&whole["namespace"], whole.get("shard")), (&json!("acme"), None));
    assert_eq!(whole["subscriptions"][4]["_shard"], "acme:webhook");
    let of_shard = acme.gets("/subscriptions/list?shard=webhook").await;
    assert_eq!(of_shard["shard"], "acme:webhook");
    assert_eq!(of_shard["subscriptions"][0].get("_shard"), None);
    let mut paged = Vec::new();
    for offset in 0..5 {
        paged.extend(acme.lists(&format!("?limit=1&offset={offset}")).await);
    }
    assert_eq!(paged, newest_first, "each exactly once, whatever their shards");
    for bad in [
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=x",
        "limit=",
        "offset=-1",
        "offset=x",
        "active=maybe",
        "limit=1&limit=2",
    ] {
        let told = acme.get(&format!("/subscriptions/list?{bad}")).await;
        assert_eq!((told.status, &told.json()["ok"]), (400, &json!(false)), "{bad}: {told:?}");
    }
}

#[tokio::test]
async fn a_list_has_100_entries_unless_it_is_asked_for_more() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    for n in 0..101 {
        acme.subscribes(&format!("w{n}"), "a").await;
    }
    assert_eq!(acme.lists("").await.len(), 100);
    assert_eq!(acme.lists("?limit=1000").await.len(), 101);
    assert_eq!(acme.lists("?offset=100").await.len(), 1);
}

#[tokio::test]
async fn a_subscription_is_deactivated_and_reactivated() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let id = acme.subscribes("w", "a.*").await;
    let matching = async || ids(&acme.gets("/subscriptions/match?eventType=a.b").await["subscriptions"]);
    assert_eq!(matching().await, std::slice::from_ref(&id));
    for (verb, active) in
        [("unsubscribe", false), ("unsubscribe", false), ("reactivate", true), ("reactivate", true)]
    {
        for body in
            [json!({ "subscriptionId": id }), json!({ "subscriptionId": id, "shard": "acme:default" })]
        {
            let told = acme.post(&format!("/subscriptions/{verb}"), body).await;
            assert_eq!((told.status, told.json()), (200, json!({ "ok": true })), "{verb}");
        }
        let shown = acme.gets(&format!("/subscriptions/{id}")).await;
        assert_eq!(shown["subscription"]["active"], active, "{verb}");
        let status = acme.gets(&format!("/subscriptions/status/{id}")).await;
        assert_eq!(status["subscription"]["active"], active, "{verb}");
        let listed = acme.gets("/subscriptions/list").await;
        assert_eq!(listed["subscriptions"][0]["active"], active, "{verb}");
        assert_eq!(matching().await.len(), usize::from(active));
    }
    for verb in ["unsubscribe", "reactivate"] {
        let path = format!("/subscriptions/{verb}");
        for body in [json!({}), json!({ "subscriptionId": 7 }), json!({ "subscriptionId": "" })] {
            let told = acme.post(&path, body).await;
            let error = "Missing required field: subscriptionId (string)";
            assert_eq!((told.status, told.json()), (400, json!({ "ok": false, "error": error })));
        }
        for id in [NOBODY, "nonsense"] {
            for body in [json!({ "subscriptionId": id }), json!({ "subscriptionId": id, "shard": "default" })]
            {
                let told = acme.post(&path, body).await;
                let error = "Subscription not found";
                assert_eq!((told.status, told.json()), (404, json!({ "ok": false, "error": error })));
            }
        }
    }
}

#[tokio::test]
async fn reactivation_counts_the_missed_events_only_if_it_is_asked_to_replay_them() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let id = acme.subscribes("w", "a.*").await;
    let off = async || acme.post("/subscriptions/unsubscribe", json!({ "subscriptionId": id })).await;
    let on = async |replay: Value| {
        acme.post("/subscriptions/reactivate", json!({ "subscriptionId": id, "replay": replay })).await.json()
    };
    assert_eq!(off().await.status, 200);
    acme.ingests(json!([event("a.1"), event("a.2"), event("b.1")])).await;
    assert_eq!(on(json!(false)).await, json!({ "ok": true }));
    let pending = async || {
        acme.gets(&format!("/subscriptions/status/{id}")).await["stats"]["pendingDeliveries"].clone()
    };
    assert_eq!(pending().await, 0, "nothing old is sent");
    assert_eq!(off().await.status, 200);
    acme.ingests(json!([event("a.3"), event("b.2")])).await;
    assert_eq!(on(json!(true)).await, json!({ "ok": true, "events": 1 }));
    let told = acme.post("/subscriptions/reactivate", json!({ "subscriptionId": id, "replay": 1 })).await;
    assert_eq!(told.status, 400);
}

#[tokio::test]
async fn settings_are_changed_one_by_one_and_the_pattern_never() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let id = acme.subscribes("w", "a.*").await;
    let path = format!("/subscriptions/{id}");
    let shown = async || acme.gets(&path).await["subscription"].clone();
    let before = shown().await;
    server.clock.advance(std::time::Duration::from_secs(1));
    let body = json!({ "maxRetries": 9, "timeoutMs": 1, "rpcMethod": "other", "unknown": 1 });
    let told = acme.send("PUT", &path, body).await;
    assert_eq!((told.status, told.json()), (200, json!({ "ok": true })));
    let after = shown().await;
    let mut expected = before.clone();
    for (field, value) in [
        ("maxRetries", json!(9)),
        ("timeoutMs", json!(1)),
        ("rpcMethod", json!("other")),
        ("updatedAt", after["updatedAt"].clone()),
    ] {
        expected[field] = value;
    }
    assert_eq!(after, expected);
    assert!(after["updatedAt"].as_u64() > before["updatedAt"].as_u64());
    for (field, value, shown_as) in [
        ("url", json!("https://b.example/"), json!("https://b.example/")),
        ("workerId", json!("v"), json!("v")),
        ("workerBinding", json!("B"), json!("B")),
        ("workerBinding", json!(null), json!(null)),
        ("format", json!("raw"), json!("raw")),
        ("retrySchedule", json!([5]), json!([5])),
        ("ordering", json!("subscription"), json!("subscription")),
        ("orderingKey", json!("/k"), json!("/k")),
        ("rateLimit", json!(3), json!(3)),
        ("rateLimit", json!(null), json!(null)),
        ("concurrency", json!(2), json!(2)),
        ("concurrency", json!(null), json!(32)),
        ("filter", json!({ "/a": { "exists": true } }), json!({ "/a": { "exists": true } })),
        ("url", json!(null), json!(null)),
        ("headers", json!({ "x-a": "1" }), Value::Null),
    ] {
        let told = acme.send("PUT", &path, json!({ field: value })).await;
        assert_eq!(told.status, 200, "{field}: {told:?}");
        assert_eq!(shown().await[field], shown_as, "{field}");
    }
    assert_eq!(shown().await["headerNames"], json!(["x-a"]));
    let before = shown().await;
    for (body, error) in [
        (json!({ "pattern": "a.*" }), "Invalid field: pattern cannot be changed"),
        (json!({ "maxRetries": "5" }), "Invalid field: maxRetries must be an integer"),
        (json!({ "maxRetries": null }), "Invalid field: maxRetries must be an integer"),
        (json!({ "timeoutMs": 1.5 }), "Invalid field: timeoutMs must be an integer"),
        (json!({ "rpcMethod": 7 }), "Invalid field: rpcMethod must be a string"),
        (json!({ "timeoutMs": 0 }), "Invalid field: timeoutMs: expected 1 to 300000, got 0"),
        (json!({ "maxRetries": -1 }), "Invalid field: maxRetries: expected 0 to 100, got -1"),
    ] {
        let told = acme.send("PUT", &path, body.clone()).await;
        assert_eq!((told.status, told.json()), (400, json!({ "ok": false, "error": error })), "{body}");
        let unknown = acme.send("PUT", &format!("/subscriptions/{NOBODY}"), body).await;
        assert_eq!(unknown.status, 400, "what is wrong with the body comes first");
    }
    let both = json!({ "timeoutMs": 77, "maxRetries": 101 });
    assert_eq!(acme.send("PUT", &path, both).await.status, 400, "all or nothing");
    let method = acme.send("PUT", &path, json!({ "rpcMethod": "a-b" })).await;
    let error = method.json()["error"].as_str().expect("text").to_owned();
    assert!(method.status == 400 && error.starts_with("Invalid rpcMethod: "), "{method:?}");
    let unknown = acme.send("PUT", &format!("/subscriptions/{NOBODY}"), json!({})).await;
    assert_eq!((unknown.status, &unknown.json()["error"]), (404, &json!("Subscription not found")));
    for text in ["", "[]", "7", "{", "null"] {
        let told = answered(acme.request("PUT", &path).body(text)).await;
        assert_eq!((told.status, &told.json()["error"]), (400, &json!("Invalid JSON body")), "{text}");
    }
    assert_eq!(shown().await, before, "what is refused changes nothing");
}

#[tokio::test]
async fn a_change_cannot_make_two_subscriptions_alike() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    acme.subscribes("one", "a").await;
    let two = acme.subscribes("two", "a").await;
    let told = acme.send("PUT", &format!("/subscriptions/{two}"), json!({ "workerId": "one" })).await;
    let error = "Subscription already exists for this worker/pattern/method combination";
    assert_eq!((told.status, told.json()), (409, json!({ "ok": false, "error": error })));
    let shown = acme.gets(&format!("/subscriptions/{two}")).await;
    assert_eq!(shown["subscription"]["workerId"], "two");
}

#[tokio::test]
async fn a_removed_subscription_takes_its_records_along() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let id = acme.subscribes("w", "a.*").await;
    acme.post("/subscriptions/unsubscribe", json!({ "subscriptionId": acme.subscribes("v", "a.*").await }))
        .await;
    acme.ingests(json!([event("a.1"), event("a.2"), event("b")])).await;
    let told = answered(acme.request("DELETE", &format!("/subscriptions/{id}"))).await;
    let deleted = told.json()["deleted"].clone();
    assert_eq!((told.status, &told.json()["ok"]), (200, &json!(true)));
    assert_eq!(
        (&deleted["deliveries"], &deleted["deadLetters"], &deleted["batchDeliveries"]),
        (&json!(2), &json!(0), &json!(0))
    );
    assert!(deleted["logs"].is_u64(), "{deleted}");
    for method in ["GET", "DELETE"] {
        let gone = answered(acme.request(method, &format!("/subscriptions/{id}"))).await;
        assert_eq!(
            (gone.status, gone.json()),
            (404, json!({ "ok": false, "error": "Subscription not found" }))
        );
    }
    assert_eq!(acme.lists("").await.len(), 1);
    assert!(ids(&acme.gets("/subscriptions/match?eventType=a.1").await["subscriptions"]).is_empty());
}

#[tokio::test]
async fn the_status_of_a_subscription_has_statistics_and_an_unknown_one_has_none() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let none = json!({
        "pendingDeliveries": 0, "failedDeliveries": 0, "deadLetters": 0, "successRate": 0.0, "totalDelivered": 0,
        "totalAttempts": 0,
    });
    let unknown = acme.gets(&format!("/subscriptions/status/{NOBODY}")).await;
    assert_eq!(unknown, json!({ "subscription": null, "stats": none }));
    assert_eq!(acme.gets("/subscriptions/status/ABC").await, unknown);
    let id = acme.subscribes("w", "a.*").await;
    let status = acme.gets(&format!("/subscriptions/status/{id}")).await;
    assert_eq!((&status["subscription"]["id"], &status["stats"]), (&json!(id), &none));
}

#[tokio::test]
async fn a_match_finds_the_active_subscriptions_of_all_shards_oldest_first() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let mut made = Vec::new();
    for pattern in ["webhook.github.push", "**", "webhook.*", "*.github.*", "webhook.**.push", "orders.*"] {
        made.push(acme.subscribes("w", pattern).await);
    }
    let matching = async |event_type: &str| {
        ids(&acme.gets(&format!("/subscriptions/match?eventType={event_type}")).await["subscriptions"])
    };
    let expected: Vec<_> = [0, 1, 3, 4].map(|n: usize| made[n].clone()).into();
    assert_eq!(matching("webhook.github.push").await, expected);
    assert_eq!(matching("webhook.push").await, [made[1].clone(), made[2].clone(), made[4].clone()]);
    assert!(matching("no..type").await.is_empty());
    let whole = acme.gets("/subscriptions/match?eventType=orders.paid").await;
    assert_eq!(whole["namespace"], "acme");
    assert_eq!(whole["subscriptions"][0].get("_shard"), None);
    for path in ["/subscriptions/match", "/subscriptions/match?eventType="] {
        let told = acme.get(path).await;
        let error = "Missing required query param: eventType";
        assert_eq!((told.status, told.json()), (400, json!({ "ok": false, "error": error })));
    }
}

#[tokio::test]
async fn shards_are_static() {
    let server = closed().await;
    let (admin, acme) = (Client::admin(&server), Client::of(&server, "acme"));
    let shards = admin.gets("/subscriptions/shards").await;
    assert_eq!(shards["dynamicShardingEnabled"], false);
    assert_eq!(shards["fallbackShards"], json!(["collection", "rpc", "do", "ws", "webhook", "default"]));
    assert!(shards["message"].is_string());
    let error = "Shard coordinator not available";
    let config = admin.gets("/subscriptions/shards/config").await;
    assert_eq!(config, json!({ "dynamicShardingEnabled": false, "error": error }));
    for (method, path) in [("PUT", "config"), ("POST", "scale"), ("POST", "health-check")] {
        let told = admin.send(method, &format!("/subscriptions/shards/{path}"), json!({})).await;
        assert_eq!((told.status, &told.json()["error"]), (400, &json!(error)), "{path}");
    }
    let of =
        json!({ "prefix": "webhook", "namespace": null, "shards": ["webhook"], "dynamicSharding": false });
    assert_eq!(admin.gets("/subscriptions/shards/webhook").await, of);
    let of = json!({ "prefix": "webhook", "namespace": "acme", "shards": ["acme:webhook"], "dynamicSharding": false });
    assert_eq!(acme.gets("/subscriptions/shards/webhook").await, of);
    assert_eq!(acme.get("/subscriptions/shards/Web-Hook").await.status, 404);
}

#[tokio::test]
async fn a_path_that_is_unknown_is_told_and_a_method_that_is_not_supported_is_405() {
    let server = closed().await;
    let admin = Client::admin(&server);
    for (method, path) in [
        ("GET", "/"),
        ("GET", "/nope"),
        ("POST", "/nope/and/more"),
        ("GET", "/lower-case-id"),
        ("DELETE", "/lower"),
        ("GET", "/status/lower"),
        ("GET", "/deliveries/x-y/logs"),
        ("POST", "/ABC/dead-letters/x/retry"),
        ("GET", "/%ff"),
    ] {
        let told = answered(admin.request(method, &format!("/subscriptions{path}"))).await;
        let expected = json!({ "ok": false, "error": "Unknown subscription endpoint", "path": path });
        assert_eq!((told.status, told.json()), (404, expected), "{method} {path}");
    }
    let root = admin.get("/subscriptions").await;
    assert_eq!((root.status, &root.json()["path"]), (404, &json!("/")));
    for (method, path, allow) in [
        ("GET", "subscribe", "POST"),
        ("POST", "list", "GET,HEAD"),
        ("PATCH", NOBODY, "GET,HEAD,PUT,DELETE"),
        ("DELETE", "shards/config", "GET,HEAD,PUT"),
    ] {
        let told = answered(admin.request(method, &format!("/subscriptions/{path}"))).await;
        assert_eq!((told.status, told.header("allow")), (405, Some(allow)), "{method} {path}");
        assert_eq!(told.json(), json!({ "ok": false, "error": "Method not allowed" }));
    }
}

#[tokio::test]
async fn a_body_has_at_most_64_kib() {
    let server = closed().await;
    let admin = Client::admin(&server);
    let sized = |bytes: usize| {
        let mut body = wanted();
        body["pad"] = "".into();
        body["pad"] = "x".repeat(bytes - body.to_string().len()).into();
        body
    };
    assert_eq!(admin.post("/subscriptions/subscribe", sized(64 * 1024)).await.status, 200);
    let told = admin.post("/subscriptions/subscribe", sized(64 * 1024 + 1)).await;
    assert_eq!((told.status, &told.json()["ok"]), (413, &json!(false)));
    assert!(told.json()["error"].is_string());
    let deep = format!("{}{}", "[".repeat(30_000), "]".repeat(30_000));
    let deep =
        answered(admin.request("POST", "/subscriptions/subscribe").body(format!("{{\"filter\":{deep}}}")))
            .await;
    assert_eq!((deep.status, &deep.json()["error"]), (400, &json!("Invalid JSON body")));
}

#[tokio::test]
async fn subscriptions_outlive_a_restart() {
    let setup = tidings_testing::Setup { store: tidings_testing::TestStore::Embedded, ..Default::default() };
    let server = closed_with(setup).await;
    let (id, before) = {
        let acme = Client::of(&server, "acme");
        let id = acme.subscribes("w", "a.*").await;
        acme.ingests(json!([event("a.1")])).await;
        (id.clone(), acme.gets(&format!("/subscriptions/{id}")).await)
    };
    let server: Harness = server.restart().await;
    let acme = Client::of(&server, "acme");
    assert_eq!(acme.gets(&format!("/subscriptions/{id}")).await, before);
    assert_eq!(acme.lists("").await, [id]);
}
