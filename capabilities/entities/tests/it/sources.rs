//! Sources that come and go, and who reads them.

use std::time::Duration;

use tidings_engine::Clock;
use tidings_entities::{Failing, SubscribeError};

use crate::world::{World, settle, until};

#[tokio::test]
async fn a_source_that_is_away_is_tried_again_and_then_everything_is_told() {
    let world = World::new();
    let mut ann = world.connect("ann", "a");
    ann.subscribe("project", &["1"]).await;
    let since = world.clock.now();
    world.source.fail(true);
    until(|| world.clock.sleepers() == 1).await;
    let states = world.entities.states();
    let failing = states[0].failing.as_ref().expect("it fails");
    assert_eq!(failing.since, since);
    assert!(failing.error.contains("it is away"), "{}", failing.error);
    assert_eq!(world.metric("tidings_entity_sources_failing"), 1.0);
    // Attempts come ever less often, and not all nodes at the same moment.
    let mut attempts = 0;
    for _ in 0..600 {
        let before = world.source.asked();
        world.clock.advance(Duration::from_millis(100));
        settle().await;
        attempts += world.source.asked() - before;
    }
    assert!((8..40).contains(&attempts), "{attempts} attempts in a minute");
    world.source.add("project:1 UPDATE");
    world.source.fail(false);
    until(|| world.clock.sleepers() == 1).await;
    world.clock.advance(Duration::from_secs(10));
    world.delivered(&ann).await;
    assert_eq!(ann.heard(), ["project:1 UPDATE 1"]);
    assert_eq!(world.entities.states()[0].failing, None::<Failing>);
    assert_eq!(world.metric("tidings_entity_sources_failing"), 0.0);
    assert!(world.metric("tidings_entity_source_failures_total") >= 2.0);
}

#[tokio::test]
async fn a_source_that_was_never_reached_makes_a_subscribe_wait_and_then_fail() {
    let world = World::new();
    world.source.fail(true);
    let mut ann = world.connect("ann", "a");
    assert_eq!(ann.watch.cursor(), None);
    let watch = ann.watch.clone();
    let subscribe = move || {
        let watch = watch.clone();
        tokio::spawn(async move {
            let answer =
                watch.subscribe(crate::world::code("project"), crate::world::subject(&["1"]), None).await?;
            answer.send([bytes::Bytes::from_static(b"SUBSCRIBED 1|")]).await;
            Ok::<_, SubscribeError>(())
        })
    };
    let subscribing = subscribe();
    until(|| world.clock.sleepers() == 2).await;
    world.clock.advance(Duration::from_secs(5));
    assert_eq!(subscribing.await.expect("no panic"), Err(SubscribeError::Unavailable));
    let subscribing = subscribe();
    settle().await;
    world.source.fail(false);
    world.clock.advance(Duration::from_secs(4));
    assert_eq!(subscribing.await.expect("no panic"), Ok(()));
    world.change(&ann, &["project:1 UPDATE"]).await;
    assert_eq!(ann.told(), ["SUBSCRIBED 1", "project:1 UPDATE 1"]);
}

#[tokio::test]
async fn the_source_of_a_configured_database_is_read_before_anybody_connects() {
    let world = World::new();
    until(|| world.source.asked() > 0).await;
    assert_eq!(world.entities.states().len(), 1);
    assert_eq!(world.metric("tidings_entity_connections"), 0.0);
    world.source.fail(true);
    until(|| world.entities.states()[0].failing.is_some()).await;
}
