//! What one connection watches, and everything that changes it except [subscribing](crate::subscribe).

use std::sync::Arc;
use std::task::Waker;

use tidings_engine::deliver::{Conflated, FrameChunks};
use tokio::sync::OwnedMutexGuard;

use crate::answer::{Answer, Unsubscribed};
use crate::authorize::Subject;
use crate::cursor::Cursor;
use crate::entity::EntityCode;
use crate::hub::Hub;
use crate::index::Slot;
use crate::project::Granted;
use crate::registry::{ConnectionId, Noted};
use crate::told::Outgoing;

/// What a connection watches. Operations of one connection run one after the other. Clones share the same connection.
#[derive(Clone)]
pub struct Watch {
    pub(crate) hub: Arc<Hub>,
    pub(crate) slot: Slot,
    pub(crate) id: ConnectionId,
    pub(crate) user: Arc<str>,
    inbox: Conflated<Outgoing>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Watch {
    pub(crate) fn new(
        hub: Arc<Hub>,
        slot: Slot,
        id: ConnectionId,
        user: Arc<str>,
        inbox: Conflated<Outgoing>,
        turn: Arc<tokio::sync::Mutex<()>>,
    ) -> Self {
        Self { hub, slot, id, user, inbox, turn }
    }

    /// Id of the connection.
    pub fn id(&self) -> &ConnectionId {
        &self.id
    }

    /// Cursor after everything that was delivered to connections; `None` while the source has not been reached yet.
    pub fn cursor(&self) -> Option<Cursor> {
        self.hub.head.borrow().clone()
    }

    /// Sends a reply, before the changes that wait.
    pub fn reply(&self, reply: impl Into<FrameChunks>) {
        self.inbox.reply(reply);
    }

    /// As [`reply`](Self::reply), but the caller wakes the reader, or polls it.
    pub fn queue_reply(&self, reply: impl Into<FrameChunks>) -> Option<Waker> {
        self.inbox.queue_reply(reply)
    }

    /// Cursor from which the client hears everything, as soon as the source has been reached once. `None` if that takes too
    /// long.
    pub async fn reached(&self) -> Option<Cursor> {
        let _ = self.until_reached().await;
        self.cursor()
    }

    /// Number of subscriptions.
    pub fn subscriptions(&self) -> usize {
        self.hub.lock().connections.get(&self.slot).map_or(0, |connection| connection.subscriptions.len())
    }

    /// Number of changes that wait for the client.
    pub fn pending(&self) -> usize {
        self.inbox.len()
    }

    /// Ends the connection with all its subscriptions.
    pub fn close(&self) {
        self.hub.remove(self.slot);
    }

    /// Ends subscriptions: those to these ids, or everything of the type. Nothing of them follows the answer.
    pub async fn unsubscribe(&self, code: EntityCode, subject: Subject) -> Answer<Unsubscribed> {
        let turn = self.take_turn().await;
        let count = self.leave(&code, &subject);
        let noted = (count > 0).then(|| Noted::Unsubscribed { connection: self.id.clone(), code, subject });
        Answer::new(Unsubscribed { count }, self.clone(), turn, None, noted)
    }

    /// Ends all subscriptions. No change follows the answer.
    pub async fn unsubscribe_all(&self) -> Answer<Unsubscribed> {
        let turn = self.take_turn().await;
        let mut count = 0;
        {
            let state = &mut *self.hub.lock();
            if let Some(connection) = state.connections.get_mut(&self.slot) {
                count = state.index.remove_all(self.slot, &mut connection.subscriptions);
                connection.inbox.retain(|_, _| false);
            }
        }
        let noted = (count > 0).then(|| Noted::UnsubscribedAll { connection: self.id.clone() });
        Answer::new(Unsubscribed { count }, self.clone(), turn, None, noted)
    }

    /// Replaces what the token grants, and ends the subscriptions that are not granted any more. Returns them.
    pub async fn regrant(&self, granted: Granted) -> Vec<(EntityCode, Subject)> {
        let _turn = self.take_turn().await;
        let mut ended = Vec::new();
        {
            let mut state = self.hub.lock();
            let Some(connection) = state.connections.get_mut(&self.slot) else { return ended };
            connection.granted = granted.clone();
            for (code, of_type) in connection.subscriptions.iter() {
                let ids: Vec<_> = of_type.ids.iter().filter(|id| !granted(code, Some(id))).cloned().collect();
                if !ids.is_empty() {
                    ended.push((code.clone(), Subject::Ids(ids)));
                }
                if of_type.whole && !granted(code, None) {
                    ended.push((code.clone(), Subject::WholeType));
                }
            }
        }
        for (code, subject) in &ended {
            match subject {
                Subject::Ids(_) => self.leave(code, subject),
                Subject::WholeType => self.hub.leave_whole(self.slot, code),
            };
            self.hub.note_left(self.slot, code, subject.clone()).await;
        }
        ended
    }

    /// Waits until the operation before this one has ended.
    pub(crate) async fn take_turn(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// Ends subscriptions. Returns how many.
    fn leave(&self, code: &EntityCode, subject: &Subject) -> usize {
        let state = &mut *self.hub.lock();
        let Some(connection) = state.connections.get_mut(&self.slot) else { return 0 };
        let (index, mine) = (&mut state.index, &mut connection.subscriptions);
        let count = match subject {
            Subject::Ids(ids) => ids.iter().filter(|id| index.remove(self.slot, mine, code, id)).count(),
            Subject::WholeType => index.remove_type(self.slot, mine, code),
        };
        connection.drop_unwatched(code);
        count
    }
}
