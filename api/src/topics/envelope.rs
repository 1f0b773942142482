//! Frames of clients: the envelope `{"type","meta"?,"payload"?}`, in a text frame or as the header of a binary one.

use std::borrow::Cow;

use serde_json::value::RawValue;
use tidings_model::limits;

use super::error::WireError;
use crate::wire::json::{Odd, members, string};

/// Bytes of the length that precedes the header of a binary frame.
pub const LENGTH_BYTES: usize = 2;

/// A frame that was understood so far: its type is known, its payload is not looked at yet.
#[derive(Debug)]
pub struct Envelope<'a> {
    /// Type of the message, 1 to 128 characters.
    pub kind: Cow<'a, str>,
    /// Id that the answer repeats; a frame without one is answered only if it fails.
    pub correlation_id: Option<Cow<'a, str>>,
    /// The payload as it was sent; `None` if there is none, which is not `null`.
    pub payload: Option<&'a RawValue>,
}

/// A frame that was not understood.
#[derive(Debug)]
pub struct Unreadable<'a> {
    /// What is wrong with it.
    pub error: WireError,
    /// Id that the answer repeats, if that much was understood.
    pub correlation_id: Option<Cow<'a, str>>,
}

impl<'a> Envelope<'a> {
    /// Parses a text frame.
    pub fn of_text(text: &'a str) -> Result<Self, Unreadable<'a>> {
        let [kind, meta, payload] = members(text, ["type", "meta", "payload"]).map_err(|odd| match odd {
            Odd::NotJson => WireError::frame("json", "frame is not JSON"),
            Odd::OtherKind => WireError::frame("envelope", "frame is not a JSON object"),
        })?;
        let correlation_id = match meta {
            None => None,
            Some(meta) => correlation_id(meta)?,
        };
        let kind = kind.and_then(string).filter(|kind| is_short(kind));
        let Some(kind) = kind else {
            let message = format!("`type` must be text of 1 to {} characters", limits::MESSAGE_TYPE_CHARS);
            let error = WireError::frame("envelope", message);
            return Err(Unreadable { error, correlation_id });
        };
        Ok(Self { kind, correlation_id, payload })
    }

    /// Parses a binary frame. The second value is what follows the header.
    pub fn of_binary(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Unreadable<'a>> {
        let unreadable = |message| WireError::frame("binary", message);
        let (length, rest) = bytes
            .split_first_chunk::<LENGTH_BYTES>()
            .ok_or_else(|| unreadable("a binary frame begins with the length of its header"))?;
        let (header, body) = rest
            .split_at_checked(u16::from_be_bytes(*length).into())
            .ok_or_else(|| unreadable("the header of a binary frame is longer than the frame"))?;
        let header = std::str::from_utf8(header)
            .map_err(|_| unreadable("the header of a binary frame is not UTF-8"))?;
        match Self::of_text(header) {
            Ok(envelope) => Ok((envelope, body)),
            Err(Unreadable { error, correlation_id }) => {
                let error = unreadable_header(&error);
                Err(Unreadable { error, correlation_id })
            }
        }
    }
}

fn unreadable_header(error: &WireError) -> WireError {
    WireError::frame("binary", format!("the header of a binary frame cannot be read: {}", error.message))
}

impl From<WireError> for Unreadable<'_> {
    fn from(error: WireError) -> Self {
        Self { error, correlation_id: None }
    }
}

fn correlation_id(meta: &RawValue) -> Result<Option<Cow<'_, str>>, WireError> {
    let [id] = members(meta.get(), ["correlationId"])
        .map_err(|_| WireError::frame("envelope", "`meta` must be an object"))?;
    let Some(id) = id else { return Ok(None) };
    string(id).filter(|id| is_short(id)).map(Some).ok_or_else(|| {
        let most = limits::MESSAGE_TYPE_CHARS;
        WireError::frame("envelope", format!("`correlationId` must be text of 1 to {most} characters"))
    })
}

/// Whether a text can be a type or a correlation id.
pub fn is_short(text: &str) -> bool {
    !text.is_empty()
        && (text.len() <= limits::MESSAGE_TYPE_CHARS || text.chars().count() <= limits::MESSAGE_TYPE_CHARS)
}

