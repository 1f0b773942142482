//! Events that are delivered again, or later, and those that have become too old for it.

use tidings_testing::{SLEEPERS, eventually};

use super::*;

async fn replays(api: &Api, hook: &Hook, range: Value) -> u64 {
    let path = format!("/subscriptions/{}/replay", hook.id);
    let (status, answer) = api.call(Method::POST, &path, Some(&range)).await;
    assert_eq!((status, &answer["ok"]), (202, &json!(true)), "{answer}");
    answer["events"].as_u64().expect("a number")
}

/// Waits until the duties have done what was due, and wait again.
async fn duties_wait(server: &Harness) {
    until("the duties wait", || server.clock.sleepers() >= SLEEPERS).await;
    rests(server).await;
}

#[tokio::test]
async fn a_deactivated_hook_hears_what_comes_later_and_what_it_missed_only_if_that_is_asked_for() {
    for server in both_stores(|_| {}).await {
        let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
        let hook = api.hears("a", &endpoint).await;
        let publishes = async |n: u64| {
            api.publishes("a", json!({ "n": n })).await;
            rests(&server).await;
        };
        publishes(1).await;
        api.tells("unsubscribe", &hook, json!({})).await;
        publishes(2).await;
        assert_eq!(numbers(&endpoint.received()), [1], "nothing is delivered meanwhile");
        assert_eq!(api.tells("reactivate", &hook, json!({})).await, json!({ "ok": true }));
        publishes(3).await;
        assert_eq!(numbers(&endpoint.received()), [1, 3], "nor is what was missed");
        api.tells("unsubscribe", &hook, json!({})).await;
        publishes(4).await;
        publishes(5).await;
        let answer = api.tells("reactivate", &hook, json!({ "replay": true })).await;
        assert_eq!(answer, json!({ "ok": true, "events": 2 }));
        endpoint.receives(4).await;
        rests(&server).await;
        let mut numbers = numbers(&endpoint.received());
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 3, 4, 5]);
        assert_eq!(api.stats(&hook).await, Stats { delivered: 4, attempts: 4, ..Stats::default() });
    }
}

#[tokio::test]
async fn a_replay_delivers_again_with_new_ids_and_also_to_a_hook_that_is_younger_than_the_events() {
    for server in both_stores(|_| {}).await {
        let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
        let old = api.hears("a", &endpoint).await;
        for id in ["evt-1", "evt-2"] {
            api.publishes("a", json!({ "id": id, "n": 0 })).await;
            rests(&server).await;
            server.clock.advance(SECOND);
        }
        let later = Endpoint::start().await;
        let young = api.hears("a", &later).await;
        assert_eq!(replays(&api, &young, json!({ "from": "2020-01-01T00:00:00Z" })).await, 2);
        later.receives(2).await;
        // The one that had them is not held back by having had these ids.
        let position = api.deliveries(&old).await[0]["position"].clone();
        assert_eq!(replays(&api, &old, json!({ "from": position })).await, 1);
        endpoint.receives(3).await;
        rests(&server).await;
        let of = |endpoint: &Endpoint| -> Vec<String> {
            endpoint
                .received()
                .iter()
                .map(|one| one.json()["id"].as_str().expect("an id").to_owned())
                .collect()
        };
        assert_eq!(of(&endpoint), ["evt-1", "evt-2", "evt-2"]);
        let mut both = of(&later);
        both.sort_unstable();
        assert_eq!(both, ["evt-1", "evt-2"]);
        let all: Vec<Received> = [endpoint.received(), later.received()].concat();
        let ids: std::collections::BTreeSet<_> =
            all.iter().map(|one| one.header("webhook-id").expect("an id").to_owned()).collect();
        assert_eq!(ids.len(), 5, "each delivery has an id of its own");
        let positions = texts(&api.deliveries(&old).await, "position");
        assert_eq!(positions[1], positions[2], "where the event is does not change");
    }
}

