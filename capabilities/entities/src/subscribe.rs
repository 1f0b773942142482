//! Subscribing: what the token and the authoriser allow is added to the index, and brought up to date.
//!
//! The order makes sure that nothing is missed and nothing is told that is not allowed. First the subscriptions are in the
//! index, but their changes are held. Then what the client has missed is read, up to what is visible. Then the authoriser is
//! asked: a change of access that it does not know of yet comes after that, and is reviewed. When the answer was sent, the
//! latest of each entity follows.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::answer::{Answer, Subscribed};
use crate::authorize::{Allowed, Authorize, Question, Subject};
use crate::cursor::Cursor;
use crate::entity::{EntityCode, EntityId};
use crate::hold::{Held, Purpose};
use crate::hub::{Connection, State};
use crate::registry::Noted;
use crate::replay::{Replayed, replay};
use crate::source::ResyncReason;
use crate::told::Latest;
use crate::watch::Watch;

/// How long a subscribe waits for a source that was never reached.
const REACH_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a subscribe failed. Nothing was subscribed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubscribeError {
    /// There are too many ids.
    #[error("a SUBSCRIBE has at most {most} ids")]
    TooManyIds {
        /// The limit.
        most: usize,
    },
    /// The connection would watch too much.
    #[error("a connection has at most {most} subscriptions")]
    TooManySubscriptions {
        /// The limit.
        most: usize,
    },
    /// The whole type may not be watched.
    #[error("the type may not be watched as a whole")]
    Forbidden,
    /// The cursor is not one of this source.
    #[error("`since` is not a cursor of this server")]
    InvalidCursor,
    /// The source cannot be reached.
    #[error("the source of changes is unavailable")]
    Unavailable,
    /// The connection is closed.
    #[error("the connection is closed")]
    Closed,
}

/// A subscribe that is under way. Unless it is finished, it is undone.
struct Entered<'a> {
    watch: &'a Watch,
    code: EntityCode,
    /// The number of the hold.
    hold: u64,
    /// What was not watched before.
    added: Vec<EntityId>,
    added_whole: bool,
    /// From where the connection hears everything.
    start: Cursor,
    /// Whether the client had been told everything up to there.
    was_complete: bool,
    is_finished: bool,
}

impl Watch {
    /// Subscribes to entities, or to a whole type. Ids that are not allowed are left out and returned. With `since`,
    /// changes after that cursor are told as well. What is to be told is held until the answer was sent.
    pub async fn subscribe(
        &self,
        code: EntityCode,
        subject: Subject,
        since: Option<Cursor>,
    ) -> Result<Answer<Subscribed>, SubscribeError> {
        let turn = self.take_turn().await;
        let (subject, mut denied) = self.granted(&code, subject)?;
        self.until_reached().await?;
        let mut entered = self.enter(code, &subject)?;
        // Before the authoriser is asked, so that it knows of every change of access that is in the replay.
        let replayed = match &since {
            Some(since) => replay(&self.hub, &entered.code, &subject, since).await?,
            None => Replayed::default(),
        };
        let (subject, refused) = self.authorized(&entered, subject).await?;
        let Replayed { mut changes, resync } = replayed;
        for id in &refused {
            changes.remove(id);
        }
        denied.extend(refused);
        let mut cursor = entered.start.clone();
        if let Some(since) = since.filter(|_| !changes.is_empty()) {
            // Until the replay was taken, the client has nothing beyond it.
            cursor = since;
            entered.keep(changes, &cursor);
        }
        entered.is_finished = true;
        let (code, hold) = (entered.code.clone(), entered.hold);
        let count = match &subject {
            Subject::Ids(ids) => ids.len(),
            Subject::WholeType => 1,
        };
        let (connection, user) = (self.id.clone(), self.user.to_string());
        let noted = (count > 0).then_some(Noted::Subscribed { connection, user, code, subject });
        let subscribed = Subscribed { count, cursor, denied, resync };
        Ok(Answer::new(subscribed, self.clone(), turn, Some(hold), noted))
    }

    /// What the token grants of a subject, each id once, and the ids that it does not grant.
    fn granted(
        &self,
        code: &EntityCode,
        subject: Subject,
    ) -> Result<(Subject, Vec<EntityId>), SubscribeError> {
        let granted = {
            let state = self.hub.lock();
            let connection = state.connections.get(&self.slot).ok_or(SubscribeError::Closed)?;
            connection.granted.clone()
        };
        let ids = match subject {
            Subject::WholeType if granted(code, None) => return Ok((Subject::WholeType, Vec::new())),
            Subject::WholeType => return Err(SubscribeError::Forbidden),
            Subject::Ids(ids) => ids,
        };
        let most = self.hub.options.max_ids_per_subscribe;
        if ids.len() > most {
            return Err(SubscribeError::TooManyIds { most });
        }
        let mut known = HashSet::with_capacity(ids.len());
        let once = ids.into_iter().filter(|id| known.insert(id.clone()));
        let (ids, denied) = once.partition(|id| granted(code, Some(id)));
        Ok((Subject::Ids(ids), denied))
    }

    /// Waits until the source was reached once.
    pub(crate) async fn until_reached(&self) -> Result<(), SubscribeError> {
        let mut head = self.hub.head.subscribe();
        if head.borrow().is_some() {
            return Ok(());
        }
        let reached = Box::pin(head.wait_for(Option::is_some));
        match select(reached, self.hub.clock.sleep(REACH_TIMEOUT)).await {
            Either::Left((Ok(_), _)) => Ok(()),
            Either::Left((Err(_), _)) | Either::Right(_) => Err(SubscribeError::Unavailable),
        }
    }

