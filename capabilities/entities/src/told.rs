//! What a connection is told without asking: changes of what it watches, joined per entity while it is slow.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidings_engine::deliver::{Conflate, FrameChunks};
use tokio::sync::watch;

use crate::change::{Action, Change, Reason};
use crate::cursor::Cursor;
use crate::entity::{EntityCode, EntityId};
use crate::source::ResyncReason;

/// Encodes what is told. Called by whoever polls the inbox of the connection; it must not call the capability.
pub trait Encode: Send + Sync + 'static {
    /// Encodes changes of entities of one type, at most 256. The client may resume from `cursor`; without one, more is
    /// pending that it would miss.
    fn invalidate(&self, code: &EntityCode, changes: &[Told], cursor: Option<&Cursor>) -> FrameChunks;

    /// Encodes that the client has to fetch everything again, of one type or of all.
    fn resync(&self, code: Option<&EntityCode>, reason: ResyncReason) -> FrameChunks;

    /// Encodes that the client does not watch a whole type any more, because it may not.
    fn whole_type_denied(&self, code: &EntityCode) -> FrameChunks;
}

/// A change as a client is told of it. It may stand for several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The entity.
    pub id: EntityId,
    /// What happened to it last.
    pub action: Action,
    /// Its version by that.
    pub version: u64,
    /// Why it is told, if not only because of the content.
    pub reason: Option<Reason>,
}

/// The latest change of an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Latest {
    pub(crate) action: Action,
    pub(crate) version: u64,
    pub(crate) reason: Option<Reason>,
}

/// What waits for a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// To be told to fetch everything again, of one type or of all.
    Resync(Option<EntityCode>),
    /// To be told of an entity.
    Entity(EntityCode, EntityId),
}

/// What waits under a [`Key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Resync(ResyncReason),
    Entity(Latest),
}

/// Joins and encodes what waits for a connection.
pub(crate) struct Outgoing {
    encode: Arc<dyn Encode>,
    /// Cursor after everything that was delivered to connections; `None` until the source was reached.
    head: watch::Receiver<Option<Cursor>>,
    /// Number of holds: changes that were delivered and wait elsewhere.
    held: AtomicUsize,
    /// Last cursor up to which the client was told everything.
    complete: Mutex<Option<Cursor>>,
}

impl Latest {
    pub(crate) fn of(change: &Change) -> Self {
        Self { action: change.action, version: change.version, reason: change.reason }
    }

    /// Joins it with another change of the same entity. The higher version counts, whichever came first.
    pub(crate) fn join(&mut self, other: Self) {
        let reason = self.reason.or(other.reason);
        if other.version >= self.version {
            *self = other;
        }
        self.reason = reason;
    }
}

impl Outgoing {
    pub(crate) fn new(encode: Arc<dyn Encode>, head: watch::Receiver<Option<Cursor>>) -> Self {
        let complete = Mutex::new(head.borrow().clone());
        Self { encode, head, held: AtomicUsize::new(0), complete }
    }

    pub(crate) fn encode(&self) -> &dyn Encode {
        &*self.encode
    }

    /// Sets the number of holds. Before a change is put into a hold, and after those of a hold were put into the inbox.
    pub(crate) fn set_held(&self, holds: usize) {
        self.held.store(holds, Ordering::SeqCst);
    }

    /// Last cursor up to which the client was told everything.
    pub(crate) fn complete(&self) -> Option<Cursor> {
        self.complete.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the cursor up to which the client was told everything.
    pub(crate) fn set_complete(&self, cursor: Cursor) {
        *self.complete.lock().unwrap_or_else(PoisonError::into_inner) = Some(cursor);
    }
}

impl Conflate for Outgoing {
    type Key = Key;
    type Value = Value;
    type Mark = Option<Cursor>;

    fn join(&self, waiting: &mut Value, later: Value) {
        match (waiting, later) {
            (Value::Entity(waiting), Value::Entity(later)) => waiting.join(later),
            (waiting, later) => *waiting = later,
        }
    }

    fn mark(&self) -> Option<Cursor> {
        // In this order: what is put into a hold is behind the head only later.
        let head = self.head.borrow().clone();
        head.filter(|_| self.held.load(Ordering::SeqCst) == 0)
    }

    fn encode(
        &self,
        values: Vec<(Key, Value)>,
        complete: Option<Option<Cursor>>,
        take: &mut dyn FnMut(FrameChunks),
    ) {
        let mut types: Vec<(EntityCode, Vec<Told>)> = Vec::new();
        let mut place: HashMap<EntityCode, usize> = HashMap::new();
        for (key, value) in values {
            match (key, value) {
                // Nothing that it concerns waits before it.
                (Key::Resync(code), Value::Resync(reason)) => take(self.encode.resync(code.as_ref(), reason)),
                (Key::Entity(code, id), Value::Entity(Latest { action, version, reason })) => {
                    let at = *place.entry(code).or_insert_with_key(|code| {
                        types.push((code.clone(), Vec::new()));
                        types.len() - 1
                    });
                    types[at].1.push(Told { id, action, version, reason });
                }
                (Key::Resync(_), Value::Entity(_)) | (Key::Entity(..), Value::Resync(_)) => {
                    unreachable!("a key has values of its kind")
                }
            }
        }
        let complete = complete.flatten();
        let last = types.len().saturating_sub(1);
        for (at, (code, changes)) in types.iter().enumerate() {
            let cursor = complete.as_ref().filter(|_| at == last);
            take(self.encode.invalidate(code, changes, cursor));
        }
        if let Some(complete) = complete {
            self.set_complete(complete);
        }
    }
}
