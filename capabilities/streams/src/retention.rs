//! Retention: the limits of a stream, the floor that follows from them, and when records are really removed.
//!
//! The exact floor is computed when a stream is read. The stored [`Floor`] lags behind: it is raised by a
//! read or an append that finds enough to remove, and by the sweep. So an append needs no further commit, and
//! computing the floor reads no more than the records that are about to be removed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use tidings_engine::log::{Commit, CommitError, LogTotals, Operation, Record, Span, StoreError};
use tidings_model::{LogId, Position, Timestamp, limits};

use crate::table::{BelowFloor, Change};
use crate::{Found, Prepared, Stream, StreamError, StreamKey, Streams};

/// The limits of a stream. `None` means unlimited. They never change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Maximum age of records.
    pub age: Option<Duration>,
    /// Maximum bytes of payloads; the oldest records are removed first. The last record stays whatever its
    /// size.
    pub bytes: Option<u64>,
    /// Maximum number of messages; the oldest are removed first.
    pub messages: Option<u64>,
}

/// The limits of a stream that has any, and its stored floor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retained {
    /// The limits.
    pub limits: Retention,
    /// What a fork inherited from its source. Only known when there is a limit of bytes or messages.
    pub inherited: LogTotals,
    /// The stored floor; the exact one may be higher.
    pub floor: Floor,
}

/// The start of the records that a stream keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Floor {
    /// Records at or below this position are gone.
    pub position: Position,
    /// Records and bytes removed since the stream was created.
    pub gone: LogTotals,
}

/// Holds records that a stream no longer keeps for another component. Readers do not see them, but they stay
/// in the log.
pub trait Hold: Send + Sync + 'static {
    /// The records of a log after this position are needed; `None` if none is. The position only grows, and a
    /// new need begins at the tail.
    fn after(&self, log: LogId) -> BoxFuture<'_, Result<Option<Position>, StoreError>>;
}

/// Attempts to compute the floor while the stream is being trimmed.
const ATTEMPTS: usize = 16;
/// Records of the first page when the floor is searched; each further page is larger.
const PAGE: usize = 64;
/// Streams with limits that one sweep examines; the next one continues behind them.
const RETAINED_PER_SWEEP: usize = 4096;
/// Streams trimmed concurrently, so that they share commits.
const TRIMS_AT_A_TIME: usize = 64;

impl Retention {
    /// Whether there are no limits.
    pub fn is_unlimited(self) -> bool {
        self == Self::default()
    }

    /// These limits, completed with those of a source where they are unlimited.
    pub(crate) fn or(self, source: Self) -> Self {
        Self {
            age: self.age.or(source.age),
            bytes: self.bytes.or(source.bytes),
            messages: self.messages.or(source.messages),
        }
    }

    /// Whether there is a limit of bytes or messages, which needs totals.
    pub(crate) fn counts(self) -> bool {
        self.bytes.is_some() || self.messages.is_some()
    }

    fn exceeded_by(self, kept: LogTotals) -> bool {
        self.messages.is_some_and(|max| kept.records > max)
            || (self.bytes.is_some_and(|max| kept.bytes > max) && kept.records > 1)
    }

    /// Whether a record exceeds the maximum age.
    pub(crate) fn outlived(self, record: &Record, now: Timestamp) -> bool {
        self.age.is_some_and(|age| record.at + age <= now)
    }

    /// Whether removing this much is worth a commit: about a quarter of the limits, within bounds. Computing
    /// the floor reads the removable records, so there should not be many.
    fn is_worth(self, gain: LogTotals) -> bool {
        const RECORDS: std::ops::RangeInclusive<u64> = 64..=1024;
        const BYTES: std::ops::RangeInclusive<u64> = (16 << 10)..=(limits::READ_CHUNK_BYTES as u64);
        let quarter = |max: Option<u64>| max.unwrap_or(u64::MAX) / 4;
        gain.records >= quarter(self.messages).clamp(*RECORDS.start(), *RECORDS.end())
            || gain.bytes >= quarter(self.bytes).clamp(*BYTES.start(), *BYTES.end())
    }
}

impl Retained {
    /// What a stream keeps above a floor, given the totals of its log.
    pub(crate) fn kept(&self, total: LogTotals, floor: Floor) -> LogTotals {
        self.inherited + total - floor.gone
    }

    /// The minimum by which the limits of bytes and messages are exceeded at these totals.
    fn excess(&self, total: LogTotals) -> LogTotals {
        let kept = self.kept(total, self.floor);
        let over = |kept: u64, max: Option<u64>| max.map_or(0, |max| kept.saturating_sub(max));
        LogTotals {
            records: over(kept.records, self.limits.messages),
            bytes: over(kept.bytes, self.limits.bytes),
        }
    }
}

