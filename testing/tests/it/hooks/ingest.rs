//! What comes in: batches, their codes and limits, and what is not accepted twice.

use std::time::Duration;

use serde_json::{Value, json};
use tidings_testing::{Harness, Setup, TestStore};

use super::*;

async fn code(client: &Client<'_>, body: Value) -> (u16, Value) {
    let told = client.post("/e", body).await;
    let answer = told.json();
    let fields: Vec<_> = answer.as_object().expect("an object").keys().map(String::as_str).collect();
    assert!(fields.iter().all(|field| ["error", "code", "details"].contains(field)), "{answer}");
    assert!(answer["error"].as_str().is_some_and(|error| !error.is_empty()), "{answer}");
    (told.status, answer["code"].clone())
}

/// Event ids that are queued for a subscription, oldest first.
async fn queued(client: &Client<'_>, id: &str) -> Vec<String> {
    let page = client.gets(&format!("/subscriptions/{id}/deliveries?limit=1000")).await;
    let deliveries = page["deliveries"].as_array().expect("an array");
    deliveries.iter().map(|one| one["eventId"].as_str().expect("an id").to_owned()).collect()
}

fn named(event_type: &str, id: &str) -> Value {
    json!({ "type": event_type, "ts": TS, "id": id })
}

#[tokio::test]
async fn events_are_accepted_under_both_names_and_the_older_one_says_so() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let id = acme.subscribes("w", "a.*").await;
    let batch = json!({ "events": [event("a.1"), event("b.1")], "more": 1 });
    let expected = json!({ "ok": true, "received": 2, "namespace": "acme" });
    let canonical = acme.post("/e", batch.clone()).await;
    assert_eq!((canonical.status, canonical.json()), (200, expected.clone()));
    assert_eq!((canonical.header("deprecation"), canonical.header("link")), (None, None));
    let older = acme.post("/ingest", batch.clone()).await;
    assert_eq!((older.status, older.json()), (200, expected.clone()));
    assert_eq!(older.header("deprecation"), Some("true"));
    assert_eq!(older.header("link"), Some("</e>; rel=\"successor-version\""));
    let refused = acme.post("/ingest", json!({})).await;
    assert_eq!((refused.status, refused.header("deprecation")), (400, Some("true")));
    let of_project = acme.post("/v1/acme/events", batch).await;
    assert_eq!((of_project.status, of_project.json()), (200, expected));
    assert_eq!(queued(&acme, &id).await.len(), 3);
    let nothing = acme.post("/e", json!({ "events": [] })).await;
    assert_eq!(
        (nothing.status, nothing.json()),
        (200, json!({ "ok": true, "received": 0, "namespace": "acme" }))
    );
}

#[tokio::test]
async fn only_post_is_taken() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    for path in ["/e", "/ingest"] {
        for method in ["GET", "PUT", "DELETE", "PATCH"] {
            let told = answered(acme.request(method, path)).await;
            assert_eq!((told.status, told.header("allow")), (405, Some("POST")), "{method} {path}");
            assert_eq!(told.json()["code"], "METHOD_NOT_ALLOWED");
        }
        assert_eq!(answered(acme.request("HEAD", path)).await.status, 405);
    }
}

#[tokio::test]
async fn a_refused_credential_has_its_code() {
    let server = closed().await;
    let with = |credential: &str| Client::with(&server, credential);
    let body = json!({ "events": [] });
    for (client, status, expected) in [
        (Client::nobody(&server), 401, "AUTH_REQUIRED"),
        (with("no-such-key"), 401, "INVALID_API_KEY"),
        (with("a.b.c"), 401, "INVALID_API_KEY"),
        (with("ns_acme_0123"), 401, "INVALID_NAMESPACE_KEY"),
        (with("ns_nobody_0123"), 401, "INVALID_NAMESPACE_KEY"),
        (with("ns_"), 401, "INVALID_NAMESPACE_KEY"),
        (with(&plain_token(&server, "acme", tidings_auth::Scope::Read)), 403, "FORBIDDEN"),
        (Client::of(&server, "acme").for_tenant("beta"), 403, "ADMIN_REQUIRED"),
    ] {
        assert_eq!(code(&client, body.clone()).await, (status, json!(expected)), "{:?}", client.credential);
    }
    let basic = Client::nobody(&server).request("POST", "/e").header("authorization", "Basic YTpi");
    let basic = answered(basic.json(&body)).await;
    assert_eq!((basic.status, &basic.json()["code"]), (401, &json!("INVALID_AUTH_FORMAT")));
}

