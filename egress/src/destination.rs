//! Destinations: where the connections of targets go.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::target::InvalidTarget;

/// Bytes of a host name in DNS.
const HOST_BYTES: usize = 253;
/// Bytes of one label of a host name.
const LABEL_BYTES: usize = 63;

/// Where the connections of a target go: scheme, host and port. Clones share the same value.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Destination(Arc<Place>);

#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Place {
    scheme: Scheme,
    host: Host,
    port: u16,
}

/// Scheme of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// Plain TCP.
    Http,
    /// TLS.
    Https,
}

/// Host of a target.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A literal address. An IPv4-mapped IPv6 address is the IPv4 address.
    Address(IpAddr),
    /// A name in lower case, without a trailing dot.
    Name(Box<str>),
}

impl Destination {
    /// Scheme.
    pub fn scheme(&self) -> Scheme {
        self.0.scheme
    }

    /// Host.
    pub fn host(&self) -> &Host {
        &self.0.host
    }

    /// Port, also where it is the scheme's default.
    pub fn port(&self) -> u16 {
        self.0.port
    }

    pub(crate) fn new(scheme: Scheme, host: Host, port: u16) -> Self {
        Self(Arc::new(Place { scheme, host, port }))
    }

    /// Host, and the port unless it is the scheme's default.
    pub(crate) fn authority(&self) -> String {
        let Place { scheme, host, port } = &*self.0;
        if *port == scheme.default_port() { host.to_string() } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.0.scheme.name(), self.authority())
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Destination({self})")
    }
}

impl Scheme {
    /// `http` or `https`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// Port of a URL that names none.
    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }

    pub(crate) fn split(text: &str) -> Option<(Self, &str)> {
        let (scheme, rest) = text.split_once("://")?;
        [Self::Http, Self::Https]
            .into_iter()
            .find(|one| scheme.eq_ignore_ascii_case(one.name()))
            .map(|one| (one, rest))
    }
}

impl Host {
    /// Parses a host as a URL has it: a name, an IPv4 address, or an IPv6 address in brackets.
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidTarget> {
        let invalid = || InvalidTarget::Host(text.to_owned());
        if let Some(address) = text.strip_prefix('[') {
            let address = address.strip_suffix(']').ok_or_else(invalid)?;
            let address: Ipv6Addr = address.parse().map_err(|_| invalid())?;
            return Ok(Self::Address(IpAddr::V6(address).to_canonical()));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if name.len() > HOST_BYTES || !name.split('.').all(is_label) {
            return Err(invalid());
        }
        // The system's resolver takes `0x7f.1` and `2130706433` for 127.0.0.1. No top-level domain is a number, so a
        // host whose last label is one is an address or nothing.
        if name.rsplit('.').next().is_some_and(is_number) {
            let address: Ipv4Addr = name.parse().map_err(|_| InvalidTarget::Ipv4(text.to_owned()))?;
            return Ok(Self::Address(IpAddr::V4(address)));
        }
        Ok(Self::Name(name.into()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Whether a text is a label of a host name, in lower case. Underscores occur in internal names.
fn is_label(label: &str) -> bool {
    (1..=LABEL_BYTES).contains(&label.len())
        && label.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
}

/// Whether a label is a decimal, octal or hexadecimal number to some parser of IPv4 addresses.
fn is_number(label: &str) -> bool {
    label.bytes().all(|byte| byte.is_ascii_digit())
        || label.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
