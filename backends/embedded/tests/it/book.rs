//! The tables that the store keeps in these tests: the contract suite's notes, written down.

use std::sync::Arc;

use tidings_embedded::codec::{Garbled, Put, Take};
use tidings_embedded::simulation::SimulatedDisk;
use tidings_embedded::{Embedded, OpenError, Options, StoredTables, Touch};
use tidings_engine::log::Tables;
use tidings_engine::log::contract::{Note, NoteExists, Notes};
use tidings_engine::{Bus, ManualClock};
use tidings_model::Timestamp;

/// Notes that can be written down.
#[derive(Debug, Default)]
pub struct Book(pub Notes);

impl Tables for Book {
    type Change = Note;

    fn judge(&self, change: &Note) -> Result<(), NoteExists> {
        self.0.judge(change)
    }

    fn apply(&mut self, change: Note) {
        self.0.apply(change);
    }
}

impl StoredTables for Book {
    fn encode(change: &Note, out: &mut Vec<u8>) {
        out.text(&change.key);
        out.text(&change.text);
    }

    fn decode(mut take: Take) -> Result<Note, Garbled> {
        Ok(Note { key: take.text()?, text: take.text()? })
    }

    fn dump(&self) -> Vec<Note> {
        self.0.iter().map(|(key, text)| Note { key: key.clone(), text: text.clone() }).collect()
    }

    fn subjects(&self, change: &Note, subject: &mut dyn FnMut(Touch, u64)) {
        subject(Touch::Writes, change.key.bytes().fold(7, |hash, byte| hash * 31 + u64::from(byte)));
    }
}

/// Small files and generations, so that everything happens soon.
pub fn small() -> Options {
    Options {
        wal_file_bytes: 64 << 10,
        generation_bytes: 16 << 10,
        reserve_bytes: 0,
        secret: 7,
        ..Options::default()
    }
}

/// A store on a simulated disk.
pub fn open(disk: &SimulatedDisk, options: Options) -> Result<Embedded<Book>, OpenError> {
    let clock = ManualClock::at(Timestamp::from_millis(1_763_294_400_000));
    Embedded::open(Arc::new(disk.clone()), options, Bus::new(), Arc::new(clock))
}
