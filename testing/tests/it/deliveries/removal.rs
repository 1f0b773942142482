//! Hooks and projects that are removed while deliveries wait or run, and servers that begin to dispatch.

use tidings_engine::duty::{Leadership, Role};
use tidings_server::Duty;
use tokio::sync::watch;

use super::*;

/// A hook with one delivery that waits for a retry and one whose attempt runs.
async fn one_waits_and_one_runs(server: &Harness, api: &Api, endpoint: &Endpoint) -> Hook {
    endpoint.then(Behaviour::status(500)).usually(Behaviour::Wait(500));
    let settings = json!({ "url": endpoint.url("/"), "pattern": "a", "retrySchedule": [60_000] });
    let hook = api.subscribes(settings).await;
    api.publishes("a", json!({ "n": 1 })).await;
    rests(server).await;
    api.publishes("a", json!({ "n": 2 })).await;
    until("the second attempt runs", || endpoint.open() == 1).await;
    assert_eq!(api.stats(&hook).await, Stats { failed: 1, pending: 1, attempts: 1, ..Stats::default() });
    hook
}

#[tokio::test]
async fn a_hook_that_is_deleted_while_an_attempt_runs_calls_nobody_any_more() {
    for server in both_stores(|_| {}).await {
        let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
        let hook = one_waits_and_one_runs(&server, &api, &endpoint).await;
        let removed = api.removes(&hook).await;
        assert_eq!(removed["deleted"]["deliveries"], 2, "{removed}");
        endpoint.release();
        passes(&server, DAY).await;
        assert_eq!(endpoint.received().len(), 2);
        let (status, _) = api.call(Method::GET, &format!("/subscriptions/{}", hook.id), None).await;
        assert_eq!(status, 404);
        // The same again is another hook, with nothing of the first.
        let settings = json!({ "url": endpoint.url("/"), "pattern": "a", "retrySchedule": [60_000] });
        let again = api.subscribes(settings).await;
        assert_ne!(again.id, hook.id);
        assert_eq!(api.stats(&again).await, Stats::default());
        api.publishes("a", json!({ "n": 3 })).await;
        rests(&server).await;
        assert_eq!(numbers(&endpoint.received()), [1, 2, 3]);
    }
}

#[tokio::test]
async fn a_removed_project_takes_its_hooks_events_and_remembered_ids_along() {
    for server in both_stores(|_| {}).await {
        let (api, endpoint) = (Api::of(&server).within("shop"), Endpoint::start().await);
        let outside = Api::of(&server);
        let create = async || {
            let (status, _) =
                outside.call(Method::POST, "/v1/projects", Some(&json!({ "project": "shop" }))).await;
            assert_eq!(status, 201);
        };
        create().await;
        let hook = one_waits_and_one_runs(&server, &api, &endpoint).await;
        let batch = json!({ "batchId": "b", "events": [api.event("other", json!({ "id": "evt" }))] });
        assert_eq!(api.post("/e", &batch).await["ok"], true);
        assert_eq!(outside.call(Method::DELETE, "/v1/projects/shop", None).await.0, 204);
        until("the project is removed", || server.projects().removing().is_empty()).await;
        endpoint.release();
        passes(&server, DAY).await;
        assert_eq!(endpoint.received().len(), 2, "neither the retry nor anything else");
        create().await;
        let list = api.get("/subscriptions/list").await;
        assert_eq!(list["subscriptions"], json!([]));
        let (status, _) = outside.call(Method::GET, &format!("/subscriptions/{}", hook.id), None).await;
        assert_eq!(status, 404);
        let again = api.hears("**", &endpoint).await;
        let all = json!({ "from": "2020-01-01T00:00:00Z" });
        let replayed = api.post(&format!("/subscriptions/{}/replay", again.id), &all).await;
        assert_eq!(replayed["events"], 0, "the project of this name begins anew");
        let batch = json!({ "batchId": "b", "events": [api.event("other", json!({ "id": "evt", "n": 7 }))] });
        assert_eq!(api.post("/e", &batch).await.get("deduplicated"), None);
        rests(&server).await;
        assert_eq!(numbers(&endpoint.received()[2..]), [7]);
    }
}

#[tokio::test]
async fn what_was_accepted_and_never_attempted_is_delivered_after_a_restart() {
    let nobody = Duty::lasting("hook-dispatcher", std::future::pending);
    let setup = Setup { store: TestStore::Embedded, duties: vec![nobody], ..Setup::default() };
    let server = Harness::with(setup).await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let hook = api.hears("a", &endpoint).await;
    api.publishes_many("a", 20).await;
    assert_eq!(api.stats(&hook).await, Stats { pending: 20, ..Stats::default() });
    let server = server.restart_with(|setup| setup.duties.clear()).await;
    endpoint.receives(20).await;
    rests(&server).await;
    let api = Api::of(&server);
    assert_eq!(api.stats(&hook).await, Stats { delivered: 20, attempts: 20, ..Stats::default() });
    let mut numbers = numbers(&endpoint.received());
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..20));
}

#[tokio::test]
async fn a_node_that_does_not_lead_accepts_events_and_delivers_them_when_it_does() {
    let (tell, told) = watch::channel(Role::Follower);
    let server = Harness::with(Setup { leadership: Leadership::told(told), ..Setup::default() }).await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let hook = api.hears("a", &endpoint).await;
    api.publishes_many("a", 3).await;
    until("the duties of every node wait", || server.clock.sleepers() > 0).await;
    server.clock.advance(DAY);
    assert_eq!(api.stats(&hook).await, Stats { pending: 3, ..Stats::default() });
    assert_eq!(endpoint.connections(), 0);
    tell.send_replace(Role::Leader);
    endpoint.receives(3).await;
    rests(&server).await;
    assert_eq!(api.stats(&hook).await, Stats { delivered: 3, attempts: 3, ..Stats::default() });
}
