//! Ending subscriptions that are not allowed any more.

use crate::authorize::Subject;
use crate::entity::{EntityCode, EntityId};
use crate::hub::Hub;
use crate::index::Slot;
use crate::registry::Noted;

impl Hub {
    /// Ends the subscriptions of a connection to entities. Returns how many.
    pub(crate) fn leave_ids(&self, slot: Slot, code: &EntityCode, ids: &[EntityId]) -> usize {
        if ids.is_empty() {
            return 0;
        }
        let state = &mut *self.lock();
        let Some(connection) = state.connections.get_mut(&slot) else { return 0 };
        let (index, mine) = (&mut state.index, &mut connection.subscriptions);
        let count = ids.iter().filter(|id| index.remove(slot, mine, code, id)).count();
        connection.drop_unwatched(code);
        count
    }

    /// Ends the subscription of a connection to a whole type, and not those to ids of it. Returns how many.
    pub(crate) fn leave_whole(&self, slot: Slot, code: &EntityCode) -> usize {
        let state = &mut *self.lock();
        let Some(connection) = state.connections.get_mut(&slot) else { return 0 };
        let left = state.index.remove_whole(slot, &mut connection.subscriptions, code);
        connection.drop_unwatched(code);
        usize::from(left)
    }

    /// Notes in the registry that subscriptions have ended. Of a whole type, the ids that are still watched are noted again,
    /// because the registry forgets them with the type.
    pub(crate) async fn note_left(&self, slot: Slot, code: &EntityCode, subject: Subject) {
        let is_whole = subject == Subject::WholeType;
        let found = {
            let state = self.lock();
            state.connections.get(&slot).map(|connection| {
                let of_type = connection.subscriptions.of_type(code).filter(|_| is_whole);
                let ids: Vec<_> =
                    of_type.into_iter().flat_map(|of_type| of_type.ids.iter().cloned()).collect();
                (connection.id.clone(), connection.user.to_string(), ids)
            })
        };
        let Some((connection, user, ids)) = found else { return };
        let code = code.clone();
        self.registry
            .note(Noted::Unsubscribed { connection: connection.clone(), code: code.clone(), subject })
            .await;
        if !ids.is_empty() {
            self.registry
                .note(Noted::Subscribed { connection, user, code, subject: Subject::Ids(ids) })
                .await;
        }
    }
}
