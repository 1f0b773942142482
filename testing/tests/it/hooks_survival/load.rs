//! Kills under load.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tidings_testing::{Behaviour, Endpoint, until};

use super::*;

/// Rounds in every run of the tests; `make test-all` sets more.
const ROUNDS: u64 = 20;
const WRITERS: u64 = 4;
/// Attempts at a time of each hook. What is in flight at a kill is made twice, and rounds are short.
const CONCURRENCY: usize = 2;
/// Events that are accepted in a round.
const EVENTS: std::ops::Range<usize> = 500..3500;

fn rounds() -> u64 {
    std::env::var("TIDINGS_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS)
}

/// What the endpoint of a hook has received: how often each event was accepted, and with which ids.
#[derive(Default)]
struct Heard {
    accepted: HashMap<String, usize>,
    ids: HashMap<String, BTreeSet<String>>,
}

impl Heard {
    fn deliveries(&self) -> usize {
        self.accepted.values().sum()
    }

    fn doubles(&self) -> usize {
        self.deliveries() - self.accepted.len()
    }
}

/// An endpoint of several hooks, each with a path of its own, that answers what a function says.
struct Receiver {
    endpoint: Endpoint,
    heard: Arc<Mutex<BTreeMap<String, Heard>>>,
}

impl Receiver {
    async fn answering(mut status: impl FnMut() -> u16 + Send + 'static) -> Self {
        let endpoint = Endpoint::start().await;
        let heard = Arc::<Mutex<BTreeMap<String, Heard>>>::default();
        let hears = heard.clone();
        endpoint.judging(move |received| {
            let status = status();
            let key = text(&received.json()["payload"], "key");
            let id = received.header("webhook-id").expect("a header").to_owned();
            let mut heard = hears.lock().expect("nobody panics");
            let of_hook = heard.entry(received.path.clone()).or_default();
            of_hook.ids.entry(key.clone()).or_default().insert(id);
            if status == 200 {
                *of_hook.accepted.entry(key).or_default() += 1;
            }
            Behaviour::status(status)
        });
        Self { endpoint, heard }
    }

    fn of<R>(&self, path: &str, look: impl FnOnce(&Heard) -> R) -> R {
        look(self.heard.lock().expect("nobody panics").entry(path.to_owned()).or_default())
    }
}

/// What writers have sent.
#[derive(Default)]
struct Sent {
    /// Events that were accepted, by key: whether they are odd.
    accepted: BTreeMap<String, bool>,
    /// Events of requests that were not answered.
    unsure: BTreeMap<String, bool>,
}

/// Publishes batches until the server does not answer any more.
async fn write_until_killed(api: Api, name: String, sent: Arc<Mutex<Sent>>, count: Arc<AtomicUsize>) {
    let mut rng = fastrand::Rng::new();
    for batch in 0.. {
        let (mut events, mut keys) = (Vec::new(), BTreeMap::new());
        for n in 0..rng.usize(1..20) {
            let (key, is_odd) = (format!("{name}.{batch}.{n}"), rng.bool());
            let mut members = json!({ "key": key });
            if rng.bool() {
                members["id"] = key.as_str().into();
            }
            events.push(event(if is_odd { "load.odd" } else { "load.even" }, members));
            keys.insert(key, is_odd);
        }
        let request = api.client.post(format!("{}/events", api.base)).json(&json!({ "events": events }));
        let answer = match request.send().await {
            Ok(answer) => {
                assert_eq!(answer.status(), 200);
                answer.bytes().await
            }
            Err(error) => Err(error),
        };
        let mut sent = sent.lock().expect("nobody panics");
        if answer.is_err() {
            sent.unsure.extend(keys);
            return;
        }
        count.fetch_add(keys.len(), Ordering::SeqCst);
        sent.accepted.extend(keys);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_under_load_leave_no_accepted_event_undelivered_and_hardly_any_delivered_twice() {
    let mut server = serve(&[]).await;
    let healthy = Receiver::answering(|| 200).await;
    let mut rng = fastrand::Rng::with_seed(3);
    // One in ten fails, so that retries are waiting whenever the server is killed.
    let flaky = Receiver::answering(move || if rng.u8(..10) == 0 { 503 } else { 200 }).await;
    let dead = Receiver::answering(|| 500).await;
    let api = Api::of(&server);
    let url = |receiver: &Receiver, path: &str| receiver.endpoint.url(path);
    let all = api
        .hook(json!({ "pattern": "load.**", "url": url(&healthy, "/all"), "concurrency": CONCURRENCY }))
        .await;
    let even = api
        .hook(json!({ "pattern": "load.even", "url": url(&healthy, "/even"), "concurrency": CONCURRENCY }))
        .await;
    let schedule = json!({ "maxRetries": 100, "concurrency": CONCURRENCY, "retrySchedule": [50, 150, 300] });
    let with = |mut settings: Value, more: &Value| {
        let more = more.as_object().expect("an object").clone();
        settings.as_object_mut().expect("an object").extend(more);
        settings
    };
    let retried =
        api.hook(with(json!({ "pattern": "load.*", "url": url(&flaky, "/retried") }), &schedule)).await;
    let hopeless = json!({ "maxRetries": 2, "retrySchedule": [100] });
    let given_up =
        api.hook(with(json!({ "pattern": "load.odd", "url": url(&dead, "/dead") }), &hopeless)).await;

    let sent = Arc::new(Mutex::new(Sent::default()));
    let count = Arc::new(AtomicUsize::new(0));
    let mut rng = fastrand::Rng::with_seed(11);
    let mut waiting_at_kills = 0;
    for round in 0..rounds() {
        let before = count.load(Ordering::SeqCst);
        let api = Api::of(&server);
        let writers: Vec<_> = (0..WRITERS)
            .map(|n| {
                let (sent, count) = (sent.clone(), count.clone());
                tokio::spawn(write_until_killed(api.clone(), format!("{round}.{n}"), sent, count))
            })
            .collect();
        let wanted = before + rng.usize(EVENTS);
        until("enough is accepted", || count.load(Ordering::SeqCst) >= wanted).await;
        waiting_at_kills += api.stats(&retried).await.failed;
        server.kill().await;
        for writer in writers {
            writer.await.expect("nothing was wrong");
        }
        server = server.restart().await;
    }

    let api = Api::of(&server);
    for hook in [&all, &even, &retried, &given_up] {
        let is_done = |stats: Stats| stats.pending == 0 && stats.failed == 0;
        api.comes_to(hook, "everything is delivered or dead", is_done).await;
    }
    let sent = std::mem::take(&mut *sent.lock().expect("nobody panics"));
    let Sent { accepted, unsure } = &sent;
    let is_known = |key: &str, is_odd: Option<bool>| {
        let known = accepted.get(key).or(unsure.get(key)).copied();
        known.is_some_and(|known| is_odd.is_none_or(|is_odd| known == is_odd))
    };
    let stored: BTreeSet<String> = healthy.of("/all", |heard| heard.accepted.keys().cloned().collect());
    assert!(accepted.keys().all(|key| stored.contains(key)), "what was accepted is delivered");
    assert!(stored.iter().all(|key| is_known(key, None)), "and nothing else");
    let (mut deliveries, mut doubles) = (0, 0);
    for (receiver, path, is_odd) in
        [(&healthy, "/all", None), (&healthy, "/even", Some(false)), (&flaky, "/retried", None)]
    {
        receiver.of(path, |heard| {
            let expected = stored.iter().filter(|key| is_known(key, is_odd));
            assert!(
                expected.eq(heard.accepted.keys().collect::<BTreeSet<_>>()),
                "{path}: each, and no other"
            );
            assert!(heard.ids.values().all(|ids| ids.len() == 1), "{path}: an event has one id");
            deliveries += heard.deliveries();
            doubles += heard.doubles();
        });
    }
    let letters = api.dead_letters(&given_up).await;
    let keys: BTreeSet<String> = letters.iter().map(|letter| text(&letter["event"], "key")).collect();
    assert_eq!(keys.len(), letters.len(), "an event is given up once");
    assert!(
        keys.iter().eq(stored.iter().filter(|key| is_known(key, Some(true)))),
        "all odd ones, and no other"
    );
    dead.of("/dead", |heard| {
        assert!(heard.ids.values().all(|ids| ids.len() == 1), "attempts of a delivery have one id");
        assert!(heard.ids.keys().collect::<BTreeSet<_>>().into_iter().eq(&keys), "each was tried");
    });
    let stats = api.stats(&given_up).await;
    assert_eq!((stats.dead, stats.delivered), (keys.len() as u64, 0));
    let stats = api.stats(&all).await;
    assert_eq!((stats.delivered, stats.dead), (stored.len() as u64, 0), "each counts once");
    eprintln!("{deliveries} deliveries, {doubles} of them twice; {waiting_at_kills} retries waited at kills");
    assert!(waiting_at_kills > 0, "retries were waiting when it was killed");
    // What was in flight, and what was not recorded yet when it was killed.
    assert!(100 * doubles < deliveries, "{doubles} of {deliveries} deliveries were made twice: 1 % or more");
}