#[tokio::test]
async fn what_is_no_batch_is_refused() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    for text in ["", "{", "nul", "{\"events\":[}", "{} {}", "{\"events\":[],}"] {
        let told = answered(acme.request("POST", "/e").body(text)).await;
        assert_eq!((told.status, &told.json()["code"]), (400, &json!("INVALID_JSON")), "{text}");
    }
    for bad in [
        json!([]),
        json!(null),
        json!("x"),
        json!({}),
        json!({ "events": {} }),
        json!({ "events": null }),
        json!({ "events": [], "batchId": 7 }),
        json!({ "events": [], "batchId": "" }),
        json!({ "events": [], "batchId": "x".repeat(257) }),
        json!({ "events": vec![event("a"); 1001] }),
    ] {
        let shown = bad.to_string().chars().take(60).collect::<String>();
        assert_eq!(code(&acme, bad).await, (400, json!("INVALID_BATCH")), "{shown}");
    }
    assert_eq!(acme.post("/e", json!({ "events": vec![event("a"); 1000] })).await.json()["received"], 1000);
}

#[tokio::test]
async fn one_invalid_event_refuses_the_batch_and_the_first_ten_are_told() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let id = acme.subscribes("w", "**").await;
    let good = event("a");
    let at = |ts: &str| json!({ "type": "a", "ts": ts });
    let typed = |event_type: &str| json!({ "type": event_type, "ts": TS });
    for bad in [
        json!(7),
        json!(null),
        json!([]),
        json!({}),
        json!({ "type": "a" }),
        json!({ "ts": TS }),
        json!({ "type": 7, "ts": TS }),
        typed(""),
        typed("a..b"),
        typed(".a"),
        typed("a."),
        typed("a b"),
        typed("a*"),
        typed("ä"),
        typed("1.2.3.4.5.6.7.8.9.10.11"),
        typed(&"x".repeat(129)),
        at("yesterday"),
        at("2025-11-16"),
        json!({ "type": "a", "ts": 1_763_294_400_123u64 }),
        at("2025-11-09T12:00:00.122Z"),
        at("2025-11-16T13:00:00.124Z"),
        json!({ "type": "a", "ts": TS, "id": 7 }),
        json!({ "type": "a", "ts": TS, "id": "" }),
        json!({ "type": "a", "ts": TS, "id": "x".repeat(257) }),
    ] {
        let told = acme.post("/e", json!({ "events": [good, bad, good] })).await;
        let answer = told.json();
        assert_eq!((told.status, &answer["code"]), (400, &json!("INVALID_EVENT")), "{bad}");
        assert_eq!(
            (&answer["details"][0]["index"], answer["details"].as_array().map(Vec::len)),
            (&json!(1), Some(1))
        );
        assert!(answer["details"][0]["message"].is_string(), "{answer}");
    }
    let many = acme.post("/e", json!({ "events": vec![json!(7); 12] })).await.json();
    let indices: Vec<_> =
        many["details"].as_array().expect("an array").iter().map(|one| one["index"].clone()).collect();
    assert_eq!(indices, (0..10).map(|n| json!(n)).collect::<Vec<_>>());
    assert!(queued(&acme, &id).await.is_empty(), "nothing of a refused batch is queued");
    let bounds =
        [at("2025-11-09T12:00:00.123Z"), at("2025-11-16T13:00:00.123Z"), at("2025-11-16T13:00:00.5+01:00")];
    for good in
        bounds.into_iter().chain([typed("1.2.3.4.5.6.7.8.9.10"), typed(&"x".repeat(128)), typed("A-b_1")])
    {
        assert_eq!(acme.post("/e", json!({ "events": [good] })).await.status, 200, "{good}");
    }
}

