//! Writes a segment: runs in order, then the records that its references refer to, then the index.
//!
//! The format is described in [`crate::segment`].

use std::io;

use bytes::Bytes;
use tidings_engine::log::Boundary;
use tidings_engine::log::plan::Stored;
use tidings_model::{LogId, Position};

use crate::codec::{Writer, checksum, halves};
use crate::disk::{Disk, DiskFile};
use crate::segment::{
    BLOCK_ENTRIES, ENTRY_BYTES, Entry, FOLDER, Footer, LAST, MAGIC, OWN_COMMIT, REFERENCE, SHARED_BYTES,
    VERSION, file_name,
};
use crate::segment_shared::{PayloadSpan, Payloads, SharedSource};

/// Payload bytes at which a run ends.
const RUN_PAYLOAD: usize = 64 * 1024;
/// Number of records at which a run ends.
const RUN_RECORDS: usize = 2048;
/// Bytes that are buffered before a write.
const BUFFER: usize = 1 << 20;

/// A segment under construction. Logs must be added in ascending order, records of a log by position.
pub struct SegmentWriter {
    file: Box<dyn DiskFile>,
    name: String,
    buffer: Vec<u8>,
    written: u64,
    run: Run,
    entries: Vec<Entry>,
}

struct Run {
    log: LogId,
    base: u64,
    first: Position,
    last: Position,
    records: u32,
    meta: Vec<u8>,
    payload: Vec<u8>,
}

impl SegmentWriter {
    /// Creates the segment's file.
    pub fn create(disk: &dyn Disk, id: u64) -> io::Result<Self> {
        let name = file_name(id);
        let file = disk.create(&name)?;
        let mut buffer = MAGIC.to_vec();
        buffer.fixed32(VERSION);
        buffer.fixed32(0);
        Ok(Self { file, name, buffer, written: 0, run: Run::empty(), entries: Vec::new() })
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
        self.run.payload.extend_from_slice(&stored.payload);
        Ok(())
    }

    /// Adds a reference to the record with a number among those that [`SegmentWriter::finish`] is given.
    pub fn push_reference(&mut self, log: LogId, position: Position, number: u64) -> io::Result<()> {
        let base = self.run.base;
        self.switch_to(log, base)?;
        self.run.step(REFERENCE, position);
        self.run.meta.number(number);
        Ok(())
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.run.records == 0
    }

    /// Completes the file and makes it durable. `shared` are the records that its references refer to.
    pub(crate) fn finish(mut self, disk: &dyn Disk, shared: &mut dyn SharedSource) -> io::Result<()> {
        self.end_run()?;
        let mut footer = Footer { shared: shared.count(), ..Footer::default() };
        footer.shared_at = self.write_shared(shared)?;
        self.write_index(footer)?;
        self.flush(0)?;
        self.file.sync()?;
        disk.sync_folder(FOLDER)
    }

    /// Writes the shared records, and behind them the payloads that are in no run. Returns where they begin.
    fn write_shared(&mut self, shared: &mut dyn SharedSource) -> io::Result<u64> {
        // Runs are read back.
        self.flush(0)?;
        let shared_at = self.written;
        self.written += shared.count() * SHARED_BYTES as u64;
        let (mut number, mut payloads, mut table) = (0, Payloads::default(), Vec::new());
        loop {
            let mut records = shared.next()?;
            if records.is_empty() {
                break;
            }
            let mut order: Vec<usize> = (0..records.len()).collect();
            order.sort_unstable_by_key(|&n| (records[n].origin.log, records[n].origin.position));
            for n in order {
                let origin = records[n].origin;
                let span = match payloads.find(origin, &self.entries, &*self.file, &self.name)? {
                    Some(span) => span,
                    None => {
                        let span = self.add_payload(&shared.payload(number + n as u64, &records[n])?)?;
                        payloads.remember(origin, span);
                        span
                    }
                };
                (records[n].at, records[n].bytes, records[n].sum) = (span.at, span.bytes, span.sum);
            }
            table.clear();
            records.iter().for_each(|record| record.write(&mut table));
            self.file.write_at(shared_at + number * SHARED_BYTES as u64, &table)?;
            number += records.len() as u64;
        }
        if number == shared.count() {
            Ok(shared_at)
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "there are more or fewer shared records than announced",
            ))
        }
    }

    fn add_payload(&mut self, payload: &Bytes) -> io::Result<PayloadSpan> {
        let span = PayloadSpan { at: self.end(), bytes: payload.len() as u32, sum: checksum(0, &[payload]) };
        self.buffer.extend_from_slice(payload);
        self.flush(BUFFER)?;
        Ok(span)
    }

    /// Path of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn write_index(&mut self, mut footer: Footer) -> io::Result<()> {
        footer.entries = self.entries.len() as u64;
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
        self.buffer.extend_from_slice(&run.payload);
        let sum = checksum(run.log.get(), &[&self.buffer[start + 4..]]);
        self.buffer[start..start + 4].copy_from_slice(&sum.to_le_bytes());
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
