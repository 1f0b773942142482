//! The connections of one project that watch entities, and what is delivered to them.
//!
//! Invariants: a connection hears of an entity only while its subscriptions cover it and no hold does. What is delivered is
//! joined per entity, so what waits is bounded by what is watched. The head is behind everything that was delivered.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use tidings_engine::deliver::{Conflated, Full};
use tidings_engine::{Clock, Rng};
use tidings_model::{ProjectId, limits};
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use crate::authorize::Authorize;
use crate::change::{Change, Entry, Reason};
use crate::counts::Counts;
use crate::cursor::Cursor;
use crate::entities::{Failing, Options};
use crate::entity::{EntityCode, EntityId};
use crate::floors::Floors;
use crate::hold::{Held, Hold, Purpose};
use crate::index::{Index, Slot, Subscriptions};
use crate::project::{Closing, Granted};
use crate::registry::{ConnectionId, Registry};
use crate::source::{ResyncReason, Source, SourceError};
use crate::told::{Key, Latest, Outgoing, Value};

/// The connections of one project.
pub(crate) struct Hub {
    pub(crate) project: ProjectId,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) registry: Arc<dyn Registry>,
    pub(crate) authorize: Option<Arc<dyn Authorize>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<Rng>,
    pub(crate) options: Options,
    pub(crate) counts: Arc<Counts>,
    /// Whether the source is read also while there are no connections.
    pub(crate) permanent: bool,
    /// Cursor after everything that was delivered; `None` until the source was reached.
    pub(crate) head: watch::Sender<Option<Cursor>>,
    /// Told when the last connection was closed.
    pub(crate) idle: Notify,
    /// Subscribes that are brought up to date.
    pub(crate) replays: Semaphore,
    pub(crate) reviews: mpsc::UnboundedSender<Review>,
    /// Taken by the reader while it runs.
    pub(crate) to_review: tokio::sync::Mutex<mpsc::UnboundedReceiver<Review>>,
    pub(crate) failing: Mutex<Option<Failing>>,
    state: Mutex<State>,
}

/// A connection for which the authoriser is to be asked again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Review {
    pub(crate) slot: Slot,
    /// The hold that keeps back what is concerned.
    pub(crate) hold: u64,
}

/// What a hub knows of its connections.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) index: Index,
    pub(crate) connections: HashMap<Slot, Connection>,
    /// Connections of each user, oldest first.
    pub(crate) users: HashMap<Arc<str>, Vec<Slot>>,
    pub(crate) reader: Reader,
    next_slot: Slot,
    pub(crate) next_hold: u64,
    /// Number of replays that were kept for a connection.
    pub(crate) replays: u64,
    /// Connections that have floors.
    pub(crate) floored: HashSet<Slot>,
}

/// Whether the source is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reader {
    /// Nobody needs it.
    #[default]
    Stopped,
    /// It is needed, and nobody reads yet.
    Wanted,
    /// It is read.
    Running,
}

/// A connection that watches entities.
pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    pub(crate) user: Arc<str>,
    pub(crate) inbox: Conflated<Outgoing>,
    pub(crate) granted: Granted,
    pub(crate) close: Arc<dyn Fn(Closing) + Send + Sync>,
    /// Held by the operation that runs.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) holds: Vec<Hold>,
    pub(crate) floors: Floors,
}

/// What a hub is made of.
pub(crate) struct HubParts {
    pub(crate) project: ProjectId,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) registry: Arc<dyn Registry>,
    pub(crate) authorize: Option<Arc<dyn Authorize>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<Rng>,
    pub(crate) options: Options,
    pub(crate) counts: Arc<Counts>,
    pub(crate) permanent: bool,
}

impl Hub {
    pub(crate) fn new(parts: HubParts) -> Self {
        let HubParts { project, source, registry, authorize, clock, rng, options, counts, permanent } = parts;
        let (reviews, to_review) = mpsc::unbounded_channel();
        let reader = if permanent { Reader::Wanted } else { Reader::Stopped };
        Self {
            project,
            source,
            registry,
            authorize,
            clock,
            rng,
            options,
            counts,
            permanent,
            head: watch::Sender::new(None),
            idle: Notify::new(),
            replays: Semaphore::new(limits::ENTITY_REPLAYS),
            reviews,
            to_review: tokio::sync::Mutex::new(to_review),
            failing: Mutex::new(None),
            state: Mutex::new(State { reader, ..State::default() }),
        }
    }

    /// Locks the state, ignoring poison: other connections must go on.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keys that may wait for one connection.
    pub(crate) fn most(&self) -> usize {
        self.options.max_subscriptions_per_connection
    }

