//! Old events and records go, and nothing that is still needed does.

use std::time::Duration;

use tidings_engine::log::{Commit, Commits, Logs};
use tidings_hooks::delivery::{Attempt, AttemptOutcome, DeadLetter, DeathReason};
use tidings_hooks::replay::Point;
use tidings_hooks::rows::{attempts, dead_letters};
use tidings_hooks::table::{Parked, Settled};
use tidings_hooks::{Change, DeliveryStatus, HookId, Options, Store, Table};
use tidings_model::{Position, Ulid};

use crate::scene::{Scene, shop};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Records, as the dispatcher does, what came of the deliveries of a hook.
async fn settle(scene: &Scene, hook: HookId, delivered: &[usize], dead: &[usize], parked: &[usize]) {
    let deliveries = scene.deliveries(hook).await;
    let queue = deliveries[0].id.queue;
    let mut commit: Commit<Change> = Commit::new();
    let now = scene.clock_now();
    let settled = Settled {
        done: deliveries.last().expect("deliveries").id.position,
        parked: parked
            .iter()
            .map(|&at| (deliveries[at].id.position, Parked { attempts: 1, due: now, delay_ms: 1 }))
            .collect(),
        delivered: delivered.len() as u64,
        dead: dead.len() as u64,
        attempts: (delivered.len() + dead.len() + parked.len()) as u64,
        ..Settled::default()
    };
    for (at, delivery) in deliveries.iter().enumerate() {
        let outcome = match delivered.contains(&at) {
            true => AttemptOutcome::Success("ok".into()),
            false => AttemptOutcome::Failed("HTTP 500: no".into()),
        };
        commit
            .rows
            .push(attempts::put(delivery.id, &Attempt { number: 1, at: now, duration_ms: 3, outcome }));
    }
    for &at in dead {
        let letter = DeadLetter {
            id: Ulid::at(now, at as u128),
            position: deliveries[at].id.position,
            reason: DeathReason::MaxRetriesExceeded,
            last_error: "HTTP 500: no".into(),
            at: now,
        };
        commit.rows.push(dead_letters::put(queue, &letter));
        commit.rows.push(attempts::put_given_up(deliveries[at].id));
    }
    let commit = commit.changing(Change::Settle { queue, settled });
    Commits::<Table>::commit(&scene.store, commit).await.expect("committed");
}

async fn hook_with_events(scene: &Scene, events: usize) -> HookId {
    let hook = scene.hook("**").await;
    for number in 0..events {
        scene.event(scene.of_type(&format!("e.{number}"))).await;
    }
    hook
}

#[tokio::test]
async fn the_history_of_deliveries_tells_how_each_of_them_stands() {
    let scene = Scene::new();
    let hook = hook_with_events(&scene, 3).await;
    settle(&scene, hook, &[0], &[1], &[2]).await;
    scene.event(scene.of_type("e.3")).await;
    let deliveries = scene.deliveries(hook).await;
    let statuses: Vec<_> = deliveries.iter().map(|delivery| delivery.status).collect();
    use DeliveryStatus::{Dead, Delivered, Failed, Pending};
    assert_eq!(statuses, [Delivered, Dead, Failed, Pending]);
    assert_eq!(deliveries[0].delivered_at, Some(scene.clock_now()));
    assert_eq!(deliveries[1].last_error.as_deref(), Some("HTTP 500: no"));
    let only = async |status| -> Vec<_> {
        let page =
            scene.hooks.deliveries(None, hook, Some(status), Position::ZERO, 10).await.expect("a hook");
        page.deliveries.iter().map(|delivery| delivery.id).collect()
    };
    assert_eq!(only(Failed).await, [deliveries[2].id]);
    let described = scene.hooks.get(None, hook).await.expect("a hook");
    let counts = (described.pending, described.failed, described.dead_letters, described.delivered);
    assert_eq!((counts, described.attempts), ((1, 1, 1, 1), 3));
    assert!((described.success_rate() - 1.0 / 3.0).abs() < 1e-9);
    let log = scene.hooks.attempts(Some(&shop()), deliveries[1].id).await.expect("a store");
    assert_eq!((log.len(), log[0].number), (1, 1));
    let other = tidings_model::ProjectId::default_project();
    assert!(scene.hooks.attempts(Some(&other), deliveries[1].id).await.expect("a store").is_empty());
}

