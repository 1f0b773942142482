//! URLs of brokers.

use std::fmt;

/// The URL of a broker. Its `Debug` and `Display` leave out the credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// What comes before `://`.
    pub scheme: String,
    /// User name.
    pub user: Option<String>,
    /// Password.
    pub password: Option<String>,
    /// Name or address of the host.
    pub host: String,
    /// Port.
    pub port: Option<u16>,
    /// What comes after the host, without the slash before it.
    pub path: String,
}

/// A URL that cannot be used. It may have a password, so the error does not quote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// There is no scheme.
    #[error("must be a URL such as redis://host, nats://host or postgres://user@host/database")]
    NoScheme,
    /// There is no host.
    #[error("has no host")]
    NoHost,
    /// The host has characters that no host has.
    #[error(
        "has a host that is not valid; in a user name or a password, write `/`, `?`, `#`, `@` and `%` with %"
    )]
    Host,
    /// The port is not a number from 1 to 65535.
    #[error("has a port that is not a number from 1 to 65535")]
    Port,
    /// User name or password are not percent-encoded.
    #[error("has a user name or a password that is not percent-encoded UTF-8")]
    Credentials,
    /// There is something after `?` or `#`.
    #[error("has options after the `{0}`, and there are none")]
    Options(char),
}

impl Address {
    /// Parses a URL.
    pub fn parse(url: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = url.split_once("://").ok_or(AddressError::NoScheme)?;
        let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        if scheme.is_empty() || !scheme.chars().all(is_scheme) {
            return Err(AddressError::NoScheme);
        }
        if let Some(options) = rest.chars().find(|c| ['?', '#'].contains(c)) {
            return Err(AddressError::Options(options));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, host) = match authority.rsplit_once('@') {
            Some((credentials, host)) => (Some(credentials), host),
            None => (None, authority),
        };
        let (user, password) = match credentials.map(|text| text.split_once(':').unwrap_or((text, ""))) {
            None => (None, None),
            Some((user, password)) => (decoded(user)?, decoded(password)?),
        };
        let (host, port) = host_and_port(host)?;
        Ok(Self { scheme: scheme.to_ascii_lowercase(), user, password, host, port, path: path.to_owned() })
    }

    /// Host and port for people.
    pub fn place(&self, port: u16) -> String {
        let port = self.port.unwrap_or(port);
        if self.host.contains(':') {
            format!("[{}]:{port}", self.host)
        } else {
            format!("{}:{port}", self.host)
        }
    }
}

fn host_and_port(text: &str) -> Result<(String, Option<u16>), AddressError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or(AddressError::Host)?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(AddressError::Host);
            }
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return Err(AddressError::Host),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(AddressError::NoHost);
    }
    if !host.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:".contains(c)) {
        return Err(AddressError::Host);
    }
    let port = match port {
        None | Some("") => None,
        Some(port) => match port.parse() {
            Ok(0) | Err(_) => return Err(AddressError::Port),
            Ok(port) => Some(port),
        },
    };
    Ok((host.to_owned(), port))
}

/// Decodes a user name or a password. `None` if it is empty.
fn decoded(text: &str) -> Result<Option<String>, AddressError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.filter(|digits| digits.chars().all(|c| c.is_ascii_hexdigit()));
        let byte = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or(AddressError::Credentials)?);
        rest = &rest[2..];
    }
    let text = String::from_utf8(bytes).map_err(|_| AddressError::Credentials)?;
    Ok((!text.is_empty()).then_some(text))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_of_a_url_are_read() {
        let address = Address::parse("Redis://al%40ice:se%2Fcret%25@example.com:6380/shop").expect("a URL");
        assert_eq!(address.scheme, "redis");
        assert_eq!(
            (address.user.as_deref(), address.password.as_deref()),
            (Some("al@ice"), Some("se/cret%"))
        );
        assert_eq!((&*address.host, address.port, &*address.path), ("example.com", Some(6380), "shop"));
        let bare = Address::parse("nats://127.0.0.1").expect("a URL");
        assert_eq!((bare.user.clone(), bare.password.clone(), bare.port), (None, None, None));
        assert_eq!(bare.place(4222), "127.0.0.1:4222");
        let v6 = Address::parse("nats://:token@[::1]:4333/").expect("a URL");
        assert_eq!(
            (v6.user.clone(), v6.password.clone(), &*v6.host),
            (None, Some("token".to_owned()), "::1")
        );
        assert_eq!(v6.place(4222), "[::1]:4333");
    }

    #[test]
    fn what_is_shown_of_a_url_has_no_credentials() {
        let address = Address::parse("redis://alice:hunter2@example.com:6380/hidden").expect("a URL");
        for shown in [address.to_string(), format!("{address:?}"), address.place(1)] {
            assert!(!["alice", "hunter2"].iter().any(|secret| shown.contains(secret)), "{shown}");
        }
    }

    #[test]
    fn what_is_no_url_of_a_broker_is_refused_without_quoting_it() {
        for (url, expected) in [
            ("", AddressError::NoScheme),
            ("localhost:6379", AddressError::NoScheme),
            ("://hunter2", AddressError::NoScheme),
            ("redis://", AddressError::NoHost),
            ("redis://:hunter2@", AddressError::NoHost),
            ("redis://u:hunter2@:1", AddressError::NoHost),
            ("redis://host:0", AddressError::Port),
            ("redis://host:65536", AddressError::Port),
            ("redis://host:hunter2", AddressError::Port),
            ("redis://u:hunter2%@host", AddressError::Credentials),
            ("redis://u:hunter2%+1@host", AddressError::Credentials),
            ("redis://u:%ff@host", AddressError::Credentials),
            ("redis://hunter2 @/host", AddressError::NoHost),
            ("redis://[hunter2]", AddressError::Host),
            ("redis://[::1]hunter2", AddressError::Host),
            ("redis://hunter2!", AddressError::Host),
            ("redis://u:hunter2?x@host", AddressError::Options('?')),
        ] {
            let error = Address::parse(url).expect_err(url);
            assert_eq!(error, expected, "{url}");
            assert!(!error.to_string().contains("hunter2"));
        }
    }
}
