//! Registry of rooms in memory. Idle rooms are evicted when the limit is reached.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use tidings_engine::log::plan::LogHash;
use tidings_model::{LogId, limits};

use crate::active::Active;
use crate::rooms::Inner;
use crate::{Cursor, RoomError};

/// Rooms examined for eviction when another is added. Few, so that the caller does not wait, but more than
/// one, so that the registry stays close to its limit.
const LOOKED_AT: usize = 16;
/// Rooms examined per lock when no request waits for it.
const LOOKED_AT_IN_ONE_GO: usize = 1024;

/// All rooms in memory.
#[derive(Default)]
pub(crate) struct ActiveRooms(Mutex<Registry>);

#[derive(Default)]
struct Registry {
    rooms: HashMap<LogId, Arc<Active>, LogHash>,
    /// Logs of all rooms, in the order in which they are examined for eviction. Some may already be evicted.
    order: VecDeque<LogId>,
    /// Rooms with recent typing events.
    typed_in: HashMap<LogId, Arc<Active>, LogHash>,
    evictions: Evictions,
}

/// Eviction counts, hashed into a fixed number of counters. They let a loader notice that its room was evicted while it
/// was reading the store. A collision only makes it load again.
struct Evictions([u32; 256]);

impl Default for Evictions {
    fn default() -> Self {
        Self([0; 256])
    }
}

impl Evictions {
    fn of(&mut self, log: LogId) -> &mut u32 {
        &mut self.0[(log.get() % 256) as usize]
    }
}

impl Registry {
    /// Examines some rooms, the least recently examined first, and evicts the idle ones. The cost depends
    /// only on `looks`.
    fn evict_idle(&mut self, looks: usize, is_used: impl Fn(LogId, &Arc<Active>) -> bool) {
        for _ in 0..looks {
            let Some(log) = self.order.pop_front() else { return };
            let Some(active) = self.rooms.get(&log) else { continue };
            if is_used(log, active) {
                self.order.push_back(log);
            } else {
                self.evict(log);
            }
        }
    }

    fn evict(&mut self, log: LogId) {
        if self.rooms.remove(&log).is_some() {
            let count = self.evictions.of(log);
            *count = count.wrapping_add(1);
        }
    }

    /// Adds a room. If the limit is reached, idle rooms are evicted first.
    fn insert(
        &mut self,
        log: LogId,
        active: Arc<Active>,
        most: usize,
        is_used: impl Fn(LogId, &Arc<Active>) -> bool,
    ) {
        if self.order.len() >= most {
            self.evict_idle(LOOKED_AT, is_used);
        }
        self.rooms.insert(log, active);
        self.order.push_back(log);
    }
}

impl ActiveRooms {
    /// Upper bound of all cursors of a room; `None` if the room is not in memory.
    pub(crate) fn bound(&self, log: LogId) -> Option<Cursor> {
        let active = self.lock().rooms.get(&log).cloned()?;
        Some(active.bound())
    }

    /// Marks a room as having recent typing events.
    pub(crate) fn typed_in(&self, log: LogId, active: Arc<Active>) {
        self.lock().typed_in.insert(log, active);
    }

    /// Removes a room that has ended.
    pub(crate) fn remove(&self, log: LogId) {
        let mut registry = self.lock();
        registry.typed_in.remove(&log);
        registry.evict(log);
    }

    /// Drops all rooms. Each is loaded from the store again when it is needed.
    pub(crate) fn forget(&self) {
        let mut registry = self.lock();
        registry.rooms.clear();
        registry.order.clear();
        registry.evictions.0.iter_mut().for_each(|count| *count = count.wrapping_add(1));
    }

    /// Number of rooms in memory.
    pub(crate) fn len(&self) -> usize {
        self.lock().rooms.len()
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().expect("nobody panics while holding the registry")
    }
}

