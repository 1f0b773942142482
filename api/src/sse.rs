//! Server-sent events: how a chunk of a stream is written.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::json;
use tidings_streams::{Chunk, ContentType};

use crate::wire::{offset, payload};

/// How payloads stand in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// As one JSON array an event.
    Json,
    /// As they are.
    Text,
    /// In base64, since an event is lines of text.
    Base64,
}

impl Encoding {
    /// The encoding for a stream of this type.
    pub fn of(content_type: &ContentType) -> Self {
        match content_type {
            json if json.is_json() => Self::Json,
            text if text.is_text() => Self::Text,
            _ => Self::Base64,
        }
    }
}

/// A data event, if there are records, and always the control event that tells where to resume.
pub fn events(chunk: &Chunk, encoding: Encoding, cursor: u64) -> Bytes {
    let mut out = BytesMut::new();
    // Where to resume: a browser's EventSource keeps it and sends it back as `Last-Event-ID`.
    let id = offset::print(chunk.next);
    if !chunk.records.is_empty() {
        let body = payload::body(&chunk.records, encoding == Encoding::Json);
        match encoding {
            Encoding::Json | Encoding::Text => event(&mut out, "data", &id, &body),
            Encoding::Base64 => event(&mut out, "data", &id, STANDARD.encode(&body).as_bytes()),
        }
    }
    event(&mut out, "control", &id, control(chunk, cursor).to_string().as_bytes());
    out.freeze()
}

fn control(chunk: &Chunk, cursor: u64) -> serde_json::Value {
    let mut control = json!({ "streamNextOffset": offset::print(chunk.next) });
    if chunk.closed {
        control["streamClosed"] = json!(true);
    } else {
        control["streamCursor"] = json!(cursor.to_string());
    }
    if chunk.up_to_date {
        control["upToDate"] = json!(true);
    }
    control
}

/// One event. Each line of the data gets its own prefix, whichever way the line ends: otherwise a payload
/// could end the event and begin another.
fn event(out: &mut BytesMut, name: &str, id: &str, data: &[u8]) {
    out.reserve(data.len() + 128);
    out.put_slice(b"event: ");
    out.put_slice(name.as_bytes());

    let mut rest = data;
    loop {
        // Readers drop one space after the colon, so a line that begins with one needs another.
        out.put_slice(if rest.starts_with(b" ") { b"\ndata: " } else { b"\ndata:" });
        let Some(end) = rest.iter().position(|&b| b == b'\n' || b == b'\r') else {
            out.put_slice(rest);
            break;
        };
        out.put_slice(&rest[..end]);
        let line_end = if rest[end..].starts_with(b"\r\n") { 2 } else { 1 };
        rest = &rest[end + line_end..];
    }
    out.put_slice(b"\nid: ");
    out.put_slice(id.as_bytes());
    out.put_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(data: &str) -> String {
        let mut out = BytesMut::new();
        event(&mut out, "data", "7", data.as_bytes());
        let written = String::from_utf8(out.to_vec()).expect("text");
        let data = written.strip_prefix("event: data\n").and_then(|rest| rest.strip_suffix("id: 7\n\n"));
        data.expect("the name comes first, the id last").to_owned()
    }

    #[test]
    fn every_line_has_its_prefix_however_it_ends() {
        assert_eq!(written("a"), "data:a\n");
        assert_eq!(written("a\nb\r\nc\rd"), "data:a\ndata:b\ndata:c\ndata:d\n");
        assert_eq!(written("a\n\nevent: control"), "data:a\ndata:\ndata:event: control\n");
        assert_eq!(written(""), "data:\n");
    }

    #[test]
    fn a_leading_space_of_a_line_survives_the_one_that_readers_drop() {
        assert_eq!(written(" a\n  b"), "data:  a\ndata:   b\n");
    }
}
