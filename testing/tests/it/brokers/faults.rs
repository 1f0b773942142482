//! What happens when the broker, or the network to it, fails. Each test is called for each broker.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidings_broker::{BrokerBus, Options};
use tidings_engine::bus::messages::{Arrival, Arrivals, BusError, Interest, Joined, MessageBus};

use tidings_testing::brokers::{BrokerKind, BrokerServer, Fault, Proxy};
use tidings_testing::eventually;

use super::contract::{bus, quick};

/// After this time something hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const ROOM: usize = 16 * 1024 * 1024;

/// Two processes that reach a broker through a network that can break.
struct Cluster {
    server: BrokerServer,
    proxy: Proxy,
    /// Publishes.
    here: Arc<BrokerBus>,
    /// Subscribes.
    there: Arc<BrokerBus>,
}

impl Cluster {
    async fn start(kind: BrokerKind) -> Self {
        Self::with(kind, quick()).await
    }

    async fn with(kind: BrokerKind, options: Options) -> Self {
        let server = BrokerServer::private(kind).await;
        let proxy = Proxy::to(server.port()).await;
        let url = server.url_by(proxy.port());
        let (here, there) = (bus(&url, options.clone(), 1), bus(&url, options, 2));
        assert!(here.attempted().await && there.attempted().await);
        Self { server, proxy, here, there }
    }
}

struct Node {
    interest: Arc<dyn Interest>,
    arrivals: Arrivals,
}

impl Node {
    async fn at(bus: &BrokerBus, channels: &[&str]) -> Self {
        let Joined { interest, arrivals } = bus.join(ROOM);
        for channel in channels {
            within(interest.subscribe(channel)).await.expect("it comes into effect");
        }
        Self { interest, arrivals }
    }

    async fn next(&mut self) -> Arrival {
        within(self.arrivals.next()).await.expect("the bus goes on")
    }

    async fn hears(&mut self, expected: &str) {
        let arrival = self.next().await;
        let Arrival::Message { message, .. } = &arrival else { panic!("{arrival:?} instead of {expected}") };
        assert_eq!(*message, expected);
    }

