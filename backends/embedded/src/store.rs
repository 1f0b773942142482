//! [`Embedded`], the handle of the store: opening, committing, reading.
//!
//! A commit goes through a bounded queue to the `committer` thread; reads take the state's lock and, for
//! older records, files. Not here: how a commit is validated (`engine::log`) and what is written when
//! (`committer`, `flush`, `merge`).

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryFutureExt};
use tidings_engine::log::{
    ChangeFeed, Commit, CommitError, Commits, Committed, HasTable, Logs, Observer, Of, Operation, Page,
    ReadError, ReadsTable, Refusal, Refused, Row, RowChange, RowSpan, RowTable, Rows, Span, StateMachine,
    Status, StoreError,
};
use tidings_engine::{Bus, Clock, Metrics};
use tidings_model::{Era, LogId, Position};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::checkpoint::{MANIFEST, load_state};
use crate::committer::{Committer, Work};
use crate::disk::Disk;
use crate::error::{InFile, OpenError};
use crate::field::Field;
use crate::files::Files;
use crate::flush::KEPT_MEMTABLES;
use crate::folder::{open_row_files, prepare_folder, remove_unnamed_files};
use crate::frame::{Content, Item};
use crate::job::{Answer, Job, Reply, StoredRead, size, written};
use crate::maintenance::Maintenance;
use crate::metrics::{self, Counts};
use crate::rows;
use crate::rows::read::RowPlan;
use crate::segment::Segment;
use crate::state::{DiskRead, ReadPlan, StoreState};
use crate::stored_state::StoredState;
use crate::wal::{self, Wal};

/// Commits that may wait in the queue. When it is full, callers wait.
const QUEUE: usize = 16 * 1024;
/// Bytes of commits that may wait in the queue or be being written. When they are used up, callers wait.
const QUEUE_BYTES: usize = 256 << 20;
/// Unit in bytes in which the queue's bytes are counted.
const QUEUE_UNIT: usize = 1024;
const QUEUE_UNITS: usize = QUEUE_BYTES / QUEUE_UNIT;

/// Multiple of its size at which a memtable takes no more commits until the one before it is written.
pub(crate) const OVERFULL: usize = 2;
/// Most memory in bytes that one flush and one merge take together, apart from the indexes of what they write.
const FILE_WORK_BYTES: usize = 64 << 20;

/// Deltas smaller than this fraction (one sixteenth) of a memtable are not compacted into a new base.
const COMPACT_SHARE: u64 = 16;

/// Settings of a store.
#[derive(Clone)]
pub struct Options {
    /// Size of a write-ahead log file in bytes.
    pub wal_file_bytes: u64,
    /// Approximate size in bytes at which a memtable is written as a segment.
    pub memtable_bytes: usize,
    /// Free disk space in bytes below which only commits that free space are accepted, so that memtables can
    /// still be flushed.
    pub reserve_bytes: u64,
    /// Interval at which the end of the write-ahead log is recorded in the manifest, if it has moved. Damage before
    /// the recorded end is detected as such, not taken for the torn end of a crash.
    pub record_interval: Duration,
    /// Secret from which the salts of files are derived. Clients must not know it.
    pub secret: u64,
    /// Called by the committer after the first commit of a frame, so that more can arrive. It may block; the
    /// commits of the frame wait for it.
    pub gather: Option<Gather>,
    /// Called once when a write or sync has failed and the store has stopped.
    pub on_failure: Failure,
    /// Registry for the store's metrics.
    pub metrics: Metrics,
}

/// Waits for more commits to arrive.
pub type Gather = Arc<dyn Fn() + Send + Sync>;

/// Called with a message when the disk has failed.
pub type Failure = Arc<dyn Fn(&str) + Send + Sync>;

impl Default for Options {
    fn default() -> Self {
        Self {
            wal_file_bytes: 64 << 20,
            memtable_bytes: 64 << 20,
            reserve_bytes: 256 << 20,
            record_interval: Duration::from_secs(10),
            secret: 0,
            gather: None,
            on_failure: Arc::new(|_| {}),
            metrics: Metrics::new(),
        }
    }
}

impl Options {
    /// Most memory in bytes that recent records and rows take together with work on files: the current memtable, one that is
    /// being written and those that are kept, each up to twice its size when the disk is slow; and what flushing and merging
    /// have in memory at a time. Commits that wait in the queue, the state of logs and tables, and the indexes of files come
    /// on top.
    pub fn memory_max(&self) -> usize {
        (2 + KEPT_MEMTABLES) * OVERFULL * self.memtable_bytes + FILE_WORK_BYTES
    }
}

/// Handle of the store. Clones share the store; its threads end when the last clone is dropped.
pub struct Embedded<T: StoredState> {
    shared: Arc<StoreInner<T>>,
    threads: Arc<Threads<T>>,
}

