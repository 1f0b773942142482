//! Observation of requests: request ids, log lines and metrics.
//!
//! A query may contain a token and a path may contain a name, so neither is logged or counted: only the
//! template of the route is.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Version, header};
use axum::response::Response;
use pin_project_lite::pin_project;
use tidings_engine::metrics::{
    Buckets, Counter, EVENT_TIME, EVENTS, Gauge, Histogram, Kind, LimitHits, Metrics, Name,
};
use tidings_engine::{Clock, Rng};
use tidings_model::limits;
use tower_layer::Layer;
use tower_service::Service;

use crate::error::Refused;

/// The header `x-request-id` of requests and responses.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const REQUESTS: Name = Name {
    name: "tidings_http_requests_total",
    help: "HTTP requests answered, by route, method and status class.",
};
const REQUEST_TIME: Name = Name {
    name: "tidings_http_request_seconds",
    help: "Time from the request to the response head, in seconds, by route and method.",
};
const READERS: Name =
    Name { name: "tidings_live_readers", help: "Readers that wait for new records, by transport." };

/// Counts and logs requests.
pub struct Observe {
    metrics: Metrics,
    limit_hits: LimitHits,
    clock: Arc<dyn Clock>,
    ids: RequestIds,
    /// Metrics of the routes, by their templates.
    routes: HashMap<&'static str, Arc<Route>>,
    /// Metrics of requests that match no route.
    no_route: Arc<Route>,
    spans: Spans,
    /// Number of live readers by SSE.
    pub sse_readers: Gauge,
    /// Number of live readers by WebSocket.
    pub websocket_readers: Gauge,
    /// Number of live readers by long-poll.
    pub long_poll_readers: Gauge,
}

/// Whether requests have tracing spans, for the export of traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spans {
    /// Requests have no spans.
    #[default]
    No,
    /// Each request has a span.
    EachRequest,
}

impl Observe {
    /// Creates the observer and registers its metrics.
    pub fn new(metrics: &Metrics, clock: Arc<dyn Clock>, rng: &Rng, spans: Spans) -> Self {
        Self {
            limit_hits: LimitHits::new(metrics),
            clock,
            ids: RequestIds { start: rng.within(0..=u64::MAX), made: AtomicU64::new(0) },
            routes: crate::templates()
                .into_iter()
                .map(|route| (route, Arc::new(Route::new(route))))
                .collect(),
            no_route: Arc::new(Route::new("none")),
            spans,
            sse_readers: metrics.gauge(READERS, &[("transport", "sse")]),
            websocket_readers: metrics.gauge(READERS, &[("transport", "websocket")]),
            long_poll_readers: metrics.gauge(READERS, &[("transport", "long-poll")]),
            metrics: metrics.clone(),
        }
    }

    /// Whether each request has a span.
    pub fn has_spans(&self) -> bool {
        self.spans == Spans::EachRequest
    }

    /// The registry of all metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Begins to observe a request, with the route that the router has matched, if any.
    fn begin(&self, request: &Request) -> RequestRecord {
        self.begin_at(request.extensions().get::<MatchedPath>().map(MatchedPath::as_str), request)
    }

    /// Begins to observe a request for the route with this template.
    pub fn begin_at(&self, template: Option<&str>, request: &Request) -> RequestRecord {
        let route = template.and_then(|template| self.routes.get(template)).unwrap_or(&self.no_route);
        RequestRecord {
            route: route.clone(),
            method: request.method().clone(),
            version: request.version(),
            id: self.ids.of(request.headers().get(REQUEST_ID)),
            began: self.clock.elapsed(),
        }
    }

    /// Counts and logs a response, and adds the headers that every response has.
    pub fn end(&self, seen: &RequestRecord, response: &mut Response) {
        let took = self.clock.elapsed().saturating_sub(seen.began);
        let status = response.status();
        let numbers = seen.route.numbers(&self.metrics, &seen.method);
        numbers.classes[class(status)].count();
        numbers.time.observe_time(took);
        if let Some(refused) = response.extensions().get::<Refused>() {
            numbers.refused(&self.metrics, refused.code);
            if let Some(limit) = refused.limit {
                self.limit_hits.count(limit);
            }
        }
        seen.log(status, took, response.extensions().get::<Refused>());
        // The rest of a body that came too slowly is not waited for.
        if status == StatusCode::REQUEST_TIMEOUT && seen.version <= Version::HTTP_11 {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response.headers_mut().insert(REQUEST_ID, seen.id.clone());
    }
}

/// A request that is being answered.
pub struct RequestRecord {
    route: Arc<Route>,
    method: Method,
    version: Version,
    id: HeaderValue,
    began: Duration,
}

impl RequestRecord {
    fn log(&self, status: StatusCode, took: Duration, refused: Option<&Refused>) {
        let (status, route, method) = (status.as_u16(), &*self.route.label, self.method.as_str());
        let request_id = self.id.to_str().unwrap_or_default();
        if let Some(failure) = refused.and_then(|refused| refused.failure.as_deref()) {
            tracing::error!(request_id, method, route, status, error = failure, "a request failed");
        }
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let code = refused.map(|refused| refused.code);
        tracing::debug!(request_id, method, route, status, code, micros, "answered");
    }

