//! The contract suite of buses: what every [`MessageBus`] promises, as tests that each runs on itself.
//!
//! A bus calls [`bus_contract!`](crate::bus_contract) with an async function that makes [`Buses`]: what two processes
//! would have, each with its own connection to the same broker.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::messages::{Arrival, Arrivals, BusError, Interest, Joined, MessageBus};

/// Generates a `#[tokio::test]` for each promise, on what `$make` makes.
#[macro_export]
macro_rules! bus_contract {
    ($make:expr) => {
        $crate::bus_contract!(@each $make;
            a_message_reaches_every_node_that_subscribed_once
            messages_of_one_publisher_arrive_in_order
            messages_that_were_published_together_arrive_in_order
            a_repeated_subscription_doubles_nothing
            what_is_not_subscribed_to_does_not_arrive
            a_subscription_that_was_ended_can_be_made_again
            a_subscription_that_changes_quickly_ends_as_it_was_last_asked_for
            nodes_of_one_process_subscribe_independently
            the_name_of_a_channel_means_itself_only
            a_message_is_any_bytes
            equal_messages_all_arrive
            a_message_that_is_too_large_is_refused_and_harms_nothing
            a_node_that_takes_nothing_is_told_what_it_lost_and_disturbs_nobody
            the_interest_of_a_node_that_is_gone_is_gone
            many_channels_can_be_subscribed_to_at_once
        );
    };
    (@each $make:expr; $($promise:ident)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                $crate::bus::contract::$promise(($make)().await).await;
            }
        )+
    };
}

/// One bus as two processes have it.
pub struct Buses {
    /// The bus in the first process.
    pub one: Arc<dyn MessageBus>,
    /// The bus in the second process.
    pub two: Arc<dyn MessageBus>,
    /// Bytes of the largest message that it must carry.
    pub message_bytes_max: usize,
    /// What has to live as long as the test, for example the broker.
    pub guard: Box<dyn Any + Send>,
}

/// Room for the arrivals of a node that loses nothing.
const ROOM: usize = 16 * 1024 * 1024;
/// After this time a test has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node, and what it hears.
struct Node {
    interest: Arc<dyn Interest>,
    arrivals: Arrivals,
}

impl Node {
    async fn at(bus: &Arc<dyn MessageBus>, channels: &[&str]) -> Self {
        let Joined { interest, arrivals } = bus.join(ROOM);
        let node = Self { interest, arrivals };
        for channel in channels {
            node.subscribes(channel).await;
        }
        node
    }

    async fn subscribes(&self, channel: &str) {
        let subscribed = tokio::time::timeout(PATIENCE, self.interest.subscribe(channel)).await;
        subscribed.expect("a subscription comes into effect").expect("it is not refused");
        assert!(self.interest.is_in_effect(channel), "{channel}");
    }

    async fn next(&mut self) -> Arrival {
        let next = tokio::time::timeout(PATIENCE, self.arrivals.next()).await;
        next.expect("something arrives").expect("the bus goes on")
    }

    /// What arrives before a message on this channel, as `channel message`.
    async fn hears_until(&mut self, last: &str) -> Vec<String> {
        let mut heard = Vec::new();
        loop {
            match self.next().await {
                Arrival::Message { channel, .. } if &*channel == last => return heard,
                Arrival::Message { channel, message } => {
                    heard.push(format!("{channel} {}", String::from_utf8_lossy(&message)));
                }
                lost => heard.push(format!("{lost:?}")),
            }
        }
    }
}

async fn publish(bus: &Arc<dyn MessageBus>, channel: &str, message: impl Into<Bytes>) {
    let published = tokio::time::timeout(PATIENCE, bus.publish(channel, message.into())).await;
    published.expect("a publish ends").expect("it is accepted");
}

/// A message reaches each node that subscribes to its channel once, also the publisher's own.
pub async fn a_message_reaches_every_node_that_subscribed_once(buses: Buses) {
    let mut nodes = Vec::new();
    for bus in [&buses.one, &buses.one, &buses.two] {
        nodes.push(Node::at(bus, &["a", "end"]).await);
    }
    publish(&buses.one, "a", "1").await;
    publish(&buses.one, "end", "").await;
    for node in &mut nodes {
        assert_eq!(node.hears_until("end").await, ["a 1"]);
    }
}