/// Weak handle: does not keep the store open.
pub struct WeakEmbedded<T: StoredState> {
    shared: Weak<StoreInner<T>>,
    threads: Weak<Threads<T>>,
}

impl<T: StoredState> WeakEmbedded<T> {
    /// Returns a handle if the store is still open.
    pub fn upgrade(&self) -> Option<Embedded<T>> {
        Some(Embedded { shared: self.shared.upgrade()?, threads: self.threads.upgrade()? })
    }
}

/// How a read runs on files.
type ReadFiles = fn(DiskRead) -> Result<Page, OpenError>;

/// What the threads and all handles share.
pub(crate) struct StoreInner<T: StateMachine> {
    pub(crate) state: RwLock<StoreState<T>>,
    pub(crate) bus: Bus,
    pub(crate) disk: Arc<dyn Disk>,
    /// Whether a write has failed; the store then accepts no commits.
    pub(crate) stopped: AtomicBool,
    pub(crate) reserve_bytes: u64,
    era: Era,
    last_log: AtomicU64,
    disk_reads: AtomicU64,
    /// Permits for what is left of [`QUEUE_BYTES`].
    queue_space: Arc<Semaphore>,
}

struct Threads<T: StoredState> {
    /// Taken on drop: the committer ends when all senders are gone.
    queue: Option<mpsc::Sender<Job<T>>>,
    committer: Option<JoinHandle<()>>,
    maintenance: Maintenance,
}

impl<T: StoredState> Clone for Embedded<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), threads: self.threads.clone() }
    }
}

