//! Cold rows: table rows that are too many for memory.
//!
//! A row is a value under a key, in a table that a number identifies. A commit carries [`RowChange`]s beside its operations
//! and its changes of tables, and all three take effect together. Row changes are never validated: whatever a commit depends
//! on is in tables in memory or in logs. [`Rows`] reads them.
//!
//! Not here: what a table's keys and values mean; a capability encodes its own.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tidings_model::limits;

use super::StoreError;

/// Number of a table of cold rows. Numbers are assigned in one place for the whole server and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowTable(pub u8);

/// A change of cold rows, carried by a commit. No state of the store refuses it, and a change that has nothing to change is
/// fine. Changes of one commit take effect in their order.
///
/// A key has at most [`limits::ROW_KEY_BYTES`] bytes and a value at most [`limits::ROW_VALUE_BYTES`], otherwise the commit
/// fails with [`StoreError::TooLarge`]. A capability limits both before it commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowChange {
    /// Writes a row, and replaces the one under this key if there is one.
    Put {
        /// Table of the row.
        table: RowTable,
        /// Key of the row.
        key: Bytes,
        /// Value of the row.
        value: Bytes,
    },
    /// Removes the row under this key, if there is one.
    Delete {
        /// Table of the row.
        table: RowTable,
        /// Key of the row.
        key: Bytes,
    },
    /// Removes all rows whose keys begin with `prefix` and sort below `below`. Rows that are written afterwards are not
    /// affected, whatever their keys. Costs about as much as one row, however many it removes.
    Floor {
        /// Table of the rows.
        table: RowTable,
        /// What the keys begin with.
        prefix: Bytes,
        /// First key that is kept.
        below: Bytes,
    },
}

impl RowChange {
    /// Removes all rows whose keys begin with `prefix`.
    pub fn clear(table: RowTable, prefix: Bytes) -> Self {
        let below = after_prefix(&prefix);
        Self::Floor { table, prefix, below }
    }

    /// Table that is changed.
    pub fn table(&self) -> RowTable {
        match self {
            Self::Put { table, .. } | Self::Delete { table, .. } | Self::Floor { table, .. } => *table,
        }
    }

    /// Whether the store grows by this change. Such changes are refused when disk space is low.
    pub fn takes_space(&self) -> bool {
        match self {
            Self::Put { .. } => true,
            Self::Delete { .. } | Self::Floor { .. } => false,
        }
    }

    /// Fails with [`StoreError::TooLarge`] if a key or the value is longer than it may be.
    pub fn validate_size(&self) -> Result<(), StoreError> {
        let within = |bytes: usize, most: usize| {
            if bytes <= most { Ok(()) } else { Err(StoreError::TooLarge { bytes, most }) }
        };
        match self {
            Self::Put { key, value, .. } => {
                within(key.len(), limits::ROW_KEY_BYTES)?;
                within(value.len(), limits::ROW_VALUE_BYTES)
            }
            Self::Delete { key, .. } => within(key.len(), limits::ROW_KEY_BYTES),
            Self::Floor { prefix, below, .. } => {
                within(prefix.len(), limits::ROW_KEY_BYTES)?;
                // One byte more than a key, so that a floor can lie above every key; see `after_prefix`.
                within(below.len(), limits::ROW_KEY_BYTES + 1)
            }
        }
    }
}

/// A row as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Key of the row.
    pub key: Bytes,
    /// Value of the row.
    pub value: Bytes,
}

/// Which rows of a table to read, in ascending order of their keys. Where a table may be large it is read in pages, each from just
/// above the last key of the one before: a store may hold up commits while it gathers what a page has in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSpan {
    /// First key to read.
    pub from: Bytes,
    /// First key not to read.
    pub to: Bytes,
    /// Maximum number of rows.
    pub rows: usize,
    /// Maximum bytes of keys and values.
    pub bytes: usize,
}

impl RowSpan {
    /// All rows whose keys begin with `prefix`, without further limits.
    pub fn of_prefix(prefix: Bytes) -> Self {
        Self { to: after_prefix(&prefix), from: prefix, rows: usize::MAX, bytes: usize::MAX }
    }
}

/// The first key that sorts after all keys that begin with `prefix`. If no key sorts after them, a key that is longer than a
/// row's may be and sorts above all of them.
pub fn after_prefix(prefix: &[u8]) -> Bytes {
    match prefix.iter().rposition(|&byte| byte != u8::MAX) {
        Some(last) => {
            let mut after = prefix[..=last].to_vec();
            after[last] += 1;
            after.into()
        }
        None => vec![u8::MAX; limits::ROW_KEY_BYTES + 1].into(),
    }
}

/// Reading side of a store for cold rows. A read sees the rows as they are at one moment, after the commits that were
/// acknowledged before it began.
pub trait Rows: Send + Sync + 'static {
    /// Returns the value of a row, or `None` if there is no such row.
    fn row<'a>(&'a self, table: RowTable, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>>;

    /// Returns the rows of a span in ascending order of their keys. Stops after `span.rows` rows, and before a row with which
    /// keys and values would exceed `span.bytes`. The first row of the span is returned whatever its size, and whatever the
    /// limits are.
    fn rows(&self, table: RowTable, span: RowSpan) -> BoxFuture<'_, Result<Vec<Row>, StoreError>>;
}

/// Adds a row to a page of a read that stops as [`Rows::rows`] says; returns whether it was added.
pub fn take_into(rows: &mut Vec<Row>, span: &mut RowSpan, row: Row) -> bool {
    let bytes = row.key.len() + row.value.len();
    if !rows.is_empty() && (span.rows == 0 || bytes > span.bytes) {
        return false;
    }
    span.rows = span.rows.saturating_sub(1);
    span.bytes = span.bytes.saturating_sub(bytes);
    rows.push(row);
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_key_begins_with_a_prefix_if_and_only_if_it_lies_between_it_and_what_comes_after(
            prefix in prop::collection::vec(prop_oneof![Just(255u8), any::<u8>()], 0..4),
            key in prop::collection::vec(prop_oneof![Just(255u8), any::<u8>()], 0..6),
        ) {
            let within = key[..] >= prefix[..] && key[..] < after_prefix(&prefix)[..];
            prop_assert_eq!(within, key.starts_with(&prefix));
        }
    }

    #[test]
    fn the_longest_key_lies_below_the_end_of_a_prefix_that_nothing_follows() {
        let longest = vec![u8::MAX; limits::ROW_KEY_BYTES];
        assert!(longest[..] < after_prefix(&[])[..]);
        let clear = RowChange::clear(RowTable(1), Bytes::new());
        assert_eq!(clear.validate_size(), Ok(()));
    }
}
