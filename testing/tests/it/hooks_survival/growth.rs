//! What somebody can make grow has a bound, and what exceeds it is told.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidings_embedded::Options as StoreOptions;
use tidings_hooks::{Options, Settings};
use tidings_model::{ProjectId, limits};
use tidings_server::HookOptions;
use tidings_testing::{Behaviour, Endpoint, Harness, Received, Setup, until};

use super::*;

async fn server(options: Options) -> (Harness, Api) {
    let hooks = HookOptions { hooks: options, ..HookOptions::default() };
    let server = Harness::with(Setup { wall_clock: true, hooks, ..Setup::default() }).await;
    let api = Api::at(server.url("/v1/p"));
    (server, api)
}

fn numbers(received: &[Received]) -> BTreeSet<u64> {
    received.iter().filter_map(|one| one.json()["payload"]["n"].as_u64()).collect()
}

#[tokio::test]
async fn when_a_queue_is_full_its_oldest_deliveries_become_dead_letters_and_others_hear_of_it() {
    let (_server, api) = server(Options { max_queue: 20, ..Options::default() }).await;
    let (slow, told) = (Endpoint::start().await, Endpoint::start().await);
    slow.usually(Behaviour::Wait(200));
    let hook = api.hook(json!({ "pattern": "a", "url": slow.url("/"), "concurrency": 1 })).await;
    api.hook(json!({ "pattern": "hook.**", "url": told.url("/") })).await;
    api.publish("a", 50).await;
    let stats = api.comes_to(&hook, "the queue is as long as it may be", |stats| stats.pending <= 20).await;
    assert!(stats.dead >= 29, "{stats:?}");
    slow.release();
    let stats = api.comes_to(&hook, "the rest is delivered", |stats| stats.pending == 0).await;
    assert_eq!(stats.dead + stats.delivered, 50, "{stats:?}");
    let letters = api.dead_letters(&hook).await;
    assert!(letters.iter().all(|letter| letter["reason"] == "queue_full"), "{letters:?}");
    let dead: BTreeSet<u64> =
        letters.iter().map(|letter| letter["event"]["n"].as_u64().expect("a number")).collect();
    let delivered = numbers(&slow.received());
    assert!(dead.is_disjoint(&delivered) && dead.len() + delivered.len() == 50);
    assert!((31..50).all(|n| delivered.contains(&n)), "the oldest were given up: {dead:?}");
    let counted = || {
        let notices: Vec<Value> = told.received().iter().map(|one| one.json()["payload"].clone()).collect();
        assert!(notices.iter().all(|notice| notice["type"] == "hook.delivery.dead"), "{notices:?}");
        assert!(notices.iter().all(|notice| notice["reason"] == "queue_full"), "{notices:?}");
        notices.iter().map(|notice| notice["count"].as_u64().expect("a number")).sum::<u64>()
    };
    until("the notices have come", || counted() == stats.dead).await;
}

