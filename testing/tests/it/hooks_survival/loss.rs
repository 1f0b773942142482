//! A full disk, and hooks and projects that are removed while an attempt is under way.

use tidings_egress::AllowList;
use tidings_model::ProjectId;
use tidings_server::HookOptions;
use tidings_testing::{ADMIN_KEY, Behaviour, Doors, Endpoint, Harness, Setup, TestStore, eventually, until};

use super::*;

async fn server(setup: Setup) -> (Harness, Api) {
    let server = Harness::with(Setup { wall_clock: true, ..setup }).await;
    let api = Api::at(server.url("/v1/p"));
    (server, api)
}

#[tokio::test]
async fn on_a_full_disk_ingest_is_507_running_deliveries_finish_and_nothing_is_forgotten() {
    let (server, api) = server(Setup { store: TestStore::Embedded, ..Setup::default() }).await;
    let (good, bad) = (Endpoint::start().await, Endpoint::start().await);
    for endpoint in [&good, &bad] {
        endpoint.usually(Behaviour::Hang);
    }
    let delivered = api.hook(json!({ "pattern": "a", "url": good.url("/") })).await;
    let settings = json!({ "pattern": "a", "url": bad.url("/"), "maxRetries": 2, "retrySchedule": [10] });
    let given_up = api.hook(settings).await;
    api.publish("a", 5).await;
    good.receives(1).await;
    bad.receives(1).await;

    // What waits in the queues is delivered, and that is recorded. What is given up waits for space.
    let mut before = 0;
    let server = server.restart_with(|setup| {
        before = bad.received().len();
        setup.store = TestStore::Full;
        good.usually(Behaviour::status(200));
        bad.usually(Behaviour::status(500));
    });
    let server = server.await;
    let api = Api::at(server.url("/v1/p"));
    let refused = api.request(Method::POST, "/events").json(&json!({ "events": [event("a", json!({}))] }));
    assert_eq!(refused.send().await.expect("an answer").status(), 507);
    api.comes_to(&delivered, "all are delivered", |stats| stats.delivered == 5 && stats.pending == 0).await;
    until("all attempts are made", || bad.received().len() >= before + 2 * 5).await;
    assert_eq!(api.dead_letters(&given_up).await, Vec::<Value>::new(), "there is no space for them");
    let received = good.received().len();

    let server = server.restart_with(|setup| setup.store = TestStore::Embedded).await;
    let api = Api::at(server.url("/v1/p"));
    let stats = api.comes_to(&given_up, "all are given up", |stats| stats.dead == 5).await;
    assert_eq!((stats.pending, stats.failed), (0, 0));
    let letters = api.dead_letters(&given_up).await;
    for (hook, status) in [(&delivered, "delivered"), (&given_up, "dead")] {
        let shown = api.deliveries(hook).await;
        let statuses: Vec<_> = shown.iter().map(|delivery| text(delivery, "status")).collect();
        assert_eq!(statuses, [status; 5], "{shown:?}");
    }
    let mut numbers: Vec<_> = letters.iter().map(|letter| letter["event"]["n"].as_u64()).collect();
    numbers.sort();
    assert_eq!(numbers, (0..5).map(Some).collect::<Vec<_>>());
    api.publish("a", 1).await;
    api.comes_to(&delivered, "the next is delivered", |stats| stats.delivered == 6).await;
    assert_eq!(good.received().len(), received + 1, "what was delivered on the full disk is not sent again");
}

#[tokio::test]
async fn a_hook_that_is_deleted_while_an_attempt_runs_leaves_nothing_behind() {
    let (server, api) = server(Setup::default()).await;
    let endpoint = Endpoint::start().await;
    endpoint.usually(Behaviour::Wait(500));
    let settings =
        json!({ "pattern": "a", "url": endpoint.url("/"), "concurrency": 1, "retrySchedule": [1] });
    let hook = api.hook(settings.clone()).await;
    api.publish("a", 3).await;
    endpoint.receives(1).await;
    let removed = api.request(Method::DELETE, &format!("/hooks/{hook}")).send().await.expect("an answer");
    assert!(removed.status().is_success(), "{}", removed.status());
    endpoint.release();
    until("the attempt is over", || endpoint.open() == 0).await;
    let gone = api.request(Method::GET, &format!("/hooks/{hook}")).send().await.expect("an answer");
    assert_eq!(gone.status(), 404);
    // An equal one begins with nothing.
    let next = api.hook(settings).await;
    api.publish("a", 1).await;
    let stats = api.comes_to(&next, "it is delivered", |stats| stats.delivered == 1).await;
    assert_eq!(stats, Stats { delivered: 1, attempts: 1, ..Stats::default() });
    until("nothing is left to do", || server.server().hooks().is_at_rest()).await;
    assert_eq!(endpoint.received().len(), 2, "what waited for the first one is not delivered");
}

#[tokio::test]
async fn a_project_that_is_removed_while_an_attempt_runs_leaves_no_hook_and_no_event() {
    const KEY: &str = "a-signing-key-of-the-project-with-32-bytes-or-more";
    let hooks = HookOptions { allow_targets: Some(AllowList::loopback()), ..HookOptions::default() };
    let doors = Doors::Closed { created: vec![("p", KEY)], given: Vec::new() };
    let (server, api) = server(Setup { hooks, doors, ..Setup::default() }).await;
    let api = Api { key: Some(ADMIN_KEY), ..api };
    let endpoint = Endpoint::start().await;
    endpoint.usually(Behaviour::Wait(200));
    let settings = json!({ "pattern": "a", "url": endpoint.url("/"), "concurrency": 1 });
    api.hook(settings.clone()).await;
    api.publish("a", 3).await;
    endpoint.receives(1).await;
    let project = ProjectId::parse("p").expect("an id");
    server.projects().remove(&project).await.expect("removed");
    endpoint.release();
    until("the attempt is over", || endpoint.open() == 0).await;
    eventually("it can be created again", async || server.projects().create(&project, None).await.is_ok())
        .await;
    eventually("its hooks are gone", async || api.get("/hooks").await["hooks"] == json!([])).await;
    let hook = api.hook(settings).await;
    let from = json!({ "from": "1970-01-01T00:00:00Z" });
    assert_eq!(api.post(&format!("/hooks/{hook}/replay"), from).await["events"], 0, "no event of before");
    api.publish("a", 1).await;
    let stats = api.comes_to(&hook, "it is delivered", |stats| stats.delivered == 1).await;
    assert_eq!(stats, Stats { delivered: 1, attempts: 1, ..Stats::default() });
    assert_eq!(endpoint.received().len(), 2, "what waited is not delivered");
}
