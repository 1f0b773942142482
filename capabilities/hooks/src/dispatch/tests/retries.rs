//! When failed deliveries are tried again, and when they are given up.

use std::time::Duration;

use super::world::{Reply, START, URL, World, id, timeout};
use crate::delivery::DeathReason;
use crate::hook::HookState;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_failed_delivery_is_tried_again_by_the_schedule_and_then_given_up() {
    let world = World::new().await;
    let queue = world.hook(|_| {}).await;
    world.endpoints.answer(URL, [Reply::Status(500), Reply::Text(503, "busy")]);
    let position = world.publish(&[queue], "{\"n\":1}").await;
    world.rest().await;
    let parked = world.progress(queue).await.parked[&position];
    assert_eq!((parked.attempts, parked.due, parked.delay_ms), (1, START + SECOND, 1000));
    for (calls, wait) in [(1, 1), (2, 2), (3, 4), (4, 4)] {
        world.calls(calls).await;
        world.pass(Duration::from_millis(1000 * wait - 1)).await;
        world.calls(calls).await;
        world.pass(Duration::from_millis(1)).await;
    }
    let calls = world.calls(5).await;
    assert!(calls.iter().all(|call| call.id() == id(queue, position)), "the id is the same in all attempts");
    let [letter] = &world.letters(queue).await[..] else { panic!() };
    assert_eq!((letter.position, letter.reason), (position, DeathReason::MaxRetriesExceeded));
    assert_eq!(letter.last_error, "HTTP 503: busy");
    let progress = world.progress(queue).await;
    assert_eq!((progress.attempts, progress.dead, progress.parked.len()), (5, 1, 0));
    let numbers: Vec<_> = world.attempts(queue).await.iter().map(|(_, attempt)| attempt.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    world.pass(Duration::from_secs(86_400)).await;
    world.calls(5).await;
    let notices = world.notices.lock().expect("not poisoned").clone();
    assert_eq!(notices.iter().map(|notice| notice.kind).collect::<Vec<_>>(), ["delivery.dead"]);
    assert_eq!(notices[0].details["reason"], "max_retries_exceeded");
    assert_eq!(notices[0].details["count"], 1);
    world.check(queue).await;
}

#[tokio::test]
async fn a_retry_that_succeeds_ends_the_delivery() {
    let world = World::new().await;
    let queue = world.hook(|_| {}).await;
    world.endpoints.answer(URL, [Reply::Status(500), Reply::Status(200)]);
    world.publish(&[queue], "{\"n\":1}").await;
    world.rest().await;
    world.pass(SECOND).await;
    let progress = world.progress(queue).await;
    assert_eq!((progress.delivered, progress.attempts, progress.parked.len()), (1, 2, 0));
    assert!(world.letters(queue).await.is_empty());
    world.check(queue).await;
}

#[tokio::test]
async fn the_default_schedule_has_jitter_and_other_deliveries_do_not_wait() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.retry_schedule = Vec::new()).await;
    world.endpoints.answer(URL, [Reply::Status(500), Reply::Status(200)]);
    world.publish_many(&[queue], 3).await;
    world.rest().await;
    let progress = world.progress(queue).await;
    assert_eq!((progress.delivered, progress.parked.len()), (2, 1));
    let delay = progress.parked.values().next().expect("one").delay_ms;
    assert!((1000..=2000).contains(&delay), "{delay}");
    world.pass(Duration::from_millis(u64::from(delay))).await;
    assert_eq!(world.progress(queue).await.delivered, 3);
    world.check(queue).await;
}

#[tokio::test]
async fn retry_after_is_waited_for() {
    let world = World::new().await;
    let queue = world.hook(|_| {}).await;
    world
        .endpoints
        .answer(URL, [Reply::RetryAfter(503, 60), Reply::RetryAfter(429, 100_000), Reply::Status(200)]);
    world.publish(&[queue], "{\"n\":1}").await;
    world.rest().await;
    world.pass(59 * SECOND).await;
    world.calls(1).await;
    world.pass(SECOND).await;
    world.calls(2).await;
    world.pass(3599 * SECOND).await;
    world.calls(2).await;
    world.pass(SECOND).await;
    world.calls(3).await;
    assert_eq!(world.progress(queue).await.delivered, 1);
}

