//! Batches that fail half way, and what is taken back.

use std::sync::Barrier;
use std::thread;

use serde_json::json;
use tidings_topics::contract::Call;
use tidings_topics::{MutateError, PubSubErrorCode, PublishOptions};

use crate::recorder::*;
use crate::support::*;

#[tokio::test]
async fn a_batch_that_fails_is_taken_back_in_reverse() {
    let world = watched(None);
    let mut client = world.client_with(&["kept"]);
    world.driver.fail(2);
    let failed = now(client.topics.subscribe_many(["a", "b", "c", "d"], &options()));
    assert_eq!(details(failed), json!({ "adapter": "memory", "transient": true }));
    assert_eq!(world.calls(), "+a +b +c -b -a");
    assert_eq!(held(&client.topics), "kept");
    assert!(!world.policy.noted().iter().any(|noted| noted.contains("subscribed")), "nobody is told");
    for topic in ["a", "b", "kept"] {
        assert!(now(world.hub.publish(message(topic, topic), PublishOptions::default())).is_ok());
    }
    assert_eq!(client.hears(1).await, ["kept"]);
    assert_eq!(world.hub.failed_rollbacks(), 0);
}

#[tokio::test]
async fn an_unsubscribed_batch_that_fails_is_subscribed_again_in_reverse() {
    let world = watched(None);
    let mut client = world.client_with(&["a", "b", "c"]);
    world.driver.fail(2);
    let failed = now(client.topics.unsubscribe_many(["a", "b", "c"], &options()));
    assert_eq!(code(failed), PubSubErrorCode::AdapterError);
    assert_eq!(world.calls(), "-a -b -c +b +a");
    assert_eq!(held(&client.topics), "a b c", "in the old order");
    for topic in ["a", "b", "c"] {
        assert!(now(world.hub.publish(message(topic, topic), PublishOptions::default())).is_ok());
    }
    assert_eq!(client.hears_sorted(3).await, ["a", "b", "c"], "all are heard, nothing is held back");
}

#[tokio::test]
async fn what_cannot_be_taken_back_is_named_and_the_rest_is_taken_back() {
    let world = watched(None);
    let client = world.client();
    world.driver.fail(3);
    world.driver.breaks(Call::Unsubscribe("b".into()));
    let failed = now(client.topics.subscribe_many(["a", "b", "c", "d"], &options()));
    let MutateError::PubSub(error) = failed.expect_err("the fourth fails") else { panic!("no failure") };
    assert_eq!(world.calls(), "+a +b +c +d -c -b -a");
    assert!(error.details.rollback_failed());
    let expected = json!({
        "adapter": "memory", "transient": true, "rollbackFailed": true, "failedRollbackTopics": ["b"],
    });
    assert_eq!(serde_json::Value::Object(error.details.to_json()), expected);
    let cause = error.cause.expect("the first failure").to_string();
    assert_eq!(cause, "an injected failure");
    assert_eq!(world.hub.failed_rollbacks(), 1, "counted for the operator");
    assert!(client.topics.is_empty());
}

#[tokio::test]
async fn a_set_leaves_before_it_enters_and_is_taken_back_in_reverse() {
    let world = watched(Some(3));
    let mut client = world.client_with(&["room:1", "room:2", "room:3"]);
    assert_eq!(counts(now(client.topics.set(["room:1", "room:2", "room:4"], &options()))), (1, 1, 3));
    assert_eq!(world.calls(), "-room:3 +room:4");
    assert_eq!(world.driver.most_topics(), 3, "never more than the limit");
    // Two are swapped, the second addition fails.
    world.driver.fail(3);
    let failed = now(client.topics.set(["room:1", "x", "y"], &options()));
    assert_eq!(code(failed), PubSubErrorCode::AdapterError);
    assert_eq!(world.calls(), "-room:2 -room:4 +x +y -x +room:4 +room:2");
    assert_eq!(world.driver.most_topics(), 3, "not even while it is taken back");
    assert_eq!(held(&client.topics), "room:1 room:2 room:4");
    for topic in ["room:1", "room:2", "room:4", "x", "y"] {
        assert!(now(world.hub.publish(message(topic, topic), PublishOptions::default())).is_ok());
    }
    assert_eq!(client.hears_sorted(3).await, ["room:1", "room:2", "room:4"]);
}

