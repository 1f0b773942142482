//! `/v1/{project}/hooks`: the same hooks with plain names and the common format of errors.

use serde_json::{Value, json};

use super::*;

fn wanted() -> Value {
    json!({ "url": "https://example.com/in", "pattern": "orders.*" })
}

/// Creates a hook, which must succeed.
async fn creates(client: &Client<'_>, body: Value) -> Value {
    let told = client.post("/v1/acme/hooks", body).await;
    assert_eq!(told.status, 201, "{told:?}");
    told.json()
}

async fn code(told: Answered) -> (u16, String) {
    let error = told.json()["error"].clone();
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
    (told.status, error["code"].as_str().expect("a code").to_owned())
}

#[tokio::test]
async fn a_hook_is_created_read_changed_and_removed() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let mut created = creates(&acme, wanted()).await;
    let id = created["id"].as_str().expect("an id").to_owned();
    assert!(is_id(&json!(id)));
    assert!(created.as_object_mut().expect("an object").remove("secret").is_some());
    let now = 1_763_294_400_123u64;
    let expected = json!({
        "id": id, "pattern": "orders.*", "active": true, "url": "https://example.com/in", "maxRetries": 5,
        "timeoutMs": 30000, "format": "envelope", "retrySchedule": [], "ordering": "none", "concurrency": 32,
        "headerNames": [], "createdAt": now, "updatedAt": now,
    });
    assert_eq!(created, expected);
    let path = format!("/v1/acme/hooks/{id}");
    let mut shown = acme.gets(&path).await;
    let stats = shown.as_object_mut().expect("an object").remove("stats").expect("statistics");
    assert_eq!(stats, json!({ "pending": 0, "failed": 0, "deadLetters": 0, "delivered": 0, "attempts": 0 }));
    assert_eq!(shown, expected);
    let body = json!({ "maxRetries": 9, "rateLimit": 3, "timeoutMs": null });
    let changed = acme.send("PATCH", &path, body).await;
    assert_eq!(
        (changed.status, &changed.json()["maxRetries"], &changed.json()["rateLimit"]),
        (200, &json!(9), &json!(3))
    );
    assert_eq!(acme.gets(&path).await["maxRetries"], 9);
    assert_eq!(
        Client::admin(&server).gets(&format!("/subscriptions/{id}")).await["subscription"]["maxRetries"],
        9
    );
    let removed = answered(acme.request("DELETE", &path)).await;
    assert_eq!((removed.status, removed.text.as_str()), (204, ""));
    for method in ["GET", "DELETE"] {
        assert_eq!(code(answered(acme.request(method, &path)).await).await, (404, "hook_not_found".into()));
    }
}

#[tokio::test]
async fn hooks_are_listed_newest_first_and_paged_by_cursor() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let mut made = Vec::new();
    for n in 0..5 {
        let body = json!({ "url": format!("https://example.com/{n}"), "pattern": "a" });
        made.push(creates(&acme, body).await["id"].as_str().expect("an id").to_owned());
        server.clock.advance(std::time::Duration::from_millis(1));
    }
    made.reverse();
    let whole = acme.gets("/v1/acme/hooks").await;
    assert_eq!((ids(&whole["hooks"]), whole.get("nextCursor")), (made.clone(), None));
    assert_eq!(whole["hooks"][0]["stats"]["pending"], 0);
    let exact = acme.gets("/v1/acme/hooks?limit=5").await;
    assert_eq!((exact["hooks"].as_array().map(Vec::len), exact.get("nextCursor")), (Some(5), None));
    let (mut cursor, mut paged) = (String::new(), Vec::new());
    loop {
        let page = acme.gets(&format!("/v1/acme/hooks?limit=2{cursor}")).await;
        paged.extend(ids(&page["hooks"]));
        let Some(next) = page.get("nextCursor") else { break };
        cursor = format!("&cursor={}", next.as_str().expect("text"));
    }
    assert_eq!(paged, made);
    for bad in ["limit=0", "limit=1001", "limit=x", "cursor=x", "limit=1&limit=1"] {
        assert_eq!(acme.get(&format!("/v1/acme/hooks?{bad}")).await.status, 400, "{bad}");
    }
    assert_eq!(Client::of(&server, "beta").gets("/v1/beta/hooks").await, json!({ "hooks": [] }));
}

