//! What the interface of hooks shows of subscriptions to streams.

use tidings_testing::Endpoint;

use super::*;

/// A server, its hooks as paths below their root, and an endpoint that fails.
async fn scene() -> (Harness, Root, Endpoint) {
    let server = Harness::start().await;
    let endpoint = Endpoint::start().await;
    endpoint.usually(Behaviour::status(503));
    let root = Root::of(&server);
    (server, root, endpoint)
}

/// A client of the hooks of the same project.
fn hooks(root: &Root) -> Root {
    Root { base: root.base.replace("/stream", "/hooks"), ..root.clone() }
}

/// Subscribes an endpoint to `events/{id}`, which is given up after so many attempts, and gives it something to hear of.
async fn fail(root: &Root, id: &str, url: &str, max_attempts: u32) {
    let (stream, webhook) = (format!("events/{id}"), json!({ "url": url }));
    let wanted =
        json!({ "type": "webhook", "streams": [stream], "webhook": webhook, "max_attempts": max_attempts });
    root.subscribe(id, wanted).await;
    root.stream(&stream).await;
    root.append(&stream, json!(1)).await;
    root.shows(id, "an attempt has failed", |shown| shown["failures"] == 1).await;
}

fn ids(page: &Value) -> Vec<String> {
    let listed = page["subscriptions"].as_array().expect("a list");
    listed.iter().map(|one| text(one, "id").to_owned()).collect()
}

#[tokio::test]
async fn a_subscription_that_was_given_up_is_shown_among_hooks_and_retried_there() {
    let (server, root, endpoint) = scene().await;
    let hooks = hooks(&root);
    let url = endpoint.url("/in");
    fail(&root, "dead", &url, 1).await;
    fail(&root, "failing", &url, 2).await;
    root.subscribe("well", pull_wake()).await;
    let now = server.clock.now().as_millis();
    let failed = hooks.get("subscriptions?status=failed").await;
    assert_eq!((ids(&failed), &failed["nextCursor"]), (vec!["dead".into(), "failing".into()], &Value::Null));
    let error = text(&failed["subscriptions"][0], "lastError").to_owned();
    assert!(error.contains("503"), "{error}");
    let dead = json!({
        "id": "dead", "type": "webhook", "url": url, "status": "failed", "attempts": 1, "maxAttempts": 1,
        "lastError": error, "createdAt": now,
        "deadLetter": { "reason": "max_retries_exceeded", "lastError": error, "createdAt": now },
    });
    assert_eq!(failed["subscriptions"][0], dead);
    let failing = &failed["subscriptions"][1];
    let next = failing["nextAttemptAt"].as_u64().expect("a time");
    assert!(next > now && failing["deadLetter"].is_null(), "{failing}");
    assert_eq!(hooks.get("subscriptions?status=dead").await["subscriptions"], json!([dead]));
    let well = json!({
        "id": "well", "type": "pull-wake", "wakeStream": "wake/pool", "pattern": "events/**", "status": "active",
        "attempts": 0, "maxAttempts": 1440, "createdAt": now,
    });
    assert_eq!(hooks.get("subscriptions?status=active").await["subscriptions"], json!([well]));
    assert_eq!(ids(&hooks.get("subscriptions").await), ["dead", "failing", "well"]);
    endpoint.usually(done());
    assert_eq!(hooks.send(Method::POST, "subscriptions/dead/retry", None).await.0, 204);
    root.shows("dead", "it works again", |shown| shown["failures"] == 0).await;
    assert_eq!(hooks.get("subscriptions?status=dead").await["subscriptions"], json!([]));
}

#[tokio::test]
async fn hooks_list_subscriptions_page_by_page() {
    let (_server, root, _endpoint) = scene().await;
    let hooks = hooks(&root);
    for n in 0..5 {
        root.subscribe(&format!("s{n}"), pull_wake()).await;
    }
    let page = hooks.get("subscriptions?limit=2").await;
    assert_eq!((ids(&page), text(&page, "nextCursor")), (vec!["s0".into(), "s1".into()], "s1"));
    let page = hooks.get("subscriptions?limit=3&cursor=s1&status=active").await;
    assert_eq!((ids(&page).len(), &page["nextCursor"]), (3, &Value::Null));
    for (bad, why) in [
        ("limit=0", "invalid_limit"),
        ("limit=1001", "invalid_limit"),
        ("status=delivered", "invalid_status"),
        ("cursor=%01", "invalid_cursor"),
    ] {
        let refused = hooks.send(Method::GET, &format!("subscriptions?{bad}"), None).await;
        assert_eq!(code(&refused), (400, why), "{bad}");
    }
}

#[tokio::test]
async fn subscriptions_and_hooks_are_not_confused_whatever_their_ids() {
    let (_server, root, _endpoint) = scene().await;
    let hooks = hooks(&root);
    let wanted = json!({ "url": "https://example.com/", "pattern": "orders.*" });
    let project = Root { base: root.base.replace("/stream", ""), ..root.clone() };
    let (status, hook) = project.send(Method::POST, "hooks", Some(&wanted)).await;
    assert_eq!(status, 201, "{hook}");
    let hook = text(&hook, "id");
    // Words of the paths of hooks, the id of a hook, and a slash.
    for id in ["dead-letters", "subscriptions", "match", hook, "a%2Fb"] {
        root.subscribe(id, pull_wake()).await;
        let retried = hooks.send(Method::POST, &format!("subscriptions/{id}/retry"), None).await;
        assert_eq!(retried.0, 204, "{id}");
        assert_eq!(root.send(Method::DELETE, &format!("__ds/subscriptions/{id}"), None).await.0, 204);
        let refused = hooks.send(Method::POST, &format!("subscriptions/{id}/retry"), None).await;
        assert_eq!(code(&refused), (404, "subscription_not_found"), "{id}");
    }
    assert_eq!(hooks.get(hook).await["id"], hook);
    for (method, path) in [
        (Method::GET, "subscriptions/deliveries"),
        (Method::GET, "subscriptions/dead-letters"),
        (Method::POST, "subscriptions/pause"),
    ] {
        let refused = hooks.send(method, path, None).await;
        assert_eq!(code(&refused), (404, "hook_not_found"), "no hook is called `subscriptions`: {path}");
    }
}
