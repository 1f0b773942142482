//! Publishing: an append to a source and the fan-out to its subscribers.
//!
//! Every append to a stream goes through here; for a stream without subscribers this costs one more lookup. With few
//! subscribers, the references are part of the append's commit. With many subscribers, while the follower has a
//! backlog, or while the circuit is open, delivery is left to the [follower](crate::follow): the record lies after the
//! follower's cursor, which makes the hand-over durable. The source's row stores which of the two modes applies, and
//! each commit states the mode it relies on ([`Change::Expect`]) or switches the mode on condition of the tail.

use std::sync::Arc;

use tidings_engine::log::{
    Commit, CommitError, Committed, Of, Operation, Outcome, ProducerRefusal, Refer, Refusal,
};
use tidings_model::{LogId, Position};
use tidings_streams::table::Declined as StreamDeclined;
use tidings_streams::{
    AppendRequest, Appended, Body, Change as StreamChange, Found, Freshness, Owner, Prepared, StreamError,
    StreamKey,
};

use crate::breaker::Permission;
use crate::life::ExpiredSubscribers;
use crate::subscribe::ATTEMPTS;
use crate::table::{Change, Expected, Progress};
use crate::{Declined, SessionError, Sessions, Source};

/// A durable append and the outcome of its fan-out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The append.
    pub appended: Appended,
    /// Outcome of the fan-out.
    pub fanout: Fanout,
}

/// Outcome of a fan-out at the time the publish returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fanout {
    /// How the record is delivered.
    pub mode: Mode,
    /// Sessions subscribed to the source.
    pub count: usize,
    /// Sessions the record was delivered to.
    pub successes: usize,
    /// Sessions the record could not be delivered to.
    pub failures: usize,
}

impl Fanout {
    fn left_out(mode: Mode, count: usize) -> Self {
        Self { mode, count, successes: 0, failures: 0 }
    }
}

/// How a record is delivered to sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the commit of the append.
    Inline,
    /// By the follower, because there are many subscribers or the follower has a backlog.
    Queued,
    /// By the follower, because the circuit is open.
    CircuitOpen,
    /// Not at all: there are too many subscribers for inline fan-out, and the operator has disabled the queue.
    Skipped,
}

impl Mode {
    /// Name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Queued => "queued",
            Self::CircuitOpen => "circuit-open",
            Self::Skipped => "skipped",
        }
    }
}

/// Attempts to fan out inline while the subscribers change concurrently. After that, delivery is left to the follower,
/// which tolerates such changes.
const INLINE_ATTEMPTS: usize = 4;

/// Whether a publish has used up its attempts to fan out inline.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InlineAttempts {
    Exhausted,
    Left,
}

/// Plan for one attempt to append and fan out.
struct Attempt {
    mode: Mode,
    /// Delivery mode that the commit expects of the source or switches it to.
    step: Step,
    /// Whether the breaker granted this attempt and must be told its outcome.
    asked: bool,
}

/// What a commit expects or changes of a source's delivery mode.
#[derive(Clone, Copy)]
enum Step {
    /// The mode stays as it is.
    Stay(Expected),
    /// The follower delivers from now on.
    ToFollower,
    /// The follower has no backlog; publishes deliver inline from now on.
    FromFollower { version: u64 },
}

impl Sessions {
    /// Appends to a source and fans out to its subscribers. Succeeds once the append is durable, whatever the outcome
    /// of the fan-out.
    pub async fn publish(&self, key: &StreamKey, request: &AppendRequest) -> Result<Published, SessionError> {
        let began = self.clock.elapsed();
        let published = self.append(key, request).await;
        let took = self.clock.elapsed().saturating_sub(began);
        match &published {
            Ok(_) => self.events.publish.took(took),
            Err(error) => self.events.publish_failed(kind(error)),
        }
        published
    }

