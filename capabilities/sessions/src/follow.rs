//! Delivery of records that publishes left to the engine's [`Follower`]: in order, to each session exactly once.
//!
//! The backlog of a source is the records between its stored cursor and its tail. A batch is a range of these records
//! for all subscribers of the source. Each commit adds the records to some of the sessions and moves the cursor, so a
//! batch for many sessions takes several commits. In between, the cursor tells which sessions already have the batch.
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

/// Maximum references made by one commit, unless a single record has more targets.
const REFERENCES: usize = 64 * 1024;
/// Maximum bytes of records that one commit refers to. A single larger record is delivered all the same.
const BYTES: usize = limits::READ_CHUNK_BYTES;

impl Sessions {
    /// Runs the follower. Never returns.
    pub async fn follow(self) {
        self.follower.run(&self, &*self.clock).await;
    }

    /// Notifies the follower of every source with a backlog. A publish normally notifies it directly, but not when the
    /// publisher is cancelled while its commit is being made.
    pub async fn look_for_more(&self) -> Result<(), SessionError> {
        self.follower.look_for_more(self).await
    }

    /// Whether the follower has nothing to do.
    pub fn is_at_rest(&self) -> bool {
        self.follower.is_at_rest()
    }

    /// Delivers part of a batch to its targets and moves the cursor, in one commit.
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

    /// Counts the deliveries of a commit to `count` targets and unsubscribes those that no longer exist.
    async fn delivered(&self, source: LogId, batch: &DeliveryBatch, count: usize, committed: Committed) {
        for outcome in committed.outcomes {
            if let Outcome::Referred(referred) = outcome {
                let reached = count - referred.missing.len() - referred.closed.len();
                self.events.delivered_later.add((reached * batch.records) as u64);
                self.remove_stale(source, referred.missing).await;
            }
        }
    }

    /// Maximum targets of one commit, rounded down to whole units of `fanout_queue_batch_size`.
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
        // Sessions that subscribe after the records of a batch were appended need not receive them. A stale batch is
        // therefore recomputed only up to its previous end, so that this loop terminates, unless the last subscriber
        // left in the meantime and another one subscribed at a later position.
        let most = stale.map(|batch| batch.through).filter(|through| *through > cursor.done);
        let most = most.unwrap_or(Position::MAX);
        let first_late = late.values().copied().min().unwrap_or(Position::MAX);
        let late: Vec<LogId> = late.keys().copied().collect();
        let targets = source.targets.clone();
        // Releases the row, so that a concurrent change need not copy it.
        drop(source);
        let count = targets.len().min(self.targets_per_commit()).max(1);
        let span = Span { bytes: BYTES, records: (REFERENCES / count).max(1), ..Span::after(cursor.done) };
        let span = match cursor.is_at_rest() {
            // A batch must end where a late subscriber starts to receive records.
            true => Span { through: first_late.min(most), ..span },
            // Some sessions already have this batch, so the others must receive exactly the same records.
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
        // A session that must receive these records has subscribed, or the source is gone.
        matches!(refusal, Declined::Moved)
    }
}

/// A range of records of a source, for the subscribers that do not have them yet.
pub struct DeliveryBatch {
    /// Position of the follower when the batch was computed.
    cursor: Cursor,
    /// Version of the source's subscribers when the batch was computed.
    version: u64,
    targets: Targets,
    /// Subscribers among `targets` that subscribed after the records were appended. Sorted.
    late: Vec<LogId>,
    /// Position of the last record.
    through: Position,
    /// Number of records.
    records: usize,
}

/// Part of a batch that fits into one commit.
struct Delivery {
    was: Cursor,
    now: Cursor,
    targets: Vec<LogId>,
}

impl DeliveryBatch {
    /// Splits the batch into deliveries, in the order of the subscribers' log ids.
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

/// Retention hold: keeps records that the follower has not delivered yet, whatever the source's retention.
pub struct Undelivered(Arc<dyn Store>);

impl Undelivered {
    /// Creates a hold on the sources of a store.
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
