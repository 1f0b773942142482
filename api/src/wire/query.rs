//! The query of a read.

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use tidings_streams::From as Start;

use super::{header, offset};
use crate::error::ApiError;

/// The parameters of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadQuery {
    /// Where to begin.
    pub from: Start,
    /// Whether to wait for new records.
    pub live: Live,
    /// The client's `cursor`, if it sent one.
    pub cursor: Option<u64>,
}

/// Whether a reader waits for new records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Live {
    /// It gets what is there.
    No,
    /// It waits for one answer.
    LongPoll,
    /// It stays connected, with server-sent events.
    Sse,
    /// It stays connected, as a WebSocket.
    WebSocket,
}

impl<S: Send + Sync> FromRequestParts<S> for ReadQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Query(pairs) = Query::<Vec<(String, String)>>::from_request_parts(parts, state)
            .await
            .map_err(|error| ApiError::bad_request("invalid_query", error.body_text()))?;
        Self::parse(&pairs, header::text(&parts.headers, &header::LAST_EVENT_ID)?)
    }
}

impl ReadQuery {
    /// Parses the known parameters; others are ignored. A browser that reconnects sends its original address
    /// and the id of the last event it received; the id takes precedence over the address.
    fn parse(pairs: &[(String, String)], last_event: Option<&str>) -> Result<Self, ApiError> {
        let live = match once(pairs, "live")? {
            None => Live::No,
            Some("long-poll") => Live::LongPoll,
            Some("sse") => Live::Sse,
            Some("websocket") => Live::WebSocket,
            Some(_) => {
                let message = "live is `long-poll`, `sse` or `websocket`";
                return Err(ApiError::bad_request("invalid_live", message));
            }
        };
        let last_event = last_event.filter(|id| live == Live::Sse && !id.is_empty());
        let from = match last_event.or(once(pairs, "offset")?) {
            None if live != Live::No => {
                return Err(ApiError::bad_request("offset_required", "a live read needs an offset"));
            }
            None | Some("-1") => Start::Start,
            Some("now") => Start::Tail,
            Some(text) => Start::After(offset::required("offset", text)?),
        };
        let cursor = once(pairs, "cursor")?.and_then(|text| text.parse().ok());
        Ok(Self { from, live, cursor })
    }
}

/// The value of a parameter that may occur at most once.
pub fn once<'a>(pairs: &'a [(String, String)], name: &str) -> Result<Option<&'a str>, ApiError> {
    let mut values = pairs.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let value = values.next();
    match values.next() {
        None => Ok(value),
        Some(_) => Err(ApiError::bad_request("invalid_query", format!("{name} may be given once"))),
    }
}
