//! The order of the steps of an operation, and operations that change nothing.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::json;
use tidings_topics::{
    Action, Answer, Connection, Decision, Denial, MemoryDriver, MutateOptions, Policy, PubSubErrorCode,
    TopicRules,
};

use crate::recorder::*;
use crate::support::*;

#[tokio::test]
async fn a_subscribe_authorizes_then_calls_the_driver_then_tells() {
    let world = watched(None);
    let client = world.client();
    world.driver.hold(true);
    let running = begins(Box::pin(async { client.topics.subscribe("Room:A", &options()).await }));
    assert_eq!(world.policy.noted(), ["a subscribe room:a"], "before the driver, and normalized");
    assert_eq!(world.waiting(), "+room:a");
    assert!(!client.topics.contains("room:a"), "not before the driver has answered");
    world.driver.release(0, true);
    assert_eq!(counts(running.await), (1, 0, 1));
    assert_eq!(world.policy.noted(), ["a subscribed room:a"], "after the change");
    assert!(client.topics.contains("ROOM:A"));
    assert_eq!(held(&client.topics), "room:a");
}

#[tokio::test]
async fn an_unsubscribe_authorizes_then_calls_the_driver_then_tells() {
    let world = watched(None);
    let client = world.client_with(&["room:a"]);
    assert_eq!(counts(now(client.topics.unsubscribe("ROOM:A", &options()))), (0, 1, 0));
    assert_eq!(world.policy.noted(), ["a unsubscribe room:a", "a unsubscribed room:a Requested"]);
    assert_eq!(world.calls(), "-room:a");
}

#[tokio::test]
async fn an_operation_that_changes_nothing_does_nothing_at_all() {
    let world = watched(Some(2));
    let client = world.client_with(&["a", "b"]);
    let too_long = "x".repeat(500);
    let topics = &client.topics;
    let settled = MutateOptions::settled().verified(tidings_topics::Verify::Strict);
    for options in [options(), settled] {
        // At the limit, with a driver that fails and topics that are neither valid nor allowed.
        world.driver.fail(0);
        assert_eq!(counts(now(topics.subscribe("a", &options))), (0, 0, 2));
        assert_eq!(counts(now(topics.subscribe("A", &options))), (0, 0, 2));
        assert_eq!(counts(now(topics.subscribe_many(["b", "a", "B"], &options))), (0, 0, 2));
        assert_eq!(counts(now(topics.unsubscribe("c", &options))), (0, 0, 2));
        assert_eq!(counts(now(topics.unsubscribe("no spaces *", &options))), (0, 0, 2));
        assert_eq!(counts(now(topics.unsubscribe(&too_long, &options))), (0, 0, 2));
        assert_eq!(counts(now(topics.unsubscribe("secret", &options))), (0, 0, 2));
        assert_eq!(counts(now(topics.unsubscribe("", &options))), (0, 0, 2));
        assert_eq!(counts(now(topics.unsubscribe_many(["c", "d d", ""], &options))), (0, 0, 2));
        assert_eq!(counts(now(topics.set(["b", "a"], &options))), (0, 0, 2));
        assert_eq!(counts(now(topics.set(["a", "B", "A", "b"], &options))), (0, 0, 2));
        let unchanged = topics.update(
            |draft| {
                draft.remove("a");
                draft.insert("a");
            },
            &options,
        );
        assert_eq!(counts(now(unchanged)), (0, 0, 2));
        world.is_untouched();
    }
    assert_eq!(held(topics), "a b", "in the same order");
    world.driver.heal();
    let nothing = world.client();
    assert_eq!(counts(now(nothing.topics.clear(&options()))), (0, 0, 0));
    assert_eq!(counts(now(nothing.topics.set::<&str>([], &options()))), (0, 0, 0));
    world.is_untouched();
}

#[tokio::test]
async fn each_check_comes_before_the_next_one() {
    let world = watched(Some(1));
    let client = world.client_with(&["a"]);
    let topics = &client.topics;
    // Invalid, denied, beyond the limit, and the driver would fail: the first of these counts.
    world.driver.fail(0);
    assert_eq!(code(now(topics.subscribe("secret *", &options()))), PubSubErrorCode::InvalidTopic);
    world.is_untouched();
    assert_eq!(code(now(topics.subscribe("secret", &options()))), PubSubErrorCode::AclSubscribe);
    assert_eq!(world.policy.noted(), ["a subscribe secret"]);
    assert_eq!(code(now(topics.subscribe("b", &options()))), PubSubErrorCode::TopicLimitExceeded);
    assert_eq!(world.policy.noted(), ["a subscribe b"]);
    assert_eq!(world.calls(), "", "the driver is asked last");
    client.unsubscribes_failing("a", PubSubErrorCode::AdapterError);
    assert_eq!(world.calls(), "-a");
    assert_eq!(held(topics), "a");
}

