//! How much of a stream is kept: its limits, the floor they make, and when records really go.
//!
//! Where the kept records begin is worked out when somebody looks, and is exact then. What is stored, a stream's
//! [`Floor`], follows behind: it is raised when a look or an append finds enough to let go of, and by the sweep. So an
//! append costs no commit more, and a look reads no more than a stretch of records that are about to go.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use tidings_engine::log::{Commit, CommitError, LogTotals, Operation, Record, Span, StoreError};
use tidings_model::{LogId, Position, Timestamp, limits};

use crate::table::{Below, Change};
use crate::{Found, Prepared, Stream, StreamError, StreamKey, Streams};

/// What a stream keeps at most. What is not named has no limit. Never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Records that are this old go.
    pub age: Option<Duration>,
    /// When payloads take more than this, the oldest records go. The last one stays whatever its size.
    pub bytes: Option<u64>,
    /// When there are more messages, the oldest go.
    pub messages: Option<u64>,
}

/// The limits of a stream that has any, and how far they have taken it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retained {
    /// The limits.
    pub limits: Retention,
    /// What a fork took over from its source. Only known when a limit of bytes or messages needs it.
    pub inherited: LogTotals,
    /// Where the kept records began when that was last written down.
    pub floor: Floor,
}

/// Where the kept records of a stream begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Floor {
    /// Records at or below this are gone.
    pub position: Position,
    /// How much that was since the stream began.
    pub gone: LogTotals,
}

/// Whoever still needs records that a stream does not keep any more. Readers do not see them, but they stay in the log.
pub trait Hold: Send + Sync + 'static {
    /// Records of a log after this position are needed; none when none are. It only ever moves up, and whoever begins to
    /// need something needs what comes after the tail.
    fn after(&self, log: LogId) -> BoxFuture<'_, Result<Option<Position>, StoreError>>;
}

/// How often a look that met a trim looks again.
const ATTEMPTS: usize = 16;
/// Records of a page when the floor is searched behind the first record; each further page is larger.
const PAGE: usize = 64;
/// Streams with limits that one sweep looks at; the next one goes on behind them.
const RETAINED_PER_SWEEP: usize = 4096;
/// Streams that a sweep trims at the same time, so that they share commits.
const TRIMS_AT_A_TIME: usize = 64;

impl Retention {
    /// Whether everything is kept.
    pub fn is_unlimited(self) -> bool {
        self == Self::default()
    }

    /// These limits, and those of a source where there is none.
    pub(crate) fn or(self, source: Self) -> Self {
        Self {
            age: self.age.or(source.age),
            bytes: self.bytes.or(source.bytes),
            messages: self.messages.or(source.messages),
        }
    }

    /// Whether it takes a count of what there is to know what goes.
    pub(crate) fn counts(self) -> bool {
        self.bytes.is_some() || self.messages.is_some()
    }

    fn exceeded_by(self, kept: LogTotals) -> bool {
        self.messages.is_some_and(|max| kept.records > max)
            || (self.bytes.is_some_and(|max| kept.bytes > max) && kept.records > 1)
    }

    /// Whether a record is too old to be read.
    pub(crate) fn outlived(self, record: &Record, now: Timestamp) -> bool {
        self.age.is_some_and(|age| record.at + age <= now)
    }

    /// Whether what could go is worth a commit: about a quarter of what may stay, within bounds. A look reads what
    /// could go to find its end, so it should not be much.
    fn is_worth(self, gain: LogTotals) -> bool {
        const RECORDS: std::ops::RangeInclusive<u64> = 64..=1024;
        const BYTES: std::ops::RangeInclusive<u64> = (16 << 10)..=(limits::READ_CHUNK_BYTES as u64);
        let quarter = |max: Option<u64>| max.unwrap_or(u64::MAX) / 4;
        gain.records >= quarter(self.messages).clamp(*RECORDS.start(), *RECORDS.end())
            || gain.bytes >= quarter(self.bytes).clamp(*BYTES.start(), *BYTES.end())
    }
}

impl Retained {
    /// What there is of a log that ever took so much.
    pub(crate) fn kept(&self, total: LogTotals, floor: Floor) -> LogTotals {
        self.inherited + total - floor.gone
    }