#[tokio::test]
async fn an_event_that_more_hooks_hear_than_one_commit_serves_reaches_each_of_them_once() {
    let count = limits::MATCHES_PER_INGEST + 100;
    let (server, api) = server(Options::default()).await;
    let endpoint = Endpoint::start().await;
    let project = ProjectId::parse("p").expect("an id");
    for n in 0..count {
        let settings = Settings { url: Some(endpoint.url(&format!("/{n}"))), ..Settings::new("a.*") };
        server.server().hooks().create(&project, settings).await.expect("a hook");
    }
    let first = event("a.b", json!({ "n": 1, "id": "one" }));
    api.post("/events", json!({ "events": [first.clone()] })).await;
    // It is not overtaken in a queue by what comes after it, and its id is remembered.
    api.post("/events", json!({ "events": [event("a.c", json!({ "n": 2 })), first] })).await;
    let received = endpoint.receives(2 * count).await;
    until("hooks have nothing to do", || server.server().hooks().is_at_rest()).await;
    assert_eq!(endpoint.received().len(), 2 * count);
    let pairs: BTreeSet<(String, u64)> = received
        .iter()
        .map(|one| (one.path.clone(), one.json()["payload"]["n"].as_u64().expect("n")))
        .collect();
    assert_eq!(pairs.len(), 2 * count, "each of them each event once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_of_very_many_events_queues_only_some_at_a_time_and_takes_no_memory_for_the_rest() {
    // A replay pauses while half of this waits.
    const QUEUE: u64 = 4000;
    /// Events that a replay queues at a time.
    const STEP: u64 = 1024;
    let count = std::env::var("TIDINGS_REPLAY_EVENTS").ok().and_then(|count| count.parse().ok());
    let count: usize = count.unwrap_or(20_000);
    // With very many events the store takes all that it may take. Until then only what they are.
    let memory = if count > 50_000 { StoreOptions::default().memory_max() as u64 } else { 100 << 20 };
    let server = serve(&[("TIDINGS_HOOKS_MAX_QUEUE", &QUEUE.to_string())]).await;
    let api = Api::of(&server);
    api.publish("a.b", count).await;
    let endpoint = Endpoint::start().await;
    let received = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let notes = received.clone();
    endpoint.judging(move |one| {
        let id = one.header("webhook-id").expect("a header").to_owned();
        notes.lock().expect("nobody panics").insert(id);
        Behaviour::status(200)
    });
    let settings = json!({ "pattern": "a.*", "url": endpoint.url("/"), "concurrency": 64 });
    let hook = api.hook(settings).await;
    let before = server.memory();
    let begun = api.post(&format!("/hooks/{hook}/replay"), json!({ "from": "1970-01-01T00:00:00Z" })).await;
    assert_eq!(begun["events"], count);
    let (mut longest, mut most) = (0, 0);
    while api.stats(&hook).await.delivered < count as u64 {
        longest = longest.max(api.stats(&hook).await.pending);
        most = most.max(server.memory().saturating_sub(before));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stats = api.stats(&hook).await;
    assert_eq!(stats, Stats { delivered: count as u64, attempts: count as u64, ..Stats::default() });
    assert_eq!(received.lock().expect("nobody panics").len(), count);
    assert!((1..=QUEUE / 2 + STEP).contains(&longest), "{longest} were waiting");
    eprintln!("{longest} of {count} waited at most, and {} KiB of memory were taken", most >> 10);
    assert!(most < memory, "{most} bytes more memory");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_whose_endpoint_publishes_back_starves_nobody_and_stays_within_its_queue() {
    const QUEUE: u64 = 500;
    let (server, api) = server(Options { max_queue: QUEUE, ..Options::default() }).await;
    let (echo, calm) = (Endpoint::start().await, Endpoint::start().await);
    let looping = api.hook(json!({ "pattern": "loop", "url": echo.url("/"), "concurrency": 2 })).await;
    let other = api.hook(json!({ "pattern": "calm", "url": calm.url("/") })).await;
    let (call, mut called) = tokio::sync::mpsc::unbounded_channel();
    echo.judging(move |_| {
        let _ = call.send(());
        Behaviour::status(200)
    });
    api.publish("loop", 1).await;
    let over = Arc::new(AtomicBool::new(false));
    let publishing = {
        let (api, over) = (api.clone(), over.clone());
        // For each event that it hears it publishes a hundred.
        tokio::spawn(async move {
            let mut published = 0;
            while !over.load(Ordering::SeqCst) && called.recv().await.is_some() {
                api.publish("loop", 100).await;
                published += 100;
            }
            published
        })
    };
    let mut rounds = 0;
    // The queue of the loop is full when the last of these come.
    while rounds < 20 || api.stats(&looping).await.dead == 0 {
        assert!(rounds < 2000, "the loop never fills its queue");
        api.publish("calm", 1).await;
        rounds += 1;
        calm.receives(rounds).await;
    }
    // What was queued since the dispatcher last looked is beyond the limit until it looks again.
    while api.stats(&looping).await.pending > QUEUE {
        tokio::task::yield_now().await;
    }
    over.store(true, Ordering::SeqCst);
    let published: u64 = publishing.await.expect("nothing was wrong");
    until("hooks have nothing to do", || server.server().hooks().is_at_rest()).await;
    let stats = api.stats(&other).await;
    assert_eq!(stats, Stats { delivered: rounds as u64, attempts: rounds as u64, ..Stats::default() });
    let stats = api.stats(&looping).await;
    assert_eq!(stats.delivered + stats.dead, published + 1, "each is delivered or dead");
}
