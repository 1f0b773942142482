//! The log contract suite on the embedded store, with large and with very small memtables.

use std::any::Any;
use std::io;
use std::sync::{Arc, Condvar, Mutex};

use futures_util::future::BoxFuture;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_embedded::{Disk, DiskFile, Embedded, Options};
use tidings_engine::log::contract::{Note, NoteExists, Subject};
use tidings_engine::log::{
    ChangeFeed, Commit, CommitError, Commits, Committed, Logs, Observer, Page, ReadError, Span, Status,
    StoreError,
};
use tidings_engine::{Bus, WallClock};
use tidings_model::LogId;

use crate::book::{Book, small};

/// A store on a disk whose syncs can be blocked.
#[derive(Clone)]
struct HoldableStore {
    store: Embedded<Book>,
    gate: Arc<Gate>,
}

async fn on(options: Options) -> HoldableStore {
    let gate = Arc::new(Gate::default());
    let disk = GatedDisk { disk: SimulatedDisk::new(), gate: gate.clone() };
    let store =
        Embedded::open(Arc::new(disk), options, Bus::new(), Arc::new(WallClock)).expect("an empty disk");
    HoldableStore { store, gate }
}

mod in_memory {
    //! Everything stays in the first memtable.
    async fn roomy() -> super::HoldableStore {
        super::on(tidings_embedded::Options { reserve_bytes: 0, ..Default::default() }).await
    }
    tidings_engine::log_contract!(roomy);
}

mod on_disk {
    //! Segments are written and merged all the time.
    async fn tight() -> super::HoldableStore {
        super::on(tidings_embedded::Options { memtable_bytes: 600, ..super::small() }).await
    }
    tidings_engine::log_contract!(tight);
}

impl Logs for HoldableStore {
    fn reserve(&self) -> BoxFuture<'_, Result<LogId, StoreError>> {
        self.store.reserve()
    }

    fn status(&self, log: LogId) -> BoxFuture<'_, Result<Status, ReadError>> {
        self.store.status(log)
    }

    fn read(&self, log: LogId, span: Span) -> BoxFuture<'_, Result<Page, ReadError>> {
        self.store.read(log, span)
    }

    fn accepting(&self) -> Result<(), StoreError> {
        self.store.accepting()
    }
}

impl Commits<Book> for HoldableStore {
    fn commit(&self, commit: Commit<Note>) -> BoxFuture<'_, Result<Committed, CommitError<NoteExists>>> {
        self.store.commit(commit)
    }
}

impl ChangeFeed<Book> for HoldableStore {
    fn observe(&self, observer: &Arc<dyn Observer<Book>>) {
        self.store.observe(observer);
    }
}

impl Subject for HoldableStore {
    type StateMachine = Book;

    fn bus(&self) -> Bus {
        self.store.bus().clone()
    }

    fn note(&self, key: &str) -> Option<String> {
        self.store.look(|book, _| book.notes.get(key).cloned())
    }

    fn hold(&self) -> BoxFuture<'_, Box<dyn Any + Send>> {
        self.gate.set(true);
        let opens = Opens(self.gate.clone());
        Box::pin(async { Box::new(opens) as Box<dyn Any + Send> })
    }
}

#[derive(Default)]
struct Gate {
    closed: Mutex<bool>,
    changed: Condvar,
}

struct Opens(Arc<Gate>);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Gate {
    fn set(&self, closed: bool) {
        *self.closed.lock().expect("not poisoned") = closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let closed = self.closed.lock().expect("not poisoned");
        drop(self.changed.wait_while(closed, |closed| *closed).expect("not poisoned"));
    }
}

struct GatedDisk {
    disk: SimulatedDisk,
    gate: Arc<Gate>,
}

struct GatedFile {
    file: Box<dyn DiskFile>,
    gate: Arc<Gate>,
}

impl GatedDisk {
    fn gated(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(GatedFile { file, gate: self.gate.clone() })
    }
}

impl Disk for GatedDisk {
    fn create_folder(&self, name: &str) -> io::Result<()> {
        self.disk.create_folder(name)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.gated(self.disk.create(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.gated(self.disk.open(name)?))
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
        self.disk.available()
    }
}

impl DiskFile for GatedFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.pass();
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
}
