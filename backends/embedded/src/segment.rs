//! The format of a segment: records of many logs, sorted by log and position, written once and never changed.
//!
//! ```text
//! magic, version | runs | shared | payloads of references whose record is elsewhere | blocks | sparse | footer
//! run    = checksum u32 | meta length u32 | payload length u32 | meta | payload
//! shared = 72 bytes for each record that references of this segment refer to
//! block  = 72 entries of 56 bytes, sorted by log and position, then their checksum; an entry locates a run
//! sparse = the first log and position of each block; the only part that is kept in memory
//! ```
//! The payloads of a run are contiguous, so reading a log is reading a range. A segment is self-contained:
//! each record that its references refer to is stored in it once, however many references there are and
//! wherever the record was appended. (It is stored more than once only if a hundred thousand others that are elsewhere lie
//! between references of different commits to it.) So records and logs can be removed from other segments without a search
//! for references.
//!
//! Read [`Segment`]; `segment_writer` writes the format.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tidings_engine::log::plan::Stored;
use tidings_engine::log::{Boundary, Origin, Record, Span};
use tidings_model::{CommitNumber, LogId, Position, Timestamp};

use crate::codec::{DecodeError, Reader, Writer, checksum, whole};
use crate::disk::{Disk, DiskFile};
use crate::error::{InFile, OpenError, is_transient};

/// Folder of segments.
pub const FOLDER: &str = "segments";

pub(crate) const MAGIC: &[u8; 8] = b"tidingsS";
pub(crate) const VERSION: u32 = 3;
pub(crate) const HEAD: u64 = 16;
pub(crate) const RUN_HEAD: usize = 12;
pub(crate) const SHARED_BYTES: usize = 72;
pub(crate) const ENTRY_BYTES: usize = 56;
pub(crate) const BLOCK_ENTRIES: usize = 72;
pub(crate) const BLOCK_BYTES: usize = BLOCK_ENTRIES * ENTRY_BYTES + 4;
pub(crate) const SPARSE_BYTES: usize = 24;
pub(crate) const FOOTER_BYTES: usize = 64;

pub(crate) const LAST: u8 = 1;
pub(crate) const REFERENCE: u8 = 2;
pub(crate) const OWN_COMMIT: u8 = 4;

/// An open segment.
pub struct Segment {
    /// Number of the segment, from which its file name is formed.
    pub id: u64,
    name: String,
    file: Box<dyn DiskFile>,
    footer: Footer,
    sparse: Vec<(LogId, Position)>,
    bytes: u64,
}

/// Offsets of the parts of a segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Footer {
    pub shared_at: u64,
    pub shared: u64,
    pub blocks_at: u64,
    pub entries: u64,
    pub sparse_at: u64,
    pub sparse_sum: u32,
}

/// An index entry, which locates one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub log: LogId,
    pub first: Position,
    pub last: Position,
    pub at: u64,
    pub bytes: u32,
    pub records: u32,
}

/// A record that references refer to, and the offset of its payload in this file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedRecord {
    pub origin: Origin,
    pub commit: CommitNumber,
    pub time: Timestamp,
    pub boundary: Boundary,
    pub at: u64,
    pub bytes: u32,
    pub sum: u32,
}

/// A record as stored in a run.
#[derive(Clone, Debug)]
pub(crate) enum Kept {
    Own(Stored),
    /// Index of one of the segment's shared records.
    Reference(u64),
}

/// Path of a segment's file.
pub fn file_name(id: u64) -> String {
    format!("{FOLDER}/{id:016x}")
}