    /// How much lies beyond the limits of bytes and messages if so much is added, at least.
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
    /// What it keeps at most.
    pub fn retention(&self) -> Retention {
        self.retained.as_ref().map_or_else(Retention::default, |retained| retained.limits)
    }

    /// Where its kept records began when that was last written down.
    pub fn floor(&self) -> Floor {
        self.retained.as_ref().map_or_else(Floor::default, |retained| retained.floor)
    }
}

impl Streams {
    /// Where the kept records of a stream begin, exactly, at this moment.
    pub async fn floor(&self, key: &StreamKey, found: &Found) -> Result<Floor, StreamError> {
        let Some(retained) = &found.stream.retained else { return Ok(Floor::default()) };
        let floor = self.search(key, found).await?;
        if retained.limits.is_worth(floor.gone - retained.floor.gone) {
            self.trim(key, &found.stream, floor).await?;
        }
        Ok(floor)
    }

    /// The commit of an append that also trims, when that is worth it. It is declined when a fork comes meanwhile.
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
        // Nothing to let go of, or nothing that can be known: the append itself will tell.
        let floor = self.search(key, found).await.ok()?;
        if floor.position <= found.stream.floor().position {
            return None;
        }
        let free = self.free(&found.stream, floor).await.ok()?;
        Some(trimming(prepared.commit.clone(), key, &found.stream, floor, free))
    }

    /// Lets go of what lies beyond the limits in some of the streams that have any; the next call goes on behind them.
    /// Returns how many streams that concerned.
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

    /// Whether there was something to let go of.
    async fn sweep_one(&self, key: &StreamKey) -> Result<bool, StreamError> {
        let searched = match self.describe(key).await {
            Ok(found) => self.search(key, &found).await.map(|floor| (found, floor)),
            Err(error) => Err(error),
        };
        let (found, floor) = match searched {
            Ok(searched) => searched,
            Err(StreamError::Store(error)) => return Err(error.into()),
            // It has ended, or is being changed: the next sweep sees.
            Err(_) => return Ok(false),
        };
        let free = self.free(&found.stream, floor).await?;
        let is_trimmed = free.is_none_or(|free| free <= found.status.floor);
        if floor.position <= found.stream.floor().position && is_trimmed {
            return Ok(false);
        }
        self.trim(key, &found.stream, floor).await.map(|()| true)
    }

    /// Up to where the log may let go of what lies below a floor; none when forks hold all of it. To be asked when the
    /// floor is known: then nobody can come meanwhile and need something below it.
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

    /// Writes a floor down and lets go of what lies below, unless somebody holds it. If somebody changes the stream
    /// at the same time, or there is no space, another time will do.
    async fn trim(&self, key: &StreamKey, stream: &Stream, floor: Floor) -> Result<(), StreamError> {
        let free = self.free(stream, floor).await?;
        match self.store.commit(trimming(Commit::new(), key, stream, floor, free)).await {
            Ok(_) | Err(CommitError::Declined(_) | CommitError::Refused(_)) => Ok(()),
            Err(CommitError::Store(StoreError::NoSpace)) => Ok(()),
            Err(CommitError::Store(error)) => Err(error.into()),
        }
    }

    /// Searches for the floor; looks again when the stream is trimmed at the same time.
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

    /// The floor as of the moment at which the stream was found; none when it was trimmed since, so that what went
    /// cannot be counted.
    async fn cut(&self, found: &Found) -> Result<Option<Floor>, StreamError> {
        let Some(retained) = &found.stream.retained else { return Ok(Some(Floor::default())) };
        let now = self.clock.now();
        let mut floor = retained.floor;
        let kept = |floor| retained.kept(found.status.total, floor);
        // If there is not too much, the first record most often tells that there is nothing too old either.
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

    /// What a fork of the source inherits up to a position.
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

/// Adds that a stream's floor is raised, and that its log lets go of what is [free](Streams::free).
fn trimming(
    commit: Commit<Change>,
    key: &StreamKey,
    stream: &Stream,
    floor: Floor,
    free: Option<Position>,
) -> Commit<Change> {
    let change = |below| Change::Trim { key: key.clone(), log: stream.log, floor, below };
    match free {
        None => commit.changing(change(Below::Held)),
        Some(free) => {
            commit.with(Operation::Trim { log: stream.log, floor: free }).changing(change(Below::Gone))
        }
    }
}

/// Where the sweep of streams with limits goes on.
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