    /// Sets the head, after everything before it was delivered.
    pub(crate) fn set_head(&self, cursor: &Cursor) {
        self.head.send_if_modified(|head| {
            let is_new = head.as_ref() != Some(cursor);
            if is_new {
                *head = Some(cursor.clone());
            }
            is_new
        });
    }

    /// Notes that the source was reached, or why not.
    pub(crate) fn note_source(&self, failure: Option<&SourceError>) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        *failing = failure.map(|error| {
            let since = failing.as_ref().map_or_else(|| self.clock.now(), |failing| failing.since);
            let misconfigured = match error {
                SourceError::Misconfigured(what) => Some(what.clone()),
                _ => None,
            };
            Failing { since, error: error.to_string(), misconfigured }
        });
    }

    /// Since when the source could not be read.
    pub(crate) fn failing(&self) -> Option<Failing> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Delivers entries to the connections that watch what they are about. Returns the wakers to call.
    pub(crate) fn deliver(&self, entries: &[Entry]) -> Vec<Waker> {
        let (mut wakers, mut slots) = (Vec::new(), Vec::new());
        let mut delivered = 0;
        let mut state = self.lock();
        for entry in entries {
            match entry {
                Entry::Changed(change) => {
                    state.index.watchers_of(&change.code, &change.id, &mut slots);
                    delivered += slots.len();
                    for slot in &slots {
                        wakers.extend(self.deliver_to(&mut state, *slot, change));
                    }
                }
                Entry::Truncated(code) => wakers.append(&mut self.truncate(&mut state, code)),
            }
        }
        drop(state);
        self.counts.read.add(entries.len() as u64);
        self.counts.delivered.add(delivered as u64);
        wakers
    }

    fn deliver_to(&self, state: &mut State, slot: Slot, change: &Change) -> Option<Waker> {
        if change.reason == Some(Reason::Access) && self.authorize.is_some() {
            self.begin_review(state, slot, change);
        }
        let connection = state.connections.get_mut(&slot)?;
        if change.version <= connection.floors.of(&change.code, &change.id) {
            return None;
        }
        self.offer(connection, &change.code, &change.id, Latest::of(change))
    }

    /// Forgets floors, once everything was delivered that was visible after so many replays.
    pub(crate) fn forget_floors(&self, replays: u64) {
        let State { floored, connections, .. } = &mut *self.lock();
        floored.retain(|slot| {
            let Some(connection) = connections.get_mut(slot) else { return false };
            connection.floors.reached(replays);
            connection.floors.len() > 0
        });
    }

    /// Gives a change to a connection, or to the hold that covers it.
    pub(crate) fn offer(
        &self,
        connection: &mut Connection,
        code: &EntityCode,
        id: &EntityId,
        latest: Latest,
    ) -> Option<Waker> {
        if let Some(hold) = connection.holds.iter_mut().find(|hold| hold.covers(code, id)) {
            hold.keep(id, latest, self.most());
            return None;
        }
        let key = Key::Entity(code.clone(), id.clone());
        match connection.inbox.put(key, Value::Entity(latest), self.most()) {
            Ok(waker) => waker,
            Err(Full) => self.resync(connection, Some(code), ResyncReason::Overflow),
        }
    }

    /// Tells a connection to fetch everything again, instead of what waits for it.
    pub(crate) fn resync(
        &self,
        connection: &Connection,
        code: Option<&EntityCode>,
        reason: ResyncReason,
    ) -> Option<Waker> {
        self.counts.resynced(reason, 1);
        let resync = Key::Resync(code.cloned());
        // First, so that the client is not told a cursor behind what is removed.
        let put = connection.inbox.put(resync.clone(), Value::Resync(reason), usize::MAX);
        connection.inbox.retain(|key, _| {
            *key == resync
                || match (key, code) {
                    (_, None) => false,
                    (Key::Entity(of, _) | Key::Resync(Some(of)), Some(code)) => of != code,
                    (Key::Resync(None), Some(_)) => true,
                }
        });
        put.ok().flatten()
    }

    /// Tells everybody who watches a type that all entities of it were removed.
    fn truncate(&self, state: &mut State, code: &EntityCode) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for connection in state.connections.values_mut() {
            if connection.subscriptions.of_type(code).is_none() {
                continue;
            }
            connection.holds.iter_mut().filter(|hold| hold.code == *code).for_each(|hold| hold.kept.clear());
            let subscribing =
                |hold: &&mut Hold| hold.code == *code && matches!(hold.purpose, Purpose::Subscribe);
            match connection.holds.iter_mut().find(subscribing) {
                // It may not be allowed to hear of the type at all.
                Some(hold) => hold.overflow(ResyncReason::Truncated),
                None => wakers.extend(self.resync(connection, Some(code), ResyncReason::Truncated)),
            }
        }
        wakers
    }

    /// Tells everybody to fetch everything again, because changes were lost. Changes of access may have been among them, so
    /// the authoriser is asked about everything again. Returns the wakers to call.
    pub(crate) fn lose(&self, reason: ResyncReason) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let state = &mut *self.lock();
        for (slot, connection) in &mut state.connections {
            connection.holds.iter_mut().for_each(|hold| hold.kept.clear());
            connection.floors.clear();
            if connection.subscriptions.len() == 0 {
                continue;
            }
            wakers.extend(self.resync(connection, None, reason));
            if self.authorize.is_some() {
                let codes: Vec<_> = connection.subscriptions.iter().map(|(code, _)| code.clone()).collect();
                for code in codes {
                    self.open_review(&mut state.next_hold, *slot, connection, &code, Held::WholeType);
                }
            }
        }
        wakers
    }

    /// Ends a hold: what it kept goes to the connection, if it still watches it. Returns the wakers to call.
    pub(crate) fn release(&self, state: &mut State, slot: Slot, number: u64) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let Some(connection) = state.connections.get_mut(&slot) else { return wakers };
        let Some(at) = connection.holds.iter().position(|hold| hold.number == number) else { return wakers };
        let Hold { code, kept, resync, .. } = connection.holds.remove(at);
        if let Some(reason) = resync.filter(|_| connection.subscriptions.of_type(&code).is_some()) {
            wakers.extend(self.resync(connection, Some(&code), reason));
        }
        let mut kept: Vec<_> = kept.into_iter().collect();
        kept.sort_unstable_by_key(|(_, latest)| latest.version);
        for (id, latest) in kept {
            if connection.subscriptions.covers(&code, &id) {
                wakers.extend(self.offer(connection, &code, &id, latest));
            }
        }
        connection.inbox.conflate().set_held(connection.holds.len());
        wakers
    }

    /// Adds a connection.
    pub(crate) fn add(&self, state: &mut State, connection: Connection) -> Slot {
        let slot = state.next_slot;
        // A slot is used again only after four billion connections, and not while it is taken.
        state.next_slot = (1..=Slot::MAX)
            .map(|step| slot.wrapping_add(step))
            .find(|next| !state.connections.contains_key(next))
            .unwrap_or_default();
        state.users.entry(connection.user.clone()).or_default().push(slot);
        state.connections.insert(slot, connection);
        slot
    }

    /// Removes a connection with everything that it watches.
    pub(crate) fn remove(&self, slot: Slot) {
        let mut state = self.lock();
        let Some(mut connection) = state.connections.remove(&slot) else { return };
        state.index.remove_all(slot, &mut connection.subscriptions);
        state.forget_user(&connection.user, slot);
        state.floored.remove(&slot);
        let is_idle = state.connections.is_empty() && !self.permanent;
        drop(state);
        self.registry.forget(connection.id.clone());
        if is_idle {
            self.idle.notify_one();
        }
    }
}