impl Stream {
    /// The limits of the stream.
    pub fn retention(&self) -> Retention {
        self.retained.as_ref().map_or_else(Retention::default, |retained| retained.limits)
    }

    /// The stored floor of the stream; the exact one may be higher.
    pub fn floor(&self) -> Floor {
        self.retained.as_ref().map_or_else(Floor::default, |retained| retained.floor)
    }
}

impl Streams {
    /// Computes the exact floor of a stream at this moment.
    pub async fn floor(&self, key: &StreamKey, found: &Found) -> Result<Floor, StreamError> {
        let Some(retained) = &found.stream.retained else { return Ok(Floor::default()) };
        let floor = self.search(key, found).await?;
        if retained.limits.is_worth(floor.gone - retained.floor.gone) {
            self.trim(key, &found.stream, floor).await?;
        }
        Ok(floor)
    }

    /// The commit of an append extended by a trim, when that is worth it. It is declined if the stream is
    /// forked meanwhile.
    pub async fn trimmed(
        &self,
        key: &StreamKey,
        found: &Found,
        prepared: &Prepared,
    ) -> Option<Commit<Change>> {
        let retained = found.stream.retained.as_ref()?;
        if !retained.limits.is_worth(retained.excess(found.status.total + prepared.totals())) {
            return None;
        }
        // On an error the append goes on without a trim, and reports the error itself if it is lasting.
        let floor = self.search(key, found).await.ok()?;
        if floor.position <= found.stream.floor().position {
            return None;
        }
        let free = self.free(&found.stream, floor).await.ok()?;
        Some(trimming(prepared.commit.clone(), key, &found.stream, floor, free))
    }

    /// Trims some of the streams that have limits; the next call continues behind them. Returns how many were
    /// trimmed.
    pub async fn trim_retained(&self) -> Result<usize, StreamError> {
        let after = self.swept_through.lock().expect("nobody panics while holding it").clone();
        let keys = self.store.retained(after.as_ref(), RETAINED_PER_SWEEP).await?;
        let last = keys.last().filter(|_| keys.len() == RETAINED_PER_SWEEP).cloned();
        *self.swept_through.lock().expect("nobody panics while holding it") = last;
        let sweep = |key| async move { self.sweep_one(&key).await };
        let mut trims = stream::iter(keys).map(sweep).buffer_unordered(TRIMS_AT_A_TIME);
        let mut trimmed = 0;
        while let Some(swept) = trims.next().await {
            trimmed += usize::from(swept?);
        }
        Ok(trimmed)
    }

    /// Trims one stream. Returns whether there was anything to trim.
    async fn sweep_one(&self, key: &StreamKey) -> Result<bool, StreamError> {
        let searched = match self.describe(key).await {
            Ok(found) => self.search(key, &found).await.map(|floor| (found, floor)),
            Err(error) => Err(error),
        };
        let (found, floor) = match searched {
            Ok(searched) => searched,
            Err(StreamError::Store(error)) => return Err(error.into()),
            // Removed or being changed; the next sweep looks again.
            Err(_) => return Ok(false),
        };
        let free = self.free(&found.stream, floor).await?;
        let is_trimmed = free.is_none_or(|free| free <= found.status.floor);
        if floor.position <= found.stream.floor().position && is_trimmed {
            return Ok(false);
        }
        self.trim(key, &found.stream, floor).await.map(|()| true)
    }

    /// The position up to which the log may be trimmed; `None` when forks hold all of it. Must be called
    /// after the floor was computed: then no new need below it can arise.
    async fn free(&self, stream: &Stream, floor: Floor) -> Result<Option<Position>, StreamError> {
        if stream.forks > 0 {
            return Ok(None);
        }
        let held = match &self.hold {
            Some(hold) => hold.after(stream.log).await?,
            None => None,
        };
        Ok(Some(held.map_or(floor.position, |held| held.min(floor.position))))
    }

    /// Stores a floor and trims the log below it, as far as it is not held. Does nothing if the stream is
    /// changed concurrently or the disk is full; a later call will.
    async fn trim(&self, key: &StreamKey, stream: &Stream, floor: Floor) -> Result<(), StreamError> {
        let free = self.free(stream, floor).await?;
        match self.store.commit(trimming(Commit::new(), key, stream, floor, free)).await {
            Ok(_) | Err(CommitError::Declined(_) | CommitError::Refused(_)) => Ok(()),
            Err(CommitError::Store(StoreError::NoSpace)) => Ok(()),
            Err(CommitError::Store(error)) => Err(error.into()),
        }
    }

