//! The handshake: validates a request for a WebSocket, and builds the answer.

use axum::http::header::{
    ALLOW, CONNECTION, CONTENT_LENGTH, HOST, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, request};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};
use tidings_model::limits;

use crate::error::ApiError;

/// Constant of RFC 6455 that is hashed with the key, which proves that the server understood the request.
const ACCEPT_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A validated request for a WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    accept: HeaderValue,
    protocol: Option<&'static str>,
}

impl Upgrade {
    /// Validates a request and selects the first subprotocol offered by the client that is among `ours`. If
    /// there is none, the answer names none, and the client decides whether to go on.
    pub fn validate(request: &request::Parts, ours: &[&'static str]) -> Result<Self, ApiError> {
        Self::validate_head(&request.method, request.version, &request.headers, ours)
    }

    /// The same as [`Upgrade::validate`], for a request that is not split into parts.
    pub fn validate_head(
        method: &Method,
        version: Version,
        headers: &HeaderMap,
        ours: &[&'static str],
    ) -> Result<Self, ApiError> {
        if method != Method::GET {
            let error = ApiError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "no_such_method",
                "a WebSocket is asked for with GET",
            );
            return Err(error.with(ALLOW, "GET"));
        }
        if version != Version::HTTP_11 {
            return Err(ApiError::new(
                StatusCode::HTTP_VERSION_NOT_SUPPORTED,
                "http_version",
                "a WebSocket is asked for with HTTP/1.1",
            ));
        }
        one(headers, &HOST)
            .ok_or_else(|| ApiError::bad_request("invalid_host", "exactly one Host is needed"))?;
        wants_upgrade(headers)?;
        has_no_body(headers)?;
        let accept = accept(key(headers)?);
        Ok(Self { accept, protocol: choose(headers, ours)? })
    }

    /// The selected subprotocol.
    pub fn protocol(&self) -> Option<&'static str> {
        self.protocol
    }

    /// The headers of the answer.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(4);
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(SEC_WEBSOCKET_ACCEPT, self.accept.clone());
        if let Some(protocol) = self.protocol {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
        }
        headers
    }
}

impl IntoResponse for Upgrade {
    fn into_response(self) -> Response {
        (StatusCode::SWITCHING_PROTOCOLS, self.headers()).into_response()
    }
}

/// Whether a request asks for a WebSocket. [`Upgrade::validate`] refuses all others.
pub fn is_asked_for(headers: &HeaderMap) -> bool {
    lists(headers, &UPGRADE, b"websocket")
}

/// The `Sec-WebSocket-Accept` value for a key.
fn accept(key: &[u8]) -> HeaderValue {
    let digest = Sha1::new().chain_update(key).chain_update(ACCEPT_SUFFIX).finalize();
    HeaderValue::try_from(STANDARD.encode(digest)).expect("base64 is a header's value")
}

/// Checks that the request asks for a WebSocket of the supported version.
fn wants_upgrade(headers: &HeaderMap) -> Result<(), ApiError> {
    let refuse = |code, message| {
        ApiError::new(StatusCode::UPGRADE_REQUIRED, code, message)
            .with(UPGRADE, "websocket")
            .with(CONNECTION, "Upgrade")
            .with(SEC_WEBSOCKET_VERSION, "13")
    };
    if !is_asked_for(headers) {
        return Err(refuse("upgrade_required", "this path speaks WebSocket: Upgrade must list websocket"));
    }
    if !lists(headers, &CONNECTION, b"upgrade") {
        return Err(refuse("upgrade_required", "Connection must list Upgrade; does a proxy remove it?"));
    }
    if one(headers, &SEC_WEBSOCKET_VERSION) != Some(b"13") {
        return Err(refuse("websocket_version", "Sec-WebSocket-Version must be 13"));
    }
    Ok(())
}

/// Checks that there is no body: the bytes after the head are frames, and no proxy may take them for a body.
fn has_no_body(headers: &HeaderMap) -> Result<(), ApiError> {
    let empty = headers.get_all(CONTENT_LENGTH).iter().all(|length| length.as_bytes() == b"0");
    if !empty || headers.contains_key(TRANSFER_ENCODING) {
        return Err(ApiError::bad_request("unexpected_body", "a request for a WebSocket has no body"));
    }
    Ok(())
}

/// The key: 16 bytes in base64. It is hashed as text, not decoded.
fn key(headers: &HeaderMap) -> Result<&[u8], ApiError> {
    one(headers, &SEC_WEBSOCKET_KEY)
        .filter(|key| STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == 16))
        .ok_or_else(|| ApiError::bad_request("websocket_key", "Sec-WebSocket-Key must be 16 bytes in base64"))
}

