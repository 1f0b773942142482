//! All access to the disk, behind two small traits, so that tests can lose power.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::lock::LOCK;

/// A folder of files. Names are relative, with `/` between folder and file.
pub trait Disk: Send + Sync + 'static {
    /// Makes a folder, if it is not there.
    fn create_folder(&self, name: &str) -> io::Result<()>;

    /// Makes a file that must not be there. Durable after its own `sync` and the folder's.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Opens a file.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Puts a file in the place of another. Durable after the folder's sync, and never half.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Whoever has it open can still read it.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Names of what is in a folder, `""` being the whole; folders end with `/`.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Makes durable which files a folder has.
    fn sync_folder(&self, folder: &str) -> io::Result<()>;

    /// Bytes that can still be written.
    fn available(&self) -> io::Result<u64>;

    /// Fails when the folder is no longer this process's: it was removed or replaced, and another process may have what is
    /// at its path now.
    fn still_held(&self) -> io::Result<()> {
        Ok(())
    }
}

/// One open file.
#[allow(clippy::len_without_is_empty)]
pub trait DiskFile: Send + Sync {
    /// Writes at an offset. What is beyond the end makes the file longer.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads just so many bytes, or fails.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Makes durable what was written.
    fn sync(&self) -> io::Result<()>;

    /// Its length.
    fn len(&self) -> io::Result<u64>;
}

/// A folder of the real file system.
///
/// All names are resolved from the folder as it was opened, not from its path: if it is removed and another is made in
/// its place, nothing is written there. Clones are the same folder.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    root: Arc<OwnedFd>,
    /// The lock file that this process has locked, if it has.
    lock: Option<FileIdentity>,
}

/// What tells one file of the system from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl Folder {
    /// Opens the folder at a path.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let root = rustix::fs::open(&path, DIRECTORY, Mode::empty())?;
        Ok(Self { path, root: Arc::new(root), lock: None })
    }

    /// Opens the folder at a path, made if it is not there, for this user alone: a store holds keys.
    pub fn make(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        Self::open(path)
    }

    /// Where it was when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the lock file, making it if it is not there.
    pub(crate) fn lock_file(&self) -> io::Result<fs::File> {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&*self.root, LOCK, flags, FILE_MODE)?.into())
    }

    /// The folder, to be written to only as long as this is its lock file.
    pub(crate) fn guarded_by(&self, lock: &fs::File) -> io::Result<Self> {
        Ok(Self { lock: Some(identity(&rustix::fs::fstat(lock)?)), ..self.clone() })
    }

    /// What failed because the folder was taken away meanwhile says so.
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
            // No further descriptor: that the manifest is durable must not depend on there being one.
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
            // A path that cannot be looked at says nothing of what is there.
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
