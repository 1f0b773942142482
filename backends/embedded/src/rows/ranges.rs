//! Ranges of keys.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

/// All keys from `from` up to `to`, without `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// First key.
    pub from: Bytes,
    /// First key that is not in the range.
    pub to: Bytes,
}

/// A set of keys, as ranges that neither overlap nor touch each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRanges(BTreeMap<Bytes, Bytes>);

impl KeyRanges {
    /// Adds all keys of a range.
    pub fn add(&mut self, range: KeyRange) {
        let KeyRange { mut from, mut to } = range;
        if from >= to {
            return;
        }
        if let Some((before, end)) = self.up_to(&from)
            && *end >= from
        {
            if *end >= to {
                return;
            }
            from = before.clone();
        }
        while let Some((next, end)) = self.0.range(from.clone()..=to.clone()).next() {
            let (next, end) = (next.clone(), end.clone());
            self.0.remove(&next);
            to = to.max(end);
        }
        self.0.insert(from, to);
    }

    /// Adds all keys of another set.
    pub fn add_all(&mut self, other: &Self) {
        for range in other.iter() {
            self.add(range);
        }
    }

    /// Whether a key is in the set.
    pub fn has(&self, key: &[u8]) -> bool {
        self.up_to(key).is_some_and(|(_, to)| key < &to[..])
    }

    /// Whether all keys of a range that is not empty are in the set.
    pub fn has_all(&self, from: &[u8], to: &[u8]) -> bool {
        self.up_to(from).is_some_and(|(_, end)| to <= &end[..])
    }

    /// The ranges that have a key in common with the given one, as they are.
    pub fn within(&self, from: &[u8], to: &[u8]) -> Self {
        if from >= to {
            return Self::default();
        }
        let before = self.up_to(from).filter(|(_, end)| from < &end[..]);
        let inside = self.0.range::<[u8], _>((Bound::Excluded(from), Bound::Excluded(to)));
        Self(before.into_iter().chain(inside).map(|(from, to)| (from.clone(), to.clone())).collect())
    }

    /// The ranges in ascending order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = KeyRange> + '_ {
        self.0.iter().map(|(from, to)| KeyRange { from: from.clone(), to: to.clone() })
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The last range that begins at or before a key.
    fn up_to(&self, key: &[u8]) -> Option<(&Bytes, &Bytes)> {
        self.0.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn key(n: u8) -> Bytes {
        Bytes::copy_from_slice(&[n])
    }

    proptest! {
        #[test]
        fn ranges_are_the_set_of_their_keys(
            added in prop::collection::vec((0u8..40, 0u8..40), 0..20),
            asked in (0u8..40, 1u8..40),
        ) {
            let mut ranges = KeyRanges::default();
            let mut model = BTreeSet::new();
            for (from, to) in added {
                ranges.add(KeyRange { from: key(from), to: key(to) });
                model.extend(from..to);
            }
            for n in 0..41 {
                prop_assert_eq!(ranges.has(&key(n)), model.contains(&n), "{}", n);
            }
            let listed: Vec<_> = ranges.iter().collect();
            prop_assert!(listed.windows(2).all(|pair| pair[0].to < pair[1].from), "apart: {:?}", listed);
            let (from, to) = (asked.0, asked.0 + asked.1);
            prop_assert_eq!(ranges.has_all(&key(from), &key(to)), (from..to).all(|n| model.contains(&n)));
            let within = ranges.within(&key(from), &key(to));
            prop_assert!((from..to).all(|n| within.has(&key(n)) == model.contains(&n)));
            prop_assert!(within.iter().all(|range| range.from < key(to) && range.to > key(from)));
        }
    }
}
