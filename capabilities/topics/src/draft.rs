//! Drafts: a set of topics that a function changes.

use std::collections::HashMap;
use std::sync::Arc;

use crate::policy::Gate;

/// A set of topics that is applied as a whole. Topics are normalized as they come in.
pub struct Draft<'a> {
    gate: &'a dyn Gate,
    topics: HashMap<Arc<str>, usize>,
    next: usize,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(gate: &'a dyn Gate, topics: Vec<Arc<str>>) -> Self {
        let next = topics.len();
        Self { gate, topics: topics.into_iter().enumerate().map(|(at, topic)| (topic, at)).collect(), next }
    }

    /// Adds a topic. Returns whether it was not there.
    pub fn insert(&mut self, topic: &str) -> bool {
        let topic: Arc<str> = Arc::from(&*self.gate.normalize(topic));
        if self.topics.contains_key(&topic) {
            return false;
        }
        self.topics.insert(topic, self.next);
        self.next += 1;
        true
    }

    /// Removes a topic. Returns whether it was there.
    pub fn remove(&mut self, topic: &str) -> bool {
        self.topics.remove(&*self.gate.normalize(topic)).is_some()
    }

    /// Whether a topic is in the draft.
    pub fn contains(&self, topic: &str) -> bool {
        self.topics.contains_key(&*self.gate.normalize(topic))
    }

    /// Removes all topics.
    pub fn clear(&mut self) {
        self.topics.clear();
    }

    /// Removes the topics that a function does not want to keep.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.topics.retain(|topic, _| keep(topic));
    }

    /// Number of topics.
    pub fn len(&self) -> usize {
        self.topics.len()
    }

    /// Whether there are no topics.
    pub fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// The topics, in order.
    pub fn into_topics(self) -> Vec<Arc<str>> {
        let mut topics: Vec<_> = self.topics.into_iter().collect();
        topics.sort_unstable_by_key(|(_, at)| *at);
        topics.into_iter().map(|(topic, _)| topic).collect()
    }
}
