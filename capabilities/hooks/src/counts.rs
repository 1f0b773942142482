//! Metrics of what comes in. Those of deliveries are the dispatcher's.

use tidings_engine::Metrics;
use tidings_engine::metrics::{Counter, Name};

/// Counters of ingested and matched events.
pub(crate) struct Counts {
    /// Events that were accepted.
    pub(crate) ingested: Counter,
    /// Events and batches that were repeated and therefore ignored.
    pub(crate) repeated: Counter,
    /// Deliveries that were queued with the commit of their event.
    pub(crate) queued_inline: Counter,
    /// Deliveries that were queued after the commit of their event, or again.
    pub(crate) queued_later: Counter,
}

const EVENTS: &str = "tidings_hook_events_total";
const QUEUED: &str = "tidings_hook_deliveries_queued_total";

impl Counts {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let events = |outcome| {
            let name =
                Name { name: EVENTS, help: "Events received for hooks, by outcome (accepted, repeated)." };
            metrics.counter(name, &[("outcome", outcome)])
        };
        let queued = |mode| {
            let name = Name {
                name: QUEUED,
                help: "Deliveries put into queues of hooks: inline with their event, or later (matched by the follower, replayed).",
            };
            metrics.counter(name, &[("mode", mode)])
        };
        Self {
            ingested: events("accepted"),
            repeated: events("repeated"),
            queued_inline: queued("inline"),
            queued_later: queued("later"),
        }
    }
}
