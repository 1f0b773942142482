//! State of rooms in memory beside the tables. It observes applied changes, whichever node made them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidings_engine::log::Observer;

use crate::leases::MembershipLeases;
use crate::registry::ActiveRooms;
use crate::{Change, Store, Table};

#[derive(Default)]
pub(crate) struct Caches {
    /// Epoch of the last applied take-over.
    epoch: AtomicU64,
    pub(crate) leases: MembershipLeases,
    pub(crate) active: ActiveRooms,
}

impl Caches {
    /// Creates caches that observe a store for as long as they exist.
    pub(crate) fn of(store: &dyn Store) -> Arc<Self> {
        let caches = Arc::new(Self::default());
        let observer: Arc<dyn Observer<Table>> = caches.clone();
        store.observe(&observer);
        caches
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }
}

impl Observer<Table> for Caches {
    fn begin(&self, table: &Table) {
        self.epoch.store(table.epoch(), Ordering::SeqCst);
    }

    fn applied(&self, change: &Change) {
        match change {
            Change::TakeOver { epoch } => self.epoch.store(*epoch, Ordering::SeqCst),
            Change::Members { log, remove, .. } => self.leases.revoke(*log, remove),
            Change::Remove { log } => {
                self.leases.clear(*log);
                self.active.remove(*log);
            }
            // An active room learns these from its own writes: only the leader assigns cursors and tracks these marks,
            // and it reloads rooms when it begins to lead.
            Change::Reserve { .. } | Change::Kept { .. } | Change::Reacted { .. } => {}
            // No cache depends on these.
            Change::Owned { .. }
            | Change::Create { .. }
            | Change::Collapse { .. }
            | Change::Prune { .. }
            | Change::See { .. }
            | Change::Forget { .. } => {}
        }
    }
}
