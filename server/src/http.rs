//! Serves HTTP/1.1 and HTTP/2 on one connection and enforces its limits: the deadline of the first request head, the
//! size of every head, the idle timeout and the write timeout.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::response::IntoResponse;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidings_api::live::ConnectionHandle;
use tidings_api::{Answering, ApiError, FastPath, Scheme, transfer_encoding_unknown};
use tidings_engine::LimitHits;
use tidings_model::limits::{self, Limit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::connections::{ConnectionOptions, no_room};
use crate::early;
use crate::pool::{Counted, InProgress, Slot};
use crate::progress::{Progress, Unparsed};

/// HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1 or 1.0.
    One,
    /// HTTP/2.
    Two,
}

/// A connection whose HTTP version is known.
pub struct Opened<I> {
    /// The byte stream, after TLS if there is any.
    pub io: I,
    /// HTTP version the client speaks.
    pub version: Version,
    /// Whether the connection uses TLS (`https`) or not (`http`).
    pub scheme: Scheme,
    /// Holds the connection's slot in the pool.
    pub counted: Counted,
}

/// Serves the routes on the connections of one listener.
pub struct Http {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    fast_path: FastPath,
    always: fn(&str) -> bool,
    idle_timeout: Duration,
    write_timeout: Duration,
    limit_hits: LimitHits,
}

/// Returns whether a path is served even when all connections are in use.
pub fn is_health(path: &str) -> bool {
    ["/health", "/ready"].contains(&path)
}

impl Http {
    /// Creates a server for the routes of `fast_path`.
    ///
    /// Request heads up to twice the configured limit reach the routes, which answer with a full error message.
    /// Larger heads are refused here with a bare status.
    pub fn new(fast_path: FastPath, options: &ConnectionOptions, limit_hits: LimitHits) -> Self {
        let head_bytes = options.header_bytes.max(limits::URI_BYTES).saturating_mul(2);
        let mut http1 = http1::Builder::new();
        // This timeout runs while a connection waits for its next request head. The first head has a deadline of its
        // own.
        http1.timer(TokioTimer::new()).header_read_timeout(options.idle_timeout).max_header_size(head_bytes);
        // A client that shuts down its sending side after a request still gets its response. During a live
        // response, `Progress` detects that the client has closed.
        http1.half_close(true);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .keep_alive_interval(limits::HTTP2_PING_INTERVAL)
            .keep_alive_timeout(limits::HTTP2_PING_TIMEOUT)
            .max_concurrent_streams(limits::HTTP2_STREAMS)
            .initial_stream_window_size(limits::HTTP2_STREAM_WINDOW)
            .initial_connection_window_size(limits::HTTP2_CONNECTION_WINDOW)
            .max_pending_accept_reset_streams(limits::HTTP2_PENDING_RESETS)
            .max_send_buf_size(limits::HTTP2_SEND_BYTES)
            .max_header_list_size(u32::try_from(head_bytes).unwrap_or(u32::MAX));
        let ConnectionOptions { idle_timeout, write_timeout, .. } = *options;
        Self { http1, http2, fast_path, always: is_health, idle_timeout, write_timeout, limit_hits }
    }

    /// Serves every path even when all connections are in use.
    #[must_use]
    pub fn always(self) -> Self {
        Self { always: |_| true, ..self }
    }

    /// Returns the routes being served.
    pub fn fast_path(&self) -> &FastPath {
        &self.fast_path
    }

