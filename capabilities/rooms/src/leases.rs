//! Membership leases: let a reader of a room notice at once that its user is no longer a member.
//!
//! Before the removal of a user is committed, the user's leases stop holding, and new ones do not hold until the
//! outcome is known. So no event committed after the removal reaches the user. When the removal is applied, by
//! whichever node it was made, the leases are revoked. If the removal fails, the user is still a member: the leases no
//! longer hold but are not revoked either, and the reader may take a new one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tidings_engine::log::plan::LogHash;
use tidings_model::{LogId, UserId};

/// All membership leases of a server. Clones share the same state.
#[derive(Clone, Default)]
pub(crate) struct MembershipLeases(Arc<Mutex<Rows>>);

/// Leases by room and user, for users that have leases or are being removed.
type Rows = HashMap<LogId, HashMap<UserId, MemberLeases>, LogHash>;

#[derive(Default)]
struct MemberLeases {
    /// State shared by all current leases of the user.
    state: Arc<LeaseState>,
    /// Number of current leases.
    taken: usize,
    /// Number of removals in progress.
    leaving: usize,
}

/// State of a member's leases. Default: a removal is in progress with an unknown outcome.
#[derive(Default)]
struct LeaseState(AtomicU8);

impl LeaseState {
    const LEAVING: u8 = 0;
    const HOLDS: u8 = 1;
    /// The user is no longer a member of the room.
    const REVOKED: u8 = 2;
    /// The removal has failed.
    const UNCERTAIN: u8 = 3;

    fn is(&self, state: u8) -> bool {
        self.0.load(Ordering::SeqCst) == state
    }

    fn set(&self, state: u8) {
        self.0.store(state, Ordering::SeqCst);
    }
}

impl MemberLeases {
    /// Sets the final state of the current leases. Later leases get a new shared state.
    fn end(&mut self, state: u8) {
        self.state.set(state);
        (self.state, self.taken) = (Arc::default(), 0);
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
            member.state.set(LeaseState::HOLDS);
        }
        member.taken += 1;
        MembershipLease { leases: self.clone(), room, user: user.clone(), state: member.state.clone() }
    }

    /// Marks users as being removed until the returned guard is dropped.
    pub(crate) fn leave(&self, room: LogId, users: &[UserId]) -> PendingRemoval {
        let mut rows = self.lock();
        let row = rows.entry(room).or_default();
        for user in users {
            let member = row.entry(user.clone()).or_default();
            member.state.set(LeaseState::LEAVING);
            member.leaving += 1;
        }
        PendingRemoval { leases: self.clone(), room, users: users.to_vec() }
    }

    /// Revokes the leases of users that were removed.
    pub(crate) fn revoke(&self, room: LogId, users: &[UserId]) {
        self.tidy(room, |row| {
            for user in users {
                let Some(member) = row.get_mut(user) else { continue };
                member.end(LeaseState::REVOKED);
                if member.is_empty() {
                    row.remove(user);
                }
            }
        });
    }

    /// Revokes all leases of a room that has ended.
    pub(crate) fn clear(&self, room: LogId) {
        if let Some(row) = self.lock().get_mut(&room) {
            row.values_mut().for_each(|member| member.end(LeaseState::REVOKED));
        }
    }

    /// Runs `act` on the leases of a room, and removes the room's entry if it is then empty.
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

/// Lease of a user that reads a room.
pub struct MembershipLease {
    leases: MembershipLeases,
    room: LogId,
    user: UserId,
    state: Arc<LeaseState>,
}

impl MembershipLease {
    /// Whether the user may still read the room. Once this is false it never becomes true again.
    pub fn holds(&self) -> bool {
        self.state.is(LeaseState::HOLDS)
    }

    /// Whether the user is known to be no longer a member. A lease that neither holds nor is revoked belongs to a
    /// removal that is in progress or has failed; its user may try to take a new lease.
    pub fn is_revoked(&self) -> bool {
        self.state.is(LeaseState::REVOKED)
    }
}

impl Drop for MembershipLease {
    fn drop(&mut self) {
        self.leases.tidy(self.room, |row| {
            let Some(member) = row.get_mut(&self.user) else { return };
            if Arc::ptr_eq(&member.state, &self.state) {
                member.taken -= 1;
            }
            if member.is_empty() {
                row.remove(&self.user);
            }
        });
    }
}

/// Guard of a removal in progress. Leases that were not revoked by the time it is dropped end without being revoked.
pub(crate) struct PendingRemoval {
    leases: MembershipLeases,
    room: LogId,
    users: Vec<UserId>,
}

impl Drop for PendingRemoval {
    fn drop(&mut self) {
        self.leases.tidy(self.room, |row| {
            for user in &self.users {
                let Some(member) = row.get_mut(user) else { continue };
                member.leaving -= 1;
                if member.leaving == 0 {
                    // No removal is left that could revoke these leases; their users may try to take new ones.
                    member.end(LeaseState::UNCERTAIN);
                }
                if member.is_empty() {
                    row.remove(user);
                }
            }
        });
    }
}
