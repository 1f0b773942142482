//! Options of topics.

use std::time::Duration;

use tidings_model::limits;
use tidings_topics::TopicRules;

use super::policy::Normalize;

/// Options of topics: what they look like, and the bounds of their connections.
#[derive(Clone, Debug)]
pub struct TopicOptions {
    /// What topics must look like, how many a connection may subscribe to (default: 1,000), how many subscriptions all
    /// connections of a project may hold (default: 5,000,000), and the bytes of a payload as it is sent (default: 1 MiB).
    pub rules: TopicRules,
    /// The normal form of topics. Default: as they are sent.
    pub normalize: Normalize,
    /// Maximum topics that one request names. Default: 1,000.
    pub topics_per_request: usize,
    /// Maximum bytes of a frame from a client. Default: 1,114,112.
    pub frame_bytes: usize,
    /// Size of the token bucket of frames of one connection. Default: 10,000.
    pub rate_capacity: u32,
    /// Frames per second that are added to the bucket. Default: 10,000.
    pub rate_per_second: u32,
    /// Frames in a row that were not understood, after which the connection is closed. Default: 100.
    pub bad_frames: u32,
    /// Bytes that a connection may be behind. Default: 1 MiB.
    pub slow_consumer_bytes: u64,
    /// Time for which a connection may accept nothing of what is sent. Default: 10 s.
    pub slow_consumer: Duration,
    /// Time for which the last frame is offered before the socket is dropped. Default: 5 s.
    pub close_grace: Duration,
    /// Interval of pings to a silent client. Default: 25 s.
    pub heartbeat: Duration,
    /// Silence after which a connection is closed. Default: 60 s.
    pub heartbeat_timeout: Duration,
    /// Time after which a node that is silent is taken to be gone, with its members. Default: 30 s.
    pub presence_ttl: Duration,
}

impl Default for TopicOptions {
    fn default() -> Self {
        Self {
            rules: TopicRules::default()
                .with_max_per_connection(Some(limits::TOPICS_PER_CONNECTION))
                .with_max_subscriptions(Some(limits::SUBSCRIPTIONS_PER_PROJECT))
                .with_max_payload_bytes(Some(limits::TOPIC_PAYLOAD_BYTES)),
            normalize: Normalize::default(),
            topics_per_request: limits::TOPICS_PER_REQUEST,
            frame_bytes: limits::TOPIC_FRAME_BYTES,
            rate_capacity: limits::TOPIC_FRAMES_PER_SECOND,
            rate_per_second: limits::TOPIC_FRAMES_PER_SECOND,
            bad_frames: limits::BAD_FRAMES,
            slow_consumer_bytes: limits::SLOW_CONSUMER_BYTES,
            slow_consumer: limits::SLOW_CONSUMER_TIMEOUT,
            close_grace: limits::CLOSE_GRACE,
            heartbeat: limits::TOPIC_HEARTBEAT,
            heartbeat_timeout: limits::TOPIC_HEARTBEAT_TIMEOUT,
            presence_ttl: limits::TOPIC_PRESENCE_TTL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_protocol() {
        let options = TopicOptions::default();
        assert_eq!(options.rules.max_length(), 128);
        assert_eq!(options.rules.max_per_connection(), Some(1000));
        assert_eq!(options.rules.max_subscriptions(), Some(5_000_000));
        assert_eq!(options.rules.max_payload_bytes(), Some(1_048_576));
        assert!(options.rules.check("A:z_0.9/b-c").is_ok() && options.rules.check("a b").is_err());
        assert_eq!(options.normalize, Normalize::None);
        assert_eq!((options.topics_per_request, options.frame_bytes), (1000, 1_114_112));
        assert_eq!((options.rate_capacity, options.rate_per_second), (10_000, 10_000));
        assert_eq!((options.bad_frames, options.slow_consumer_bytes), (100, 1_048_576));
        let millis = |time: Duration| time.as_millis();
        assert_eq!((millis(options.slow_consumer), millis(options.close_grace)), (10_000, 5_000));
        assert_eq!(millis(options.presence_ttl), 30_000);
        assert_eq!((millis(options.heartbeat), millis(options.heartbeat_timeout)), (25_000, 60_000));
    }
}
