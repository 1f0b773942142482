//! The write-ahead log: files of a fixed size that are allocated once, filled with zeros, and reused.
//!
//! Overwriting allocated blocks is the fastest durable write there is, because the file system has no
//! metadata to write. A file starts with two copies of its header (version, sequence number, salt, length);
//! frames follow from byte 8192. A reused file gets a new salt, so that the checksums of older frames in it
//! no longer match.
//!
//! Only one frame is written at a time. So an unreadable frame with nothing readable after it is the torn end
//! of the log, and one with something readable after it is damage of acknowledged data: then the store
//! refuses to start.
//!
//! The manifest names the files of the log, each before its first frame is written, and says how far the log
//! was durable. A named file that is missing or altered, and a log that ends earlier, are refused as well.
//!
//! Read [`Wal`] (writing), [`WalFilePool`] (reuse of files), then `reading` (recovery).

mod reading;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use tidings_model::CommitNumber;

use crate::codec::{DecodeError, Reader, Writer, checksum};
use crate::disk::{Disk, DiskFile};
use crate::error::{InFile, OpenError};
use crate::frame::{ALIGNMENT, Content, Frame};
use reading::{Files, WritePoint};

/// Folder of the log's files.
pub const FOLDER: &str = "wal";
/// Byte offset of the first frame in a file.
pub const FIRST_FRAME: u64 = 2 * ALIGNMENT as u64;

const MAGIC: &[u8; 8] = b"tidingsW";
const VERSION: u32 = 5;
/// Bytes that are read or zeroed at a time.
const WINDOW: usize = 1 << 20;

/// The log as its single writer sees it.
pub struct Wal {
    disk: Arc<dyn Disk>,
    file_bytes: u64,
    current: WalFile,
    offset: u64,
    /// Checksum of the last frame.
    chain: u32,
    pool: Arc<WalFilePool>,
}

/// A file of the log as the manifest names it: what its header must say, and what it must contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// Number from which its name is formed.
    pub number: u64,
    /// Place in the sequence of the log's files; new each time the file is reused.
    pub sequence: u64,
    /// Salt of its checksums; new each time the file is reused.
    pub salt: u64,
    /// Its last commit, if the file is known to be full.
    pub last: Option<CommitNumber>,
}

impl LogFile {
    /// Path of the file in the store's folder.
    pub fn name(&self) -> String {
        file_name(self.number)
    }
}

/// Path of the log file with a number.
fn file_name(number: u64) -> String {
    format!("{FOLDER}/{number:06}")
}

/// One open file of the log.
struct WalFile {
    file: Box<dyn DiskFile>,
    id: LogFile,
    /// Length in bytes according to its header.
    length: u64,
}

/// The log's files that are not being written: full ones, empty ones and the next one. Shared with the
/// maintenance thread, which frees files and prepares the next.
pub struct WalFilePool {
    disk: Arc<dyn Disk>,
    file_bytes: u64,
    pooled: Mutex<PooledFiles>,
    /// Number of full files, readable without the lock, which is held while a file is created.
    full: AtomicUsize,
}

struct PooledFiles {
    /// Full files, oldest first, each with its last commit.
    full: VecDeque<WalFile>,
    /// File that is being written.
    current: LogFile,
    /// Files whose content is no longer needed. No manifest names them.
    empty: Vec<WalFile>,
    /// File with a fresh header, ready to be written.
    next: Option<WalFile>,
    next_sequence: u64,
    next_number: u64,
    /// Secret from which the salt of each file is derived; no client knows it.
    secret: u64,
}

/// A point in the log: a commit and the checksum of its frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Last commit.
    pub number: CommitNumber,
    /// Checksum of its frame.
    pub chain: u32,
}

/// What the manifest says about the log.
#[derive(Clone, Debug)]
pub struct KnownLog {
    /// Commits up to here are in segments and the checkpoint; only later ones are replayed.
    pub applied: End,
    /// The log was durable at least up to here.
    pub reached: End,
    /// Files of the log, oldest first.
    pub files: Vec<LogFile>,
}