    /// Appends and fans out like [`publish`](Self::publish), without counting a publish event.
    pub async fn append(&self, key: &StreamKey, request: &AppendRequest) -> Result<Published, SessionError> {
        let mut trims = true;
        for attempt in 0..ATTEMPTS {
            let found = self.streams.describe(key).await?;
            if found.stream.owner == Owner::Session && !matches!(request.body, Body::Nothing) {
                return Err(SessionError::SessionStream);
            }
            let mut prepared = self.streams.prepare(key, &found, request).await?;
            if trims && let Some(commit) = self.streams.trimmed(key, &found, &prepared).await {
                prepared.commit = commit;
            }
            let source = self.heard_source(found.stream.log).await?;
            let outcome = match source.filter(|_| prepared.adds()) {
                None => self.append_alone(key, &found, prepared).await,
                Some(source) => {
                    let attempts = if attempt < INLINE_ATTEMPTS {
                        InlineAttempts::Left
                    } else {
                        InlineAttempts::Exhausted
                    };
                    self.append_to(key, &found, source, prepared, request.conditions.tail, attempts).await
                }
            };
            match outcome {
                Ok(Some(published)) => return Ok(published),
                // A concurrent change interfered; try again.
                Ok(None) => {}
                Err(SessionError::Stream(StreamError::Contended)) if trims => trims = false,
                Err(error) => return Err(error),
            }
        }
        Err(SessionError::Contended)
    }

    /// Looks up a log as a source. Expired subscribers are ended first, so that they are not counted and nothing is
    /// delivered to them.
    pub(crate) async fn heard_source(&self, log: LogId) -> Result<Option<Arc<Source>>, SessionError> {
        let Some(source) = self.store.source(log).await? else { return Ok(None) };
        if self.end_lapsed(log).await? == ExpiredSubscribers::None {
            return Ok(Some(source));
        }
        Ok(self.store.source(log).await?)
    }

    /// Appends to a stream without subscribers, or only closes a stream.
    async fn append_alone(
        &self,
        key: &StreamKey,
        found: &Found,
        prepared: Prepared,
    ) -> Result<Option<Published>, SessionError> {
        let log = found.stream.log;
        let adds = prepared.adds();
        let mut commit = with_own(prepared.commit.clone());
        if adds {
            // If a session subscribes concurrently, the commit is refused and retried with fan-out.
            commit = commit.changing(Change::Expect { source: log, expected: Expected::Nobody });
        }
        let committed = self.commit_append(key, found, commit).await;
        if matches!(committed, Err(CommitError::Declined(Declined::Moved))) {
            return Ok(None);
        }
        let appended = prepared.finish(of_streams(committed)?)?;
        // The commit ensures that there were no subscribers for added records. A close may have had some.
        let count = match adds {
            true => 0,
            false => self.heard_source(log).await?.map_or(0, |source| source.targets.len()),
        };
        Ok(Some(Published { appended, fanout: Fanout::left_out(Mode::Inline, count) }))
    }

    async fn append_to(
        &self,
        key: &StreamKey,
        found: &Found,
        source: Arc<Source>,
        prepared: Prepared,
        expected_tail: Option<Position>,
        attempts: InlineAttempts,
    ) -> Result<Option<Published>, SessionError> {
        let (log, count) = (found.stream.log, source.targets.len());
        let attempt = self.plan(log, &source, expected_tail.unwrap_or(found.status.tail), attempts);
        let mut commit = with_own(prepared.commit.clone());
        attempt.step.put(&mut commit, log, found.status.tail);
        if attempt.mode == Mode::Inline {
            for piece in source.targets.pieces() {
                commit = commit.with(Refer { of: Of::Append(Prepared::APPEND), into: piece.clone() });
            }
        }
        // Releases the row, so that a concurrent change need not copy it.
        drop(source);
        let began = self.clock.elapsed();
        let committed = self.commit_append(key, found, commit).await;
        let took = self.clock.elapsed().saturating_sub(began);
        let referred = committed.as_ref().ok().map(Referral::of);
        let moved = match &committed {
            Err(CommitError::Declined(Declined::Moved)) => true,
            // Without a tail condition in the request, the tail was checked only for the mode switch.
            Err(CommitError::Refused(Refusal::TailMoved { .. })) => expected_tail.is_none(),
            _ => false,
        };
        let appended = match moved {
            true => None,
            false => of_streams(committed)
                .and_then(|committed| Ok(prepared.finish(committed)?))
                .map(Some)
                .inspect_err(|_| self.abandon(log, &attempt))?,
        };
        let (Some(appended), Some(referral)) = (&appended, referred) else {
            self.abandon(log, &attempt);
            // Nothing was appended, so nothing was fanned out: the append is a duplicate, or must be tried again.
            let fanout = Fanout::left_out(Mode::Inline, count);
            return Ok(appended.map(|appended| Published { appended, fanout }));
        };
        debug_assert_eq!(appended.freshness, Freshness::New);
        let fanout = self.settle(log, count, &attempt, &referral, took);
        self.remove_stale(log, referral.missing).await;
        Ok(Some(Published { appended: appended.clone(), fanout }))
    }

