//! Deliveries that were given up, and how they are delivered again.

use super::*;

/// A hook that makes one attempt.
async fn once(api: &Api, endpoint: &Endpoint) -> Hook {
    api.subscribes(json!({ "url": endpoint.url("/"), "pattern": "a.*", "maxRetries": 1 })).await
}

/// Retries dead letters, and returns how many.
async fn retries(api: &Api, hook: &Hook, filter: Value) -> u64 {
    let answer = api.post(&format!("/subscriptions/{}/dead-letters/retry", hook.id), &filter).await;
    assert_eq!(answer["ok"], true);
    answer["retried"].as_u64().expect("a number")
}

#[tokio::test]
async fn a_dead_letter_has_the_event_and_says_why_it_was_given_up() {
    for server in both_stores(|_| {}).await {
        let (api, endpoint) = (Api::of(&server).within("shop"), answering(500, "out of order").await);
        let hook = once(&api, &endpoint).await;
        let mut event = api.event("a.b", json!({ "id": "evt-1", "amount": 7 }));
        api.ingests(vec![event.clone()]).await;
        rests(&server).await;
        let delivery = api.delivery(&hook).await;
        let letter = api.dead_letters(&hook).await.remove(0);
        let payload = letter["eventPayload"].as_str().expect("text").to_owned();
        event["_namespace"] = "shop".into();
        assert_eq!(serde_json::from_str::<Value>(&payload).expect("JSON"), event);
        let expected = json!({
            "id": letter["id"], "deliveryId": delivery["id"], "subscriptionId": hook.id, "eventId": "evt-1",
            "eventPayload": payload, "reason": "max_retries_exceeded", "lastError": "HTTP 500: out of order",
            "createdAt": server.clock.now().as_millis(),
        });
        assert_eq!(letter, expected);
        assert_eq!(letter["id"].as_str().map(str::len), Some(26));
    }
}

#[tokio::test]
async fn a_dead_letter_is_delivered_again_at_once_as_a_new_delivery() {
    for server in both_stores(|_| {}).await {
        let (api, endpoint) = (Api::of(&server), answering(500, "").await);
        let hook = once(&api, &endpoint).await;
        api.publishes("a.b", json!({ "id": "evt-1", "n": 1 })).await;
        rests(&server).await;
        let retry = async |letter: &str| {
            let path = format!("/subscriptions/{}/dead-letters/{letter}/retry", hook.id);
            api.call(Method::POST, &path, Some(&json!({}))).await
        };
        let first = texts(&api.dead_letters(&hook).await, "id").remove(0);
        // It fails again and becomes another dead letter.
        let (status, again) = retry(&first).await;
        assert_eq!(status, 200, "{again}");
        rests(&server).await;
        let second = api.dead_letters(&hook).await;
        assert_eq!(second.len(), 1);
        assert_eq!(second[0]["deliveryId"], again["deliveryId"]);
        assert_eq!(api.stats(&hook).await, Stats { dead: 1, attempts: 2, ..Stats::default() });
        assert_eq!(retry(&first).await.0, 404, "the first one is gone");
        endpoint.usually(Behaviour::default());
        let second = second[0]["id"].as_str().expect("an id");
        let (status, last) = retry(second).await;
        assert_eq!(status, 200);
        rests(&server).await;
        assert_eq!(api.dead_letters(&hook).await, Vec::<Value>::new());
        assert_eq!(api.stats(&hook).await, Stats { delivered: 1, attempts: 3, ..Stats::default() });
        let received = endpoint.received();
        let ids: Vec<_> = received.iter().map(|one| one.header("webhook-id").expect("an id")).collect();
        assert_eq!(ids[2], last["deliveryId"].as_str().expect("an id"));
        assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
        assert!(received.iter().all(|one| one.json()["id"] == "evt-1"));
        assert_eq!(retry(second).await.0, 404);
        assert_eq!(endpoint.received().len(), 3);
    }
}