/// Makes durable that these files, and no others, form the log.
pub type Record<'a> = dyn Fn(Vec<LogFile>) -> io::Result<()> + 'a;

/// Reads a log as [`Wal::open`] does, without changing anything.
pub fn inspect(
    disk: &dyn Disk,
    known: &KnownLog,
    mut replay: impl FnMut(Content) -> Result<(), OpenError>,
) -> Result<End, OpenError> {
    let mut files = Files::list(disk, known)?;
    files.refuse_problems()?;
    let (end, point) = files.replay(known, &mut replay)?;
    files.refuse_loss(known, end, point)?;
    Ok(end)
}

/// Returns everything that is wrong with a log.
pub fn check(
    disk: &dyn Disk,
    known: &KnownLog,
    replay: impl FnMut(Content) -> Result<(), OpenError>,
) -> Vec<OpenError> {
    match Files::list(disk, known) {
        // When files are missing, errors of the rest are a consequence and not reported.
        Ok(files) if !files.problems.is_empty() => files.problems,
        Ok(_) => inspect(disk, known, replay).err().into_iter().collect(),
        Err(error) => vec![error],
    }
}

/// A log that is about to be truncated after its last contiguous commit.
pub struct Cut {
    files: Files,
    point: Option<WritePoint>,
    /// Last commit that remains.
    pub end: End,
}

impl Cut {
    /// Finds where to truncate a damaged log.
    pub fn plan(disk: &dyn Disk, known: &KnownLog) -> Result<Self, OpenError> {
        let mut files = Files::list(disk, known)?;
        let (end, point) = files.replay(known, &mut |_| Ok(()))?;
        Ok(Self { files, point, end })
    }

    /// Finds where to truncate a copy that was made while the log was being written: it may have frames
    /// without their predecessors. Fails if it lacks anything that was durable when the copy began.
    pub fn plan_copy(disk: &dyn Disk, known: &KnownLog) -> Result<Self, OpenError> {
        let mut cut = Self::plan(disk, known)?;
        cut.files.refuse_problems()?;
        cut.files.refuse_early_end(known, cut.end, cut.point)?;
        Ok(cut)
    }

    /// The files that remain.
    pub fn kept(&self) -> Vec<LogFile> {
        let Some(point) = self.point else { return Vec::new() };
        let mut kept: Vec<LogFile> = self.files.used[..=point.file].iter().map(|file| file.id).collect();
        kept[point.file].last = None;
        kept
    }

    /// Truncates the log. In a store, a manifest that names only the remaining files must be durable before.
    pub fn make(self, disk: &dyn Disk) -> Result<(), OpenError> {
        for (n, file) in self.files.used.iter().enumerate() {
            let name = file.id.name();
            match self.point {
                Some(point) if n < point.file => {
                    // The file may have been shortened after its last frame.
                    let length = file.file.len().in_file(&name)?;
                    file.clear_from(length)?;
                }
                Some(point) if n == point.file => file.clear_from(point.offset)?,
                _ => disk.remove(&name).in_file(&name)?,
            }
        }
        disk.sync_folder(FOLDER).in_file(FOLDER)
    }
}

impl Wal {
    /// Recovers the log: passes each frame after [`KnownLog::applied`] to `replay` and prepares for writing.
    /// `record` gets the list of files before any of them is overwritten, and the end of the log.
    pub fn open(
        disk: Arc<dyn Disk>,
        file_bytes: u64,
        secret: u64,
        known: &KnownLog,
        mut replay: impl FnMut(Content) -> Result<(), OpenError>,
        mut record: impl FnMut(Vec<LogFile>, End) -> Result<(), OpenError>,
    ) -> Result<(Self, Arc<WalFilePool>, End), OpenError> {
        let mut files = Files::list(&*disk, known)?;
        files.refuse_problems()?;
        let (end, point) = files.replay(known, &mut replay)?;
        files.refuse_loss(known, end, point)?;
        // If the process was killed, frames that were read may not be on the disk yet, and readers will see
        // them now. The last one is written again: after a failed sync the system may consider it written
        // although it is not.
        if let Some(point) = point {
            let file = &files.used[point.file];
            if let Some((_, bytes)) = file.frame(point.last)? {
                file.file.write_at(point.last, &bytes).in_file(&file.id.name())?;
            }
        }
        for file in &files.used {
            file.file.sync().in_file(&file.id.name())?;
        }
        let (wal, pool) =
            files.into_wal(disk, file_bytes, secret, (end, point), &mut |files| record(files, end))?;
        Ok((wal, pool, end))
    }

