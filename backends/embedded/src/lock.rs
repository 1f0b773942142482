//! The lock that gives one process exclusive use of a store's folder.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::Arc;

use crate::disk::{Disk, Folder};
use crate::error::{InFile, OpenError};

/// Keeps others out of a store's folder while it is held, and while a store uses [`DirectoryLock::folder`].
#[derive(Debug)]
pub struct DirectoryLock {
    folder: Folder,
    file: Arc<File>,
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
        let file = Arc::new(file);
        let folder = folder.guarded_by(&file).in_file(&name)?;
        // The folder may have been replaced between opening the lock file and locking it.
        folder.still_held().in_file(&name)?;
        Ok(Self { folder, file })
    }

    /// The locked folder. It refuses to create, rename or remove files once it was replaced.
    pub fn folder(&self) -> Folder {
        self.folder.clone()
    }

    /// Whether somebody still uses the folder that was handed out.
    pub fn is_in_use(&self) -> bool {
        // Beside this lock and its own folder.
        Arc::strong_count(&self.file) > 2
    }
}
