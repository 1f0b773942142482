//! Retention: removes old events, redundant reactions and stale read receipts.
//!
//! Events are removed by age, oldest first, which raises the floor; a connected reader that is behind delays
//! that a little. Of reactions that replace each other only the last is kept: the others are *collapsed*,
//! that is skipped by readers, wherever they lie, and the floor does not move. A read receipt is removed when
//! it was not renewed for long. While the clock has just jumped ahead, nothing is removed.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tidings_engine::log::{Commit, CommitError, Committed, Operation, ReadError, Record, Span, StoreError};
use tidings_model::{LogId, Position, Timestamp, limits};

use crate::active::{Active, Marks};
use crate::event::{Event, ReactionKey};
use crate::rooms::Inner;
use crate::store::Found;
use crate::table::Change;
use crate::{Capacity, Declined, RoomError, Rooms};

/// Interval at which pending read receipts are written and old typing events are dropped.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Rooms, or users of rooms, fetched from the store at a time.
const LOOKED_AT: usize = 4096;
/// Rooms trimmed concurrently, so that they share commits.
const TRIMS_AT_A_TIME: usize = 64;
/// Records of the first page when the new floor is searched; each further page is larger.
const PAGE: usize = 64;
/// A connected reader that is behind delays a trim by the retention time divided by this, at most.
const HELD_FOR_PART: u32 = 10;
/// Read receipts are kept for the retention time multiplied by this.
const SEEN_FOR: u32 = 2;

/// The results of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Rooms that were trimmed.
    pub trimmed: usize,
    /// Reactions that were collapsed.
    pub collapsed: usize,
    /// Users with a read receipt that was removed.
    pub forgotten: usize,
}

impl Rooms {
    /// Removes old events, collapses redundant reactions and removes stale read receipts.
    pub async fn sweep(&self) -> Result<Swept, StoreError> {
        let inner = &self.inner;
        // Before rooms are looked at: who begins to lead reads them anew.
        if inner.ownership.tenure().await?.is_none() {
            return Ok(Swept::default());
        }
        let swept = Swept {
            trimmed: inner.trim_all().await?,
            collapsed: inner.collapse_all().await?,
            forgotten: inner.forget_silent().await?,
        };
        inner.evict_idle();
        Ok(swept)
    }

    /// Runs the regular work of rooms. Never returns.
    pub async fn maintain(self) {
        tokio::join!(self.write_for_ever(), self.sweep_for_ever());
    }

