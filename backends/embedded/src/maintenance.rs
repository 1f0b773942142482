//! The threads that look after the files: one writes memtables as segments, one merges segments. What is asked of
//! them lies on a jobs.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::is_transient;
use crate::files::Files;
use crate::flush::Flusher;
use crate::merge::merge_once;
use crate::state::Memtable;
use crate::store::Failure;
use crate::stored_state::StoredState;
use crate::wal::WalFilePool;

/// How long to wait before trying again when there was no space.
const SPACE_RETRY: Duration = Duration::from_millis(100);

/// The threads, to be asked.
#[derive(Clone)]
pub(crate) struct Maintenance {
    jobs: Arc<Jobs>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
    /// Completes the current memtable.
    freeze: Arc<dyn Fn() -> Arc<Memtable> + Send + Sync>,
}

struct Jobs {
    pending: Mutex<PendingJobs>,
    changed: Condvar,
    on_failure: Failure,
}

#[derive(Default)]
struct PendingJobs {
    memtable: Option<Arc<Memtable>>,
    /// A memtable is being written, or somebody has reserved to give one.
    writing: bool,
    /// The next file of the log is to be made ready.
    refill: bool,
    /// How many rounds of merging were asked for, and how many are done.
    rounds: u64,
    rounds_done: u64,
    /// Something cannot be written for want of space or descriptors.
    starved: bool,
    stop: bool,
    /// Why the threads have given up.
    failed: Option<String>,
}

impl Maintenance {
    /// Starts the threads.
    pub(crate) fn start<T: StoredState>(
        files: Arc<Files<T>>,
        pool: Arc<WalFilePool>,
        record_interval: Duration,
        on_failure: Failure,
    ) -> io::Result<Self> {
        let pending = Mutex::new(PendingJobs { refill: true, ..PendingJobs::default() });
        let jobs = Arc::new(Jobs { pending, changed: Condvar::new(), on_failure });
        let freezing = files.shared.clone();
        let freeze = Arc::new(move || freezing.write().freeze());
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let (flusher, flush_jobs) = (Flusher::new(files.clone(), pool), jobs.clone());
        let flushing = thread("tidings-flush").spawn(move || flush(flusher, &flush_jobs, record_interval))?;
        let merge_jobs = jobs.clone();
        let merging = thread("tidings-merge").spawn(move || merge(&files, &merge_jobs))?;
        Ok(Self { jobs, threads: Arc::new(Mutex::new(vec![flushing, merging])), freeze })
    }

    /// Whether a memtable can be given; if so, nobody else may until this one is given and written.
    pub(crate) fn reserve(&self) -> bool {
        let mut pending = self.jobs.lock();
        let free = !pending.writing && pending.failed.is_none();
        pending.writing |= free;
        free
    }

    /// Gives a memtable to be written, after `reserve`.
    pub(crate) fn take(&self, memtable: Arc<Memtable>) {
        self.jobs.lock().memtable = Some(memtable);
        self.jobs.changed.notify_all();
    }

    /// Why the threads have given up, if they have.
    pub(crate) fn failure(&self) -> Option<String> {
        self.jobs.lock().failed.clone()
    }

    /// Asks for the next file of the log to be made ready.
    pub(crate) fn refill(&self) {
        self.jobs.lock().refill = true;
        self.jobs.changed.notify_all();
    }

    /// Waits until no memtable is being written, or the threads have given up.
    pub(crate) fn wait_until_free(&self) {
        let pending = self.jobs.lock();
        drop(
            self.jobs
                .wait_while(pending, |pending| pending.writing && pending.failed.is_none() && !pending.stop),
        );
    }

    /// Waits until no memtable is being written, unless that may take for ever for want of space.
    pub(crate) fn wait_unless_starved(&self) {
        self.jobs.let_flush_go_first();
    }

    /// Whether a memtable waits for space.
    pub(crate) fn is_starved(&self) -> bool {
        let pending = self.jobs.lock();
        pending.writing && pending.starved
    }

    /// Writes the current memtable, and waits until it is done.
    pub(crate) fn flush(&self) -> io::Result<()> {
        while !self.reserve() {
            self.jobs.lock().result()?;
            self.wait_until_free();
        }
        self.take((self.freeze)());
        self.wait_until_free();
        self.jobs.lock().result()
    }

