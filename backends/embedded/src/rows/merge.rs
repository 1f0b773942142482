//! Merges files of rows, so that a read asks few of them, and frees the space of rows that were replaced, deleted or cleared.
//!
//! [`merge_once`] picks the most worthwhile work. Invariant: a merge never takes space that flushing needs.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::file::{RowFile, RowFiles};
use super::filter::KeyHash;
use super::layer::Found;
use super::ranges::{KeyRange, KeyRanges};
use super::read::{Layer, Layers};
use super::writer::RowFileWriter;
use crate::error::OpenError;
use crate::files::{Files, Keep};
use crate::segment::broken;
use crate::stored_state::StoredState;

/// Number of adjacent files of similar size that are merged, and the ratio between size classes.
const WIDTH: usize = 8;
/// Files up to this size in bytes are of one size class.
const SMALL: u64 = 4 << 10;
/// Rows after which a merge lets more urgent work go first, and checks free space again.
const ROWS_PER_LOOK: u64 = 1024;
/// Pages of a file, and rows of each, that are looked at to estimate how many are hidden.
const SAMPLED_PAGES: usize = 16;
const SAMPLED_ROWS: usize = 8;
/// Floors in memory from which all files are merged, which needs none of them afterwards; or one for so many entries, whichever
/// is more.
const FLOORS_MAX: usize = 1 << 16;
const ENTRIES_PER_FLOOR: u64 = 256;

/// Work on files of rows that is worthwhile.
#[derive(Debug, PartialEq, Eq)]
enum Work {
    /// Remove the file: all of it is hidden, and it hides nothing.
    Drop(usize),
    /// Rewrite the file without what newer files hide.
    Rewrite(usize),
    /// Rewrite adjacent files as one, keeping the given free space.
    Merge(Range<usize>, Keep),
}

/// Does the most worthwhile work once, if there is space for it; returns `false` if there is none. Calls `give_way` repeatedly,
/// which blocks while more urgent work runs. On a transient error the work is abandoned without a trace.
pub(crate) fn merge_once<T: StoredState>(files: &Files<T>, give_way: &dyn Fn()) -> io::Result<bool> {
    let list = files.shared.read().row_files.clone();
    match worth_doing(&list, &|bytes, keep| files.ask_space(bytes, keep).is_ok()).map_err(broken)? {
        Some(Work::Drop(n)) => replace(files, &list[n..=n], None)?,
        Some(Work::Rewrite(n)) => {
            let merged =
                write(files, &list, n..n + 1, list.len(), &paced(files, give_way, Keep::HalfReserve))?;
            replace(files, &list[n..=n], merged)?;
        }
        Some(Work::Merge(range, keep)) => {
            let merged = write(files, &list, range.clone(), range.end, &paced(files, give_way, keep))?;
            replace(files, &list[range], merged)?;
        }
        None => return Ok(false),
    }
    Ok(true)
}

fn paced<T: StoredState>(files: &Files<T>, give_way: &dyn Fn(), keep: Keep) -> impl Fn() -> io::Result<()> {
    let rows = Cell::new(0u64);
    move || {
        rows.set(rows.get() + 1);
        if !rows.get().is_multiple_of(ROWS_PER_LOOK) {
            return Ok(());
        }
        give_way();
        files.ask_space(0, keep)
    }
}

