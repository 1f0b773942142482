//! Errors of the paths that name no project: `{"ok":false,"error"}` on subscriptions, `{"error","code","details"?}` on
//! ingest.

use std::fmt::Display;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse, Response};
use serde_json::{Value, json};
use tidings_hooks::HookError;
use tidings_model::limits::Limit;

use super::request::InvalidMember;
use super::settings::Fault;
use crate::credential::CredentialKind;
use crate::error::{ApiError, Refused};

/// An error response of subscriptions.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    error: String,
    /// Path that does not exist.
    path: Option<Box<str>>,
    about: Box<About>,
}

/// What an error response has beside its body.
#[derive(Debug)]
struct About {
    code: &'static str,
    headers: Vec<(HeaderName, String)>,
    limit: Option<Limit>,
    failure: Option<String>,
}

impl Refusal {
    /// An error for a malformed request.
    pub fn invalid(error: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", error)
    }

    /// An error for a body that is not a JSON object.
    pub fn not_json() -> Self {
        Self::invalid("Invalid JSON body")
    }

    /// An error for a path that does not exist.
    pub fn no_such_path(path: &str) -> Self {
        let inner = path.strip_prefix(super::SUBSCRIPTIONS).filter(|inner| !inner.is_empty()).unwrap_or("/");
        let told = Self::new(StatusCode::NOT_FOUND, "no_such_path", "Unknown subscription endpoint");
        Self { path: Some(inner.into()), ..told }
    }

    /// An error for a method that the path does not support.
    pub fn no_such_method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "no_such_method", "Method not allowed")
    }

    /// Changes the status code.
    pub fn at(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    fn new(status: StatusCode, code: &'static str, error: impl Display) -> Self {
        let about = About { code, headers: Vec::new(), limit: None, failure: None };
        Self { status, error: error.to_string(), path: None, about: about.into() }
    }
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        let code = error.code();
        let parts = error.into_parts();
        let error = match code {
            "hook_not_found" => "Subscription not found".to_owned(),
            "dead_letter_not_found" => "Dead letter not found".to_owned(),
            "hook_exists" => {
                "Subscription already exists for this worker/pattern/method combination".to_owned()
            }
            _ => parts.message,
        };
        let about = About { code, headers: parts.headers, limit: parts.limit, failure: parts.failure };
        Self { status: parts.status, error, path: None, about: about.into() }
    }
}

impl From<HookError> for Refusal {
    fn from(error: HookError) -> Self {
        match error {
            HookError::Invalid { field, why } => Fault::Value { field, why }.into(),
            error => ApiError::from(error).into(),
        }
    }
}

impl From<InvalidMember> for Refusal {
    fn from(InvalidMember(message): InvalidMember) -> Self {
        Self::invalid(format!("Invalid field: {message}"))
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        let error = match fault {
            Fault::Missing(field) => format!("Missing required field: {field} (string)"),
            Fault::Type { field, expected } => format!("Invalid field: {field} must be {expected}"),
            Fault::Value { field: field @ ("pattern" | "workerId" | "rpcMethod" | "url"), why } => {
                format!("Invalid {field}: {why}")
            }
            Fault::Value { field, why } => format!("Invalid field: {field}: {why}"),
            Fault::Fixed(field) => format!("Invalid field: {field} cannot be changed"),
            Fault::Unknown(field) => format!("Invalid field: {field}"),
        };
        Self::new(StatusCode::BAD_REQUEST, "invalid_hook", error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut body = json!({ "ok": false, "error": self.error });
        if let Some(path) = self.path {
            body["path"] = Value::String(path.into());
        }
        self.about.respond(self.status, body)
    }
}

impl About {
    fn respond(self, status: StatusCode, body: Value) -> Response {
        let mut response = (status, AppendHeaders(self.headers), axum::Json(body)).into_response();
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let refused = Refused { code: self.code, limit: self.limit, failure: self.failure };
        response.extensions_mut().insert(refused);
        response
    }
}

/// An error response of ingest.
#[derive(Debug)]
pub struct IngestRefusal {
    status: StatusCode,
    error: String,
    details: Option<Box<Value>>,
    about: About,
}

impl IngestRefusal {
    /// An error for a method other than `POST`.
    pub fn no_such_method() -> Self {
        let refused = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "no_such_method", "Method not allowed")
            .with(header::ALLOW, "POST");
        Self::of(refused, CredentialKind::None)
    }

    /// Translates an error of a request that carried a credential of this kind.
    pub fn of(error: ApiError, credential: CredentialKind) -> Self {
        let status = error.status();
        let code = code(status, error.code(), credential);
        let parts = error.into_parts();
        let about = About { code, headers: parts.headers, limit: parts.limit, failure: parts.failure };
        Self { status, error: parts.message, details: parts.details, about }
    }
}

