//! The examples of the seed, as their endpoints see them.

use super::*;

const MS: Duration = Duration::from_millis(1);

/// A server whose template of targets leads to an endpoint.
async fn with_template(endpoint: &Endpoint) -> Harness {
    let template = endpoint.url("/rpc/{rpcMethod}?{workerId}");
    with_options(|options| options.target_template = template).await
}

fn setup_example() -> Value {
    json!({
        "workerId": "github-handler", "pattern": "webhook.github.*", "rpcMethod": "handleGitHubWebhook",
        "maxRetries": 3, "timeoutMs": 10_000,
    })
}

#[tokio::test]
async fn the_setup_example_makes_three_attempts_of_ten_seconds_each() {
    let endpoint = Endpoint::start().await;
    let server = with_template(&endpoint).await;
    let api = Api::of(&server);
    let hook = api.subscribes(setup_example()).await;
    endpoint.usually(Behaviour::Hang);
    api.publishes("webhook.github.push", json!({})).await;
    for attempt in 1..=3 {
        endpoint.receives(attempt).await;
        until("the attempt waits", || endpoint.open() == 1).await;
        server.clock.advance(10 * SECOND - MS);
        assert_eq!(api.stats(&hook).await.attempts, attempt as u64 - 1, "its time is not over");
        passes(&server, MS).await;
        assert_eq!(api.stats(&hook).await.attempts, attempt as u64);
        // The delays are at most 2 and 3 seconds.
        server.clock.advance(3 * SECOND);
    }
    rests(&server).await;
    assert_eq!(api.stats(&hook).await, Stats { dead: 1, attempts: 3, ..Stats::default() });
    let timeout = "timeout after 10000 ms while waiting for a response";
    assert_eq!(texts(&api.dead_letters(&hook).await, "lastError"), [timeout]);
    let log = api.log(&api.delivery(&hook).await).await;
    assert_eq!(texts(&log, "errorMessage"), [timeout; 3]);
    assert_eq!(endpoint.received()[0].path, "/rpc/handleGitHubWebhook?github-handler");
}

#[tokio::test]
async fn the_handler_example_is_called_again_after_404_and_500_until_it_has_processed_the_event() {
    let endpoint = answering(200, "{\"processed\":true}").await;
    let answer = |status, body: &str| Behaviour::Answer(status, vec![], body.to_owned());
    endpoint.then(answer(404, "{\"error\":\"Unknown method\"}"));
    endpoint.then(answer(500, "{\"error\":\"Processing failed\"}"));
    let server = with_template(&endpoint).await;
    let api = Api::of(&server);
    let hook = api.subscribes(setup_example()).await;
    api.publishes("webhook.github.push", json!({})).await;
    rests(&server).await;
    // What keeps a delivery from being made is in its log while it waits.
    let waiting = api.delivery(&hook).await;
    let unknown = "HTTP 404: {\"error\":\"Unknown method\"}";
    assert_eq!((&waiting["status"], &waiting["lastError"]), (&json!("failed"), &json!(unknown)));
    assert_eq!(texts(&api.log(&waiting).await, "errorMessage"), [unknown]);
    passes(&server, 2 * SECOND).await;
    passes(&server, 3 * SECOND).await;
    let log = api.log(&waiting).await;
    let attempts: Vec<_> = log.iter().map(|one| (&one["attemptNumber"], &one["status"])).collect();
    let (failed, success) = (json!("failed"), json!("success"));
    assert_eq!(attempts, [(&json!(1), &failed), (&json!(2), &failed), (&json!(3), &success)]);
    assert_eq!(log[1]["errorMessage"], "HTTP 500: {\"error\":\"Processing failed\"}");
    assert_eq!(log[2]["workerResponse"], "{\"processed\":true}");
    assert!(endpoint.received().iter().all(|one| one.path.starts_with("/rpc/handleGitHubWebhook")));
    // One call has all that the example of monitoring reads.
    let status = api.get(&format!("/subscriptions/status/{}", hook.id)).await;
    assert_eq!(status["subscription"]["pattern"], "webhook.github.*");
    let expected = json!({
        "pendingDeliveries": 0, "failedDeliveries": 0, "deadLetters": 0, "successRate": 1.0 / 3.0,
        "totalDelivered": 1, "totalAttempts": 3,
    });
    assert_eq!(status["stats"], expected);
}

