//! Streams over WebSocket: encodes the records of a stream as messages.
//!
//! As with server-sent events, the offset to resume from follows the records: first a message with the
//! records of one append, as text if they are text and binary otherwise, then a text message, the control. A
//! reader without records to read gets a control first.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use tidings_engine::deliver::{Batch, Encode, FrameChunks};
use tidings_engine::log::Record;
use tidings_streams::ContentType;

use crate::encoded::{Encoded, Form};
use crate::sse::control;
use crate::websocket::{Opcode, frame};
use crate::wire::{offset, payload};

/// Encodes a stream as WebSocket messages.
pub struct Messages {
    json: bool,
    text: bool,
    encoded: Arc<Encoded>,
}

impl Messages {
    /// The name of the wire form.
    pub const FORM: &'static str = "websocket";

    /// An encoder for a stream of this content type.
    pub fn new(content_type: &ContentType, encoded: Arc<Encoded>) -> Self {
        Self { json: content_type.is_json(), text: content_type.is_text(), encoded }
    }

    /// Encodes records as a message, if there are any, and a control as another.
    fn written(&self, records: &[Record], control: Option<&str>) -> Bytes {
        let body = if records.is_empty() { Bytes::new() } else { payload::body(records, self.json) };
        let mut out = BytesMut::with_capacity(body.len() + control.map_or(0, str::len) + 16);
        if !records.is_empty() {
            // The payloads of a text stream are not checked when they are appended.
            let text = self.text && std::str::from_utf8(&body).is_ok();
            put(&mut out, if text { Opcode::Text } else { Opcode::Binary }, &body);
        }
        if let Some(control) = control {
            put(&mut out, Opcode::Text, control.as_bytes());
        }
        out.freeze()
    }
}

impl Encode for Messages {
    fn encode(&self, batch: &Batch<'_>, _: u64) -> FrameChunks {
        let (records, control) = (batch.records, control(batch, &offset::print(batch.next), None));
        let form = Form::Message { json: self.json, text: self.text };
        match self.encoded.records(form, records, || self.written(records, None)) {
            Some(shared) => [shared, self.written(&[], Some(&control))].into(),
            None => self.written(records, Some(&control)).into(),
        }
    }
}

fn put(out: &mut BytesMut, opcode: Opcode, payload: &[u8]) {
    out.put_slice(&frame::header(opcode, payload.len()));
    out.put_slice(payload);
}
