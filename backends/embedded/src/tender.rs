//! The thread that looks after the files: writes generations as segments, melts deltas, merges segments.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use tidings_engine::log::plan::Stored;
use tidings_model::{LogId, Position};

use crate::checkpoint::{self, Manifest, load_state, store_base, store_delta};
use crate::disk::Disk;
use crate::segment::{self, Entry as RunEntry, Kept, Segment, Segments, Shared as SharedRecord, broken};
use crate::segment_writer::{SegmentWriter, SharedKey};
use crate::state::{Entry, Generation, State};
use crate::store::{Failure, Shared};
use crate::tables::StoredTables;
use crate::wal::Shelf;

/// Generations that stay in memory after they were written, to be read.
const KEPT_GENERATIONS: usize = 1;
/// So many neighbours of about the same size are merged.
const MERGE_WIDTH: usize = 4;
/// Deltas are melted into the base when they are larger than it, but not below this.
const MELT_BYTES: u64 = 4 << 20;

/// The thread's work.
pub(crate) struct Tender<T: StoredTables> {
    disk: Arc<dyn Disk>,
    shared: Arc<Shared<T>>,
    manifest: Manifest,
    base_bytes: u64,
    delta_bytes: u64,
    shelf: Arc<Shelf>,
    desk: Arc<Desk>,
    on_failure: Failure,
}

/// What is asked of the thread.
#[derive(Clone)]
pub(crate) struct TenderHandle {
    desk: Arc<Desk>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
    /// Freezes the current generation.
    freeze: Arc<dyn Fn() -> Arc<Generation> + Send + Sync>,
}

#[derive(Default)]
struct Desk {
    orders: Mutex<Orders>,
    changed: Condvar,
}

#[derive(Default)]
struct Orders {
    generation: Option<Arc<Generation>>,
    /// The thread is at work on a generation.
    writing: bool,
    /// How many rounds of tending were asked for, and how many are done.
    asked: u64,
    done: u64,
    stop: bool,
    /// Why the thread has given up.
    failed: Option<String>,
}

impl<T: StoredTables> Tender<T> {
    pub(crate) fn start(
        disk: Arc<dyn Disk>,
        shared: Arc<Shared<T>>,
        manifest: Manifest,
        shelf: Arc<Shelf>,
        on_failure: Failure,
    ) -> TenderHandle {
        let desk = Arc::new(Desk::default());
        let freezing = shared.clone();
        let bytes_of =
            |id: &u64| disk.open(&checkpoint::file_name(*id)).and_then(|file| file.len()).unwrap_or(0);
        let base_bytes = manifest.base.iter().map(bytes_of).sum();
        let delta_bytes = manifest.deltas.iter().map(bytes_of).sum();
        let tender =
            Self { disk, shared, manifest, base_bytes, delta_bytes, shelf, desk: desk.clone(), on_failure };
        let thread = std::thread::Builder::new().name("tidings-tend".into()).spawn(move || tender.run());
        let thread = thread.expect("the system has room for a thread");
        let freeze = Arc::new(move || freezing.write().freeze());
        TenderHandle { desk, thread: Arc::new(Mutex::new(Some(thread))), freeze }
    }

    fn run(mut self) {
        // The next file of the log is made while there is time.
        let applied = self.manifest.applied;
        self.settle(|tender| tender.shelf.restock(applied));
        loop {
            let (generation, asked) = {
                let mut orders = self.desk.lock();
                while orders.generation.is_none() && orders.asked == orders.done && !orders.stop {
                    orders = self.desk.changed.wait(orders).expect("nobody panics while holding the orders");
                }
                if orders.stop {
                    return;
                }
                (orders.generation.take(), orders.asked)
            };
            if let Some(generation) = &generation {
                self.settle(|tender| tender.write_generation(generation));
                self.desk.lock().writing = false;
                self.desk.changed.notify_all();
            }
            let applied = self.manifest.applied;
            self.settle(|tender| tender.shelf.restock(applied));
            self.settle(Self::merge_where_worth_it);
            self.desk.lock().done = asked;
            self.desk.changed.notify_all();
        }
    }

