//! The threads that look after the files: one writes generations as segments, one merges segments. What is asked of
//! them lies on a desk.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::is_transient;
use crate::files::Files;
use crate::flush::Flusher;
use crate::merge::merge_once;
use crate::state::Generation;
use crate::store::Failure;
use crate::tables::StoredTables;
use crate::wal::Shelf;

/// How long to wait before trying again when there was no space.
const SPACE_RETRY: Duration = Duration::from_millis(100);

/// The threads, to be asked.
#[derive(Clone)]
pub(crate) struct Tender {
    desk: Arc<Desk>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
    /// Completes the current generation.
    freeze: Arc<dyn Fn() -> Arc<Generation> + Send + Sync>,
}

struct Desk {
    orders: Mutex<Orders>,
    changed: Condvar,
    on_failure: Failure,
}

#[derive(Default)]
struct Orders {
    generation: Option<Arc<Generation>>,
    /// A generation is being written, or somebody has reserved to give one.
    writing: bool,
    /// The next file of the log is to be made ready.
    restock: bool,
    /// How many rounds of merging were asked for, and how many are done.
    rounds: u64,
    rounds_done: u64,
    /// Something cannot be written for want of space or descriptors.
    starved: bool,
    stop: bool,
    /// Why the threads have given up.
    failed: Option<String>,
}

impl Tender {
    /// Starts the threads.
    pub(crate) fn start<T: StoredTables>(
        files: Arc<Files<T>>,
        shelf: Arc<Shelf>,
        record_interval: Duration,
        on_failure: Failure,
    ) -> io::Result<Self> {
        let orders = Mutex::new(Orders { restock: true, ..Orders::default() });
        let desk = Arc::new(Desk { orders, changed: Condvar::new(), on_failure });
        let freezing = files.shared.clone();
        let freeze = Arc::new(move || freezing.write().freeze());
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let (flusher, flush_desk) = (Flusher::new(files.clone(), shelf), desk.clone());
        let flushing = thread("tidings-flush").spawn(move || flush(flusher, &flush_desk, record_interval))?;
        let merge_desk = desk.clone();
        let merging = thread("tidings-merge").spawn(move || merge(&files, &merge_desk))?;
        Ok(Self { desk, threads: Arc::new(Mutex::new(vec![flushing, merging])), freeze })
    }

    /// Whether a generation can be given; if so, nobody else may until this one is given and written.
    pub(crate) fn reserve(&self) -> bool {
        let mut orders = self.desk.lock();
        let free = !orders.writing && orders.failed.is_none();
        orders.writing |= free;
        free
    }

    /// Gives a generation to be written, after `reserve`.
    pub(crate) fn take(&self, generation: Arc<Generation>) {
        self.desk.lock().generation = Some(generation);
        self.desk.changed.notify_all();
    }

    /// Why the threads have given up, if they have.
    pub(crate) fn failure(&self) -> Option<String> {
        self.desk.lock().failed.clone()
    }

    /// Asks for the next file of the log to be made ready.
    pub(crate) fn restock(&self) {
        self.desk.lock().restock = true;
        self.desk.changed.notify_all();
    }

    /// Waits until no generation is being written, or the threads have given up.
    pub(crate) fn wait_until_free(&self) {
        let orders = self.desk.lock();
        drop(
            self.desk.wait_while(orders, |orders| orders.writing && orders.failed.is_none() && !orders.stop),
        );
    }

    /// Waits until no generation is being written, unless that may take for ever for want of space.
    pub(crate) fn wait_unless_starved(&self) {
        self.desk.let_flush_go_first();
    }

    /// Whether a generation waits for space.
    pub(crate) fn is_starved(&self) -> bool {
        let orders = self.desk.lock();
        orders.writing && orders.starved
    }

    /// Writes the current generation, and waits until it is done.
    pub(crate) fn flush(&self) -> io::Result<()> {
        while !self.reserve() {
            self.desk.lock().result()?;
            self.wait_until_free();
        }
        self.take((self.freeze)());
        self.wait_until_free();
        self.desk.lock().result()
    }

    /// Asks for a round of merging, and waits until it is done.
    pub(crate) fn tend(&self) -> io::Result<()> {
        let mut orders = self.desk.lock();
        orders.rounds += 1;
        let round = orders.rounds;
        self.desk.changed.notify_all();
        let waiting = |orders: &Orders| orders.rounds_done < round && orders.failed.is_none() && !orders.stop;
        self.desk.wait_while(orders, waiting).result()
    }

