//! Configuration of the server: file, environment and flags.
//!
//! Flags override the environment, the environment overrides the file, and the file overrides the defaults. Each key
//! is defined once, in [`keys`]: its name (from which the name of its variable is derived), its permitted values and
//! the option it sets. [`DEFAULT_FILE`] documents all keys and is the reference. Read [`Config`] first, then `keys`.
//! `file` and `environment` read the two sources; `value` parses values from either.
//!
//! Invariant: no error message quotes a value of `[auth]`, nor that of `bus.url`, which may have a password.

mod environment;
mod file;
pub mod keys;
pub(crate) mod value;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidings_auth::Given;
use tidings_embedded::{Failure, Gather};
use tidings_engine::WallClock;
use tidings_model::limits;

use tidings_api::Spans;

use crate::bus::BusUrl;
use crate::capabilities;
use crate::options::{LimitOptions, LogOptions, ObserveOptions, TlsOptions};
use crate::serve::{Access, ServerOptions};
use crate::store::StoreChoice;
use crate::tls::{Tls, TlsError};

/// The complete default configuration file, with an explanation of every key.
pub const DEFAULT_FILE: &str = include_str!("../default.toml");

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Data directory.
    pub data: PathBuf,
    /// Options of the capabilities.
    pub capabilities: capabilities::Options,
    /// The broker that connects this node with others. `None` for a node alone.
    pub bus: Option<BusUrl>,
    /// Limits on requests and connections.
    pub limits: LimitOptions,
    /// Time the store waits for further commits before it writes. Zero writes at once.
    pub commit_window: Duration,
    /// Dev mode: requests need no credentials.
    pub dev: bool,
    /// Projects and keys in addition to the stored ones.
    pub given: Given,
    /// Certificate file. Requires `tls_key`.
    pub tls_cert: Option<PathBuf>,
    /// File of the certificate's private key. Requires `tls_cert`.
    pub tls_key: Option<PathBuf>,
    /// Options of metrics and tracing.
    pub observe: ObserveOptions,
    /// Options of logging.
    pub log: LogOptions,
    /// Messages to log about variables that set nothing. They do not prevent the start.
    pub warnings: Vec<String>,
    /// Where in the file each key was set, for error messages about conflicting keys.
    locations: KeyLocations,
}

/// File and line of each key that was set. Its contents are left out of the `Debug` output of [`Config`].
#[derive(Clone, Default)]
struct KeyLocations(HashMap<&'static str, (PathBuf, usize)>);

impl fmt::Debug for KeyLocations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyLocations(..)")
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], 4437).into(),
            data: PathBuf::from("./tidings-data"),
            capabilities: capabilities::Options::default(),
            bus: None,
            limits: LimitOptions::default(),
            commit_window: Duration::ZERO,
            dev: false,
            given: Given::default(),
            tls_cert: None,
            tls_key: None,
            observe: ObserveOptions::default(),
            log: LogOptions::default(),
            warnings: Vec::new(),
            locations: KeyLocations::default(),
        }
    }
}

impl Config {
    /// Reads the defaults, then the file, then the environment. The error lists all problems at once.
    pub fn load(
        file: Option<&Path>,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        let mut problems = Vec::new();
        if let Some(path) = file {
            match std::fs::read_to_string(path) {
                Ok(text) => file::apply(&text, path, &mut config, &mut problems),
                Err(error) => problems.push(Problem {
                    location: Location::WholeFile(path.to_owned()),
                    what: format!("cannot be read: {error}"),
                }),
            }
        }
        environment::apply(variables, &mut config, &mut problems);
        if problems.is_empty() { Ok(config) } else { Err(ConfigError { problems }) }
    }

