//! Journals: one log per project that refers to every event of the project that somebody may hear.
//!
//! Whoever must hear everything of a project follows its journal, not each of its logs. A capability that appends a
//! record adds an entry to the journal in the same commit: one *header* record per message, then references to the
//! messages. A header says what the message is, so that it can be matched and delivered even when the log that it was
//! appended to is gone. The payload is stored once.
//!
//! Not here: who hears, and how. A [`Journal`] is injected into the capabilities that append.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tidings_model::{LogId, Position, ProjectId, limits};

use crate::log::{Append, Commit, Of, Refer};

/// A place for the events of projects.
pub trait Journal: Send + Sync + 'static {
    /// Returns the journal that events of a source belong to, or `None` when nobody hears them. Cheap: asked for each
    /// append.
    fn log(&self, project: &ProjectId, source: &'static str) -> Option<LogId>;

    /// Tells that entries were committed to a journal. A missing call only delays their delivery.
    fn appended(&self, journal: LogId);
}

/// First byte of a journal record that is the header of a message.
pub const HEADER: u8 = 2;

/// What a message is that a journal refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Type of the event, such as `stream.orders`.
    pub event_type: String,
    /// Field of the event that holds the name, such as `stream`.
    pub field: String,
    /// Name of what the message was appended to, such as the id of a stream.
    pub name: String,
    /// Content type of the message.
    pub content_type: String,
    /// Bytes of the stored message before the content.
    pub skip: u32,
    /// Records from the header to the message that it describes.
    pub distance: u64,
    /// Bytes of the stored message.
    pub bytes: u64,
}

impl Header {
    /// Position of the described message, given that of the header.
    pub fn message(&self, header: Position) -> Position {
        header.further(self.distance).unwrap_or(Position::MAX)
    }

    fn write(&self) -> Bytes {
        let texts = [&self.event_type, &self.field, &self.name, &self.content_type];
        let length: usize = texts.iter().map(|text| 2 + text.len()).sum();
        let mut out = BytesMut::with_capacity(1 + length + 20);
        out.put_u8(HEADER);
        out.put_u32_le(self.skip);
        out.put_u64_le(self.distance);
        out.put_u64_le(self.bytes);
        for text in texts {
            out.put_u16_le(u16::try_from(text.len()).unwrap_or(u16::MAX));
            out.put_slice(&text.as_bytes()[..text.len().min(usize::from(u16::MAX))]);
        }
        out.freeze()
    }

    /// Reads a header back. Returns `None` if the record is not one.
    pub fn read(mut record: &[u8]) -> Option<Self> {
        if record.len() < 21 || record.get_u8() != HEADER {
            return None;
        }
        let (skip, distance, bytes) = (record.get_u32_le(), record.get_u64_le(), record.get_u64_le());
        let mut text = || {
            if record.len() < 2 {
                return None;
            }
            let length = usize::from(record.get_u16_le());
            let text = std::str::from_utf8(record.get(..length)?).ok()?.to_owned();
            record.advance(length);
            Some(text)
        };
        let (event_type, field, name, content_type) = (text()?, text()?, text()?, text()?);
        Some(Self { event_type, field, name, content_type, skip, distance, bytes })
    }
}

/// A message of an append, as its entry in a journal describes it.
#[derive(Clone, Debug)]
pub struct Described {
    /// Type of the event.
    pub event_type: String,
    /// Bytes of the stored message before the content.
    pub skip: u32,
    /// Bytes of the stored message.
    pub bytes: u64,
}

/// An entry for a journal: the messages of one append.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// Field of the events that holds the name, such as `stream`.
    pub field: &'static str,
    /// Name of what the messages are appended to.
    pub name: &'a str,
    /// Content type of the messages.
    pub content_type: &'a str,
    /// The messages, in the order of the append.
    pub messages: Vec<Described>,
}

impl Entry<'_> {
    /// Adds the entry to the commit that appends the messages. `append` is the index of that operation.
    pub fn add_to<C>(&self, commit: &mut Commit<C>, append: usize, journal: LogId) {
        let distance = self.messages.len() as u64;
        let header = |message: &Described| {
            let header = Header {
                event_type: message.event_type.clone(),
                field: self.field.to_owned(),
                name: self.name.to_owned(),
                content_type: self.content_type.to_owned(),
                skip: message.skip,
                distance,
                bytes: message.bytes,
            };
            header.write()
        };
        let headers = self.messages.iter().map(header).collect();
        commit.operations.push(Append::new(journal, headers).into());
        commit.operations.push(Refer { of: Of::Append(append), into: Arc::new([journal]) }.into());
    }
}

