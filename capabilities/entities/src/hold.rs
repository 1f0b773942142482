//! Holds: changes that a connection may not be told yet, because it is being decided whether, or after what.

use std::collections::{HashMap, HashSet};

use crate::entity::{EntityCode, EntityId};
use crate::source::ResyncReason;
use crate::told::Latest;

/// Keeps back changes of some entities of a type.
#[derive(Debug)]
pub(crate) struct Hold {
    /// Unique in the project.
    pub(crate) number: u64,
    pub(crate) code: EntityCode,
    pub(crate) held: Held,
    pub(crate) purpose: Purpose,
    /// The latest change of each entity.
    pub(crate) kept: HashMap<EntityId, Latest>,
    /// Set when the client has to fetch everything of the type again, before it is told what is kept.
    pub(crate) resync: Option<ResyncReason>,
}

/// Entities whose changes are held.
#[derive(Debug)]
pub(crate) enum Held {
    Ids(HashSet<EntityId>),
    WholeType,
}

/// Why changes are held.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// A subscribe is not answered yet.
    Subscribe,
    /// Access to entities has changed, and the authoriser is asked again.
    Review {
        /// Whether the authoriser is being asked. Then nothing is added any more, because its answer may be older.
        asked: bool,
        /// The first change of access of each entity: all that is told of it if it is not allowed any more.
        first: HashMap<EntityId, Latest>,
    },
}

impl Hold {
    pub(crate) fn covers(&self, code: &EntityCode, id: &EntityId) -> bool {
        self.code == *code
            && match &self.held {
                Held::Ids(ids) => ids.contains(id),
                Held::WholeType => true,
            }
    }

    /// Keeps a change. If there are too many, they are replaced by a resync.
    pub(crate) fn keep(&mut self, id: &EntityId, latest: Latest, most: usize) {
        if let Some(known) = self.kept.get_mut(id) {
            known.join(latest);
        } else if self.kept.len() < most {
            self.kept.insert(id.clone(), latest);
        } else {
            self.overflow(ResyncReason::Overflow);
        }
    }

    /// Replaces what is kept by a resync.
    pub(crate) fn overflow(&mut self, reason: ResyncReason) {
        self.kept.clear();
        self.resync = Some(reason);
    }

    /// Whether it is a review to which entities of a type can be added.
    pub(crate) fn is_open_review(&self, code: &EntityCode) -> bool {
        matches!(self.purpose, Purpose::Review { asked: false, .. }) && self.code == *code
    }
}