#[tokio::test]
async fn a_set_that_cannot_be_taken_back_names_the_topics() {
    let world = watched(None);
    let client = world.client_with(&["a", "b"]);
    world.driver.fail(3);
    world.driver.breaks(Call::Subscribe("a".into()));
    world.driver.breaks(Call::Unsubscribe("x".into()));
    let failed = now(client.topics.set(["x", "y"], &options()));
    assert_eq!(world.calls(), "-a -b +x +y -x +b +a");
    assert_eq!(details(failed)["failedRollbackTopics"], json!(["x", "a"]));
    assert_eq!(held(&client.topics), "a b", "the set is as it was; only the driver differs");
}

#[tokio::test]
async fn an_update_is_taken_back_like_a_set() {
    let world = watched(None);
    let client = world.client_with(&["old", "kept"]);
    world.driver.fail(2);
    let options = options();
    let update = client.topics.update(
        |draft| {
            assert!(draft.remove("OLD"));
            assert!(draft.insert("New"));
            assert!(draft.insert("newer"));
            assert!(draft.contains("NEW"));
            assert_eq!(draft.len(), 3);
        },
        &options,
    );
    assert_eq!(code(now(update)), PubSubErrorCode::AdapterError);
    assert_eq!(world.calls(), "-old +new +newer -new +old");
    assert_eq!(held(&client.topics), "old kept");
}

#[tokio::test]
async fn topics_that_stay_in_a_set_are_not_interrupted() {
    let world = watched(None);
    let mut client = world.client_with(&["stays", "goes"]);
    world.driver.hold(true);
    let running = begins(Box::pin(async { client.topics.set(["comes", "stays"], &options()).await }));
    let publish = |text: &str| {
        // Past the faulty driver, which would wait.
        let driver = world.driver.clone();
        driver.hold(false);
        assert!(now(world.hub.publish(message("stays", text), PublishOptions::default())).is_ok());
        driver.hold(true);
    };
    publish("one");
    world.driver.release(0, true);
    let running = begins(running);
    publish("two");
    world.driver.release(0, true);
    assert_eq!(counts(running.await), (1, 1, 2));
    publish("three");
    assert_eq!(client.hears(3).await, ["one", "two", "three"]);
}

#[test]
fn in_memory_a_batch_is_whole_or_the_connection_is_at_its_end_and_nothing_of_it_is_left() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _entered = runtime.enter();
    let world = world();
    let many: Vec<String> = (0..50).map(|number| format!("t:{number}")).collect();
    let mut outcomes = [0, 0];
    for _ in 0..300 {
        let client = world.client("a");
        client.subscribes("kept");
        let (topics, both) = (&client.topics, &Barrier::new(2));
        let changed = thread::scope(|scope| {
            let changing = scope.spawn(|| {
                both.wait();
                now(topics.set(&many, &options()))
            });
            both.wait();
            topics.close();
            changing.join().expect("no panic")
        });
        match changed {
            Ok(change) => {
                assert_eq!((change.added, change.removed, change.total), (50, 1, 50));
                outcomes[0] += 1;
            }
            Err(MutateError::PubSub(error)) => {
                assert_eq!(error.code, PubSubErrorCode::ConnectionClosed);
                outcomes[1] += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
        assert_eq!((topics.len(), topics.member().len(), world.hub.subscriptions()), (0, 0, 0));
        assert_eq!(world.publishes("t:49", "x").matched(), Some(0));
    }
    assert_eq!(world.hub.failed_rollbacks(), 0);
    println!("whole or at its end: {outcomes:?}");
}
