//! Publishing: check, authorize, hand to the driver. Failures are values.

use std::borrow::Cow;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use crate::abort::{Timer, within};
use crate::answer::Answer;
use crate::driver::Route;
use crate::envelope::PublishEnvelope;
use crate::error::AclDetails;
use crate::inner::{Inner, Line, Phase, Settings, Turn};
use crate::options::PublishOptions;
use crate::policy::{Action, Decision, Denial};
use crate::queue::Scope;
use crate::result::{PublishError, PublishFailure, PublishResult};

/// Brings a message into its final form and checks everything but the policy.
pub(crate) fn check(settings: &Settings, envelope: &mut PublishEnvelope) -> Result<(), PublishFailure> {
    match settings.phase() {
        Phase::Ready => {}
        Phase::NotReady => return Err(PublishFailure::new(PublishError::State)),
        Phase::Disposed => return Err(PublishFailure::new(PublishError::ConnectionClosed)),
    }
    if let Err(error) = settings.rules.check(&envelope.topic) {
        let details = error.details.to_json();
        return Err(PublishFailure {
            details,
            ..PublishFailure::new(PublishError::Validation).because(error)
        });
    }
    if !envelope.has_valid_kind() {
        return Err(PublishFailure::new(PublishError::Validation).with("reason", "type"));
    }
    if let Some(limit) = settings.rules.max_payload_bytes()
        && envelope.payload.len() > limit
    {
        return Err(PublishFailure::new(PublishError::PayloadTooLarge).with("limit", limit));
    }
    envelope.strip_meta();
    Ok(())
}

/// Replaces the topic by its normal form.
pub(crate) fn normalize(envelope: &mut PublishEnvelope, normalize: impl FnOnce(&str) -> Cow<'_, str>) {
    if let Cow::Owned(topic) = normalize(&envelope.topic) {
        envelope.topic = topic;
    }
}

/// The failure of a denial.
pub(crate) fn denied(topic: &str, denial: Denial) -> PublishFailure {
    let Denial { kind, reason, policy } = denial;
    let acl = AclDetails { op: Action::Publish, kind, reason, policy, topic: Arc::from(topic) };
    PublishFailure { details: acl.to_json(), ..PublishFailure::new(PublishError::AclPublish) }
}

/// Publishes for a connection. Messages of one connection and topic are handed to the driver in the order of the first
/// polls.
pub(crate) async fn run(
    inner: &Arc<Inner>,
    mut envelope: PublishEnvelope,
    options: PublishOptions,
) -> PublishResult {
    if inner.is_closed() {
        return PublishFailure::new(PublishError::ConnectionClosed).into();
    }
    normalize(&mut envelope, |topic| inner.gate.normalize(topic));
    if let Err(failure) = check(&inner.settings, &mut envelope) {
        return failure.into();
    }
    let closed = PublishResult::from(PublishFailure::new(PublishError::ConnectionClosed));
    let mut timer = Timer::new(&*inner.settings.clock, None);
    let mut turn = None;
    if !inner.lock().publishing.is_empty() {
        turn = Some(inner.arrive(Line::Messages, scope(&envelope)));
    }
    if let Some(turn) = &turn
        && within(inner, turn.comes(), None, &mut timer).await.is_err()
    {
        return closed;
    }
    let decision = inner.gate.authorize(Action::Publish, &envelope.topic);
    let decision = in_order(inner, &envelope, decision, &mut turn);
    match within(inner, decision, None, &mut timer).await {
        Ok(Decision::Allow) if !inner.is_closed() => {}
        Ok(Decision::Deny(denial)) => return denied(&envelope.topic, denial).into(),
        Ok(Decision::Allow) | Err(_) => return closed,
    }
    let exclude = options.exclude_self.then_some(&inner.member);
    let route = Route { exclude, partition_key: options.partition_key.as_deref() };
    let sent = inner.settings.publish(&envelope, route, || inner.session());
    let sent = in_order(inner, &envelope, sent, &mut turn);
    within(inner, sent, None, &mut timer).await.map_or(closed, PublishResult::from)
}

fn scope(envelope: &PublishEnvelope) -> Scope {
    Scope::Topics(vec![Arc::from(envelope.topic.as_str())])
}

/// Waits for an answer. If it does not come at once, later messages of the same topic wait for this one.
async fn in_order<T>(
    inner: &Arc<Inner>,
    envelope: &PublishEnvelope,
    mut answer: Answer<'_, T>,
    turn: &mut Option<Turn>,
) -> T {
    let first = poll_fn(|cx| Poll::Ready(Pin::new(&mut answer).poll(cx)));
    if let Poll::Ready(value) = first.await {
        return value;
    }
    if turn.is_none() {
        *turn = Some(inner.arrive(Line::Messages, scope(envelope)));
    }
    answer.await
}
