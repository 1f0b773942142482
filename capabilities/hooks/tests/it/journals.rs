//! What other capabilities append becomes events, in order.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use tidings_engine::follow::Left;
use tidings_engine::journal::{Described, Entry, Journal, Journals};
use tidings_engine::log::{Append, Commit, Commits, Logs, Operation};
use tidings_hooks::{Change, Options, Table};
use tidings_model::LogId;

use crate::scene::{Scene, shop};

/// Appends messages to a log of another capability, as streams do.
async fn append(scene: &Scene, log: LogId, content_type: &str, messages: &[&'static str]) {
    let payloads = messages.iter().map(|message| Bytes::from_static(message.as_bytes())).collect();
    let commit: Commit<Change> = Commit::new().with(Append::new(log, payloads));
    let describe = |payloads: &[Bytes]| Entry {
        field: "stream",
        name: "orders/1",
        content_type,
        messages: payloads
            .iter()
            .map(|payload| Described {
                event_type: "stream.orders.1".into(),
                skip: 1,
                bytes: payload.len() as u64,
            })
            .collect(),
    };
    let make = |commit| Commits::<Table>::commit(&scene.store, commit);
    let journals = Journals::new(Arc::new(scene.hooks.clone()));
    journals.commit(&shop(), "stream", commit, 0, describe, make).await.expect("committed");
}

async fn log(scene: &Scene) -> LogId {
    let log = scene.store.reserve().await.expect("an id");
    let create: Commit<Change> = Commit::new().with(Operation::create(log));
    Commits::<Table>::commit(&scene.store, create).await.expect("created");
    log
}

#[tokio::test]
async fn messages_become_events_with_their_content_and_the_name_of_their_stream() {
    let mut scene = Scene::new();
    let hook = scene.hook("stream.**").await;
    let log = log(&scene).await;
    append(&scene, log, "application/json", &[" {\"n\":1}", " {\"n\":2}"]).await;
    append(&scene, log, "text/plain", &[" hello"]).await;
    scene.run_duties();
    scene.queued().await;
    let events = scene.events(hook).await;
    let ts = "2026-01-15T10:30:00.000Z";
    let data: Vec<_> = events.iter().map(|event| event.value()).collect();
    let event = |data| json!({"type": "stream.orders.1", "ts": ts, "stream": "orders/1", "data": data});
    assert_eq!(data, [event(json!({"n": 1})), event(json!({"n": 2})), event(json!("hello"))]);
    let ids: std::collections::HashSet<_> = events.iter().map(|event| event.id.clone()).collect();
    assert_eq!(ids.len(), 3, "each has an id of its own");
}

#[tokio::test]
async fn an_append_with_more_messages_than_a_step_looks_at_is_taken_whole() {
    let mut scene = Scene::new();
    let hook = scene.hook("stream.**").await;
    let log = log(&scene).await;
    append(&scene, log, "text/plain", &[" first"]).await;
    append(&scene, log, "text/plain", &[" m"; 900]).await;
    append(&scene, log, "text/plain", &[" last"]).await;
    scene.run_duties();
    scene.queued().await;
    let events = scene.events(hook).await;
    assert_eq!(events.len(), 902);
    let data = |at: usize| events[at].value()["data"].clone();
    assert_eq!((data(0), data(1), data(901)), (json!("first"), json!("m"), json!("last")));
}

#[tokio::test]
async fn nothing_is_written_for_a_project_without_hooks_or_a_source_that_is_off() {
    let scene = Scene::new();
    assert_eq!(scene.hooks.log(&shop(), "stream"), None);
    let hook = scene.hook("**").await;
    assert!(scene.hooks.log(&shop(), "stream").is_some());
    assert_eq!(scene.hooks.log(&shop(), "topic"), None, "its configuration says so");
    scene.hooks.deactivate(None, hook).await.expect("a hook");
    assert!(scene.hooks.log(&shop(), "stream").is_some(), "it may want to hear what it missed");
    scene.hooks.remove(None, hook).await.expect("a hook");
    assert_eq!(scene.hooks.log(&shop(), "stream"), None);
}

#[tokio::test]
async fn what_was_not_matched_before_a_restart_is_matched_after_it_once() {
    let mut scene = Scene::new();
    let hook = scene.hook("stream.**").await;
    let log = log(&scene).await;
    append(&scene, log, "text/plain", &[" a", " b"]).await;
    for _ in 0..2 {
        let (store, clock) = (scene.store.clone(), scene.clock.clone());
        scene = Scene::on(store, clock, Options::default());
        scene.run_duties();
        scene.queued().await;
    }
    assert_eq!(scene.types(hook).await.len(), 2);
}

#[tokio::test]
async fn ingested_events_do_not_overtake_those_that_wait_in_the_journal_after_a_restart() {
    let mut scene = Scene::new();
    let hook = scene.hook("**").await;
    let log = log(&scene).await;
    append(&scene, log, "text/plain", &[" before"]).await;
    let (store, clock) = (scene.store.clone(), scene.clock.clone());
    scene = Scene::on(store, clock, Options::default());
    scene.event(scene.of_type("after")).await;
    scene.run_duties();
    scene.queued().await;
    assert_eq!(scene.types(hook).await, ["stream.orders.1", "after"]);
}

/// Appends many messages that many hooks hear, with few deliveries per commit, and starts the process again after each
/// commit. Every hook has every event once and in order.
async fn queued_in_parts(messages: usize, hooks: usize, deliveries_per_commit: usize, commits: usize) {
    let options = || Options { deliveries_per_commit, ..Options::default() };
    let mut scene = Scene::with(options());
    let mut ids = Vec::new();
    for number in 0..hooks {
        let url = format!("https://example.com/{number}");
        ids.push(scene.hook_with("stream.**", |settings| settings.url = Some(url)).await.hook.id);
    }
    let log = log(&scene).await;
    append(&scene, log, "text/plain", &vec![" m"; messages]).await;
    append(&scene, log, "text/plain", &[" last"]).await;
    let journal = scene.hooks.log(&shop(), "stream").expect("heard");
    let mut made = 0;
    while scene.hooks.match_some(journal).await.expect("a store") == Left::More {
        made += 1;
        // An event from outside in between changes nothing.
        scene.event(scene.of_type("outside")).await;
        let (store, clock) = (scene.store.clone(), scene.clock.clone());
        scene = Scene::on(store, clock, options());
    }
    assert_eq!(made, commits);
    for hook in ids {
        let events = scene.events(hook).await;
        let ids: std::collections::HashSet<_> = events.iter().map(|event| &event.id).collect();
        assert_eq!((events.len(), ids.len()), (messages + 1, messages + 1));
        assert_eq!(events[messages].value()["data"], "last");
    }
}

#[tokio::test]
async fn one_append_with_more_deliveries_than_a_commit_takes_several_commits() {
    // Three messages at a time, then the last one, and what came after.
    queued_in_parts(10, 5, 15, 5).await;
}

#[tokio::test]
async fn one_event_that_more_hooks_hear_than_a_commit_serves_is_queued_for_some_at_a_time() {
    // Each of the three events takes three commits, and the events from outside, which nobody hears, one together.
    queued_in_parts(2, 10, 4, 10).await;
}

#[tokio::test]
async fn what_fits_into_one_commit_takes_one() {
    queued_in_parts(10, 5, 100, 1).await;
}
