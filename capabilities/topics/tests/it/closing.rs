//! A connection that is closed, and subscriptions that are taken away, in the middle of everything.

use std::sync::{Arc, Mutex};

use serde_json::json;
use tidings_topics::{
    LocalStatus, MutateError, MutateOptions, PubSubErrorCode, PublishError, PublishOptions, SettleOptions,
    Verify, VerifyOptions,
};

use crate::recorder::*;
use crate::support::*;

/// Nothing is left of the client at the driver.
fn nothing_is_left(world: &Watched) {
    for topic in ["a", "b", "held"] {
        let count = now(world.hub.count(topic)).expect("a count");
        assert_eq!(count.count.subscribers, 0, "{topic}");
        assert!(world.hub.driver().local_subscribers(topic).is_empty());
    }
    let observed = world.policy.noted();
    assert!(!observed.iter().any(|noted| noted.contains("subscribed")), "nobody is told: {observed:?}");
}

#[tokio::test]
async fn closing_ends_every_operation_at_its_driver_call_and_leaves_nothing() {
    // Whether the driver succeeds or fails afterwards.
    for succeeds in [true, false] {
        for kind in 0..6 {
            let world = watched(None);
            let client = world.client_with(&["held"]);
            let topics = &client.topics;
            world.driver.hold(true);
            let running = begins(Box::pin(async move {
                let options = options();
                match kind {
                    0 => topics.subscribe("a", &options).await,
                    1 => topics.unsubscribe("held", &options).await,
                    2 => topics.subscribe_many(["a", "b"], &options).await,
                    3 => topics.unsubscribe_many(["held"], &options).await,
                    4 => topics.set(["a"], &options).await,
                    _ => topics.clear(&options).await,
                }
            }));
            let options = options();
            let waiting = begins(Box::pin(topics.update(|draft| draft.clear(), &options)));
            let settle = SettleOptions::default();
            let settling = begins(Box::pin(topics.settle(None, &settle)));
            topics.close();
            assert_eq!(code(running.await), PubSubErrorCode::ConnectionClosed, "{kind}");
            assert_eq!(code(waiting.await), PubSubErrorCode::ConnectionClosed, "{kind}");
            assert!(matches!(settling.await, Err(MutateError::PubSub(_))), "{kind}");
            assert!(topics.is_empty());
            while !world.driver.waiting().is_empty() {
                world.driver.release(0, succeeds);
                tokio::task::yield_now().await;
            }
            until(|| topics.in_flight() == 0).await;
            world.driver.hold(false);
            nothing_is_left(&world);
            assert_eq!(topics.local_status("a"), LocalStatus::Absent);
        }
    }
}

async fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never happens");
}

#[tokio::test]
async fn closing_while_the_policy_is_asked_leaves_nothing() {
    let world = watched(None);
    let Client { topics, reader } = world.client_with(&["held"]);
    let go = world.policy.wait();
    let running = begins(Box::pin(async { topics.subscribe("a", &options()).await }));
    drop(reader);
    assert_eq!(code(running.await), PubSubErrorCode::ConnectionClosed);
    drop(go);
    assert_eq!(world.calls(), "xa", "the driver only removes the member");
    nothing_is_left(&world);
    assert_eq!(topics.in_flight(), 0);
}

#[tokio::test]
async fn closing_ends_a_publish_and_a_verification() {
    let world = watched(None);
    let client = world.client_with(&["a"]);
    let topics = client.topics.clone();
    let publish = || {
        let topics = topics.clone();
        Box::pin(async move { topics.publish(message("a", "late"), PublishOptions::default()).await })
    };
    let _go = world.policy.wait();
    let asked = begins(publish());
    let behind = begins(publish());
    world.driver.hold(true);
    let verify = VerifyOptions::default();
    let verifying = begins(Box::pin(topics.verify("a", &verify)));
    topics.close();
    for publish in [asked, behind, publish()] {
        let failed = publish.await;
        assert_eq!(failed.error(), Some(PublishError::ConnectionClosed));
        assert!(failed.into_result().is_err_and(|failure| failure.is_retryable()));
    }
    assert!(matches!(verifying.await, Err(MutateError::PubSub(_))));
    assert_eq!(world.hub.driver().local_subscribers("a"), []);
}

#[tokio::test]
async fn closing_twice_and_dropping_the_reader_afterwards_is_one_end() {
    let world = watched(None);
    let Client { topics, reader } = world.client_with(&["a"]);
    topics.close();
    topics.close();
    drop(reader);
    assert_eq!(world.calls(), "xa");
    assert_eq!(world.policy.noted(), Vec::<String>::new(), "the policy is not asked about it");
    assert_eq!(code(now(topics.subscribe("b", &options()))), PubSubErrorCode::ConnectionClosed);
    assert_eq!(code(now(topics.set(["b"], &options()))), PubSubErrorCode::ConnectionClosed);
    assert_eq!(counts(now(topics.clear(&options()))), (0, 0, 0), "cleaning up never fails");
    assert_eq!(counts(now(topics.unsubscribe("a", &options()))), (0, 0, 0));
    nothing_is_left(&world);
}