/// Selects the first offered subprotocol that is ours; a client lists them by preference.
fn choose(headers: &HeaderMap, ours: &[&'static str]) -> Result<Option<&'static str>, ApiError> {
    let mut chosen = None;
    for (count, offered) in items(headers, &SEC_WEBSOCKET_PROTOCOL).enumerate() {
        if count == limits::WEBSOCKET_PROTOCOLS || !is_token(offered) {
            let message =
                format!("Sec-WebSocket-Protocol must be at most {} names", limits::WEBSOCKET_PROTOCOLS);
            return Err(ApiError::bad_request("websocket_protocol", message));
        }
        if chosen.is_none() {
            chosen = ours.iter().copied().find(|our| our.as_bytes() == offered);
        }
    }
    Ok(chosen)
}

/// The value of a header that must occur exactly once.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Some(value.as_bytes().trim_ascii()),
        _ => None,
    }
}

/// Whether a list header, over all its lines, contains this word, ignoring case.
fn lists(headers: &HeaderMap, name: &HeaderName, word: &[u8]) -> bool {
    items(headers, name).any(|item| item.eq_ignore_ascii_case(word))
}

/// The items of a list header, over all its lines, without empty ones.
fn items<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(name).into_iter();
    let items = lines.flat_map(|line| line.as_bytes().split(|&byte| byte == b','));
    items.map(<[u8]>::trim_ascii).filter(|item| !item.is_empty())
}

