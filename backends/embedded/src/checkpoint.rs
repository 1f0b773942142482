//! Recovery data: the manifest, and a checkpoint of logs and tables.
//!
//! A checkpoint is a *base* and the *deltas* written after it. A delta holds what one memtable changed. When
//! the deltas outgrow the base, a new base is written from a snapshot of the state in memory, a few rows at a
//! time, and replaces all of them. The *manifest* names all files of the store and the last commit that they
//! contain; it is replaced atomically. Later commits are in the write-ahead log.

use std::io;
use std::sync::RwLock;

use bytes::Bytes;
use tidings_engine::log::{Append, Conditions, LogParts, LogState, LogTotals, Status, Then};
use tidings_model::{CommitNumber, LogId, Position, Timestamp};

use crate::codec::{Checksum, DecodeError, Reader, Writer, checksum};
use crate::disk::{Disk, DiskFile};
use crate::error::{InFile, OpenError};
use crate::field::Field;
use crate::rows::RowFileName;
use crate::state::{Memtable, Reached, Slot, StoreState};
use crate::stored_state::{Numbers, StoredState};
use crate::wal::{End, KnownLog, LogFile};

/// Folder of bases and deltas.
pub const FOLDER: &str = "checkpoint";
/// Name of the manifest's file.
pub const MANIFEST: &str = "MANIFEST";
const MANIFEST_NEW: &str = "MANIFEST.new";

const MAGIC: &[u8; 8] = b"tidingsM";
const VERSION: u32 = 6;

const CREATED: u8 = 1;
const STAMPED: u8 = 2;
const TRIMMED: u8 = 3;
const ENDED: u8 = 4;
const CHANGED: u8 = 5;

/// Tags of the items of a base.
const LOG: u8 = 1;
const TABLE: u8 = 2;

/// Rows of a snapshot that are gathered while the store's lock is held, which takes a fraction of a
/// millisecond.
const SNAPSHOT_ROWS: usize = 512;
/// Bytes that are buffered before a write.
const BUFFER: usize = 1 << 20;
/// Bytes of a file before its content: magic, version, checksum.
const HEAD: usize = 16;

/// The files that make up a store, and the commits that they contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Era of the store.
    pub era: u16,
    /// Whether the files are a copy: the era is then raised when they are opened.
    pub copied: bool,
    /// Last commit that segments, files of rows and checkpoint contain.
    pub applied: CommitNumber,
    /// Checksum of the frame of the commit `applied`.
    pub chain: u32,
    /// Number of the base, if there is one.
    pub base: Option<u64>,
    /// Numbers of the deltas, in order.
    pub deltas: Vec<u64>,
    /// Numbers of the segments, oldest first.
    pub segments: Vec<u64>,
    /// Files of rows, oldest first.
    pub rows: Vec<RowFileName>,
    /// Files of the write-ahead log, oldest first. A file is named before its first frame is written, and is
    /// no longer named when it is overwritten.
    pub log: Vec<LogFile>,
    /// Last commit that was durable in the write-ahead log when the manifest was written.
    pub reached: End,
    /// Number of the last file that was allocated.
    pub next_file: u64,
}

/// Path of a base or delta.
pub fn file_name(id: u64) -> String {
    format!("{FOLDER}/{id:016x}")
}

impl Manifest {
    /// Reads the manifest; `None` if there is none.
    pub fn load(disk: &dyn Disk) -> Result<Option<Self>, OpenError> {
        if !disk.list("").in_file("the data folder")?.iter().any(|name| name == MANIFEST) {
            return Ok(None);
        }
        Self::read(unwrap_file(MANIFEST, load(disk, MANIFEST)?)?).in_file(MANIFEST).map(Some)
    }