/// Chooses work: first what frees space and takes none, then what frees more than it takes, then what frees memory or makes
/// reads faster. Skips work for which free space is too low, because flushing must not run out of it.
fn worth_doing(files: &RowFiles, space: &dyn Fn(u64, Keep) -> bool) -> Result<Option<Work>, OpenError> {
    let mut mostly_dead = Vec::new();
    let mut cleared = KeyRanges::default();
    for (n, file) in files.iter().enumerate().rev() {
        let Hidden { all_pages, dead, all } = Hidden::estimate(file, &files[n + 1..], &cleared)?;
        cleared.add_all(file.floors());
        if all_pages && hiding(file.floors(), &files[..n]).is_empty() {
            return Ok(Some(Work::Drop(n)));
        }
        if dead * 2 > all {
            mostly_dead.push((dead, n));
        }
    }
    mostly_dead.sort_unstable_by(|one, other| other.cmp(one));
    for (dead, n) in mostly_dead {
        if space(files[n].bytes().saturating_sub(dead), Keep::HalfReserve) {
            return Ok(Some(Work::Rewrite(n)));
        }
    }
    let bytes = |range: Range<usize>| files[range].iter().map(|file| file.bytes()).sum();
    let floors: usize = files.iter().map(|file| file.floors().len()).sum();
    let entries: u64 = files.iter().map(|file| file.entries()).sum();
    if floors > FLOORS_MAX.max((entries / ENTRIES_PER_FLOOR) as usize)
        && space(bytes(0..files.len()), Keep::HalfReserve)
    {
        return Ok(Some(Work::Merge(0..files.len(), Keep::HalfReserve)));
    }
    let sizes: Vec<u64> = files.iter().map(|file| file.bytes()).collect();
    let range = neighbours(&sizes).into_iter().find(|range| space(bytes(range.clone()), Keep::Reserve));
    Ok(range.map(|range| Work::Merge(range, Keep::Reserve)))
}

/// Ranges of adjacent files that are long enough to merge: eight of about the same size, and whatever smaller ones lie
/// beside them. The smallest come first.
fn neighbours(sizes: &[u64]) -> Vec<Range<usize>> {
    let class = |bytes: &u64| (*bytes).max(SMALL).ilog(WIDTH as u64);
    let mut classes: Vec<u32> = sizes.iter().map(class).collect();
    classes.sort_unstable();
    classes.dedup();
    let mut found = Vec::new();
    for most in classes {
        let mut start = 0;
        for run in sizes.split(|bytes| class(bytes) > most) {
            if run.iter().filter(|&bytes| class(bytes) == most).count() >= WIDTH {
                found.push(start..start + run.len());
            }
            start += run.len() + 1;
        }
    }
    found
}

/// Which part of a file newer files hide.
struct Hidden {
    /// Whether floors of newer files hide every page as a whole.
    all_pages: bool,
    /// Estimated bytes of pages whose rows newer files replace, delete or clear.
    dead: u64,
    /// Bytes of all pages.
    all: u64,
}

impl Hidden {
    /// Counts pages that floors of newer files hide as a whole without reading them, and looks up a few rows of the others. If
    /// nothing is hidden, the estimate is exact; so a file that was just rewritten is not rewritten again. `cleared` are all
    /// floors of newer files.
    fn estimate(file: &RowFile, newer: &[Arc<RowFile>], cleared: &KeyRanges) -> Result<Self, OpenError> {
        let all = (0..file.pages()).map(|page| file.page_bytes(page)).sum();
        if newer.is_empty() {
            return Ok(Self { all_pages: file.pages() == 0, dead: 0, all });
        }
        let is_cleared = |page: &usize| {
            let (first, end) = file.page_range(*page);
            cleared.has_all(first, end)
        };
        let left: Vec<usize> = (0..file.pages()).filter(|page| !is_cleared(page)).collect();
        let left_bytes: u64 = left.iter().map(|&page| file.page_bytes(page)).sum();
        let (mut hidden, mut seen) = (0, 0);
        for &page in left.iter().step_by(left.len().div_ceil(SAMPLED_PAGES).max(1)) {
            let entries = file.page(page)?;
            for entry in entries.iter().step_by(entries.len().div_ceil(SAMPLED_ROWS).max(1)) {
                let bytes = (entry.key.len() + entry.value.as_ref().map_or(0, |value| value.len())) as u128;
                seen += bytes;
                if is_hidden(&entry.key, newer)? {
                    hidden += bytes;
                }
            }
        }
        let dead = (u128::from(left_bytes) * hidden).checked_div(seen).unwrap_or(0) as u64;
        Ok(Self { all_pages: left.is_empty(), dead: all - left_bytes + dead, all })
    }
}

