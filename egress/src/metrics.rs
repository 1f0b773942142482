//! Numbers of what is sent.

use tidings_engine::Metrics;
use tidings_engine::metrics::{Counter, Gauge, Name};

use crate::error::SendError;

const SOCKETS: Name = Name { name: "tidings_egress_connections", help: "Open connections to endpoints." };
const CONNECTS: Name =
    Name { name: "tidings_egress_connects_total", help: "Attempts to open a connection to an endpoint." };
const REUSES: Name = Name {
    name: "tidings_egress_reuses_total",
    help: "Requests to endpoints on a connection that was open before.",
};
const REQUESTS: Name =
    Name { name: "tidings_egress_requests_total", help: "Requests to endpoints, by outcome." };

/// Outcome of a request that has a response, of whatever status.
const ANSWERED: &str = "answered";

pub(crate) struct EgressMetrics {
    pub(crate) sockets: Gauge,
    pub(crate) connects: Counter,
    pub(crate) reuses: Counter,
    /// Requests by the name of their outcome.
    outcomes: [(&'static str, Counter); 10],
}

impl EgressMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let outcomes = [
            ANSWERED,
            "forbidden",
            "resolve",
            "connect",
            "tls",
            "timeout",
            "closed",
            "protocol",
            "too_large",
            "too_many_sockets",
        ];
        Self {
            sockets: metrics.gauge(SOCKETS, &[]),
            connects: metrics.counter(CONNECTS, &[]),
            reuses: metrics.counter(REUSES, &[]),
            outcomes: outcomes.map(|name| (name, metrics.counter(REQUESTS, &[("outcome", name)]))),
        }
    }

    /// Counts a request that ended.
    pub(crate) fn ended(&self, error: Option<&SendError>) {
        let outcome = error.map_or(ANSWERED, SendError::name);
        if let Some((_, counter)) = self.outcomes.iter().find(|(name, _)| *name == outcome) {
            counter.count();
        }
    }
}
