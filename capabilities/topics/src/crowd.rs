//! How many connections subscribe to each topic that may have only so many.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{ErrorDetails, PubSubError, PubSubErrorCode};
use crate::topic::TopicRules;

/// Subscriptions to topics with a limit: those that are held, and those that operations are making.
#[derive(Default)]
pub(crate) struct Crowd(Mutex<HashMap<Arc<str>, usize>>);

impl Crowd {
    /// Counts a subscription to each of some topics. If one has as many as it may, counts none.
    pub(crate) fn enter(&self, rules: &TopicRules, topics: &[Arc<str>]) -> Result<(), PubSubError> {
        if !rules.limits_subscribers() {
            return Ok(());
        }
        let limited = |topic: &Arc<str>| Some((topic.clone(), rules.max_subscribers(topic)?));
        let limited: Vec<(Arc<str>, usize)> = topics.iter().filter_map(limited).collect();
        let mut counts = self.lock();
        for (topic, limit) in &limited {
            if counts.get(topic).is_some_and(|count| count >= limit) {
                let (limit, topic) = (*limit, topic.clone());
                let message = format!("`{topic}` has at most {limit} subscribers");
                let details = ErrorDetails::TopicLimit { limit, topic };
                return Err(PubSubError::new(PubSubErrorCode::TopicLimitExceeded, message, details));
            }
        }
        for (topic, _) in limited {
            *counts.entry(topic).or_default() += 1;
        }
        Ok(())
    }

    /// Counts a subscription to each of some topics less.
    pub(crate) fn leave<'a>(&self, rules: &TopicRules, topics: impl IntoIterator<Item = &'a Arc<str>>) {
        if !rules.limits_subscribers() {
            return;
        }
        let mut counts = self.lock();
        for topic in topics {
            // A topic without a limit has no count.
            let Some(count) = counts.get_mut(topic) else { continue };
            *count -= 1;
            if *count == 0 {
                counts.remove(topic);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
