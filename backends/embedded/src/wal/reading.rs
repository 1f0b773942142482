//! Recovery of the write-ahead log: finds its files and its end, and tells a torn end from damage.
//!
//! [`Files::list`] compares files with the manifest, [`Files::replay`] reads frames, the `refuse_` functions
//! detect lost commits, and [`Files::into_wal`] makes the log writable.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tidings_model::CommitNumber;

use super::{
    End, FIRST_FRAME, FOLDER, Header as FileHeader, KnownLog, LogFile, PooledFiles, WINDOW, Wal, WalFile,
    WalFilePool, file_name, write_zeros,
};
use crate::disk::{Disk, DiskFile};
use crate::error::{InFile, OpenError};
use crate::frame::{ALIGNMENT, Content, HEADER, Header, read};

/// The files of a log that is being opened.
pub(super) struct Files {
    /// Files that the manifest names and that are readable, oldest first.
    pub(super) used: Vec<WalFile>,
    /// Files that the manifest does not name: freed ones, or ones whose creation was interrupted.
    spare: Vec<WalFile>,
    /// Last commit found in each file of `used`; filled by [`Files::replay`].
    seen: Vec<Option<CommitNumber>>,
    /// What is wrong with files that the manifest names.
    pub(super) problems: Vec<OpenError>,
    last_number: u64,
    last_sequence: u64,
}

/// Where writing continues: a file and an offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WritePoint {
    pub(super) file: usize,
    /// Offset of the last frame.
    pub(super) last: u64,
    /// Offset of the next frame.
    pub(super) offset: u64,
}

impl Files {
    pub(super) fn list(disk: &dyn Disk, known: &KnownLog) -> Result<Self, OpenError> {
        let mut found = BTreeMap::new();
        for short in disk.list(FOLDER).in_file(FOLDER)? {
            let name = format!("{FOLDER}/{short}");
            let number = short.parse().ok().filter(|&number| file_name(number) == name);
            let number =
                number.ok_or_else(|| OpenError::Foreign { folder: FOLDER.to_owned(), name: short })?;
            let file = disk.open(&name).in_file(&name)?;
            let header = read_header(&*file, &name)?;
            found.insert(number, (file, header));
        }
        let last_number = found.keys().copied().chain(known.files.iter().map(|file| file.number)).max();
        let headers = found.values().filter_map(|(_, header)| *header).map(|header| header.sequence);
        let last_sequence = headers.chain(known.files.iter().map(|file| file.sequence)).max();
        let mut files = Self {
            used: Vec::new(),
            spare: Vec::new(),
            seen: Vec::new(),
            problems: Vec::new(),
            last_number: last_number.unwrap_or(0),
            last_sequence: last_sequence.unwrap_or(0),
        };
        for &id in &known.files {
            let problem = match found.remove(&id.number) {
                None => Some("is missing".to_owned()),
                Some((_, None)) => Some("is damaged (both copies of its header are unreadable)".to_owned()),
                Some((_, Some(header))) if (header.sequence, header.salt) != (id.sequence, id.salt) => {
                    let FileHeader { sequence, .. } = header;
                    Some(format!("was replaced (it is file {sequence} of the log, not {})", id.sequence))
                }
                Some((file, Some(header))) => {
                    let length = file.len().in_file(&id.name())?;
                    files.used.push(WalFile { file, id, length: header.length });
                    let short = length < header.length;
                    short.then(|| format!("was shortened (it has {length} bytes of {})", header.length))
                }
            };
            files.problems.extend(problem.map(|what| OpenError::LogFile { name: id.name(), what }));
        }
        for (number, (file, header)) in found {
            let id = LogFile { number, sequence: 0, salt: 0, last: None };
            files.spare.push(WalFile { file, id, length: header.map_or(0, |header| header.length) });
        }
        Ok(files)
    }

    pub(super) fn refuse_problems(&mut self) -> Result<(), OpenError> {
        self.problems.drain(..).next().map_or(Ok(()), Err)
    }

