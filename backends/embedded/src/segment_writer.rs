//! Writes a segment: runs in order, then the records that its references share, then the index.
//!
//! The format is described in [`crate::segment`].

use std::collections::HashMap;
use std::io;

use tidings_engine::log::plan::{LogHash, Stored};
use tidings_engine::log::{Boundary, Origin};
use tidings_model::{CommitNumber, LogId, Position};

use crate::codec::{Writer, checksum, halves};
use crate::disk::{Disk, DiskFile};
use crate::segment::{
    BLOCK_ENTRIES, ENTRY_BYTES, Entry, FOLDER, Footer, LAST, MAGIC, OWN_COMMIT, REFERENCE, RUN_HEAD,
    SharedRecord, VERSION, file_name,
};

/// Payload bytes at which a run ends.
const RUN_PAYLOAD: usize = 64 * 1024;
/// Number of records at which a run ends.
const RUN_RECORDS: usize = 2048;
/// Bytes that are buffered before a write.
const BUFFER: usize = 1 << 20;

/// Identifies what all references that one commit made to one record have in common.
pub type SharedKey = (Origin, CommitNumber);

/// A segment under construction. Logs must be added in ascending order, records of a log by position.
pub struct SegmentWriter {
    file: Box<dyn DiskFile>,
    name: String,
    buffer: Vec<u8>,
    written: u64,
    run: Run,
    entries: Vec<Entry>,
    numbers: HashMap<SharedKey, u64, LogHash>,
    shared: Vec<SharedRecord>,
    /// Locations of payloads that references refer to; `None` until the payload is written.
    payloads: HashMap<Origin, Option<PayloadSpan>, LogHash>,
}

#[derive(Clone, Copy)]
struct PayloadSpan {
    at: u64,
    bytes: u32,
    sum: u32,
}

struct Run {
    log: LogId,
    base: u64,
    first: Position,
    last: Position,
    records: u32,
    meta: Vec<u8>,
    payload: Vec<u8>,
    /// Payloads of this run that references refer to: origin, offset in the run and length.
    wanted: Vec<(Origin, usize, usize)>,
}

impl SegmentWriter {
    /// Creates the segment's file.
    pub fn create(disk: &dyn Disk, id: u64) -> io::Result<Self> {
        let name = file_name(id);
        let file = disk.create(&name)?;
        let mut buffer = MAGIC.to_vec();
        buffer.fixed32(VERSION);
        buffer.fixed32(0);
        Ok(Self {
            file,
            name,
            buffer,
            written: 0,
            run: Run::empty(),
            entries: Vec::new(),
            numbers: HashMap::default(),
            shared: Vec::new(),
            payloads: HashMap::default(),
        })
    }

    /// Announces references to a record. Must be called before the first `push_…`, so that the record's
    /// payload is located if it is written to this segment.
    pub fn announce(&mut self, origin: Origin) {
        self.payloads.insert(origin, None);
    }

    /// Adds a record that is not a reference.
    pub fn push_own(&mut self, log: LogId, position: Position, stored: &Stored) -> io::Result<()> {
        self.switch_to(log, stored.at.as_millis())?;
        let own_commit = halves(position).0 != stored.commit.get();
        let last = stored.boundary == Boundary::Last;
        let flags = if last { LAST } else { 0 } | if own_commit { OWN_COMMIT } else { 0 };
        self.run.step(flags, position);
        if own_commit {
            self.run.meta.number(stored.commit.get());
        }
        self.run.meta.number(stored.at.as_millis() - self.run.base);
        self.run.meta.number(stored.payload.len() as u64);
        let origin = Origin { log, position, at: stored.at };
        if self.payloads.contains_key(&origin) {
            self.run.wanted.push((origin, self.run.payload.len(), stored.payload.len()));
        }
        self.run.payload.extend_from_slice(&stored.payload);
        Ok(())
    }

    /// Adds a reference; returns whether it is the first to its record.
    pub fn push_reference(&mut self, log: LogId, position: Position, of: &Stored) -> io::Result<bool> {
        let origin = of.origin.expect("a reference has an origin");
        let mut first = false;
        let number = match self.numbers.get(&(origin, of.commit)) {
            Some(&number) => number,
            None => {
                first = true;
                let number = self.shared.len() as u64;
                let Stored { commit, at: time, boundary, .. } = *of;
                self.shared.push(SharedRecord { origin, commit, time, boundary, at: 0, bytes: 0, sum: 0 });
                self.numbers.insert((origin, commit), number);
                number
            }
        };
        let base = self.run.base;
        self.switch_to(log, base)?;
        self.run.step(REFERENCE, position);
        self.run.meta.number(number);
        Ok(first)
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.run.records == 0
    }