/// Whether the bytes are a token of RFC 9110.
fn is_token(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests {
    use crate::response_head;
    use axum::http::Request;
    use http_body_util::BodyExt;
    use serde_json::Value;

    use super::*;

    /// The example of RFC 6455, with its key and answer.
    fn good() -> Request<()> {
        let request = Request::get("/chat")
            .header("host", "server.example.com")
            .header("upgrade", "websocket")
            .header("connection", "Upgrade")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-version", "13");
        request.body(()).expect("a request")
    }

    fn validate(request: Request<()>, ours: &[&'static str]) -> Result<Upgrade, ApiError> {
        Upgrade::validate(&request.into_parts().0, ours)
    }

    /// The good request with one header set, or removed.
    fn with(name: &'static str, values: &[&'static str]) -> Request<()> {
        let mut request = good();
        request.headers_mut().remove(name);
        for value in values {
            request.headers_mut().append(name, HeaderValue::from_static(value));
        }
        request
    }

    async fn refused(request: Request<()>) -> (u16, String, HeaderMap) {
        let answer = validate(request, &[]).expect_err("a refusal").into_response();
        let (head, body) = answer.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        assert!(body["error"]["message"].is_string());
        (head.status.as_u16(), body["error"]["code"].as_str().expect("a code").to_owned(), head.headers)
    }

    #[test]
    fn the_answer_is_that_of_the_rfc() {
        let upgrade = validate(good(), &[]).expect("good");
        let mut more = HeaderMap::new();
        more.insert("x-request-id", HeaderValue::from_static("7"));
        let mut headers = upgrade.headers();
        headers.extend(more);
        let answer = response_head(StatusCode::SWITCHING_PROTOCOLS, &headers);
        let text = std::str::from_utf8(&answer).expect("text");
        let (head, rest) = text.split_once("\r\n").expect("a first line");
        assert_eq!(head, "HTTP/1.1 101 Switching Protocols");
        let mut lines: Vec<&str> = rest.strip_suffix("\r\n\r\n").expect("an end").split("\r\n").collect();
        lines.sort_unstable();
        let expected = [
            "connection: Upgrade",
            "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
            "upgrade: websocket",
            "x-request-id: 7",
        ];
        assert_eq!(lines, expected);

        let answer = upgrade.into_response();
        assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(answer.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn words_are_found_in_lists_over_several_lines_and_in_any_case() {
        for (name, values) in [
            ("upgrade", &["WebSocket"][..]),
            ("upgrade", &["h2c, websocket"]),
            ("upgrade", &["h2c", ",, WEBSOCKET ,"]),
            ("connection", &["keep-alive, upgrade"]),
            ("connection", &["keep-alive", "UPGRADE"]),
            ("sec-websocket-version", &[" 13 "]),
            ("content-length", &["0"]),
        ] {
            assert!(validate(with(name, values), &[]).is_ok(), "{name}: {values:?}");
        }
    }

    #[tokio::test]
    async fn what_does_not_ask_for_a_websocket_of_version_13_is_told_how() {
        for (name, values, code) in [
            ("upgrade", &[][..], "upgrade_required"),
            ("upgrade", &["h2c"], "upgrade_required"),
            ("upgrade", &["websockets"], "upgrade_required"),
            ("connection", &[], "upgrade_required"),
            ("connection", &["keep-alive"], "upgrade_required"),
            ("sec-websocket-version", &[], "websocket_version"),
            ("sec-websocket-version", &["8"], "websocket_version"),
            ("sec-websocket-version", &["013"], "websocket_version"),
            ("sec-websocket-version", &["13", "13"], "websocket_version"),
        ] {
            let (status, told, headers) = refused(with(name, values)).await;
            assert_eq!((status, told.as_str()), (426, code), "{name}: {values:?}");
            assert_eq!(headers["upgrade"], "websocket");
            assert_eq!(headers["connection"], "Upgrade");
            assert_eq!(headers["sec-websocket-version"], "13");
        }
    }

    #[tokio::test]
    async fn what_is_malformed_is_refused() {
        for (name, values, code) in [
            ("host", &[][..], "invalid_host"),
            ("host", &["a", "b"], "invalid_host"),
            ("sec-websocket-key", &[], "websocket_key"),
            ("sec-websocket-key", &[""], "websocket_key"),
            ("sec-websocket-key", &["dGhlIHNhbXBsZSBub25jZQ"], "websocket_key"),
            ("sec-websocket-key", &["dGhlIHNhbXBsZSBub25j"], "websocket_key"),
            ("sec-websocket-key", &["dGhlIHNhbXBsZSBub25jZWU="], "websocket_key"),
            ("sec-websocket-key", &["dGhlIHNhbXBsZSBub25jZQ*="], "websocket_key"),
            ("sec-websocket-key", &["dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25jZQ=="], "websocket_key"),
            ("sec-websocket-protocol", &["two words"], "websocket_protocol"),
            ("sec-websocket-protocol", &["quoted\"name\""], "websocket_protocol"),
            ("content-length", &["5"], "unexpected_body"),
            ("transfer-encoding", &["chunked"], "unexpected_body"),
        ] {
            let (status, told, _) = refused(with(name, values)).await;
            assert_eq!((status, told.as_str()), (400, code), "{name}: {values:?}");
        }
    }

    #[tokio::test]
    async fn other_methods_and_versions_of_http_are_refused() {
        let mut request = good();
        *request.method_mut() = Method::POST;
        let (status, code, headers) = refused(request).await;
        assert_eq!((status, code.as_str()), (405, "no_such_method"));
        assert_eq!(headers["allow"], "GET");
        for version in [Version::HTTP_10, Version::HTTP_2] {
            let mut request = good();
            *request.version_mut() = version;
            let (status, code, _) = refused(request).await;
            assert_eq!((status, code.as_str()), (505, "http_version"));
        }
    }

    #[test]
    fn the_first_offered_subprotocol_that_is_ours_is_chosen() {
        let chosen = |offers: &[&'static str], ours: &[&'static str]| {
            let upgrade = validate(with("sec-websocket-protocol", offers), ours).expect("good");
            let header = upgrade.headers().get("sec-websocket-protocol").cloned();
            assert_eq!(header.as_ref().map(HeaderValue::as_bytes), upgrade.protocol().map(str::as_bytes));
            upgrade.protocol()
        };
        assert_eq!(chosen(&[], &["a"]), None);
        assert_eq!(chosen(&["a"], &[]), None);
        assert_eq!(chosen(&["a, b"], &["b", "a"]), Some("a"));
        assert_eq!(chosen(&["x", "b,a"], &["a", "b"]), Some("b"));
        assert_eq!(chosen(&["A"], &["a"]), None, "names differ by case");
    }

    #[test]
    fn compression_of_any_kind_is_declined_by_an_answer_that_does_not_name_it() {
        // What sections 12 and 13 of the Autobahn suite offer.
        for offer in [
            "permessage-deflate",
            "permessage-deflate; client_no_context_takeover; client_max_window_bits",
            "permessage-deflate; server_no_context_takeover; server_max_window_bits=9",
            "permessage-bzip2, permessage-snappy, permessage-deflate; server_max_window_bits=15",
            "x-webkit-deflate-frame",
        ] {
            let upgrade = validate(with("sec-websocket-extensions", &[offer]), &[]).expect(offer);
            assert_eq!(upgrade, validate(good(), &[]).expect("good"), "{offer}");
            assert!(!upgrade.headers().contains_key("sec-websocket-extensions"), "{offer}");
        }
    }

    #[test]
    fn only_so_many_subprotocols_may_be_offered() {
        for (count, fine) in [(limits::WEBSOCKET_PROTOCOLS, true), (limits::WEBSOCKET_PROTOCOLS + 1, false)] {
            let mut request = good();
            let offers = vec!["a"; count].join(",").parse().expect("a value");
            request.headers_mut().insert("sec-websocket-protocol", offers);
            assert_eq!(validate(request, &["a"]).is_ok(), fine, "{count}");
        }
    }
}
