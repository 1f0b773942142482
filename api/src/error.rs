//! Maps errors to status codes. The only file that knows both; there is no `_` arm, so that a new error must
//! choose its status.

use std::fmt::Display;

use axum::http::{HeaderName, StatusCode, Uri, header};
use axum::response::{AppendHeaders, IntoResponse, Response};
use serde_json::{Value, json};
use tidings_auth::{Declined, Denied, InvalidKey, InvalidToken, ProjectError};
use tidings_engine::log::{ProducerRefusal, StoreError};
use tidings_entities::SourceError;
use tidings_hooks::HookError;
use tidings_hooks::ingest::{InvalidBatch, InvalidEvents};
use tidings_model::limits::Limit;
use tidings_model::{InvalidId, InvalidProducer, Position};
use tidings_sessions::SessionError;
use tidings_streams::StreamError;

use crate::capability::{self, Unserved};
use crate::wire::header as names;
use crate::wire::offset;

/// `Retry-After` for a stream with the maximum number of readers, in seconds. Readers come and go.
const READERS_RETRY_SECONDS: u32 = 5;
/// `Retry-After` for a stream with the maximum number of producers, in seconds. They are forgotten only after
/// days.
const PRODUCERS_RETRY_SECONDS: u32 = 3600;
/// `Retry-After` for a hook with the maximum number of replays under way, in seconds.
const REPLAYS_RETRY_SECONDS: u32 = 60;
/// `Retry-After` when the quota of events is used up, in seconds. It is per day.
const QUOTA_RETRY_SECONDS: u32 = 3600;
/// `Retry-After` while a source of changes is away, in seconds.
const SOURCE_RETRY_SECONDS: u32 = 5;
/// `Retry-After` when concurrent changes interfered, in seconds.
const CONTENDED_RETRY_SECONDS: u32 = 1;

/// An error response: `{"error":{"code","message","details"?}}`.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    details: Option<Box<Value>>,
    headers: Vec<(HeaderName, String)>,
    limit: Option<Limit>,
    failure: Option<String>,
}

/// The parts of an error response.
pub struct ErrorParts {
    /// Status code.
    pub status: StatusCode,
    /// Message for people.
    pub message: String,
    /// Details for programs.
    pub details: Option<Box<Value>>,
    /// Additional headers.
    pub headers: Vec<(HeaderName, String)>,
    /// The limit that was hit, if that is the cause.
    pub limit: Option<Limit>,
    /// Full description of an internal failure. Logged, never sent.
    pub failure: Option<String>,
}

/// What an error response tells the observer. An extension of the response, not sent to the client.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Code for programs.
    pub code: &'static str,
    /// The limit that was hit, if that is the cause.
    pub limit: Option<Limit>,
    /// Full description of an internal failure.
    pub failure: Option<String>,
}

impl ApiError {
    /// An error with a code for programs and a message for people.
    pub fn new(status: StatusCode, code: &'static str, message: impl Display) -> Self {
        Self {
            status,
            code,
            message: message.to_string(),
            details: None,
            headers: Vec::new(),
            limit: None,
            failure: None,
        }
    }

    /// An error because a limit was hit.
    pub fn over(limit: Limit, status: StatusCode, code: &'static str, message: impl Display) -> Self {
        Self { limit: Some(limit), ..Self::new(status, code, message) }
    }

    /// An error for a malformed request.
    pub fn bad_request(code: &'static str, message: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// An internal error. The log gets the full description, the client a general one.
    pub fn internal(error: impl Display) -> Self {
        let message = "the server could not do this; see its log";
        let told = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message);
        Self { failure: Some(error.to_string()), ..told }
    }

    /// The status code.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The code for programs.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// Splits the error into its parts, for routes that format errors differently.
    pub fn into_parts(self) -> ErrorParts {
        let Self { status, code: _, message, details, headers, limit, failure } = self;
        ErrorParts { status, message, details, headers, limit, failure }
    }

