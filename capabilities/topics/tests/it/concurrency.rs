//! Operations at the same time: those on one topic wait for each other, and each has its own result.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::thread;

use bytes::Bytes;
use futures_util::FutureExt;
use tidings_topics::{LocalStatus, PubSubErrorCode, PublishOptions, SettleOptions};

use crate::recorder::*;
use crate::support::*;

#[tokio::test]
async fn operations_on_one_topic_are_made_in_the_order_of_their_first_polls() {
    let world = watched(None);
    let client = world.client();
    let topics = &client.topics;
    world.driver.hold(true);
    let first = begins(Box::pin(async { topics.subscribe("a", &options()).await }));
    let second = begins(Box::pin(async { topics.unsubscribe("A", &options()).await }));
    let third = begins(Box::pin(async { topics.subscribe("a", &options()).await }));
    let other = begins(Box::pin(async { topics.subscribe("b", &options()).await }));
    assert_eq!(world.waiting(), "+a +b", "other topics do not wait");
    world.driver.release(1, true);
    assert_eq!(counts(other.await), (1, 0, 1));
    world.driver.release(0, true);
    assert_eq!(counts(first.await), (1, 0, 2));
    let third = begins(third);
    let second = begins(second);
    assert_eq!(world.waiting(), "-a");
    world.driver.release(0, true);
    assert_eq!(counts(second.await), (0, 1, 1));
    let third = begins(third);
    world.driver.release(0, true);
    assert_eq!(counts(third.await), (1, 0, 2));
}

#[tokio::test]
async fn of_two_subscribes_to_one_topic_one_adds_it() {
    let world = watched(None);
    let client = world.client();
    world.driver.hold(true);
    let first = begins(Box::pin(async { client.topics.subscribe("a", &options()).await }));
    let second = begins(Box::pin(async { client.topics.subscribe("a", &options()).await }));
    world.driver.release(0, true);
    assert_eq!(counts(first.await), (1, 0, 1));
    assert_eq!(counts(second.await), (0, 0, 1));
    assert_eq!(world.calls(), "+a");
    assert_eq!(world.policy.noted(), ["a subscribe a", "a subscribed a"]);
}

#[tokio::test]
async fn a_failure_is_only_its_own_operations_failure() {
    let world = watched(None);
    let client = world.client();
    let topics = &client.topics;
    world.driver.hold(true);
    let subscribe = begins(Box::pin(async { topics.subscribe("a", &options()).await }));
    let unsubscribe = begins(Box::pin(async { topics.unsubscribe("a", &options()).await }));
    let again = begins(Box::pin(async { topics.subscribe("a", &options()).await }));
    world.driver.release(0, false);
    assert_eq!(code(subscribe.await), PubSubErrorCode::AdapterError);
    assert_eq!(counts(unsubscribe.await), (0, 0, 0), "there is nothing to unsubscribe from");
    let again = begins(again);
    world.driver.release(0, true);
    assert_eq!(counts(again.await), (1, 0, 1));
    assert_eq!(world.calls(), "+a +a");
}

#[tokio::test]
async fn a_batch_is_one_operation_on_each_of_its_topics() {
    let world = watched(None);
    let client = world.client();
    let topics = &client.topics;
    world.driver.hold(true);
    let batch = begins(Box::pin(async { topics.subscribe_many(["a", "b"], &options()).await }));
    let single = begins(Box::pin(async { topics.subscribe("b", &options()).await }));
    let elsewhere = begins(Box::pin(async { topics.subscribe("c", &options()).await }));
    assert_eq!(world.waiting(), "+a +c");
    world.driver.release(1, true);
    assert_eq!(counts(elsewhere.await), (1, 0, 1), "a batch does not hold up other topics");
    world.driver.release(0, true);
    let batch = begins(batch);
    let single = begins(single);
    world.driver.release(0, true);
    assert_eq!(counts(batch.await), (2, 0, 3));
    assert_eq!(counts(single.await), (0, 0, 3));
    assert_eq!(world.calls(), "+a +c +b");
}

