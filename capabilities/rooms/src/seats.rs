//! Seats: who listens to a room, to be told at once that it may not any more.
//!
//! Whoever is being removed leaves its seats before the removal is committed, and gets none that holds until it is. So
//! nothing that is committed after the removal reaches it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tidings_engine::log::plan::LogHash;
use tidings_model::{LogId, UserId};

/// All seats of a server. Clones are the same seats.
#[derive(Clone, Default)]
pub(crate) struct Seats(Arc<Mutex<Rows>>);

/// By room and user, those who listen or are leaving.
type Rows = HashMap<LogId, HashMap<UserId, Place>, LogHash>;

#[derive(Default)]
struct Place {
    /// Shared by all seats of the user.
    holds: Arc<AtomicBool>,
    /// How many that are.
    taken: usize,
    /// How many removals are under way.
    leaving: usize,
}

impl Place {
    /// All who sit here do not any more; who comes next gets a place of its own.
    fn clear(&mut self) {
        self.holds.store(false, Ordering::SeqCst);
        (self.holds, self.taken) = (Arc::default(), 0);
    }
}

impl Seats {
    pub(crate) fn take(&self, room: LogId, user: &UserId) -> Seat {
        let mut rows = self.lock();
        let place = rows.entry(room).or_default().entry(user.clone()).or_default();
        if place.leaving > 0 {
            return Seat { seats: self.clone(), room, user: user.clone(), holds: Arc::default() };
        }
        if place.taken == 0 {
            place.holds = Arc::new(AtomicBool::new(true));
        }
        place.taken += 1;
        Seat { seats: self.clone(), room, user: user.clone(), holds: place.holds.clone() }
    }

    /// Some users are being removed, until what is returned is dropped.
    pub(crate) fn leave(&self, room: LogId, users: &[UserId]) -> Leaving {
        let mut rows = self.lock();
        let row = rows.entry(room).or_default();
        for user in users {
            let place = row.entry(user.clone()).or_default();
            place.clear();
            place.leaving += 1;
        }
        Leaving { seats: self.clone(), room, users: users.to_vec() }
    }

    /// A room has ended: nobody hears it any more.
    pub(crate) fn clear(&self, room: LogId) {
        if let Some(row) = self.lock().get_mut(&room) {
            row.values_mut().for_each(Place::clear);
        }
    }

    /// Does something to a room's seats, and forgets places where nobody is.
    fn tidy(&self, room: LogId, act: impl FnOnce(&mut HashMap<UserId, Place>)) {
        let mut rows = self.lock();
        let Some(row) = rows.get_mut(&room) else { return };
        act(row);
        if row.is_empty() {
            rows.remove(&room);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.0.lock().expect("nobody panics while holding the seats")
    }
}

/// A place among those who hear a room.
pub struct Seat {
    seats: Seats,
    room: LogId,
    user: UserId,
    holds: Arc<AtomicBool>,
}

impl Seat {
    /// Whether its user may still hear the room. Once it does not hold it never does again.
    pub fn holds(&self) -> bool {
        self.holds.load(Ordering::SeqCst)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.tidy(self.room, |row| {
            let Some(place) = row.get_mut(&self.user) else { return };
            if Arc::ptr_eq(&place.holds, &self.holds) {
                place.taken -= 1;
            }
            if place.taken == 0 && place.leaving == 0 {
                row.remove(&self.user);
            }
        });
    }
}

/// Users that are being removed.
pub(crate) struct Leaving {
    seats: Seats,
    room: LogId,
    users: Vec<UserId>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.seats.tidy(self.room, |row| {
            for user in &self.users {
                let Some(place) = row.get_mut(user) else { continue };
                place.leaving -= 1;
                if place.taken == 0 && place.leaving == 0 {
                    row.remove(user);
                }
            }
        });
    }
}
