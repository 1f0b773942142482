//! The projects of a store, without a server in front of them.

use std::path::Path;
use std::sync::Arc;

use tidings_auth::{Given, Projects, Randomness};
use tidings_embedded::{DirectoryLock, Embedded, Options};
use tidings_engine::{Bus, WallClock};

use crate::catalog::Catalog;
use crate::serve::StartError;

/// The operating system's randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRandomness;

impl Randomness for SystemRandomness {
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("without randomness no secret can be made");
    }
}

/// The projects of a stopped server, opened to administer them. While it lives nobody else can open the store.
pub struct StoredProjects {
    projects: Projects,
    _lock: DirectoryLock,
}

impl StoredProjects {
    /// Opens the store in a folder, making it if there is none. Fails when a server has it.
    pub fn open(data: &Path) -> Result<Self, StartError> {
        Self::open_beside(data, Given::default())
    }

    /// The same beside what a configuration gives.
    pub fn open_beside(data: &Path, given: Given) -> Result<Self, StartError> {
        let lock = DirectoryLock::take(data)?;
        let options = Options { secret: secret(), ..Options::default() };
        let disk = Arc::new(lock.folder());
        let store = Embedded::<Catalog>::open(disk, options, Bus::new(), Arc::new(WallClock))?;
        let projects = Projects::open(Arc::new(store), Arc::new(SystemRandomness), given);
        Ok(Self { projects, _lock: lock })
    }

    /// The projects.
    pub fn projects(&self) -> &Projects {
        &self.projects
    }
}

/// A number that nobody outside knows, for the salts of the store's files.
pub(crate) fn secret() -> u64 {
    let mut bytes = [0; 8];
    SystemRandomness.fill(&mut bytes);
    u64::from_le_bytes(bytes)
}
