//! Bodies: whole, within a size, and in time.

use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tidings_engine::Clock;
use tidings_model::Timestamp;
use tidings_model::limits::{self, Limit};

use crate::error::ApiError;

/// The whole body, if it is within the limit and comes in time.
///
/// One that says that it is larger is refused before any of it is asked for: a client that waits until it is told to go on
/// need not send it. What of a refused body is read on is not decided here, see `upload`.
pub async fn bytes<B>(body: B, limit: usize, clock: &dyn Clock) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data = Bytes>,
{
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large(limit));
    }
    let mut body = pin!(body);
    let began = clock.now();
    let (mut all, mut received) = (Collected::default(), 0);
    loop {
        let frame = match soon(body.as_mut()).await {
            Some(frame) => frame,
            None => tokio::select! {
                biased;
                frame = body.frame() => frame,
                () = clock.sleep_until(due(began, received)) => return Err(too_slow()),
            },
        };
        match frame {
            None => return Ok(all.into_bytes()),
            Some(Err(_)) => {
                let message = "the body ended before it was complete";
                return Err(ApiError::bad_request("body_incomplete", message));
            }
            Some(Ok(frame)) => {
                // Trailers say nothing to us.
                let part = frame.into_data().unwrap_or_default();
                received = received.saturating_add(part.len());
                if received > limit {
                    return Err(too_large(limit));
                }
                all.push(part);
            }
        }
    }
}

/// An object in JSON that is the whole body.
pub async fn json<T: DeserializeOwned>(
    body: impl http_body::Body<Data = Bytes>,
    limit: usize,
    clock: &dyn Clock,
) -> Result<T, ApiError> {
    parse_json(&bytes(body, limit, clock).await?)
}

/// An object in JSON.
pub fn parse_json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    // Fields without names would be taken in their order.
    if begins_with(body, b'[') {
        return Err(ApiError::bad_request("invalid_json", "expected an object, in JSON"));
    }
    serde_json::from_slice(body).map_err(|error| {
        // The place and not the message: that may quote what was sent, which may be a key.
        let place = format!("line {}, column {}", error.line(), error.column());
        let message = match error.classify() {
            serde_json::error::Category::Data => format!("the JSON is not what is expected here, at {place}"),
            _ => format!("the body is not JSON, at {place}"),
        };
        ApiError::bad_request("invalid_json", message)
    })
}

/// Whether the first that is no space is this.
pub fn begins_with(json: &[u8], first: u8) -> bool {
    json.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&first)
}

type Frame<E> = Option<Result<http_body::Frame<Bytes>, E>>;

/// The next frame if it comes at once or when everybody else had a turn. Most bodies do, and then need no timer.
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

/// When more than so many bytes must have come.
fn due(began: Timestamp, size: usize) -> Timestamp {
    began + limits::BODY_GRACE + Duration::from_secs(size as u64 / limits::BODY_BYTES_PER_SECOND_MIN)
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("a body is at most {limit} bytes");
    ApiError::over(Limit::BodyBytes, StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

fn too_slow() -> ApiError {
    let message = format!(
        "a body comes within {} s and after that with {} bytes a second at least",
        limits::BODY_GRACE.as_secs(),
        limits::BODY_BYTES_PER_SECOND_MIN
    );
    ApiError::over(Limit::BodyTime, StatusCode::REQUEST_TIMEOUT, "body_too_slow", message)
}

/// Parts of a body, in memory of their own: what comes from the socket lies in a buffer many times its size, which would
/// be kept as long as the record is.
#[derive(Default)]
struct Collected {
    only: Bytes,
    joined: BytesMut,
}

impl Collected {
    fn push(&mut self, part: Bytes) {
        if self.only.is_empty() && self.joined.is_empty() {
            self.only = part;
            return;
        }
        if self.joined.is_empty() {
            self.joined.extend_from_slice(&std::mem::take(&mut self.only));
        }
        self.joined.extend_from_slice(&part);
    }

    fn into_bytes(self) -> Bytes {
        if self.joined.is_empty() { Bytes::copy_from_slice(&self.only) } else { self.joined.freeze() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use futures_util::stream;
    use tidings_engine::ManualClock;

    fn clock() -> ManualClock {
        ManualClock::at(Timestamp::from_millis(1000))
    }

    fn body(parts: &[&'static str]) -> Body {
        let parts: Vec<_> = parts.iter().map(|part| Ok::<_, std::io::Error>(Bytes::from(*part))).collect();
        Body::from_stream(stream::iter(parts))
    }

    #[tokio::test]
    async fn parts_are_joined_up_to_the_limit() {
        for (parts, whole) in [(vec![], ""), (vec!["abc"], "abc"), (vec!["", "a", "", "bc", "d"], "abcd")] {
            assert_eq!(bytes(body(&parts), 4, &clock()).await.expect("within the limit"), whole);
        }
        for beyond in [vec!["abc", "de"], vec!["abc", "def", "ghi", "never read"], vec!["abcde"]] {
            let refused = bytes(body(&beyond), 4, &clock()).await.expect_err("beyond the limit");
            assert_eq!(axum::response::IntoResponse::into_response(refused).status(), 413);
        }
        let known = http_body_util::Full::new(Bytes::from_static(b"abcde"));
        assert!(bytes(known, 4, &clock()).await.is_err());
    }

    #[tokio::test]
    async fn a_body_that_stalls_is_given_up_when_its_time_is_over() {
        let clock = clock();
        let waits = clock.clone();
        let stalled = tokio::spawn(async move {
            bytes(Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>()), 4, &waits).await
        });
        while clock.sleepers() == 0 {
            tokio::task::yield_now().await;
        }
        clock.advance(limits::BODY_GRACE);
        assert!(stalled.await.expect("no panic").is_err());
    }
}
