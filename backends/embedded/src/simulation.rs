//! A simulated disk that can lose power, for tests.
//!
//! Writes are not durable until they are synced. After a power cut each sector that was not synced has its
//! old or its new content, independently of others, and the last write may be partial. Files that were
//! created, renamed or removed since their folder was synced are in the state before or after, up to some
//! point in that sequence. Tests can also make an operation fail, fill the disk, exhaust file descriptors,
//! and remove, swap, shorten or zero files. After a failed sync the unsynced data counts as written although
//! it is lost, as on Linux.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use tidings_engine::log::contract::Note;

use crate::disk::{Disk, DiskFile};

/// Unit that is written atomically, in bytes.
const SECTOR: usize = 512;

/// A simulated disk. Clones share the content.
#[derive(Clone, Default)]
pub struct SimulatedDisk(Arc<Mutex<Content>>);

#[derive(Default)]
struct Content {
    /// Current file of each name.
    names: BTreeMap<String, usize>,
    /// File of each name after a power cut.
    durable_names: BTreeMap<String, usize>,
    /// Changes of names that are not synced, in order.
    pending: Vec<NameChange>,
    files: Vec<FileContent>,
    folders: Vec<String>,
    operations: u64,
    syncs: u64,
    /// Number of the operation that fails.
    fail_at: Option<u64>,
    /// Whether all operations after it fail as well, as in a power cut.
    fail_for_ever: bool,
    capacity: Option<u64>,
    /// Whether the process has no free file descriptors.
    no_descriptors: bool,
}

#[derive(Clone)]
enum NameChange {
    Create(String, usize),
    Remove(String),
}

#[derive(Clone, Default)]
struct FileContent {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors written since the last sync, in order.
    unsynced: Vec<usize>,
}

impl SimulatedDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of operations so far.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Number of syncs so far.
    pub fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    /// Cuts the power: the n-th operation from now on fails, and all after it.
    pub fn cut_power_at(&self, operation: u64) {
        let mut content = self.lock();
        content.fail_at = Some(content.operations + operation);
        content.fail_for_ever = true;
    }

    /// Makes the n-th operation from now on fail, and only that one.
    pub fn fail_at(&self, operation: u64) {
        let mut content = self.lock();
        content.fail_at = Some(content.operations + operation);
        content.fail_for_ever = false;
    }

    /// Whether the operation that was to fail has been reached.
    pub fn has_failed(&self) -> bool {
        let content = self.lock();
        content.fail_at.is_some_and(|at| content.operations >= at)
    }

    /// Sets the total number of bytes that files may have; `None` is unlimited.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().capacity = bytes;
    }

    /// Total bytes of all files.
    pub fn used(&self) -> u64 {
        self.lock().used()
    }

    /// Returns a disk with what remains after a power cut.
    pub fn after_power_cut(&self, rng: &mut fastrand::Rng) -> Self {
        let content = self.lock();
        let mut names = content.durable_names.clone();
        let kept = rng.usize(..=content.pending.len());
        for change in &content.pending[..kept] {
            apply(&mut names, change);
        }
        let files = content.files.iter().map(|file| file.after_power_cut(rng)).collect();
        let left = Content {
            durable_names: names.clone(),
            names,
            files,
            folders: content.folders.clone(),
            ..Content::default()
        };
        Self(Arc::new(Mutex::new(left)))
    }

    /// Returns a disk with what remains after the process was killed: everything that was written.
    pub fn after_kill(&self) -> Self {
        let content = self.lock();
        let left = Content {
            names: content.names.clone(),
            durable_names: content.durable_names.clone(),
            pending: content.pending.clone(),
            files: content.files.clone(),
            folders: content.folders.clone(),
            ..Content::default()
        };
        Self(Arc::new(Mutex::new(left)))
    }

    /// Removes a file durably, as an operator might by mistake.
    pub fn lose(&self, name: &str) {
        let mut content = self.lock();
        content.names.remove(name).expect("there is such a file");
        content.durable_names.remove(name);
    }

    /// Exchanges two files.
    pub fn swap(&self, one: &str, other: &str) {
        let mut content = self.lock();
        let (one, other) = (content.names[one], content.names[other]);
        content.files.swap(one, other);
    }

    /// Replaces a file by a copy of another.
    pub fn overwrite_with_copy(&self, name: &str, of: &str) {
        let mut content = self.lock();
        let copy = content.files[content.names[of]].clone();
        let file = content.names[name];
        content.files[file] = copy;
    }

    /// Truncates a file to `length` bytes.
    pub fn shorten(&self, name: &str, length: usize) {
        self.damage(name, |bytes| bytes.truncate(length));
    }

    /// Zeroes a range of a file, up to its end: a file under construction may be shorter.
    pub fn zero(&self, name: &str, part: std::ops::Range<usize>) {
        self.damage(name, |bytes| {
            let end = part.end.min(bytes.len());
            bytes[part.start.min(end)..end].fill(0);
        });
    }

    fn damage(&self, name: &str, damage: impl Fn(&mut Vec<u8>)) {
        let mut content = self.lock();
        let file = content.names[name];
        let file = &mut content.files[file];
        damage(&mut file.now);
        file.durable.clone_from(&file.now);
        file.unsynced.clear();
    }

    /// Sets whether the process has no free file descriptors.
    pub fn refuse_descriptors(&self, refuse: bool) {
        self.lock().no_descriptors = refuse;
    }

    /// Changes one byte of a file.
    pub fn rot(&self, name: &str, offset: usize) {
        let mut content = self.lock();
        let file = content.names[name];
        let file = &mut content.files[file];
        file.now[offset] ^= 0x40;
        if offset < file.durable.len() {
            file.durable[offset] ^= 0x40;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.lock().expect("nobody panics while holding the disk")
    }
}

