//! Targets: valid URLs of endpoints.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::http::uri::PathAndQuery;
use tidings_model::limits;

use crate::destination::{Destination, Host, Scheme};

/// A valid `http` or `https` URL. Clones share the same value.
///
/// Valid does not mean allowed: [`Guard`](crate::Guard) decides that.
///
/// ```
/// # use tidings_egress::Target;
/// let target = Target::parse("https://Hooks.example.com/in?key=1").unwrap();
/// assert_eq!(target.to_string(), "https://hooks.example.com/in?key=1");
/// assert_eq!(target.destination().to_string(), "https://hooks.example.com");
/// assert!(Target::parse("https://2130706433/").is_err());
/// ```
#[derive(Clone)]
pub struct Target(Arc<Parts>);

struct Parts {
    destination: Destination,
    /// Path and query, as the request line has them.
    uri: Uri,
    /// Value of the `Host` header.
    host: HeaderValue,
}

/// Why a text is not a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTarget {
    /// The URL is too long.
    #[error("the URL has {0} bytes; at most {max} are allowed", max = limits::TARGET_BYTES)]
    Length(usize),
    /// The URL has spaces, control characters, or characters outside ASCII.
    #[error(
        "the URL has the character {0:?}; percent-encode it in the path and query, and write a host in Punycode (xn--…)"
    )]
    Character(char),
    /// The scheme is missing, or neither `http` nor `https`.
    #[error("the URL must begin with http:// or https://")]
    Scheme,
    /// The URL has a user name or a password.
    #[error("the URL must not have a user name or password; send credentials in a header")]
    Credentials,
    /// The URL has a fragment, which is never sent.
    #[error("the URL must not have a fragment (#…)")]
    Fragment,
    /// The host is empty, or no valid name or address.
    #[error("`{0}` is not a valid host")]
    Host(String),
    /// The host looks like a number, but is not an IPv4 address in its usual notation.
    #[error("`{0}` is not an IPv4 address in the form 192.0.2.1")]
    Ipv4(String),
    /// The port is not a number from 1 to 65535.
    #[error("`{0}` is not a port from 1 to 65535")]
    Port(String),
    /// The path or the query has characters that are not allowed there.
    #[error("the path or query of the URL is not valid")]
    Path,
}

impl Target {
    /// Parses a URL. The host is put in lower case, everything else is kept as it is.
    pub fn parse(text: &str) -> Result<Self, InvalidTarget> {
        if text.len() > limits::TARGET_BYTES {
            return Err(InvalidTarget::Length(text.len()));
        }
        // Programs that parse URLs differ in what they make of other characters, a backslash for one.
        let strange = |character: char| !character.is_ascii_graphic() || "\\\"<>^`{|}".contains(character);
        if let Some(character) = text.chars().find(|&character| strange(character)) {
            return Err(InvalidTarget::Character(character));
        }
        let (scheme, rest) = Scheme::split(text).ok_or(InvalidTarget::Scheme)?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if path.contains('#') {
            return Err(InvalidTarget::Fragment);
        }
        if authority.contains('@') {
            return Err(InvalidTarget::Credentials);
        }
        let (host, port) = split_port(authority)?;
        let host = Host::parse(host)?;
        let port = match port {
            None => scheme.default_port(),
            Some(digits) => parse_port(digits)?,
        };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let path = PathAndQuery::try_from(path).map_err(|_| InvalidTarget::Path)?;
        let destination = Destination::new(scheme, host, port);
        let host = HeaderValue::try_from(destination.authority()).expect("hosts are plain ASCII");
        Ok(Self(Arc::new(Parts { destination, uri: Uri::from(path), host })))
    }

    /// Scheme, host and port.
    pub fn destination(&self) -> &Destination {
        &self.0.destination
    }

    /// Path and query, beginning with a slash.
    pub fn path(&self) -> &str {
        self.0.uri.path_and_query().map_or("/", PathAndQuery::as_str)
    }

    /// Path and query as a request line has them.
    pub(crate) fn uri(&self) -> Uri {
        self.0.uri.clone()
    }

    /// Value of the `Host` header.
    pub(crate) fn host_header(&self) -> HeaderValue {
        self.0.host.clone()
    }
}

impl FromStr for Target {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<Self, InvalidTarget> {
        Self::parse(text)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.0.destination, self.path())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        self.0.destination == other.0.destination && self.0.uri == other.0.uri
    }
}

impl Eq for Target {}

/// Splits an authority without credentials into host and port.
fn split_port(authority: &str) -> Result<(&str, Option<&str>), InvalidTarget> {
    if authority.starts_with('[') {
        let invalid = || InvalidTarget::Host(authority.to_owned());
        let end = authority.find(']').ok_or_else(invalid)? + 1;
        let (host, rest) = authority.split_at(end);
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(invalid()),
        };
    }
    Ok(match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    })
}

