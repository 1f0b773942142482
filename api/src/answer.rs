//! Headers that every response carries, including errors.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tidings_auth::{Config, Gate};
use tidings_model::ProjectId;

use crate::Api;
use crate::capability::Preflight;
use crate::dev_mode::{self, CredentialPresence};
use crate::error::ApiError;
use crate::request_limiter::HeadBytes;
use crate::websocket;
use crate::{capability, credential, path};

const METHODS: &str = "GET, HEAD, PUT, POST, PATCH, DELETE, OPTIONS";

/// Request headers that pages of other origins may send (CORS).
const ALLOWED: &str = "authorization, content-type, if-match, if-none-match, last-event-id, \
    producer-id, producer-epoch, producer-seq, \
    stream-seq, stream-ttl, stream-expires-at, stream-closed, \
    stream-max-age, stream-max-bytes, stream-max-messages, \
    stream-forked-from, stream-fork-offset, stream-fork-sub-offset, x-request-id, x-tenant-namespace";

/// Response headers that pages of other origins may read (CORS).
const EXPOSED: &str = "deprecation, etag, link, location, retry-after, \
    producer-epoch, producer-seq, producer-expected-seq, producer-received-seq, \
    stream-next-offset, stream-oldest-offset, stream-cursor, stream-up-to-date, stream-closed, \
    stream-ttl, stream-expires-at, stream-max-age, stream-max-bytes, stream-max-messages, \
    stream-fanout-count, stream-fanout-successes, stream-fanout-failures, stream-fanout-mode, \
    stream-sse-data-encoding, stream-epoch, last-event-id, x-request-id";

/// Middleware: checks the limits of a request, answers CORS preflights, and adds the CORS and security headers to
/// every response.
pub async fn finish(State(api): State<Api>, request: Request, next: Next) -> Response {
    let head = request.extensions().get().copied().unwrap_or_else(|| HeadBytes::of(&request));
    let named = || credential::project_of(&api.gate, &request);
    let admission = Admission::of(&api, &request, head, credential::presence_in(&request), named);
    let response = match admission.admitted {
        Err(error) => error.into_response(),
        Ok(()) if request.method() == Method::OPTIONS => preflight(),
        Ok(()) => next.run(request).await,
    };
    finished(response, admission.origin, admission.content)
}

/// Result of the checks that precede the handler of a request.
pub struct Admission {
    /// Whether the request is passed to its handler.
    pub admitted: Result<(), ApiError>,
    /// Which web pages may read the response.
    pub origin: Origin,
    /// Who may have chosen the content of the response.
    pub content: Content,
}

impl Admission {
    /// Checks a request, on the fast path or in the router. `named` returns the project that the credential names.
    pub fn of(
        api: &Api,
        request: &Request,
        head: HeadBytes,
        presence: CredentialPresence,
        named: impl Fn() -> Option<ProjectId>,
    ) -> Self {
        let content = Content::asked_with(request.method());
        if let Err(error) = dev_mode::check(api, request, presence) {
            return Self { admitted: Err(error), origin: Origin::Foreign, content };
        }
        let admitted = api.request_limiter.fits(request, head);
        let admitted = admitted.and_then(|()| check_handshake(&api.gate, request, &named));
        Self { admitted, origin: Origin::of(&api.gate, request, named), content }
    }
}

/// Refuses a page that opens a WebSocket, unless the project allows its origin. Browsers do not apply CORS to
/// WebSockets: any page may open one, and read from it. In dev mode, pages of this machine may.
fn check_handshake(
    gate: &Gate,
    request: &Request,
    named: impl Fn() -> Option<ProjectId>,
) -> Result<(), ApiError> {
    let headers = request.headers();
    let mut origins = headers.get_all(header::ORIGIN).iter();
    if !websocket::is_asked_for(headers) {
        return Ok(());
    }
    let origin = match (origins.next(), origins.next()) {
        // Not a browser.
        (None, _) => return Ok(()),
        (Some(origin), None) => Some(origin),
        (Some(_), Some(_)) => None,
    };
    let allowed = |origin: &HeaderValue| {
        let project =
            path::project_of(request.uri().path()).or_else(named).unwrap_or_else(ProjectId::default_project);
        let of_project = || gate.projects().config(&project).is_some_and(|config| allows(&config, origin));
        (gate.is_open() && dev_mode::is_of_this_machine(origin)) || of_project()
    };
    match origin.is_some_and(allowed) {
        true => Ok(()),
        false => {
            let message = "the project does not allow pages of this origin to open a WebSocket; its `corsOrigins` must list it";
            Err(ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message))
        }
    }
}