    /// Checks rules that involve several keys. Call it after the flags have been applied.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        let mut wrong = |key, what: String| problems.push(Problem { location: self.location(key), what });
        if self.dev && !self.listen.ip().is_loopback() {
            let (listen, port) = (self.listen, self.listen.port());
            let only = format!("listens only on this machine: use --listen 127.0.0.1:{port}, not {listen}");
            wrong("dev", format!("lets everybody in, so the server {only}"));
        }
        if let Some(listen) = self.observe.metrics_listen
            && self.dev
            && !listen.ip().is_loopback()
        {
            let only = format!("use 127.0.0.1:{}, not {listen}", listen.port());
            wrong("metrics_listen", format!("listens only on this machine in dev mode: {only}"));
        }
        let least =
            self.capabilities.streams.max_append_bytes.saturating_mul(limits::BODY_BYTES_PROJECT_PART);
        if self.limits.body_bytes_in_flight < least {
            let why = "a project has a quarter, and the largest append must fit into it";
            wrong(
                "limits.body_bytes_in_flight",
                format!("must be at least {least}, four times streams.max_append_bytes: {why}"),
            );
        }
        let topics = &self.capabilities.topics;
        if topics.heartbeat_timeout <= topics.heartbeat {
            let least = topics.heartbeat.as_millis();
            let what = format!("must be more than topics.heartbeat_ms, which is {least}");
            wrong("topics.heartbeat_timeout_ms", what);
        }
        if topics.rules.has_history() && self.bus.is_some() {
            let what = "cannot give topics a history beside bus.url: the nodes would number their messages apart, because \
                        there is no store yet that they share";
            wrong("topics.rules", what.to_owned());
        }
        let entities = &self.capabilities.entities;
        if let Some(project) = entities.twice() {
            let what = format!("names the project {project} for two databases; each hears one at most");
            wrong("entities.project", what);
        }
        match (&self.tls_cert, &self.tls_key) {
            (Some(_), None) => wrong("tls.cert", "needs tls.key, which is missing".to_owned()),
            (None, Some(_)) => wrong("tls.key", "needs tls.cert, which is missing".to_owned()),
            (Some(_), Some(_)) | (None, None) => {}
        }
        if self.observe.metrics_listen.is_some_and(|address| address == self.listen && address.port() != 0) {
            wrong("metrics_listen", "is where the server itself listens; use another port".to_owned());
        }
        if problems.is_empty() { Ok(()) } else { Err(ConfigError { problems }) }
    }

    /// Checks that the certificate and key files can be used.
    pub fn check_files(&self) -> Result<(), TlsError> {
        self.tls().map_or(Ok(()), |tls| Tls::load(tls).map(drop))
    }

    /// Returns where a key was set.
    fn location(&self, key: &'static str) -> Location {
        match self.locations.0.get(key) {
            Some((path, line)) => Location::File { path: path.clone(), line: *line, key: key.to_owned() },
            None => Location::Key(key),
        }
    }

    /// Converts the configuration into server options, with the embedded store in the data directory and the system
    /// clock. `on_failure` is called when the store has stopped because of a disk failure.
    pub fn into_options(self, on_failure: Failure) -> ServerOptions {
        let window = self.commit_window;
        let pause: Gather = Arc::new(move || std::thread::sleep(window));
        let gather = (!window.is_zero()).then_some(pause);
        let options = tidings_embedded::Options { gather, on_failure, ..Default::default() };
        let store = StoreChoice::Embedded { data: self.data.clone(), options };
        ServerOptions {
            seed: fastrand::u64(..),
            tls: self.tls(),
            capabilities: self.capabilities,
            bus: self.bus,
            limits: self.limits,
            access: Access { dev: self.dev, given: self.given, authorize: None },
            observe: ObserveOptions {
                spans: if self.log.otlp_endpoint.is_some() { Spans::EachRequest } else { Spans::No },
                ..self.observe
            },
            ..ServerOptions::new(store, self.listen, Arc::new(WallClock))
        }
    }

    /// Returns the TLS files, if TLS is configured.
    pub fn tls(&self) -> Option<TlsOptions> {
        Some(TlsOptions { certificate: self.tls_cert.clone()?, key: self.tls_key.clone()? })
    }
}

/// All problems of a configuration, printed one per line.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError {
    problems: Vec<Problem>,
}

/// One problem of a configuration.
#[derive(Debug, PartialEq, Eq)]
struct Problem {
    location: Location,
    what: String,
}

/// Where a value was set.
#[derive(Debug, PartialEq, Eq)]
enum Location {
    File {
        path: PathBuf,
        line: usize,
        key: String,
    },
    WholeFile(PathBuf),
    Variable(String),
    /// Not set in the file, but by a variable, a flag or default.
    Key(&'static str),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, key } if key.is_empty() => write!(f, "{}:{line}:", path.display()),
            Self::File { path, line, key } => write!(f, "{}:{line}: {key}", path.display()),
            Self::WholeFile(path) => write!(f, "{}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Key(key) => f.write_str(key),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Problem { location, what }) in self.problems.iter().enumerate() {
            let line_end = if index == 0 { "" } else { "\n" };
            write!(f, "{line_end}{location} {what}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests;
