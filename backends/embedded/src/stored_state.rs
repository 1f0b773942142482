//! [`StoredState`]: what tables must provide so that this store can persist them.

use std::collections::BTreeMap;

use tidings_engine::log::{Snapshots, StandsOn, StateMachine};

use crate::field::Field;

/// Tables that can be encoded. They are entirely in memory; their changes are in the write-ahead log, and a
/// copy is in the checkpoint.
///
/// The copy is written while the tables go on changing, as a snapshot: it begins at one moment and is read in steps, each
/// under the store's lock, so a step only gathers rows, which are cheap to clone, and they are written afterwards.
pub trait StoredState: Snapshots<Change: Field> {
    /// Whether a change is validated and changes nothing: then it need not be written.
    fn is_precondition(_: &Self::Change) -> bool {
        false
    }

    /// Whether a change makes the tables grow. Such changes are refused when disk space is low, as appends
    /// are. Changes that free space, and those that a server needs to start, must return `false`.
    fn takes_space(&self, change: &Self::Change) -> bool;

    /// What a change reads or writes, as hashes. Two commits that share one are not validated in one go, unless both only
    /// read it.
    fn conflict_keys(&self, change: &Self::Change, touch: &mut dyn FnMut(Access, u64));
}

/// A stored table that stands on another, its base.
pub trait StoredBase<B: StateMachine>: StandsOn<B> {
    /// Rows of this table that a change of the base reads or writes, as hashes; see [`StoredState::conflict_keys`].
    fn base_conflict_keys(change: &B::Change, touch: &mut dyn FnMut(Access, u64));
}

/// What a change does to something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Validation depends on it; the change does not alter it.
    Reads,
    /// The change alters it.
    Writes,
}

/// Numbers that were ever assigned to logs, as ranges. They ascend, so there are few ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// First and last number of each range.
    ranges: BTreeMap<u64, u64>,
}

impl Numbers {
    /// Whether a number was assigned.
    pub fn contains(&self, number: u64) -> bool {
        self.ranges.range(..=number).next_back().is_some_and(|(_, &last)| number <= last)
    }

    /// Largest number, or zero if there is none.
    pub fn largest(&self) -> u64 {
        self.ranges.last_key_value().map_or(0, |(_, &last)| last)
    }

    /// Adds a number.
    pub fn insert(&mut self, number: u64) {
        self.insert_range(number, number);
    }

    /// Adds the numbers from `first` to `last`, of which none was assigned yet.
    pub fn insert_range(&mut self, mut first: u64, mut last: u64) {
        if self.contains(first) {
            return;
        }
        if let Some((&before, &end)) = self.ranges.range(..first).next_back()
            && end + 1 == first
        {
            first = before;
        }
        if let Some(end) = self.ranges.remove(&(last + 1)) {
            last = end;
        }
        self.ranges.insert(first, last);
    }

    /// First and last number of each range.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&first, &last)| (first, last))
    }
}

/// Returns the changes that rebuild the tables, as a checkpoint stores them.
#[cfg(test)]
pub(crate) fn snapshot_of<T: StoredState>(tables: &mut T) -> Vec<T::Change> {
    let mut changes = Vec::new();
    tables.begin_snapshot();
    while let Some(rows) = tables.next_rows(2) {
        rows.into_iter().for_each(|row| T::restore(row, &mut |change| changes.push(change)));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_numbers_become_one_range() {
        let mut numbers = Numbers::default();
        for number in [1, 2, 5, 4, 9, 3] {
            assert!(!numbers.contains(number));
            numbers.insert(number);
            assert!(numbers.contains(number));
        }
        assert_eq!(numbers.ranges().collect::<Vec<_>>(), [(1, 5), (9, 9)]);
        assert_eq!(numbers.largest(), 9);
        assert!(!numbers.contains(0) && !numbers.contains(6) && !numbers.contains(10));
    }
}
