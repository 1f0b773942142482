//! Incremental snapshots: a table is read as of one moment, in steps, while it keeps changing.
//!
//! A store writes its tables to disk from time to time. It cannot hold its lock for that long, and a second copy of the
//! tables would double their memory. So a snapshot *begins* at a moment, at no cost, and is read in key order, some
//! rows at a time. Until the snapshot is finished, a row that changes before it was read is first saved as its
//! *before-image*.
//!
//! Invariant: the rows read are exactly the table at the moment the snapshot began.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Bound, RangeBounds};

use super::StateMachine;

/// Tables that support snapshots, for stores that write them to disk.
pub trait Snapshots: StateMachine {
    /// One row of a snapshot. It must be cheap to clone: a step only collects rows under the lock, and they are written
    /// after the lock is released.
    type Row: Send;

    /// Begins a snapshot of the tables as they are now.
    fn begin_snapshot(&mut self);

    /// Reads the next rows of the snapshot. Returns `None` when it is finished. Examines about `most` rows, some of
    /// which may not belong to the snapshot.
    fn next_rows(&mut self, most: usize) -> Option<Vec<Self::Row>>;

    /// Discards the snapshot, if there is one.
    fn end_snapshot(&mut self);

    /// Passes the changes that recreate a row to `change`. The changes of all rows, in the order they were read,
    /// recreate the tables from empty ones.
    fn restore(row: Self::Row, change: &mut dyn FnMut(Self::Change));
}

/// Before-images of a table's rows during a snapshot. A table that is not a [`SnapshotMap`] must call
/// [`BeforeImages::keep`] before each change of a row.
pub struct BeforeImages<K, V>(Option<Snapshot<K, V>>);

struct Snapshot<K, V> {
    /// Last key that was read.
    read: Option<K>,
    /// Before-images of rows above that key that changed since the snapshot began. `None` for a row that did not exist.
    images: BTreeMap<K, Option<V>>,
}

impl<K, V> Default for BeforeImages<K, V> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K, V> fmt::Debug for BeforeImages<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let images = self.0.as_ref().map(|snapshot| snapshot.images.len());
        f.debug_tuple("BeforeImages").field(&images).finish()
    }
}

impl<K: Ord + Clone, V> BeforeImages<K, V> {
    /// Begins a snapshot of the table as it is now. An unfinished one is discarded.
    pub fn begin(&mut self) {
        self.0 = Some(Snapshot { read: None, images: BTreeMap::new() });
    }

    /// Discards the snapshot, if there is one.
    pub fn end(&mut self) {
        self.0 = None;
    }

    /// Saves a row before it changes. `row` returns its current value, or `None` when it does not exist.
    pub fn keep(&mut self, key: &K, row: impl FnOnce() -> Option<V>) {
        let Some(Snapshot { read, images }) = &mut self.0 else { return };
        if read.as_ref().is_none_or(|read| key > read) && !images.contains_key(key) {
            images.insert(key.clone(), row());
        }
    }

    /// Reads the next rows of the snapshot, in key order. Returns `None` when it is finished or was never
    /// begun. Examines `most` rows, including rows inserted since, which are skipped. `after` returns the
    /// table's current rows above a key.
    pub fn next<I>(&mut self, most: usize, after: impl FnOnce(Option<&K>) -> I) -> Option<Vec<(K, V)>>
    where
        I: Iterator<Item = (K, V)>,
    {
        let Snapshot { read, images } = self.0.as_mut()?;
        let mut now = after(read.as_ref()).peekable();
        let mut rows = Vec::new();
        for looked in 0..most {
            let next = now.peek().map(|(key, _)| key);
            let image = images.first_key_value().map(|(key, _)| key);
            let (key, row) = match (next, image) {
                (None, None) if looked == 0 => {
                    drop(now);
                    self.0 = None;
                    return None;
                }
                (None, None) => break,
                (Some(next), image) if image.is_none_or(|image| next < image) => {
                    now.next().map(|(key, row)| (key, Some(row))).expect("just seen")
                }
                (next, _) => {
                    // The current row, if it still exists, has changed since, so its before-image is returned.
                    if next == image {
                        now.next();
                    }
                    images.pop_first().expect("just seen")
                }
            };
            rows.extend(row.map(|row| (key.clone(), row)));
            *read = Some(key);
        }
        Some(rows)
    }
}

