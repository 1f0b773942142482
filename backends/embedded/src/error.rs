//! [`OpenError`]: why a store cannot be opened, checked or copied.

use std::io;

use rustix::io::Errno;
use tidings_model::CommitNumber;

use crate::codec::DecodeError;

/// Why a store cannot be opened or inspected. The message names the file and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the store's lock.
    #[error("{0} is in use by another process; stop that one first, or name another folder with --data")]
    InUse(String),
    /// The process lacks permission to read or write a file.
    #[error("{name}: no permission; give the user that runs tidings the right to read and write it")]
    Permission {
        /// File or folder.
        name: String,
    },
    /// The folder has files and none of them is a store's.
    #[error("{folder} holds `{name}` and no tidings store; name an empty or new folder with --data")]
    Foreign {
        /// Folder that was to be opened.
        folder: String,
        /// Entry that does not belong to a store.
        name: String,
    },
    /// The target folder of a backup is not empty; the value is an entry in it.
    #[error("the backup's folder holds `{0}`; name an empty or new folder")]
    NotEmpty(String),
    /// A file has a format version that this release does not read.
    #[error(
        "{name} has format version {found}, and this tidings reads version {expected}; use the tidings that wrote it"
    )]
    Version {
        /// File with the other version.
        name: String,
        /// Version found in the file.
        found: u32,
        /// Version that this release reads.
        expected: u32,
    },
    /// A file does not have the content it should, by its checksum or its structure.
    #[error("{name} is damaged ({what}); restore a backup. `tidings store check` lists all that is damaged")]
    Damaged {
        /// Damaged file.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// A frame in the middle of the write-ahead log is unreadable, although later ones are readable.
    #[error(
        "{name} is damaged at byte {offset}: commit {} cannot be read, though later ones can. Restore a backup, or \
         give up everything from that commit on: tidings store truncate",
        lost.get()
    )]
    Rot {
        /// File of the write-ahead log.
        name: String,
        /// Byte offset of the unreadable frame.
        offset: u64,
        /// First commit that is lost.
        lost: CommitNumber,
    },
    /// The log ends before a commit that is known to have been acknowledged.
    #[error(
        "{name} is damaged at byte {offset}: the log went up to commit {} at least, and commit {} cannot be read. Restore \
         a backup, or give up everything from that commit on: tidings store truncate",
        reached.get(),
        lost.get()
    )]
    EndsEarly {
        /// File in which the log ends.
        name: String,
        /// Byte offset at which the log ends.
        offset: u64,
        /// First commit that is lost.
        lost: CommitNumber,
        /// Last commit that the manifest says was durable.
        reached: CommitNumber,
    },
    /// A file of the write-ahead log that the manifest names is missing, replaced, shortened or unreadable.
    #[error(
        "{name} {what}, and acknowledged commits with it. Put the file back, restore a backup, or give up what cannot be \
         read and everything after it: tidings store truncate"
    )]
    LogFile {
        /// File of the write-ahead log.
        name: String,
        /// What is wrong, as the rest of a sentence.
        what: String,
    },
    /// The system reported an error.
    #[error("{name}: {error}")]
    Io {
        /// File or folder.
        name: String,
        /// Error of the system.
        error: io::Error,
    },
}

impl OpenError {
    /// Wraps a system error, with a variant of its own for missing permission.
    pub fn io(name: &str, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Permission { name: name.to_owned() },
            _ => Self::Io { name: name.to_owned(), error },
        }
    }

    /// Whether this is damage of the write-ahead log, which `truncate` repairs by giving up commits.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(self, Self::Rot { .. } | Self::EndsEarly { .. } | Self::LogFile { .. })
    }

    /// A file with wrong content.
    pub fn damaged(name: &str, what: impl ToString) -> Self {
        Self::Damaged { name: name.to_owned(), what: what.to_string() }
    }
}

/// Whether an operation may succeed later without intervention: space, quota or file descriptors ran out, and
/// nothing was partly done. Any other error of the disk stops the store.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    let descriptors = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        || descriptors.contains(&error.raw_os_error())
}

/// Adds the name of a file to an error.
pub trait InFile<T> {
    /// Converts the error to an [`OpenError`] about this file.
    fn in_file(self, name: &str) -> Result<T, OpenError>;
}

impl<T> InFile<T> for io::Result<T> {
    fn in_file(self, name: &str) -> Result<T, OpenError> {
        self.map_err(|error| OpenError::io(name, error))
    }
}

impl<T> InFile<T> for Result<T, DecodeError> {
    fn in_file(self, name: &str) -> Result<T, OpenError> {
        self.map_err(|error| OpenError::damaged(name, error))
    }
}