#[tokio::test]
async fn what_a_publisher_put_into_an_event_arrives_unchanged() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let settings = json!({ "url": endpoint.url("/"), "pattern": "**", "ordering": "subscription" });
    api.subscribes(settings).await;
    let events = [
        json!({ "do": { "id": "d1", "name": "counter", "class": "Counter" } }),
        json!({ "do": { "id": "d2", "name": "counter" } }),
        json!({ "colo": "FRA", "nested": { "list": [1, "ä", null, 1.5, { "deep": [[]] }] }, "payload": "x", "n": 1e3 }),
        json!({}),
    ];
    let events: Vec<_> = events.into_iter().map(|members| api.event("do.alarm", members)).collect();
    api.ingests(events.clone()).await;
    rests(&server).await;
    let received = endpoint.received();
    assert_eq!(received.len(), 4);
    for (received, event) in received.iter().zip(&events) {
        let body = received.json();
        assert_eq!(body["payload"], *event);
        assert_eq!((&body["type"], &body["ts"]), (&event["type"], &event["ts"]));
        let members: Vec<_> = body.as_object().expect("an object").keys().collect();
        assert_eq!(members, ["id", "payload", "ts", "type"]);
    }
}

#[tokio::test]
async fn the_data_change_example_hears_inserts_updates_and_deletes_of_its_collection() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let subscribe = |pattern: &str| {
        let settings = json!({ "url": endpoint.url("/"), "pattern": pattern, "ordering": "subscription" });
        api.subscribes(settings)
    };
    let hook = subscribe("collection.users.*").await;
    let deep = subscribe("collection.users.**").await;
    let change = |verb: &str, mut members: Value| {
        members["collection"] = "users".into();
        members["docId"] = "u-1".into();
        api.event(&format!("collection.users.{verb}"), members)
    };
    let changes = vec![
        change("insert", json!({ "doc": { "name": "ada" } })),
        change("update", json!({ "doc": { "name": "Ada" }, "prev": { "name": "ada" } })),
        change("delete", json!({ "prev": { "name": "Ada" } })),
    ];
    let others = ["collection.orders.insert", "collection.insert", "collection.users"];
    let others = others.map(|name| api.event(name, json!({})));
    api.ingests(changes.iter().cloned().chain(others).collect()).await;
    rests(&server).await;
    assert_eq!(api.stats(&hook).await, Stats { delivered: 3, attempts: 3, ..Stats::default() });
    assert_eq!(api.stats(&deep).await.delivered, 4, "and `collection.users` itself");
    let heard = texts(&api.deliveries(&hook).await, "type");
    assert_eq!(heard, ["insert", "update", "delete"].map(|verb| format!("collection.users.{verb}")));
    for change in changes {
        let same = |one: &Received| one.json()["payload"] == change;
        assert_eq!(endpoint.received().iter().filter(|one| same(one)).count(), 2, "{change}");
    }
}

#[tokio::test]
async fn an_attempt_has_thirty_seconds_unless_the_hook_says_otherwise() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    endpoint.usually(Behaviour::Hang);
    let hook = api.hears("a", &endpoint).await;
    api.publishes("a", json!({})).await;
    endpoint.receives(1).await;
    server.clock.advance(30 * SECOND - MS);
    assert_eq!(api.stats(&hook).await, Stats { pending: 1, ..Stats::default() });
    passes(&server, MS).await;
    let error = "timeout after 30000 ms while waiting for a response";
    assert_eq!(api.delivery(&hook).await["lastError"], error);
}

#[tokio::test]
async fn a_longer_timeout_and_more_attempts_hold_for_later_deliveries() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    endpoint.usually(Behaviour::Hang);
    let settings = json!({
        "url": endpoint.url("/"), "pattern": "a", "timeoutMs": 1000, "maxRetries": 1, "retrySchedule": [1000],
    });
    let hook = api.subscribes(settings).await;
    api.publishes("a", json!({})).await;
    endpoint.receives(1).await;
    passes(&server, SECOND).await;
    assert_eq!(api.stats(&hook).await, Stats { dead: 1, attempts: 1, ..Stats::default() });
    let change = json!({ "timeoutMs": 5000, "maxRetries": 2 });
    let (status, _) = api.call(Method::PUT, &format!("/subscriptions/{}", hook.id), Some(&change)).await;
    assert_eq!(status, 200);
    api.publishes("a", json!({})).await;
    endpoint.receives(2).await;
    server.clock.advance(5 * SECOND - MS);
    assert_eq!(api.stats(&hook).await, Stats { dead: 1, pending: 1, attempts: 1, ..Stats::default() });
    passes(&server, MS).await;
    assert_eq!(api.stats(&hook).await, Stats { dead: 1, failed: 1, attempts: 2, ..Stats::default() });
    server.clock.advance(SECOND);
    endpoint.receives(3).await;
    passes(&server, 5 * SECOND).await;
    assert_eq!(api.stats(&hook).await, Stats { dead: 2, attempts: 3, ..Stats::default() });
    assert_eq!(texts(&api.log(&api.deliveries(&hook).await[1]).await, "errorMessage").len(), 2);
}
