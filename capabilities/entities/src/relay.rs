//! The contract of relays: of the nodes that read one source, one tells its changes to the hooks of the project.

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::cursor::Cursor;
use crate::source::SourceError;

/// The lease of relaying the changes of a [`Source`](crate::Source), and how far they were relayed. Kept where all nodes
/// that read the source can reach it.
///
/// A node claims the lease again and again, at least three times before it [runs out](Claim::lasts), and stores how far
/// it has relayed after it has made that durable itself. So no change is skipped when another node takes over, but the
/// last ones may be relayed twice: each has an id that is derived from it.
pub trait Relay: Send + Sync + 'static {
    /// Takes the lease if nobody else has it, or renews it. `None` if another node has it.
    fn claim(&self) -> BoxFuture<'_, Result<Option<Claim>, SourceError>>;

    /// Stores how far was relayed, if the lease is still held in this term. Returns whether it is; otherwise nothing was
    /// stored.
    fn advance<'a>(&'a self, term: u64, relayed: &'a Cursor) -> BoxFuture<'a, Result<bool, SourceError>>;

    /// Gives the lease back, if it is held in this term, so that another node need not wait until it has run out.
    fn release(&self, term: u64) -> BoxFuture<'_, ()>;
}

/// A lease that this node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Number of the term. It is higher for each node that takes the lease over, and unchanged when it is renewed.
    pub term: u64,
    /// How far was relayed; `None` if nobody has relayed anything yet.
    pub relayed: Option<Cursor>,
    /// Time after which the lease has run out, unless it is renewed.
    pub lasts: Duration,
}
