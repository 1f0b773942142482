//! Names of the protocol's headers, and functions to read them.

use axum::http::{HeaderMap, HeaderName};

use crate::error::ApiError;

macro_rules! names {
    ($($constant:ident = $text:literal),+ $(,)?) => {
        $(
            #[doc = concat!("`", $text, "`")]
            pub const $constant: HeaderName = HeaderName::from_static($text);
        )+
    };
}

names! {
    LAST_EVENT_ID = "last-event-id",
    PRODUCER_ID = "producer-id",
    PRODUCER_EPOCH = "producer-epoch",
    PRODUCER_SEQ = "producer-seq",
    PRODUCER_EXPECTED_SEQ = "producer-expected-seq",
    PRODUCER_RECEIVED_SEQ = "producer-received-seq",
    STREAM_CLOSED = "stream-closed",
    STREAM_CURSOR = "stream-cursor",
    STREAM_EPOCH = "stream-epoch",
    STREAM_EXPIRES_AT = "stream-expires-at",
    STREAM_FANOUT_COUNT = "stream-fanout-count",
    STREAM_FANOUT_FAILURES = "stream-fanout-failures",
    STREAM_FANOUT_MODE = "stream-fanout-mode",
    STREAM_FANOUT_SUCCESSES = "stream-fanout-successes",
    STREAM_FORKED_FROM = "stream-forked-from",
    STREAM_FORK_OFFSET = "stream-fork-offset",
    STREAM_FORK_SUB_OFFSET = "stream-fork-sub-offset",
    STREAM_MAX_AGE = "stream-max-age",
    STREAM_MAX_BYTES = "stream-max-bytes",
    STREAM_MAX_MESSAGES = "stream-max-messages",
    STREAM_NEXT_OFFSET = "stream-next-offset",
    STREAM_OLDEST_OFFSET = "stream-oldest-offset",
    STREAM_SEQ = "stream-seq",
    STREAM_SSE_DATA_ENCODING = "stream-sse-data-encoding",
    STREAM_TTL = "stream-ttl",
    STREAM_UP_TO_DATE = "stream-up-to-date",
}

/// The text of a header that may occur at most once.
pub fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(ApiError::bad_request("invalid_header", format!("{name} may be given once")));
    }
    match value.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(ApiError::bad_request("invalid_header", format!("{name} is not plain text"))),
    }
}

/// Whether a header is `true`, ignoring case. Any other value counts as absent.
pub fn is_true(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.get(name).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"))
}
