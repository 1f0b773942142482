//! Content types, and how a body is split into messages.

use std::fmt;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use serde_json::value::RawValue;
use tidings_model::limits;

use crate::StreamError;
use crate::json_array::{self, ArrayError};

/// The content type of a stream, as its creator wrote it.
#[derive(Clone, Debug)]
pub struct ContentType(Arc<str>);

/// The most common content types, shared by the streams that have them. The first is the default.
static COMMON: LazyLock<[ContentType; 3]> = LazyLock::new(|| {
    ["application/octet-stream", "application/json", "text/plain"].map(|text| ContentType(text.into()))
});

impl ContentType {
    /// The default content type, used when the creator sends none.
    pub fn octet_stream() -> Self {
        COMMON[0].clone()
    }

    /// Parses the value of a header; `None` when it is not `type/subtype` with optional parameters.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (kind, subtype) = essence(text).split_once('/')?;
        let valid = text.len() <= limits::CONTENT_TYPE_BYTES && is_token(kind) && is_token(subtype);
        let common = || COMMON.iter().find(|common| common.as_str() == text).cloned();
        valid.then(|| common().unwrap_or_else(|| Self(text.into())))
    }

    /// The content type as the creator wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a stream of this type is in JSON mode: its records are JSON values.
    pub fn is_json(&self) -> bool {
        essence(&self.0).eq_ignore_ascii_case("application/json")
    }

    /// Whether payloads of this type are text, which can be embedded in a line-based format.
    pub fn is_text(&self) -> bool {
        self.is_json() || self.0.get(..5).is_some_and(|kind| kind.eq_ignore_ascii_case("text/"))
    }

    /// Whether both have the same media type. Parameters and case are ignored.
    pub fn same_media_type(&self, other: &Self) -> bool {
        essence(&self.0).eq_ignore_ascii_case(essence(&other.0))
    }

    /// Splits a body into messages: in JSON mode the elements of an array or the one value, otherwise the
    /// whole body. The messages share the memory of the body.
    pub fn messages(&self, body: Bytes) -> Result<Vec<Bytes>, StreamError> {
        if self.is_json() { json_messages(&body) } else { Ok(vec![body]) }
    }
}

impl fmt::Display for ContentType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn essence(text: &str) -> &str {
    text.split(';').next().unwrap_or_default().trim_end()
}

/// Whether a text is a token of RFC 9110.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

fn json_messages(body: &Bytes) -> Result<Vec<Bytes>, StreamError> {
    let invalid = |error: serde_json::Error| StreamError::InvalidJson(error.to_string());
    let start = body.iter().position(|b| !b.is_ascii_whitespace());
    let slice = |value: &RawValue| body.slice_ref(value.get().as_bytes());
    if start.is_some_and(|start| body[start] == b'[') {
        let values = json_array::read::<&RawValue>(body, limits::MESSAGES_PER_APPEND);
        let values = values.map_err(|error| match error {
            ArrayError::TooMany { .. } => StreamError::TooManyMessages,
            ArrayError::Invalid(error) => invalid(error),
        })?;
        return Ok(of_their_own(values.into_iter().map(slice).collect(), body));
    }
    let value: &RawValue = serde_json::from_slice(body).map_err(invalid)?;
    Ok(of_their_own(vec![slice(value)], body))
}

/// Messages that keep no more memory than they need: as slices they keep the body, which may be little but white space.
fn of_their_own(messages: Vec<Bytes>, body: &Bytes) -> Vec<Bytes> {
    let held: usize = messages.iter().map(Bytes::len).sum();
    match 2 * held < body.len() {
        true => messages.iter().map(|message| Bytes::copy_from_slice(message)).collect(),
        false => messages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(body: &str) -> Result<Vec<Bytes>, StreamError> {
        ContentType::parse("application/json")
            .expect("valid")
            .messages(Bytes::copy_from_slice(body.as_bytes()))
    }

    #[test]
    fn an_array_is_flattened_one_level() {
        assert_eq!(json(r#"[1, {"a": [2]},"x"]"#).expect("valid"), ["1", r#"{"a": [2]}"#, "\"x\""]);
        assert_eq!(json("[[1,2],[3]]").expect("valid"), ["[1,2]", "[3]"]);
        assert_eq!(json(" {\"a\":1}\n").expect("valid"), [r#"{"a":1}"#]);
        assert_eq!(json("null").expect("valid"), ["null"]);
        assert!(json("[]").expect("valid").is_empty());
    }

    #[test]
    fn a_message_does_not_keep_white_space_around_it_in_memory() {
        for text in ["1", "[1]"] {
            let message = json(&format!("{}{text}", " ".repeat(10_000))).expect("valid").remove(0);
            assert_eq!(message.try_into_mut().expect("nobody else has it").capacity(), 1);
        }
    }

    #[test]
    fn what_is_not_json_is_told() {
        for bad in ["", " ", "{", "[1,]", "1 2", "[1]x", "\u{feff}1", "'a'"] {
            assert!(matches!(json(bad), Err(StreamError::InvalidJson(_))), "{bad:?}");
        }
        let deep = "[".repeat(200_000);
        assert!(json(&deep).is_err(), "deep nesting is refused or read, never a crash");
        let many = format!("[{}0]", "0,".repeat(limits::MESSAGES_PER_APPEND));
        assert!(matches!(json(&many), Err(StreamError::TooManyMessages)));
        let endless = format!("[{}", "0,".repeat(4 * 1024 * 1024 - 1));
        assert!(matches!(json(&endless), Err(StreamError::TooManyMessages)), "the end is not looked for");
    }

    #[test]
    fn media_types_compare_without_case_and_parameters() {
        let of = |text| ContentType::parse(text).expect("valid");
        assert!(of("Application/JSON; charset=utf-8").same_media_type(&of("application/json")));
        assert!(of("application/json;charset=utf-8").is_json());
        assert!(of("TEXT/plain").is_text() && !of("image/png").is_text());
        for bad in ["", "text", "text/", "/plain", "te xt/plain", "text/plain/x"] {
            assert!(ContentType::parse(bad).is_none(), "{bad:?}");
        }
    }
}
