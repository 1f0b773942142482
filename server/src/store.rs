//! Selects and opens the store of a server.

use std::path::PathBuf;
use std::sync::Arc;

use tidings_embedded::{DirectoryLock, Embedded, OpenError};
use tidings_engine::log::Memory;
use tidings_engine::{Bus, Clock, Metrics};

use crate::catalog::Catalog;
use crate::duties::Upkeep;
use crate::projects;

/// Which store to use.
#[derive(Clone)]
pub enum StoreChoice {
    /// In memory; lost when the process ends.
    Memory,
    /// The embedded store, in files.
    Embedded {
        /// Data directory.
        data: PathBuf,
        /// Options of the store. Their `secret` is replaced by a random one when the store is opened.
        options: tidings_embedded::Options,
    },
}

/// A store that holds the whole catalog. It implements the store trait of every capability.
pub trait Store:
    tidings_streams::Store
    + tidings_sessions::Store
    + tidings_subscriptions::Store
    + tidings_rooms::Store
    + tidings_hooks::Store
    + tidings_entities::Store
    + tidings_topics::Store
    + tidings_auth::Store
{
    /// Calls `look` with the current catalog.
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

/// An opened store and what belongs to it.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Keeps other processes from opening the store; `None` for a store in memory.
    pub lock: Option<DirectoryLock>,
    /// Reclaims space in the store.
    pub upkeep: Upkeep,
}

impl StoreChoice {
    /// Opens the store. The embedded store locks its data directory first.
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
                let merging = store.clone();
                Ok(Opened { store, lock: Some(lock), upkeep: Arc::new(move || merging.merge_now()) })
            }
        }
    }
}
