//! Operator tools for a store: inspect, check, back up while it is in use, and truncate after damage.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use tidings_engine::log::{Record, Row, RowSpan, RowTable, Span, Status};
use tidings_model::{CommitNumber, LogId, Position};

use crate::checkpoint::{self, MANIFEST, Manifest, load_state};
use crate::disk::{Disk, DiskFile};
use crate::error::{InFile, OpenError};
use crate::folder::{FOLDERS, open_row_files};
use crate::rows::{RowFile, RowFileName};
use crate::segment::{self, Segment};
use crate::segment_shared::SHARED_AT_A_TIME;
use crate::state::{ReadPlan, StoreState};
use crate::store::replay;
use crate::stored_state::StoredState;
use crate::wal::{self, Cut};

/// Rows of a page, and bytes of their keys and values.
const PAGE_ROWS: usize = 1024;
const PAGE_BYTES: usize = 1 << 20;

/// A store as its files are, read and not changed.
pub struct Snapshot<T: StoredState> {
    state: StoreState<T>,
    manifest: Manifest,
}

/// Statistics of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Last commit.
    pub last_commit: CommitNumber,
    /// Era of the store.
    pub era: u16,
    /// Number of logs.
    pub logs: usize,
    /// Number of segments.
    pub segments: usize,
    /// Total size of segments in bytes.
    pub segment_bytes: u64,
    /// Number of files of cold rows.
    pub row_files: usize,
    /// Total size of the files of cold rows in bytes.
    pub row_bytes: u64,
    /// Number of runs in all segments.
    pub runs: u64,
    /// Total size of the write-ahead log's files in bytes.
    pub wal_bytes: u64,
    /// Total size of the checkpoint's files in bytes.
    pub checkpoint_bytes: u64,
}

impl<T: StoredState> Snapshot<T> {
    /// Reads everything that opening the store would read.
    pub fn load(disk: &dyn Disk) -> Result<Self, OpenError> {
        let Some(manifest) = Manifest::load(disk)? else {
            return Err(OpenError::damaged(MANIFEST, "it is missing: this is not a store"));
        };
        let mut state: StoreState<T> = load_state(disk, &manifest)?;
        let segments = manifest.segments.iter().map(|&id| Segment::open(disk, id).map(Arc::new));
        state.segments = Arc::new(segments.collect::<Result<_, _>>()?);
        state.row_files = open_row_files(disk, &manifest)?;
        wal::inspect(disk, &manifest.known_log(), |content| replay(&mut state, content))?;
        Ok(Self { state, manifest })
    }

    /// The capabilities' tables.
    pub fn tables(&self) -> &T {
        &self.state.tables
    }

    /// All logs, by number.
    pub fn logs(&self) -> impl Iterator<Item = (LogId, Status)> {
        self.state.logs.iter().map(|(log, slot)| (log, slot.state.status()))
    }

    /// Records of a log after a position, one page.
    pub fn records(&self, log: LogId, after: Position) -> Result<Vec<Record>, OpenError> {
        let unreadable = |error: &dyn std::fmt::Display| OpenError::damaged("the store", error);
        match self.state.read(log, Span::after(after)).map_err(|error| unreadable(&error))? {
            ReadPlan::Done(page) => Ok(page.records),
            ReadPlan::Disk(read) => Ok(read.run()?.records),
        }
    }

    /// Rows of a table from a key on, one page.
    pub fn rows(&self, table: RowTable, from: Bytes) -> Result<Vec<Row>, OpenError> {
        let span = RowSpan { from, rows: PAGE_ROWS, bytes: PAGE_BYTES, ..RowSpan::of_prefix(Bytes::new()) };
        self.state.rows(table, span).run()
    }