#[tokio::test]
async fn dead_letters_are_retried_together_by_time_and_by_error() {
    for server in both_stores(|_| {}).await {
        let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
        let hook = once(&api, &endpoint).await;
        let mut times = Vec::new();
        for (n, status) in [(0, 500), (1, 503), (2, 503), (3, 500)] {
            endpoint.then(Behaviour::Answer(status, vec![], format!("reason {n}")));
            times.push(time_text(server.clock.now()));
            api.publishes("a.b", json!({ "n": n })).await;
            rests(&server).await;
            passes(&server, 60 * SECOND).await;
        }
        let left = async || {
            let mut errors = texts(&api.dead_letters(&hook).await, "lastError");
            errors.sort_unstable();
            errors
        };
        let [_, second, third, _] = &times[..] else { panic!("four times") };
        assert_eq!(retries(&api, &hook, json!({ "error": "HTTP 404" })).await, 0);
        let between = json!({ "from": second, "to": third });
        assert_eq!(retries(&api, &hook, between.clone()).await, 1, "from is included, to is not");
        rests(&server).await;
        assert_eq!(left().await, ["HTTP 500: reason 0", "HTTP 500: reason 3", "HTTP 503: reason 2"]);
        assert_eq!(retries(&api, &hook, between).await, 0, "once");
        assert_eq!(retries(&api, &hook, json!({ "error": "HTTP 503" })).await, 1);
        assert_eq!(retries(&api, &hook, json!({ "from": third, "error": "reason" })).await, 1);
        assert_eq!(retries(&api, &hook, json!({})).await, 1);
        rests(&server).await;
        assert_eq!(numbers(&endpoint.received()), [0, 1, 2, 3, 1, 2, 3, 0]);
        assert_eq!(api.stats(&hook).await, Stats { delivered: 4, attempts: 8, ..Stats::default() });
    }
}

#[tokio::test]
async fn many_dead_letters_are_listed_newest_first_and_each_is_retried_once() {
    // So many take several pages and commits.
    const MANY: usize = 700;
    let server = with_options(|options| options.breaker_failures = 10_000).await;
    let (api, endpoint) = (Api::of(&server), answering(500, "").await);
    let hook = once(&api, &endpoint).await;
    api.publishes_many("a.b", MANY).await;
    rests(&server).await;
    let path = format!("/subscriptions/{}/dead-letters?limit=100", hook.id);
    let letters = api.pages(&path, "deadLetters").await;
    let ids = texts(&letters, "id");
    assert_eq!(ids.len(), MANY);
    let plain = api.get(&format!("/subscriptions/{}/dead-letters", hook.id)).await;
    assert_eq!(
        texts(plain["deadLetters"].as_array().expect("a list"), "id"),
        ids[..100],
        "100 unless more are asked for"
    );
    assert!(ids.windows(2).all(|pair| pair[0] > pair[1]), "newest first");
    endpoint.usually(Behaviour::default());
    let (one, other) = tokio::join!(retries(&api, &hook, json!({})), retries(&api, &hook, json!({})));
    assert_eq!(one + other, MANY as u64);
    rests(&server).await;
    let mut numbers = numbers(&endpoint.received()[MANY..]);
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..MANY as u64), "each once");
    let expected = Stats { delivered: MANY as u64, attempts: 2 * MANY as u64, ..Stats::default() };
    assert_eq!(api.stats(&hook).await, expected);
}

#[tokio::test]
async fn dead_letters_that_are_retried_together_are_delivered_in_the_order_in_which_they_died() {
    // So many take several commits.
    const MANY: u64 = 600;
    let server = with_options(|options| options.breaker_failures = 10_000).await;
    let (api, endpoint) = (Api::of(&server), answering(500, "").await);
    let settings =
        json!({ "url": endpoint.url("/"), "pattern": "a", "maxRetries": 1, "ordering": "subscription" });
    let hook = api.subscribes(settings).await;
    api.publishes_many("a", MANY as usize).await;
    rests(&server).await;
    endpoint.usually(Behaviour::default());
    assert_eq!(retries(&api, &hook, json!({})).await, MANY);
    rests(&server).await;
    let received = numbers(&endpoint.received());
    assert!(received.iter().copied().eq((0..MANY).chain(0..MANY)), "{received:?}");
}
