//! What happens in a room, as it is written and as it is stored.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use tidings_engine::log::Record;
use tidings_model::{Producer, Timestamp, limits};

use crate::Cursor;

/// Kinds of events that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A message was sent.
    Message,
    /// Somebody reacted to a message, or takes that back.
    Reaction,
    /// Somebody is typing. Only those hear it who are there.
    Typing,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Message, Self::Reaction, Self::Typing];

    /// Its name, as clients know it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Message => "messageEvent",
            Self::Reaction => "reactionEvent",
            Self::Typing => "typingEvent",
        }
    }

    /// The kind of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether it is kept.
    pub const fn is_durable(self) -> bool {
        !matches!(self, Self::Typing)
    }

    /// As it is stored.
    const fn number(self) -> u8 {
        match self {
            Self::Message => 1,
            Self::Reaction => 2,
            Self::Typing => 3,
        }
    }
}

/// Something that is to happen in a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// What it is.
    pub kind: Kind,
    /// An object in JSON, on one line.
    pub payload: Bytes,
}

/// Why an event cannot be written. The message is fit for the client that sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEvent {
    /// Not JSON.
    #[error("the payload is not JSON: {0}")]
    NotJson(String),
    /// Something else than an object.
    #[error("the payload of an event is an object")]
    NotAnObject,
    /// A message without its view.
    #[error("the payload of a messageEvent has an object `messageView`")]
    NoMessageView,
    /// A reaction that does not say who, what and to what.
    #[error(
        "the payload of a reactionEvent has texts `messageId`, `actor` and `reaction`, and `{0}` is none"
    )]
    Reaction(&'static str),
    /// A reaction of which readers might not agree whose it is, or what.
    #[error("the payload of a reactionEvent has each of `messageId`, `actor`, `reaction` and `op` once")]
    Ambiguous,
    /// A reaction that is neither made nor taken back.
    #[error("the `op` of a reactionEvent is `add` or `remove`")]
    Operation,
}

impl NewEvent {
    /// An event whose payload is this text, which is kept as it is but for line breaks.
    pub fn parse(kind: Kind, payload: Bytes) -> Result<Self, BadEvent> {
        let value = serde_json::from_slice(&payload).map_err(|error| BadEvent::NotJson(error.to_string()))?;
        Self::check(kind, &value)?;
        if kind == Kind::Reaction && serde_json::from_slice::<EachOnce>(&payload).is_err() {
            return Err(BadEvent::Ambiguous);
        }
        let breaks = |byte: &u8| matches!(byte, b'\n' | b'\r');
        let payload = if payload.iter().any(breaks) {
            // In JSON they only stand between what matters.
            payload.iter().map(|byte| if breaks(byte) { b' ' } else { *byte }).collect()
        } else {
            payload
        };
        Ok(Self { kind, payload })
    }

    /// Whether an event of that kind may have this payload.
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

    /// Who reacts, if it is a reaction.
    pub fn actor(&self) -> Option<String> {
        reaction_key(self.kind, &self.payload).map(|key| key.actor.into_owned())
    }

    /// As it is stored, at this moment.
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

// The length of a producer's id is stored in two bytes.
const _: () = assert!(limits::PRODUCER_ID_BYTES <= u16::MAX as usize);

/// Beside the kind: the event is the first of a request that its producer has stamped.
const STAMPED: u8 = 0x80;

/// Something that has happened in a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Where it lies.
    pub cursor: Cursor,
    /// What it is.
    pub kind: Kind,
    /// When it was written.
    pub emitted_at: Timestamp,
    /// An object in JSON, as it was given.
    pub payload: Bytes,
}

impl Event {
    /// The event that a record of a room is; none if it is something else.
    pub fn of(record: &Record) -> Option<Self> {
        let Stored { kind, emitted_at, payload, .. } = Stored::read(record.payload.clone())?;
        Some(Self { cursor: Cursor::at(record.position), kind, emitted_at, payload })
    }

    /// Which reaction of whom to what it concerns.
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

/// The fields of a reaction, of which none may stand there twice: some would read the first, others the last.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "they are there once, that is all")]
struct EachOnce {
    message_id: IgnoredAny,
    actor: IgnoredAny,
    reaction: IgnoredAny,
    op: IgnoredAny,
}

/// Operations on the same key replace each other.
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

/// Whether a record is a reaction, as far as can be told without reading all of it.
pub(crate) fn is_reaction(record: &Record) -> bool {
    record.payload.first().is_some_and(|tag| tag & !STAMPED == Kind::Reaction.number())
}

/// Whether a record is the first that a request of this stamp has written.
pub(crate) fn is_first_of(record: &Record, producer: &Producer) -> bool {
    let stamp = Stored::read(record.payload.clone()).and_then(|stored| stored.stamp);
    stamp.is_some_and(|(epoch, sequence, id)| {
        (epoch, sequence) == (producer.epoch, producer.sequence) && id == producer.id.as_str().as_bytes()
    })
}

/// What a record of a room says.
struct Stored {
    kind: Kind,
    emitted_at: Timestamp,
    /// Epoch, sequence and id of a producer.
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