#[tokio::test]
async fn a_set_waits_for_what_is_in_flight_and_is_waited_for() {
    let world = watched(None);
    let client = world.client();
    let topics = &client.topics;
    world.driver.hold(true);
    let fails = begins(Box::pin(async { topics.subscribe("a", &options()).await }));
    let works = begins(Box::pin(async { topics.subscribe("b", &options()).await }));
    let set = begins(Box::pin(async { topics.set(["a"], &options()).await }));
    let after = begins(Box::pin(async { topics.subscribe("c", &options()).await }));
    assert_eq!(world.waiting(), "+a +b");
    world.driver.release(0, false);
    assert_eq!(code(fails.await), PubSubErrorCode::AdapterError);
    let set = begins(set);
    world.driver.release(0, true);
    assert_eq!(counts(works.await), (1, 0, 1));
    let set = begins(set);
    assert_eq!(world.waiting(), "-b");
    world.driver.release(0, true);
    let set = begins(set);
    let after = begins(after);
    assert_eq!(world.waiting(), "+a", "what comes after a set waits for it");
    world.driver.release(0, true);
    assert_eq!(counts(set.await), (1, 1, 1));
    let after = begins(after);
    world.driver.release(0, true);
    assert_eq!(counts(after.await), (1, 0, 2));
    assert_eq!(held(topics), "a c");
}

#[tokio::test]
async fn subscribe_and_unsubscribe_at_once_end_unsubscribed() {
    let world = watched(None);
    let client = world.client();
    let (first, second) = tokio::join!(async { client.topics.subscribe("a", &options()).await }, async {
        client.topics.unsubscribe("a", &options()).await
    },);
    assert_eq!((counts(first), counts(second)), ((1, 0, 1), (0, 1, 0)));
    assert_eq!(client.topics.local_status("a"), LocalStatus::Absent);
}

#[tokio::test]
async fn the_order_of_a_set_is_the_order_of_subscription() {
    let world = watched(None);
    let client = world.client_with(&["c", "a", "b"]);
    assert_eq!(held(&client.topics), "c a b");
    client.unsubscribes("c");
    client.subscribes("c");
    client.subscribes("a");
    assert_eq!(held(&client.topics), "a b c", "who subscribes again is last");
    let mut iterated = client.topics.iter();
    assert_eq!(iterated.next().as_deref(), Some("a"));
    client.subscribes("z");
    client.unsubscribes("b");
    assert_eq!(iterated.map(|topic| topic.to_string()).collect::<Vec<_>>(), ["b", "c"], "a snapshot");
    let mut by_loop = Vec::new();
    for topic in &client.topics {
        client.unsubscribes(&topic);
        by_loop.push(topic.to_string());
    }
    assert_eq!(by_loop, ["a", "c", "z"]);
    assert!(client.topics.is_empty());
}

#[tokio::test]
async fn a_policy_that_waits_holds_up_nobody_else() {
    let world = watched(None);
    let client = world.client();
    let (other, _reader) = world.hub.connect("b", ());
    let go = world.policy.wait();
    let waiting = begins(Box::pin(async { client.topics.subscribe("a", &options()).await }));
    assert_eq!(client.topics.local_status("a"), LocalStatus::PendingSubscribe);
    assert_eq!(counts(now(client.topics.subscribe("b", &options()))), (1, 0, 1));
    assert_eq!(counts(now(other.subscribe("a", &options()))), (1, 0, 1));
    assert_eq!(world.calls(), "+b +a", "nothing of what is not allowed yet");
    drop(go);
    assert_eq!(counts(waiting.await), (1, 0, 2));
}

#[tokio::test]
async fn messages_of_one_publisher_stay_in_order_even_if_the_policy_waits() {
    let world = watched(None);
    let mut client = world.client_with(&["a", "b"]);
    let topics = client.topics.clone();
    let go = world.policy.wait();
    let send = |topic: &'static str, text: &'static str| {
        let topics = topics.clone();
        Box::pin(async move { topics.publish(message(topic, text), PublishOptions::default()).await })
    };
    let first = begins(send("a", "first"));
    let second = begins(send("a", "second"));
    assert!(now(send("b", "other")).is_ok(), "other topics do not wait");
    drop(go);
    assert!(first.await.is_ok());
    assert!(second.await.is_ok());
    let mut heard = client.hears(3).await;
    heard.retain(|text| text != "other");
    assert_eq!(heard, ["first", "second"]);
    assert!(now(send("a", "third")).is_ok(), "nobody waits any more");
}

#[tokio::test]
async fn messages_of_one_publisher_stay_in_order_if_the_driver_waits() {
    let world = watched(None);
    let mut client = world.client_with(&["a"]);
    let topics = client.topics.clone();
    world.driver.hold(true);
    let send = |text: &'static str| {
        let topics = topics.clone();
        Box::pin(async move { topics.publish(message("a", text), PublishOptions::default()).await })
    };
    let first = begins(send("first"));
    let second = begins(send("second"));
    assert_eq!(world.waiting(), ">a", "one at a time");
    world.driver.release(0, true);
    assert!(first.await.is_ok());
    let second = begins(second);
    world.driver.release(0, true);
    assert!(second.await.is_ok());
    assert_eq!(client.hears(2).await, ["first", "second"]);
}