    /// Serves a connection until it ends. The head of the first request must arrive by `head_due`. When the server
    /// stops, responses in progress are finished first.
    pub async fn serve<I>(&self, opened: Opened<I>, head_due: Instant, stopping: watch::Receiver<bool>)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let slot = opened.counted.slot().clone();
        let activity = Arc::new(Activity::new(slot.clone()));
        let connection_handle = match (ConnectionHandle::new(Arc::new(opened.counted)), opened.version) {
            (connection_handle, Version::One) => connection_handle,
            (connection_handle, Version::Two) => connection_handle.shared(),
        };
        let routes = Routes {
            fast_path: self.fast_path.clone(),
            scheme: opened.scheme,
            always: self.always,
            activity: activity.clone(),
            connection_handle: connection_handle.clone(),
        };
        let io = Progress::new(opened.io, self.write_timeout, self.limit_hits.clone());
        let lifetime = ConnectionLifetime {
            http: self,
            activity: &activity,
            connection_handle: &connection_handle,
            head_due,
            stopping,
        };
        match opened.version {
            Version::One => {
                let unparsed = Unparsed::default();
                let io = TokioIo::new(io.reporting_to(connection_handle.clone(), unparsed.clone()));
                // Boxed, because a task reserves memory for the largest of its possible states.
                let mut connection = Box::pin(self.http1.serve_connection(io, routes).with_upgrades());
                let never = std::future::pending();
                let ended = lifetime.live(connection.as_mut(), |it| it.graceful_shutdown(), never).await;
                if let Some((status, io)) = unparsed.take() {
                    Box::pin(refuse(io, status, ended.err(), &slot)).await;
                }
            }
            Version::Two => {
                let mut connection = Box::pin(self.http2.serve_connection(TokioIo::new(io), routes));
                let idle = activity.idle(self.idle_timeout);
                let _ = lifetime.live(connection.as_mut(), |it| it.graceful_shutdown(), idle).await;
            }
        }
        // Whatever still holds the connection at this point is a WebSocket.
        slot.upgrade();
    }
}

/// Tells the client why hyper could not parse its request, then closes the connection.
async fn refuse(
    io: impl AsyncRead + AsyncWrite + Unpin,
    status: u16,
    error: Option<hyper::Error>,
    slot: &Slot,
) {
    let error = error.map(|error| error.to_string()).unwrap_or_default();
    let told = match status {
        // hyper does not expose which header was invalid, except in the error text.
        400 if error.contains("invalid transfer-encoding") => transfer_encoding_unknown(),
        status => {
            let (status, code) = match status {
                414 => (StatusCode::URI_TOO_LONG, "uri_too_long"),
                431 => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large"),
                _ => (StatusCode::BAD_REQUEST, "malformed_request"),
            };
            ApiError::new(status, code, format_args!("the request cannot be read: {error}"))
        }
    };
    let refusing = timeout(limits::HEAD_TIMEOUT, early::refuse(io, told.into_response()));
    tokio::select! {
        _ = refusing => {}
        () = slot.asked_to_close() => {}
    }
}

/// Everything that can end one connection.
struct ConnectionLifetime<'a> {
    http: &'a Http,
    activity: &'a Activity,
    connection_handle: &'a ConnectionHandle,
    head_due: Instant,
    stopping: watch::Receiver<bool>,
}