#[tokio::test]
async fn a_batch_and_a_set_check_everything_before_the_driver_is_called() {
    let world = watched(Some(3));
    let client = world.client_with(&["a"]);
    let topics = &client.topics;
    let cases: [(&[&str], PubSubErrorCode); 3] = [
        (&["b", "c c"], PubSubErrorCode::InvalidTopic),
        (&["b", "secret"], PubSubErrorCode::AclSubscribe),
        (&["b", "c", "d"], PubSubErrorCode::TopicLimitExceeded),
    ];
    for (batch, expected) in cases {
        assert_eq!(code(now(topics.subscribe_many(batch, &options()))), expected);
        assert_eq!(held(topics), "a");
    }
    for (batch, expected) in [
        (vec!["b", "c c"], PubSubErrorCode::InvalidTopic),
        (vec!["b", "secret"], PubSubErrorCode::AclSubscribe),
        (vec!["b", "c", "d", "e"], PubSubErrorCode::TopicLimitExceeded),
    ] {
        assert_eq!(code(now(topics.set(&batch, &options()))), expected);
        let options = options();
        let update = topics.update(
            |draft| {
                draft.clear();
                for topic in &batch {
                    draft.insert(topic);
                }
            },
            &options,
        );
        assert_eq!(code(now(update)), expected);
        assert_eq!(held(topics), "a");
    }
    assert_eq!(world.calls(), "");
    let invalid = now(topics.set(["secret", "c c"], &options()));
    world.policy.noted();
    assert_eq!(code(invalid), PubSubErrorCode::InvalidTopic, "all are valid before the first is authorized");
    // Three topics fit, as one is held already.
    assert_eq!(counts(now(topics.subscribe_many(["a", "b", "B", "c"], &options()))), (2, 0, 3));
    assert_eq!(world.calls(), "+b +c", "in the order of the list, without what is held");
    assert_eq!(
        world.policy.noted(),
        ["a subscribe b", "a subscribe c", "a subscribed b", "a subscribed c"],
        "what is held is not asked about"
    );
}

#[tokio::test]
async fn a_set_asks_only_about_what_it_adds() {
    let world = watched(None);
    let client = world.client_with(&["a", "sticky"]);
    assert_eq!(counts(now(client.topics.set(["a", "b"], &options()))), (1, 1, 2));
    assert_eq!(world.policy.noted(), ["a subscribe b", "a unsubscribed sticky Requested", "a subscribed b"]);
    assert_eq!(world.calls(), "-sticky +b");
    let client = world.client_with(&["sticky"]);
    assert_eq!(counts(now(client.topics.clear(&options()))), (0, 1, 0), "clearing asks nobody");
}

#[tokio::test]
async fn a_denied_unsubscribe_says_what_was_denied() {
    let world = watched(None);
    let client = world.client_with(&["a", "sticky"]);
    let denied = now(client.topics.unsubscribe("sticky", &options()));
    let expected = json!({
        "op": "unsubscribe", "kind": "forbidden", "reason": "policy", "policy": "recorder", "topic": "sticky",
    });
    assert_eq!(details(denied), expected);
    let denied = now(client.topics.unsubscribe_many(["a", "sticky"], &options()));
    assert_eq!(code(denied), PubSubErrorCode::AclSubscribe);
    assert_eq!(held(&client.topics), "a sticky");
    assert_eq!(world.calls(), "");
}

#[tokio::test]
async fn a_denied_subscribe_says_what_was_denied() {
    let world = watched(None);
    let client = world.client();
    let denied = now(client.topics.subscribe("Secret:1", &options()));
    let expected = json!({
        "op": "subscribe", "kind": "forbidden", "reason": "policy", "policy": "recorder", "topic": "secret:1",
    });
    assert_eq!(details(denied), expected);
    assert!(client.topics.is_empty());
}

#[tokio::test]
async fn the_limit_says_what_was_asked_for() {
    let world = watched(Some(3));
    let client = world.client_with(&["a", "b", "c"]);
    let topics = &client.topics;
    let one = now(topics.subscribe("d", &options()));
    let expected = json!({ "scope": "connection", "limit": 3, "current": 3, "requested": 1 });
    assert_eq!(details(one), expected);
    let batch = now(topics.subscribe_many(["c", "d", "e"], &options()));
    let expected = json!({ "scope": "connection", "limit": 3, "current": 3, "requested": 2 });
    assert_eq!(details(batch), expected, "only what is new counts");
    let set = now(topics.set(["a", "d", "e", "f"], &options()));
    let expected = json!({
        "scope": "connection", "limit": 3, "current": 3, "toAdd": 3, "toRemove": 2, "resulting": 4,
    });
    assert_eq!(details(set), expected);
    assert_eq!(held(topics), "a b c");
    // A swap at the limit, and the last place after an unsubscribe.
    assert_eq!(counts(now(topics.set(["a", "b", "d"], &options()))), (1, 1, 3));
    client.unsubscribes("a");
    client.subscribes("e");
    assert_eq!(held(topics), "b d e");
    assert_eq!(world.driver.most_topics(), 3);
    let other = world.client();
    assert_eq!(other.subscribes("a").total, 1, "each connection has its own limit");
}

