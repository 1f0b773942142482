//! The format of a frame: one atomic commit in the write-ahead log, self-contained.
//!
//! ```text
//! checksum u32 | length u32 | commit u64 | checksum of the previous frame u32 | checksum of these three u32
//! | content | zeros to 4 KiB
//! content = time, then items: a tag and its fields
//! ```
//! The first checksum covers everything from the length to the end of the content. Both checksums start with
//! the salt of the file, which clients do not know: a client can craft no payload that passes for a frame,
//! nor one that makes recovery read far for something that looks like a header. A frame starts at a multiple
//! of 4 KiB, so writing one never touches a block that holds another.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use tidings_engine::log::plan::{Effect, Stored};
use tidings_engine::log::{Append, Boundary, Conditions, Origin, Positions, Then};
use tidings_model::{CommitNumber, LogId, Position, Timestamp};

use crate::codec::{DecodeError, Reader, Writer, checksum, halves};

/// Frames start at multiples of this many bytes.
pub const ALIGNMENT: usize = 4096;
/// Bytes of the header, before the content.
pub const HEADER: usize = 24;

const CREATED: u8 = 1;
const APPENDED: u8 = 2;
const REFERRED: u8 = 3;
const TRIMMED: u8 = 4;
const ENDED: u8 = 5;
const CHANGED: u8 = 6;
const ROWS: u8 = 7;

const GIVEN: u8 = 1;
const CLOSES: u8 = 2;
const PRODUCER: u8 = 4;
const ORDER: u8 = 8;

const OF_THIS_COMMIT: u8 = 1;
const LAST: u8 = 2;

/// A frame under construction.
#[derive(Debug)]
pub struct Frame {
    bytes: Vec<u8>,
    number: CommitNumber,
}

impl Frame {
    /// Starts an empty frame for a commit at time `now`, reusing a buffer.
    pub fn begin(mut memory: Vec<u8>, number: CommitNumber, now: Timestamp) -> Self {
        memory.clear();
        memory.resize(HEADER, 0);
        memory.number(now.as_millis());
        Self { bytes: memory, number }
    }

    /// Bytes so far, header included.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Adds the effects of one commit.
    pub fn effects(&mut self, effects: &[Effect]) {
        let mut brought = HashSet::new();
        if effects.iter().any(|effect| matches!(effect, Effect::Referred { .. })) {
            for effect in effects {
                if let Effect::Appended { append, positions } = effect {
                    brought.extend(positions.iter().map(|&position| (append.log, position)));
                }
            }
        }
        for effect in effects {
            self.effect(effect, &brought);
        }
    }

    fn effect(&mut self, effect: &Effect, brought: &HashSet<(LogId, Position)>) {
        let out = &mut self.bytes;
        match effect {
            Effect::Created { log, tail } => {
                out.byte(CREATED);
                out.log(*log);
                out.position(*tail);
            }
            Effect::Appended { append, positions } => append_to(out, append, positions),
            Effect::Referred { sources, targets } => {
                out.byte(REFERRED);
                out.number(sources.len() as u64);
                for source in sources {
                    source_to(out, source, brought);
                }
                out.number(targets.len() as u64);
                let mut last = 0;
                for target in targets {
                    out.number(target.get() - last);
                    last = target.get();
                }
            }
            Effect::Trimmed { log, floor } => {
                out.byte(TRIMMED);
                out.log(*log);
                out.position(*floor);
            }
            Effect::Ended { log } => {
                out.byte(ENDED);
                out.log(*log);
            }
        }
    }

    /// Adds a change of a capability's tables, as encoded by its codec.
    pub fn change(&mut self, change: &[u8]) {
        self.bytes.byte(CHANGED);
        self.bytes.bytes(change);
    }

    /// Adds the changes of cold rows of one commit, as they are encoded.
    pub fn rows(&mut self, changes: &[u8]) {
        if !changes.is_empty() {
            self.bytes.byte(ROWS);
            self.bytes.bytes(changes);
        }
    }

