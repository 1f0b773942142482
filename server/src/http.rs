//! HTTP on one connection: the first request in time, none of them too large, an end when nobody asks any
//! more or takes what was asked for.

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
use crate::progress::{Progress, Withheld};

/// Which HTTP a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1 or 1.0.
    One,
    /// HTTP/2.
    Two,
}

/// A connection of which it is known what it speaks.
pub struct Opened<I> {
    /// The bytes.
    pub io: I,
    /// Which HTTP.
    pub version: Version,
    /// What is under it.
    pub scheme: Scheme,
    /// Counts it.
    pub counted: Counted,
}

/// Serves routes on connections.
pub struct Http {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    fast_path: FastPath,
    always: fn(&str) -> bool,
    idle_timeout: Duration,
    write_timeout: Duration,
    limit_hits: LimitHits,
}

/// Whether a path is answered although all connections are in use.
pub fn is_health(path: &str) -> bool {
    ["/health", "/ready"].contains(&path)
}

impl Http {
    /// Serves these routes.
    ///
    /// Heads up to twice the limit come through to the routes, which tell the client in full what is wrong; what is
    /// larger is refused here, with a status alone.
    pub fn new(fast_path: FastPath, options: &ConnectionOptions, limit_hits: LimitHits) -> Self {
        let head_bytes = options.header_bytes.max(limits::URI_BYTES).saturating_mul(2);
        let mut http1 = http1::Builder::new();
        // Runs while a connection waits for the head of its next request. The first one has its own deadline.
        http1.timer(TokioTimer::new()).header_read_timeout(options.idle_timeout).max_header_size(head_bytes);
        // Whoever closes its side after a request is answered. Where an answer stays, `Progress` sees that it has.
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

    /// The same, where every path is answered although all connections are in use.
    #[must_use]
    pub fn always(self) -> Self {
        Self { always: |_| true, ..self }
    }

    /// What is served.
    pub fn fast_path(&self) -> &FastPath {
        &self.fast_path
    }

    /// Serves a connection to its end. The head of its first request is due at a moment; when the server stops, the
    /// answers that are on their way are finished.
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
                let withheld = Withheld::default();
                let io = TokioIo::new(io.telling(connection_handle.clone(), withheld.clone()));
                // In memory of its own: a task has room for the largest of all ways it may go.
                let mut connection = Box::pin(self.http1.serve_connection(io, routes).with_upgrades());
                let never = std::future::pending();
                let ended = lifetime.live(connection.as_mut(), |it| it.graceful_shutdown(), never).await;
                if let Some((status, io)) = withheld.take() {
                    Box::pin(refuse(io, status, ended.err(), &slot)).await;
                }
            }
            Version::Two => {
                let mut connection = Box::pin(self.http2.serve_connection(TokioIo::new(io), routes));
                let idle = activity.idle(self.idle_timeout);
                let _ = lifetime.live(connection.as_mut(), |it| it.graceful_shutdown(), idle).await;
            }
        }
        // If anything is left of it, that is a WebSocket.
        slot.upgrade();
    }
}

/// Tells the client of a request that hyper could not read what is wrong with it.
async fn refuse(
    io: impl AsyncRead + AsyncWrite + Unpin,
    status: u16,
    error: Option<hyper::Error>,
    slot: &Slot,
) {
    let error = error.map(|error| error.to_string()).unwrap_or_default();
    let told = match status {
        // There is no other way to know which header it was.
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
        () = slot.is_told_to_leave() => {}
    }
}

/// One connection's lifetime.
struct ConnectionLifetime<'a> {
    http: &'a Http,
    activity: &'a Activity,
    connection_handle: &'a ConnectionHandle,
    head_due: Instant,
    stopping: watch::Receiver<bool>,
}

impl ConnectionLifetime<'_> {
    /// `finish` asks the connection to end after what it is doing; `idle` resolves when it was quiet for too long.
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
                () = self.activity.slot.is_told_to_leave(), if leave_due.is_none() => {
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
                    // A request that came just then is answered.
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
    /// How a connection ended, counted and logged.
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

/// What is asked on a connection.
struct Activity {
    slot: Arc<Slot>,
    begun: AtomicBool,
    start: Instant,
    /// When the last one was, in milliseconds since the start.
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

    /// Resolves when there was no request for so long.
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

/// The routes, for one connection. Each request keeps it from being idle.
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

/// A request that is not answered to the end.
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

/// An answer on its way that keeps its connection.
struct BusyFuture {
    answering: Answering,
    /// Whether a header can tell that the connection closes.
    closes: bool,
    /// None if there is no room for the request.
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

/// The body of an answer that keeps its connection.
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
