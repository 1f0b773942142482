//! Answers: each request gets one, in the order in which they end.

use std::task::Waker;

use bytes::Bytes;
use tidings_model::limits::Limit;
use tidings_topics::{PublishError, PublishResult, Topics};

use super::encode;
use super::error::{WireError, code};
use super::hubs::TopicHubs;
use super::metrics::Via;
use super::operation::{Answer, Outcome, publish_error};
use crate::live::Panicked;

/// Answers the requests of one connection. Tasks have a clone.
#[derive(Clone)]
pub struct Speaker {
    pub topics: Topics,
    pub hubs: TopicHubs,
}

/// What is known of a request while it is being handled.
#[derive(Clone)]
pub struct Asked {
    /// Its type, if that is known.
    pub kind: &'static str,
    pub correlation_id: Option<Box<str>>,
}

impl Speaker {
    /// Queues the answer of an operation. The result is the waker of whoever sends it.
    pub fn answer(
        &self,
        asked: &Asked,
        ended: Result<Result<Outcome, WireError>, Panicked>,
    ) -> Option<Waker> {
        let Outcome { payload, held } = match ended {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => return self.reject(asked, &error),
            Err(Panicked) => return self.reject(asked, &WireError::internal()),
        };
        if let Answer::Publish(result) = &payload {
            self.count_publish(result);
            // Whoever gave no id is told of failures only.
            if let (None, Some(error)) = (&asked.correlation_id, publish_error(result)) {
                return self.reject(asked, &error);
            }
        }
        self.count(asked);
        let frame = match &asked.correlation_id {
            Some(correlation_id) => encode::reply(correlation_id, &payload),
            None => Bytes::new(),
        };
        match held {
            Some(held) => held.queue_reply(frame),
            None => self.topics.queue_reply(frame),
        }
    }

    /// Queues an error.
    pub fn reject(&self, asked: &Asked, error: &WireError) -> Option<Waker> {
        let metrics = self.hubs.metrics();
        metrics.rejected(asked.kind, error);
        if let Some(limit) = limit_of(error) {
            metrics.limit_hits.count(limit);
        }
        self.topics.queue_reply(encode::error(asked.correlation_id.as_deref(), error))
    }

    /// Queues a frame that answers a request.
    pub fn say(&self, asked: &Asked, frame: Bytes) {
        self.count(asked);
        drop(self.topics.queue_reply(frame));
    }

    /// Counts a request that was not rejected.
    pub fn count(&self, asked: &Asked) {
        self.hubs.metrics().handled(asked.kind);
    }

    fn count_publish(&self, result: &PublishResult) {
        let metrics = self.hubs.metrics();
        metrics.published(Via::WebSocket, result);
        if result.error() == Some(PublishError::PayloadTooLarge) {
            metrics.limit_hits.count(Limit::TopicPayloadBytes);
        }
    }
}

/// The limit that an error tells of.
fn limit_of(error: &WireError) -> Option<Limit> {
    let detail = |name| error.details.as_ref()?.get(name)?.as_str();
    match error.code {
        "TOPIC_LIMIT_EXCEEDED" if detail("scope") == Some("project") => Some(Limit::SubscriptionsPerProject),
        "TOPIC_LIMIT_EXCEEDED" if detail("scope") == Some("connection") => Some(Limit::TopicsPerConnection),
        code::RESOURCE_EXHAUSTED => Some(Limit::TopicFrameRate),
        code::INVALID_ARGUMENT if detail("reason") == Some("too-many-topics") => {
            Some(Limit::TopicsPerRequest)
        }
        _ => None,
    }
}
