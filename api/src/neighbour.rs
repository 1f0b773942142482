//! Whether a request comes from the machine itself, as far as a browser can be made to lie about it.
//!
//! A server that lets everybody in listens on the loopback interface alone. But a browser on the machine reaches it, too:
//! with the requests of any page, and, when a page has its own name resolve to this machine, as if it were that page's
//! server.

use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Uri, header};

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// From a program or a page of this machine.
    Local,
    /// From a page of somewhere else.
    Foreign,
}

impl Neighbour {
    /// As the request's head tells.
    pub fn of(uri: &Uri, headers: &HeaderMap) -> Self {
        let host_is_local = |host: &HeaderValue| host.to_str().is_ok_and(is_local);
        let origin_is_local = |origin: &HeaderValue| {
            let host = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
            host.is_some_and(|(_, host)| is_local(host))
        };
        let local = headers.get_all(header::HOST).iter().all(host_is_local)
            && uri.authority().is_none_or(|authority| is_local(authority.as_str()))
            && headers.get_all(header::ORIGIN).iter().all(origin_is_local);
        if local { Self::Local } else { Self::Foreign }
    }
}

/// Whether a host, perhaps with a port, can only be this machine. Other names may resolve to anything.
fn is_local(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let host = authority.host();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(uri: &'static str, headers: &[(&'static str, &'static str)]) -> Neighbour {
        let header =
            |&(name, value)| (header::HeaderName::from_static(name), HeaderValue::from_static(value));
        Neighbour::of(&Uri::from_static(uri), &headers.iter().map(header).collect())
    }

    #[test]
    fn only_names_and_addresses_of_this_machine_are_local() {
        for host in ["localhost", "LOCALHOST:4437", "127.0.0.1:1", "127.8.9.10", "[::1]", "[::1]:4437"] {
            assert_eq!(seen("/", &[("host", host)]), Neighbour::Local, "{host}");
        }
        for host in
            ["example.com", "localhost.example.com", "10.0.0.1:4437", "[::2]", "", "a@b@c", "localhost@x"]
        {
            assert_eq!(seen("/", &[("host", host)]), Neighbour::Foreign, "{host}");
        }
        assert_eq!(seen("/", &[]), Neighbour::Local);
        assert_eq!(seen("http://evil.example/", &[]), Neighbour::Foreign, "as HTTP/2 names a host");
        let host = ("host", "127.0.0.1:4437");
        for origin in ["http://localhost:3000", "https://[::1]", "http://127.0.0.1"] {
            assert_eq!(seen("/", &[host, ("origin", origin)]), Neighbour::Local, "{origin}");
        }
        for origin in ["null", "https://evil.example", "http://localhost.evil.example", "localhost"] {
            assert_eq!(seen("/", &[host, ("origin", origin)]), Neighbour::Foreign, "{origin}");
        }
    }
}
