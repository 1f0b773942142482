use std::io;

use rustix::io::Errno;
use tidings_model::CommitNumber;

use crate::codec::DecodeError;

/// Why a store cannot be opened or looked at. The message names the file and the next step.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{0} is in use by another process; stop that one first, or name another folder with --data")]
    InUse(String),
    /// Not allowed.
    #[error("{name}: no permission; give the user that runs tidings the right to read and write it")]
    Permission {
        /// The file or folder.
        name: String,
    },
    /// Not ours.
    #[error("{folder} holds `{name}` and no tidings store; name an empty or new folder with --data")]
    Foreign {
        /// The folder.
        folder: String,
        /// What does not belong there.
        name: String,
    },
    /// A backup is made into an empty folder.
    #[error("the backup's folder holds `{0}`; name an empty or new folder")]
    NotEmpty(String),
    /// Of another version.
    #[error(
        "{name} has format version {found}, and this tidings reads version {expected}; use the tidings that wrote it"
    )]
    Version {
        /// The file.
        name: String,
        /// What it says.
        found: u32,
        /// What we read.
        expected: u32,
    },
    /// A file whose checksum is wrong.
    #[error("{name} is damaged ({what}); restore a backup. `tidings store check` lists all that is damaged")]
    Damaged {
        /// The file.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// A hole in the log of acknowledged commits.
    #[error(
        "{name} is damaged at byte {offset}: commit {} cannot be read, though later ones can. Restore a backup, or \
         give up everything from that commit on: tidings store truncate",
        lost.get()
    )]
    Rot {
        /// The file.
        name: String,
        /// Where.
        offset: u64,
        /// The first commit that is lost.
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
        /// The file in which the log ends.
        name: String,
        /// Where.
        offset: u64,
        /// The first commit that is lost.
        lost: CommitNumber,
        /// The last commit of which the store knew when it wrote its manifest.
        reached: CommitNumber,
    },
    /// A file of the write-ahead log that counts is missing, or is not as it was written.
    #[error(
        "{name} {what}, and acknowledged commits with it. Writer the file back, restore a backup, or give up what cannot be \
         read and everything after it: tidings store truncate"
    )]
    LogFile {
        /// The file.
        name: String,
        /// What is wrong, as the rest of a sentence.
        what: String,
    },
    /// The disk said no.
    #[error("{name}: {error}")]
    Io {
        /// The file.
        name: String,
        /// What the system says.
        error: io::Error,
    },
}

impl OpenError {
    /// Trouble with a file.
    pub fn io(name: &str, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Permission { name: name.to_owned() },
            _ => Self::Io { name: name.to_owned(), error },
        }
    }

    /// Whether it is damage of the write-ahead log, which `truncate` accepts as a loss.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(self, Self::Rot { .. } | Self::EndsEarly { .. } | Self::LogFile { .. })
    }

    /// A file that does not say what it should.
    pub fn damaged(name: &str, what: impl ToString) -> Self {
        Self::Damaged { name: name.to_owned(), what: what.to_string() }
    }
}

/// Whether what has failed may succeed later without anybody's help: space, a quota or file descriptors ran out, and
/// nothing was done by halves. Every other failure of the disk ends the store.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    let descriptors = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        || descriptors.contains(&error.raw_os_error())
}

/// Adds the name of the file to an error.
pub trait InFile<T> {
    /// The same, of this file.
    fn in_file(self, name: &str) -> Result<T, OpenError>;
}

impl<T> InFile<T> for io::Result<T> {
    fn in_file(self, name: &str) -> Result<T, OpenError> {
        self.map_err(|error| OpenError::io(name, error))
    }
}

impl<T> InFile<T> for Result<T, DecodeError> {
    fn in_file(self, name: &str) -> Result<T, OpenError> {
        self.map_err(|garbled| OpenError::damaged(name, garbled))
    }
}
