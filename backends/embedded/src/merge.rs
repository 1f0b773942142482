//! Merges segments, so that a log is spread over few of them, and frees the space of deleted and trimmed
//! records.
//!
//! [`merge_once`] picks the most worthwhile work. Invariant: a merge never takes space that flushing needs.

mod references;

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use tidings_model::{LogId, Position};

use crate::files::{Files, Keep};
use crate::segment::{Entry as RunEntry, Kept, Segment, Segments, broken};
use crate::segment_writer::SegmentWriter;
use crate::stored_state::StoredState;
use references::{Live, LiveShared};

/// Number of adjacent segments of similar size that are merged, and the ratio between size classes.
const WIDTH: u32 = 8;

/// Runs after which a merge checks free space again, because others use space, too.
const RUNS_PER_LOOK: u32 = 256;

/// Work on segments that is worthwhile.
enum Work {
    /// Remove segments that have no readable records.
    Drop(Vec<Arc<Segment>>),
    /// Rewrite adjacent segments as one, without dead records, keeping the given free space.
    Merge(Range<usize>, Keep),
}

/// Does the most worthwhile work once, if there is space for it; returns `false` if there is none. Calls
/// `give_way` repeatedly, which blocks while more urgent work runs. On a transient error the merge is
/// abandoned without a trace.
pub(crate) fn merge_once<T: StoredState>(files: &Files<T>, give_way: &dyn Fn()) -> io::Result<bool> {
    let segments = files.shared.read().segments.clone();
    match worth_doing(files, &segments)? {
        Some(Work::Drop(dead)) => drop_dead(files, &dead)?,
        Some(Work::Merge(range, keep)) => {
            let turns = Cell::new(0u32);
            let pace = || {
                give_way();
                turns.set(turns.get().wrapping_add(1));
                if turns.get().is_multiple_of(RUNS_PER_LOOK) { files.ask_space(0, keep) } else { Ok(()) }
            };
            merge(files, &segments[range], &pace)?;
        }
        None => return Ok(false),
    }
    Ok(true)
}

/// Chooses work: first what frees space and takes none, then what frees more than it takes, then what makes
/// reads faster. Skips work for which free space is too low, because flushing must not run out of it.
fn worth_doing<T: StoredState>(files: &Files<T>, segments: &Segments) -> io::Result<Option<Work>> {
    let (mut dropped, mut mostly_dead) = (Vec::new(), Vec::new());
    for (n, segment) in segments.iter().enumerate() {
        let (dead, all) = dead_bytes(files, segment)?;
        if dead == all {
            dropped.push(segment.clone());
        } else if dead * 2 > all {
            mostly_dead.push((dead, n));
        }
    }
    if !dropped.is_empty() {
        return Ok(Some(Work::Drop(dropped)));
    }
    mostly_dead.sort_unstable_by(|one, other| other.cmp(one));
    for (dead, n) in mostly_dead {
        // All payloads of references may still be needed; only whole runs are known to be dead.
        let left = segments[n].bytes().saturating_sub(dead);
        if files.ask_space(left, Keep::HalfReserve).is_ok() {
            return Ok(Some(Work::Merge(n..n + 1, Keep::HalfReserve)));
        }
    }
    for range in neighbours(segments) {
        let all = segments[range.clone()].iter().map(|segment| segment.bytes()).sum();
        if files.ask_space(all, Keep::Reserve).is_ok() {
            return Ok(Some(Work::Merge(range, Keep::Reserve)));
        }
    }
    Ok(None)
}

/// Ranges of adjacent segments of similar size that are long enough to merge.
fn neighbours(segments: &Segments) -> Vec<Range<usize>> {
    let size = |segment: &Arc<Segment>| segment.bytes().max(1).ilog(u64::from(WIDTH));
    let (mut found, mut start) = (Vec::new(), 0);
    for end in 1..=segments.len() {
        if end == segments.len() || size(&segments[end]) != size(&segments[start]) {
            if end - start >= WIDTH as usize {
                found.push(start..end);
            }
            start = end;
        }
    }
    found
}

