//! The handle, and the one thread that commits.
//!
//! Commits wait in a queue. The committer takes all that wait, judges them one after the other, writes what they do as
//! one frame, syncs it, applies it and answers. While it syncs, the next ones gather: that is the group commit, without
//! a timer. Commits of one frame see each other: logs through a copy of the states they touch, tables by keeping
//! apart what would have to (it waits for the next frame). A refusal is told with the frame it was judged in.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::log::plan::{Known, Overlay, Plan, View};
use tidings_engine::log::{
    Change, Commit, CommitError, Commits, Committed, Logs, Of, Operation, Page, ReadError, Record, Refusal,
    Span, Status, StoreError,
};
use tidings_engine::{Bus, Clock};
use tidings_model::{CommitNumber, Era, LogId, Position, Timestamp};
use tokio::sync::{mpsc, oneshot};

use crate::checkpoint::{self, MANIFEST, Manifest, load_state};
use crate::disk::Disk;
use crate::error::{InFile, OpenError};
use crate::files::Files;
use crate::frame::{Content, Frame, Item};
use crate::lock::LOCK;
use crate::segment::{self, Segment};
use crate::state::{ReadPlan, State};
use crate::tables::StoredTables;
use crate::tender::Tender;
use crate::wal::{self, End, Wal};

/// Commits that may wait in the queue; whoever comes then waits with its request.
const QUEUE: usize = 16 * 1024;
/// A frame takes no further commit beyond this.
const FRAME_BYTES: usize = 1 << 20;
/// A frame takes no further commit beyond so many.
const FRAME_COMMITS: usize = 4096;

/// How a store is set.
#[derive(Clone)]
pub struct Options {
    /// Size of a file of the write-ahead log.
    pub wal_file_bytes: u64,
    /// A generation is written as a segment when it takes about this much memory.
    pub generation_bytes: usize,
    /// New files are not begun with less than this left on the disk, so that segments can still be written.
    pub reserve_bytes: u64,
    /// A number that nobody outside knows; the salts of files come from it.
    pub secret: u64,
    /// Called once when a write or sync has failed and the store has stopped.
    pub on_failure: Failure,
}

/// What to do when the disk has failed.
pub type Failure = Arc<dyn Fn(&str) + Send + Sync>;

impl Default for Options {
    fn default() -> Self {
        Self {
            wal_file_bytes: 64 << 20,
            generation_bytes: 64 << 20,
            reserve_bytes: 256 << 20,
            secret: 0,
            on_failure: Arc::new(|_| {}),
        }
    }
}

/// The store. Clones are the same store; when the last is dropped, its threads end.
pub struct Embedded<T: StoredTables> {
    shared: Arc<Shared<T>>,
    threads: Arc<Threads<T>>,
}

/// What the threads and all handles share.
pub(crate) struct Shared<T> {
    pub(crate) state: RwLock<State<T>>,
    pub(crate) bus: Bus,
    last_log: AtomicU64,
    disk_reads: AtomicU64,
}

struct Threads<T: StoredTables> {
    /// Taken on drop: the committer ends when nobody can send any more.
    queue: Option<mpsc::Sender<Job<T>>>,
    committer: Option<JoinHandle<()>>,
    tender: Tender,
}

struct Job<T: StoredTables> {
    commit: Commit<T::Change>,
    /// What each reference of the commit to stored records refers to, by its place among the operations.
    stored: HashMap<usize, Vec<Record>>,
    answer: Asker<T>,
}

/// Whoever waits for an answer.
type Asker<T> = oneshot::Sender<Answer<T>>;
type Answer<T> = Result<Committed, CommitError<Refused<T>>>;
type Refused<T> = <<T as tidings_engine::log::Tables>::Change as Change>::Refusal;

impl<T: StoredTables> Clone for Embedded<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), threads: self.threads.clone() }
    }
}