/// Whoever publishes one message after the other is heard in that order, while others publish too.
pub async fn messages_of_one_publisher_arrive_in_order(buses: Buses) {
    const EACH: usize = 100;
    let mut node = Node::at(&buses.two, &["a"]).await;
    let publishers = [&buses.one, &buses.one, &buses.two].map(Arc::clone).into_iter().enumerate();
    let tasks: Vec<_> = publishers
        .map(|(publisher, bus)| {
            tokio::spawn(async move {
                for at in 0..EACH {
                    publish(&bus, "a", format!("{publisher} {at}")).await;
                }
            })
        })
        .collect();
    let mut heard: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for _ in 0..3 * EACH {
        let Arrival::Message { message, .. } = node.next().await else { panic!("nothing is lost") };
        let text = String::from_utf8(message.to_vec()).expect("text");
        let (publisher, at) = text.split_once(' ').expect("two numbers");
        heard.entry(publisher.to_owned()).or_default().push(at.parse().expect("a number"));
    }
    for (publisher, heard) in heard {
        assert_eq!(heard, (0..EACH).collect::<Vec<_>>(), "of publisher {publisher}");
    }
    for task in tasks {
        task.await.expect("it publishes");
    }
}

/// The order of messages is that of the calls, also if nobody waited in between.
pub async fn messages_that_were_published_together_arrive_in_order(buses: Buses) {
    let mut node = Node::at(&buses.two, &["a", "end"]).await;
    let published: Vec<_> = (0..500).map(|at| buses.one.publish("a", Bytes::from(at.to_string()))).collect();
    for published in published {
        published.await.expect("it is accepted");
    }
    publish(&buses.one, "end", "").await;
    let expected: Vec<String> = (0..500).map(|at| format!("a {at}")).collect();
    assert_eq!(node.hears_until("end").await, expected);
}

/// Subscribing again neither doubles messages nor needs to be ended twice.
pub async fn a_repeated_subscription_doubles_nothing(buses: Buses) {
    let mut node = Node::at(&buses.two, &["a", "a", "end", "a"]).await;
    publish(&buses.one, "a", "1").await;
    publish(&buses.one, "end", "").await;
    assert_eq!(node.hears_until("end").await, ["a 1"]);
    node.interest.unsubscribe("a");
    node.subscribes("b").await;
    publish(&buses.one, "a", "2").await;
    publish(&buses.one, "end", "").await;
    assert_eq!(node.hears_until("end").await, Vec::<String>::new());
}

/// A node hears only the channels that it subscribes to, and from then on.
pub async fn what_is_not_subscribed_to_does_not_arrive(buses: Buses) {
    publish(&buses.one, "a", "before").await;
    let mut node = Node::at(&buses.two, &["a", "end"]).await;
    assert!(!node.interest.is_in_effect("b"));
    publish(&buses.one, "b", "1").await;
    publish(&buses.one, "a", "2").await;
    publish(&buses.one, "end", "").await;
    assert_eq!(node.hears_until("end").await, ["a 2"]);
}

/// An end of a subscription holds when a later one is in effect, and it can be made again.
pub async fn a_subscription_that_was_ended_can_be_made_again(buses: Buses) {
    let mut node = Node::at(&buses.two, &["a", "end"]).await;
    node.interest.unsubscribe("a");
    node.interest.unsubscribe("never subscribed to");
    node.subscribes("b").await;
    assert!(!node.interest.is_in_effect("a"));
    publish(&buses.one, "a", "1").await;
    publish(&buses.one, "end", "").await;
    assert_eq!(node.hears_until("end").await, Vec::<String>::new());
    node.subscribes("a").await;
    publish(&buses.one, "a", "2").await;
    publish(&buses.one, "end", "").await;
    assert_eq!(node.hears_until("end").await, ["a 2"]);
}