    /// Completes the frame with its header and padding. `before` is the checksum of the previous frame.
    /// Returns the checksum.
    pub fn seal(&mut self, salt: u64, before: u32) -> u32 {
        let length = self.bytes.len() - HEADER;
        self.bytes[4..8].copy_from_slice(&(length as u32).to_le_bytes());
        self.bytes[8..16].copy_from_slice(&self.number.get().to_le_bytes());
        self.bytes[16..20].copy_from_slice(&before.to_le_bytes());
        let head = checksum(salt, &[&self.bytes[4..20]]);
        self.bytes[20..24].copy_from_slice(&head.to_le_bytes());
        let sum = checksum(salt, &[&self.bytes[4..]]);
        self.bytes[..4].copy_from_slice(&sum.to_le_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
        sum
    }

    /// Bytes of the sealed frame.
    pub fn sealed(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the buffer for reuse.
    pub fn into_memory(self) -> Vec<u8> {
        self.bytes
    }
}

fn append_to(out: &mut Vec<u8>, append: &Append, positions: &[Position]) {
    let Conditions { producer, order, tail: _ } = &append.conditions;
    let given = match append.positions {
        Positions::ByStore => false,
        Positions::Given(_) | Positions::AtLeast(_) => true,
    };
    let mut flags = if given { GIVEN } else { 0 };
    flags |= if append.then == Then::Close { CLOSES } else { 0 };
    flags |= if producer.is_some() { PRODUCER } else { 0 };
    flags |= if order.is_some() { ORDER } else { 0 };
    out.byte(APPENDED);
    out.byte(flags);
    out.log(append.log);
    if let Some(producer) = producer {
        out.producer(producer);
    }
    if let Some(order) = order {
        out.text(order);
    }
    out.number(positions.len() as u64);
    if given {
        for &position in positions {
            out.position(position);
        }
    } else if let Some(&first) = positions.first() {
        // Positions that the store assigns are consecutive within a commit, so the first index is enough.
        out.number(halves(first).1);
    }
    for payload in &append.payloads {
        out.number(payload.len() as u64);
    }
    for payload in &append.payloads {
        out.extend_from_slice(payload);
    }
}

/// Writes a record that references refer to. If this commit appended it, its payload is in the frame already;
/// otherwise time and payload are written once for all references, so that a frame is self-contained.
fn source_to(out: &mut Vec<u8>, source: &Stored, brought: &HashSet<(LogId, Position)>) {
    let origin = source.origin.expect("a reference has an origin");
    let of_this_commit = brought.contains(&(origin.log, origin.position));
    let last = source.boundary == Boundary::Last;
    out.byte(if of_this_commit { OF_THIS_COMMIT } else { 0 } | if last { LAST } else { 0 });
    out.log(origin.log);
    out.position(origin.position);
    if !of_this_commit {
        out.number(origin.at.as_millis());
        out.bytes(&source.payload);
    }
}

/// One item of a frame.
#[derive(Debug)]
pub enum Item {
    /// An effect on logs.
    Effect(Effect),
    /// An encoded change of a capability's tables.
    Change(Bytes),
    /// Encoded changes of cold rows.
    Rows(Bytes),
}

/// A decoded frame.
#[derive(Debug)]
pub struct Content {
    /// Commit number.
    pub number: CommitNumber,
    /// Time of the commit.
    pub at: Timestamp,
    /// Effects and changes, in order.
    pub items: Vec<Item>,
}

/// Header of a frame. Its own checksum is verified, that of the content is not.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Checksum of header and content.
    pub checksum: u32,
    /// Bytes of content.
    pub length: usize,
    /// Commit number.
    pub number: CommitNumber,
    /// Checksum of the previous frame.
    pub before: u32,
}

impl Header {
    /// Reads a header from the first bytes; `None` if its checksum does not match the file's salt.
    pub fn read(salt: u64, bytes: &[u8]) -> Option<Self> {
        if checksum(salt, &[bytes.get(4..20)?]).to_le_bytes() != *bytes.get(20..HEADER)? {
            return None;
        }
        let mut reader = Reader(Bytes::copy_from_slice(bytes.get(..HEADER)?));
        let header = Self {
            checksum: reader.fixed32().ok()?,
            length: reader.fixed32().ok()? as usize,
            number: CommitNumber::from_number(reader.fixed64().ok()?),
            before: reader.fixed32().ok()?,
        };
        if header.length == 0 || header.number == CommitNumber::ZERO { None } else { Some(header) }
    }

