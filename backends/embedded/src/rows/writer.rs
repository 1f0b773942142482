//! Writes a file of rows: pages in order, then what is kept in memory of them.
//!
//! The format is described in [`super::file`].

use std::io;

use super::file::{FOLDER, Footer, HEAD, MAGIC, RowFileName, VERSION, file_name, page_salt};
use super::filter::{FilterBuilder, KeyHash};
use super::page::PageBuilder;
use super::ranges::KeyRanges;
use crate::codec::{Checksum, Writer, checksum};
use crate::disk::{Disk, DiskFile};

/// Bytes that are buffered before a write.
const BUFFER: usize = 1 << 20;

/// A file of rows under construction. Keys must be added in ascending order.
pub struct RowFileWriter {
    file: Box<dyn DiskFile>,
    number: u64,
    buffer: Vec<u8>,
    written: u64,
    page: PageBuilder,
    /// Index of the complete pages, as it is written.
    index: Vec<u8>,
    filter: FilterBuilder,
    pages_sum: Checksum,
    footer: Footer,
    last: Vec<u8>,
}

impl RowFileWriter {
    /// Creates the file, for at most so many entries.
    pub fn create(disk: &dyn Disk, number: u64, entries_max: u64) -> io::Result<Self> {
        let file = disk.create(&file_name(number))?;
        let mut buffer = MAGIC.to_vec();
        buffer.fixed32(VERSION);
        buffer.fixed32(0);
        debug_assert_eq!(buffer.len() as u64, HEAD);
        Ok(Self {
            file,
            number,
            buffer,
            written: 0,
            page: PageBuilder::default(),
            index: Vec::new(),
            filter: FilterBuilder::for_keys(entries_max),
            pages_sum: Checksum::begin(number),
            footer: Footer { number, ..Footer::default() },
            last: Vec::new(),
        })
    }

    /// Adds a row, or with `None` that it was deleted.
    pub fn push(&mut self, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        if self.page.has_no_space_for(key, value) {
            self.end_page()?;
        }
        self.page.push(key, value);
        self.filter.add(KeyHash::of(key));
        self.footer.entries += 1;
        Ok(())
    }

    /// Number of entries so far.
    pub fn entries(&self) -> u64 {
        self.footer.entries
    }

    /// Completes the file and makes it durable. `floors` are the ranges that were cleared before its rows were written.
    pub fn finish(mut self, disk: &dyn Disk, floors: &KeyRanges) -> io::Result<RowFileName> {
        self.end_page()?;
        let mut tail = Vec::new();
        for range in floors.iter() {
            tail.bytes(&range.from);
            tail.bytes(&range.to);
        }
        self.footer.floors = floors.len() as u64;
        self.footer.tail_at = self.end();
        self.footer.index_at = self.end() + tail.len() as u64;
        tail.append(&mut self.index);
        tail.bytes(&self.last);
        self.footer.filter_at = self.end() + tail.len() as u64;
        tail.append(&mut std::mem::replace(&mut self.filter, FilterBuilder::for_keys(0)).finish());
        self.footer.tail_sum = checksum(self.number, &[&tail]);
        self.footer.pages_sum = std::mem::replace(&mut self.pages_sum, Checksum::begin(0)).end();
        self.buffer.append(&mut tail);
        let sum = self.footer.write(&mut self.buffer);
        self.flush(0)?;
        self.file.sync()?;
        disk.sync_folder(FOLDER)?;
        Ok(RowFileName { number: self.number, sum })
    }

    fn end_page(&mut self) -> io::Result<()> {
        if self.page.is_empty() {
            return Ok(());
        }
        let start = self.buffer.len();
        let at = self.end();
        self.last.clear();
        self.last.extend_from_slice(self.page.last());
        let first = self.page.first().to_vec();
        let sum = self.page.finish(page_salt(self.number, at), &mut self.buffer);
        self.pages_sum.add(&sum.to_le_bytes());
        self.index.number((self.buffer.len() - start) as u64);
        self.index.bytes(&first);
        self.footer.pages += 1;
        self.flush(BUFFER)
    }

    fn end(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn flush(&mut self, above: usize) -> io::Result<()> {
        if self.buffer.len() > above {
            self.file.write_at(self.written, &self.buffer)?;
            self.written += self.buffer.len() as u64;
            self.buffer.clear();
        }
        Ok(())
    }
}
