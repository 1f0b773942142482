//! Every key: its name, what it may be, what it sets.

use std::time::Duration;

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