    /// Completes the file and makes it durable. `payload` returns payloads that references refer to and that
    /// are not in this segment.
    pub fn finish(
        mut self,
        disk: &dyn Disk,
        mut payload: impl FnMut(SharedKey) -> io::Result<bytes::Bytes>,
    ) -> io::Result<()> {
        self.end_run()?;
        for number in 0..self.shared.len() {
            let SharedRecord { origin, commit, .. } = self.shared[number];
            let span = match self.payloads.get(&origin).copied().flatten() {
                Some(span) => span,
                None => {
                    let bytes = payload((origin, commit))?;
                    let span = PayloadSpan {
                        at: self.end(),
                        bytes: bytes.len() as u32,
                        sum: checksum(0, &[&bytes]),
                    };
                    self.buffer.extend_from_slice(&bytes);
                    self.flush(BUFFER)?;
                    self.payloads.insert(origin, Some(span));
                    span
                }
            };
            let shared = &mut self.shared[number];
            (shared.at, shared.bytes, shared.sum) = (span.at, span.bytes, span.sum);
        }
        self.write_index()?;
        self.flush(0)?;
        self.file.sync()?;
        disk.sync_folder(FOLDER)
    }

    /// Path of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn write_index(&mut self) -> io::Result<()> {
        let mut footer = Footer {
            shared_at: self.end(),
            shared: self.shared.len() as u64,
            entries: self.entries.len() as u64,
            ..Footer::default()
        };
        for shared in std::mem::take(&mut self.shared) {
            shared.write(&mut self.buffer);
            self.flush(BUFFER)?;
        }
        footer.blocks_at = self.end();
        let mut sparse = Vec::new();
        for block in std::mem::take(&mut self.entries).chunks(BLOCK_ENTRIES) {
            let (high, low) = halves(block[0].first);
            sparse.fixed64(block[0].log.get());
            sparse.fixed64(high);
            sparse.fixed64(low);
            let start = self.buffer.len();
            for entry in block {
                entry.write(&mut self.buffer);
            }
            self.buffer.resize(start + BLOCK_ENTRIES * ENTRY_BYTES, 0);
            let sum = checksum(0, &[&self.buffer[start..]]);
            self.buffer.fixed32(sum);
            self.flush(BUFFER)?;
        }
        footer.sparse_at = self.end();
        footer.sparse_sum = checksum(0, &[&sparse]);
        self.buffer.extend_from_slice(&sparse);
        footer.write(&mut self.buffer);
        Ok(())
    }

    /// Switches to a log, and to a new run if the current one is full. `time` is that of the next record in
    /// milliseconds.
    fn switch_to(&mut self, log: LogId, time: u64) -> io::Result<()> {
        let full = self.run.payload.len() >= RUN_PAYLOAD || self.run.records as usize >= RUN_RECORDS;
        // Times in a run are stored relative to the first one, so a clock that was set back starts a new run.
        if self.run.log != log || full || time < self.run.base {
            self.end_run()?;
            self.run.log = log;
        }
        if self.run.records == 0 || self.run.base == 0 {
            self.run.begin(time);
        }
        Ok(())
    }

    fn end_run(&mut self) -> io::Result<()> {
        if self.run.records == 0 {
            return Ok(());
        }
        let run = std::mem::replace(&mut self.run, Run::empty());
        let at = self.end();
        let start = self.buffer.len();
        let mut meta = Vec::with_capacity(run.meta.len() + 10);
        meta.number(run.base);
        meta.extend_from_slice(&run.meta);
        self.buffer.fixed32(0);
        self.buffer.fixed32(meta.len() as u32);
        self.buffer.fixed32(run.payload.len() as u32);
        self.buffer.extend_from_slice(&meta);
        let payload_at = at + (RUN_HEAD + meta.len()) as u64;
        self.buffer.extend_from_slice(&run.payload);
        let sum = checksum(run.log.get(), &[&self.buffer[start + 4..]]);
        self.buffer[start..start + 4].copy_from_slice(&sum.to_le_bytes());
        for (origin, offset, bytes) in run.wanted {
            let sum = checksum(0, &[&run.payload[offset..offset + bytes]]);
            let span = PayloadSpan { at: payload_at + offset as u64, bytes: bytes as u32, sum };
            self.payloads.insert(origin, Some(span));
        }
        self.entries.push(Entry {
            log: run.log,
            first: run.first,
            last: run.last,
            at,
            bytes: (self.buffer.len() - start) as u32,
            records: run.records,
        });
        self.flush(BUFFER)
    }

    fn end(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn flush(&mut self, above: usize) -> io::Result<()> {
        if self.buffer.len() > above {
            self.file.write_at(self.written, &self.buffer)?;
            self.written += self.buffer.len() as u64;
            self.buffer.clear();
        }
        Ok(())
    }
}

impl Run {
    fn empty() -> Self {
        Self {
            log: LogId::new(0),
            base: 0,
            first: Position::ZERO,
            last: Position::ZERO,
            records: 0,
            meta: Vec::new(),
            payload: Vec::new(),
            wanted: Vec::new(),
        }
    }

    fn begin(&mut self, time: u64) {
        self.base = time;
    }

    fn step(&mut self, flags: u8, position: Position) {
        let (high, low) = halves(position);
        let (last_high, last_low) = halves(self.last);
        self.meta.byte(flags);
        self.meta.number(high - last_high);
        self.meta.number(if high == last_high { low - last_low } else { low });
        if self.records == 0 {
            self.first = position;
        }
        self.last = position;
        self.records += 1;
    }
}
