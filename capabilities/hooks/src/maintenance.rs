//! What goes, and when: events after their retention, old records of deliveries, ids that were remembered.
//!
//! Events are removed by age, but not before whatever still refers to them by position: a replay that has not come that
//! far, and an event that is only partly queued. Queues keep what they refer to for themselves.

use std::time::Duration;

use tidings_engine::log::{Commit, Operation, ReadError, Record, Span};
use tidings_model::{LogId, Position, ProjectId, Timestamp, Ulid};

use crate::hook::HookId;
use crate::hooks::is_within;
use crate::rows::{attempts, dead_letters};
use crate::store::Found;
use crate::{Change, HookError, Hooks};

/// Hooks that are examined under one lock.
const EXAMINED: usize = 256;
/// Dead letters that are looked at in one step.
const LETTERS: usize = 512;
/// Deliveries that are looked at in one step.
const DELIVERIES: usize = 1024;

/// What a clean-up removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Deliveries.
    pub deliveries: u64,
    /// Attempts.
    pub attempts: u64,
    /// Dead letters.
    pub dead_letters: u64,
}

impl std::ops::AddAssign for Cleaned {
    fn add_assign(&mut self, other: Self) {
        self.deliveries += other.deliveries;
        self.attempts += other.attempts;
        self.dead_letters += other.dead_letters;
    }
}

