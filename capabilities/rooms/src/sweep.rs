//! What goes, and when.
//!
//! Events go when they are too old, from the oldest on, and the floor rises with that; for a reader that is connected and
//! behind they stay a little longer. Of reactions that replace each other
//! only the last stays: the others are left out when somebody reads, wherever they lie, and the floor does not move. How far
//! somebody has seen goes when it was not told for long. A clock that has just jumped ahead lets nothing go.

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

impl Rooms {
    /// Lets go of what is too old, and leaves out reactions that later ones replace.
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
    /// Lets go of events that are too old, in the rooms that may have some. Returns in how many there were any.
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

    /// Whether there was something to let go of.
    async fn trim(&self, log: LogId) -> Result<bool, StoreError> {
        let Some(found) = self.store.found(log).await? else { return Ok(false) };
        let (retention, before, tail) = (self.options.retention, found.status.floor, found.status.tail);
        let Some(old) = self.too_old(log, (before, tail), retention).await? else { return Ok(false) };
        if let Some(reader) = self.channels.furthest_behind(log).filter(|reader| *reader < old.floor) {
            // Who is connected and behind is let hear it first, for a while: nobody keeps everything for everybody by taking
            // a little now and then. Its next look is from there. The next sweep asks again.
            let held = retention.saturating_add(retention / HELD_FOR_PART);
            let Some(older) = self.too_old(log, (before, tail), held).await? else { return Ok(false) };
            return self.let_go_of(log, &found, older.floor.max(reader), found.kept_since).await;
        }
        if old.next.is_some() {
            return self.let_go_of(log, &found, old.floor, old.next).await;
        }
        // None is kept then, unless somebody writes meanwhile, who would take it that the room is known to keep events.
        let Some(active) = self.active_or_gone(log).await? else { return Ok(false) };
        let _alone = active.appending.write().await;
        let Some(found) = self.store.found(log).await? else { return Ok(false) };
        let span = (old.floor.max(found.status.floor), found.status.tail);
        let Some(old) = self.too_old(log, span, retention).await? else { return Ok(false) };
        let trimmed = self.let_go_of(log, &found, old.floor, old.next).await;
        self.mark_as_stored(log, &active).await?;
        trimmed
    }

    /// Lets go of events up to a floor, if it is above the one there is, and remembers since when the others are kept.
    async fn let_go_of(
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

    /// Which records after a floor, up to the tail, are of an age; none if the room was trimmed by somebody else or has
    /// ended.
    async fn too_old(
        &self,
        log: LogId,
        (mut floor, tail): (Position, Position),
        age: Duration,
    ) -> Result<Option<TooOld>, StoreError> {
        let now = self.now();
        // The first record most often tells that there is nothing.
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

    /// What is in memory of a room, or none if it has ended.
    async fn active_or_gone(&self, log: LogId) -> Result<Option<Arc<Active>>, StoreError> {
        match self.active(log).await {
            Ok(active) => Ok(Some(active)),
            Err(RoomError::Store(error)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Leaves out reactions that later ones replace, in all rooms in which there are new ones.
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
        self.look_through(log, &mut search).await?;
        if search.over {
            // The others are looked at with the next sweep.
            return self.leave_out(log, search).await;
        }
        // All that is there is old enough. Nobody need look again until somebody reacts to something: nobody does while that
        // is written down.
        let Some(active) = self.active_or_gone(log).await? else { return Ok(0) };
        let _alone = active.appending.write().await;
        self.look_through(log, &mut search).await?;
        let left_out = self.leave_out(log, search).await;
        self.mark_as_stored(log, &active).await?;
        left_out
    }

    /// Leaves out what was found. Returns how much.
    async fn leave_out(&self, log: LogId, search: Search) -> Result<usize, StoreError> {
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

    /// Whoever appends next must know what is stored of a room that the caller has for itself, also if it is not known
    /// whether a commit was made.
    async fn mark_as_stored(&self, log: LogId, active: &Active) -> Result<(), StoreError> {
        if let Some(found) = self.store.found(log).await? {
            active.set_marks(Marks::stored(&found));
        }
        Ok(())
    }

    /// Looks at all that comes after what was looked at.
    async fn look_through(&self, log: LogId, search: &mut Search) -> Result<(), StoreError> {
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

/// Records of an age.
struct TooOld {
    /// The last of them, or where the search began.
    floor: Position,
    /// When the first was written that is not; none if there is none.
    next: Option<Timestamp>,
}

/// Looks for reactions that later ones replace.
struct Search {
    /// What comes up to here was looked at.
    after: Position,
    /// Only those before this moment are looked at.
    before: Timestamp,
    /// What is left out already.
    left_out: Arc<Vec<Position>>,
    /// The last operation on each reaction. By a hash of 128 bits that nobody can foresee: texts may be long.
    last: HashMap<(u64, u64), Position>,
    keys_most: usize,
    hashes: (RandomState, RandomState),
    replaced: Vec<Position>,
    /// How many may be left out beside those that are.
    replaced_most: usize,
    /// A reaction was too young, and so is what comes after it.
    over: bool,
}

impl Search {
    fn new(before: Timestamp, capacity: &Capacity, found: &Found) -> Self {
        Self {
            after: found.status.floor,
            before,
            left_out: found.collapsed.clone(),
            last: HashMap::new(),
            keys_most: capacity.collapse_keys,
            hashes: (RandomState::new(), RandomState::new()),
            replaced: Vec::new(),
            replaced_most: capacity.collapsed_per_room.saturating_sub(found.collapsed.len()),
            over: false,
        }
    }

    fn look(&mut self, record: &Record) {
        if self.over || self.left_out.binary_search(&record.position).is_ok() {
            return;
        }
        let Some(event) = Event::of(record) else { return };
        let Some(key) = event.reaction() else { return };
        if record.at >= self.before {
            self.over = true;
            return;
        }
        if self.last.len() >= self.keys_most {
            // What was replaced by what comes now stays. It is more than is needed, and nothing is missing.
            self.last.clear();
        }
        if let Some(replaced) = self.last.insert(self.hash(&key), record.position) {
            self.replaced.push(replaced);
            if self.replaced.len() >= self.replaced_most.saturating_mul(2).max(PAGE) {
                self.keep_first();
            }
        }
    }

    /// Those that later ones replace, in order; the first if they are too many.
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
