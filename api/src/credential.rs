//! Extracts the credential of a request before any other code sees the request.

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use percent_encoding::percent_decode_str;
use tidings_auth::key::API_KEY_PREFIX;
use tidings_auth::{Action, Credential, Denied, Gate, Pass, Reach, Resource, Route};
use tidings_model::ProjectId;
use tidings_streams::{Owner, StreamError, StreamKey};

use crate::Api;
use crate::dev_mode::CredentialPresence;
use crate::error::ApiError;
use crate::request_limiter::HeadBytes;

/// The credential of a request, if there is one.
#[derive(Clone, Debug)]
struct PresentedCredential(Result<Option<Credential>, Denied>);

/// Middleware: removes the credential from the header and the query, so that no later log, trace or error can contain
/// it. It is the outermost layer.
pub async fn take(mut request: Request, next: Next) -> Response {
    let head = HeadBytes::of(&request);
    let shown = PresentedCredential::take(&mut request);
    request.extensions_mut().insert(head);
    request.extensions_mut().insert(shown);
    next.run(request).await
}

impl PresentedCredential {
    fn take(request: &mut Request) -> Self {
        let in_query = take_from_query(request.uri_mut());
        let in_header = take_from_headers(request.headers_mut());
        Self(in_header.map(|credential| credential.or(in_query)))
    }

    fn presence(&self) -> CredentialPresence {
        match &self.0 {
            Ok(None) => CredentialPresence::Nothing,
            // A malformed credential counts as one; it is refused when it is used.
            Ok(Some(_)) | Err(_) => CredentialPresence::Credential,
        }
    }
}

fn take_from_headers(headers: &mut HeaderMap) -> Result<Option<Credential>, Denied> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let shown = match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            let bearer = value.to_str().ok().and_then(bearer);
            bearer.map(Credential::new).map(Some).ok_or(Denied::Malformed)
        }
        (Some(_), Some(_)) => Err(Denied::Malformed),
    };
    headers.remove(header::AUTHORIZATION);
    shown
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Removes the token from the query (`?token=`), for clients that cannot set headers, such as a browser's
/// `EventSource`.
fn take_from_query(uri: &mut Uri) -> Option<Credential> {
    let query = uri.query()?;
    let is_token = |pair: &&str| {
        let name = pair.split('=').next().unwrap_or_default();
        percent_decode_str(name).decode_utf8().is_ok_and(|name| name == "token")
    };
    let first = query.split('&').find(is_token)?;
    let text = first.split_once('=').map_or("", |(_, value)| value);
    let credential = Credential::new(&percent_decode_str(text).decode_utf8_lossy());
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_token(pair)).collect();
    let path = match rest.is_empty() {
        true => uri.path().to_owned(),
        false => format!("{}?{}", uri.path(), rest.join("&")),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(path).unwrap_or(PathAndQuery::from_static("/")));
    *uri = Uri::from_parts(parts).unwrap_or_default();
    Some(credential)
}

/// Returns the project named by the credential of a request, if it names one. The credential is not verified.
pub fn project_of(gate: &Gate, request: &Request) -> Option<ProjectId> {
    let shown =
        request.extensions().get::<PresentedCredential>().and_then(|shown| shown.0.as_ref().ok()?.as_ref());
    gate.project_named_by(shown?)
}

/// Returns whether a credential was extracted from a request.
pub fn presence_in(request: &Request) -> CredentialPresence {
    request
        .extensions()
        .get::<PresentedCredential>()
        .map_or(CredentialPresence::Nothing, PresentedCredential::presence)
}

/// Kinds of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialKind {
    /// None was sent.
    None,
    /// Something was sent that is not a bearer token.
    Malformed,
    /// An API key.
    ApiKey,
    /// A token, or the admin key.
    Other,
}

/// Sender of a request.
pub struct Caller {
    api: Api,
    shown: PresentedCredential,
}