/// The code of an error on ingest.
fn code(status: StatusCode, code: &str, credential: CredentialKind) -> &'static str {
    use StatusCode as S;
    match (code, status) {
        ("invalid_json", _) => "INVALID_JSON",
        ("invalid_batch", _) => "INVALID_BATCH",
        ("invalid_event", _) => "INVALID_EVENT",
        ("event_too_large", _) => "EVENT_TOO_LARGE",
        ("invalid_namespace", _) => "INVALID_NAMESPACE",
        ("namespace_not_found", _) => "NAMESPACE_NOT_FOUND",
        ("admin_required", _) => "ADMIN_REQUIRED",
        ("quota_exceeded", _) => "QUOTA_EXCEEDED",
        ("no_space", _) => "NO_SPACE",
        (_, S::UNAUTHORIZED) => match credential {
            CredentialKind::None => "AUTH_REQUIRED",
            CredentialKind::Malformed => "INVALID_AUTH_FORMAT",
            CredentialKind::ApiKey => "INVALID_NAMESPACE_KEY",
            CredentialKind::Other => "INVALID_API_KEY",
        },
        (_, S::FORBIDDEN) => "FORBIDDEN",
        (_, S::METHOD_NOT_ALLOWED) => "METHOD_NOT_ALLOWED",
        (_, S::REQUEST_TIMEOUT) => "TIMEOUT",
        (_, S::PAYLOAD_TOO_LARGE) => "PAYLOAD_TOO_LARGE",
        (_, S::TOO_MANY_REQUESTS) => "RATE_LIMITED",
        (_, S::SERVICE_UNAVAILABLE) => "SERVICE_UNAVAILABLE",
        (_, status) if status.is_client_error() => "INVALID_REQUEST",
        _ => "INTERNAL_ERROR",
    }
}

impl IntoResponse for IngestRefusal {
    fn into_response(self) -> Response {
        let mut body = json!({ "error": self.error, "code": self.about.code });
        if let Some(details) = self.details {
            body["details"] = *details;
        }
        self.about.respond(self.status, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_auth::Denied;
    use tidings_engine::log::StoreError;

    #[test]
    fn each_error_of_ingest_has_the_code_that_clients_know() {
        use CredentialKind as Kind;
        let none = StoreError::NoSpace;
        let large = StoreError::TooLarge { bytes: 2, most: 1 };
        for (error, kind, status, code) in [
            (Denied::Missing.into(), Kind::None, 401, "AUTH_REQUIRED"),
            (Denied::Malformed.into(), Kind::Malformed, 401, "INVALID_AUTH_FORMAT"),
            (Denied::Unknown.into(), Kind::Other, 401, "INVALID_API_KEY"),
            (Denied::Expired.into(), Kind::Other, 401, "INVALID_API_KEY"),
            (Denied::Unknown.into(), Kind::ApiKey, 401, "INVALID_NAMESPACE_KEY"),
            (Denied::Forbidden.into(), Kind::Other, 403, "FORBIDDEN"),
            (HookError::QuotaExceeded { most: 1 }.into(), Kind::ApiKey, 429, "QUOTA_EXCEEDED"),
            (HookError::Contended.into(), Kind::ApiKey, 503, "SERVICE_UNAVAILABLE"),
            (HookError::Store(none).into(), Kind::ApiKey, 507, "NO_SPACE"),
            (HookError::Store(large).into(), Kind::ApiKey, 413, "PAYLOAD_TOO_LARGE"),
            (ApiError::internal("a disk"), Kind::ApiKey, 500, "INTERNAL_ERROR"),
        ] {
            let refusal = IngestRefusal::of(error, kind);
            assert_eq!((refusal.status.as_u16(), refusal.about.code), (status, code));
            assert!(!refusal.error.contains("disk"), "told in general");
        }
    }

    #[test]
    fn each_fault_of_a_setting_has_the_text_that_clients_know() {
        let text = |fault: Fault| Refusal::from(fault).error;
        assert_eq!(text(Fault::Missing("workerId")), "Missing required field: workerId (string)");
        let integer = Fault::Type { field: "maxRetries", expected: "an integer" };
        assert_eq!(text(integer), "Invalid field: maxRetries must be an integer");
        let pattern = Fault::Value { field: "pattern", why: "pattern is empty".into() };
        assert_eq!(text(pattern), "Invalid pattern: pattern is empty");
        let range = Fault::Value { field: "timeoutMs", why: "expected 1 to 2, got 3".into() };
        assert_eq!(text(range), "Invalid field: timeoutMs: expected 1 to 2, got 3");
        let exists = Refusal::from(HookError::Exists);
        assert_eq!(exists.error, "Subscription already exists for this worker/pattern/method combination");
        assert_eq!(Refusal::from(HookError::NoSuchHook).error, "Subscription not found");
    }

    #[test]
    fn an_unknown_path_is_told_as_it_stands_below_the_prefix() {
        let told = |path: &str| Refusal::no_such_path(path).path.expect("a path").into_string();
        assert_eq!(told("/subscriptions/nope/x"), "/nope/x");
        assert_eq!((told("/subscriptions"), told("/subscriptions/")), ("/".into(), "/".into()));
    }
}