    /// Replaces the manifest durably.
    pub fn store(&self, disk: &dyn Disk) -> io::Result<()> {
        match disk.remove(MANIFEST_NEW) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        save(disk, MANIFEST_NEW, wrap_file(&self.write()))?;
        // After a failed rename either manifest may be the current one. So this must not count as a transient
        // error.
        let renamed = disk.rename(MANIFEST_NEW, MANIFEST).and_then(|()| disk.sync_folder(""));
        renamed.map_err(|error| io::Error::other(format!("{MANIFEST}: {error}")))
    }

    /// What the manifest says about the write-ahead log.
    pub fn known_log(&self) -> KnownLog {
        let applied = End { number: self.applied, chain: self.chain };
        KnownLog { applied, reached: self.reached, files: self.log.clone() }
    }

    /// Whether this manifest still names all files of an earlier one for the same purpose. The log may have
    /// grown.
    pub(crate) fn has_files_of(&self, earlier: &Self) -> bool {
        let same = |file: &LogFile, other: &LogFile| LogFile { last: other.last, ..*file } == *other;
        let log = earlier.log.iter().all(|file| self.log.iter().any(|other| same(file, other)));
        let parts = |manifest: &Self| Self {
            log: Vec::new(),
            reached: End::default(),
            next_file: 0,
            ..manifest.clone()
        };
        log && parts(self) == parts(earlier)
    }

    /// Allocates the number of a new file.
    pub fn new_file(&mut self) -> u64 {
        self.next_file += 1;
        self.next_file
    }

    fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.number(u64::from(self.era));
        out.byte(u8::from(self.copied));
        out.number(self.applied.get());
        out.fixed32(self.chain);
        out.number(self.base.unwrap_or(0));
        for files in [&self.deltas, &self.segments] {
            out.number(files.len() as u64);
            files.iter().for_each(|&file| out.number(file));
        }
        out.number(self.rows.len() as u64);
        for RowFileName { number, sum } in &self.rows {
            out.number(*number);
            out.fixed32(*sum);
        }
        out.number(self.next_file);
        out.number(self.log.len() as u64);
        for LogFile { number, sequence, salt, last } in &self.log {
            out.number(*number);
            out.number(*sequence);
            out.fixed64(*salt);
            put_option(&mut out, last.as_ref(), |out, last| out.number(last.get()));
        }
        out.number(self.reached.number.get());
        out.fixed32(self.reached.chain);
        out
    }

    fn read(content: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader(content);
        let era = u16::try_from(reader.number()?).map_err(|_| DecodeError)?;
        let copied = reader.byte()? != 0;
        let (applied, chain) = (reader.commit()?, reader.fixed32()?);
        let base = Some(reader.number()?).filter(|&base| base != 0);
        let mut files =
            || (0..reader.count()?).map(|_| reader.number()).collect::<Result<Vec<_>, DecodeError>>();
        let (deltas, segments) = (files()?, files()?);
        let rows = (0..reader.count()?)
            .map(|_| Ok(RowFileName { number: reader.number()?, sum: reader.fixed32()? }))
            .collect::<Result<_, DecodeError>>()?;
        let next_file = reader.number()?;
        let log = (0..reader.count()?)
            .map(|_| {
                let (number, sequence, salt) = (reader.number()?, reader.number()?, reader.fixed64()?);
                Ok(LogFile { number, sequence, salt, last: take_option(&mut reader, Reader::commit)? })
            })
            .collect::<Result<_, DecodeError>>()?;
        let reached = End { number: reader.commit()?, chain: reader.fixed32()? };
        Ok(Self { era, copied, applied, chain, base, deltas, segments, rows, log, reached, next_file })
    }
}

/// Changes made by a memtable, other than tails of logs, encoded as they happen.
#[derive(Debug, Default)]
pub struct Delta(Vec<u8>);

impl Delta {
    /// Size so far in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    /// Records that a log was created.
    pub fn created(&mut self, log: LogId, tail: Position) {
        self.0.byte(CREATED);
        self.0.log(log);
        self.0.position(tail);
    }

