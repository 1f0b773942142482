//! Options of the server's own components. Capabilities and stores define their own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tidings_api::{MetricsAccess, Spans};
use tidings_model::limits;

/// Limits on requests and connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitOptions {
    /// Maximum requests per second of one project. 0 means no limit, which is the default.
    pub requests_per_second: u32,
    /// Maximum number of open connections. Default: 50,000.
    pub connections: usize,
    /// Maximum size of a request head, in bytes. Default: 16 KiB.
    pub header_bytes: usize,
    /// Memory for the bodies of all requests in progress, in bytes. One project may use a quarter of it. Default: 256
    /// MiB.
    pub body_bytes_in_flight: usize,
    /// Time limit for the head of the first request of a connection. Default: 10 s.
    pub head_timeout: Duration,
    /// Time after which a connection without a request is closed. Default: 75 s.
    pub idle_timeout: Duration,
    /// Time after which a connection is closed if its client reads nothing of a response. Default: 30 s.
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

/// Certificate and key files, in PEM format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// File with the certificate, followed by its intermediate certificates.
    pub certificate: PathBuf,
    /// File with the private key of the certificate.
    pub key: PathBuf,
}

/// Options of metrics and tracing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObserveOptions {
    /// Address of a separate listener that serves metrics without credentials. Default: none.
    pub metrics_listen: Option<SocketAddr>,
    /// Who may read the metrics on the main listener.
    pub metrics_access: MetricsAccess,
    /// Whether each request is recorded as a span, for the export of traces.
    pub spans: Spans,
}

impl Default for ObserveOptions {
    fn default() -> Self {
        Self { metrics_listen: None, metrics_access: MetricsAccess::AdminKey, spans: Spans::No }
    }
}

/// Logging and tracing options of the `tidings` binary. An application that embeds the server sets up its own
/// logging.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Format of the log.
    pub format: LogFormat,
    /// URL of the OpenTelemetry collector to export traces to. Default: none.
    pub otlp_endpoint: Option<String>,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text if stderr is a terminal, JSON otherwise.
    #[default]
    Auto,
    /// Text, for people.
    Text,
    /// One JSON object per line, for programs.
    Json,
}