    /// Computes the statistics.
    pub fn stats(&self, disk: &dyn Disk) -> Result<Stats, OpenError> {
        let bytes_in = |folder: &str| -> Result<u64, OpenError> {
            let names = disk.list(folder).in_file(folder)?;
            names
                .iter()
                .map(|name| disk.open(&format!("{folder}/{name}")).and_then(|file| file.len()).in_file(name))
                .sum()
        };
        let segments = &self.state.segments;
        Ok(Stats {
            last_commit: self.state.last_commit,
            era: self.manifest.era,
            logs: self.state.logs.len(),
            segments: segments.len(),
            segment_bytes: segments.iter().map(|segment| segment.bytes()).sum(),
            row_files: self.state.row_files.len(),
            row_bytes: self.state.row_files.iter().map(|file| file.bytes()).sum(),
            runs: segments.iter().map(|segment| segment.runs()).sum(),
            wal_bytes: bytes_in(wal::FOLDER)?,
            checkpoint_bytes: bytes_in(checkpoint::FOLDER)?,
        })
    }
}

/// Reads every file in full, and returns everything that is wrong.
pub fn check<T: StoredState>(disk: &dyn Disk) -> Vec<OpenError> {
    let mut problems = Vec::new();
    let manifest = match Manifest::load(disk) {
        Ok(Some(manifest)) => manifest,
        Ok(None) => return vec![OpenError::damaged(MANIFEST, "it is missing")],
        Err(error) => return vec![error],
    };
    let state: Result<StoreState<T>, _> = load_state(disk, &manifest);
    match state {
        Ok(mut state) => {
            let known = manifest.known_log();
            problems.extend(wal::check(disk, &known, |content| replay(&mut state, content)));
        }
        Err(error) => {
            problems.push(error);
            problems.extend(wal::check(disk, &manifest.known_log(), |_| Ok(())));
        }
    }
    for &id in &manifest.segments {
        match Segment::open(disk, id) {
            Ok(segment) => check_segment(&segment, &mut problems),
            Err(error) => problems.push(error),
        }
    }
    for &name in &manifest.rows {
        match RowFile::open(disk, name) {
            Ok(file) => problems.extend(file.check()),
            Err(error) => problems.push(error),
        }
    }
    problems
}

fn check_segment(segment: &Segment, problems: &mut Vec<OpenError>) {
    for entries in segment.entries() {
        match entries {
            Ok(entries) => {
                problems.extend(entries.into_iter().filter_map(|entry| segment.run(entry).err()));
            }
            Err(error) => problems.push(error),
        }
    }
    for number in (0..segment.shared_count()).step_by(SHARED_AT_A_TIME) {
        match segment.shared_from(number, SHARED_AT_A_TIME) {
            Ok(shared) => problems.extend(shared.iter().filter_map(|shared| segment.resolve(shared).err())),
            Err(error) => problems.push(error),
        }
    }
}

/// Copies a store, which may be in use, to an empty folder. The copy has everything that was acknowledged
/// before this began; its era is raised when it is opened.
pub fn backup(from: &dyn Disk, to: &dyn Disk) -> Result<CommitNumber, OpenError> {
    /// The store changes while it is copied; each attempt has less left to copy.
    const ATTEMPTS: usize = 100;
    for name in to.list("").in_file("the backup's folder")? {
        // A failed backup leaves empty folders behind.
        let empty = name.ends_with('/') && to.list(&name).in_file(&name)?.is_empty();
        if !empty {
            return Err(OpenError::NotEmpty(name));
        }
    }
    for folder in FOLDERS {
        to.create_folder(folder).in_file(folder)?;
    }
    let mut copied = HashSet::new();
    for _ in 0..ATTEMPTS {
        let Some(manifest) = Manifest::load(from)? else {
            return Err(OpenError::damaged(MANIFEST, "it is missing: this is not a store"));
        };
        let missing = copy_all(from, to, &manifest, &mut copied)?;
        let unchanged = Manifest::load(from)?.is_some_and(|later| later.has_files_of(&manifest));
        if let Some(name) = missing.as_ref().filter(|_| unchanged) {
            return Err(OpenError::damaged(name, "it is missing"));
        }
        if missing.is_none() && unchanged {
            let cut = Cut::plan_copy(to, &manifest.known_log())?;
            let (log, reached) = (cut.kept(), cut.end);
            cut.make(to)?;
            for folder in FOLDERS {
                to.sync_folder(folder).in_file(folder)?;
            }
            Manifest { copied: true, log, reached, ..manifest }.store(to).in_file(MANIFEST)?;
            return Ok(reached.number);
        }
    }
    Err(OpenError::damaged(
        MANIFEST,
        "the store changes faster than it can be copied; try again when it is less busy",
    ))
}

