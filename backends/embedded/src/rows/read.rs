//! Reading through all layers, newest first: one row, or rows in order.
//!
//! [`Layers`] goes through several layers at once; merging uses it as well.

use std::sync::Arc;

use bytes::Bytes;
use tidings_engine::log::StateMachine;
use tidings_engine::log::rows::{Row, RowSpan, RowTable, take_into};

use super::change::key_in;
use super::file::{RowFile, RowFiles};
use super::filter::KeyHash;
use super::layer::{Entry, Found};
use super::ranges::{KeyRange, KeyRanges};
use crate::error::OpenError;
use crate::state::{Memtable, StoreState};

/// Result of looking up a row under the lock.
pub(crate) enum RowPlan {
    /// Memory knows.
    Done(Option<Bytes>),
    /// Files must be read.
    Disk(RowRead),
}

/// A look-up of a row that needs files, to be run without the lock.
pub(crate) struct RowRead {
    key: Vec<u8>,
    hash: KeyHash,
    files: RowFiles,
    /// Number of the files that may know something of the key; later ones do not.
    files_left: usize,
}

/// A read of rows in order, to be run without the lock.
pub(crate) struct RowsRead {
    range: KeyRange,
    span: RowSpan,
    /// Entries and floors of the current memtable, as they were.
    current: Vec<Entry>,
    floors: KeyRanges,
    /// Complete memtables, newest first.
    memtables: Vec<Arc<Memtable>>,
    files: RowFiles,
}

impl<T: StateMachine> StoreState<T> {
    /// Looks up a row in memory, or returns the look-up to run on files.
    pub(crate) fn row(&self, table: RowTable, key: &[u8]) -> RowPlan {
        let key = key_in(table, key);
        let complete = self.memtables.iter().rev().map(|memtable| &memtable.rows);
        for layer in std::iter::once(&self.rows).chain(complete) {
            match layer.find(&key) {
                Found::Row(value) => return RowPlan::Done(Some(value)),
                Found::Gone => return RowPlan::Done(None),
                Found::Unknown => {}
            }
        }
        let hash = KeyHash::of(&key);
        match files_with(&self.row_files, &key, hash, self.row_files.len()) {
            Some(files_left) => {
                RowPlan::Disk(RowRead { key, hash, files: self.row_files.clone(), files_left })
            }
            None => RowPlan::Done(None),
        }
    }

    /// Begins a read of rows in order.
    pub(crate) fn rows(&self, table: RowTable, span: RowSpan) -> RowsRead {
        let range = KeyRange { from: key_in(table, &span.from).into(), to: key_in(table, &span.to).into() };
        RowsRead {
            current: self.rows.first_entries(&range, &span),
            floors: self.rows.floors().within(&range.from, &range.to),
            memtables: self.memtables.iter().rev().cloned().collect(),
            files: self.row_files.clone(),
            range,
            span,
        }
    }
}

/// Of the oldest `count` files, how many are left when the newer ones that know nothing of a key are put aside; `None` if no
/// file knows anything of it. Reads no file.
fn files_with(files: &RowFiles, key: &[u8], hash: KeyHash, count: usize) -> Option<usize> {
    for (older, file) in files[..count].iter().enumerate().rev() {
        if file.may_have(hash) {
            return Some(older + 1);
        }
        if file.floors().has(key) {
            return None;
        }
    }
    None
}

impl RowRead {
    /// Reads files until one knows the row.
    pub(crate) fn run(mut self) -> Result<Option<Bytes>, OpenError> {
        loop {
            match self.files[self.files_left - 1].find(&self.key, self.hash)? {
                Found::Row(value) => return Ok(Some(value)),
                Found::Gone => return Ok(None),
                Found::Unknown => {}
            }
            match files_with(&self.files, &self.key, self.hash, self.files_left - 1) {
                Some(files_left) => self.files_left = files_left,
                None => return Ok(None),
            }
        }
    }
}

impl RowsRead {
    /// Whether files must be read.
    pub(crate) fn needs_files(&self) -> bool {
        self.files.iter().any(|file| file.overlaps(&self.range))
    }

    /// Reads the rows.
    pub(crate) fn run(mut self) -> Result<Vec<Row>, OpenError> {
        let current = Layer::new(&self.floors, Cursor::Taken(self.current.into_iter()));
        let mut layers = vec![current];
        for memtable in &self.memtables {
            let entries = Cursor::Memory(Box::new(memtable.rows.entries(&self.range)));
            layers.push(Layer::new(memtable.rows.floors(), entries));
        }
        layers.extend(self.files.iter().rev().map(|file| Layer::of_file(file, &self.range)));
        let mut layers = Layers::new(layers)?;
        let mut rows = Vec::new();
        while let Some((_, Entry { key, value })) = layers.next()? {
            let Some(value) = value else { continue };
            if !take_into(&mut rows, &mut self.span, Row { key: key.slice(1..), value }) {
                break;
            }
        }
        // Rows of files share the memory of their pages, which they must not keep.
        for row in &mut rows {
            *row = Row { key: Bytes::copy_from_slice(&row.key), value: Bytes::copy_from_slice(&row.value) };
        }
        Ok(rows)
    }
}

