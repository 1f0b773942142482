//! Errors of subscriptions, with the codes of the protocol: `{"error":{"code","message"}}`.

use std::fmt::Display;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tidings_model::limits::Limit;
use tidings_streams::StreamError;
use tidings_subscriptions::SubscriptionError;

use crate::error::{ApiError, Refused};

/// An error response of subscriptions.
#[derive(Debug)]
pub enum Refusal {
    /// One with a code of the protocol.
    Own {
        /// Status code.
        status: StatusCode,
        /// Code of the protocol.
        code: &'static str,
        /// Message for people.
        message: String,
        /// Further members of the error.
        members: Value,
    },
    /// One that other requests have, too.
    Common(ApiError),
}

impl Refusal {
    /// An error for a malformed request.
    pub fn invalid(message: impl Display) -> Self {
        Self::own(StatusCode::BAD_REQUEST, "INVALID_REQUEST", message)
    }

    /// An error for a request without the token of a wake or a claim.
    pub fn no_token() -> Self {
        let message = "the request needs `Authorization: Bearer` with the token of its wake or claim";
        Self::own(StatusCode::UNAUTHORIZED, "TOKEN_INVALID", message)
    }

    /// An error for an offset that this server never gave.
    pub fn no_offset(stream: &str) -> Self {
        let message = format!("`{stream}`: the offset is not one that this server gave");
        Self::own(StatusCode::CONFLICT, "INVALID_OFFSET", message)
    }

    fn own(status: StatusCode, code: &'static str, message: impl Display) -> Self {
        Self::Own { status, code, message: message.to_string(), members: json!({}) }
    }
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self::Common(error)
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Common(error) => error,
            Refusal::Own { status, code, message, .. } => Self::new(status, code, message),
        }
    }
}

impl From<SubscriptionError> for Refusal {
    fn from(error: SubscriptionError) -> Self {
        use StatusCode as S;
        match error {
            SubscriptionError::Invalid(_) => Self::invalid(error),
            SubscriptionError::UrlRejected(_) => Self::own(S::BAD_REQUEST, "WEBHOOK_URL_REJECTED", error),
            SubscriptionError::NotFound => Self::own(S::NOT_FOUND, "SUBSCRIPTION_NOT_FOUND", error),
            SubscriptionError::Exists => Self::own(S::CONFLICT, "SUBSCRIPTION_ALREADY_EXISTS", error),
            SubscriptionError::TokenInvalid => Self::own(S::UNAUTHORIZED, "TOKEN_INVALID", error),
            SubscriptionError::TokenExpired => Self::own(S::UNAUTHORIZED, "TOKEN_EXPIRED", error),
            SubscriptionError::Fenced => Self::own(S::CONFLICT, "FENCED", error),
            SubscriptionError::NoPendingWork => Self::own(S::CONFLICT, "NO_PENDING_WORK", error),
            SubscriptionError::InvalidOffset(_) => Self::own(S::CONFLICT, "INVALID_OFFSET", error),
            SubscriptionError::AlreadyClaimed { ref holder, generation } => Self::Own {
                status: S::CONFLICT,
                code: "ALREADY_CLAIMED",
                message: error.to_string(),
                members: json!({ "current_holder": holder, "generation": generation }),
            },
            SubscriptionError::TooMany { .. } => Self::Common(ApiError::over(
                Limit::StreamSubscriptionsPerProject,
                S::TOO_MANY_REQUESTS,
                "too_many_subscriptions",
                error,
            )),
            SubscriptionError::TooManyLinks => Self::Common(ApiError::over(
                Limit::SubscriptionLinks,
                S::TOO_MANY_REQUESTS,
                "too_many_links",
                error,
            )),
            SubscriptionError::Contended => {
                Self::Common(ApiError::new(S::SERVICE_UNAVAILABLE, "contended", error))
            }
            SubscriptionError::Stream(error) => Self::Common(error.into()),
            SubscriptionError::Store(error) => Self::Common(StreamError::from(error).into()),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Common(error) => error.into_response(),
            Self::Own { status, code, message, members } => {
                let mut body = json!({ "error": { "code": code, "message": message } });
                if let (Some(error), Value::Object(members)) = (body["error"].as_object_mut(), members) {
                    error.extend(members);
                }
                let mut response = (status, axum::Json(body)).into_response();
                response.extensions_mut().insert(Refused { code, limit: None, failure: None });
                response
            }
        }
    }
}
