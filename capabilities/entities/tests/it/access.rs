//! Who may watch what is asked again when it changes, and nobody hears what it may not.

use bytes::Bytes;
use tidings_entities::{Options, SubscribeError};

use crate::world::{World, code, id, settle, subject, until};

#[tokio::test]
async fn what_the_authoriser_refuses_is_denied_one_by_one() {
    let world = World::authorized();
    world.authorize.refuse("ann", "project:2");
    world.authorize.refuse("ann", "task");
    let mut ann = world.connect_granted("ann", "a", &["project:1", "project:2", "task:*"]);
    let subscribed = ann.subscribe("project", &["1", "2", "3"]).await;
    assert_eq!((subscribed.count, subscribed.denied), (1, vec![id("3"), id("2")]));
    let refused = ann.try_subscribe("task", &[], None).await;
    assert_eq!(refused.err(), Some(SubscribeError::Forbidden));
    let changes = ["project:1 UPDATE", "project:2 UPDATE", "project:3 UPDATE", "task:1 UPDATE"];
    world.change(&ann, &changes).await;
    assert_eq!(ann.heard(), ["project:1 UPDATE 1"]);
    assert_eq!(world.registry.rows(), ["ann a project:1"]);
    let stats = world.project().stats().await.expect("stats");
    assert_eq!(stats.len(), 1, "what is not allowed is not counted");
}

#[tokio::test]
async fn an_authoriser_that_fails_allows_nothing() {
    let world = World::authorized();
    world.authorize.fail();
    let ann = world.connect("ann", "a");
    let subscribed = ann.subscribe("project", &["1", "2"]).await;
    assert_eq!((subscribed.count, subscribed.denied), (0, vec![id("1"), id("2")]));
    let refused = ann.try_subscribe("project", &[], None).await;
    assert_eq!(refused.err(), Some(SubscribeError::Forbidden));
}

#[tokio::test]
async fn nothing_is_told_after_access_was_revoked_in_the_middle_of_a_burst() {
    let world = World::authorized();
    let (mut ann, mut bob) = (world.connect("ann", "a"), world.connect("bob", "b"));
    ann.subscribe("project", &["1", "2"]).await;
    bob.subscribe("project", &["1", "2"]).await;
    world.authorize.refuse("ann", "project:1");
    let burst = [
        "project:1 UPDATE",
        "project:2 UPDATE",
        "project:1 access",
        "project:1 UPDATE",
        "project:2 UPDATE",
        "project:1 DELETE",
    ];
    world.change(&ann, &burst).await;
    until(|| ann.watch.subscriptions() == 1).await;
    world.change(&ann, &["project:1 CREATE", "project:2 UPDATE"]).await;
    let mut heard = ann.heard();
    heard.sort();
    assert_eq!(heard, ["project:1 UPDATE 3 access", "project:2 UPDATE 8"]);
    settle().await;
    let mut heard = bob.heard();
    heard.sort();
    assert_eq!(heard, ["project:1 CREATE 7 access", "project:2 UPDATE 8"], "bob may still see it");
    assert_eq!(world.registry.rows(), ["ann a project:2", "bob b project:1", "bob b project:2"]);
    assert_eq!(ann.subscribe("project", &["1"]).await.denied, [id("1")]);
    assert_eq!(world.metric("tidings_entity_reviews_total{outcome=\"revoked\"}"), 1.0);
    assert_eq!(world.metric("tidings_entity_reviews_total{outcome=\"kept\"}"), 1.0);
}

