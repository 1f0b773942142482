//! What survives `kill -9` and restarts, in each state of a wake.

use tidings_testing::{Endpoint, Setup, TestStore, until};

use super::*;

async fn serve() -> (Process, Root, Endpoint) {
    let server = Process::serve(&[]).await;
    let root = Root::on(&server);
    root.stream("wake/pool").await;
    root.stream("events/a").await;
    (server, root, Endpoint::start().await)
}

/// Kills the server and starts it again.
async fn killed(mut server: Process) -> (Process, Root) {
    server.kill().await;
    let server = server.restart().await;
    let root = Root::on(&server);
    (server, root)
}

fn acked(shown: &Value) -> Value {
    shown["streams"][0]["acked_offset"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_and_the_keys_survive_a_kill() {
    let (server, root, endpoint) = serve().await;
    endpoint.usually(done());
    let created = root.subscribe("s", webhook(endpoint.url("/"))).await;
    root.append("events/a", json!(1)).await;
    let tail = endpoint.receives(1).await[0].json()["streams"][0]["tail_offset"].clone();
    let before = root.shows("s", "it is acknowledged", |shown| acked(shown) == tail).await;
    let keys = root.get("__ds/jwks.json").await;
    let (_server, root) = killed(server).await;
    assert_eq!(root.subscription("s").await, before);
    assert_eq!(root.get("__ds/jwks.json").await, keys);
    let mut wanted = webhook(endpoint.url("/"));
    wanted["description"] = Value::Null;
    assert_eq!(root.put("s", wanted).await.0, 200, "{created}");
    root.append("events/a", json!(2)).await;
    let told = endpoint.receives(2).await[1].json();
    assert_eq!((&told["generation"], acked(&told)), (&json!(2), tail));
    assert_eq!(endpoint.received().len(), 2, "nothing of the past is sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_was_under_way_at_a_kill_is_sent_again_as_the_same_wake() {
    let (server, root, endpoint) = serve().await;
    endpoint.usually(Behaviour::Wait(200));
    root.subscribe("s", webhook(endpoint.url("/"))).await;
    root.append("events/a", json!(1)).await;
    let first = endpoint.receives(1).await[0].json();
    let (_server, root) = killed(server).await;
    let again = endpoint.receives(2).await[1].json();
    assert_eq!((&again["wake_id"], &again["generation"]), (&first["wake_id"], &first["generation"]));
    endpoint.release();
    // The token of either is good.
    let worker = root.with(text(&first, "callback_token"));
    assert_eq!(worker.post("s", "callback", report(&first, true)).await.0, 200);
    root.append("events/a", json!(2)).await;
    assert_eq!(endpoint.receives(3).await[2].json()["generation"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_that_was_told_before_a_kill_keeps_its_lease_and_its_token() {
    let (server, root, endpoint) = serve().await;
    root.subscribe("s", webhook(endpoint.url("/"))).await;
    root.append("events/a", json!(1)).await;
    let told = endpoint.receives(1).await[0].json();
    // The answer of the endpoint is recorded, so it is not told again.
    root.append("events/a", json!(2)).await;
    until("the answer is recorded", || endpoint.open() == 0).await;
    let worker = root.with(text(&told, "callback_token"));
    let heartbeat = json!({ "wake_id": told["wake_id"], "generation": 1 });
    assert_eq!(worker.post("s", "callback", heartbeat).await.0, 200);
    let (_server, root) = killed(server).await;
    let worker = root.with(text(&told, "callback_token"));
    let reported = worker.post("s", "callback", report(&told, true)).await;
    assert_eq!(reported, (200, json!({ "ok": true, "next_wake": true })));
    let next = endpoint.receives(2).await[1].json();
    assert_eq!(next["generation"], 2);
    assert_eq!(acked(&next), told["streams"][0]["tail_offset"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_survives_a_kill_with_its_holder_and_its_token() {
    let (server, root, _) = serve().await;
    root.subscribe("s", pull_wake()).await;
    root.append("events/a", json!(1)).await;
    let claimed = root.claim("s", "worker").await;
    let (server, root) = killed(server).await;
    let busy = root.post("s", "claim", json!({ "worker": "other" })).await;
    assert_eq!(
        (code(&busy), &busy.1["error"]["current_holder"]),
        ((409, "ALREADY_CLAIMED"), &json!("worker"))
    );
    let worker = root.with(text(&claimed, "token"));
    assert_eq!(worker.post("s", "ack", report(&claimed, false)).await.0, 200);
    let (_server, root) = killed(server).await;
    assert_eq!(acked(&root.subscription("s").await), claimed["streams"][0]["tail_offset"]);
    let worker = root.with(text(&claimed, "token"));
    assert_eq!(
        worker.post("s", "ack", report(&claimed, true)).await,
        (200, json!({ "ok": true, "next_wake": false }))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_subscription_stays_removed_after_a_kill() {
    let (server, root, endpoint) = serve().await;
    root.subscribe("s", webhook(endpoint.url("/"))).await;
    assert_eq!(root.send(Method::DELETE, "__ds/subscriptions/s", None).await.0, 204);
    let (_server, root) = killed(server).await;
    assert_eq!(root.get("__ds/subscriptions").await["subscriptions"], json!([]));
    root.append("events/a", json!(1)).await;
    root.subscribe("t", webhook(endpoint.url("/"))).await;
    root.append("events/a", json!(2)).await;
    assert_eq!(endpoint.receives(1).await[0].json()["subscription_id"], "t");
}

/// A server on files, whose clock stands still.
async fn on_files() -> (Harness, Root, Endpoint) {
    let server = Harness::with(Setup { store: TestStore::Embedded, ..Setup::default() }).await;
    let root = Root::of(&server);
    root.stream("events/a").await;
    (server, root, Endpoint::start().await)
}

#[tokio::test]
async fn a_retry_waits_for_its_time_also_after_a_restart() {
    let (server, root, endpoint) = on_files().await;
    endpoint.usually(Behaviour::status(500));
    root.subscribe("s", webhook(endpoint.url("/"))).await;
    root.append("events/a", json!(1)).await;
    let before = root.shows("s", "an attempt has failed", |shown| shown["failures"] == 1).await;
    let server = server.restart().await;
    let root = Root::of(&server);
    assert_eq!(root.subscription("s").await, before);
    server.clock.advance(Duration::from_millis(700));
    root.append("events/a", json!(2)).await;
    assert_eq!(root.subscription("s").await["failures"], 1);
    assert_eq!(endpoint.received().len(), 1, "a restart does not make it due");
    endpoint.usually(done());
    server.clock.advance(Duration::from_millis(600));
    let told = endpoint.receives(2).await[1].json();
    assert_eq!(told["wake_id"], endpoint.received()[0].json()["wake_id"]);
    root.shows("s", "it works again", |shown| shown["failures"] == 0).await;
}

#[tokio::test]
async fn a_lease_that_ends_while_the_server_is_down_is_over_when_it_is_up() {
    let (server, root, endpoint) = on_files().await;
    root.subscribe("s", webhook(endpoint.url("/"))).await;
    root.append("events/a", json!(1)).await;
    let told = endpoint.receives(1).await[0].json();
    let worker = root.with(text(&told, "callback_token"));
    let heartbeat = json!({ "wake_id": told["wake_id"], "generation": 1 });
    assert_eq!(worker.post("s", "callback", heartbeat).await.0, 200);
    let clock = server.clock.clone();
    let server = server.restart_with(|_| clock.advance(SECOND * 30)).await;
    let next = endpoint.receives(2).await[1].json();
    assert_eq!(next["generation"], 2);
    let worker = Root::of(&server).with(text(&told, "callback_token"));
    assert_eq!(code(&worker.post("s", "callback", report(&told, true)).await), (409, "FENCED"));
}

#[tokio::test]
async fn a_dead_letter_stays_one_after_a_restart() {
    let (server, root, endpoint) = on_files().await;
    endpoint.usually(Behaviour::status(500));
    let mut wanted = webhook(endpoint.url("/"));
    wanted["max_attempts"] = json!(1);
    root.subscribe("s", wanted).await;
    root.append("events/a", json!(1)).await;
    let before = root.shows("s", "it is given up", |shown| !shown["dead_letter"].is_null()).await;
    let server = server.restart().await;
    let root = Root::of(&server);
    assert_eq!(root.subscription("s").await["dead_letter"], before["dead_letter"]);
    endpoint.usually(done());
    assert_eq!(root.post("s", "retry", json!({})).await.0, 204);
    endpoint.receives(2).await;
    root.shows("s", "it works again", |shown| shown["dead_letter"].is_null()).await;
}

#[tokio::test]
async fn a_wake_that_could_not_be_announced_before_a_restart_is_announced_after_it() {
    let (server, root, _) = on_files().await;
    root.subscribe("s", pull_wake()).await;
    root.append("events/a", json!(1)).await;
    root.shows("s", "it cannot be announced", |shown| shown["failures"] == 1).await;
    root.stream("wake/pool").await;
    let server = server.restart().await;
    let root = Root::of(&server);
    server.clock.advance(SECOND * 2);
    eventually("it is announced", async || root.messages("wake/pool").await.len() == 1).await;
    assert_eq!(root.claim("s", "w").await["generation"], 1);
}
