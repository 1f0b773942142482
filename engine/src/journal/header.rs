//! Headers: what a message is that a journal refers to.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tidings_model::Position;

use super::{Described, Entry};

/// First byte of a journal record that is the header of a message.
pub const HEADER: u8 = 2;

/// Bytes of a header without its texts.
const FIXED: usize = 1 + 4 + 8 + 8;

/// Flag beside the length of a name: it is not written, because the type has it behind the field and a dot.
const IN_TYPE: u16 = 0x8000;

/// Bytes of the longest text.
const TEXT_MAX: u16 = IN_TYPE - 1;

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

    /// Reads a header back. Returns `None` if the record is not one.
    pub fn read(mut record: &[u8]) -> Option<Self> {
        if record.len() < FIXED || record.get_u8() != HEADER {
            return None;
        }
        let (skip, distance, bytes) = (record.get_u32_le(), record.get_u64_le(), record.get_u64_le());
        let (event_type, field) = (read_text(&mut record)?, read_text(&mut record)?);
        let name = match record.first_chunk().map(|length| u16::from_le_bytes(*length))? {
            length if length & IN_TYPE == 0 => read_text(&mut record)?,
            length => {
                record.advance(2);
                let begin = field.len() + 1;
                event_type.get(begin..begin + usize::from(length & TEXT_MAX))?.to_owned()
            }
        };
        let content_type = read_text(&mut record)?;
        Some(Self { event_type, field, name, content_type, skip, distance, bytes })
    }
}

impl Entry<'_> {
    /// Bytes of the headers of all messages.
    pub fn header_bytes(&self) -> usize {
        self.messages.iter().map(|message| self.header_length(message)).sum()
    }

    /// The header of each message. They share one allocation.
    pub(super) fn headers(&self) -> Vec<Bytes> {
        let mut out = BytesMut::with_capacity(self.header_bytes());
        let header = |message| {
            self.write_header(message, &mut out);
            out.split().freeze()
        };
        self.messages.iter().map(header).collect()
    }

    /// Whether the type is the field, a dot and the name, with or without something behind.
    fn has_name_in(&self, event_type: &str) -> bool {
        let behind = event_type.strip_prefix(self.field).and_then(|rest| rest.strip_prefix('.'));
        behind.is_some_and(|behind| behind.starts_with(cut(self.name)))
    }

    fn header_length(&self, message: &Described) -> usize {
        let texts = [&message.event_type, self.field, self.name, self.content_type];
        let whole: usize = texts.into_iter().map(|text| 2 + cut(text).len()).sum();
        let omitted = if self.has_name_in(cut(&message.event_type)) { cut(self.name).len() } else { 0 };
        FIXED + whole - omitted
    }

    fn write_header(&self, message: &Described, out: &mut BytesMut) {
        out.put_u8(HEADER);
        out.put_u32_le(message.skip);
        out.put_u64_le(self.messages.len() as u64);
        out.put_u64_le(message.bytes);
        let event_type = cut(&message.event_type);
        write_text(event_type, out);
        write_text(self.field, out);
        if self.has_name_in(event_type) {
            out.put_u16_le(cut(self.name).len() as u16 | IN_TYPE);
        } else {
            write_text(self.name, out);
        }
        write_text(self.content_type, out);
    }
}

fn write_text(text: &str, out: &mut BytesMut) {
    let text = cut(text);
    out.put_u16_le(text.len() as u16);
    out.put_slice(text.as_bytes());
}

fn read_text(record: &mut &[u8]) -> Option<String> {
    let length = usize::from(record.try_get_u16_le().ok()?);
    let text = std::str::from_utf8(record.get(..length)?).ok()?.to_owned();
    record.advance(length);
    Some(text)
}

/// The text as far as its length fits. All texts of today are far shorter.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(usize::from(TEXT_MAX));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_header_is_read_as_it_was_written(
            texts in prop::collection::vec(".{0,40}", 2), mut types in prop::collection::vec(".{0,40}", 1..5),
            skip in any::<u32>(), bytes in any::<u64>(), last in ".{0,5}",
        ) {
            types.push(format!("stream.{}{last}", texts[0]));
            let described = |event_type: &String| Described { event_type: event_type.as_str().into(), skip, bytes };
            let entry = Entry {
                field: "stream", name: &texts[0], content_type: &texts[1],
                messages: types.iter().map(described).collect(),
            };
            let written = entry.headers();
            prop_assert_eq!(written.len(), types.len());
            prop_assert_eq!(written.iter().map(Bytes::len).sum::<usize>(), entry.header_bytes());
            for (header, event_type) in written.iter().zip(&types) {
                let expected = Header {
                    event_type: event_type.clone(), field: "stream".to_owned(), name: texts[0].clone(),
                    content_type: texts[1].clone(), skip, distance: types.len() as u64, bytes,
                };
                prop_assert_eq!(Header::read(header), Some(expected));
                for length in 0..header.len() {
                    prop_assert_eq!(Header::read(&header[..length]), None);
                }
            }
        }
    }

    #[test]
    fn a_name_that_the_type_has_is_not_written_again() {
        let entry = |name, event_type: &str| Entry {
            field: "room",
            name,
            content_type: "",
            messages: vec![Described { event_type: event_type.into(), skip: 0, bytes: 1 }],
        };
        for (name, event_type, omitted) in [
            ("a.b", "room.a.b.messageEvent", 3),
            ("a.b", "room.a.b", 3),
            ("a/b", "room.a.b", 0),
            ("", "room", 0),
            ("b", "room.a.b", 0),
            ("room", "room", 0),
            ("a", "stream.a", 0),
        ] {
            let headers = entry(name, event_type).headers();
            assert_eq!(headers[0].len(), FIXED + 8 + event_type.len() + 4 + name.len() - omitted, "{name}");
            assert_eq!(Header::read(&headers[0]).expect("a header").name, name);
        }
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_between_characters() {
        let name = format!("x{}", "ä".repeat(40_000));
        let messages = vec![Described { event_type: "stream".into(), skip: 0, bytes: 1 }];
        let entry = Entry { field: "stream", name: &name, content_type: "", messages };
        let read = Header::read(&entry.headers()[0]).expect("a header");
        assert_eq!(read.name.len(), 32_767);
        assert!(name.starts_with(&read.name));
    }
}
