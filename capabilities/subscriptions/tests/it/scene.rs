//! What the tests of this crate begin with: streams and subscriptions on a store in memory.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all, ready};
use tidings_egress::{Egress, EgressOptions, Guard, SystemResolver};
use tidings_engine::log::Memory;
use tidings_engine::{Bus, Clock, ManualClock, Metrics, Rng};
use tidings_model::{Position, ProjectId, StreamId, Timestamp, limits};
use tidings_streams::{
    AppendRequest, Body, ContentType, CreateRequest as CreateStream, Retention, StreamKey, Streams,
};
use tidings_subscriptions::contract::StreamsAndSubscriptions;
use tidings_subscriptions::{
    Config, CreateRequest, Delivery, Glob, Options, Parts, SubscriptionId, Subscriptions, WakeStreams,
};

/// Accepts all events and keeps none.
struct Nowhere;

impl WakeStreams for Nowhere {
    fn append<'a>(&'a self, _: &'a StreamKey, _: Bytes) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(ready(Ok(())))
    }
}

pub fn project() -> ProjectId {
    ProjectId::default_project()
}

pub fn key(id: &str) -> StreamKey {
    StreamKey { project: project(), id: StreamId::parse(id).expect("an id") }
}

/// Streams and subscriptions, and the store that both are in. The parameters limit the links of one subscription and of a project.
pub struct Scene<
    const S: usize = { limits::LINKS_PER_SUBSCRIPTION },
    const P: usize = { limits::LINKS_PER_PROJECT },
> {
    pub store: Arc<Memory<StreamsAndSubscriptions<S, P>>>,
    pub streams: Streams,
    pub subscriptions: Subscriptions,
}

pub fn scene() -> Scene {
    limited()
}

pub fn limited<const S: usize, const P: usize>() -> Scene<S, P> {
    let bus = Bus::new();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_millis(1_000_000)));
    let store = Arc::new(Memory::<StreamsAndSubscriptions<S, P>>::new(bus.clone(), clock.clone()));
    let streams =
        Streams::new(store.clone(), bus.clone(), clock.clone(), tidings_streams::Options::default());
    let metrics = Metrics::new();
    let guard = Guard::default();
    let egress =
        Egress::new(EgressOptions::default(), guard, Arc::new(SystemResolver), clock.clone(), &metrics);
    let subscriptions = Subscriptions::new(Parts {
        store: store.clone(),
        bus,
        streams: streams.clone(),
        wake_streams: Arc::new(Nowhere),
        clock,
        rng: Arc::new(Rng::seeded(1)),
        randomness: Arc::new(|bytes| bytes.iter_mut().for_each(|byte| *byte = fastrand::u8(..))),
        egress,
        print: |position: Position| position.get().to_string(),
        options: Options::default(),
        metrics,
    });
    Scene { store, streams, subscriptions }
}

pub fn wanted(id: &str, pattern: &str) -> CreateRequest {
    CreateRequest {
        id: SubscriptionId::parse(id).expect("an id"),
        config: Config {
            delivery: Delivery::PullWake { stream: key("wake").id },
            pattern: Some(Glob::parse(pattern).expect("a glob")),
            lease_ms: 1000,
            description: None,
            payload: false,
            max_attempts: 1,
        },
        streams: Vec::new(),
        root: String::new(),
    }
}

pub async fn create_streams(streams: &Streams, ids: impl Iterator<Item = String>) {
    let ids: Vec<_> = ids.collect();
    for part in ids.chunks(1000) {
        let creates = part.iter().map(|id| async move {
            let request = CreateStream {
                content_type: ContentType::parse("text/plain"),
                retention: Retention::default(),
                expiry: None,
                body: Bytes::new(),
                then: tidings_engine::log::Then::StayOpen,
                fork: None,
            };
            streams.create(&key(id), &request).await.expect("created");
        });
        join_all(creates).await;
    }
}

pub async fn append(streams: &Streams, id: &str) -> Position {
    let body = Body::Content(ContentType::parse("text/plain").expect("a type"), Bytes::from_static(b"m"));
    let request =
        AppendRequest { body, conditions: Default::default(), then: tidings_engine::log::Then::StayOpen };
    streams.append(&key(id), &request).await.expect("appended").next
}
