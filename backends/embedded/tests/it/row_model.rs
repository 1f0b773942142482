//! A plain map of cold rows, random changes of it, and what a store shows instead.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_embedded::{Disk, Embedded, Options};
use tidings_engine::log::{Commit, Commits, Row, RowChange, RowSpan, RowTable, Rows, StoreError};

use crate::book::{Book, small};

/// The table of the rows in these tests.
pub const TABLE: RowTable = RowTable(7);

/// Rows by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowModel(pub BTreeMap<Bytes, Bytes>);

pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> RowChange {
    RowChange::Put { table: TABLE, key: key.into(), value: value.into() }
}

pub fn delete(key: impl Into<Bytes>) -> RowChange {
    RowChange::Delete { table: TABLE, key: key.into() }
}

pub fn floor(prefix: impl Into<Bytes>, below: impl Into<Bytes>) -> RowChange {
    RowChange::Floor { table: TABLE, prefix: prefix.into(), below: below.into() }
}

/// A key with the number of a group in front, which floors use as a prefix.
pub fn key(group: u32, n: u32) -> Bytes {
    [group.to_be_bytes(), n.to_be_bytes()].concat().into()
}

/// One random change of rows in groups. Now and then a value is larger than any page.
pub fn random_change(rng: &mut fastrand::Rng, groups: std::ops::Range<u32>) -> RowChange {
    let all = groups.len();
    let key = key(rng.u32(groups), rng.u32(..200));
    match rng.u8(..100) {
        0..65 => {
            let length = if rng.u8(..80) == 0 { 17_000 } else { rng.usize(..120) };
            put(key, vec![rng.u8(..); length])
        }
        65..92 => delete(key),
        _ => {
            // Of a group, of part of one, or of one key; of all groups where there are several.
            let lengths: &[usize] = if all > 1 { &[0, 3, 4, 4, 4, 7, 8] } else { &[4, 4, 4, 7, 8] };
            floor(key.slice(..*rng.choice(lengths).expect("not empty")), key)
        }
    }
}

impl RowModel {
    /// Makes a change.
    pub fn apply(&mut self, change: &RowChange) {
        match change {
            RowChange::Put { key, value, .. } => {
                self.0.insert(key.clone(), value.clone());
            }
            RowChange::Delete { key, .. } => {
                self.0.remove(key);
            }
            RowChange::Floor { prefix, below, .. } => {
                self.0.retain(|key, _| !(key.starts_with(prefix) && key < below));
            }
        }
    }

    /// The rows of a span that has no limit of bytes.
    pub fn within(&self, span: &RowSpan) -> Self {
        let within = self.0.iter().filter(|(key, _)| **key >= span.from && **key < span.to);
        Self(within.take(span.rows).map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    /// All rows that a store shows.
    pub async fn of(store: &Embedded<Book>) -> Self {
        Self::in_span(store, RowSpan::of_prefix(Bytes::new())).await.expect("readable")
    }

    /// The rows of a span that a store shows.
    pub async fn in_span(store: &Embedded<Book>, span: RowSpan) -> Result<Self, StoreError> {
        let rows = store.rows(TABLE, span).await?;
        assert!(rows.is_sorted_by(|one, other| one.key < other.key), "keys ascend");
        Ok(rows.into_iter().collect())
    }
}

impl FromIterator<Row> for RowModel {
    fn from_iter<I: IntoIterator<Item = Row>>(rows: I) -> Self {
        Self(rows.into_iter().map(|Row { key, value }| (key, value)).collect())
    }
}

/// Options with memtables that are flushed only when a test says so.
pub fn by_hand() -> Options {
    Options { memtable_bytes: 1 << 30, wal_file_bytes: 512 << 10, ..small() }
}

/// Commits changes of rows.
pub async fn write(store: &Embedded<Book>, rows: impl IntoIterator<Item = RowChange>) {
    let commit = Commit { rows: rows.into_iter().collect(), ..Commit::new() };
    store.commit(commit).await.expect("made");
}

/// Paths of the files of rows.
pub fn files(disk: &SimulatedDisk) -> Vec<String> {
    let names = disk.list("rows").expect("listed");
    names.into_iter().map(|name| format!("rows/{name}")).collect()
}

/// Bytes of the files of rows.
pub fn bytes_in(disk: &SimulatedDisk) -> u64 {
    files(disk).iter().map(|name| disk.open(name).and_then(|file| file.len()).expect("there")).sum()
}

pub fn flush_and_merge(store: &Embedded<Book>) {
    store.flush().expect("written");
    store.merge_now().expect("merged");
}
