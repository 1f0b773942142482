//! Links: which streams a subscription is linked to, and from where.

use tidings_testing::Endpoint;

use super::*;

async fn scene() -> (Harness, Root) {
    let server = Harness::start().await;
    let root = Root::of(&server);
    root.stream("wake/pool").await;
    (server, root)
}

fn paths(shown: &Value) -> Vec<&str> {
    shown["streams"].as_array().expect("streams").iter().map(|one| text(one, "path")).collect()
}

#[tokio::test]
async fn a_stream_is_linked_by_what_creates_it_and_all_of_it_is_pending() {
    let (_server, root) = scene().await;
    root.subscribe("s", pull_wake()).await;
    root.subscribe("other", json!({ "type": "pull-wake", "pattern": "other/*", "wake_stream": "w" })).await;
    assert_eq!(root.send(Method::PUT, "events/2026.11/x:y", Some(&json!([1, 2]))).await.0, 201);
    let shown = root.subscription("s").await;
    assert_eq!(paths(&shown), ["events/2026.11/x:y"]);
    assert_eq!(shown["streams"][0]["acked_offset"], "0000000000000000_0000000000000000");
    let claimed = root.claim("s", "w").await;
    assert_eq!(claimed["streams"][0]["has_pending"], true);
    assert_eq!(root.subscription("other").await["stream_count"], 0);
    assert_eq!(code(&root.post("other", "claim", json!({ "worker": "w" })).await), (409, "NO_PENDING_WORK"));
}

#[tokio::test]
async fn the_stream_of_a_session_is_linked_with_its_session_and_pending_by_what_is_published() {
    let (server, root) = scene().await;
    root.stream("orders").await;
    let wanted = json!({ "type": "pull-wake", "pattern": "user-*", "wake_stream": "wake/pool" });
    root.subscribe("s", wanted).await;
    let session = json!({ "sessionId": "user-alice", "streamId": "orders" });
    let subscribed = server.post("/v1/shop/subscribe").json(&session).send().await.expect("an answer");
    assert_eq!(subscribed.status(), 201);
    assert_eq!(paths(&root.subscription("s").await), ["user-alice"]);
    root.append("orders", json!(1)).await;
    eventually("workers are told", async || root.messages("wake/pool").await.len() == 1).await;
    assert_eq!(root.messages("wake/pool").await[0]["stream"], "user-alice");
    let claimed = root.claim("s", "w").await;
    assert_eq!((paths(&claimed), &claimed["streams"][0]["has_pending"]), (vec!["user-alice"], &json!(true)));
}

#[tokio::test]
async fn streams_that_exist_are_linked_at_their_tails() {
    let (_server, root) = scene().await;
    root.stream("events/a").await;
    root.append("events/a", json!(1)).await;
    let mut wanted = pull_wake();
    wanted["streams"] = json!(["/named/b/", "events/a"]);
    let created = root.subscribe("s", wanted.clone()).await;
    assert_eq!(paths(&created), ["events/a", "named/b"]);
    assert_eq!(created["streams"][0]["link_type"], "explicit", "that comes first");
    assert_eq!(code(&root.post("s", "claim", json!({ "worker": "w" })).await), (409, "NO_PENDING_WORK"));
    root.append("events/a", json!(2)).await;
    assert_eq!(root.claim("s", "w").await["streams"][0]["path"], "events/a");
    // The same in another order is the same; anything else is not.
    wanted["streams"] = json!(["events/a", "named/b"]);
    assert_eq!(root.put("s", wanted.clone()).await.0, 200);
    wanted["lease_ttl_ms"] = json!(10_001);
    assert_eq!(code(&root.put("s", wanted).await), (409, "SUBSCRIPTION_ALREADY_EXISTS"));
}

