//! Access to the projects in a store without running a server.

use std::path::Path;
use std::sync::Arc;

use tidings_auth::{Given, Projects, Randomness};
use tidings_embedded::{DirectoryLock, Embedded, Options};
use tidings_engine::{Bus, WallClock};

use crate::catalog::Catalog;
use crate::serve::StartError;

/// Random bytes from the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRandomness;

impl Randomness for SystemRandomness {
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("without randomness no secret can be made");
    }
}

/// The projects in the store of a stopped server, opened for administration. The store stays locked until this is
/// dropped.
pub struct StoredProjects {
    projects: Projects,
    _lock: DirectoryLock,
}

impl StoredProjects {
    /// Opens the store in a directory, creating it if there is none. Fails if a running server has it open.
    pub fn open(data: &Path) -> Result<Self, StartError> {
        Self::open_beside(data, Given::default())
    }

    /// Opens the store, with projects and keys from the configuration in addition to the stored ones.
    pub fn open_beside(data: &Path, given: Given) -> Result<Self, StartError> {
        let lock = DirectoryLock::take(data)?;
        let options = Options { secret: secret(), ..Options::default() };
        let disk = Arc::new(lock.folder());
        let store = Embedded::<Catalog>::open(disk, options, Bus::new(), Arc::new(WallClock))?;
        let projects = Projects::open(Arc::new(store), Arc::new(SystemRandomness), given);
        Ok(Self { projects, _lock: lock })
    }

    /// The projects in the store.
    pub fn projects(&self) -> &Projects {
        &self.projects
    }
}

/// Returns a random secret for the salts of the store's files.
pub(crate) fn secret() -> u64 {
    let mut bytes = [0; 8];
    SystemRandomness.fill(&mut bytes);
    u64::from_le_bytes(bytes)
}