#[tokio::test]
async fn what_is_wrong_with_a_hook_is_told_in_the_common_format() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    for bad in [
        json!({}),
        json!({ "url": "https://example.com/" }),
        json!({ "pattern": "a" }),
        json!({ "pattern": "a", "workerId": "w" }),
        json!({ "pattern": "a..b", "url": "https://example.com/" }),
        json!({ "pattern": "a", "url": "https://10.0.0.1/" }),
        json!({ "pattern": "a", "url": "https://example.com/", "maxRetries": 101 }),
        json!({ "pattern": "a", "url": "https://example.com/", "headers": { "host": "x" } }),
        json!({ "pattern": "a", "url": "https://example.com/", "retryShedule": [1] }),
    ] {
        assert_eq!(
            code(acme.post("/v1/acme/hooks", bad.clone()).await).await,
            (400, "invalid_hook".into()),
            "{bad}"
        );
    }
    for text in ["", "{", "[]", "7"] {
        let told = answered(acme.request("POST", "/v1/acme/hooks").body(text)).await;
        assert_eq!(code(told).await, (400, "invalid_json".into()), "{text}");
    }
    let id = creates(&acme, wanted()).await["id"].as_str().expect("an id").to_owned();
    assert_eq!(code(acme.post("/v1/acme/hooks", wanted()).await).await, (409, "hook_exists".into()));
    for bad in [
        json!({ "pattern": "orders.*" }),
        json!({ "url": null }),
        json!({ "unknown": 1 }),
        json!({ "timeoutMs": 0 }),
        json!({ "id": id }),
    ] {
        let told = acme.send("PATCH", &format!("/v1/acme/hooks/{id}"), bad.clone()).await;
        assert_eq!(code(told).await, (400, "invalid_hook".into()), "{bad}");
    }
    let unknown = acme
        .post("/v1/acme/hooks", json!({ "pattern": "a", "url": "https://a.example/", "secret": "x" }))
        .await;
    assert_eq!(unknown.json()["error"]["message"], "`secret` is not a setting of a hook");
    for id in [NOBODY, "nonsense"] {
        for (method, path, body) in [
            ("GET", format!("/v1/acme/hooks/{id}"), json!({})),
            ("PATCH", format!("/v1/acme/hooks/{id}"), json!({})),
            ("DELETE", format!("/v1/acme/hooks/{id}"), json!({})),
            ("POST", format!("/v1/acme/hooks/{id}/pause"), json!({})),
            ("POST", format!("/v1/acme/hooks/{id}/resume"), json!({})),
            ("POST", format!("/v1/acme/hooks/{id}/test"), json!({})),
            ("POST", format!("/v1/acme/hooks/{id}/rotate-secret"), json!({})),
            ("POST", format!("/v1/acme/hooks/{id}/replay"), json!({ "from": TS })),
            ("GET", format!("/v1/acme/hooks/{id}/deliveries"), json!({})),
            ("GET", format!("/v1/acme/hooks/{id}/dead-letters"), json!({})),
            ("POST", format!("/v1/acme/hooks/{id}/dead-letters/retry"), json!({})),
        ] {
            let told = acme.send(method, &path, body).await;
            assert_eq!(code(told).await, (404, "hook_not_found".into()), "{method} {path}");
        }
    }
    assert_eq!(answered(acme.request("PUT", &format!("/v1/acme/hooks/{id}"))).await.status, 405);
}

