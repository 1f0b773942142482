//! How many attempts begin, and whose.

use std::time::Duration;

use tidings_model::limits;

use super::world::{Reply, URL, World, event, no_socket, timeout};
use crate::Options;

const SECOND: Duration = Duration::from_secs(1);

fn url(n: usize) -> String {
    format!("http://host{n}.example/")
}

#[tokio::test]
async fn a_hook_has_as_many_attempts_at_a_time_as_it_asks_for() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.concurrency = 3).await;
    world.endpoints.answer(URL, [Reply::Hangs]);
    world.publish_many(&[queue], 20).await;
    for left in [20, 17, 14] {
        world.until("three hang", || world.endpoints.hanging(URL) == 3).await;
        world.run().await;
        assert_eq!(world.endpoints.hanging(URL), 3, "{left} are left");
        world.endpoints.release(URL, 3, &Reply::Status(200));
    }
    assert_eq!(world.endpoints.most(URL), 3);
}

#[tokio::test]
async fn a_rate_limit_holds_after_a_burst_of_ten_also_when_the_hook_had_no_work_in_between() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.rate_limit = Some(2)).await;
    for _ in 0..10 {
        world.publish(&[queue], "{\"n\":1}").await;
        world.rest().await;
    }
    world.calls(10).await;
    world.publish_many(&[queue], 5).await;
    world.rest().await;
    world.calls(10).await;
    for calls in [11, 12, 13] {
        world.pass(Duration::from_millis(501)).await;
        world.calls(calls).await;
    }
    world.pass(SECOND * 10).await;
    world.calls(15).await;
}

#[tokio::test]
async fn a_lack_of_sockets_is_no_attempt() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.max_retries = 1).await;
    world.endpoints.answer(URL, [no_socket(), no_socket(), Reply::Status(200)]);
    world.publish(&[queue], "{\"n\":1}").await;
    world.rest().await;
    for calls in [1, 2, 3] {
        world.calls(calls).await;
        world.pass(Duration::from_millis(50)).await;
    }
    let progress = world.progress(queue).await;
    assert_eq!((progress.delivered, progress.attempts), (1, 1));
    world.check(queue).await;
}

#[tokio::test]
async fn deliveries_wait_while_a_circuit_breaker_is_open_and_one_tries_afterwards() {
    let options = Options { breaker_failures: 3, breaker_open: 30 * SECOND, ..Options::default() };
    let world = World::with(options).await;
    let queue = world.hook(|settings| settings.concurrency = 1).await;
    world.endpoints.answer(URL, [timeout(), timeout(), timeout(), timeout(), Reply::Status(200)]);
    world.publish_many(&[queue], 10).await;
    world.rest().await;
    world.calls(3).await;
    world.pass(29 * SECOND).await;
    world.calls(3).await;
    assert_eq!(world.progress(queue).await.attempts, 3, "waiting is not an attempt");
    world.pass(SECOND).await;
    world.calls(4).await;
    world.pass(29 * SECOND).await;
    world.calls(4).await;
    world.pass(SECOND).await;
    world.pass(10 * SECOND).await;
    assert_eq!(world.progress(queue).await.delivered, 10);
    world.check(queue).await;
}

#[tokio::test]
async fn one_dead_endpoint_does_not_delay_the_others() {
    let options = Options { max_attempts: 64, ..Options::default() };
    let world = World::with(options).await;
    let dead = world.hook(|settings| settings.url = Some(url(0))).await;
    world.endpoints.answer(&url(0), [Reply::Hangs]);
    world.publish_many(&[dead], 1000).await;
    world.run().await;
    let mut queues = Vec::new();
    for n in 1..=20 {
        queues.push(world.hook(|settings| settings.url = Some(url(n))).await);
    }
    world.endpoints.clear();
    world.publish_many(&queues, 50).await;
    let all = || (1..=20).all(|n| world.endpoints.count(&url(n)) == 50);
    world.until("the others have all", all).await;
    assert!(world.endpoints.hanging(&url(0)) <= 32);
}

