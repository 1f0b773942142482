//! All access to the disk, behind two small traits, so that tests can lose power.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

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
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// The folder at a path.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder at a path, made if it is not there, for this user alone: a store holds keys.
    pub fn make(root: impl Into<PathBuf>) -> io::Result<Self> {
        let folder = Self::new(root);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder.root)?;
        Ok(folder)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.root
    }
}

impl Disk for Folder {
    fn create_folder(&self, name: &str) -> io::Result<()> {
        fs::create_dir_all(self.root.join(name))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = fs::File::options().read(true).write(true).create_new(true).open(self.root.join(name))?;
        Ok(Box::new(RealFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(RealFile(fs::File::options().read(true).write(true).open(self.root.join(name))?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.root.join(from), self.root.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.root.join(name))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.root.join(folder))? {
            let entry = entry?;
            let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
            names.push(format!("{}{slash}", entry.file_name().to_string_lossy()));
        }
        names.sort();
        Ok(names)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        fs::File::open(self.root.join(folder))?.sync_all()
    }

    fn available(&self) -> io::Result<u64> {
        let stats = rustix::fs::statvfs(&self.root)?;
        Ok(stats.f_bavail.saturating_mul(stats.f_frsize))
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
