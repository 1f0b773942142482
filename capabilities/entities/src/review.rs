//! Reviews: an authoriser is asked again when access to entities has changed.
//!
//! While it is asked, what is concerned is held back from the connection. What is not allowed any more is not watched any
//! more, and of it the connection is told the change of access and nothing after it.

use std::collections::HashMap;
use std::task::Waker;

use futures_util::StreamExt;
use futures_util::stream;
use tidings_model::limits;

use crate::authorize::{Allowed, Authorize, Question, Subject};
use crate::change::Change;
use crate::entity::{EntityCode, EntityId};
use crate::hold::{Held, Hold, Purpose};
use crate::hub::{Connection, Hub, Review, State};
use crate::index::Slot;
use crate::subscribe::ask;
use crate::told::{Key, Latest, Value};

/// What is to be asked for a connection.
struct Concern {
    user: String,
    code: EntityCode,
    /// Entities that are watched by their ids.
    ids: Vec<EntityId>,
    /// Whether the whole type is watched.
    whole: bool,
}

impl Hub {
    /// Begins to hold entities of a type back from a connection until the authoriser was asked again. Returns the hold.
    pub(crate) fn open_review<'a>(
        &self,
        next_hold: &mut u64,
        slot: Slot,
        connection: &'a mut Connection,
        code: &EntityCode,
        held: Held,
    ) -> &'a mut Hold {
        let purpose = Purpose::Review { asked: false, first: HashMap::new() };
        let hold = connection.hold(next_hold, code, held, purpose);
        // An error means that the hub is being dropped.
        let _ = self.reviews.send(Review { slot, hold });
        connection.holds.last_mut().expect("it was just added")
    }

    /// Holds an entity back from a connection until the authoriser was asked again.
    pub(crate) fn begin_review(&self, state: &mut State, slot: Slot, change: &Change) {
        let (code, id) = (&change.code, &change.id);
        let Some(connection) = state.connections.get_mut(&slot) else { return };
        // What it was not told yet is not told before the answer either.
        let waiting = connection.inbox.remove(&Key::Entity(code.clone(), id.clone()));
        let floor = connection.floors.of(code, id);
        let hold = match connection.holds.iter().position(|hold| hold.is_open_review(code)) {
            Some(at) => &mut connection.holds[at],
            None => {
                let held = Held::Ids(<_>::default());
                self.open_review(&mut state.next_hold, slot, connection, code, held)
            }
        };
        if let Held::Ids(ids) = &mut hold.held {
            ids.insert(id.clone());
        }
        if let Purpose::Review { first, .. } = &mut hold.purpose {
            let latest = Latest::of(change);
            first.entry(id.clone()).or_insert(Latest { version: latest.version.max(floor), ..latest });
        }
        if let Some(Value::Entity(waiting)) = waiting {
            hold.keep(id, waiting, self.most());
        }
    }

    /// Asks for the reviews again that were asked for before, because whoever made them has stopped.
    pub(crate) fn review_again(&self) {
        for (slot, connection) in &mut self.lock().connections {
            for hold in &mut connection.holds {
                if let Purpose::Review { asked, .. } = &mut hold.purpose {
                    *asked = false;
                    let _ = self.reviews.send(Review { slot: *slot, hold: hold.number });
                }
            }
        }
    }

    /// Makes reviews as they are asked for. Never returns.
    pub(crate) async fn review(&self) {
        let mut to_review = self.to_review.lock().await;
        let reviews = stream::poll_fn(|context| to_review.poll_recv(context));
        reviews.for_each_concurrent(limits::ENTITY_REVIEWS, |review| self.review_one(review)).await;
    }

    async fn review_one(&self, Review { slot, hold }: Review) {
        let Some(authorize) = &self.authorize else { return };
        let turn = self.lock().connections.get(&slot).map(|connection| connection.turn.clone());
        let Some(turn) = turn else { return };
        let _turn = turn.lock_owned().await;
        let Some(concern) = self.begin_asking(slot, hold) else { return };
        let Concern { user, code, ids, whole } = concern;
        let allowed_whole =
            !whole || self.ask_again(&**authorize, &user, &code, Subject::WholeType).await == Allowed::All;
        let mut refused = Vec::new();
        for some in ids.chunks(self.options.max_ids_per_subscribe) {
            let allowed = self.ask_again(&**authorize, &user, &code, Subject::Ids(some.to_vec())).await;
            refused.extend(some.iter().filter(|id| !allowed.has(id)).cloned());
        }
        let revoked = !allowed_whole || !refused.is_empty();
        if revoked {
            self.counts.revoked.count()
        } else {
            self.counts.kept.count()
        }
        self.end_review(slot, hold, &code, &refused, allowed_whole);
        if !refused.is_empty() {
            self.note_left(slot, &code, Subject::Ids(refused)).await;
        }
        if !allowed_whole {
            self.note_left(slot, &code, Subject::WholeType).await;
        }
    }

    async fn ask_again(
        &self,
        authorize: &dyn Authorize,
        user: &str,
        code: &EntityCode,
        subject: Subject,
    ) -> Allowed {
        ask(authorize, &Question { user: user.to_owned(), code: code.clone(), subject }).await
    }

    /// Closes a hold to further entities, and says what to ask about those that it has.
    fn begin_asking(&self, slot: Slot, number: u64) -> Option<Concern> {
        let mut state = self.lock();
        let connection = state.connections.get_mut(&slot)?;
        let hold = connection.holds.iter_mut().find(|hold| hold.number == number)?;
        if let Purpose::Review { asked, .. } = &mut hold.purpose {
            *asked = true;
        }
        let of_type = connection.subscriptions.of_type(&hold.code);
        let is_held = |id: &&EntityId| hold.covers(&hold.code, id);
        let ids =
            of_type.into_iter().flat_map(|of_type| of_type.ids.iter().filter(is_held)).cloned().collect();
        let whole = of_type.is_some_and(|of_type| of_type.whole);
        Some(Concern { user: connection.user.to_string(), code: hold.code.clone(), ids, whole })
    }

    /// Ends the subscriptions that are not allowed any more, tells the connection of it, and releases what is allowed.
    fn end_review(
        &self,
        slot: Slot,
        number: u64,
        code: &EntityCode,
        refused: &[EntityId],
        allowed_whole: bool,
    ) {
        let mut state = self.lock();
        // What the connection has heard of so far, and whose access has changed.
        let concerned = state.connections.get(&slot).and_then(|connection| {
            let hold = connection.holds.iter().find(|hold| hold.number == number)?;
            let Purpose::Review { first, .. } = &hold.purpose else { return None };
            let watched = first.iter().filter(|(id, _)| connection.subscriptions.covers(code, id));
            Some(watched.map(|(id, latest)| (id.clone(), *latest)).collect::<Vec<_>>())
        });
        let Some(concerned) = concerned else { return };
        {
            let state = &mut *state;
            let Some(connection) = state.connections.get_mut(&slot) else { return };
            let mine = &mut connection.subscriptions;
            for id in refused {
                state.index.remove(slot, mine, code, id);
            }
            if !allowed_whole {
                state.index.remove_whole(slot, mine, code);
            }
        }
        let mut wakers = Vec::new();
        if let Some(connection) = state.connections.get(&slot) {
            connection.drop_unwatched(code);
            let outgoing = connection.inbox.conflate();
            if !allowed_whole {
                wakers.extend(connection.inbox.queue_reply(outgoing.encode().whole_type_denied(code)));
            }
            for (id, latest) in concerned {
                if !connection.subscriptions.covers(code, &id) {
                    let put = connection.inbox.put(
                        Key::Entity(code.clone(), id),
                        Value::Entity(latest),
                        usize::MAX,
                    );
                    wakers.extend(put.ok().flatten());
                }
            }
        }
        wakers.extend(self.release(&mut state, slot, number));
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}