    /// Whether the checksum matches header and content.
    pub fn fits(&self, salt: u64, bytes: &[u8]) -> bool {
        bytes.len() >= HEADER + self.length
            && checksum(salt, &[&bytes[4..HEADER + self.length]]) == self.checksum
    }
}

/// Decodes the content of a frame whose checksum was verified.
pub fn read(number: CommitNumber, content: Bytes) -> Result<Content, DecodeError> {
    let mut reader = Reader(content);
    let at = reader.time()?;
    let mut reading = Reading { number, at, payloads: HashMap::new() };
    let mut items = Vec::new();
    while !reader.is_empty() {
        items.push(reading.item(&mut reader)?);
    }
    Ok(Content { number, at, items })
}

struct Reading {
    number: CommitNumber,
    at: Timestamp,
    /// Payloads appended earlier in this frame, for references that follow.
    payloads: HashMap<(LogId, Position), Bytes>,
}

impl Reading {
    fn item(&mut self, reader: &mut Reader) -> Result<Item, DecodeError> {
        Ok(Item::Effect(match reader.byte()? {
            CREATED => Effect::Created { log: reader.log()?, tail: reader.position()? },
            APPENDED => self.appended(reader)?,
            REFERRED => self.referred(reader)?,
            TRIMMED => Effect::Trimmed { log: reader.log()?, floor: reader.position()? },
            ENDED => Effect::Ended { log: reader.log()? },
            CHANGED => return Ok(Item::Change(reader.bytes()?)),
            ROWS => return Ok(Item::Rows(reader.bytes()?)),
            _ => return Err(DecodeError),
        }))
    }

    fn appended(&mut self, reader: &mut Reader) -> Result<Effect, DecodeError> {
        let flags = reader.byte()?;
        let log = reader.log()?;
        let producer = if flags & PRODUCER != 0 { Some(reader.producer()?) } else { None };
        let order = if flags & ORDER != 0 { Some(reader.text()?.into()) } else { None };
        let count = reader.count()?;
        let positions: Vec<Position> = if flags & GIVEN != 0 {
            (0..count).map(|_| reader.position()).collect::<Result<_, _>>()?
        } else if count > 0 {
            let first = reader.number()?;
            (first..).take(count).map(|index| Position::in_commit(self.number, index)).collect()
        } else {
            Vec::new()
        };
        let lengths = (0..count).map(|_| reader.count()).collect::<Result<Vec<_>, _>>()?;
        let payloads =
            lengths.into_iter().map(|length| reader.exactly(length)).collect::<Result<Vec<_>, _>>()?;
        for (&position, payload) in positions.iter().zip(&payloads) {
            self.payloads.insert((log, position), payload.clone());
        }
        let given = if flags & GIVEN != 0 { Positions::Given(positions.clone()) } else { Positions::ByStore };
        let conditions = Conditions { producer, order, tail: None };
        let then = if flags & CLOSES != 0 { Then::Close } else { Then::StayOpen };
        let append = Append { log, payloads, positions: given, conditions, then };
        Ok(Effect::Appended { append, positions })
    }

    fn referred(&mut self, reader: &mut Reader) -> Result<Effect, DecodeError> {
        let count = reader.count()?;
        let sources = (0..count).map(|_| self.source(reader)).collect::<Result<Vec<_>, _>>()?;
        let count = reader.count()?;
        let mut targets = Vec::new();
        let mut last = 0u64;
        for _ in 0..count {
            last = last.checked_add(reader.number()?).ok_or(DecodeError)?;
            targets.push(LogId::new(last));
        }
        Ok(Effect::Referred { sources, targets })
    }

    fn source(&mut self, reader: &mut Reader) -> Result<Arc<Stored>, DecodeError> {
        let flags = reader.byte()?;
        let (log, position) = (reader.log()?, reader.position()?);
        let (origin_at, payload) = if flags & OF_THIS_COMMIT != 0 {
            (self.at, self.payloads.get(&(log, position)).cloned().ok_or(DecodeError)?)
        } else {
            (reader.time()?, reader.bytes()?)
        };
        let origin = Origin { log, position, at: origin_at };
        let boundary = if flags & LAST != 0 { Boundary::Last } else { Boundary::Inside };
        let (commit, at) = (self.number, self.at);
        Ok(Arc::new(Stored { commit, at, payload, origin: Some(origin), boundary }))
    }
}