    /// Adds a header.
    pub fn with(mut self, name: HeaderName, value: impl ToString) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }

    /// Adds details for programs.
    pub fn detailed(mut self, details: Value) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    fn with_next(self, tail: Position) -> Self {
        self.with(names::STREAM_NEXT_OFFSET, offset::print(tail))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut body = json!({ "error": { "code": self.code, "message": self.message } });
        if let Some(details) = self.details {
            body["error"]["details"] = *details;
        }
        let mut response = (self.status, AppendHeaders(self.headers), axum::Json(body)).into_response();
        let refused = Refused { code: self.code, limit: self.limit, failure: self.failure };
        response.extensions_mut().insert(refused);
        response
    }
}

impl From<StreamError> for ApiError {
    fn from(error: StreamError) -> Self {
        use StatusCode as S;
        match &error {
            StreamError::NotFound => Self::new(S::NOT_FOUND, "stream_not_found", error),
            StreamError::Gone => Self::new(S::GONE, "stream_gone", error),
            StreamError::Conflict(_) => Self::new(S::CONFLICT, "stream_exists", error),
            StreamError::ContentTypeMismatch { .. } => Self::new(S::CONFLICT, "content_type_mismatch", error),
            StreamError::InvalidJson(_) => Self::bad_request("invalid_json", error),
            StreamError::EmptyAppend => Self::bad_request("empty_append", error),
            StreamError::EmptyArray => Self::bad_request("empty_array", error),
            StreamError::TooManyMessages => {
                Self::over(Limit::MessagesPerAppend, S::PAYLOAD_TOO_LARGE, "too_many_messages", error)
            }
            &StreamError::Closed { tail } => Self::new(S::CONFLICT, "stream_closed", error)
                .with(names::STREAM_CLOSED, "true")
                .with_next(tail),
            &StreamError::Producer(ProducerRefusal::Fenced { epoch }) => {
                Self::new(S::FORBIDDEN, "producer_fenced", error).with(names::PRODUCER_EPOCH, epoch)
            }
            &StreamError::Producer(ProducerRefusal::Gap { expected, received }) => {
                Self::new(S::CONFLICT, "producer_gap", error)
                    .with(names::PRODUCER_EXPECTED_SEQ, expected)
                    .with(names::PRODUCER_RECEIVED_SEQ, received)
            }
            StreamError::Producer(ProducerRefusal::EpochStart) => {
                Self::bad_request("producer_epoch_start", error)
            }
            StreamError::Producer(ProducerRefusal::TooMany) => {
                Self::over(Limit::ProducersPerLog, S::TOO_MANY_REQUESTS, "too_many_producers", error)
                    .with(header::RETRY_AFTER, PRODUCERS_RETRY_SECONDS)
            }
            StreamError::OutOfOrder => Self::new(S::CONFLICT, "sequence_conflict", error),
            &StreamError::TailMoved { tail } => {
                Self::new(S::PRECONDITION_FAILED, "tail_moved", error).with_next(tail)
            }
            StreamError::SourceNotFound => Self::new(S::NOT_FOUND, "source_not_found", error),
            StreamError::SourceGone => Self::new(S::CONFLICT, "source_gone", error),
            StreamError::SourceForeign => Self::new(S::FORBIDDEN, "source_foreign", error),
            StreamError::ForkBeyondTail => Self::bad_request("fork_beyond_tail", error),
            StreamError::ForkBetweenRecords => Self::bad_request("fork_between_records", error),
            StreamError::SubOffsetBeyondAppend => Self::bad_request("sub_offset_beyond_append", error),
            StreamError::ForkTooDeep => Self::over(Limit::ForkDepth, S::BAD_REQUEST, "fork_too_deep", error),
            &StreamError::Trimmed { floor, tail } => Self::new(S::GONE, "offset_trimmed", error)
                .with(names::STREAM_OLDEST_OFFSET, offset::print(floor))
                .with_next(tail),
            StreamError::TooManyReaders => {
                Self::over(Limit::ReadersPerStream, S::SERVICE_UNAVAILABLE, "too_many_readers", error)
                    .with(header::RETRY_AFTER, READERS_RETRY_SECONDS)
            }
            StreamError::Contended => Self::new(S::SERVICE_UNAVAILABLE, "contended", error),
            StreamError::Store(StoreError::NoSpace) => Self::new(S::INSUFFICIENT_STORAGE, "no_space", error),
            StreamError::Store(StoreError::TooLarge { .. }) => {
                Self::new(S::PAYLOAD_TOO_LARGE, "commit_too_large", error)
            }
            StreamError::Store(StoreError::Unavailable(_)) | StreamError::Unexpected(_) => {
                Self::internal(error)
            }
        }
    }
}