    /// Replays frames after [`KnownLog::applied`]; returns the end of the log and where writing continues.
    pub(super) fn replay(
        &mut self,
        known: &KnownLog,
        replay: &mut impl FnMut(Content) -> Result<(), OpenError>,
    ) -> Result<(End, Option<WritePoint>), OpenError> {
        let (applied, mut end) = (known.applied.number, known.applied);
        let mut point = None;
        for (n, file) in self.used.iter().enumerate() {
            let mut seen = None;
            let name = file.id.name();
            let length = file.file.len().in_file(&name)?;
            let mut offset = FIRST_FRAME;
            while offset < length {
                let Some((header, bytes)) = file.frame(offset)? else {
                    if end.number > applied {
                        break;
                    }
                    // Frames that are no longer needed may be damaged; search for the next readable one.
                    offset += ALIGNMENT as u64;
                    continue;
                };
                if header.number > end.number {
                    if header.before != end.chain {
                        break;
                    }
                    // Records keep the memory of their frame: only as much as it has, without what fills up its last page.
                    let content = Bytes::copy_from_slice(&bytes[HEADER..HEADER + header.length]);
                    replay(read(header.number, content).in_file(&name)?)?;
                    end = End { number: header.number, chain: header.checksum };
                }
                seen = seen.max(Some(header.number));
                let last = offset;
                offset += (HEADER + header.length).next_multiple_of(ALIGNMENT) as u64;
                if header.number == end.number {
                    point = Some(WritePoint { file: n, last, offset });
                }
            }
            self.seen.push(seen);
        }
        Ok((end, point))
    }

    /// Fails if acknowledged commits are lost.
    pub(super) fn refuse_loss(
        &self,
        known: &KnownLog,
        end: End,
        point: Option<WritePoint>,
    ) -> Result<(), OpenError> {
        self.refuse_rot(end, point)?;
        self.refuse_early_end(known, end, point)
    }

    /// Fails if a readable frame follows the end of the log: then a frame before it was lost.
    fn refuse_rot(&self, end: End, point: Option<WritePoint>) -> Result<(), OpenError> {
        for (n, file) in self.used.iter().enumerate() {
            let start = match point {
                Some(point) if n == point.file => point.offset,
                Some(point) if n < point.file => continue,
                _ => FIRST_FRAME,
            };
            if file.has_frame_after(start, end.number)? {
                let (name, offset) = self.broken_at(end, point).unwrap_or_else(|| (file.id.name(), start));
                return Err(OpenError::Rot { name, offset, lost: end.number.next() });
            }
        }
        Ok(())
    }

    /// Fails if the log, or one of its full files, ends before the commit that the manifest says was durable.
    pub(super) fn refuse_early_end(
        &self,
        known: &KnownLog,
        end: End,
        point: Option<WritePoint>,
    ) -> Result<(), OpenError> {
        let full = self.used.iter().filter_map(|file| file.id.last).max().unwrap_or_default();
        let reached = known.reached.number.max(full);
        let other = end.number == known.reached.number && end.chain != known.reached.chain;
        if end.number >= reached && !other {
            return Ok(());
        }
        let (name, offset) = self.broken_at(end, point).unwrap_or_else(|| (FOLDER.to_owned(), 0));
        Err(OpenError::EndsEarly { name, offset, lost: end.number.next(), reached })
    }

    /// Where the missing frame should be: after the last one, or at the start of the next file if that file
    /// is full.
    fn broken_at(&self, end: End, point: Option<WritePoint>) -> Option<(String, u64)> {
        let unfinished = |file: &&WalFile| file.id.last.is_none_or(|last| last > end.number);
        let first = point.map_or(0, |point| point.file);
        let file = self.used[first..].iter().find(unfinished)?;
        let offset = match point {
            Some(point) if self.used[point.file].id == file.id => point.offset,
            _ => FIRST_FRAME,
        };
        Some((file.id.name(), offset))
    }

