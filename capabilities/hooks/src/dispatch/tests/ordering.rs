//! Which deliveries wait for others.

use std::time::Duration;

use super::world::{Call, Reply, URL, World};
use crate::hook::Ordering;

const SECOND: Duration = Duration::from_secs(1);

fn numbers(calls: &[Call]) -> Vec<u64> {
    calls.iter().map(Call::n).collect()
}

fn keyed(pairs: &[(&str, u64)]) -> Vec<crate::Event> {
    let json = |(key, n): &(&str, u64)| super::world::event(&format!(r#"{{"key":"{key}","n":{n}}}"#));
    pairs.iter().map(json).collect()
}

#[tokio::test]
async fn an_ordered_hook_delivers_one_at_a_time_and_waits_for_retries() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.ordering = Ordering::Subscription).await;
    world.endpoints.answer(URL, [Reply::Status(200), Reply::Status(500), Reply::Status(200)]);
    world.publish_many(&[queue], 5).await;
    world.rest().await;
    assert_eq!(numbers(&world.calls(2).await), [0, 1]);
    world.pass(SECOND).await;
    assert_eq!(numbers(&world.calls(6).await), [0, 1, 1, 2, 3, 4]);
    assert_eq!(world.endpoints.most(URL), 1);
    world.check(queue).await;
}

#[tokio::test]
async fn an_ordered_hook_goes_on_after_a_delivery_was_given_up_also_after_a_restart() {
    let mut world = World::new().await;
    let queue = world
        .hook(|settings| {
            settings.ordering = Ordering::Subscription;
            settings.max_retries = 2;
        })
        .await;
    world.endpoints.answer(URL, [Reply::Status(500), Reply::Status(500), Reply::Status(200)]);
    world.publish_many(&[queue], 3).await;
    world.rest().await;
    world.restart().await;
    world.rest().await;
    world.calls(1).await;
    world.pass(SECOND).await;
    assert_eq!(numbers(&world.calls(4).await), [0, 0, 1, 2]);
    assert_eq!(world.letters(queue).await.len(), 1);
    world.check(queue).await;
}

#[tokio::test]
async fn deliveries_with_the_same_key_wait_for_each_other_and_others_do_not() {
    let mut world = World::new().await;
    let queue = world
        .hook(|settings| {
            settings.ordering = Ordering::Key;
            settings.ordering_key = Some("/key".into());
        })
        .await;
    world.endpoints.answer(URL, [Reply::Status(500), Reply::Status(200)]);
    world.publish_all(&[queue], keyed(&[("a", 1), ("b", 2), ("a", 3), ("c", 4), ("a", 5), ("b", 6)])).await;
    world.rest().await;
    let mut sent = numbers(&world.calls(4).await);
    sent.sort_unstable();
    assert_eq!(sent, [1, 2, 4, 6], "3 and 5 wait for 1");
    // The key of what waits for a retry is read again.
    world.restart().await;
    world.publish_all(&[queue], keyed(&[("a", 7), ("d", 8)])).await;
    world.rest().await;
    assert_eq!(numbers(&world.calls(5).await)[4..], [8]);
    world.pass(SECOND).await;
    assert_eq!(numbers(&world.calls(9).await)[5..], [1, 3, 5, 7]);
    world.check(queue).await;
}

#[tokio::test]
async fn events_without_the_key_are_not_ordered() {
    let world = World::new().await;
    let queue = world
        .hook(|settings| {
            settings.ordering = Ordering::Key;
            settings.ordering_key = Some("/missing".into());
        })
        .await;
    world.endpoints.answer(URL, [Reply::Hangs]);
    world.publish_many(&[queue], 4).await;
    world.until("all hang", || world.endpoints.hanging(URL) == 4).await;
    world.endpoints.release(URL, 4, &Reply::Status(200));
    world.rest().await;
}

#[tokio::test]
async fn a_change_of_the_order_holds_for_what_begins_afterwards() {
    let world = World::new().await;
    let queue = world.hook(|_| {}).await;
    world.endpoints.answer(URL, [Reply::Status(500), Reply::Status(500), Reply::Status(200)]);
    world.publish_many(&[queue], 2).await;
    world.rest().await;
    world.change(queue, |hook| hook.settings.ordering = Ordering::Subscription).await;
    world.rest().await;
    world.publish_many(&[queue], 2).await;
    world.rest().await;
    world.calls(2).await;
    world.pass(SECOND).await;
    assert_eq!(numbers(&world.calls(6).await)[2..], [0, 1, 0, 1]);
    assert_eq!(world.endpoints.most(URL), 1.max(world.endpoints.most(URL).min(2)));
    world.check(queue).await;
}
