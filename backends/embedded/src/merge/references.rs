//! The references of segments that are merged: which of the records that they refer to are still needed, and what numbers
//! these have in the merged segment.
//!
//! There may be millions, of which only two bits each are in memory.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tidings_model::{LogId, Position};

use crate::segment::{Kept, Segment, SharedRecord, broken};
use crate::segment_shared::{SHARED_AT_A_TIME, SharedSource};

/// Shared records of segments that are still needed. In the merged segment they are numbered one segment after the other.
pub(super) struct Live(Vec<Numbers>);

/// A set of numbers.
#[derive(Debug)]
struct Numbers {
    words: Vec<Word>,
    len: u64,
    /// Numbers in the sets before this one.
    before: u64,
}

/// Sixty-four numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    bits: u64,
    /// Numbers in the words before this one.
    before: u64,
}

/// Finds what the live references of segments refer to.
pub(super) fn find(
    segments: &[Arc<Segment>],
    floor: &impl Fn(LogId) -> Option<Position>,
    pace: &dyn Fn() -> io::Result<()>,
) -> io::Result<Live> {
    let mut live = Vec::new();
    for segment in segments {
        let mut numbers = Numbers::none_of(segment.shared_count());
        for entries in segment.entries().take_while(|_| segment.shared_count() > 0) {
            for entry in entries.map_err(broken)? {
                pace()?;
                let Some(floor) = floor(entry.log).filter(|floor| entry.last > *floor) else { continue };
                for (position, kept) in segment.run(entry).map_err(broken)? {
                    if let Kept::Reference(number) = kept
                        && position > floor
                    {
                        numbers.insert(number).ok_or_else(dangling)?;
                    }
                }
            }
        }
        live.push(numbers);
    }
    let mut before = 0;
    for numbers in &mut live {
        before = numbers.count_from(before);
    }
    Ok(Live(live))
}

impl Live {
    /// Number in the merged segment of a shared record of a source.
    pub(super) fn number(&self, source: usize, number: u64) -> io::Result<u64> {
        self.0[source].rank(number).ok_or_else(dangling)
    }
}

impl Numbers {
    fn none_of(len: u64) -> Self {
        Self { words: vec![Word::default(); len.div_ceil(64) as usize], len, before: 0 }
    }

    /// Adds a number; `None` if it is too large.
    fn insert(&mut self, number: u64) -> Option<()> {
        let bit = 1 << (number % 64);
        self.words.get_mut((number / 64) as usize).filter(|_| number < self.len)?.bits |= bit;
        Some(())
    }

    /// Completes the set. `before` is how many numbers there are in sets before it; returns how many with it.
    fn count_from(&mut self, before: u64) -> u64 {
        self.before = before;
        let mut count = before;
        for word in &mut self.words {
            word.before = count;
            count += u64::from(word.bits.count_ones());
        }
        count
    }

    /// How many numbers are below this one, in the sets before as well; `None` if it is not in the set.
    fn rank(&self, number: u64) -> Option<u64> {
        let word = self.words.get((number / 64) as usize)?;
        let bit = 1 << (number % 64);
        (word.bits & bit != 0).then(|| word.before + u64::from((word.bits & (bit - 1)).count_ones()))
    }

    fn end(&self) -> u64 {
        self.words.last().map_or(self.before, |word| word.before + u64::from(word.bits.count_ones()))
    }
}

fn dangling() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a reference of a segment has no record")
}

/// Reads the shared records that are still needed, for the merged segment.
pub(super) struct LiveShared<'a> {
    sources: &'a [Arc<Segment>],
    live: &'a Live,
    pace: &'a dyn Fn() -> io::Result<()>,
    /// Segment of what was read last, and the number of the next record in it.
    source: usize,
    next: u64,
}

impl<'a> LiveShared<'a> {
    pub(super) fn new(
        sources: &'a [Arc<Segment>],
        live: &'a Live,
        pace: &'a dyn Fn() -> io::Result<()>,
    ) -> Self {
        Self { sources, live, pace, source: 0, next: 0 }
    }
}

impl SharedSource for LiveShared<'_> {
    fn count(&self) -> u64 {
        self.live.0.last().map_or(0, Numbers::end)
    }

    fn next(&mut self) -> io::Result<Vec<SharedRecord>> {
        while self.source < self.sources.len() {
            let (segment, numbers) = (&self.sources[self.source], &self.live.0[self.source]);
            if self.next >= segment.shared_count() {
                (self.source, self.next) = (self.source + 1, 0);
                continue;
            }
            (self.pace)()?;
            let records = segment.shared_from(self.next, SHARED_AT_A_TIME).map_err(broken)?;
            let numbered = (self.next..).zip(records);
            self.next += SHARED_AT_A_TIME as u64;
            let needed: Vec<_> =
                numbered.filter(|(number, _)| numbers.rank(*number).is_some()).map(|(_, one)| one).collect();
            if !needed.is_empty() {
                return Ok(needed);
            }
        }
        Ok(Vec::new())
    }

    fn payload(&self, _: u64, record: &SharedRecord) -> io::Result<Bytes> {
        Ok(self.sources[self.source].resolve(record).map_err(broken)?.payload)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn needed_records_are_numbered_in_their_order_without_gaps(
            sets in prop::collection::vec((1u64..300, prop::collection::btree_set(0u64..300, 0..60)), 1..5),
        ) {
            let (mut before, mut expected) = (0, 0);
            for (len, wanted) in sets {
                let mut numbers = Numbers::none_of(len);
                for &number in &wanted {
                    prop_assert_eq!(numbers.insert(number).is_some(), number < len);
                }
                before = numbers.count_from(before);
                let wanted: BTreeSet<u64> = wanted.into_iter().filter(|number| *number < len).collect();
                for number in 0..400 {
                    let rank = wanted.contains(&number).then_some(expected);
                    prop_assert_eq!(numbers.rank(number), rank);
                    expected += u64::from(rank.is_some());
                }
                prop_assert_eq!((before, numbers.end()), (expected, expected));
            }
        }
    }
}
