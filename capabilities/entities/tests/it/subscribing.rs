//! Who hears what, and what the answers say.

use bytes::Bytes;
use tidings_entities::{Closing, ConnectError, Options, SubscribeError, Takeover, TypeStats};

use crate::world::{World, code, grants, id, settle, subject};

#[tokio::test]
async fn a_change_is_told_to_whoever_watches_the_entity_and_to_nobody_else() {
    let world = World::new();
    let (mut ann, mut bob) = (world.connect("ann", "a"), world.connect("bob", "b"));
    assert_eq!(ann.subscribe("project", &["1", "2"]).await.count, 2);
    assert_eq!(bob.subscribe("project", &["2"]).await.count, 1);
    bob.subscribe("task", &["1"]).await;
    world.change(&ann, &["project:1 CREATE", "project:2 UPDATE", "project:3 DELETE", "task:2 UPDATE"]).await;
    assert_eq!(ann.told(), ["SUBSCRIBED 2", "project:1 CREATE 1", "project:2 UPDATE 2"]);
    assert_eq!(bob.heard(), ["project:2 UPDATE 2"]);
    assert_eq!(ann.told(), [""; 0]);
}

#[tokio::test]
async fn a_whole_type_hears_each_change_once_also_of_ids_that_are_watched_too() {
    let world = World::new();
    let mut ann = world.connect("ann", "a");
    assert_eq!(ann.subscribe("project", &[]).await.count, 1);
    assert_eq!(ann.subscribe("project", &["1"]).await.count, 1);
    world.change(&ann, &["project:1 UPDATE", "project:new CREATE"]).await;
    assert_eq!(ann.heard(), ["project:1 UPDATE 1", "project:new CREATE 2"]);
    assert_eq!(ann.unsubscribe("project", &["1", "9"]).await, 1);
    world.change(&ann, &["project:1 UPDATE"]).await;
    assert_eq!(ann.heard(), ["project:1 UPDATE 3"], "there are no exceptions to a whole type");
    ann.subscribe("project", &["1", "2"]).await;
    assert_eq!(ann.unsubscribe("project", &[]).await, 3);
    world.change(&ann, &["project:1 UPDATE", "project:3 UPDATE"]).await;
    assert_eq!(ann.heard(), [""; 0]);
    assert_eq!(ann.watch.subscriptions(), 0);
}

#[tokio::test]
async fn two_connections_of_one_user_both_hear_and_one_is_closed_alone() {
    let world = World::new();
    let (mut one, other) = (world.connect("ann", "a"), world.connect("ann", "b"));
    one.subscribe("project", &["1"]).await;
    other.subscribe("project", &["1", "2"]).await;
    let rows = ["ann a project:1", "ann b project:1", "ann b project:2"];
    assert_eq!(world.registry.rows(), rows);
    let stats = world.project().stats().await.expect("stats");
    assert_eq!(stats[&code("project")], TypeStats { entities: 2, users: 1, subscriptions: 3 });
    let mut other = other;
    world.change(&one, &["project:1 UPDATE"]).await;
    assert_eq!(
        (one.heard(), other.heard()),
        (vec!["project:1 UPDATE 1".to_owned()], vec!["project:1 UPDATE 1".to_owned()])
    );
    drop(other);
    assert_eq!(world.registry.rows(), rows[..1]);
    world.change(&one, &["project:1 UPDATE"]).await;
    assert_eq!(one.heard(), ["project:1 UPDATE 2"]);
    let stats = world.project().user_stats("ann").await.expect("stats");
    assert_eq!(stats.into_iter().collect::<Vec<_>>(), [(code("project"), 1)]);
    assert_eq!(world.metric("tidings_entity_connections"), 1.0);
    assert_eq!(world.metric("tidings_entity_subscriptions"), 1.0);
    drop(one);
    assert!(world.project().stats().await.expect("stats").is_empty());
}

#[tokio::test]
async fn an_id_that_is_given_twice_counts_once_and_one_that_was_there_counts() {
    let world = World::new();
    let mut ann = world.connect("ann", "a");
    assert_eq!(ann.subscribe("project", &["1", "1", "2", "1"]).await.count, 2);
    assert_eq!(ann.subscribe("project", &["2", "3"]).await.count, 2);
    assert_eq!(ann.watch.subscriptions(), 3);
    world.change(&ann, &["project:1 UPDATE"]).await;
    assert_eq!(ann.heard(), ["project:1 UPDATE 1"]);
    assert_eq!(ann.unsubscribe("project", &["1", "1"]).await, 1);
}