    /// Makes a commit that begins with a prepared append, and enters its messages into the journal.
    async fn commit_append(
        &self,
        key: &StreamKey,
        found: &Found,
        commit: Commit<Change>,
    ) -> Result<Committed, CommitError<Declined>> {
        let make = |commit| self.store.commit(commit);
        self.streams.commit_append(key, &found.stream, commit, Prepared::APPEND, make).await
    }

    /// Counts the outcome of a fan-out, records it with the breaker, and wakes the follower if delivery is left to it.
    fn settle(
        &self,
        log: LogId,
        count: usize,
        attempt: &Attempt,
        referral: &Referral,
        took: std::time::Duration,
    ) -> Fanout {
        if attempt.mode != Mode::Inline {
            if attempt.mode != Mode::Skipped {
                self.follower.notify(log);
                self.events.fanout_queued.took(took);
            }
            return Fanout::left_out(attempt.mode, count);
        }
        let reached = count.saturating_sub(referral.missing.len() + referral.closed);
        self.events.delivered_inline.add((reached * referral.records) as u64);
        let late = took > self.options.fanout_timeout;
        let failures = if late { referral.closed + reached } else { referral.closed };
        let successes = if late { 0 } else { reached };
        self.events.fanout.took(took);
        if attempt.asked {
            let (now, options) = (self.clock.now(), self.options.breaker);
            self.with_breaker(log, |breaker| breaker.record(successes, failures, now, options));
        }
        Fanout { mode: Mode::Inline, count, successes, failures }
    }

    fn abandon(&self, log: LogId, attempt: &Attempt) {
        if attempt.asked {
            self.with_breaker(log, |breaker| breaker.abandon());
        }
    }

    /// Decides how an append to a source with this tail is fanned out.
    fn plan(&self, log: LogId, source: &Source, tail: Position, attempts: InlineAttempts) -> Attempt {
        let (count, version) = (source.targets.len(), source.version);
        // `follower` lets the follower deliver; `publisher`, if possible, delivers inline.
        let (follower, publisher) = match &source.progress {
            Progress::Inline => (Step::ToFollower, Some(Step::Stay(Expected::Inline { version }))),
            Progress::Following { cursor, .. } => {
                let finished = cursor.is_at_rest() && cursor.done == tail;
                (Step::Stay(Expected::Following), finished.then_some(Step::FromFollower { version }))
            }
        };
        let left = |mode| Attempt { mode, step: follower, asked: false };
        let many = self.options.queue && count > self.options.fanout_queue_threshold;
        if many || attempts == InlineAttempts::Exhausted {
            return left(Mode::Queued);
        }
        // A new record must not overtake the follower's backlog.
        let Some(step) = publisher else { return left(self.waiting_mode(log)) };
        if !self.options.queue && count > self.options.max_inline_fanout {
            return Attempt { mode: Mode::Skipped, step, asked: false };
        }
        let (now, options) = (self.clock.now(), self.options.breaker);
        match self.with_breaker(log, |breaker| breaker.ask(now, options)) {
            Permission::Granted | Permission::Trial => Attempt { mode: Mode::Inline, step, asked: true },
            Permission::Denied => left(Mode::CircuitOpen),
        }
    }

