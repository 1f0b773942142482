//! Replays that pause because many deliveries of their hook wait, and go on when few are left.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard};

use tidings_engine::follow::Follower;
use tidings_engine::log::Observer;
use tidings_model::LogId;

use crate::table::{Change, Table};

/// Queues whose replays pause. What is recorded of the deliveries of such a queue wakes the follower, whichever node
/// recorded it.
pub(crate) struct PausedReplays {
    queues: Mutex<HashSet<LogId>>,
    follower: Follower,
}

impl PausedReplays {
    /// Wakes a follower.
    pub(crate) fn new(follower: Follower) -> Self {
        Self { queues: Mutex::default(), follower }
    }

    /// The replays of a queue pause. The caller looks at the queue once more after this: what was recorded before that
    /// look is seen by it, and what is recorded later wakes the follower.
    pub(crate) fn pause(&self, queue: LogId) {
        self.queues().insert(queue);
    }

    /// The replays of a queue go on.
    pub(crate) fn resume(&self, queue: LogId) {
        self.queues().remove(&queue);
    }

    fn queues(&self) -> MutexGuard<'_, HashSet<LogId>> {
        self.queues.lock().expect("nobody panics while holding it")
    }
}

impl Observer<Table> for PausedReplays {
    fn begin(&self, _: &Table) {}

    fn applied(&self, change: &Change) {
        match change {
            Change::Settle { queue, .. }
            | Change::RestoreProgress { queue, .. }
            | Change::Remove { queue } => {
                if self.queues().remove(queue) {
                    self.follower.notify(*queue);
                }
            }
            Change::Open { .. }
            | Change::Close { .. }
            | Change::Expect { .. }
            | Change::Advance { .. }
            | Change::Create { .. }
            | Change::Set { .. }
            | Change::Deactivate { .. }
            | Change::Forget { .. }
            | Change::BeginReplay { .. }
            | Change::AdvanceReplay { .. }
            | Change::RestoreReplay { .. } => {}
        }
    }
}
