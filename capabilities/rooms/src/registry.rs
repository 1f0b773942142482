//! Which rooms are in memory. Those at rest make room for others.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use tidings_engine::log::plan::LogHash;
use tidings_model::{LogId, limits};

use crate::active::Active;
use crate::rooms::Inner;
use crate::{Cursor, RoomError};

/// Rooms in memory that are looked at when another comes, to see whether they are at rest. So few that nobody waits for it,
/// and more than one, so that there are not many more than there may be.
const LOOKED_AT: usize = 16;
/// Rooms that are looked at in one go when nobody waits for it.
const LOOKED_AT_IN_ONE_GO: usize = 1024;

/// All rooms that are used.
#[derive(Default)]
pub(crate) struct ActiveRooms(Mutex<Registry>);

#[derive(Default)]
struct Registry {
    rooms: HashMap<LogId, Arc<Active>, LogHash>,
    /// All of them, in the order in which they are looked at to see whether they are at rest. Some may be gone.
    order: VecDeque<LogId>,
    /// Rooms in which something was typed lately.
    typed_in: HashMap<LogId, Arc<Active>, LogHash>,
    let_go: LetGo,
}

/// Counts how often rooms were let go: each in one of many places, so that whoever waits for one room hardly ever meets
/// another.
struct LetGo([u32; 256]);

impl Default for LetGo {
    fn default() -> Self {
        Self([0; 256])
    }
}

impl LetGo {
    fn of(&mut self, log: LogId) -> &mut u32 {
        &mut self.0[(log.get() % 256) as usize]
    }
}

impl Registry {
    /// Looks at some rooms, those first at which nobody has looked for the longest, and lets go of those that are at rest.
    /// That costs as much as there are to look at, however many there are.
    fn let_rest(&mut self, looks: usize, is_used: impl Fn(LogId, &Arc<Active>) -> bool) {
        for _ in 0..looks {
            let Some(log) = self.order.pop_front() else { return };
            let Some(active) = self.rooms.get(&log) else { continue };
            if is_used(log, active) {
                self.order.push_back(log);
            } else {
                self.let_go(log);
            }
        }
    }

    fn let_go(&mut self, log: LogId) {
        if self.rooms.remove(&log).is_some() {
            let count = self.let_go.of(log);
            *count = count.wrapping_add(1);
        }
    }

    /// One more room. If there are as many as may be, those at rest make room for it.
    fn insert(
        &mut self,
        log: LogId,
        active: Arc<Active>,
        most: usize,
        is_used: impl Fn(LogId, &Arc<Active>) -> bool,
    ) {
        if self.order.len() >= most {
            self.let_rest(LOOKED_AT, is_used);
        }
        self.rooms.insert(log, active);
        self.order.push_back(log);
    }
}

impl ActiveRooms {
    /// No cursor of a room is above this; known of those that are used.
    pub(crate) fn bound(&self, log: LogId) -> Option<Cursor> {
        let active = self.lock().rooms.get(&log).cloned()?;
        Some(active.bound())
    }

    /// Something was typed in a room.
    pub(crate) fn typed_in(&self, log: LogId, active: Arc<Active>) {
        self.lock().typed_in.insert(log, active);
    }

    /// Lets go of a room that has ended.
    pub(crate) fn let_go(&self, log: LogId) {
        let mut registry = self.lock();
        registry.typed_in.remove(&log);
        registry.let_go(log);
    }

    /// Forgets all rooms: who needs one reads it from the store again.
    pub(crate) fn forget(&self) {
        let mut registry = self.lock();
        registry.rooms.clear();
        registry.order.clear();
        registry.let_go.0.iter_mut().for_each(|count| *count = count.wrapping_add(1));
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().rooms.len()
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().expect("nobody panics while holding the registry")
    }
}

impl Inner {
    /// What is in memory of a room, read from the store if need be.
    pub(crate) async fn active(&self, log: LogId) -> Result<Arc<Active>, RoomError> {
        loop {
            let let_go = {
                let mut registry = self.caches.active.lock();
                if let Some(active) = registry.rooms.get(&log) {
                    return Ok(active.clone());
                }
                *registry.let_go.of(log)
            };
            let found = self.store.found(log).await?.ok_or(RoomError::NotFound)?;
            let active = Arc::new(Active::new(&found));
            let mut registry = self.caches.active.lock();
            if let Some(active) = registry.rooms.get(&log) {
                return Ok(active.clone());
            }
            // If it was in memory and was let go since we looked into the store, we have looked too early.
            if *registry.let_go.of(log) == let_go {
                let most = self.options.capacity.active_rooms;
                registry.insert(log, active.clone(), most, |log, active| self.is_used(log, active));
                return Ok(active);
            }
        }
    }

    /// Whoever has something under way holds the room; nobody else gets hold of it without the registry.
    fn is_used(&self, log: LogId, active: &Arc<Active>) -> bool {
        Arc::strong_count(active) > 1 || self.channels.readers(log) > 0
    }

    /// Lets go of rooms that nobody uses, some at a time.
    pub(crate) fn let_rest(&self) {
        let mut left = self.caches.active.lock().order.len();
        while left > 0 {
            let looks = left.min(LOOKED_AT_IN_ONE_GO);
            self.caches.active.lock().let_rest(looks, |log, active| self.is_used(log, active));
            left -= looks;
        }
    }

    /// Lets go of ephemeral events for so long that everybody has heard it.
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
        assert!(*registry.let_go.of(LogId::new(1)) > 0);
        let looks = registry.order.len();
        registry.let_rest(looks, is_used);
        assert_eq!((registry.rooms.len(), registry.order.len()), (used.clone().count(), used.count()));
    }

    #[test]
    fn rooms_that_have_ended_leave_nothing_behind() {
        let mut registry = Registry::default();
        for log in 0..10_000 {
            registry.insert(LogId::new(log), active(), 100, |_, _| true);
            registry.let_go(LogId::new(log));
            assert!(registry.order.len() <= 100 && registry.rooms.is_empty());
        }
    }
}