#[tokio::test]
async fn closing_one_connection_leaves_the_others_alone() {
    let world = world();
    let (first, mut second) = (world.client("a"), world.client("b"));
    first.subscribes("t");
    second.subscribes("t");
    drop(first);
    assert_eq!(world.publishes("t", "to the second").matched(), Some(1));
    assert_eq!(second.hears(1).await, ["to the second"]);
    let again = world.client("a");
    assert!(again.topics.is_empty(), "subscriptions are not kept");
}

#[tokio::test]
async fn what_is_taken_away_while_it_is_being_subscribed_to_is_not_subscribed_to() {
    for revoked_in_policy in [true, false] {
        let world = watched(None);
        let client = world.client_with(&["held"]);
        let topics = &client.topics;
        let go = revoked_in_policy.then(|| world.policy.wait());
        world.driver.hold(!revoked_in_policy);
        let running = begins(Box::pin(async { topics.set(["ok", "room:1"], &options()).await }));
        assert!(topics.remove_where(|topic| topic.starts_with("room:"), "revoked").is_empty());
        drop(go);
        let result = if revoked_in_policy {
            running.await
        } else {
            let mut running = running;
            for _ in 0..3 {
                running = begins(running);
                world.driver.release(0, true);
            }
            world.driver.hold(false);
            running.await
        };
        let expected =
            json!({ "op": "subscribe", "kind": "forbidden", "reason": "revoked", "topic": "room:1" });
        assert_eq!(details(result), expected);
        assert_eq!(held(topics), "held");
        let expected = if revoked_in_policy { "" } else { "-held +ok +room:1 -room:1 -ok +held" };
        assert_eq!(world.calls(), expected);
        assert_eq!(now(world.hub.count("room:1")).expect("a count").count.subscribers, 0);
        assert_eq!(now(world.hub.count("held")).expect("a count").count.subscribers, 1);
    }
}

#[tokio::test]
async fn what_is_taken_away_while_a_set_is_taken_back_is_not_restored() {
    let world = watched(None);
    let client = world.client_with(&["room:1", "held"]);
    let topics = &client.topics;
    world.driver.hold(true);
    let mut running = begins(Box::pin(async { topics.set(["new"], &options()).await }));
    for _ in 0..2 {
        world.driver.release(0, true);
        running = begins(running);
    }
    let removed = topics.remove_where(|topic| topic == "room:1", "revoked");
    assert_eq!(removed.len(), 1);
    world.driver.release(0, false);
    running = begins(running);
    world.driver.hold(false);
    world.driver.release(0, true);
    assert_eq!(code(running.await), PubSubErrorCode::AdapterError);
    assert_eq!(held(topics), "held");
    until(|| topics.in_flight() == 0).await;
    assert_eq!(now(world.hub.count("room:1")).expect("a count").count.subscribers, 0);
}

#[tokio::test]
async fn what_is_taken_away_is_forgotten_by_a_driver_that_waits_and_may_come_back() {
    let world = watched(None);
    let client = world.client_with(&["a"]);
    let topics = &client.topics;
    world.driver.hold(true);
    assert_eq!(topics.remove_where(|_| true, "revoked").len(), 1);
    assert!(!topics.contains("a"), "at once");
    assert!(!client.topics.member().is_in("a"));
    assert_eq!(world.policy.noted(), ["a unsubscribed a Removed"], "nobody is asked");
    let again = begins(Box::pin(async { topics.subscribe("a", &options()).await }));
    assert_eq!(world.waiting(), "-a", "one after the other");
    world.driver.release(0, true);
    until(|| topics.in_flight() == 1).await;
    let again = begins(again);
    assert_eq!(world.waiting(), "+a");
    world.driver.release(0, true);
    assert_eq!(counts(again.await), (1, 0, 1));
    assert!(client.topics.member().is_in("a"));
}