    fn waiting_mode(&self, log: LogId) -> Mode {
        if self.with_breaker(log, |breaker| breaker.is_closed()) { Mode::Queued } else { Mode::CircuitOpen }
    }

    /// Unsubscribes sessions that no longer exist. A failure is only logged: the next fan-out finds them again.
    pub(crate) async fn remove_stale(&self, source: LogId, sessions: Vec<LogId>) {
        if sessions.is_empty() {
            return;
        }
        let remove = |session| Change::Unsubscribe { session, source };
        let changes = sessions.into_iter().map(remove).collect();
        if let Err(error) = self.store.commit(Commit { changes, ..Commit::new() }).await {
            tracing::warn!(%error, "could not remove subscribers that are not there any more");
        }
    }
}

impl Step {
    /// Adds the expectation or the change to the commit, and the tail condition it needs.
    fn put(self, commit: &mut Commit<Change>, source: LogId, tail: Position) {
        // A tail condition of the request is kept: if it does not name the actual tail, the commit is refused.
        let expected = match commit.operations.get_mut(Prepared::APPEND) {
            Some(Operation::Append(append)) => &mut append.conditions.tail,
            _ => return,
        };
        let change = match self {
            Self::Stay(expected) => Change::Expect { source, expected },
            Self::ToFollower => Change::Follow { source, after: *expected.get_or_insert(tail) },
            Self::FromFollower { version } => {
                Change::Rest { source, version, at: *expected.get_or_insert(tail) }
            }
        };
        commit.changes.push(change);
    }
}

/// Outcome of the references of a commit.
struct Referral {
    records: usize,
    missing: Vec<LogId>,
    closed: usize,
}

impl Referral {
    fn of(committed: &Committed) -> Self {
        let mut referral = Self { records: 0, missing: Vec::new(), closed: 0 };
        for outcome in &committed.outcomes {
            match outcome {
                Outcome::Done => {}
                Outcome::Appended(appended) => {
                    let (first, last) = (appended.first.parts().1, appended.last.parts().1);
                    referral.records = usize::try_from(last - first + 1).unwrap_or(1);
                }
                Outcome::Referred(referred) => {
                    referral.missing.extend(&referred.missing);
                    referral.closed += referred.closed.len();
                }
            }
        }
        referral
    }
}

fn with_own(commit: Commit<StreamChange>) -> Commit<Change> {
    let Commit { operations, changes, rows } = commit;
    Commit { operations, changes: changes.into_iter().map(Change::Streams).collect(), rows }
}

/// Result of a commit in terms of streams.
type OfStreams = Result<Committed, CommitError<StreamDeclined>>;

fn of_streams(committed: Result<Committed, CommitError<Declined>>) -> Result<OfStreams, SessionError> {
    match committed {
        Ok(committed) => Ok(Ok(committed)),
        Err(CommitError::Refused(refusal)) => Ok(Err(CommitError::Refused(refusal))),
        Err(CommitError::Store(error)) => Ok(Err(CommitError::Store(error))),
        Err(CommitError::Declined(Declined::Streams(declined))) => Ok(Err(CommitError::Declined(declined))),
        Err(error @ CommitError::Declined(_)) => Err(error.into()),
    }
}

/// Kind of an error as a metric label: one of a small fixed set.
fn kind(error: &SessionError) -> &'static str {
    match error {
        SessionError::Stream(StreamError::NotFound | StreamError::Gone) => "not_found",
        SessionError::SessionStream => "session_stream",
        SessionError::Stream(StreamError::Closed { .. }) => "closed",
        SessionError::Stream(StreamError::ContentTypeMismatch { .. }) => "content_type",
        SessionError::Stream(StreamError::Store(_) | StreamError::Unexpected(_)) => "store",
        SessionError::Stream(
            StreamError::TailMoved { .. }
            | StreamError::OutOfOrder
            | StreamError::Producer(
                ProducerRefusal::Fenced { .. } | ProducerRefusal::Gap { .. } | ProducerRefusal::EpochStart,
            ),
        ) => "condition",
        SessionError::Contended | SessionError::Stream(StreamError::Contended) => "contended",
        _ => "invalid",
    }
}
