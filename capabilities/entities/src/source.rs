//! The contract of sources: where changes come from and where they are published.

use futures_util::future::BoxFuture;
use tidings_engine::log::StoreError;

use crate::change::{Entry, NewChange};
use crate::cursor::{Cursor, InvalidCursor};
use crate::entity::IdForm;

/// Changes of the entities of one project.
///
/// Promises of a source:
///
/// - Every change that becomes visible after a cursor was given by [`now`](Self::now) or [`read`](Self::read) is returned
///   by a later `read` after that cursor, on every node, or the read says that it is [lost](Read::Lost). A transaction
///   that began before the cursor and was committed after it is no exception.
/// - Of one entity, an entry that is read later has a higher version; see [`Change::version`](crate::Change::version).
/// - Every call ends: a source that talks to something remote has a time limit.
pub trait Source: Send + Sync + 'static {
    /// Form of the ids of entities.
    fn ids(&self) -> IdForm;

    /// Returns the cursor after everything that is visible now.
    fn now(&self) -> BoxFuture<'_, Result<Cursor, SourceError>>;

    /// Reads the next entries after a cursor, about `most` of them. A source whose entries can only be read together,
    /// such as those of one transaction, may return more.
    fn read<'a>(&'a self, after: &'a Cursor, most: usize) -> BoxFuture<'a, Result<Read, SourceError>>;

    /// Resolves when there may be entries after a cursor, also when they became visible before the call. It may resolve
    /// without a reason. Called again and again by one reader per node, which reads in between, so it may be a timer.
    fn changed<'a>(&'a self, after: &'a Cursor) -> BoxFuture<'a, ()>;

    /// Publishes changes, all or none of them. They are durable when this returns.
    fn publish(&self, changes: Vec<NewChange>) -> BoxFuture<'_, Result<Published, SourceError>>;
}

/// What a read has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The next entries, of which there may be none.
    Entries {
        /// The entries, in order.
        entries: Vec<Entry>,
        /// Cursor after them.
        cursor: Cursor,
        /// Whether more can be read at once.
        more: bool,
    },
    /// What came after the cursor is not known any more. Whoever was there has to fetch everything again.
    Lost {
        /// Why it is not known.
        reason: ResyncReason,
        /// Cursor from which to go on.
        cursor: Cursor,
    },
}

/// Why a client has to fetch everything again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResyncReason {
    /// The changes after the cursor are not kept any more.
    CursorExpired,
    /// The source was replaced, or has gone back in time.
    SourceReset,
    /// There were too many changes to keep them for this client.
    Overflow,
    /// All entities of the type were removed.
    Truncated,
}

/// Changes that were published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Number of changes that were accepted.
    pub accepted: usize,
    /// Cursor from which they have been heard. Whoever resumes there does not hear them.
    pub cursor: Cursor,
}

/// Why a source did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The cursor is not one of this source.
    #[error(transparent)]
    InvalidCursor(#[from] InvalidCursor),
    /// The source cannot be reached, or did not answer in time. The text is for operators, not for clients.
    #[error("the source of changes is unavailable: {0}")]
    Unavailable(String),
    /// The source is not set up for what is configured. The text names no secrets, and is shown to anybody.
    #[error("the source of changes is not set up: {0}")]
    Misconfigured(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ResyncReason {
    /// Name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CursorExpired => "cursor-expired",
            Self::SourceReset => "source-reset",
            Self::Overflow => "overflow",
            Self::Truncated => "truncated",
        }
    }
}
