//! Metrics of topics.

use serde_json::Value;
use tidings_engine::deliver::Rings;
use tidings_engine::metrics::{Counter, Gauge, LimitHits, Metrics, Name};
use tidings_topics::{PublishError, PublishResult};

use super::encode::Closing;
use super::error::{WireError, code};

const REQUESTS: Name = Name {
    name: "tidings_topics_requests_total",
    help: "Frames from clients of topics, by request type and result (ok, rejected).",
};
const REJECTED: Name =
    Name { name: "tidings_topics_rejected_total", help: "Rejected frames of clients of topics, by code." };
const INVALID: Name = Name {
    name: "tidings_topics_invalid_total",
    help: "Topics and messages that failed validation, by reason (length, pattern, type, encoding, other).",
};
const FAILED_ROLLBACKS: Name = Name {
    name: "tidings_topics_failed_rollbacks_total",
    help: "Requests that failed halfway and could not be taken back, so that the bus and the connection differ.",
};
const PUBLISHED: Name = Name {
    name: "tidings_topics_published_total",
    help: "Messages published to topics, by the way they came in (websocket, http) and result (ok, failed).",
};
const DELIVERIES: Name = Name {
    name: "tidings_topics_deliveries_total",
    help: "Deliveries of messages to connections that subscribed to their topic.",
};
const CLOSED: Name = Name {
    name: "tidings_topics_closed_total",
    help: "Connections of topics that the server has closed, by reason.",
};
const CONNECTIONS: Name =
    Name { name: "tidings_topics_connections", help: "WebSockets that are open for topics." };
const TOPICS: Name =
    Name { name: "tidings_topics_subscribed", help: "Topics with at least one subscriber, of all projects." };

/// Types of frames that are counted. Others are `other`.
const TYPES: [&str; 18] = [
    "$subscribe",
    "$unsubscribe",
    "$subscribeMany",
    "$unsubscribeMany",
    "$clear",
    "$set",
    "$update",
    "$settle",
    "$verify",
    "$localStatus",
    "$list",
    "$publish",
    "$history",
    "$presence",
    "$auth",
    "$ws:abort",
    "__heartbeat",
    "other",
];

/// Codes of rejected frames that are counted. Others are `other`.
const CODES: [&str; 16] = [
    code::INVALID_ARGUMENT,
    code::UNIMPLEMENTED,
    "INVALID_TOPIC",
    "ACL_SUBSCRIBE",
    "ACL_PUBLISH",
    "TOPIC_LIMIT_EXCEEDED",
    "ADAPTER_ERROR",
    code::CONNECTION_CLOSED,
    code::FAILED_PRECONDITION,
    code::RESOURCE_EXHAUSTED,
    code::UNAUTHENTICATED,
    code::PERMISSION_DENIED,
    code::CANCELLED,
    code::DEADLINE_EXCEEDED,
    code::INTERNAL,
    "other",
];

/// Reasons of failed validations that are counted. Others are `other`.
const REASONS: [&str; 5] = ["length", "pattern", "type", "encoding", "other"];

/// How a message was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// By a connection.
    WebSocket,
    /// By an HTTP request.
    Http,
}

/// Counts what happens on topics.
pub struct TopicMetrics {
    requests: [[Counter; 2]; TYPES.len()],
    rejected: [Counter; CODES.len()],
    invalid: [Counter; REASONS.len()],
    failed_rollbacks: Counter,
    published: [[Counter; 2]; 2],
    deliveries: Counter,
    closed: [Counter; Closing::ALL.len()],
    pub connections: Gauge,
    pub limit_hits: LimitHits,
}

