//! The sender of requests.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{self, HeaderMap};
use hyper::{Method, Request, StatusCode};
use tidings_engine::{Clock, Metrics};
use tidings_model::limits;
use tokio_rustls::rustls::ClientConfig;

use crate::connection::{Connection, Response};
use crate::deadline::Deadline;
use crate::destination::{Destination, Host};
use crate::dial::{Trust, dial};
use crate::error::{Phase, SendError};
use crate::guard::Guard;
use crate::metrics::EgressMetrics;
use crate::names::Names;
use crate::pool::Pool;
use crate::resolver::Resolver;
use crate::retry_after::retry_after;
use crate::target::Target;

/// Options of an [`Egress`].
#[derive(Clone, Debug)]
pub struct EgressOptions {
    /// Open connections in all.
    pub sockets: usize,
    /// Open connections to one destination.
    pub sockets_per_destination: usize,
    /// Connections in all that are kept open without a request.
    pub idle: usize,
    /// Connections to one destination that are kept open without a request.
    pub idle_per_destination: usize,
    /// Time that a connection is kept open without a request.
    pub idle_timeout: Duration,
    /// Time to resolve the host, and as much again to connect, with the TLS handshake.
    pub connect_timeout: Duration,
    /// Time for which it is remembered what a host resolves to.
    pub resolved_ttl: Duration,
    /// TLS configuration, for certificates of a private authority. `None` trusts the certificates that the system trusts.
    pub tls: Option<Arc<ClientConfig>>,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Outgoing<'a> {
    /// Method; POST for a webhook.
    pub method: Method,
    /// Where the request goes.
    pub target: &'a Target,
    /// Headers. `Host` and `Content-Length` are set by [`Egress::send`].
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
    /// Time for everything: connecting, sending, and reading the response to its end.
    pub timeout: Duration,
    /// Bytes of the response's body to keep. The rest is read and discarded.
    pub keep: usize,
}

/// A response. Any status is one, also 3xx: redirects are not followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status.
    pub status: StatusCode,
    /// Time after which to send again, according to `Retry-After`. Not limited.
    pub retry_after: Option<Duration>,
    /// Beginning of the body, as many bytes as were asked for.
    pub body: Bytes,
}

/// Sends requests to endpoints. Clones share the same connections.
#[derive(Clone)]
pub struct Egress(Arc<Inner>);

struct Inner {
    connect_timeout: Duration,
    guard: Guard,
    names: Arc<Names>,
    trust: Trust,
    pool: Arc<Pool>,
    clock: Arc<dyn Clock>,
    metrics: EgressMetrics,
}

/// Addresses of a target.
enum Addresses {
    /// The host is an address.
    Literal([IpAddr; 1]),
    Resolved(Arc<[IpAddr]>),
}

impl Default for EgressOptions {
    fn default() -> Self {
        Self {
            sockets: limits::EGRESS_SOCKETS,
            sockets_per_destination: limits::EGRESS_SOCKETS_PER_DESTINATION,
            idle: limits::EGRESS_IDLE,
            idle_per_destination: limits::EGRESS_IDLE_PER_DESTINATION,
            idle_timeout: limits::EGRESS_IDLE_TIMEOUT,
            connect_timeout: limits::EGRESS_CONNECT_TIMEOUT,
            resolved_ttl: limits::RESOLVED_TTL,
            tls: None,
        }
    }
}

impl Egress {
    /// Creates a sender that reaches what the guard allows.
    pub fn new(
        options: EgressOptions,
        guard: Guard,
        resolver: Arc<dyn Resolver>,
        clock: Arc<dyn Clock>,
        metrics: &Metrics,
    ) -> Self {
        let metrics = EgressMetrics::new(metrics);
        Self(Arc::new(Inner {
            connect_timeout: options.connect_timeout,
            names: Arc::new(Names::new(resolver, guard.clone(), clock.clone(), options.resolved_ttl)),
            trust: Trust::new(options.tls.clone()),
            pool: Arc::new(Pool::new(options, metrics.sockets.clone())),
            guard,
            clock,
            metrics,
        }))
    }