#[tokio::test]
async fn events_and_bodies_have_their_sizes() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let sized = |bytes: usize| {
        let mut event = event("a");
        event["x"] = "".into();
        event["x"] = "y".repeat(bytes - event.to_string().len()).into();
        event
    };
    assert_eq!(acme.post("/e", json!({ "events": [sized(10 * 1024)] })).await.status, 200);
    let large = acme.post("/e", json!({ "events": [event("a"), sized(10 * 1024 + 1)] })).await;
    assert_eq!((large.status, &large.json()["code"]), (400, &json!("EVENT_TOO_LARGE")));
    assert_eq!(large.json()["details"][0]["index"], 1);
    let padded = |bytes: usize| {
        let text = json!({ "events": [event("a")] }).to_string();
        format!("{text}{}", " ".repeat(bytes - text.len()))
    };
    assert_eq!(answered(acme.request("POST", "/e").body(padded(1024 * 1024))).await.status, 200);
    for path in ["/e", "/ingest"] {
        let told = answered(acme.request("POST", path).body(padded(1024 * 1024 + 1))).await;
        assert_eq!((told.status, &told.json()["code"]), (413, &json!("PAYLOAD_TOO_LARGE")));
    }
    let told = answered(acme.request("POST", "/v1/acme/events").body(padded(1024 * 1024 + 1))).await;
    assert_eq!((told.status, &told.json()["error"]["code"]), (413, &json!("body_too_large")));
}

#[tokio::test]
async fn a_batch_is_accepted_once_a_day_per_namespace_and_a_refused_one_does_not_count() {
    let server = closed().await;
    let (acme, beta) = (Client::of(&server, "acme"), Client::of(&server, "beta"));
    let id = acme.subscribes("w", "**").await;
    let batch = |events: Value| json!({ "events": events, "batchId": "b1" });
    assert_eq!(acme.post("/e", batch(json!([7]))).await.status, 400);
    let first = acme.post("/e", batch(json!([event("a")]))).await.json();
    assert_eq!(first, json!({ "ok": true, "received": 1, "namespace": "acme" }));
    for path in ["/e", "/ingest", "/v1/acme/events"] {
        let again = acme.post(path, batch(json!([event("a"), event("b")]))).await;
        let expected = json!({ "ok": true, "received": 2, "deduplicated": true, "namespace": "acme" });
        assert_eq!((again.status, again.json()), (200, expected));
    }
    assert_eq!(beta.post("/e", batch(json!([event("a")]))).await.json().get("deduplicated"), None);
    assert_eq!(queued(&acme, &id).await.len(), 1);
    let later = json!({ "type": "a", "ts": "2025-11-17T12:00:00Z" });
    server.clock.advance(Duration::from_secs(24 * 60 * 60 - 1));
    assert_eq!(
        acme.post("/e", batch(json!([later]))).await.json()["deduplicated"],
        true,
        "the day is not over"
    );
    server.clock.advance(Duration::from_secs(2));
    assert_eq!(acme.post("/e", batch(json!([later]))).await.json().get("deduplicated"), None);
    assert_eq!(queued(&acme, &id).await.len(), 2);
}

#[tokio::test]
async fn an_event_id_is_queued_once_for_a_subscription() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let id = acme.subscribes("w", "a.*").await;
    let twice = json!([named("a.1", "e1"), named("a.2", "e1"), named("a.3", "e2")]);
    assert_eq!(acme.post("/e", json!({ "events": twice })).await.json()["received"], 3, "both are counted");
    assert_eq!(queued(&acme, &id).await, ["e1", "e2"]);
    acme.ingests(json!([named("a.1", "e1"), named("a.9", "e3")])).await;
    assert_eq!(queued(&acme, &id).await, ["e1", "e2", "e3"]);
    let late = acme.subscribes("late", "a.*").await;
    acme.ingests(json!([named("a.1", "e1")])).await;
    assert_eq!(queued(&acme, &id).await.len(), 3);
    assert_eq!(queued(&acme, &late).await, ["e1"], "it has had none of this id");
    let beta = Client::of(&server, "beta");
    let of_beta = beta.subscribes("w", "a.*").await;
    beta.ingests(json!([named("a.1", "e1")])).await;
    assert_eq!(queued(&beta, &of_beta).await, ["e1"]);
    // Without an id each event is one of its own, with an id that the server chose.
    acme.ingests(json!([event("a.1"), event("a.1")])).await;
    let made = queued(&acme, &late).await;
    assert!(made.len() == 3 && made[1] != made[2] && is_id(&json!(made[1])), "{made:?}");
}

#[tokio::test]
async fn a_repeated_event_id_matters_for_as_long_as_events_are_kept() {
    let mut setup = Setup::default();
    setup.hooks.hooks.event_retention = Duration::from_secs(3600);
    let server = closed_with(setup).await;
    let acme = Client::of(&server, "acme");
    let id = acme.subscribes("w", "a.*").await;
    acme.ingests(json!([named("a.1", "e1")])).await;
    server.clock.advance(Duration::from_secs(3590));
    acme.ingests(json!([named("a.1", "e1")])).await;
    assert_eq!(queued(&acme, &id).await.len(), 1);
    server.clock.advance(Duration::from_secs(20));
    acme.ingests(json!([named("a.1", "e1")])).await;
    assert_eq!(queued(&acme, &id).await.len(), 2);
}

