//! When failed attempts are repeated, and when they are given up.

use tidings_testing::SLEEPERS;

use super::*;

const MS: Duration = Duration::from_millis(1);

fn failed(attempts: u64) -> Stats {
    Stats { failed: 1, attempts, ..Stats::default() }
}

fn dead(attempts: u64) -> Stats {
    Stats { dead: 1, attempts, ..Stats::default() }
}

#[tokio::test]
async fn the_delay_doubles_from_one_second_to_five_minutes_and_up_to_a_second_is_added() {
    // The breaker of the destination would make it wait longer.
    let server = with_options(|options| options.breaker_failures = 1000).await;
    let (api, endpoint) = (Api::of(&server), answering(500, "no").await);
    let settings = json!({ "url": endpoint.url("/"), "pattern": "a", "maxRetries": 12 });
    let hook = api.subscribes(settings).await;
    api.publishes("a", json!({})).await;
    rests(&server).await;
    let mut jitter = Vec::new();
    for (attempts, delay) in (1..).zip([1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]) {
        assert_eq!(api.stats(&hook).await, failed(attempts));
        passes(&server, delay * SECOND - MS).await;
        assert_eq!(endpoint.received().len() as u64, attempts, "not before {delay} s");
        let mut added = 0;
        while endpoint.received().len() as u64 == attempts {
            assert!(added <= 1000, "attempt {attempts} waited longer than {delay} s and a second");
            passes(&server, 20 * MS).await;
            added += 20;
        }
        jitter.push(added);
    }
    assert_eq!(api.stats(&hook).await, dead(12));
    passes(&server, 10 * DAY).await;
    assert_eq!(endpoint.received().len(), 12, "it is given up");
    assert!(jitter.iter().any(|added| *added != jitter[0]), "jitter is random: {jitter:?}");
    let log = api.log(&api.delivery(&hook).await).await;
    let numbers: Vec<_> = log.iter().map(|one| one["attemptNumber"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, (1..=12).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_schedule_of_the_hook_is_kept_to_the_millisecond_and_its_last_delay_repeats() {
    for server in both_stores(|_| {}).await {
        let (api, endpoint) = (Api::of(&server), answering(500, "").await);
        let schedule = json!([50, 10_000, 0, 3000]);
        let settings =
            json!({ "url": endpoint.url("/"), "pattern": "a", "maxRetries": 7, "retrySchedule": schedule });
        let hook = api.subscribes(settings).await;
        api.publishes("a", json!({})).await;
        rests(&server).await;
        for (attempts, delay) in [(1, 50), (2, 10_000), (4, 3000), (5, 3000), (6, 3000)] {
            assert_eq!(api.stats(&hook).await, failed(attempts));
            passes(&server, delay * MS - MS).await;
            assert_eq!(endpoint.received().len() as u64, attempts, "not before {delay} ms");
            passes(&server, MS).await;
        }
        assert_eq!(api.stats(&hook).await, dead(7));
    }
}

#[tokio::test]
async fn max_retries_is_the_number_of_all_attempts() {
    let server = with_options(|options| options.breaker_failures = 1000).await;
    let (api, endpoint) = (Api::of(&server), answering(500, "").await);
    for (max_retries, attempts) in [(0, 1), (1, 1), (2, 2), (5, 5)] {
        let settings = json!({ "url": endpoint.url("/"), "pattern": "a", "maxRetries": max_retries, "retrySchedule": [1000] });
        let hook = api.subscribes(settings).await;
        api.publishes("a", json!({})).await;
        rests(&server).await;
        for made in 1..attempts {
            assert_eq!(api.stats(&hook).await, failed(made), "{max_retries}");
            passes(&server, SECOND).await;
        }
        assert_eq!(api.stats(&hook).await, dead(attempts), "{max_retries}");
        api.removes(&hook).await;
    }
}

#[tokio::test]
async fn five_attempts_are_made_unless_the_hook_says_otherwise() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), answering(500, "").await);
    let hook = api.hears("a", &endpoint).await;
    api.publishes("a", json!({})).await;
    rests(&server).await;
    for _ in 0..40 {
        passes(&server, SECOND).await;
    }
    assert_eq!(api.stats(&hook).await, dead(5));
    assert_eq!(endpoint.received().len(), 5);
}

