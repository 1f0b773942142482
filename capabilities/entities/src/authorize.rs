//! The contract of authorisers: which entities a user may watch.

use std::collections::HashSet;

use futures_util::future::BoxFuture;

use crate::entity::{EntityCode, EntityId};

/// Decides which entities a user may watch. Asked for each subscribe, and again when [access](crate::Reason::Access)
/// to an entity has changed.
pub trait Authorize: Send + Sync + 'static {
    /// Returns which of the entities are allowed. Ends within a time limit of its own; after an error, none is allowed.
    fn allowed<'a>(&'a self, question: &'a Question) -> BoxFuture<'a, Result<Allowed, AuthorizeError>>;
}

/// Who wants to watch what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The user, as the token names it.
    pub user: String,
    /// Type of the entities.
    pub code: EntityCode,
    /// The entities.
    pub subject: Subject,
}

/// Some entities of a type, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// These, each once. Never empty in a [`Question`].
    Ids(Vec<EntityId>),
    /// All of the type, also future ones. An SQL predicate and an HTTP callback are asked for a single `NULL`, and allow
    /// the type by returning it.
    WholeType,
}

/// What is allowed of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Everything.
    All,
    /// These entities, whatever else was asked. Ids that were not asked for do not matter.
    Ids(HashSet<EntityId>),
}

/// An authoriser that could not decide. The text is for operators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the authoriser of entities failed: {0}")]
pub struct AuthorizeError(pub String);

impl Allowed {
    /// Nothing.
    pub fn none() -> Self {
        Self::Ids(HashSet::new())
    }

    /// Whether an entity is allowed.
    pub fn has(&self, id: &EntityId) -> bool {
        match self {
            Self::All => true,
            Self::Ids(ids) => ids.contains(id),
        }
    }
}
