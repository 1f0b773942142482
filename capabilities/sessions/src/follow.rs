//! The follower: delivers what publishes left to later, in order, each session once, whatever happens in between.
//!
//! One task for all sources. It knows which may have something left ([`Backlog`](crate::backlog)); what is left is what lies
//! between a source's stored cursor and its tail. Each commit puts some records into some sessions and moves the cursor. If it
//! fails, nothing of it holds and the source is tried again, while others go on; after a restart the cursor says where to
//! go on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tidings_engine::Clock;
use tidings_engine::log::{Commit, CommitError, Of, Outcome, ReadError, Refer, Refusal, Span, StoreError};
use tidings_model::{LogId, Position, limits};
use tidings_streams::Hold;

use crate::subscribe::ATTEMPTS;
use crate::table::{Change, Cursor, Progress};
use crate::{Declined, SessionError, Sessions, Store, Targets};

/// How long a source rests that could not be delivered.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Sources that are delivered at the same time, so that they share syncs and none waits for a slow one.
const SOURCES_AT_A_TIME: usize = 16;
/// References that one commit makes at most, unless a single record has more targets.
const REFERENCES: usize = 64 * 1024;
/// Bytes of records that one commit refers to; a single larger one is delivered all the same.
const BYTES: usize = limits::READ_CHUNK_BYTES;

/// Whether there is more to do for a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// There is.
    More,
    /// Not now.
    Nothing,
}

impl Sessions {
    /// Delivers what is left, for ever.
    pub async fn follow(self) {
        // A follower before this one may have been dropped in the middle of its work.
        self.backlog.put_all_back();
        while let Err(error) = self.look_for_more().await {
            tracing::warn!(%error, "could not see what is left to deliver");
            self.clock.sleep(RETRY_AFTER).await;
        }
        let mut working = FuturesUnordered::new();
        let mut resting = Resting::default();
        loop {
            while working.len() < SOURCES_AT_A_TIME
                && let Some(source) = self.backlog.take()
            {
                working.push(self.deliver(source).map(move |delivered| (source, delivered)));
            }
            tokio::select! {
                Some((source, delivered)) = working.next() => match delivered {
                    Ok(Left::Nothing) => self.backlog.finish(source),
                    // Others get their turn in between.
                    Ok(Left::More) => self.backlog.put_back(source),
                    Err(error) => {
                        self.backlog.rest(source);
                        resting.add(source, self.clock.elapsed(), &error);
                    }
                },
                source = resting.next(&*self.clock) => self.backlog.put_back(source),
                () = self.backlog.more() => {}
            }
        }
    }

    /// Tells the follower of all that is left. Whoever leaves something tells it; but a publisher that stops waiting while
    /// its commit is made does not.
    pub async fn look_for_more(&self) -> Result<(), SessionError> {
        self.store.behind().await?.into_iter().for_each(|source| self.backlog.add(source));
        Ok(())
    }

