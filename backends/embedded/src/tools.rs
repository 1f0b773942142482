//! What an operator does with a store: look at it, check it, copy it while it runs, and cut off what rot has made
//! unreadable.

use std::collections::HashSet;
use std::sync::Arc;

use tidings_engine::log::{Record, Span, Status};
use tidings_model::{CommitNumber, LogId, Position};

use crate::checkpoint::{self, MANIFEST, Manifest, load_state};
use crate::disk::{Disk, DiskFile};
use crate::error::{InFile, OpenError};
use crate::segment::{self, Segment};
use crate::state::{ReadPlan, State};
use crate::store::replay;
use crate::tables::StoredTables;
use crate::wal::{self, End};

/// A store as its files are, read and not changed.
pub struct Snapshot<T> {
    state: State<T>,
    manifest: Manifest,
}

/// What there is in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The last commit.
    pub last_commit: CommitNumber,
    /// The era.
    pub era: u16,
    /// Logs.
    pub logs: usize,
    /// Segments, and their bytes.
    pub segments: usize,
    /// Bytes of all segments.
    pub segment_bytes: u64,
    /// Runs in all segments.
    pub runs: u64,
    /// Bytes of the write-ahead log's files.
    pub wal_bytes: u64,
    /// Bytes of the checkpoint.
    pub checkpoint_bytes: u64,
}

impl<T: StoredTables> Snapshot<T> {
    /// Reads what a start would read.
    pub fn load(disk: &dyn Disk) -> Result<Self, OpenError> {
        let Some(manifest) = Manifest::load(disk)? else {
            return Err(OpenError::damaged(MANIFEST, "it is missing: this is not a store"));
        };
        let mut state: State<T> = load_state(disk, &manifest)?;
        let segments = manifest.segments.iter().map(|&id| Segment::open(disk, id).map(Arc::new));
        state.segments = Arc::new(segments.collect::<Result<_, _>>()?);
        let applied = End { number: manifest.applied, chain: manifest.chain };
        wal::inspect(disk, applied, |content| replay(&mut state, content))?;
        Ok(Self { state, manifest })
    }

    /// The capability's tables.
    pub fn tables(&self) -> &T {
        &self.state.tables
    }

    /// All logs, by number.
    pub fn logs(&self) -> impl Iterator<Item = (LogId, Status)> {
        self.state.logs.iter().map(|(log, slot)| (log, slot.state.status()))
    }

    /// Records of a log after a position, some at a time.
    pub fn records(&self, log: LogId, after: Position) -> Result<Vec<Record>, OpenError> {
        let unreadable = |error: &dyn std::fmt::Display| OpenError::damaged("the store", error);
        match self.state.read(log, Span::after(after)).map_err(|error| unreadable(&error))? {
            ReadPlan::Done(page) => Ok(page.records),
            ReadPlan::Disk(read) => Ok(read.run()?.records),
        }
    }

    /// Counts what there is.
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
            runs: segments.iter().map(|segment| segment.runs()).sum(),
            wal_bytes: bytes_in(wal::FOLDER)?,
            checkpoint_bytes: bytes_in(checkpoint::FOLDER)?,
        })
    }
}