    /// Does some work until it succeeds, waiting for space if that is what is missing. Any other failure ends the store:
    /// it cannot let go of memory any more.
    fn settle(&mut self, work: impl Fn(&mut Self) -> io::Result<()>) {
        if self.desk.lock().failed.is_some() {
            return;
        }
        loop {
            match work(self) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                    let orders = self.desk.lock();
                    let wait = std::time::Duration::from_millis(100);
                    let waited = self.desk.changed.wait_timeout(orders, wait);
                    if waited.expect("nobody panics while holding the orders").0.stop {
                        return;
                    }
                }
                Err(error) => {
                    let message = format!("the store cannot write its files, so it has stopped: {error}");
                    tracing::error!("{message}");
                    self.desk.lock().failed = Some(message.clone());
                    self.desk.changed.notify_all();
                    (self.on_failure)(&message);
                    return;
                }
            }
        }
    }

    /// Writes a generation as a segment and a delta, and lets go of the log's files that had it.
    fn write_generation(&mut self, generation: &Arc<Generation>) -> io::Result<()> {
        let mut manifest = self.manifest.clone();
        let mut segment = None;
        if !generation.runs.is_empty() {
            let id = manifest.new_file();
            let payloads = RefCell::new(HashMap::new());
            self.write_or_remove(
                id,
                |writer| write_runs(writer, generation, &mut payloads.borrow_mut()),
                |key| Ok(payloads.borrow()[&key].clone()),
            )?;
            segment = Some(Arc::new(Segment::open(&*self.disk, id).map_err(broken)?));
            manifest.segments.push(id);
        }
        let id = manifest.new_file();
        let bytes = self.checkpoint_or_remove(id, |disk| store_delta(disk, id, generation))?;
        manifest.deltas.push(id);
        (manifest.applied, manifest.chain) = (generation.last_commit, generation.chain);
        manifest.store(&*self.disk)?;
        self.delta_bytes += bytes;
        self.manifest = manifest;
        let mut state = self.shared.write();
        if let Some(segment) = segment {
            state.segments = Arc::new(state.segments.iter().cloned().chain([segment]).collect());
        }
        while state.generations.len() > KEPT_GENERATIONS {
            state.evict();
        }
        drop(state);
        self.shelf.restock(self.manifest.applied)?;
        if self.delta_bytes > self.base_bytes.max(MELT_BYTES) { self.melt() } else { Ok(()) }
    }

    /// Puts base and deltas together as a new base, by reading them as a start would.
    fn melt(&mut self) -> io::Result<()> {
        let state: State<T> = load_state(&*self.disk, &self.manifest).map_err(broken)?;
        let mut manifest = self.manifest.clone();
        let id = manifest.new_file();
        let bytes = self.checkpoint_or_remove(id, |disk| store_base(disk, id, &state))?;
        manifest.base = Some(id);
        manifest.deltas.clear();
        manifest.store(&*self.disk)?;
        let old = std::mem::replace(&mut self.manifest, manifest);
        (self.base_bytes, self.delta_bytes) = (bytes, 0);
        for id in old.deltas.into_iter().chain(old.base) {
            self.disk.remove(&checkpoint::file_name(id))?;
        }
        Ok(())
    }

    /// Merges segments until none is worth it.
    fn merge_where_worth_it(&mut self) -> io::Result<()> {
        loop {
            if self.desk.lock().stop {
                return Ok(());
            }
            let segments = self.shared.read().segments.clone();
            match self.worth_merging(&segments)? {
                Some(range) => self.merge(&segments, range)?,
                None => return Ok(()),
            }
        }
    }

    /// Neighbours of about the same size, or one that is mostly dead.
    fn worth_merging(&self, segments: &Segments) -> io::Result<Option<std::ops::Range<usize>>> {
        let tier = |segment: &Arc<Segment>| segment.bytes().max(1).ilog2() / 2;
        let mut start = 0;
        for end in 1..=segments.len() {
            if end == segments.len() || tier(&segments[end]) != tier(&segments[start]) {
                if end - start >= MERGE_WIDTH {
                    return Ok(Some(start..end));
                }
                start = end;
            }
        }
        for (n, segment) in segments.iter().enumerate() {
            let (dead, all) = self.dead_bytes(segment)?;
            if all > 0 && dead * 2 > all {
                return Ok(Some(n..n + 1));
            }
        }
        Ok(None)
    }

    /// Bytes of runs that nobody can read any more, and of all runs.
    fn dead_bytes(&self, segment: &Segment) -> io::Result<(u64, u64)> {
        let (mut dead, mut all) = (0, 0);
        for entries in segment.entries() {
            let entries = entries.map_err(broken)?;
            let state = self.shared.read();
            for entry in entries {
                let floor = state.logs.get(entry.log).map(|slot| slot.state.status().floor);
                all += u64::from(entry.bytes);
                if floor.is_none_or(|floor| entry.last <= floor) {
                    dead += u64::from(entry.bytes);
                }
            }
        }
        Ok((dead, all))
    }

    /// Writes neighbours as one segment without what is dead, and puts it in their place.
    fn merge(&mut self, segments: &Segments, range: std::ops::Range<usize>) -> io::Result<()> {
        let sources = &segments[range.clone()];
        let mut manifest = self.manifest.clone();
        let id = manifest.new_file();
        let floors = |log: LogId| self.shared.read().logs.get(log).map(|slot| slot.state.status().floor);
        let shared = sources
            .iter()
            .map(|source| source.all_shared())
            .collect::<Result<Vec<_>, _>>()
            .map_err(broken)?;
        let wanted = references(sources, &shared, &floors)?;
        let written = self.write_or_remove(
            id,
            |writer| {
                wanted.keys().for_each(|(origin, _)| writer.announce(*origin));
                merge_runs(writer, sources, &shared, &floors)
            },
            |key| {
                let (segment, shared) = wanted[&key];
                Ok(sources[segment].resolve(&shared).map_err(broken)?.payload)
            },
        )?;
        let mut merged = Vec::new();
        if written {
            merged.push(Arc::new(Segment::open(&*self.disk, id).map_err(broken)?));
        }
        manifest.segments.splice(range.clone(), merged.iter().map(|segment| segment.id));
        manifest.store(&*self.disk)?;
        self.manifest = manifest;
        let mut list: Vec<_> = segments.to_vec();
        list.splice(range, merged);
        self.shared.write().segments = Arc::new(list);
        for source in sources {
            self.disk.remove(source.name())?;
        }
        Ok(())
    }

    /// Writes a segment; false, and no file, when there is nothing to write. Half a file is not left behind.
    fn write_or_remove(
        &self,
        id: u64,
        fill: impl FnOnce(&mut SegmentWriter) -> io::Result<()>,
        payload: impl FnMut(SharedKey) -> io::Result<bytes::Bytes>,
    ) -> io::Result<bool> {
        let name = segment::file_name(id);
        let write = || {
            let mut writer = SegmentWriter::create(&*self.disk, id)?;
            fill(&mut writer)?;
            if writer.is_empty() {
                return Ok(false);
            }
            writer.finish(&*self.disk, payload)?;
            Ok(true)
        };
        let written: io::Result<bool> = write();
        if !matches!(written, Ok(true)) {
            self.disk.remove(&name)?;
        }
        written
    }

    fn checkpoint_or_remove(
        &self,
        id: u64,
        write: impl FnOnce(&dyn Disk) -> io::Result<u64>,
    ) -> io::Result<u64> {
        let written = write(&*self.disk);
        if written.is_err() {
            self.disk.remove(&checkpoint::file_name(id))?;
        }
        written
    }
}