    fn span(&self, spans: Spans) -> tracing::Span {
        match spans {
            Spans::No => tracing::Span::none(),
            Spans::EachRequest => {
                let request_id = self.id.to_str().unwrap_or_default();
                let (method, route) = (self.method.as_str(), &*self.route.label);
                tracing::info_span!("request", request_id, method, route, status = tracing::field::Empty)
            }
        }
    }
}

/// Assigns request ids: the client's if it is well-formed, otherwise a new one.
struct RequestIds {
    /// Random prefix that distinguishes the ids of this process from those of others.
    start: u64,
    made: AtomicU64,
}

impl RequestIds {
    fn of(&self, sent: Option<&HeaderValue>) -> HeaderValue {
        match sent {
            Some(sent) if is_sane(sent.as_bytes()) => sent.clone(),
            _ => {
                let number = self.made.fetch_add(1, Ordering::Relaxed);
                let text = format!("{:016x}-{number:x}", self.start);
                HeaderValue::from_str(&text).expect("hexadecimal digits are a header value")
            }
        }
    }
}

/// Whether an id is safe to log and to pass on.
fn is_sane(id: &[u8]) -> bool {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_.:+/=".contains(b);
    !id.is_empty() && id.len() <= limits::REQUEST_ID_BYTES && id.iter().all(plain)
}

/// The metrics of one route.
struct Route {
    /// The template in the notation of OpenAPI.
    label: String,
    methods: [OnceLock<Numbers>; METHODS.len()],
}

/// The methods that are counted separately; the last stands for all others.
const METHODS: [&str; 7] = ["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "other"];

/// The metrics of one method of one route.
struct Numbers {
    classes: [Counter; 5],
    time: Histogram,
    event: String,
}

impl Route {
    fn new(template: &str) -> Self {
        Self { label: template.replace("{*", "{"), methods: Default::default() }
    }

    fn numbers(&self, metrics: &Metrics, method: &Method) -> &Numbers {
        let at = METHODS.iter().position(|&name| name == method.as_str()).unwrap_or(METHODS.len() - 1);
        self.methods[at].get_or_init(|| Numbers::new(metrics, &self.label, METHODS[at]))
    }
}

impl Numbers {
    /// Registers the metrics. The events of the category `http` are the same series, so that a request is
    /// counted once.
    fn new(metrics: &Metrics, route: &str, method: &str) -> Self {
        let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"].map(|class| {
            metrics.counter(REQUESTS, &[("route", route), ("method", method), ("status", class)])
        });
        let time = metrics.histogram(REQUEST_TIME, &[("route", route), ("method", method)], Buckets::LATENCY);
        let event = format!("{method} {route}");
        metrics.show(EVENT_TIME, &[("category", "http"), ("event", &event)], &time);
        let well = classes[..3].to_vec();
        let labels = [("category", "http"), ("event", event.as_str()), ("error", "")];
        metrics.compute(EVENTS, Kind::Counter, &labels, move || {
            well.iter().map(Counter::get).sum::<u64>() as f64
        });
        Self { classes, time, event }
    }

    fn refused(&self, metrics: &Metrics, code: &'static str) {
        metrics.counter(EVENTS, &[("category", "http"), ("event", &self.event), ("error", code)]).count();
    }
}

fn class(status: StatusCode) -> usize {
    (status.as_u16() / 100).clamp(1, 5) as usize - 1
}

/// The layer that observes requests.
#[derive(Clone)]
pub struct ObserveLayer(pub Arc<Observe>);

impl<S> Layer<S> for ObserveLayer {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed { inner, observe: self.0.clone() }
    }
}

/// A service whose requests are observed.
#[derive(Clone)]
pub struct Observed<S> {
    inner: S,
    observe: Arc<Observe>,
}

impl<S: Service<Request, Response = Response>> Service<Request> for Observed<S> {
    type Response = Response;
    type Error = S::Error;
    type Future = Answering<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let seen = self.observe.begin(&request);
        let span = seen.span(self.observe.spans);
        let _entered = span.enter();
        let inner = self.inner.call(request);
        drop(_entered);
        Answering { inner, observe: self.observe.clone(), seen, span }
    }
}

pin_project! {
    /// The future of an observed response.
    pub struct Answering<F> {
        #[pin]
        inner: F,
        observe: Arc<Observe>,
        seen: RequestRecord,
        span: tracing::Span,
    }
}

impl<F: Future<Output = Result<Response, E>>, E> Future for Answering<F> {
    type Output = Result<Response, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let _entered = this.span.enter();
        let mut response = ready!(this.inner.poll(cx))?;
        this.span.record("status", response.status().as_u16());
        this.observe.end(this.seen, &mut response);
        Poll::Ready(Ok(response))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_id_is_taken_if_it_is_sane_and_made_otherwise() {
        let ids = RequestIds { start: 0xabc, made: AtomicU64::new(0) };
        let sane = HeaderValue::from_static("Root=1-67891233-abcdef012345678912345678");
        assert_eq!(ids.of(Some(&sane)), sane);
        let long = "x".repeat(limits::REQUEST_ID_BYTES + 1);
        for (number, bad) in ["", "a b", "a\"b", "<script>", &long].into_iter().enumerate() {
            let sent = HeaderValue::from_str(bad).expect("a header value");
            assert_eq!(ids.of(Some(&sent)), format!("0000000000000abc-{number:x}"));
        }
        assert_eq!(ids.of(None), "0000000000000abc-5");
    }
}