#[tokio::test]
async fn nothing_follows_the_answer_to_an_unsubscribe() {
    let world = World::new();
    let mut ann = world.connect("ann", "a");
    ann.subscribe("project", &["1", "2"]).await;
    ann.subscribe("task", &["1"]).await;
    world.change(&ann, &["project:1 UPDATE", "project:2 UPDATE", "task:1 UPDATE"]).await;
    ann.unsubscribe("project", &["1"]).await;
    world.change(&ann, &["project:1 UPDATE"]).await;
    let told = ann.told();
    assert_eq!(told[2..], ["UNSUBSCRIBED 1", "project:2 UPDATE 2", "task:1 UPDATE 3"]);
    world.change(&ann, &["project:2 UPDATE", "task:1 UPDATE"]).await;
    let answer = ann.watch.unsubscribe_all().await;
    assert_eq!(answer.count, 2);
    answer.send([Bytes::from_static(b"UNSUBSCRIBED 2|")]).await;
    world.change(&ann, &["project:2 UPDATE"]).await;
    assert_eq!(ann.told(), ["UNSUBSCRIBED 2"]);
    assert!(world.registry.rows().is_empty());
}

#[tokio::test]
async fn what_changes_before_the_answer_is_sent_is_told_after_it() {
    let world = World::new();
    let mut ann = world.connect("ann", "a");
    let answer = ann.watch.subscribe(code("project"), subject(&["1"]), None).await.expect("subscribed");
    world.change(&ann, &["project:1 UPDATE", "project:1 DELETE"]).await;
    assert_eq!(ann.told(), [""; 0]);
    let resumed = answer.cursor.clone();
    answer.send([Bytes::from_static(b"SUBSCRIBED 1|")]).await;
    assert_eq!(ann.told(), ["SUBSCRIBED 1", "project:1 DELETE 2"]);
    let mut again = world.connect("ann", "b");
    again.subscribe_since("project", &["1"], &resumed).await;
    assert_eq!(again.heard(), ["project:1 DELETE 2"], "whoever resumes at the answer hears it");
}

#[tokio::test]
async fn one_operation_of_a_connection_waits_for_the_one_before() {
    let world = World::new();
    let ann = world.connect("ann", "a");
    let first = ann.watch.subscribe(code("project"), subject(&["1"]), None).await.expect("subscribed");
    let watch = ann.watch.clone();
    let next = tokio::spawn(async move { watch.unsubscribe(code("project"), subject(&["1"])).await.count });
    settle().await;
    assert!(!next.is_finished());
    first.send([Bytes::new()]).await;
    assert_eq!(next.await.expect("no panic"), 1);
}

#[tokio::test]
async fn beyond_a_limit_nothing_is_subscribed() {
    let options = Options {
        max_ids_per_subscribe: 3,
        max_subscriptions_per_connection: 4,
        connections_per_user: 2,
        ..Options::default()
    };
    let world = World::with(options, false);
    let ann = world.connect("ann", "a");
    let error = ann.try_subscribe("project", &["1", "2", "3", "4"], None).await.expect_err("too many");
    assert_eq!(error, SubscribeError::TooManyIds { most: 3 });
    ann.subscribe("project", &["1", "2", "3"]).await;
    let error = ann.try_subscribe("task", &["1", "2"], None).await.expect_err("too many");
    assert_eq!(error, SubscribeError::TooManySubscriptions { most: 4 });
    assert_eq!(ann.watch.subscriptions(), 3);
    ann.subscribe("project", &["2", "3", "4"]).await;
    let error = ann.try_subscribe("task", &[], None).await.expect_err("too many");
    assert_eq!(error, SubscribeError::TooManySubscriptions { most: 4 });

    let second = world.connect("ann", "b");
    let third = world.try_connect("ann", "c", Takeover::No, grants(&[])).err();
    assert_eq!(third, Some(ConnectError::TooManyConnections { most: 2 }));
    world.connect("bob", "d");
    drop(second);
    world.connect("ann", "c");
}