/// Of changes that nobody waits for the last one holds.
pub async fn a_subscription_that_changes_quickly_ends_as_it_was_last_asked_for(buses: Buses) {
    let mut node = Node::at(&buses.two, &["end"]).await;
    for round in 0..50 {
        drop(node.interest.subscribe("a"));
        drop(node.interest.subscribe("b"));
        node.interest.unsubscribe("b");
        if round < 49 {
            node.interest.unsubscribe("a");
        }
    }
    node.subscribes("a").await;
    node.subscribes("c").await;
    assert!(!node.interest.is_in_effect("b"));
    publish(&buses.one, "a", "1").await;
    publish(&buses.one, "b", "2").await;
    publish(&buses.one, "end", "").await;
    assert_eq!(node.hears_until("end").await, ["a 1"]);
}

/// The end of one node's subscription does not end that of another in the same process.
pub async fn nodes_of_one_process_subscribe_independently(buses: Buses) {
    let mut stays = Node::at(&buses.two, &["a", "end"]).await;
    let mut leaves = Node::at(&buses.two, &["a", "end"]).await;
    leaves.interest.unsubscribe("a");
    leaves.subscribes("b").await;
    publish(&buses.one, "a", "1").await;
    publish(&buses.one, "end", "").await;
    assert_eq!(stays.hears_until("end").await, ["a 1"]);
    assert_eq!(leaves.hears_until("end").await, Vec::<String>::new());
}

/// Names may have characters that mean something to a broker, and similar names are different channels.
pub async fn the_name_of_a_channel_means_itself_only(buses: Buses) {
    let long = "x".repeat(4096);
    let long_too = format!("{long}y");
    let names = [
        "a",
        "A",
        "a.b",
        "a.*",
        "a.>",
        ">",
        "*",
        "a b",
        "a\tb",
        "a\r\nPUB x 0",
        "a[b]c",
        "a?",
        "$SYS",
        "ü",
        "a:b",
        "a/b",
        "_INBOX.a",
        "'",
        "\"",
        "\\",
        "a=2E",
        "a%2E",
        "..",
        ".",
        &long,
        &long_too,
    ];
    let mut node = Node::at(&buses.two, &[]).await;
    for name in names {
        node.subscribes(name).await;
    }
    let mut other = Node::at(&buses.two, &["a.b", "a.>", "end"]).await;
    for (at, name) in names.iter().enumerate() {
        publish(&buses.one, name, at.to_string()).await;
    }
    publish(&buses.one, "end", "").await;
    for (at, name) in names.iter().enumerate() {
        let Arrival::Message { channel, message } = node.next().await else { panic!("nothing is lost") };
        assert_eq!((&*channel, &message[..]), (*name, at.to_string().as_bytes()), "once, and in order");
    }
    assert_eq!(other.hears_until("end").await, ["a.b 2", "a.> 4"]);
}

/// A message arrives byte by byte as it was published, also an empty one and one of the largest size.
pub async fn a_message_is_any_bytes(buses: Buses) {
    let mut node = Node::at(&buses.two, &["a"]).await;
    let all: Vec<u8> = (0..=255).collect();
    let large = all.iter().copied().cycle().take(buses.message_bytes_max).collect();
    let messages = [Vec::new(), all, b"\r\n".to_vec(), b"\0".to_vec(), large, b"after".to_vec()];
    for message in messages {
        publish(&buses.one, "a", message.clone()).await;
        let Arrival::Message { message: arrived, .. } = node.next().await else { panic!("nothing is lost") };
        assert!(arrived == message, "{} bytes of {}", arrived.len(), message.len());
    }
}

/// No two messages are taken for the same because they have the same bytes.
pub async fn equal_messages_all_arrive(buses: Buses) {
    let mut node = Node::at(&buses.two, &["a", "end"]).await;
    let published: Vec<_> = (0..20).map(|_| buses.one.publish("a", Bytes::from_static(b"x"))).collect();
    for published in published {
        published.await.expect("it is accepted");
    }
    publish(&buses.one, "end", "").await;
    assert_eq!(node.hears_until("end").await, vec!["a x"; 20]);
}

