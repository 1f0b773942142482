//! The traits a store implements, and what it can say instead of an answer.

use futures_util::future::BoxFuture;
use tidings_model::{LogId, Position};

use super::{Commit, Committed, Page, Refusal, Span, Status};

/// Reading side of a store. See the [module](super) for what it promises.
pub trait Logs: Send + Sync + 'static {
    /// A number for a log to be created. It may stay unused.
    fn reserve(&self) -> BoxFuture<'_, Result<LogId, StoreError>>;

    /// The log as it is.
    fn status(&self, log: LogId) -> BoxFuture<'_, Result<Status, ReadError>>;

    /// Records of a log in order, with the log's status at the same moment.
    fn read(&self, log: LogId, span: Span) -> BoxFuture<'_, Result<Page, ReadError>>;

    /// Whether a commit that takes space would be taken now, as far as can be told without making one.
    fn accepting(&self) -> Result<(), StoreError>;
}

/// Writing side of a store, for a capability whose changes are `C`.
pub trait Commits<C: Change>: Logs {
    /// Makes a commit. Durable and visible when it returns. A caller that stops waiting learns nothing:
    /// the commit may or may not be made, but never in part.
    fn commit(&self, commit: Commit<C>) -> BoxFuture<'_, Result<Committed, CommitError<C::Refusal>>>;
}

/// A capability's own change, carried by a commit beside the operations on logs.
pub trait Change: Send + Sync + 'static {
    /// Why the capability's tables refuse one.
    type Refusal: std::error::Error + Send + Sync + 'static;
}

/// A capability's tables as a state machine, for stores that hold them in memory. Pure: a change is judged
/// and applied without I/O, the clock or chance, so that replaying the same changes gives the same tables.
pub trait Tables: Default + Send + Sync + 'static {
    /// What can be done to them.
    type Change: Change;

    /// Whether the change may be applied to the tables as they are.
    fn judge(&self, change: &Self::Change) -> Result<(), <Self::Change as Change>::Refusal>;

    /// Applies a change that was judged good.
    fn apply(&mut self, change: Self::Change);
}

/// Why a commit was not made. Nothing of it holds.
#[derive(Debug, thiserror::Error)]
pub enum CommitError<R: std::error::Error + 'static> {
    /// A log refused its operation.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The capability's tables refused a change.
    #[error(transparent)]
    Declined(R),
    /// The store could not.
    #[error(transparent)]
    Store(StoreError),
}

/// Why a read gives nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is no such log, or no longer.
    #[error("{0} does not exist")]
    NoSuchLog(LogId),
    /// Records after the asked position are gone.
    #[error("records up to {floor:?} are gone")]
    Trimmed {
        /// Reading from here gives the oldest that is kept.
        floor: Position,
        /// The tail at that moment.
        tail: Position,
    },
    /// The store could not.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Trouble of the store itself, not of the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The disk is full. Writes are accepted again when there is space.
    #[error("the store is out of space")]
    NoSpace,
    /// The store has stopped.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
}
