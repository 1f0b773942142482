use std::fs::{File, TryLockError};
use std::path::Path;

use crate::disk::Folder;
use crate::error::OpenError;

/// Keeps other processes out of a store's folder for as long as it is held.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: File,
}

/// Name of the file that is locked.
pub(crate) const LOCK: &str = "LOCK";

impl DirectoryLock {
    /// Takes the lock of a folder, which is made if it is not there.
    pub fn take(folder: &Path) -> Result<Self, OpenError> {
        let name = folder.display().to_string();
        Folder::make(folder).map_err(|error| OpenError::io(&name, error))?;
        let path = folder.join(LOCK);
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(|error| OpenError::io(&path.display().to_string(), error))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse(name)),
            Err(TryLockError::Error(error)) => Err(OpenError::io(&name, error)),
        }
    }
}
