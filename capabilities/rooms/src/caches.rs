//! What is in memory beside the tables of rooms. It follows the changes that are applied, whoever made them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidings_engine::log::Observer;

use crate::leases::MembershipLeases;
use crate::registry::ActiveRooms;
use crate::{Change, Store, Table};

#[derive(Default)]
pub(crate) struct Caches {
    /// The epoch as it was last applied.
    epoch: AtomicU64,
    pub(crate) leases: MembershipLeases,
    pub(crate) active: ActiveRooms,
}

impl Caches {
    /// Caches that follow a store for as long as they are there.
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
            // What an active room knows of these it learns from its own writes: only the node that leads gives cursors
            // and keeps marks, and it reads rooms anew when it begins to lead.
            Change::Reserve { .. } | Change::Kept { .. } | Change::Reacted { .. } => {}
            // Nothing in memory depends on these.
            Change::Owned { .. }
            | Change::Create { .. }
            | Change::Collapse { .. }
            | Change::Prune { .. }
            | Change::See { .. }
            | Change::Forget { .. } => {}
        }
    }
}
