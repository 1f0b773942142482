//! Changes of entities, as they are published and as they are read.

use std::fmt;

use crate::entity::{EntityCode, EntityId};

/// What happened to an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// It was created.
    Create,
    /// It was changed, or who may see it.
    Update,
    /// It was deleted.
    Delete,
}

/// Why whoever watches an entity is told of a change, if not because of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Who may see it has changed: it was shared, or has another owner.
    Access,
}

/// A change to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewChange {
    /// Type of the entity.
    pub code: EntityCode,
    /// The entity.
    pub id: EntityId,
    /// What happened to it.
    pub action: Action,
}

/// A change that was read from a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Type of the entity.
    pub code: EntityCode,
    /// The entity.
    pub id: EntityId,
    /// What happened to it.
    pub action: Action,
    /// Version of the entity, from 1 to 2^53 - 1.
    ///
    /// Of one entity, a change that is read later has a higher version, on every node and over restarts. A client
    /// ignores a version that is not higher than the last one it has seen.
    pub version: u64,
    /// Why it is told, if not because of the content.
    pub reason: Option<Reason>,
}

/// What a source has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An entity has changed.
    Changed(Change),
    /// All entities of a type were removed, without naming them.
    Truncated(EntityCode),
}

impl Action {
    /// Name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }

    /// Reads the name on the wire.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Create, Self::Update, Self::Delete].into_iter().find(|action| action.as_str() == text)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Reason {
    /// Name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Access => "access",
        }
    }
}