impl From<SessionError> for ApiError {
    fn from(error: SessionError) -> Self {
        use StatusCode as S;
        match error {
            SessionError::NotFound => Self::new(S::NOT_FOUND, "session_not_found", error),
            SessionError::SourceNotFound => Self::new(S::NOT_FOUND, "stream_not_found", error),
            SessionError::NotASession => Self::new(S::CONFLICT, "stream_exists", error),
            SessionError::SourceIsSession => Self::bad_request("source_is_session", error),
            SessionError::ContentTypeMismatch { .. } => {
                Self::new(S::CONFLICT, "content_type_mismatch", error)
            }
            SessionError::EnvelopeNeedsJson => Self::bad_request("envelope_needs_json", error),
            SessionError::SessionStream => Self::new(S::FORBIDDEN, "session_stream", error),
            SessionError::TooMany(tidings_sessions::Declined::TooManySources) => {
                Self::over(Limit::SourcesPerSession, S::TOO_MANY_REQUESTS, "too_many_subscriptions", error)
            }
            SessionError::TooMany(tidings_sessions::Declined::TooManyLeft) => {
                Self::over(Limit::SourcesPerSession, S::TOO_MANY_REQUESTS, "too_many_left", error)
            }
            SessionError::TooMany(tidings_sessions::Declined::TooManyEnvelopeChanges) => {
                Self::over(Limit::EnvelopeChanges, S::TOO_MANY_REQUESTS, "too_many_envelope_changes", error)
            }
            SessionError::TooManySessions(_) => {
                Self::over(Limit::SessionsPerProject, S::TOO_MANY_REQUESTS, "too_many_sessions", error)
            }
            SessionError::TooMany(_) => {
                Self::over(Limit::SubscribersPerSource, S::TOO_MANY_REQUESTS, "too_many_subscribers", error)
            }
            SessionError::Contended => Self::new(S::SERVICE_UNAVAILABLE, "contended", error),
            SessionError::Stream(error) => error.into(),
        }
    }
}

impl From<SourceError> for ApiError {
    fn from(error: SourceError) -> Self {
        use StatusCode as S;
        match &error {
            SourceError::InvalidCursor(_) => Self::bad_request("invalid_cursor", error),
            SourceError::Unavailable(_) | SourceError::Misconfigured(_) => {
                let message = "the database that has the changes cannot be reached at the moment";
                let told = Self::new(S::SERVICE_UNAVAILABLE, "source_unavailable", message);
                let told = Self { failure: Some(error.to_string()), ..told };
                told.with(header::RETRY_AFTER, SOURCE_RETRY_SECONDS)
            }
            SourceError::Store(StoreError::NoSpace) => Self::new(S::INSUFFICIENT_STORAGE, "no_space", error),
            SourceError::Store(StoreError::TooLarge { .. }) => {
                Self::new(S::PAYLOAD_TOO_LARGE, "commit_too_large", error)
            }
            SourceError::Store(StoreError::Unavailable(_)) => Self::internal(error),
        }
    }
}

