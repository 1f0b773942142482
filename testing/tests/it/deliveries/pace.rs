//! How many deliveries are made at a time, how fast, and that none has to wait for an endpoint that is dead.

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Lets a destination show that it answers, so that it is given as many attempts as hooks ask for.
async fn proves_itself(server: &Harness, api: &Api, endpoint: &Endpoint) {
    let hook =
        api.subscribes(json!({ "url": endpoint.url("/"), "pattern": "proof", "concurrency": 256 })).await;
    api.publishes_many("proof", 300).await;
    rests(server).await;
    assert_eq!(api.stats(&hook).await.delivered, 300);
}

#[tokio::test]
async fn a_hook_has_32_deliveries_at_a_time_or_as_many_as_it_asks_for() {
    for (concurrency, expected) in [(None, 32), (Some(3), 3), (Some(50), 50)] {
        let server = Harness::start().await;
        let (api, proof) = (Api::of(&server), Endpoint::start().await);
        proves_itself(&server, &api, &proof).await;
        let before = proof.received().len();
        let mut settings = json!({ "url": proof.url("/hook"), "pattern": "a" });
        if let Some(concurrency) = concurrency {
            settings["concurrency"] = concurrency.into();
        }
        let hook = api.subscribes(settings).await;
        proof.usually(Behaviour::Wait(200));
        api.publishes_many("a", 100).await;
        until("as many as may are open", || proof.open() == expected).await;
        // Whatever else is published goes to another hook, and this one has no more.
        let other = Endpoint::start().await;
        let bystander = api.hears("b", &other).await;
        api.publishes_many("b", 20).await;
        comes_to(&api, &bystander, Stats { delivered: 20, attempts: 20, ..Stats::default() }).await;
        assert_eq!((proof.open(), proof.received().len()), (expected, before + expected), "{concurrency:?}");
        proof.release();
        rests(&server).await;
        assert_eq!(api.stats(&hook).await, Stats { delivered: 100, attempts: 100, ..Stats::default() });
    }
}

#[tokio::test]
async fn a_rate_limit_lets_ten_or_one_seconds_worth_through_at_once_and_then_its_rate() {
    for (rate, burst) in [(2, 10), (10, 10), (25, 25)] {
        let server = Harness::start().await;
        let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
        let settings = json!({ "url": endpoint.url("/"), "pattern": "a", "rateLimit": rate });
        let hook = api.subscribes(settings).await;
        api.publishes_many("a", 100).await;
        rests(&server).await;
        assert_eq!(endpoint.received().len(), burst, "{rate} per second");
        let mut expected = burst;
        for _ in 0..2 {
            passes(&server, SECOND + MS).await;
            expected += rate;
            assert_eq!(endpoint.received().len(), expected, "{rate} per second");
        }
        assert_eq!(api.stats(&hook).await.pending as usize, 100 - expected);
    }
}

#[tokio::test]
async fn retries_that_are_due_at_the_same_moment_are_all_made() {
    const MANY: usize = 500;
    let server = with_options(|options| options.breaker_failures = 10_000).await;
    let (api, endpoint) = (Api::of(&server), answering(500, "").await);
    let settings = json!({ "url": endpoint.url("/"), "pattern": "a", "retrySchedule": [60_000] });
    let hook = api.subscribes(settings).await;
    api.publishes_many("a", MANY).await;
    rests(&server).await;
    let many = MANY as u64;
    assert_eq!(api.stats(&hook).await, Stats { failed: many, attempts: many, ..Stats::default() });
    endpoint.usually(Behaviour::default());
    passes(&server, 60 * SECOND).await;
    assert_eq!(api.stats(&hook).await, Stats { delivered: many, attempts: 2 * many, ..Stats::default() });
    let mut numbers = numbers(&endpoint.received()[MANY..]);
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..many), "each once");
}

