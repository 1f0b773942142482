//! Reading a log that was not closed: finding its files and its end, and telling a torn end from rot.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tidings_model::CommitNumber;

use super::{End, FIRST_FRAME, FOLDER, Shelf, Stock, WINDOW, Wal, WalFile, read_header, write_zeros};
use crate::disk::Disk;
use crate::error::{InFile, OpenError};
use crate::frame::{ALIGNMENT, Content, HEADER, Header, read};

/// The files of a log that is being opened.
pub(super) struct Files {
    /// Those with a header, by sequence number.
    pub(super) used: Vec<WalFile>,
    /// Those without: their making was cut off.
    blank: Vec<WalFile>,
    last_name: u64,
}

/// Where a log goes on: a file among those in use, and an offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: usize,
    /// Where the last frame begins.
    pub(super) last: u64,
    /// Where the next one does.
    pub(super) offset: u64,
}

impl Files {
    pub(super) fn list(disk: &dyn Disk) -> Result<Self, OpenError> {
        let mut files = Self { used: Vec::new(), blank: Vec::new(), last_name: 0 };
        for short in disk.list(FOLDER).in_file(FOLDER)? {
            let name = format!("{FOLDER}/{short}");
            let number = short
                .parse::<u64>()
                .map_err(|_| OpenError::Foreign { folder: FOLDER.to_owned(), name: short.clone() })?;
            files.last_name = files.last_name.max(number);
            let file = disk.open(&name).in_file(&name)?;
            let mut header = None;
            let mut page = vec![0; ALIGNMENT];
            for copy in 0..2 {
                let whole = file.len().in_file(&name)? >= FIRST_FRAME;
                if header.is_none() && whole {
                    file.read_at(copy * ALIGNMENT as u64, &mut page).in_file(&name)?;
                    header = read_header(&name, &page)?;
                }
            }
            match header {
                Some((sequence, salt)) => files.used.push(WalFile { name, file, sequence, salt }),
                None => {
                    let blank = WalFile { name, file, sequence: 0, salt: 0 };
                    blank.refuse_content()?;
                    files.blank.push(blank);
                }
            }
        }
        files.used.sort_by_key(|file| file.sequence);
        Ok(files)
    }

    /// Replays what follows `end`, moving it, and returns where the log goes on.
    pub(super) fn replay(
        &self,
        end: &mut End,
        replay: &mut impl FnMut(Content) -> Result<(), OpenError>,
    ) -> Result<Option<Place>, OpenError> {
        let applied = end.number;
        let mut place = None;
        for (n, file) in self.used.iter().enumerate() {
            let length = file.file.len().in_file(&file.name)?;
            let mut offset = FIRST_FRAME;
            while offset < length {
                let Some((header, bytes)) = file.frame(offset)? else {
                    if end.number > applied {
                        break;
                    }
                    // Among what is no longer needed something may be damaged; what follows it is looked for.
                    offset += ALIGNMENT as u64;
                    continue;
                };
                if header.number > end.number {
                    if header.before != end.chain {
                        break;
                    }
                    let content = bytes.slice(HEADER..HEADER + header.length);
                    replay(read(header.number, content).in_file(&file.name)?)?;
                    *end = End { number: header.number, chain: header.checksum };
                }
                let last = offset;
                offset += (HEADER + header.length).next_multiple_of(ALIGNMENT) as u64;
                if header.number == end.number {
                    place = Some(Place { file: n, last, offset });
                }
            }
        }
        Ok(place)
    }

    /// Looks behind the end for a frame that can be read: then one before it was lost.
    pub(super) fn refuse_rot(&self, end: End, place: Option<Place>) -> Result<(), OpenError> {
        for (n, file) in self.used.iter().enumerate() {
            let start = match place {
                Some(place) if n == place.file => place.offset,
                Some(place) if n < place.file => continue,
                _ => FIRST_FRAME,
            };
            if file.has_frame_after(start, end.number)? {
                let (name, offset) = match place {
                    Some(place) => (self.used[place.file].name.clone(), place.offset),
                    None => (file.name.clone(), start),
                };
                return Err(OpenError::Rot { name, offset, lost: end.number.next() });
            }
        }
        Ok(())
    }

