//! Seats: who listens to a room, to be told at once that it may not any more.
//!
//! Whoever is being removed leaves its seats before the removal is committed, and gets none that holds until it is. So
//! nothing that is committed after the removal reaches it. If the removal then fails, those who sat there are still members:
//! their seats do not hold any more, but are not revoked either, and they may come again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
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
    standing: Arc<Standing>,
    /// How many that are.
    taken: usize,
    /// How many removals are under way.
    leaving: usize,
}

/// How it stands with the seats at a place. To begin with: a removal is under way, and nobody knows how it ends.
#[derive(Default)]
struct Standing(AtomicU8);

impl Standing {
    const LEAVING: u8 = 0;
    const HOLDS: u8 = 1;
    /// The user does not belong to the room any more.
    const REVOKED: u8 = 2;
    /// The removal has failed.
    const SHAKEN: u8 = 3;

    fn is(&self, standing: u8) -> bool {
        self.0.load(Ordering::SeqCst) == standing
    }

    fn set(&self, standing: u8) {
        self.0.store(standing, Ordering::SeqCst);
    }
}

impl Place {
    /// It is decided how it ends for all who sit here; who comes next gets a place of its own.
    fn end(&mut self, standing: u8) {
        self.standing.set(standing);
        (self.standing, self.taken) = (Arc::default(), 0);
    }

    fn is_empty(&self) -> bool {
        self.taken == 0 && self.leaving == 0
    }
}

impl Seats {
    pub(crate) fn take(&self, room: LogId, user: &UserId) -> Seat {
        let mut rows = self.lock();
        let place = rows.entry(room).or_default().entry(user.clone()).or_default();
        if place.taken == 0 && place.leaving == 0 {
            place.standing.set(Standing::HOLDS);
        }
        place.taken += 1;
        Seat { seats: self.clone(), room, user: user.clone(), standing: place.standing.clone() }
    }

    /// Some users are being removed, until what is returned is dropped.
    pub(crate) fn leave(&self, room: LogId, users: &[UserId]) -> Leaving {
        let mut rows = self.lock();
        let row = rows.entry(room).or_default();
        for user in users {
            let place = row.entry(user.clone()).or_default();
            place.standing.set(Standing::LEAVING);
            place.leaving += 1;
        }
        Leaving { seats: self.clone(), room, users: users.to_vec(), removed: false }
    }

    /// A room has ended: nobody hears it any more.
    pub(crate) fn clear(&self, room: LogId) {
        if let Some(row) = self.lock().get_mut(&room) {
            row.values_mut().for_each(|place| place.end(Standing::REVOKED));
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
    standing: Arc<Standing>,
}

impl Seat {
    /// Whether its user may still hear the room. Once it does not hold it never does again.
    pub fn holds(&self) -> bool {
        self.standing.is(Standing::HOLDS)
    }

    /// Whether it does not hold because its user is known to belong to the room no more. If it neither holds nor is
    /// revoked, a removal is under way or has failed, and its user may come again to see.
    pub fn is_revoked(&self) -> bool {
        self.standing.is(Standing::REVOKED)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.tidy(self.room, |row| {
            let Some(place) = row.get_mut(&self.user) else { return };
            if Arc::ptr_eq(&place.standing, &self.standing) {
                place.taken -= 1;
            }
            if place.is_empty() {
                row.remove(&self.user);
            }
        });
    }
}

/// Users that are being removed. When it is dropped, they are or they are not.
pub(crate) struct Leaving {
    seats: Seats,
    room: LogId,
    users: Vec<UserId>,
    removed: bool,
}

impl Leaving {
    /// They are.
    pub(crate) fn removed(mut self) {
        self.removed = true;
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.seats.tidy(self.room, |row| {
            for user in &self.users {
                let Some(place) = row.get_mut(user) else { continue };
                place.leaving -= 1;
                if self.removed {
                    place.end(Standing::REVOKED);
                } else if place.leaving == 0 {
                    // Otherwise another removal decides.
                    place.end(Standing::SHAKEN);
                }
                if place.is_empty() {
                    row.remove(user);
                }
            }
        });
    }
}
