//! The one thread that commits.
//!
//! Commits wait in a queue. The committer takes all that wait, validates them in order, writes their effects
//! as one frame, syncs it, applies it and answers. Commits that arrive during the sync form the next frame:
//! that is the group commit, without a timer unless the operator has set one. Within a frame, commits see the
//! effects of earlier ones on logs through an overlay; two commits whose table changes conflict go to
//! different frames. A refused commit is answered when the frame it was validated in is durable, because the
//! refusal may depend on that frame.
//!
//! Read [`Committer::run`], then [`Batch`]; a [`Job`] is a commit in the queue.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidings_engine::Clock;
use tidings_engine::log::plan::{Known, Overlay, Plan, View};
use tidings_engine::log::{CommitError, Committed, Of, Operation, Record, Refusal, StoreError};
use tidings_model::{CommitNumber, Era, LogId, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::disk::Disk;
use crate::error::is_transient;
use crate::files::Files;
use crate::frame::Frame;
use crate::job::{Job, Reply, ReplySender, StoredRead};
use crate::maintenance::Maintenance;
use crate::metrics::Counts;
use crate::rows::RowWrite;
use crate::state::StoreState;
use crate::store::{OVERFULL, Options, StoreInner};
use crate::stored_state::{Access, StoredState};
use crate::wal::Wal;

/// Number of full log files at which a memtable is flushed even if it is small: recovery reads all of them.
const WAL_FILES: usize = 3;
/// Size in bytes from which a frame takes no further commit.
const FRAME_BYTES: usize = 1 << 20;
/// Number of commits from which a frame takes no further one.
const FRAME_COMMITS: usize = 4096;

/// The committer thread.
pub(crate) struct Committer<T: StoredState> {
    pub(crate) shared: Arc<StoreInner<T>>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) files: Arc<Files<T>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) wal: Wal,
    pub(crate) era: Era,
    pub(crate) options: Options,
    pub(crate) maintenance: Maintenance,
    pub(crate) counts: Counts,
    pub(crate) work: Work<T>,
}

/// Data that the thread keeps from one frame to the next.
pub(crate) struct Work<T: StoredState> {
    /// Buffer of the last frame, for reuse.
    memory: Vec<u8>,
    /// Overlay of the last frame, for reuse.
    overlay: Overlay,
    /// Commits that conflict with earlier ones of the frame; they are validated for the next frame.
    postponed: VecDeque<Job<T>>,
    /// Whether a write has failed. What is on the disk is then unknown until a restart.
    stopped: bool,
}

impl<T: StoredState> Default for Work<T> {
    fn default() -> Self {
        Self { memory: Vec::new(), overlay: Overlay::default(), postponed: VecDeque::new(), stopped: false }
    }
}

/// The commits of one frame.
struct Batch<T: StoredState> {
    number: CommitNumber,
    now: Timestamp,
    frame: Frame,
    /// Bytes of the frame without commits.
    empty_bytes: usize,
    /// Largest size of the frame in bytes.
    frame_bytes_max: usize,
    /// Whether commits that need space are accepted.
    space: Space,
    /// Logs that the frame changes, as they are after it.
    logs: Overlay,
    /// Conflict keys of the changes so far, with the kind of access.
    keys: HashMap<u64, Access>,
    accepted: Vec<Accepted<T>>,
    /// Replies to commits that are not made. They are sent when the frame is durable, because they may depend
    /// on it.
    replies: Vec<(ReplySender<T>, Reply<T>)>,
}

/// Whether free disk space is above the reserve.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    Enough,
    Low,
}

/// A commit that was validated and goes into the frame.
struct Accepted<T: StoredState> {
    plan: Plan,
    changes: Vec<(T::Change, Vec<u8>)>,
    rows: Vec<RowWrite>,
    /// Held until the commit is made.
    _share: OwnedSemaphorePermit,
    answer: ReplySender<T>,
}

