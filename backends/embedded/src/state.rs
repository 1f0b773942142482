//! The state in memory: all logs, all tables and recent records.
//!
//! Readers share it under a lock; only the committer and the maintenance threads change it. Read
//! [`StoreState`], then [`Slot`] (one log) and [`Memtable`] (records on their way to a segment).

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tidings_engine::log::plan::{Effect, Stored, records};
use tidings_engine::log::{
    LogState, LogTotals, Observers, Page, ReadError, Record, Span, StateMachine, Status,
};
use tidings_model::{CommitNumber, LogId, Position, Timestamp};

use crate::checkpoint::Delta;
use crate::log_map::LogMap;
use crate::rows::{RowFiles, RowLayer, RowWrite};
use crate::segment::{Segments, take_into};
use crate::stored_state::{Numbers, StoredState};
use crate::wal::End;

/// All that readers see.
pub struct StoreState<T: StateMachine> {
    /// Logs that are there.
    pub logs: LogMap,
    /// Numbers that were ever assigned to logs, deleted ones included.
    pub numbers: Numbers,
    /// The capabilities' tables.
    pub tables: T,
    /// What follows the tables in memory.
    pub observers: Observers<T>,
    /// The last commit that is visible.
    pub last_commit: CommitNumber,
    /// Checksum of the frame of the last visible commit.
    pub chain: u32,
    /// Logs that have records in the current memtable.
    touched: Vec<LogId>,
    /// Changes of cold rows in the current memtable.
    pub rows: RowLayer,
    /// Approximate size of the current memtable in bytes.
    pub memtable_bytes: usize,
    /// Changes for the next checkpoint, other than tails of logs.
    delta: Delta,
    /// Sizes of the checkpoint's files, kept up to date by the flusher.
    pub checkpoint: CheckpointBytes,
    /// Whether a snapshot of logs and tables has begun and is neither finished nor abandoned.
    snapshot: bool,
    /// Complete memtables, oldest first: being written, or kept for reads.
    pub memtables: VecDeque<Arc<Memtable>>,
    /// Segments, oldest first.
    pub segments: Segments,
    /// Files of cold rows, oldest first.
    pub row_files: RowFiles,
}

/// Sizes of a checkpoint's files, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointBytes {
    /// Size of the base.
    pub base: u64,
    /// Total size of the deltas.
    pub deltas: u64,
    /// Minimum size of the deltas for a compaction. Above it, they are compacted into a new base when they
    /// outgrow the base.
    pub deltas_min: u64,
}

/// One log.
pub struct Slot {
    /// State of the log: tail, floor, producers and so on.
    pub state: LogState,
    /// Records at or below this position are not in memory.
    pub evicted: Position,
    /// Records in the current memtable.
    recent: Vec<Entry>,
}

impl Slot {
    /// A log whose records, if any, are all in segments.
    pub fn new(state: LogState) -> Self {
        Self { evicted: state.status().tail, state, recent: Vec::new() }
    }

    /// Drops records at or below the floor from memory. Nobody can read them, so [`Dead::WhenMost`] delays
    /// that until they are at least half: a log that is trimmed often does not move its records each time.
    fn drop_trimmed(&mut self, floor: Position, which: Dead) {
        let dead = self.recent.partition_point(|entry| entry.position <= floor);
        if which == Dead::All || 2 * dead >= self.recent.len() {
            self.recent.drain(..dead);
        }
    }
}

/// When trimmed records are dropped from memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dead {
    All,
    WhenMost,
}

/// One record in memory.
#[derive(Clone)]
pub struct Entry {
    /// Position in its log.
    pub position: Position,
    /// The record; shared by all references to it.
    pub stored: Arc<Stored>,
}

/// A complete memtable: records of consecutive commits, and the other changes made by them.
pub struct Memtable {
    /// Records by log, in order of position.
    pub runs: Vec<(LogId, Vec<Entry>)>,
    /// Logs that were appended to, with tail and totals. Records that were appended and trimmed within the
    /// memtable are in no run.
    pub reached: Vec<Reached>,
    /// Changes of cold rows.
    pub rows: RowLayer,
    /// Changes for the checkpoint, other than tails of logs.
    pub delta: Delta,
    /// Last commit in it.
    pub last_commit: CommitNumber,
    /// Checksum of the frame of the last commit.
    pub chain: u32,
    /// Set if a snapshot of logs and tables began when this memtable was completed, to be written as a new
    /// base: all log numbers assigned by then.
    pub snapshot: Option<Numbers>,
}

/// Tail and totals of a log at the end of a memtable.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// The log.
    pub log: LogId,
    /// Tail of the log.
    pub tail: Position,
    /// Totals of everything ever appended to it.
    pub total: LogTotals,
}

impl Memtable {
    fn entries(&self, log: LogId) -> &[Entry] {
        match self.runs.binary_search_by_key(&log, |(id, _)| *id) {
            Ok(at) => &self.runs[at].1,
            Err(_) => &[],
        }
    }
}

