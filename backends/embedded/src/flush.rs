//! Flushes a memtable: writes a segment, a file of rows and a delta, then a manifest that names them. The files of the
//! write-ahead log that held it are then free. When the deltas have outgrown the base, a new base replaces
//! both.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tidings_engine::log::plan::{LogHash, Stored};

use crate::checkpoint::{self, store_base, store_delta};
use crate::files::{Files, Keep};
use crate::rows::merge::{hiding, is_in};
use crate::rows::{RowFile, RowLayer};
use crate::segment::SharedRecord;
use crate::segment_shared::{SHARED_AT_A_TIME, SharedSource};
use crate::segment_writer::SegmentWriter;
use crate::state::{CheckpointBytes, Entry, Memtable};
use crate::stored_state::{Numbers, StoredState};
use crate::wal::WalFilePool;

/// Memtables that stay in memory for reads after they were flushed.
pub(crate) const KEPT_MEMTABLES: usize = 1;

/// Flushes memtables.
pub(crate) struct Flusher<T: StoredState> {
    files: Arc<Files<T>>,
    pool: Arc<WalFilePool>,
}

impl<T: StoredState> Flusher<T> {
    pub(crate) fn new(files: Arc<Files<T>>, pool: Arc<WalFilePool>) -> Self {
        let manifest = files.manifest();
        let bytes_of =
            |id: &u64| files.disk.open(&checkpoint::file_name(*id)).and_then(|file| file.len()).unwrap_or(0);
        let base = manifest.base.iter().map(bytes_of).sum();
        let deltas = manifest.deltas.iter().map(bytes_of).sum();
        {
            let known = &mut files.shared.write().checkpoint;
            (known.base, known.deltas) = (base, deltas);
        }
        Self { files, pool }
    }

    /// Frees files of the write-ahead log that are no longer needed, and prepares the next one.
    pub(crate) fn refill(&mut self) -> io::Result<()> {
        let applied = self.files.manifest().applied;
        self.pool.refill(applied, &|log| self.files.record_log(log))
    }

    /// Records the end of the write-ahead log and its files in the manifest, if either has changed since the
    /// manifest was written.
    pub(crate) fn record_end(&mut self) -> io::Result<()> {
        self.files.disk.still_held()?;
        self.pool.record(&|log| {
            let known = self.files.manifest();
            // Whatever writes the manifest records the end, but only the pool knows which files are full.
            if known.reached == self.files.shared.read().end() && known.log == log {
                return Ok(());
            }
            self.files.record_log(log)
        })
    }

    /// Records the end of the log when the store is closed. Ignores errors: earlier ones were reported, and
    /// the next start detects the rest.
    pub(crate) fn close(&mut self) {
        if self.files.shared.stopped.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.record_end() {
            tracing::warn!(%error, "could not record the end of the write-ahead log");
        }
    }

    /// Flushes a memtable. After a transient failure it can be tried again.
    pub(crate) fn write(&mut self, memtable: &Arc<Memtable>) -> io::Result<()> {
        let mut segment = None;
        if !memtable.runs.is_empty() {
            segment =
                self.files.write_segment(self.files.new_file(), |writer| write_runs(writer, memtable))?;
        }
        let mut new: Vec<String> = segment.iter().map(|segment| segment.name().to_owned()).collect();
        let rows = self.write_rows(&memtable.rows).map_err(|error| self.files.give_up(&new, error))?;
        new.extend(rows.iter().map(|file| file.path().to_owned()));
        let delta = self.files.new_file();
        let written = self.files.write_checkpoint(delta, |disk| store_delta(disk, delta, memtable));
        let bytes = written.map_err(|error| self.files.give_up(&new, error))?;
        new.push(checkpoint::file_name(delta));
        self.files.replace(
            &new,
            |manifest| {
                manifest.segments.extend(segment.iter().map(|segment| segment.id));
                manifest.rows.extend(rows.iter().map(|file| file.name));
                manifest.deltas.push(delta);
                (manifest.applied, manifest.chain) = (memtable.last_commit, memtable.chain);
            },
            |state| {
                if let Some(segment) = &segment {
                    state.segments = Arc::new(state.segments.iter().chain([segment]).cloned().collect());
                }
                if let Some(rows) = &rows {
                    state.row_files = Arc::new(state.row_files.iter().chain([rows]).cloned().collect());
                }
                while state.memtables.len() > KEPT_MEMTABLES {
                    state.evict();
                }
                state.checkpoint.deltas += bytes;
            },
        )
    }

