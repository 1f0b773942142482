//! The loop, with sources that the test fills and a clock that moves when told.

mod fake;
mod store;

use std::time::Duration;

use futures_util::FutureExt;
use tidings_model::{LogId, Timestamp};

use super::Follower;
use crate::ManualClock;
use fake::{Fake, Hang, Seen};

const A: LogId = LogId::new(1);
const B: LogId = LogId::new(2);
const C: LogId = LogId::new(3);

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_millis(1_000_000))
}

/// Polls what runs for ever until it waits for something that only the test brings about.
async fn let_work(running: &mut (impl Future + Unpin)) {
    for _ in 0..100 {
        assert!((&mut *running).now_or_never().is_none(), "it ends by itself");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn sources_get_their_turn_between_the_batches_of_others() {
    let (work, clock, follower) = (Fake::with(&[(A, 9), (B, 9), (C, 9)]), clock(), Follower::default());
    let_work(&mut Box::pin(follower.run(&work, &clock))).await;
    let delivered = work.delivered();
    let batches = |of: &[LogId], source| of.iter().filter(|delivered| **delivered == source).count();
    assert_eq!([A, B, C].map(|source| batches(&delivered, source)), [9, 9, 9]);
    // Nobody is more than two batches ahead of another: two are worked on at a time.
    for end in 0..delivered.len() {
        let counts = [A, B, C].map(|source| batches(&delivered[..end], source));
        let (most, least) = (counts.into_iter().max(), counts.into_iter().min());
        assert!(most <= least.map(|least| least + 2), "{delivered:?}");
    }
    assert!(follower.is_at_rest());
}

#[tokio::test]
async fn a_source_that_fails_holds_up_nobody_and_is_tried_again_after_its_rest() {
    let (work, clock, follower) = (Fake::with(&[(A, 1), (B, 2), (C, 1)]), clock(), Follower::default());
    work.script().fails = Some(A);
    let mut running = Box::pin(follower.run(&work, &clock));
    let_work(&mut running).await;
    assert_eq!(work.left(), [A]);
    follower.notify(A);
    clock.advance(Duration::from_millis(999));
    let_work(&mut running).await;
    assert_eq!(work.tried(A), 1, "it rests, whoever asks for it");
    clock.advance(Duration::from_millis(1));
    let_work(&mut running).await;
    assert_eq!(work.tried(A), 2);
    assert!(!follower.is_at_rest());
    work.script().fails = None;
    clock.advance(Duration::from_secs(1));
    let_work(&mut running).await;
    assert_eq!(work.delivered().last(), Some(&A));
    assert!(follower.is_at_rest());
}

#[tokio::test]
async fn a_source_that_hangs_leaves_room_for_others() {
    let (work, clock, follower) = (Fake::with(&[(A, 1), (B, 2), (C, 1)]), clock(), Follower::default());
    work.script().hangs = Some((A, Hang::BeforeDelivery));
    let mut running = Box::pin(follower.run(&work, &clock));
    let_work(&mut running).await;
    assert_eq!(work.left(), [A]);
    work.release();
    let_work(&mut running).await;
    assert!(follower.is_at_rest());
}

#[tokio::test]
async fn a_source_that_gets_more_after_it_was_read_to_its_end_is_delivered_again() {
    let (work, clock, follower) = (Fake::with(&[(A, 1)]), clock(), Follower::default());
    work.script().hangs = Some((A, Hang::AtTheEnd));
    let mut running = Box::pin(follower.run(&work, &clock));
    let_work(&mut running).await;
    assert_eq!(work.delivered(), [A]);
    assert!(!follower.is_at_rest(), "it has not told yet that nothing is left");
    work.add(A, 1);
    follower.notify(A);
    work.script().hangs = None;
    work.release();
    let_work(&mut running).await;
    assert_eq!(work.delivered(), [A, A]);
    assert!(follower.is_at_rest());
}

#[tokio::test]
async fn a_follower_at_rest_goes_on_when_it_is_notified_or_looks_for_more() {
    let (work, clock, follower) = (Fake::default(), clock(), Follower::default());
    let mut running = Box::pin(follower.run(&work, &clock));
    let_work(&mut running).await;
    work.add(B, 3);
    follower.notify(B);
    let_work(&mut running).await;
    assert_eq!(work.delivered(), [B, B, B]);
    work.add(C, 1);
    let_work(&mut running).await;
    assert_eq!(work.left(), [C], "nobody told");
    follower.look_for_more(&work).await.expect("it can be seen");
    let_work(&mut running).await;
    assert_eq!(work.delivered().last(), Some(&C));
    assert!(follower.is_at_rest());
}

#[tokio::test]
async fn a_follower_that_cannot_see_what_is_left_looks_again() {
    let (work, clock, follower) = (Fake::with(&[(A, 1)]), clock(), Follower::default());
    work.script().seen = Seen::Fails;
    let mut running = Box::pin(follower.run(&work, &clock));
    let_work(&mut running).await;
    assert_eq!((work.left(), clock.sleepers()), (vec![A], 1));
    work.script().seen = Seen::All;
    clock.advance(Duration::from_secs(1));
    let_work(&mut running).await;
    assert_eq!(work.delivered(), [A]);
}

#[tokio::test]
async fn a_follower_that_is_dropped_and_run_again_loses_no_source() {
    let (work, clock, follower) = (Fake::with(&[(A, 1), (B, 1), (C, 2)]), clock(), Follower::default());
    (work.script().hangs, work.script().fails) = (Some((A, Hang::BeforeDelivery)), Some(B));
    let mut running = Box::pin(follower.run(&work, &clock));
    let_work(&mut running).await;
    assert_eq!(work.delivered(), [C, C]);
    drop(running);
    (work.script().hangs, work.script().fails) = (None, None);
    // It is not told again of those that it was working on.
    work.script().seen = Seen::Nothing;
    work.add(C, 1);
    follower.notify(C);
    let mut running = Box::pin(follower.run(&work, &clock));
    let_work(&mut running).await;
    let mut delivered = work.delivered();
    delivered.sort();
    assert_eq!(delivered, [A, B, C, C, C]);
    assert!(follower.is_at_rest());
}
