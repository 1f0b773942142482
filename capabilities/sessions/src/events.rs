//! Metrics of sessions.

use std::time::Duration;

use tidings_engine::metrics::{Buckets, Counter, EVENT_TIME, EVENTS, Histogram, Metrics, Name};

const CLEANED: Name =
    Name { name: "tidings_cleanup_total", help: "Items processed by session clean-up, by kind." };
const DELIVERIES: Name = Name {
    name: "tidings_session_deliveries_total",
    help: "Records delivered to sessions, by path (publish or follower).",
};

/// Counters and histograms of all session events.
pub(crate) struct Events {
    metrics: Metrics,
    pub(crate) fanout: Event,
    pub(crate) fanout_queued: Event,
    pub(crate) subscribe: Event,
    pub(crate) unsubscribe: Event,
    pub(crate) session_create: Event,
    pub(crate) session_touch: Event,
    pub(crate) session_delete: Event,
    pub(crate) session_expire: Event,
    pub(crate) cleanup: Event,
    pub(crate) publish: Event,
    pub(crate) cleaned: Cleaned,
    /// Records delivered to sessions by publishes.
    pub(crate) delivered_inline: Counter,
    /// Records delivered to sessions by the follower.
    pub(crate) delivered_later: Counter,
}

/// Count and duration of one kind of event.
pub(crate) struct Event {
    count: Counter,
    time: Histogram,
}

impl Event {
    fn new(metrics: &Metrics, category: &'static str, event: &'static str) -> Self {
        let labels = [("category", category), ("event", event)];
        Self {
            count: metrics.counter(EVENTS, &[labels[0], labels[1], ("error", "")]),
            time: metrics.histogram(EVENT_TIME, &labels, Buckets::LATENCY),
        }
    }

    /// Counts one event and records its duration.
    pub(crate) fn took(&self, time: Duration) {
        self.count.count();
        self.time.observe_time(time);
    }
}

/// Counters of what clean-up removed.
pub(crate) struct Cleaned {
    pub(crate) expired: Counter,
    pub(crate) streams: Counter,
    pub(crate) subscriptions: Counter,
    pub(crate) failed: Counter,
}

impl Events {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let event = |category, event| Event::new(metrics, category, event);
        let cleaned = |what| metrics.counter(CLEANED, &[("what", what)]);
        let delivered = |by| metrics.counter(DELIVERIES, &[("by", by)]);
        Self {
            fanout: event("fanout", "fanout"),
            fanout_queued: event("fanout", "fanout_queued"),
            subscribe: event("subscription", "subscribe"),
            unsubscribe: event("subscription", "unsubscribe"),
            session_create: event("session", "session_create"),
            session_touch: event("session", "session_touch"),
            session_delete: event("session", "session_delete"),
            session_expire: event("session", "session_expire"),
            cleanup: event("cleanup", "cleanup_batch"),
            publish: event("publish", "publish"),
            cleaned: Cleaned {
                expired: cleaned("sessions_expired"),
                streams: cleaned("streams_deleted"),
                subscriptions: cleaned("subscriptions_removed"),
                failed: cleaned("removals_failed"),
            },
            delivered_inline: delivered("publish"),
            delivered_later: delivered("follower"),
            metrics: metrics.clone(),
        }
    }

    /// Counts a failed publish. `kind` is a metric label and must come from a small fixed set.
    pub(crate) fn publish_failed(&self, kind: &'static str) {
        let labels = [("category", "publish_error"), ("event", "publish_error"), ("error", kind)];
        self.metrics.counter(EVENTS, &labels).count();
    }
}