#[tokio::test]
async fn while_the_authoriser_is_asked_nothing_of_the_entity_is_told_and_others_are() {
    let world = World::authorized();
    let mut ann = world.connect("ann", "a");
    ann.subscribe("project", &["1", "2"]).await;
    ann.told();
    world.authorize.hold();
    world
        .change(&ann, &["project:1 UPDATE", "project:1 access", "project:2 UPDATE", "project:1 UPDATE"])
        .await;
    assert_eq!(ann.told(), ["project:2 UPDATE 3"]);
    assert_eq!(ann.cursor, None, "whoever resumed there would miss what is held");
    let held = ann.watch.cursor();
    world.authorize.answer();
    settle().await;
    assert_eq!(ann.told(), ["project:1 UPDATE 4 access"]);
    assert_eq!(ann.cursor, held);
}

#[tokio::test]
async fn access_that_changes_while_the_authoriser_is_asked_is_asked_about_again() {
    let world = World::authorized();
    let mut ann = world.connect("ann", "a");
    ann.subscribe("project", &["1"]).await;
    ann.told();
    world.authorize.hold();
    world.change(&ann, &["project:1 access"]).await;
    until(|| world.authorize.asked() == 2).await;
    // It has been allowed by now, but not been answered.
    world.authorize.refuse("ann", "project:1");
    world.change(&ann, &["project:1 access", "project:1 DELETE"]).await;
    assert_eq!(ann.told(), [""; 0]);
    world.authorize.answer();
    until(|| ann.watch.subscriptions() == 0).await;
    assert_eq!(world.authorize.asked(), 3);
    assert_eq!(ann.told(), ["project:1 UPDATE 2 access"]);
}

#[tokio::test]
async fn access_that_is_revoked_during_a_subscribe_is_noticed() {
    let world = World::authorized();
    let mut ann = world.connect("ann", "a");
    world.authorize.hold();
    let watch = ann.watch.clone();
    let subscribing = tokio::spawn(async move {
        let answer = watch.subscribe(code("project"), subject(&["1"]), None).await.expect("subscribed");
        answer.send([Bytes::from_static(b"SUBSCRIBED 1|")]).await;
    });
    until(|| world.authorize.asked() == 1).await;
    // It has been allowed by now, but not been answered.
    world.authorize.refuse("ann", "project:1");
    world.change(&ann, &["project:1 access", "project:1 UPDATE"]).await;
    world.authorize.answer();
    subscribing.await.expect("subscribed");
    until(|| ann.watch.subscriptions() == 0).await;
    world.change(&ann, &["project:1 UPDATE"]).await;
    assert_eq!(ann.told(), ["SUBSCRIBED 1", "project:1 UPDATE 1 access"]);
    assert!(world.registry.rows().is_empty());
}

#[tokio::test]
async fn a_whole_type_that_is_revoked_ends_and_ids_that_are_allowed_stay() {
    let world = World::authorized();
    let mut ann = world.connect("ann", "a");
    ann.subscribe("project", &[]).await;
    ann.subscribe("project", &["1", "2"]).await;
    ann.told();
    world.authorize.refuse("ann", "project");
    world.authorize.refuse("ann", "project:2");
    world
        .change(&ann, &["project:1 UPDATE", "project:3 UPDATE", "project:4 access", "project:2 access"])
        .await;
    until(|| ann.watch.subscriptions() == 1).await;
    world
        .change(&ann, &["project:1 UPDATE", "project:2 UPDATE", "project:4 UPDATE", "project:5 UPDATE"])
        .await;
    let mut told = ann.told();
    told[1..].sort();
    let expected =
        ["FORBIDDEN project", "project:1 UPDATE 5", "project:2 UPDATE 4 access", "project:4 UPDATE 3 access"];
    assert_eq!(told, expected);
    assert_eq!(world.registry.rows(), ["ann a project:1"]);
}

#[tokio::test]
async fn what_is_held_for_a_review_is_bounded_too() {
    let options = Options { max_subscriptions_per_connection: 10, ..Options::default() };
    let world = World::with(options, true);
    let mut ann = world.connect("ann", "a");
    ann.subscribe("project", &[]).await;
    ann.told();
    world.authorize.hold();
    for number in 0..30 {
        world.source.add(&format!("project:{number} access"));
    }
    world.delivered(&ann).await;
    assert_eq!(ann.told(), [""; 0]);
    assert!(world.metric("tidings_entity_pending") <= 10.0);
    world.authorize.answer();
    settle().await;
    let told = ann.told();
    assert_eq!(told[0], "RESYNC project overflow");
    assert!(told.len() <= 11);
}