#[tokio::test]
async fn a_hook_is_paused_resumed_and_tested() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let id = creates(&acme, wanted()).await["id"].as_str().expect("an id").to_owned();
    let path = format!("/v1/acme/hooks/{id}");
    let post = async |verb: &str, body: Value| acme.post(&format!("{path}/{verb}"), body).await;
    let matching = async || ids(&acme.gets("/v1/acme/hooks/match?type=orders.paid").await["hooks"]).len();
    assert_eq!(matching().await, 1);
    assert_eq!((post("pause", json!({})).await.status, post("pause", json!({})).await.status), (204, 204));
    assert_eq!((acme.gets(&path).await["active"].clone(), matching().await), (json!(false), 0));
    acme.ingests(json!([event("orders.paid"), event("other")])).await;
    let resumed = post("resume", json!({ "replay": true })).await;
    assert_eq!((resumed.status, resumed.json()), (200, json!({ "events": 1 })));
    assert_eq!(
        answered(acme.request("POST", &format!("{path}/resume"))).await.json(),
        json!({ "events": 0 })
    );
    assert_eq!((acme.gets(&path).await["active"].clone(), matching().await), (json!(true), 1));
    let tested = post("test", json!({})).await;
    assert_eq!(tested.status, 202);
    let delivery = tested.json()["deliveryId"].as_str().expect("an id").to_owned();
    let page = acme.gets(&format!("{path}/deliveries")).await;
    let found =
        page["deliveries"].as_array().expect("an array").iter().find(|one| one["id"] == delivery.as_str());
    assert_eq!(found.map(|one| &one["type"]), Some(&json!("hook.test")), "{page}");
    let attempts = acme.gets(&format!("{path}/deliveries/{delivery}/attempts")).await;
    assert!(attempts["attempts"].is_array(), "{attempts}");
    let other =
        creates(&acme, json!({ "url": "https://example.com/other", "pattern": "a" })).await["id"].clone();
    let other = other.as_str().expect("an id");
    for (hook, delivery) in [(other, delivery.as_str()), (&id, NOBODY), (&id, "x")] {
        let told = acme.get(&format!("/v1/acme/hooks/{hook}/deliveries/{delivery}/attempts")).await;
        assert_eq!(code(told).await, (404, "delivery_not_found".into()));
    }
}

#[tokio::test]
async fn a_type_to_match_is_required_and_valid() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    for bad in ["", "?type=", "?type=a..b", "?type=a*", "?eventType=a"] {
        let told = acme.get(&format!("/v1/acme/hooks/match{bad}")).await;
        assert_eq!(code(told).await, (400, "invalid_type".into()), "{bad}");
    }
}

#[tokio::test]
async fn dead_letters_replays_and_clean_up_answer_in_the_common_format() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let id = creates(&acme, wanted()).await["id"].as_str().expect("an id").to_owned();
    let path = format!("/v1/acme/hooks/{id}");
    assert_eq!(acme.gets(&format!("{path}/dead-letters")).await, json!({ "deadLetters": [] }));
    let retried = acme.post(&format!("{path}/dead-letters/retry"), json!({})).await;
    assert_eq!((retried.status, retried.json()), (202, json!({ "retried": 0 })));
    let unknown = acme.post(&format!("{path}/dead-letters/{NOBODY}/retry"), json!({})).await;
    assert_eq!(code(unknown).await, (404, "dead_letter_not_found".into()));
    acme.ingests(json!([event("orders.paid")])).await;
    let replayed = acme.post(&format!("{path}/replay"), json!({ "from": TS })).await;
    assert_eq!((replayed.status, replayed.json()), (202, json!({ "events": 1 })));
    assert_eq!(
        code(acme.post(&format!("{path}/replay"), json!({})).await).await,
        (400, "invalid_request".into())
    );
    let cleaned = acme.post("/v1/acme/hooks/cleanup", json!({ "before": 1 })).await;
    assert_eq!(
        (cleaned.status, cleaned.json()),
        (200, json!({ "deliveries": 0, "attempts": 0, "deadLetters": 0 }))
    );
    assert_eq!(
        code(acme.post("/v1/acme/hooks/cleanup", json!({})).await).await,
        (400, "invalid_request".into())
    );
    for bad in ["status=lost", "limit=0", "cursor=x"] {
        assert_eq!(acme.get(&format!("{path}/deliveries?{bad}")).await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn hooks_of_a_project_are_reached_in_dev_mode_without_credentials() {
    let server = open().await;
    let anyone = Client::nobody(&server);
    let body = json!({ "url": "http://127.0.0.1:9/", "pattern": "a" });
    let told = anyone.post("/v1/shop/hooks", body).await;
    assert_eq!(told.status, 201, "{told:?}");
    assert_eq!(ids(&anyone.gets("/v1/shop/hooks").await["hooks"]).len(), 1);
    assert_eq!(anyone.gets("/v1/other/hooks").await, json!({ "hooks": [] }));
}