/// Whether the configuration of a project allows pages of an origin.
fn allows(config: &Config, page: &HeaderValue) -> bool {
    config.cors_origins.iter().any(|allowed| **allowed == *"*" || allowed.as_bytes() == page.as_bytes())
}

/// Who may have chosen the content of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A client: the content was stored and is returned with the content type that client chose.
    Stored,
    /// The server.
    Own,
}

impl Content {
    /// Returns the kind of content of a response to this method.
    fn asked_with(method: &Method) -> Self {
        if [Method::GET, Method::HEAD].contains(method) { Self::Stored } else { Self::Own }
    }
}

/// Adds the headers that every response carries.
pub fn finished(mut response: Response, origin: Origin, content: Content) -> Response {
    let headers = response.headers_mut();
    set(headers, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    if content == Content::Stored {
        // A browser that is led to open stored content must not run its scripts, nor treat it as a page of this
        // server's origin.
        set(headers, header::CONTENT_SECURITY_POLICY, "sandbox");
    }
    set(headers, HeaderName::from_static("cross-origin-resource-policy"), "cross-origin");
    origin.allow(headers);
    response
}

/// Which web pages may read a response.
pub enum Origin {
    /// Pages of any origin.
    Any,
    /// Pages of this origin. Other origins may have different rights, so caches must tell them apart.
    Listed(HeaderValue),
    /// The requesting page may not read the response.
    Foreign,
    /// Not applicable: no page sent the request, and the response is not cacheable.
    Nobody,
}

impl Origin {
    /// Determines which pages may read the response, by the project in the path, or else by the project of the token, which
    /// `named` returns.
    pub fn of(gate: &Gate, request: &Request, named: impl FnOnce() -> Option<ProjectId>) -> Self {
        let page = request.headers().get(header::ORIGIN);
        if page.is_none() && ![Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method()) {
            return Self::Nobody;
        }
        let path = request.uri().path();
        let project = path::project_of(path);
        let project = match (project, capability::project_of_token(path)) {
            (None, Some(preflight)) => match named() {
                None if preflight == Preflight::AnyProject
                    && *request.method() == Method::OPTIONS
                    && !gate.is_open() =>
                {
                    return page.map_or(Self::Foreign, |page| Self::of_any_project(gate, page));
                }
                named => Some(named.unwrap_or_else(ProjectId::default_project)),
            },
            (project, _) => project,
        };
        // In dev mode, pages may use any project, but not administer the server.
        if gate.is_open() {
            return if project.is_some() { Self::Any } else { Self::Foreign };
        }
        let config = project.and_then(|project| gate.projects().config(&project));
        let allowed = config.map(|config| config.cors_origins).unwrap_or_default();
        if allowed.iter().any(|allowed| **allowed == *"*") {
            return Self::Any;
        }
        match page {
            Some(origin) if allowed.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes()) => {
                Self::Listed(origin.clone())
            }
            _ => Self::Foreign,
        }
    }

    /// Allows the origin of a page if any project allows it.
    fn of_any_project(gate: &Gate, page: &HeaderValue) -> Self {
        if gate.projects().any_config(|config| allows(config, page)) {
            Self::Listed(page.clone())
        } else {
            Self::Foreign
        }
    }

    fn allow(self, headers: &mut HeaderMap) {
        match self {
            Self::Nobody => return,
            Self::Any => set(headers, header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
            Self::Listed(origin) => {
                headers.append(header::VARY, HeaderValue::from_static("Origin"));
                headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            }
            Self::Foreign => {
                headers.append(header::VARY, HeaderValue::from_static("Origin"));
                for name in [
                    header::ACCESS_CONTROL_ALLOW_METHODS,
                    header::ACCESS_CONTROL_ALLOW_HEADERS,
                    header::ACCESS_CONTROL_MAX_AGE,
                ] {
                    headers.remove(name);
                }
                return;
            }
        }
        set(headers, header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
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