impl<T: StoredState> Embedded<T> {
    /// Opens the store on a disk, creating it if there is none, and recovers all acknowledged commits.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: Options,
        bus: Bus,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let mut manifest = prepare_folder(&*disk)?;
        let mut state: StoreState<T> = load_state(&*disk, &manifest)?;
        let segments = manifest.segments.iter().map(|&id| Segment::open(&*disk, id).map(Arc::new));
        state.segments = Arc::new(segments.collect::<Result<_, _>>()?);
        state.row_files = open_row_files(&*disk, &manifest)?;
        let known = manifest.known_log();
        let replay = |content| replay(&mut state, content);
        let record = |log, reached| {
            (manifest.log, manifest.reached) = (log, reached);
            manifest.store(&*disk).in_file(MANIFEST)
        };
        let (wal, pool, end) =
            Wal::open(disk.clone(), options.wal_file_bytes, options.secret, &known, replay, record)?;
        remove_unnamed_files(&*disk, &manifest)?;
        (state.last_commit, state.chain) = (end.number, end.chain);
        state.checkpoint.deltas_min = options.memtable_bytes as u64 / COMPACT_SHARE;
        if manifest.copied {
            manifest.era = raise_era(manifest.era)?;
            manifest.copied = false;
            manifest.store(&*disk).in_file(MANIFEST)?;
        }
        let era =
            Era::new(manifest.era).ok_or_else(|| OpenError::damaged(MANIFEST, "its era is too large"))?;
        let shared = Arc::new(StoreInner {
            era,
            last_log: AtomicU64::new(state.numbers.largest()),
            state: RwLock::new(state),
            bus,
            disk: disk.clone(),
            stopped: AtomicBool::new(false),
            reserve_bytes: options.reserve_bytes,
            disk_reads: AtomicU64::new(0),
            queue_space: Arc::new(Semaphore::new(QUEUE_UNITS)),
        });
        metrics::show(&options.metrics, &shared);
        let files = Arc::new(Files::new(disk.clone(), shared.clone(), manifest));
        let (interval, on_failure) = (options.record_interval, options.on_failure.clone());
        let maintenance =
            Maintenance::start(files.clone(), pool, interval, on_failure).in_file("a thread")?;
        let (queue, jobs) = mpsc::channel(QUEUE);
        let committer = Committer {
            shared: shared.clone(),
            disk,
            files,
            clock,
            wal,
            era,
            maintenance: maintenance.clone(),
            counts: Counts::new(&options.metrics),
            options,
            work: Work::default(),
        };
        let committer =
            std::thread::Builder::new().name("tidings-commit".into()).spawn(move || committer.run(jobs));
        let committer = committer.in_file("the commit thread")?;
        let threads = Threads { queue: Some(queue), committer: Some(committer), maintenance };
        Ok(Self { shared, threads: Arc::new(threads) })
    }

    /// Returns a weak handle.
    pub fn downgrade(&self) -> WeakEmbedded<T> {
        WeakEmbedded { shared: Arc::downgrade(&self.shared), threads: Arc::downgrade(&self.threads) }
    }

    /// Bus on which the store wakes listeners of changed logs.
    pub fn bus(&self) -> &Bus {
        &self.shared.bus
    }

    /// Reads tables and statuses of logs under one lock, so that they belong to the same commit.
    pub fn look<R>(&self, look: impl FnOnce(&T, &dyn Fn(LogId) -> Option<Status>) -> R) -> R {
        let state = self.shared.read();
        look(&state.tables, &|log| state.logs.get(log).map(|slot| slot.state.status()))
    }

    /// Writes the current memtable as a segment, and waits until that is done.
    pub fn flush(&self) -> io::Result<()> {
        self.threads.maintenance.flush()
    }

    /// Runs one round of merging segments and dropping dead ones, where worthwhile, and waits until it is
    /// done.
    pub fn merge_now(&self) -> io::Result<()> {
        self.threads.maintenance.merge_now()
    }

    /// Reads since the store was opened that memory could not serve alone, so that segment files were read.
    pub fn disk_reads(&self) -> u64 {
        self.shared.disk_reads()
    }

    fn queue(&self) -> &mpsc::Sender<Job<T>> {
        self.threads.queue.as_ref().expect("only drop takes the sender")
    }

    async fn commit_whole(&self, mut commit: Commit<T::Change>) -> Answer<T> {
        let gone = || CommitError::Store(StoreError::Unavailable("the store has stopped".into()));
        commit.rows.iter().try_for_each(RowChange::validate_size).map_err(CommitError::Store)?;
        let mut written = written::<T>(&mut commit);
        loop {
            let stored = self.read_stored(&commit.operations).await?;
            let size = size(&commit, &stored, &written);
            let units = (size / QUEUE_UNIT + 1).min(QUEUE_UNITS);
            let share = self.shared.queue_space.clone().acquire_many_owned(units as u32).await;
            let share = share.map_err(|_| gone())?;
            let (answer, answered) = oneshot::channel();
            let job = Job { commit, stored, written, size, share, answer };
            self.queue().send(job).await.map_err(|_| gone())?;
            match answered.await.map_err(|_| gone())? {
                Reply::Done(answer) => return answer,
                // Records that it refers to have changed since they were read: read them again.
                Reply::Stale(again, bytes) => (commit, written) = (again, bytes),
            }
        }
    }

    /// Reads the records that references of a commit refer to, by index of the operation.
    async fn read_stored(
        &self,
        operations: &[Operation],
    ) -> Result<HashMap<usize, StoredRead>, CommitError<Refused<T>>> {
        let mut stored = HashMap::new();
        for (place, operation) in operations.iter().enumerate() {
            if let Operation::Refer(refer) = operation
                && let Of::Stored { log, after, through } = refer.of
            {
                let read = self.stored(log, after, through).await.map_err(|error| match error {
                    ReadError::Store(error) => CommitError::Store(error),
                    ReadError::NoSuchLog(_) | ReadError::Trimmed { .. } => Refusal::NoSuchLog(log).into(),
                })?;
                stored.insert(place, read);
            }
        }
        Ok(stored)
    }

    fn read_by(&self, log: LogId, span: Span, read: ReadFiles) -> BoxFuture<'_, Result<Page, ReadError>> {
        let plan = self.shared.read().read(log, span);
        match plan {
            Ok(ReadPlan::Done(page)) => std::future::ready(Ok(page)).boxed(),
            Err(error) => std::future::ready(Err(error)).boxed(),
            Ok(ReadPlan::Disk(plan)) => {
                self.shared.disk_reads.fetch_add(1, Ordering::Relaxed);
                off_the_runtime(move || read(plan)).map_err(ReadError::Store).boxed()
            }
        }
    }

    /// Reads all records that one reference refers to.
    async fn stored(&self, log: LogId, after: Position, through: Position) -> Result<StoredRead, ReadError> {
        let floor = self.status(log).await?.floor;
        let span = Span { after: after.max(floor), through, bytes: usize::MAX, records: usize::MAX };
        let page = match self.read_by(log, span, DiskRead::run_to_keep).await {
            // Trimmed since the floor was read: trimmed records cannot be referred to.
            Err(ReadError::Trimmed { floor, .. }) => {
                self.read_by(log, Span { after: floor, ..span }, DiskRead::run_to_keep).await?
            }
            page => page?,
        };
        Ok(StoredRead { log, through, status: page.status, records: page.records })
    }
}

impl<T: StateMachine> StoreInner<T> {
    pub(crate) fn disk_reads(&self) -> u64 {
        self.disk_reads.load(Ordering::Relaxed)
    }

