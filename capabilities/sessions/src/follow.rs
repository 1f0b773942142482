//! What publishes left to later, delivered in order, each session once, by the engine's [`Follower`].
//!
//! What is left of a source is what lies between its stored cursor and its tail. A batch is some of its records for all who
//! hear it. Each commit puts the records into some sessions and moves the cursor, so a batch for many takes several: the
//! cursor then says which sessions have got it.
//!
//! [`Follower`]: tidings_engine::follow::Follower

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::follow::{self, Delivered, MovesCursor, Work};
use tidings_engine::log::{Commit, Committed, Of, Outcome, Refer, Span, StoreError};
use tidings_model::{LogId, Position, limits};
use tidings_streams::Hold;

use crate::table::{Change, Cursor, Progress};
use crate::{Declined, SessionError, Sessions, Store, Table, Targets};

/// References that one commit makes at most, unless a single record has more targets.
const REFERENCES: usize = 64 * 1024;
/// Bytes of records that one commit refers to; a single larger one is delivered all the same.
const BYTES: usize = limits::READ_CHUNK_BYTES;

impl Sessions {
    /// Delivers what publishes left to later, for ever.
    pub async fn follow(self) {
        self.follower.run(&self, &*self.clock).await;
    }

    /// Tells the follower of all that is left. Whoever leaves something tells it; but a publisher that stops waiting while
    /// its commit is made does not.
    pub async fn look_for_more(&self) -> Result<(), SessionError> {
        self.follower.look_for_more(self).await
    }

    /// Whether the follower has nothing to do.
    pub fn is_at_rest(&self) -> bool {
        self.follower.is_at_rest()
    }

    /// Gives part of a batch to its targets, and moves the cursor.
    async fn give(
        &self,
        source: LogId,
        batch: &DeliveryBatch,
        delivery: Delivery,
    ) -> Result<Delivered, SessionError> {
        let Delivery { was, now, targets } = delivery;
        let count = targets.len();
        let mut commit = Commit::new();
        if count > 0 {
            let of = Of::Stored { log: source, after: was.done, through: batch.through };
            commit = commit.with(Refer { of, into: targets.into() });
        }
        let cursor = Change::Advance { source, was, now, version: batch.version };
        let Some(committed) = follow::advance::<Table, _>(&*self.store, source, cursor, commit).await? else {
            return Ok(Delivered::Stale);
        };
        self.delivered(source, batch, count, committed).await;
        Ok(Delivered::Yes)
    }

    /// Counts what a commit gave to so many targets, and removes those that are not there.
    async fn delivered(&self, source: LogId, batch: &DeliveryBatch, count: usize, committed: Committed) {
        for outcome in committed.outcomes {
            if let Outcome::Referred(referred) = outcome {
                let reached = count - referred.missing.len() - referred.closed.len();
                self.events.delivered_later.add((reached * batch.records) as u64);
                self.remove_stale(source, referred.missing).await;
            }
        }
    }

    /// As many as a commit may have, in whole units.
    fn targets_per_commit(&self) -> usize {
        let most = self.options.targets_per_commit.clamp(1, limits::TARGETS_PER_COMMIT);
        let unit = self.options.fanout_queue_batch_size.clamp(1, most);
        most / unit * unit
    }
}

impl Work for Sessions {
    const NAME: &'static str = "sessions";

    type Batch = DeliveryBatch;
    type Error = SessionError;

    async fn backlog(&self) -> Result<Vec<LogId>, SessionError> {
        Ok(self.store.behind().await?)
    }

    async fn next(
        &self,
        log: LogId,
        stale: Option<DeliveryBatch>,
    ) -> Result<Option<DeliveryBatch>, SessionError> {
        let Some(source) = self.heard_source(log).await? else { return Ok(None) };
        let Progress::Following { cursor, late } = &source.progress else { return Ok(None) };
        let (cursor, version) = (*cursor, source.version);
        // Whoever comes when the records of a batch are there need not hear them. So it is worked out again for no more than
        // it had, and this ends; unless the last subscriber has gone meanwhile and somebody else has come, later.
        let most = stale.map(|batch| batch.through).filter(|through| *through > cursor.done);
        let most = most.unwrap_or(Position::MAX);
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
        let Some(extent) = follow::read_extent(&*self.store, log, span).await? else { return Ok(None) };
        let through = if cursor.is_at_rest() { extent.through } else { cursor.through };
        let records = extent.records.len();
        Ok(Some(DeliveryBatch { cursor, version, through, records, targets, late }))
    }

    async fn deliver(&self, source: LogId, batch: &DeliveryBatch) -> Result<Delivered, SessionError> {
        for delivery in batch.deliveries(self.targets_per_commit()) {
            if self.give(source, batch, delivery).await? == Delivered::Stale {
                return Ok(Delivered::Stale);
            }
        }
        Ok(Delivered::Yes)
    }
}

impl MovesCursor for Change {
    fn is_stale(refusal: &Declined) -> bool {
        // Somebody has come who has to hear it, or the source has gone.
        matches!(refusal, Declined::Moved)
    }
}

/// Some records of a source, for those of its subscribers who have not got them.
pub struct DeliveryBatch {
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