#[tokio::test]
async fn many_dead_endpoints_leave_attempts_for_the_others() {
    let options = Options { max_attempts: 64, ..Options::default() };
    let world = World::with(options).await;
    let known = world.hook(|settings| settings.url = Some(url(200))).await;
    world.publish(&[known], "{\"n\":1}").await;
    world.rest().await;
    let mut dead = Vec::new();
    for n in 0..100 {
        dead.push(world.hook(|settings| settings.url = Some(url(n))).await);
        world.endpoints.answer(&url(n), [Reply::Hangs]);
    }
    world.publish_many(&dead, 5).await;
    world.run().await;
    let hanging = || (0..100).map(|n| world.endpoints.hanging(&url(n))).sum::<usize>();
    assert_eq!(hanging(), 48, "three quarters");
    world.publish_many(&[known], 100).await;
    world.until("the one that is known to answer has all", || world.endpoints.count(&url(200)) == 101).await;
    while (0..100).any(|n| world.endpoints.count(&url(n)) == 0) {
        for n in 0..100 {
            world.endpoints.release(&url(n), world.endpoints.hanging(&url(n)), &timeout());
        }
        world.run().await;
    }
    for n in 0..100 {
        world.endpoints.release(&url(n), world.endpoints.hanging(&url(n)), &timeout());
    }
    world.run().await;
    assert!((1..=32).contains(&hanging()), "{}", hanging());
    let mut queues = Vec::new();
    for n in 100..120 {
        queues.push(world.hook(|settings| settings.url = Some(url(n))).await);
    }
    world.publish_many(&queues, 5).await;
    let all = || (100..120).all(|n| world.endpoints.count(&url(n)) == 5);
    world.until("those about which nothing is known have all", all).await;
}

#[tokio::test]
async fn hooks_and_destinations_take_turns() {
    let options = Options { max_attempts: 1, ..Options::default() };
    let world = World::with(options).await;
    let many = world.hook(|settings| settings.url = Some(url(1))).await;
    let few = world.hook(|settings| settings.url = Some(url(1))).await;
    let other = world.hook(|settings| settings.url = Some(url(2))).await;
    world.publish_many(&[many], 100).await;
    world.publish_many(&[few, other], 5).await;
    world.rest().await;
    let calls = world.endpoints.calls();
    let last_of_other = calls.iter().rposition(|call| call.url == url(2)).expect("called");
    assert!(last_of_other < 30, "{last_of_other}");
    let ids: std::collections::HashSet<String> = {
        let page = world.found(few).await;
        calls
            .iter()
            .filter(|call| {
                crate::DeliveryId::parse(call.id(), crate::IdMask::default()).expect("an id").queue
                    == page.queue
            })
            .map(|call| call.id().to_owned())
            .collect()
    };
    let last_of_few = calls.iter().rposition(|call| ids.contains(call.id())).expect("called");
    assert!(last_of_few < 30, "{last_of_few}");
}

#[tokio::test]
async fn retries_and_fresh_deliveries_take_turns() {
    let world = World::new().await;
    let queue = world
        .hook(|settings| {
            settings.concurrency = 1;
            settings.retry_schedule = vec![1000];
            settings.max_retries = 100;
        })
        .await;
    world.endpoints.answer(URL, (0..8).map(|_| Reply::Status(404)).chain([Reply::Status(200)]));
    world.publish_many(&[queue], 8).await;
    world.rest().await;
    world.endpoints.clear();
    world.clock.advance(SECOND);
    world.publish_all(&[queue], (100..108).map(|n| event(&format!("{{\"n\":{n}}}")))).await;
    world.rest().await;
    let fresh: Vec<_> = world.endpoints.calls().iter().map(|call| call.n() >= 100).collect();
    assert_eq!(fresh.len(), 16);
    for window in fresh[..14].windows(4) {
        assert!(window.contains(&true) && window.contains(&false), "{fresh:?}");
    }
}