    /// Records an append: only stamps and closing, since tails are written with the memtable.
    pub fn appended(&mut self, append: &Append, now: Timestamp) {
        let Conditions { producer, order, tail: _ } = &append.conditions;
        if producer.is_none() && order.is_none() && append.then == Then::StayOpen {
            return;
        }
        self.0.byte(STAMPED);
        self.0.log(append.log);
        self.0.number(now.as_millis());
        self.0.byte(u8::from(append.then == Then::Close));
        put_option(&mut self.0, producer.as_ref(), |out, producer| out.producer(producer));
        put_option(&mut self.0, order.as_ref(), |out, order| out.text(order));
    }

    /// Records that the floor of a log was raised.
    pub fn trimmed(&mut self, log: LogId, floor: Position) {
        self.0.byte(TRIMMED);
        self.0.log(log);
        self.0.position(floor);
    }

    /// Records that a log was deleted.
    pub fn ended(&mut self, log: LogId) {
        self.0.byte(ENDED);
        self.0.log(log);
    }

    /// Records a change of the tables, as encoded.
    pub fn changed(&mut self, bytes: &[u8]) {
        self.0.byte(CHANGED);
        self.0.bytes(bytes);
    }
}

/// Writes the changes of a memtable as a delta. Returns its size in bytes.
pub fn store_delta(disk: &dyn Disk, id: u64, memtable: &Memtable) -> io::Result<u64> {
    let mut file = FileWriter::create(disk, id)?;
    let delta = &memtable.delta.0;
    file.buffer.number(delta.len() as u64);
    file.flush(0)?;
    file.write(delta)?;
    file.buffer.number(memtable.reached.len() as u64);
    for &Reached { log, tail, total } in &memtable.reached {
        file.buffer.log(log);
        file.buffer.position(tail);
        put_totals(&mut file.buffer, total);
        file.flush(BUFFER)?;
    }
    file.finish(disk)
}

/// Writes the current snapshot as a base, and ends the snapshot. Takes the store's lock repeatedly, each time
/// for a few rows. Returns the size of the base in bytes.
pub fn store_base<T: StoredState>(
    disk: &dyn Disk,
    id: u64,
    numbers: &Numbers,
    state: &RwLock<StoreState<T>>,
) -> io::Result<u64> {
    let state = || state.write().expect("nobody panics while writing");
    let mut file = FileWriter::create(disk, id)?;
    file.buffer.number(numbers.ranges().len() as u64);
    for (first, last) in numbers.ranges() {
        file.buffer.number(first);
        file.buffer.number(last);
    }
    loop {
        let Some(logs) = state().logs.next_rows(SNAPSHOT_ROWS) else { break };
        for (log, known) in logs {
            file.buffer.byte(LOG);
            file.buffer.log(log);
            put_state(&mut file.buffer, &known);
            file.flush(BUFFER)?;
        }
    }
    let mut bytes = Vec::new();
    loop {
        let Some(rows) = state().tables.next_rows(SNAPSHOT_ROWS) else { break };
        for row in rows {
            T::restore(row, &mut |change| {
                bytes.clear();
                change.put(&mut bytes);
                file.buffer.byte(TABLE);
                file.buffer.bytes(&bytes);
            });
            file.flush(BUFFER)?;
        }
    }
    state().end_snapshot();
    file.finish(disk)
}

/// Reads the checkpoint that a manifest names. Does not read segments.
pub fn load_state<T: StoredState>(disk: &dyn Disk, manifest: &Manifest) -> Result<StoreState<T>, OpenError> {
    let mut state = StoreState::empty();
    if let Some(base) = manifest.base {
        let name = file_name(base);
        read_base(&mut state, unwrap_file(&name, load(disk, &name)?)?).in_file(&name)?;
    }
    for &delta in &manifest.deltas {
        let name = file_name(delta);
        read_delta(&mut state, unwrap_file(&name, load(disk, &name)?)?).in_file(&name)?;
    }
    for slot in state.logs.values_mut() {
        slot.evicted = slot.state.status().tail;
    }
    (state.last_commit, state.chain) = (manifest.applied, manifest.chain);
    Ok(state)
}