    pub(super) fn into_wal(
        self,
        disk: Arc<dyn Disk>,
        file_bytes: u64,
        secret: u64,
        end: End,
        place: Option<Place>,
    ) -> Result<(Wal, Arc<Shelf>), OpenError> {
        let mut stock = Stock {
            full: VecDeque::new(),
            empty: Vec::new(),
            next: None,
            next_sequence: self.used.last().map_or(1, |file| file.sequence + 1),
            next_name: self.last_name + 1,
            secret,
        };
        let mut current = None;
        for (n, file) in self.used.into_iter().enumerate() {
            let whole = file.file.len().in_file(&file.name)? == file_bytes;
            match place {
                Some(place) if n < place.file => stock.full.push_back((file, end.number)),
                Some(place) if n == place.file && whole => current = Some((file, place.offset)),
                Some(place) if n == place.file => stock.full.push_back((file, end.number)),
                _ if whole => stock.empty.push(file),
                _ => disk.remove(&file.name).in_file(&file.name)?,
            }
        }
        for file in self.blank {
            if file.file.len().in_file(&file.name)? == file_bytes {
                stock.empty.push(file);
            } else {
                disk.remove(&file.name).in_file(&file.name)?;
            }
        }
        let (current, offset) = match current {
            Some(current) => current,
            None => (stock.prepare(&*disk, file_bytes).in_file(FOLDER)?, FIRST_FRAME),
        };
        let full = AtomicUsize::new(stock.full.len());
        let shelf = Arc::new(Shelf { disk: disk.clone(), file_bytes, stock: Mutex::new(stock), full });
        let wal = Wal { disk, file_bytes, current, offset, chain: end.chain, shelf: shelf.clone() };
        Ok((wal, shelf))
    }
}

impl WalFile {
    /// The frame at an offset, header first, if there is one whose checksum is right.
    pub(super) fn frame(&self, offset: u64) -> Result<Option<(Header, Bytes)>, OpenError> {
        let length = self.file.len().in_file(&self.name)?;
        if offset + ALIGNMENT as u64 > length {
            return Ok(None);
        }
        let mut bytes = vec![0; ALIGNMENT];
        self.file.read_at(offset, &mut bytes).in_file(&self.name)?;
        let Some(header) = Header::read(self.salt, &bytes) else { return Ok(None) };
        let whole = (HEADER + header.length).next_multiple_of(ALIGNMENT);
        if offset + whole as u64 > length {
            return Ok(None);
        }
        if whole > ALIGNMENT {
            bytes.resize(whole, 0);
            self.file.read_at(offset, &mut bytes).in_file(&self.name)?;
        }
        Ok(header.fits(self.salt, &bytes).then(|| (header, Bytes::from(bytes))))
    }

    /// A file without a header was just being made, so it has no content; or both copies of its header are damaged.
    fn refuse_content(&self) -> Result<(), OpenError> {
        let length = self.file.len().in_file(&self.name)?;
        let mut window = vec![0; WINDOW];
        let mut offset = FIRST_FRAME;
        while offset < length {
            let bytes = ((length - offset) as usize).min(window.len());
            self.file.read_at(offset, &mut window[..bytes]).in_file(&self.name)?;
            if window[..bytes].iter().any(|&byte| byte != 0) {
                return Err(OpenError::damaged(&self.name, "both copies of its header are unreadable"));
            }
            offset += bytes as u64;
        }
        Ok(())
    }

    /// Fills the rest of the file with zeros.
    pub(super) fn clear_from(&self, offset: u64) -> Result<(), OpenError> {
        let length = self.file.len().in_file(&self.name)?;
        write_zeros(&*self.file, offset, length).in_file(&self.name)
    }

    /// Whether there is a frame from here on whose commit comes after the given one.
    fn has_frame_after(&self, start: u64, last: CommitNumber) -> Result<bool, OpenError> {
        let length = self.file.len().in_file(&self.name)?;
        let mut window = vec![0; WINDOW];
        let mut offset = start;
        while offset < length {
            let bytes = ((length - offset) as usize).min(window.len());
            self.file.read_at(offset, &mut window[..bytes]).in_file(&self.name)?;
            for page in (0..bytes).step_by(ALIGNMENT) {
                let may_be =
                    Header::read(self.salt, &window[page..bytes]).is_some_and(|header| header.number > last);
                if may_be && self.frame(offset + page as u64)?.is_some() {
                    return Ok(true);
                }
            }
            offset += bytes as u64;
        }
        Ok(false)
    }
}