impl FileContent {
    fn after_power_cut(&self, rng: &mut fastrand::Rng) -> Self {
        let mut left = self.durable.clone();
        // All, none, or each on its own: real disks do all of these.
        let outcome = rng.u8(..4);
        for &sector in &self.unsynced {
            let kept = match outcome {
                0 => false,
                1 => true,
                _ => rng.bool(),
            };
            let (start, end) = (sector * SECTOR, ((sector + 1) * SECTOR).min(self.now.len()));
            if kept && start < end {
                if left.len() < end {
                    left.resize(end, 0);
                }
                left[start..end].copy_from_slice(&self.now[start..end]);
            }
        }
        Self { now: left.clone(), durable: left, unsynced: Vec::new() }
    }
}

impl Content {
    /// Counts an operation and fails if it is the one to fail.
    fn operation(&mut self) -> io::Result<()> {
        self.operations += 1;
        match self.fail_at {
            Some(at) if self.operations == at || (self.operations > at && self.fail_for_ever) => {
                Err(io::Error::other("the simulated disk fails here"))
            }
            _ => Ok(()),
        }
    }

    /// Counts an operation that needs a file descriptor.
    fn opening(&mut self) -> io::Result<()> {
        self.operation()?;
        if self.no_descriptors {
            return Err(rustix::io::Errno::MFILE.into());
        }
        Ok(())
    }

    fn used(&self) -> u64 {
        self.names.values().map(|&file| self.files[file].now.len() as u64).sum()
    }

    fn change(&mut self, change: NameChange) {
        apply(&mut self.names, &change);
        self.pending.push(change);
    }

    fn file(&self, name: &str) -> io::Result<usize> {
        self.names.get(name).copied().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, name.to_owned()))
    }
}

fn apply(names: &mut BTreeMap<String, usize>, change: &NameChange) {
    match change {
        NameChange::Create(name, file) => names.insert(name.clone(), *file),
        NameChange::Remove(name) => names.remove(name),
    };
}

