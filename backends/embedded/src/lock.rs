use std::fs::{File, TryLockError};
use std::path::Path;

use crate::disk::{Disk, Folder};
use crate::error::{InFile, OpenError};

/// Keeps other processes out of a store's folder for as long as it is held.
#[derive(Debug)]
pub struct DirectoryLock {
    folder: Folder,
    _file: File,
}

/// Name of the file that is locked.
pub(crate) const LOCK: &str = "LOCK";

impl DirectoryLock {
    /// Takes the lock of a folder, which is made if it is not there.
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
        // Between opening the lock file and locking it the folder may have been replaced.
        folder.still_held().in_file(&name)?;
        Ok(Self { folder, _file: file })
    }

    /// The folder, in which nothing is made, renamed or removed once it is not the locked one any more.
    pub fn folder(&self) -> Folder {
        self.folder.clone()
    }
}