    /// Ends the threads after what they are doing.
    pub(crate) fn stop(&self) {
        self.desk.lock().stop = true;
        self.desk.changed.notify_all();
        let threads =
            std::mem::take(&mut *self.threads.lock().expect("nobody panics while holding the threads"));
        for thread in threads {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn flush<T: StoredTables>(mut flusher: Flusher<T>, desk: &Desk, record_interval: Duration) {
    loop {
        let idle = |orders: &mut Orders| orders.generation.is_none() && !orders.restock && !orders.stop;
        let waited = desk.changed.wait_timeout_while(desk.lock(), record_interval, idle);
        let (mut orders, waited) = waited.expect("nobody panics while holding the orders");
        if orders.stop {
            let failed = orders.failed.is_some();
            drop(orders);
            if !failed {
                flusher.close();
            }
            return;
        }
        if waited.timed_out() {
            drop(orders);
            desk.settle(|| unless_full(flusher.record_end()));
            continue;
        }
        orders.restock = false;
        let generation = orders.generation.take();
        drop(orders);
        // First, so that commits need not wait for a file while the generation is written.
        desk.settle(|| unless_full(flusher.restock()));
        if let Some(generation) = &generation {
            desk.settle(|| flusher.write(generation));
            let mut orders = desk.lock();
            orders.writing = false;
            orders.rounds += 1;
            drop(orders);
            desk.changed.notify_all();
        }
        desk.settle(|| unless_full(flusher.restock()));
        if let Some(generation) = &generation {
            desk.settle(|| unless_full(flusher.compact(generation)));
        }
    }
}

/// What can wait for another time is not tried again and again for want of space: writing a generation may bring some.
fn unless_full(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if is_transient(&error) => {
            tracing::warn!(%error, "upkeep of the store is put off");
            Ok(())
        }
        result => result,
    }
}

fn merge<T: StoredTables>(files: &Files<T>, desk: &Desk) {
    // A damaged segment is told when it is read, and by `tidings store check`. Merging stops; the rest goes on.
    let mut healthy = true;
    loop {
        let idle = |orders: &Orders| orders.rounds == orders.rounds_done && !orders.stop;
        let orders = desk.wait_while(desk.lock(), idle);
        if orders.stop {
            return;
        }
        let round = orders.rounds;
        drop(orders);
        let mut more = healthy;
        while more && !desk.is_over() {
            more = match merge_once(files, &|| desk.let_flush_go_first()) {
                Ok(merged) => merged,
                // Whoever waits for the round need not wait for space; the next round tries again.
                Err(error) if is_transient(&error) => {
                    tracing::warn!(%error, "merging segments is put off");
                    false
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::error!(%error, "segments are no longer merged");
                    healthy = false;
                    false
                }
                Err(error) => {
                    desk.fail(&error);
                    false
                }
            };
        }
        desk.lock().rounds_done = round;
        desk.changed.notify_all();
    }
}

impl Desk {
    /// Does some work until it succeeds, waiting for space or descriptors if that is what is missing. Any other failure ends the store:
    /// it cannot let go of memory any more.
    fn settle(&self, mut work: impl FnMut() -> io::Result<()>) {
        while !self.is_over() {
            match work() {
                Ok(()) => {
                    self.lock().starved = false;
                    return;
                }
                Err(error) if is_transient(&error) => {
                    if !std::mem::replace(&mut self.lock().starved, true) {
                        tracing::warn!(%error, "the store waits for space or file descriptors");
                    }
                    self.changed.notify_all();
                    let waited = self.changed.wait_timeout(self.lock(), SPACE_RETRY);
                    drop(waited.expect("nobody panics while holding the orders"));
                }
                Err(error) => self.fail(&error),
            }
        }
    }

    /// Ends the store for a reason.
    fn fail(&self, error: &io::Error) {
        let message = format!("the store cannot write its files, so it has stopped: {error}");
        tracing::error!("{message}");
        self.lock().failed = Some(message.clone());
        self.changed.notify_all();
        (self.on_failure)(&message);
    }

    /// Waits while a generation is being written, unless that waits for space, which merging may bring.
    fn let_flush_go_first(&self) {
        let flushing =
            |orders: &Orders| orders.writing && !orders.starved && orders.failed.is_none() && !orders.stop;
        drop(self.wait_while(self.lock(), flushing));
    }

    fn is_over(&self) -> bool {
        let orders = self.lock();
        orders.stop || orders.failed.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().expect("nobody panics while holding the orders")
    }

    fn wait_while<'a>(
        &self,
        orders: MutexGuard<'a, Orders>,
        condition: impl Fn(&Orders) -> bool,
    ) -> MutexGuard<'a, Orders> {
        let waited = self.changed.wait_while(orders, |orders| condition(orders));
        waited.expect("nobody panics while holding the orders")
    }
}

impl Orders {
    fn result(&self) -> io::Result<()> {
        match &self.failed {
            Some(message) => Err(io::Error::other(message.clone())),
            None => Ok(()),
        }
    }
}
