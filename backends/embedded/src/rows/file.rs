//! The format of a file of rows: a layer, sorted by key, written once and never changed.
//!
//! ```text
//! magic, version | pages | floors | index | filter | footer
//! floors = from, to of each
//! index  = for each page: its bytes, its first key; then the last key of the file
//! footer = 68 bytes, with the checksum of floors, index and filter, and one of the checksums of all pages
//! ```
//! Floors, index and filter are kept in memory: about 1.3 bytes for a row, and 150 for a floor. The checksum of a page begins
//! with the file's number and the page's offset, and the manifest has the checksum of the footer. So no part of another file
//! or of another place can pass for one of this file.
//!
//! Read [`RowFile`]; `writer` writes the format.

use std::sync::Arc;

use bytes::Bytes;

use super::filter::{Filter, KeyHash};
use super::layer::{Entry, Found};
use super::page;
use super::ranges::{KeyRange, KeyRanges};
use crate::codec::{Checksum, DecodeError, Reader, Writer, checksum};
use crate::disk::{Disk, DiskFile};
use crate::error::{InFile, OpenError};

/// Folder of files of rows.
pub const FOLDER: &str = "rows";

pub(crate) const MAGIC: &[u8; 8] = b"tidingsR";
pub(crate) const VERSION: u32 = 1;
pub(crate) const HEAD: u64 = 16;
pub(crate) const FOOTER_BYTES: usize = 68;

/// A file of rows as the manifest names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowFileName {
    /// Number from which its name is formed.
    pub number: u64,
    /// Checksum of its footer.
    pub sum: u32,
}

impl RowFileName {
    /// Path of the file in the store's folder.
    pub fn path(&self) -> String {
        file_name(self.number)
    }
}

/// Path of the file with a number.
pub fn file_name(number: u64) -> String {
    format!("{FOLDER}/{number:016x}")
}

/// Files of rows of a store, oldest first. The list is replaced as a whole, so a reader keeps a consistent one.
pub type RowFiles = Arc<Vec<Arc<RowFile>>>;

/// An open file of rows.
pub struct RowFile {
    /// Number and checksum, as the manifest has them.
    pub name: RowFileName,
    path: String,
    file: Box<dyn DiskFile>,
    bytes: u64,
    footer: Footer,
    pages: Vec<PageAt>,
    /// Memory of the index.
    tail: Bytes,
    /// The first key after all keys of the file.
    end: Vec<u8>,
    floors: KeyRanges,
    filter: Filter,
}

/// Where a page lies, and where in the tail its first key.
#[derive(Clone, Copy, Debug)]
struct PageAt {
    at: u64,
    bytes: u32,
    key_at: u32,
    key_bytes: u32,
}

/// Sizes and offsets of the parts of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footer {
    pub number: u64,
    pub entries: u64,
    pub pages: u64,
    pub floors: u64,
    pub tail_at: u64,
    pub index_at: u64,
    pub filter_at: u64,
    pub tail_sum: u32,
    /// Checksum of the checksums of all pages. So the footer tells files with different rows apart.
    pub pages_sum: u32,
}

/// The salt of a page's checksum.
pub(crate) fn page_salt(number: u64, at: u64) -> u64 {
    number.rotate_right(20) ^ at
}

impl RowFile {
    /// Opens a file that the manifest names, and reads what is kept of it in memory.
    pub fn open(disk: &dyn Disk, name: RowFileName) -> Result<Self, OpenError> {
        let path = name.path();
        let damaged = |what: &str| OpenError::damaged(&path, what);
        let file = disk.open(&path).in_file(&path)?;
        let bytes = file.len().in_file(&path)?;
        let read = |at: u64, length: usize| -> Result<Bytes, OpenError> {
            let mut buffer = vec![0; length];
            file.read_at(at, &mut buffer).map_err(|_| damaged("it is too short"))?;
            Ok(buffer.into())
        };
        let mut head = Reader(read(0, HEAD as usize)?);
        if head.exactly(8).in_file(&path)? != MAGIC[..] {
            return Err(damaged("it does not start with the magic of a file of rows"));
        }
        let found = head.fixed32().in_file(&path)?;
        if found != VERSION {
            return Err(OpenError::Version { name: path, found, expected: VERSION });
        }
        if head.fixed32().in_file(&path)? != 0 {
            return Err(damaged("its head is wrong"));
        }
        let footer_at = bytes.saturating_sub(FOOTER_BYTES as u64);
        let (footer, sum) = Footer::read(read(footer_at, FOOTER_BYTES)?)
            .map_err(|_| damaged("its footer's checksum is wrong"))?;
        if (footer.number, sum) != (name.number, name.sum) {
            return Err(damaged("it is not the file that the manifest names"));
        }
        let length = footer_at.checked_sub(footer.tail_at).ok_or_else(|| damaged("its footer is wrong"))?;
        let tail = read(footer.tail_at, length as usize)?;
        if checksum(footer.number, &[&tail]) != footer.tail_sum {
            return Err(damaged("its index's checksum is wrong"));
        }
        let Tail { floors, pages, end, filter } = Tail::read(&footer, &tail).in_file(&path)?;
        Ok(Self { name, path, file, bytes, footer, pages, tail, end, floors, filter })
    }

