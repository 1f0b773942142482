//! Error responses of rooms: `{"error","message","retryAfter"?,"detail"?}`, on all their routes.

use std::fmt::Display;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse, Response};
use serde_json::{Value, json};
use tidings_auth::Denied;
use tidings_engine::log::{ProducerRefusal, StoreError};
use tidings_model::limits::Limit;
use tidings_model::{InvalidId, InvalidProducer};
use tidings_rooms::{BadEvent, InvalidCursor, RoomError};

use crate::error::{ApiError, Refused};
use crate::wire::header as names;

/// Retry delay when the server is temporarily unavailable.
const UNAVAILABLE: Duration = Duration::from_secs(1);

/// An error response.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    error: &'static str,
    message: String,
    retry_after: Option<Duration>,
    detail: Option<Box<Value>>,
    headers: Vec<(HeaderName, String)>,
    limit: Option<Limit>,
    failure: Option<String>,
}

impl Refusal {
    /// An error with a name for programs and a message for people.
    pub fn new(status: StatusCode, error: &'static str, message: impl Display) -> Self {
        Self {
            status,
            error,
            message: message.to_string(),
            retry_after: None,
            detail: None,
            headers: Vec::new(),
            limit: None,
            failure: None,
        }
    }

    /// An error for a malformed request.
    pub fn invalid(message: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "InvalidRequest", message)
    }

    /// An error for a request that exceeds a size.
    fn too_large(message: impl Display) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "PayloadTooLarge", message)
    }

    /// An error for a caller without the right.
    pub fn forbidden(message: impl Display) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// An error for a caller that is not a member, or must not learn that the room does not exist.
    pub fn not_member() -> Self {
        Self::new(StatusCode::FORBIDDEN, "NotMember", "not a member of this conversation")
    }

    /// An error for a room that does not exist.
    pub fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "ConvoNotFound", "there is no such conversation")
    }

    /// Names the limit that was hit.
    #[must_use]
    pub fn over(self, limit: Limit) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Tells the client when to retry.
    #[must_use]
    pub fn retrying(self, after: Duration) -> Self {
        Self { retry_after: Some(after), ..self }
    }

    /// Adds details for programs.
    #[must_use]
    pub fn detailed(self, detail: Value) -> Self {
        Self { detail: Some(Box::new(detail)), ..self }
    }

    fn with(mut self, name: HeaderName, value: impl Display) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }
}

/// A duration in seconds, as a JSON number.
pub fn seconds(duration: Duration) -> Value {
    json!(duration.as_millis() as f64 / 1000.0)
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut body = json!({ "error": self.error, "message": self.message });
        if let Some(after) = self.retry_after {
            body["retryAfter"] = seconds(after);
        }
        if let Some(detail) = self.detail {
            body["detail"] = *detail;
        }
        let mut response = (self.status, AppendHeaders(self.headers), axum::Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, (after.as_millis().div_ceil(1000) as u64).into());
        }
        let refused = Refused { code: self.error, limit: self.limit, failure: self.failure };
        response.extensions_mut().insert(refused);
        response
    }
}

/// Translates the errors that rooms share with other routes into the format of rooms.
impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        use StatusCode as S;
        let name = match error.status() {
            S::UNAUTHORIZED if error.code() == "token_expired" => "TokenExpired",
            S::UNAUTHORIZED => "AuthRequired",
            S::FORBIDDEN => "Forbidden",
            S::PAYLOAD_TOO_LARGE => "PayloadTooLarge",
            S::TOO_MANY_REQUESTS => "TooManyRequests",
            status if status.is_client_error() => "InvalidRequest",
            _ => "Unavailable",
        };
        let parts = error.into_parts();
        let told = Self::new(parts.status, name, parts.message);
        let mut told = Self { limit: parts.limit, failure: parts.failure, ..told };
        for (header, value) in parts.headers {
            match value.parse() {
                Ok(seconds) if header == header::RETRY_AFTER => {
                    told.retry_after = Some(Duration::from_secs(seconds));
                }
                _ => told.headers.push((header, value)),
            }
        }
        if told.status.is_server_error() { told.retrying(UNAVAILABLE) } else { told }
    }
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        ApiError::from(denied).into()
    }
}