#[tokio::test]
async fn a_replay_that_is_further_than_the_reader_tells_nothing_that_was_revoked() {
    let world = World::authorized();
    let mut ann = world.connect("ann", "a");
    ann.subscribe("task", &["1"]).await;
    let since = world.source.end();
    ann.told();
    let entries = world.source.slow_readers();
    settle().await;
    world.source.add_each(&["project:1 CREATE", "project:1 UPDATE", "project:2 UPDATE"]);
    ann.subscribe_since("project", &["1", "2"], &since).await;
    assert_eq!(ann.heard(), ["project:1 UPDATE 2", "project:2 UPDATE 3"]);
    world.authorize.refuse("ann", "project:1");
    world.source.add_each(&["project:1 access", "project:1 UPDATE"]);
    let subscribed = ann.subscribe_since("project", &["1", "2"], &since).await;
    assert_eq!(subscribed.denied, [id("1")]);
    assert_eq!(ann.heard(), ["project:2 UPDATE 3"]);
    entries.add_permits(10);
    settle().await;
    world.delivered(&ann).await;
    assert_eq!(ann.heard(), [""; 0]);
}

#[tokio::test]
async fn what_was_revoked_while_changes_were_lost_is_noticed() {
    let world = World::authorized();
    let (mut ann, mut bob) = (world.connect("ann", "a"), world.connect("bob", "b"));
    ann.subscribe("project", &["1", "2"]).await;
    bob.subscribe("project", &[]).await;
    ann.told();
    bob.told();
    world.authorize.refuse("ann", "project:1");
    world.authorize.refuse("bob", "project");
    world.authorize.hold();
    world.source.add("project:1 access");
    world.source.expire();
    world.delivered(&ann).await;
    world.change(&ann, &["project:1 UPDATE", "project:2 UPDATE"]).await;
    assert_eq!(ann.told(), ["RESYNC * cursor-expired"], "nothing more until it is known");
    assert_eq!(bob.told(), ["RESYNC * cursor-expired"]);
    world.authorize.answer();
    until(|| ann.watch.subscriptions() == 1 && bob.watch.subscriptions() == 0).await;
    world.change(&ann, &["project:1 DELETE"]).await;
    assert_eq!(ann.told(), ["project:2 UPDATE 3"]);
    assert_eq!(bob.told(), ["FORBIDDEN project"]);
    assert_eq!(world.registry.rows(), ["ann a project:2"]);
}

#[tokio::test]
async fn without_an_authoriser_a_change_of_access_is_told_at_once() {
    let world = World::new();
    let mut ann = world.connect("ann", "a");
    ann.subscribe("project", &["1"]).await;
    world.change(&ann, &["project:1 access"]).await;
    assert_eq!(ann.heard(), ["project:1 UPDATE 1 access"]);
}

#[tokio::test]
async fn what_a_client_has_missed_is_told_only_as_far_as_it_is_allowed_now() {
    let world = World::authorized();
    let ann = world.connect("ann", "a");
    ann.subscribe("task", &["1"]).await;
    let since = world.source.end();
    world.authorize.refuse("ann", "project:2");
    world.change(&ann, &["project:1 UPDATE", "project:2 UPDATE", "project:2 access"]).await;
    let mut again = world.connect("ann", "b");
    let subscribed = again.subscribe_since("project", &["1", "2"], &since).await;
    assert_eq!((subscribed.count, subscribed.denied), (1, vec![id("2")]));
    assert_eq!(again.heard(), ["project:1 UPDATE 1"]);
}
