//! Appending to a source, and from there into the sessions that hear it.
//!
//! Every append to a stream comes through here, whoever makes it; for a stream that nobody subscribes to, that is one
//! lookup more. With few subscribers the references are in the commit of the append. With many, or while the follower still
//! has something to deliver, or while the circuit is open, they are left to the [follower](crate::follow): the record
//! lies behind its cursor, which is the durable hand-over. Which of both holds is in the source's row, and each commit says
//! what it rests on ([`Change::Expect`], or a change from one to the other together with the tail).

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
use crate::life::Lapsed;
use crate::subscribe::ATTEMPTS;
use crate::table::{Change, Expected, Progress};
use crate::{Declined, SessionError, Sessions, Source};

/// An append that holds, and what came of its fan-out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The append.
    pub appended: Appended,
    /// The fan-out.
    pub fanout: Fanout,
}

/// What came of a fan-out while the publisher waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fanout {
    /// Who made it.
    pub mode: Mode,
    /// How many sessions subscribe.
    pub count: usize,
    /// How many have it.
    pub successes: usize,
    /// How many could not be given it.
    pub failures: usize,
}

impl Fanout {
    fn left_out(mode: Mode, count: usize) -> Self {
        Self { mode, count, successes: 0, failures: 0 }
    }
}

/// How a record reaches the sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// With the append.
    Inline,
    /// By the follower, because there are many, or because it has more to deliver.
    Queued,
    /// By the follower, because deliveries have failed.
    CircuitOpen,
    /// Not at all: there are many, and the operator does not want the follower to do it.
    Skipped,
}

impl Mode {
    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Queued => "queued",
            Self::CircuitOpen => "circuit-open",
            Self::Skipped => "skipped",
        }
    }
}

/// How often a publish tries to deliver by itself when the subscribers change meanwhile. Then it leaves that to the
/// follower, who does not mind.
const INLINE_ATTEMPTS: usize = 4;

/// Whether a publish has been declined too often to deliver by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hurry {
    Yes,
    No,
}

/// How one attempt is made.
struct Attempt {
    mode: Mode,
    /// Where the source stands, and where that leaves it.
    step: Step,
    /// Whether the breaker waits to hear how it went.
    asked: bool,
}

/// What a commit changes of how a source's records reach its subscribers.
#[derive(Clone, Copy)]
enum Step {
    /// Nothing: it is so.
    Stay(Expected),
    /// From now on the follower delivers.
    ToFollower,
    /// The follower has nothing left, and is not needed from now on.
    FromFollower { version: u64 },
}

impl Sessions {
    /// Appends to a source and lets its subscribers hear it. Once the append is durable it has succeeded, whatever becomes
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

