//! The log contract suite on the embedded store, with large and with very small memtables.

use std::any::Any;
use std::sync::{Arc, Condvar, Mutex};

use futures_util::future::BoxFuture;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_embedded::{Embedded, Options};
use tidings_engine::log::contract::Subject;
use tidings_engine::log::fixture::StandIn;
use tidings_engine::{Bus, WallClock};

use crate::book::{Book, ObservedDisk, small};

/// A store on a disk whose syncs can be blocked.
#[derive(Clone)]
pub struct HoldableStore {
    store: Embedded<Book>,
    gate: Arc<Gate>,
}

impl HoldableStore {
    pub fn open(disk: &SimulatedDisk, options: Options) -> Self {
        let gate = Arc::new(Gate::default());
        let passed = gate.clone();
        let before_sync = Arc::new(move || passed.pass());
        let disk = ObservedDisk { before_sync, ..ObservedDisk::on(disk.clone()) };
        let store = Embedded::open(Arc::new(disk), options, Bus::new(), Arc::new(WallClock))
            .expect("the disk is good");
        Self { store, gate }
    }

    pub fn embedded(&self) -> &Embedded<Book> {
        &self.store
    }
}

async fn on(options: Options) -> HoldableStore {
    HoldableStore::open(&SimulatedDisk::new(), options)
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

impl StandIn for HoldableStore {
    type Store = Embedded<Book>;

    fn store(&self) -> &Embedded<Book> {
        &self.store
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
