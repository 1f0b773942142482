//! MembershipLeases: who listens to a room, to be told at once that it may not any more.
//!
//! Whoever is being removed leaves its leases before the removal is committed, and gets none that holds until it is. So
//! nothing that is committed after the removal reaches it. What becomes of the leases is decided where the removal is
//! applied, by whichever node it was made: they are revoked. If it fails instead, those who had them are still members: their
//! leases do not hold any more, but are not revoked either, and they may come again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tidings_engine::log::plan::LogHash;
use tidings_model::{LogId, UserId};

/// All leases of a server. Clones are the same leases.
#[derive(Clone, Default)]
pub(crate) struct MembershipLeases(Arc<Mutex<Rows>>);

/// By room and user, those who listen or are leaving.
type Rows = HashMap<LogId, HashMap<UserId, MemberLeases>, LogHash>;

#[derive(Default)]
struct MemberLeases {
    /// Shared by all leases of the user.
    standing: Arc<Standing>,
    /// How many that are.
    taken: usize,
    /// How many removals are under way.
    leaving: usize,
}

/// How it stands with the leases at a member. To begin with: a removal is under way, and nobody knows how it ends.
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

impl MemberLeases {
    /// It is decided how it ends for all who sit here; who comes next gets a member of its own.
    fn end(&mut self, standing: u8) {
        self.standing.set(standing);
        (self.standing, self.taken) = (Arc::default(), 0);
    }

    fn is_empty(&self) -> bool {
        self.taken == 0 && self.leaving == 0
    }
}

impl MembershipLeases {
    pub(crate) fn take(&self, room: LogId, user: &UserId) -> MembershipLease {
        let mut rows = self.lock();
        let member = rows.entry(room).or_default().entry(user.clone()).or_default();
        if member.taken == 0 && member.leaving == 0 {
            member.standing.set(Standing::HOLDS);
        }
        member.taken += 1;
        MembershipLease { leases: self.clone(), room, user: user.clone(), standing: member.standing.clone() }
    }

    /// Some users are being removed, until what is returned is dropped.
    pub(crate) fn leave(&self, room: LogId, users: &[UserId]) -> Leaving {
        let mut rows = self.lock();
        let row = rows.entry(room).or_default();
        for user in users {
            let member = row.entry(user.clone()).or_default();
            member.standing.set(Standing::LEAVING);
            member.leaving += 1;
        }
        Leaving { leases: self.clone(), room, users: users.to_vec() }
    }

    /// Some users were removed.
    pub(crate) fn revoke(&self, room: LogId, users: &[UserId]) {
        self.tidy(room, |row| {
            for user in users {
                let Some(member) = row.get_mut(user) else { continue };
                member.end(Standing::REVOKED);
                if member.is_empty() {
                    row.remove(user);
                }
            }
        });
    }

    /// A room has ended: nobody hears it any more.
    pub(crate) fn clear(&self, room: LogId) {
        if let Some(row) = self.lock().get_mut(&room) {
            row.values_mut().for_each(|member| member.end(Standing::REVOKED));
        }
    }

    /// Does something to a room's leases, and forgets entries where nobody is.
    fn tidy(&self, room: LogId, act: impl FnOnce(&mut HashMap<UserId, MemberLeases>)) {
        let mut rows = self.lock();
        let Some(row) = rows.get_mut(&room) else { return };
        act(row);
        if row.is_empty() {
            rows.remove(&room);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.0.lock().expect("nobody panics while holding the leases")
    }
}

/// A member among those who hear a room.
pub struct MembershipLease {
    leases: MembershipLeases,
    room: LogId,
    user: UserId,
    standing: Arc<Standing>,
}

impl MembershipLease {
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

impl Drop for MembershipLease {
    fn drop(&mut self) {
        self.leases.tidy(self.room, |row| {
            let Some(member) = row.get_mut(&self.user) else { return };
            if Arc::ptr_eq(&member.standing, &self.standing) {
                member.taken -= 1;
            }
            if member.is_empty() {
                row.remove(&self.user);
            }
        });
    }
}

/// Users that are being removed. When it is dropped, they were, and their leases are revoked, or they were not.
pub(crate) struct Leaving {
    leases: MembershipLeases,
    room: LogId,
    users: Vec<UserId>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.leases.tidy(self.room, |row| {
            for user in &self.users {
                let Some(member) = row.get_mut(user) else { continue };
                member.leaving -= 1;
                if member.leaving == 0 {
                    // Who has a lease that was not revoked may come again to see. Otherwise another removal decides.
                    member.end(Standing::SHAKEN);
                }
                if member.is_empty() {
                    row.remove(user);
                }
            }
        });
    }
}
