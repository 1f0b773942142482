//! Records as they were written a moment ago, for readers of other sessions who hear the same.
//!
//! What is published to a thousand sessions is a reference in each of them, and what their live readers are sent of it
//! differs only in where each session goes on. So a frame of references is two pieces: the records, written once for all,
//! and the rest. Each append by itself: that is what all are sent at about the same time.
//!
//! Invariants: what is given was written of the same records in the same form. What is kept is bounded in bytes, and of
//! what nobody asks for nothing is left after two sweeps. No lock is held while records are written, so two who ask at the
//! same moment may both write; both are given the same.
//! Not here: records that are no references. Their frames are one piece, and cost what they always did.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use tidings_engine::log::{Boundary, Record};
use tidings_model::{LogId, Position, limits};

use crate::live::Framing;
use crate::sse::Encoding;

/// How records are written. The same records in the same form are the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// As the beginning of an event.
    Event(Encoding, Framing),
    /// As a message to WebSockets.
    Message {
        /// As one array.
        json: bool,
        /// As text, if they are.
        text: bool,
    },
    /// As the body of an answer, one array.
    JsonBody,
}

/// What was written lately.
#[derive(Debug, Default)]
pub struct Encoded {
    kept: Mutex<Kept>,
}

/// Two generations: the old one goes when the young one is full, or when time has passed.
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
    /// The records in a form, written now or before; none if they are not worth keeping for others, or no others have them.
    pub fn records(&self, form: Form, records: &[Record], write: impl FnOnce() -> Bytes) -> Option<Bytes> {
        let key = Key::of(form, records)?;
        if let Some(known) = self.lock().get(&key) {
            return Some(known.clone());
        }
        let (piece, gone) = self.lock().put(key, write());
        // Without the lock: it may be much.
        drop(gone);
        Some(piece)
    }

    /// Lets go of what was written before the last time this was called.
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

    /// Keeps a piece, unless somebody else was quicker. What is returned beside it is to be dropped without the lock.
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

/// All that decides what is written: which records, in which form, and what is written with them.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    form: Form,
    /// The log that they come from.
    log: LogId,
    first: Position,
    /// The other ones of the same append.
    more: Vec<Position>,
    /// Whether they are in envelopes. These say nothing that the origins do not decide.
    enveloped: bool,
}

impl Key {
    /// Of one append of references, if it is worth it.
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

    /// What it takes itself.
    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of::<Bytes>() + size_of_val(&*self.more)
    }
}

#[cfg(test)]
mod tests;
