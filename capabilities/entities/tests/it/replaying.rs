//! Clients that come back: they are told what they have missed, or that it is not known.

use bytes::Bytes;
use tidings_entities::{Cursor, Options, ResyncReason, SubscribeError};
use tidings_model::limits;

use crate::world::{World, code, settle, subject};

#[tokio::test]
async fn whoever_comes_back_is_told_what_changed_of_what_it_subscribes_to() {
    let world = World::new();
    let ann = world.connect("ann", "a");
    ann.subscribe("project", &["1"]).await;
    world.change(&ann, &["project:1 CREATE"]).await;
    let since = world.source.end();
    let other = world.connect("bob", "other");
    drop(ann);
    let missed =
        ["project:1 UPDATE", "project:2 UPDATE", "task:1 UPDATE", "project:1 DELETE", "project:3 CREATE"];
    world.change(&other, &missed).await;
    let mut ann = world.connect("ann", "a");
    let subscribed = ann.subscribe_since("project", &["1", "3", "4"], &since).await;
    assert_eq!((subscribed.count, subscribed.resync), (3, None));
    assert_eq!(subscribed.cursor, since, "until it has taken the replay, it is not further");
    assert_eq!(ann.told(), ["SUBSCRIBED 3", "project:1 DELETE 5", "project:3 CREATE 6"]);
    assert_eq!(ann.cursor, Some(world.source.end()));
    world.change(&ann, &["project:3 UPDATE"]).await;
    assert_eq!(ann.told(), ["project:3 UPDATE 7"]);

    let mut bob = world.connect("bob", "b");
    bob.subscribe_since("task", &[], &since).await;
    assert_eq!(bob.told(), ["SUBSCRIBED 1", "task:1 UPDATE 4"]);
    let nothing = bob.subscribe_since("task", &["1"], &world.source.end()).await;
    assert_eq!(nothing.cursor, world.source.end());
    assert_eq!(bob.told(), ["SUBSCRIBED 1"]);
}

#[tokio::test]
async fn what_is_not_kept_any_more_is_said_before_the_answer() {
    let world = World::new();
    let ann = world.connect("ann", "a");
    ann.subscribe("project", &["1"]).await;
    let since = world.source.end();
    world.change(&ann, &["project:1 CREATE"]).await;
    world.source.expire();
    let mut bob = world.connect("bob", "b");
    let subscribed = bob.subscribe_since("project", &["1"], &since).await;
    assert_eq!(subscribed.resync, Some(ResyncReason::CursorExpired));
    assert_eq!(subscribed.cursor, world.source.end());
    world.change(&ann, &["project:1 UPDATE"]).await;
    assert_eq!(bob.told(), ["RESYNC project cursor-expired", "SUBSCRIBED 1", "project:1 UPDATE 2"]);

    world.source.replace();
    world.delivered(&ann).await;
    let mut cid = world.connect("cid", "c");
    let subscribed = cid.subscribe_since("project", &[], &since).await;
    assert_eq!(subscribed.resync, Some(ResyncReason::SourceReset));
    assert_eq!(cid.told(), ["RESYNC project source-reset", "SUBSCRIBED 1"]);
}

#[tokio::test]
async fn what_is_no_cursor_is_refused_and_nothing_is_subscribed() {
    let world = World::new();
    let mut ann = world.connect("ann", "a");
    ann.subscribe("project", &["1"]).await;
    let refused = ann.try_subscribe("project", &["1", "2"], Some(Cursor::new("nonsense"))).await;
    assert_eq!(refused.err(), Some(SubscribeError::InvalidCursor));
    assert_eq!(ann.watch.subscriptions(), 1);
    world.change(&ann, &["project:1 UPDATE", "project:2 UPDATE"]).await;
    assert_eq!(ann.heard(), ["project:1 UPDATE 1"]);
}