/// Reads everything, and tells all that is wrong.
pub fn check<T: StoredTables>(disk: &dyn Disk) -> Vec<OpenError> {
    let mut problems = Vec::new();
    let manifest = match Manifest::load(disk) {
        Ok(Some(manifest)) => manifest,
        Ok(None) => return vec![OpenError::damaged(MANIFEST, "it is missing")],
        Err(error) => return vec![error],
    };
    let state: Result<State<T>, _> = load_state(disk, &manifest);
    match state {
        Ok(mut state) => {
            let applied = End { number: manifest.applied, chain: manifest.chain };
            problems.extend(wal::inspect(disk, applied, |content| replay(&mut state, content)).err());
        }
        Err(error) => problems.push(error),
    }
    for &id in &manifest.segments {
        match Segment::open(disk, id) {
            Ok(segment) => check_segment(&segment, &mut problems),
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
    match segment.all_shared() {
        Ok(shared) => problems.extend(shared.iter().filter_map(|shared| segment.resolve(shared).err())),
        Err(error) => problems.push(error),
    }
}

/// Copies a store, which may be in use, to an empty folder. The copy has all that was acknowledged before this began; when it
/// is opened its era is raised.
pub fn backup(from: &dyn Disk, to: &dyn Disk) -> Result<CommitNumber, OpenError> {
    /// The store changes while it is copied; each time less is left to do.
    const ATTEMPTS: usize = 100;
    for name in to.list("").in_file("the backup's folder")? {
        // Empty folders are left of a backup that could not be made.
        let empty = name.ends_with('/') && to.list(&name).in_file(&name)?.is_empty();
        if !empty {
            return Err(OpenError::NotEmpty(name));
        }
    }
    for folder in [wal::FOLDER, segment::FOLDER, checkpoint::FOLDER] {
        to.create_folder(folder).in_file(folder)?;
    }
    let mut copied = HashSet::new();
    for _ in 0..ATTEMPTS {
        let Some(manifest) = Manifest::load(from)? else {
            return Err(OpenError::damaged(MANIFEST, "it is missing: this is not a store"));
        };
        if copy_all(from, to, &manifest, &mut copied)? && Manifest::load(from)?.as_ref() == Some(&manifest) {
            let applied = End { number: manifest.applied, chain: manifest.chain };
            let end = wal::cut_copy(to, applied)?;
            for folder in [wal::FOLDER, segment::FOLDER, checkpoint::FOLDER] {
                to.sync_folder(folder).in_file(folder)?;
            }
            Manifest { copied: true, ..manifest }.store(to).in_file(MANIFEST)?;
            return Ok(end.number);
        }
    }
    Err(OpenError::damaged(
        MANIFEST,
        "the store changes faster than it can be copied; try again when it is less busy",
    ))
}

/// Copies what a manifest names and is not copied yet, then the write-ahead log. `false` when a file was let go meanwhile.
fn copy_all(
    from: &dyn Disk,
    to: &dyn Disk,
    manifest: &Manifest,
    copied: &mut HashSet<String>,
) -> Result<bool, OpenError> {
    let segments = manifest.segments.iter().map(|&id| segment::file_name(id));
    let checkpoints = manifest.deltas.iter().chain(&manifest.base).map(|&id| checkpoint::file_name(id));
    let wanted: HashSet<String> = segments.chain(checkpoints).collect();
    for name in &wanted {
        if !copied.contains(name) {
            if !copy(from, to, name)? {
                return Ok(false);
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
    for short in from.list(wal::FOLDER).in_file(wal::FOLDER)? {
        if !copy(from, to, &format!("{}/{short}", wal::FOLDER))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Copies one file. `false` when it is gone.
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

/// Gives up everything from the first unreadable commit on, and returns that commit; none when all can be read. The era
/// is raised when the store is opened next.
pub fn truncate(disk: &dyn Disk) -> Result<Option<CommitNumber>, OpenError> {
    let Some(manifest) = Manifest::load(disk)? else {
        return Err(OpenError::damaged(MANIFEST, "it is missing: this is not a store"));
    };
    let applied = End { number: manifest.applied, chain: manifest.chain };
    match wal::inspect(disk, applied, |_| Ok(())) {
        Ok(_) => Ok(None),
        Err(OpenError::Rot { lost, .. }) => {
            // First what raises the era: numbers that were given out must not be given out again, whatever comes between.
            Manifest { copied: true, ..manifest }.store(disk).in_file(MANIFEST)?;
            wal::cut_copy(disk, applied)?;
            Ok(Some(lost))
        }
        Err(error) => Err(error),
    }
}