/// Whether a message of this type comes only from the server, or only goes to it.
pub fn is_reserved_type(kind: &str) -> bool {
    kind.starts_with('$') || kind.starts_with("__") || matches!(kind, "ERROR" | "RPC_ERROR")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(unreadable: &Unreadable<'_>) -> String {
        let details = unreadable.error.details.as_ref().expect("details");
        details["reason"].as_str().expect("a reason").to_owned()
    }

    #[test]
    fn an_envelope_has_a_type_perhaps_an_id_and_perhaps_a_payload() {
        let text = r#"{"type":"$list","meta":{"correlationId":"7","x":1},"more":true}"#;
        let envelope = Envelope::of_text(text).expect("good");
        assert_eq!((&*envelope.kind, envelope.correlation_id.as_deref()), ("$list", Some("7")));
        assert!(envelope.payload.is_none());
        let envelope = Envelope::of_text(r#"{"payload":null,"type":"a\u0062"}"#).expect("good");
        assert_eq!((&*envelope.kind, envelope.payload.map(RawValue::get)), ("ab", Some("null")));
    }

    #[test]
    fn the_length_of_types_and_ids_counts_characters() {
        for (length, good) in [(0, false), (1, true), (128, true), (129, false)] {
            for character in ["x", "é", "😀"] {
                let text = character.repeat(length);
                let typed = format!(r#"{{"type":"{text}"}}"#);
                assert_eq!(Envelope::of_text(&typed).is_ok(), good, "{length} {character}");
                let identified = format!(r#"{{"type":"x","meta":{{"correlationId":"{text}"}}}}"#);
                assert_eq!(Envelope::of_text(&identified).is_ok(), good, "{length} {character}");
            }
        }
    }

    #[test]
    fn a_frame_that_is_no_envelope_is_told_why() {
        for (text, expected) in [
            ("not json", "json"),
            ("", "json"),
            (r#"{"type":"a""#, "json"),
            (r#"{"type":1,"payload":x}"#, "json"),
            ("[]", "envelope"),
            ("null", "envelope"),
            (r#"["$list"]"#, "envelope"),
            ("{}", "envelope"),
            (r#"{"type":null}"#, "envelope"),
            (r#"{"type":7}"#, "envelope"),
            (r#"{"type":""}"#, "envelope"),
            (r#"{"type":"a","meta":null}"#, "envelope"),
            (r#"{"type":"a","meta":[]}"#, "envelope"),
            (r#"{"type":"a","meta":{"correlationId":1}}"#, "envelope"),
            (r#"{"type":"a","meta":{"correlationId":null}}"#, "envelope"),
            (r#"{"type":"a","meta":{"correlationId":""}}"#, "envelope"),
        ] {
            assert_eq!(reason(&Envelope::of_text(text).expect_err(text)), expected, "{text}");
        }
    }

    #[test]
    fn an_id_that_was_understood_is_repeated_though_the_type_was_not() {
        let unreadable = Envelope::of_text(r#"{"type":7,"meta":{"correlationId":"x"}}"#).expect_err("odd");
        assert_eq!(unreadable.correlation_id.as_deref(), Some("x"));
    }

    fn binary(header: &str, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(header.len()).expect("short").to_be_bytes();
        [&length, header.as_bytes(), body].concat()
    }

    #[test]
    fn a_binary_frame_is_a_header_and_bytes() {
        let frame = binary(r#"{"type":"$publish"}"#, b"\xff\0");
        let (envelope, body) = Envelope::of_binary(&frame).expect("good");
        assert_eq!((&*envelope.kind, body), ("$publish", &b"\xff\0"[..]));
        let frame = binary(r#"{"type":"$publish"}"#, b"");
        assert_eq!(Envelope::of_binary(&frame).expect("good").1, b"");
    }

    #[test]
    fn a_binary_frame_without_a_readable_header_is_refused() {
        for bad in [
            &b""[..],
            b"\0",
            b"\0\x01",
            b"\xff\xff{}",
            b"\0\x02\xff\xff",
            &binary("{}", b"x"),
            &binary("", b"{}"),
        ] {
            assert_eq!(reason(&Envelope::of_binary(bad).expect_err("odd")), "binary", "{bad:?}");
        }
    }
}