    /// Adds subscriptions whose changes are held.
    fn enter(&self, code: EntityCode, subject: &Subject) -> Result<Entered<'_>, SubscribeError> {
        let state = &mut *self.hub.lock();
        let connection = state.connections.get(&self.slot).ok_or(SubscribeError::Closed)?;
        let mine = &connection.subscriptions;
        let of_type = mine.of_type(&code);
        let more = match subject {
            Subject::Ids(ids) => {
                ids.iter().filter(|id| of_type.is_none_or(|of_type| !of_type.ids.contains(*id))).count()
            }
            Subject::WholeType => usize::from(of_type.is_none_or(|of_type| !of_type.whole)),
        };
        let most = self.hub.options.max_subscriptions_per_connection;
        if mine.len() + more > most {
            return Err(SubscribeError::TooManySubscriptions { most });
        }
        let head = self.hub.head.borrow().clone().ok_or(SubscribeError::Unavailable)?;
        // Where more waits, the client has not been told everything up to the head.
        let is_behind = !connection.inbox.is_empty() || !connection.holds.is_empty();
        let outgoing = connection.inbox.conflate();
        let start = match outgoing.complete().filter(|_| is_behind) {
            Some(complete) => complete,
            None => {
                outgoing.set_complete(head.clone());
                head
            }
        };
        let held = match subject {
            Subject::Ids(ids) => Held::Ids(ids.iter().cloned().collect()),
            Subject::WholeType => Held::WholeType,
        };
        let hold = state.hold(self.slot, &code, held, Purpose::Subscribe).ok_or(SubscribeError::Closed)?;
        let connection = state.connections.get_mut(&self.slot).ok_or(SubscribeError::Closed)?;
        let (index, mine) = (&mut state.index, &mut connection.subscriptions);
        let (mut added, mut added_whole) = (Vec::new(), false);
        match subject {
            Subject::Ids(ids) => {
                added.extend(ids.iter().filter(|id| index.add(self.slot, mine, &code, id)).cloned());
            }
            Subject::WholeType => added_whole = index.add_whole(self.slot, mine, &code),
        }
        Ok(Entered {
            watch: self,
            code,
            hold,
            added,
            added_whole,
            start,
            was_complete: !is_behind,
            is_finished: false,
        })
    }

    /// What the authoriser allows of a subject, and the ids that it refuses. Whatever it refuses is not watched any more,
    /// also if it was before.
    async fn authorized(
        &self,
        entered: &Entered<'_>,
        subject: Subject,
    ) -> Result<(Subject, Vec<EntityId>), SubscribeError> {
        let Some(authorize) = &self.hub.authorize else { return Ok((subject, Vec::new())) };
        if matches!(&subject, Subject::Ids(ids) if ids.is_empty()) {
            return Ok((subject, Vec::new()));
        }
        let code = &entered.code;
        let question = Question { user: self.user.to_string(), code: code.clone(), subject };
        let allowed = ask(&**authorize, &question).await;
        match question.subject {
            Subject::WholeType if allowed == Allowed::All => Ok((Subject::WholeType, Vec::new())),
            Subject::WholeType => {
                self.hub.leave_whole(self.slot, code);
                if !entered.added_whole {
                    self.hub.note_left(self.slot, code, Subject::WholeType).await;
                }
                Err(SubscribeError::Forbidden)
            }
            Subject::Ids(ids) => {
                let (ids, refused): (Vec<_>, Vec<_>) = ids.into_iter().partition(|id| allowed.has(id));
                self.hub.leave_ids(self.slot, code, &refused);
                let added: HashSet<_> = entered.added.iter().collect();
                let before: Vec<_> = refused.iter().filter(|id| !added.contains(id)).cloned().collect();
                if !before.is_empty() {
                    self.hub.note_left(self.slot, code, Subject::Ids(before)).await;
                }
                Ok((Subject::Ids(ids), refused))
            }
        }
    }
}

/// Asks an authoriser. If it fails, nothing is allowed.
pub(crate) async fn ask(authorize: &dyn Authorize, question: &Question) -> Allowed {
    authorize.allowed(question).await.unwrap_or_else(|error| {
        tracing::warn!(%error, code = %question.code, "could not ask who may watch entities; allowing nobody");
        Allowed::none()
    })
}

impl Entered<'_> {
    /// Keeps changes that the client has missed since a cursor, until the answer was sent.
    fn keep(&self, changes: HashMap<EntityId, Latest>, since: &Cursor) {
        let (hub, slot) = (&self.watch.hub, self.watch.slot);
        let most = hub.options.max_subscriptions_per_connection;
        let State { connections, floored, replays, .. } = &mut *hub.lock();
        let Some(Connection { inbox, subscriptions, holds, floors, .. }) = connections.get_mut(&slot) else {
            return;
        };
        if self.was_complete {
            inbox.conflate().set_complete(since.clone());
        }
        let Some(hold) = holds.iter_mut().find(|hold| hold.number == self.hold) else { return };
        if floors.len() + changes.len() > 2 * most {
            floors.retain(|code, id| subscriptions.covers(code, id));
        }
        if floors.len() + changes.len() > 2 * most {
            hub.counts.resynced(ResyncReason::Overflow, 1);
            hold.overflow(ResyncReason::Overflow);
            return;
        }
        *replays += 1;
        floored.insert(slot);
        for (id, latest) in changes {
            floors.raise(&self.code, &id, latest.version, *replays);
            hold.keep(&id, latest, most);
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let Self { watch, code, hold, added, added_whole, .. } = self;
        if *added_whole {
            watch.hub.leave_whole(watch.slot, code);
        }
        watch.hub.leave_ids(watch.slot, code, added);
        let mut state = watch.hub.lock();
        let wakers = watch.hub.release(&mut state, watch.slot, *hold);
        drop(state);
        wakers.into_iter().for_each(std::task::Waker::wake);
    }
}