#[tokio::test]
async fn without_a_limit_a_connection_holds_thousands_of_topics() {
    let world = world();
    let client = world.client("a");
    let many: Vec<String> = (0..3_000).map(|number| format!("t:{number}")).collect();
    assert_eq!(counts(now(client.topics.subscribe_many(&many, &options()))), (3_000, 0, 3_000));
    assert!(client.topics.iter().map(|topic| topic.to_string()).eq(many));
}

#[tokio::test]
async fn places_of_subscriptions_in_flight_are_taken() {
    let world = watched(Some(2));
    let client = world.client_with(&["a"]);
    let topics = &client.topics;
    world.driver.hold(true);
    let first = begins(Box::pin(async { topics.subscribe("b", &options()).await }));
    assert_eq!(code(now(topics.subscribe("c", &options()))), PubSubErrorCode::TopicLimitExceeded);
    world.driver.release(0, false);
    assert_eq!(code(first.await), PubSubErrorCode::AdapterError);
    world.driver.hold(false);
    assert_eq!(counts(now(topics.subscribe("c", &options()))), (1, 0, 2), "the place is free again");
}

#[tokio::test]
async fn a_failing_observer_changes_nothing() {
    let world = watched(None);
    let client = world.client();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let panicked = now(client.topics.subscribe("worse", &options()));
    std::panic::set_hook(hook);
    assert_eq!(counts(panicked), (1, 0, 1));
    assert_eq!(client.subscribes("bad").total, 2);
    assert_eq!(held(&client.topics), "worse bad");
    assert_eq!(client.unsubscribes("bad").total, 1);
    assert_eq!(held(&client.topics), "worse");
}

#[tokio::test]
async fn a_failure_of_the_driver_leaves_everything_as_it_was() {
    let world = watched(None);
    let mut client = world.client_with(&["a"]);
    world.driver.fail(0);
    let failed = now(client.topics.subscribe("b", &options()));
    assert_eq!(details(failed), json!({ "adapter": "memory", "transient": true }));
    world.driver.fail(0);
    client.unsubscribes_failing("a", PubSubErrorCode::AdapterError);
    assert_eq!(world.policy.noted().len(), 2, "asked twice, told nothing");
    assert_eq!(held(&client.topics), "a");
    assert!(now(world.hub.publish(message("a", "still"), Default::default())).is_ok());
    assert!(now(world.hub.publish(message("b", "not"), Default::default())).is_ok());
    assert_eq!(client.hears(1).await, ["still"]);
}

#[tokio::test]
async fn clearing_tells_of_each_topic_that_was_removed() {
    let world = watched(None);
    let client = world.client_with(&["a", "b", "c"]);
    assert_eq!(counts(now(client.topics.clear(&options()))), (0, 3, 0));
    assert_eq!(
        world.policy.noted(),
        ["a unsubscribed a Requested", "a unsubscribed b Requested", "a unsubscribed c Requested"]
    );
    assert_eq!(world.calls(), "-a -b -c");
}

/// Knows users by name. `~` stands for the user's own topic.
struct ByName;

impl Policy<&'static str> for ByName {
    fn normalize<'t>(&self, topic: &'t str, connection: Option<&Connection<&'static str>>) -> Cow<'t, str> {
        match (topic, connection) {
            ("~", Some(Connection { client_id: Some(id), data })) => format!("{data}/{id}").into(),
            _ => topic.into(),
        }
    }

    fn authorize<'a>(
        &'a self,
        _: Action,
        topic: &'a str,
        connection: &'a Connection<&'static str>,
    ) -> Answer<'a, Decision> {
        let Connection { client_id, data } = connection;
        let own = client_id.as_ref().map(|id| format!("{data}/{id}"));
        Answer::now(match *data {
            "" => Decision::Deny(Denial::unauthorized("grant")),
            _ if own.as_deref() == Some(topic) => Decision::Allow,
            _ => Decision::Deny(Denial::forbidden("grant")),
        })
    }
}

#[tokio::test]
async fn a_policy_knows_whom_it_is_asked_about() {
    let driver = MemoryDriver::new(local(""));
    let World { hub } = with(Arc::new(driver), TopicRules::default(), Arc::new(ByName));
    let (ann, _reader) = hub.connect("c1", "ann");
    assert_eq!(counts(now(ann.subscribe("~", &options()))), (1, 0, 1));
    assert_eq!(held(&ann), "ann/c1");
    let denied = details(now(ann.subscribe("bob/c2", &options())));
    assert_eq!((&denied["kind"], &denied["reason"]), (&json!("forbidden"), &json!("grant")));
    assert_eq!(denied.get("policy"), None);
    let (nobody, _reader) = hub.connect("c3", "");
    let denied = details(now(nobody.subscribe("~", &options())));
    assert_eq!((&denied["kind"], &denied["topic"]), (&json!("unauthorized"), &json!("/c3")));
}