    /// Waits for the gap. Messages from before it may come first.
    async fn is_told_of_a_gap(&mut self) {
        while self.next().await != (Arrival::Lost { at_least: 0 }) {}
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("nothing hangs")
}

async fn publish(bus: &BrokerBus, channel: &str, message: &str) -> Result<(), BusError> {
    within(bus.publish(channel, Bytes::copy_from_slice(message.as_bytes()))).await
}

/// Publishes until it is accepted.
async fn publish_again(bus: &BrokerBus, channel: &str, message: &str) {
    eventually("the bus accepts messages again", async || publish(bus, channel, message).await.is_ok()).await;
}

async fn fails(bus: &BrokerBus, channel: &str) {
    eventually("a publish fails", async || publish(bus, channel, "lost").await.is_err()).await;
}

/// All is as before: the node is told of the gap, and hears what is published from then on, in order and once.
async fn is_whole_again(cluster: &Cluster, node: &mut Node, channel: &str) {
    node.is_told_of_a_gap().await;
    assert!(node.interest.is_in_effect(channel));
    publish_again(&cluster.here, "other", "").await;
    for message in ["first", "second", "third"] {
        publish(&cluster.here, channel, message).await.expect("it is accepted");
    }
    for message in ["first", "second", "third"] {
        node.hears(message).await;
    }
}

async fn a_broker_that_is_killed_and_restarted_carries_messages_again(kind: BrokerKind) {
    let mut cluster = Cluster::start(kind).await;
    let mut node = Node::at(&cluster.there, &["a"]).await;
    publish(&cluster.here, "a", "before").await.expect("it is accepted");
    node.hears("before").await;
    cluster.server.kill().await;
    fails(&cluster.here, "a").await;
    eventually("the subscription is known to be lost", async || !node.interest.is_in_effect("a")).await;
    cluster.server.start_again().await;
    is_whole_again(&cluster, &mut node, "a").await;
}

async fn a_broker_that_is_away_at_first_is_joined_when_it_is_there(kind: BrokerKind) {
    let mut server = BrokerServer::stopped(kind).await;
    let bus = bus(&server.url(), quick(), 1);
    assert!(!within(bus.attempted()).await);
    let Joined { interest, arrivals } = bus.join(ROOM);
    let subscribed = interest.subscribe("a");
    assert!(matches!(publish(&bus, "a", "x").await, Err(BusError::Failed(_))));
    server.start_again().await;
    within(subscribed).await.expect("it comes into effect");
    publish(&bus, "a", "y").await.expect("it is accepted");
    // What was never in effect has no gap.
    Node { interest, arrivals }.hears("y").await;
}

async fn a_network_that_swallows_everything_is_noticed(kind: BrokerKind) {
    let cluster = Cluster::start(kind).await;
    let mut node = Node::at(&cluster.there, &["a"]).await;
    cluster.proxy.set(Fault::BlackHole);
    // The one that publishes waits for an answer; the one that only listens asks for a sign of life.
    assert!(publish(&cluster.here, "a", "lost").await.is_err());
    eventually("the subscription is known to be lost", async || !node.interest.is_in_effect("a")).await;
    let begun = cluster.there.join(ROOM).interest.subscribe("never");
    cluster.proxy.set(Fault::None);
    is_whole_again(&cluster, &mut node, "a").await;
    assert!(within(begun).await.is_err(), "its node has gone");
}

async fn a_network_that_loses_bytes_is_noticed(kind: BrokerKind) {
    let cluster = Cluster::start(kind).await;
    let mut node = Node::at(&cluster.there, &["a"]).await;
    cluster.proxy.set(Fault::MissingBytes);
    fails(&cluster.here, "a").await;
    eventually("the subscription is known to be lost", async || !node.interest.is_in_effect("a")).await;
    cluster.proxy.set(Fault::None);
    is_whole_again(&cluster, &mut node, "a").await;
}

async fn a_slow_network_loses_nothing(kind: BrokerKind) {
    let options = Options { answer_timeout: Duration::from_secs(30), ..quick() };
    let cluster = Cluster::with(kind, options).await;
    let mut node = Node::at(&cluster.there, &["a"]).await;
    cluster.proxy.set(Fault::Slow(Duration::from_millis(20)));
    let messages: Vec<String> = (0..200).map(|at| at.to_string()).collect();
    let published: Vec<_> =
        messages.iter().map(|text| cluster.here.publish("a", Bytes::from(text.clone()))).collect();
    for published in published {
        within(published).await.expect("it is accepted");
    }
    for message in messages {
        node.hears(&message).await;
    }
}

async fn connections_that_are_cut_again_and_again_come_back_with_all_channels(kind: BrokerKind) {
    const CHANNELS: usize = 1000;
    let cluster = Cluster::start(kind).await;
    let names: Vec<String> = (0..CHANNELS).map(|at| format!("c{at}")).collect();
    let Joined { interest, arrivals } = cluster.there.join(ROOM);
    let begun: Vec<_> = names.iter().map(|name| interest.subscribe(name)).collect();
    for subscribed in begun {
        within(subscribed).await.expect("it comes into effect");
    }
    let mut node = Node { interest, arrivals };
    for _ in 0..3 {
        cluster.proxy.set(Fault::Closed);
        eventually("all is known to be lost", async || {
            names.iter().all(|name| !node.interest.is_in_effect(name))
        })
        .await;
        fails(&cluster.here, "other").await;
        cluster.proxy.set(Fault::None);
        node.is_told_of_a_gap().await;
        assert!(names.iter().all(|name| node.interest.is_in_effect(name)), "before the gap is told");
    }
    publish_again(&cluster.here, "other", "").await;
    for name in &names {
        publish(&cluster.here, name, name).await.expect("it is accepted");
    }
    let mut heard = BTreeSet::new();
    while heard.len() < CHANNELS {
        let Arrival::Message { channel, .. } = node.next().await else { panic!("nothing is lost now") };
        assert!(heard.insert(channel.to_string()), "{channel} once");
    }
}

async fn a_subscription_that_was_ended_while_the_broker_was_away_stays_ended(kind: BrokerKind) {
    let mut cluster = Cluster::start(kind).await;
    let mut node = Node::at(&cluster.there, &["a", "b"]).await;
    cluster.server.kill().await;
    eventually("the subscription is known to be lost", async || !node.interest.is_in_effect("a")).await;
    node.interest.unsubscribe("b");
    drop(node.interest.subscribe("c"));
    cluster.server.start_again().await;
    node.is_told_of_a_gap().await;
    within(node.interest.subscribe("c")).await.expect("it comes into effect");
    publish_again(&cluster.here, "other", "").await;
    for channel in ["b", "c", "a"] {
        publish(&cluster.here, channel, channel).await.expect("it is accepted");
    }
    node.hears("c").await;
    node.hears("a").await;
}

async fn a_queue_that_nobody_empties_is_full_and_everybody_is_told(kind: BrokerKind) {
    const MIB: usize = 1024 * 1024;
    let options = Options { queue_bytes: 4 * MIB, answer_timeout: Duration::from_secs(5), ..quick() };
    let cluster = Cluster::with(kind, options).await;
    cluster.server.freeze().await;
    let bytes = if kind == BrokerKind::Postgres { 5000 } else { 256 * 1024 };
    let message = Bytes::from(vec![b'x'; bytes]);
    // More than the queue and all buffers of the network on the way take.
    let published: Vec<_> =
        (0..50 * MIB / bytes).map(|_| cluster.here.publish("a", message.clone())).collect();
    let mut full = 0;
    for published in published {
        match within(published).await {
            Err(BusError::Full) => full += 1,
            Err(BusError::Failed(_)) => {}
            other => panic!("{other:?} from a broker that does nothing"),
        }
    }
    assert!(full > 0, "nobody was told that the queue is full");
    cluster.server.thaw().await;
    publish_again(&cluster.here, "a", "x").await;
}

async fn a_subscriber_that_hears_nothing_for_long_stays_connected(kind: BrokerKind) {
    let cluster = Cluster::start(kind).await;
    let mut node = Node::at(&cluster.there, &["a"]).await;
    // Several times as long as the broker may be silent before it is asked.
    let begun = std::time::Instant::now();
    eventually("time has passed", async || begun.elapsed() > 5 * quick().ping_after).await;
    publish(&cluster.here, "a", "x").await.expect("it is accepted");
    node.hears("x").await;
}

macro_rules! each_broker {
    ($($fault:ident)+) => {
        each_broker!(@module redis BrokerKind::Redis; $($fault)+);
        each_broker!(@module nats BrokerKind::Nats; $($fault)+);
        each_broker!(@module postgres BrokerKind::Postgres; $($fault)+);
    };
    (@module $name:ident $kind:expr; $($fault:ident)+) => {
        mod $name {
            use super::*;

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $fault() {
                    super::$fault($kind).await;
                }
            )+
        }
    };
}

each_broker!(
    a_broker_that_is_killed_and_restarted_carries_messages_again
    a_broker_that_is_away_at_first_is_joined_when_it_is_there
    a_network_that_swallows_everything_is_noticed
    a_network_that_loses_bytes_is_noticed
    a_slow_network_loses_nothing
    connections_that_are_cut_again_and_again_come_back_with_all_channels
    a_subscription_that_was_ended_while_the_broker_was_away_stays_ended
    a_queue_that_nobody_empties_is_full_and_everybody_is_told
    a_subscriber_that_hears_nothing_for_long_stays_connected
);
