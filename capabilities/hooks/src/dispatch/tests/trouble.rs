//! A store that fails, and a dispatcher that is stopped anywhere.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidings_engine::log::StoreError;

use super::world::{Reply, URL, World};
use crate::delivery::DeathReason;

const SECOND: Duration = Duration::from_secs(1);

fn unavailable() -> StoreError {
    StoreError::Unavailable("told to".into())
}

#[tokio::test]
async fn results_that_cannot_be_recorded_are_recorded_later_and_nothing_is_sent_twice() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.concurrency = 4).await;
    world.trouble.commits.lock().expect("not poisoned").extend((0..5).map(|_| unavailable()));
    world.publish_many(&[queue], 100).await;
    world.run().await;
    let begun = world.endpoints.calls().len();
    assert!(begun < 20, "nothing begins while results cannot be recorded: {begun}");
    assert!(!world.dispatcher.is_at_rest());
    for _ in 0..10 {
        world.clock.advance(SECOND);
        world.run().await;
    }
    world.rest().await;
    world.calls(100).await;
    assert_eq!(world.progress(queue).await.delivered, 100);
    world.check(queue).await;
}

#[tokio::test]
async fn on_a_full_disk_progress_is_recorded_and_dead_letters_wait_in_memory() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.max_retries = 1).await;
    *world.trouble.full.lock().expect("not poisoned") = true;
    world
        .endpoints
        .answer(URL, [Reply::Status(200), Reply::Status(500), Reply::Status(410), Reply::Status(200)]);
    world.publish(&[queue], "{\"n\":1}").await;
    world.run().await;
    world.publish(&[queue], "{\"n\":2}").await;
    world.run().await;
    world.publish(&[queue], "{\"n\":3}").await;
    world.run().await;
    let progress = world.progress(queue).await;
    assert_eq!((progress.delivered, progress.dead), (1, 0));
    assert!(!world.dispatcher.is_at_rest(), "two results wait");
    *world.trouble.full.lock().expect("not poisoned") = false;
    world.clock.advance(SECOND);
    world.rest().await;
    let reasons: Vec<_> = world.letters(queue).await.iter().map(|letter| letter.reason).collect();
    assert_eq!(reasons, [DeathReason::MaxRetriesExceeded, DeathReason::EndpointGone]);
    assert!(!world.found(queue).await.hook.is_active());
    world.calls(3).await;
    world.check(queue).await;
}

#[tokio::test]
async fn what_was_not_recorded_for_want_of_space_is_delivered_again_after_a_crash() {
    let mut world = World::new().await;
    let queue = world.hook(|settings| settings.max_retries = 1).await;
    *world.trouble.full.lock().expect("not poisoned") = true;
    world.endpoints.answer(URL, [Reply::Status(500), Reply::Status(200)]);
    world.publish_many(&[queue], 3).await;
    world.run().await;
    world.restart().await;
    world.run().await;
    *world.trouble.full.lock().expect("not poisoned") = false;
    world.clock.advance(SECOND);
    world.rest().await;
    let calls = world.calls(4).await;
    assert_eq!(calls[3].id(), calls[0].id());
    assert_eq!(world.progress(queue).await.delivered, 3);
    world.check(queue).await;
}

#[tokio::test]
async fn a_notice_that_is_refused_does_not_keep_results_from_being_recorded() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.max_retries = 1).await;
    *world.trouble.refuses_operations.lock().expect("not poisoned") = true;
    world.endpoints.answer(URL, [Reply::Status(500)]);
    world.publish(&[queue], "{\"n\":1}").await;
    world.rest().await;
    assert_eq!(world.letters(queue).await.len(), 1);
}

#[tokio::test]
async fn a_commit_that_is_too_large_is_made_in_parts() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.concurrency = 64).await;
    world.endpoints.answer(URL, [Reply::Hangs]);
    world.publish_many(&[queue], 4).await;
    world.until("they hang", || world.endpoints.hanging(URL) == 4).await;
    let too_large = || StoreError::TooLarge { bytes: 2, most: 1 };
    world.trouble.commits.lock().expect("not poisoned").extend([too_large(), too_large()]);
    world.endpoints.release(URL, 4, &Reply::Status(200));
    world.rest().await;
    assert!(world.trouble.made.load(Ordering::Relaxed) >= 2);
    assert_eq!(world.progress(queue).await.delivered, 4);
    world.check(queue).await;
}

#[tokio::test]
async fn a_queue_that_cannot_be_read_is_read_again() {
    let world = World::new().await;
    let queue = world.hook(|_| {}).await;
    world.endpoints.answer(URL, [Reply::Status(500), Reply::Status(200)]);
    world.trouble.reads.store(1, Ordering::Relaxed);
    world.publish(&[queue], "{\"n\":1}").await;
    world.rest().await;
    assert!(world.endpoints.calls().is_empty());
    world.pass(SECOND).await;
    world.calls(1).await;
    world.trouble.reads.store(2, Ordering::Relaxed);
    for _ in 0..5 {
        world.pass(SECOND).await;
    }
    world.calls(2).await;
    assert_eq!(world.progress(queue).await.delivered, 1);
    world.check(queue).await;
}

#[tokio::test]
async fn a_dispatcher_that_is_stopped_anywhere_delivers_everything_in_the_end() {
    for steps in 0..60 {
        let mut world = World::new().await;
        let queues = [world.hook(|_| {}).await, world.hook(|settings| settings.concurrency = 1).await];
        let replies = [200, 500, 200, 503, 429, 200, 200, 200].map(Reply::Status);
        world.endpoints.answer(URL, replies);
        world.publish_many(&queues, 20).await;
        for _ in 0..steps {
            tokio::task::yield_now().await;
        }
        world.restart().await;
        world.rest().await;
        for _ in 0..20 {
            world.pass(SECOND).await;
        }
        for queue in queues {
            let progress = world.progress(queue).await;
            assert_eq!((progress.delivered, progress.dead), (20, 0), "stopped after {steps} steps");
            world.check(queue).await;
        }
    }
}

#[tokio::test]
async fn a_commit_that_is_under_way_when_the_dispatcher_is_stopped_counts_once() {
    let mut world = World::new().await;
    let queue = world.hook(|_| {}).await;
    world.publish_many(&[queue], 3).await;
    let disk = world.store.hold().await;
    world.calls(3).await;
    world.restart().await;
    world.run().await;
    drop(disk);
    world.rest().await;
    let progress = world.progress(queue).await;
    assert_eq!(progress.delivered, 3);
    world.check(queue).await;
    assert!(world.endpoints.calls().len() <= 3, "the commit was waited for, so nothing is sent again");
}
