//! The background threads that maintain files: one flushes memtables, one merges segments and files of rows.
//!
//! [`Maintenance`] is the handle. Requests are fields of [`PendingJobs`], guarded by a mutex with a condition
//! variable; the threads wait for a change of them.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::is_transient;
use crate::files::Files;
use crate::flush::Flusher;
use crate::merge::merge_once;
use crate::rows;
use crate::state::Memtable;
use crate::store::Failure;
use crate::stored_state::StoredState;
use crate::wal::WalFilePool;

/// Delay before a retry when there was no space.
const SPACE_RETRY: Duration = Duration::from_millis(100);

/// Handle of the threads.
#[derive(Clone)]
pub(crate) struct Maintenance {
    jobs: Arc<Jobs>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
    /// Completes the current memtable and returns it.
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
    /// Whether a memtable is being written, or a caller has reserved to hand one over.
    writing: bool,
    /// Whether the next file of the write-ahead log is to be prepared.
    refill: bool,
    /// Rounds of merging that were requested.
    rounds: u64,
    /// Rounds of merging that are done.
    rounds_done: u64,
    /// Whether work waits for disk space or file descriptors.
    starved: bool,
    stop: bool,
    /// Why the threads have stopped, if they have.
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

    /// Reserves the right to hand over a memtable; `false` if another one is being written or the threads
    /// have stopped. The reservation lasts until the memtable is written.
    pub(crate) fn reserve(&self) -> bool {
        let mut pending = self.jobs.lock();
        let free = !pending.writing && pending.failed.is_none();
        pending.writing |= free;
        free
    }

    /// Hands over a memtable to be written, after [`Maintenance::reserve`].
    pub(crate) fn take(&self, memtable: Arc<Memtable>) {
        self.jobs.lock().memtable = Some(memtable);
        self.jobs.changed.notify_all();
    }

    /// Why the threads have stopped, if they have.
    pub(crate) fn failure(&self) -> Option<String> {
        self.jobs.lock().failed.clone()
    }

    /// Requests that the next file of the write-ahead log is prepared.
    pub(crate) fn refill(&self) {
        self.jobs.lock().refill = true;
        self.jobs.changed.notify_all();
    }

    /// Waits until no memtable is being written, or the threads have stopped.
    pub(crate) fn wait_until_free(&self) {
        let pending = self.jobs.lock();
        drop(
            self.jobs
                .wait_while(pending, |pending| pending.writing && pending.failed.is_none() && !pending.stop),
        );
    }

    /// Waits until no memtable is being written. Returns at once if that waits for disk space.
    pub(crate) fn wait_unless_starved(&self) {
        self.jobs.let_flush_go_first();
    }

    /// Whether flushing a memtable waits for disk space.
    pub(crate) fn is_starved(&self) -> bool {
        let pending = self.jobs.lock();
        pending.writing && pending.starved
    }

    /// Flushes the current memtable, and waits until that is done.
    pub(crate) fn flush(&self) -> io::Result<()> {
        while !self.reserve() {
            self.jobs.lock().result()?;
            self.wait_until_free();
        }
        self.take((self.freeze)());
        self.wait_until_free();
        self.jobs.lock().result()
    }

    /// Requests a round of merging, and waits until it is done.
    pub(crate) fn merge_now(&self) -> io::Result<()> {
        let mut pending = self.jobs.lock();
        pending.rounds += 1;
        let round = pending.rounds;
        self.jobs.changed.notify_all();
        let waiting =
            |pending: &PendingJobs| pending.rounds_done < round && pending.failed.is_none() && !pending.stop;
        self.jobs.wait_while(pending, waiting).result()
    }

    /// Stops the threads after their current work.
    pub(crate) fn stop(&self) {
        self.jobs.lock().stop = true;
        self.jobs.changed.notify_all();
        let threads =
            std::mem::take(&mut *self.threads.lock().expect("nobody panics while holding the threads"));
        for thread in threads {
            // A panic of the thread was logged when it happened.
            let _ = thread.join();
        }
    }
}

