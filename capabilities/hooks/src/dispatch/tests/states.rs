//! Hooks that are inactive, removed or changed, and deliveries that wait for too long.

use std::time::Duration;

use tidings_model::Position;

use super::world::{Reply, URL, World};
use crate::Options;
use crate::delivery::DeathReason;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test]
async fn an_inactive_hook_begins_nothing_and_a_running_attempt_counts() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.concurrency = 2).await;
    world.endpoints.answer(URL, [Reply::Status(500), Reply::Hangs]);
    world.publish_many(&[queue], 4).await;
    world.until("two hang", || world.endpoints.hanging(URL) == 2).await;
    world.run().await;
    world.deactivate(queue).await;
    world.run().await;
    world.endpoints.release(URL, 2, &Reply::Status(200));
    world.rest().await;
    world.pass(10 * SECOND).await;
    world.calls(3).await;
    let progress = world.progress(queue).await;
    assert_eq!((progress.delivered, progress.parked.len(), progress.attempts), (2, 1, 3));
    world.endpoints.answer(URL, [Reply::Status(200)]);
    world.activate(queue).await;
    world.rest().await;
    world.calls(5).await;
    assert_eq!(world.progress(queue).await.delivered, 4);
    world.check(queue).await;
}

#[tokio::test]
async fn what_waits_for_a_retry_is_due_at_once_when_its_hook_is_activated_again() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.retry_schedule = vec![3_600_000]).await;
    world.endpoints.answer(URL, [Reply::Status(500), Reply::Status(500), Reply::Status(200)]);
    world.publish_many(&[queue], 2).await;
    world.rest().await;
    world.deactivate(queue).await;
    world.pass(SECOND).await;
    world.calls(2).await;
    world.activate(queue).await;
    world.rest().await;
    world.calls(4).await;
    assert_eq!(world.progress(queue).await.delivered, 2);
}

#[tokio::test]
async fn a_removed_hook_begins_nothing_and_a_running_attempt_has_no_effect() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.concurrency = 2).await;
    let other = world.hook(|_| {}).await;
    world.endpoints.answer(URL, [Reply::Hangs]);
    world.publish_many(&[queue], 5).await;
    world.until("two hang", || world.endpoints.hanging(URL) == 2).await;
    world.remove(queue).await;
    world.endpoints.release(URL, 2, &Reply::Status(500));
    world.rest().await;
    world.pass(10 * SECOND).await;
    world.calls(2).await;
    assert!(world.attempts(queue).await.is_empty());
    world.endpoints.answer(URL, [Reply::Status(200)]);
    world.publish(&[other], "{\"n\":1}").await;
    world.rest().await;
    assert_eq!(world.progress(other).await.delivered, 1);
}

#[tokio::test]
async fn a_removed_hook_is_forgotten_once_its_last_results_are_recorded() {
    let mut world = World::new().await;
    let queue = world.hook(|_| {}).await;
    world.publish(&[queue], "{\"n\":1}").await;
    world.rest().await;
    // Nobody dispatches: forgetting takes no time.
    world.stop().await;
    world.dispatcher.forget(queue).await;
    world.start();
    world.rest().await;
    world.publish(&[queue], "{\"n\":2}").await;
    let disk = world.store.hold().await;
    world.calls(2).await;
    let dispatcher = world.dispatcher.clone();
    let forgotten = tokio::spawn(async move { dispatcher.forget(queue).await });
    world.run().await;
    assert!(!forgotten.is_finished(), "results are being recorded");
    drop(disk);
    forgotten.await.expect("forgotten");
    world.rest().await;
}

#[tokio::test]
async fn deliveries_that_wait_for_too_long_expire_without_an_attempt() {
    let world = World::with(Options { event_retention: 30 * DAY, ..Options::default() }).await;
    let queue = world.hook(|settings| settings.retry_schedule = vec![3_600_000]).await;
    world.endpoints.answer(URL, [Reply::Status(500), Reply::Status(200)]);
    world.publish(&[queue], "{\"n\":1}").await;
    world.rest().await;
    world.deactivate(queue).await;
    world.pass(DAY).await;
    world.publish_many(&[queue], 2).await;
    world.rest().await;
    world.pass(29 * DAY).await;
    let expired = |letters: &[crate::DeadLetter]| {
        assert!(letters.iter().all(|letter| letter.reason == DeathReason::Expired), "{letters:?}");
        letters.len()
    };
    assert_eq!(expired(&world.letters(queue).await), 1, "the one that waited for a retry");
    world.publish(&[queue], "{\"n\":4}").await;
    world.pass(DAY).await;
    assert_eq!(expired(&world.letters(queue).await), 3);
    assert_eq!(world.progress(queue).await.attempts, 1);
    world.activate(queue).await;
    world.rest().await;
    world.calls(2).await;
    world.check(queue).await;
}

#[tokio::test]
async fn deliveries_that_expired_while_nobody_dispatched_are_given_up() {
    let mut world = World::new().await;
    let queue = world.hook(|_| {}).await;
    world.endpoints.answer(URL, [Reply::Status(500)]);
    world.publish(&[queue], "{\"n\":1}").await;
    world.rest().await;
    world.stop().await;
    world.publish_many(&[queue], 2000).await;
    world.clock.advance(31 * DAY);
    world.start();
    world.rest().await;
    world.calls(1).await;
    assert_eq!(world.letters(queue).await.len(), 2001);
    let notices = world.notices.lock().expect("not poisoned").clone();
    let count: u64 = notices.iter().map(|notice| notice.details["count"].as_u64().expect("a number")).sum();
    assert_eq!(count, 2001);
    assert!(notices.len() < 400, "{}", notices.len());
    world.check(queue).await;
}

#[tokio::test]
async fn the_oldest_deliveries_are_given_up_when_a_queue_is_full() {
    let world = World::with(Options { max_queue: 10, ..Options::default() }).await;
    let queue = world.hook(|_| {}).await;
    world.deactivate(queue).await;
    world.rest().await;
    let positions = world.publish_many(&[queue], 3000).await;
    world.rest().await;
    let letters = world.letters(queue).await;
    assert_eq!(letters.len(), 2990);
    assert!(letters.iter().all(|letter| letter.reason == DeathReason::QueueFull));
    let dead: Vec<Position> = letters.iter().map(|letter| letter.position).collect();
    assert_eq!(dead, positions[..2990]);
    world.activate(queue).await;
    world.rest().await;
    let sent: Vec<_> = world.calls(10).await.iter().map(super::world::Call::n).collect();
    assert_eq!(sent, (2990..3000).collect::<Vec<_>>());
    world.check(queue).await;
}

#[tokio::test]
async fn a_changed_hook_goes_on_with_its_new_settings() {
    let world = World::new().await;
    let queue = world.hook(|_| {}).await;
    world.endpoints.answer(URL, [Reply::Status(500)]);
    world.publish(&[queue], "{\"n\":1}").await;
    world.rest().await;
    world.change(queue, |hook| hook.settings.url = Some("http://two.example/".into())).await;
    world.rest().await;
    world.pass(SECOND).await;
    let calls = world.calls(2).await;
    assert_eq!(calls[1].url, "http://two.example/");
    assert_eq!(world.progress(queue).await.delivered, 1);
}
