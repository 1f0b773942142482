//! Metrics of subscriptions.

use tidings_engine::Metrics;
use tidings_engine::metrics::{Counter, Gauge, Name};

/// Counters of attempts to wake workers.
pub(crate) struct Counts {
    /// Webhooks that were accepted.
    pub(crate) delivered: Counter,
    /// Webhooks that were accepted and say that the work is done.
    pub(crate) done: Counter,
    /// Events that were appended to wake streams.
    pub(crate) announced: Counter,
    /// Attempts that failed.
    pub(crate) failed: Counter,
    /// Subscriptions that became dead letters.
    pub(crate) dead: Counter,
    /// Leases that ended because nobody was heard of.
    pub(crate) expired: Counter,
    /// Attempts under way.
    pub(crate) under_way: Gauge,
}

impl Counts {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let attempts = |outcome| {
            let name = Name {
                name: "tidings_subscription_attempts_total",
                help: "Attempts to wake workers of subscriptions, by outcome (delivered, done, announced, failed).",
            };
            metrics.counter(name, &[("outcome", outcome)])
        };
        let counter = |name, help| metrics.counter(Name { name, help }, &[]);
        Self {
            delivered: attempts("delivered"),
            done: attempts("done"),
            announced: attempts("announced"),
            failed: attempts("failed"),
            dead: counter(
                "tidings_subscription_dead_letters_total",
                "Subscriptions that were given up after their last allowed attempt.",
            ),
            expired: counter(
                "tidings_subscription_leases_expired_total",
                "Leases of subscriptions that ended because no worker was heard of.",
            ),
            under_way: metrics.gauge(
                Name {
                    name: "tidings_subscription_attempts_under_way",
                    help: "Attempts to wake workers of subscriptions that are under way.",
                },
                &[],
            ),
        }
    }
}
