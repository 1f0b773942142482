//! The manifest in memory, shared by the threads that write files.
//!
//! [`Files::replace`] is the only way to change which files belong to the store. Invariant: the segments that
//! readers see are those of the durable manifest.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use tidings_engine::log::StateMachine;

use crate::checkpoint::{self, Manifest};
use crate::disk::Disk;
use crate::error::is_transient;
use crate::rows::file::{self as row_file, RowFile};
use crate::rows::ranges::KeyRanges;
use crate::rows::writer::RowFileWriter;
use crate::segment::{self, Segment, broken};
use crate::segment_shared::SharedSource;
use crate::segment_writer::SegmentWriter;
use crate::state::StoreState;
use crate::store::StoreInner;
use crate::wal::LogFile;

/// The files of a store, and what readers see of them.
pub(crate) struct Files<T: StateMachine> {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) shared: Arc<StoreInner<T>>,
    manifest: Mutex<Manifest>,
}

/// Free space that must remain on the disk after work that could also be done later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The whole reserve. With less free space, commits that need space are refused.
    Reserve,
    /// Half of the reserve, for work that frees more than it takes. The other half remains for flushing
    /// memtables.
    HalfReserve,
}

impl<T: StateMachine> Files<T> {
    pub(crate) fn new(disk: Arc<dyn Disk>, shared: Arc<StoreInner<T>>, manifest: Manifest) -> Self {
        Self { disk, shared, manifest: Mutex::new(manifest) }
    }

    /// A copy of the current manifest.
    pub(crate) fn manifest(&self) -> Manifest {
        self.lock().clone()
    }

    /// Allocates the number of a new file.
    pub(crate) fn new_file(&self) -> u64 {
        self.lock().new_file()
    }

    /// Fails with [`io::ErrorKind::StorageFull`] if writing `bytes` would leave less free space than `keep`
    /// demands. If free space cannot be determined this succeeds: the write itself will give the better
    /// error.
    pub(crate) fn ask_space(&self, bytes: u64, keep: Keep) -> io::Result<()> {
        let reserve = self.shared.reserve_bytes;
        let keep = match keep {
            Keep::Reserve => reserve,
            Keep::HalfReserve => reserve / 2,
        };
        match self.disk.available() {
            Ok(space) if space < bytes.saturating_add(keep) => {
                Err(io::Error::from(io::ErrorKind::StorageFull))
            }
            _ => Ok(()),
        }
    }

    /// Stores an edited manifest durably, then lets `show` change what readers see. Calls are serialized, so
    /// the segments that readers see are always those of the manifest. `new` names the files that the edit
    /// adds.
    pub(crate) fn replace(
        &self,
        new: &[String],
        edit: impl FnOnce(&mut Manifest),
        show: impl FnOnce(&mut StoreState<T>),
    ) -> io::Result<()> {
        let mut manifest = self.lock();
        let mut edited = manifest.clone();
        edit(&mut edited);
        edited.reached = self.shared.read().end();
        if let Err(error) = edited.store(&*self.disk) {
            return Err(self.give_up(new, error));
        }
        *manifest = edited;
        show(&mut self.shared.write());
        Ok(())
    }

    /// Stores durably which files form the write-ahead log, and how far it has been written.
    pub(crate) fn record_log(&self, log: Vec<LogFile>) -> io::Result<()> {
        self.replace(&[], |manifest| manifest.log = log, |_| {})
    }

    /// Removes new files after a transient error (no space, no descriptors) and returns the error to report.
    /// After any other error they stay, because the manifest on disk may name them already.
    pub(crate) fn give_up(&self, new: &[String], error: io::Error) -> io::Error {
        if is_transient(&error) {
            for name in new {
                if let Err(worse) = self.disk.remove(name) {
                    return worse;
                }
            }
        }
        error
    }

    /// Writes a segment; returns `None` and leaves no file if `fill` added nothing. `fill` returns the records that the
    /// references which it added refer to. Removes the file on failure.
    pub(crate) fn write_segment<S: SharedSource>(
        &self,
        id: u64,
        fill: impl FnOnce(&mut SegmentWriter) -> io::Result<S>,
    ) -> io::Result<Option<Arc<Segment>>> {
        let write = || {
            let mut writer = SegmentWriter::create(&*self.disk, id)?;
            let mut shared = fill(&mut writer)?;
            if writer.is_empty() {
                return Ok(None);
            }
            writer.finish(&*self.disk, &mut shared)?;
            Ok(Some(Arc::new(Segment::open(&*self.disk, id).map_err(broken)?)))
        };
        let written: io::Result<Option<Arc<Segment>>> = write();
        if !matches!(written, Ok(Some(_))) {
            self.remove_if_there(&segment::file_name(id))?;
        }
        written
    }

    /// Writes a file of rows, at most `entries_max`; returns `None` and leaves no file if `fill` added nothing and there are
    /// no floors. Removes the file on failure.
    pub(crate) fn write_rows(
        &self,
        entries_max: u64,
        floors: &KeyRanges,
        fill: impl FnOnce(&mut RowFileWriter) -> io::Result<()>,
    ) -> io::Result<Option<Arc<RowFile>>> {
        let number = self.new_file();
        let write = || {
            let mut writer = RowFileWriter::create(&*self.disk, number, entries_max)?;
            fill(&mut writer)?;
            if writer.entries() == 0 && floors.is_empty() {
                return Ok(None);
            }
            let name = writer.finish(&*self.disk, floors)?;
            Ok(Some(Arc::new(RowFile::open(&*self.disk, name).map_err(broken)?)))
        };
        let written: io::Result<Option<Arc<RowFile>>> = write();
        if !matches!(written, Ok(Some(_))) {
            self.remove_if_there(&row_file::file_name(number))?;
        }
        written
    }

    /// Writes a file of the checkpoint and returns its size in bytes. Removes the file on failure.
    pub(crate) fn write_checkpoint(
        &self,
        id: u64,
        write: impl FnOnce(&dyn Disk) -> io::Result<u64>,
    ) -> io::Result<u64> {
        let written = write(&*self.disk);
        if written.is_err() {
            self.remove_if_there(&checkpoint::file_name(id))?;
        }
        written
    }

    /// Removes a file that may not exist.
    fn remove_if_there(&self, name: &str) -> io::Result<()> {
        match self.disk.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Manifest> {
        self.manifest.lock().expect("nobody panics while holding the manifest")
    }
}