fn is_hidden(key: &[u8], newer: &[Arc<RowFile>]) -> Result<bool, OpenError> {
    let hash = KeyHash::of(key);
    for file in newer {
        if file.find(key, hash)? != Found::Unknown {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Of some floors, those that may hide something of older files.
pub(crate) fn hiding(floors: &KeyRanges, older: &[Arc<RowFile>]) -> KeyRanges {
    let mut kept = KeyRanges::default();
    for range in floors.iter().filter(|range| older.iter().any(|file| file.overlaps(range))) {
        kept.add(range);
    }
    kept
}

/// Whether older files may have a row that an entry hides: only then it matters that it was deleted.
pub(crate) fn is_in(key: &[u8], older: &[Arc<RowFile>]) -> bool {
    !older.is_empty() && {
        let hash = KeyHash::of(key);
        older.iter().any(|file| file.may_have(hash))
    }
}

/// Writes adjacent files of a list as one, without what they and newer files up to `hiders` hide. The floors of still newer
/// ones count as well. Returns `None` if nothing is left.
fn write<T: StoredState>(
    files: &Files<T>,
    list: &RowFiles,
    range: Range<usize>,
    hiders: usize,
    pace: &dyn Fn() -> io::Result<()>,
) -> io::Result<Option<Arc<RowFile>>> {
    let (sources, older) = (&list[range.clone()], &list[..range.start]);
    let mut floors = KeyRanges::default();
    sources.iter().for_each(|source| floors.add_all(source.floors()));
    let floors = hiding(&floors, older);
    let whole = KeyRange {
        from: bytes::Bytes::new(),
        to: vec![u8::MAX; 2 * tidings_model::limits::ROW_KEY_BYTES].into(),
    };
    let mut layers: Vec<_> =
        list[hiders..].iter().rev().map(|file| Layer::of_floors(file.floors())).collect();
    layers.extend(list[range.start..hiders].iter().rev().map(|file| Layer::of_file(file, &whole)));
    // The sources are the oldest of these layers.
    let first_source = list.len() - range.end;
    let entries_max = sources.iter().map(|source| source.entries()).sum();
    files.write_rows(entries_max, &floors, |writer: &mut RowFileWriter| {
        let mut layers = Layers::new(layers).map_err(broken)?;
        while let Some((layer, entry)) = layers.next().map_err(broken)? {
            pace()?;
            if layer >= first_source && (entry.value.is_some() || is_in(&entry.key, older)) {
                writer.push(&entry.key, entry.value.as_deref())?;
            }
        }
        Ok(())
    })
}

/// Replaces adjacent files by one, or by none, in the manifest and for readers, and removes them.
fn replace<T: StoredState>(
    files: &Files<T>,
    sources: &[Arc<RowFile>],
    merged: Option<Arc<RowFile>>,
) -> io::Result<()> {
    // Files may have been added after them meanwhile, but only this thread removes any.
    let place = |numbers: &[u64]| -> Range<usize> {
        let first = numbers.iter().position(|&number| number == sources[0].name.number);
        let first = first.expect("the manifest names the sources of a merge until it is done");
        first..first + sources.len()
    };
    let new: Vec<String> = merged.iter().map(|file| file.path().to_owned()).collect();
    files.replace(
        &new,
        |manifest| {
            let range = place(&manifest.rows.iter().map(|name| name.number).collect::<Vec<_>>());
            manifest.rows.splice(range, merged.iter().map(|file| file.name));
        },
        |state| {
            let mut list = state.row_files.to_vec();
            let range = place(&list.iter().map(|file| file.name.number).collect::<Vec<_>>());
            list.splice(range, merged.clone());
            state.row_files = Arc::new(list);
        },
    )?;
    for source in sources {
        files.disk.remove(source.path())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_of_a_size_are_merged_with_smaller_ones_beside_them() {
        const K: u64 = 1024;
        let neighbours = |sizes: &[u64]| {
            neighbours(sizes).into_iter().map(|range| (range.start, range.end)).collect::<Vec<_>>()
        };
        assert!(neighbours(&[]).is_empty());
        assert!(neighbours(&[K; 7]).is_empty());
        assert_eq!(neighbours(&[K; 8]), [(0, 8)]);
        assert_eq!(neighbours(&[1 << 30, K, K, K, K, 1, K, K, K, 1 << 30]), [(1, 9)]);
        let uneven =
            [1 << 30, K << 12, K, K << 12, K, K << 12, K << 12, K, K << 12, K, K << 12, K << 12, K << 12, K];
        assert_eq!(neighbours(&uneven), [(1, 14)]);
        let two = [[K << 12; 8], [K; 8]].concat();
        assert_eq!(neighbours(&two), [(8, 16), (0, 16)], "the small ones first");
    }
}
