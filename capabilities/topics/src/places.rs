//! How many subscriptions the connections of a hub hold together.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Places for subscriptions: those that are held, and those that operations have reserved.
pub(crate) struct Places {
    taken: AtomicUsize,
    limit: Option<usize>,
}

impl Places {
    /// Places of which none is taken.
    pub(crate) fn new(limit: Option<usize>) -> Self {
        Self { taken: AtomicUsize::new(0), limit }
    }

    /// Takes so many places. If there are not enough, takes none and returns the limit.
    pub(crate) fn take(&self, places: usize) -> Result<(), usize> {
        let limit = self.limit.unwrap_or(usize::MAX);
        let enough = |taken: usize| taken.checked_add(places).filter(|taken| places == 0 || *taken <= limit);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enough);
        taken.map(drop).map_err(|_| limit)
    }

    /// Gives back places.
    pub(crate) fn give_back(&self, places: usize) {
        self.taken.fetch_sub(places, Ordering::Relaxed);
    }

    /// Exchanges reserved places for what has become of them. It may be more than was reserved, if what was to make room
    /// has gone otherwise.
    pub(crate) fn exchange(&self, reserved: usize, added: usize, removed: usize) {
        let freed = reserved + removed;
        if added >= freed {
            self.taken.fetch_add(added - freed, Ordering::Relaxed);
        } else {
            self.give_back(freed - added);
        }
    }

    /// Number of places that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}