/// An ordered map that supports snapshots. Values should be cheap to clone, such as an `Arc`, because a row
/// that changes during a snapshot is cloned first.
#[derive(Debug)]
pub struct SnapshotMap<K, V> {
    rows: BTreeMap<K, V>,
    before: BeforeImages<K, V>,
}

impl<K, V> Default for SnapshotMap<K, V> {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), before: BeforeImages::default() }
    }
}

impl<K: Ord + Clone, V: Clone> SnapshotMap<K, V> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the map has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the row of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.rows.get(key)
    }

    /// Whether the key has a row.
    pub fn contains_key(&self, key: &K) -> bool {
        self.rows.contains_key(key)
    }

    /// All rows in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows.iter()
    }

    /// Rows in a range of keys, in order.
    pub fn range(&self, range: impl RangeBounds<K>) -> impl Iterator<Item = (&K, &V)> {
        self.rows.range(range)
    }

    /// Returns the row of a key for modification.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let Self { rows, before } = self;
        before.keep(key, || rows.get(key).cloned());
        rows.get_mut(key)
    }

    /// Returns the row of a key for modification, inserted first if it does not exist.
    pub fn or_insert_with(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        let Self { rows, before } = self;
        before.keep(&key, || rows.get(&key).cloned());
        rows.entry(key).or_insert_with(new)
    }

    /// Sets the row of a key and returns the previous one.
    pub fn insert(&mut self, key: K, row: V) -> Option<V> {
        let Self { rows, before } = self;
        before.keep(&key, || rows.get(&key).cloned());
        rows.insert(key, row)
    }

    /// Removes the row of a key and returns it.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let Self { rows, before } = self;
        before.keep(key, || rows.get(key).cloned());
        rows.remove(key)
    }

    /// Begins a snapshot; see [`BeforeImages::begin`].
    pub fn begin_snapshot(&mut self) {
        self.before.begin();
    }

    /// Discards the snapshot, if there is one.
    pub fn end_snapshot(&mut self) {
        self.before.end();
    }

    /// Reads the next rows of the snapshot; see [`BeforeImages::next`].
    pub fn next_rows(&mut self, most: usize) -> Option<Vec<(K, V)>> {
        let Self { rows, before } = self;
        before.next(most, |key| {
            let start = key.map_or(Bound::Unbounded, Bound::Excluded);
            rows.range((start, Bound::Unbounded)).map(|(key, row)| (key.clone(), row.clone()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8, u32),
        Remove(u8),
        Change(u8, u32),
        OrInsert(u8, u32),
        Read(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..40u8, any::<u32>()).prop_map(|(key, row)| Step::Insert(key, row)),
            (0..40u8).prop_map(Step::Remove),
            (0..40u8, any::<u32>()).prop_map(|(key, row)| Step::Change(key, row)),
            (0..40u8, any::<u32>()).prop_map(|(key, row)| Step::OrInsert(key, row)),
            (1..6usize).prop_map(Step::Read),
        ]
    }

    proptest! {
        #[test]
        fn a_snapshot_is_the_map_of_the_moment_it_began(
            first in prop::collection::btree_map(0..40u8, any::<u32>(), 0..40),
            steps in prop::collection::vec(step(), 0..100),
        ) {
            let mut map = SnapshotMap::default();
            for (&key, &row) in &first {
                map.insert(key, row);
            }
            map.begin_snapshot();
            let mut model = first.clone();
            let mut read = Vec::new();
            for step in steps {
                match step {
                    Step::Insert(key, row) => assert_eq!(map.insert(key, row), model.insert(key, row)),
                    Step::Remove(key) => assert_eq!(map.remove(&key), model.remove(&key)),
                    Step::Change(key, row) => {
                        if let Some(is) = map.get_mut(&key) {
                            *is = row;
                            model.insert(key, row);
                        }
                    }
                    Step::OrInsert(key, row) => {
                        assert_eq!(map.or_insert_with(key, || row), model.entry(key).or_insert(row));
                    }
                    Step::Read(most) => read.extend(map.next_rows(most).into_iter().flatten()),
                }
            }
            while let Some(rows) = map.next_rows(3) {
                read.extend(rows);
            }
            assert_eq!(read, first.into_iter().collect::<Vec<_>>());
            assert!(map.iter().eq(&model));
            assert!(map.next_rows(3).is_none());
            map.insert(1, 1);
            assert!(map.before.0.is_none(), "nothing is kept for a snapshot that is over");
        }
    }
}