impl Segment {
    /// Opens a segment and reads its sparse index.
    pub fn open(disk: &dyn Disk, id: u64) -> Result<Self, OpenError> {
        let name = file_name(id);
        let file = disk.open(&name).in_file(&name)?;
        let bytes = file.len().in_file(&name)?;
        let read = |at: u64, length: usize| -> Result<Bytes, OpenError> {
            let mut buffer = vec![0; length];
            file.read_at(at, &mut buffer).map_err(|_| OpenError::damaged(&name, "it is too short"))?;
            Ok(buffer.into())
        };
        let mut head = Reader(read(0, HEAD as usize)?);
        if head.exactly(8).in_file(&name)? != MAGIC[..] {
            return Err(OpenError::damaged(&name, "it does not start with the magic of a segment"));
        }
        let found = head.fixed32().in_file(&name)?;
        if found != VERSION {
            return Err(OpenError::Version { name, found, expected: VERSION });
        }
        let foot = read(bytes.saturating_sub(FOOTER_BYTES as u64), FOOTER_BYTES)?;
        let footer =
            Footer::read(foot).map_err(|_| OpenError::damaged(&name, "its footer's checksum is wrong"))?;
        let blocks = footer.entries.div_ceil(BLOCK_ENTRIES as u64) as usize;
        let sparse = read(footer.sparse_at, blocks * SPARSE_BYTES)?;
        if checksum(0, &[&sparse]) != footer.sparse_sum {
            return Err(OpenError::damaged(&name, "its index's checksum is wrong"));
        }
        let mut reader = Reader(sparse);
        let key = |reader: &mut Reader| -> Result<_, DecodeError> {
            Ok((LogId::new(reader.fixed64()?), whole(reader.fixed64()?, reader.fixed64()?)))
        };
        let sparse = (0..blocks).map(|_| key(&mut reader)).collect::<Result<_, _>>().in_file(&name)?;
        Ok(Self { id, name, file, footer, sparse, bytes })
    }

    /// Size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Path of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of runs.
    pub fn runs(&self) -> u64 {
        self.footer.entries
    }

    /// Appends to `records` the records of `span`, up to its limits. Returns `false` when a limit was
    /// reached.
    pub fn read(&self, log: LogId, span: &mut Span, records: &mut Vec<Record>) -> Result<bool, OpenError> {
        // Start with the last block whose first key is at or before the start of the span: the span may begin
        // in it.
        let begins = self.sparse.partition_point(|key| *key <= (log, span.after));
        let mut index = begins.saturating_sub(1) * BLOCK_ENTRIES;
        while (index as u64) < self.footer.entries {
            for entry in self.block(index / BLOCK_ENTRIES)? {
                if entry.log > log || (entry.log == log && entry.first > span.through) {
                    return Ok(true);
                }
                if entry.log == log && entry.last > span.after && !self.read_run(entry, span, records)? {
                    return Ok(false);
                }
            }
            index += BLOCK_ENTRIES;
        }
        Ok(true)
    }