/// A message of any size is either carried or refused, and those before and after it arrive.
pub async fn a_message_that_is_too_large_is_refused_and_harms_nothing(buses: Buses) {
    let mut node = Node::at(&buses.two, &["a", "end"]).await;
    publish(&buses.one, "a", "before").await;
    let bytes = 96 * 1024 * 1024;
    match buses.one.publish("b", Bytes::from(vec![b'x'; bytes])).await {
        Ok(()) => {}
        Err(BusError::TooLarge { bytes: refused, max }) => {
            assert!(refused == bytes && max >= buses.message_bytes_max, "{refused} {max}");
        }
        Err(error) => panic!("{error}"),
    }
    publish(&buses.one, "a", "after").await;
    publish(&buses.one, "end", "").await;
    assert_eq!(node.hears_until("end").await, ["a before", "a after"]);
}

/// A node without room loses messages, is told so and goes on; others hear everything.
pub async fn a_node_that_takes_nothing_is_told_what_it_lost_and_disturbs_nobody(buses: Buses) {
    const MESSAGES: u64 = 200;
    let Joined { interest, arrivals } = buses.two.join(4096);
    let mut slow = Node { interest, arrivals };
    slow.subscribes("a").await;
    slow.subscribes("end").await;
    let mut quick = Node::at(&buses.two, &["a", "end"]).await;
    for at in 0..MESSAGES {
        publish(&buses.one, "a", format!("{at:0>100}")).await;
    }
    publish(&buses.one, "end", "").await;
    assert_eq!(quick.hears_until("end").await.len() as u64, MESSAGES);
    let mut heard = 0;
    let lost = loop {
        match slow.next().await {
            Arrival::Message { message, .. } => {
                assert_eq!(message, format!("{heard:0>100}"));
                heard += 1;
            }
            Arrival::Lost { at_least } => break at_least,
        }
    };
    assert!(heard > 0 && heard < 40, "as many as there is room for, not {heard}");
    assert_eq!(heard + lost, MESSAGES + 1);
    publish(&buses.one, "a", "again").await;
    publish(&buses.one, "end", "").await;
    assert_eq!(slow.hears_until("end").await, ["a again"]);
}

/// What a node that has gone subscribed to does not trouble the others, nor a node that comes later.
pub async fn the_interest_of_a_node_that_is_gone_is_gone(buses: Buses) {
    let mut stays = Node::at(&buses.two, &["end"]).await;
    let Node { interest, arrivals } = Node::at(&buses.two, &["a"]).await;
    drop(interest);
    drop(arrivals);
    let mut later = Node::at(&buses.two, &["end"]).await;
    publish(&buses.one, "a", "1").await;
    publish(&buses.one, "end", "").await;
    assert_eq!(stays.hears_until("end").await, Vec::<String>::new());
    assert_eq!(later.hears_until("end").await, Vec::<String>::new());
    later.subscribes("a").await;
    publish(&buses.one, "a", "2").await;
    publish(&buses.one, "end", "").await;
    assert_eq!(later.hears_until("end").await, ["a 2"]);
}

/// Thousands of subscriptions that were begun together all come into effect.
pub async fn many_channels_can_be_subscribed_to_at_once(buses: Buses) {
    const CHANNELS: usize = 3000;
    let mut node = Node::at(&buses.two, &[]).await;
    let begun: Vec<_> = (0..CHANNELS).map(|at| node.interest.subscribe(&format!("c{at}"))).collect();
    for subscribed in begun {
        tokio::time::timeout(PATIENCE, subscribed)
            .await
            .expect("it comes into effect")
            .expect("it is not refused");
    }
    let published: Vec<_> = (0..CHANNELS)
        .map(|at| {
            let bus = buses.one.clone();
            async move { publish(&bus, &format!("c{at}"), at.to_string()).await }
        })
        .collect();
    for published in published {
        published.await;
    }
    for at in 0..CHANNELS {
        let Arrival::Message { channel, message } = node.next().await else { panic!("nothing is lost") };
        assert_eq!((&*channel, &message[..]), (&*format!("c{at}"), at.to_string().as_bytes()));
    }
}
