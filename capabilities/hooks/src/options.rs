//! Options of hooks.

use std::time::Duration;

use tidings_egress::AllowList;
use tidings_model::limits;

/// Options of hooks.
#[derive(Clone, Debug)]
pub struct Options {
    /// Template of the URL of a hook without a `url` of its own, with `{workerId}` and `{rpcMethod}`. Empty for none: then
    /// each hook needs a URL.
    pub target_template: String,
    /// Targets that are allowed although their addresses are not public.
    pub allow_targets: AllowList,
    /// Time for which events are kept. A delivery that was not made within it is given up.
    pub event_retention: Duration,
    /// Time for which finished deliveries, their attempts and dead letters are kept.
    pub record_retention: Duration,
    /// Maximum number of hooks of a project.
    pub max_per_project: usize,
    /// Maximum number of deliveries that wait for one hook. The oldest above it are given up.
    pub max_queue: u64,
    /// Maximum number of attempts at a time, of all hooks.
    pub max_attempts: usize,
    /// Maximum number of attempts at a time to one destination.
    pub max_attempts_per_destination: usize,
    /// Consecutive failures after which a destination's circuit breaker opens.
    pub breaker_failures: u32,
    /// Time for which an open breaker keeps deliveries waiting before it lets one try.
    pub breaker_open: Duration,
    /// Ingest requests that a project may make per minute. Zero for no limit.
    pub requests_per_minute: u64,
    /// Events that a project may ingest per minute. Zero for no limit.
    pub events_per_minute: u64,
    /// Events that a project may ingest per day (UTC). Zero for no limit.
    pub events_per_day: u64,
    /// Deliveries that one commit of the follower queues, at most.
    pub deliveries_per_commit: usize,
    /// Whether notices about hooks are events, `hook.*`.
    pub notices: bool,
}

/// The target template of the seed's service.
pub const TARGET_TEMPLATE: &str = "https://{workerId}.workers.dev/rpc/{rpcMethod}";

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Default for Options {
    fn default() -> Self {
        Self {
            target_template: TARGET_TEMPLATE.to_owned(),
            allow_targets: AllowList::default(),
            event_retention: 30 * DAY,
            record_retention: 30 * DAY,
            max_per_project: limits::HOOKS_PER_PROJECT,
            max_queue: limits::HOOK_QUEUE,
            max_attempts: limits::HOOK_ATTEMPTS,
            max_attempts_per_destination: limits::DESTINATION_ATTEMPTS,
            breaker_failures: 10,
            breaker_open: Duration::from_secs(30),
            requests_per_minute: 0,
            events_per_minute: 0,
            events_per_day: 0,
            deliveries_per_commit: 64 * 1024,
            notices: true,
        }
    }
}
