//! Headers that users add to requests.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use tidings_model::limits;

/// Headers that concern the connection or the framing of the message, or that would have responses compressed.
const RESERVED: [&str; 13] = [
    "accept-encoding",
    "connection",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Prefixes of headers that describe the body, and of those that sign it.
const RESERVED_PREFIXES: [&str; 2] = ["content-", "webhook-"];

/// Why a header cannot be added to requests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHeader {
    /// The name is not a valid name of a header.
    #[error("`{0}` is not a valid header name")]
    Name(String),
    /// The header is set by the server, or concerns the connection.
    #[error("the header `{0}` cannot be set")]
    Reserved(String),
    /// The value has line breaks, other control characters, or characters outside ASCII. It is not repeated here, since
    /// it may be a secret.
    #[error("the value of the header `{0}` has a character that is not printable ASCII")]
    Value(String),
    /// The same header is given twice.
    #[error("the header `{0}` is given twice")]
    Repeated(String),
    /// Too many headers.
    #[error("{0} headers are too many; at most {max} are allowed", max = limits::HOOK_HEADERS)]
    TooMany(usize),
    /// Names and values are too long in total.
    #[error("the headers have {0} bytes; at most {max} are allowed", max = limits::HOOK_HEADER_BYTES)]
    TooLong(usize),
}

/// Parses headers that a user adds to requests: each as by [`check_custom_header`], within the limits on their number and
/// size.
pub fn custom_headers<'a>(
    all: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<HeaderMap, InvalidHeader> {
    let (mut headers, mut count, mut bytes) = (HeaderMap::new(), 0, 0);
    for (name, value) in all {
        count += 1;
        bytes += name.len() + value.len();
        if count <= limits::HOOK_HEADERS && bytes <= limits::HOOK_HEADER_BYTES {
            let (name, value) = check_custom_header(name, value)?;
            if headers.insert(name.clone(), value).is_some() {
                return Err(InvalidHeader::Repeated(name.to_string()));
            }
        }
    }
    match () {
        () if count > limits::HOOK_HEADERS => Err(InvalidHeader::TooMany(count)),
        () if bytes > limits::HOOK_HEADER_BYTES => Err(InvalidHeader::TooLong(bytes)),
        () => Ok(headers),
    }
}

/// Parses one header that a user adds to requests. Headers that concern the connection, the body or the signature are
/// refused, and so are values that could end the header (CR, LF).
pub fn check_custom_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), InvalidHeader> {
    let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| InvalidHeader::Name(shown(name)))?;
    let reserved = RESERVED.contains(&parsed.as_str())
        || RESERVED_PREFIXES.iter().any(|prefix| parsed.as_str().starts_with(prefix));
    if reserved {
        return Err(InvalidHeader::Reserved(parsed.to_string()));
    }
    let printable = value.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~'));
    match HeaderValue::from_str(value) {
        Ok(mut value) if printable => {
            // Not shown where headers are printed for debugging.
            value.set_sensitive(true);
            Ok((parsed, value))
        }
        _ => Err(InvalidHeader::Value(parsed.to_string())),
    }
}

/// The beginning of a name that is not valid, without control characters.
fn shown(name: &str) -> String {
    name.chars().take(64).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_connection_the_body_and_the_signature_are_refused() {
        for name in [
            "Host",
            "connection",
            "Keep-Alive",
            "TE",
            "trailer",
            "Transfer-Encoding",
            "upgrade",
            "proxy-connection",
            "Proxy-Authorization",
            "Content-Length",
            "content-type",
            "Content-Encoding",
            "Webhook-Id",
            "webhook-signature",
            "webhook-anything",
            "expect",
            "accept-encoding",
        ] {
            let refused = check_custom_header(name, "x");
            assert_eq!(refused, Err(InvalidHeader::Reserved(name.to_ascii_lowercase())), "{name}");
        }
        for name in ["authorization", "X-Api-Key", "user-agent", "x-webhook-id", "contents", "webhook"] {
            assert!(check_custom_header(name, "x y\tz").is_ok(), "{name}");
        }
    }

    #[test]
    fn what_could_end_a_header_or_begin_another_is_refused() {
        for value in ["a\r\nhost: b", "a\nb", "a\rb", "a\0b", "a\u{7f}", "\u{1b}[2J", "ü"] {
            let refused = check_custom_header("x-secret", value).expect_err(value).to_string();
            assert_eq!(
                refused,
                "the value of the header `x-secret` has a character that is not printable ASCII"
            );
        }
        let secret = check_custom_header("x-secret", "s3cret").expect("printable");
        assert!(!format!("{secret:?}").contains("s3cret"));
        for name in ["", "a b", "a:b", "a\r\nb", "ü", "a\0"] {
            assert!(matches!(check_custom_header(name, "x"), Err(InvalidHeader::Name(_))), "{name:?}");
        }
        assert_eq!(check_custom_header("a\r\nb", "x"), Err(InvalidHeader::Name("a\\r\\nb".to_owned())));
    }

    #[test]
    fn there_may_be_so_many_headers_of_such_a_size_and_each_once() {
        let names: Vec<String> = (0..=limits::HOOK_HEADERS).map(|number| format!("x-{number}")).collect();
        let pairs = |count: usize| names[..count].iter().map(|name| (name.as_str(), "v"));
        assert_eq!(custom_headers(pairs(32)).expect("so many").len(), 32);
        assert_eq!(custom_headers(pairs(33)), Err(InvalidHeader::TooMany(33)));
        let value = "v".repeat(limits::HOOK_HEADER_BYTES - 1);
        assert!(custom_headers([("x", value.as_str())]).is_ok());
        assert_eq!(custom_headers([("xy", value.as_str())]), Err(InvalidHeader::TooLong(8193)));
        assert_eq!(
            custom_headers([("x-a", "1"), ("X-A", "2")]),
            Err(InvalidHeader::Repeated("x-a".to_owned()))
        );
        assert_eq!(custom_headers([("host", "a")]), Err(InvalidHeader::Reserved("host".to_owned())));
    }
}