impl TopicMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics, rings: &Rings) -> Self {
        let rings = rings.clone();
        metrics.compute(TOPICS, tidings_engine::metrics::Kind::Gauge, &[], move || rings.len() as f64);
        let results = |kind| {
            ["ok", "rejected"].map(|result| metrics.counter(REQUESTS, &[("type", kind), ("result", result)]))
        };
        let ways = |via| {
            ["ok", "failed"].map(|result| metrics.counter(PUBLISHED, &[("via", via), ("result", result)]))
        };
        Self {
            requests: TYPES.map(results),
            rejected: CODES.map(|code| metrics.counter(REJECTED, &[("code", code)])),
            invalid: REASONS.map(|reason| metrics.counter(INVALID, &[("reason", reason)])),
            failed_rollbacks: metrics.counter(FAILED_ROLLBACKS, &[]),
            published: ["websocket", "http"].map(ways),
            deliveries: metrics.counter(DELIVERIES, &[]),
            closed: Closing::ALL.map(|closing| metrics.counter(CLOSED, &[("reason", closing.reason())])),
            connections: metrics.gauge(CONNECTIONS, &[]),
            limit_hits: LimitHits::new(metrics),
        }
    }

    /// Counts a frame that was handled.
    pub fn handled(&self, kind: &str) {
        self.requests[kind_at(kind)][0].count();
    }

    /// Counts a frame that was rejected.
    pub fn rejected(&self, kind: &str, error: &WireError) {
        self.requests[kind_at(kind)][1].count();
        let at = CODES.iter().position(|known| *known == error.code).unwrap_or(CODES.len() - 1);
        self.rejected[at].count();
        let detail = |name| error.details.as_ref()?.get(name);
        if error.code == "INVALID_TOPIC" {
            self.invalid(detail("reason"));
        }
        if detail("rollbackFailed") == Some(&Value::Bool(true)) {
            self.failed_rollbacks.count();
        }
    }

    fn invalid(&self, reason: Option<&Value>) {
        let reason = reason.and_then(Value::as_str);
        let at = REASONS.iter().position(|known| Some(*known) == reason).unwrap_or(REASONS.len() - 1);
        self.invalid[at].count();
    }

    /// Counts a publish.
    pub fn published(&self, via: Via, result: &PublishResult) {
        let ways = &self.published[usize::from(via == Via::Http)];
        ways[usize::from(!result.is_ok())].count();
        self.deliveries.add(result.matched().unwrap_or(0));
        if let PublishResult::Failed(failure) = result
            && failure.error == PublishError::Validation
        {
            self.invalid(failure.details.get("reason"));
        }
    }

    /// Counts a connection that the server closes.
    pub fn closed(&self, closing: Closing) {
        let at = Closing::ALL.iter().position(|known| *known == closing);
        self.closed[at.expect("all reasons are counted")].count();
    }
}

/// The type of a frame as it is counted.
pub fn known_type(kind: &str) -> &'static str {
    TYPES[kind_at(kind)]
}

/// Index of a type of frame.
fn kind_at(kind: &str) -> usize {
    TYPES.iter().position(|known| *known == kind).unwrap_or(TYPES.len() - 1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tidings_engine::Bus;
    use tidings_engine::deliver::{Channels, Limits};
    use tidings_topics::PublishFailure;

    use super::*;

    fn metrics() -> (Metrics, TopicMetrics) {
        let metrics = Metrics::new();
        let rings = Rings::unjoined(&Channels::new(Bus::new(), Limits::default()));
        let topics = TopicMetrics::new(&metrics, &rings);
        (metrics, topics)
    }

    fn rejection(code: &'static str, details: Value) -> WireError {
        WireError::new(code, "no").with(details)
    }

    #[tokio::test]
    async fn failed_validations_are_counted_by_reason() {
        let (metrics, topics) = metrics();
        let length = json!({ "reason": "length", "length": 129, "max": 128 });
        topics.rejected("$subscribe", &rejection("INVALID_TOPIC", length.clone()));
        let pattern = json!({ "reason": "pattern", "topic": "no spaces" });
        topics.rejected("$set", &rejection("INVALID_TOPIC", pattern));
        // Another error that has a reason, too.
        topics.rejected("$subscribe", &rejection("ACL_SUBSCRIBE", json!({ "reason": "length" })));
        for reason in ["length", "type", "something new"] {
            let failure = PublishFailure::new(PublishError::Validation).with("reason", reason);
            topics.published(Via::Http, &failure.into());
        }
        let denied = PublishFailure::new(PublishError::AclPublish).with("reason", "length");
        topics.published(Via::WebSocket, &denied.into());
        let text = metrics.text();
        for (reason, count) in [("length", 2), ("pattern", 1), ("type", 1), ("encoding", 0), ("other", 1)] {
            let line = format!("tidings_topics_invalid_total{{reason=\"{reason}\"}} {count}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    }

    #[tokio::test]
    async fn failed_rollbacks_are_counted() {
        let (metrics, topics) = metrics();
        let undone = json!({ "adapter": "bus", "transient": true });
        topics.rejected("$subscribeMany", &rejection("ADAPTER_ERROR", undone));
        assert!(metrics.text().contains("tidings_topics_failed_rollbacks_total 0\n"));
        let left = json!({ "adapter": "bus", "rollbackFailed": true, "failedRollbackTopics": ["a"] });
        topics.rejected("$subscribeMany", &rejection("ADAPTER_ERROR", left));
        assert!(metrics.text().contains("tidings_topics_failed_rollbacks_total 1\n"));
    }
}
