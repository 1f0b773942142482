//! One change of subscriptions, step by step: await what is in flight, compare, validate, authorize, check the limit,
//! call the driver, change the state, tell the observers.
//!
//! Until the driver is called, whoever asked may stop the operation, which then has done nothing. From then on it runs
//! to its end, if need be in a task of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use tidings_engine::DetachOnDrop;

use crate::abort::{Timer, within};
use crate::change::{Begins, Change, Held};
use crate::draft::Draft;
use crate::driver::{DriverError, Handover, Verification};
use crate::error::{
    AbortReason, Aborted, AclDetails, ErrorDetails, MutateError, PubSubError, PubSubErrorCode,
};
use crate::history::{Position, Since, TopicLog};
use crate::inner::{Inner, Line, Turn};
use crate::options::{MutateOptions, PresenceInfo, Verify, WaitFor};
use crate::policy::{Action, Decision, Denial, DenialKind, Removal};
use crate::queue::Scope;
use crate::replay::Replay;
use crate::underway::Underway;

/// What is asked for. Topics are in their normal form.
pub(crate) enum Request<'a> {
    /// Subscribe to some topics, each once.
    Add(Vec<Arc<str>>),
    /// Unsubscribe from some topics, each once.
    Remove(Vec<Arc<str>>),
    /// Subscribe to these topics, each once, and no others.
    Set(Vec<Arc<str>>),
    /// Subscribe to what a function leaves in the draft.
    Update(Box<dyn FnOnce(&mut Draft<'_>) + Send + 'a>),
}

impl Request<'_> {
    fn scope(&self) -> Scope {
        match self {
            Self::Add(topics) | Self::Remove(topics) => Scope::Topics(topics.clone()),
            Self::Set(_) | Self::Update(_) => Scope::All,
        }
    }
}

/// Runs an operation. The first poll takes its place among the others.
pub(crate) async fn run(
    inner: &Arc<Inner>,
    request: Request<'_>,
    options: &MutateOptions,
) -> Result<Change, MutateError> {
    let cancel = options.cancel.as_ref();
    if cancel.is_some_and(|cancel| cancel.is_cancelled()) {
        return Err(Aborted { reason: AbortReason::Cancelled, changed: Some(false) }.into());
    }
    let present = match (&request, &options.presence) {
        (Request::Add(topics), Some(presence)) => Some((topics.clone(), presence.clone())),
        _ => None,
    };
    let expiring = match (&request, options.ttl) {
        (Request::Add(topics), Some(ttl)) => Some((topics.clone(), ttl)),
        _ => None,
    };
    let recover = options.recover.iter().map(|(topic, since)| (inner.normal(topic), since.clone())).collect();
    let turn = inner.arrive(Line::Changes, request.scope());
    let settled = options.wait_for == WaitFor::Settled;
    let mut timer = Timer::new(&*inner.settings.clock, options.timeout.filter(|_| settled));

    let prepared = within(inner, prepare(inner, &turn, request), cancel, &mut timer).await;
    let underway = match prepared.map_err(|stop| stop.into_error(Some(false)))?? {
        Prepared::Nothing { total } => {
            renew(inner, expiring.as_ref());
            join(inner, present.as_ref());
            let held = Held::new(inner.member.clone(), Vec::new());
            return Ok(Change { added: 0, removed: 0, total, positions: Vec::new(), held });
        }
        Prepared::Change(underway) => underway,
    };

    // Read before they move: verification asks about the same topics.
    let verified: Vec<(Arc<str>, bool)> = match options.verify {
        Verify::Strict | Verify::BestEffort if settled => underway.topics(),
        _ => Vec::new(),
    };
    let work = DetachOnDrop::new(apply(turn, underway, settled, After { expiring, recover, present }));
    let applied = within(inner, work, None, &mut timer).await;
    let change = applied.map_err(|stop| stop.into_error(None))??;
    for (topic, subscribed) in verified {
        let answer = inner.settings.driver.is_subscribed(&inner.member, &topic);
        let answer = within(inner, answer, None, &mut timer).await;
        let verification = answer.map_err(|stop| stop.into_error(None))?;
        let confirmed = match verification {
            Verification::Subscribed => subscribed,
            Verification::Unsubscribed => !subscribed,
            _ => false,
        };
        if !confirmed && options.verify == Verify::Strict {
            return Err(MutateError::Unverified { topic, verification });
        }
    }
    Ok(change)
}