impl ConnectionLifetime<'_> {
    /// Drives the connection until it ends. `finish` asks it to close after the request in progress; `idle` resolves
    /// when it was idle for too long.
    async fn live<C: Future<Output = Result<(), hyper::Error>>>(
        mut self,
        mut connection: Pin<&mut C>,
        finish: fn(Pin<&mut C>),
        idle: impl Future<Output = ()>,
    ) -> Result<(), hyper::Error> {
        let mut idle = pin!(idle);
        let mut head_due = pin!(sleep_until(self.head_due));
        let mut first = First::Awaited;
        let mut ending = false;
        let mut leave_due: Option<Instant> = None;
        loop {
            let leave_by = leave_due.unwrap_or_else(Instant::now);
            tokio::select! {
                ended = connection.as_mut() => return self.http.noted(ended),
                () = head_due.as_mut(), if first == First::Awaited => {
                    if !self.activity.has_begun() {
                        self.http.limit_hits.count(Limit::HeadTime);
                        return Ok(());
                    }
                    first = First::Came;
                }
                _ = self.stopping.wait_for(|&stopping| stopping), if !ending => {
                    if !self.activity.has_begun() {
                        return Ok(());
                    }
                    finish(connection.as_mut());
                    ending = true;
                }
                () = self.activity.slot.asked_to_close(), if leave_due.is_none() => {
                    if !self.activity.has_begun() {
                        return Ok(());
                    }
                    if !ending {
                        finish(connection.as_mut());
                        ending = true;
                    }
                    leave_due = Some(Instant::now() + limits::LEAVE_TIMEOUT);
                }
                () = sleep_until(leave_by), if leave_due.is_some() => {
                    // A request that arrived in the meantime is still answered.
                    if self.activity.slot.is_idle() {
                        return Ok(());
                    }
                    leave_due = Some(Instant::now() + limits::LEAVE_TIMEOUT);
                }
                () = self.connection_handle.is_cut() => {
                    tracing::debug!("a connection was cut: its reader took nothing");
                    return Ok(());
                }
                () = idle.as_mut(), if !ending => {
                    self.http.limit_hits.count(Limit::IdleTime);
                    finish(connection.as_mut());
                    ending = true;
                }
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Awaited,
    Came,
}

impl Http {
    /// Counts and logs how a connection ended, and returns the result unchanged.
    fn noted(&self, ended: Result<(), hyper::Error>) -> Result<(), hyper::Error> {
        ended.inspect_err(|error| {
            if error.is_parse_too_large() {
                self.limit_hits.count(Limit::HeaderBytes);
            } else if error.is_timeout() {
                self.limit_hits.count(Limit::IdleTime);
            }
            tracing::debug!(%error, "a connection ended badly");
        })
    }
}

/// Request activity on one connection.
struct Activity {
    slot: Arc<Slot>,
    begun: AtomicBool,
    start: Instant,
    /// Time the last request ended, in milliseconds since `start`.
    quiet_since: AtomicU64,
}

impl Activity {
    fn new(slot: Arc<Slot>) -> Self {
        let (begun, quiet_since) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { slot, begun, start: Instant::now(), quiet_since }
    }

    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Waits until there was no request for `limit`.
    async fn idle(&self, limit: Duration) {
        loop {
            let quiet_since = self.start + Duration::from_millis(self.quiet_since.load(Ordering::Relaxed));
            let busy = !self.slot.is_idle();
            let due = if busy { Instant::now() + limit } else { quiet_since + limit };
            if !busy && due <= Instant::now() {
                return;
            }
            sleep_until(due).await;
        }
    }
}

/// The routes as a hyper service for one connection. The connection is not idle while a request is in progress.
#[derive(Clone)]
struct Routes {
    fast_path: FastPath,
    scheme: Scheme,
    always: fn(&str) -> bool,
    activity: Arc<Activity>,
    connection_handle: ConnectionHandle,
}

impl Service<Request<Incoming>> for Routes {
    type Response = Response<Busy<Body>>;
    type Error = Infallible;
    type Future = BusyFuture;

    fn call(&self, request: Request<Incoming>) -> BusyFuture {
        self.activity.begun.store(true, Ordering::Relaxed);
        let closes = request.version() <= hyper::Version::HTTP_11;
        let Ok(in_progress) = self.activity.slot.begin((self.always)(request.uri().path())) else {
            let answering = Answering::Straight(Box::pin(std::future::ready(no_room())));
            return BusyFuture { answering, closes, open: None };
        };
        let answering = self.fast_path.answer(request, |request| {
            if self.scheme == Scheme::Https {
                request.extensions_mut().insert(Scheme::Https);
            }
            request.extensions_mut().insert(self.connection_handle.clone());
        });
        let open = Some(RequestOpen { activity: self.activity.clone(), in_progress });
        BusyFuture { answering, closes, open }
    }
}

/// A request whose response has not been sent completely. Dropping it records the time for the idle timeout.
struct RequestOpen {
    activity: Arc<Activity>,
    in_progress: InProgress,
}

impl Drop for RequestOpen {
    fn drop(&mut self) {
        let millis = u64::try_from(self.activity.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.activity.quiet_since.store(millis, Ordering::Relaxed);
    }
}

/// A pending response. It keeps its connection from being idle.
struct BusyFuture {
    answering: Answering,
    /// Whether the response may carry `Connection: close` (HTTP/1.1 and older).
    closes: bool,
    /// The request in progress; `None` if the request got no slot in the pool.
    open: Option<RequestOpen>,
}

impl Future for BusyFuture {
    type Output = Result<Response<Busy<Body>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = ready!(Pin::new(&mut self.answering).poll(cx))?;
        let open = self.open.take();
        let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if self.closes && !switches && open.as_ref().is_none_or(|open| open.in_progress.is_last()) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Poll::Ready(Ok(response.map(|inner| Busy { inner, _open: open })))
    }
}

/// The body of a response. It keeps its connection from being idle until it is sent.
struct Busy<B> {
    inner: B,
    _open: Option<RequestOpen>,
}

impl<B: hyper::body::Body + Unpin> hyper::body::Body for Busy<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
