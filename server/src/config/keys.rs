//! All configuration keys: name, permitted values, and the option each one sets. Keys of a capability are listed in
//! its file in `capabilities`.

use std::time::Duration;

use super::Config;
use super::value::{Given, Wrong};
use crate::bus::BusUrlError;
use crate::capabilities::WIRINGS;
use crate::options::LogFormat;

/// A configuration key.
pub struct Key {
    /// Full name: section, dot, key. Keys without a section come first in the file.
    pub name: &'static str,
    pub(super) set: Set,
}

/// A list of tables, each of which has keys: `[[section.name]]`. Only a file can contain it.
pub struct Tables {
    /// Full name: section, dot, name.
    pub name: &'static str,
    /// Keys of each table. They set the table that was added last.
    pub keys: &'static [Key],
    /// Adds a table with defaults.
    pub begin: fn(&mut Config),
    /// Checks the table that was added last, when all its keys are set.
    pub check: fn(&Config) -> Result<(), Wrong>,
}

type Set = fn(&mut Config, &Given<'_>) -> Result<(), Wrong>;

impl Key {
    /// Returns the environment variable that sets this key; `None` for lists.
    pub fn variable(&self) -> Option<String> {
        (![PROJECTS, API_KEYS].contains(&self.name))
            .then(|| format!("TIDINGS_{}", self.name.replace('.', "_").to_uppercase()))
    }
}

const PROJECTS: &str = "auth.projects";
const API_KEYS: &str = "auth.api_keys";
pub(crate) const MIB: usize = 1024 * 1024;
pub(crate) const HOUR_MS: u64 = 60 * 60 * 1000;

/// Returns all keys, in the order of the default file.
pub fn all() -> impl Iterator<Item = &'static Key> {
    let of_capabilities = WIRINGS.iter().flat_map(|wiring| wiring.keys);
    BEFORE.iter().chain(of_capabilities).chain(AFTER)
}

/// Returns all lists of tables.
pub fn tables() -> impl Iterator<Item = &'static Tables> {
    WIRINGS.iter().flat_map(|wiring| wiring.tables)
}

/// Creates a key with the function that applies its value.
pub(crate) const fn key(name: &'static str, set: Set) -> Key {
    Key { name, set }
}

/// Keys that precede all sections.
const BEFORE: &[Key] = &[
    key("listen", |config, given| given.address().map(|address| config.listen = address)),
    key("data", |config, given| given.path().map(|path| config.data = path)),
    key("dev", |config, given| given.truth().map(|dev| config.dev = dev)),
    key("metrics_listen", |config, given| {
        given.address().map(|address| config.observe.metrics_listen = Some(address))
    }),
];

/// Keys of the sections that follow those of the capabilities.
const AFTER: &[Key] = &[
    key("bus.url", |config, given| {
        let url = given.text()?.parse().map_err(|error: BusUrlError| error.to_string())?;
        config.bus = Some(url);
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
    key("limits.body_bytes_in_flight", |config, given| {
        given.count(MIB..=1024 * 1024 * MIB).map(|bytes| config.limits.body_bytes_in_flight = bytes)
    }),
    key("store.commit_window_us", |config, given| {
        let window = given.number(0..=1_000_000)?;
        config.commit_window = Duration::from_micros(window);
        Ok(())
    }),
    // `always` is the only value: a commit is acknowledged only after it is on disk.
    key("store.sync", |_, given| given.choice(&[("always", ())])),
    key(PROJECTS, |config, given| given.projects().map(|projects| config.given.projects = projects)),
    key(API_KEYS, |config, given| given.api_keys().map(|keys| config.given.api_keys = keys)),
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
