//! Events are accepted once and queued for every hook that hears them, together with their commit.

use std::time::Duration;

use futures_util::FutureExt;
use serde_json::json;
use tidings_hooks::{HookError, Options};
use tidings_model::ProjectId;

use crate::scene::{Scene, shop};

#[tokio::test]
async fn an_event_is_queued_for_every_hook_whose_pattern_matches_and_for_no_other() {
    let scene = Scene::new();
    let (all, paid, other) =
        (scene.hook("**").await, scene.hook("orders.*").await, scene.hook("users.**").await);
    let body =
        json!({"events": [scene.of_type("orders.paid"), scene.of_type("orders.a.b"), scene.of_type("x")]});
    assert_eq!(scene.ingest(body).await.expect("accepted").received, 3);
    assert_eq!(scene.types(all).await, ["orders.paid", "orders.a.b", "x"]);
    assert_eq!(scene.types(paid).await, ["orders.paid"]);
    assert!(scene.types(other).await.is_empty());
}

#[tokio::test]
async fn hooks_of_one_project_hear_nothing_of_another() {
    let scene = Scene::new();
    let hook = scene.hook("**").await;
    let other = ProjectId::parse("other").expect("an id");
    let body = json!({"events": [scene.of_type("a")]}).to_string();
    let batch = tidings_hooks::ingest::Batch::parse(body.as_bytes(), scene.clock_now()).expect("valid");
    scene.hooks.ingest(&other, batch).await.expect("accepted");
    assert!(scene.types(hook).await.is_empty());
    assert!(matches!(scene.hooks.get(Some(&other), hook).await, Err(HookError::NoSuchHook)));
    assert!(scene.hooks.get(Some(&shop()), hook).await.is_ok());
    assert!(scene.hooks.get(None, hook).await.is_ok());
}

#[tokio::test]
async fn a_filter_leaves_out_events_that_do_not_fulfil_it() {
    let scene = Scene::new();
    let large = scene
        .hook_with("orders.*", |settings| settings.filter = Some(r#"{"/amount":{"gt":100}}"#.into()))
        .await;
    for amount in [50, 150] {
        let mut event = scene.of_type("orders.paid");
        event["amount"] = amount.into();
        scene.event(event).await;
    }
    let events = scene.events(large.hook.id).await;
    let [event] = &events[..] else { panic!("{events:?}") };
    assert_eq!(event.value()["amount"], 150);
}

#[tokio::test]
async fn an_event_id_counts_once_for_each_hook() {
    let scene = Scene::new();
    let first = scene.hook("**").await;
    let with_id = || {
        let mut event = scene.of_type("a.b");
        event["id"] = "evt-1".into();
        event
    };
    let twice = scene.ingest(json!({"events": [with_id(), with_id()]})).await.expect("accepted");
    assert_eq!(twice.received, 2, "both count as received");
    assert_eq!(scene.types(first).await.len(), 1);
    scene.event(with_id()).await;
    assert_eq!(scene.types(first).await.len(), 1);
    let second = scene.hook_with("a.*", |_| {}).await.hook.id;
    scene.event(with_id()).await;
    assert_eq!(
        (scene.types(first).await.len(), scene.types(second).await.len()),
        (1, 1),
        "new to the second hook"
    );
    scene.event(with_id()).await;
    assert_eq!((scene.types(first).await.len(), scene.types(second).await.len()), (1, 1));
    scene.pass(Options::default().event_retention + Duration::from_secs(1));
    scene.event(with_id()).await;
    assert_eq!(scene.types(first).await.len(), 2, "forgotten after the retention of events");
}

#[tokio::test]
async fn a_batch_id_counts_once_within_a_day() {
    let scene = Scene::new();
    let hook = scene.hook("**").await;
    let batch = || json!({"batchId": "b-1", "events": [scene.of_type("a")]});
    assert!(!scene.ingest(batch()).await.expect("accepted").deduplicated);
    let again = scene.ingest(batch()).await.expect("accepted");
    assert_eq!((again.received, again.deduplicated), (1, true));
    assert_eq!(scene.types(hook).await.len(), 1);
    scene.pass(Duration::from_secs(24 * 60 * 60 + 1));
    assert!(!scene.ingest(batch()).await.expect("accepted").deduplicated);
    assert_eq!(scene.types(hook).await.len(), 2);
    let empty = scene.ingest(json!({"events": []})).await.expect("accepted");
    assert_eq!((empty.received, empty.deduplicated), (0, false));
}

#[tokio::test]
async fn of_two_batches_with_one_id_at_the_same_time_one_waits_for_the_other() {
    let scene = Scene::new();
    let hook = scene.hook("**").await;
    let held = scene.store.hold().await;
    let batch = || json!({"batchId": "b-1", "events": [scene.of_type("a")]});
    let mut first = Box::pin(scene.ingest(batch()));
    let mut second = Box::pin(scene.ingest(batch()));
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    drop(held);
    let answers = [first.await.expect("accepted"), second.await.expect("accepted")];
    assert_eq!(answers.map(|answer| answer.deduplicated), [false, true]);
    assert_eq!(scene.types(hook).await.len(), 1);
}

#[tokio::test]
async fn a_hook_that_is_created_while_an_event_is_committed_has_it_or_came_later() {
    let scene = Scene::new();
    scene.hook("a").await;
    let held = scene.store.hold().await;
    let mut creating = Box::pin(scene.hook_with("**", |_| {}));
    let mut ingesting = Box::pin(scene.ingest(json!({"events": [scene.of_type("a")]})));
    assert!(creating.as_mut().now_or_never().is_none());
    assert!(ingesting.as_mut().now_or_never().is_none(), "matched without the new hook");
    drop(held);
    let created = creating.await.hook.id;
    ingesting.await.expect("accepted");
    assert_eq!(scene.types(created).await, ["a"], "the event was matched again");
}

#[tokio::test]
async fn a_batch_that_matches_very_many_hooks_is_queued_later_and_overtaken_by_none() {
    let mut scene = Scene::new();
    let mut hooks = Vec::new();
    for number in 0..4100 {
        let url = format!("https://example.com/{number}");
        hooks.push(scene.hook_with("many.**", |settings| settings.url = Some(url)).await.hook.id);
    }
    scene.event(scene.of_type("many.first")).await;
    let mut second = scene.of_type("many.second");
    second["id"] = "second".into();
    scene.event(second.clone()).await;
    assert!(scene.types(hooks[0]).await.is_empty(), "they are in the journal");
    scene.run_duties();
    scene.queued().await;
    for hook in [hooks[0], hooks[2048], hooks[4099]] {
        assert_eq!(scene.types(hook).await, ["many.first", "many.second"]);
    }
    scene.event(second).await;
    scene.queued().await;
    assert_eq!(scene.types(hooks[7]).await.len(), 2, "its id is known");
}

#[tokio::test]
async fn what_a_project_may_ingest_can_be_limited() {
    let scene = Scene::with(Options { events_per_minute: 2, ..Options::default() });
    let batch = |count| json!({"events": vec![scene.of_type("a"); count]});
    assert!(scene.ingest(batch(2)).await.is_ok());
    assert!(matches!(scene.ingest(batch(1)).await, Err(HookError::RateLimited { most: 2, .. })));
    scene.pass(Duration::from_secs(60));
    assert!(scene.ingest(batch(1)).await.is_ok());
}