#[tokio::test]
async fn whoever_takes_over_closes_the_users_older_connections() {
    let world = World::new();
    let (one, other, bob) = (world.connect("ann", "a"), world.connect("ann", "b"), world.connect("bob", "c"));
    let new = world.try_connect("ann", "d", Takeover::CloseOlder, grants(&["project:1"])).expect("connected");
    for older in [&one, &other] {
        assert_eq!(*older.closed.lock().expect("not poisoned"), [Closing::TakenOver]);
    }
    assert!(bob.closed.lock().expect("not poisoned").is_empty());
    drop((one, other));
    assert_eq!(new.subscribe("project", &["1"]).await.count, 1);
}

#[tokio::test]
async fn what_the_token_does_not_grant_is_denied_one_by_one() {
    let world = World::new();
    let mut ann = world.connect_granted("ann", "a", &["project:1", "project:2", "task:*"]);
    let subscribed = ann.subscribe("project", &["1", "3", "2", "3"]).await;
    assert_eq!((subscribed.count, subscribed.denied), (2, vec![id("3")]));
    let error = ann.try_subscribe("project", &[], None).await.expect_err("the whole type");
    assert_eq!(error, SubscribeError::Forbidden);
    assert_eq!(ann.subscribe("task", &[]).await.count, 1);
    let subscribed = ann.subscribe("other", &["1"]).await;
    assert_eq!((subscribed.count, subscribed.denied), (0, vec![id("1")]));
    world.change(&ann, &["project:3 UPDATE", "other:1 UPDATE", "task:7 UPDATE"]).await;
    assert_eq!(ann.heard(), ["task:7 UPDATE 3"]);
    assert_eq!(world.registry.rows(), ["ann a project:1", "ann a project:2", "ann a task:*"]);
}

#[tokio::test]
async fn a_token_that_grants_less_ends_what_it_does_not_grant() {
    let world = World::new();
    let mut ann = world.connect("ann", "a");
    ann.subscribe("project", &["1", "2"]).await;
    ann.subscribe("task", &[]).await;
    ann.subscribe("task", &["1", "2"]).await;
    world.change(&ann, &["project:1 UPDATE", "project:2 UPDATE", "task:1 UPDATE", "task:3 UPDATE"]).await;
    let mut ended = ann.watch.regrant(grants(&["project:2", "task:1"])).await;
    ended.sort_by_key(|ended| format!("{ended:?}"));
    let expected =
        [(code("project"), subject(&["1"])), (code("task"), subject(&["2"])), (code("task"), subject(&[]))];
    assert_eq!(ended, expected);
    assert_eq!(world.registry.rows(), ["ann a project:2", "ann a task:1"]);
    assert_eq!(ann.heard(), ["project:2 UPDATE 2", "task:1 UPDATE 3"]);
    world.change(&ann, &["project:1 UPDATE", "task:3 UPDATE", "task:2 UPDATE", "task:1 UPDATE"]).await;
    assert_eq!(ann.heard(), ["task:1 UPDATE 8"]);
    assert_eq!(ann.subscribe("project", &["1"]).await.denied, [id("1")]);
}

#[tokio::test]
async fn a_subscribe_that_is_given_up_leaves_nothing_behind() {
    let world = World::authorized();
    let mut ann = world.connect("ann", "a");
    ann.subscribe("project", &["1"]).await;
    world.authorize.hold();
    let watch = ann.watch.clone();
    let subscribing =
        tokio::spawn(
            async move { watch.subscribe(code("project"), subject(&["1", "2"]), None).await.is_ok() },
        );
    settle().await;
    assert_eq!((ann.watch.subscriptions(), world.authorize.asked()), (2, 2));
    world.change(&ann, &["project:1 UPDATE", "project:2 UPDATE"]).await;
    assert_eq!(ann.heard(), [""; 0], "it is not known yet");
    subscribing.abort();
    assert!(subscribing.await.is_err());
    assert_eq!(ann.watch.subscriptions(), 1);
    assert_eq!(ann.heard(), ["project:1 UPDATE 1"], "that was watched before");
    assert_eq!(ann.cursor, Some(world.source.end()));
}

#[tokio::test]
async fn a_connection_that_is_closed_subscribes_to_nothing() {
    let world = World::new();
    let ann = world.connect("ann", "a");
    ann.watch.close();
    ann.watch.close();
    let refused = ann.try_subscribe("project", &["1"], None).await;
    assert_eq!(refused.err(), Some(SubscribeError::Closed));
    assert_eq!(ann.unsubscribe("project", &["1"]).await, 0);
}