impl<T: StoredState> Batch<T> {
    /// Whether a commit must wait for the next frame. A large commit gets a frame of its own, so that others
    /// do not wait for it to be written.
    fn has_no_space_for(&self, job: &Job<T>) -> bool {
        !self.accepted.is_empty() && self.frame.size() + job.size > FRAME_BYTES.min(self.frame_bytes_max)
    }

    /// Whether an access conflicts with one of the batch, so that the change cannot be validated in this
    /// frame.
    fn collides(&self, access: Access, key: u64) -> bool {
        let before = self.keys.get(&key);
        before.is_some_and(|&before| before == Access::Writes || access == Access::Writes)
    }

    fn claim(&mut self, access: Access, key: u64) {
        let before = self.keys.entry(key).or_insert(access);
        if access == Access::Writes {
            *before = Access::Writes;
        }
    }
}

impl<T: StoredState> Committer<T> {
    pub(crate) fn run(mut self, mut jobs: mpsc::Receiver<Job<T>>) {
        loop {
            let mut waiting = std::mem::take(&mut self.work.postponed);
            if waiting.is_empty() {
                match next_job(&mut jobs) {
                    Some(job) => waiting.push_back(job),
                    None => return,
                }
                if let Some(gather) = &self.options.gather {
                    gather();
                }
            }
            let mut batch = self.begin();
            while let Some(job) = waiting.pop_front().or_else(|| jobs.try_recv().ok()) {
                if batch.has_no_space_for(&job) {
                    waiting.push_front(job);
                    break;
                }
                self.validate(&mut batch, job);
                let full = batch.accepted.len() >= FRAME_COMMITS || batch.frame.size() >= FRAME_BYTES;
                if full || self.work.postponed.len() >= FRAME_COMMITS {
                    break;
                }
            }
            // Postponed commits that were not reached stay ahead of the newly postponed ones.
            waiting.append(&mut self.work.postponed);
            self.work.postponed = waiting;
            self.commit(batch);
        }
    }

    fn begin(&mut self) -> Batch<T> {
        let last = self.shared.read().last_commit;
        let first_of_era = CommitNumber::new(self.era, last.get() % CommitNumber::PER_ERA + 1);
        let number = if last.era() == self.era { last.next() } else { first_of_era };
        let now = self.clock.now();
        // If free space cannot be determined, the write itself will give the better error.
        let low = self.disk.available().is_ok_and(|space| space < self.options.reserve_bytes);
        let frame = Frame::begin(std::mem::take(&mut self.work.memory), number, now);
        Batch {
            number,
            now,
            space: if low { Space::Low } else { Space::Enough },
            empty_bytes: frame.size(),
            frame_bytes_max: self.wal.frame_bytes_max(),
            frame,
            logs: std::mem::take(&mut self.work.overlay),
            keys: HashMap::new(),
            accepted: Vec::new(),
            replies: Vec::new(),
        }
    }

