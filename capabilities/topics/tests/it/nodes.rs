//! Several nodes on one bus.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::json;
use tidings_engine::bus::messages::{BusError, Interest, Joined, LocalMessages, MessageBus};
use tidings_engine::{ManualClock, WallClock};
use tidings_model::Timestamp;
use tidings_topics::contract::Nodes;
use tidings_topics::{
    AllowAll, BrokerConsumer, BusConsumer, BusDriver, BusOptions, Capability, Consumption, Deliver,
    DriverError, Hub, LocalStatus, MutateOptions, PubSubDriver, PublishEnvelope, PublishError,
    PublishOptions, TopicRules, Verification,
};

use crate::recorder::{begins, code, held};
use crate::support::*;

fn options(node: u64) -> BusOptions {
    BusOptions {
        node,
        prefix: "topics/".into(),
        arrivals_bytes: 1 << 20,
        clock: Arc::new(WallClock),
        lease: LEASE,
    }
}

fn join(bus: Arc<dyn MessageBus>, node: u64) -> (BusDriver, BusConsumer) {
    BusDriver::join(local("scope"), bus, options(node))
}

mod contract {
    use super::*;

    /// Two nodes whose consumers run for ever.
    async fn two_nodes() -> Nodes {
        let bus: Arc<dyn MessageBus> = Arc::new(LocalMessages::new());
        let mut drivers: Vec<Arc<dyn PubSubDriver>> = Vec::new();
        for node in 0..2 {
            let (driver, consumer) = join(bus.clone(), node);
            let driver = Arc::new(driver);
            let target = driver.clone();
            let deliver: Deliver = Arc::new(move |envelope| target.deliver_local(envelope));
            // The task runs until the test's runtime ends.
            std::mem::forget(consumer.start(deliver).await.expect("it starts"));
            drivers.push(driver);
        }
        let travelled = || -> BoxFuture<'static, ()> {
            Box::pin(async {
                for _ in 0..256 {
                    tokio::task::yield_now().await;
                }
            })
        };
        Nodes { drivers, travelled: Box::new(travelled) }
    }

    tidings_topics::driver_contract!(two_nodes);
}

const LEASE: Duration = Duration::from_secs(30);

async fn node(bus: &LocalMessages, number: u64) -> World {
    started(join(Arc::new(bus.clone()), number)).await
}

/// A node whose time is the test's.
async fn timed_node(bus: &LocalMessages, number: u64, clock: &ManualClock) -> World {
    let options = BusOptions { clock: Arc::new(clock.clone()), ..options(number) };
    started(BusDriver::join(local("scope"), Arc::new(bus.clone()), options)).await
}

async fn started((driver, consumer): (BusDriver, BusConsumer)) -> World {
    let World { hub } = with(Arc::new(driver), TopicRules::default(), Arc::new(AllowAll));
    let hub = hub.with_consumers(vec![Arc::new(consumer)]);
    hub.start().await.expect("it starts");
    World { hub }
}

async fn publish(world: &World, topic: &str, text: &str) -> serde_json::Value {
    world.hub.publish(message(topic, text), PublishOptions::default()).await.to_json()
}

#[tokio::test]
async fn subscribers_of_all_nodes_hear_a_message_once() {
    let bus = LocalMessages::new();
    let (one, two) = (node(&bus, 1).await, node(&bus, 2).await);
    let (mut here, mut there) = (one.client("a"), two.client("a"));
    here.subscribes("t");
    there.subscribes("t");
    let sent = publish(&one, "t", "x").await;
    assert_eq!(sent, json!({ "ok": true, "capability": "estimate", "matched": 1 }), "a lower bound");
    publish(&two, "t", "y").await;
    let (mut at_one, mut at_two) = (here.hears(2).await, there.hears(2).await);
    at_one.sort();
    at_two.sort();
    assert_eq!((at_one, at_two), (vec!["x".into(), "y".into()], vec!["x".into(), "y".into()]));
    let count = one.hub.count("t").await.expect("a count").count;
    assert_eq!((count.subscribers, count.capability), (1, Capability::Estimate));
}

