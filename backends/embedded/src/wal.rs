//! The write-ahead log: files of a fixed size, filled with zeros once and used again and again.
//!
//! Overwriting a file that has its blocks is the fastest durable write there is: the file system has nothing of
//! its own to write. A file begins with two copies of its header (version, sequence number, salt); frames follow from
//! byte 8192. When a file is used again it gets a new salt, so that frames of its earlier life fit no checksum.
//!
//! Only one frame is ever being written. So a frame that cannot be read is the torn end of the log if nothing readable
//! comes after it, and rot of acknowledged data if something does: then the store refuses to start.

mod reading;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use tidings_model::CommitNumber;

use crate::codec::{Put, Take, checksum};
use crate::disk::{Disk, DiskFile};
use crate::error::{InFile, OpenError};
use crate::frame::{ALIGNMENT, Content, Frame};
use reading::Files;

/// Folder of the log's files.
pub const FOLDER: &str = "wal";
/// Where frames begin.
pub const FIRST_FRAME: u64 = 2 * ALIGNMENT as u64;

const MAGIC: &[u8; 8] = b"tidingsW";
const VERSION: u32 = 3;
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
    shelf: Arc<Shelf>,
}

/// One file with the header it has now.
struct WalFile {
    name: String,
    file: Box<dyn DiskFile>,
    sequence: u64,
    salt: u64,
}

/// Files that are not being written: those that are full, and the one that comes next. Shared with whoever
/// makes room in the background.
pub struct Shelf {
    disk: Arc<dyn Disk>,
    file_bytes: u64,
    stock: Mutex<Stock>,
    /// How many files are full, to be asked without the lock: making a file holds that for long.
    full: AtomicUsize,
}

struct Stock {
    /// Full files, oldest first, with the last commit each has.
    full: VecDeque<(WalFile, CommitNumber)>,
    /// Files whose content is no longer needed.
    empty: Vec<WalFile>,
    /// Ready to be written.
    next: Option<WalFile>,
    next_sequence: u64,
    next_name: u64,
    /// Where salts come from: a number no client knows, stirred for each file.
    secret: u64,
}

/// Where the log ended when it was read.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// The last commit.
    pub number: CommitNumber,
    /// Checksum of its frame.
    pub chain: u32,
}

/// Reads a log as [`Wal::open`] does, and changes nothing.
pub fn inspect(
    disk: &dyn Disk,
    applied: End,
    mut replay: impl FnMut(Content) -> Result<(), OpenError>,
) -> Result<End, OpenError> {
    let files = Files::list(disk)?;
    let mut end = applied;
    let place = files.replay(&mut end, &mut replay)?;
    files.refuse_rot(end, place)?;
    Ok(end)
}

/// Cuts a log off behind its last commit that follows on those before: in a copy that was made while the log was
/// written, later frames may have come along without the ones before them.
pub fn cut_copy(disk: &dyn Disk, applied: End) -> Result<End, OpenError> {
    let files = Files::list(disk)?;
    let mut end = applied;
    let place = files.replay(&mut end, &mut |_| Ok(()))?;
    for (n, file) in files.used.iter().enumerate() {
        match place {
            Some(place) if n < place.file => {}
            Some(place) if n == place.file => file.clear_from(place.offset)?,
            _ => disk.remove(&file.name).in_file(&file.name)?,
        }
    }
    disk.sync_folder(FOLDER).in_file(FOLDER)?;
    Ok(end)
}

impl Wal {
    /// Reads the log from the frame after `applied` on, giving each to `replay`, and makes it ready for more.
    pub fn open(
        disk: Arc<dyn Disk>,
        file_bytes: u64,
        secret: u64,
        applied: End,
        mut replay: impl FnMut(Content) -> Result<(), OpenError>,
    ) -> Result<(Self, Arc<Shelf>, End), OpenError> {
        let files = Files::list(&*disk)?;
        let mut end = applied;
        let place = files.replay(&mut end, &mut replay)?;
        files.refuse_rot(end, place)?;
        // What was read may never have reached the disk, if the process was killed, and is shown from now on. The last
        // frame is written again: if its sync has failed, the system may think that it is on the disk.
        if let Some(place) = place {
            let file = &files.used[place.file];
            if let Some((_, bytes)) = file.frame(place.last)? {
                file.file.write_at(place.last, &bytes).in_file(&file.name)?;
            }
        }
        for file in &files.used {
            file.file.sync().in_file(&file.name)?;
        }
        let (wal, shelf) = files.into_wal(disk, file_bytes, secret, end, place)?;
        Ok((wal, shelf, end))
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
        self.shelf.full.load(Ordering::Relaxed)
    }