fn parse_port(digits: &str) -> Result<u16, InvalidTarget> {
    let port = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
    port.filter(|&port| port != 0).ok_or_else(|| InvalidTarget::Port(digits.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> String {
        Target::parse(text).map_or_else(|error| format!("{error:?}"), |target| target.to_string())
    }

    #[test]
    fn a_url_is_kept_as_it_is_with_its_host_in_lower_case() {
        assert_eq!(
            shown("HTTPS://Hooks.Example.COM/In/%7euser?B=%20&a=1"),
            "https://hooks.example.com/In/%7euser?B=%20&a=1"
        );
        assert_eq!(shown("http://example.com"), "http://example.com/");
        assert_eq!(shown("http://example.com?q=a@b:c/d"), "http://example.com/?q=a@b:c/d");
        assert_eq!(shown("http://example.com:80/"), "http://example.com/");
        assert_eq!(shown("http://example.com:443/"), "http://example.com:443/");
        assert_eq!(shown("https://example.com.:0443/"), "https://example.com/");
        assert_eq!(shown("http://under_score.internal:8080/"), "http://under_score.internal:8080/");
        assert_eq!(shown("https://xn--bcher-kva.example/"), "https://xn--bcher-kva.example/");
    }

    #[test]
    fn equal_destinations_are_equal_however_they_are_written() {
        let destination = |text| Target::parse(text).expect("a target").destination().clone();
        assert_eq!(destination("https://EXAMPLE.com/a"), destination("https://example.com.:443/b?c"));
        assert_eq!(destination("http://[::ffff:192.0.2.1]/"), destination("http://192.0.2.1/"));
        assert_ne!(destination("https://example.com/"), destination("http://example.com:443/"));
        assert_ne!(destination("https://example.com/"), destination("https://example.com:8443/"));
        assert_eq!(destination("http://[0:0::1]:8080/x").to_string(), "http://[::1]:8080");
    }

    #[test]
    fn an_ipv4_address_in_an_odd_notation_is_refused() {
        for host in [
            "0x7f.1",
            "2130706433",
            "0x7f000001",
            "127.1",
            "0177.0.0.1",
            "127.0.0.0x1",
            "0X7F.0.0.1",
            "1.2.3.4.5",
            "127.0.0.1.1",
            "256.0.0.1",
            "example.1",
            "0x",
            "0x.",
            "00000127.0.0.1",
        ] {
            let refused = Target::parse(&format!("http://{host}/"));
            assert_eq!(refused, Err(InvalidTarget::Ipv4(host.to_owned())), "{host}");
        }
        for host in ["127.0.0.1", "127.0.0.1."] {
            let target = Target::parse(&format!("http://{host}/")).expect("a target");
            assert_eq!(target.destination().host(), &Host::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        }
        // Digits of other scripts, which some parsers take for these.
        assert!(matches!(Target::parse("http://①②⑦.0.0.1/"), Err(InvalidTarget::Character('①'))));
        assert!(matches!(Target::parse("http://127。0。0。1/"), Err(InvalidTarget::Character('。'))));
    }

    #[test]
    fn what_is_no_plain_http_url_is_refused_and_the_reason_told() {
        let reason = |text: &str| Target::parse(text).expect_err(text).to_string();
        for text in [
            "",
            "example.com",
            "/path",
            "ftp://example.com/",
            "file:///etc/passwd",
            "gopher://example.com",
            "http:example.com",
            "http:/example.com",
            "javascript://x",
        ] {
            assert_eq!(reason(text), "the URL must begin with http:// or https://", "{text}");
        }
        for text in [
            "http://user@example.com/",
            "https://user:password@example.com/",
            "http://@example.com",
            "http://a@b@c/",
        ] {
            assert!(reason(text).contains("user name"), "{text}");
        }
        for text in [
            "http://",
            "http:///path",
            "http://:80/",
            "http://a..b/",
            "http://.a/",
            "http://a../",
            "http://[::1/",
            "http://[::1]x/",
            "http://[fe80::1%25eth0]/",
            "http://[127.0.0.1]/",
            "http://::1/",
            "http://a%2eb/",
            "http://a,b/",
            "http://a;b/",
        ] {
            let told = reason(text);
            assert!(told.ends_with("is not a valid host") || told.contains("not a port"), "{text}: {told}");
        }
        for port in ["0", "65536", "", "80a", "+80", "-1", "8 0", "99999999999999999999"] {
            let told = reason(&format!("http://example.com:{port}/"));
            assert!(told.contains("not a port") || told.contains("character"), "{port}: {told}");
        }
        for text in [
            "http://example.com/ ",
            " http://example.com/",
            "http://exam\nple.com/",
            "http://example.com/\r\nx: y",
            "http://example.com\\@127.0.0.1/",
            "http://bücher.example/",
            "http://example.com/ü",
            "http://example.com/\u{0}",
        ] {
            assert!(reason(text).contains("has the character"), "{text:?}");
        }
        assert_eq!(reason("https://example.com/a#b"), "the URL must not have a fragment (#…)");
        let long = format!("https://example.com/{}", "a".repeat(limits::TARGET_BYTES));
        assert_eq!(reason(&long), "the URL has 2068 bytes; at most 2048 are allowed");
        assert!(Target::parse(&long[..limits::TARGET_BYTES]).is_ok());
        let label = format!("http://{}.example/", "a".repeat(64));
        assert!(reason(&label).ends_with("is not a valid host"));
        let name = format!("http://{}example/", "a.".repeat(128));
        assert!(reason(&name).ends_with("is not a valid host"));
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_a_target_that_reads_back_equal(
            text in "(https?://)?[a-zA-Z0-9.:@\\[\\]/?#%&=_~\\\\ü -]{0,40}"
        ) {
            if let Ok(target) = Target::parse(&text) {
                let again = Target::parse(&target.to_string());
                prop_assert_eq!(again.as_ref(), Ok(&target));
                prop_assert!(!target.to_string().contains(['@', '\\']) || target.path().contains('@'));
            }
        }
    }
}