#[tokio::test]
async fn an_excluded_sender_hears_nothing_by_way_of_the_bus_either() {
    let bus = LocalMessages::new();
    let (one, two) = (node(&bus, 1).await, node(&bus, 2).await);
    let (mut sender, mut there) = (one.client("a"), two.client("b"));
    sender.subscribes("t");
    there.subscribes("t");
    let exclude_self = PublishOptions { exclude_self: true, ..PublishOptions::default() };
    assert!(sender.topics.publish(message("t", "x"), exclude_self).await.is_ok());
    assert!(sender.topics.publish(message("t", "y"), PublishOptions::default()).await.is_ok());
    assert_eq!(there.hears(2).await, ["x", "y"]);
    assert_eq!(sender.hears(1).await, ["y"]);
}

#[tokio::test]
async fn the_bus_is_told_of_a_topic_while_a_member_subscribes_to_it() {
    let bus = LocalMessages::new();
    let one = node(&bus, 1).await;
    let (first, second) = (one.client("a"), one.client("b"));
    first.subscribes("t");
    second.subscribes("t");
    second.subscribes("u");
    travelled().await;
    // One is that on which nodes tell of themselves.
    assert_eq!(bus.channels(), 3);
    first.unsubscribes("t");
    assert_eq!(bus.channels(), 3);
    drop(second);
    assert_eq!(bus.channels(), 1);
    first.subscribes("t");
    assert_eq!(first.topics.remove_where(|_| true, "revoked").len(), 1);
    assert_eq!(bus.channels(), 1, "also for what is taken away");
    first.subscribes_all(&["a:*", "b:*", "c"]);
    assert_eq!(bus.channels(), 3, "patterns share one");
    first.unsubscribes("a:*");
    assert_eq!(bus.channels(), 3);
    first.unsubscribes("b:*");
    assert_eq!(bus.channels(), 2);
}

/// Lets what was sent arrive.
async fn travelled() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_pattern_hears_messages_of_other_nodes_once_however_it_is_subscribed_to() {
    let bus = LocalMessages::new();
    let (one, two) = (node(&bus, 1).await, node(&bus, 2).await);
    let (mut both, mut exact) = (two.client("a"), two.client("b"));
    both.subscribes_all(&["room:*", "room:1", "**"]);
    exact.subscribes("room:1");
    travelled().await;
    for (topic, text) in [("room:1", "1"), ("room:2", "2"), ("x", "3")] {
        assert_eq!(publish(&one, topic, text).await["matched"], 0);
    }
    publish(&two, "room:1", "4").await;
    travelled().await;
    assert_eq!(both.hears_sorted(4).await, ["1", "2", "3", "4"]);
    assert_eq!(exact.hears_sorted(2).await, ["1", "4"]);
}

#[tokio::test]
async fn messages_go_to_the_channel_of_all_only_while_a_node_with_patterns_is_known() {
    let (bus, clock) = (LocalMessages::new(), ManualClock::at(Timestamp::from_millis(0)));
    let (one, two) = (timed_node(&bus, 1, &clock).await, timed_node(&bus, 2, &clock).await);
    travelled().await;
    let Joined { interest, mut arrivals } = bus.join(1 << 20);
    interest.subscribe("topics/*all").await.expect("a subscription");
    let mut copies = async |topic: &str| {
        publish(&one, topic, "x").await;
        arrivals.next().now_or_never().is_some()
    };
    assert!(copies("a").await, "who has just come knows nothing yet");
    clock.advance(LEASE);
    travelled().await;
    assert!(!copies("b").await, "nobody wants it");
    let there = two.client("a");
    there.subscribes("room:*");
    travelled().await;
    assert!(copies("c").await);
    for _ in 0..6 {
        clock.advance(LEASE / 3);
        travelled().await;
        assert!(copies("d").await, "it is said again");
    }
    there.unsubscribes("room:*");
    travelled().await;
    assert!(!copies("e").await);
    there.subscribes("room:*");
    travelled().await;
    assert!(copies("f").await);
    two.hub.shut_down().await;
    for _ in 0..3 {
        clock.advance(LEASE / 3);
        travelled().await;
    }
    assert!(!copies("g").await, "a node that says nothing is gone");
}

