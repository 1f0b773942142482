//! What decisions depend on beside the state: the time, limits that hold for every hook, and fresh ids.

use std::time::Duration;

use tidings_model::{Timestamp, Ulid};

/// The time and what else a decision depends on.
#[derive(Clone, Copy)]
pub(super) struct Moment<'a> {
    /// Wall clock.
    pub(super) at: Timestamp,
    /// Monotonic clock.
    pub(super) elapsed: Duration,
    /// Limits.
    pub(super) rules: &'a Rules,
    /// Makes ids of dead letters.
    pub(super) fresh_id: &'a (dyn Fn() -> Ulid + Send + Sync),
}

/// Limits that hold for every hook.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Age at which a delivery expires.
    pub(super) retention: Duration,
    /// Maximum number of deliveries that wait for one hook.
    pub(super) max_queue: u64,
}

impl Moment<'_> {
    /// Whether a delivery that was queued at this time has expired.
    pub(super) fn has_expired(&self, queued: Timestamp) -> bool {
        self.at >= queued + self.rules.retention
    }
}
