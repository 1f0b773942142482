//! What all connections of a hub may hold together.

use std::sync::{Arc, Barrier};
use std::thread;

use serde_json::json;
use tidings_topics::{
    AllowAll, CancellationToken, MemoryDriver, MutateError, MutateOptions, PubSubErrorCode, TopicRules,
};

use crate::support::*;

fn limited(limit: usize) -> World {
    let rules = TopicRules::default().with_max_subscriptions(Some(limit));
    with(Arc::new(MemoryDriver::new(local(""))), rules, Arc::new(AllowAll))
}

fn options() -> MutateOptions {
    MutateOptions::default()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, MutateError>, requested: usize) {
    match result {
        Err(MutateError::PubSub(error)) => {
            assert_eq!(error.code, PubSubErrorCode::TopicLimitExceeded);
            let details = json!({ "scope": "project", "limit": 3, "requested": requested });
            assert_eq!(serde_json::Value::Object(error.details.to_json()), details);
        }
        other => panic!("expected a refusal: {other:?}"),
    }
}

#[tokio::test]
async fn the_connections_of_a_hub_hold_so_many_subscriptions_together_and_no_more() {
    let world = limited(3);
    let (one, two) = (world.client("a"), world.client("b"));
    assert_eq!(counts(now(one.topics.subscribe_many(["x", "y"], &options()))), (2, 0, 2));
    refused(now(two.topics.subscribe_many(["x", "z"], &options())), 2);
    assert_eq!((two.topics.len(), world.hub.subscriptions()), (0, 2), "all or nothing");
    two.subscribes("x");
    refused(now(two.topics.subscribe("y", &options())), 1);
    assert_eq!(two.subscribes("x").added, 0, "what is there already takes no place");
    // As many as before have room, more have not.
    assert_eq!(counts(now(one.topics.set(["v", "w"], &options()))), (2, 2, 2));
    refused(now(one.topics.set(["v", "w", "x"], &options())), 1);
    assert_eq!(world.hub.subscriptions(), 3);
}

#[tokio::test]
async fn each_way_in_which_a_subscription_ends_gives_its_place_back() {
    let world = limited(3);
    let all = ["x", "y", "z"];
    let fill = |client: &Client| assert_eq!(counts(now(client.topics.set(all, &options()))).2, 3);
    let one = world.client("a");
    fill(&one);
    one.unsubscribes("x");
    assert_eq!(world.hub.subscriptions(), 2);
    assert_eq!(counts(now(one.topics.clear(&options()))), (0, 2, 0));
    assert_eq!(world.hub.subscriptions(), 0);
    fill(&one);
    assert_eq!(one.topics.remove_where(|topic| topic == "y", "revoked").len(), 1);
    assert_eq!(world.hub.subscriptions(), 2);
    one.topics.close();
    one.topics.close();
    assert_eq!(world.hub.subscriptions(), 0);
    let two = world.client("b");
    fill(&two);
    drop(two);
    assert_eq!(world.hub.subscriptions(), 0);
    let three = world.client("c");
    fill(&three);
    drop(three.reader);
    assert_eq!(world.hub.subscriptions(), 0);
    let cancel = CancellationToken::new();
    cancel.cancel();
    let four = world.client("d");
    let cancelled = now(four.topics.subscribe("x", &options().cancelled_by(cancel)));
    assert!(matches!(cancelled, Err(MutateError::Aborted(_))), "{cancelled:?}");
    assert_eq!(world.hub.subscriptions(), 0);
    world.hub.shut_down().await;
    assert_eq!(world.hub.subscriptions(), 0);
}

#[test]
fn connections_that_subscribe_at_once_never_hold_more_than_they_may() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _entered = runtime.enter();
    for _ in 0..200 {
        let world = limited(3);
        let clients: Vec<Client> = ["a", "b", "c", "d"].map(|id| world.client(id)).into_iter().collect();
        let barrier = Barrier::new(clients.len());
        thread::scope(|scope| {
            for client in &clients {
                let (topics, barrier) = (&client.topics, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for topic in ["x", "y"] {
                        drop(now(topics.subscribe(topic, &options())));
                    }
                });
            }
        });
        let held: usize = clients.iter().map(|client| client.topics.len()).sum();
        assert_eq!((held, world.hub.subscriptions()), (3, 3));
    }
}
