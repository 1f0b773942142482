//! What subscriptions to streams cost an append to a stream, and the creation of one, that matches none of them.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::{BoxFuture, ready};
use tidings_bench::Failed;
use tidings_egress::{Egress, EgressOptions, Guard, SystemResolver};
use tidings_engine::log::{Memory, Then};
use tidings_engine::{Bus, Clock, Metrics, Rng, WallClock};
use tidings_model::{Position, ProjectId, StreamId};
use tidings_streams::{
    AppendRequest, Body, ContentType, CreateRequest as CreateStream, Retention, StreamKey, Streams,
};
use tidings_subscriptions::contract::StreamsAndSubscriptions;
use tidings_subscriptions::{
    Config, CreateRequest, Delivery, Glob, Options, Parts, SubscriptionError, SubscriptionId, Subscriptions,
    WakeStreams,
};
use tokio::runtime::Runtime;

const SUBSCRIPTIONS: usize = 10_000;
/// Streams that they are linked to.
const STREAMS: usize = 100_000;
/// Streams that no subscription matches.
const OTHERS: usize = 1_000;
const ROUNDS: usize = 20;
/// Appends of a round.
const APPENDS: usize = 20_000;
/// Creations of a round.
const CREATES: usize = 2_000;

/// Times appends and creations with subscriptions and without, in turns, on two stores in memory.
pub fn measure() -> Result<(), Failed> {
    let runtime = Runtime::new()?;
    let entered = runtime.enter();
    let (with, without) = (Scene::new(), Scene::new());
    drop(entered);
    runtime.block_on(with.fill(SUBSCRIPTIONS));
    runtime.block_on(without.fill(0));
    let (mut appends, mut creates) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
    for round in 0..ROUNDS {
        appends.0.push(without_subscriptions(&runtime, &without));
        appends.1.push(with_subscriptions(&runtime, &with));
        creates.0.push(runtime.block_on(without.create_others(round)));
        creates.1.push(runtime.block_on(with.create_others(round)));
    }
    println!(
        "\n## {SUBSCRIPTIONS} subscriptions over {STREAMS} streams, none of which matches\n\n\
         | what | without | with | more |\n|---|---|---|---|"
    );
    for (name, (without, with), count) in
        [("append", appends, APPENDS), ("creation of a stream", creates, CREATES)]
    {
        let (without, with) = (median(without, count), median(with, count));
        println!("| {name} | {without:.0} ns | {with:.0} ns | {:.0} ns |", with - without);
    }
    Ok(())
}

/// A function of its own, so that a profiler can tell it from [`with_subscriptions`].
#[inline(never)]
fn without_subscriptions(runtime: &Runtime, scene: &Scene) -> Duration {
    runtime.block_on(scene.append_to_others())
}

#[inline(never)]
fn with_subscriptions(runtime: &Runtime, scene: &Scene) -> Duration {
    runtime.block_on(scene.append_to_others())
}

/// Nanoseconds of one of so many, in the median of the rounds.
fn median(mut rounds: Vec<Duration>, count: usize) -> f64 {
    rounds.sort_unstable();
    rounds[rounds.len() / 2].as_nanos() as f64 / count as f64
}

/// Accepts all events and keeps none.
struct Nowhere;

impl WakeStreams for Nowhere {
    fn append<'a>(&'a self, _: &'a StreamKey, _: Bytes) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(ready(Ok(())))
    }
}

struct Scene {
    streams: Streams,
    subscriptions: Subscriptions,
    others: Vec<StreamKey>,
}

impl Scene {
    fn new() -> Self {
        let (bus, clock): (_, Arc<dyn Clock>) = (Bus::new(), Arc::new(WallClock));
        let store = Arc::new(Memory::<StreamsAndSubscriptions>::new(bus.clone(), clock.clone()));
        let options = tidings_streams::Options::default();
        let streams = Streams::new(store.clone(), bus.clone(), clock.clone(), options);
        let metrics = Metrics::new();
        let (guard, resolver) = (Guard::default(), Arc::new(SystemResolver));
        let egress = Egress::new(EgressOptions::default(), guard, resolver, clock.clone(), &metrics);
        let subscriptions = Subscriptions::new(Parts {
            store,
            bus,
            streams: streams.clone(),
            wake_streams: Arc::new(Nowhere),
            clock,
            rng: Arc::new(Rng::seeded(1)),
            randomness: Arc::new(fastrand::fill),
            egress,
            print: |position: Position| position.get().to_string(),
            options: Options::default(),
            metrics,
        });
        Self { streams, subscriptions, others: (0..OTHERS).map(|n| key(&format!("other/{n}"))).collect() }
    }

    /// Creates the streams, and so many subscriptions, of which each is linked to its share of the streams.
    async fn fill(&self, subscriptions: usize) {
        for n in 0..STREAMS {
            self.create(&key(&format!("tenant-{}/{n}", n % SUBSCRIPTIONS))).await;
        }
        for other in &self.others {
            self.create(other).await;
        }
        let project = ProjectId::default_project();
        for n in 0..subscriptions {
            let id = SubscriptionId::parse(&format!("s{n}")).expect("a valid id");
            let config = Config {
                delivery: Delivery::PullWake { stream: key("wake").id },
                pattern: Some(Glob::parse(&format!("tenant-{n}/*")).expect("a valid glob")),
                lease_ms: 1000,
                description: None,
                payload: false,
                max_attempts: 1,
            };
            let request = CreateRequest { id: id.clone(), config, streams: Vec::new(), root: String::new() };
            self.subscriptions.create(&project, request).await.expect("a new subscription");
            if n + 1 == subscriptions {
                // Whoever looks for work makes the server listen to all streams that are linked.
                let claimed = self.subscriptions.claim(&project, &id, "worker").await;
                assert!(matches!(claimed, Err(SubscriptionError::NoPendingWork)), "nothing is pending");
            }
        }
    }

    async fn create(&self, key: &StreamKey) {
        let request = CreateStream {
            content_type: ContentType::parse("text/plain"),
            retention: Retention::default(),
            expiry: None,
            body: Bytes::new(),
            then: Then::StayOpen,
            fork: None,
        };
        self.streams.create(key, &request).await.expect("a new stream");
    }

    async fn append_to_others(&self) -> Duration {
        let content_type = ContentType::parse("text/plain").expect("a valid type");
        let body = Body::Content(content_type, Bytes::from_static(&[b'x'; 100]));
        let request = AppendRequest { body, conditions: Default::default(), then: Then::StayOpen };
        let began = Instant::now();
        for n in 0..APPENDS {
            let appended = self.streams.append(&self.others[n % OTHERS], &request).await;
            black_box(appended.expect("an open stream"));
        }
        began.elapsed()
    }

    async fn create_others(&self, round: usize) -> Duration {
        let keys: Vec<_> = (0..CREATES).map(|n| key(&format!("fresh/{round}/{n}"))).collect();
        let began = Instant::now();
        for key in &keys {
            self.create(key).await;
        }
        began.elapsed()
    }
}

fn key(id: &str) -> StreamKey {
    StreamKey { project: ProjectId::default_project(), id: StreamId::parse(id).expect("a valid id") }
}
