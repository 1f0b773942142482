//! Events of the past are delivered again, or to a hook that was not there.

use std::sync::Arc;
use std::time::Duration;

use tidings_hooks::manage::Missed;
use tidings_hooks::replay::Point;
use tidings_hooks::{HookError, Options};
use tidings_model::Position;

use crate::scene::{Scene, shop};

#[tokio::test]
async fn a_new_hook_gets_the_events_of_a_range_that_it_matches() {
    let mut scene = Scene::new();
    for event_type in ["a.1", "b.1", "a.2"] {
        scene.event(scene.of_type(event_type)).await;
        scene.pass(Duration::from_secs(60));
    }
    let begun = scene.clock_now();
    let hook = scene.hook("a.*").await;
    scene.event(scene.of_type("a.3")).await;
    scene.run_duties();
    let all = Point::Time(tidings_model::Timestamp::from_millis(0));
    let until = Some(Point::Time(tidings_model::Timestamp::from_millis(begun.as_millis() - 1)));
    assert_eq!(scene.hooks.replay(Some(&shop()), hook, all, until).await.expect("a hook"), 2);
    scene.queued().await;
    assert_eq!(scene.types(hook).await, ["a.3", "a.1", "a.2"]);
    let from = Point::Time(tidings_model::Timestamp::from_millis(begun.as_millis() - 60_000));
    assert_eq!(scene.hooks.replay(Some(&shop()), hook, from, None).await.expect("a hook"), 2, "a.2 and a.3");
    scene.queued().await;
    assert_eq!(scene.types(hook).await, ["a.3", "a.1", "a.2", "a.2", "a.3"]);
}

#[tokio::test]
async fn a_replay_begins_after_the_position_that_a_delivery_shows() {
    let mut scene = Scene::new();
    let hook = scene.hook("**").await;
    for event_type in ["a", "b", "c"] {
        scene.event(scene.of_type(event_type)).await;
    }
    let positions: Vec<Position> = scene.deliveries(hook).await.iter().map(|d| d.event_position).collect();
    scene.run_duties();
    let (from, to) = (Point::Position(positions[0]), Some(Point::Position(positions[1])));
    assert_eq!(scene.hooks.replay(None, hook, from, to).await.expect("a hook"), 1);
    scene.queued().await;
    assert_eq!(scene.types(hook).await, ["a", "b", "c", "b"]);
    assert_eq!(
        scene.deliveries(hook).await[3].event_position,
        positions[1],
        "where the event is does not change"
    );
}

#[tokio::test]
async fn a_hook_that_was_inactive_gets_exactly_what_it_missed_if_that_is_asked_for() {
    let mut scene = Scene::new();
    let hook = scene.hook("**").await;
    scene.event(scene.of_type("before")).await;
    scene.hooks.deactivate(None, hook).await.expect("a hook");
    scene.event(scene.of_type("missed.1")).await;
    scene.event(scene.of_type("missed.2")).await;
    scene.run_duties();
    assert_eq!(scene.hooks.reactivate(None, hook, Missed::Replayed).await.expect("a hook"), 2);
    scene.event(scene.of_type("after")).await;
    scene.queued().await;
    let mut types = scene.types(hook).await;
    types[1..].sort();
    assert_eq!(types, ["before", "after", "missed.1", "missed.2"]);
    scene.hooks.deactivate(None, hook).await.expect("a hook");
    scene.event(scene.of_type("never")).await;
    assert_eq!(scene.hooks.reactivate(None, hook, Missed::Skipped).await.expect("a hook"), 0);
    scene.queued().await;
    assert_eq!(scene.types(hook).await.len(), 4);
}

#[tokio::test]
async fn a_replay_goes_on_after_a_restart_and_pauses_while_many_deliveries_wait() {
    let mut scene = Scene::with(Options { max_queue: 3000, ..Options::default() });
    let event = scene.of_type("a");
    for _ in 0..4 {
        scene.ingest(serde_json::json!({"events": vec![event.clone(); 1000]})).await.expect("accepted");
    }
    let hook = scene.hook("**").await;
    let all = Point::Position(Position::ZERO);
    assert_eq!(scene.hooks.replay(None, hook, all, None).await.expect("a hook"), 4000);
    let (store, clock) = (scene.store.clone(), scene.clock.clone());
    scene = Scene::on(store, clock, Options { max_queue: 3000, ..Options::default() });
    scene.run_duties();
    scene.queued().await;
    let waiting = scene.hooks.get(None, hook).await.expect("a hook").pending;
    assert!((1500..3000).contains(&waiting), "{waiting} wait");
    let (store, clock) = (scene.store.clone(), scene.clock.clone());
    scene = Scene::on(store, clock, Options::default());
    scene.run_duties();
    scene.queued().await;
    assert_eq!(scene.hooks.get(None, hook).await.expect("a hook").pending, 4000);
}

#[tokio::test]
async fn a_replay_that_pauses_goes_on_when_deliveries_were_made_and_not_only_when_work_is_looked_for() {
    for max_queue in [3000, 40] {
        let mut scene = Scene::with(Options { max_queue, ..Options::default() });
        let event = scene.of_type("a");
        for _ in 0..4 {
            scene.ingest(serde_json::json!({"events": vec![event.clone(); 1000]})).await.expect("accepted");
        }
        scene.hooks.bind("inner", Arc::new(|_| Box::pin(async { Ok(String::new()) })));
        let hook = scene.hook_with("**", |settings| settings.worker_binding = Some("inner".into())).await;
        // Nobody looks for more: the clock stands still.
        scene.run_duties();
        scene.dispatch();
        let all = Point::Position(Position::ZERO);
        let begun = scene.hooks.replay(None, hook.hook.id, all, None).await;
        assert_eq!(begun.expect("a hook"), 4000);
        let shown = scene.comes_to(hook.hook.id, |shown| shown.delivered == 4000).await;
        assert_eq!(shown.dead_letters, 0, "a replay pushes out nothing");
    }
}

#[tokio::test]
async fn the_number_of_replays_of_a_hook_is_limited() {
    let scene = Scene::new();
    scene.event(scene.of_type("a")).await;
    let hook = scene.hook("**").await;
    let all = Point::Position(Position::ZERO);
    for _ in 0..tidings_model::limits::HOOK_REPLAYS {
        scene.hooks.replay(None, hook, all, None).await.expect("a hook");
    }
    let refused = scene.hooks.replay(None, hook, all, None).await;
    assert!(matches!(refused, Err(HookError::TooManyReplays { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_hook_that_cannot_replay_what_it_missed_stays_inactive_until_it_can() {
    let mut scene = Scene::new();
    scene.event(scene.of_type("before")).await;
    let hook = scene.hook("**").await;
    let all = Point::Position(Position::ZERO);
    for _ in 0..tidings_model::limits::HOOK_REPLAYS {
        scene.hooks.replay(None, hook, all, None).await.expect("a hook");
    }
    scene.hooks.deactivate(None, hook).await.expect("a hook");
    scene.event(scene.of_type("missed")).await;
    let refused = scene.hooks.reactivate(None, hook, Missed::Replayed).await;
    assert!(matches!(refused, Err(HookError::TooManyReplays { .. })), "{refused:?}");
    assert!(!scene.hooks.get(None, hook).await.expect("a hook").hook.is_active());
    scene.run_duties();
    scene.queued().await;
    assert_eq!(scene.hooks.reactivate(None, hook, Missed::Replayed).await.expect("a hook"), 1);
    scene.queued().await;
    assert_eq!(scene.types(hook).await.last().map(String::as_str), Some("missed"));
}
