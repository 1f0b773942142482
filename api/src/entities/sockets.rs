//! What all sockets of entities share: options, metrics, and the numbers that make their ids unique.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidings_engine::Rng;
use tidings_engine::metrics::{Counter, LimitHits, Metrics, Name};
use tidings_entities::ConnectionId;
use tidings_model::limits::Limit;

use super::closing::Closing;
use super::options::EntityOptions;

const REQUESTS: Name = Name {
    name: "tidings_entity_requests_total",
    help: "Messages of clients that watch entities, by type and result (ok, rejected).",
};
const CLOSED: Name = Name {
    name: "tidings_entity_closed_total",
    help: "Connections of clients that watch entities that the server has closed, by reason.",
};
const MESSAGES: Name = Name {
    name: "tidings_entity_messages_total",
    help: "Messages about changes that were written for clients that watch entities, by type (INVALIDATE, RESYNC).",
};
const TOLD: Name = Name {
    name: "tidings_entity_told_total",
    help: "Changes that were told to clients that watch entities, counted once for each client.",
};

/// Types of messages that are counted. Others are `other`.
const TYPES: [&str; 7] =
    ["AUTH", "SUBSCRIBE", "UNSUBSCRIBE", "UNSUBSCRIBE_ALL", "TOKEN_REFRESH", "PING", "other"];

/// What all sockets of entities share. Clones share the same state.
#[derive(Clone)]
pub struct EntitySockets(Arc<Shared>);

struct Shared {
    options: EntityOptions,
    /// Number of the next connection.
    number: AtomicU64,
    requests: [[Counter; 2]; TYPES.len()],
    closed: [Counter; Closing::ALL.len()],
    invalidates: Counter,
    resyncs: Counter,
    told: Counter,
    limit_hits: LimitHits,
}

impl EntitySockets {
    /// Creates what sockets with these options share.
    pub fn new(options: EntityOptions, metrics: &Metrics) -> Self {
        let results = |kind| {
            ["ok", "rejected"].map(|result| metrics.counter(REQUESTS, &[("type", kind), ("result", result)]))
        };
        Self(Arc::new(Shared {
            options,
            number: AtomicU64::new(1),
            requests: TYPES.map(results),
            closed: Closing::ALL.map(|closing| metrics.counter(CLOSED, &[("reason", closing.reason())])),
            invalidates: metrics.counter(MESSAGES, &[("type", "INVALIDATE")]),
            resyncs: metrics.counter(MESSAGES, &[("type", "RESYNC")]),
            told: metrics.counter(TOLD, &[]),
            limit_hits: LimitHits::new(metrics),
        }))
    }

    /// The options.
    pub fn options(&self) -> &EntityOptions {
        &self.0.options
    }

    /// An id that no other connection of any node has.
    pub(super) fn next_id(&self, rng: &Rng) -> ConnectionId {
        let number = self.0.number.fetch_add(1, Ordering::Relaxed);
        ConnectionId::new(format!("c_{number:x}{:016x}", rng.within(0..=u64::MAX)))
    }

    /// Counts a message that was handled.
    pub(super) fn handled(&self, kind: &str) {
        self.0.requests[kind_at(kind)][0].count();
    }

    /// Counts a message that was rejected.
    pub(super) fn rejected(&self, kind: &str) {
        self.0.requests[kind_at(kind)][1].count();
    }

    /// Counts a limit that was reached.
    pub(super) fn hit(&self, limit: Limit) {
        self.0.limit_hits.count(limit);
    }

    /// Counts a connection that the server closes.
    pub(super) fn closed(&self, closing: Closing) {
        let at = Closing::ALL.iter().position(|known| *known == closing);
        self.0.closed[at.expect("all reasons are counted")].count();
    }

    /// Counts an `INVALIDATE` with so many changes.
    pub(super) fn invalidated(&self, changes: usize) {
        self.0.invalidates.count();
        self.0.told.add(u64::try_from(changes).unwrap_or(u64::MAX));
    }

    /// Counts a `RESYNC`.
    pub(super) fn resynced(&self) {
        self.0.resyncs.count();
    }
}

/// Index of a type of message.
fn kind_at(kind: &str) -> usize {
    TYPES.iter().position(|known| *known == kind).unwrap_or(TYPES.len() - 1)
}