#[tokio::test]
async fn whoever_has_missed_too_much_is_to_fetch_everything_again() {
    let world = World::with(Options { max_subscriptions_per_connection: 10, ..Options::default() }, false);
    let ann = world.connect("ann", "a");
    ann.subscribe("task", &["1"]).await;
    let since = world.source.end();
    world.source.extend((0..11).map(|number| ("project".to_owned(), number.to_string())));
    world.delivered(&ann).await;
    let mut bob = world.connect("bob", "b");
    let subscribed = bob.subscribe_since("project", &[], &since).await;
    assert_eq!(subscribed.resync, Some(ResyncReason::Overflow));
    assert_eq!(bob.told(), ["RESYNC project overflow", "SUBSCRIBED 1"]);
    assert_eq!(bob.subscribe_since("project", &["3"], &since).await.resync, None);

    world.source.extend((0..limits::ENTITY_REPLAY).map(|_| ("other".to_owned(), "1".to_owned())));
    let subscribed = bob.subscribe_since("project", &["3"], &since).await;
    assert_eq!(subscribed.resync, Some(ResyncReason::Overflow), "whatever it was about");
}

#[tokio::test]
async fn a_type_that_was_emptied_meanwhile_is_to_be_fetched_again() {
    let world = World::new();
    let ann = world.connect("ann", "a");
    ann.subscribe("task", &["1"]).await;
    let since = world.source.end();
    world.change(&ann, &["project:1 UPDATE", "project TRUNCATE", "project:2 CREATE"]).await;
    let mut bob = world.connect("bob", "b");
    bob.subscribe_since("project", &[], &since).await;
    assert_eq!(bob.told(), ["RESYNC project truncated", "SUBSCRIBED 1", "project:2 CREATE 2"]);
}

#[tokio::test]
async fn a_replay_never_takes_a_version_back() {
    let world = World::new();
    let mut ann = world.connect("ann", "a");
    ann.subscribe("project", &["1"]).await;
    let since = world.source.end();
    world.change(&ann, &["project:1 CREATE", "project:2 CREATE"]).await;
    assert_eq!(ann.heard(), ["project:1 CREATE 1"]);
    // It has heard one of them live. The replay tells it again, and nothing older.
    let answer = ann.watch.subscribe(code("project"), subject(&[]), Some(since)).await.expect("subscribed");
    world.change(&ann, &["project:1 UPDATE", "project:3 CREATE"]).await;
    assert_eq!(ann.told(), [""; 0], "what is live waits for the replay");
    answer.send([Bytes::from_static(b"SUBSCRIBED 1|")]).await;
    let mut told = ann.told();
    told[1..].sort();
    assert_eq!(told, ["SUBSCRIBED 1", "project:1 UPDATE 3", "project:2 CREATE 2", "project:3 CREATE 4"]);
}

#[tokio::test]
async fn a_reader_that_lags_behind_a_replay_takes_no_version_back() {
    let world = World::new();
    let mut ann = world.connect("ann", "a");
    ann.subscribe("task", &["1"]).await;
    let since = world.source.end();
    ann.told();
    let entries = world.source.slow_readers();
    settle().await;
    world.source.add_each(&["project:1 CREATE", "project:2 CREATE", "project:1 UPDATE", "project:2 UPDATE"]);
    ann.subscribe_since("project", &["1"], &since).await;
    assert_eq!(ann.heard(), ["project:1 UPDATE 3"], "the replay is further than the reader");
    ann.subscribe("project", &[]).await;
    ann.told();
    let mut told = Vec::new();
    for _ in 0..5 {
        entries.add_permits(1);
        settle().await;
        told.push(ann.told());
    }
    let told: Vec<&str> = told.iter().flatten().map(String::as_str).collect();
    assert_eq!(told, ["project:2 CREATE 2", "project:2 UPDATE 4"]);
    world.source.add("project:1 DELETE");
    entries.add_permits(5);
    settle().await;
    assert_eq!(ann.told(), ["project:1 DELETE 5"]);
}

#[tokio::test]
async fn a_source_that_is_away_fails_a_replay_and_nothing_is_subscribed() {
    let world = World::new();
    let ann = world.connect("ann", "a");
    ann.subscribe("project", &["1"]).await;
    let since = world.source.end();
    world.source.fail(true);
    let refused = ann.try_subscribe("project", &["2"], Some(since.clone())).await;
    assert_eq!(refused.err(), Some(SubscribeError::Unavailable));
    assert_eq!(ann.watch.subscriptions(), 1);
    assert_eq!(ann.subscribe("project", &["2"]).await.count, 1, "what is new is heard once it is back");
    world.source.fail(false);
    settle().await;
    assert_eq!(ann.subscribe_since("project", &["3"], &since).await.resync, None);
}