    /// Whether the follower has nothing to do.
    pub fn is_at_rest(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Delivers a batch of a source's records to all who have to hear it, if something is left.
    pub async fn deliver(&self, log: LogId) -> Result<Left, SessionError> {
        let mut most = Position::MAX;
        for _ in 0..ATTEMPTS {
            let Some(batch) = self.next(log, most).await? else { return Ok(Left::Nothing) };
            // Whoever comes when these records are there need not hear them: so this ends.
            most = batch.through;
            if self.make(log, batch).await? == Made::Yes {
                break;
            }
        }
        Ok(Left::More)
    }

    /// What to deliver next: some records, up to this one at most.
    async fn next(&self, log: LogId, most: Position) -> Result<Option<DeliveryBatch>, SessionError> {
        let Some(source) = self.heard_source(log).await? else { return Ok(None) };
        let Progress::Following { cursor, late } = &source.progress else { return Ok(None) };
        let (cursor, version) = (*cursor, source.version);
        // The last one has gone meanwhile and somebody else has come, later.
        let most = if most > cursor.done { most } else { Position::MAX };
        let first_late = late.values().copied().min().unwrap_or(Position::MAX);
        let late: Vec<LogId> = late.keys().copied().collect();
        let targets = source.targets.clone();
        // Whoever changes it meanwhile need not make a copy.
        drop(source);
        let count = targets.len().min(self.targets_per_commit()).max(1);
        let span = Span { bytes: BYTES, records: (REFERENCES / count).max(1), ..Span::after(cursor.done) };
        let span = match cursor.is_at_rest() {
            // Those who came later begin to hear where a batch ends.
            true => Span { through: first_late.min(most), ..span },
            // What some have got is what all get.
            false => Span { through: cursor.through, bytes: usize::MAX, records: usize::MAX, ..span },
        };
        let Some((through, records)) = self.extent(log, span).await? else { return Ok(None) };
        let through = if cursor.is_at_rest() { through } else { cursor.through };
        Ok(Some(DeliveryBatch { cursor, version, through, records, targets, late }))
    }

    /// Gives a batch to those who have not got it, one commit after the other.
    async fn make(&self, log: LogId, batch: DeliveryBatch) -> Result<Made, SessionError> {
        for delivery in batch.deliveries(self.targets_per_commit()) {
            if self.commit(log, &batch, delivery).await? == Made::No {
                return Ok(Made::No);
            }
        }
        Ok(Made::Yes)
    }

    async fn commit(
        &self,
        log: LogId,
        batch: &DeliveryBatch,
        delivery: Delivery,
    ) -> Result<Made, SessionError> {
        let Delivery { was, now, targets } = delivery;
        let advance = Change::Advance { source: log, was, now, version: batch.version };
        let mut commit = Commit::new().changing(advance);
        let count = targets.len();
        if count > 0 {
            let of = Of::Stored { log, after: was.done, through: batch.through };
            commit = commit.with(Refer { of, into: targets.into() });
        }
        match self.store.commit(commit).await {
            Ok(committed) => {
                for outcome in committed.outcomes {
                    if let Outcome::Referred(referred) = outcome {
                        let reached = count - referred.missing.len() - referred.closed.len();
                        self.events.delivered_later.add((reached * batch.records) as u64);
                        self.remove_stale(log, referred.missing).await;
                    }
                }
                Ok(Made::Yes)
            }
            // Somebody has come who has to hear it, or the source has gone: look again.
            Err(CommitError::Declined(Declined::Moved) | CommitError::Refused(Refusal::NoSuchLog(_))) => {
                Ok(Made::No)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// How far a span of a source goes, and how many records that is; none when the source ends before it.
    async fn extent(&self, log: LogId, span: Span) -> Result<Option<(Position, usize)>, SessionError> {
        let page = match self.store.read(log, span).await {
            Ok(page) => page,
            Err(ReadError::NoSuchLog(_)) => return Ok(None),
            // That went before somebody subscribed; what came since is kept for the follower.
            Err(ReadError::Trimmed { floor, .. }) => return Ok(Some((floor.min(span.through), 0))),
            Err(ReadError::Store(error)) => return Err(error.into()),
        };
        if span.after >= page.status.tail {
            return Ok(None);
        }
        // Without records there is nothing up to the end of the span.
        let through = page.records.last().map_or(span.through.min(page.status.tail), |last| last.position);
        Ok(Some((through, page.records.len())))
    }

    /// As many as a commit may have, in whole units.
    fn targets_per_commit(&self) -> usize {
        let most = self.options.targets_per_commit.clamp(1, limits::TARGETS_PER_COMMIT);
        let unit = self.options.fanout_queue_batch_size.clamp(1, most);
        most / unit * unit
    }
}

/// Whether a delivery was made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    Yes,
    /// It is to be worked out again.
    No,
}

/// Some records of a source, for those of its subscribers who have not got them.
struct DeliveryBatch {
    /// Where the follower is.
    cursor: Cursor,
    /// The source's subscribers as they were.
    version: u64,
    targets: Targets,
    /// Those among them who came later than the records.
    late: Vec<LogId>,
    /// The last record.
    through: Position,
    /// How many records there are.
    records: usize,
}

/// Part of a batch, for as many as one commit can have.
struct Delivery {
    was: Cursor,
    now: Cursor,
    targets: Vec<LogId>,
}

impl DeliveryBatch {
    /// In the order of the subscribers' logs.
    fn deliveries(&self, targets_per_commit: usize) -> impl Iterator<Item = Delivery> + '_ {
        let mut next = Some(self.cursor);
        std::iter::from_fn(move || {
            let was = next.take()?;
            let mut rest = self.targets.above(was.reached.unwrap_or(LogId::new(0)));
            let mut targets: Vec<LogId> = rest.by_ref().take(targets_per_commit).collect();
            let now = match (rest.next(), targets.last()) {
                (Some(_), Some(&reached)) => {
                    let now = Cursor { done: was.done, through: self.through, reached: Some(reached) };
                    next = Some(now);
                    now
                }
                _ => Cursor::at_rest(self.through),
            };
            targets.retain(|target| self.late.binary_search(target).is_err());
            Some(Delivery { was, now, targets })
        })
    }
}

/// Sources that failed, in the order in which they are tried again.
#[derive(Default)]
struct Resting {
    sources: VecDeque<(Duration, LogId)>,
    told_at: Option<Duration>,
}

impl Resting {
    /// One has failed now. Of many that do, some are told: where one does, all may.
    fn add(&mut self, source: LogId, now: Duration, error: &SessionError) {
        if self.told_at.is_none_or(|at| now.saturating_sub(at) >= RETRY_AFTER) {
            self.told_at = Some(now);
            let failing = self.sources.len() + 1;
            tracing::warn!(%error, failing, "could not deliver to sessions; trying again");
        }
        self.sources.push_back((now + RETRY_AFTER, source));
    }

    /// The next one when its time has come; never when none rests.
    async fn next(&mut self, clock: &dyn Clock) -> LogId {
        let Some(&(due, source)) = self.sources.front() else { return std::future::pending().await };
        clock.sleep(due.saturating_sub(clock.elapsed())).await;
        self.sources.pop_front();
        source
    }
}

/// Keeps what the follower has not delivered yet, whatever its source keeps.
pub struct Undelivered(Arc<dyn Store>);

impl Undelivered {
    /// For the sources of a store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }
}

impl Hold for Undelivered {
    fn after(&self, log: LogId) -> BoxFuture<'_, Result<Option<Position>, StoreError>> {
        async move {
            let source = self.0.source(log).await?;
            Ok(source.and_then(|source| match &source.progress {
                Progress::Inline => None,
                Progress::Following { cursor, .. } => Some(cursor.done),
            }))
        }
        .boxed()
    }
}