impl Inner {
    /// The in-memory state of a room, loaded from the store if needed.
    pub(crate) async fn active(&self, log: LogId) -> Result<Arc<Active>, RoomError> {
        loop {
            let evictions = {
                let mut registry = self.caches.active.lock();
                if let Some(active) = registry.rooms.get(&log) {
                    return Ok(active.clone());
                }
                *registry.evictions.of(log)
            };
            let found = self.store.found(log).await?.ok_or(RoomError::NotFound)?;
            let active = Arc::new(Active::new(&found));
            let mut registry = self.caches.active.lock();
            if let Some(active) = registry.rooms.get(&log) {
                return Ok(active.clone());
            }
            // If the room was in memory and was evicted since the store was read, what was read may be
            // outdated.
            if *registry.evictions.of(log) == evictions {
                let most = self.options.capacity.active_rooms;
                registry.insert(log, active.clone(), most, |log, active| self.is_used(log, active));
                return Ok(active);
            }
        }
    }

    /// Whether a room is in use. Every operation in flight holds an `Arc`, and gets it only through the
    /// registry.
    fn is_used(&self, log: LogId, active: &Arc<Active>) -> bool {
        Arc::strong_count(active) > 1 || self.channels.readers(log) > 0
    }

    /// Evicts all idle rooms, some per lock.
    pub(crate) fn evict_idle(&self) {
        let mut left = self.caches.active.lock().order.len();
        while left > 0 {
            let looks = left.min(LOOKED_AT_IN_ONE_GO);
            self.caches.active.lock().evict_idle(looks, |log, active| self.is_used(log, active));
            left -= looks;
        }
    }

    /// Drops ephemeral events that are old enough for every reader to have received them.
    pub(crate) fn forget_typing(&self) {
        let before = self.now() - limits::TYPING_KEPT;
        self.caches.active.lock().typed_in.retain(|_, active| active.forget_recent(before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Found;
    use std::cell::Cell;
    use tidings_engine::log::{LogTotals, Status};
    use tidings_model::Position;

    fn active() -> Arc<Active> {
        let status = Status {
            tail: Position::ZERO,
            floor: Position::ZERO,
            closed: false,
            total: LogTotals::default(),
        };
        Arc::new(Active::new(&Found {
            reserved: Position::ZERO,
            collapsed: Arc::default(),
            kept_since: None,
            reacted: false,
            status,
        }))
    }

    #[test]
    fn a_further_room_costs_the_same_however_many_are_used() {
        for rooms in [100, 10_000] {
            let (mut registry, looks) = (Registry::default(), Cell::new(0));
            let used = |_: LogId, _: &Arc<Active>| {
                looks.set(looks.get() + 1);
                true
            };
            for log in 0..rooms {
                registry.insert(LogId::new(log), active(), rooms as usize, used);
            }
            assert_eq!(looks.get(), 0, "there was room for all of them");
            registry.insert(LogId::new(rooms), active(), rooms as usize, used);
            assert_eq!((looks.get(), registry.rooms.len()), (LOOKED_AT, rooms as usize + 1));
        }
    }

    #[test]
    fn rooms_at_rest_make_room_for_others_and_those_that_are_used_stay() {
        const MOST: usize = 100;
        let mut registry = Registry::default();
        let is_used = |log: LogId, _: &Arc<Active>| log.get().is_multiple_of(4) && log.get() < 200;
        for log in 0..10_000 {
            registry.insert(LogId::new(log), active(), MOST, is_used);
            assert!(registry.rooms.len() <= MOST && registry.order.len() <= MOST, "{}", registry.rooms.len());
        }
        let used = (0..200).step_by(4).map(LogId::new);
        assert!(used.clone().all(|log| registry.rooms.contains_key(&log)));
        assert!(*registry.evictions.of(LogId::new(1)) > 0);
        let looks = registry.order.len();
        registry.evict_idle(looks, is_used);
        assert_eq!((registry.rooms.len(), registry.order.len()), (used.clone().count(), used.count()));
    }

    #[test]
    fn rooms_that_have_ended_leave_nothing_behind() {
        let mut registry = Registry::default();
        for log in 0..10_000 {
            registry.insert(LogId::new(log), active(), 100, |_, _| true);
            registry.evict(LogId::new(log));
            assert!(registry.order.len() <= 100 && registry.rooms.is_empty());
        }
    }
}
