//! Events of rooms, as clients write them and as they are stored.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use tidings_engine::log::Record;
use tidings_model::{Producer, Timestamp, limits};

use crate::Cursor;

/// The kinds of events that clients write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A message was sent.
    Message,
    /// A reaction to a message was added or removed.
    Reaction,
    /// A user is typing. Ephemeral: only connected readers get it.
    Typing,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Message, Self::Reaction, Self::Typing];

    /// The name of the kind in the protocol.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Message => "messageEvent",
            Self::Reaction => "reactionEvent",
            Self::Typing => "typingEvent",
        }
    }

    /// The kind with this name in the protocol.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether events of this kind are stored.
    pub const fn is_durable(self) -> bool {
        !matches!(self, Self::Typing)
    }

    /// The number by which the kind is stored.
    const fn number(self) -> u8 {
        match self {
            Self::Message => 1,
            Self::Reaction => 2,
            Self::Typing => 3,
        }
    }
}

/// An event to be written to a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// Kind of the event.
    pub kind: Kind,
    /// Payload: a JSON object on one line.
    pub payload: Bytes,
}

/// Why an event is invalid. The message may be shown to the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEvent {
    /// The payload is not JSON.
    #[error("the payload is not JSON: {0}")]
    NotJson(String),
    /// The payload is JSON, but not an object.
    #[error("the payload of an event must be an object")]
    NotAnObject,
    /// The payload of a message has no `messageView`.
    #[error("the payload of a messageEvent must have an object `messageView`")]
    NoMessageView,
    /// The payload of a reaction lacks the named field, or it is not a string.
    #[error(
        "the payload of a reactionEvent must have the strings `messageId`, `actor` and `reaction`; `{0}` is not one"
    )]
    Reaction(&'static str),
    /// The payload of a reaction has a field twice, so that readers might disagree on its value.
    #[error(
        "the payload of a reactionEvent must have each of `messageId`, `actor`, `reaction` and `op` only once"
    )]
    Ambiguous,
    /// The operation of a reaction is unknown.
    #[error("the `op` of a reactionEvent must be `add` or `remove`")]
    Operation,
}

impl NewEvent {
    /// Parses an event. The payload is kept byte for byte, except that line breaks become spaces.
    pub fn parse(kind: Kind, payload: Bytes) -> Result<Self, BadEvent> {
        let value = serde_json::from_slice(&payload).map_err(|error| BadEvent::NotJson(error.to_string()))?;
        Self::check(kind, &value)?;
        if kind == Kind::Reaction && serde_json::from_slice::<UniqueFields>(&payload).is_err() {
            return Err(BadEvent::Ambiguous);
        }
        let breaks = |byte: &u8| matches!(byte, b'\n' | b'\r');
        let payload = if payload.iter().any(breaks) {
            // Valid JSON has line breaks only between tokens, so this changes no value.
            payload.iter().map(|byte| if breaks(byte) { b' ' } else { *byte }).collect()
        } else {
            payload
        };
        Ok(Self { kind, payload })
    }

    /// Checks whether a payload is valid for a kind.
    pub fn check(kind: Kind, payload: &Value) -> Result<(), BadEvent> {
        let payload = payload.as_object().ok_or(BadEvent::NotAnObject)?;
        match kind {
            Kind::Typing => Ok(()),
            Kind::Message if payload.get("messageView").is_some_and(Value::is_object) => Ok(()),
            Kind::Message => Err(BadEvent::NoMessageView),
            Kind::Reaction => {
                let is_text = |name: &&str| payload.get(*name).is_some_and(Value::is_string);
                if let Some(name) = ["messageId", "actor", "reaction"].into_iter().find(|name| !is_text(name))
                {
                    return Err(BadEvent::Reaction(name));
                }
                let op = payload.get("op").and_then(Value::as_str);
                if matches!(op, Some("add" | "remove")) { Ok(()) } else { Err(BadEvent::Operation) }
            }
        }
    }

    /// The `actor` of a reaction; `None` for other kinds.
    pub fn actor(&self) -> Option<String> {
        reaction_key(self.kind, &self.payload).map(|key| key.actor.into_owned())
    }