impl<T: StoredTables> Embedded<T> {
    /// Opens the store on a disk, making it if there is none, and recovers what was acknowledged.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: Options,
        bus: Bus,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let mut manifest = prepare_folder(&*disk)?;
        let mut state: State<T> = load_state(&*disk, &manifest)?;
        let segments = manifest.segments.iter().map(|&id| Segment::open(&*disk, id).map(Arc::new));
        state.segments = Arc::new(segments.collect::<Result<_, _>>()?);
        remove_strangers(&*disk, &manifest)?;
        let applied = End { number: manifest.applied, chain: manifest.chain };
        let replay = |content| replay(&mut state, content);
        let (wal, shelf, end) =
            Wal::open(disk.clone(), options.wal_file_bytes, options.secret, applied, replay)?;
        (state.last_commit, state.chain) = (end.number, end.chain);
        if manifest.copied {
            manifest.era = raise_era(manifest.era)?;
            manifest.copied = false;
            manifest.store(&*disk).in_file(MANIFEST)?;
        }
        let era =
            Era::new(manifest.era).ok_or_else(|| OpenError::damaged(MANIFEST, "its era is too large"))?;
        let shared = Arc::new(Shared {
            last_log: AtomicU64::new(state.numbers.largest()),
            state: RwLock::new(state),
            bus,
            disk_reads: AtomicU64::new(0),
        });
        let files = Files::new(disk.clone(), shared.clone(), manifest);
        let tender = Tender::start(files, shelf, options.on_failure.clone()).in_file("a thread")?;
        let (queue, jobs) = mpsc::channel(QUEUE);
        let committer = Committer {
            shared: shared.clone(),
            disk,
            clock,
            wal,
            era,
            options,
            tender: tender.clone(),
            memory: Vec::new(),
            overlay: Overlay::default(),
            postponed: VecDeque::new(),
            stopped: false,
        };
        let committer =
            std::thread::Builder::new().name("tidings-commit".into()).spawn(move || committer.run(jobs));
        let committer = committer.in_file("the commit thread")?;
        let threads = Threads { queue: Some(queue), committer: Some(committer), tender };
        Ok(Self { shared, threads: Arc::new(threads) })
    }

    /// The bus on which the store wakes listeners.
    pub fn bus(&self) -> &Bus {
        &self.shared.bus
    }

    /// Looks at the tables and, with the function given to `look`, at logs, both at one moment.
    pub fn look<R>(&self, look: impl FnOnce(&T, &dyn Fn(LogId) -> Option<Status>) -> R) -> R {
        let state = self.shared.read();
        look(&state.tables, &|log| state.logs.get(log).map(|slot| slot.state.status()))
    }

    /// Writes what is in memory as a segment, and waits until it is done.
    pub fn flush(&self) -> io::Result<()> {
        self.threads.tender.flush()
    }

    /// Merges and lets go of what is dead, where it is worth it, and waits until it is done.
    pub fn tend(&self) -> io::Result<()> {
        self.threads.tender.tend()
    }

    /// Reads that needed files since the store was opened.
    pub fn disk_reads(&self) -> u64 {
        self.shared.disk_reads.load(Ordering::Relaxed)
    }

    fn queue(&self) -> &mpsc::Sender<Job<T>> {
        self.threads.queue.as_ref().expect("only drop takes it")
    }

    /// All records that a reference to stored ones refers to, as they are now.
    async fn stored(&self, log: LogId, after: Position, through: Position) -> Result<Vec<Record>, ReadError> {
        let floor = self.status(log).await?.floor;
        let span = Span { after: after.max(floor), through, bytes: usize::MAX, records: usize::MAX };
        match self.read(log, span).await {
            Ok(page) => Ok(page.records),
            // Trimmed meanwhile: what is gone cannot be referred to.
            Err(ReadError::Trimmed { floor, .. }) => {
                Ok(self.read(log, Span { after: floor, ..span }).await?.records)
            }
            Err(error) => Err(error),
        }
    }
}

impl<T> Shared<T> {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State<T>> {
        self.state.read().expect("nobody panics while writing")
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, State<T>> {
        self.state.write().expect("nobody panics while writing")
    }
}

impl<T: StoredTables> Drop for Threads<T> {
    fn drop(&mut self) {
        self.queue.take();
        // A thread that panicked has said so.
        if let Some(committer) = self.committer.take() {
            let _ = committer.join();
        }
        self.tender.stop();
    }
}

impl<T: StoredTables> Logs for Embedded<T> {
    fn reserve(&self) -> BoxFuture<'_, Result<LogId, StoreError>> {
        let number = self.shared.last_log.fetch_add(1, Ordering::Relaxed) + 1;
        std::future::ready(Ok(LogId::new(number))).boxed()
    }

