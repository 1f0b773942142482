//! Why a request has no answer.

use std::time::Duration;

use crate::guard::Forbidden;

/// Why a request has no answer. The messages are short and safe to show to whoever chose the target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The target may not be reached.
    #[error("target not allowed: {0}")]
    Forbidden(#[from] Forbidden),
    /// The host name cannot be resolved.
    #[error("cannot resolve the host: {0}")]
    Resolve(String),
    /// No TCP connection could be made.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The TLS handshake failed, for example because of the certificate.
    #[error("TLS handshake failed: {0}")]
    Tls(String),
    /// The time is over.
    #[error("timeout after {} ms while {}", after.as_millis(), phase.name())]
    Timeout {
        /// What was under way.
        phase: Phase,
        /// How long it was allowed to take.
        after: Duration,
    },
    /// The connection was closed or reset before the response was complete.
    #[error("the endpoint closed the connection before its response was complete")]
    Closed,
    /// The response is not valid HTTP/1.
    #[error("the response is not valid HTTP: {0}")]
    Protocol(String),
    /// The response has more headers, interim responses or framing than is allowed. A large body is no error.
    #[error("the response is too large")]
    TooLarge,
    /// All sockets are in use. The endpoint is not to blame.
    #[error("too many connections {}", .0.name())]
    TooManySockets(Scope),
}

/// What was under way when a time limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Resolving the host, connecting, or the TLS handshake.
    Connecting,
    /// Sending the request, and waiting for the head of the response.
    Waiting,
    /// Reading the body of the response.
    Reading,
}

/// Where there are too many sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// To one destination.
    Destination,
    /// In all.
    All,
}

impl SendError {
    /// Name of the variant, for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Forbidden(_) => "forbidden",
            Self::Resolve(_) => "resolve",
            Self::Connect(_) => "connect",
            Self::Tls(_) => "tls",
            Self::Timeout { .. } => "timeout",
            Self::Closed => "closed",
            Self::Protocol(_) => "protocol",
            Self::TooLarge => "too_large",
            Self::TooManySockets(_) => "too_many_sockets",
        }
    }
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Waiting => "waiting for a response",
            Self::Reading => "reading the response",
        }
    }
}

impl Scope {
    fn name(self) -> &'static str {
        match self {
            Self::Destination => "to this destination",
            Self::All => "to all destinations",
        }
    }
}