    /// The guard that decides what may be reached.
    pub fn guard(&self) -> &Guard {
        &self.0.guard
    }

    /// Sends a request and reads its response. Dropping the future closes the connection.
    pub async fn send(&self, outgoing: Outgoing<'_>) -> Result<Answer, SendError> {
        let sent = self.0.send(outgoing).await;
        self.0.metrics.ended(sent.as_ref().err());
        sent
    }

    /// Closes connections that have been idle for too long. Sending does so, too; call it every few seconds so that it also
    /// happens when nothing is sent.
    pub fn sweep(&self) {
        self.0.pool.expire(self.0.clock.elapsed());
    }
}

impl fmt::Debug for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Egress").finish_non_exhaustive()
    }
}

impl Inner {
    async fn send(&self, outgoing: Outgoing<'_>) -> Result<Answer, SendError> {
        let Outgoing { method, target, mut headers, body, timeout, keep } = outgoing;
        let deadline = Deadline::new(&*self.clock, timeout);
        let mut timer = deadline.timer();
        headers.insert(header::HOST, target.host_header());
        // The HTTP library frames the body, and would believe a header that says otherwise.
        headers.remove(header::CONTENT_LENGTH);
        headers.remove(header::TRANSFER_ENCODING);
        let request = |headers| {
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = method.clone();
            *request.uri_mut() = target.uri();
            *request.headers_mut() = headers;
            request
        };
        let destination = target.destination();
        let addresses = self.addresses(target, deadline).await?;
        if let Some(mut connection) = self.idle(destination, addresses.as_slice()) {
            self.metrics.reuses.count();
            match connection.exchange(request(headers.clone()), keep, &mut timer).await {
                // The endpoint closed the connection while it was idle, which it may. So it is asked once more.
                Err(SendError::Closed) if !connection.has_received() => {}
                response => return Ok(self.answer(connection, response?)),
            }
        }
        let mut connection = self.connect(destination, addresses.as_slice(), deadline).await?;
        let response = connection.exchange(request(headers), keep, &mut timer).await?;
        Ok(self.answer(connection, response))
    }

    /// Addresses of a target, all of which may be reached.
    async fn addresses(&self, target: &Target, deadline: Deadline<'_>) -> Result<Addresses, SendError> {
        self.guard.check_literal(target)?;
        match target.destination().host() {
            Host::Address(address) => Ok(Addresses::Literal([*address])),
            Host::Name(name) => {
                if let Some(found) = self.names.remembered(name) {
                    return found.map(Addresses::Resolved);
                }
                let resolving = deadline.part(self.connect_timeout);
                let found = resolving.limit(1, self.names.addresses(name)).await;
                found.unwrap_or_else(|| Err(resolving.reached(Phase::Connecting))).map(Addresses::Resolved)
            }
        }
    }

    /// A connection that is open.
    fn idle(&self, destination: &Destination, addresses: &[IpAddr]) -> Option<Connection> {
        while let Some(mut connection) = self.pool.take(destination, addresses) {
            if connection.is_usable() {
                return Some(connection);
            }
        }
        None
    }

    async fn connect(
        &self,
        destination: &Destination,
        addresses: &[IpAddr],
        deadline: Deadline<'_>,
    ) -> Result<Connection, SendError> {
        let slot = self.pool.open(destination)?;
        self.metrics.connects.count();
        dial(&self.trust, destination, addresses, slot, deadline.part(self.connect_timeout)).await
    }

    fn answer(&self, mut connection: Connection, response: Response) -> Answer {
        if connection.is_usable() {
            self.pool.park(connection, self.clock.elapsed());
        }
        let Response { status, headers, body } = response;
        Answer { status, retry_after: retry_after(&headers, || self.clock.now()), body }
    }
}

impl Addresses {
    fn as_slice(&self) -> &[IpAddr] {
        match self {
            Self::Literal(address) => address,
            Self::Resolved(addresses) => addresses,
        }
    }
}
