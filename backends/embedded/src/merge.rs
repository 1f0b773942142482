//! Merging segments, so that a log lies in few of them, and space of what is gone is given back.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use tidings_engine::log::plan::Stored;
use tidings_model::{LogId, Position};

use crate::files::{Files, Keep};
use crate::segment::{Entry as RunEntry, Kept, Segment, Segments, SharedRecord, broken};
use crate::segment_writer::{SegmentWriter, SharedKey};
use crate::stored_state::StoredState;

/// So many neighbours of about the same size are merged, and a size is so many times the one below.
const WIDTH: u32 = 8;

/// After so many logs a merge looks whether there is still enough space: others take some, too.
const LOGS_PER_LOOK: u32 = 256;

/// What is worth doing to segments.
enum Work {
    /// Nobody can read anything of these any more.
    Drop(Vec<Arc<Segment>>),
    /// Neighbours are written as one, without what is dead. So much space must be left meanwhile.
    Merge(Range<usize>, Keep),
}

/// Does what is most worth it, once, if there is space for it. `false` when there is nothing. `give_way` is called again and
/// again: merging can wait, others cannot. An error of want of space means that it was given up, and nothing is left of it.
pub(crate) fn merge_once<T: StoredState>(files: &Files<T>, give_way: &dyn Fn()) -> io::Result<bool> {
    let segments = files.shared.read().segments.clone();
    match worth_doing(files, &segments)? {
        Some(Work::Drop(dead)) => drop_dead(files, &dead)?,
        Some(Work::Merge(range, keep)) => {
            let turns = Cell::new(0u32);
            let pace = || {
                give_way();
                turns.set(turns.get().wrapping_add(1));
                if turns.get().is_multiple_of(LOGS_PER_LOOK) { files.ask_space(0, keep) } else { Ok(()) }
            };
            merge(files, &segments[range], &pace)?;
        }
        None => return Ok(false),
    }
    Ok(true)
}

/// First what frees space and takes none, then what frees more than it takes, then what makes reading faster. Only that for
/// which there is space: it must not be missing to those who write.
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
        // The payloads of references may all be needed; only runs are known to be dead.
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

/// Stretches of neighbours of about the same size, each of enough of them.
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

/// Lets go of segments of which nobody can read anything any more.
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

/// Bytes of runs that nobody can read any more, and of all runs.
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

/// Writes neighbours as one segment without what is dead, and puts it in their place.
fn merge<T: StoredState>(
    files: &Files<T>,
    sources: &[Arc<Segment>],
    pace: &dyn Fn() -> io::Result<()>,
) -> io::Result<()> {
    let floors = |log: LogId| files.shared.read().logs.get(log).map(|slot| slot.state.status().floor);
    let shared =
        sources.iter().map(|source| source.all_shared()).collect::<Result<Vec<_>, _>>().map_err(broken)?;
    let wanted = references(sources, &shared, &floors)?;
    let merged = files.write_segment(
        files.new_file(),
        |writer| {
            wanted.keys().for_each(|(origin, _)| writer.announce(*origin));
            merge_runs(writer, sources, &shared, &floors, pace)
        },
        |key| {
            let (segment, shared) = wanted[&key];
            Ok(sources[segment].resolve(&shared).map_err(broken)?.payload)
        },
    )?;
    // Others may have come behind them meanwhile, but only this thread takes any away.
    let place = |ids: &[u64]| -> Range<usize> {
        let first = ids.iter().position(|&id| id == sources[0].id);
        let first = first.expect("a source of a merge counts until it is done");
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
    pace: &dyn Fn() -> io::Result<()>,
) -> io::Result<()> {
    let mut cursors: Vec<_> =
        segments.iter().map(|segment| Cursor::new(segment)).collect::<io::Result<_>>()?;
    while let Some(log) = cursors.iter().filter_map(|cursor| cursor.head.map(|entry| entry.log)).min() {
        pace()?;
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