    fn validate(&mut self, batch: &mut Batch<T>, job: Job<T>) {
        let state = self.shared.read();
        let mut keys = Vec::new();
        for change in &job.commit.changes {
            state.tables.conflict_keys(change, &mut |access, key| keys.push((access, key)));
        }
        if keys.iter().any(|(access, key)| batch.collides(*access, *key)) {
            self.work.postponed.push_back(job);
            return;
        }
        let (bytes, most) = (batch.empty_bytes + job.size, batch.frame_bytes_max);
        if bytes > most {
            let error = StoreError::TooLarge { bytes, most };
            return batch.replies.push((job.answer, Reply::Done(Err(CommitError::Store(error)))));
        }
        let Job { commit, stored, written, size: _, share, answer } = job;
        let takes_space = || {
            commit.operations.iter().any(takes_space)
                || written.rows.takes_space
                || commit.changes.iter().any(|change| state.tables.takes_space(change))
        };
        if batch.space == Space::Low && takes_space() {
            return batch.replies.push((answer, Reply::Done(Err(CommitError::Store(StoreError::NoSpace)))));
        }
        if stored.values().any(|read| read.is_stale(&state, &batch.logs)) {
            return batch.replies.push((answer, Reply::Stale(commit, written)));
        }
        let declined = commit.changes.iter().find_map(|change| state.tables.validate(change).err());
        let view = BatchView { state: &state, stored };
        let validated = match declined {
            Some(refusal) => Err(CommitError::Declined(refusal)),
            None => Plan::validate(&view, &mut batch.logs, commit.operations, batch.number, batch.now)
                .map_err(CommitError::Refused),
        };
        let plan = match validated {
            Ok(plan) => plan,
            Err(refusal) => return batch.replies.push((answer, Reply::Done(Err(refusal)))),
        };
        batch.frame.effects(&plan.effects);
        let mut changes = Vec::with_capacity(commit.changes.len());
        for (change, bytes) in commit.changes.into_iter().zip(written.changes) {
            let Some(bytes) = bytes else { continue };
            batch.frame.change(&bytes);
            changes.push((change, bytes));
        }
        batch.frame.rows(&written.rows.encoded);
        let rows = written.rows.writes;
        for (access, key) in keys {
            batch.claim(access, key);
        }
        batch.accepted.push(Accepted { plan, changes, rows, _share: share, answer });
    }

    /// Makes a batch durable, then visible, then sends the replies.
    fn commit(&mut self, mut batch: Batch<T>) {
        if !batch.accepted.is_empty() {
            match self.write(&mut batch) {
                Ok(()) => self.show(&mut batch),
                Err(error) => batch.fail(&error),
            }
        }
        batch.send_replies();
        self.work.memory = batch.frame.into_memory();
        batch.logs.clear();
        self.work.overlay = batch.logs;
    }

    fn write(&mut self, batch: &mut Batch<T>) -> Result<(), StoreError> {
        if let Some(failure) = self.maintenance.failure() {
            return Err(StoreError::Unavailable(failure));
        }
        if self.work.stopped {
            return Err(StoreError::Unavailable("a write has failed; restart the server".into()));
        }
        let (bytes, most) = (batch.frame.size(), batch.frame_bytes_max);
        if bytes > most {
            return Err(StoreError::TooLarge { bytes, most });
        }
        let (last, bytes) = {
            let state = self.shared.read();
            (state.last_commit, state.memtable_bytes)
        };
        if bytes >= OVERFULL * self.options.memtable_bytes && self.maintenance.is_starved() {
            return Err(StoreError::NoSpace);
        }
        // Commits must not be acknowledged from a folder that was removed or replaced: nobody would find them
        // again.
        self.disk.still_held().map_err(|error| self.stop(&error))?;
        self.make_room(batch.frame.size(), last)?;
        let began = self.clock.elapsed();
        self.wal.write(&mut batch.frame).map_err(|error| self.stop(&error))?;
        let took = self.clock.elapsed().saturating_sub(began);
        self.counts.frame(batch.accepted.len(), batch.frame.size(), took);
        Ok(())
    }

    /// Switches to the next file of the log if needed. Fails if there is no space for it.
    fn make_room(&mut self, bytes: usize, last: CommitNumber) -> Result<(), StoreError> {
        let files = &self.files;
        match self.wal.make_room(bytes, last, &|log| files.record_log(log)) {
            Ok(turned) => {
                if turned {
                    self.maintenance.refill();
                }
                Ok(())
            }
            Err(error) if is_transient(&error) => {
                tracing::debug!(%error, "cannot create the next file of the write-ahead log; commits are refused");
                Err(StoreError::NoSpace)
            }
            Err(error) => Err(self.stop(&error)),
        }
    }

    /// Stops the store after an error of the disk. What is on the disk is known again only after a restart.
    fn stop(&mut self, error: &io::Error) -> StoreError {
        let message = format!("a write to the store failed, so it has stopped: {error}");
        self.shared.stopped.store(true, Ordering::Relaxed);
        if !std::mem::replace(&mut self.work.stopped, true) {
            tracing::error!("{message}");
            (self.options.on_failure)(&message);
        }
        StoreError::Unavailable(message)
    }