/// A bus whose subscriptions and messages are refused or answered late.
struct Slow {
    bus: LocalMessages,
    refuses: Option<BusError>,
    gate: Arc<tokio::sync::Semaphore>,
}

struct SlowInterest(Arc<dyn Interest>, Arc<tokio::sync::Semaphore>, Option<BusError>);

impl MessageBus for Slow {
    fn publish<'a>(&'a self, channel: &'a str, message: bytes::Bytes) -> BoxFuture<'a, Result<(), BusError>> {
        match &self.refuses {
            Some(error) => Box::pin(std::future::ready(Err(error.clone()))),
            None => self.bus.publish(channel, message),
        }
    }

    fn join(&self, bytes_max: usize) -> Joined {
        let Joined { interest, arrivals } = self.bus.join(bytes_max);
        let (gate, refuses) = (self.gate.clone(), self.refuses.clone());
        Joined { interest: Arc::new(SlowInterest(interest, gate, refuses)), arrivals }
    }
}

impl Interest for SlowInterest {
    fn subscribe(&self, channel: &str) -> BoxFuture<'static, Result<(), BusError>> {
        let subscribed = self.0.subscribe(channel);
        let (gate, refuses) = (self.1.clone(), self.2.clone());
        Box::pin(async move {
            let _ = gate.acquire().await;
            match refuses {
                Some(error) => Err(error),
                None => subscribed.await,
            }
        })
    }

    fn unsubscribe(&self, channel: &str) {
        self.0.unsubscribe(channel);
    }

    fn is_in_effect(&self, channel: &str) -> bool {
        self.1.is_closed() && self.0.is_in_effect(channel)
    }
}

async fn slow(refuses: Option<BusError>) -> (World, Arc<tokio::sync::Semaphore>, LocalMessages) {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let bus = LocalMessages::new();
    let slow = Slow { bus: bus.clone(), refuses, gate: gate.clone() };
    let (driver, _consumer) = join(Arc::new(slow), 1);
    (with(Arc::new(driver), TopicRules::default(), Arc::new(AllowAll)), gate, bus)
}

#[tokio::test]
async fn an_optimistic_subscribe_does_not_wait_for_the_bus_and_a_settled_one_does() {
    let (world, gate, _bus) = slow(None).await;
    let client = world.client("a");
    client.subscribes("a");
    assert_eq!(client.topics.local_status("a"), LocalStatus::PendingSubscribe);
    assert!(client.topics.contains("a"));
    let settled = MutateOptions::settled();
    let other = world.client("b");
    let running = begins(Box::pin(other.topics.subscribe("a", &settled)));
    gate.close();
    assert_eq!(counts(running.await), (1, 0, 1), "both wait for the same confirmation");
    let settle = tidings_topics::SettleOptions::default();
    client.topics.settle(None, &settle).await.expect("it settles");
    assert_eq!(client.topics.local_status("a"), LocalStatus::Settled);
}

#[tokio::test]
async fn a_bus_that_refuses_takes_the_subscription_back() {
    let (world, gate, bus) = slow(Some(BusError::Failed("no".to_owned()))).await;
    let client = world.client("a");
    client.subscribes("a");
    let other = world.client("b");
    let settled = MutateOptions::settled();
    let running = begins(Box::pin(other.topics.subscribe_many(["b", "a"], &settled)));
    gate.close();
    assert_eq!(code(running.await), tidings_topics::PubSubErrorCode::AdapterError);
    let settle = tidings_topics::SettleOptions::default();
    client.topics.settle(None, &settle).await.expect("it settles");
    assert_eq!((held(&client.topics), held(&other.topics)), (String::new(), String::new()));
    assert_eq!(bus.channels(), 0);
    assert_eq!(world.hub.driver().local_subscribers("a"), []);
}

#[tokio::test]
async fn a_bus_that_refuses_at_once_leaves_nothing_of_the_subscription() {
    let (world, gate, bus) = slow(Some(BusError::Failed("no".to_owned()))).await;
    gate.close();
    let client = world.client("a");
    let refused = client.topics.subscribe("a", &MutateOptions::default()).await;
    assert_eq!(code(refused), tidings_topics::PubSubErrorCode::AdapterError);
    assert!(!client.topics.member().is_in("a"), "nothing of it is heard");
    assert_eq!(world.hub.driver().local_subscribers("a"), []);
    assert_eq!((bus.channels(), world.hub.subscriptions()), (0, 0));
}

