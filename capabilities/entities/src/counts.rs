//! Metrics of entities.

use tidings_engine::metrics::{Counter, Metrics, Name};

use crate::source::ResyncReason;

pub(crate) const PROJECTS: Name = Name {
    name: "tidings_entity_projects",
    help: "Projects whose entities were watched or changed since the start, or that have a database.",
};
pub(crate) const CONNECTIONS: Name =
    Name { name: "tidings_entity_connections", help: "Connections that watch entities." };
pub(crate) const SUBSCRIPTIONS: Name = Name {
    name: "tidings_entity_subscriptions",
    help: "Subscriptions of connections to entities and to whole types.",
};
pub(crate) const PENDING: Name = Name {
    name: "tidings_entity_pending",
    help: "Entities whose latest change waits for a connection to take it.",
};
pub(crate) const FAILING: Name = Name {
    name: "tidings_entity_sources_failing",
    help: "Sources of changes of entities that cannot be read at the moment.",
};
const CHANGES: Name =
    Name { name: "tidings_entity_changes_total", help: "Changes of entities, by what was done with them." };
const FAILURES: Name = Name {
    name: "tidings_entity_source_failures_total",
    help: "Failed attempts to read a source of changes of entities.",
};
const RESYNCS: Name = Name {
    name: "tidings_entity_resyncs_total",
    help: "Times that a connection was told to fetch everything again, by reason.",
};
const REVIEWS: Name = Name {
    name: "tidings_entity_reviews_total",
    help: "Times that an authoriser was asked again because access had changed, by outcome.",
};

/// The counters of entities.
pub(crate) struct Counts {
    /// Changes that were accepted from clients.
    pub(crate) published: Counter,
    /// Changes that were read from sources to be delivered.
    pub(crate) read: Counter,
    /// Changes that were put into inboxes or holds of connections, once for each.
    pub(crate) delivered: Counter,
    /// Changes that were told to journals on behalf of a database.
    pub(crate) relayed: Counter,
    /// Changes that were read for clients that came back.
    pub(crate) replayed: Counter,
    pub(crate) failures: Counter,
    resyncs: [Counter; 4],
    pub(crate) kept: Counter,
    pub(crate) revoked: Counter,
}

const REASONS: [ResyncReason; 4] =
    [ResyncReason::CursorExpired, ResyncReason::SourceReset, ResyncReason::Overflow, ResyncReason::Truncated];

impl Counts {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let changes = |kind| metrics.counter(CHANGES, &[("kind", kind)]);
        let reviews = |outcome| metrics.counter(REVIEWS, &[("outcome", outcome)]);
        Self {
            published: changes("published"),
            read: changes("read"),
            delivered: changes("delivered"),
            relayed: changes("relayed"),
            replayed: changes("replayed"),
            failures: metrics.counter(FAILURES, &[]),
            resyncs: REASONS.map(|reason| metrics.counter(RESYNCS, &[("reason", reason.as_str())])),
            kept: reviews("kept"),
            revoked: reviews("revoked"),
        }
    }

    /// Counts connections that are told to fetch everything again.
    pub(crate) fn resynced(&self, reason: ResyncReason, connections: usize) {
        if let Some(at) = REASONS.iter().position(|known| *known == reason) {
            self.resyncs[at].add(connections as u64);
        }
    }
}
