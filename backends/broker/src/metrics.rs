//! Metrics of a bus.

use tidings_engine::Metrics;
use tidings_engine::bus::messages::BusError;
use tidings_engine::metrics::{Counter, Gauge, Name};

const CONNECTED: Name = Name {
    name: "tidings_bus_connected",
    help: "Whether the bus is connected to its broker (1) or not (0).",
};
const CONNECTIONS: Name =
    Name { name: "tidings_bus_connections_total", help: "Connections made to the broker of the bus." };
const PUBLISHED: Name =
    Name { name: "tidings_bus_published_total", help: "Messages that the broker of the bus accepted." };
const RECEIVED: Name =
    Name { name: "tidings_bus_received_total", help: "Messages that arrived from the broker of the bus." };
const FAILED: Name = Name {
    name: "tidings_bus_failed_total",
    help: "Messages that the bus did not publish, by reason (full, too_large, failed).",
};

pub(crate) struct BusMetrics {
    pub(crate) connected: Gauge,
    pub(crate) connections: Counter,
    pub(crate) published: Counter,
    pub(crate) received: Counter,
    full: Counter,
    too_large: Counter,
    failed: Counter,
}

impl BusMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let failed = |reason| metrics.counter(FAILED, &[("reason", reason)]);
        Self {
            connected: metrics.gauge(CONNECTED, &[]),
            connections: metrics.counter(CONNECTIONS, &[]),
            published: metrics.counter(PUBLISHED, &[]),
            received: metrics.counter(RECEIVED, &[]),
            full: failed("full"),
            too_large: failed("too_large"),
            failed: failed("failed"),
        }
    }

    /// Counts a message that was not published. Returns why.
    pub(crate) fn failure(&self, error: BusError) -> BusError {
        match &error {
            BusError::Full => &self.full,
            BusError::TooLarge { .. } => &self.too_large,
            BusError::Failed(_) => &self.failed,
        }
        .count();
        error
    }
}