/// Writes a generation, and keeps what its references refer to: each of them carries it.
fn write_runs(
    writer: &mut SegmentWriter,
    generation: &Generation,
    payloads: &mut HashMap<SharedKey, bytes::Bytes>,
) -> io::Result<()> {
    let mut announced: *const Stored = std::ptr::null();
    for entry in generation.runs.iter().flat_map(|(_, entries)| entries) {
        let source = Arc::as_ptr(&entry.stored);
        if let Some(origin) = entry.stored.origin.filter(|_| source != announced) {
            writer.announce(origin);
            announced = source;
        }
    }
    for (log, entries) in &generation.runs {
        for Entry { position, stored } in entries {
            match stored.origin {
                None => writer.push_own(*log, *position, stored)?,
                Some(origin) => {
                    if writer.push_reference(*log, *position, stored)? {
                        payloads.insert((origin, stored.commit), stored.payload.clone());
                    }
                }
            }
        }
    }
    Ok(())
}

/// The references in these segments that are alive, and where what they refer to can be read.
fn references(
    segments: &[Arc<Segment>],
    shared: &[Vec<SharedRecord>],
    floor: &impl Fn(LogId) -> Option<Position>,
) -> io::Result<HashMap<SharedKey, (usize, SharedRecord)>> {
    let mut wanted = HashMap::new();
    for (n, segment) in segments.iter().enumerate() {
        if shared[n].is_empty() {
            continue;
        }
        let mut alive = vec![false; shared[n].len()];
        for entries in segment.entries() {
            for entry in entries.map_err(broken)? {
                let Some(floor) = floor(entry.log).filter(|floor| entry.last > *floor) else { continue };
                for (position, kept) in segment.run(entry).map_err(broken)? {
                    if let Kept::Reference(number) = kept
                        && position > floor
                    {
                        *alive.get_mut(number as usize).ok_or_else(leads_nowhere)? = true;
                    }
                }
            }
        }
        for (shared, _) in shared[n].iter().zip(alive).filter(|(_, alive)| *alive) {
            let shared = *shared;
            wanted.entry((shared.origin, shared.commit)).or_insert((n, shared));
        }
    }
    Ok(wanted)
}