    fn status(&self, log: LogId) -> BoxFuture<'_, Result<Status, ReadError>> {
        let status = self.shared.read().logs.get(log).map(|slot| slot.state.status());
        std::future::ready(status.ok_or(ReadError::NoSuchLog(log))).boxed()
    }

    fn read(&self, log: LogId, span: Span) -> BoxFuture<'_, Result<Page, ReadError>> {
        let plan = self.shared.read().read(log, span);
        match plan {
            Ok(ReadPlan::Done(page)) => std::future::ready(Ok(page)).boxed(),
            Err(error) => std::future::ready(Err(error)).boxed(),
            Ok(ReadPlan::Disk(read)) => {
                self.shared.disk_reads.fetch_add(1, Ordering::Relaxed);
                async move {
                    let page = tokio::task::spawn_blocking(move || read.run()).await;
                    let unavailable = |error: String| ReadError::Store(StoreError::Unavailable(error));
                    let page = page.map_err(|error| unavailable(error.to_string()))?;
                    page.map_err(|error| unavailable(error.to_string()))
                }
                .boxed()
            }
        }
    }
}

impl<T: StoredTables> Commits<T::Change> for Embedded<T> {
    fn commit(&self, commit: Commit<T::Change>) -> BoxFuture<'_, Answer<T>> {
        async move {
            let mut stored = HashMap::new();
            for (place, operation) in commit.operations.iter().enumerate() {
                if let Operation::Refer(refer) = operation
                    && let Of::Stored { log, after, through } = refer.of
                {
                    let records = self.stored(log, after, through).await.map_err(|error| match error {
                        ReadError::Store(error) => CommitError::Store(error),
                        ReadError::NoSuchLog(_) | ReadError::Trimmed { .. } => Refusal::NoSuchLog(log).into(),
                    })?;
                    stored.insert(place, records);
                }
            }
            let (answer, answered) = oneshot::channel();
            let job = Job { commit, stored, answer };
            let gone = || CommitError::Store(StoreError::Unavailable("the store has stopped".into()));
            self.queue().send(job).await.map_err(|_| gone())?;
            answered.await.map_err(|_| gone())?
        }
        .boxed()
    }
}

/// The one thread that commits.
struct Committer<T: StoredTables> {
    shared: Arc<Shared<T>>,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    wal: Wal,
    era: Era,
    options: Options,
    tender: Tender,
    /// The memory of the last frame, to be used again.
    memory: Vec<u8>,
    /// The same for its overlay.
    overlay: Overlay,
    /// Commits that could not be judged together with those before them.
    postponed: VecDeque<Job<T>>,
    /// A write has failed: nothing is known of the disk any more.
    stopped: bool,
}

/// What goes into one frame.
struct Batch<T: StoredTables> {
    number: CommitNumber,
    now: Timestamp,
    frame: Frame,
    /// The logs it touches, as it leaves them.
    logs: Overlay,
    /// What the changes so far read or write.
    subjects: HashSet<u64>,
    good: Vec<Good<T>>,
    refused: Vec<(Asker<T>, CommitError<Refused<T>>)>,
}

/// A commit that was judged good.
struct Good<T: StoredTables> {
    plan: Plan,
    changes: Vec<(T::Change, Vec<u8>)>,
    answer: Asker<T>,
}

impl<T: StoredTables> Committer<T> {
    fn run(mut self, mut jobs: mpsc::Receiver<Job<T>>) {
        loop {
            let mut waiting = std::mem::take(&mut self.postponed);
            if waiting.is_empty() {
                match next_job(&mut jobs) {
                    Some(job) => waiting.push_back(job),
                    None => return,
                }
            }
            let mut batch = self.begin();
            while let Some(job) = waiting.pop_front().or_else(|| jobs.try_recv().ok()) {
                self.judge(&mut batch, job);
                let full = batch.good.len() >= FRAME_COMMITS || batch.frame.size() >= FRAME_BYTES;
                if full || self.postponed.len() >= FRAME_COMMITS {
                    break;
                }
            }
            // What was postponed before and not reached comes first again.
            waiting.append(&mut self.postponed);
            self.postponed = waiting;
            self.commit(batch);
        }
    }

    fn begin(&mut self) -> Batch<T> {
        let last = self.shared.read().last_commit;
        let first_of_era = CommitNumber::new(self.era, last.get() % CommitNumber::PER_ERA + 1);
        let number = if last.era() == self.era { last.next() } else { first_of_era };
        let now = self.clock.now();
        Batch {
            number,
            now,
            frame: Frame::begin(std::mem::take(&mut self.memory), number, now),
            logs: std::mem::take(&mut self.overlay),
            subjects: HashSet::new(),
            good: Vec::new(),
            refused: Vec::new(),
        }
    }

