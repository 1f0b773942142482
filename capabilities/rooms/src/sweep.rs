//! What goes, and when.
//!
//! Events go when they are too old, from the oldest on, and the floor rises with that; for a reader that is connected and
//! behind they stay a little longer. Of reactions that replace each other
//! only the last stays: the others are left out when somebody reads, wherever they lie, and the floor does not move. How far
//! somebody has seen goes when it was not told for long. A clock that has just jumped ahead lets nothing go.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tidings_engine::log::{Commit, CommitError, Committed, Operation, ReadError, Record, Span, StoreError};
use tidings_model::{LogId, Position, Timestamp, limits};

use crate::event::{Event, ReactionKey};
use crate::rooms::Inner;
use crate::table::Change;
use crate::{Declined, Rooms};

/// How often it is written how far somebody has seen, and what was typed is let go.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Rooms, or users of rooms, that are looked for at a time.
const LOOKED_AT: usize = 4096;
/// Rooms that are trimmed at the same time, so that they share commits.
const TRIMS_AT_A_TIME: usize = 64;
/// Records of a page when the floor is searched behind the first record; each further page is larger.
const PAGE: usize = 64;
/// Who is connected and behind has one part in so many of the time that events are kept to hear them after that.
const HELD_FOR_PART: u32 = 10;
/// How far somebody has seen is known for so many times the time that events are kept.
const SEEN_FOR: u32 = 2;

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Rooms of which events went.
    pub trimmed: usize,
    /// Reactions that are left out from now on.
    pub collapsed: usize,
    /// Users of whom some device is forgotten.
    pub forgotten: usize,
}

/// What sweeps remember.
#[derive(Default)]
pub(crate) struct Sweeping {
    /// Rooms in which somebody has reacted to something since they were looked through.
    reacted: Mutex<HashSet<LogId>>,
    /// Whether all rooms were looked through since the start: nobody remembers what was before.
    looked_through: AtomicBool,
}

impl Sweeping {
    pub(crate) fn reacted(&self, log: LogId) {
        self.lock().insert(log);
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<LogId>> {
        self.reacted.lock().expect("nobody panics while holding them")
    }
}

impl Rooms {
    /// Lets go of what is too old, and leaves out reactions that later ones replace.
    pub async fn sweep(&self) -> Result<Swept, StoreError> {
        let inner = &self.inner;
        let swept = Swept {
            trimmed: inner.trim_all().await?,
            collapsed: inner.collapse_all().await?,
            forgotten: inner.forget_silent().await?,
        };
        inner.let_rest();
        Ok(swept)
    }

    /// Does for ever what is to be done now and then.
    pub async fn tend(self) {
        tokio::join!(self.write_for_ever(), self.sweep_for_ever());
    }

    async fn write_for_ever(&self) {
        loop {
            self.inner.clock.sleep(WRITE_INTERVAL).await;
            self.inner.forget_typing();
            if let Err(error) = self.write_noted().await {
                tracing::warn!(%error, "could not write how far somebody has seen a room; trying again later");
            }
        }
    }

    async fn sweep_for_ever(&self) {
        loop {
            self.inner.clock.sleep(self.inner.options.sweep_interval).await;
            match self.sweep().await {
                Ok(swept) if swept != Swept::default() => {
                    let Swept { trimmed, collapsed, forgotten } = swept;
                    tracing::debug!(trimmed, collapsed, forgotten, "swept rooms");
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "could not sweep rooms; trying again later"),
            }
        }
    }
}

impl Inner {
    /// Lets go of events that are too old, in all rooms. Returns in how many there were any.
    async fn trim_all(&self) -> Result<usize, StoreError> {
        let (mut trimmed, mut after) = (0, None);
        loop {
            let logs = self.store.rooms(after, LOOKED_AT).await?;
            let Some(&last) = logs.last() else { break };
            after = Some(last);
            let mut trims = stream::iter(logs).map(|log| self.trim(log)).buffer_unordered(TRIMS_AT_A_TIME);
            while let Some(trim) = trims.next().await {
                trimmed += usize::from(trim?);
            }
        }
        self.counts.trimmed.add(trimmed as u64);
        Ok(trimmed)
    }

    /// Whether there was something to let go of.
    async fn trim(&self, log: LogId) -> Result<bool, StoreError> {
        let Some(found) = self.store.found(log).await? else { return Ok(false) };
        let before = found.status.floor;
        let (retention, tail) = (self.options.retention, found.status.tail);
        let mut floor = self.too_old(log, before, tail, retention).await?;
        if let Some(reader) = self.channels.furthest_behind(log).filter(|reader| *reader < floor) {
            // Who is connected and behind is let hear it first, for a while: nobody keeps everything for everybody by taking
            // a little now and then. Its next look is from there.
            let held = retention.saturating_add(retention / HELD_FOR_PART);
            floor = self.too_old(log, before, tail, held).await?.max(reader);
        }
        if floor <= before {
            return Ok(false);
        }
        let commit = Commit::new().with(Operation::Trim { log, floor });
        let commit = match found.row.collapsed.first() {
            Some(first) if *first <= floor => commit.changing(Change::Prune { log, through: floor }),
            _ => commit,
        };
        made(self.commit(commit).await)
    }