    /// Asks for a round of merging, and waits until it is done.
    pub(crate) fn tend(&self) -> io::Result<()> {
        let mut pending = self.jobs.lock();
        pending.rounds += 1;
        let round = pending.rounds;
        self.jobs.changed.notify_all();
        let waiting =
            |pending: &PendingJobs| pending.rounds_done < round && pending.failed.is_none() && !pending.stop;
        self.jobs.wait_while(pending, waiting).result()
    }

    /// Ends the threads after what they are doing.
    pub(crate) fn stop(&self) {
        self.jobs.lock().stop = true;
        self.jobs.changed.notify_all();
        let threads =
            std::mem::take(&mut *self.threads.lock().expect("nobody panics while holding the threads"));
        for thread in threads {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn flush<T: StoredState>(mut flusher: Flusher<T>, jobs: &Jobs, record_interval: Duration) {
    loop {
        let idle = |pending: &mut PendingJobs| pending.memtable.is_none() && !pending.refill && !pending.stop;
        let waited = jobs.changed.wait_timeout_while(jobs.lock(), record_interval, idle);
        let (mut pending, waited) = waited.expect("nobody panics while holding the pending");
        if pending.stop {
            let failed = pending.failed.is_some();
            drop(pending);
            if !failed {
                flusher.close();
            }
            return;
        }
        if waited.timed_out() {
            drop(pending);
            jobs.settle(|| unless_full(flusher.record_end()));
            continue;
        }
        pending.refill = false;
        let memtable = pending.memtable.take();
        drop(pending);
        // First, so that commits need not wait for a file while the memtable is written.
        jobs.settle(|| unless_full(flusher.refill()));
        if let Some(memtable) = &memtable {
            jobs.settle(|| flusher.write(memtable));
            let mut pending = jobs.lock();
            pending.writing = false;
            pending.rounds += 1;
            drop(pending);
            jobs.changed.notify_all();
        }
        jobs.settle(|| unless_full(flusher.refill()));
        if let Some(memtable) = &memtable {
            jobs.settle(|| unless_full(flusher.compact(memtable)));
        }
    }
}

/// What can wait for another time is not tried again and again for want of space: writing a memtable may bring some.
fn unless_full(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if is_transient(&error) => {
            tracing::warn!(%error, "upkeep of the store is put off");
            Ok(())
        }
        result => result,
    }
}

fn merge<T: StoredState>(files: &Files<T>, jobs: &Jobs) {
    // A damaged segment is told when it is read, and by `tidings store check`. Merging stops; the rest goes on.
    let mut healthy = true;
    loop {
        let idle = |pending: &PendingJobs| pending.rounds == pending.rounds_done && !pending.stop;
        let pending = jobs.wait_while(jobs.lock(), idle);
        if pending.stop {
            return;
        }
        let round = pending.rounds;
        drop(pending);
        let mut more = healthy;
        while more && !jobs.is_over() {
            more = match merge_once(files, &|| jobs.let_flush_go_first()) {
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
                    jobs.fail(&error);
                    false
                }
            };
        }
        jobs.lock().rounds_done = round;
        jobs.changed.notify_all();
    }
}

impl Jobs {
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
                    drop(waited.expect("nobody panics while holding the pending"));
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

    /// Waits while a memtable is being written, unless that waits for space, which merging may bring.
    fn let_flush_go_first(&self) {
        let flushing = |pending: &PendingJobs| {
            pending.writing && !pending.starved && pending.failed.is_none() && !pending.stop
        };
        drop(self.wait_while(self.lock(), flushing));
    }

    fn is_over(&self) -> bool {
        let pending = self.lock();
        pending.stop || pending.failed.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, PendingJobs> {
        self.pending.lock().expect("nobody panics while holding the pending")
    }

    fn wait_while<'a>(
        &self,
        pending: MutexGuard<'a, PendingJobs>,
        condition: impl Fn(&PendingJobs) -> bool,
    ) -> MutexGuard<'a, PendingJobs> {
        let waited = self.changed.wait_while(pending, |pending| condition(pending));
        waited.expect("nobody panics while holding the pending")
    }
}

impl PendingJobs {
    fn result(&self) -> io::Result<()> {
        match &self.failed {
            Some(message) => Err(io::Error::other(message.clone())),
            None => Ok(()),
        }
    }
}
