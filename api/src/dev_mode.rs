//! Protects a server in dev mode from web pages.
//!
//! With `--dev` the server requires no credential and listens only on the loopback interface. A browser on the same
//! machine can still reach it: any page the user visits can send requests, and with DNS rebinding (a page's host name
//! made to resolve to this machine) a page can even act as if this were its own server. Therefore a request without a
//! credential is checked by what the browser reports about the page that sent it.
//!
//! [`check`] is the only check. It is called for every request before its handler: on the fast path
//! ([`crate::fast_path`]), in the router, and for the first request of a connection, which also goes through the
//! router.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use tidings_auth::Denied;

use crate::error::ApiError;
use crate::operations::MetricsAccess;
use crate::{Api, Scheme};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

const ELSEWHERE: &str = "without a credential a server in dev mode serves programs and pages of this machine alone; this \
    request names a host, or comes from a page of an origin, that is not `localhost`, in 127.0.0.0/8 or `[::1]`";

const ADMINISTERS: &str = "without the admin key a server in dev mode is administered by programs and by pages of its own \
    origin alone; this request comes from a page of another origin";

/// Whether a request carries a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialPresence {
    /// It carries one, which is verified where it is used.
    Credential,
    /// It carries none.
    Nothing,
}

/// On a server in dev mode, refuses a request without a credential that a page from another machine may have sent,
/// and an administrative request that a page of another origin may have sent.
pub fn check(api: &Api, request: &Request, presence: CredentialPresence) -> Result<(), ApiError> {
    if !api.gate.is_open() || is_credential_checked(api, request, presence) || is_harmless_preflight(request)
    {
        return Ok(());
    }
    let refused = match Sender::of(request) {
        Sender::Elsewhere => ELSEWHERE,
        Sender::OtherOrigin if administers(request.uri().path()) => ADMINISTERS,
        Sender::OtherOrigin | Sender::Own => return Ok(()),
    };
    Err(Denied::Refused(refused.to_owned()).into())
}

/// Returns whether the request carries a credential that will be verified.
fn is_credential_checked(api: &Api, request: &Request, presence: CredentialPresence) -> bool {
    // Open metrics do not verify credentials, so any text would pass as one.
    let unasked = request.uri().path() == "/metrics" && api.metrics_access == MetricsAccess::Open;
    presence == CredentialPresence::Credential && !unasked
}

/// Returns whether a request is a CORS preflight that may be answered. It has no effect, and the actual request is
/// checked on its own; that one may carry a credential, which a preflight never does.
fn is_harmless_preflight(request: &Request) -> bool {
    let headers = request.headers();
    *request.method() == Method::OPTIONS
        && names_this_machine(request.uri(), headers)
        && (!administers(request.uri().path()) || announces_credential(headers))
}

/// Returns whether a preflight announces an `Authorization` header.
fn announces_credential(headers: &HeaderMap) -> bool {
    let asked = headers.get_all(header::ACCESS_CONTROL_REQUEST_HEADERS);
    let names = asked.iter().filter_map(|names| names.to_str().ok()).flat_map(|names| names.split(','));
    names.into_iter().any(|name| name.trim().eq_ignore_ascii_case(header::AUTHORIZATION.as_str()))
}

/// Returns whether a path is administrative: projects, their configuration, and metrics.
fn administers(path: &str) -> bool {
    path == "/metrics"
        || path == "/v1/projects"
        || path.starts_with("/v1/projects/")
        || path.starts_with("/v1/config/")
}

/// Sender of a request, according to the headers that a browser sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    /// A program, or a page of the server's own origin.
    Own,
    /// A page of another origin on this machine, or a page whose origin the browser leaves out because the page
    /// cannot read the response.
    OtherOrigin,
    /// A page from another machine, or one without an origin.
    Elsewhere,
}