impl From<HookError> for ApiError {
    fn from(error: HookError) -> Self {
        use StatusCode as S;
        match &error {
            HookError::NoSuchHook => Self::new(S::NOT_FOUND, "hook_not_found", error),
            HookError::NoSuchDeadLetter => Self::new(S::NOT_FOUND, "dead_letter_not_found", error),
            HookError::Invalid { .. } => Self::bad_request("invalid_hook", error),
            HookError::InvalidBatch(invalid) => invalid.clone().into(),
            HookError::Exists => Self::new(S::CONFLICT, "hook_exists", error),
            HookError::TooMany { .. } => {
                Self::over(Limit::HooksPerProject, S::TOO_MANY_REQUESTS, "too_many_hooks", error)
            }
            HookError::TooManyReplays { .. } => {
                Self::over(Limit::ReplaysPerHook, S::TOO_MANY_REQUESTS, "too_many_replays", error)
                    .with(header::RETRY_AFTER, REPLAYS_RETRY_SECONDS)
            }
            HookError::TooManyReaders { .. } => {
                Self::over(Limit::ReadersPerStream, S::SERVICE_UNAVAILABLE, "too_many_readers", error)
                    .with(header::RETRY_AFTER, READERS_RETRY_SECONDS)
            }
            &HookError::Trimmed { floor, tail } => Self::new(S::GONE, "offset_trimmed", error)
                .with(names::STREAM_OLDEST_OFFSET, offset::print(floor))
                .with_next(tail),
            &HookError::RateLimited { retry_after, .. } => {
                Self::over(Limit::IngestRate, S::TOO_MANY_REQUESTS, "rate_limited", error)
                    .with(header::RETRY_AFTER, retry_after)
            }
            HookError::QuotaExceeded { .. } => {
                Self::over(Limit::IngestRate, S::TOO_MANY_REQUESTS, "quota_exceeded", error)
                    .with(header::RETRY_AFTER, QUOTA_RETRY_SECONDS)
            }
            HookError::Contended => Self::new(S::SERVICE_UNAVAILABLE, "contended", error)
                .with(header::RETRY_AFTER, CONTENDED_RETRY_SECONDS),
            HookError::Store(StoreError::NoSpace) => Self::new(S::INSUFFICIENT_STORAGE, "no_space", error),
            HookError::Store(StoreError::TooLarge { .. }) => {
                Self::new(S::PAYLOAD_TOO_LARGE, "commit_too_large", error)
            }
            HookError::Store(StoreError::Unavailable(_)) | HookError::Unexpected(_) => Self::internal(error),
        }
    }
}

impl From<InvalidBatch> for ApiError {
    fn from(error: InvalidBatch) -> Self {
        let details = |events: &InvalidEvents| {
            let one = |(index, message): &(usize, String)| json!({ "index": index, "message": message });
            events.first.iter().map(one).collect()
        };
        match &error {
            InvalidBatch::Json(_) => Self::bad_request("invalid_json", error),
            InvalidBatch::Batch(_) => Self::bad_request("invalid_batch", error),
            InvalidBatch::Events(events) => {
                Self::bad_request("invalid_event", &error).detailed(details(events))
            }
            InvalidBatch::TooLarge(events) => {
                Self::bad_request("event_too_large", &error).detailed(details(events))
            }
        }
    }
}

impl From<Denied> for ApiError {
    fn from(error: Denied) -> Self {
        let unknown = |code, error| {
            Self::new(StatusCode::UNAUTHORIZED, code, error).with(header::WWW_AUTHENTICATE, "Bearer")
        };
        let known = |code, error| Self::new(StatusCode::FORBIDDEN, code, error);
        match &error {
            Denied::Missing => unknown("token_missing", error),
            Denied::Malformed | Denied::Token(_) => unknown("token_malformed", error),
            Denied::Unknown | Denied::Unauthenticated(_) => unknown("unauthorized", error),
            Denied::Expired => unknown("token_expired", error),
            Denied::TooEarly => unknown("token_too_early", error),
            Denied::Revoked => unknown("token_revoked", error),
            Denied::WrongProject => known("wrong_project", error),
            Denied::Forbidden | Denied::Refused(_) => known("forbidden", error),
        }
    }
}