impl FromRequestParts<Api> for Caller {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Self::Rejection> {
        let shown =
            parts.extensions.get::<PresentedCredential>().cloned().unwrap_or(PresentedCredential(Ok(None)));
        Ok(Self { api: api.clone(), shown })
    }
}

impl Caller {
    /// Extracts the credential from a request and returns its sender.
    pub fn take(api: &Api, request: &mut Request) -> Self {
        Self { api: api.clone(), shown: PresentedCredential::take(request) }
    }

    /// Returns whether the request carries a credential.
    pub fn presence(&self) -> CredentialPresence {
        self.shown.presence()
    }

    /// Checks that the caller may perform an action on a stream. The returned pass can be checked again later. Counts
    /// towards the rate limit.
    pub async fn may(&self, action: Action, stream: &StreamKey) -> Result<Pass, ApiError> {
        self.may_in(&stream.project, action, Resource::Stream(stream.id.clone())).await
    }

    /// Checks that the caller is authenticated in a project. Does not count towards the rate limit, because the
    /// authorization check that follows does.
    pub async fn is_known_in(&self, project: &ProjectId) -> Result<(), ApiError> {
        match self.validated(project, Action::Read, Resource::Project).await {
            Err(error) if error.status() == StatusCode::UNAUTHORIZED => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Returns the project named by the credential, or the default project.
    pub fn project_named(&self) -> ProjectId {
        self.names().unwrap_or_else(ProjectId::default_project)
    }

    /// Returns the project named by the credential, if it names one. The credential is not verified.
    pub fn names(&self) -> Option<ProjectId> {
        let shown = self.shown.0.as_ref().ok().and_then(Option::as_ref);
        shown.and_then(|shown| self.api.gate.project_named_by(shown))
    }

    /// Returns the bearer token of the request, if it has one, for tokens that are no credentials of a project.
    pub fn bearer(&self) -> Option<&str> {
        self.shown.0.as_ref().ok()?.as_ref().map(Credential::reveal)
    }

    /// Returns what kind of credential the request carries. The credential is not verified.
    pub fn kind(&self) -> CredentialKind {
        match &self.shown.0 {
            Ok(None) => CredentialKind::None,
            Err(_) => CredentialKind::Malformed,
            Ok(Some(shown)) if shown.reveal().starts_with(API_KEY_PREFIX) => CredentialKind::ApiKey,
            Ok(Some(_)) => CredentialKind::Other,
        }
    }

    /// Checks that the caller may perform an action in a project. Counts towards the rate limit.
    pub async fn may_in(
        &self,
        project: &ProjectId,
        action: Action,
        resource: Resource,
    ) -> Result<Pass, ApiError> {
        let pass = self.validated(project, action, resource).await?;
        // After the access check: requests of strangers must not use up the project's rate limit.
        self.api.request_limiter.admit(project)?;
        Ok(pass)
    }

    /// Checks that the caller may perform an action on a further stream. Does not count towards the rate limit again.
    pub async fn may_also(&self, action: Action, stream: &StreamKey) -> Result<Pass, ApiError> {
        self.validated(&stream.project, action, Resource::Stream(stream.id.clone())).await
    }

    /// Checks that the caller's pass covers streams of this owner.
    pub fn reaches(&self, pass: &Pass, owner: Owner) -> Result<(), ApiError> {
        match (pass.reach(), owner) {
            (Reach::All, _) | (Reach::PlainStreams, Owner::Clients) | (Reach::Sessions, Owner::Session) => {
                Ok(())
            }
            (Reach::PlainStreams, Owner::Session) | (Reach::Sessions, Owner::Clients) => {
                // A caller without a credential was admitted because the stream's name is public, which a session
                // never is.
                let shown = self.shown()?;
                Err(shown.map_or(Denied::Missing, |_| Denied::Forbidden).into())
            }
        }
    }

    /// Checks that the caller's pass covers the stream that currently has this name. A missing stream passes; the
    /// operation itself reports it.
    pub async fn reaches_stream(&self, pass: &Pass, stream: &StreamKey) -> Result<(), ApiError> {
        if pass.reach() == Reach::All {
            return Ok(());
        }
        match self.api.streams.describe(stream).await {
            Ok(found) => self.reaches(pass, found.stream.owner),
            Err(StreamError::NotFound | StreamError::Gone) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Judges the caller's right to perform an action in a project, for routes that tell refusals in their own way. Fails
    /// only if the project's rate limit is exceeded, towards which callers count that may.
    pub async fn judged_in(
        &self,
        project: &ProjectId,
        action: Action,
        resource: Resource,
    ) -> Result<Result<Pass, Denied>, ApiError> {
        let route = Route { action, project: project.clone(), resource };
        let judged = match self.shown() {
            Ok(shown) => self.api.gate.enter(route, shown).await,
            Err(denied) => Err(denied),
        };
        if judged.is_ok() {
            self.api.request_limiter.admit(project)?;
        }
        Ok(judged)
    }

    async fn validated(
        &self,
        project: &ProjectId,
        action: Action,
        resource: Resource,
    ) -> Result<Pass, ApiError> {
        let route = Route { action, project: project.clone(), resource };
        Ok(self.api.gate.enter(route, self.shown()?).await?)
    }

    /// Checks that the caller may administer the server.
    pub fn may_administer(&self) -> Result<(), ApiError> {
        Ok(self.api.gate.administer(self.shown()?)?)
    }

    /// Checks again, after the body has arrived, that the pass is still valid.
    pub async fn may_still(&self, pass: &Pass) -> Result<(), ApiError> {
        Ok(pass.again(self.api.gate.clock().now()).await?)
    }

    fn shown(&self) -> Result<Option<&Credential>, Denied> {
        self.shown.0.as_ref().map(Option::as_ref).map_err(Denied::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_leaves_the_address_and_the_rest_stays() {
        for (before, after, token) in [
            ("/v1/stream/s?token=abc", "/v1/stream/s", Some("abc")),
            ("/v1/stream/s?offset=-1&token=a%2Eb&live=sse", "/v1/stream/s?offset=-1&live=sse", Some("a.b")),
            ("/v1/stream/s?token=one&token=two", "/v1/stream/s", Some("one")),
            ("/v1/stream/s?%74oken=abc&x=%20", "/v1/stream/s?x=%20", Some("abc")),
            ("/v1/stream/s?token", "/v1/stream/s", Some("")),
            ("/v1/stream/s?tokens=abc", "/v1/stream/s?tokens=abc", None),
            ("/v1/stream/token=abc", "/v1/stream/token=abc", None),
            ("http://host:1/v1/stream/s?token=abc&a=b", "http://host:1/v1/stream/s?a=b", Some("abc")),
        ] {
            let mut uri: Uri = before.parse().expect("an address");
            let taken = take_from_query(&mut uri);
            assert_eq!(uri.to_string(), after, "{before}");
            assert_eq!(taken.as_ref().map(Credential::reveal), token, "{before}");
        }
    }

    #[test]
    fn an_authorization_is_one_bearer_and_leaves_the_headers() {
        let take = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, value.parse().expect("a value"));
            }
            let taken = take_from_headers(&mut headers);
            assert!(headers.is_empty());
            taken.map(|taken| taken.map(|credential| credential.reveal().to_owned()))
        };
        assert_eq!(take(&[]), Ok(None));
        assert_eq!(take(&["Bearer abc"]), Ok(Some("abc".to_owned())));
        assert_eq!(take(&["bearer  abc"]), Ok(Some("abc".to_owned())));
        for bad in [&["Basic abc"][..], &["abc"], &["Bearer"], &["Bearer "], &["Bearer a", "Bearer b"]] {
            assert_eq!(take(bad), Err(Denied::Malformed), "{bad:?}");
        }
    }
}