#[tokio::test]
async fn a_subscription_that_is_not_in_effect_at_the_bus_is_not_verified() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let slow = Slow { bus: LocalMessages::new(), refuses: None, gate: gate.clone() };
    let (driver, _consumer) = join(Arc::new(slow), 1);
    let (member, _reader) = driver.connect("a".into());
    assert!(matches!(driver.is_subscribed(&member, "t").await, Verification::Unsubscribed));
    driver.subscribe(&member, &Arc::from("t")).await.expect("it is handed over");
    match driver.is_subscribed(&member, "t").await {
        Verification::Error(error) => assert_eq!(error.transient, Some(true)),
        other => panic!("{other}"),
    }
    gate.close();
    assert!(matches!(driver.is_subscribed(&member, "t").await, Verification::Subscribed));
}

#[tokio::test]
async fn failures_of_the_bus_are_failures_of_the_publish() {
    for (error, expected) in [
        (BusError::TooLarge { bytes: 9, max: 8 }, PublishError::PayloadTooLarge),
        (BusError::Full, PublishError::Backpressure),
        (BusError::Failed("away".to_owned()), PublishError::AdapterError),
    ] {
        let (world, _gate, _bus) = slow(Some(error)).await;
        let (client, mut subscriber) = (world.client("a"), world.client("b"));
        subscriber.topics.member().enter("t").expect("it is open");
        subscriber.topics.member().release(["t"]);
        assert!(subscriber.topics.member().is_in("t"));
        let failed = client.topics.publish(message("t", "x"), PublishOptions::default()).await.to_json();
        assert_eq!((&failed["error"], &failed["adapter"]), (&json!(expected.as_str()), &json!("bus")));
        assert_eq!(failed["retryable"], expected.is_retryable());
        for _ in 0..16 {
            tokio::task::yield_now().await;
        }
        assert_eq!(subscriber.takes_text(), [""; 0], "nothing of it is delivered, not even here");
    }
}

/// A consumer that fails a number of times before it starts.
#[derive(Default)]
struct Stubborn {
    fails: AtomicUsize,
    starts: AtomicUsize,
    stops: Arc<AtomicUsize>,
}

struct Started(Arc<AtomicUsize>);

impl BrokerConsumer for Stubborn {
    fn start(&self, _: Deliver) -> BoxFuture<'_, Result<Box<dyn Consumption>, DriverError>> {
        let fails = self.fails.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
        let result = if fails {
            Err(DriverError::new("not yet"))
        } else {
            self.starts.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(Started(self.stops.clone())) as Box<dyn Consumption>)
        };
        Box::pin(std::future::ready(result))
    }
}

impl Consumption for Started {
    fn stop(self: Box<Self>) -> BoxFuture<'static, ()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::ready(()))
    }
}

#[tokio::test]
async fn a_hub_is_ready_when_its_consumers_have_started_and_a_failed_start_can_be_repeated() {
    let consumers = [Arc::new(Stubborn::default()), Arc::new(Stubborn::default())];
    consumers[1].fails.store(1, Ordering::SeqCst);
    let World { hub } = world();
    let hub: Hub<()> = hub.with_consumers(consumers.iter().map(|one| one.clone() as Arc<_>).collect());
    let world = World { hub };
    let client = world.client("a");
    client.subscribes("t");
    assert_eq!(client.publishes("t", "x").error(), Some(PublishError::State));
    world.hub.start().await.expect_err("the second fails");
    assert_eq!(client.publishes("t", "x").error(), Some(PublishError::State));
    assert_eq!(consumers[0].stops.load(Ordering::SeqCst), 1, "the first was stopped again");
    world.hub.start().await.expect("now it works");
    world.hub.start().await.expect("and again, without effect");
    assert_eq!(consumers[1].starts.load(Ordering::SeqCst), 1);
    assert!(client.publishes("t", "x").is_ok());
    world.hub.shut_down().await;
    world.hub.shut_down().await;
    assert_eq!(consumers[1].stops.load(Ordering::SeqCst), 1);
    assert!(client.topics.is_closed());
    assert_eq!(world.publishes("t", "x").error(), Some(PublishError::ConnectionClosed));
    let late = world.client("b");
    assert!(late.topics.is_closed());
    assert!(world.hub.connections().is_empty());
}

