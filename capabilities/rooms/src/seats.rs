//! Seats: who listens to a room, to be told at once that it may not any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidings_model::{LogId, UserId};

/// All seats of a server.
#[derive(Default)]
pub(crate) struct Seats;

impl Seats {
    pub(crate) fn take(&self, _: LogId, _: &UserId) -> Seat {
        Seat { holds: Arc::new(AtomicBool::new(true)) }
    }
}

/// A place among those who hear a room.
pub struct Seat {
    holds: Arc<AtomicBool>,
}

impl Seat {
    /// Whether its user may still hear the room. Once it does not hold it never does again.
    pub fn holds(&self) -> bool {
        self.holds.load(Ordering::SeqCst)
    }
}