    /// The stored form of the event.
    pub(crate) fn stored(&self, emitted_at: Timestamp, producer: Option<&Producer>) -> Bytes {
        let tag = producer.map_or(0, |producer| producer.id.as_str().len() + 2 * 8 + 2);
        let mut out = BytesMut::with_capacity(1 + 8 + tag + self.payload.len());
        out.put_u8(self.kind.number() | if producer.is_some() { STAMPED } else { 0 });
        out.put_u64_le(emitted_at.as_millis());
        if let Some(Producer { id, epoch, sequence }) = producer {
            out.put_u64_le(*epoch);
            out.put_u64_le(*sequence);
            out.put_u16_le(id.as_str().len() as u16);
            out.put_slice(id.as_str().as_bytes());
        }
        out.put_slice(&self.payload);
        out.freeze()
    }
}

// The stored form has two bytes for the length of a producer id.
const _: () = assert!(limits::PRODUCER_ID_BYTES <= u16::MAX as usize);

/// Flag beside the stored kind: the event is the first of a producer's request, and its stamp follows.
const STAMPED: u8 = 0x80;

/// An event of a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Position of the event in the room.
    pub cursor: Cursor,
    /// Kind of the event.
    pub kind: Kind,
    /// Time at which the event was written.
    pub emitted_at: Timestamp,
    /// Payload: a JSON object, as it was written.
    pub payload: Bytes,
}

impl Event {
    /// Decodes a record of a room; `None` if it is not an event.
    pub fn of(record: &Record) -> Option<Self> {
        let Stored { kind, emitted_at, payload, .. } = Stored::read(record.payload.clone())?;
        Some(Self { cursor: Cursor::at(record.position), kind, emitted_at, payload })
    }

    /// The reaction that the event is about; `None` for other kinds.
    pub(crate) fn reaction(&self) -> Option<ReactionKey<'_>> {
        reaction_key(self.kind, &self.payload)
    }
}

fn reaction_key(kind: Kind, payload: &[u8]) -> Option<ReactionKey<'_>> {
    match kind {
        Kind::Reaction => serde_json::from_slice(payload).ok(),
        Kind::Message | Kind::Typing => None,
    }
}

/// Rejects duplicate fields: of a duplicate, some parsers return the first value, others the last.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "they are there once, that is all")]
struct UniqueFields {
    message_id: IgnoredAny,
    actor: IgnoredAny,
    reaction: IgnoredAny,
    op: IgnoredAny,
}

/// Identifies a reaction. Of all operations on the same key only the last one matters.
#[derive(Debug, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReactionKey<'a> {
    #[serde(borrow)]
    message_id: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    actor: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    reaction: std::borrow::Cow<'a, str>,
}

/// Whether a record is a reaction, judging by its first byte.
pub(crate) fn is_reaction(record: &Record) -> bool {
    record.payload.first().is_some_and(|tag| tag & !STAMPED == Kind::Reaction.number())
}

/// Whether a record is the first one of the request with this producer stamp.
pub(crate) fn is_first_of(record: &Record, producer: &Producer) -> bool {
    let stamp = Stored::read(record.payload.clone()).and_then(|stored| stored.stamp);
    stamp.is_some_and(|(epoch, sequence, id)| {
        (epoch, sequence) == (producer.epoch, producer.sequence) && id == producer.id.as_str().as_bytes()
    })
}

/// The decoded form of a record.
struct Stored {
    kind: Kind,
    emitted_at: Timestamp,
    /// Epoch, sequence number and id of the producer.
    stamp: Option<(u64, u64, Bytes)>,
    payload: Bytes,
}