#[tokio::test]
async fn counters_follow_each_step_of_a_delivery() {
    for server in both_stores(|_| {}).await {
        let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
        let settings = json!({
            "url": endpoint.url("/"), "pattern": "a", "maxRetries": 2, "retrySchedule": [5000], "concurrency": 1,
        });
        let hook = api.subscribes(settings).await;
        let stats = async || api.stats(&hook).await;
        let status = async || texts(&api.deliveries(&hook).await, "status");
        assert_eq!(stats().await, Stats::default());
        endpoint.usually(Behaviour::Wait(500));
        api.publishes_many("a", 2).await;
        endpoint.receives(1).await;
        assert_eq!(stats().await, Stats { pending: 2, ..Stats::default() });
        assert_eq!(status().await, ["pending", "pending"]);
        endpoint.release();
        rests(&server).await;
        let expected = Stats { failed: 1, delivered: 1, attempts: 2, ..Stats::default() };
        assert_eq!(stats().await, expected);
        assert_eq!(status().await, ["failed", "delivered"]);
        let failed = api.get(&format!("/subscriptions/{}/deliveries?status=failed", hook.id)).await;
        let one = &failed["deliveries"][0];
        assert_eq!((&one["attempts"], &one["lastError"]), (&json!(1), &json!("HTTP 500: ")));
        endpoint.usually(Behaviour::Wait(500));
        server.clock.advance(5 * SECOND);
        endpoint.receives(3).await;
        assert_eq!(stats().await, expected, "an attempt counts when it ends");
        endpoint.release();
        rests(&server).await;
        let expected = Stats { dead: 1, delivered: 1, attempts: 3, ..Stats::default() };
        assert_eq!(stats().await, expected);
        assert_eq!(status().await, ["dead", "delivered"]);
        let letter = texts(&api.dead_letters(&hook).await, "id").remove(0);
        api.post(&format!("/subscriptions/{}/dead-letters/{letter}/retry", hook.id), &json!({})).await;
        rests(&server).await;
        assert_eq!(stats().await, Stats { delivered: 2, attempts: 4, ..Stats::default() });
        assert_eq!(status().await, ["dead", "delivered", "delivered"]);
    }
}

#[tokio::test]
async fn a_retry_has_the_same_id_a_new_time_and_the_settings_of_its_moment() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    endpoint.then(Behaviour::status(500));
    let settings = json!({ "url": endpoint.url("/old"), "pattern": "a", "retrySchedule": [60_000] });
    let hook = api.subscribes(settings).await;
    api.publishes("a", json!({ "n": 1 })).await;
    rests(&server).await;
    let change = json!({ "url": endpoint.url("/new"), "format": "raw" });
    let (status, _) = api.call(Method::PUT, &format!("/subscriptions/{}", hook.id), Some(&change)).await;
    assert_eq!(status, 200);
    passes(&server, 60 * SECOND).await;
    let [first, second] = &endpoint.received()[..] else { panic!("two attempts") };
    assert_eq!((first.path.as_str(), second.path.as_str()), ("/old", "/new"));
    assert_eq!(second.json()["n"], 1, "the new format");
    assert_eq!(first.header("webhook-id"), second.header("webhook-id"));
    let time = |one: &Received| one.header("webhook-timestamp").and_then(|time| time.parse::<u64>().ok());
    assert_eq!(time(second), time(first).map(|time| time + 60));
}

#[tokio::test]
async fn no_retry_waits_longer_than_its_delay_when_the_clock_is_set_back_by_a_day() {
    let mut server = on(TestStore::Embedded, |_| {}).await;
    let endpoint = answering(500, "").await;
    let api = Api::of(&server);
    let settings =
        json!({ "url": endpoint.url("/"), "pattern": "a", "retrySchedule": [60_000], "maxRetries": 100 });
    let hook = api.subscribes(settings).await;
    api.publishes("a", json!({})).await;
    rests(&server).await;
    // While it runs.
    server.clock.set(server.clock.now() - DAY);
    passes(&server, 60 * SECOND - MS).await;
    assert_eq!(api.stats(&hook).await, failed(1));
    passes(&server, MS).await;
    assert_eq!(api.stats(&hook).await, failed(2));
    // While it was stopped.
    server.clock.set(server.clock.now() - DAY);
    server = server.restart().await;
    until("the retry is waited for", || server.clock.sleepers() > SLEEPERS).await;
    let api = Api::of(&server);
    passes(&server, 60 * SECOND - MS).await;
    assert_eq!(api.stats(&hook).await, failed(2), "nor is it repeated at once");
    passes(&server, MS).await;
    assert_eq!(api.stats(&hook).await, failed(3));
}

#[tokio::test]
async fn a_retry_is_due_at_its_time_after_a_restart() {
    let server = on(TestStore::Embedded, |_| {}).await;
    let endpoint = answering(500, "").await;
    let api = Api::of(&server);
    let settings = json!({ "url": endpoint.url("/"), "pattern": "a", "retrySchedule": [60_000] });
    let hook = api.subscribes(settings).await;
    api.publishes("a", json!({})).await;
    rests(&server).await;
    passes(&server, 40 * SECOND).await;
    let server = server.restart().await;
    until("the retry is waited for", || server.clock.sleepers() > SLEEPERS).await;
    let api = Api::of(&server);
    assert_eq!(api.stats(&hook).await, failed(1));
    passes(&server, 20 * SECOND - MS).await;
    assert_eq!(endpoint.received().len(), 1);
    passes(&server, MS).await;
    assert_eq!(endpoint.received().len(), 2);
    let [first, second] = &endpoint.received()[..] else { panic!("two attempts") };
    assert_eq!(first.header("webhook-id"), second.header("webhook-id"));
    // What became due while it was stopped is made when it starts.
    let clock = server.clock.clone();
    let server = server.restart_with(|_| clock.advance(DAY)).await;
    endpoint.receives(3).await;
    rests(&server).await;
    assert_eq!(Api::of(&server).stats(&hook).await, failed(3));
}
