//! How a commit carries changes of rows: encoded once, for the frame and for the memtable.
//!
//! ```text
//! changes = for each: 1 (put), key, value | 2 (delete), key | 3 (floor), from, to
//! ```
//! A key begins with the number of its table.

use bytes::Bytes;
use tidings_engine::log::rows::{RowChange, RowTable, after_prefix};

use super::ranges::KeyRange;
use crate::codec::{DecodeError, Reader, Writer};

const PUT: u8 = 1;
const DELETE: u8 = 2;
const FLOOR: u8 = 3;

/// A change of rows as a layer takes it. Keys begin with the number of their table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowWrite {
    /// Writes a row.
    Put {
        /// Key of the row.
        key: Bytes,
        /// Value of the row.
        value: Bytes,
    },
    /// Removes a row.
    Delete {
        /// Key of the row.
        key: Bytes,
    },
    /// Removes all rows in a range.
    Floor(KeyRange),
}

/// The changes of rows of one commit.
#[derive(Clone, Debug, Default)]
pub struct RowWrites {
    /// The changes as they are written to a frame.
    pub encoded: Bytes,
    /// The changes in their order. They share the memory of `encoded`.
    pub writes: Vec<RowWrite>,
    /// Whether the store grows by them.
    pub takes_space: bool,
}

impl RowWrites {
    /// Encodes the changes of a commit.
    pub fn of(changes: &[RowChange]) -> Self {
        if changes.is_empty() {
            return Self::default();
        }
        let bytes = |change: &RowChange| match change {
            RowChange::Put { key, value, .. } => key.len() + value.len(),
            RowChange::Delete { key, .. } => key.len(),
            RowChange::Floor { prefix, below, .. } => prefix.len() + below.len(),
        };
        let mut out = Vec::with_capacity(changes.iter().map(|change| 12 + bytes(change)).sum());
        for change in changes {
            put(&mut out, change);
        }
        let encoded = Bytes::from(out);
        let writes = read(encoded.clone()).expect("what was written can be read");
        Self { encoded, writes, takes_space: changes.iter().any(RowChange::takes_space) }
    }
}

/// The key of a row, with the number of its table.
pub fn key_in(table: RowTable, key: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(key.len() + 1);
    whole.push(table.0);
    whole.extend_from_slice(key);
    whole
}

fn put(out: &mut Vec<u8>, change: &RowChange) {
    let put_key = |out: &mut Vec<u8>, table: RowTable, key: &[u8]| {
        out.number(key.len() as u64 + 1);
        out.byte(table.0);
        out.extend_from_slice(key);
    };
    match change {
        RowChange::Put { table, key, value } => {
            out.byte(PUT);
            put_key(out, *table, key);
            out.bytes(value);
        }
        RowChange::Delete { table, key } => {
            out.byte(DELETE);
            put_key(out, *table, key);
        }
        RowChange::Floor { table, prefix, below } => {
            let to = after_prefix(prefix);
            let to = to.min(below.clone());
            if *prefix < to {
                out.byte(FLOOR);
                put_key(out, *table, prefix);
                put_key(out, *table, &to);
            }
        }
    }
}

/// Decodes changes, which then share the memory of `encoded`.
pub fn read(encoded: Bytes) -> Result<Vec<RowWrite>, DecodeError> {
    let mut reader = Reader(encoded);
    let mut writes = Vec::new();
    while !reader.is_empty() {
        writes.push(match reader.byte()? {
            PUT => RowWrite::Put { key: reader.bytes()?, value: reader.bytes()? },
            DELETE => RowWrite::Delete { key: reader.bytes()? },
            FLOOR => RowWrite::Floor(KeyRange { from: reader.bytes()?, to: reader.bytes()? }),
            _ => return Err(DecodeError),
        });
    }
    Ok(writes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_back_with_the_table_in_front_of_their_keys() {
        let (table, bytes) = (RowTable(3), Bytes::from_static);
        let writes = RowWrites::of(&[
            RowChange::Put { table, key: bytes(b"k"), value: bytes(b"v") },
            RowChange::Delete { table, key: bytes(b"") },
            RowChange::Floor { table, prefix: bytes(b"p/"), below: bytes(b"p/5") },
            RowChange::Floor { table, prefix: bytes(b"p/"), below: bytes(b"z") },
            RowChange::Floor { table, prefix: bytes(b"p/"), below: bytes(b"a") },
        ]);
        assert!(writes.takes_space);
        let floor = |to| RowWrite::Floor(KeyRange { from: bytes(b"\x03p/"), to: bytes(to) });
        assert_eq!(
            writes.writes,
            [
                RowWrite::Put { key: bytes(b"\x03k"), value: bytes(b"v") },
                RowWrite::Delete { key: bytes(b"\x03") },
                floor(b"\x03p/5"),
                floor(b"\x03p0"),
            ],
            "a floor below its prefix is none"
        );
        assert!(read(writes.encoded.slice(..writes.encoded.len() - 1)).is_err());
    }
}