/// Makes an event type of a prefix, a name and an optional last segment: `stream.` and the id of a stream. In the name,
/// `/` and `:` separate segments as `.` does; other characters that a type may not have become `_`; empty segments
/// are left out. The name is cut so that the type has at most [`limits::EVENT_TYPE_SEGMENTS`] segments and
/// [`limits::EVENT_TYPE_BYTES`] bytes.
pub fn event_type(prefix: &str, name: &str, last: Option<&str>) -> String {
    let room = limits::EVENT_TYPE_BYTES - last.map_or(0, |last| last.len() + 1);
    let segments = limits::EVENT_TYPE_SEGMENTS - 1 - usize::from(last.is_some());
    let mut made = String::with_capacity(limits::EVENT_TYPE_BYTES);
    made.push_str(prefix);
    let parts = name.split(['.', '/', ':']).filter(|part| !part.is_empty());
    for part in parts.take(segments) {
        if made.len() + 1 >= room {
            break;
        }
        made.push('.');
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
        made.extend(part.chars().map(plain).take(room - made.len()));
    }
    if let Some(last) = last {
        made.push('.');
        made.push_str(last);
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_becomes_segments_of_a_type() {
        for (name, made) in [
            ("orders", "stream.orders"),
            ("a/b:c.d", "stream.a.b.c.d"),
            ("über uns", "stream._ber_uns"),
            ("//a..b/", "stream.a.b"),
            ("/", "stream"),
            ("1.2.3.4.5.6.7.8.9.10.11", "stream.1.2.3.4.5.6.7.8.9"),
        ] {
            assert_eq!(event_type("stream", name, None), made, "{name}");
        }
        assert_eq!(event_type("room", "a/b", Some("messageEvent")), "room.a.b.messageEvent");
        let long = event_type("room", &"x".repeat(500), Some("messageEvent"));
        assert_eq!(long.len(), limits::EVENT_TYPE_BYTES);
        assert!(long.ends_with("x.messageEvent"));
    }

    #[test]
    fn an_entry_has_a_header_for_each_message_before_the_references() {
        let described = |event_type: &str| Described { event_type: event_type.into(), skip: 3, bytes: 9 };
        let entry = Entry {
            field: "room",
            name: "r",
            content_type: "application/json",
            messages: vec![described("room.r.a"), described("room.r.b")],
        };
        let payloads = vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")];
        let mut commit = Commit::<()>::new().with(Append::new(LogId::new(1), payloads));
        entry.add_to(&mut commit, 0, LogId::new(2));
        let [_, crate::log::Operation::Append(headers), crate::log::Operation::Refer(refer)] =
            &commit.operations[..]
        else {
            panic!("{commit:?}");
        };
        let header = Header::read(&headers.payloads[1]).expect("a header");
        assert_eq!((header.event_type.as_str(), header.field.as_str(), header.skip), ("room.r.b", "room", 3));
        let at = Position::in_commit(tidings_model::CommitNumber::from_number(5), 1);
        assert_eq!(header.message(at).parts().1, 3, "two headers, then the messages");
        assert_eq!((&refer.of, &refer.into[..]), (&Of::Append(0), &[LogId::new(2)][..]));
    }

    proptest! {
        #[test]
        fn a_header_is_read_as_it_was_written(
            texts in prop::collection::vec(".{0,40}", 4), skip in any::<u32>(), distance in any::<u64>(),
        ) {
            let mut texts = texts.into_iter();
            let mut text = || texts.next().expect("four");
            let header = Header {
                event_type: text(), field: text(), name: text(), content_type: text(),
                skip, distance, bytes: 7,
            };
            let written = header.write();
            prop_assert_eq!(Header::read(&written), Some(header));
            for length in 0..written.len() {
                prop_assert_eq!(Header::read(&written[..length]), None);
            }
        }

        #[test]
        fn a_made_type_is_always_valid(name in ".{1,600}", last in prop::option::of("[a-z]{1,20}")) {
            let made = event_type("stream", &name, last.as_deref());
            prop_assert!(made.len() <= limits::EVENT_TYPE_BYTES);
            prop_assert!(made.split('.').count() <= limits::EVENT_TYPE_SEGMENTS);
            prop_assert!(made.split('.').all(|part| !part.is_empty()), "{}", made);
        }
    }
}