#[tokio::test]
async fn pages_of_deliveries_follow_each_other() {
    let scene = Scene::new();
    let hook = hook_with_events(&scene, 5).await;
    let (mut after, mut types) = (Position::ZERO, Vec::new());
    loop {
        let page = scene.hooks.deliveries(None, hook, None, after, 2).await.expect("a hook");
        types
            .extend(page.deliveries.into_iter().map(|delivery| delivery.event.expect("an event").event_type));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(types, ["e.0", "e.1", "e.2", "e.3", "e.4"]);
}

#[tokio::test]
async fn a_dead_letter_is_delivered_again_as_a_new_delivery_and_is_gone() {
    let scene = Scene::new();
    let hook = hook_with_events(&scene, 2).await;
    settle(&scene, hook, &[1], &[0], &[]).await;
    let letters = scene.hooks.dead_letters(None, hook, None, 10).await.expect("a store");
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    let again = scene.hooks.retry_dead_letter(None, hook, letter.letter.id).await.expect("there");
    let deliveries = scene.deliveries(hook).await;
    assert_eq!(deliveries[2].id, again);
    assert_eq!(deliveries[2].event, deliveries[0].event, "the event keeps its id");
    assert_eq!(deliveries[2].status, DeliveryStatus::Pending);
    assert_eq!(scene.hooks.get(None, hook).await.expect("a hook").dead_letters, 0);
    assert!(scene.hooks.retry_dead_letter(None, hook, letter.letter.id).await.is_err(), "once");
}

#[tokio::test]
async fn dead_letters_are_retried_by_time_and_error() {
    let scene = Scene::new();
    let hook = hook_with_events(&scene, 4).await;
    settle(&scene, hook, &[], &[0, 1, 2, 3], &[]).await;
    let filter = |from: Option<i64>, error: Option<&str>| tidings_hooks::history::LetterFilter {
        from: from.map(|ms| {
            tidings_model::Timestamp::from_millis((scene.clock_now().as_millis() as i64 + ms) as u64)
        }),
        to: None,
        error: error.map(str::to_owned),
    };
    assert_eq!(
        scene.hooks.retry_dead_letters(None, hook, &filter(None, Some("timeout"))).await.expect("a hook"),
        0
    );
    assert_eq!(scene.hooks.retry_dead_letters(None, hook, &filter(Some(1), None)).await.expect("a hook"), 0);
    assert_eq!(
        scene.hooks.retry_dead_letters(None, hook, &filter(Some(0), Some("500"))).await.expect("a hook"),
        4
    );
    assert_eq!(scene.deliveries(hook).await.len(), 8);
    assert_eq!(scene.hooks.get(None, hook).await.expect("a hook").dead_letters, 0);
}

#[tokio::test]
async fn a_clean_up_removes_what_is_finished_and_old_and_keeps_the_totals() {
    let scene = Scene::new();
    let hook = hook_with_events(&scene, 3).await;
    settle(&scene, hook, &[0, 1, 2], &[], &[]).await;
    scene.pass(DAY);
    scene.event(scene.of_type("young")).await;
    let cleaned = scene.hooks.clean_up(Some(&shop()), None, scene.clock_now()).await.expect("a store");
    assert_eq!((cleaned.deliveries, cleaned.attempts, cleaned.dead_letters), (3, 3, 0));
    assert_eq!(scene.types(hook).await, ["young"]);
    let described = scene.hooks.get(None, hook).await.expect("a hook");
    assert_eq!((described.delivered, described.attempts, described.pending), (3, 3, 1));
    let removed = scene.hooks.remove(None, hook).await.expect("a hook");
    assert_eq!((removed.deliveries, removed.attempts), (1, 0), "what was still there");
}

#[tokio::test]
async fn a_clean_up_leaves_what_waits_for_a_retry_and_what_dead_letters_are_about() {
    let scene = Scene::new();
    let hook = hook_with_events(&scene, 4).await;
    settle(&scene, hook, &[0, 3], &[2], &[1]).await;
    scene.pass(DAY);
    let before = scene.clock_now();
    let cleaned = scene.hooks.clean_up(None, Some(hook), before - 2 * DAY).await.expect("a hook");
    assert_eq!((cleaned.deliveries, cleaned.dead_letters), (0, 0), "younger than that");
    let cleaned = scene.hooks.clean_up(None, Some(hook), before).await.expect("a hook");
    assert_eq!((cleaned.deliveries, cleaned.dead_letters), (1, 1), "the second delivery waits for a retry");
    assert_eq!(scene.types(hook).await, ["e.1", "e.2", "e.3"]);
}

#[tokio::test]
async fn events_go_after_their_retention_but_not_before_a_replay_has_queued_them() {
    let scene = Scene::with(Options { event_retention: DAY, ..Options::default() });
    scene.event(scene.of_type("a")).await;
    let hook = scene.hook("**").await;
    assert_eq!(
        scene.hooks.replay(None, hook, Point::Position(Position::ZERO), None).await.expect("a hook"),
        1
    );
    scene.pass(DAY + Duration::from_secs(1));
    let kept = async |scene: &Scene| {
        let feed = Store::feed(&scene.store, &shop()).await.expect("a store").expect("open").feed;
        let status = scene.store.status(feed.events).await.expect("a log");
        status.floor < status.tail
    };
    scene.hooks.retain().await.expect("a store");
    assert!(kept(&scene).await, "the replay has not begun");
    let (store, clock) = (scene.store.clone(), scene.clock.clone());
    let mut scene = Scene::on(store, clock, Options { event_retention: DAY, ..Options::default() });
    scene.run_duties();
    scene.queued().await;
    scene.hooks.retain().await.expect("a store");
    assert!(!kept(&scene).await);
    assert_eq!(scene.types(hook).await, ["a"], "the queue has it");
}
