//! Connections: so many at most ([`Pool`]), each of which must say what it wants in time, and all of which end when the
//! server does.
//!
//! A connection is accepted, opened (TLS if that is set, and which HTTP it is) and served ([`http`](crate::http)).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use socket2::SockRef;
use tidings_api::live::Socket;
use tidings_api::{ApiError, LiveContext, Scheme};
use tidings_engine::metrics::{Counter, Gauge, Held, Name};
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

/// How long to wait when the system has no room for another connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// What an operator may set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionOptions {
    /// Connections at a time.
    pub connections: usize,
    /// Bytes of a request's head.
    pub header_bytes: usize,
    /// How long the first request's head may take.
    pub head_timeout: Duration,
    /// How long a connection may stay without a request.
    pub idle_timeout: Duration,
    /// How long a client may take nothing of an answer.
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

/// What connections of one listener share.
pub struct Connections {
    /// How many, and how patient.
    pub options: ConnectionOptions,
    /// What they are served.
    pub http: Http,
    /// Set if they speak TLS.
    pub tls: Option<Arc<Tls>>,
    /// Where answers that stay live.
    pub live: LiveContext,
    /// Where they are counted.
    pub counts: Counts,
}

/// Where connections are counted.
#[derive(Clone)]
pub struct Counts {
    open: Gauge,
    accepted: Counter,
    evicted: Counter,
    tls_failures: Counter,
    limit_hits: LimitHits,
}

impl Counts {
    /// Counted in the metrics.
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

    /// One more is open.
    pub fn hold_open(&self) -> Held {
        self.open.hold()
    }

    /// Counts those that were closed for others.
    pub fn evicted(&self) -> &Counter {
        &self.evicted
    }

    /// Counts how often limits were hit.
    pub fn limit_hits(&self) -> &LimitHits {
        &self.limit_hits
    }
}

/// What is answered when all connections are in use.
pub fn no_room() -> Response<Body> {
    let message = "all connections are in use; come again";
    let status = StatusCode::SERVICE_UNAVAILABLE;
    ApiError::new(status, "too_many_connections", message).with(header::RETRY_AFTER, 1).into_response()
}

/// Serves until `stopped`, then waits for the answers that are on their way. Dropping it cuts them off.
pub async fn serve(listener: TcpListener, shared: Arc<Connections>, stopped: impl Future<Output = ()>) {
    let pool = Pool::new(shared.options.connections, shared.counts.clone());
    let (stop, stopping) = watch::channel(false);
    // Ends them when it is dropped.
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
                    // Perhaps there are no descriptors left.
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
    // Sockets that were handed over count until they end.
    pool.is_empty().await;
}

/// The next connection, once there is room for it. May be given up and called again; that is the same wait.
async fn accept(
    listener: &TcpListener,
    pool: &Arc<Pool>,
    counts: &Counts,
) -> io::Result<(TcpStream, Counted)> {
    let permit: OwnedSemaphorePermit = pool.socket().await;
    let (socket, _) = listener.accept().await?;
    counts.accepted.count();
    // Small answers must not wait for the acknowledgement of the ones before.
    socket.set_nodelay(true)?;
    // What a client does not take stays with us, where it is shared, and not in the kernel, where it is copied for each.
    SockRef::from(&socket).set_tcp_notsent_lowat(limits::SOCKET_UNSENT_BYTES)?;
    Ok((socket, pool.slot(permit)))
}

impl Connections {
    /// One connection, from its first byte to its end.
    async fn connection(&self, socket: TcpStream, counted: Counted, stopping: watch::Receiver<bool>) {
        let head_due = Instant::now() + self.options.head_timeout;
        match &self.tls {
            None => {
                let socket = match self.open(early::look(socket), head_due, &counted, &stopping).await {
                    Some(First::Other(socket)) => socket,
                    Some(First::Staying(socket, request)) => {
                        return Box::pin(self.stay(socket, *request, counted)).await;
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

    /// A connection whose first answer stays.
    async fn stay(&self, socket: TcpStream, request: Request<Body>, counted: Counted) {
        let Ok(in_progress) = counted.slot().begin(false) else {
            let refusing = early::refuse(socket, no_room());
            let _ = timeout_at(Instant::now() + limits::HEAD_TIMEOUT, refusing).await;
            return;
        };
        match early::answer(socket, request, self.http.fast_path()).await {
            Ok(Some((socket, feed))) => {
                let LiveContext { clock, live_connections } = self.live.clone();
                // A task of its own, which is small: this one has room for all that hyper needs. The server waits for it
                // by what counts the connection.
                tokio::spawn(async move {
                    Socket::serve(socket, *feed, clock, &live_connections).await;
                    drop((in_progress, counted));
                });
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "a connection ended badly"),
        }
    }

    /// What comes before HTTP, if it comes in time and before the server stops.
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
            // Nothing was asked yet, so nothing is lost.
            _ = stopping.wait_for(|&stopping| stopping) => return None,
            () = counted.slot().is_told_to_leave() => return None,
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