/// A read that needs files, to be run without the lock.
pub struct DiskRead {
    log: LogId,
    span: Span,
    status: Status,
    segments: Segments,
    recent: Vec<Entry>,
}

/// Result of a read under the lock.
pub enum ReadPlan {
    /// All records were in memory.
    Done(Page),
    /// Files must be read.
    Disk(DiskRead),
}

/// Bytes of an entry in memory, with the spare capacity of its list, without what it refers to.
const ENTRY_BYTES: usize = 48;
/// Bytes of a record that entries refer to, with what the allocator adds, without payload.
const STORED_BYTES: usize = 160;

impl<T: StateMachine> StoreState<T> {
    /// How far the log has gone, durably: nothing is visible before.
    pub(crate) fn end(&self) -> End {
        End { number: self.last_commit, chain: self.chain }
    }
}

impl<T: StoredState> StoreState<T> {
    /// The state of an empty store.
    pub fn empty() -> Self {
        Self {
            logs: LogMap::default(),
            numbers: Numbers::default(),
            tables: T::default(),
            observers: Observers::default(),
            last_commit: CommitNumber::ZERO,
            chain: 0,
            touched: Vec::new(),
            rows: RowLayer::default(),
            memtable_bytes: 0,
            delta: Delta::default(),
            checkpoint: CheckpointBytes::default(),
            snapshot: false,
            memtables: VecDeque::new(),
            segments: Arc::default(),
            row_files: Arc::default(),
        }
    }

    /// Applies an effect of a durable commit.
    pub fn apply(&mut self, effect: Effect, number: CommitNumber, now: Timestamp) {
        // Effects without records take memory as well, in the delta.
        self.memtable_bytes += ENTRY_BYTES;
        match effect {
            Effect::Created { log, tail } => {
                self.logs.insert(log, Slot::new(LogState::beginning(tail)));
                self.numbers.insert(log.get());
                self.delta.created(log, tail);
            }
            Effect::Appended { append, positions } => {
                self.delta.appended(&append, now);
                let Some(slot) = self.logs.get_mut(append.log) else { return };
                slot.state.apply(&append, &positions, now);
                if slot.recent.is_empty() && !positions.is_empty() {
                    self.touched.push(append.log);
                }
                for (position, stored) in records(&append, &positions, number, now) {
                    self.memtable_bytes += stored.payload.len() + ENTRY_BYTES + STORED_BYTES;
                    slot.recent.push(Entry { position, stored: Arc::new(stored) });
                }
            }
            Effect::Referred { sources, targets } => self.refer(&sources, &targets, number),
            Effect::Trimmed { log, floor } => {
                let Some(slot) = self.logs.get_mut(log) else { return };
                slot.state.trim(floor);
                // A trim goes at most to the tail; the resulting floor counts.
                let floor = slot.state.status().floor;
                self.delta.trimmed(log, floor);
                slot.drop_trimmed(floor, Dead::WhenMost);
            }
            Effect::Ended { log } => {
                self.delta.ended(log);
                self.logs.remove(log);
            }
        }
    }

    fn refer(&mut self, sources: &[Arc<Stored>], targets: &[LogId], number: CommitNumber) {
        let payloads: usize = sources.iter().map(|source| source.payload.len() + STORED_BYTES).sum();
        self.memtable_bytes += payloads + sources.len() * targets.len() * ENTRY_BYTES;
        for target in targets {
            let Some(slot) = self.logs.get_mut(*target) else { continue };
            if slot.recent.is_empty() {
                self.touched.push(*target);
            }
            for source in sources {
                let position = slot.state.next_position(number);
                slot.state.refer(number, LogTotals::one(&source.payload)).expect("validated good");
                slot.recent.push(Entry { position, stored: source.clone() });
            }
        }
    }

    /// Applies a change of the tables, which is durable, and tells its observers. `bytes` is how it is written.
    pub fn change(&mut self, change: T::Change, bytes: &[u8]) {
        self.delta.changed(bytes);
        self.memtable_bytes += bytes.len() + ENTRY_BYTES;
        self.observers.tell(&change);
        self.tables.apply(change);
    }

    /// Applies changes of cold rows, which are durable.
    pub fn change_rows(&mut self, writes: impl IntoIterator<Item = RowWrite>) {
        for write in writes {
            self.memtable_bytes += self.rows.apply(write);
        }
    }

