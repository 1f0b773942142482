//! In memory everything is done at the first poll, and replies come before broadcasts.

use bytes::Bytes;
use serde_json::json;
use tidings_topics::{MutateOptions, PublishOptions};

use crate::support::*;

#[tokio::test]
async fn everything_is_ready_at_the_first_poll_in_memory() {
    let world = world();
    let client = world.client("a");
    let options = MutateOptions::default();
    assert_eq!(counts(now(client.topics.subscribe("a", &options))), (1, 0, 1));
    assert_eq!(counts(now(client.topics.subscribe_many(["b", "c"], &options))), (2, 0, 3));
    assert_eq!(counts(now(client.topics.set(["c", "d"], &options))), (1, 2, 2));
    let update = client.topics.update(
        |draft| {
            draft.remove("c");
            draft.insert("e");
        },
        &options,
    );
    assert_eq!(counts(now(update)), (1, 1, 2));
    assert_eq!(counts(now(client.topics.unsubscribe_many(["d"], &options))), (0, 1, 1));
    assert_eq!(counts(now(client.topics.clear(&options))), (0, 1, 0));
    assert_eq!(client.publishes("e", "nobody hears").matched(), Some(0));
    assert_eq!(now(world.hub.count("e")).expect("a count").count.subscribers, 0);
}

#[tokio::test]
async fn a_subscriber_hears_what_is_published_with_the_topic_in_its_meta() {
    let world = world();
    let mut client = world.client("a");
    client.subscribes("room:1");
    assert_eq!(world.publishes("room:1", "hi").matched(), Some(1));
    assert_eq!(world.publishes("room:2", "other").matched(), Some(0));
    tokio::task::yield_now().await;
    let expected = json!({ "type": "SAID", "meta": { "topic": "room:1" }, "payload": { "text": "hi" } });
    assert_eq!(client.takes(), [expected]);
}

#[tokio::test]
async fn frames_of_a_new_subscription_follow_its_reply() {
    let world = world();
    let mut client = world.client("a");
    let change = client.subscribes("room:1");
    assert_eq!(world.publishes("room:1", "early").matched(), Some(1));
    tokio::task::yield_now().await;
    assert_eq!(client.takes_text(), Vec::<String>::new(), "held back");
    change.held.reply(Bytes::from_static(b"{\"reply\":1}"));
    let taken = client.takes();
    assert_eq!(taken[0], json!({ "reply": 1 }));
    assert_eq!(taken[1]["payload"]["text"], "early");
    assert_eq!(taken.len(), 2);
}

#[tokio::test]
async fn after_an_unsubscribe_nothing_of_the_topic_follows() {
    let world = world();
    let mut client = world.client("a");
    client.subscribes("room:1");
    assert!(world.publishes("room:1", "in the ring already").is_ok());
    client.unsubscribes("room:1");
    tokio::task::yield_now().await;
    assert_eq!(client.takes_text(), Vec::<String>::new());
}

#[tokio::test]
async fn an_excluded_sender_neither_hears_nor_counts() {
    let world = world();
    let (mut sender, mut other) = (world.client("a"), world.client("b"));
    sender.subscribes("room:1");
    other.subscribes("room:1");
    let exclude_self = PublishOptions { exclude_self: true, ..PublishOptions::default() };
    let sent = now(sender.topics.publish(message("room:1", "not to me"), exclude_self));
    assert_eq!(sent.matched(), Some(1));
    assert_eq!(sender.publishes("room:1", "to all").matched(), Some(2));
    assert_eq!(other.hears(2).await, ["not to me", "to all"]);
    assert_eq!(sender.hears(1).await, ["to all"]);
}

#[tokio::test]
async fn scopes_share_rings_and_hear_nothing_of_each_other() {
    use std::sync::Arc;
    use tidings_engine::deliver::{Channels, Limits, Rings};
    use tidings_topics::{AllowAll, JsonText, Local, MemoryDriver, TopicRules};
    let rings = Rings::unjoined(&Channels::new(tidings_engine::Bus::new(), Limits::default()));
    let scope = |name: &str| {
        let local = Local::new(rings.clone(), name, Arc::new(JsonText), u64::MAX);
        with::<()>(Arc::new(MemoryDriver::new(local)), TopicRules::default(), Arc::new(AllowAll))
    };
    let (one, two) = (scope("one"), scope("two"));
    let (mut of_one, mut of_two) = (one.client("a"), two.client("a"));
    of_one.subscribes("t");
    of_two.subscribes("t");
    assert_eq!(one.publishes("t", "one").matched(), Some(1));
    assert_eq!(two.publishes("t", "two").matched(), Some(1));
    assert_eq!(of_one.hears(1).await, ["one"]);
    assert_eq!(of_two.hears(1).await, ["two"]);
}

#[tokio::test]
async fn dropping_the_reader_ends_everything() {
    let world = world();
    let client = world.client("a");
    client.subscribes("t");
    let Client { topics, reader } = client;
    drop(reader);
    assert!(topics.is_closed());
    assert_eq!(topics.len(), 0);
    assert_eq!(world.publishes("t", "nobody").matched(), Some(0));
    let options = MutateOptions::default();
    let error = now(topics.subscribe("t", &options)).expect_err("it is closed");
    assert!(error.to_string().contains("closed"), "{error}");
    assert_eq!(counts(now(topics.unsubscribe("t", &options))), (0, 0, 0));
    let failed = now(topics.publish(message("t", "late"), PublishOptions::default()));
    assert_eq!(failed.to_json(), json!({ "ok": false, "error": "CONNECTION_CLOSED", "retryable": true }));
}

#[tokio::test]
async fn after_close_the_reader_still_takes_replies_and_no_frames() {
    let world = world();
    let mut client = world.client("a");
    client.subscribes("t");
    assert!(world.publishes("t", "too late").is_ok());
    client.topics.close();
    client.topics.reply(Bytes::from_static(b"\"bye\""));
    tokio::task::yield_now().await;
    assert_eq!(client.takes_text(), ["\"bye\""]);
}

#[tokio::test]
async fn what_is_taken_away_is_gone_at_once_and_told() {
    let world = world();
    let mut client = world.client("a");
    for topic in ["room:2", "news", "room:1"] {
        client.subscribes(topic);
    }
    assert!(world.publishes("room:1", "in the ring already").is_ok());
    let removed = client.topics.remove_where(|topic| topic.starts_with("room:"), "revoked");
    assert_eq!(removed.iter().map(|topic| &**topic).collect::<Vec<_>>(), ["room:2", "room:1"]);
    assert_eq!(client.topics.snapshot().len(), 1);
    assert_eq!(world.publishes("room:1", "later").matched(), Some(0));
    assert!(world.publishes("news", "stays").is_ok());
    assert_eq!(client.hears(1).await, ["stays"]);
    assert_eq!(client.topics.in_flight(), 0);
}