#[tokio::test]
async fn after_ten_failures_a_destination_is_left_alone_for_thirty_seconds_and_one_probe_decides() {
    let server = Harness::start().await;
    let (api, endpoint, other) = (Api::of(&server), answering(500, "").await, Endpoint::start().await);
    let once = |pattern: &str, path: &str| {
        api.subscribes(json!({
            "url": endpoint.url(path), "pattern": pattern, "maxRetries": 1, "concurrency": 1,
        }))
    };
    let hook = once("a", "/one").await;
    let same_destination = once("b", "/two").await;
    let bystander = api.hears("b", &other).await;
    api.publishes_many("a", 15).await;
    rests(&server).await;
    assert_eq!(endpoint.received().len(), 10);
    api.publishes("b", json!({})).await;
    rests(&server).await;
    assert_eq!(api.stats(&bystander).await.delivered, 1, "another destination goes on");
    let waits = Stats { pending: 5, dead: 10, attempts: 10, ..Stats::default() };
    assert_eq!(api.stats(&hook).await, waits);
    assert_eq!(api.stats(&same_destination).await, Stats { pending: 1, ..Stats::default() });
    passes(&server, 30 * SECOND - MS).await;
    assert_eq!(endpoint.received().len(), 10);
    passes(&server, MS).await;
    assert_eq!(endpoint.received().len(), 11, "one probe, which fails");
    passes(&server, 30 * SECOND - MS).await;
    assert_eq!(endpoint.received().len(), 11);
    endpoint.usually(Behaviour::default());
    passes(&server, MS).await;
    let probed = api.stats(&hook).await.dead + api.stats(&same_destination).await.dead;
    assert_eq!(probed, 11, "those that waited lost no attempt");
    let delivered = api.stats(&hook).await.delivered + api.stats(&same_destination).await.delivered;
    assert_eq!(
        (delivered, endpoint.received().len()),
        (5, 16),
        "the probe was answered: all the others follow"
    );
}

#[tokio::test]
async fn an_endpoint_that_does_not_answer_delays_neither_ingest_nor_other_endpoints() {
    let server = Harness::start().await;
    let (api, dead, good) = (Api::of(&server), Endpoint::start().await, Endpoint::start().await);
    dead.usually(Behaviour::Hang);
    let hangs = api.subscribes(json!({ "url": dead.url("/"), "pattern": "**", "concurrency": 256 })).await;
    api.publishes_many("a", 2000).await;
    until("it hangs", || dead.open() > 0).await;
    let hook = api.hears("b", &good).await;
    for n in 0..50 {
        api.publishes("b", json!({ "n": n })).await;
    }
    comes_to(&api, &hook, Stats { delivered: 50, attempts: 50, ..Stats::default() }).await;
    assert_eq!(api.stats(&hangs).await.attempts, 0, "the clock has not moved: no attempt has ended there");
}

#[tokio::test]
async fn more_than_ten_thousand_hooks_under_one_first_segment_hear_their_events() {
    const MANY: usize = 10_100;
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let url = endpoint.url("/");
    for first in (0..MANY).step_by(100) {
        let some = (first..first + 100).map(|n| {
            let pattern = if n % 2 == 0 { format!("orders.id{n}.*") } else { format!("orders.id{n}") };
            api.subscribes(json!({ "url": url, "pattern": pattern }))
        });
        futures_util::future::join_all(some).await;
    }
    let all = api.hears("orders.**", &endpoint).await;
    api.publishes("orders.id10098.paid", json!({ "n": 1 })).await;
    api.publishes("orders.id1", json!({ "n": 2 })).await;
    rests(&server).await;
    let mut numbers = numbers(&endpoint.received());
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 1, 2, 2]);
    assert_eq!(api.stats(&all).await.delivered, 2);
    let found = api.get("/subscriptions/match?eventType=orders.id10098.paid").await;
    assert_eq!(found["subscriptions"].as_array().map(Vec::len), Some(2));
}