    fn show(&mut self, batch: &mut Batch<T>) {
        // Drop the overlay's copies before the originals change, so that data they share is not cloned on
        // write.
        let touched: Vec<LogId> = batch.logs.drain().map(|(log, _)| log).collect();
        let mut state = self.shared.write();
        (state.last_commit, state.chain) = (batch.number, self.wal.chain());
        let mut answers = Vec::with_capacity(batch.accepted.len());
        for Accepted { plan, changes, rows, answer, .. } in batch.accepted.drain(..) {
            for effect in plan.effects {
                self.counts.effect(&effect);
                state.apply(effect, batch.number, batch.now);
            }
            for (change, bytes) in changes {
                state.change(change, &bytes);
            }
            state.change_rows(rows);
            answers.push((answer, Committed { number: batch.number, outcomes: plan.outcomes }));
        }
        let full = state.memtable_bytes >= self.options.memtable_bytes || self.wal.full_files() >= WAL_FILES;
        let memtable = if full && self.maintenance.reserve() { Some(state.freeze()) } else { None };
        let overfull = state.memtable_bytes >= OVERFULL * self.options.memtable_bytes;
        drop(state);
        for log in touched {
            self.shared.bus.wake(log);
        }
        for (answer, committed) in answers {
            // A caller that has stopped waiting does not undo its commit.
            let _ = answer.send(Reply::Done(Ok(committed)));
        }
        if let Some(memtable) = memtable {
            self.maintenance.take(memtable);
        } else if overfull {
            self.maintenance.wait_unless_starved();
        }
    }
}

impl<T: StoredState> Batch<T> {
    /// Answers all commits with an error: the frame was not written, so refusals that may depend on it do not
    /// count.
    fn fail(&mut self, error: &StoreError) {
        let refused = self.replies.drain(..).map(|(answer, _)| answer);
        let failed = self.accepted.drain(..).map(|accepted| accepted.answer).chain(refused);
        let failed: Vec<_> =
            failed.map(|answer| (answer, Reply::Done(Err(CommitError::Store(error.clone()))))).collect();
        self.replies = failed;
    }

    fn send_replies(&mut self) {
        for (answer, reply) in self.replies.drain(..) {
            // The caller may have stopped waiting.
            let _ = answer.send(reply);
        }
    }
}

fn takes_space(operation: &Operation) -> bool {
    match operation {
        Operation::Create { .. } | Operation::Append(_) | Operation::Refer(_) => true,
        Operation::Trim { .. } | Operation::Delete(_) => false,
    }
}

/// Returns the next commit, polling a few times before it blocks: a client that was just answered often has
/// the next commit ready, and waking a thread costs as much as a fifth of a sync.
fn next_job<T: StoredState>(jobs: &mut mpsc::Receiver<Job<T>>) -> Option<Job<T>> {
    const POLLS: usize = 48;
    for _ in 0..POLLS {
        if let Ok(job) = jobs.try_recv() {
            return Some(job);
        }
        std::thread::yield_now();
    }
    jobs.blocking_recv()
}

/// The logs as they are visible.
struct BatchView<'a, T: StoredState> {
    state: &'a StoreState<T>,
    stored: HashMap<usize, StoredRead>,
}

impl<T: StoredState> View for BatchView<'_, T> {
    fn log(&self, log: LogId) -> Known<'_> {
        match self.state.logs.get(log) {
            Some(slot) => Known::Live(&slot.state),
            None if self.state.numbers.contains(log.get()) => Known::Ended,
            None => Known::Nothing,
        }
    }

    fn stored(&self, operation: usize, _: &Of) -> Result<Vec<Record>, Refusal> {
        Ok(self.stored.get(&operation).map(|read| read.records.clone()).unwrap_or_default())
    }
}
