//! Kills in each state of a delivery.

use tidings_testing::{Behaviour, Endpoint, Received, until};

use super::*;

fn ids(received: &[Received]) -> Vec<String> {
    received.iter().map(|one| one.header("webhook-id").expect("a header").to_owned()).collect()
}

/// The numbers `n` of events that were received.
fn numbers(received: &[Received]) -> Vec<u64> {
    received.iter().map(|one| one.json()["payload"]["n"].as_u64().expect("a number")).collect()
}

async fn kill_and_restart(mut server: Process) -> (Process, Api) {
    server.kill().await;
    let server = server.restart().await;
    let api = Api::of(&server);
    (server, api)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_that_is_pending_or_in_flight_at_a_kill_is_made_and_counts_once() {
    let server = serve(&[]).await;
    let (endpoint, api) = (Endpoint::start().await, Api::of(&server));
    endpoint.usually(Behaviour::Wait(200));
    let settings = json!({ "pattern": "a", "url": endpoint.url("/"), "concurrency": 1 });
    let hook = api.hook(settings).await;
    api.publish("a", 3).await;
    endpoint.receives(1).await;
    let deliveries = api.deliveries(&hook).await;
    let (server, api) = kill_and_restart(server).await;
    // Of the first an attempt was under way, of the others none: it is made again, and they are made after it.
    let received = endpoint.receives(2).await;
    assert_eq!(numbers(&received), [0, 0]);
    endpoint.release();
    let stats = api.comes_to(&hook, "all are delivered", |stats| stats.delivered == 3).await;
    assert_eq!(stats, Stats { delivered: 3, attempts: 3, ..Stats::default() });
    let received = endpoint.received();
    assert_eq!(numbers(&received), [0, 0, 1, 2]);
    let listed: Vec<String> = deliveries.iter().map(|delivery| text(delivery, "id")).collect();
    assert_eq!(ids(&received), [&listed[0], &listed[0], &listed[1], &listed[2]].map(String::as_str));
    // What is delivered and recorded stays so.
    let (_server, api) = kill_and_restart(server).await;
    api.publish("a", 1).await;
    let stats = api.comes_to(&hook, "the next is delivered", |stats| stats.pending == 0).await;
    assert_eq!(stats, Stats { delivered: 4, attempts: 4, ..Stats::default() });
    assert_eq!(numbers(&endpoint.received())[4..], [0], "nothing of the past is sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_waits_at_a_kill_is_made_as_the_next_attempt_with_the_same_id() {
    let server = serve(&[]).await;
    let (endpoint, api) = (Endpoint::start().await, Api::of(&server));
    endpoint.then(Behaviour::status(503));
    let settings = json!({ "pattern": "a", "url": endpoint.url("/"), "retrySchedule": [1500] });
    let hook = api.hook(settings).await;
    api.publish("a", 1).await;
    api.comes_to(&hook, "it waits for a retry", |stats| stats.failed == 1).await;
    let delivery = api.deliveries(&hook).await.remove(0);
    let waits_until = std::time::Instant::now() + Duration::from_secs(1);
    let (_server, api) = kill_and_restart(server).await;
    let stats = api.comes_to(&hook, "the retry is made", |stats| stats.delivered == 1).await;
    assert!(std::time::Instant::now() >= waits_until, "a restart does not make it due");
    assert_eq!(stats, Stats { delivered: 1, attempts: 2, ..Stats::default() });
    let id = text(&delivery, "id");
    assert_eq!(ids(&endpoint.received()), [id.clone(), id.clone()]);
    let log = api.get(&format!("/hooks/{hook}/deliveries/{id}/attempts")).await;
    let log = log["attempts"].as_array().expect("a list").clone();
    let log: Vec<_> =
        log.iter().map(|attempt| (attempt["number"].clone(), text(attempt, "status"))).collect();
    assert_eq!(log, [(json!(1), "failed".to_owned()), (json!(2), "success".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_and_its_retry_survive_kills() {
    let server = serve(&[]).await;
    let (endpoint, api) = (Endpoint::start().await, Api::of(&server));
    endpoint.usually(Behaviour::status(500));
    let settings = json!({ "pattern": "a", "url": endpoint.url("/"), "maxRetries": 1 });
    let hook = api.hook(settings).await;
    api.publish("a", 2).await;
    api.comes_to(&hook, "both are dead", |stats| stats.dead == 2).await;
    let letters = api.dead_letters(&hook).await;
    let (server, api) = kill_and_restart(server).await;
    assert_eq!(api.dead_letters(&hook).await, letters);
    assert_eq!(endpoint.received().len(), 2, "what is given up is not tried again");
    // The retry of one of them is under way when the server is killed again.
    endpoint.usually(Behaviour::Wait(200));
    let retried =
        api.post(&format!("/hooks/{hook}/dead-letters/{}/retry", text(&letters[0], "id")), json!({})).await;
    endpoint.receives(3).await;
    let (_server, api) = kill_and_restart(server).await;
    endpoint.receives(4).await;
    endpoint.release();
    let stats = api.comes_to(&hook, "it is delivered", |stats| stats.delivered == 1).await;
    assert_eq!(stats, Stats { dead: 1, delivered: 1, attempts: 3, ..Stats::default() });
    assert_eq!(api.dead_letters(&hook).await, letters[1..]);
    let (of_retry, first) = (text(&retried, "deliveryId"), text(&letters[0], "deliveryId"));
    assert_ne!(of_retry, first, "it is a new delivery");
    assert_eq!(ids(&endpoint.received())[2..], [of_retry.clone(), of_retry]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_is_under_way_at_a_kill_delivers_each_event_of_its_range_in_the_end() {
    const EVENTS: usize = 5000;
    // A replay pauses while half of this waits.
    let server = serve(&[("TIDINGS_HOOKS_MAX_QUEUE", "2500")]).await;
    let (endpoint, api) = (Endpoint::start().await, Api::of(&server));
    api.publish("a.b", EVENTS).await;
    api.publish("other", 10).await;
    endpoint.usually(Behaviour::Wait(200));
    let settings = json!({ "pattern": "a.*", "url": endpoint.url("/"), "concurrency": 16 });
    let hook = api.hook(settings).await;
    let begun = api.post(&format!("/hooks/{hook}/replay"), json!({ "from": "1970-01-01T00:00:00Z" })).await;
    assert_eq!(begun["events"], EVENTS);
    api.comes_to(&hook, "some of it is queued", |stats| stats.pending > 0).await;
    let (server, api) = kill_and_restart(server).await;
    let some = api.comes_to(&hook, "more of it is queued", |stats| stats.pending > 1250).await;
    assert!(some.pending < EVENTS as u64, "{some:?}: it is not over");
    let (server, _) = kill_and_restart(server).await;
    endpoint.release();
    until("some of it is delivered", || endpoint.received().len() > 500).await;
    let (_server, api) = kill_and_restart(server).await;
    let stats = api.comes_to(&hook, "all is delivered", |stats| stats.delivered == EVENTS as u64).await;
    assert_eq!(stats, Stats { delivered: EVENTS as u64, attempts: EVENTS as u64, ..Stats::default() });
    let received = endpoint.received();
    let mut distinct: Vec<_> = ids(&received).into_iter().zip(numbers(&received)).collect();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), EVENTS, "each event was queued once, and each delivery keeps its id");
    let mut events: Vec<u64> = distinct.into_iter().map(|(_, n)| n).collect();
    events.sort_unstable();
    assert!(events.into_iter().eq(0..EVENTS as u64));
}
