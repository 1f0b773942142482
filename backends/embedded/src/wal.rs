//! The write-ahead log: files of a fixed size, filled with zeros once and used again and again.
//!
//! Overwriting a file that has its blocks is the fastest durable write there is: the file system has nothing of
//! its own to write. A file begins with two copies of its header (version, sequence number, salt, length); frames follow
//! from byte 8192. When a file is used again it gets a new salt, so that frames of its earlier life fit no checksum.
//!
//! Only one frame is ever being written. So a frame that cannot be read is the torn end of the log if nothing readable
//! comes after it, and rot of acknowledged data if something does: then the store refuses to start.
//!
//! The manifest names the files that are the log, each before its first frame is written, and tells how far the log went
//! at least. A file that is named and not there, or not as it was written, or a log that ends earlier, is refused as well.

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
/// Where frames begin.
pub const FIRST_FRAME: u64 = 2 * ALIGNMENT as u64;

const MAGIC: &[u8; 8] = b"tidingsW";
const VERSION: u32 = 4;
/// How much of a file is read or filled at a time.
const WINDOW: usize = 1 << 20;

/// The log as its one writer has it.
pub struct Wal {
    disk: Arc<dyn Disk>,
    file_bytes: u64,
    current: WalFile,
    offset: u64,
    /// Checksum of the last frame.
    chain: u32,
    pool: Arc<WalFilePool>,
}

/// A file of the log as the manifest names it: what its header must say, and what must be in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// The number that is its name.
    pub number: u64,
    /// Its point among the files of the log; each time a file is used again it gets a new one.
    pub sequence: u64,
    /// What its checksums begin with, new each time as well.
    pub salt: u64,
    /// Its last commit, if it is known to be full.
    pub last: Option<CommitNumber>,
}

impl LogFile {
    /// Its name.
    pub fn name(&self) -> String {
        file_name(self.number)
    }
}

/// The name of a file of the log.
fn file_name(number: u64) -> String {
    format!("{FOLDER}/{number:06}")
}

/// One open file.
struct WalFile {
    file: Box<dyn DiskFile>,
    id: LogFile,
    /// Bytes that it must have, as its header says.
    length: u64,
}

/// Files that are not being written: those that are full, and the one that comes next. Shared with whoever
/// makes room in the background.
pub struct WalFilePool {
    disk: Arc<dyn Disk>,
    file_bytes: u64,
    pooled: Mutex<PooledFiles>,
    /// How many files are full, to be asked without the lock: making a file holds that for long.
    full: AtomicUsize,
}

struct PooledFiles {
    /// Full files, oldest first, each with its last commit.
    full: VecDeque<WalFile>,
    /// The file that is being written.
    current: LogFile,
    /// Files whose content is no longer needed. No manifest names them.
    empty: Vec<WalFile>,
    /// Ready to be written.
    next: Option<WalFile>,
    next_sequence: u64,
    next_number: u64,
    /// Where salts come from: a number no client knows, stirred for each file.
    secret: u64,
}

/// Where the log ended when it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// The last commit.
    pub number: CommitNumber,
    /// Checksum of its frame.
    pub chain: u32,
}

/// What the manifest knows of the log.
#[derive(Clone, Debug)]
pub struct KnownLog {
    /// What is needed begins behind this.
    pub applied: End,
    /// It goes at least so far.
    pub reached: End,
    /// Its files, oldest first.
    pub files: Vec<LogFile>,
}

/// Makes it durable that these files, and no others, are the log.
pub type Record<'a> = dyn Fn(Vec<LogFile>) -> io::Result<()> + 'a;

/// Reads a log as [`Wal::open`] does, and changes nothing.
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

/// Everything that is wrong with a log.
pub fn check(
    disk: &dyn Disk,
    known: &KnownLog,
    replay: impl FnMut(Content) -> Result<(), OpenError>,
) -> Vec<OpenError> {
    match Files::list(disk, known) {
        // Where files are missing the rest does not follow; that is nothing new.
        Ok(files) if !files.problems.is_empty() => files.problems,
        Ok(_) => inspect(disk, known, replay).err().into_iter().collect(),
        Err(error) => vec![error],
    }
}

/// A log that is about to be cut off behind its last commit that follows on those before.
pub struct Cut {
    files: Files,
    point: Option<WritePoint>,
    /// Where it will end.
    pub end: End,
}

impl Cut {
    /// Finds where to cut a log of which something is lost.
    pub fn plan(disk: &dyn Disk, known: &KnownLog) -> Result<Self, OpenError> {
        let mut files = Files::list(disk, known)?;
        let (end, point) = files.replay(known, &mut |_| Ok(()))?;
        Ok(Self { files, point, end })
    }