#[tokio::test]
async fn a_clock_that_is_set_back_delays_no_retry() {
    let mut world = World::new().await;
    let queue = world.hook(|_| {}).await;
    world.endpoints.answer(URL, [Reply::Status(500), Reply::Status(500), Reply::Status(200)]);
    world.publish(&[queue], "{\"n\":1}").await;
    world.rest().await;
    world.clock.set(START - Duration::from_secs(86_400));
    world.pass(SECOND).await;
    world.calls(2).await;
    // Also when it was set back further before a restart.
    world.clock.set(START - Duration::from_secs(2 * 86_400));
    world.restart().await;
    world.rest().await;
    world.calls(2).await;
    world.pass(2 * SECOND).await;
    world.calls(3).await;
    assert_eq!(world.progress(queue).await.delivered, 1);
}

#[tokio::test]
async fn a_restart_resumes_with_the_same_ids_and_times() {
    let mut world = World::new().await;
    let queue = world.hook(|_| {}).await;
    world.endpoints.answer(URL, [Reply::Status(500), Reply::Status(200), Reply::Hangs]);
    world.publish_many(&[queue], 3).await;
    world.until("the third hangs", || world.endpoints.hanging(URL) == 1).await;
    world.run().await;
    world.stop().await;
    world.endpoints.answer(URL, [Reply::Status(200)]);
    let before = world.calls(3).await;
    world.clock.advance(Duration::from_millis(400));
    world.start();
    world.rest().await;
    let calls = world.calls(4).await;
    assert_eq!(calls[3].id(), before[2].id(), "what was not recorded is delivered again");
    world.pass(Duration::from_millis(599)).await;
    world.calls(4).await;
    world.pass(Duration::from_millis(1)).await;
    let calls = world.calls(5).await;
    assert_eq!(calls[4].id(), before[0].id());
    let progress = world.progress(queue).await;
    assert_eq!((progress.delivered, progress.attempts), (3, 4));
    world.check(queue).await;
}

#[tokio::test]
async fn an_endpoint_that_is_gone_deactivates_its_hook() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.concurrency = 1).await;
    world.endpoints.answer(URL, [Reply::Status(500), Reply::Text(410, "gone"), Reply::Status(200)]);
    let positions = world.publish_many(&[queue], 4).await;
    world.rest().await;
    world.calls(2).await;
    let found = world.found(queue).await;
    let tail = found.hook.state;
    let HookState::Inactive { since } = tail else { panic!("{tail:?}") };
    assert_eq!(since, world.store.look(|_, status| status(world.events)).expect("a log").tail.min(since));
    assert!(since >= positions[0]);
    let [letter] = &world.letters(queue).await[..] else { panic!() };
    assert_eq!((letter.position, letter.reason), (positions[1], DeathReason::EndpointGone));
    assert_eq!(letter.last_error, "HTTP 410: gone");
    assert_eq!((found.progress.parked.len(), found.pending()), (1, 2));
    let kinds: Vec<_> =
        world.notices.lock().expect("not poisoned").iter().map(|notice| notice.kind).collect();
    assert_eq!(kinds, ["endpoint.disabled", "delivery.dead"]);
    world.pass(Duration::from_secs(3600)).await;
    world.calls(2).await;
    world.activate(queue).await;
    world.rest().await;
    world.calls(5).await;
    assert_eq!(world.progress(queue).await.delivered, 3);
    world.check(queue).await;
}

#[tokio::test]
async fn the_end_of_a_notice_raises_no_notice() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.max_retries = 1).await;
    world.endpoints.answer(URL, [timeout(), Reply::Status(410)]);
    for _ in 0..2 {
        let mut notice = super::world::event("{\"n\":1}");
        notice.about = Some(queue);
        world.publish_all(&[queue], [notice]).await;
        world.rest().await;
    }
    assert_eq!(world.letters(queue).await.len(), 2);
    assert!(!world.found(queue).await.hook.is_active());
    assert!(world.notices.lock().expect("not poisoned").is_empty());
}
