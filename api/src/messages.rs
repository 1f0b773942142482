//! Streams over WebSocket: how records of a stream are written as messages.
//!
//! As with server-sent events, what tells where to resume follows the records: first a message with the records of one append, a
//! text if they are text and bytes otherwise, then a text message, the control. A reader that has nothing to read is sent a control
//! first.

use bytes::{BufMut, Bytes, BytesMut};
use tidings_engine::deliver::{Batch, Encode};
use tidings_streams::ContentType;

use crate::sse::control;
use crate::websocket::{Opcode, frame};
use crate::wire::{offset, payload};

/// A stream as messages, for all its readers.
pub struct Messages {
    json: bool,
    text: bool,
}

impl Messages {
    /// The name of the form.
    pub const FORM: &'static str = "websocket";

    /// Messages of a stream of some type.
    pub fn new(content_type: &ContentType) -> Self {
        Self { json: content_type.is_json(), text: content_type.is_text() }
    }
}

impl Encode for Messages {
    fn encode(&self, batch: &Batch<'_>, _: u64) -> Bytes {
        let body = payload::body(batch.records, self.json);
        let control = control(batch, &offset::print(batch.next), None);
        let mut out = BytesMut::with_capacity(body.len() + control.len() + 16);
        if !batch.records.is_empty() {
            // A stream of text may hold what is not.
            let text = self.text && std::str::from_utf8(&body).is_ok();
            put(&mut out, if text { Opcode::Text } else { Opcode::Binary }, &body);
        }
        put(&mut out, Opcode::Text, control.as_bytes());
        out.freeze()
    }
}

fn put(out: &mut BytesMut, opcode: Opcode, payload: &[u8]) {
    out.put_slice(&frame::header(opcode, payload.len()));
    out.put_slice(payload);
}
