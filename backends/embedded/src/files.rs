//! Which files count. The threads that write them share this.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use tidings_engine::log::StateMachine;

use crate::checkpoint::{self, Manifest};
use crate::disk::Disk;
use crate::error::is_transient;
use crate::segment::{self, Segment, broken};
use crate::segment_writer::{SegmentWriter, SharedKey};
use crate::state::StoreState;
use crate::store::StoreInner;
use crate::wal::LogFile;

/// The files of a store, and what readers see of them.
pub(crate) struct Files<T: StateMachine> {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) shared: Arc<StoreInner<T>>,
    manifest: Mutex<Manifest>,
}

/// What must be left on the disk after something that could also be done later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The reserve: with less, commits that take space are refused.
    Reserve,
    /// Half of it, for what gives back more than it takes. The other half is for what is in memory and must be written.
    HalfReserve,
}

impl<T: StateMachine> Files<T> {
    pub(crate) fn new(disk: Arc<dyn Disk>, shared: Arc<StoreInner<T>>, manifest: Manifest) -> Self {
        Self { disk, shared, manifest: Mutex::new(manifest) }
    }

    /// The files that count now.
    pub(crate) fn manifest(&self) -> Manifest {
        self.lock().clone()
    }

    /// A number for a new file.
    pub(crate) fn new_file(&self) -> u64 {
        self.lock().new_file()
    }

    /// Whether a file of so many bytes may be written: an error of want of space if less would be left than is to be kept. A
    /// disk that cannot be asked will fail when it is written to; that tells more.
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

    /// Makes other files count, durably, and then lets readers see it. One at a time, so that the list of segments that
    /// readers have is always that of the manifest. `new` are the files that come in with it.
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

    /// Makes it durable that these files are the write-ahead log, and that it has gone as far as it has.
    pub(crate) fn record_log(&self, log: Vec<LogFile>) -> io::Result<()> {
        self.replace(&[], |manifest| manifest.log = log, |_| {})
    }

    /// Removes new files that did not come to count for want of space or descriptors; what is to be told then. After any other error
    /// a manifest may count them already.
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

    /// Writes a segment; none, and no file, when there is nothing to write. Half a file is not left behind.
    pub(crate) fn write_segment(
        &self,
        id: u64,
        fill: impl FnOnce(&mut SegmentWriter) -> io::Result<()>,
        payload: impl FnMut(SharedKey) -> io::Result<bytes::Bytes>,
    ) -> io::Result<Option<Arc<Segment>>> {
        let write = || {
            let mut writer = SegmentWriter::create(&*self.disk, id)?;
            fill(&mut writer)?;
            if writer.is_empty() {
                return Ok(None);
            }
            writer.finish(&*self.disk, payload)?;
            Ok(Some(Arc::new(Segment::open(&*self.disk, id).map_err(broken)?)))
        };
        let written: io::Result<Option<Arc<Segment>>> = write();
        if !matches!(written, Ok(Some(_))) {
            self.remove_if_there(&segment::file_name(id))?;
        }
        written
    }

    /// Writes a file of the checkpoint, and returns its size. Half a file is not left behind.
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

    /// Removes a file whose making failed, perhaps before it was there.
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
