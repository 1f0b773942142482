//! Reads request bodies: whole, within a size, within the memory budget, and in time.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::http::StatusCode;
use bytes::Bytes;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tidings_engine::Clock;
use tidings_model::ProjectId;
use tidings_model::limits::{self, Limit};

use crate::budget::{BodyBudget, Reserved};
use crate::error::ApiError;

/// What is needed to read a body.
pub struct BodyContext<'a> {
    /// The clock that measures how long it takes.
    pub clock: &'a dyn Clock,
    /// The memory budget.
    pub budget: &'a Arc<BodyBudget>,
    /// The project of the request; `None` for requests of administration.
    pub project: Option<&'a ProjectId>,
}

/// Reads the whole body, if it is within the limit and the memory budget and comes in time. The memory stays
/// reserved until the returned reservation is dropped, when the request was answered.
///
/// A body that announces a larger size is refused before any of it is read, so that a client that waits for
/// `100 Continue` need not send it. Module `upload` decides whether the rest of a refused body is read.
pub async fn bytes<B>(body: B, limit: usize, context: BodyContext<'_>) -> Result<(Bytes, Reserved), ApiError>
where
    B: http_body::Body<Data = Bytes>,
{
    let BodyContext { clock, budget, project } = context;
    // A body larger than the budget can never be accepted, whatever other requests hold.
    let limit = limit.min(budget.limit_of(project));
    let hint = body.size_hint();
    if hint.lower() > limit as u64 {
        return Err(too_large(limit));
    }
    let announced = hint.upper().and_then(|upper| usize::try_from(upper).ok()).unwrap_or(limit);
    let mut body = pin!(body);
    let mut all = Collected::new(announced.min(limit), budget.open(project));
    let (began, mut received) = (clock.elapsed(), 0);
    // Time since when no byte has come.
    let mut quiet_since = None;
    loop {
        let frame = match soon(body.as_mut()).await {
            Some(frame) => frame,
            None => {
                let now = clock.elapsed();
                let stall = limits::BODY_STALL.saturating_sub(now - *quiet_since.get_or_insert(now));
                let whole = time_for(received).saturating_sub(now.saturating_sub(began));
                tokio::select! {
                    biased;
                    frame = body.frame() => frame,
                    () = clock.sleep(stall.min(whole)) => return Err(too_slow()),
                }
            }
        };
        match frame {
            None => return Ok(all.finish()),
            Some(Err(_)) => {
                let message = "the body ended before it was complete";
                return Err(ApiError::bad_request("body_incomplete", message));
            }
            Some(Ok(frame)) => {
                // Trailers are ignored.
                let part = frame.into_data().unwrap_or_default();
                if part.is_empty() {
                    continue;
                }
                quiet_since = None;
                received += part.len();
                if received > limit {
                    return Err(too_large(limit));
                }
                all.push(part)?;
            }
        }
    }
}

/// Reads a body that is a JSON object.
pub async fn json<T: DeserializeOwned>(
    body: impl http_body::Body<Data = Bytes>,
    limit: usize,
    context: BodyContext<'_>,
) -> Result<T, ApiError> {
    let (body, _reserved) = bytes(body, limit, context).await?;
    parse_json(&body)
}

/// Parses a JSON object.
pub fn parse_json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    // Serde would accept an array as a struct, with the fields in their order.
    if begins_with(body, b'[') {
        return Err(ApiError::bad_request("invalid_json", "expected an object, in JSON"));
    }
    serde_json::from_slice(body).map_err(|error| {
        // The position, not the message of the parser: it may quote the body, which may be a key.
        let place = format!("line {}, column {}", error.line(), error.column());
        let message = match error.classify() {
            serde_json::error::Category::Data => format!("the JSON is not what is expected here, at {place}"),
            _ => format!("the body is not JSON, at {place}"),
        };
        ApiError::bad_request("invalid_json", message)
    })
}

/// Whether the first character that is not white space is this one.
pub fn begins_with(json: &[u8], first: u8) -> bool {
    json.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&first)
}

type Frame<E> = Option<Result<http_body::Frame<Bytes>, E>>;

