//! The records that references of a new segment refer to: finds their payloads in its runs, or adds them.
//!
//! There may be millions, so they come in parts of [`SHARED_AT_A_TIME`] and none is kept. A part is handled in the order of
//! the runs, so that each run is read back once for a part.

use std::collections::HashMap;
use std::io;

use bytes::Bytes;
use tidings_engine::log::Origin;
use tidings_engine::log::plan::LogHash;
use tidings_model::Position;

use crate::codec::checksum;
use crate::disk::DiskFile;
use crate::segment::{Entry, Kept, SharedRecord, broken, read_run};

/// Shared records that are in memory at a time while a segment is written, about 10 MiB of them.
pub(crate) const SHARED_AT_A_TIME: usize = 1 << 16;
/// Payloads outside of runs whose place is remembered, about 13 MiB. A record that is referred to again after more others is
/// stored once more.
const REMEMBERED: usize = 2 * SHARED_AT_A_TIME;

/// The records that references of a segment under construction refer to, in the order of their numbers.
pub(crate) trait SharedSource {
    /// How many there are.
    fn count(&self) -> u64;

    /// The next ones, at most [`SHARED_AT_A_TIME`]; none at the end. Their payloads need not be located.
    fn next(&mut self) -> io::Result<Vec<SharedRecord>>;

    /// The payload of one of those that [`SharedSource::next`] returned last.
    fn payload(&self, number: u64, record: &SharedRecord) -> io::Result<Bytes>;
}

/// Where a payload lies in the segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PayloadSpan {
    pub at: u64,
    pub bytes: u32,
    pub sum: u32,
}

/// Locates payloads in a segment whose runs are written.
#[derive(Default)]
pub(crate) struct Payloads {
    /// Index of the run that was read last, and its records that are not references.
    run: Option<(usize, Vec<(Origin, PayloadSpan)>)>,
    /// Payloads that were written outside of runs.
    outside: HashMap<Origin, PayloadSpan, LogHash>,
}

impl Payloads {
    /// Finds the payload of a record, if it is in the segment.
    pub(crate) fn find(
        &mut self,
        origin: Origin,
        entries: &[Entry],
        file: &dyn DiskFile,
        name: &str,
    ) -> io::Result<Option<PayloadSpan>> {
        if let Some(span) = self.outside.get(&origin) {
            return Ok(Some(*span));
        }
        let before = entries.partition_point(|run| (run.log, run.first) <= (origin.log, origin.position));
        let Some(number) = before.checked_sub(1) else { return Ok(None) };
        let entry = entries[number];
        if entry.log != origin.log || entry.last < origin.position {
            return Ok(None);
        }
        if self.run.as_ref().is_none_or(|(known, _)| *known != number) {
            self.run = Some((number, own_records(entry, file, name)?));
        }
        let Some((_, own)) = &self.run else { return Ok(None) };
        let place = own.binary_search_by_key(&origin.position, |(own, _)| own.position);
        Ok(place.ok().map(|place| own[place]).filter(|(own, _)| *own == origin).map(|(_, span)| span))
    }

    /// Remembers the place of a payload outside of runs.
    pub(crate) fn remember(&mut self, origin: Origin, span: PayloadSpan) {
        if self.outside.len() >= REMEMBERED {
            self.outside.clear();
        }
        self.outside.insert(origin, span);
    }
}

/// The records of a run that are not references, and where their payloads lie.
fn own_records(entry: Entry, file: &dyn DiskFile, name: &str) -> io::Result<Vec<(Origin, PayloadSpan)>> {
    let records = read_run(file, name, entry).map_err(broken)?;
    let own = records.into_iter().filter_map(|(position, kept)| match kept {
        Kept::Own(stored) => Some((position, stored)),
        Kept::Reference(_) => None,
    });
    let own: Vec<(Position, _)> = own.collect();
    // The payloads are the end of the run.
    let payloads: u64 = own.iter().map(|(_, stored)| stored.payload.len() as u64).sum();
    let mut at = entry.at + u64::from(entry.bytes) - payloads;
    let locate = |(position, stored): (Position, tidings_engine::log::plan::Stored)| {
        let bytes = stored.payload.len() as u32;
        let span = PayloadSpan { at, bytes, sum: checksum(0, &[&stored.payload]) };
        at += u64::from(bytes);
        (Origin { log: entry.log, position, at: stored.at }, span)
    };
    Ok(own.into_iter().map(locate).collect())
}
