//! The tables of the store in these tests: the notes of the contract suite with an encoding. Also
//! constructors of stores on simulated disks.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use tidings_embedded::simulation::SimulatedDisk;
use tidings_embedded::{Access, Disk, DiskFile, Embedded, OpenError, Options, StoredState};
use tidings_engine::log::contract::{Note, NoteExists, Notes};
use tidings_engine::log::{Snapshots, StateMachine};
use tidings_engine::{Bus, ManualClock};
use tidings_model::Timestamp;

/// Notes that can be stored.
#[derive(Debug, Default)]
pub struct Book {
    pub notes: Notes,
    /// Rows of the current snapshot. Notes never change, so copies of them are enough.
    snapshot: Option<VecDeque<Note>>,
}

impl StateMachine for Book {
    type Change = Note;

    fn validate(&self, change: &Note) -> Result<(), NoteExists> {
        self.notes.validate(change)
    }

    fn apply(&mut self, change: Note) {
        self.notes.apply(change);
    }
}

impl Snapshots for Book {
    type Row = Note;

    fn begin_snapshot(&mut self) {
        let notes = self.notes.iter();
        self.snapshot =
            Some(notes.map(|(key, text)| Note { key: key.clone(), text: text.clone() }).collect());
    }

    fn next_rows(&mut self, most: usize) -> Option<Vec<Note>> {
        let left = self.snapshot.as_mut().filter(|left| !left.is_empty())?;
        Some(left.drain(..most.min(left.len())).collect())
    }

    fn end_snapshot(&mut self) {
        self.snapshot = None;
    }

    fn restore(row: Note, change: &mut dyn FnMut(Note)) {
        change(row);
    }
}

impl StoredState for Book {
    fn takes_space(&self, change: &Note) -> bool {
        !change.text.is_empty()
    }

    fn conflict_keys(&self, change: &Note, touch: &mut dyn FnMut(Access, u64)) {
        touch(Access::Writes, change.key.bytes().fold(7, |hash, byte| hash * 31 + u64::from(byte)));
    }
}

/// Options with small files and memtables, so that flushes and merges happen soon.
pub fn small() -> Options {
    Options {
        wal_file_bytes: 64 << 10,
        memtable_bytes: 16 << 10,
        reserve_bytes: 0,
        secret: 7,
        ..Options::default()
    }
}

/// Opens a store on a simulated disk.
pub fn open(disk: &SimulatedDisk, options: Options) -> Result<Embedded<Book>, OpenError> {
    open_on(Arc::new(disk.clone()), options)
}

/// Opens a store on any disk.
pub fn open_on(disk: Arc<dyn Disk>, options: Options) -> Result<Embedded<Book>, OpenError> {
    let clock = ManualClock::at(Timestamp::from_millis(1_763_294_400_000));
    Embedded::open(disk, options, Bus::new(), Arc::new(clock))
}

/// A simulated disk with a callback before each creation of a file and before each sync of one, and optionally a false
/// amount of free space.
pub struct ObservedDisk {
    pub disk: SimulatedDisk,
    pub before_create: Box<dyn Fn(&str) + Send + Sync>,
    pub before_sync: Arc<dyn Fn() + Send + Sync>,
    pub claims: Option<u64>,
}

struct ObservedFile {
    file: Box<dyn DiskFile>,
    before_sync: Arc<dyn Fn() + Send + Sync>,
}

impl ObservedDisk {
    /// A disk whose callbacks do nothing and that tells the truth.
    pub fn on(disk: SimulatedDisk) -> Self {
        Self { disk, before_create: Box::new(|_| {}), before_sync: Arc::new(|| {}), claims: None }
    }

    fn observed(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(ObservedFile { file, before_sync: self.before_sync.clone() })
    }
}

impl Disk for ObservedDisk {
    fn create_folder(&self, name: &str) -> io::Result<()> {
        self.disk.create_folder(name)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        (self.before_create)(name);
        Ok(self.observed(self.disk.create(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.observed(self.disk.open(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.disk.list(folder)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.disk.sync_folder(folder)
    }

    fn available(&self) -> io::Result<u64> {
        self.claims.map_or_else(|| self.disk.available(), Ok)
    }
}

impl DiskFile for ObservedFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        (self.before_sync)();
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