    /// Approximate bytes of commits that wait or are being written.
    pub(crate) fn queued_bytes(&self) -> usize {
        (QUEUE_UNITS - self.queue_space.available_permits()) * QUEUE_UNIT
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, StoreState<T>> {
        self.state.read().expect("nobody panics while writing")
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, StoreState<T>> {
        self.state.write().expect("nobody panics while writing")
    }
}

impl<T: StoredState> Drop for Threads<T> {
    fn drop(&mut self) {
        self.queue.take();
        // A panic of the thread was logged when it happened.
        if let Some(committer) = self.committer.take() {
            let _ = committer.join();
        }
        self.maintenance.stop();
    }
}

impl<T: StoredState> Logs for Embedded<T> {
    fn reserve(&self) -> BoxFuture<'_, Result<LogId, StoreError>> {
        let number = self.shared.last_log.fetch_add(1, Ordering::Relaxed) + 1;
        std::future::ready(Ok(LogId::new(number))).boxed()
    }

    fn era(&self) -> Era {
        self.shared.era
    }

    fn status(&self, log: LogId) -> BoxFuture<'_, Result<Status, ReadError>> {
        let status = self.shared.read().logs.get(log).map(|slot| slot.state.status());
        std::future::ready(status.ok_or(ReadError::NoSuchLog(log))).boxed()
    }

    fn read(&self, log: LogId, span: Span) -> BoxFuture<'_, Result<Page, ReadError>> {
        self.read_by(log, span, DiskRead::run)
    }

    fn accepting(&self) -> Result<(), StoreError> {
        if let Some(failure) = self.threads.maintenance.failure() {
            return Err(StoreError::Unavailable(failure));
        }
        if self.shared.stopped.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("a write has failed; restart the server".into()));
        }
        let low = self.shared.disk.available().is_ok_and(|space| space < self.shared.reserve_bytes);
        if low || self.threads.maintenance.is_starved() { Err(StoreError::NoSpace) } else { Ok(()) }
    }
}

impl<T: StoredState> Rows for Embedded<T> {
    fn row<'a>(&'a self, table: RowTable, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        let plan = self.shared.read().row(table, key);
        match plan {
            RowPlan::Done(value) => std::future::ready(Ok(value)).boxed(),
            RowPlan::Disk(read) => {
                self.shared.disk_reads.fetch_add(1, Ordering::Relaxed);
                off_the_runtime(move || read.run()).boxed()
            }
        }
    }

    fn rows(&self, table: RowTable, span: RowSpan) -> BoxFuture<'_, Result<Vec<Row>, StoreError>> {
        let read = self.shared.read().rows(table, span);
        if read.needs_files() {
            self.shared.disk_reads.fetch_add(1, Ordering::Relaxed);
        }
        off_the_runtime(move || read.run()).boxed()
    }
}

impl<T: StoredState + HasTable<P>, P: StateMachine> ChangeFeed<P> for Embedded<T> {
    fn observe(&self, observer: &Arc<dyn Observer<P>>) {
        let mut state = self.shared.write();
        let StoreState { tables, observers, .. } = &mut *state;
        observers.add(tables, observer);
    }
}

impl<T: StoredState + HasTable<P>, P: StateMachine> ReadsTable<P> for Embedded<T> {
    fn with_table<R>(&self, look: impl FnOnce(&P, &dyn Fn(LogId) -> Option<Status>) -> R) -> R {
        self.look(|tables, status| look(tables.table(), status))
    }
}

impl<T: StoredState + HasTable<P>, P: StateMachine> Commits<P> for Embedded<T> {
    fn commit(&self, commit: Commit<P::Change>) -> BoxFuture<'_, Result<Committed, CommitError<Refused<P>>>> {
        async move {
            let answer = self.commit_whole(commit.wrapped::<T, P>()).await;
            answer.map_err(CommitError::of_part::<T, P>)
        }
        .boxed()
    }
}

/// Runs a read on a thread that may block.
async fn off_the_runtime<R: Send + 'static>(
    read: impl FnOnce() -> Result<R, OpenError> + Send + 'static,
) -> Result<R, StoreError> {
    let unavailable = |error: String| StoreError::Unavailable(error);
    let read = tokio::task::spawn_blocking(read).await;
    read.map_err(|error| unavailable(error.to_string()))?.map_err(|error| unavailable(error.to_string()))
}

pub(crate) fn replay<T: StoredState>(state: &mut StoreState<T>, content: Content) -> Result<(), OpenError> {
    for item in content.items {
        match item {
            Item::Effect(effect) => state.apply(effect, content.number, content.at),
            Item::Change(bytes) => {
                let change = Field::take_whole(crate::codec::Reader(bytes.clone())).in_file(wal::FOLDER)?;
                state.change(change, &bytes);
            }
            Item::Rows(bytes) => state.change_rows(rows::change::read(bytes).in_file(wal::FOLDER)?),
        }
    }
    state.last_commit = content.number;
    Ok(())
}

fn raise_era(era: u16) -> Result<u16, OpenError> {
    match Era::new(era + 1) {
        Some(raised) => Ok(raised.get()),
        None => Err(OpenError::damaged(
            MANIFEST,
            "the store was restored or truncated 999 times, so no era is left",
        )),
    }
}