impl From<RoomError> for Refusal {
    fn from(error: RoomError) -> Self {
        use StatusCode as S;
        match &error {
            RoomError::NotFound => Self::not_found(),
            RoomError::NoEvents | RoomError::TypingByProducer | RoomError::AddedAndRemoved => {
                Self::invalid(error)
            }
            RoomError::TooManyEvents => Self::too_large(error).over(Limit::EventsPerWrite),
            RoomError::PayloadTooLarge { .. } => Self::too_large(error).over(Limit::EventBytes),
            RoomError::TooManyMembers { .. } => Self::too_large(error).over(Limit::MembersPerRoom),
            &RoomError::Producer(ProducerRefusal::Fenced { epoch }) => {
                Self::new(S::FORBIDDEN, "ProducerFenced", error).with(names::PRODUCER_EPOCH, epoch)
            }
            &RoomError::Producer(ProducerRefusal::Gap { expected, received }) => {
                Self::new(S::CONFLICT, "ProducerGap", error)
                    .with(names::PRODUCER_EXPECTED_SEQ, expected)
                    .with(names::PRODUCER_RECEIVED_SEQ, received)
            }
            RoomError::Producer(ProducerRefusal::EpochStart) => Self::invalid(error),
            RoomError::Producer(ProducerRefusal::TooMany) => {
                Self::new(S::TOO_MANY_REQUESTS, "TooManyProducers", error)
                    .over(Limit::ProducersPerLog)
                    .retrying(Duration::from_secs(3600))
            }
            RoomError::Forgotten => Self::new(S::CONFLICT, "ProducerForgotten", error),
            RoomError::Fenced | RoomError::Contended => {
                Self::new(S::SERVICE_UNAVAILABLE, "Unavailable", error).retrying(UNAVAILABLE)
            }
            RoomError::Store(StoreError::NoSpace) => {
                Self::new(S::INSUFFICIENT_STORAGE, "Unavailable", error).retrying(UNAVAILABLE)
            }
            RoomError::Store(StoreError::TooLarge { .. }) => {
                Self::new(S::PAYLOAD_TOO_LARGE, "PayloadTooLarge", error)
            }
            RoomError::Store(StoreError::Unavailable(_)) => ApiError::internal(error).into(),
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        RoomError::Store(error).into()
    }
}

impl From<InvalidCursor> for Refusal {
    fn from(error: InvalidCursor) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "InvalidCursor", error)
    }
}

impl From<InvalidId> for Refusal {
    fn from(error: InvalidId) -> Self {
        Self::invalid(error)
    }
}

impl From<InvalidProducer> for Refusal {
    fn from(error: InvalidProducer) -> Self {
        Self::invalid(error)
    }
}

impl From<BadEvent> for Refusal {
    fn from(error: BadEvent) -> Self {
        Self::invalid(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_that_passes_is_5xx_and_says_when_to_come_again() {
        let unavailable = || RoomError::Store(StoreError::Unavailable("a disk".into()));
        for (error, status) in [
            (RoomError::Fenced, StatusCode::SERVICE_UNAVAILABLE),
            (RoomError::Contended, StatusCode::SERVICE_UNAVAILABLE),
            (RoomError::Store(StoreError::NoSpace), StatusCode::INSUFFICIENT_STORAGE),
            (unavailable(), StatusCode::INTERNAL_SERVER_ERROR),
        ] {
            let refusal = Refusal::from(error);
            assert_eq!((refusal.status, refusal.error), (status, "Unavailable"));
            let response = refusal.into_response();
            assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        }
        assert!(!Refusal::from(unavailable()).message.contains("disk"), "told in general");
    }
}