/// Several layers that are read at once, newest first.
pub(crate) struct Layers<'a>(Vec<Layer<'a>>);

/// One layer that is read in order.
pub(crate) struct Layer<'a> {
    floors: &'a KeyRanges,
    cursor: Cursor<'a>,
    head: Option<Entry>,
}

enum Cursor<'a> {
    Taken(std::vec::IntoIter<Entry>),
    Memory(Box<dyn Iterator<Item = Entry> + 'a>),
    File(FileCursor<'a>),
}

struct FileCursor<'a> {
    file: &'a RowFile,
    range: KeyRange,
    next_page: usize,
    entries: std::vec::IntoIter<Entry>,
}

impl<'a> Layer<'a> {
    fn new(floors: &'a KeyRanges, cursor: Cursor<'a>) -> Self {
        Self { floors, cursor, head: None }
    }

    /// A layer that has nothing and hides others.
    pub(crate) fn of_floors(floors: &'a KeyRanges) -> Self {
        Self::new(floors, Cursor::Taken(Vec::new().into_iter()))
    }

    /// The entries of a file that lie in a range.
    pub(crate) fn of_file(file: &'a RowFile, range: &KeyRange) -> Self {
        let next_page = file.page_of(&range.from).unwrap_or(0);
        let cursor = FileCursor { file, range: range.clone(), next_page, entries: Vec::new().into_iter() };
        Self::new(file.floors(), Cursor::File(cursor))
    }

    /// Advances to the next entry that the newer layers do not hide.
    fn advance(&mut self, newer: &[Layer<'_>]) -> Result<(), OpenError> {
        loop {
            self.head = match &mut self.cursor {
                Cursor::Taken(entries) => entries.next(),
                Cursor::Memory(entries) => entries.next(),
                Cursor::File(cursor) => cursor.next(newer)?,
            };
            let hidden = |entry: &Entry| newer.iter().any(|layer| layer.floors.has(&entry.key));
            if !self.head.as_ref().is_some_and(hidden) {
                return Ok(());
            }
        }
    }
}

impl FileCursor<'_> {
    /// The next entry of the range. Pages that newer layers hide as a whole are not read.
    fn next(&mut self, newer: &[Layer<'_>]) -> Result<Option<Entry>, OpenError> {
        loop {
            for entry in self.entries.by_ref() {
                if entry.key >= self.range.to {
                    self.next_page = self.file.pages();
                    self.entries = Vec::new().into_iter();
                    return Ok(None);
                }
                if entry.key >= self.range.from {
                    return Ok(Some(entry));
                }
            }
            if self.next_page >= self.file.pages() {
                return Ok(None);
            }
            let number = self.next_page;
            let (first, end) = self.file.page_range(number);
            if first >= &self.range.to[..] {
                return Ok(None);
            }
            self.next_page += 1;
            if !newer.iter().any(|layer| layer.floors.has_all(first, end)) {
                self.entries = self.file.page(number)?.into_iter();
            }
        }
    }
}

impl<'a> Layers<'a> {
    /// Begins to read layers, newest first.
    pub(crate) fn new(mut layers: Vec<Layer<'a>>) -> Result<Self, OpenError> {
        for n in 0..layers.len() {
            let (newer, rest) = layers.split_at_mut(n);
            rest[0].advance(newer)?;
        }
        Ok(Self(layers))
    }

    /// Returns the next entry in ascending order of keys, with the number of its layer: for each key that of the newest
    /// layer, unless a newer one has cleared it.
    pub(crate) fn next(&mut self) -> Result<Option<(usize, Entry)>, OpenError> {
        let mut least: Option<(usize, &Bytes)> = None;
        for (n, layer) in self.0.iter().enumerate() {
            if let Some(entry) = &layer.head
                && least.is_none_or(|(_, key)| entry.key < *key)
            {
                least = Some((n, &entry.key));
            }
        }
        let Some((newest, _)) = least else { return Ok(None) };
        let (newer, rest) = self.0.split_at_mut(newest);
        let entry = rest[0].head.take().expect("the least key is that of a head");
        rest[0].advance(newer)?;
        for n in newest + 1..self.0.len() {
            let (newer, rest) = self.0.split_at_mut(n);
            if rest[0].head.as_ref().is_some_and(|head| head.key == entry.key) {
                rest[0].advance(newer)?;
            }
        }
        Ok(Some((newest, entry)))
    }
}