    /// Makes sure that a frame of so many bytes can be written, going to the next file if need be; says whether it
    /// did. Fails, and changes nothing, when there is no space for another file.
    pub fn make_room(&mut self, bytes: usize, last: CommitNumber) -> io::Result<bool> {
        let sealed = bytes.next_multiple_of(ALIGNMENT) as u64;
        if self.offset + sealed <= self.file_bytes {
            return Ok(false);
        }
        let mut stock = self.shelf.stock();
        let next = match stock.next.take() {
            Some(next) => next,
            None => stock.prepare(&*self.disk, self.file_bytes)?,
        };
        let full = std::mem::replace(&mut self.current, next);
        stock.full.push_back((full, last));
        self.shelf.full.store(stock.full.len(), Ordering::Relaxed);
        self.offset = FIRST_FRAME;
        Ok(true)
    }

    /// Writes a frame, for which there is room, and makes it durable.
    pub fn write(&mut self, frame: &mut Frame) -> io::Result<()> {
        let chain = frame.seal(self.current.salt, self.chain);
        self.current.file.write_at(self.offset, frame.sealed())?;
        self.current.file.sync()?;
        self.offset += frame.sealed().len() as u64;
        self.chain = chain;
        Ok(())
    }
}

impl Shelf {
    /// Lets go of files whose commits are all at or below `applied`, and gets the next file ready.
    pub fn restock(&self, applied: CommitNumber) -> io::Result<()> {
        /// Files that lie empty and are not removed.
        const EMPTY_MAX: usize = 2;
        let mut stock = self.stock();
        while stock.full.front().is_some_and(|(_, last)| *last <= applied) {
            let (file, _) = stock.full.pop_front().expect("there is one");
            stock.empty.push(file);
        }
        self.full.store(stock.full.len(), Ordering::Relaxed);
        if stock.next.is_none() {
            let next = stock.prepare(&*self.disk, self.file_bytes)?;
            stock.next = Some(next);
        }
        while stock.empty.len() > EMPTY_MAX {
            let file = stock.empty.pop().expect("there are some");
            self.disk.remove(&file.name)?;
        }
        Ok(())
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().expect("nobody panics while holding the stock")
    }
}

impl Stock {
    /// A file with a fresh header, from one that lies empty or made new.
    fn prepare(&mut self, disk: &dyn Disk, file_bytes: u64) -> io::Result<WalFile> {
        let sequence = self.next_sequence;
        let salt = stir(self.secret ^ sequence);
        let mut used = match self.empty.pop() {
            Some(used) => used,
            None => self.make(disk, file_bytes)?,
        };
        let header = header(sequence, salt);
        // One after the other: at any moment one of the copies is whole.
        for copy in 0..2 {
            used.file.write_at(copy * ALIGNMENT as u64, &header)?;
            used.file.sync()?;
        }
        self.next_sequence += 1;
        (used.sequence, used.salt) = (sequence, salt);
        Ok(used)
    }

    fn make(&mut self, disk: &dyn Disk, file_bytes: u64) -> io::Result<WalFile> {
        let name = format!("{FOLDER}/{:06}", self.next_name);
        let file = disk.create(&name)?;
        let fill = || -> io::Result<()> {
            write_zeros(&*file, 0, file_bytes)?;
            disk.sync_folder(FOLDER)
        };
        if let Err(error) = fill() {
            // Half a file would take space that is scarce just now. If it cannot be removed, the next start does.
            let _ = disk.remove(&name);
            return Err(error);
        }
        self.next_name += 1;
        Ok(WalFile { name, file, sequence: 0, salt: 0 })
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

fn header(sequence: u64, salt: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.fixed32(VERSION);
    bytes.fixed64(sequence);
    bytes.fixed64(salt);
    let sum = checksum(0, &[&bytes]);
    bytes.fixed32(sum);
    bytes
}

/// Sequence number and salt, if this is a header.
fn read_header(name: &str, page: &[u8]) -> Result<Option<(u64, u64)>, OpenError> {
    let mut take = Take(Bytes::copy_from_slice(&page[..32]));
    let (Ok(magic), Ok(version)) = (take.exactly(8), take.fixed32()) else { return Ok(None) };
    let (Ok(sequence), Ok(salt), Ok(sum)) = (take.fixed64(), take.fixed64(), take.fixed32()) else {
        return Ok(None);
    };
    if magic != MAGIC[..] || sum != checksum(0, &[&page[..28]]) {
        return Ok(None);
    }
    if version != VERSION {
        return Err(OpenError::Version { name: name.to_owned(), found: version, expected: VERSION });
    }
    Ok(Some((sequence, salt)))
}

/// Spreads a number over all bits, so that neighbours have nothing in common.
fn stir(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