    /// Completes the current memtable and starts another. If the deltas have then outgrown the base, a
    /// snapshot begins.
    pub fn freeze(&mut self) -> Arc<Memtable> {
        self.touched.sort_unstable();
        self.touched.dedup();
        let mut runs = Vec::with_capacity(self.touched.len());
        let mut reached = Vec::with_capacity(self.touched.len());
        for log in self.touched.drain(..) {
            let Some(slot) = self.logs.records_mut(log) else { continue };
            let Status { tail, floor, total, .. } = slot.state.status();
            reached.push(Reached { log, tail, total });
            slot.drop_trimmed(floor, Dead::All);
            if !slot.recent.is_empty() {
                runs.push((log, std::mem::take(&mut slot.recent)));
            }
        }
        self.memtable_bytes = 0;
        let delta = std::mem::take(&mut self.delta);
        let rows = std::mem::take(&mut self.rows);
        let CheckpointBytes { base, deltas, deltas_min } = self.checkpoint;
        let due = !self.snapshot && deltas + delta.bytes() > base.max(deltas_min);
        let snapshot = due.then(|| self.begin_snapshot());
        let (last_commit, chain) = (self.last_commit, self.chain);
        let memtable = Arc::new(Memtable { runs, reached, rows, delta, last_commit, chain, snapshot });
        self.memtables.push_back(memtable.clone());
        memtable
    }

    fn begin_snapshot(&mut self) -> Numbers {
        self.snapshot = true;
        self.logs.begin_snapshot();
        self.tables.begin_snapshot();
        self.numbers.clone()
    }

    /// Ends the snapshot after it was written or abandoned.
    pub fn end_snapshot(&mut self) {
        self.snapshot = false;
        self.logs.end_snapshot();
        self.tables.end_snapshot();
    }

    /// Drops the oldest memtable, whose records are in a segment.
    pub fn evict(&mut self) {
        let Some(memtable) = self.memtables.pop_front() else { return };
        for (log, entries) in &memtable.runs {
            if let (Some(slot), Some(last)) = (self.logs.records_mut(*log), entries.last()) {
                slot.evicted = slot.evicted.max(last.position);
            }
        }
    }

    /// Reads from memory, or returns the read to run on files.
    pub fn read(&self, log: LogId, span: Span) -> Result<ReadPlan, ReadError> {
        let slot = self.logs.get(log).ok_or(ReadError::NoSuchLog(log))?;
        let status = slot.state.status();
        if span.after < status.floor && !span.after.is_zero() {
            return Err(ReadError::Trimmed { floor: status.floor, tail: status.tail });
        }
        let mut rest = Span { after: span.after.max(status.floor), ..span };
        let mut records = Vec::new();
        if rest.after >= slot.evicted {
            self.read_recent(log, slot, &mut rest, &mut records);
            return Ok(ReadPlan::Done(Page { records, status }));
        }
        // A page has at most so many records, whatever the segments contribute.
        let after = self.entries(log, slot).filter(|entry| entry.position > rest.after);
        let recent = after.take(rest.records).cloned().collect();
        Ok(ReadPlan::Disk(DiskRead { log, span: rest, status, segments: self.segments.clone(), recent }))
    }

    fn read_recent(&self, log: LogId, slot: &Slot, span: &mut Span, records: &mut Vec<Record>) {
        let kept = self.memtables.iter().map(|memtable| memtable.entries(log));
        for entries in kept.chain([&slot.recent[..]]) {
            let start = entries.partition_point(|entry| entry.position <= span.after);
            for entry in &entries[start..] {
                let within = entry.position <= span.through;
                if !within || !take_into(records, span, entry.stored.at(entry.position)) {
                    return;
                }
            }
        }
    }

    fn entries<'a>(&'a self, log: LogId, slot: &'a Slot) -> impl Iterator<Item = &'a Entry> {
        self.memtables.iter().flat_map(move |memtable| memtable.entries(log)).chain(&slot.recent)
    }
}

impl DiskRead {
    /// Reads segments, then the records that were in memory.
    pub fn run(self) -> Result<Page, crate::OpenError> {
        self.read().map(|(page, _)| page)
    }

    /// Reads for somebody who keeps the records: payloads of a run share the memory of the whole run, which a single small
    /// record would keep, so they are copied.
    pub fn run_to_keep(self) -> Result<Page, crate::OpenError> {
        let (mut page, of_segments) = self.read()?;
        for record in &mut page.records[..of_segments] {
            record.payload = Bytes::copy_from_slice(&record.payload);
        }
        Ok(page)
    }

    /// Returns a page, and how many of its records are from segments.
    fn read(mut self) -> Result<(Page, usize), crate::OpenError> {
        let mut records = Vec::new();
        for segment in self.segments.iter() {
            if !segment.read(self.log, &mut self.span, &mut records)? {
                let of_segments = records.len();
                return Ok((Page { records, status: self.status }, of_segments));
            }
        }
        let of_segments = records.len();
        for entry in self.recent {
            if entry.position <= self.span.after {
                continue;
            }
            let within = entry.position <= self.span.through;
            if !within || !take_into(&mut records, &mut self.span, entry.stored.at(entry.position)) {
                break;
            }
        }
        Ok((Page { records, status: self.status }, of_segments))
    }
}
