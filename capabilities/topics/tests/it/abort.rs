//! Cancellation, timeouts, and futures that are dropped.

use std::time::Duration;

use tidings_topics::{
    AbortReason, Aborted, CancellationToken, Change, LocalStatus, MutateError, MutateOptions, SettleOptions,
    Verification, VerifyOptions,
};

use crate::recorder::*;
use crate::support::*;

fn aborted(result: Result<Change, MutateError>) -> Aborted {
    match result.expect_err("it is aborted") {
        MutateError::Aborted(aborted) => aborted,
        other => panic!("{other}"),
    }
}

const UNCHANGED: Option<bool> = Some(false);

fn cancellable() -> (CancellationToken, MutateOptions) {
    let cancel = CancellationToken::new();
    (cancel.clone(), MutateOptions::default().cancelled_by(cancel))
}

fn within(millis: u64) -> MutateOptions {
    MutateOptions::settled().within(Duration::from_millis(millis))
}

#[tokio::test]
async fn a_cancelled_token_ends_an_operation_before_it_begins() {
    let world = watched(None);
    let client = world.client_with(&["a"]);
    let (cancel, options) = cancellable();
    cancel.cancel();
    let topics = &client.topics;
    let cancelled = Aborted { reason: AbortReason::Cancelled, changed: UNCHANGED };
    assert_eq!(aborted(now(topics.subscribe("b", &options))), cancelled);
    assert_eq!(aborted(now(topics.unsubscribe("a", &options))), cancelled);
    assert_eq!(aborted(now(topics.subscribe_many(["b", "c"], &options))), cancelled);
    assert_eq!(aborted(now(topics.unsubscribe_many(["a"], &options))), cancelled);
    assert_eq!(aborted(now(topics.set(["b"], &options))), cancelled);
    assert_eq!(aborted(now(topics.update(|draft| draft.clear(), &options))), cancelled);
    assert_eq!(aborted(now(topics.clear(&options))), cancelled);
    world.is_untouched();
    assert_eq!(held(topics), "a");
    let verify = VerifyOptions { cancel: options.cancel.clone(), ..VerifyOptions::default() };
    assert!(matches!(now(topics.verify("a", &verify)), Err(MutateError::Aborted(_))));
}

#[tokio::test]
async fn cancelling_before_the_driver_is_called_changes_nothing() {
    let world = watched(None);
    let client = world.client_with(&["held"]);
    let topics = &client.topics;
    // While the policy is asked.
    for batch in [vec!["a"], vec!["a", "b"]] {
        let (cancel, options) = cancellable();
        let _go = world.policy.wait();
        let running = begins(Box::pin(topics.subscribe_many(&batch, &options)));
        cancel.cancel();
        assert_eq!(aborted(running.await).changed, UNCHANGED);
    }
    let (cancel, options) = cancellable();
    let _go = world.policy.wait();
    let running = begins(Box::pin(topics.set(["a", "b"], &options)));
    cancel.cancel();
    assert_eq!(aborted(running.await).changed, UNCHANGED);
    assert_eq!(world.calls(), "");
    assert_eq!(held(topics), "held");
    assert_eq!(topics.local_status("a"), LocalStatus::Absent);
    assert!(!world.policy.noted().iter().any(|noted| noted.contains("subscribed")));
}

#[tokio::test]
async fn cancelling_an_operation_that_waits_for_another_leaves_the_others_in_order() {
    let world = watched(None);
    let client = world.client();
    let topics = &client.topics;
    world.driver.hold(true);
    let first = begins(Box::pin(async { topics.subscribe("a", &options()).await }));
    let (cancel, cancelling) = cancellable();
    let second = begins(Box::pin(topics.unsubscribe("a", &cancelling)));
    let third = begins(Box::pin(async { topics.unsubscribe("a", &options()).await }));
    cancel.cancel();
    assert_eq!(aborted(second.await).changed, UNCHANGED);
    let third = begins(third);
    assert_eq!(world.waiting(), "+a", "the third still waits for the first");
    world.driver.release(0, true);
    assert_eq!(counts(first.await), (1, 0, 1));
    let third = begins(third);
    world.driver.release(0, true);
    assert_eq!(counts(third.await), (0, 1, 0));
}

#[tokio::test]
async fn cancelling_after_the_driver_was_called_is_too_late() {
    let world = watched(None);
    let client = world.client();
    let (cancel, options) = cancellable();
    world.driver.hold(true);
    let running = begins(Box::pin(client.topics.subscribe_many(["a", "b"], &options)));
    cancel.cancel();
    let running = begins(running);
    world.driver.release(0, true);
    let running = begins(running);
    world.driver.release(0, true);
    assert_eq!(counts(running.await), (2, 0, 2));
    assert_eq!(world.policy.noted().len(), 4, "asked and told of both");
}

#[tokio::test]
async fn a_timeout_before_the_driver_is_called_changes_nothing() {
    let world = watched(None);
    let client = world.client();
    let options = within(5_000);
    let _go = world.policy.wait();
    let running = begins(Box::pin(client.topics.subscribe("a", &options)));
    world.clock.advance(Duration::from_millis(4_999));
    let running = begins(running);
    world.clock.advance(Duration::from_millis(1));
    let expected = Aborted { reason: AbortReason::TimedOut, changed: UNCHANGED };
    assert_eq!(aborted(running.await), expected);
    assert_eq!(world.calls(), "");
    assert_eq!(client.topics.local_status("a"), LocalStatus::Absent);
}