/// Writes the living records of neighbours, log by log, each log's from the oldest segment to the newest.
fn merge_runs(
    writer: &mut SegmentWriter,
    segments: &[Arc<Segment>],
    shared: &[Vec<SharedRecord>],
    floor: &impl Fn(LogId) -> Option<Position>,
) -> io::Result<()> {
    let mut cursors: Vec<_> =
        segments.iter().map(|segment| Cursor::new(segment)).collect::<io::Result<_>>()?;
    while let Some(log) = cursors.iter().filter_map(|cursor| cursor.head.map(|entry| entry.log)).min() {
        let floor = floor(log);
        for (cursor, shared) in cursors.iter_mut().zip(shared) {
            while let Some(entry) = cursor.head.filter(|entry| entry.log == log) {
                if let Some(floor) = floor.filter(|floor| entry.last > *floor) {
                    copy_run(writer, cursor.segment, shared, entry, floor)?;
                }
                cursor.advance()?;
            }
        }
    }
    Ok(())
}

fn copy_run(
    writer: &mut SegmentWriter,
    segment: &Segment,
    shared: &[SharedRecord],
    entry: RunEntry,
    floor: Position,
) -> io::Result<()> {
    for (position, kept) in segment.run(entry).map_err(broken)? {
        if position <= floor {
            continue;
        }
        match kept {
            Kept::Own(stored) => writer.push_own(entry.log, position, &stored)?,
            Kept::Reference(number) => {
                let shared = shared.get(number as usize).ok_or_else(leads_nowhere)?;
                let SharedRecord { origin, commit, time: at, boundary, .. } = *shared;
                let payload = bytes::Bytes::new();
                let of = Stored { commit, at, payload, origin: Some(origin), boundary };
                writer.push_reference(entry.log, position, &of)?;
            }
        }
    }
    Ok(())
}

fn leads_nowhere() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a reference of a segment leads nowhere")
}

/// Goes through the entries of a segment.
struct Cursor<'a> {
    segment: &'a Segment,
    blocks: Box<dyn Iterator<Item = Result<Vec<RunEntry>, crate::OpenError>> + 'a>,
    entries: std::vec::IntoIter<RunEntry>,
    head: Option<RunEntry>,
}

impl<'a> Cursor<'a> {
    fn new(segment: &'a Segment) -> io::Result<Self> {
        let blocks = Box::new(segment.entries());
        let mut cursor = Self { segment, blocks, entries: Vec::new().into_iter(), head: None };
        cursor.advance()?;
        Ok(cursor)
    }

    fn advance(&mut self) -> io::Result<()> {
        self.head = self.entries.next();
        while self.head.is_none() {
            let Some(block) = self.blocks.next() else { return Ok(()) };
            self.entries = block.map_err(broken)?.into_iter();
            self.head = self.entries.next();
        }
        Ok(())
    }
}

impl TenderHandle {
    /// Whether a generation can be given to it; if so, nobody else may until this one is given and written.
    pub(crate) fn reserve(&self) -> bool {
        let mut orders = self.desk.lock();
        let free = !orders.writing && orders.failed.is_none();
        orders.writing |= free;
        free
    }

    /// Gives it a generation to write, for which it was reserved.
    pub(crate) fn take(&self, generation: Arc<Generation>) {
        self.desk.lock().generation = Some(generation);
        self.desk.changed.notify_all();
    }

    /// Asks for a round of work without waiting for it.
    pub(crate) fn nudge(&self) {
        self.desk.lock().asked += 1;
        self.desk.changed.notify_all();
    }

    /// Waits until the generation it has is written, or it has given up.
    pub(crate) fn wait_until_free(&self) {
        let mut orders = self.desk.lock();
        while orders.writing && orders.failed.is_none() && !orders.stop {
            orders = self.desk.changed.wait(orders).expect("nobody panics while holding the orders");
        }
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
        orders.asked += 1;
        let round = orders.asked;
        self.desk.changed.notify_all();
        while orders.done < round && orders.failed.is_none() && !orders.stop {
            orders = self.desk.changed.wait(orders).expect("nobody panics while holding the orders");
        }
        orders.result()
    }

    /// Ends the thread after what it is doing.
    pub(crate) fn stop(&self) {
        self.desk.lock().stop = true;
        self.desk.changed.notify_all();
        let thread = self.thread.lock().expect("nobody panics while holding the thread").take();
        if let Some(thread) = thread {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().expect("nobody panics while holding the orders")
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
