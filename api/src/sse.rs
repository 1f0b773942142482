//! Server-sent events: encodes the records of a stream as events.

use std::fmt::Write;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use tidings_engine::Clock;
use tidings_engine::deliver::{Batch, Encode, FrameChunks};
use tidings_engine::log::Record;
use tidings_streams::ContentType;

use crate::encoded::{Encoded, Form};
use crate::live::Framing;
use crate::wire::{cursor, offset, payload};

/// How payloads are encoded in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// As a JSON array, one per event.
    Json,
    /// As text.
    Text,
    /// In base64, because an event consists of lines of text.
    Base64,
}

impl Encoding {
    /// The encoding for a stream of this content type.
    pub fn of(content_type: &ContentType) -> Self {
        match content_type {
            json if json.is_json() => Self::Json,
            text if text.is_text() => Self::Text,
            _ => Self::Base64,
        }
    }
}

/// Encodes a stream as events.
pub struct Sse {
    encoding: Encoding,
    framing: Framing,
    clock: Arc<dyn Clock>,
    encoded: Arc<Encoded>,
}

impl Sse {
    /// An encoder for a stream of this content type, with a framing.
    pub fn new(
        content_type: &ContentType,
        framing: Framing,
        clock: Arc<dyn Clock>,
        encoded: Arc<Encoded>,
    ) -> Self {
        Self { encoding: Encoding::of(content_type), framing, clock, encoded }
    }

    /// The name of the wire form with this framing.
    pub fn form(framing: Framing) -> &'static str {
        match framing {
            Framing::Plain => "sse",
            Framing::Chunked => "sse-chunked",
        }
    }

    fn framed(&self, events: BytesMut) -> Bytes {
        match self.framing {
            Framing::Plain => events.freeze(),
            Framing::Chunked => chunk(&events),
        }
    }
}

impl Encode for Sse {
    /// The protocol's cursor, which grows with time.
    fn stamp(&self) -> u64 {
        cursor::current(self.clock.now())
    }

    /// Encodes a data event, if there are records, and always a control event with the offset to resume from.
    /// Readers of several sessions share the data event up to its id, which differs.
    fn encode(&self, batch: &Batch<'_>, cursor: u64) -> FrameChunks {
        let (records, encoding) = (batch.records, self.encoding);
        let shared = self.encoded.records(Form::Event(encoding, self.framing), records, || {
            let mut out = BytesMut::new();
            begin_data(&mut out, records, encoding);
            self.framed(out)
        });
        let mut out = BytesMut::new();
        if shared.is_none() && !records.is_empty() {
            begin_data(&mut out, records, encoding);
        }
        // A browser's EventSource remembers the id and sends it back as `Last-Event-ID`.
        let id = offset::print(batch.next);
        if !records.is_empty() {
            end(&mut out, &id);
        }
        begin(&mut out, "control", control(batch, &id, Some(cursor)).as_bytes());
        end(&mut out, &id);
        match shared {
            Some(records) => [records, self.framed(out)].into(),
            None => self.framed(out).into(),
        }
    }
}

/// The headers of a response with events.
pub fn head() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Buffering proxies would hold events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    headers
}

/// Encodes bytes as a chunk of HTTP/1.1.
pub fn chunk(bytes: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(bytes.len() + 20);
    // Writing to memory does not fail.
    let _ = write!(out, "{:x}\r\n", bytes.len());
    out.put_slice(bytes);
    out.put_slice(b"\r\n");
    out.freeze()
}

fn begin_data(out: &mut BytesMut, records: &[Record], encoding: Encoding) {
    let body = payload::body(records, encoding == Encoding::Json);
    match encoding {
        Encoding::Json | Encoding::Text => begin(out, "data", &body),
        Encoding::Base64 => begin(out, "data", STANDARD.encode(&body).as_bytes()),
    }
}

/// The control message as JSON: where to resume, and the state of the stream.
pub fn control(batch: &Batch<'_>, next: &str, cursor: Option<u64>) -> String {
    let mut control = format!(r#"{{"streamNextOffset":"{next}""#);
    if batch.closed {
        control += r#","streamClosed":true"#;
    } else if let Some(cursor) = cursor {
        // Writing to memory does not fail.
        let _ = write!(control, r#","streamCursor":"{cursor}""#);
    }
    if batch.up_to_date {
        control += r#","upToDate":true"#;
    }
    control.push('}');
    control
}

/// Writes an event up to its id. Each line of the data gets a prefix, whichever way the line ends: otherwise
/// a payload could end the event and begin another.
fn begin(out: &mut BytesMut, name: &str, data: &[u8]) {
    out.reserve(data.len() + 128);
    out.put_slice(b"event: ");
    out.put_slice(name.as_bytes());

    let mut rest = data;
    loop {
        // Readers drop one space after the colon, so a line that begins with a space needs another one.
        out.put_slice(if rest.starts_with(b" ") { b"\ndata: " } else { b"\ndata:" });
        let Some(end) = rest.iter().position(|&b| b == b'\n' || b == b'\r') else {
            out.put_slice(rest);
            break;
        };
        out.put_slice(&rest[..end]);
        let line_end = if rest[end..].starts_with(b"\r\n") { 2 } else { 1 };
        rest = &rest[end + line_end..];
    }
}

/// Writes the id and the end of an event.
fn end(out: &mut BytesMut, id: &str) {
    out.put_slice(b"\nid: ");
    out.put_slice(id.as_bytes());
    out.put_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(data: &str) -> String {
        let mut out = BytesMut::new();
        begin(&mut out, "data", data.as_bytes());
        end(&mut out, "7");
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
