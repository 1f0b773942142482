//! What every driver promises.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use serde_json::{Value, json};
use tidings_engine::deliver::{BundleReader, Step};

use super::Nodes;
use crate::driver::{Handover, PubSubDriver, Route, Verification};
use crate::envelope::{Payload, PublishEnvelope};
use crate::local::Member;
use crate::result::{Capability, PublishError, Sent};

/// A member and its reader.
struct Client {
    driver: Arc<dyn PubSubDriver>,
    member: Member,
    reader: BundleReader,
}

fn client(driver: &Arc<dyn PubSubDriver>, id: &str) -> Client {
    let (member, reader) = driver.connect(id.into());
    Client { driver: driver.clone(), member, reader }
}

impl Client {
    async fn enters(&self, topic: &str) {
        let topic = Arc::from(topic);
        match self.driver.subscribe(&self.member, &topic).await.expect("a subscription") {
            Handover::Settled => {}
            Handover::Confirming(confirmed) => confirmed.await.expect("a confirmation"),
        }
    }

    async fn subscribes(&self, topic: &str) {
        self.enters(topic).await;
        self.member.release([topic]);
    }

    async fn unsubscribes(&self, topic: &str) {
        self.driver.unsubscribe(&self.member, &Arc::from(topic)).await.expect("no subscription");
    }

    async fn hears(&mut self, nodes: &Nodes) -> Vec<i64> {
        (nodes.travelled)().await;
        let mut heard = Vec::new();
        for _ in 0..64 {
            tokio::task::yield_now().await;
            self.takes(&mut heard);
        }
        heard
    }

    fn takes(&mut self, heard: &mut Vec<i64>) {
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            let polled = self.reader.poll_frames(&mut cx, usize::MAX, &mut |frame| {
                let frame: Value =
                    serde_json::from_slice(&frame.bytes.clone().joined()).expect("a frame is JSON");
                heard.push(frame["payload"].as_i64().expect("a number"));
            });
            match polled {
                Poll::Ready(Step::Frames) => {}
                Poll::Ready(step) => panic!("{step:?}"),
                Poll::Pending => return,
            }
        }
    }
}

async fn publish(driver: &Arc<dyn PubSubDriver>, topic: &str, number: i64) -> Sent {
    publish_except(driver, topic, number, None).await
}

async fn publish_except(
    driver: &Arc<dyn PubSubDriver>,
    topic: &str,
    number: i64,
    exclude: Option<&Member>,
) -> Sent {
    let payload = Payload::json(&number).expect("JSON");
    let envelope = PublishEnvelope::new(topic, "NUMBER").with_payload(payload);
    driver.publish(&envelope, Route { exclude, partition_key: Some("any") }).await.expect("it is sent")
}

/// A subscriber receives each message of its topic once, in order, and none of others.
pub async fn a_subscriber_receives_each_message_once_and_in_order(nodes: Nodes) {
    let driver = &nodes.drivers[0];
    let mut client = client(driver, "a");
    client.subscribes("t").await;
    for number in 0..50 {
        publish(driver, "t", number).await;
        publish(driver, "other", -1).await;
    }
    assert_eq!(client.hears(&nodes).await, (0..50).collect::<Vec<_>>());
}

/// After an unsubscribe nothing of the topic is taken, not even what was on its way.
pub async fn nothing_follows_the_end_of_a_subscription(nodes: Nodes) {
    let driver = &nodes.drivers[0];
    let mut client = client(driver, "a");
    client.subscribes("t").await;
    client.subscribes("u").await;
    publish(driver, "t", 1).await;
    client.unsubscribes("t").await;
    publish(driver, "t", 2).await;
    publish(driver, "u", 3).await;
    assert_eq!(client.hears(&nodes).await, [3]);
}

/// Subscribing twice is one subscription, unsubscribing twice is harmless, and so is subscribing again.
pub async fn a_repeated_call_changes_nothing(nodes: Nodes) {
    let driver = &nodes.drivers[0];
    let mut client = client(driver, "a");
    client.unsubscribes("t").await;
    client.subscribes("t").await;
    client.subscribes("t").await;
    publish(driver, "t", 1).await;
    assert_eq!(client.hears(&nodes).await, [1]);
    client.unsubscribes("t").await;
    client.unsubscribes("t").await;
    publish(driver, "t", 2).await;
    assert_eq!(client.hears(&nodes).await, Vec::<i64>::new());
    client.subscribes("t").await;
    publish(driver, "t", 3).await;
    assert_eq!(client.hears(&nodes).await, [3]);
}

/// The frames of a new subscription wait until they are released, and none is lost.
pub async fn frames_are_held_back_until_they_are_released(nodes: Nodes) {
    let driver = &nodes.drivers[0];
    let mut client = client(driver, "a");
    client.enters("t").await;
    publish(driver, "t", 1).await;
    assert_eq!(client.hears(&nodes).await, Vec::<i64>::new());
    client.member.release(["t"]);
    assert_eq!(client.hears(&nodes).await, [1]);
}

/// A message without its sender.
pub async fn an_excluded_member_neither_receives_nor_counts(nodes: Nodes) {
    let driver = &nodes.drivers[0];
    let (mut sender, mut other) = (client(driver, "a"), client(driver, "b"));
    sender.subscribes("t").await;
    other.subscribes("t").await;
    let sent = publish_except(driver, "t", 1, Some(&sender.member)).await;
    if sent.capability == Capability::Exact {
        assert_eq!(sent.matched, Some(1));
    }
    assert!(sent.matched.is_none_or(|matched| matched <= 1), "{sent:?}");
    publish(driver, "t", 2).await;
    assert_eq!(sender.hears(&nodes).await, [2]);
    assert_eq!(other.hears(&nodes).await, [1, 2]);
}

