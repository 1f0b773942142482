//! Request bodies whose rest is read and discarded before an error is sent: a client that is cut off while it
//! sends would not receive the error.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Version, header};
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tidings_engine::Clock;
use tidings_model::limits;

/// The body of a request.
pub struct Upload {
    body: Body,
    /// Whether any part of it was requested.
    begun: bool,
}

impl Upload {
    /// A body of which nothing was read yet.
    pub fn new(body: Body) -> Self {
        Self { body, begun: false }
    }
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.begun = true;
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// How a request sends its body.
#[derive(Clone, Copy)]
pub struct Sending {
    version: Version,
    /// Whether the client waits for `100 Continue`, which is sent when the body is first polled.
    waits: bool,
}

impl Sending {
    /// Derives it from the head of a request.
    pub fn of(version: Version, headers: &HeaderMap) -> Self {
        let expected = headers.get(header::EXPECT).map(HeaderValue::as_bytes);
        Self { version, waits: expected.is_some_and(|text| text.eq_ignore_ascii_case(b"100-continue")) }
    }
}

/// Whether the response is an error and the client is still sending, so that it might not receive it.
pub fn is_lost_on(response: &Response, upload: &Upload) -> bool {
    let status = response.status();
    (status.is_client_error() || status.is_server_error()) && !http_body::Body::is_end_stream(upload)
}

/// Reads and discards the rest of a body for a while, so that the client receives the error response.
pub async fn read_on(mut upload: Upload, sending: Sending, clock: &dyn Clock, response: &mut Response) {
    let waits = sending.waits && !upload.begun;
    // A body that came too slowly has used up its time.
    let over = waits || response.status() == StatusCode::REQUEST_TIMEOUT;
    let whole = !over
        && tokio::select! {
            whole = discard(&mut upload) => whole,
            () = clock.sleep(limits::DISCARD_TIMEOUT) => false,
        };
    if !whole && sending.version <= Version::HTTP_11 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
}

/// Discards the rest of a body. Returns whether its end was reached within the limit.
async fn discard(upload: &mut Upload) -> bool {
    let mut discarded = 0;
    while let Some(frame) = upload.frame().await {
        let Ok(frame) = frame else { return false };
        discarded += frame.data_ref().map_or(0, Bytes::len);
        if discarded > limits::DISCARD_BYTES {
            return false;
        }
    }
    true
}

/// The place to which a lent body returns.
#[derive(Clone, Default)]
pub struct UnreadSlot(Arc<Mutex<Option<Upload>>>);

impl UnreadSlot {
    /// Lends a body to a handler, which may drop it at any point.
    pub fn wrap(&self, body: Body) -> Body {
        Body::new(ReturningBody { upload: Some(Upload::new(body)), unread_slot: self.clone() })
    }

    /// The returned body, if its end was not reached.
    pub fn take(&self) -> Option<Upload> {
        self.0.lock().expect("nobody panics while holding it").take()
    }
}

struct ReturningBody {
    /// `None` once the body was read to its end.
    upload: Option<Upload>,
    unread_slot: UnreadSlot,
}

impl Drop for ReturningBody {
    fn drop(&mut self) {
        *self.unread_slot.0.lock().expect("nobody panics while holding it") = self.upload.take();
    }
}

impl http_body::Body for ReturningBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(upload) = &mut self.upload else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(upload).poll_frame(cx));
        if frame.is_none() {
            self.upload = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.upload.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.upload.as_ref().map_or(SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use tidings_engine::ManualClock;
    use tidings_model::Timestamp;

    fn sent(parts: usize, part: usize) -> Body {
        let part = Bytes::from(vec![0; part]);
        Body::from_stream(stream::iter((0..parts).map(move |_| Ok::<_, std::io::Error>(part.clone()))))
    }

    async fn closes(upload: Upload, sending: Sending, status: StatusCode) -> bool {
        let clock = ManualClock::at(Timestamp::from_millis(1000));
        let mut response = Response::default();
        *response.status_mut() = status;
        assert!(is_lost_on(&response, &upload));
        read_on(upload, sending, &clock, &mut response).await;
        response.headers().contains_key(header::CONNECTION)
    }

    #[tokio::test]
    async fn what_is_too_much_or_not_coming_is_not_read_and_the_connection_ends() {
        let plain = Sending { version: Version::HTTP_11, waits: false };
        let (denied, slow) = (StatusCode::UNAUTHORIZED, StatusCode::REQUEST_TIMEOUT);
        assert!(!closes(Upload::new(sent(16, limits::DISCARD_BYTES / 16)), plain, denied).await);
        assert!(closes(Upload::new(sent(17, limits::DISCARD_BYTES / 16)), plain, denied).await);
        assert!(closes(Upload::new(sent(1, 1)), plain, slow).await);
        assert!(closes(Upload::new(sent(1, 1)), Sending { waits: true, ..plain }, denied).await);
        let begun = Upload { begun: true, ..Upload::new(sent(1, 1)) };
        assert!(!closes(begun, Sending { waits: true, ..plain }, denied).await, "it was told to go on");
        let two = Sending { version: Version::HTTP_2, ..plain };
        assert!(!closes(Upload::new(sent(17, limits::DISCARD_BYTES / 16)), two, denied).await);
    }

    #[tokio::test]
    async fn a_body_that_was_lent_comes_back_unless_it_was_read_to_its_end() {
        let unread_slot = UnreadSlot::default();
        drop(unread_slot.wrap(sent(2, 10)));
        assert_eq!(
            unread_slot.take().expect("all of it").collect().await.expect("readable").to_bytes().len(),
            20
        );
        let mut lent = unread_slot.wrap(sent(2, 10));
        lent.frame().await.expect("a part").expect("readable");
        drop(lent);
        assert_eq!(
            unread_slot.take().expect("the rest").collect().await.expect("readable").to_bytes().len(),
            10
        );
        unread_slot.wrap(sent(2, 10)).collect().await.expect("readable");
        assert!(unread_slot.take().is_none());
    }
}
