//! The contract of registries: a table beside the index in memory that shows the subscriptions of all nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::authorize::Subject;
use crate::entity::EntityCode;
use crate::source::SourceError;

/// Shows to others who is subscribed to what. What live connections hear does not depend on it.
pub trait Registry: Send + Sync + 'static {
    /// Notes a change of a connection's subscriptions. Called after the client has its answer, in order for one
    /// connection, one call at a time. Resolves when the change is in the queue of whoever writes it, which waits only
    /// while that queue is full.
    fn note(&self, noted: Noted) -> BoxFuture<'_, ()>;

    /// Forgets all subscriptions of a connection that was closed. Does not wait: connections are bounded.
    fn forget(&self, connection: ConnectionId);

    /// Returns the number of subscriptions of all nodes by type, or `None` if the index in memory has them all.
    fn stats(&self) -> BoxFuture<'_, Result<Option<BTreeMap<EntityCode, TypeStats>>, SourceError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Returns the number of a user's subscriptions of all nodes by type, or `None` if the index in memory has them all.
    fn user_stats<'a>(
        &'a self,
        _user: &'a str,
    ) -> BoxFuture<'a, Result<Option<BTreeMap<EntityCode, u64>>, SourceError>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

/// Id of a connection, unique over all nodes, of at most 50 characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(Arc<str>);

/// A change of a connection's subscriptions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Noted {
    /// The connection has subscribed. Some of it may have been subscribed before.
    Subscribed {
        /// The connection.
        connection: ConnectionId,
        /// Its user, as the token names it.
        user: String,
        /// Type of the entities.
        code: EntityCode,
        /// The entities.
        subject: Subject,
    },
    /// The connection has ended subscriptions: those to these ids, or to the whole type and every id of it.
    Unsubscribed {
        /// The connection.
        connection: ConnectionId,
        /// Type of the entities.
        code: EntityCode,
        /// The entities.
        subject: Subject,
    },
    /// The connection has ended all subscriptions, of every type.
    UnsubscribedAll {
        /// The connection.
        connection: ConnectionId,
    },
}

/// Subscriptions to one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeStats {
    /// Entities that somebody is subscribed to. The whole type counts as one.
    pub entities: u64,
    /// Users with subscriptions.
    pub users: u64,
    /// All subscriptions.
    pub subscriptions: u64,
}

/// A registry that keeps nothing: the index in memory has everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRegistry;

impl ConnectionId {
    /// Makes an id of a text that is unique.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Registry for NoRegistry {
    fn note(&self, _: Noted) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn forget(&self, _: ConnectionId) {}
}