    /// Computes the floor; tries again when the stream is trimmed meanwhile.
    async fn search(&self, key: &StreamKey, found: &Found) -> Result<Floor, StreamError> {
        if let Some(floor) = self.cut(found).await? {
            return Ok(floor);
        }
        for _ in 0..ATTEMPTS {
            let again = self.describe(key).await?;
            if again.stream.log != found.stream.log {
                return Err(StreamError::NotFound);
            }
            if let Some(floor) = self.cut(&again).await? {
                return Ok(floor);
            }
        }
        Err(StreamError::Contended)
    }

    /// The floor at the moment when the stream was looked up; `None` when it was trimmed since and cannot be
    /// computed.
    async fn cut(&self, found: &Found) -> Result<Option<Floor>, StreamError> {
        let Some(retained) = &found.stream.retained else { return Ok(Some(Floor::default())) };
        let now = self.clock.now();
        let mut floor = retained.floor;
        let kept = |floor| retained.kept(found.status.total, floor);
        // Without excess, the first record usually shows that none is too old either.
        let mut records = if retained.limits.exceeded_by(kept(floor)) { PAGE } else { 1 };
        while floor.position < found.status.tail {
            if retained.limits.age.is_none() && !retained.limits.exceeded_by(kept(floor)) {
                break;
            }
            let span = Span { through: found.status.tail, records, ..Span::after(floor.position) };
            let page = match found.stream.read(&*self.store, span).await {
                Err(StreamError::Trimmed { .. }) => return Ok(None),
                page => page?,
            };
            if page.status.floor > retained.floor.position {
                return Ok(None);
            }
            let gone = |floor, record: &Record| {
                retained.limits.exceeded_by(kept(floor)) || retained.limits.outlived(record, now)
            };
            for record in &page.records {
                if !gone(floor, record) {
                    return Ok(Some(floor));
                }
                let gone = floor.gone + LogTotals::one(&record.payload);
                floor = Floor { position: record.position, gone };
            }
            if page.records.is_empty() {
                break;
            }
            records = (records * 4).clamp(PAGE, limits::READ_CHUNK_RECORDS);
        }
        Ok(Some(floor))
    }

    /// Records and bytes that a fork of the source inherits up to a position.
    pub(crate) async fn inheritance(
        &self,
        source: &Found,
        floor: Floor,
        through: Position,
    ) -> Result<LogTotals, StreamError> {
        if through == source.status.tail {
            match &source.stream.retained {
                Some(retained) if retained.limits.counts() => {
                    return Ok(retained.kept(source.status.total, floor));
                }
                None if source.stream.fork.is_none() => return Ok(source.status.total),
                _ => {}
            }
        }
        let mut totals = LogTotals::default();
        let mut after = floor.position;
        while after < through {
            let span = Span { through, ..Span::after(after) };
            let page = source.stream.read(&*self.store, span).await?;
            if page.records.is_empty() {
                break;
            }
            totals = totals + LogTotals::of(page.records.iter().map(|record| &record.payload));
            after = page.last(after);
        }
        Ok(totals)
    }
}

/// Adds a raised floor to a commit, and the trim of the log as far as it is [free](Streams::free).
fn trimming(
    commit: Commit<Change>,
    key: &StreamKey,
    stream: &Stream,
    floor: Floor,
    free: Option<Position>,
) -> Commit<Change> {
    let change = |below| Change::Trim { key: key.clone(), log: stream.log, floor, below };
    match free {
        None => commit.changing(change(BelowFloor::Held)),
        Some(free) => commit
            .with(Operation::Trim { log: stream.log, floor: free })
            .changing(change(BelowFloor::Trimmed)),
    }
}

/// The last stream that the sweep of streams with limits has examined.
pub(crate) type SweptThrough = Arc<std::sync::Mutex<Option<StreamKey>>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_record_stays_whatever_its_size() {
        let limits = Retention { bytes: Some(10), ..Retention::default() };
        assert!(limits.exceeded_by(LogTotals { records: 2, bytes: 11 }));
        assert!(!limits.exceeded_by(LogTotals { records: 2, bytes: 10 }));
        assert!(!limits.exceeded_by(LogTotals { records: 1, bytes: 11 }));
    }

    #[test]
    fn a_trim_is_worth_a_quarter_of_what_may_stay_within_bounds() {
        let worth = |messages, records| {
            Retention { messages: Some(messages), ..Retention::default() }
                .is_worth(LogTotals { records, bytes: 0 })
        };
        assert!(!worth(1, 63) && worth(1, 64));
        assert!(!worth(1000, 249) && worth(1000, 250));
        assert!(!worth(1_000_000, 1023) && worth(1_000_000, 1024));
    }

    #[test]
    fn what_a_fork_does_not_name_it_has_from_its_source() {
        let source = Retention { age: Some(Duration::from_secs(1)), messages: Some(3), bytes: None };
        let asked = Retention { messages: Some(5), ..Retention::default() };
        assert_eq!(asked.or(source), Retention { messages: Some(5), ..source });
    }
}