#[tokio::test]
async fn a_subscription_that_is_confirmed_later_is_committed_and_pending() {
    let world = watched(None);
    let mut client = world.client();
    let topics = &client.topics;
    let lost: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = lost.clone();
    topics.when_taken_back(move |topic| noted.lock().expect("no panic").push(topic.to_string()));
    world.driver.confirm_later(true);
    assert_eq!(counts(now(topics.subscribe_many(["a", "b"], &options()))), (2, 0, 2), "optimistic");
    let status = |topic| (topics.local_status(topic), topics.contains(topic));
    assert_eq!(status("a"), (LocalStatus::PendingSubscribe, true));
    tokio::task::yield_now().await;
    world.driver.release(0, true);
    until(|| status("a") == (LocalStatus::Settled, true)).await;
    world.driver.release(0, false);
    until(|| status("b") == (LocalStatus::Absent, false)).await;
    assert_eq!(*lost.lock().expect("no panic"), ["b"]);
    assert_eq!(world.policy.noted().last().map(String::as_str), Some("a unsubscribed b Refused"));
    until(|| topics.in_flight() == 0).await;
    assert!(now(world.hub.publish(message("b", "lost"), PublishOptions::default())).is_ok());
    assert!(now(world.hub.publish(message("a", "kept"), PublishOptions::default())).is_ok());
    assert_eq!(client.hears(1).await, ["kept"]);
}

#[tokio::test]
async fn a_settled_subscribe_waits_for_the_confirmation() {
    let world = watched(None);
    let client = world.client();
    let topics = &client.topics;
    world.driver.confirm_later(true);
    let settled = MutateOptions::settled();
    let running = begins(Box::pin(topics.subscribe("a", &settled)));
    assert!(!topics.contains("a"));
    world.driver.release(0, true);
    assert_eq!(counts(running.await), (1, 0, 1));
    assert_eq!(topics.local_status("a"), LocalStatus::Settled);
    let running = begins(Box::pin(topics.subscribe("b", &settled)));
    world.driver.release(0, false);
    assert_eq!(code(running.await), PubSubErrorCode::AdapterError);
    assert_eq!(held(topics), "a");
    assert_eq!(world.calls(), "+a ?a +b ?b -b", "what was refused is undone");
    assert_eq!(counts(now(topics.subscribe("a", &settled))), (0, 0, 1), "settled already: at once");
}

#[tokio::test]
async fn closing_while_a_subscription_is_being_confirmed_leaves_nothing() {
    let world = watched(None);
    let Client { topics, reader } = world.client();
    world.driver.confirm_later(true);
    assert_eq!(counts(now(topics.subscribe("a", &options()))), (1, 0, 1));
    world.policy.noted();
    drop(reader);
    world.driver.release(0, true);
    until(|| topics.in_flight() == 0).await;
    nothing_is_left(&world);
}

#[tokio::test]
async fn verifying_asks_the_driver_and_strictness_is_about_its_silence() {
    use tidings_topics::{Verification, VerifyMode, contract::Call};
    let world = watched(None);
    let client = world.client_with(&["a"]);
    let topics = &client.topics;
    let verified = |topic: &'static str, mode| {
        let options = VerifyOptions { mode, ..VerifyOptions::default() };
        let verified = now(async { topics.verify(topic, &options).await }).expect("an answer");
        (verified.verification.as_str(), verified.local)
    };
    for mode in [VerifyMode::Strict, VerifyMode::BestEffort] {
        assert_eq!(verified("A", mode), ("subscribed", false), "normalized");
        assert_eq!(verified("b", mode), ("unsubscribed", false));
    }
    // The driver has lost the subscription.
    topics.member().leave("a");
    assert_eq!(verified("a", VerifyMode::BestEffort), ("unsubscribed", false));
    assert!(topics.contains("a"), "asking changes nothing");
    world.driver.breaks(Call::Verify("a".into()));
    assert_eq!(verified("a", VerifyMode::Strict), ("error", false));
    world.driver.heal();
    world.driver.cannot_verify();
    assert_eq!(verified("a", VerifyMode::Strict), ("unsupported", false));
    assert_eq!(verified("a", VerifyMode::BestEffort), ("subscribed", true));
    assert_eq!(verified("b", VerifyMode::BestEffort), ("unsubscribed", true));
    // After a change.
    let strict = MutateOptions::settled().verified(Verify::Strict);
    match now(topics.subscribe("c", &strict)) {
        Err(MutateError::Unverified { topic, verification: Verification::Unsupported }) => {
            assert_eq!(&*topic, "c");
        }
        other => panic!("{other:?}"),
    }
    assert!(topics.contains("c"), "the change was made");
    let best_effort = MutateOptions::settled().verified(Verify::BestEffort);
    assert_eq!(counts(now(topics.subscribe("d", &best_effort))), (1, 0, 3));
    let optimistic = MutateOptions::default().verified(Verify::Strict);
    assert_eq!(
        counts(now(topics.subscribe("e", &optimistic))),
        (1, 0, 4),
        "only what is settled is verified"
    );
}

#[tokio::test]
async fn a_strictly_verified_change_is_confirmed_by_the_driver() {
    let world = watched(None);
    let client = world.client_with(&["old"]);
    let strict = MutateOptions::settled().verified(Verify::Strict);
    assert_eq!(counts(now(client.topics.set(["new"], &strict))), (1, 1, 1));
    assert_eq!(world.calls(), "-old +new =old =new");
}
