//! The store of a server: which one it is, and what capabilities see of it.

use std::path::PathBuf;
use std::sync::Arc;

use tidings_embedded::{DirectoryLock, Embedded, OpenError};
use tidings_engine::log::Memory;
use tidings_engine::{Bus, Clock, Metrics};

use crate::catalog::Catalog;
use crate::duties::Upkeep;
use crate::projects;

/// Where streams are kept.
#[derive(Clone)]
pub enum StoreChoice {
    /// In memory, for as long as the process lives.
    Memory,
    /// In files.
    Embedded {
        /// The folder.
        data: PathBuf,
        /// How the store is set; its secret is drawn anew.
        options: tidings_embedded::Options,
    },
}

/// A store of the whole catalog: one for each of its parts.
pub trait Store:
    tidings_streams::Store + tidings_sessions::Store + tidings_rooms::Store + tidings_auth::Store
{
    /// Shows the catalog as it is now.
    fn show(&self, look: &mut dyn FnMut(&Catalog));
}

impl Store for Memory<Catalog> {
    fn show(&self, look: &mut dyn FnMut(&Catalog)) {
        self.look(|catalog, _| look(catalog));
    }
}

impl Store for Embedded<Catalog> {
    fn show(&self, look: &mut dyn FnMut(&Catalog)) {
        self.look(|catalog, _| look(catalog));
    }
}

/// A store that was opened, with what belongs to it.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Keeps other processes out of it.
    pub lock: Option<DirectoryLock>,
    /// Gives space back.
    pub upkeep: Upkeep,
}

impl StoreChoice {
    /// Opens it.
    pub fn open(self, bus: &Bus, clock: &Arc<dyn Clock>, metrics: &Metrics) -> Result<Opened, OpenError> {
        match self {
            Self::Memory => {
                let store = Arc::new(Memory::<Catalog>::new(bus.clone(), clock.clone()));
                Ok(Opened { store, lock: None, upkeep: Arc::new(|| Ok(())) })
            }
            Self::Embedded { data, options } => {
                let lock = DirectoryLock::take(&data)?;
                let disk = Arc::new(lock.folder());
                let secret = projects::secret();
                let options = tidings_embedded::Options { secret, metrics: metrics.clone(), ..options };
                let store = Arc::new(Embedded::<Catalog>::open(disk, options, bus.clone(), clock.clone())?);
                let tended = store.clone();
                Ok(Opened { store, lock: Some(lock), upkeep: Arc::new(move || tended.tend()) })
            }
        }
    }
}