    fn read_run(&self, entry: Entry, span: &mut Span, records: &mut Vec<Record>) -> Result<bool, OpenError> {
        for (position, kept) in self.run(entry)? {
            if position <= span.after || position > span.through {
                continue;
            }
            let stored = match kept {
                Kept::Own(stored) => stored,
                Kept::Reference(number) => self.resolve(&self.shared(number)?)?,
            };
            if !take_into(records, span, stored.at(position)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the entries of a block and verifies its checksum.
    pub(crate) fn block(&self, block: usize) -> Result<Vec<Entry>, OpenError> {
        let mut bytes = vec![0; BLOCK_BYTES];
        let at = self.footer.blocks_at + (block * BLOCK_BYTES) as u64;
        self.file.read_at(at, &mut bytes).in_file(&self.name)?;
        let (content, sum) = bytes.split_at(BLOCK_BYTES - 4);
        if checksum(0, &[content]).to_le_bytes() != sum {
            return Err(OpenError::damaged(&self.name, format!("checksum of index block {block} is wrong")));
        }
        let count = (self.footer.entries as usize - block * BLOCK_ENTRIES).min(BLOCK_ENTRIES);
        let mut reader = Reader(Bytes::copy_from_slice(content));
        (0..count).map(|_| Entry::read(&mut reader)).collect::<Result<_, _>>().in_file(&self.name)
    }

    /// Iterates over all entries in order, block by block.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Result<Vec<Entry>, OpenError>> + '_ {
        (0..self.sparse.len()).map(|block| self.block(block))
    }

    /// Reads the records of a run and verifies its checksum.
    pub(crate) fn run(&self, entry: Entry) -> Result<Vec<(Position, Kept)>, OpenError> {
        read_run(&*self.file, &self.name, entry)
    }

    /// Number of shared records.
    pub(crate) fn shared_count(&self) -> u64 {
        self.footer.shared
    }

    /// Reads one of the records that references of this segment refer to.
    pub(crate) fn shared(&self, number: u64) -> Result<SharedRecord, OpenError> {
        let damaged = || OpenError::damaged(&self.name, "a reference has no record");
        if number >= self.footer.shared {
            return Err(damaged());
        }
        let mut bytes = [0; SHARED_BYTES];
        self.file
            .read_at(self.footer.shared_at + number * SHARED_BYTES as u64, &mut bytes)
            .in_file(&self.name)?;
        SharedRecord::read(&bytes).map_err(|_| damaged())
    }

    /// Reads shared records from a number on, at most `most`; none at the end.
    pub(crate) fn shared_from(&self, number: u64, most: usize) -> Result<Vec<SharedRecord>, OpenError> {
        let count = self.footer.shared.saturating_sub(number).min(most as u64) as usize;
        let mut bytes = vec![0; count * SHARED_BYTES];
        let at = self.footer.shared_at + number * SHARED_BYTES as u64;
        self.file.read_at(at, &mut bytes).in_file(&self.name)?;
        let (entries, _) = bytes.as_chunks::<SHARED_BYTES>();
        entries.iter().map(SharedRecord::read).collect::<Result<_, _>>().in_file(&self.name)
    }

    /// Reads the payload of a shared record.
    pub(crate) fn resolve(&self, shared: &SharedRecord) -> Result<Stored, OpenError> {
        let mut payload = vec![0; shared.bytes as usize];
        self.file.read_at(shared.at, &mut payload).in_file(&self.name)?;
        if checksum(0, &[&payload]) != shared.sum {
            return Err(OpenError::damaged(&self.name, "the checksum of a shared payload is wrong"));
        }
        let SharedRecord { origin, commit, time, boundary, .. } = *shared;
        Ok(Stored { commit, at: time, payload: payload.into(), origin: Some(origin), boundary })
    }
}

/// Appends a record and advances the span, unless a limit of the span is reached; returns whether it did.
pub(crate) fn take_into(records: &mut Vec<Record>, span: &mut Span, record: Record) -> bool {
    if !records.is_empty() && (span.records == 0 || record.payload.len() > span.bytes) {
        return false;
    }
    span.after = record.position;
    span.bytes = span.bytes.saturating_sub(record.payload.len());
    span.records = span.records.saturating_sub(1);
    records.push(record);
    true
}

/// Reads the records of a run of a file and verifies its checksum. Their payloads share the memory of the whole run.
pub(crate) fn read_run(
    file: &dyn DiskFile,
    name: &str,
    entry: Entry,
) -> Result<Vec<(Position, Kept)>, OpenError> {
    let mut bytes = vec![0; entry.bytes as usize];
    file.read_at(entry.at, &mut bytes).in_file(name)?;
    let bytes = Bytes::from(bytes);
    let damaged = |what| OpenError::damaged(name, format!("the run at byte {} {what}", entry.at));
    if bytes.len() < RUN_HEAD || checksum(entry.log.get(), &[&bytes[4..]]).to_le_bytes() != bytes[..4] {
        return Err(damaged("has a wrong checksum"));
    }
    decode_run(bytes.slice(4..), entry).map_err(|_| damaged("cannot be decoded"))
}

fn decode_run(bytes: Bytes, entry: Entry) -> Result<Vec<(Position, Kept)>, DecodeError> {
    let mut reader = Reader(bytes);
    let (meta, payload) = (reader.fixed32()? as usize, reader.fixed32()? as usize);
    let mut meta = Reader(reader.exactly(meta)?);
    let mut payloads = Reader(reader.exactly(payload)?);
    let base = meta.number()?;
    let (mut high, mut low) = (0u64, 0u64);
    let mut records = Vec::with_capacity(entry.records.min(1 << 16) as usize);
    for _ in 0..entry.records {
        let flags = meta.byte()?;
        let step = meta.number()?;
        let low_part = meta.number()?;
        low = if step == 0 { low.checked_add(low_part).ok_or(DecodeError)? } else { low_part };
        high = high.checked_add(step).ok_or(DecodeError)?;
        let position = whole(high, low);
        if flags & REFERENCE != 0 {
            records.push((position, Kept::Reference(meta.number()?)));
            continue;
        }
        let commit = if flags & OWN_COMMIT != 0 { meta.commit()? } else { CommitNumber::from_number(high) };
        let at = Timestamp::from_millis(base.checked_add(meta.number()?).ok_or(DecodeError)?);
        let payload = payloads.exactly(meta.count()?)?;
        let boundary = if flags & LAST != 0 { Boundary::Last } else { Boundary::Inside };
        records.push((position, Kept::Own(Stored { commit, at, payload, origin: None, boundary })));
    }
    if meta.is_empty() && payloads.is_empty() { Ok(records) } else { Err(DecodeError) }
}

impl Entry {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.fixed64(self.log.get());
        for position in [self.first, self.last] {
            let (high, low) = crate::codec::halves(position);
            out.fixed64(high);
            out.fixed64(low);
        }
        out.fixed64(self.at);
        out.fixed32(self.bytes);
        out.fixed32(self.records);
    }

    fn read(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            log: LogId::new(reader.fixed64()?),
            first: whole(reader.fixed64()?, reader.fixed64()?),
            last: whole(reader.fixed64()?, reader.fixed64()?),
            at: reader.fixed64()?,
            bytes: reader.fixed32()?,
            records: reader.fixed32()?,
        })
    }
}