#[tokio::test]
async fn a_timeout_after_the_driver_was_called_leaves_the_operation_to_itself() {
    let world = watched(None);
    let mut client = world.client();
    let options = within(5_000);
    world.driver.hold(true);
    let running = begins(Box::pin(client.topics.subscribe("a", &options)));
    world.clock.advance(Duration::from_millis(4_999));
    let running = begins(running);
    world.clock.advance(Duration::from_millis(1));
    assert_eq!(aborted(running.await), Aborted { reason: AbortReason::TimedOut, changed: None });
    assert_eq!(client.topics.local_status("a"), LocalStatus::PendingSubscribe);
    let settle = SettleOptions::default();
    let settling = begins(Box::pin(client.topics.settle(Some("a"), &settle)));
    world.driver.release(0, true);
    settling.await.expect("it settles");
    assert_eq!(client.topics.local_status("a"), LocalStatus::Settled);
    world.driver.hold(false);
    assert!(now(world.hub.publish(message("a", "heard"), Default::default())).is_ok());
    assert_eq!(client.hears(1).await, ["heard"], "nothing is held back for a reply that nobody sends");
}

#[tokio::test]
async fn a_timeout_counts_only_for_settled_operations() {
    let world = watched(None);
    let client = world.client();
    let optimistic = MutateOptions::default().within(Duration::from_millis(1));
    world.driver.hold(true);
    let running = begins(Box::pin(client.topics.subscribe("a", &optimistic)));
    world.clock.advance(Duration::from_secs(60));
    let running = begins(running);
    world.driver.release(0, true);
    assert_eq!(counts(running.await), (1, 0, 1));
}

#[tokio::test]
async fn the_earlier_of_timeout_and_cancellation_ends_the_operation() {
    let world = watched(None);
    let client = world.client();
    for cancels in [true, false] {
        let cancel = CancellationToken::new();
        let options = within(5_000).cancelled_by(cancel.clone());
        let _go = world.policy.wait();
        let running = begins(Box::pin(client.topics.subscribe("a", &options)));
        world.clock.advance(Duration::from_millis(1_000));
        let running = begins(running);
        let expected = if cancels {
            cancel.cancel();
            AbortReason::Cancelled
        } else {
            world.clock.advance(Duration::from_millis(4_000));
            AbortReason::TimedOut
        };
        assert_eq!(aborted(running.await), Aborted { reason: expected, changed: UNCHANGED });
    }
    assert_eq!(world.clock.sleepers(), 0, "no timer is left");
}

#[tokio::test]
async fn dropping_an_operation_before_the_driver_is_called_cancels_it() {
    let world = watched(Some(1));
    let client = world.client();
    let _go = world.policy.wait();
    drop(begins(Box::pin(async { client.topics.subscribe("a", &options()).await })));
    assert_eq!(world.calls(), "");
    assert_eq!(client.topics.local_status("a"), LocalStatus::Absent);
    assert_eq!(client.topics.in_flight(), 0);
    assert_eq!(client.subscribes("b").total, 1, "no place is taken");
}

#[tokio::test]
async fn dropping_an_operation_after_the_driver_was_called_does_not_stop_it() {
    let world = watched(None);
    let client = world.client();
    world.driver.hold(true);
    drop(begins(Box::pin(async { client.topics.subscribe_many(["a", "b"], &options()).await })));
    assert_eq!(client.topics.local_status("a"), LocalStatus::PendingSubscribe);
    let settle = SettleOptions::default();
    let settling = Box::pin(client.topics.settle(None, &settle));
    world.driver.release(0, true);
    let settling = begins(settling);
    tokio::task::yield_now().await;
    assert_eq!(world.waiting(), "+b");
    world.driver.release(0, true);
    settling.await.expect("it settles");
    assert_eq!(held(&client.topics), "a b");
    assert_eq!(world.policy.noted().len(), 4);
}

#[tokio::test]
async fn settling_can_be_cancelled_and_has_a_timeout() {
    let world = watched(None);
    let client = world.client();
    world.driver.hold(true);
    let running = begins(Box::pin(async { client.topics.subscribe("a", &options()).await }));
    let cancel = CancellationToken::new();
    let cancellable = SettleOptions { cancel: Some(cancel.clone()), timeout: None };
    let settling = begins(Box::pin(client.topics.settle(None, &cancellable)));
    cancel.cancel();
    assert!(matches!(
        settling.await,
        Err(MutateError::Aborted(Aborted { reason: AbortReason::Cancelled, .. }))
    ));
    let timed = SettleOptions { cancel: None, timeout: Some(Duration::from_millis(10)) };
    let settling = begins(Box::pin(client.topics.settle(Some("a"), &timed)));
    world.clock.advance(Duration::from_millis(10));
    assert!(matches!(
        settling.await,
        Err(MutateError::Aborted(Aborted { reason: AbortReason::TimedOut, .. }))
    ));
    let running = begins(running);
    world.driver.release(0, true);
    assert_eq!(counts(running.await), (1, 0, 1), "what was waited for goes on");
}

#[tokio::test]
async fn verifying_that_takes_too_long_is_an_answer_too() {
    let world = watched(None);
    let client = world.client_with(&["a"]);
    world.driver.hold(true);
    let options = VerifyOptions { timeout: Some(Duration::from_millis(10)), ..VerifyOptions::default() };
    let verifying = begins(Box::pin(client.topics.verify("a", &options)));
    world.clock.advance(Duration::from_millis(10));
    let verified = verifying.await.expect("an answer");
    assert!(matches!(verified.verification, Verification::Timeout), "{verified:?}");
    assert!(!verified.local);
}