    /// The same in a copy that was made while the log was written: later frames may have come along without the ones
    /// before them. What the log had when the copy was begun must be there.
    pub fn plan_copy(disk: &dyn Disk, known: &KnownLog) -> Result<Self, OpenError> {
        let mut cut = Self::plan(disk, known)?;
        cut.files.refuse_problems()?;
        cut.files.refuse_early_end(known, cut.end, cut.point)?;
        Ok(cut)
    }

    /// The files that are left.
    pub fn kept(&self) -> Vec<LogFile> {
        let Some(point) = self.point else { return Vec::new() };
        let mut kept: Vec<LogFile> = self.files.used[..=point.file].iter().map(|file| file.id).collect();
        kept[point.file].last = None;
        kept
    }

    /// Cuts. In a store this comes after a manifest that names only what is kept.
    pub fn make(self, disk: &dyn Disk) -> Result<(), OpenError> {
        for (n, file) in self.files.used.iter().enumerate() {
            let name = file.id.name();
            match self.point {
                Some(point) if n < point.file => {
                    // Shortened behind its last frame, perhaps.
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
    /// Reads the log, giving each frame that is needed to `replay`, and makes it ready for more. `record` is told of the
    /// files before any of them is written anew, and where the log ended.
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
        // What was read may never have reached the disk, if the process was killed, and is shown from now on. The last
        // frame is written again: if its sync has failed, the system may think that it is on the disk.
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

    /// The largest frame that fits.
    pub fn frame_bytes_max(&self) -> usize {
        (self.file_bytes - FIRST_FRAME) as usize
    }

    /// Files that are full and may still be needed.
    pub fn full_files(&self) -> usize {
        self.pool.full.load(Ordering::Relaxed)
    }

    /// Makes sure that a frame of so many bytes can be written, going to the next file if need be; says whether it
    /// did. Fails, and changes nothing, when there is no space for another file.
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

    /// Writes a frame, for which there is room, and makes it durable.
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
    /// Lets go of files whose commits are all at or below `applied`, and gets the next file ready.
    pub fn refill(&self, applied: CommitNumber, record: &Record) -> io::Result<()> {
        /// Files that lie empty and are not removed.
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

    /// Records the files as they are.
    pub fn record(&self, record: &Record) -> io::Result<()> {
        let pooled = self.pooled();
        record(pooled.files().collect())
    }

    fn pooled(&self) -> MutexGuard<'_, PooledFiles> {
        self.pooled.lock().expect("nobody panics while holding the pooled")
    }
}

impl PooledFiles {
    /// The files that are the log, oldest first.
    fn files(&self) -> impl Iterator<Item = LogFile> {
        let full = self.full.iter().map(|file| file.id);
        full.chain([self.current]).chain(self.next.iter().map(|file| file.id))
    }

    /// A file with a fresh header, recorded as the log's last, to be written.
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

    /// A file with a fresh header, from one that lies empty or made new.
    fn begin(&mut self, disk: &dyn Disk, file_bytes: u64) -> io::Result<WalFile> {
        let sequence = self.next_sequence;
        let salt = splitmix64(self.secret ^ sequence);
        let mut used = match self.empty.pop() {
            Some(used) => used,
            None => self.make(disk, file_bytes)?,
        };
        let header = Header { sequence, salt, length: file_bytes }.bytes();
        // One after the other: at any moment one of the copies is whole.
        for copy in 0..2 {
            used.file.write_at(copy * ALIGNMENT as u64, &header)?;
            used.file.sync()?;
        }
        self.next_sequence += 1;
        used.id = LogFile { number: used.id.number, sequence, salt, last: None };
        Ok(used)
    }

    /// A file without a header, of its full length: one that has a header and is shorter was shortened.
    fn make(&mut self, disk: &dyn Disk, file_bytes: u64) -> io::Result<WalFile> {
        let id = LogFile { number: self.next_number, sequence: 0, salt: 0, last: None };
        let file = disk.create(&id.name())?;
        let fill = || -> io::Result<()> {
            write_zeros(&*file, 0, file_bytes)?;
            disk.sync_folder(FOLDER)
        };
        if let Err(error) = fill() {
            // Half a file would take space that is scarce just now. If it cannot be removed, the next start does.
            let _ = disk.remove(&id.name());
            return Err(error);
        }
        self.next_number += 1;
        Ok(WalFile { file, id, length: file_bytes })
    }
}

/// Fills a stretch of a file with zeros, durably.
fn write_zeros(file: &dyn DiskFile, mut offset: u64, end: u64) -> io::Result<()> {
    let zeros = vec![0; WINDOW];
    while offset < end {
        let part = (end - offset).min(zeros.len() as u64);
        file.write_at(offset, &zeros[..part as usize])?;
        offset += part;
    }
    file.sync()
}

/// What stands twice at the beginning of a file.
#[derive(Clone, Copy)]
struct Header {
    sequence: u64,
    salt: u64,
    /// Bytes of the whole file.
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

    /// Reads one, if this is one.
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

/// Spreads a number over all bits, so that neighbours have nothing in common.
fn splitmix64(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