    /// Checksum of the last frame.
    pub fn chain(&self) -> u32 {
        self.chain
    }

    /// Size in bytes of the largest frame that fits a file.
    pub fn frame_bytes_max(&self) -> usize {
        (self.file_bytes - FIRST_FRAME) as usize
    }

    /// Number of full files that may still be needed for recovery.
    pub fn full_files(&self) -> usize {
        self.pool.full.load(Ordering::Relaxed)
    }

    /// Makes sure that a frame of `bytes` can be written, switching to the next file if needed; returns
    /// whether it switched. Fails without a change if there is no space for another file.
    pub fn make_room(&mut self, bytes: usize, last: CommitNumber, record: &Record) -> io::Result<bool> {
        let sealed = bytes.next_multiple_of(ALIGNMENT) as u64;
        if self.offset + sealed <= self.file_bytes {
            return Ok(false);
        }
        let mut pooled = self.pool.pooled();
        let next = match pooled.next.take() {
            Some(next) => next,
            None => pooled.prepare(&*self.disk, self.file_bytes, record)?,
        };
        pooled.current = next.id;
        let mut full = std::mem::replace(&mut self.current, next);
        full.id.last = Some(last);
        pooled.full.push_back(full);
        self.pool.full.store(pooled.full.len(), Ordering::Relaxed);
        self.offset = FIRST_FRAME;
        Ok(true)
    }

    /// Writes a frame and makes it durable. [`Wal::make_room`] must have been called for it.
    pub fn write(&mut self, frame: &mut Frame) -> io::Result<()> {
        let chain = frame.seal(self.current.id.salt, self.chain);
        self.current.file.write_at(self.offset, frame.sealed())?;
        self.current.file.sync()?;
        self.offset += frame.sealed().len() as u64;
        self.chain = chain;
        Ok(())
    }
}

impl WalFilePool {
    /// Frees files whose commits are all at or below `applied`, and prepares the next file.
    pub fn refill(&self, applied: CommitNumber, record: &Record) -> io::Result<()> {
        /// Empty files that are kept for reuse; others are removed.
        const EMPTY_MAX: usize = 2;
        let mut pooled = self.pooled();
        let free =
            pooled.full.iter().take_while(|file| file.id.last.is_some_and(|last| last <= applied)).count();
        if free > 0 {
            record(pooled.files().skip(free).collect())?;
            let freed: Vec<_> = pooled.full.drain(..free).collect();
            pooled.empty.extend(freed);
        }
        self.full.store(pooled.full.len(), Ordering::Relaxed);
        if pooled.next.is_none() {
            let next = pooled.prepare(&*self.disk, self.file_bytes, record)?;
            pooled.next = Some(next);
        }
        while pooled.empty.len() > EMPTY_MAX {
            let file = pooled.empty.pop().expect("there are some");
            self.disk.remove(&file.id.name())?;
        }
        Ok(())
    }

    /// Records the current list of files.
    pub fn record(&self, record: &Record) -> io::Result<()> {
        let pooled = self.pooled();
        record(pooled.files().collect())
    }

    fn pooled(&self) -> MutexGuard<'_, PooledFiles> {
        self.pooled.lock().expect("nobody panics while holding the pool")
    }
}

impl PooledFiles {
    /// The files that form the log, oldest first.
    fn files(&self) -> impl Iterator<Item = LogFile> {
        let full = self.full.iter().map(|file| file.id);
        full.chain([self.current]).chain(self.next.iter().map(|file| file.id))
    }