fn read_base<T: StoredState>(state: &mut StoreState<T>, content: Bytes) -> Result<(), DecodeError> {
    let mut reader = Reader(content);
    let mut numbers = Numbers::default();
    for _ in 0..reader.count()? {
        numbers.insert_range(reader.number()?, reader.number()?);
    }
    state.numbers = numbers;
    while !reader.is_empty() {
        match reader.byte()? {
            LOG => {
                let log = reader.log()?;
                state.logs.insert(log, Slot::new(take_state(&mut reader)?));
            }
            TABLE => state.tables.apply(Field::take_whole(Reader(reader.bytes()?))?),
            _ => return Err(DecodeError),
        }
    }
    Ok(())
}

fn read_delta<T: StoredState>(state: &mut StoreState<T>, content: Bytes) -> Result<(), DecodeError> {
    let mut reader = Reader(content);
    let mut changes = Reader(reader.bytes()?);
    while !changes.is_empty() {
        match changes.byte()? {
            CREATED => {
                let (log, tail) = (changes.log()?, changes.position()?);
                state.logs.insert(log, Slot::new(LogState::beginning(tail)));
                state.numbers.insert(log.get());
            }
            STAMPED => {
                let (log, at) = (changes.log()?, changes.time()?);
                let then = if changes.byte()? != 0 { Then::Close } else { Then::StayOpen };
                let producer = take_option(&mut changes, Reader::producer)?;
                let order = take_option(&mut changes, Reader::text)?.map(Into::into);
                if let Some(slot) = state.logs.get_mut(log) {
                    slot.state.remember(&Conditions { producer, order, tail: None }, then, at);
                }
            }
            TRIMMED => {
                let (log, floor) = (changes.log()?, changes.position()?);
                if let Some(slot) = state.logs.get_mut(log) {
                    // The tail was at least at the floor; tails are stored last.
                    slot.state.extend(floor);
                    slot.state.trim(floor);
                }
            }
            ENDED => {
                state.logs.remove(changes.log()?);
            }
            CHANGED => state.tables.apply(Field::take_whole(Reader(changes.bytes()?))?),
            _ => return Err(DecodeError),
        }
    }
    for _ in 0..reader.count()? {
        let (log, tail, total) = (reader.log()?, reader.position()?, take_totals(&mut reader)?);
        if let Some(slot) = state.logs.get_mut(log) {
            slot.state.extend(tail);
            slot.state.set_totals(total);
        }
    }
    Ok(())
}

fn put_state(out: &mut Vec<u8>, state: &LogState) {
    let LogParts { status, producers, order, closed_by } = state.into();
    let Status { tail, floor, closed, total } = status;
    out.position(tail);
    out.position(floor);
    out.byte(u8::from(closed));
    put_totals(out, total);
    out.number(producers.len() as u64);
    for (producer, at) in &producers {
        out.producer(producer);
        out.number(at.as_millis());
    }
    put_option(out, order.as_ref(), |out, order| out.text(order));
    put_option(out, closed_by.as_ref(), |out, producer| out.producer(producer));
}

fn take_state(reader: &mut Reader) -> Result<LogState, DecodeError> {
    let status = Status {
        tail: reader.position()?,
        floor: reader.position()?,
        closed: reader.byte()? != 0,
        total: take_totals(reader)?,
    };
    let producers = (0..reader.count()?)
        .map(|_| Ok((reader.producer()?, reader.time()?)))
        .collect::<Result<Vec<_>, DecodeError>>()?;
    let order = take_option(reader, Reader::text)?.map(Into::into);
    let closed_by = take_option(reader, Reader::producer)?;
    Ok(LogParts { status, producers, order, closed_by }.into())
}