impl SharedRecord {
    /// The record of a reference whose payload is not in the file yet.
    pub(crate) fn not_located(stored: &Stored) -> Self {
        let Stored { commit, at: time, boundary, .. } = *stored;
        let origin = stored.origin.expect("a reference has an origin");
        Self { origin, commit, time, boundary, at: 0, bytes: 0, sum: 0 }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.fixed64(self.origin.log.get());
        let (high, low) = crate::codec::halves(self.origin.position);
        out.fixed64(high);
        out.fixed64(low);
        out.fixed64(self.origin.at.as_millis());
        out.fixed64(self.commit.get());
        out.fixed64(self.time.as_millis());
        out.fixed64(self.at);
        out.fixed32(self.bytes);
        out.fixed32(self.sum);
        out.byte(u8::from(self.boundary == Boundary::Last));
        out.extend_from_slice(&[0; 3]);
        let sum = checksum(0, &[&out[start..]]);
        out.fixed32(sum);
    }

    fn read(bytes: &[u8; SHARED_BYTES]) -> Result<Self, DecodeError> {
        let (content, sum) = bytes.split_at(SHARED_BYTES - 4);
        if checksum(0, &[content]).to_le_bytes() != sum {
            return Err(DecodeError);
        }
        let mut reader = Reader(Bytes::copy_from_slice(bytes));
        Ok(Self {
            origin: Origin {
                log: LogId::new(reader.fixed64()?),
                position: whole(reader.fixed64()?, reader.fixed64()?),
                at: Timestamp::from_millis(reader.fixed64()?),
            },
            commit: CommitNumber::from_number(reader.fixed64()?),
            time: Timestamp::from_millis(reader.fixed64()?),
            at: reader.fixed64()?,
            bytes: reader.fixed32()?,
            sum: reader.fixed32()?,
            boundary: if reader.byte()? == 1 { Boundary::Last } else { Boundary::Inside },
        })
    }
}

impl Footer {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.fixed64(self.shared_at);
        out.fixed64(self.shared);
        out.fixed64(self.blocks_at);
        out.fixed64(self.entries);
        out.fixed64(self.sparse_at);
        out.fixed32(self.sparse_sum);
        out.fixed64(0);
        out.fixed64(0);
        let sum = checksum(0, &[&out[start..]]);
        out.fixed32(sum);
    }

    fn read(bytes: Bytes) -> Result<Self, DecodeError> {
        if checksum(0, &[&bytes[..FOOTER_BYTES - 4]]).to_le_bytes() != bytes[FOOTER_BYTES - 4..] {
            return Err(DecodeError);
        }
        let mut reader = Reader(bytes);
        Ok(Self {
            shared_at: reader.fixed64()?,
            shared: reader.fixed64()?,
            blocks_at: reader.fixed64()?,
            entries: reader.fixed64()?,
            sparse_at: reader.fixed64()?,
            sparse_sum: reader.fixed32()?,
        })
    }
}

/// Segments of a store, oldest first. The list is replaced as a whole, so a reader keeps a consistent one.
pub type Segments = Arc<Vec<Arc<Segment>>>;

/// Converts an error for a background thread.
pub(crate) fn broken(error: OpenError) -> io::Error {
    match error {
        // Not wrapped, so that callers recognize a transient error by its code.
        OpenError::Io { error, .. } if is_transient(&error) => error,
        OpenError::Io { name, error } => io::Error::new(error.kind(), format!("{name}: {error}")),
        other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
    }
}
