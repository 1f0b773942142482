//! A layer of rows in memory: what the commits of one memtable did.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use tidings_engine::log::rows::RowSpan;

use super::change::RowWrite;
use super::ranges::{KeyRange, KeyRanges};

/// Approximate bytes of an entry in memory, without key and value. The nodes of the map are little more than half full when
/// keys come in order.
pub(crate) const ENTRY_BYTES: usize = 150;

/// Rows written and deleted by the commits of a memtable, and the floors they set.
#[derive(Debug, Default)]
pub struct RowLayer {
    /// Values by key; `None` for a deleted row.
    entries: BTreeMap<LayerKey, Option<Bytes>>,
    floors: KeyRanges,
}

/// A key in a layer. Short keys lie in the map itself: comparing with one elsewhere in memory would be most of what it costs to
/// write a row.
#[derive(Clone, Debug)]
enum LayerKey {
    Short { length: u8, key: [u8; SHORT_KEY] },
    Long(Bytes),
}

/// Bytes of the longest key that lies in the map itself; it is as large as any other then.
const SHORT_KEY: usize = 38;

/// What a layer knows about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The row is there, with this value.
    Row(Bytes),
    /// There is no such row, whatever older layers have.
    Gone,
    /// Older layers must be asked.
    Unknown,
}

/// A row of a layer, or that it was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Key, with the number of the table.
    pub key: Bytes,
    /// Value; `None` if the row was deleted.
    pub value: Option<Bytes>,
}

impl RowLayer {
    /// Applies a change. Returns the bytes by which the layer may have grown.
    pub fn apply(&mut self, write: RowWrite) -> usize {
        match write {
            RowWrite::Put { key, value } => {
                let bytes = key.len() + value.len();
                self.entries.insert(key.into(), Some(value));
                bytes + ENTRY_BYTES
            }
            RowWrite::Delete { key } => {
                let bytes = key.len();
                self.entries.insert(key.into(), None);
                bytes + ENTRY_BYTES
            }
            RowWrite::Floor(range) => {
                let bytes = range.from.len() + range.to.len();
                let cleared: Vec<LayerKey> = self.within(&range).map(|(key, _)| key.clone()).collect();
                for key in cleared {
                    self.entries.remove(&key);
                }
                self.floors.add(range);
                bytes + ENTRY_BYTES
            }
        }
    }

    /// Looks up a key.
    pub fn find(&self, key: &[u8]) -> Found {
        match self.entries.get(key) {
            Some(Some(value)) => Found::Row(value.clone()),
            Some(None) => Found::Gone,
            None if self.floors.has(key) => Found::Gone,
            None => Found::Unknown,
        }
    }

    /// The entries of a range in ascending order.
    pub fn entries<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = Entry> + 'a {
        self.within(range).map(|(key, value)| Entry { key: key.to_bytes(), value: value.clone() })
    }

    fn within<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = (&'a LayerKey, &'a Option<Bytes>)> {
        // A range that ends before it begins is empty, where a map would panic.
        let to = Ord::max(&range.to, &range.from);
        self.entries.range::<[u8], _>((Bound::Included(&range.from[..]), Bound::Excluded(&to[..])))
    }

    /// All entries in ascending order; `None` for a deleted row.
    pub fn all(&self) -> impl Iterator<Item = (&[u8], &Option<Bytes>)> {
        self.entries.iter().map(|(key, value)| (key.borrow(), value))
    }

    /// The first entries of a range: as many as a read with these limits can need from a layer above all others, whose rows
    /// all count.
    pub fn first_entries(&self, range: &KeyRange, limits: &RowSpan) -> Vec<Entry> {
        let (mut rows, mut bytes) = (0, 0);
        let mut taken = Vec::new();
        for entry in self.entries(range) {
            if let Some(value) = &entry.value {
                rows += 1;
                bytes += entry.key.len() - 1 + value.len();
            }
            taken.push(entry);
            if rows > 0 && (rows >= limits.rows || bytes > limits.bytes) {
                break;
            }
        }
        taken
    }

    /// Ranges that were cleared. They hide all older layers.
    pub fn floors(&self) -> &KeyRanges {
        &self.floors
    }

    /// Number of entries, deleted rows included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the layer has neither entries nor floors.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.floors.is_empty()
    }
}

impl LayerKey {
    fn to_bytes(&self) -> Bytes {
        match self {
            Self::Short { .. } => Bytes::copy_from_slice(self.borrow()),
            Self::Long(key) => key.clone(),
        }
    }
}

impl From<Bytes> for LayerKey {
    fn from(key: Bytes) -> Self {
        if key.len() > SHORT_KEY {
            return Self::Long(key);
        }
        let mut short = [0; SHORT_KEY];
        short[..key.len()].copy_from_slice(&key);
        Self::Short { length: key.len() as u8, key: short }
    }
}

impl Borrow<[u8]> for LayerKey {
    fn borrow(&self) -> &[u8] {
        match self {
            Self::Short { length, key } => &key[..usize::from(*length)],
            Self::Long(key) => key,
        }
    }
}

impl Ord for LayerKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let (one, other): (&[u8], &[u8]) = (self.borrow(), other.borrow());
        one.cmp(other)
    }
}

impl PartialOrd for LayerKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for LayerKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for LayerKey {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_keys_are_in_one_order() {
        assert_eq!((size_of::<LayerKey>(), size_of::<Bytes>()), (40, 32));
        let mut layer = RowLayer::default();
        let keys: Vec<Bytes> =
            (0..100).map(|n| Bytes::from(vec![1; n])).chain([Bytes::from(vec![1, 2])]).collect();
        for key in keys.iter().rev() {
            layer.apply(RowWrite::Put { key: key.clone(), value: key.clone() });
        }
        assert!(layer.all().map(|(key, _)| key).eq(keys.iter().map(|key| &key[..])));
        assert!(keys.iter().all(|key| layer.find(key) == Found::Row(key.clone())));
        let range = KeyRange { from: keys[30].clone(), to: keys[60].clone() };
        assert!(layer.entries(&range).map(|entry| entry.key).eq(keys[30..60].iter().cloned()));
        layer.apply(RowWrite::Floor(range));
        assert_eq!(
            (layer.len(), layer.find(&keys[38]), layer.find(&keys[39])),
            (71, Found::Gone, Found::Gone)
        );
    }
}
