//! The lock that gives one process exclusive use of a store's folder.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::disk::{Disk, Folder};
use crate::error::{InFile, OpenError};

/// Keeps other processes out of a store's folder while it is held.
#[derive(Debug)]
pub struct DirectoryLock {
    folder: Folder,
    _file: File,
}

/// Name of the lock file.
pub(crate) const LOCK: &str = "LOCK";

impl DirectoryLock {
    /// Locks a folder, creating it if needed. Fails if another process holds the lock.
    pub fn take(path: &Path) -> Result<Self, OpenError> {
        let name = path.display().to_string();
        let folder = Folder::make(path).in_file(&name)?;
        let file = folder.lock_file().in_file(&path.join(LOCK).display().to_string())?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse(name)),
            Err(TryLockError::Error(error)) => return Err(OpenError::io(&name, error)),
        }
        let folder = folder.guarded_by(&file).in_file(&name)?;
        // The folder may have been replaced between opening the lock file and locking it.
        folder.still_held().in_file(&name)?;
        Ok(Self { folder, _file: file })
    }

    /// The locked folder. It refuses to create, rename or remove files once it was replaced.
    pub fn folder(&self) -> Folder {
        self.folder.clone()
    }
}