/// Encodes the totals of a log.
pub fn put_totals(out: &mut Vec<u8>, totals: LogTotals) {
    out.number(totals.records);
    out.number(totals.bytes);
}

/// Decodes the totals of a log.
pub fn take_totals(reader: &mut Reader) -> Result<LogTotals, DecodeError> {
    Ok(LogTotals { records: reader.number()?, bytes: reader.number()? })
}

/// Encodes an optional value.
pub fn put_option<V>(out: &mut Vec<u8>, value: Option<V>, put: impl FnOnce(&mut Vec<u8>, V)) {
    out.byte(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}

/// Decodes an optional value.
pub fn take_option<V>(
    reader: &mut Reader,
    value: impl FnOnce(&mut Reader) -> Result<V, DecodeError>,
) -> Result<Option<V>, DecodeError> {
    if reader.byte()? == 0 { Ok(None) } else { value(reader).map(Some) }
}

/// A base or delta under construction. Its head, with the checksum, is written last.
struct FileWriter {
    file: Box<dyn DiskFile>,
    buffer: Vec<u8>,
    /// Bytes of the content that are written.
    written: u64,
    sum: Checksum,
}

impl FileWriter {
    fn create(disk: &dyn Disk, id: u64) -> io::Result<Self> {
        let file = disk.create(&file_name(id))?;
        Ok(Self { file, buffer: Vec::new(), written: 0, sum: Checksum::begin(0) })
    }

    /// Writes the buffer if it has more than `above` bytes.
    fn flush(&mut self, above: usize) -> io::Result<()> {
        if self.buffer.len() > above {
            let mut buffer = std::mem::take(&mut self.buffer);
            self.write(&buffer)?;
            buffer.clear();
            // Memory that one large row needed is not kept until the end.
            buffer.shrink_to(2 * BUFFER);
            self.buffer = buffer;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(HEAD as u64 + self.written, bytes)?;
        self.sum.add(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Completes the file and makes it durable. Returns its size in bytes.
    fn finish(mut self, disk: &dyn Disk) -> io::Result<u64> {
        self.flush(0)?;
        self.file.write_at(0, &head(self.sum.end()))?;
        self.file.sync()?;
        disk.sync_folder(FOLDER)?;
        Ok(HEAD as u64 + self.written)
    }
}

fn save(disk: &dyn Disk, name: &str, bytes: Vec<u8>) -> io::Result<()> {
    let file = disk.create(name)?;
    file.write_at(0, &bytes)?;
    file.sync()
}

fn load(disk: &dyn Disk, name: &str) -> Result<Bytes, OpenError> {
    let file = disk.open(name).in_file(name)?;
    let mut bytes = vec![0; file.len().in_file(name)? as usize];
    file.read_at(0, &mut bytes).in_file(name)?;
    Ok(bytes.into())
}

fn wrap_file(content: &[u8]) -> Vec<u8> {
    let mut out = head(checksum(0, &[content]));
    out.extend_from_slice(content);
    out
}

fn head(sum: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD);
    out.extend_from_slice(MAGIC);
    out.fixed32(VERSION);
    out.fixed32(sum);
    out
}

/// Verifies magic, version and checksum, and returns the content.
fn unwrap_file(name: &str, bytes: Bytes) -> Result<Bytes, OpenError> {
    let mut reader = Reader(bytes);
    let magic = reader.exactly(8).in_file(name)?;
    if magic != MAGIC[..] {
        return Err(OpenError::damaged(name, "it does not start with the magic of a checkpoint or manifest"));
    }
    let found = reader.fixed32().in_file(name)?;
    if found != VERSION {
        return Err(OpenError::Version { name: name.to_owned(), found, expected: VERSION });
    }
    let sum = reader.fixed32().in_file(name)?;
    if checksum(0, &[&reader.0]) != sum {
        return Err(OpenError::damaged(name, "its checksum is wrong"));
    }
    Ok(reader.0)
}