impl Stored {
    fn read(mut bytes: Bytes) -> Option<Self> {
        let tag = bytes.try_get_u8().ok()?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.number() == tag & !STAMPED)?;
        let emitted_at = Timestamp::from_millis(bytes.try_get_u64_le().ok()?);
        let stamp = if tag & STAMPED == 0 { None } else { Some(Self::stamp(&mut bytes)?) };
        Some(Self { kind, emitted_at, stamp, payload: bytes })
    }

    fn stamp(bytes: &mut Bytes) -> Option<(u64, u64, Bytes)> {
        let (epoch, sequence) = (bytes.try_get_u64_le().ok()?, bytes.try_get_u64_le().ok()?);
        let length = usize::from(bytes.try_get_u16_le().ok()?);
        (length <= bytes.len()).then(|| (epoch, sequence, bytes.split_to(length)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_engine::log::Boundary;
    use tidings_model::{CommitNumber, Position, ProducerId};

    fn record(payload: Bytes) -> Record {
        let (position, commit, at) = (Position::new(7), CommitNumber::from_number(1), Timestamp::default());
        Record { position, commit, at, payload, head: None, origin: None, boundary: Boundary::Last }
    }

    fn parse(kind: Kind, payload: &str) -> Result<NewEvent, BadEvent> {
        NewEvent::parse(kind, Bytes::copy_from_slice(payload.as_bytes()))
    }

    #[test]
    fn an_event_is_read_back_as_it_was_written_with_or_without_a_stamp() {
        let stamp =
            |id: &str, sequence| Producer { id: ProducerId::parse(id).expect("valid"), epoch: 3, sequence };
        let (emitted_at, producer) = (Timestamp::from_millis(1_763_294_400_123), stamp("p", 9));
        let payload = r#"{"messageView": {"id":12345678901234567890.10}}"#;
        let event = parse(Kind::Message, payload).expect("good");
        for producer in [None, Some(&producer)] {
            let record = record(event.stored(emitted_at, producer));
            let read = Event::of(&record).expect("an event");
            assert_eq!(
                (read.kind, read.emitted_at, &*read.payload),
                (Kind::Message, emitted_at, payload.as_bytes())
            );
            assert_eq!(read.cursor, Cursor::at(Position::new(7)));
            assert_eq!(is_first_of(&record, &stamp("p", 9)), producer.is_some());
            assert!(!is_first_of(&record, &stamp("p", 8)) && !is_first_of(&record, &stamp("q", 9)));
        }
    }

    #[test]
    fn bytes_that_are_no_event_are_none() {
        let whole = parse(Kind::Typing, "{}").expect("good").stored(Timestamp::default(), None);
        for bad in [&b""[..], b"\x09aaaaaaaa{}", &whole[..8], b"\x81aaaaaaaabbbbbbbbcccccccc\xff\xffx"] {
            assert_eq!(Event::of(&record(Bytes::copy_from_slice(bad))), None, "{bad:?}");
        }
    }

    #[test]
    fn a_payload_has_what_its_kind_needs() {
        let reaction = r#"{"messageId":"m","actor":"a","reaction":"x","op":"remove"}"#;
        for (kind, good) in [
            (Kind::Message, r#"{"messageView":{}}"#),
            (Kind::Reaction, reaction),
            (Kind::Reaction, &reaction.replace("remove", "add")),
            (Kind::Typing, "{}"),
        ] {
            assert!(parse(kind, good).is_ok(), "{good}");
        }
        for (kind, bad, why) in [
            (Kind::Message, "{}".to_owned(), BadEvent::NoMessageView),
            (Kind::Message, r#"{"messageView":"x"}"#.to_owned(), BadEvent::NoMessageView),
            (Kind::Typing, "[]".to_owned(), BadEvent::NotAnObject),
            (Kind::Reaction, reaction.replace("messageId", "id"), BadEvent::Reaction("messageId")),
            (Kind::Reaction, reaction.replace(r#""a""#, "7"), BadEvent::Reaction("actor")),
            (Kind::Reaction, reaction.replace(r#""reaction""#, r#""r""#), BadEvent::Reaction("reaction")),
            (Kind::Reaction, reaction.replace("remove", "toggle"), BadEvent::Operation),
        ] {
            assert_eq!(parse(kind, &bad), Err(why), "{bad}");
        }
        assert!(matches!(parse(Kind::Typing, "{"), Err(BadEvent::NotJson(_))));
    }

    #[test]
    fn a_payload_is_one_line() {
        let event = parse(Kind::Typing, "{\r\n \"a\":\n\"b\\n\"}").expect("good");
        assert_eq!(&*event.payload, b"{   \"a\": \"b\\n\"}");
    }
}