/// What is to be done after all checks.
enum Prepared {
    /// The target state is reached already.
    Nothing {
        total: usize,
    },
    Change(Underway),
}

async fn prepare(inner: &Arc<Inner>, turn: &Turn, request: Request<'_>) -> Result<Prepared, PubSubError> {
    // Calls that were under way when the connection was closed are not waited for: nothing is held any more.
    if !inner.is_closed() {
        turn.comes().await;
        if inner.is_closed() {
            return Err(PubSubError::closed());
        }
    }
    let asks_to_leave = matches!(request, Request::Remove(_));
    let is_set = matches!(request, Request::Set(_) | Request::Update(_));
    let mut underway = match Underway::begin(inner, request)? {
        Ok(underway) => underway,
        Err(total) => return Ok(Prepared::Nothing { total }),
    };
    for topic in &underway.additions {
        inner.settings.rules.check_subscription(topic)?;
    }
    for topic in &underway.additions {
        authorize(inner, Action::Subscribe, topic).await?;
    }
    if asks_to_leave {
        for topic in &underway.removals {
            authorize(inner, Action::Unsubscribe, topic).await?;
        }
    }
    underway.reserve(is_set)?;
    Ok(Prepared::Change(underway))
}

async fn authorize(inner: &Inner, action: Action, topic: &Arc<str>) -> Result<(), PubSubError> {
    match inner.gate.authorize(action, topic).await {
        Decision::Allow => Ok(()),
        Decision::Deny(denial) => Err(denied(action, topic, denial)),
    }
}

/// The error of a denial.
fn denied(op: Action, topic: &Arc<str>, denial: Denial) -> PubSubError {
    let Denial { kind, reason, policy } = denial;
    PubSubError::new(
        PubSubErrorCode::AclSubscribe,
        format!(
            "the policy does not allow to {} `{topic}`",
            match op {
                Action::Unsubscribe => "unsubscribe from",
                _ => "subscribe to",
            }
        ),
        ErrorDetails::Acl(AclDetails { op, kind, reason, policy, topic: topic.clone() }),
    )
}

/// The error of a subscription that was taken away while it was being made.
pub(crate) fn refused(topic: &Arc<str>, reason: &str) -> PubSubError {
    let denial = Denial { kind: DenialKind::Forbidden, reason: reason.to_owned(), policy: None };
    denied(Action::Subscribe, topic, denial)
}

/// Makes the connection a member of topics.
fn join(inner: &Inner, present: Option<&(Vec<Arc<str>>, PresenceInfo)>) {
    if let Some((topics, presence)) = present {
        inner.join_presence(topics, presence.info.as_ref());
    }
}

/// Has topics end after a time from now on.
fn renew(inner: &Inner, expiring: Option<&(Vec<Arc<str>>, Duration)>) {
    let Some((topics, ttl)) = expiring else { return };
    let at = inner.settings.clock.now() + *ttl;
    let mut state = inner.lock();
    topics.iter().for_each(|topic| state.expire_at(topic, at));
}

/// What is done after a change was made.
struct After {
    expiring: Option<(Vec<Arc<str>>, Duration)>,
    recover: HashMap<Arc<str>, Since>,
    present: Option<(Vec<Arc<str>>, PresenceInfo)>,
}

/// A subscription to a topic with history that was made.
struct Begun {
    topic: Arc<str>,
    log: Arc<TopicLog>,
    position: Position,
}