    /// Size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Path of the file.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Approximate memory of the index, the filter and the floors, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        const FLOOR_BYTES: usize = 100;
        let pages = self.pages.len() * size_of::<PageAt>();
        (self.tail.len() + pages + self.floors.len() * FLOOR_BYTES) as u64
    }

    /// Number of entries, deleted rows included.
    pub fn entries(&self) -> u64 {
        self.footer.entries
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Ranges that were cleared. They hide all older layers.
    pub fn floors(&self) -> &KeyRanges {
        &self.floors
    }

    /// Whether the file may have an entry for a key. Reads nothing; `false` is certain.
    pub(crate) fn may_have(&self, key: KeyHash) -> bool {
        self.filter.may_have(key)
    }

    /// Whether keys of the file may lie in a range.
    pub(crate) fn overlaps(&self, range: &KeyRange) -> bool {
        self.pages.first().is_some_and(|first| *self.first_key(first) < range.to[..])
            && range.from[..] < self.end[..]
    }

    /// Looks up a key.
    pub(crate) fn find(&self, key: &[u8], hash: KeyHash) -> Result<Found, OpenError> {
        if self.may_have(hash)
            && let Some(number) = self.page_of(key)
        {
            let page = self.read_page(number)?;
            match page::find(&page, key).map_err(|_| self.undecodable(number))? {
                Some(Some(value)) => return Ok(Found::Row(value)),
                Some(None) => return Ok(Found::Gone),
                None => {}
            }
        }
        Ok(if self.floors.has(key) { Found::Gone } else { Found::Unknown })
    }

    /// The page that has a key, if the file has it.
    pub(crate) fn page_of(&self, key: &[u8]) -> Option<usize> {
        self.pages.partition_point(|page| self.first_key(page) <= key).checked_sub(1)
    }

    /// The range that the keys of a page lie in.
    pub(crate) fn page_range(&self, number: usize) -> (&[u8], &[u8]) {
        let end = self.pages.get(number + 1).map_or(&self.end[..], |next| self.first_key(next));
        (self.first_key(&self.pages[number]), end)
    }

    /// Bytes of a page.
    pub(crate) fn page_bytes(&self, number: usize) -> u64 {
        u64::from(self.pages[number].bytes)
    }

    /// Reads a page, and verifies its checksum.
    pub(crate) fn page(&self, number: usize) -> Result<Vec<Entry>, OpenError> {
        page::decode(&self.read_page(number)?).map_err(|_| self.undecodable(number))
    }

    /// Reads the whole file, and returns everything that is wrong.
    pub fn check(&self) -> Vec<OpenError> {
        let mut problems = Vec::new();
        let mut pages_sum = Checksum::begin(self.name.number);
        let mut entries = 0;
        for number in 0..self.pages.len() {
            let (first, end) = self.page_range(number);
            match self.page(number) {
                Ok(page) => {
                    entries += page.len() as u64;
                    let within = |entry: Option<&Entry>| {
                        entry.is_some_and(|entry| entry.key[..] >= *first && entry.key[..] < *end)
                    };
                    if !within(page.first()) || !within(page.last()) {
                        problems.push(OpenError::damaged(
                            &self.path,
                            format!("page {number} has keys of others"),
                        ));
                    }
                }
                Err(error) => problems.push(error),
            }
            let mut sum = [0; page::HEAD];
            match self.file.read_at(self.pages[number].at, &mut sum).in_file(&self.path) {
                Ok(()) => pages_sum.add(&sum),
                Err(error) => problems.push(error),
            }
        }
        if problems.is_empty() && (pages_sum.end(), entries) != (self.footer.pages_sum, self.footer.entries) {
            problems.push(OpenError::damaged(&self.path, "its pages are not those it was written with"));
        }
        problems
    }

    fn read_page(&self, number: usize) -> Result<Bytes, OpenError> {
        let PageAt { at, bytes, .. } = self.pages[number];
        let mut page = vec![0; bytes as usize];
        self.file.read_at(at, &mut page).in_file(&self.path)?;
        page::verify(page_salt(self.name.number, at), page.into()).ok_or_else(|| {
            OpenError::damaged(&self.path, format!("the page at byte {at} has a wrong checksum"))
        })
    }

    fn undecodable(&self, number: usize) -> OpenError {
        let at = self.pages[number].at;
        OpenError::damaged(&self.path, format!("the page at byte {at} cannot be decoded"))
    }

    fn first_key(&self, page: &PageAt) -> &[u8] {
        &self.tail[page.key_at as usize..][..page.key_bytes as usize]
    }
}