impl Sender {
    fn of(request: &Request) -> Self {
        let (uri, headers) = (request.uri(), request.headers());
        let scheme = request.extensions().get().copied().unwrap_or(Scheme::Http);
        if !names_this_machine(uri, headers) {
            return Self::Elsewhere;
        }
        let mut origins = headers.get_all(header::ORIGIN).iter().peekable();
        if origins.peek().is_none() {
            let sites = headers.get_all(SEC_FETCH_SITE);
            let of_another = |site: &HeaderValue| site != "same-origin" && site != "none";
            return if sites.iter().any(of_another) { Self::OtherOrigin } else { Self::Own };
        }
        let own = own_origin(scheme, uri, headers);
        origins.map(|origin| Self::of_page(origin, own.as_ref())).fold(Self::Own, Self::further)
    }

    /// Classifies a page by its origin and the origin of the server.
    fn of_page(origin: &HeaderValue, own: Option<&(Scheme, Authority)>) -> Self {
        let parts = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        let Some((scheme, authority)) = parts else { return Self::Elsewhere };
        let Some(authority) = loopback(authority) else { return Self::Elsewhere };
        let same = |(of_server, named): &(Scheme, Authority)| {
            scheme.eq_ignore_ascii_case(of_server.as_str())
                && authority.host().eq_ignore_ascii_case(named.host())
                && port(*of_server, &authority) == port(*of_server, named)
        };
        if own.is_some_and(same) { Self::Own } else { Self::OtherOrigin }
    }

    fn further(self, other: Self) -> Self {
        match (self, other) {
            (Self::Elsewhere, _) | (_, Self::Elsewhere) => Self::Elsewhere,
            (Self::OtherOrigin, _) | (_, Self::OtherOrigin) => Self::OtherOrigin,
            (Self::Own, Self::Own) => Self::Own,
        }
    }
}

/// Returns whether every host name in a request refers to this machine. With `--dev` the server is always bound to a
/// loopback address.
fn names_this_machine(uri: &Uri, headers: &HeaderMap) -> bool {
    let is_loopback = |host: &HeaderValue| host.to_str().ok().and_then(loopback).is_some();
    headers.get_all(header::HOST).iter().all(is_loopback)
        && uri.authority().is_none_or(|authority| loopback(authority.as_str()).is_some())
}

/// Returns the server's own origin, using the host name in the request.
fn own_origin(scheme: Scheme, uri: &Uri, headers: &HeaderMap) -> Option<(Scheme, Authority)> {
    let named = match uri.authority() {
        Some(authority) => authority.clone(),
        None => headers.get(header::HOST)?.to_str().ok()?.parse().ok()?,
    };
    Some((scheme, named))
}

fn port(scheme: Scheme, authority: &Authority) -> u16 {
    authority.port_u16().unwrap_or(match scheme {
        Scheme::Http => 80,
        Scheme::Https => 443,
    })
}

/// Whether an `Origin` is that of a page of this machine.
pub fn is_of_this_machine(origin: &HeaderValue) -> bool {
    Sender::of_page(origin, None) != Sender::Elsewhere
}

