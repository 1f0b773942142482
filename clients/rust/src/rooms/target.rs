//! [`Target`]: which room to follow, and how.

use std::fmt::Write;
#[cfg(feature = "tls")]
use std::sync::Arc;

use hyper::Uri;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{Cursor, Kind};

/// Characters to percent-encode: all but unreserved ones. Dots are encoded too, because a segment `..` would
/// change the path.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

/// Protocol for receiving events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// Server-sent events.
    #[default]
    Sse,
    /// WebSocket messages.
    WebSocket,
}

/// A room of a server, and how to follow it.
#[derive(Clone, Debug)]
pub struct Target {
    pub(super) secure: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// Value of the `Host` header.
    pub(super) authority: String,
    path: String,
    pub(super) wire: Wire,
    types: Vec<Kind>,
    device: Option<String>,
    caught_up: bool,
    overlap: bool,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Arc<tokio_rustls::rustls::ClientConfig>>,
}

/// Why a server cannot be addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    /// The text is not the URL of a server.
    #[error("the server must be a URL such as https://tidings.example, without a query")]
    Url,
    /// The scheme is not supported.
    #[error("the scheme must be http, https, ws or wss")]
    Scheme,
    /// The scheme needs TLS, which is not compiled in.
    #[error("https and wss need the feature `tls`")]
    Tls,
    /// The URL contains a user or password.
    #[error("the URL must not contain a user or password; pass a token as the credential instead")]
    User,
}

impl Target {
    /// A room of a project on a server, such as `https://tidings.example`. The scheme determines whether TLS
    /// is used; the [`Wire`] is set separately.
    pub fn new(server: &str, project: &str, room: &str) -> Result<Self, BadTarget> {
        let url: Uri = server.parse().map_err(|_| BadTarget::Url)?;
        let secure = match url.scheme_str() {
            Some("http" | "ws") => false,
            Some("https" | "wss") => true,
            _ => return Err(BadTarget::Scheme),
        };
        if secure && cfg!(not(feature = "tls")) {
            return Err(BadTarget::Tls);
        }
        let authority = url.authority().ok_or(BadTarget::Url)?;
        if authority.as_str().contains('@') {
            return Err(BadTarget::User);
        }
        if url.query().is_some() {
            return Err(BadTarget::Url);
        }
        let path = format!(
            "{}/v1/{}/rooms/{}/events",
            url.path().trim_end_matches('/'),
            utf8_percent_encode(project, ENCODED),
            utf8_percent_encode(room, ENCODED)
        );
        Ok(Self {
            secure,
            // An IPv6 address is in brackets in a URL, and without them elsewhere.
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            authority: authority.to_string(),
            path,
            wire: Wire::default(),
            types: Vec::new(),
            device: None,
            caught_up: false,
            overlap: false,
            #[cfg(feature = "tls")]
            tls: None,
        })
    }

    /// Sets the protocol. The default is [`Wire::Sse`].
    pub fn on(mut self, wire: Wire) -> Self {
        self.wire = wire;
        self
    }

    /// Restricts the stream to events of these kinds. The default is all.
    pub fn only(mut self, kinds: impl IntoIterator<Item = Kind>) -> Self {
        self.types = kinds.into_iter().collect();
        self
    }

    /// Sets the device of the user. The server tracks slow and outdated readers by device. Default: none.
    pub fn device(mut self, id: impl Into<String>) -> Self {
        self.device = Some(id.into());
        self
    }

    /// Asks for an info when all missed events have been sent
    /// ([`Reason::CaughtUp`](super::Reason::CaughtUp)).
    pub fn told_when_caught_up(mut self) -> Self {
        self.caught_up = true;
        self
    }

    /// Asks the server to resend the event at the cursor. The client recognizes it as a duplicate.
    pub fn overlapping(mut self) -> Self {
        self.overlap = true;
        self
    }

    /// Sets the TLS configuration. The default trusts the system's certificates.
    #[cfg(feature = "tls")]
    pub fn trusting(mut self, tls: Arc<tokio_rustls::rustls::ClientConfig>) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Path and query of a request that resumes after a cursor, or starts at the head.
    pub(super) fn path(&self, cursor: Option<&Cursor>) -> String {
        let mut path = self.path.clone();
        let mut parameter = |name: &str, value: &str| {
            let separator = if path.contains('?') { '&' } else { '?' };
            let value = utf8_percent_encode(value, ENCODED);
            write!(path, "{separator}{name}={value}").expect("text can always be written to");
        };
        if let Some(cursor) = cursor {
            parameter("cursor", cursor.as_str());
        }
        if !self.types.is_empty() {
            let names: Vec<&str> = self.types.iter().map(Kind::name).collect();
            parameter("types", &names.join(","));
        }
        if let Some(device) = &self.device {
            parameter("deviceId", device);
        }
        if self.caught_up {
            parameter("caughtUp", "1");
        }
        if self.overlap {
            parameter("overlap", "1");
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_the_room_whatever_is_in_its_name() {
        let target = Target::new("http://localhost:4437/behind/", "shop", "../a b?c=é").unwrap();
        assert_eq!((&target.host[..], target.port, target.secure), ("localhost", 4437, false));
        assert_eq!(target.path(None), "/behind/v1/shop/rooms/%2E%2E%2Fa%20b%3Fc%3D%C3%A9/events");
    }

    #[test]
    fn what_is_asked_for_is_in_the_query() {
        let target = Target::new("wss://[::1]", "p", "r").unwrap();
        assert_eq!((&target.host[..], target.port, &target.authority[..]), ("::1", 443, "[::1]"));
        let target = target.only([Kind::Message, Kind::Reaction]).device("my phone").told_when_caught_up();
        assert_eq!(
            target.overlapping().path(Some(&"01A".parse().unwrap())),
            "/v1/p/rooms/r/events?cursor=01A&types=messageEvent%2CreactionEvent&deviceId=my%20phone&caughtUp=1&overlap=1"
        );
    }

    #[test]
    fn what_is_no_server_is_refused() {
        for (url, expected) in [
            ("localhost:4437", BadTarget::Scheme),
            ("ftp://localhost", BadTarget::Scheme),
            ("/v1", BadTarget::Scheme),
            ("http://me:secret@localhost", BadTarget::User),
            ("http://localhost/?a=b", BadTarget::Url),
            ("http://", BadTarget::Url),
            ("", BadTarget::Url),
        ] {
            assert_eq!(Target::new(url, "p", "r").unwrap_err(), expected, "{url:?}");
        }
    }
}
