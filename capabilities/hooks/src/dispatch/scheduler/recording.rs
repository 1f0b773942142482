//! Which results go into the next commit, and what if it cannot be made.
//!
//! One commit is under way at a time, so results that come meanwhile make the next batch. Results that cannot be recorded
//! stay in memory, and nothing begins while they are too many. When the store has no space, what came of deliveries is still
//! recorded, but not the rows that take space; what was given up waits, because its dead letter is such a row.

use std::collections::VecDeque;
use std::time::Duration;

use tidings_engine::log::{CommitError, StoreError};
use tidings_model::{LogId, limits};

use super::{Forgotten, Now, Scheduler, Timer};
use crate::dispatch::results::{Batch, LeaveOut, Part};
use crate::table::Declined;

/// Results in one commit.
const RESULTS: usize = 4096;
/// Bytes of rows in one commit, about.
const BYTES: usize = 1024 * 1024;
/// Time after the first commit that failed until the next one. It doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest time between commits while they fail.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Time for which rows are left out after the store had no space.
const WITHOUT_ROWS: Duration = Duration::from_secs(1);

/// Results on their way into the store.
#[derive(Default)]
pub(super) struct Recording {
    /// Hooks with results.
    pub(super) dirty: VecDeque<LogId>,
    /// Results that are not recorded, with those that are being recorded.
    unrecorded: usize,
    is_under_way: bool,
    /// Results that fit into one commit. Zero for as many as may be.
    most: usize,
    /// Nothing is committed before this time.
    after: Duration,
    /// Time between commits while they fail. Zero if the last one was made.
    pause: Duration,
    leave_out: LeaveOut,
    /// Time until which rows are left out.
    rows_after: Duration,
    /// Hooks that were removed while a commit was under way.
    forgotten: Vec<Forgotten>,
}

/// Why a commit was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum Trouble {
    /// The store has no space for it.
    NoSpace,
    /// It is too large.
    TooLarge,
    /// It was refused. Only a notice can be.
    Refused,
    /// The store failed.
    Failed,
}

impl Trouble {
    /// What an error of a commit means.
    pub(in crate::dispatch) fn of(error: &CommitError<Declined>) -> Self {
        match error {
            CommitError::Store(StoreError::NoSpace) => Self::NoSpace,
            CommitError::Store(StoreError::TooLarge { .. }) => Self::TooLarge,
            CommitError::Store(_) => Self::Failed,
            CommitError::Refused(_) | CommitError::Declined(_) => Self::Refused,
        }
    }
}

impl Recording {
    /// Whether so much is recorded that more may begin.
    pub(super) fn keeps_up(&self) -> bool {
        (self.pause.is_zero() || self.unrecorded == 0) && self.unrecorded < limits::HOOK_UNRECORDED
    }

    /// Whether everything is recorded.
    pub(super) fn is_at_rest(&self) -> bool {
        self.unrecorded == 0 && !self.is_under_way && self.dirty.is_empty()
    }

    /// The number of results of a hook has changed.
    pub(super) fn grown(&mut self, now: usize, before: usize) {
        self.unrecorded = self.unrecorded + now - before;
    }

    /// A hook was removed: who waits for that is told when nothing of it is being recorded any more.
    pub(super) fn forget(&mut self, forgotten: Forgotten) {
        if self.is_under_way {
            self.forgotten.push(forgotten);
        }
    }
}

impl Scheduler {
    /// Hooks that were removed while a commit was under way.
    pub(in crate::dispatch) fn take_forgotten(&mut self) -> Vec<Forgotten> {
        std::mem::take(&mut self.recording.forgotten)
    }

    /// The next results to record, if there are some and nothing is being recorded. `None` otherwise.
    pub(in crate::dispatch) fn batch(&mut self, now: Now) -> Option<Batch> {
        let recording = &mut self.recording;
        if recording.is_under_way || recording.dirty.is_empty() {
            return None;
        }
        if recording.leave_out.rows && now.elapsed >= recording.rows_after {
            recording.leave_out.rows = false;
        }
        if recording.after > now.elapsed {
            self.timers.set(Timer::Recording, Some(recording.after));
            return None;
        }
        let leave_out = recording.leave_out;
        let most = if recording.most == 0 { RESULTS } else { recording.most };
        let (mut batch, mut count, mut bytes) = (Batch { parts: Vec::new(), leave_out }, 0, 0);
        for _ in 0..recording.dirty.len() {
            if count >= most || bytes >= BYTES {
                break;
            }
            let Some(queue) = recording.dirty.pop_front() else { break };
            let Some(entry) = self.hooks.get_mut(&queue) else { continue };
            let results = entry.backlog.take_results(most - count, !leave_out.rows);
            count += results.len();
            entry.is_dirty = entry.backlog.results() > 0;
            if entry.is_dirty {
                recording.dirty.push_back(queue);
            }
            if !results.is_empty() || entry.backlog.window().lags() {
                let hook = entry.backlog.hook().clone();
                let part = Part::new((queue, entry.life), hook, results, entry.backlog.window());
                bytes += part.bytes();
                batch.parts.push(part);
            }
        }
        if batch.parts.is_empty() {
            // What is left takes space.
            let again = Some(recording.rows_after).filter(|_| leave_out.rows);
            self.timers.set(Timer::Recording, again);
            return None;
        }
        recording.is_under_way = true;
        self.means.counters.batches.observe(count as u64);
        Some(batch)
    }

    /// A batch was recorded, or could not be.
    pub(in crate::dispatch) fn recorded(&mut self, batch: Batch, made: Result<(), Trouble>, now: Now) {
        self.recording.is_under_way = false;
        let count = batch.len();
        match made {
            Ok(()) => self.recording.succeeded(count),
            Err(trouble) => {
                self.means.counters.failed_commits.count();
                self.recording.failed(trouble, batch.leave_out, count, now);
            }
        }
        for part in batch.parts {
            let Part { queue, life, .. } = part;
            let Some(entry) = self.hooks.get_mut(&queue).filter(|entry| entry.life == life) else {
                // It was removed meanwhile.
                self.recording.unrecorded -= part.results.len();
                continue;
            };
            if made.is_ok() {
                self.recording.unrecorded -= part.results.len();
                self.means.counters.recorded(&part.results);
                entry.backlog.recorded(part.results.len());
                if part.gone().is_some() {
                    entry.backlog.gone_recorded();
                    self.notified(queue);
                }
            } else {
                entry.backlog.not_recorded(part.results);
                if !std::mem::replace(&mut entry.is_dirty, true) {
                    self.recording.dirty.push_front(queue);
                }
            }
            self.touch(queue, now);
        }
        self.recording.forgotten.clear();
        self.means.counters.unrecorded.set(self.recording.unrecorded as i64);
    }
}

impl Recording {
    fn succeeded(&mut self, count: usize) {
        self.pause = Duration::ZERO;
        self.leave_out.notices = false;
        if self.most > 0 && count >= self.most {
            self.most *= 2;
        }
        if self.most >= RESULTS {
            self.most = 0;
        }
    }

    fn failed(&mut self, trouble: Trouble, left_out: LeaveOut, count: usize, now: Now) {
        match trouble {
            Trouble::NoSpace if !left_out.rows => {
                self.leave_out.rows = true;
                self.rows_after = now.elapsed + WITHOUT_ROWS;
            }
            Trouble::TooLarge if count > 1 => self.most = count / 2,
            Trouble::Refused if !left_out.notices => self.leave_out.notices = true,
            _ => {
                self.pause = (2 * self.pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                self.after = now.elapsed + self.pause;
            }
        }
    }
}