    fn judge(&mut self, batch: &mut Batch<T>, job: Job<T>) {
        let state = self.shared.read();
        let mut subjects = Vec::new();
        for change in &job.commit.changes {
            state.tables.subjects(change, &mut |subject| subjects.push(subject));
        }
        if subjects.iter().any(|subject| batch.subjects.contains(subject)) {
            self.postponed.push_back(job);
            return;
        }
        let Job { commit, stored, answer } = job;
        let declined = commit.changes.iter().find_map(|change| state.tables.judge(change).err());
        let view = Seen { state: &state, stored };
        let judged = match declined {
            Some(refusal) => Err(CommitError::Declined(refusal)),
            None => Plan::judge(&view, &mut batch.logs, commit.operations, batch.number, batch.now)
                .map_err(CommitError::Refused),
        };
        let plan = match judged {
            Ok(plan) => plan,
            Err(refusal) => return batch.refused.push((answer, refusal)),
        };
        batch.frame.effects(&plan.effects);
        let mut changes = Vec::with_capacity(commit.changes.len());
        for change in commit.changes {
            let mut bytes = Vec::new();
            T::encode(&change, &mut bytes);
            batch.frame.change(&bytes);
            changes.push((change, bytes));
        }
        batch.subjects.extend(subjects);
        batch.good.push(Good { plan, changes, answer });
    }

    /// Makes a batch durable, then visible, then tells.
    fn commit(&mut self, mut batch: Batch<T>) {
        if batch.good.is_empty() {
            batch.tell_refused();
        } else {
            match self.write(&mut batch) {
                Ok(()) => self.show(&mut batch),
                Err(error) => batch.refuse_all(&error),
            }
            batch.tell_refused();
        }
        self.memory = batch.frame.into_memory();
        batch.logs.clear();
        self.overlay = batch.logs;
    }

    fn write(&mut self, batch: &mut Batch<T>) -> Result<(), StoreError> {
        if self.stopped {
            return Err(StoreError::Unavailable("a write has failed; restart the server".into()));
        }
        if batch.frame.size() > self.wal.frame_bytes_max() {
            return Err(StoreError::Unavailable("the commit is larger than a file of the log".into()));
        }
        let (last, bytes) = {
            let state = self.shared.read();
            (state.last_commit, state.generation_bytes)
        };
        if bytes >= 2 * self.options.generation_bytes && self.tender.is_starved() {
            return Err(StoreError::NoSpace);
        }
        self.make_room(batch.frame.size(), last)?;
        self.wal.write(&mut batch.frame).map_err(|error| self.stop(&error))
    }

    /// Goes to the next file of the log, if need be and if there is space.
    fn make_room(&mut self, bytes: usize, last: CommitNumber) -> Result<(), StoreError> {
        let space = self.disk.available().map_err(|error| self.stop(&error))?;
        if space < self.options.reserve_bytes {
            return Err(StoreError::NoSpace);
        }
        match self.wal.make_room(bytes, last) {
            Ok(turned) => {
                if turned {
                    self.tender.restock();
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Err(StoreError::NoSpace),
            Err(error) => Err(self.stop(&error)),
        }
    }

    /// The disk has failed. What it has is only known again after a restart.
    fn stop(&mut self, error: &io::Error) -> StoreError {
        let message = format!("a write to the store failed, so it has stopped: {error}");
        if !std::mem::replace(&mut self.stopped, true) {
            tracing::error!("{message}");
            (self.options.on_failure)(&message);
        }
        StoreError::Unavailable(message)
    }

    fn show(&mut self, batch: &mut Batch<T>) {
        // The copies go before the originals change: what they share need not be copied then.
        let touched: Vec<LogId> = batch.logs.drain().map(|(log, _)| log).collect();
        let mut state = self.shared.write();
        (state.last_commit, state.chain) = (batch.number, self.wal.chain());
        let mut answers = Vec::with_capacity(batch.good.len());
        for Good { plan, changes, answer } in batch.good.drain(..) {
            for effect in plan.effects {
                state.apply(effect, batch.number, batch.now);
            }
            for (change, bytes) in changes {
                state.change(change, &bytes);
            }
            answers.push((answer, Committed { number: batch.number, outcomes: plan.outcomes }));
        }
        let full = state.generation_bytes >= self.options.generation_bytes;
        let generation = if full && self.tender.reserve() { Some(state.freeze()) } else { None };
        let overfull = state.generation_bytes >= 2 * self.options.generation_bytes;
        drop(state);
        for log in touched {
            self.shared.bus.wake(log);
        }
        for (answer, committed) in answers {
            // Whoever does not wait any more has its commit all the same.
            let _ = answer.send(Ok(committed));
        }
        if let Some(generation) = generation {
            self.tender.take(generation);
        } else if overfull {
            self.tender.wait_unless_starved();
        }
    }
}

impl<T: StoredTables> Batch<T> {
    fn refuse_all(&mut self, error: &StoreError) {
        let failed = self.good.drain(..).map(|good| (good.answer, CommitError::Store(error.clone())));
        self.refused.extend(failed);
    }

    fn tell_refused(&mut self) {
        for (answer, refusal) in self.refused.drain(..) {
            let _ = answer.send(Err(refusal));
        }
    }
}

/// The next commit. Looks a few times before it lets the thread sleep: a client that was just answered often has
/// the next one ready, and waking a thread costs as much as a fifth of a sync.
fn next_job<T: StoredTables>(jobs: &mut mpsc::Receiver<Job<T>>) -> Option<Job<T>> {
    const LOOKS: usize = 48;
    for _ in 0..LOOKS {
        if let Ok(job) = jobs.try_recv() {
            return Some(job);
        }
        std::thread::yield_now();
    }
    jobs.blocking_recv()
}

/// The logs as they are visible.
struct Seen<'a, T> {
    state: &'a State<T>,
    stored: HashMap<usize, Vec<Record>>,
}

impl<T: StoredTables> View for Seen<'_, T> {
    fn log(&self, log: LogId) -> Known<'_> {
        match self.state.logs.get(log) {
            Some(slot) => Known::Live(&slot.state),
            None if self.state.numbers.contains(log.get()) => Known::Ended,
            None => Known::Nothing,
        }
    }

    fn stored(&self, operation: usize, _: &Of) -> Result<Vec<Record>, Refusal> {
        Ok(self.stored.get(&operation).cloned().unwrap_or_default())
    }
}