#[tokio::test]
async fn settling_waits_for_what_is_in_flight_and_not_for_what_comes_later() {
    let world = watched(None);
    let client = world.client();
    let topics = &client.topics;
    let none = SettleOptions::default();
    assert!(now(topics.settle(None, &none)).is_ok(), "nothing is in flight");
    world.driver.hold(true);
    let a = begins(Box::pin(async { topics.subscribe("a", &options()).await }));
    let b = begins(Box::pin(async { topics.subscribe("b", &options()).await }));
    let settle_a = begins(Box::pin(topics.settle(Some("A"), &none)));
    let settle_all = begins(Box::pin(topics.settle(None, &none)));
    let later = begins(Box::pin(async { topics.unsubscribe("a", &options()).await }));
    assert!(now(topics.settle(Some("c"), &none)).is_ok(), "nothing is in flight there");
    world.driver.release(0, false);
    assert_eq!(code(a.await), PubSubErrorCode::AdapterError);
    assert!(settle_a.await.is_ok(), "how it ended does not matter");
    assert_eq!(counts(later.await), (0, 0, 0));
    let settle_all = begins(settle_all);
    world.driver.release(0, true);
    assert_eq!(counts(b.await), (1, 0, 1));
    assert!(settle_all.await.is_ok());
    assert!(now(topics.settle(None, &none)).is_ok());
    assert!(now(topics.settle(None, &none)).is_ok(), "and again");
    assert_eq!(topics.local_status("b"), LocalStatus::Settled);
}

#[tokio::test]
async fn the_status_of_a_topic_tells_what_is_in_flight() {
    let world = watched(None);
    let client = world.client();
    let topics = &client.topics;
    let status = || (topics.local_status("Room"), topics.contains("Room"));
    assert_eq!(status(), (LocalStatus::Absent, false));
    world.driver.hold(true);
    for (succeeds, after) in [(false, (LocalStatus::Absent, false)), (true, (LocalStatus::Settled, true))] {
        let subscribe = begins(Box::pin(async { topics.subscribe("room", &options()).await }));
        assert_eq!(status(), (LocalStatus::PendingSubscribe, false), "committed is committed");
        world.driver.release(0, succeeds);
        assert_eq!(subscribe.await.is_ok(), succeeds);
        assert_eq!(status(), after);
    }
    for (succeeds, after) in [(false, (LocalStatus::Settled, true)), (true, (LocalStatus::Absent, false))] {
        let unsubscribe = begins(Box::pin(async { topics.unsubscribe("room", &options()).await }));
        assert_eq!(status(), (LocalStatus::PendingUnsubscribe, true));
        world.driver.release(0, succeeds);
        assert_eq!(unsubscribe.await.is_ok(), succeeds);
        assert_eq!(status(), after);
    }
    assert_eq!(world.calls(), "+room +room -room -room", "asking calls nobody");
}

#[test]
fn what_is_taken_away_while_it_is_subscribed_to_again_is_either_held_and_heard_or_neither() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _entered = runtime.enter();
    let world = world();
    for round in 0..500 {
        let Client { topics, mut reader } = world.client("a");
        drop(now(topics.subscribe("t", &options())).expect("a subscription"));
        topics.reply(Bytes::from_static(b"a reply"));
        let (topics, taking, leaving) = (&topics, &Barrier::new(3), &AtomicBool::new(false));
        let until_leaving = || {
            while !leaving.load(Ordering::SeqCst) {
                thread::yield_now()
            }
        };
        thread::scope(|scope| {
            // The reader is in the middle of a reply, so that both others find the connection busy.
            scope.spawn(|| {
                let _ = reader.poll_frames(&mut Context::from_waker(Waker::noop()), 1, &mut |_| {
                    taking.wait();
                    until_leaving();
                    (0..100).for_each(|_| thread::yield_now());
                });
            });
            scope.spawn(|| {
                taking.wait();
                until_leaving();
                for _ in 0..3 {
                    // It may have to wait for the end of the removal, which is not waited for here.
                    drop(topics.subscribe("t", &options()).now_or_never());
                }
            });
            taking.wait();
            let matches = |_: &str| {
                leaving.store(true, Ordering::SeqCst);
                true
            };
            topics.remove_where(matches, "revoked");
        });
        assert_eq!(topics.contains("t"), topics.member().is_in("t"), "round {round}");
    }
}