/// Parses a host with an optional port, if it can only refer to this machine. Other names may resolve to any address.
fn loopback(host: &str) -> Option<Authority> {
    let authority = host.parse::<Authority>().ok().filter(|_| !host.contains('@'))?;
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let is_loopback = name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|it| it.is_loopback());
    is_loopback.then_some(authority)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use serde_json::Value;

    use super::*;

    fn sender(uri: &str, headers: &[(&str, &str)]) -> Sender {
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = uri.parse().expect("an address");
        for (name, value) in headers {
            let name: HeaderName = name.parse().expect("a name");
            request.headers_mut().append(name, value.parse().expect("a value"));
        }
        Sender::of(&request)
    }

    #[test]
    fn only_names_and_addresses_of_this_machine_are_taken_for_it() {
        for host in ["localhost", "LOCALHOST:4437", "127.0.0.1:1", "127.8.9.10", "[::1]", "[::1]:4437"] {
            assert_eq!(sender("/", &[("host", host)]), Sender::Own, "{host}");
        }
        let strangers = [
            "example.com",
            "localhost.example.com",
            "10.0.0.1:4437",
            "0.0.0.0",
            "[::2]",
            "[::ffff:127.0.0.1]",
            "",
            "a@b@c",
            "localhost@x",
            "x@localhost",
        ];
        for host in strangers {
            assert_eq!(sender("/", &[("host", host)]), Sender::Elsewhere, "{host}");
            assert_eq!(sender("/", &[("host", "localhost"), ("host", host)]), Sender::Elsewhere, "{host}");
        }
        assert_eq!(sender("/", &[]), Sender::Own);
        assert_eq!(sender("http://evil.example/", &[]), Sender::Elsewhere, "as HTTP/2 names a host");
        assert_eq!(sender("http://evil.example/", &[("host", "localhost")]), Sender::Elsewhere);
    }

    #[test]
    fn a_page_is_the_servers_own_or_another_of_this_machine_or_of_elsewhere() {
        let own = [
            ("127.0.0.1:4437", "http://127.0.0.1:4437"),
            ("localhost:4437", "http://localhost:4437"),
            ("[::1]:4437", "http://[::1]:4437"),
            ("localhost", "http://localhost"),
            ("localhost:80", "http://localhost"),
        ];
        for (host, origin) in own {
            assert_eq!(sender("/", &[("host", host), ("origin", origin)]), Sender::Own, "{origin}");
        }
        let host = ("host", "127.0.0.1:4437");
        let others = [
            "http://localhost:5173",
            "http://localhost:4437",
            "https://127.0.0.1:4437",
            "https://[::1]",
            "http://127.0.0.1",
            "http://127.0.0.2:4437",
        ];
        for origin in others {
            assert_eq!(sender("/", &[host, ("origin", origin)]), Sender::OtherOrigin, "{origin}");
        }
        let elsewhere = [
            "null",
            "",
            "https://evil.example",
            "http://localhost.evil.example",
            "http://127.0.0.1.evil.example:4437",
            "http://127.0.0.1:4437@evil.example",
            "http://evil.example/http://localhost",
            "localhost",
            "file://",
        ];
        for origin in elsewhere {
            assert_eq!(sender("/", &[host, ("origin", origin)]), Sender::Elsewhere, "{origin}");
            let two = [host, ("origin", "http://127.0.0.1:4437"), ("origin", origin)];
            assert_eq!(sender("/", &two), Sender::Elsewhere, "{origin}");
        }
    }

    #[test]
    fn a_page_without_an_origin_is_known_by_what_the_browser_says_of_its_site() {
        let host = ("host", "127.0.0.1:4437");
        for site in ["none", "same-origin"] {
            assert_eq!(sender("/", &[host, ("sec-fetch-site", site)]), Sender::Own, "{site}");
        }
        for site in ["same-site", "cross-site", "?"] {
            assert_eq!(sender("/", &[host, ("sec-fetch-site", site)]), Sender::OtherOrigin, "{site}");
        }
    }

    #[test]
    fn every_operation_of_administration_is_known_as_one() {
        let document: Value = serde_json::from_str(crate::openapi()).expect("JSON");
        let mut administering = 0;
        for (path, operations) in document["paths"].as_object().expect("paths") {
            for (_, operation) in operations.as_object().expect("operations") {
                let tags = operation["tags"].as_array().map(Vec::as_slice).unwrap_or_default();
                let expected = tags.contains(&"administration".into()) || path == "/metrics";
                assert_eq!(administers(path), expected, "{path}");
                administering += usize::from(expected);
            }
        }
        assert!(administering >= 9, "{administering} operations administer");
        for other in ["/metrics/x", "/v1/projectsx", "/v1/app/stream/projects", "/v1/configs/x"] {
            assert!(!administers(other), "{other}");
        }
    }
}
