//! Accepts and serves the connections of one listener.
//!
//! [`Pool`] limits their number. Each connection is accepted, opened (TLS handshake if configured, HTTP version
//! detected) and then served by [`http`](crate::http). The first request must arrive within the head timeout. All
//! connections end when the server stops.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use socket2::SockRef;
use tidings_api::live::Socket;
use tidings_api::{ApiError, LiveContext, Scheme};
use tidings_engine::metrics::{Counter, Gauge, GaugeGuard, Name};
use tidings_engine::{LimitHits, Metrics};
use tidings_model::limits::{self, Limit};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::early::{self, First};
use crate::http::{Http, Opened, Version};
use crate::pool::{Counted, Pool};
use crate::preface;
use crate::tls::Tls;

/// Pause before the next accept after one failed, for example because no file descriptors are left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Connection limits and timeouts that an operator can configure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionOptions {
    /// Maximum number of open connections.
    pub connections: usize,
    /// Maximum size of a request head, in bytes.
    pub header_bytes: usize,
    /// Time limit for receiving the head of the first request, counted from accept.
    pub head_timeout: Duration,
    /// Time after which a connection without a request is closed.
    pub idle_timeout: Duration,
    /// Time after which a connection is closed if the client reads nothing of a pending response.
    pub write_timeout: Duration,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            connections: limits::CONNECTIONS,
            header_bytes: limits::HEADER_BYTES,
            head_timeout: limits::HEAD_TIMEOUT,
            idle_timeout: limits::IDLE_TIMEOUT,
            write_timeout: limits::WRITE_TIMEOUT,
        }
    }
}

/// State shared by all connections of one listener.
pub struct Connections {
    /// Limits and timeouts.
    pub options: ConnectionOptions,
    /// Serves HTTP once a connection is open.
    pub http: Http,
    /// TLS configuration; `None` serves plain HTTP.
    pub tls: Option<Arc<Tls>>,
    /// Clock and registry for live responses.
    pub live: LiveContext,
    /// Connection metrics.
    pub counts: Counts,
}

/// Connection metrics.
#[derive(Clone)]
pub struct Counts {
    open: Gauge,
    accepted: Counter,
    evicted: Counter,
    tls_failures: Counter,
    limit_hits: LimitHits,
}

impl Counts {
    /// Registers the connection metrics.
    pub fn new(metrics: &Metrics) -> Self {
        let counter = |name, help| metrics.counter(Name { name, help }, &[]);
        let open = Name { name: "tidings_connections", help: "Open client connections." };
        Self {
            open: metrics.gauge(open, &[]),
            accepted: counter("tidings_connections_total", "Client connections accepted."),
            evicted: counter(
                "tidings_connections_evicted_total",
                "Idle connections closed to make room for others.",
            ),
            tls_failures: counter("tidings_tls_failures_total", "Connections whose TLS handshake failed."),
            limit_hits: LimitHits::new(metrics),
        }
    }

    /// Counts one open connection until the returned guard is dropped.
    pub fn hold_open(&self) -> GaugeGuard {
        self.open.hold()
    }

    /// Counter of idle connections closed to make room for others.
    pub fn evicted(&self) -> &Counter {
        &self.evicted
    }

    /// Counters of limit hits, by limit.
    pub fn limit_hits(&self) -> &LimitHits {
        &self.limit_hits
    }
}

/// Response (503 with `Retry-After`) to a request that gets no slot in the pool.
pub fn no_room() -> Response<Body> {
    let message = "all connections are in use; come again";
    let status = StatusCode::SERVICE_UNAVAILABLE;
    ApiError::new(status, "too_many_connections", message).with(header::RETRY_AFTER, 1).into_response()
}

/// Accepts and serves connections until `stopped` resolves, then waits for responses in progress. Dropping the future
/// aborts them.
pub async fn serve(listener: TcpListener, shared: Arc<Connections>, stopped: impl Future<Output = ()>) {
    let pool = Pool::new(shared.options.connections, shared.counts.clone());
    let (stop, stopping) = watch::channel(false);
    // Dropping the set aborts its tasks.
    let mut connections = JoinSet::new();
    tokio::pin!(stopped);
    loop {
        let (socket, counted) = tokio::select! {
            () = &mut stopped => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &pool, &shared.counts) => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection; trying again");
                    // The process may be out of file descriptors; closing an idle connection frees one.
                    pool.make_room();
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            },
        };
        let (shared, stopping) = (shared.clone(), stopping.clone());
        connections.spawn(async move { shared.connection(socket, counted, stopping).await });
    }
    drop(listener);
    stop.send_replace(true);
    while connections.join_next().await.is_some() {}
    // Connections that were handed to a task of their own (`serve_live`) are not in the set, but hold their socket permit
    // until they end.
    pool.is_empty().await;
}