#[tokio::test]
async fn events_can_be_replayed_for_thirty_days() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    api.publishes("a", json!({ "n": 1 })).await;
    let hook = api.hears("a", &endpoint).await;
    let from = json!({ "from": "2020-01-01T00:00:00Z" });
    duties_wait(&server).await;
    server.clock.advance(30 * DAY - SECOND);
    duties_wait(&server).await;
    assert_eq!(replays(&api, &hook, from.clone()).await, 1);
    endpoint.receives(1).await;
    duties_wait(&server).await;
    // The server removes what is too old once an hour.
    server.clock.advance(Duration::from_secs(3602));
    eventually("the event is gone", async || replays(&api, &hook, from.clone()).await == 0).await;
    assert_eq!(endpoint.received().len(), 1);
}

#[tokio::test]
async fn what_was_not_delivered_while_events_are_kept_becomes_a_dead_letter_that_expired() {
    for server in both_stores(|options| options.event_retention = DAY).await {
        let (api, endpoint) = (Api::of(&server), answering(500, "").await);
        let settings = json!({ "url": endpoint.url("/"), "pattern": "a", "retrySchedule": [2 * DAY.as_millis() as u64] });
        let hook = api.subscribes(settings).await;
        api.publishes("a", json!({ "id": "evt-1" })).await;
        rests(&server).await;
        duties_wait(&server).await;
        server.clock.advance(DAY - SECOND);
        duties_wait(&server).await;
        assert_eq!(api.stats(&hook).await, Stats { failed: 1, attempts: 1, ..Stats::default() });
        server.clock.advance(Duration::from_secs(120));
        comes_to(&api, &hook, Stats { dead: 1, attempts: 1, ..Stats::default() }).await;
        let letter = api.dead_letters(&hook).await.remove(0);
        assert_eq!((&letter["reason"], &letter["eventId"]), (&json!("expired"), &json!("evt-1")));
        assert_eq!(endpoint.received().len(), 1);
    }
}

#[tokio::test]
async fn records_of_finished_deliveries_go_after_thirty_days_by_themselves_and_totals_stay() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let settings = json!({ "url": endpoint.url("/"), "pattern": "a", "maxRetries": 1 });
    let hook = api.subscribes(settings).await;
    endpoint.then(Behaviour::status(500));
    for n in 0..2 {
        api.publishes("a", json!({ "n": n })).await;
        rests(&server).await;
    }
    let log = api.deliveries(&hook).await[1].clone();
    duties_wait(&server).await;
    server.clock.advance(30 * DAY - SECOND);
    duties_wait(&server).await;
    assert_eq!((api.deliveries(&hook).await.len(), api.dead_letters(&hook).await.len()), (2, 1));
    server.clock.advance(Duration::from_secs(3602));
    eventually("they are gone", async || api.deliveries(&hook).await.is_empty()).await;
    assert_eq!(api.dead_letters(&hook).await, Vec::<Value>::new());
    assert_eq!(api.log(&log).await, Vec::<Value>::new());
    assert_eq!(api.stats(&hook).await, Stats { delivered: 1, attempts: 2, ..Stats::default() });
}

#[tokio::test]
async fn a_clean_up_leaves_what_is_still_to_be_delivered() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let settings = json!({
        "url": endpoint.url("/"), "pattern": "a", "ordering": "subscription", "retrySchedule": [60_000],
    });
    let hook = api.subscribes(settings).await;
    endpoint.then(Behaviour::status(200)).then(Behaviour::status(500));
    api.publishes_many("a", 3).await;
    rests(&server).await;
    passes(&server, SECOND).await;
    let statuses = async || texts(&api.deliveries(&hook).await, "status");
    assert_eq!(statuses().await, ["delivered", "failed", "pending"]);
    let before = json!({ "before": server.clock.now().as_millis() });
    let cleaned = api.post("/subscriptions/cleanup", &before).await;
    let expected = json!({ "deliveries": 1, "logs": 1, "deadLetters": 0, "batchDeliveries": 0 });
    assert_eq!(cleaned["deleted"], expected);
    assert_eq!(statuses().await, ["failed", "pending"]);
    passes(&server, 60 * SECOND).await;
    assert_eq!(numbers(&endpoint.received()), [0, 1, 1, 2]);
    assert_eq!(api.stats(&hook).await, Stats { delivered: 3, attempts: 4, ..Stats::default() });
}