/// A message that nobody hears is sent all the same.
pub async fn nobody_is_reached_where_nobody_subscribes(nodes: Nodes) {
    let sent = publish(&nodes.drivers[0], "t", 1).await;
    assert!(sent.matched.is_none_or(|matched| matched == 0), "{sent:?}");
}

/// Exact numbers are exact, estimates are lower bounds, and unknown ones are absent.
pub async fn numbers_are_what_the_capability_says(nodes: Nodes) {
    let driver = &nodes.drivers[0];
    let clients: Vec<_> = ["a", "b", "c"].map(|id| client(driver, id)).into();
    for client in &clients {
        client.subscribes("t").await;
    }
    let sent = publish(driver, "t", 1).await;
    let count = driver.count("t").await.expect("a count");
    assert_eq!(sent.capability, driver.capability());
    match driver.capability() {
        Capability::Exact => {
            assert_eq!((sent.matched, count.subscribers), (Some(3), 3));
        }
        Capability::Estimate => assert!(sent.matched.is_some_and(|matched| matched <= 3), "{sent:?}"),
        Capability::Unknown => assert_eq!(sent.matched, None),
    }
}

/// Only the connections of this node, and all of them.
pub async fn local_subscribers_are_those_of_this_node(nodes: Nodes) {
    let driver = &nodes.drivers[0];
    let clients: Vec<_> = ["a", "b", "c"].map(|id| client(driver, id)).into();
    for client in &clients[..2] {
        client.subscribes("t").await;
    }
    let elsewhere: Vec<_> = nodes.drivers[1..].iter().map(|driver| client(driver, "z")).collect();
    for client in &elsewhere {
        client.subscribes("t").await;
    }
    let mut local = driver.local_subscribers("t");
    local.sort();
    assert_eq!(local, ["a".into(), "b".into()]);
    assert!(driver.local_subscribers("u").is_empty());
}

/// A driver that verifies tells the truth.
pub async fn what_is_verified_is_what_is_subscribed(nodes: Nodes) {
    let driver = &nodes.drivers[0];
    let (client, other) = (client(driver, "a"), client(driver, "b"));
    client.subscribes("t").await;
    let verification = driver.is_subscribed(&other.member, "t").await;
    assert!(
        matches!(verification, Verification::Unsubscribed | Verification::Unsupported),
        "somebody subscribes, but not this member: {verification}"
    );
    let verification = driver.is_subscribed(&client.member, "t").await;
    assert!(matches!(verification, Verification::Subscribed | Verification::Unsupported), "{verification}");
    client.unsubscribes("t").await;
    let verification = driver.is_subscribed(&client.member, "t").await;
    assert!(matches!(verification, Verification::Unsubscribed | Verification::Unsupported), "{verification}");
}

/// After a removal, and after another one, a member subscribes to nothing.
pub async fn nothing_is_left_of_a_removed_member(nodes: Nodes) {
    let driver = &nodes.drivers[0];
    let (mut gone, mut stays) = (client(driver, "a"), client(driver, "b"));
    for client in [&gone, &stays] {
        client.subscribes("t").await;
        client.subscribes("u").await;
    }
    driver.remove(&gone.member);
    driver.remove(&gone.member);
    publish(driver, "t", 1).await;
    assert_eq!(gone.hears(&nodes).await, Vec::<i64>::new());
    assert_eq!(stays.hears(&nodes).await, [1]);
    assert_eq!(driver.local_subscribers("u"), ["b".into()]);
    assert!(gone.member.is_empty());
}

/// A member whose client is gone is refused, and leaves nothing behind.
pub async fn a_closed_member_cannot_subscribe(nodes: Nodes) {
    let driver = &nodes.drivers[0];
    let Client { member, reader, .. } = client(driver, "a");
    drop(reader);
    let error = driver.subscribe(&member, &Arc::from("t")).await.expect_err("it is closed");
    assert!(error.closed, "{error}");
    driver.remove(&member);
    assert!(driver.local_subscribers("t").is_empty());
}

/// A payload that the frames have no place for is a failure of that publish, not a panic and not a broken frame.
pub async fn a_binary_payload_is_delivered_or_reported(nodes: Nodes) {
    let driver = &nodes.drivers[0];
    let client = client(driver, "a");
    client.subscribes("t").await;
    let payload = Payload::Binary(bytes::Bytes::from_static(&[0xff, 0x00]));
    let envelope = PublishEnvelope::new("t", "BYTES").with_payload(payload);
    match driver.publish(&envelope, Route::default()).await {
        Ok(sent) => assert!(sent.matched.is_none_or(|matched| matched <= 1), "{sent:?}"),
        Err(failure) => {
            assert_eq!(failure.error, PublishError::Validation);
            assert_eq!(failure.details.get("reason"), Some(&json!("encoding")));
        }
    }
}

/// A message reaches the subscribers of every node once, whichever node it came to.
pub async fn a_message_of_another_node_arrives_once(nodes: Nodes) {
    let mut clients: Vec<_> = nodes.drivers.iter().map(|driver| client(driver, "a")).collect();
    for client in &clients {
        client.subscribes("t").await;
    }
    for number in 0..20 {
        publish(nodes.drivers.last().expect("there is a node"), "t", number).await;
    }
    for client in &mut clients {
        assert_eq!(client.hears(&nodes).await, (0..20).collect::<Vec<_>>());
    }
}
