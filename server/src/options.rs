//! What an operator may set of the server's own parts. Those of a capability or a store are theirs.

use std::net::SocketAddr;
use std::path::PathBuf;

use tidings_model::limits;

/// How much a client may ask of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitOptions {
    /// Requests of one project in a second; 0 lets all pass.
    pub requests_per_second: u32,
    /// Connections at a time.
    pub connections: usize,
    /// Bytes of a request's head.
    pub header_bytes: usize,
}

impl Default for LimitOptions {
    fn default() -> Self {
        Self {
            requests_per_second: limits::REQUESTS_PER_SECOND,
            connections: limits::CONNECTIONS,
            header_bytes: limits::HEADER_BYTES,
        }
    }
}

/// The files of TLS, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// The certificate and those that vouch for it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// How the server lets itself be watched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObserveOptions {
    /// Where metrics are open to whoever reaches it.
    pub metrics_listen: Option<SocketAddr>,
}

/// What the process tells of itself. The binary's business: a server in another process leaves it to that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// How logs are written.
    pub format: LogFormat,
    /// Where traces go.
    pub otlp_endpoint: Option<String>,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text in a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// For people.
    Text,
    /// For programs, a line each.
    Json,
}