#[tokio::test]
async fn a_consumer_that_was_stopped_delivers_nothing_and_can_be_started_again() {
    let bus: Arc<dyn MessageBus> = Arc::new(LocalMessages::new());
    let (driver, consumer) = join(bus.clone(), 1);
    let (other, _) = join(bus, 2);
    let driver = Arc::new(driver);
    let target = driver.clone();
    let deliver: Deliver = Arc::new(move |envelope| target.deliver_local(envelope));
    let World { hub } = with::<()>(driver, TopicRules::default(), Arc::new(AllowAll));
    let world = World { hub };
    let mut client = world.client("a");
    client.subscribes("t");
    let started = consumer.start(deliver.clone()).await.expect("it starts");
    assert!(consumer.start(deliver.clone()).await.is_err(), "only once at a time");
    started.stop().await;
    let envelope: PublishEnvelope = message("t", "x");
    other.publish(&envelope, Default::default()).await.expect("it is sent");
    tokio::task::yield_now().await;
    assert_eq!(client.takes_text(), Vec::<String>::new());
    let started = consumer.start(deliver).await.expect("it starts again");
    assert_eq!(client.hears(1).await, ["x"]);
    started.stop().await;
}

#[tokio::test]
async fn a_driver_takes_nothing_from_the_bus_and_a_consumer_delivers_nothing_itself() {
    let bus: Arc<dyn MessageBus> = Arc::new(LocalMessages::new());
    let (driver, consumer) = join(bus.clone(), 1);
    let (other, _) = join(bus, 2);
    let World { hub } = with::<()>(Arc::new(driver), TopicRules::default(), Arc::new(AllowAll));
    let world = World { hub };
    let mut client = world.client("a");
    client.subscribes("t");
    other.publish(&message("t", "x"), Default::default()).await.expect("it is sent");
    let waits = async || {
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
    };
    waits().await;
    assert_eq!(client.takes_text(), Vec::<String>::new(), "without a consumer nothing comes in");

    let handed: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
    let noted = handed.clone();
    let deliver: Deliver = Arc::new(move |envelope| {
        noted.lock().expect("no panic").push(envelope.topic.clone());
        0
    });
    let started = consumer.start(deliver).await.expect("it starts");
    other.publish(&message("t", "y"), Default::default()).await.expect("it is sent");
    waits().await;
    let handed = std::mem::take(&mut *handed.lock().expect("no panic"));
    assert!(handed.len() == 2 && handed.iter().all(|topic| topic == "t"), "{handed:?}");
    assert_eq!(client.takes_text(), Vec::<String>::new(), "what is handed over is for the driver to deliver");
    started.stop().await;
}

#[tokio::test]
async fn only_what_is_valid_and_allowed_gets_to_the_bus() {
    let bus = LocalMessages::new();
    let (driver, _consumer) = join(Arc::new(bus.clone()), 1);
    let policy = Arc::new(crate::recorder::Recorder::default());
    let World { hub } = with::<()>(Arc::new(driver), TopicRules::default(), policy.clone());
    let (publisher, two) = (World { hub }.client("a"), node(&bus, 2).await);
    let mut there = two.client("b");
    // What the other node would not check again.
    for topic in ["open", "secret"] {
        there.subscribes(topic);
    }
    for (topic, expected) in [
        ("no spaces", Some(PublishError::Validation)),
        ("secret", Some(PublishError::AclPublish)),
        ("open", None),
    ] {
        let sent = publisher.topics.publish(message(topic, topic), PublishOptions::default()).await;
        assert_eq!(sent.error(), expected, "{topic}");
    }
    assert_eq!(there.hears(1).await, ["open"]);
    assert_eq!(policy.noted(), ["a publish secret", "a publish open"]);
}
