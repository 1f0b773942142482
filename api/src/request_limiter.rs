//! Limits that a request must meet before it is handled: the size and form of its head, and the request rate
//! of its project.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, StatusCode, Version, header};
use http_body::Body as _;
use tidings_engine::Clock;
use tidings_model::ProjectId;
use tidings_model::limits::{self, Limit};

use crate::error::ApiError;

/// Settings of the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Maximum bytes of a request's head: its first line and its headers.
    pub header_bytes: usize,
    /// Maximum number of requests of one project per second; 0 means unlimited.
    pub requests_per_second: u32,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { header_bytes: limits::HEADER_BYTES, requests_per_second: limits::REQUESTS_PER_SECOND }
    }
}

/// Size of a request's head as it was received, including the credential, which is removed later.
#[derive(Clone, Copy, Debug)]
pub struct HeadBytes(usize);

impl HeadBytes {
    /// The size of the head of a request from which nothing was removed yet.
    pub fn of(request: &Request) -> Self {
        let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
        Self(line_bytes(request) + headers.sum::<usize>())
    }
}

fn line_bytes(request: &Request) -> usize {
    let uri = request.uri();
    uri.path().len() + uri.query().map_or(0, |query| query.len() + 1)
}

/// Checks requests against the limits.
pub struct RequestLimiter {
    header_bytes: usize,
    rates: Option<Rates>,
}

impl RequestLimiter {
    /// Creates a limiter that measures rates by the clock.
    pub fn new(options: RequestLimits, clock: Arc<dyn Clock>) -> Self {
        let rates = Rates::new(options.requests_per_second, limits::RATE_BUCKETS, clock);
        Self { header_bytes: options.header_bytes, rates }
    }

    /// Checks that the head of a request, which had so many bytes, is within the limits and valid HTTP.
    pub fn fits(&self, request: &Request, head: HeadBytes) -> Result<(), ApiError> {
        if line_bytes(request) > limits::URI_BYTES {
            let message = format!("path and query have {} bytes at most", limits::URI_BYTES);
            return Err(ApiError::over(Limit::UriBytes, StatusCode::URI_TOO_LONG, "uri_too_long", message));
        }
        if head.0 > self.header_bytes {
            let message = format!("first line and headers have {} bytes at most", self.header_bytes);
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            return Err(ApiError::over(Limit::HeaderBytes, status, "headers_too_large", message));
        }
        is_proper(request)
    }

    /// Takes one request from the budget of a project.
    pub fn admit(&self, project: &ProjectId) -> Result<(), ApiError> {
        self.rates.as_ref().map_or(Ok(()), |rates| rates.take(project))
    }
}

/// Checks that a request names its host and sends its body in a supported way. What hyper cannot parse it
/// refuses itself.
fn is_proper(request: &Request) -> Result<(), ApiError> {
    let headers = request.headers();
    match (headers.get_all(header::HOST).iter().count(), request.version()) {
        (1, _) | (0, Version::HTTP_09 | Version::HTTP_10 | Version::HTTP_2 | Version::HTTP_3) => {}
        (count, _) => {
            let message = format!("a request has exactly one `Host`, and this one has {count}");
            return Err(ApiError::bad_request("invalid_host", message));
        }
    }
    if headers.contains_key(header::TRANSFER_ENCODING)
        && only(headers, &header::TRANSFER_ENCODING)
            .is_none_or(|coding| !coding.eq_ignore_ascii_case("chunked"))
    {
        return Err(transfer_encoding_unknown());
    }
    let plain = |coding: &str| coding.is_empty() || coding.eq_ignore_ascii_case("identity");
    if headers.contains_key(header::CONTENT_ENCODING)
        && !request.body().is_end_stream()
        && !only(headers, &header::CONTENT_ENCODING).is_some_and(plain)
    {
        let message = "a body is not encoded: `Content-Encoding` is absent or `identity`";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(ApiError::new(status, "content_encoding_unsupported", message)
            .with(header::ACCEPT_ENCODING, "identity"));
    }
    Ok(())
}

/// The value of a header that occurs exactly once and is plain text.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    value.to_str().ok().map(str::trim)
}

/// The error for a transfer encoding other than `chunked`.
pub fn transfer_encoding_unknown() -> ApiError {
    let message = "the only `Transfer-Encoding` that is understood is `chunked`";
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "transfer_encoding_unknown", message)
}

/// A token bucket for each project, which holds a second's worth of requests. The time is monotonic: after a
/// step back of the wall clock a bucket would stay empty until the clock has caught up.
struct Rates {
    per_second: u64,
    /// Maximum number of buckets.
    room: usize,
    clock: Arc<dyn Clock>,
    buckets: Mutex<Buckets>,
}

struct Buckets {
    projects: HashMap<ProjectId, Bucket>,
    /// The bucket shared by the projects beyond the maximum.
    others: Bucket,
}

