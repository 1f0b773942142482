//! What a connection holds, and what its operations are about to change.

use std::collections::HashMap;
use std::sync::Arc;

use tidings_model::Timestamp;

use crate::queue::Queue;

/// The state of one connection. Only what the driver has accepted is in `topics`.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) closed: bool,
    /// Topics that the connection subscribes to, with a number that grows with each subscription.
    topics: HashMap<Arc<str>, u64>,
    subscribed: u64,
    /// Subscriptions that have passed the limit and are not in `topics` yet.
    pub(crate) reserved: usize,
    /// When subscriptions end that are not renewed.
    expiries: HashMap<Arc<str>, Timestamp>,
    pub(crate) changing: HashMap<Arc<str>, Changing>,
    /// Changes of subscriptions in flight.
    pub(crate) queue: Queue,
    /// Messages whose policy or driver is being waited for.
    pub(crate) publishing: Queue,
}

/// How a topic is being changed.
pub(crate) enum Changing {
    /// A subscription that is not in effect yet. With a reason, it must not come into effect any more.
    Adding { refused: Option<Arc<str>> },
    /// A subscription that the driver has not confirmed yet.
    Confirming,
    /// A subscription that is about to end.
    Removing,
}

/// The status of a topic of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocalStatus {
    /// The connection subscribes to it, and nothing is in flight.
    Settled,
    /// A subscribe is in flight.
    PendingSubscribe,
    /// An unsubscribe is in flight.
    PendingUnsubscribe,
    /// The connection does not subscribe to it, and nothing is in flight.
    Absent,
}

impl State {
    pub(crate) fn contains(&self, topic: &str) -> bool {
        self.topics.contains_key(topic)
    }

    /// Number of the subscription to a topic.
    pub(crate) fn subscription(&self, topic: &str) -> Option<u64> {
        self.topics.get(topic).copied()
    }

    /// Whether the subscription to a topic is still the one with a number.
    pub(crate) fn is_subscription(&self, topic: &str, number: u64) -> bool {
        self.subscription(topic) == Some(number)
    }

    pub(crate) fn len(&self) -> usize {
        self.topics.len()
    }

    /// Adds a topic at the end. Returns whether it was not there.
    pub(crate) fn insert(&mut self, topic: Arc<str>) -> bool {
        if self.topics.contains_key(&topic) {
            return false;
        }
        self.subscribed += 1;
        self.topics.insert(topic, self.subscribed);
        true
    }

    pub(crate) fn remove(&mut self, topic: &str) -> bool {
        let removed = self.topics.remove(topic).is_some();
        if removed {
            self.expiries.remove(topic);
        }
        if self.topics.is_empty() {
            self.topics.shrink_to_fit();
        }
        removed
    }

    /// All topics in the order in which they were subscribed to.
    pub(crate) fn snapshot(&self) -> Vec<Arc<str>> {
        let mut topics: Vec<_> = self.topics.iter().collect();
        topics.sort_unstable_by_key(|(_, order)| **order);
        topics.into_iter().map(|(topic, _)| topic.clone()).collect()
    }

    pub(crate) fn status(&self, topic: &str) -> LocalStatus {
        match self.changing.get(topic) {
            Some(Changing::Adding { .. } | Changing::Confirming) => LocalStatus::PendingSubscribe,
            Some(Changing::Removing) => LocalStatus::PendingUnsubscribe,
            None if self.contains(topic) => LocalStatus::Settled,
            None => LocalStatus::Absent,
        }
    }

    /// Forgets everything, because the connection is closed. Returns the topics.
    pub(crate) fn close(&mut self) -> Vec<Arc<str>> {
        self.closed = true;
        self.expiries = HashMap::new();
        std::mem::take(&mut self.topics).into_keys().collect()
    }

    /// Has the subscription to a topic end at a time, unless it is renewed.
    pub(crate) fn expire_at(&mut self, topic: &Arc<str>, at: Timestamp) {
        if self.contains(topic) {
            self.expiries.insert(topic.clone(), at);
        }
    }

    /// Topics whose time has come.
    pub(crate) fn expired(&self, now: Timestamp) -> Vec<Arc<str>> {
        self.expiries.iter().filter(|(_, at)| **at <= now).map(|(topic, _)| topic.clone()).collect()
    }
}

impl LocalStatus {
    /// The status as it is written on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::PendingSubscribe => "pending-subscribe",
            Self::PendingUnsubscribe => "pending-unsubscribe",
            Self::Absent => "absent",
        }
    }
}