#[tokio::test]
async fn filters_are_applied_to_what_comes_in() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let body = json!({
        "url": "https://example.com/", "pattern": "orders.*",
        "filter": { "/amount": { "gt": 100 }, "/currency": { "in": ["EUR", "USD"] }, "/user/id": { "prefix": "u-" } },
    });
    let created = acme.post("/subscriptions/subscribe", body).await.json();
    let id = created["subscriptionId"].as_str().expect("an id").to_owned();
    let order = |id: &str, amount: u32, currency: &str, user: &str| json!({ "type": "orders.paid", "ts": TS, "id": id, "amount": amount, "currency": currency, "user": { "id": user } });
    acme.ingests(json!([
        order("good", 101, "EUR", "u-1"),
        order("cheap", 100, "EUR", "u-1"),
        order("pound", 101, "GBP", "u-1"),
        order("machine", 101, "USD", "m-1"),
        order("better", 999, "USD", "u-2"),
        event("orders.paid"),
    ]))
    .await;
    assert_eq!(queued(&acme, &id).await, ["good", "better"]);
}

#[tokio::test]
async fn requests_and_events_per_minute_and_events_per_day_may_be_limited() {
    let mut setup = Setup::default();
    setup.hooks.hooks.requests_per_minute = 3;
    setup.hooks.hooks.events_per_minute = 10;
    setup.hooks.hooks.events_per_day = 15;
    let server = closed_with(setup).await;
    let acme = Client::of(&server, "acme");
    let sends = async |count: usize| acme.post("/e", json!({ "events": vec![event("a"); count] })).await;
    assert_eq!(sends(10).await.status, 200);
    let limited = sends(1).await;
    assert_eq!((limited.status, &limited.json()["code"]), (429, &json!("RATE_LIMITED")));
    assert_eq!(limited.header("retry-after"), Some("60"));
    let of_project = acme.post("/v1/acme/events", json!({ "events": [event("a")] })).await;
    assert_eq!((of_project.status, &of_project.json()["error"]["code"]), (429, &json!("rate_limited")));
    assert_eq!(Client::of(&server, "beta").post("/e", json!({ "events": [event("a")] })).await.status, 200);
    assert_eq!((sends(0).await.status, sends(0).await.status), (200, 200));
    assert_eq!(sends(0).await.json()["code"], "RATE_LIMITED", "the fourth request of the minute");
    server.clock.advance(Duration::from_secs(60));
    assert_eq!(sends(5).await.status, 200);
    let used_up = sends(1).await;
    assert_eq!((used_up.status, &used_up.json()["code"]), (429, &json!("QUOTA_EXCEEDED")));
    assert_eq!(used_up.header("retry-after"), Some("3600"));
    assert!(server.metric("tidings_limit_hits_total{limit=\"ingest_rate\"}").is_some_and(|hits| hits >= 4.0));
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_told_in_a_fixed_order() {
    let mut setup = Setup::default();
    setup.hooks.hooks.requests_per_minute = 3;
    setup.hooks.hooks.events_per_day = 3;
    let server = closed_with(setup).await;
    let (acme, nobody) = (Client::of(&server, "acme"), Client::nobody(&server));
    let sends = async |client: &Client<'_>, text: &str| {
        let told = answered(client.request("POST", "/e").body(text.to_owned())).await;
        let told = told.json();
        if told["deduplicated"] == true { json!("DEDUPLICATED") } else { told["code"].clone() }
    };
    let batch = |id: &str, events: Value| json!({ "batchId": id, "events": events }).to_string();
    let (no_json, no_batch, invalid) = ("{", "{}", batch("new", json!([7])));
    assert_eq!(sends(&nobody, no_json).await, "AUTH_REQUIRED", "credentials before JSON");
    assert_eq!(sends(&acme, &batch("b1", json!([event("a")]))).await, Value::Null);
    // The batch id before the events, of which one is invalid: it was good when the batch was accepted.
    assert_eq!(sends(&acme, &batch("b1", json!([7]))).await, "DEDUPLICATED");
    assert_eq!(sends(&acme, &invalid).await, "INVALID_EVENT");
    // The minute is used up: JSON and shape come before the rate limit, batch id and events after it.
    assert_eq!(sends(&acme, no_json).await, "INVALID_JSON");
    assert_eq!(sends(&acme, no_batch).await, "INVALID_BATCH");
    for late in [&invalid, &batch("b1", json!([event("a")]))] {
        assert_eq!(sends(&acme, late).await, "RATE_LIMITED", "{late}");
    }
    // More than the day has left: the rate limit before the quota, and batch id and events after both.
    let more = [batch("new", json!([7, 7])), batch("b1", json!([event("a"), event("a")]))];
    for late in &more {
        assert_eq!(sends(&acme, late).await, "RATE_LIMITED", "{late}");
    }
    server.clock.advance(Duration::from_secs(60));
    for late in &more {
        assert_eq!(sends(&acme, late).await, "QUOTA_EXCEEDED", "{late}");
    }
    assert_eq!(
        sends(&acme, &batch("b2", json!([event("a")]))).await,
        Value::Null,
        "a refused event does not count"
    );
    assert_eq!(sends(&acme, &batch("b3", json!([event("a")]))).await, "QUOTA_EXCEEDED");
}