/// What is kept of a file in memory.
struct Tail {
    floors: KeyRanges,
    pages: Vec<PageAt>,
    end: Vec<u8>,
    filter: Filter,
}

impl Tail {
    fn read(footer: &Footer, tail: &Bytes) -> Result<Self, DecodeError> {
        let part = |from: u64, to: u64| {
            let place = |at: u64| at.checked_sub(footer.tail_at).filter(|&at| at <= tail.len() as u64);
            let (from, to) = (place(from).ok_or(DecodeError)?, place(to).ok_or(DecodeError)?);
            if from > to { Err(DecodeError) } else { Ok(tail.slice(from as usize..to as usize)) }
        };
        let mut reader = Reader(part(footer.tail_at, footer.index_at)?);
        let mut floors = KeyRanges::default();
        for _ in 0..footer.floors {
            floors.add(KeyRange { from: reader.bytes()?, to: reader.bytes()? });
        }
        let index = part(footer.index_at, footer.filter_at)?;
        let index_at = (footer.index_at - footer.tail_at) as usize;
        let mut reader = Reader(index.clone());
        let (mut pages, mut at) = (Vec::new(), HEAD);
        for _ in 0..footer.pages {
            let bytes = u32::try_from(reader.number()?).map_err(|_| DecodeError)?;
            let key_bytes = u32::try_from(reader.number()?).map_err(|_| DecodeError)?;
            let key_at = u32::try_from(index_at + index.len() - reader.0.len()).map_err(|_| DecodeError)?;
            reader.exactly(key_bytes as usize)?;
            pages.push(PageAt { at, bytes, key_at, key_bytes });
            at += u64::from(bytes);
        }
        let mut end = reader.bytes()?.to_vec();
        end.push(0);
        let filter = Filter::new(part(footer.filter_at, footer.tail_at + tail.len() as u64)?);
        if at == footer.tail_at { Ok(Self { floors, pages, end, filter }) } else { Err(DecodeError) }
    }
}

impl Footer {
    /// Writes the footer and returns its checksum.
    pub(crate) fn write(&self, out: &mut Vec<u8>) -> u32 {
        let start = out.len();
        let Self { number, entries, pages, floors, tail_at, index_at, filter_at, tail_sum, pages_sum } =
            *self;
        for field in [number, entries, pages, floors, tail_at, index_at, filter_at] {
            out.fixed64(field);
        }
        out.fixed32(tail_sum);
        out.fixed32(pages_sum);
        let sum = checksum(0, &[&out[start..]]);
        out.fixed32(sum);
        sum
    }

    /// Verifies a footer; returns it with its checksum.
    fn read(bytes: Bytes) -> Result<(Self, u32), DecodeError> {
        let sum = checksum(0, &[&bytes[..FOOTER_BYTES - 4]]);
        if sum.to_le_bytes() != bytes[FOOTER_BYTES - 4..] {
            return Err(DecodeError);
        }
        let mut reader = Reader(bytes);
        let footer = Self {
            number: reader.fixed64()?,
            entries: reader.fixed64()?,
            pages: reader.fixed64()?,
            floors: reader.fixed64()?,
            tail_at: reader.fixed64()?,
            index_at: reader.fixed64()?,
            filter_at: reader.fixed64()?,
            tail_sum: reader.fixed32()?,
            pages_sum: reader.fixed32()?,
        };
        Ok((footer, sum))
    }
}