impl Disk for SimulatedDisk {
    fn create_folder(&self, name: &str) -> io::Result<()> {
        let mut content = self.lock();
        content.operation()?;
        if !content.folders.iter().any(|known| known == name) {
            content.folders.push(name.to_owned());
        }
        Ok(())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut content = self.lock();
        content.opening()?;
        if content.names.contains_key(name) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, name.to_owned()));
        }
        content.files.push(FileContent::default());
        let file = content.files.len() - 1;
        content.change(NameChange::Create(name.to_owned(), file));
        Ok(Box::new(SimulatedFile { disk: self.clone(), file }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut content = self.lock();
        content.opening()?;
        let file = content.file(name)?;
        Ok(Box::new(SimulatedFile { disk: self.clone(), file }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut content = self.lock();
        content.operation()?;
        let file = content.file(from)?;
        // One step: a file system renames atomically.
        apply(&mut content.names, &NameChange::Remove(from.to_owned()));
        content.change(NameChange::Create(to.to_owned(), file));
        content.pending.push(NameChange::Remove(from.to_owned()));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut content = self.lock();
        content.operation()?;
        content.file(name)?;
        content.change(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let mut content = self.lock();
        content.opening()?;
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let mut names: Vec<String> = content
            .names
            .keys()
            .filter_map(|name| name.strip_prefix(&prefix))
            .filter(|name| !name.contains('/'))
            .map(str::to_owned)
            .collect();
        if folder.is_empty() {
            names.extend(content.folders.iter().map(|folder| format!("{folder}/")));
        }
        Ok(names)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        let mut content = self.lock();
        // The root folder is open already, so this needs no descriptor.
        if folder.is_empty() {
            content.operation()?
        } else {
            content.opening()?
        }
        content.syncs += 1;
        let of_folder = |name: &str| name.rsplit_once('/').map_or("", |(folder, _)| folder) == folder;
        let pending = std::mem::take(&mut content.pending);
        for change in pending {
            let (NameChange::Create(name, _) | NameChange::Remove(name)) = &change;
            if of_folder(name) {
                apply(&mut content.durable_names, &change);
            } else {
                content.pending.push(change);
            }
        }
        Ok(())
    }

    fn available(&self) -> io::Result<u64> {
        let content = self.lock();
        Ok(content.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(content.used())))
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    file: usize,
}

impl DiskFile for SimulatedFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut content = self.disk.lock();
        let failing = content.operation();
        let end = offset as usize + bytes.len();
        let grows = end.saturating_sub(content.files[self.file].now.len()) as u64;
        if content.capacity.is_some_and(|capacity| content.used() + grows > capacity) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        // A write that is interrupted by the power cut is partly done.
        let bytes = if failing.is_err() { &bytes[..bytes.len() / 2] } else { bytes };
        let file = &mut content.files[self.file];
        let end = offset as usize + bytes.len();
        if file.now.len() < end {
            file.now.resize(end, 0);
        }
        file.now[offset as usize..end].copy_from_slice(bytes);
        if !bytes.is_empty() {
            file.unsynced.extend(offset as usize / SECTOR..=(end - 1) / SECTOR);
        }
        failing
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let content = self.disk.lock();
        let file = &content.files[self.file].now;
        match file.get(offset as usize..offset as usize + bytes.len()) {
            Some(part) => bytes.copy_from_slice(part),
            None => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut content = self.disk.lock();
        if let Err(error) = content.operation() {
            // As on Linux: after a failed sync, unsynced data counts as written.
            content.files[self.file].unsynced.clear();
            return Err(error);
        }
        content.syncs += 1;
        let file = &mut content.files[self.file];
        let unsynced = std::mem::take(&mut file.unsynced);
        file.durable.resize(file.now.len(), 0);
        for sector in unsynced {
            let (start, end) = (sector * SECTOR, ((sector + 1) * SECTOR).min(file.now.len()));
            if start < end {
                file.durable[start..end].copy_from_slice(&file.now[start..end]);
            }
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.lock().files[self.file].now.len() as u64)
    }
}

// The change of the contract suite's tables, which tests keep in this store.
crate::field::stored! {
    struct Note { key, text }
}