#[tokio::test]
async fn no_delivery_is_begun_while_too_many_wait_for_a_retry() {
    let world = World::new().await;
    let queue = world
        .hook(|settings| {
            settings.retry_schedule = vec![3_600_000];
            settings.concurrency = 256;
        })
        .await;
    world.endpoints.answer(URL, [Reply::Status(429)]);
    world.publish_many(&[queue], limits::HOOK_PARKED + 500).await;
    let mut parked = 0;
    for _ in 0..200 {
        world.pass(Duration::from_secs(10)).await;
        parked = world.progress(queue).await.parked.len();
        assert!(parked <= limits::HOOK_PARKED, "{parked}");
    }
    assert!(parked > 0);
    world.check(queue).await;
}

#[tokio::test]
async fn bytes_in_flight_are_bounded_and_a_larger_event_goes_alone() {
    let world = World::new().await;
    let large = world.hook(|settings| settings.url = Some(url(1))).await;
    let small = world.hook(|settings| settings.url = Some(url(2))).await;
    for n in 1..=2 {
        world.endpoints.answer(&url(n), [Reply::Hangs]);
    }
    let megabytes = |count: usize| event(&format!("{{\"x\":\"{}\"}}", "x".repeat(count << 20)));
    world.publish_all(&[large], [megabytes(65)]).await;
    world.run().await;
    assert_eq!(world.endpoints.hanging(&url(1)), 1);
    world.publish_many(&[small], 2).await;
    world.run().await;
    assert_eq!(world.endpoints.hanging(&url(2)), 0, "it goes alone");
    world.endpoints.release(&url(1), 1, &Reply::Status(200));
    world.until("the small ones go", || world.endpoints.hanging(&url(2)) == 2).await;
    world.publish_all(&[large], (0..4).map(|_| megabytes(30))).await;
    world.run().await;
    assert_eq!(world.endpoints.hanging(&url(1)), 2);
    world.endpoints.release(&url(2), 2, &Reply::Status(200));
    world.run().await;
    assert_eq!(world.endpoints.hanging(&url(1)), 2);
    world.endpoints.release(&url(1), 2, &Reply::Status(200));
    world.run().await;
    assert_eq!(world.endpoints.hanging(&url(1)), 2);
    world.endpoints.release(&url(1), 2, &Reply::Status(200));
    world.rest().await;
    assert_eq!(world.progress(large).await.delivered, 5);
}

#[tokio::test]
async fn a_throttled_destination_gets_half_and_recovers() {
    let world = World::new().await;
    let queue = world.hook(|settings| settings.concurrency = 256).await;
    world.publish_many(&[queue], 100).await;
    world.rest().await;
    world.endpoints.answer(URL, [Reply::Status(429), Reply::Status(200)]);
    world.publish(&[queue], "{\"n\":1}").await;
    world.rest().await;
    world.endpoints.clear();
    world.publish_many(&[queue], 2000).await;
    for _ in 0..100 {
        world.pass(Duration::from_millis(10)).await;
    }
    let first = world.endpoints.calls().len();
    assert!((40..=60).contains(&first), "{first} in a second, after 101");
    for _ in 0..600 {
        world.pass(Duration::from_millis(50)).await;
    }
    assert_eq!(world.progress(queue).await.delivered, 2101);
    world.check(queue).await;
}

#[tokio::test]
async fn events_that_wait_in_memory_are_bounded_and_read_again() {
    let world = World::new().await;
    let mut queues = Vec::new();
    for n in 0..300 {
        queues.push(world.hook(|settings| settings.url = Some(url(n))).await);
        world.endpoints.answer(&url(n), [Reply::Hangs]);
    }
    // Each page of a queue has 256 KiB.
    let text = "x".repeat(16 << 10);
    world.publish_all(&queues, (0..40).map(|n| event(&format!("{{\"n\":{n},\"x\":\"{text}\"}}")))).await;
    for _ in 0..3 {
        world.run().await;
    }
    for n in 0..300 {
        world.endpoints.answer(&url(n), [Reply::Status(200)]);
        let hanging = world.endpoints.hanging(&url(n));
        world.endpoints.release(&url(n), hanging, &Reply::Status(200));
    }
    world.rest().await;
    for queue in queues {
        assert_eq!(world.progress(queue).await.delivered, 40);
    }
}
