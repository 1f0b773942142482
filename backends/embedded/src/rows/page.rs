//! A page of rows: ascending keys, each without what it shares with the one before.
//!
//! ```text
//! page  = checksum u32 | entries
//! entry = bytes shared with the key before | bytes of the rest of the key | 0 (deleted) or bytes of the value + 1
//!         | rest of the key | value
//! ```

use bytes::Bytes;

use super::layer::Entry;
use crate::codec::{DecodeError, Writer, checksum};

/// Bytes that a page has at most, unless it has a single entry.
pub(crate) const PAGE_BYTES: usize = 16 << 10;
/// Bytes of a page before its entries.
pub(crate) const HEAD: usize = 4;
/// Most bytes of an entry beside key and value.
const ENTRY_HEAD: usize = 3 + 3 + 5;

/// A page under construction.
#[derive(Debug, Default)]
pub(crate) struct PageBuilder {
    entries: Vec<u8>,
    first: Vec<u8>,
    last: Vec<u8>,
}

impl PageBuilder {
    /// Whether the page is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// First key of the page.
    pub(crate) fn first(&self) -> &[u8] {
        &self.first
    }

    /// Last key of the page.
    pub(crate) fn last(&self) -> &[u8] {
        &self.last
    }

    /// Whether an entry belongs to the next page.
    pub(crate) fn has_no_space_for(&self, key: &[u8], value: Option<&[u8]>) -> bool {
        let bytes = ENTRY_HEAD + key.len() + value.map_or(0, <[u8]>::len);
        !self.is_empty() && HEAD + self.entries.len() + bytes > PAGE_BYTES
    }

    /// Adds an entry, whose key lies above that of the last one.
    pub(crate) fn push(&mut self, key: &[u8], value: Option<&[u8]>) {
        let shared = self.last.iter().zip(key).take_while(|(one, other)| one == other).count();
        let out = &mut self.entries;
        if out.is_empty() {
            self.first.clear();
            self.first.extend_from_slice(key);
        }
        out.number(shared as u64);
        out.number((key.len() - shared) as u64);
        out.number(value.map_or(0, |value| value.len() as u64 + 1));
        out.extend_from_slice(&key[shared..]);
        out.extend_from_slice(value.unwrap_or_default());
        self.last.truncate(shared);
        self.last.extend_from_slice(&key[shared..]);
    }

    /// Writes the page and begins another one. Returns the checksum.
    pub(crate) fn finish(&mut self, salt: u64, out: &mut Vec<u8>) -> u32 {
        let sum = checksum(salt, &[&self.entries]);
        out.fixed32(sum);
        out.extend_from_slice(&self.entries);
        self.entries.clear();
        self.last.clear();
        sum
    }
}

/// The entries of a page, decoded one by one.
struct Entries<'a> {
    page: &'a [u8],
    at: usize,
    key: Vec<u8>,
}

/// Where the value of an entry lies in its page; `None` for a deleted row.
type ValueAt = Option<std::ops::Range<usize>>;

impl Entries<'_> {
    /// Advances to the next entry, whose key is then in `key`. Returns `None` at the end of the page.
    fn next(&mut self) -> Result<Option<ValueAt>, DecodeError> {
        if self.at == self.page.len() {
            return Ok(None);
        }
        let (shared, rest, value) = (self.number()?, self.number()?, self.number()?);
        if shared > self.key.len() {
            return Err(DecodeError);
        }
        let rest = self.take(rest)?;
        self.key.truncate(shared);
        self.key.extend_from_slice(&self.page[rest]);
        let value = match value.checked_sub(1) {
            Some(bytes) => Some(self.take(bytes)?),
            None => None,
        };
        Ok(Some(value))
    }

    fn take(&mut self, bytes: usize) -> Result<std::ops::Range<usize>, DecodeError> {
        let end = self.at.checked_add(bytes).filter(|&end| end <= self.page.len()).ok_or(DecodeError)?;
        Ok(std::mem::replace(&mut self.at, end)..end)
    }

    /// Reads a varint.
    fn number(&mut self) -> Result<usize, DecodeError> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let byte = *self.page.get(self.at).ok_or(DecodeError)?;
            self.at += 1;
            value |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError)
    }
}