    /// The last record that is of an age, or the floor.
    async fn too_old(
        &self,
        log: LogId,
        mut floor: Position,
        tail: Position,
        age: Duration,
    ) -> Result<Position, StoreError> {
        let now = self.now();
        // The first record most often tells that there is nothing.
        let mut records = 1;
        while floor < tail {
            let page = match self.store.read(log, Span { records, ..Span::after(floor) }).await {
                Ok(page) => page,
                Err(ReadError::Store(error)) => return Err(error),
                // It was trimmed by somebody else, or has ended.
                Err(ReadError::Trimmed { .. } | ReadError::NoSuchLog(_)) => return Ok(Position::ZERO),
            };
            let is_old = |record: &&Record| record.at + age <= now;
            let old = page.records.iter().take_while(is_old).count();
            floor = old.checked_sub(1).map_or(floor, |last| page.records[last].position);
            if old < page.records.len() || page.records.is_empty() {
                break;
            }
            records = (records * 4).clamp(PAGE, limits::READ_CHUNK_RECORDS);
        }
        Ok(floor)
    }

    /// Leaves out reactions that later ones replace, in all rooms in which there are new ones.
    async fn collapse_all(&self) -> Result<usize, StoreError> {
        if !self.sweeping.looked_through.load(Ordering::Relaxed) {
            self.expect_reactions_everywhere().await?;
            self.sweeping.looked_through.store(true, Ordering::Relaxed);
        }
        let logs: Vec<_> = self.sweeping.lock().drain().collect();
        let mut collapsed = 0;
        for (done, &log) in logs.iter().enumerate() {
            match self.collapse(log).await {
                Ok(count) => collapsed += count,
                Err(error) => {
                    // Another time.
                    self.sweeping.lock().extend(&logs[done..]);
                    return Err(error);
                }
            }
        }
        self.counts.collapsed.add(collapsed as u64);
        Ok(collapsed)
    }

    async fn expect_reactions_everywhere(&self) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let logs = self.store.rooms(after, LOOKED_AT).await?;
            let Some(&last) = logs.last() else { return Ok(()) };
            after = Some(last);
            self.sweeping.lock().extend(logs);
        }
    }

    async fn collapse(&self, log: LogId) -> Result<usize, StoreError> {
        let Some(found) = self.store.found(log).await? else { return Ok(0) };
        let left_out = &found.row.collapsed;
        let mut search = Search::new(self.now() - self.options.reaction_min_lag);
        let mut after = found.status.floor;
        while !search.over {
            let page = match self.store.read(log, Span::after(after)).await {
                Ok(page) if page.records.is_empty() => break,
                Ok(page) => page,
                Err(ReadError::Trimmed { floor, .. }) => {
                    after = floor;
                    continue;
                }
                Err(ReadError::NoSuchLog(_)) => return Ok(0),
                Err(ReadError::Store(error)) => return Err(error),
            };
            after = page.last(after);
            let shown = |record: &&Record| left_out.binary_search(&record.position).is_err();
            page.records.iter().filter(shown).for_each(|record| search.look(record));
        }
        if search.young {
            self.sweeping.reacted(log);
        }
        let mut positions = search.replaced;
        positions.sort_unstable();
        positions.truncate(limits::COLLAPSED_PER_ROOM.saturating_sub(left_out.len()));
        let count = positions.len();
        if count == 0 {
            return Ok(0);
        }
        let commit = Commit::new().changing(Change::Collapse { log, positions });
        Ok(if made(self.commit(commit).await)? { count } else { 0 })
    }

    /// Forgets how far somebody has seen who was not heard of for long.
    async fn forget_silent(&self) -> Result<usize, StoreError> {
        let before = self.now() - self.options.retention.saturating_mul(SEEN_FOR);
        let (mut forgotten, mut after) = (0, None);
        loop {
            let silent = self.store.silent(after.as_ref(), before, LOOKED_AT).await?;
            let forget = |(log, user)| Change::Forget { log, user, before };
            let changes: Vec<_> = silent.users.into_iter().map(forget).collect();
            let count = changes.len();
            if count > 0 && made(self.commit(Commit { changes, ..Commit::new() }).await)? {
                forgotten += count;
            }
            after = silent.last;
            if after.is_none() {
                return Ok(forgotten);
            }
        }
    }
}

/// Whether a commit was made. If it was not because somebody else has the rooms or changes them, or because there is no
/// space, another time will do.
fn made(committed: Result<Committed, CommitError<Declined>>) -> Result<bool, StoreError> {
    match committed {
        Ok(_) => Ok(true),
        Err(CommitError::Declined(_) | CommitError::Refused(_) | CommitError::Store(StoreError::NoSpace)) => {
            Ok(false)
        }
        Err(CommitError::Store(error)) => Err(error),
    }
}

/// Looks for reactions that later ones replace.
struct Search {
    /// Only those before this moment are looked at.
    before: Timestamp,
    /// The last operation on each reaction. By a hash of 128 bits that nobody can foresee: texts may be long.
    last: HashMap<(u64, u64), Position>,
    hashes: (RandomState, RandomState),
    replaced: Vec<Position>,
    /// There are reactions that were too young.
    young: bool,
    over: bool,
}

impl Search {
    fn new(before: Timestamp) -> Self {
        Self {
            before,
            last: HashMap::new(),
            hashes: (RandomState::new(), RandomState::new()),
            replaced: Vec::new(),
            young: false,
            over: false,
        }
    }

    fn look(&mut self, record: &Record) {
        let Some(event) = Event::of(record) else { return };
        let Some(key) = event.reaction() else { return };
        if record.at >= self.before {
            (self.young, self.over) = (true, true);
        }
        if self.over {
            return;
        }
        if self.last.len() >= limits::COLLAPSE_KEYS {
            // What was replaced by what comes now stays. It is more than is needed, and nothing is missing.
            self.last.clear();
        }
        if let Some(replaced) = self.last.insert(self.hash(&key), record.position) {
            self.replaced.push(replaced);
        }
    }

    fn hash(&self, key: &ReactionKey<'_>) -> (u64, u64) {
        (self.hashes.0.hash_one(key), self.hashes.1.hash_one(key))
    }
}
