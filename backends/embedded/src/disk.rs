//! File access behind two small traits, [`Disk`] and [`DiskFile`], so that tests can simulate power cuts.
//!
//! [`Folder`] is the real file system; `simulation` has the one for tests. No other module opens files.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::lock::LOCK;

/// A folder of files. Names are relative, with `/` between folder and file name.
pub trait Disk: Send + Sync + 'static {
    /// Creates a folder if it does not exist.
    fn create_folder(&self, name: &str) -> io::Result<()>;

    /// Creates a file. Fails if it exists. Durable after `sync` of the file and `sync_folder` of its folder.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Renames a file atomically, replacing the target. Durable after `sync_folder`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Handles that have it open can still read it.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Lists the names in a folder, sorted; `""` is the root. Names of folders end with `/`.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Makes the folder's list of files durable.
    fn sync_folder(&self, folder: &str) -> io::Result<()>;

    /// Bytes that can still be written to the disk.
    fn available(&self) -> io::Result<u64>;

    /// Fails if the folder was removed or replaced since this process locked it; another process may own the
    /// one that is at its path now.
    fn still_held(&self) -> io::Result<()> {
        Ok(())
    }
}

/// One open file.
#[allow(clippy::len_without_is_empty)]
pub trait DiskFile: Send + Sync {
    /// Writes all bytes at an offset, extending the file if needed.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Fills `bytes` from an offset. Fails if the file ends earlier.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Makes everything written so far durable.
    fn sync(&self) -> io::Result<()>;

    /// Length of the file in bytes.
    fn len(&self) -> io::Result<u64>;
}

/// A folder of the real file system.
///
/// Names are resolved from the open directory, not from its path: if the folder is removed and another is
/// created at its path, nothing is written to the new one. Clones share the open directory.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    root: Arc<OwnedFd>,
    /// Identity of the lock file that this process holds; `None` if it holds no lock.
    lock: Option<FileIdentity>,
    /// The lock file itself: it stays locked while anybody uses the folder.
    _held: Option<Arc<fs::File>>,
}

/// Device and inode, which identify a file on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl Folder {
    /// Opens an existing folder.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let root = rustix::fs::open(&path, DIRECTORY, Mode::empty())?;
        Ok(Self { path, root: Arc::new(root), lock: None, _held: None })
    }

    /// Opens a folder, creating it if needed. Only this user may read it, because a store holds keys.
    pub fn make(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        Self::open(path)
    }

    /// Path of the folder when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the lock file, creating it if needed.
    pub(crate) fn lock_file(&self) -> io::Result<fs::File> {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&*self.root, LOCK, flags, FILE_MODE)?.into())
    }

    /// Returns the same folder, guarded: it refuses changes once its lock file is no longer this one, and keeps it locked.
    pub(crate) fn guarded_by(&self, lock: &Arc<fs::File>) -> io::Result<Self> {
        let identity = identity(&rustix::fs::fstat(&**lock)?);
        Ok(Self { lock: Some(identity), _held: Some(lock.clone()), ..self.clone() })
    }

    /// Replaces an error by that of [`Disk::still_held`] if the folder was removed or replaced.
    fn explained<T>(&self, result: Result<T, Errno>) -> io::Result<T> {
        result.map_err(|error| self.still_held().err().unwrap_or_else(|| error.into()))
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);

#[allow(clippy::unnecessary_cast, clippy::useless_conversion, reason = "the types differ between systems")]
fn identity(stat: &rustix::fs::Stat) -> FileIdentity {
    FileIdentity { device: stat.st_dev as u64, inode: stat.st_ino as u64 }
}

impl Disk for Folder {
    fn create_folder(&self, name: &str) -> io::Result<()> {
        match rustix::fs::mkdirat(&*self.root, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.still_held()?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&*self.root, name, flags, FILE_MODE);
        Ok(Box::new(RealFile(self.explained(file)?.into())))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Box::new(RealFile(rustix::fs::openat(&*self.root, name, flags, Mode::empty())?.into())))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.still_held()?;
        self.explained(rustix::fs::renameat(&*self.root, from, &*self.root, to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.still_held()?;
        self.explained(rustix::fs::unlinkat(&*self.root, name, AtFlags::empty()))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let folder = if folder.is_empty() { "." } else { folder };
        let directory = rustix::fs::openat(&*self.root, folder, DIRECTORY, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
                    FileType::from_raw_mode(stat.st_mode)
                }
                known => known,
            };
            let slash = if kind == FileType::Directory { "/" } else { "" };
            names.push(format!("{}{slash}", name.to_string_lossy()));
        }
        names.sort();
        Ok(names)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        if folder.is_empty() {
            // Syncs the descriptor that is open already, so that storing a manifest needs no free one.
            return Ok(rustix::fs::fsync(&*self.root)?);
        }
        let directory = rustix::fs::openat(&*self.root, folder, DIRECTORY, Mode::empty());
        Ok(rustix::fs::fsync(self.explained(directory)?)?)
    }

    fn available(&self) -> io::Result<u64> {
        let stats = rustix::fs::fstatvfs(&*self.root)?;
        Ok(stats.f_bavail.saturating_mul(stats.f_frsize))
    }

    fn still_held(&self) -> io::Result<()> {
        let Some(lock) = self.lock else { return Ok(()) };
        match rustix::fs::stat(self.path.join(LOCK)) {
            Ok(stat) if identity(&stat) == lock => Ok(()),
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Err(io::Error::other(format!(
                "{} was removed or replaced while this process used it: its {LOCK} is not the one that was locked",
                self.path.display()
            ))),
            // If the path cannot be read, nothing is known about what is there, so this is no proof of a
            // loss.
            Err(_) => Ok(()),
        }
    }
}

struct RealFile(fs::File);

impl DiskFile for RealFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}