/// Accepts the next connection once the pool has room for it. Cancel-safe.
async fn accept(
    listener: &TcpListener,
    pool: &Arc<Pool>,
    counts: &Counts,
) -> io::Result<(TcpStream, Counted)> {
    let permit: OwnedSemaphorePermit = pool.socket().await;
    let (socket, _) = listener.accept().await?;
    counts.accepted.count();
    // Disable Nagle's algorithm: a small response must not wait for the acknowledgement of the previous one.
    socket.set_nodelay(true)?;
    // Limit unsent data in the kernel. Pending data stays in this process, where connections share it, instead of
    // being copied into each socket's send buffer.
    SockRef::from(&socket).set_tcp_notsent_lowat(limits::SOCKET_UNSENT_BYTES)?;
    Ok((socket, pool.slot(permit)))
}

impl Connections {
    /// Serves one connection from accept to close.
    async fn connection(&self, socket: TcpStream, counted: Counted, stopping: watch::Receiver<bool>) {
        let head_due = Instant::now() + self.options.head_timeout;
        match &self.tls {
            None => {
                let socket = match self.open(early::look(socket), head_due, &counted, &stopping).await {
                    Some(First::Other(socket)) => socket,
                    Some(First::Staying(socket, request)) => {
                        return Box::pin(self.serve_live(socket, *request, counted)).await;
                    }
                    Some(First::Nothing) | None => return,
                };
                let opening = preface::detect(socket);
                if let Some((io, version)) = self.open(opening, head_due, &counted, &stopping).await {
                    let opened = Opened { io, version, scheme: Scheme::Http, counted };
                    Box::pin(self.http.serve(opened, head_due, stopping)).await;
                }
            }
            Some(tls) => {
                let opening =
                    async { tls.accept(socket).await.inspect_err(|_| self.counts.tls_failures.count()) };
                if let Some(io) = self.open(Box::pin(opening), head_due, &counted, &stopping).await {
                    let version = if io.get_ref().1.alpn_protocol() == Some(b"h2") {
                        Version::Two
                    } else {
                        Version::One
                    };
                    let opened = Opened { io, version, scheme: Scheme::Https, counted };
                    Box::pin(self.http.serve(opened, head_due, stopping)).await;
                }
            }
        }
    }

    /// Serves a connection whose first request asks for a live response.
    async fn serve_live(&self, socket: TcpStream, request: Request<Body>, counted: Counted) {
        let Ok(in_progress) = counted.slot().begin(false) else {
            let refusing = early::refuse(socket, no_room());
            let _ = timeout_at(Instant::now() + limits::HEAD_TIMEOUT, refusing).await;
            return;
        };
        match early::answer(socket, request, self.http.fast_path()).await {
            Ok(Some((socket, feed))) => {
                let LiveContext { clock, live_connections } = self.live.clone();
                // A separate task, because this one is sized for hyper's largest future and the new one is small. On
                // shutdown the server waits for it through the socket permit in `counted`.
                let serving = Socket::serve(socket, *feed, clock, &live_connections);
                tokio::spawn(async move {
                    serving.await;
                    drop((in_progress, counted));
                });
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "a connection ended badly"),
        }
    }

    /// Runs a step that precedes HTTP. Returns `None` if it fails, exceeds the head deadline, or the connection has
    /// to close first.
    async fn open<T>(
        &self,
        opening: impl Future<Output = io::Result<T>>,
        head_due: Instant,
        counted: &Counted,
        stopping: &watch::Receiver<bool>,
    ) -> Option<T> {
        let mut stopping = stopping.clone();
        let opened = tokio::select! {
            opened = timeout_at(head_due, opening) => opened,
            // No request has been received yet, so nothing is lost by closing.
            _ = stopping.wait_for(|&stopping| stopping) => return None,
            () = counted.slot().asked_to_close() => return None,
        };
        match opened {
            Ok(Ok(opened)) => Some(opened),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a connection ended before it was open");
                None
            }
            Err(_) => {
                self.counts.limit_hits.count(Limit::HeadTime);
                None
            }
        }
    }
}
