//! What is counted of a database.

use tidings_engine::Metrics;
use tidings_engine::metrics::{Counter, Gauge, Name};

const LISTENING: Name = Name {
    name: "tidings_entity_database_listening",
    help: "Whether the connection that is woken by changes in the database is open, by project.",
};
const READ: Name = Name {
    name: "tidings_entity_outbox_read_total",
    help: "Entries read from the outbox of the database, by project. An entry is counted each time it is read.",
};
const MOVED: Name = Name {
    name: "tidings_entity_outbox_moved_total",
    help: "Entries of the outbox that were committed after a later change of the same entity and got a new version, by project.",
};
const LAG: Name = Name {
    name: "tidings_entity_outbox_lag_milliseconds",
    help: "Age of the newest entry of the outbox when it was last read, by the clock of the database, by project.",
};
const ROWS: Name = Name {
    name: "tidings_entity_outbox_rows",
    help: "Estimated number of entries in the outbox of the database, by project.",
};
const REGISTRY_FAILURES: Name = Name {
    name: "tidings_entity_registry_failures_total",
    help: "Writes of subscriptions into the database that failed and were tried again, by project.",
};
const REGISTRY_PENDING: Name = Name {
    name: "tidings_entity_registry_pending",
    help: "Changes of subscriptions that are not in the database yet, by project.",
};
const SLOT_LEADING: Name = Name {
    name: "tidings_entity_slot_leading",
    help: "Whether this node reads the replication slot of the database, by project.",
};
const SLOT_RETAINED: Name = Name {
    name: "tidings_entity_slot_retained_bytes",
    help: "Bytes of the database's log that are kept for the replication slot, by project.",
};
const SLOT_BEHIND: Name = Name {
    name: "tidings_entity_slot_lag_bytes",
    help: "Bytes of the database's log that were written and not read from the replication slot, by project.",
};
const SLOT_DECODED: Name = Name {
    name: "tidings_entity_slot_changes_total",
    help: "Changes that this node has read from the replication slot of the database, by project.",
};
const SLOT_RESETS: Name = Name {
    name: "tidings_entity_slot_resets_total",
    help: "Replication slots that this node has made anew, after which clients fetch everything again, by project.",
};

/// Counters and gauges of one database.
pub(crate) struct Meters {
    pub(crate) listening: Gauge,
    pub(crate) read: Counter,
    pub(crate) moved: Counter,
    pub(crate) lag: Gauge,
    pub(crate) rows: Gauge,
    pub(crate) registry_failures: Counter,
    pub(crate) registry_pending: Gauge,
    pub(crate) slot_leading: Gauge,
    pub(crate) slot_retained: Gauge,
    pub(crate) slot_behind: Gauge,
    pub(crate) slot_decoded: Counter,
    pub(crate) slot_resets: Counter,
}

impl Meters {
    pub(crate) fn new(metrics: &Metrics, project: &str) -> Self {
        let labels = &[("project", project)];
        Self {
            listening: metrics.gauge(LISTENING, labels),
            read: metrics.counter(READ, labels),
            moved: metrics.counter(MOVED, labels),
            lag: metrics.gauge(LAG, labels),
            rows: metrics.gauge(ROWS, labels),
            registry_failures: metrics.counter(REGISTRY_FAILURES, labels),
            registry_pending: metrics.gauge(REGISTRY_PENDING, labels),
            slot_leading: metrics.gauge(SLOT_LEADING, labels),
            slot_retained: metrics.gauge(SLOT_RETAINED, labels),
            slot_behind: metrics.gauge(SLOT_BEHIND, labels),
            slot_decoded: metrics.counter(SLOT_DECODED, labels),
            slot_resets: metrics.counter(SLOT_RESETS, labels),
        }
    }
}
