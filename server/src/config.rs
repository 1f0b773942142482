//! What an operator sets: in a file, in the environment, by flags.
//!
//! Flags win over the environment, the environment over the file, the file over the defaults. Each key is known once, in
//! [`keys`]: its name, which is also that of its variable, what it may be, and what it sets. [`DEFAULT_FILE`] explains
//! all of them and is the reference. Read [`Config`], then `keys`; `file` and `environment` are the two places values come
//! from, `value` what is common to both.
//!
//! Invariant: no message quotes a value of `[auth]`.

mod environment;
mod file;
pub mod keys;
mod value;

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

use crate::capabilities;
use crate::options::{LimitOptions, LogOptions, ObserveOptions, TlsOptions};
use crate::serve::{Access, ServerOptions};
use crate::store::StoreChoice;
use crate::tls::{Tls, TlsError};

/// The complete configuration with its defaults, explained.
pub const DEFAULT_FILE: &str = include_str!("../default.toml");

/// What an operator has set.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the server listens.
    pub listen: SocketAddr,
    /// The folder of the data.
    pub data: PathBuf,
    /// How the capabilities are set.
    pub capabilities: capabilities::Options,
    /// How much a client may ask.
    pub limits: LimitOptions,
    /// How long the store waits for more commits before it writes.
    pub commit_window: Duration,
    /// Whether everybody is let in.
    pub dev: bool,
    /// Keys beside those that are stored.
    pub given: Given,
    /// The file of the certificate; goes with `tls_key`.
    pub tls_cert: Option<PathBuf>,
    /// The file of the certificate's key.
    pub tls_key: Option<PathBuf>,
    /// How the server lets itself be watched.
    pub observe: ObserveOptions,
    /// How it logs.
    pub log: LogOptions,
    /// What was found and is no reason not to start: variables that set nothing. For the log.
    pub warnings: Vec<String>,
    /// Where the file has said what, for messages about what does not go together.
    said: Said,
}

/// The lines of a file's keys. Not a part of what is set, so it is not shown with it.
#[derive(Clone, Default)]
struct Said(HashMap<&'static str, (PathBuf, usize)>);

impl fmt::Debug for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Said(..)")
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], 4437).into(),
            data: PathBuf::from("./tidings-data"),
            capabilities: capabilities::Options::default(),
            limits: LimitOptions::default(),
            commit_window: Duration::ZERO,
            dev: false,
            given: Given::default(),
            tls_cert: None,
            tls_key: None,
            observe: ObserveOptions::default(),
            log: LogOptions::default(),
            warnings: Vec::new(),
            said: Said::default(),
        }
    }
}

impl Config {
    /// The defaults with what the file and the environment say. Everything that is wrong is told at once.
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

    /// What can only be seen when all is said, flags too.
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

    /// Whether the files that it names can be used.
    pub fn check_files(&self) -> Result<(), TlsError> {
        self.tls().map_or(Ok(()), |tls| Tls::load(tls).map(drop))
    }

    /// Where a key was said.
    fn location(&self, key: &'static str) -> Location {
        match self.said.0.get(key) {
            Some((path, line)) => Location::File { path: path.clone(), line: *line, key: key.to_owned() },
            None => Location::Key(key),
        }
    }

    /// What the server is made of: the store in the data folder, the wall clock, and all that is set here. `on_failure`
    /// is called when the store has stopped because of its disk.
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
            limits: self.limits,
            access: Access { dev: self.dev, given: self.given, authorize: None },
            observe: ObserveOptions {
                spans: if self.log.otlp_endpoint.is_some() { Spans::EachRequest } else { Spans::No },
                ..self.observe
            },
            ..ServerOptions::new(store, self.listen, Arc::new(WallClock))
        }
    }

    /// The files of TLS, if it is wanted.
    pub fn tls(&self) -> Option<TlsOptions> {
        Some(TlsOptions { certificate: self.tls_cert.clone()?, key: self.tls_key.clone()? })
    }
}

/// Everything that is wrong with a configuration, a line each.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError {
    problems: Vec<Problem>,
}

/// One thing that is wrong.
#[derive(Debug, PartialEq, Eq)]
struct Problem {
    location: Location,
    what: String,
}

/// Where it was said.
#[derive(Debug, PartialEq, Eq)]
enum Location {
    File {
        path: PathBuf,
        line: usize,
        key: String,
    },
    WholeFile(PathBuf),
    Variable(String),
    /// Not in a file.
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