impl From<ProjectError> for ApiError {
    fn from(error: ProjectError) -> Self {
        use StatusCode as S;
        match &error {
            ProjectError::Reserved => Self::bad_request("reserved_id", error),
            ProjectError::Given => Self::new(S::CONFLICT, "project_given", error),
            ProjectError::Default => Self::new(S::CONFLICT, "default_project", error),
            ProjectError::NoKey => Self::new(S::CONFLICT, "no_key", error),
            ProjectError::Config(_) => Self::bad_request("invalid_config", error),
            ProjectError::Declined(declined) => match declined {
                Declined::Exists => Self::new(S::CONFLICT, "project_exists", error),
                Declined::Removing => Self::new(S::CONFLICT, "project_removing", error),
                Declined::NoSuchProject => Self::new(S::NOT_FOUND, "project_not_found", error),
                Declined::NoSuchKey => Self::new(S::NOT_FOUND, "key_not_found", error),
                Declined::LastKey => Self::new(S::CONFLICT, "last_key", error),
                Declined::SameKey => Self::new(S::CONFLICT, "key_exists", error),
                Declined::TooManyKeys => Self::new(S::CONFLICT, "too_many_keys", error),
                Declined::TooManyProjects => Self::new(S::CONFLICT, "too_many_projects", error),
                Declined::TooManyRevocations => Self::new(S::CONFLICT, "too_many_revocations", error),
                Declined::TooManyRevokedTopics => Self::new(S::CONFLICT, "too_many_revoked_topics", error),
            },
            ProjectError::Store(StoreError::NoSpace) => Self::new(S::INSUFFICIENT_STORAGE, "no_space", error),
            ProjectError::Store(StoreError::TooLarge { .. }) => {
                Self::new(S::PAYLOAD_TOO_LARGE, "commit_too_large", error)
            }
            ProjectError::Store(StoreError::Unavailable(_)) => Self::internal(error),
        }
    }
}

impl From<InvalidKey> for ApiError {
    fn from(error: InvalidKey) -> Self {
        Self::bad_request("invalid_key", error)
    }
}

/// For a token that is to be created; one that was sent with a request is denied instead.
impl From<InvalidToken> for ApiError {
    fn from(error: InvalidToken) -> Self {
        Self::bad_request("invalid_claims", error)
    }
}

impl From<InvalidId> for ApiError {
    fn from(error: InvalidId) -> Self {
        Self::bad_request("invalid_id", error)
    }
}

impl From<InvalidProducer> for ApiError {
    fn from(error: InvalidProducer) -> Self {
        Self::bad_request("invalid_producer", error)
    }
}

/// Answers requests to paths that do not exist.
pub async fn no_such_path(uri: Uri) -> Response {
    capability::unserved(uri.path(), Unserved::Path).unwrap_or_else(|| {
        ApiError::new(StatusCode::NOT_FOUND, "no_such_path", "nothing is served at this path").into_response()
    })
}

/// Answers requests with a method that the path does not support.
pub async fn no_such_method(uri: Uri) -> Response {
    capability::unserved(uri.path(), Unserved::Method).unwrap_or_else(|| {
        let message = "this path does not take this method";
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "no_such_method", message).into_response()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_to_come_again_is_told_when() {
        let streams = [StreamError::Producer(ProducerRefusal::TooMany), StreamError::TooManyReaders];
        let hooks = [
            HookError::TooManyReplays { most: 16 },
            HookError::TooManyReaders { most: 1000 },
            HookError::RateLimited { what: "events", most: 1, retry_after: 60 },
            HookError::QuotaExceeded { most: 1 },
            HookError::Contended,
        ];
        for error in streams.map(ApiError::from).into_iter().chain(hooks.map(ApiError::from)) {
            let answer = error.into_response();
            assert!(answer.headers().contains_key(header::RETRY_AFTER), "{}", answer.status());
        }
    }
}