    /// The same for whoever appends to a stream.
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
                None => self.append_alone(&found, prepared).await,
                Some(source) => {
                    let hurry = if attempt < INLINE_ATTEMPTS { Hurry::No } else { Hurry::Yes };
                    self.append_to(&found, source, prepared, request.conditions.tail, hurry).await
                }
            };
            match outcome {
                Ok(Some(published)) => return Ok(published),
                // Somebody was quicker.
                Ok(None) => {}
                Err(SessionError::Stream(StreamError::Contended)) if trims => trims = false,
                Err(error) => return Err(error),
            }
        }
        Err(SessionError::Contended)
    }

    /// What is known of a log as a source. Of its subscribers those that have expired are ended before: they do not count, and
    /// nothing is delivered to them.
    pub(crate) async fn heard_source(&self, log: LogId) -> Result<Option<Arc<Source>>, SessionError> {
        let Some(source) = self.store.source(log).await? else { return Ok(None) };
        if self.end_lapsed(log).await? == Lapsed::None {
            return Ok(Some(source));
        }
        Ok(self.store.source(log).await?)
    }

    /// Appends to what nobody subscribes to, or what only closes.
    async fn append_alone(
        &self,
        found: &Found,
        prepared: Prepared,
    ) -> Result<Option<Published>, SessionError> {
        let log = found.stream.log;
        let adds = prepared.adds();
        let mut commit = with_own(prepared.commit.clone());
        if adds {
            // A subscriber that comes meanwhile must hear it.
            commit = commit.changing(Change::Expect { source: log, expected: Expected::Nobody });
        }
        let committed = self.store.commit(commit).await;
        if matches!(committed, Err(CommitError::Declined(Declined::Moved))) {
            return Ok(None);
        }
        let appended = prepared.finish(of_streams(committed)?)?;
        // What was added had nobody to hear it, as the commit says; what only closes may have.
        let count = match adds {
            true => 0,
            false => self.heard_source(log).await?.map_or(0, |source| source.targets.len()),
        };
        Ok(Some(Published { appended, fanout: Fanout::left_out(Mode::Inline, count) }))
    }

    async fn append_to(
        &self,
        found: &Found,
        source: Arc<Source>,
        prepared: Prepared,
        expected_tail: Option<Position>,
        hurry: Hurry,
    ) -> Result<Option<Published>, SessionError> {
        let (log, count) = (found.stream.log, source.targets.len());
        let attempt = self.plan(log, &source, expected_tail.unwrap_or(found.status.tail), hurry);
        let mut commit = with_own(prepared.commit.clone());
        attempt.step.put(&mut commit, log, found.status.tail);
        if attempt.mode == Mode::Inline {
            for piece in source.targets.pieces() {
                commit = commit.with(Refer { of: Of::Append(0), into: piece.clone() });
            }
        }
        // Whoever changes it meanwhile need not make a copy.
        drop(source);
        let began = self.clock.elapsed();
        let committed = self.store.commit(commit).await;
        let took = self.clock.elapsed().saturating_sub(began);
        let referred = committed.as_ref().ok().map(Referral::of);
        let moved = match &committed {
            Err(CommitError::Declined(Declined::Moved)) => true,
            // The tail was only named to change how records reach subscribers.
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
            // Nothing was appended, so nothing was fanned out: it was made before, or has to be tried again.
            let fanout = Fanout::left_out(Mode::Inline, count);
            return Ok(appended.map(|appended| Published { appended, fanout }));
        };
        debug_assert_eq!(appended.freshness, Freshness::New);
        let fanout = self.settle(log, count, &attempt, &referral, took);
        self.remove_stale(log, referral.missing).await;
        Ok(Some(Published { appended: appended.clone(), fanout }))
    }

    /// Counts what came of a fan-out, tells the breaker, and wakes the follower if it has something to do.
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
    fn plan(&self, log: LogId, source: &Source, tail: Position, hurry: Hurry) -> Attempt {
        let (count, version) = (source.targets.len(), source.version);
        // What keeps the follower in charge, and what takes over from it or goes on without it.
        let (follower, publisher) = match &source.progress {
            Progress::Inline => (Step::ToFollower, Some(Step::Stay(Expected::Inline { version }))),
            Progress::Following { cursor, .. } => {
                let finished = cursor.is_at_rest() && cursor.done == tail;
                (Step::Stay(Expected::Following), finished.then_some(Step::FromFollower { version }))
            }
        };
        let left = |mode| Attempt { mode, step: follower, asked: false };
        let many = self.options.queue && count > self.options.fanout_queue_threshold;
        if many || hurry == Hurry::Yes {
            return left(Mode::Queued);
        }
        // Nothing overtakes what the follower still has.
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

    /// Removes sessions that are not there any more. The next fan-out would find them again.
    pub(crate) async fn remove_stale(&self, source: LogId, sessions: Vec<LogId>) {
        if sessions.is_empty() {
            return;
        }
        let remove = |session| Change::Unsubscribe { session, source };
        let changes = sessions.into_iter().map(remove).collect();
        if let Err(error) = self.store.commit(Commit { operations: Vec::new(), changes }).await {
            tracing::warn!(%error, "could not remove subscribers that are not there any more");
        }
    }
}

impl Step {
    /// Adds what the commit rests on and changes.
    fn put(self, commit: &mut Commit<Change>, source: LogId, tail: Position) {
        // Whoever named another tail is refused by that, or was not when it is the tail after all.
        let expected = match commit.operations.first_mut() {
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

/// What came of the references of a commit.
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
    let Commit { operations, changes } = commit;
    Commit { operations, changes: changes.into_iter().map(Change::Streams).collect() }
}

/// What came of a commit in the words of streams, if it is theirs.
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

/// The kind of an error, for those who count: few, and known in advance.
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