    async fn write_for_ever(&self) {
        loop {
            self.inner.clock.sleep(WRITE_INTERVAL).await;
            self.inner.forget_typing();
            if let Err(error) = self.write_pending_receipts().await {
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
    /// Trims the rooms that may have old events. Returns how many were trimmed.
    async fn trim_all(&self) -> Result<usize, StoreError> {
        let through = self.now() - self.options.retention;
        let (mut trimmed, mut after) = (0, None);
        loop {
            let old = self.store.old(through, after, LOOKED_AT).await?;
            let Some(&last) = old.last() else { break };
            after = Some(last);
            let trim = |(_, log)| self.trim(log);
            let mut trims = stream::iter(old).map(trim).buffer_unordered(TRIMS_AT_A_TIME);
            while let Some(trim) = trims.next().await {
                trimmed += usize::from(trim?);
            }
        }
        self.counts.trimmed.add(trimmed as u64);
        Ok(trimmed)
    }

    /// Trims a room. Returns whether there was anything to trim.
    async fn trim(&self, log: LogId) -> Result<bool, StoreError> {
        let Some(found) = self.store.found(log).await? else { return Ok(false) };
        let (retention, before, tail) = (self.options.retention, found.status.floor, found.status.tail);
        let Some(old) = self.too_old(log, (before, tail), retention).await? else { return Ok(false) };
        if let Some(reader) = self.channels.furthest_behind(log).filter(|reader| *reader < old.floor) {
            // A connected reader that is behind gets some time to take the events. Its delay is bounded, so
            // that a reader that takes a little now and then cannot keep everything. The next sweep trims
            // from where the reader is then.
            let held = retention.saturating_add(retention / HELD_FOR_PART);
            let Some(older) = self.too_old(log, (before, tail), held).await? else { return Ok(false) };
            return self.trim_through(log, &found, older.floor.max(reader), found.kept_since).await;
        }
        if old.next.is_some() {
            return self.trim_through(log, &found, old.floor, old.next).await;
        }
        // No stored events would remain. A concurrent append would rely on the mark that is removed here, so
        // exclude it.
        let Some(active) = self.active_or_gone(log).await? else { return Ok(false) };
        let _alone = active.appending.write().await;
        let Some(found) = self.store.found(log).await? else { return Ok(false) };
        let span = (old.floor.max(found.status.floor), found.status.tail);
        let Some(old) = self.too_old(log, span, retention).await? else { return Ok(false) };
        let trimmed = self.trim_through(log, &found, old.floor, old.next).await;
        self.mark_as_stored(log, &active).await?;
        trimmed
    }

    /// Trims the events up to a floor, if it is above the current one, and stores the age of the remaining
    /// ones.
    async fn trim_through(
        &self,
        log: LogId,
        found: &Found,
        floor: Position,
        since: Option<Timestamp>,
    ) -> Result<bool, StoreError> {
        let (mut commit, goes) = (Commit::new(), floor > found.status.floor);
        if goes {
            commit = commit.with(Operation::Trim { log, floor });
        }
        if goes && found.collapsed.first().is_some_and(|first| *first <= floor) {
            commit = commit.changing(Change::Prune { log, through: floor });
        }
        if since != found.kept_since {
            commit = commit.changing(Change::Kept { log, since });
        }
        if commit.operations.is_empty() && commit.changes.is_empty() {
            return Ok(false);
        }
        Ok(made(self.commit(commit).await)? && goes)
    }

    /// Finds the records after the floor that exceed an age; `None` if the room was deleted or trimmed
    /// meanwhile.
    async fn too_old(
        &self,
        log: LogId,
        (mut floor, tail): (Position, Position),
        age: Duration,
    ) -> Result<Option<TooOld>, StoreError> {
        let now = self.now();
        // Usually the first record shows that there are none.
        let mut records = 1;
        while floor < tail {
            let page = match self.store.read(log, Span { records, ..Span::after(floor) }).await {
                Ok(page) => page,
                Err(ReadError::Store(error)) => return Err(error),
                Err(ReadError::Trimmed { .. } | ReadError::NoSuchLog(_)) => return Ok(None),
            };
            let is_old = |record: &&Record| record.at + age <= now;
            let old = page.records.iter().take_while(is_old).count();
            floor = old.checked_sub(1).map_or(floor, |last| page.records[last].position);
            if let Some(next) = page.records.get(old) {
                return Ok(Some(TooOld { floor, next: Some(next.at) }));
            }
            if page.records.is_empty() {
                break;
            }
            records = (records * 4).clamp(PAGE, limits::READ_CHUNK_RECORDS);
        }
        Ok(Some(TooOld { floor, next: None }))
    }

    /// The in-memory state of a room; `None` if it was deleted.
    async fn active_or_gone(&self, log: LogId) -> Result<Option<Arc<Active>>, StoreError> {
        match self.active(log).await {
            Ok(active) => Ok(Some(active)),
            Err(RoomError::Store(error)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Collapses redundant reactions in all rooms with new ones.
    async fn collapse_all(&self) -> Result<usize, StoreError> {
        let (mut collapsed, mut after) = (0, None);
        loop {
            let logs = self.store.reacted(after, LOOKED_AT).await?;
            let Some(&last) = logs.last() else { break };
            after = Some(last);
            for log in logs {
                collapsed += self.collapse(log).await?;
            }
        }
        self.counts.collapsed.add(collapsed as u64);
        Ok(collapsed)
    }

    async fn collapse(&self, log: LogId) -> Result<usize, StoreError> {
        let Some(found) = self.store.found(log).await? else { return Ok(0) };
        let before = self.now() - self.options.reaction_min_lag;
        let mut search = Search::new(before, &self.options.capacity, &found);
        self.examine(log, &mut search).await?;
        if search.over {
            // The later ones are examined by the next sweep.
            return self.store_collapsed(log, search).await;
        }
        // All reactions were examined. The mark is removed under the exclusive lock, so that no reaction is
        // added meanwhile, and the room is not examined again until there is one.
        let Some(active) = self.active_or_gone(log).await? else { return Ok(0) };
        let _alone = active.appending.write().await;
        self.examine(log, &mut search).await?;
        let collapsed = self.store_collapsed(log, search).await;
        self.mark_as_stored(log, &active).await?;
        collapsed
    }

    /// Stores the redundant reactions that were found as collapsed. Returns their number.
    async fn store_collapsed(&self, log: LogId, search: Search) -> Result<usize, StoreError> {
        let mut commit = Commit::new();
        if !search.over {
            commit = commit.changing(Change::Reacted { log, waiting: false });
        }
        let positions = search.redundant();
        let count = positions.len();
        if count > 0 {
            commit = commit.changing(Change::Collapse { log, positions });
        }
        if commit.changes.is_empty() {
            return Ok(0);
        }
        Ok(if made(self.commit(commit).await)? { count } else { 0 })
    }

    /// Reloads the marks of a room that the caller has locked exclusively, because the outcome of a commit
    /// may be unknown.
    async fn mark_as_stored(&self, log: LogId, active: &Active) -> Result<(), StoreError> {
        if let Some(found) = self.store.found(log).await? {
            active.set_marks(Marks::stored(&found));
        }
        Ok(())
    }

    /// Examines all records behind those that were examined.
    async fn examine(&self, log: LogId, search: &mut Search) -> Result<(), StoreError> {
        while !search.over {
            let page = match self.store.read(log, Span::after(search.after)).await {
                Ok(page) if page.records.is_empty() => break,
                Ok(page) => page,
                Err(ReadError::Trimmed { floor, .. }) => {
                    search.after = floor;
                    continue;
                }
                Err(ReadError::NoSuchLog(_)) => break,
                Err(ReadError::Store(error)) => return Err(error),
            };
            search.after = page.last(search.after);
            page.records.iter().for_each(|record| search.look(record));
        }
        Ok(())
    }

    /// Removes the read receipts of devices that were silent for long.
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

/// Whether a commit was made. A commit that failed for another server's change or for lack of space is left
/// to the next sweep.
fn made(committed: Result<Committed, CommitError<Declined>>) -> Result<bool, StoreError> {
    match committed {
        Ok(_) => Ok(true),
        Err(CommitError::Declined(_) | CommitError::Refused(_) | CommitError::Store(StoreError::NoSpace)) => {
            Ok(false)
        }
        Err(CommitError::Store(error)) => Err(error),
    }
}

/// The records that exceed an age.
struct TooOld {
    /// Position of the last of them, or where the search began.
    floor: Position,
    /// Time of the first record that does not exceed the age; `None` if there is none.
    next: Option<Timestamp>,
}

/// The search for redundant reactions in a room.
struct Search {
    /// Position up to which records were examined.
    after: Position,
    /// Only reactions older than this are examined.
    before: Timestamp,
    /// Positions that are collapsed already.
    collapsed: Arc<Vec<Position>>,
    /// The last operation on each reaction, by a keyed 128-bit hash, because the texts may be long.
    last: HashMap<(u64, u64), Position>,
    keys_most: usize,
    hashes: (RandomState, RandomState),
    replaced: Vec<Position>,
    /// Number of reactions that may still be collapsed.
    replaced_most: usize,
    /// Set when a reaction is too young; all later ones are, too.
    over: bool,
}

impl Search {
    fn new(before: Timestamp, capacity: &Capacity, found: &Found) -> Self {
        Self {
            after: found.status.floor,
            before,
            collapsed: found.collapsed.clone(),
            last: HashMap::new(),
            keys_most: capacity.collapse_keys,
            hashes: (RandomState::new(), RandomState::new()),
            replaced: Vec::new(),
            replaced_most: capacity.collapsed_per_room.saturating_sub(found.collapsed.len()),
            over: false,
        }
    }

    fn look(&mut self, record: &Record) {
        if self.over || self.collapsed.binary_search(&record.position).is_ok() {
            return;
        }
        let Some(event) = Event::of(record) else { return };
        let Some(key) = event.reaction() else { return };
        if record.at >= self.before {
            self.over = true;
            return;
        }
        if self.last.len() >= self.keys_most {
            // Earlier reactions are forgotten and will not be found redundant. That keeps more than needed,
            // but loses nothing.
            self.last.clear();
        }
        if let Some(replaced) = self.last.insert(self.hash(&key), record.position) {
            self.replaced.push(replaced);
            if self.replaced.len() >= self.replaced_most.saturating_mul(2).max(PAGE) {
                self.keep_first();
            }
        }
    }

    /// The redundant reactions, in order; only the first if there are too many.
    fn redundant(mut self) -> Vec<Position> {
        self.keep_first();
        self.replaced
    }

    fn keep_first(&mut self) {
        self.replaced.sort_unstable();
        self.replaced.truncate(self.replaced_most);
    }

    fn hash(&self, key: &ReactionKey<'_>) -> (u64, u64) {
        (self.hashes.0.hash_one(key), self.hashes.1.hash_one(key))
    }
}
