//! Every key: its name, what it may be, what it sets.

use std::time::Duration;

use tidings_model::limits;

use super::Config;
use super::value::{Given, Wrong};
use crate::options::LogFormat;

/// A key of the configuration.
pub struct Key {
    /// Its section, a dot and its name; those without a section come first in the file.
    pub name: &'static str,
    pub(super) set: Set,
}

type Set = fn(&mut Config, &Given<'_>) -> Result<(), Wrong>;

impl Key {
    /// The variable that sets it. Lists have none.
    pub fn variable(&self) -> Option<String> {
        (self.name != PROJECTS).then(|| format!("TIDINGS_{}", self.name.replace('.', "_").to_uppercase()))
    }
}

const PROJECTS: &str = "auth.projects";
const MIB: usize = 1024 * 1024;
const HOUR_MS: u64 = 60 * 60 * 1000;
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const YEARS: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
const YEAR_SECONDS: u64 = 365 * 24 * 60 * 60;
/// Sessions of one project: each takes about a kilobyte of memory.
const SESSIONS_MAX: usize = 100_000_000;

/// Sessions that a publish delivers to by itself: others wait for its commit.
const FANOUT_MAX: usize = 100_000;

const fn key(name: &'static str, set: Set) -> Key {
    Key { name, set }
}

/// All keys, in the order of the default file.
pub const KEYS: &[Key] = &[
    key("listen", |config, given| given.address().map(|address| config.listen = address)),
    key("data", |config, given| given.path().map(|path| config.data = path)),
    key("dev", |config, given| given.truth().map(|dev| config.dev = dev)),
    key("metrics_listen", |config, given| {
        given.address().map(|address| config.observe.metrics_listen = Some(address))
    }),
    key("streams.long_poll_timeout_ms", |config, given| {
        let timeout = given.number(1..=HOUR_MS)?;
        config.streams.long_poll_timeout = Duration::from_millis(timeout);
        Ok(())
    }),
    key("streams.sse_max_seconds", |config, given| {
        let seconds = given.number(1..=24 * 60 * 60)?;
        config.streams.sse_duration = Duration::from_secs(seconds);
        Ok(())
    }),
    // The largest append must fit, with what is written around its messages, into a file of the write-ahead log.
    key("streams.max_append_bytes", |config, given| {
        given.count(1..=32 * MIB).map(|bytes| config.streams.max_append_bytes = bytes)
    }),
    key("streams.read_chunk_bytes", |config, given| {
        given.count(1..=64 * MIB).map(|bytes| config.streams.read_chunk_bytes = bytes)
    }),
    key("streams.max_readers_per_stream", |config, given| {
        given.count(1..=10_000_000).map(|readers| config.streams.max_readers_per_stream = readers)
    }),
    key("streams.slow_reader_bytes", |config, given| {
        given.count(4096..=1024 * MIB).map(|bytes| config.streams.slow_reader_bytes = bytes)
    }),
    key("streams.slow_reader_ms", |config, given| {
        let patience = given.number(100..=HOUR_MS)?;
        config.streams.slow_reader_timeout = Duration::from_millis(patience);
        Ok(())
    }),
    key("sessions.ttl_seconds", |config, given| {
        let seconds = given.number(1..=YEAR_SECONDS)?;
        config.sessions.ttl = Duration::from_secs(seconds);
        Ok(())
    }),
    key("sessions.fanout_batch_size", |config, given| {
        given.count(1..=limits::TARGETS_PER_COMMIT).map(|size| config.sessions.fanout_batch_size = size)
    }),
    key("sessions.fanout_queue_threshold", |config, given| {
        given.count(0..=FANOUT_MAX).map(|count| config.sessions.fanout_queue_threshold = count)
    }),
    key("sessions.fanout_queue_batch_size", |config, given| {
        given.count(1..=limits::TARGETS_PER_COMMIT).map(|size| config.sessions.fanout_queue_batch_size = size)
    }),
    key("sessions.max_inline_fanout", |config, given| {
        given.count(0..=FANOUT_MAX).map(|count| config.sessions.max_inline_fanout = count)
    }),
    key("sessions.fanout_rpc_timeout_ms", |config, given| {
        let timeout = given.number(1..=HOUR_MS)?;
        config.sessions.fanout_timeout = Duration::from_millis(timeout);
        Ok(())
    }),
    key("sessions.circuit_breaker_failure_threshold", |config, given| {
        let failures = given.number(1..=1_000_000)?;
        config.sessions.breaker.failures = u32::try_from(failures).unwrap_or(u32::MAX);
        Ok(())
    }),
    key("sessions.circuit_breaker_recovery_ms", |config, given| {
        let recovery = given.number(1..=24 * HOUR_MS)?;
        config.sessions.breaker.recovery = Duration::from_millis(recovery);
        Ok(())
    }),
    key("sessions.cleanup_interval_seconds", |config, given| {
        let seconds = given.number(1..=24 * 60 * 60)?;
        config.sessions.cleanup_interval = Duration::from_secs(seconds);
        Ok(())
    }),
    key("sessions.queue", |config, given| given.truth().map(|queue| config.sessions.queue = queue)),
    key("sessions.require_uuid", |config, given| {
        given.truth().map(|required| config.sessions.require_uuid = required)
    }),
    key("sessions.max_per_project", |config, given| {
        given.count(1..=SESSIONS_MAX).map(|count| config.sessions.max_per_project = count)
    }),
    key("sessions.log_hours", |config, given| {
        let hours = given.number(1..=10 * 365 * 24)?;
        config.sessions.keep = Duration::from_secs(hours * 60 * 60);
        Ok(())
    }),
    key("rooms.retention", |config, given| {
        given.duration(Duration::from_secs(1)..=YEARS).map(|time| config.rooms.retention = time)
    }),
    key("rooms.sweep_interval", |config, given| {
        given.duration(Duration::from_secs(1)..=DAY).map(|time| config.rooms.sweep_interval = time)
    }),
    key("rooms.reaction_min_lag", |config, given| {
        given.duration(Duration::ZERO..=DAY).map(|time| config.rooms.reaction_min_lag = time)
    }),
    key("rooms.ring", |config, given| {
        given.count(1..=limits::RING_FRAMES).map(|frames| config.rooms.ring = frames)
    }),
    key("rooms.max_lag", |config, given| {
        given.number(1..=1_000_000_000).map(|events| config.rooms.max_lag = events)
    }),
    key("rooms.stall", |config, given| {
        given.duration(Duration::from_millis(100)..=HOUR).map(|time| config.rooms.stall = time)
    }),
    key("rooms.heartbeat", |config, given| {
        given.duration(Duration::from_secs(1)..=HOUR).map(|time| config.rooms.heartbeat = time)
    }),
    key("rooms.max_streams_per_user", |config, given| {
        given.count(1..=1_000_000).map(|streams| config.rooms.max_streams_per_user = streams)
    }),
    key("rooms.payload_bytes", |config, given| {
        given.count(2..=MIB).map(|bytes| config.rooms.payload_bytes = bytes)
    }),
    key("rooms.max_members", |config, given| {
        given.count(1..=limits::MEMBERS_PER_ROOM).map(|members| config.rooms.max_members = members)
    }),
    key("rooms.history_for_new_members", |config, given| {
        given.truth().map(|history| config.rooms.history_for_new_members = history)
    }),
    key("limits.requests_per_second", |config, given| {
        let requests = given.number(0..=1_000_000_000)?;
        config.limits.requests_per_second = u32::try_from(requests).unwrap_or(u32::MAX);
        Ok(())
    }),
    key("limits.connections", |config, given| {
        given.count(1..=10_000_000).map(|connections| config.limits.connections = connections)
    }),
    key("limits.header_bytes", |config, given| {
        given.count(8192..=MIB).map(|bytes| config.limits.header_bytes = bytes)
    }),
    key("limits.body_bytes_in_flight", |config, given| {
        given.count(MIB..=1024 * 1024 * MIB).map(|bytes| config.limits.body_bytes_in_flight = bytes)
    }),
    key("store.commit_window_us", |config, given| {
        let window = given.number(0..=1_000_000)?;
        config.commit_window = Duration::from_micros(window);
        Ok(())
    }),
    // There is no other way: what is answered is on the disk.
    key("store.sync", |_, given| given.choice(&[("always", ())])),
    key(PROJECTS, |config, given| given.projects().map(|projects| config.given.projects = projects)),
    key("auth.admin_key", |config, given| {
        given.admin_key().map(|key| config.given.admin = Some(key.digest()))
    }),
    key("tls.cert", |config, given| given.path().map(|path| config.tls_cert = Some(path))),
    key("tls.key", |config, given| given.path().map(|path| config.tls_key = Some(path))),
    key("log.format", |config, given| {
        let formats = [("auto", LogFormat::Auto), ("text", LogFormat::Text), ("json", LogFormat::Json)];
        given.choice(&formats).map(|format| config.log.format = format)
    }),
    key("log.otlp_endpoint", |config, given| {
        let endpoint = given.text()?;
        if !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
            return Err("must be a URL that begins with http:// or https://".to_owned());
        }
        config.log.otlp_endpoint = Some(endpoint.to_owned());
        Ok(())
    }),
];
