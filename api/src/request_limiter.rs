//! What a request must keep to before anybody looks at it: the size and the rules of its head, and how many its project may
//! make.

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

/// What an operator may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Bytes of a request's head: its first line and its headers.
    pub header_bytes: usize,
    /// Requests of one project in a second; 0 lets all pass.
    pub requests_per_second: u32,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { header_bytes: limits::HEADER_BYTES, requests_per_second: limits::REQUESTS_PER_SECOND }
    }
}

/// Bytes of a request's head as it came: the credential, which is taken out of it, is a part of it.
#[derive(Clone, Copy, Debug)]
pub struct HeadBytes(usize);

impl HeadBytes {
    /// Of a request out of which nothing was taken yet.
    pub fn of(request: &Request) -> Self {
        let headers = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
        Self(line_bytes(request) + headers.sum::<usize>())
    }
}

fn line_bytes(request: &Request) -> usize {
    let uri = request.uri();
    uri.path().len() + uri.query().map_or(0, |query| query.len() + 1)
}

/// Lets requests in.
pub struct RequestLimiter {
    header_bytes: usize,
    rates: Option<Rates>,
}

impl RequestLimiter {
    /// A request_limiter that counts requests by the clock.
    pub fn new(options: RequestLimits, clock: Arc<dyn Clock>) -> Self {
        let rates = Rates::new(options.requests_per_second, limits::RATE_BUCKETS, clock);
        Self { header_bytes: options.header_bytes, rates }
    }

    /// Whether the head of a request, which had so many bytes, is within its limits and keeps to the rules of HTTP.
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

    /// Takes one of the requests that a project may make.
    pub fn admit(&self, project: &ProjectId) -> Result<(), ApiError> {
        self.rates.as_ref().map_or(Ok(()), |rates| rates.take(project))
    }
}

/// Whether a request says which host it is for, and sends its body in a way that is understood. What hyper cannot read at
/// all it refuses itself.
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

/// The value of a header that is there once and is plain text.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    value.to_str().ok().map(str::trim)
}

/// A body comes as it is or in chunks.
pub fn transfer_encoding_unknown() -> ApiError {
    let message = "the only `Transfer-Encoding` that is understood is `chunked`";
    ApiError::new(StatusCode::NOT_IMPLEMENTED, "transfer_encoding_unknown", message)
}

/// A bucket of tokens for each project: a second's worth at most, and as much flows in each second. Time is monotonic: a
/// wall clock that is set back would leave a bucket empty until it is where it was.
struct Rates {
    per_second: u64,
    /// How many buckets there may be.
    room: usize,
    clock: Arc<dyn Clock>,
    buckets: Mutex<Buckets>,
}

struct Buckets {
    projects: HashMap<ProjectId, Bucket>,
    /// Shared by those for whom there is no room.
    others: Bucket,
}

/// Thousandths of requests, as of a moment: each millisecond brings as many as a second brings requests.
#[derive(Clone, Copy)]
struct Bucket {
    thousandths: u64,
    /// Monotonic time.
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
            // A full bucket is as good as none.
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
        // There is a token within a second, whatever the rate.
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