/// The fill level in thousandths of requests at a moment: each millisecond adds as many as a second adds
/// requests.
#[derive(Clone, Copy)]
struct Bucket {
    thousandths: u64,
    /// Monotonic time of the fill level.
    at: Duration,
}

const ONE: u64 = 1000;

impl Rates {
    fn new(per_second: u32, room: usize, clock: Arc<dyn Clock>) -> Option<Self> {
        let per_second = u64::from(per_second);
        if per_second == 0 {
            return None;
        }
        let full = Bucket { thousandths: per_second * ONE, at: clock.elapsed() };
        let buckets = Mutex::new(Buckets { projects: HashMap::new(), others: full });
        Some(Self { per_second, room, clock, buckets })
    }

    fn take(&self, project: &ProjectId) -> Result<(), ApiError> {
        let now = self.clock.elapsed();
        let full = Bucket { thousandths: self.per_second * ONE, at: now };
        let mut buckets = self.buckets.lock().expect("nobody panics while holding the buckets");
        if !buckets.projects.contains_key(project) && buckets.projects.len() >= self.room {
            // A full bucket need not be kept.
            buckets.projects.retain(|_, bucket| bucket.refilled(now, self.per_second) < full.thousandths);
        }
        let bucket = if buckets.projects.len() < self.room || buckets.projects.contains_key(project) {
            buckets.projects.entry(project.clone()).or_insert(full)
        } else {
            &mut buckets.others
        };
        let there = bucket.refilled(now, self.per_second);
        match there.checked_sub(ONE) {
            Some(left) => {
                *bucket = Bucket { thousandths: left, at: now };
                Ok(())
            }
            None => Err(self.exhausted()),
        }
    }

    fn exhausted(&self) -> ApiError {
        let message = format!("a project makes {} requests a second at most", self.per_second);
        let status = StatusCode::TOO_MANY_REQUESTS;
        // Whatever the rate, there is a token within a second.
        ApiError::over(Limit::RequestsPerSecond, status, "too_many_requests", message)
            .with(header::RETRY_AFTER, 1)
    }
}

impl Bucket {
    fn refilled(&self, now: Duration, per_second: u64) -> u64 {
        let millis = u64::try_from(now.saturating_sub(self.at).as_millis()).unwrap_or(u64::MAX);
        self.thousandths.saturating_add(millis.saturating_mul(per_second)).min(per_second * ONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_engine::ManualClock;
    use tidings_model::Timestamp;

    fn rates(per_second: u32, room: usize) -> (Rates, ManualClock) {
        let clock = ManualClock::at(Timestamp::from_millis(1_000_000));
        (Rates::new(per_second, room, Arc::new(clock.clone())).expect("there is a limit"), clock)
    }

    fn project(name: &str) -> ProjectId {
        ProjectId::parse(name).expect("valid")
    }

    fn taken(rates: &Rates, name: &str) -> usize {
        (0..1000).take_while(|_| rates.take(&project(name)).is_ok()).count()
    }

    #[test]
    fn a_project_has_a_seconds_worth_and_then_as_much_as_flows_in() {
        let (rates, clock) = rates(10, 100);
        assert_eq!(taken(&rates, "a"), 10);
        assert_eq!(taken(&rates, "b"), 10, "projects do not share");
        clock.advance(Duration::from_millis(99));
        assert_eq!(taken(&rates, "a"), 0);
        clock.advance(Duration::from_millis(1));
        assert_eq!(taken(&rates, "a"), 1);
        clock.advance(Duration::from_secs(3600));
        assert_eq!(taken(&rates, "a"), 10, "what is not used does not add up");
    }

    #[test]
    fn a_wall_clock_that_is_set_makes_no_difference() {
        let (rates, clock) = rates(10, 100);
        assert_eq!(taken(&rates, "a"), 10);
        clock.set(Timestamp::from_millis(2_000_000));
        assert_eq!(taken(&rates, "a"), 0, "set forward: no time has passed");
        clock.set(Timestamp::from_millis(1));
        clock.advance(Duration::from_secs(1));
        assert_eq!(taken(&rates, "a"), 10, "set back: a second has passed");
    }

    #[test]
    fn the_number_of_buckets_is_bounded_and_idle_ones_make_room() {
        let (rates, clock) = rates(2, 3);
        for name in ["a", "b", "c"] {
            assert_eq!(taken(&rates, name), 2);
        }
        assert_eq!(taken(&rates, "d"), 2, "from the shared bucket");
        assert_eq!(taken(&rates, "e"), 0, "which is empty now");
        assert_eq!(rates.buckets.lock().expect("no panic").projects.len(), 3);
        clock.advance(Duration::from_secs(1));
        assert_eq!(taken(&rates, "e"), 2);
        assert_eq!(rates.buckets.lock().expect("no panic").projects.len(), 1);
    }
}
