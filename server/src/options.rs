//! What an operator may set of the server's own parts. Those of a capability or a store are theirs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tidings_api::{MetricsAccess, Spans};
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
    /// Memory that the bodies of all requests in progress take; those of one project a quarter of it.
    pub body_bytes_in_flight: usize,
    /// How long the first request's head of a connection may take.
    pub head_timeout: Duration,
    /// How long a connection may stay without a request.
    pub idle_timeout: Duration,
    /// How long a client may take nothing of an answer.
    pub write_timeout: Duration,
}

impl Default for LimitOptions {
    fn default() -> Self {
        Self {
            requests_per_second: limits::REQUESTS_PER_SECOND,
            connections: limits::CONNECTIONS,
            header_bytes: limits::HEADER_BYTES,
            body_bytes_in_flight: limits::BODY_BYTES_IN_FLIGHT,
            head_timeout: limits::HEAD_TIMEOUT,
            idle_timeout: limits::IDLE_TIMEOUT,
            write_timeout: limits::WRITE_TIMEOUT,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObserveOptions {
    /// Where metrics are open to whoever reaches it.
    pub metrics_listen: Option<SocketAddr>,
    /// Who may read the metrics where clients are served.
    pub metrics_access: MetricsAccess,
    /// Whether each request has a span, for those who export traces.
    pub spans: Spans,
}

impl Default for ObserveOptions {
    fn default() -> Self {
        Self { metrics_listen: None, metrics_access: MetricsAccess::AdminKey, spans: Spans::No }
    }
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
