//! Complete events: records of a journal that refer to nothing.

use bytes::{BufMut, Bytes, BytesMut};

/// First byte of a journal record that is a complete event.
pub const EVENT: u8 = 1;

/// Flag: whoever made the event chose its id, and may enter it again under the same id.
const ID_CHOSEN: u8 = 2;

/// A complete event. Whoever hears journals reads it back.
#[derive(Clone, Copy, Debug)]
pub struct EventRecord<'a> {
    /// Type of the event, such as `collection.users.insert`.
    pub event_type: &'a str,
    /// Id of the event.
    pub id: &'a str,
    /// Whether the event may be entered again under the same id, and is then heard once.
    pub may_come_again: bool,
    /// Time of the event in ISO 8601.
    pub ts: &'a str,
    /// The event as one JSON object, with `type` and `ts`.
    pub json: &'a [u8],
}

impl EventRecord<'_> {
    /// Encodes the event: kind, flags, the lengths of type, id and time, these texts, and the JSON.
    ///
    /// # Panics
    /// If one of the texts has 64 KiB or more.
    pub fn encode(&self) -> Bytes {
        let texts = [self.event_type, self.id, self.ts];
        let length: usize = texts.iter().map(|text| text.len()).sum();
        let mut out = BytesMut::with_capacity(2 + 3 * 2 + length + self.json.len());
        out.put_u8(EVENT);
        out.put_u8(if self.may_come_again { ID_CHOSEN } else { 0 });
        for text in texts {
            out.put_u16_le(u16::try_from(text.len()).expect("limits of texts are below 64 KiB"));
        }
        for text in texts {
            out.put_slice(text.as_bytes());
        }
        out.put_slice(self.json);
        out.freeze()
    }
}