fn flush<T: StoredState>(mut flusher: Flusher<T>, jobs: &Jobs, record_interval: Duration) {
    loop {
        let idle = |pending: &mut PendingJobs| pending.memtable.is_none() && !pending.refill && !pending.stop;
        let waited = jobs.changed.wait_timeout_while(jobs.lock(), record_interval, idle);
        let (mut pending, waited) = waited.expect("nobody panics while holding the jobs");
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
        // Prepare the file first, so that commits need not wait for one while the memtable is written.
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

/// Turns a transient error into success, for work that can be done later: flushing a memtable may free space.
fn unless_full(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if is_transient(&error) => {
            tracing::warn!(%error, "maintenance of the store is postponed");
            Ok(())
        }
        result => result,
    }
}

fn merge<T: StoredState>(files: &Files<T>, jobs: &Jobs) {
    let give_way = || jobs.let_flush_go_first();
    let mut segments = Merging { files: "segments", healthy: true };
    let mut cold_rows = Merging { files: "files of rows", healthy: true };
    loop {
        let idle = |pending: &PendingJobs| pending.rounds == pending.rounds_done && !pending.stop;
        let pending = jobs.wait_while(jobs.lock(), idle);
        if pending.stop {
            return;
        }
        let round = pending.rounds;
        drop(pending);
        segments.run(jobs, &|| merge_once(files, &give_way));
        cold_rows.run(jobs, &|| rows::merge::merge_once(files, &give_way));
        jobs.lock().rounds_done = round;
        jobs.changed.notify_all();
    }
}

/// Merging of one kind of files.
struct Merging {
    files: &'static str,
    /// Whether no damaged file was found. Reads and `tidings store check` report one; merging stops, everything else goes
    /// on.
    healthy: bool,
}

impl Merging {
    /// Merges until there is nothing left to do, or no space for it.
    fn run(&mut self, jobs: &Jobs, merge_once: &dyn Fn() -> io::Result<bool>) {
        let files = self.files;
        let mut more = self.healthy;
        while more && !jobs.is_over() {
            more = match merge_once() {
                Ok(merged) => merged,
                // Callers that wait for the round must not wait for space; the next round tries again.
                Err(error) if is_transient(&error) => {
                    tracing::warn!(%error, "merging of {files} is postponed");
                    false
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::error!(%error, "merging of {files} has stopped");
                    self.healthy = false;
                    false
                }
                Err(error) => {
                    jobs.fail(&error);
                    false
                }
            };
        }
    }
}

impl Jobs {
    /// Runs `work` until it succeeds, retrying after transient errors. Any other error stops the store, which
    /// could not free memory any more.
    fn settle(&self, mut work: impl FnMut() -> io::Result<()>) {
        while !self.is_over() {
            match work() {
                Ok(()) => {
                    self.lock().starved = false;
                    return;
                }
                Err(error) if is_transient(&error) => {
                    if !std::mem::replace(&mut self.lock().starved, true) {
                        tracing::warn!(%error, "the store waits for disk space or file descriptors");
                    }
                    self.changed.notify_all();
                    let waited = self.changed.wait_timeout(self.lock(), SPACE_RETRY);
                    drop(waited.expect("nobody panics while holding the jobs"));
                }
                Err(error) => self.fail(&error),
            }
        }
    }

    /// Stops the store with an error.
    fn fail(&self, error: &io::Error) {
        let message = format!("the store cannot write its files, so it has stopped: {error}");
        tracing::error!("{message}");
        self.lock().failed = Some(message.clone());
        self.changed.notify_all();
        (self.on_failure)(&message);
    }

    /// Waits while a memtable is being flushed, unless that waits for space, which merging may free.
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
        self.pending.lock().expect("nobody panics while holding the jobs")
    }

    fn wait_while<'a>(
        &self,
        pending: MutexGuard<'a, PendingJobs>,
        condition: impl Fn(&PendingJobs) -> bool,
    ) -> MutexGuard<'a, PendingJobs> {
        let waited = self.changed.wait_while(pending, |pending| condition(pending));
        waited.expect("nobody panics while holding the jobs")
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