/// Finds out where subscriptions begin, and what is to be replayed first.
async fn recover(
    inner: &Arc<Inner>,
    begun: Vec<Begun>,
    recover: &HashMap<Arc<str>, Since>,
) -> (Vec<Begins>, Vec<Replay>) {
    let (mut positions, mut replays) = (Vec::new(), Vec::new());
    for Begun { topic, log, position } in begun {
        let Some((history, keep)) = inner.settings.history_of(&topic) else { continue };
        let mut recovered = None;
        if let Some(since) = recover.get(&topic) {
            let kept = history.keeps(&log, since, position.offset, keep).await;
            let kept = kept.unwrap_or_else(|error| {
                tracing::warn!(%topic, %error, "what a client has missed cannot be read");
                false
            });
            let subscription = inner.lock().subscription(&topic);
            if let Some(subscription) = subscription
                && kept
                && since.offset < position.offset
            {
                replays.push(Replay {
                    inner: inner.clone(),
                    history: history.clone(),
                    log: log.clone(),
                    topic: topic.clone(),
                    subscription,
                    after: since.offset,
                    head: position.offset,
                });
            }
            recovered = Some(kept);
        }
        positions.push(Begins { topic, position, recovered });
    }
    (positions, replays)
}

/// Subscribes to a topic. If it has a history, nothing is delivered meanwhile.
async fn subscribe(inner: &Inner, topic: &Arc<str>, begun: &mut Vec<Begun>) -> Result<Handover, DriverError> {
    let driver = &inner.settings.driver;
    let Some((history, _)) = inner.settings.history_of(topic) else {
        return driver.subscribe(&inner.member, topic).await;
    };
    let log = history.open(topic).await?;
    let (handover, position) = log.at_head(|| driver.subscribe(&inner.member, topic).now_or_never());
    // A driver that has to wait cannot have history.
    let handover = handover.unwrap_or_else(|| Err(DriverError::new("the driver has no history")))?;
    begun.push(Begun { topic: topic.clone(), log, position });
    Ok(handover)
}

/// A driver call that succeeded.
enum Done {
    Added(Arc<str>),
    Removed(Arc<str>),
}

/// Calls the driver and commits. Runs to its end whoever waits.
async fn apply(
    turn: Turn,
    mut underway: Underway,
    settled: bool,
    after: After,
) -> Result<Change, PubSubError> {
    let inner = underway.inner().clone();
    let mut confirming = Vec::new();
    let mut done = Vec::new();
    let mut begun = Vec::new();
    let called = call(&inner, &underway, settled, &mut done, &mut confirming, &mut begun).await;
    let committed = match called {
        Ok(()) => underway.commit(),
        Err(error) => Err(failure(&inner, error)),
    };
    let committed = match committed {
        Ok(committed) => committed,
        Err(error) if inner.is_closed() => {
            // What the calls have done after the member was removed must not stay.
            inner.settings.driver.remove(&inner.member);
            return Err(if error.code == PubSubErrorCode::ConnectionClosed {
                error
            } else {
                PubSubError::closed()
            });
        }
        Err(error) => return Err(roll_back(&inner, done, error).await),
    };
    renew(&inner, after.expiring.as_ref());
    inner.leave_presence(&committed.removed);
    join(&inner, after.present.as_ref());
    for topic in &committed.removed {
        inner.gate.unsubscribed(topic, Removal::Requested);
    }
    for topic in &committed.added {
        inner.gate.subscribed(topic);
    }
    let (positions, replays) = recover(&inner, begun, &after.recover).await;
    let change = Change {
        added: committed.added.len(),
        removed: committed.removed.len(),
        total: committed.total,
        positions,
        held: Held::new(inner.member.clone(), committed.added).replaying(replays),
    };
    if confirming.is_empty() {
        drop((turn, underway));
    } else {
        tokio::spawn(confirm(turn, underway, confirming));
    }
    Ok(change)
}

