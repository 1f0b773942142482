//! Encodes the events of a room as server-sent events or WebSocket messages.

use std::fmt::Write;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};
use tidings_engine::deliver::{Batch, Encode, FrameChunks};
use tidings_model::{RoomId, Timestamp};
use tidings_rooms::{Cursor, Event, Kind};

use crate::live::Framing;
use crate::sse::chunk;
use crate::websocket::{Opcode, frame};
use crate::wire::time;

/// The wire format of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Server-sent events.
    Events(Framing),
    /// WebSocket messages.
    Messages,
}

/// A set of kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// All kinds.
    pub const ALL: Self = Self(0b111);

    /// No kinds.
    pub const NONE: Self = Self(0);

    /// Adds a kind.
    #[must_use]
    pub fn with(self, kind: Kind) -> Self {
        Self(self.0 | Self::bit(kind))
    }

    /// Whether a kind is in the set.
    pub fn has(self, kind: Kind) -> bool {
        self.0 & Self::bit(kind) != 0
    }

    fn bit(kind: Kind) -> u8 {
        match kind {
            Kind::Message => 0b001,
            Kind::Reaction => 0b010,
            Kind::Typing => 0b100,
        }
    }
}

/// The names of all wire forms, by format and kinds. Readers of the same form share frames.
const FORMS: [[&str; 8]; 3] = [
    ["e0", "e1", "e2", "e3", "e4", "e5", "e6", "e7"],
    ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"],
    ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"],
];

/// Encodes the events of a room for readers of the same format and kinds.
pub struct RoomEncoder {
    dialect: Dialect,
    kinds: Kinds,
    /// The id of the room as a JSON string.
    convo: Arc<str>,
}

impl RoomEncoder {
    /// An encoder of some kinds of events of a room.
    pub fn new(room: &RoomId, dialect: Dialect, kinds: Kinds) -> Self {
        Self { dialect, kinds, convo: json!(room.as_str()).to_string().into() }
    }

    /// The name of the wire form.
    pub fn form(&self) -> &'static str {
        let dialect = match self.dialect {
            Dialect::Events(Framing::Plain) => 0,
            Dialect::Events(Framing::Chunked) => 1,
            Dialect::Messages => 2,
        };
        FORMS[dialect][usize::from(self.kinds.0 & 0b111)]
    }

    /// Writes the fields that all events have, without braces.
    fn fields(&self, event: &Event, out: &mut BytesMut) {
        let (convo, at) = (&*self.convo, time::print(event.emitted_at));
        // Writing to memory does not fail.
        let _ = write!(out, r#""cursor":"{}","convoId":{convo},"emittedAt":"{at}","payload":"#, event.cursor);
        out.put_slice(&event.payload);
    }

    fn event(&self, event: &Event, out: &mut BytesMut) {
        // A browser cannot resume at an ephemeral event, so it gets no id.
        if event.kind.is_durable() {
            let _ = writeln!(out, "id: {}", event.cursor);
        }
        let _ = write!(out, "event: {}\ndata: {{", event.kind.name());
        self.fields(event, out);
        out.put_slice(b"}\n\n");
    }

    fn message(&self, event: &Event, out: &mut BytesMut) {
        let mut text = BytesMut::with_capacity(event.payload.len() + 192);
        let _ = write!(text, r#"{{"type":"{}","#, event.kind.name());
        self.fields(event, &mut text);
        text.put_u8(b'}');
        out.put_slice(&frame::header(Opcode::Text, text.len()));
        out.put_slice(&text);
    }
}

impl Encode for RoomEncoder {
    fn encode(&self, batch: &Batch<'_>, _: u64) -> FrameChunks {
        let mut out = BytesMut::new();
        let events = batch.records.iter().filter_map(Event::of);
        for event in events.filter(|event| self.kinds.has(event.kind)) {
            out.reserve(event.payload.len() + 256);
            match self.dialect {
                Dialect::Events(_) => self.event(&event, &mut out),
                Dialect::Messages => self.message(&event, &mut out),
            }
        }
        match self.dialect {
            // An empty chunk would end the body.
            Dialect::Events(Framing::Chunked) if !out.is_empty() => chunk(&out).into(),
            _ => out.freeze().into(),
        }
    }
}

/// An `infoEvent` of the server. Never stored, and without an id, because a browser cannot resume at it.
pub struct Info {
    /// Reason for programs.
    pub reason: &'static str,
    /// Cursor at which the client can resume.
    pub cursor: Cursor,
    /// Details for programs.
    pub detail: Value,
}

impl Info {
    fn json(&self, room: &RoomId, now: Timestamp) -> Value {
        json!({
            "cursor": self.cursor.to_string(),
            "convoId": room.as_str(),
            "emittedAt": time::print(now),
            "payload": { "reason": self.reason, "detail": self.detail },
            "reason": self.reason,
            "detail": self.detail,
        })
    }

    /// Encodes the event without framing.
    pub fn write(&self, dialect: Dialect, room: &RoomId, now: Timestamp) -> Bytes {
        let mut json = self.json(room, now);
        match dialect {
            Dialect::Events(_) => format!("event: infoEvent\ndata: {json}\n\n").into(),
            Dialect::Messages => {
                json["type"] = "infoEvent".into();
                json.to_string().into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoder(dialect: Dialect, kinds: Kinds) -> RoomEncoder {
        RoomEncoder::new(&RoomId::parse("r\"1").expect("an id"), dialect, kinds)
    }

    #[test]
    fn each_dialect_and_set_of_kinds_is_a_form_of_its_own() {
        let dialects =
            [Dialect::Events(Framing::Plain), Dialect::Events(Framing::Chunked), Dialect::Messages];
        let mut forms = std::collections::HashSet::new();
        for dialect in dialects {
            for bits in 0..8 {
                assert!(forms.insert(encoder(dialect, Kinds(bits)).form()));
            }
        }
        let all = Kind::ALL.into_iter().fold(Kinds::NONE, Kinds::with);
        assert_eq!(all, Kinds::ALL);
    }

    #[test]
    fn an_event_is_written_as_clients_read_it() {
        let event = |kind| Event {
            cursor: Cursor::parse("01J9ZK0S5V6ZB9WQ0ZP3S9WJ7H").expect("a cursor"),
            kind,
            emitted_at: Timestamp::from_millis(1_761_170_400_000),
            payload: Bytes::from_static(b"{}"),
        };
        let events = encoder(Dialect::Events(Framing::Plain), Kinds::ALL);
        let mut out = BytesMut::new();
        events.event(&event(Kind::Message), &mut out);
        let fields = r#""cursor":"01J9ZK0S5V6ZB9WQ0ZP3S9WJ7H","convoId":"r\"1","emittedAt":"2025-10-22T22:00:00Z","payload":{}"#;
        let expected = format!("id: 01J9ZK0S5V6ZB9WQ0ZP3S9WJ7H\nevent: messageEvent\ndata: {{{fields}}}\n\n");
        assert_eq!(out, expected.as_bytes());
        out.clear();
        events.event(&event(Kind::Typing), &mut out);
        assert_eq!(out, format!("event: typingEvent\ndata: {{{fields}}}\n\n").as_bytes());
        out.clear();
        encoder(Dialect::Messages, Kinds::ALL).message(&event(Kind::Reaction), &mut out);
        let text = format!(r#"{{"type":"reactionEvent",{fields}}}"#);
        assert_eq!(out, frame::frame(Opcode::Text, text.as_bytes()));
    }
}