    pub(super) fn into_wal(
        self,
        disk: Arc<dyn Disk>,
        file_bytes: u64,
        secret: u64,
        (end, point): (End, Option<WritePoint>),
        record: &mut dyn FnMut(Vec<LogFile>) -> Result<(), OpenError>,
    ) -> Result<(Wal, Arc<WalFilePool>), OpenError> {
        let (mut full, mut current, mut empty, mut unfit) = (VecDeque::new(), None, Vec::new(), Vec::new());
        for ((n, mut file), seen) in self.used.into_iter().enumerate().zip(self.seen) {
            let whole = file.file.len().in_file(&file.id.name())? == file_bytes;
            match point {
                Some(point) if n == point.file && whole => {
                    file.id.last = None;
                    current = Some((file, point.offset));
                }
                Some(point) if n <= point.file => {
                    file.id.last = file.id.last.or(seen).or(Some(end.number));
                    full.push_back(file);
                }
                _ if whole => empty.push(file),
                _ => unfit.push(file),
            }
        }
        for file in self.spare {
            let whole = file.file.len().in_file(&file.id.name())? == file_bytes;
            if whole { empty.push(file) } else { unfit.push(file) }
        }
        let mut pooled = PooledFiles {
            full,
            current: LogFile { number: 0, sequence: 0, salt: 0, last: None },
            empty,
            next: None,
            next_sequence: self.last_sequence + 1,
            next_number: self.last_number + 1,
            secret,
        };
        let recorded = |pooled: &PooledFiles, current: Option<LogFile>| -> Vec<LogFile> {
            pooled.full.iter().map(|file| file.id).chain(current).collect()
        };
        let (current, offset) = match current {
            Some(current) => current,
            None => {
                // The file to be overwritten may be one that the manifest still names.
                record(recorded(&pooled, None))?;
                (pooled.begin(&*disk, file_bytes).in_file(FOLDER)?, FIRST_FRAME)
            }
        };
        pooled.current = current.id;
        record(recorded(&pooled, Some(current.id)))?;
        for file in unfit {
            disk.remove(&file.id.name()).in_file(&file.id.name())?;
        }
        let full = AtomicUsize::new(pooled.full.len());
        let pool = Arc::new(WalFilePool { disk: disk.clone(), file_bytes, pooled: Mutex::new(pooled), full });
        let wal = Wal { disk, file_bytes, current, offset, chain: end.chain, pool: pool.clone() };
        Ok((wal, pool))
    }
}

/// Reads a file's header from the first intact copy.
fn read_header(file: &dyn DiskFile, name: &str) -> Result<Option<FileHeader>, OpenError> {
    if file.len().in_file(name)? < FIRST_FRAME {
        return Ok(None);
    }
    let mut page = vec![0; ALIGNMENT];
    for copy in 0..2 {
        file.read_at(copy * ALIGNMENT as u64, &mut page).in_file(name)?;
        if let Some(header) = FileHeader::read(name, &page)? {
            return Ok(Some(header));
        }
    }
    Ok(None)
}

impl WalFile {
    /// Returns the frame at an offset, header included, if its checksums match.
    pub(super) fn frame(&self, offset: u64) -> Result<Option<(Header, Bytes)>, OpenError> {
        let length = self.file.len().in_file(&self.id.name())?;
        if offset + ALIGNMENT as u64 > length {
            return Ok(None);
        }
        let mut bytes = vec![0; ALIGNMENT];
        self.file.read_at(offset, &mut bytes).in_file(&self.id.name())?;
        let Some(header) = Header::read(self.id.salt, &bytes) else { return Ok(None) };
        let whole = (HEADER + header.length).next_multiple_of(ALIGNMENT);
        if offset + whole as u64 > length {
            return Ok(None);
        }
        if whole > ALIGNMENT {
            bytes.resize(whole, 0);
            self.file.read_at(offset, &mut bytes).in_file(&self.id.name())?;
        }
        Ok(header.fits(self.id.salt, &bytes).then(|| (header, Bytes::from(bytes))))
    }

    /// Overwrites the file with zeros from an offset up to its full length.
    pub(super) fn clear_from(&self, offset: u64) -> Result<(), OpenError> {
        let name = self.id.name();
        let length = self.file.len().in_file(&name)?.max(self.length);
        write_zeros(&*self.file, offset, length).in_file(&name)
    }

    /// Whether the file has a frame at or after `start` whose commit is later than `last`.
    fn has_frame_after(&self, start: u64, last: CommitNumber) -> Result<bool, OpenError> {
        let length = self.file.len().in_file(&self.id.name())?;
        let mut window = vec![0; WINDOW];
        let mut offset = start;
        while offset < length {
            let bytes = ((length - offset) as usize).min(window.len());
            self.file.read_at(offset, &mut window[..bytes]).in_file(&self.id.name())?;
            for page in (0..bytes).step_by(ALIGNMENT) {
                let may_be = Header::read(self.id.salt, &window[page..bytes])
                    .is_some_and(|header| header.number > last);
                if may_be && self.frame(offset + page as u64)?.is_some() {
                    return Ok(true);
                }
            }
            offset += bytes as u64;
        }
        Ok(false)
    }
}
