//! A cache of encoded records, for readers of different sessions that get the same records.
//!
//! A record that is published to a thousand sessions is a reference in each of them, and the frames for their
//! live readers differ only in the offset to resume from. So a frame of references has two chunks: the
//! records, encoded once for all, and the rest. Each append is cached by itself, because all sessions get it
//! at about the same time.
//!
//! Invariants: a cached chunk was encoded from the same records in the same form. The cache is bounded in
//! bytes, and an entry that is not used is gone after two sweeps. No lock is held while records are encoded,
//! so two concurrent readers may both encode; both get the same chunk.
//! Not here: records that are not references. Their frames have one chunk.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use tidings_engine::log::{Boundary, Record};
use tidings_model::{LogId, Position, limits};

use crate::live::Framing;
use crate::sse::Encoding;

/// The form in which records are encoded. The same records in the same form give the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// As the beginning of an event.
    Event(Encoding, Framing),
    /// As a WebSocket message.
    Message {
        /// Whether the records are one JSON array.
        json: bool,
        /// Whether the message is text, provided that the payloads are.
        text: bool,
    },
    /// As the body of a response, one JSON array.
    JsonBody,
}

/// The cache.
#[derive(Debug, Default)]
pub struct Encoded {
    kept: Mutex<Kept>,
}

/// Two generations: the old one is dropped when the young one is full, or at a sweep.
#[derive(Debug, Default)]
struct Kept {
    young: Generation,
    old: Generation,
}

#[derive(Debug, Default)]
struct Generation {
    pieces: HashMap<Key, Bytes>,
    bytes: usize,
}

impl Encoded {
    /// The records in a form, cached or encoded now; `None` if they are not worth caching or no other session
    /// has them.
    pub fn records(&self, form: Form, records: &[Record], write: impl FnOnce() -> Bytes) -> Option<Bytes> {
        let key = Key::of(form, records)?;
        if let Some(known) = self.lock().get(&key) {
            return Some(known.clone());
        }
        let (piece, gone) = self.lock().put(key, write());
        // Dropped after the lock is released: it may be large.
        drop(gone);
        Some(piece)
    }

    /// Drops the chunks that were cached before the previous sweep.
    pub fn sweep(&self) {
        let gone = self.lock().age();
        drop(gone);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("nobody panics while holding what was encoded")
    }
}

impl Kept {
    fn get(&self, key: &Key) -> Option<&Bytes> {
        self.young.pieces.get(key).or_else(|| self.old.pieces.get(key))
    }

    /// Caches a chunk, unless another thread was quicker. Drop the generations returned with it after
    /// releasing the lock.
    fn put(&mut self, key: Key, piece: Bytes) -> (Bytes, [Generation; 2]) {
        if let Some(known) = self.get(&key) {
            return (known.clone(), Default::default());
        }
        let (bytes, full) = (key.bytes() + piece.len(), limits::SHARED_BYTES / 2);
        let mut gone = <[Generation; 2]>::default();
        if self.young.bytes + bytes > full {
            gone[0] = self.age();
        }
        if bytes > full {
            gone[1] = std::mem::take(&mut self.old);
        }
        self.young.bytes += bytes;
        self.young.pieces.insert(key, piece.clone());
        (piece, gone)
    }

    fn age(&mut self) -> Generation {
        std::mem::replace(&mut self.old, std::mem::take(&mut self.young))
    }
}

/// Everything that determines the encoded bytes.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    form: Form,
    /// The log of the original records.
    log: LogId,
    first: Position,
    /// Positions of the other records of the same append.
    more: Vec<Position>,
    /// Whether the records are in envelopes. The content of an envelope depends only on the original record.
    enveloped: bool,
}

impl Key {
    /// The key of one append of references; `None` if it is not worth caching.
    fn of(form: Form, records: &[Record]) -> Option<Self> {
        let (last, inside) = records.split_last()?;
        let origin = records[0].origin?;
        let enveloped = last.head.is_some();
        let bytes: usize = records.iter().map(|record| record.payload.len()).sum();
        let one_append = last.boundary == Boundary::Last
            && inside.iter().all(|record| record.boundary == Boundary::Inside);
        if !one_append || bytes < limits::SHARED_RECORD_BYTES * records.len() {
            return None;
        }
        let of_these = |record: &Record| {
            let origin = record.origin.filter(|known| known.log == origin.log)?;
            (record.head.is_some() == enveloped).then_some(origin.position)
        };
        let first = of_these(&records[0])?;
        let more = records[1..].iter().map(of_these).collect::<Option<_>>()?;
        Some(Self { form, log: origin.log, first, more, enveloped })
    }

    /// Bytes of memory that the key itself takes.
    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of::<Bytes>() + size_of_val(&*self.more)
    }
}

#[cfg(test)]
mod tests;