    /// Returns a file with a fresh header, recorded as the last of the log.
    fn prepare(&mut self, disk: &dyn Disk, file_bytes: u64, record: &Record) -> io::Result<WalFile> {
        let next = self.begin(disk, file_bytes)?;
        match record(self.files().chain([next.id]).collect()) {
            Ok(()) => Ok(next),
            Err(error) => {
                self.empty.push(next);
                Err(error)
            }
        }
    }

    /// Returns a file with a fresh header, made from an empty file or created.
    fn begin(&mut self, disk: &dyn Disk, file_bytes: u64) -> io::Result<WalFile> {
        let sequence = self.next_sequence;
        let salt = splitmix64(self.secret ^ sequence);
        let mut used = match self.empty.pop() {
            Some(used) => used,
            None => self.make(disk, file_bytes)?,
        };
        let header = Header { sequence, salt, length: file_bytes }.bytes();
        // The copies are written and synced one after the other, so one of them is intact at any time.
        for copy in 0..2 {
            used.file.write_at(copy * ALIGNMENT as u64, &header)?;
            used.file.sync()?;
        }
        self.next_sequence += 1;
        used.id = LogFile { number: used.id.number, sequence, salt, last: None };
        Ok(used)
    }

    /// Creates a file of full length without a header. A file with a header that is shorter was shortened
    /// later.
    fn make(&mut self, disk: &dyn Disk, file_bytes: u64) -> io::Result<WalFile> {
        let id = LogFile { number: self.next_number, sequence: 0, salt: 0, last: None };
        let file = disk.create(&id.name())?;
        let fill = || -> io::Result<()> {
            write_zeros(&*file, 0, file_bytes)?;
            disk.sync_folder(FOLDER)
        };
        if let Err(error) = fill() {
            // Part of a file would waste space that is scarce now. If removing it fails, the next start
            // removes it.
            let _ = disk.remove(&id.name());
            return Err(error);
        }
        self.next_number += 1;
        Ok(WalFile { file, id, length: file_bytes })
    }
}

/// Overwrites a range of a file with zeros, durably.
fn write_zeros(file: &dyn DiskFile, mut offset: u64, end: u64) -> io::Result<()> {
    let zeros = vec![0; WINDOW];
    while offset < end {
        let part = (end - offset).min(zeros.len() as u64);
        file.write_at(offset, &zeros[..part as usize])?;
        offset += part;
    }
    file.sync()
}

/// Header of a file, stored twice at its beginning.
#[derive(Clone, Copy)]
struct Header {
    sequence: u64,
    salt: u64,
    /// Length of the file in bytes.
    length: u64,
}

impl Header {
    const BYTES: usize = 40;

    fn bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.fixed32(VERSION);
        bytes.fixed64(self.sequence);
        bytes.fixed64(self.salt);
        bytes.fixed64(self.length);
        let sum = checksum(0, &[&bytes]);
        bytes.fixed32(sum);
        bytes
    }

    /// Decodes a header; `None` if magic or checksum do not match.
    fn read(name: &str, page: &[u8]) -> Result<Option<Self>, OpenError> {
        let (content, sum) = page[..Self::BYTES].split_at(Self::BYTES - 4);
        if content[..8] != MAGIC[..] || sum != checksum(0, &[content]).to_le_bytes() {
            return Ok(None);
        }
        let mut reader = Reader(Bytes::copy_from_slice(&content[8..]));
        let mut fields = || Ok((reader.fixed32()?, reader.fixed64()?, reader.fixed64()?, reader.fixed64()?));
        let fields: Result<_, DecodeError> = fields();
        let (version, sequence, salt, length) = fields.in_file(name)?;
        if version != VERSION {
            return Err(OpenError::Version { name: name.to_owned(), found: version, expected: VERSION });
        }
        Ok(Some(Self { sequence, salt, length }))
    }
}

/// The finalizer of SplitMix64: spreads a number over all bits, so that consecutive inputs give unrelated
/// outputs.
fn splitmix64(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