#[tokio::test]
async fn a_stream_that_is_named_before_it_exists_is_pending_from_its_beginning() {
    let (_server, root) = scene().await;
    root.subscribe("s", json!({ "type": "pull-wake", "streams": ["a"], "wake_stream": "wake/pool" })).await;
    let add = async |paths: Value| root.post("s", "streams", json!({ "streams": paths })).await;
    assert_eq!(add(json!(["b/c", "d"])).await.0, 204);
    assert_eq!(add(json!(["b/c"])).await.0, 204);
    assert_eq!(root.send(Method::PUT, "b/c", Some(&json!([1]))).await.0, 201);
    let claimed = root.claim("s", "w").await;
    assert_eq!(
        (&claimed["streams"][0]["path"], &claimed["streams"][0]["has_pending"]),
        (&json!("b/c"), &json!(true))
    );
    for path in ["d", "b%2Fc", "unknown"] {
        let unlink = format!("__ds/subscriptions/s/streams/{path}");
        assert_eq!(root.send(Method::DELETE, &unlink, None).await.0, 204, "{path}");
    }
    assert_eq!(paths(&root.subscription("s").await), ["a"]);
    for bad in [json!([]), json!([""]), json!(["__ds/x"]), json!("a"), json!([1])] {
        assert_eq!(code(&add(bad.clone()).await), (400, "INVALID_REQUEST"), "{bad}");
    }
    let nobody =
        root.send(Method::POST, "__ds/subscriptions/none/streams", Some(&json!({ "streams": ["a"] }))).await;
    assert_eq!(code(&nobody), (404, "SUBSCRIPTION_NOT_FOUND"));
}

#[tokio::test]
async fn a_stream_that_is_deleted_wakes_nobody_any_more() {
    let (server, root) = scene().await;
    let endpoint = Endpoint::start().await;
    endpoint.usually(Behaviour::status(500));
    root.subscribe("s", webhook(endpoint.url("/"))).await;
    root.stream("events/a").await;
    root.append("events/a", json!(1)).await;
    root.shows("s", "an attempt has failed", |shown| shown["failures"] == 1).await;
    assert_eq!(root.send(Method::DELETE, "events/a", None).await.0, 204);
    let shown = root.subscription("s").await;
    assert_eq!(paths(&shown), [] as [&str; 0]);
    server.clock.advance(SECOND * 2);
    root.stream("events/b").await;
    endpoint.usually(done());
    root.append("events/b", json!(1)).await;
    let told = endpoint.receives(2).await[1].json();
    assert_eq!(told["streams"].as_array().map(Vec::len), Some(1));
    assert_eq!(told["streams"][0]["path"], "events/b");
}

#[tokio::test]
async fn subscriptions_and_their_streams_are_listed_page_by_page() {
    let (_server, root) = scene().await;
    for n in 0..5 {
        root.stream(&format!("events/{n}")).await;
        root.subscribe(&format!("s{n}"), pull_wake()).await;
    }
    let page = root.get("__ds/subscriptions?limit=2").await;
    let ids = |page: &Value| {
        let listed = page["subscriptions"].as_array().expect("a list").clone();
        listed.iter().map(|one| text(one, "id").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((ids(&page), text(&page, "next")), (vec!["s0".to_owned(), "s1".to_owned()], "s1"));
    let last = root.get("__ds/subscriptions?limit=3&after=s1").await;
    assert_eq!((ids(&last).len(), &last["next"]), (3, &Value::Null));
    let page = root.get("__ds/subscriptions/s0?limit=2&streams_after=events/1").await;
    assert_eq!((paths(&page), text(&page, "streams_next")), (vec!["events/2", "events/3"], "events/3"));
    assert_eq!(page["stream_count"], 5);
    for bad in ["limit=0", "limit=1001", "limit=x"] {
        let refused = root.send(Method::GET, &format!("__ds/subscriptions?{bad}"), None).await;
        assert_eq!(code(&refused), (400, "INVALID_REQUEST"), "{bad}");
    }
}

#[tokio::test]
async fn a_subscription_beyond_the_limit_is_refused() {
    let subscriptions = tidings_subscriptions::Options { max_per_project: 2, ..Default::default() };
    let server = Harness::with(tidings_testing::Setup { subscriptions, ..Default::default() }).await;
    let root = Root::of(&server);
    root.subscribe("a", pull_wake()).await;
    root.subscribe("b", pull_wake()).await;
    assert_eq!(code(&root.put("c", pull_wake()).await), (429, "too_many_subscriptions"));
    assert_eq!(root.put("a", pull_wake()).await.0, 200, "it is there already");
    assert_eq!(root.send(Method::DELETE, "__ds/subscriptions/a", None).await.0, 204);
    eventually("there is room again", async || root.put("c", pull_wake()).await.0 == 201).await;
}
