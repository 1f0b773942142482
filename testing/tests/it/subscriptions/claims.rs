//! Claims: workers that pull, and the errors that keep them apart.

use futures_util::future::join_all;
use tidings_testing::Endpoint;

use super::*;

/// A server with a stream for wakes and a subscription `s`.
async fn scene() -> (Harness, Root) {
    let server = Harness::start().await;
    let root = Root::of(&server);
    root.stream("wake/pool").await;
    root.subscribe("s", pull_wake()).await;
    (server, root)
}

/// Waits until so many wakes were announced, and returns their numbers.
async fn announced(root: &Root, count: usize) -> Vec<Value> {
    eventually("it is announced", async || root.messages("wake/pool").await.len() >= count).await;
    root.messages("wake/pool").await.iter().map(|event| event["generation"].clone()).collect()
}

#[tokio::test]
async fn of_workers_that_race_for_a_claim_one_wins() {
    let (server, root) = scene().await;
    root.stream("events/a").await;
    root.append("events/a", json!(1)).await;
    announced(&root, 1).await;
    let event = &root.messages("wake/pool").await[0];
    let expected = json!({
        "type": "wake", "subscription_id": "s", "stream": "events/a", "generation": 1,
        "ts": server.clock.now().as_millis(),
    });
    assert_eq!(*event, expected);
    let names: Vec<_> = (0..8).map(|n| format!("worker-{n}")).collect();
    let claims = join_all(names.iter().map(|name| root.post("s", "claim", json!({ "worker": name })))).await;
    let (won, lost): (Vec<_>, Vec<_>) = names.iter().zip(&claims).partition(|(_, answer)| answer.0 == 200);
    assert_eq!((won.len(), lost.len()), (1, 7));
    for (_, answer) in &lost {
        assert_eq!(code(answer), (409, "ALREADY_CLAIMED"));
        assert_eq!(answer.1["error"]["current_holder"], json!(won[0].0));
        assert_eq!(answer.1["error"]["generation"], 1);
    }
    let claimed = &won[0].1.1;
    assert_eq!((&claimed["generation"], &claimed["lease_ttl_ms"]), (&json!(1), &json!(10_000)));
    let worker = root.with(text(claimed, "token"));
    assert_eq!(
        worker.post("s", "ack", report(claimed, true)).await,
        (200, json!({ "ok": true, "next_wake": false }))
    );
    assert_eq!(code(&root.post("s", "claim", json!({ "worker": "w" })).await), (409, "NO_PENDING_WORK"));
}

#[tokio::test]
async fn a_claim_whose_lease_ends_is_announced_anew_and_its_worker_fenced_off() {
    let (server, root) = scene().await;
    root.stream("events/a").await;
    root.append("events/a", json!(1)).await;
    announced(&root, 1).await;
    let first = root.claim("s", "first").await;
    let worker = root.with(text(&first, "token"));
    // A report keeps the lease.
    server.clock.advance(SECOND * 9);
    assert_eq!(worker.post("s", "ack", report(&first, false)).await.0, 200);
    root.append("events/a", json!(2)).await;
    server.clock.advance(SECOND * 9);
    assert_eq!(root.subscription("s").await["holder"], "first");
    server.clock.advance(SECOND);
    assert_eq!(announced(&root, 2).await, [json!(1), json!(2)]);
    let second = root.claim("s", "second").await;
    assert_eq!(second["generation"], 2);
    assert_eq!(
        second["streams"][0]["acked_offset"], first["streams"][0]["tail_offset"],
        "what was acknowledged stays so"
    );
    assert_eq!(code(&worker.post("s", "ack", report(&first, true)).await), (409, "FENCED"));
    assert_eq!(code(&worker.post("s", "release", report(&first, true)).await), (409, "FENCED"));
    assert_eq!(server.metric("tidings_subscription_leases_expired_total"), Some(1.0));
}

#[tokio::test]
async fn a_claim_that_is_released_is_announced_anew() {
    let (_server, root) = scene().await;
    root.stream("events/a").await;
    root.append("events/a", json!(1)).await;
    announced(&root, 1).await;
    let first = root.claim("s", "w").await;
    let released = root.with(text(&first, "token")).post("s", "release", report(&first, false)).await;
    assert_eq!(released, (204, Value::Null));
    assert_eq!(announced(&root, 2).await, [json!(1), json!(2)]);
    let second = root.claim("s", "w").await;
    assert_eq!(second["streams"][0]["has_pending"], true, "a release acknowledges nothing");
}

