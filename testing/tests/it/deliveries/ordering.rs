//! Which deliveries wait for earlier ones.

use super::*;

/// Keys and numbers of events in the order in which they were received.
fn keyed(endpoint: &Endpoint) -> Vec<(String, u64)> {
    let one = |received: &Received| {
        let payload = received.json()["payload"].clone();
        (
            payload["user"]["id"].as_str().unwrap_or("none").to_owned(),
            payload["n"].as_u64().expect("a number"),
        )
    };
    endpoint.received().iter().map(one).collect()
}

async fn subscribes(api: &Api, endpoint: &Endpoint, ordering: Value) -> Hook {
    let mut settings = json!({
        "url": endpoint.url("/"), "pattern": "a", "maxRetries": 3, "retrySchedule": [10_000], "concurrency": 8,
    });
    for (name, value) in ordering.as_object().expect("an object") {
        settings[name] = value.clone();
    }
    api.subscribes(settings).await
}

#[tokio::test]
async fn without_ordering_nothing_waits_for_a_failed_delivery() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let hook = subscribes(&api, &endpoint, json!({})).await;
    endpoint.then(Behaviour::status(500));
    api.publishes_many("a", 5).await;
    rests(&server).await;
    assert_eq!(api.stats(&hook).await, Stats { failed: 1, delivered: 4, attempts: 5, ..Stats::default() });
}

#[tokio::test]
async fn in_a_subscription_that_is_ordered_each_delivery_waits_for_the_one_before() {
    for server in both_stores(|_| {}).await {
        let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
        let hook = subscribes(&api, &endpoint, json!({ "ordering": "subscription" })).await;
        endpoint.usually(Behaviour::Wait(500));
        api.publishes_many("a", 4).await;
        endpoint.receives(1).await;
        endpoint.release();
        rests(&server).await;
        assert_eq!(numbers(&endpoint.received()), [0], "the others wait for the retry");
        assert_eq!(api.stats(&hook).await, Stats { pending: 3, failed: 1, attempts: 1, ..Stats::default() });
        passes(&server, 10 * SECOND).await;
        assert_eq!(numbers(&endpoint.received()), [0, 0, 1, 2, 3]);
        // One that is given up lets the next one go.
        for status in [500, 500, 500, 200, 500, 200] {
            endpoint.then(Behaviour::status(status));
        }
        api.publishes_many("a", 3).await;
        rests(&server).await;
        for _ in 0..4 {
            passes(&server, 10 * SECOND).await;
        }
        assert_eq!(numbers(&endpoint.received()[5..]), [0, 0, 0, 1, 2, 2]);
        assert_eq!(endpoint.most(), 1, "one at a time");
        let expected = Stats { dead: 1, delivered: 6, attempts: 11, ..Stats::default() };
        assert_eq!(api.stats(&hook).await, expected);
    }
}

#[tokio::test]
async fn order_holds_over_a_restart() {
    let server = on(TestStore::Embedded, |_| {}).await;
    let endpoint = Endpoint::start().await;
    let api = Api::of(&server);
    let hook = subscribes(&api, &endpoint, json!({ "ordering": "subscription" })).await;
    endpoint.then(Behaviour::status(200)).then(Behaviour::status(500));
    api.publishes_many("a", 4).await;
    rests(&server).await;
    assert_eq!(numbers(&endpoint.received()), [0, 1]);
    let server = server.restart().await;
    let api = Api::of(&server);
    until("the retry is waited for", || server.clock.sleepers() > tidings_testing::SLEEPERS).await;
    api.publishes("a", json!({ "n": 4 })).await;
    rests(&server).await;
    assert_eq!(numbers(&endpoint.received()), [0, 1]);
    passes(&server, 10 * SECOND).await;
    assert_eq!(numbers(&endpoint.received()), [0, 1, 1, 2, 3, 4]);
    assert_eq!(api.stats(&hook).await, Stats { delivered: 5, attempts: 6, ..Stats::default() });
}

#[tokio::test]
async fn deliveries_with_the_same_key_wait_for_each_other_and_for_no_others() {
    for server in both_stores(|_| {}).await {
        let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
        let ordering = json!({ "ordering": "key", "orderingKey": "/user/id" });
        let hook = subscribes(&api, &endpoint, ordering).await;
        let event = |key: &str, n: u64| api.event("a", json!({ "n": n, "user": { "id": key } }));
        endpoint.then(Behaviour::status(500));
        api.ingests(vec![event("ann", 1)]).await;
        rests(&server).await;
        api.ingests(vec![event("ann", 2), event("bob", 1), event("ann", 3), event("bob", 2)]).await;
        api.publishes("a", json!({ "n": 1 })).await;
        rests(&server).await;
        let mut received = keyed(&endpoint);
        received.sort();
        let expected: Vec<_> =
            [("ann", 1), ("bob", 1), ("bob", 2), ("none", 1)].map(|(key, n)| (key.to_owned(), n)).into();
        assert_eq!(received, expected);
        passes(&server, 10 * SECOND).await;
        let received = keyed(&endpoint);
        let of = |key: &str| -> Vec<u64> {
            received.iter().filter(|(known, _)| known == key).map(|(_, n)| *n).collect()
        };
        assert_eq!((of("ann"), of("bob")), (vec![1, 1, 2, 3], vec![1, 2]));
        assert_eq!(api.stats(&hook).await, Stats { delivered: 6, attempts: 7, ..Stats::default() });
    }
}

#[tokio::test]
async fn many_keys_keep_their_order_while_every_third_attempt_fails() {
    const KEYS: u64 = 7;
    const EACH: u64 = 40;
    let server = with_options(|options| options.breaker_failures = 1000).await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let ordering = json!({ "ordering": "key", "orderingKey": "/user/id", "maxRetries": 100 });
    let hook = subscribes(&api, &endpoint, ordering).await;
    for n in 0..2 * KEYS * EACH {
        endpoint.then(Behaviour::status(if n % 3 == 2 { 500 } else { 200 }));
    }
    let event = |n: u64| api.event("a", json!({ "n": n / KEYS, "user": { "id": (n % KEYS).to_string() } }));
    api.ingests((0..KEYS * EACH).map(event).collect()).await;
    rests(&server).await;
    for _ in 0..3 * EACH {
        passes(&server, 10 * SECOND).await;
    }
    assert_eq!(api.stats(&hook).await.delivered, KEYS * EACH);
    let received = keyed(&endpoint);
    for key in 0..KEYS {
        let mut of_it: Vec<u64> =
            received.iter().filter(|(known, _)| *known == key.to_string()).map(|(_, n)| *n).collect();
        assert!(of_it.is_sorted(), "{key}: {of_it:?}");
        of_it.dedup();
        assert!(of_it.into_iter().eq(0..EACH), "{key}");
    }
}