/// The entries of a page whose checksum was verified, without its head.
fn entries(page: &[u8]) -> Entries<'_> {
    Entries { page, at: 0, key: Vec::new() }
}

/// Verifies the checksum of a page, and returns the part with the entries.
pub(crate) fn verify(salt: u64, page: Bytes) -> Option<Bytes> {
    let (sum, content) = page.split_at_checked(HEAD)?;
    (checksum(salt, &[content]).to_le_bytes() == *sum).then(|| page.slice(HEAD..))
}

/// Looks up a key in the entries of a page. The outer `None` means that the page does not have it, the inner one that the row
/// was deleted.
pub(crate) fn find(page: &Bytes, key: &[u8]) -> Result<Option<Option<Bytes>>, DecodeError> {
    let mut entries = entries(page);
    while let Some(value) = entries.next()? {
        match entries.key[..].cmp(key) {
            std::cmp::Ordering::Less => {}
            // The value is copied, so that it does not keep the page in memory.
            std::cmp::Ordering::Equal => return Ok(Some(value.map(|at| Bytes::copy_from_slice(&page[at])))),
            std::cmp::Ordering::Greater => break,
        }
    }
    Ok(None)
}

/// Decodes the entries of a page. Fails if their keys do not ascend. They share the memory of the page.
pub(crate) fn decode(page: &Bytes) -> Result<Vec<Entry>, DecodeError> {
    let mut entries = entries(page);
    let (mut keys, mut places) = (Vec::with_capacity(page.len()), Vec::new());
    let mut last = 0..0;
    while let Some(value) = entries.next()? {
        if !places.is_empty() && keys[last] >= entries.key[..] {
            return Err(DecodeError);
        }
        last = keys.len()..keys.len() + entries.key.len();
        keys.extend_from_slice(&entries.key);
        places.push((last.clone(), value));
    }
    let keys = Bytes::from(keys);
    let entry =
        |(key, value): (_, ValueAt)| Entry { key: keys.slice(key), value: value.map(|at| page.slice(at)) };
    Ok(places.into_iter().map(entry).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn built(rows: &BTreeMap<Vec<u8>, Option<Vec<u8>>>) -> Bytes {
        let mut builder = PageBuilder::default();
        for (key, value) in rows {
            builder.push(key, value.as_deref());
        }
        let mut out = Vec::new();
        builder.finish(9, &mut out);
        out.into()
    }

    proptest! {
        #[test]
        fn a_page_has_what_was_put_into_it(
            rows in prop::collection::btree_map(
                prop::collection::vec(0u8..4, 0..8),
                prop::option::of(prop::collection::vec(any::<u8>(), 0..300)),
                0..60,
            ),
            asked in prop::collection::vec(0u8..4, 0..8),
        ) {
            let page = verify(9, built(&rows)).expect("its checksum is right");
            let listed: Vec<_> = decode(&page).expect("decodable").into_iter().collect();
            let expected: Vec<_> = rows
                .iter()
                .map(|(key, value)| Entry { key: key.clone().into(), value: value.clone().map(Into::into) })
                .collect();
            prop_assert_eq!(listed, expected);
            let found = find(&page, &asked).expect("decodable");
            prop_assert_eq!(found, rows.get(&asked).map(|value| value.clone().map(Bytes::from)));
        }

        #[test]
        fn bytes_that_are_no_page_are_refused_and_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let page = Bytes::from(bytes);
            let _ = (find(&page, &[1, 2]), decode(&page), verify(9, page));
        }
    }

    #[test]
    fn a_changed_byte_and_another_place_are_noticed() {
        let rows = (0..50u8).map(|n| (vec![1, n], (n % 3 != 0).then(|| vec![n; 20]))).collect();
        let page = built(&rows);
        assert!(verify(8, page.clone()).is_none(), "it was written for another place");
        for at in 0..page.len() {
            let mut changed = page.to_vec();
            changed[at] ^= 0x10;
            assert!(verify(9, changed.into()).is_none(), "byte {at}");
        }
    }
}
