//! What every answer carries, also those that tell of an error.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::Api;
use crate::error::ApiError;

const METHODS: &str = "GET, HEAD, PUT, POST, DELETE, OPTIONS";

/// Headers a browser may send.
const ALLOWED: &str = "authorization, content-type, if-match, if-none-match, last-event-id, \
    producer-id, producer-epoch, producer-seq, \
    stream-seq, stream-ttl, stream-expires-at, stream-closed, \
    stream-forked-from, stream-fork-offset, stream-fork-sub-offset, x-request-id";

/// Headers a browser may show to the page.
const EXPOSED: &str = "etag, location, retry-after, \
    producer-epoch, producer-seq, producer-expected-seq, producer-received-seq, \
    stream-next-offset, stream-oldest-offset, stream-cursor, stream-up-to-date, stream-closed, \
    stream-ttl, stream-expires-at, stream-sse-data-encoding, x-request-id";

/// Lets a request in if it is within its limits, answers preflights, and puts on every answer what browsers need to use
/// it, and only as it is meant.
pub async fn finish(State(api): State<Api>, request: Request, next: Next) -> Response {
    let mut response = match let_in(&api, &request) {
        Err(error) => error.into_response(),
        Ok(()) if request.method() == Method::OPTIONS => preflight(),
        Ok(()) => next.run(request).await,
    };
    let headers = response.headers_mut();
    set(headers, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(headers, HeaderName::from_static("cross-origin-resource-policy"), "cross-origin");
    set(headers, header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");
    set(headers, header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    response
}

/// Preflights are a browser's own doing and do not count among a project's requests.
fn let_in(api: &Api, request: &Request) -> Result<(), ApiError> {
    api.gate.fits(request)?;
    match *request.method() {
        Method::OPTIONS => Ok(()),
        _ => api.gate.admit(request.uri().path()),
    }
}

fn preflight() -> Response {
    let headers = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED),
        (header::ACCESS_CONTROL_MAX_AGE, "86400"),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &'static str) {
    headers.insert(name, HeaderValue::from_static(value));
}