/// Looks at what is in the folder, and makes what a store needs.
fn prepare_folder(disk: &dyn Disk) -> Result<Manifest, OpenError> {
    let ours = |name: &str| {
        let folders = [wal::FOLDER, segment::FOLDER, checkpoint::FOLDER].map(|folder| format!("{folder}/"));
        name.starts_with(MANIFEST) || name == LOCK || folders.iter().any(|folder| folder == name)
    };
    let names = disk.list("").in_file("the data folder")?;
    let manifest = Manifest::load(disk)?;
    if manifest.is_none()
        && let Some(name) = names.into_iter().find(|name| !ours(name))
    {
        return Err(OpenError::Foreign { folder: "the data folder".to_owned(), name });
    }
    for folder in [wal::FOLDER, segment::FOLDER, checkpoint::FOLDER] {
        disk.create_folder(folder).in_file(folder)?;
    }
    match manifest {
        Some(manifest) => Ok(manifest),
        None => {
            let manifest = Manifest::default();
            manifest.store(disk).in_file(MANIFEST)?;
            Ok(manifest)
        }
    }
}

/// Removes files that no manifest names: their making was cut off, or their removal.
fn remove_strangers(disk: &dyn Disk, manifest: &Manifest) -> Result<(), OpenError> {
    let known = [
        (segment::FOLDER, manifest.segments.iter().map(|&id| segment::file_name(id)).collect::<HashSet<_>>()),
        (
            checkpoint::FOLDER,
            manifest.deltas.iter().chain(&manifest.base).map(|&id| checkpoint::file_name(id)).collect(),
        ),
    ];
    for (folder, known) in known {
        for short in disk.list(folder).in_file(folder)? {
            let name = format!("{folder}/{short}");
            if !known.contains(&name) {
                disk.remove(&name).in_file(&name)?;
            }
        }
    }
    Ok(())
}

pub(crate) fn replay<T: StoredTables>(state: &mut State<T>, content: Content) -> Result<(), OpenError> {
    for item in content.items {
        match item {
            Item::Effect(effect) => state.apply(effect, content.number, content.at),
            Item::Change(bytes) => {
                let change = T::decode(crate::codec::Take(bytes.clone())).in_file(wal::FOLDER)?;
                state.change(change, &bytes);
            }
        }
    }
    state.last_commit = content.number;
    Ok(())
}

fn raise_era(era: u16) -> Result<u16, OpenError> {
    match Era::new(era + 1) {
        Some(raised) => Ok(raised.get()),
        None => {
            Err(OpenError::damaged(MANIFEST, "the store was restored a thousand times; there is no era left"))
        }
    }
}