#[tokio::test]
async fn a_report_that_is_not_possible_changes_nothing() {
    let (server, root) = scene().await;
    root.stream("events/a").await;
    root.append("events/a", json!(1)).await;
    let claimed = root.claim("s", "w").await;
    let worker = root.with(text(&claimed, "token"));
    let mut good = report(&claimed, false);
    assert_eq!(worker.post("s", "ack", good.clone()).await.0, 200);
    let zero = "0000000000000000_0000000000000000";
    let beyond = "0009999999999999_0000000000000000";
    for (stream, offset) in
        [("events/a", zero), ("events/a", beyond), ("events/a", "-1"), ("events/a", "x"), ("other", zero)]
    {
        good["acks"] = json!([{ "stream": stream, "offset": offset }]);
        assert_eq!(code(&worker.post("s", "ack", good.clone()).await), (409, "INVALID_OFFSET"), "{offset}");
    }
    assert_eq!(
        root.subscription("s").await["streams"][0]["acked_offset"],
        claimed["streams"][0]["tail_offset"]
    );
    let done = report(&claimed, true);
    for (action, token, expected) in [
        ("ack", None, (401, "TOKEN_INVALID")),
        ("ack", Some("dsw_nonsense"), (401, "TOKEN_INVALID")),
        ("release", None, (401, "TOKEN_INVALID")),
        ("callback", Some(text(&claimed, "token")), (400, "INVALID_REQUEST")),
    ] {
        let sender = token.map_or(root.clone(), |token| root.with(token));
        assert_eq!(code(&sender.post("s", action, done.clone()).await), expected, "{action}");
    }
    let endpoint = Endpoint::start().await;
    root.subscribe("hook", webhook(endpoint.url("/"))).await;
    assert_eq!(code(&root.post("hook", "claim", json!({ "worker": "w" })).await), (400, "INVALID_REQUEST"));
    assert_eq!(code(&worker.post("hook", "ack", done.clone()).await), (401, "TOKEN_INVALID"));
    assert_eq!(
        code(&root.post("none", "claim", json!({ "worker": "w" })).await),
        (404, "SUBSCRIPTION_NOT_FOUND")
    );
    assert_eq!(code(&root.post("s", "claim", json!({ "worker": "" })).await), (400, "INVALID_REQUEST"));
    server.clock.advance(SECOND * 24 * 3600);
    assert_eq!(code(&worker.post("s", "ack", done).await), (401, "TOKEN_EXPIRED"));
}

#[tokio::test]
async fn wakes_without_a_stream_to_announce_them_in_are_tried_again() {
    let server = Harness::start().await;
    let root = Root::of(&server);
    root.subscribe("s", pull_wake()).await;
    root.stream("events/a").await;
    root.append("events/a", json!(1)).await;
    let shown = root.shows("s", "it cannot be announced", |shown| shown["failures"] == 1).await;
    assert!(text(&shown, "last_error").starts_with("wake_stream: "), "{shown}");
    root.stream("wake/pool").await;
    server.clock.advance(SECOND * 2);
    assert_eq!(announced(&root, 1).await, [json!(1)]);
    root.shows("s", "it works again", |shown| shown["status"] == "active").await;
}

#[tokio::test]
async fn a_subscription_does_not_wake_itself_by_its_wakes() {
    let server = Harness::start().await;
    let root = Root::of(&server);
    root.stream("wake/pool").await;
    let mut wanted = pull_wake();
    wanted["pattern"] = json!("**");
    let created = root.subscribe("s", wanted.clone()).await;
    assert_eq!(created["streams"], json!([]));
    wanted["streams"] = json!(["wake/pool"]);
    assert_eq!(code(&root.put("t", wanted).await), (400, "INVALID_REQUEST"));
    root.stream("events/a").await;
    root.append("events/a", json!(1)).await;
    announced(&root, 1).await;
    let claimed = root.claim("s", "w").await;
    assert_eq!(claimed["streams"].as_array().map(Vec::len), Some(1));
    let acked = root.with(text(&claimed, "token")).post("s", "ack", report(&claimed, true)).await;
    assert_eq!(acked, (200, json!({ "ok": true, "next_wake": false })));
}