/// Removes segments that have no readable records.
fn drop_dead<T: StoredState>(files: &Files<T>, dead: &[Arc<Segment>]) -> io::Result<()> {
    let is_dead = |id: u64| dead.iter().any(|segment| segment.id == id);
    files.replace(
        &[],
        |manifest| manifest.segments.retain(|&id| !is_dead(id)),
        |state| {
            let left = state.segments.iter().filter(|segment| !is_dead(segment.id));
            state.segments = Arc::new(left.cloned().collect());
        },
    )?;
    for segment in dead {
        files.disk.remove(segment.name())?;
    }
    Ok(())
}

/// Bytes of runs that nobody can read any more, and bytes of all runs.
fn dead_bytes<T: StoredState>(files: &Files<T>, segment: &Segment) -> io::Result<(u64, u64)> {
    let (mut dead, mut all) = (0, 0);
    for entries in segment.entries() {
        let entries = entries.map_err(broken)?;
        let state = files.shared.read();
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

/// Writes adjacent segments as one without dead records, and replaces them by it.
fn merge<T: StoredState>(
    files: &Files<T>,
    sources: &[Arc<Segment>],
    pace: &dyn Fn() -> io::Result<()>,
) -> io::Result<()> {
    let floors = |log: LogId| files.shared.read().logs.get(log).map(|slot| slot.state.status().floor);
    let live = references::find(sources, &floors, pace)?;
    let merged = files.write_segment(files.new_file(), |writer| {
        merge_runs(writer, sources, &live, &floors, pace)?;
        Ok(LiveShared::new(sources, &live, pace))
    })?;
    // Segments may have been added after them meanwhile, but only this thread removes any.
    let place = |ids: &[u64]| -> Range<usize> {
        let first = ids.iter().position(|&id| id == sources[0].id);
        let first = first.expect("the manifest names the sources of a merge until it is done");
        first..first + sources.len()
    };
    let new: Vec<String> = merged.iter().map(|segment| segment.name().to_owned()).collect();
    files.replace(
        &new,
        |manifest| {
            let range = place(&manifest.segments);
            manifest.segments.splice(range, merged.iter().map(|segment| segment.id));
        },
        |state| {
            let mut list = state.segments.to_vec();
            let range = place(&list.iter().map(|segment| segment.id).collect::<Vec<_>>());
            list.splice(range, merged.clone());
            state.segments = Arc::new(list);
        },
    )?;
    for source in sources {
        files.disk.remove(source.name())?;
    }
    Ok(())
}

/// Writes the live records of adjacent segments, log by log, and within a log from the oldest segment to the
/// newest.
fn merge_runs(
    writer: &mut SegmentWriter,
    segments: &[Arc<Segment>],
    live: &Live,
    floor: &impl Fn(LogId) -> Option<Position>,
    pace: &dyn Fn() -> io::Result<()>,
) -> io::Result<()> {
    let mut cursors: Vec<_> =
        segments.iter().map(|segment| Cursor::new(segment)).collect::<io::Result<_>>()?;
    while let Some(log) = cursors.iter().filter_map(|cursor| cursor.head.map(|entry| entry.log)).min() {
        let floor = floor(log);
        for (source, cursor) in cursors.iter_mut().enumerate() {
            while let Some(entry) = cursor.head.filter(|entry| entry.log == log) {
                pace()?;
                if let Some(floor) = floor.filter(|floor| entry.last > *floor) {
                    let number = |number| live.number(source, number);
                    copy_run(writer, cursor.segment, &number, entry, floor)?;
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
    new_number: &dyn Fn(u64) -> io::Result<u64>,
    entry: RunEntry,
    floor: Position,
) -> io::Result<()> {
    for (position, kept) in segment.run(entry).map_err(broken)? {
        if position <= floor {
            continue;
        }
        match kept {
            Kept::Own(stored) => writer.push_own(entry.log, position, &stored)?,
            Kept::Reference(number) => writer.push_reference(entry.log, position, new_number(number)?)?,
        }
    }
    Ok(())
}

/// Iterates over the entries of a segment.
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