#[tokio::test]
async fn without_configuration_a_client_may_submit_as_much_as_it_likes() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let empty = json!({ "events": [] });
    for _ in 0..1001 {
        assert_eq!(acme.post("/e", empty.clone()).await.status, 200);
    }
    let full = json!({ "events": vec![event("a"); 1000] });
    for _ in 0..101 {
        assert_eq!(acme.post("/e", full.clone()).await.status, 200);
    }
}

#[tokio::test]
async fn the_rate_limit_of_all_requests_holds_here_as_well() {
    let mut setup = Setup::default();
    setup.limits.requests_per_second = 2;
    let server = closed_with(setup).await;
    let acme = Client::of(&server, "acme");
    let body = json!({ "events": [] });
    assert_eq!(
        (acme.post("/e", body.clone()).await.status, acme.get("/subscriptions/list").await.status),
        (200, 200)
    );
    let told = acme.post("/e", body).await;
    assert_eq!((told.status, &told.json()["code"]), (429, &json!("RATE_LIMITED")));
    assert_eq!(told.header("retry-after"), Some("1"));
    let told = acme.get("/subscriptions/list").await;
    assert_eq!((told.status, &told.json()["ok"]), (429, &json!(false)));
    assert_eq!(Client::of(&server, "beta").get("/subscriptions/list").await.status, 200);
}

#[tokio::test]
async fn a_full_disk_is_507() {
    let server = Harness::with(Setup { store: TestStore::Full, ..Setup::default() }).await;
    let anyone = Client::nobody(&server);
    let told = anyone.post("/e", json!({ "events": [event("a")] })).await;
    assert_eq!((told.status, &told.json()["code"]), (507, &json!("NO_SPACE")));
    let told = anyone.post("/v1/shop/events", json!({ "events": [event("a")] })).await;
    assert_eq!((told.status, &told.json()["error"]["code"]), (507, &json!("no_space")));
    let body = json!({ "workerId": "w", "pattern": "a", "rpcMethod": "m" });
    let told = anyone.post("/subscriptions/subscribe", body.clone()).await;
    assert_eq!((told.status, &told.json()["ok"]), (507, &json!(false)));
    let told = anyone.post("/v1/shop/hooks", body).await;
    assert_eq!((told.status, &told.json()["error"]["code"]), (507, &json!("no_space")));
    assert_eq!(anyone.gets("/subscriptions/list").await["subscriptions"], json!([]));
}

#[tokio::test]
async fn errors_of_a_projects_own_path_have_the_common_format() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let path = "/v1/acme/events";
    let told = acme.post(path, json!({ "events": [event("a"), 7] })).await;
    let error = told.json()["error"].clone();
    assert_eq!((told.status, &error["code"]), (400, &json!("invalid_event")));
    assert_eq!(error["details"][0]["index"], 1);
    assert_eq!(acme.post(path, json!([])).await.json()["error"]["code"], "invalid_batch");
    let text = answered(acme.request("POST", path).body("{")).await;
    assert_eq!(text.json()["error"]["code"], "invalid_json");
    assert_eq!(
        acme.post("/v1/beta/events", json!({ "events": [] })).await.json()["error"]["code"],
        "wrong_project"
    );
    assert_eq!(acme.post("/v1/a%20b/events", json!({ "events": [] })).await.status, 400);
}