type Confirmations = Vec<(Arc<str>, futures_util::future::BoxFuture<'static, Result<(), DriverError>>)>;

/// Calls the driver for each topic: removals before additions, so that the driver never sees more than the limit.
async fn call(
    inner: &Inner,
    underway: &Underway,
    settled: bool,
    done: &mut Vec<Done>,
    confirming: &mut Confirmations,
    begun: &mut Vec<Begun>,
) -> Result<(), DriverError> {
    let driver = &inner.settings.driver;
    for topic in &underway.removals {
        driver.unsubscribe(&inner.member, topic).await?;
        done.push(Done::Removed(topic.clone()));
    }
    for topic in &underway.additions {
        let handover = subscribe(inner, topic, begun).await?;
        done.push(Done::Added(topic.clone()));
        match handover {
            Handover::Settled => {}
            Handover::Confirming(confirmation) if settled => confirmation.await?,
            Handover::Confirming(confirmation) => confirming.push((topic.clone(), confirmation)),
        }
    }
    Ok(())
}

/// Waits for the driver's confirmations and takes back what it refuses.
async fn confirm(turn: Turn, mut underway: Underway, confirming: Confirmations) {
    let inner = underway.inner().clone();
    for (topic, confirmation) in confirming {
        let confirmed = confirmation.await;
        let is_held = inner.lock().contains(&topic);
        if let Err(error) = confirmed
            && is_held
        {
            tracing::warn!(%topic, %error, "the driver refused a subscription that it had accepted");
            inner.take_back(&topic).await;
        }
        underway.confirmed(&topic);
    }
    if inner.is_closed() {
        inner.settings.driver.remove(&inner.member);
    }
    drop((turn, underway));
}

/// The error of a driver's failure.
fn failure(inner: &Inner, error: DriverError) -> PubSubError {
    if error.closed {
        return PubSubError::closed();
    }
    if error.too_many_patterns {
        let details = ErrorDetails::PatternLimit;
        return PubSubError::new(PubSubErrorCode::TopicLimitExceeded, error.message, details);
    }
    let adapter = inner.settings.driver.name();
    PubSubError::new(
        PubSubErrorCode::AdapterError,
        format!("the driver `{adapter}` failed: {error}"),
        ErrorDetails::Adapter { adapter, transient: error.transient, failed_rollback_topics: Vec::new() },
    )
    .with_cause(Arc::new(error))
}

/// Takes back what the driver has done, the last call first. The error tells what could not be taken back.
async fn roll_back(inner: &Arc<Inner>, done: Vec<Done>, mut error: PubSubError) -> PubSubError {
    let driver = &inner.settings.driver;
    let mut failed: Vec<Arc<str>> = Vec::new();
    for done in done.into_iter().rev() {
        match done {
            Done::Added(topic) => {
                if driver.unsubscribe(&inner.member, &topic).await.is_err() {
                    failed.push(topic);
                }
            }
            Done::Removed(topic) => {
                // It may have been taken away meanwhile.
                if !inner.lock().contains(&topic) {
                    continue;
                }
                let restored = match driver.subscribe(&inner.member, &topic).await {
                    Ok(Handover::Settled) => true,
                    Ok(Handover::Confirming(confirmation)) => confirmation.await.is_ok(),
                    Err(_) => false,
                };
                if !restored {
                    failed.push(topic);
                } else if inner.lock().contains(&topic) {
                    inner.member.release([&*topic]);
                } else {
                    let _ = driver.unsubscribe(&inner.member, &topic).await;
                }
            }
        }
    }
    if inner.is_closed() {
        driver.remove(&inner.member);
        return PubSubError::closed();
    }
    if !failed.is_empty() {
        inner.settings.failed_rollbacks.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            client_id = %inner.member.client_id(), topics = ?failed,
            "the driver could not take back what it had done; it and the connection differ"
        );
        match &mut error.details {
            ErrorDetails::Adapter { failed_rollback_topics, .. } => *failed_rollback_topics = failed,
            details => {
                error.code = PubSubErrorCode::AdapterError;
                *details = ErrorDetails::Adapter {
                    adapter: driver.name(),
                    transient: None,
                    failed_rollback_topics: failed,
                };
            }
        }
    }
    error
}