/// Copies the files that a manifest names and that are not copied yet, then the write-ahead log. Returns the
/// name of a missing file, if any: it was removed meanwhile, or is lost.
fn copy_all(
    from: &dyn Disk,
    to: &dyn Disk,
    manifest: &Manifest,
    copied: &mut HashSet<String>,
) -> Result<Option<String>, OpenError> {
    let segments = manifest.segments.iter().map(|&id| segment::file_name(id));
    let checkpoints = manifest.deltas.iter().chain(&manifest.base).map(|&id| checkpoint::file_name(id));
    let rows = manifest.rows.iter().map(RowFileName::path);
    let wanted: HashSet<String> = segments.chain(checkpoints).chain(rows).collect();
    for name in &wanted {
        if !copied.contains(name) {
            if !copy(from, to, name)? {
                return Ok(Some(name.clone()));
            }
            copied.insert(name.clone());
        }
    }
    for name in copied.extract_if(|name| !wanted.contains(name)) {
        to.remove(&name).in_file(&name)?;
    }
    for short in to.list(wal::FOLDER).in_file(wal::FOLDER)? {
        let name = format!("{}/{short}", wal::FOLDER);
        to.remove(&name).in_file(&name)?;
    }
    for file in &manifest.log {
        if !copy(from, to, &file.name())? {
            return Ok(Some(file.name()));
        }
    }
    Ok(None)
}

/// Copies one file. Returns `false` if it does not exist.
fn copy(from: &dyn Disk, to: &dyn Disk, name: &str) -> Result<bool, OpenError> {
    let source = match from.open(name) {
        Ok(source) => source,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(OpenError::io(name, error)),
    };
    let target = to.create(name).in_file(name)?;
    copy_bytes(&*source, &*target).in_file(name)?;
    Ok(true)
}

fn copy_bytes(source: &dyn DiskFile, target: &dyn DiskFile) -> std::io::Result<()> {
    let length = source.len()?;
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < length {
        let part = ((length - offset) as usize).min(buffer.len());
        source.read_at(offset, &mut buffer[..part])?;
        target.write_at(offset, &buffer[..part])?;
        offset += part as u64;
    }
    target.sync()
}

/// Gives up everything from the first unreadable commit on, and returns that commit; `None` if nothing is
/// missing. The era is raised when the store is opened next.
pub fn truncate(disk: &dyn Disk) -> Result<Option<CommitNumber>, OpenError> {
    let Some(manifest) = Manifest::load(disk)? else {
        return Err(OpenError::damaged(MANIFEST, "it is missing: this is not a store"));
    };
    let known = manifest.known_log();
    match wal::inspect(disk, &known, |_| Ok(())) {
        Ok(_) => Ok(None),
        Err(error) if error.is_loss() => {
            let cut = Cut::plan(disk, &known)?;
            let (log, reached) = (cut.kept(), cut.end);
            // The manifest that raises the era comes first: whatever fails later, assigned numbers are not
            // assigned again.
            Manifest { copied: true, log, reached, ..manifest }.store(disk).in_file(MANIFEST)?;
            cut.make(disk)?;
            Ok(Some(reached.number.next()))
        }
        Err(error) => Err(error),
    }
}