    /// Writes the changes of rows that matter to older files or are rows.
    fn write_rows(&self, layer: &RowLayer) -> io::Result<Option<Arc<RowFile>>> {
        if layer.is_empty() {
            return Ok(None);
        }
        // Merging may replace these meanwhile, by files that have none but their rows.
        let older = self.files.shared.read().row_files.clone();
        self.files.write_rows(layer.len() as u64, &hiding(layer.floors(), &older), |writer| {
            for (key, value) in layer.all() {
                if value.is_some() || is_in(key, &older) {
                    writer.push(key, value.as_deref())?;
                }
            }
            Ok(())
        })
    }

    /// Writes the snapshot that began with a flushed memtable, if one did, as a new base that replaces base
    /// and deltas. On failure the snapshot is abandoned; another begins with the next memtable.
    pub(crate) fn compact(&mut self, memtable: &Memtable) -> io::Result<()> {
        let Some(numbers) = &memtable.snapshot else { return Ok(()) };
        let compacted = self.write_base(numbers);
        if compacted.is_err() {
            self.files.shared.write().end_snapshot();
        }
        compacted
    }

    fn write_base(&mut self, numbers: &Numbers) -> io::Result<()> {
        let CheckpointBytes { base, deltas, .. } = self.files.shared.read().checkpoint;
        self.files.ask_space(base + deltas, Keep::HalfReserve)?;
        let id = self.files.new_file();
        let shared = &self.files.shared;
        let bytes = self.files.write_checkpoint(id, |disk| store_base(disk, id, numbers, &shared.state))?;
        let old = self.files.manifest();
        self.files.replace(
            &[checkpoint::file_name(id)],
            |manifest| {
                manifest.base = Some(id);
                manifest.deltas.clear();
            },
            |state| (state.checkpoint.base, state.checkpoint.deltas) = (bytes, 0),
        )?;
        for id in old.deltas.into_iter().chain(old.base) {
            self.files.disk.remove(&checkpoint::file_name(id))?;
        }
        Ok(())
    }
}

/// Writes a memtable's records; returns those that its references refer to.
fn write_runs<'a>(writer: &mut SegmentWriter, memtable: &'a Memtable) -> io::Result<Shared<'a>> {
    let mut shared = Shared { records: Vec::new(), next: 0 };
    let mut numbers: HashMap<*const Stored, u64, LogHash> = HashMap::default();
    for (log, entries) in &memtable.runs {
        for Entry { position, stored } in entries {
            if stored.origin.is_none() {
                writer.push_own(*log, *position, stored)?;
                continue;
            }
            let number = match Arc::strong_count(stored) {
                // Nobody else has it, so there is no other reference to it.
                1 => shared.add(stored),
                _ => *numbers.entry(Arc::as_ptr(stored)).or_insert_with(|| shared.add(stored)),
            };
            writer.push_reference(*log, *position, number)?;
        }
    }
    Ok(shared)
}

/// Records of a memtable that its references refer to.
struct Shared<'a> {
    records: Vec<&'a Stored>,
    next: usize,
}

impl<'a> Shared<'a> {
    /// Adds a record; returns its number.
    fn add(&mut self, record: &'a Stored) -> u64 {
        self.records.push(record);
        self.records.len() as u64 - 1
    }
}

impl SharedSource for Shared<'_> {
    fn count(&self) -> u64 {
        self.records.len() as u64
    }

    fn next(&mut self) -> io::Result<Vec<SharedRecord>> {
        let rest = &self.records[self.next..];
        let some = &rest[..rest.len().min(SHARED_AT_A_TIME)];
        self.next += some.len();
        Ok(some.iter().map(|record| SharedRecord::not_located(record)).collect())
    }

    fn payload(&self, number: u64, _: &SharedRecord) -> io::Result<Bytes> {
        Ok(self.records[number as usize].payload.clone())
    }
}