impl State {
    /// Begins to hold changes back from a connection. Returns the number of the hold.
    pub(crate) fn hold(
        &mut self,
        slot: Slot,
        code: &EntityCode,
        held: Held,
        purpose: Purpose,
    ) -> Option<u64> {
        let connection = self.connections.get_mut(&slot)?;
        Some(connection.hold(&mut self.next_hold, code, held, purpose))
    }

    /// Takes a connection from the list of its user's.
    pub(crate) fn forget_user(&mut self, user: &Arc<str>, slot: Slot) {
        if let Some(slots) = self.users.get_mut(user) {
            slots.retain(|known| *known != slot);
            if slots.is_empty() {
                self.users.remove(user);
            }
        }
    }
}

impl Connection {
    /// Begins to hold changes back. Returns the number of the hold.
    pub(crate) fn hold(&mut self, next: &mut u64, code: &EntityCode, held: Held, purpose: Purpose) -> u64 {
        let number = *next;
        *next += 1;
        let (code, kept) = (code.clone(), HashMap::new());
        self.holds.push(Hold { number, code, held, purpose, kept, resync: None });
        self.inbox.conflate().set_held(self.holds.len());
        number
    }

    /// Removes what waits of a type and is not watched any more.
    pub(crate) fn drop_unwatched(&self, code: &EntityCode) {
        let of_type = self.subscriptions.of_type(code);
        self.inbox.retain(|key, _| match key {
            Key::Entity(of, id) if of == code => {
                of_type.is_some_and(|of_type| of_type.whole || of_type.ids.contains(id))
            }
            Key::Resync(Some(of)) if of == code => of_type.is_some(),
            Key::Entity(..) | Key::Resync(_) => true,
        });
    }
}