impl Hooks {
    /// Removes finished deliveries, their attempts, and dead letters that were created before a time: of one hook, or of all
    /// hooks of a project, or of all projects.
    pub async fn clean_up(
        &self,
        project: Option<&ProjectId>,
        only: Option<HookId>,
        before: Timestamp,
    ) -> Result<Cleaned, HookError> {
        if let Some(id) = only {
            let found = self.find(project, id).await?;
            return self.clean_up_hook(&found, before).await;
        }
        let (mut cleaned, mut after) = (Cleaned::default(), None);
        loop {
            let examined = self.0.store.examine(after, EXAMINED).await?;
            for queue in examined.queues {
                let found = self.0.store.found(queue).await?;
                if let Some(found) = found.filter(|found| is_within(&found.hook, project)) {
                    match self.clean_up_hook(&found, before).await {
                        Ok(more) => cleaned += more,
                        Err(HookError::NoSuchHook) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            after = examined.last;
            if after.is_none() {
                return Ok(cleaned);
            }
        }
    }

    /// Removes what is older than the configured retention: records of deliveries, events, and ids.
    pub async fn retain(&self) -> Result<Cleaned, HookError> {
        let now = self.now();
        let cleaned = self.clean_up(None, None, now - self.0.options.record_retention).await?;
        for project in self.0.store.projects().await? {
            self.retain_events(&project, now).await?;
        }
        Ok(cleaned)
    }

    /// Puts the patterns of hooks that were added and removed lately into the large index. Takes a while with many hooks,
    /// on a thread that may block.
    pub async fn compact_matchers(&self) {
        let matchers = self.0.matchers.clone();
        // It ends by itself if the server stops meanwhile.
        let _ = tokio::task::spawn_blocking(move || matchers.compact()).await;
    }

    async fn clean_up_hook(&self, found: &Found, before: Timestamp) -> Result<Cleaned, HookError> {
        let _alone = self.hold_letters(found.queue).await;
        let (removed, oldest) = self.remove_letters(found.queue, before).await?;
        let mut cleaned = Cleaned { dead_letters: removed, ..Cleaned::default() };
        // Deliveries that are still needed: those that are not finished, and those of dead letters.
        let progress = &found.progress;
        let kept = [progress.parked.keys().next().copied(), oldest];
        let needed = kept.into_iter().flatten().min();
        let limit = needed.map_or(progress.done, |needed| progress.done.min(just_before(needed)));
        loop {
            let (trimmed, rest) = self.trim_step(found.queue, limit, before).await?;
            cleaned += trimmed;
            if rest == Rest::Kept {
                return Ok(cleaned);
            }
        }
    }

    /// Removes old dead letters of a hook. Returns how many, and the first delivery that a remaining one is about.
    async fn remove_letters(
        &self,
        queue: LogId,
        before: Timestamp,
    ) -> Result<(u64, Option<Position>), HookError> {
        let (mut removed, mut oldest, mut after): (u64, Option<Position>, Option<Ulid>) = (0, None, None);
        loop {
            let letters = self.letters_older(queue, after, LETTERS).await?;
            let Some(last) = letters.last() else { return Ok((removed, oldest)) };
            after = Some(last.id);
            let (old, kept): (Vec<_>, Vec<_>) = letters.iter().partition(|letter| letter.at < before);
            oldest = kept.iter().map(|letter| letter.position).chain(oldest).min();
            if old.is_empty() {
                continue;
            }
            let mut commit: Commit<Change> = Commit::new();
            commit.rows = old.iter().map(|letter| dead_letters::delete(queue, letter.id)).collect();
            let dead_letters = old.len() as u64;
            commit.changes.push(Change::Forget { queue, dead_letters, deliveries: 0, attempts: 0 });
            self.0.store.commit(commit).await?;
            removed += dead_letters;
        }
    }

    /// Removes some of the oldest deliveries of a queue, up to a position, that were created before a time.
    async fn trim_step(
        &self,
        queue: LogId,
        limit: Position,
        before: Timestamp,
    ) -> Result<(Cleaned, Rest), HookError> {
        let (old, rest) = self.oldest(queue, limit, before).await?;
        let (Some(first), Some(last)) = (old.first(), old.last()) else {
            return Ok((Cleaned::default(), rest));
        };
        let span = attempts::between(queue, first.position, last.position, usize::MAX);
        let rows = self.0.store.rows(attempts::TABLE, span).await?;
        let attempts = rows.iter().filter_map(attempts::read).count() as u64;
        let deliveries = old.len() as u64;
        let commit: Commit<Change> = Commit::new()
            .with(Operation::Trim { log: queue, floor: last.position })
            .changing(Change::Forget { queue, dead_letters: 0, deliveries, attempts })
            .with_row(attempts::remove_through(queue, last.position));
        self.0.store.commit(commit).await?;
        Ok((Cleaned { deliveries, attempts, dead_letters: 0 }, rest))
    }

    /// Removes events of a project that are older than the retention, and ids of old periods.
    async fn retain_events(&self, project: &ProjectId, now: Timestamp) -> Result<(), HookError> {
        let Some(found) = self.0.store.feed(project).await? else { return Ok(()) };
        let events = found.feed.events;
        let before = now - self.0.options.event_retention;
        let mut limit = found.feed.cursor.partly.map_or(Position::MAX, |partly| partly.after);
        for ((queue, _), replay) in self.0.store.replays().await? {
            let of_project =
                self.0.store.found(queue).await?.is_some_and(|found| found.hook.project == *project);
            if of_project {
                limit = limit.min(replay.cursor);
            }
        }
        let mut commit: Commit<Change> = Commit::new()
            .with_row(self.event_ids().forget_old(events, now))
            .with_row(self.batch_ids().forget_old(events, now));
        loop {
            let (old, rest) = self.oldest(events, limit, before).await?;
            if let Some(last) = old.last() {
                commit.operations.push(Operation::Trim { log: events, floor: last.position });
            }
            if !commit.operations.is_empty() || !commit.rows.is_empty() {
                self.0.store.commit(std::mem::take(&mut commit)).await?;
            }
            if rest == Rest::Kept {
                return Ok(());
            }
        }
    }

    /// Some of the records of a log that were appended before a time, oldest first, up to a position.
    async fn oldest(
        &self,
        log: LogId,
        through: Position,
        before: Timestamp,
    ) -> Result<(Vec<Record>, Rest), HookError> {
        let floor = self.0.store.status(log).await?.floor;
        let span = Span { through, records: DELIVERIES, ..Span::after(floor) };
        let mut records = match self.0.store.read(log, span).await {
            Ok(page) => page.records,
            // Trimmed meanwhile by somebody else.
            Err(ReadError::Trimmed { .. }) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let old = records.iter().take_while(|record| record.at < before).count();
        let rest = if old < records.len() || old == 0 { Rest::Kept } else { Rest::Unknown };
        records.truncate(old);
        Ok((records, rest))
    }
}

/// What is known of the records of a log that come after some old ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// They are to be kept, or there are none.
    Kept,
    /// They may be old as well.
    Unknown,
}

/// The last position before another one.
fn just_before(position: Position) -> Position {
    Position::new(position.get() - 1)
}

/// Interval at which the matchers are compacted, if they are due.
pub const COMPACTION_INTERVAL: Duration = Duration::from_secs(5);
/// Interval at which journals and replays are looked for that nobody announced.
pub const BACKLOG_INTERVAL: Duration = Duration::from_secs(5);
/// Interval at which all hooks are looked at.
pub const HOOKS_INTERVAL: Duration = Duration::from_secs(60);
/// Interval at which old events and records are removed.
pub const RETENTION_INTERVAL: Duration = Duration::from_secs(60 * 60);