/// The next frame if it comes at once or after one yield. Most bodies do, and then need no timer.
async fn soon<B: http_body::Body<Data = Bytes>>(mut body: Pin<&mut B>) -> Option<Frame<B::Error>> {
    let mut waited = false;
    std::future::poll_fn(move |cx| match (body.as_mut().poll_frame(cx), waited) {
        (Poll::Ready(frame), _) => Poll::Ready(Some(frame)),
        (Poll::Pending, true) => Poll::Ready(None),
        (Poll::Pending, false) => {
            waited = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

/// Maximum time for a body of this size.
fn time_for(size: usize) -> Duration {
    limits::BODY_GRACE + Duration::from_secs(size as u64 / limits::BODY_BYTES_PER_SECOND_MIN)
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("a body is at most {limit} bytes");
    ApiError::over(Limit::BodyBytes, StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

fn too_slow() -> ApiError {
    let message = format!(
        "a body never pauses for {} s; it comes within {} s and after that with {} bytes a second at least",
        limits::BODY_STALL.as_secs(),
        limits::BODY_GRACE.as_secs(),
        limits::BODY_BYTES_PER_SECOND_MIN
    );
    ApiError::over(Limit::BodyTime, StatusCode::REQUEST_TIMEOUT, "body_too_slow", message)
}

/// The parts of a body, copied into memory of their own: what comes from the socket is a slice of a much
/// larger buffer, which would be kept as long as the record.
struct Collected {
    only: Bytes,
    joined: Vec<u8>,
    /// Maximum size of the body, in bytes.
    most: usize,
    reserved: Reserved,
}

impl Collected {
    fn new(most: usize, reserved: Reserved) -> Self {
        Self { only: Bytes::new(), joined: Vec::new(), most, reserved }
    }

    fn push(&mut self, part: Bytes) -> Result<(), ApiError> {
        if self.only.is_empty() && self.joined.is_empty() {
            self.reserved.grow_to(part.len())?;
            self.only = part;
            return Ok(());
        }
        if self.joined.is_empty() {
            self.make_room(self.only.len() + part.len())?;
            self.joined.extend_from_slice(&std::mem::take(&mut self.only));
        }
        self.make_room(self.joined.len() + part.len())?;
        self.joined.extend_from_slice(&part);
        Ok(())
    }

    /// Doubles the capacity, so that parts are not copied again and again, but never beyond the maximum size.
    fn make_room(&mut self, needed: usize) -> Result<(), ApiError> {
        let room = self.joined.capacity();
        if needed > room {
            let room = (2 * room).min(self.most).max(needed);
            self.reserved.grow_to(room)?;
            self.joined.reserve_exact(room - self.joined.len());
        }
        Ok(())
    }

    fn finish(mut self) -> (Bytes, Reserved) {
        let bytes = if self.joined.is_empty() {
            Bytes::copy_from_slice(&self.only)
        } else {
            // A record may be kept for long, and would keep the spare capacity.
            self.joined.shrink_to_fit();
            Bytes::from(self.joined)
        };
        (bytes, self.reserved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::response::IntoResponse;
    use futures_util::stream;
    use tidings_engine::{ManualClock, Metrics};
    use tidings_model::Timestamp;
    use tokio::sync::mpsc;

    fn clock() -> ManualClock {
        ManualClock::at(Timestamp::from_millis(1000))
    }

    fn body(parts: &[&'static str]) -> Body {
        let parts: Vec<_> = parts.iter().map(|part| Ok::<_, std::io::Error>(Bytes::from(*part))).collect();
        Body::from_stream(stream::iter(parts))
    }

    async fn collected<B>(body: B, limit: usize, memory: usize) -> Result<(Bytes, Reserved), ApiError>
    where
        B: http_body::Body<Data = Bytes>,
    {
        let (clock, budget) = (clock(), BodyBudget::new(memory, &Metrics::new()));
        bytes(body, limit, BodyContext { clock: &clock, budget: &budget, project: None }).await
    }

    #[tokio::test]
    async fn parts_are_joined_up_to_the_limit() {
        for (parts, whole) in [(vec![], ""), (vec!["abc"], "abc"), (vec!["", "a", "", "bc", "d"], "abcd")] {
            assert_eq!(collected(body(&parts), 4, 4).await.expect("within the limit").0, whole);
        }
        for beyond in [vec!["abc", "de"], vec!["abc", "def", "ghi", "never read"], vec!["abcde"]] {
            let refused = collected(body(&beyond), 4, 100).await.err().expect("beyond the limit");
            assert_eq!(refused.into_response().status(), 413);
        }
        let known = http_body_util::Full::new(Bytes::from_static(b"abcde"));
        assert!(collected(known, 4, 100).await.is_err());
    }

    #[tokio::test]
    async fn what_there_is_no_memory_for_is_refused_and_leaves_nothing_behind() {
        let (clock, budget) = (clock(), BodyBudget::new(6, &Metrics::new()));
        let context = || BodyContext { clock: &clock, budget: &budget, project: None };
        let (first, reserved) = bytes(body(&["ab", "cd"]), 100, context()).await.expect("there is memory");
        assert_eq!(first, "abcd");
        let refused = bytes(body(&["ab", "c"]), 100, context()).await.err().expect("two bytes are left");
        let refused = refused.into_response();
        assert_eq!((refused.status().as_u16(), refused.headers().contains_key("retry-after")), (503, true));
        drop(reserved);
        assert!(bytes(body(&["abc", "def"]), 100, context()).await.is_ok());
    }

    /// A body that comes part by part, and what becomes of it.
    struct Coming {
        clock: ManualClock,
        metrics: Metrics,
        parts: mpsc::UnboundedSender<Bytes>,
        sent: usize,
        taken: tokio::task::JoinHandle<StatusCode>,
    }

    impl Coming {
        fn begin() -> Self {
            let (clock, metrics) = (clock(), Metrics::new());
            let (waits, budget) = (clock.clone(), BodyBudget::new(1000, &metrics));
            let (parts, mut sent) = mpsc::unbounded_channel::<Bytes>();
            let taken = tokio::spawn(async move {
                let sent = stream::poll_fn(move |cx| {
                    sent.poll_recv(cx).map(|part| part.map(Ok::<_, std::io::Error>))
                });
                let context = BodyContext { clock: &waits, budget: &budget, project: None };
                let refused = bytes(Body::from_stream(sent), 1000, context).await.err();
                refused.expect("it does not come to its end").into_response().status()
            });
            Self { clock, metrics, parts, sent: 0, taken }
        }

        /// Sends a part, which is taken in.
        async fn send(&mut self, part: &'static str) {
            self.sent += part.len();
            self.parts.send(Bytes::from_static(part.as_bytes())).expect("it is awaited");
            while self.held() < self.sent {
                tokio::task::yield_now().await;
            }
        }

        /// Bytes that are held for it: at least what has come.
        fn held(&self) -> usize {
            let text = self.metrics.text();
            let value = text.lines().find_map(|line| line.strip_prefix("tidings_body_bytes_in_flight "));
            value.and_then(|value| value.parse().ok()).expect("it is shown")
        }

        /// Lets time pass while more is awaited.
        async fn let_pass(&self, time: Duration) {
            while self.clock.sleepers() == 0 {
                tokio::task::yield_now().await;
            }
            self.clock.advance(time);
        }
    }

    #[tokio::test]
    async fn a_body_that_pauses_is_given_up_whatever_came_before() {
        let mut body = Coming::begin();
        let almost = limits::BODY_STALL - Duration::from_millis(1);
        for part in ["a", "b"] {
            body.let_pass(almost).await;
            body.send(part).await;
        }
        body.let_pass(almost).await;
        // Nothing is not a byte.
        body.parts.send(Bytes::new()).expect("it is awaited");
        while !body.parts.is_closed() && body.clock.sleepers() == 0 {
            tokio::task::yield_now().await;
        }
        body.let_pass(Duration::from_millis(1)).await;
        assert_eq!(body.taken.await.expect("no panic"), StatusCode::REQUEST_TIMEOUT);
    }

    #[tokio::test]
    async fn a_body_that_trickles_is_given_up_when_its_time_is_over() {
        let mut body = Coming::begin();
        let step = limits::BODY_STALL / 2;
        for _ in 1..limits::BODY_GRACE.as_secs() / step.as_secs() {
            body.let_pass(step).await;
            body.send("x").await;
        }
        assert!(!body.taken.is_finished(), "it may still come");
        body.let_pass(step).await;
        assert_eq!(body.taken.await.expect("no panic"), StatusCode::REQUEST_TIMEOUT);
    }
}
