//! Wiring of sessions: configuration keys, duties and opening.

use std::sync::Arc;
use std::time::Duration;

use tidings_api::Envelopes;
use tidings_model::limits;
use tidings_sessions::{Options, Sessions, Undelivered};
use tidings_streams::{Cleared, Streams};

use super::{Foundation, Wiring};
use crate::config::keys::{HOUR_MS, Key, key};
use crate::duties::Duty;

/// Interval at which the store is checked for undelivered records. A publish that is cancelled during its commit does
/// not announce them.
const BACKLOG_INTERVAL: Duration = Duration::from_secs(5);
const YEAR_SECONDS: u64 = 365 * 24 * 60 * 60;
/// Upper bound of the configurable number of sessions per project. Each session takes about 1 KB of memory.
const SESSIONS_MAX: usize = 100_000_000;
/// Upper bound of the configurable number of sessions that a publish delivers to in its own commit. While it does,
/// other commits wait.
const FANOUT_MAX: usize = 100_000;

pub const WIRING: Wiring = Wiring {
    keys: KEYS,
    tables: &[],
    duties: |all| {
        let (cleaning, following, asking) =
            (all.sessions.clone(), all.sessions.clone(), all.sessions.clone());
        vec![
            Duty::every("session-cleanup", all.sessions.options().cleanup_interval, move || {
                clean_up(cleaning.clone())
            }),
            Duty::lasting("session-follower", move || following.clone().follow()),
            Duty::every("session-backlog", BACKLOG_INTERVAL, move || look_for_backlog(asking.clone())),
        ]
    },
    // Sessions are removed together with their streams.
    clear: |_, _| Box::pin(async { Ok(Cleared::Whole) }),
};

const KEYS: &[Key] = &[
    key("sessions.ttl_seconds", |config, given| {
        let seconds = given.number(1..=YEAR_SECONDS)?;
        config.capabilities.sessions.ttl = Duration::from_secs(seconds);
        Ok(())
    }),
    key("sessions.fanout_batch_size", |config, given| {
        given
            .count(1..=limits::TARGETS_PER_COMMIT)
            .map(|size| config.capabilities.sessions.fanout_batch_size = size)
    }),
    key("sessions.fanout_queue_threshold", |config, given| {
        given.count(0..=FANOUT_MAX).map(|count| config.capabilities.sessions.fanout_queue_threshold = count)
    }),
    key("sessions.fanout_queue_batch_size", |config, given| {
        given
            .count(1..=limits::TARGETS_PER_COMMIT)
            .map(|size| config.capabilities.sessions.fanout_queue_batch_size = size)
    }),
    key("sessions.max_inline_fanout", |config, given| {
        given.count(0..=FANOUT_MAX).map(|count| config.capabilities.sessions.max_inline_fanout = count)
    }),
    key("sessions.fanout_rpc_timeout_ms", |config, given| {
        let timeout = given.number(1..=HOUR_MS)?;
        config.capabilities.sessions.fanout_timeout = Duration::from_millis(timeout);
        Ok(())
    }),
    key("sessions.circuit_breaker_failure_threshold", |config, given| {
        let failures = given.number(1..=1_000_000)?;
        config.capabilities.sessions.breaker.failures = u32::try_from(failures).unwrap_or(u32::MAX);
        Ok(())
    }),
    key("sessions.circuit_breaker_recovery_ms", |config, given| {
        let recovery = given.number(1..=24 * HOUR_MS)?;
        config.capabilities.sessions.breaker.recovery = Duration::from_millis(recovery);
        Ok(())
    }),
    key("sessions.cleanup_interval_seconds", |config, given| {
        let seconds = given.number(1..=24 * 60 * 60)?;
        config.capabilities.sessions.cleanup_interval = Duration::from_secs(seconds);
        Ok(())
    }),
    key("sessions.queue", |config, given| {
        given.truth().map(|queue| config.capabilities.sessions.queue = queue)
    }),
    key("sessions.require_uuid", |config, given| {
        given.truth().map(|required| config.capabilities.sessions.require_uuid = required)
    }),
    key("sessions.max_per_project", |config, given| {
        given.count(1..=SESSIONS_MAX).map(|count| config.capabilities.sessions.max_per_project = count)
    }),
    key("sessions.log_hours", |config, given| {
        let hours = given.number(1..=10 * 365 * 24)?;
        config.capabilities.sessions.keep = Duration::from_secs(hours * 60 * 60);
        Ok(())
    }),
];

/// Configures streams for sessions: records are shown in envelopes, and kept until they are delivered.
pub fn on(streams: Streams, foundation: &Foundation) -> Streams {
    let store = &foundation.store;
    streams
        .with_rewriter(Arc::new(Envelopes::new(store.clone())))
        .held(Arc::new(Undelivered::new(store.clone())))
}

/// Opens the sessions on top of these streams.
pub fn open(streams: Streams, foundation: &Foundation, options: Options) -> Sessions {
    Sessions::new(streams, foundation.store.clone(), options, &foundation.metrics)
}

async fn clean_up(sessions: Sessions) {
    match sessions.clean_up().await {
        Ok(cleaned) if cleaned.expired > 0 => {
            let (expired, subscriptions) = (cleaned.expired, cleaned.subscriptions);
            tracing::debug!(expired, subscriptions, "cleaned up sessions");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "could not clean up sessions; trying again later"),
    }
}

async fn look_for_backlog(sessions: Sessions) {
    if let Err(error) = sessions.look_for_more().await {
        tracing::warn!(%error, "could not see what is left to deliver; trying again later");
    }
}
