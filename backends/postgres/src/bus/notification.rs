//! What a notification says: a number, the name of the channel, and the message.
//!
//! It is base64, because a notification is text. The number is there because PostgreSQL drops a notification that is equal
//! to another one of the same transaction.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;

/// Bytes that the text of a notification may have.
const TEXT_BYTES: usize = 7999;
/// Bytes of the number and of the length of the channel's name.
const HEAD_BYTES: usize = 6;

/// Bytes that a message on a channel may have.
pub(super) fn message_bytes_max(channel: &str) -> usize {
    (TEXT_BYTES * 3 / 4).saturating_sub(HEAD_BYTES + channel.len())
}

/// Writes a notification. `None` if it would be too long.
pub(super) fn write(number: u32, channel: &str, message: &[u8]) -> Option<String> {
    let length = u16::try_from(channel.len()).ok()?;
    let mut bytes = Vec::with_capacity(HEAD_BYTES + channel.len() + message.len());
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(channel.as_bytes());
    bytes.extend_from_slice(message);
    let text = STANDARD_NO_PAD.encode(bytes);
    (text.len() <= TEXT_BYTES).then_some(text)
}

/// Reads channel and message. `None` if it is not one of ours.
pub(super) fn read(text: &str) -> Option<(Bytes, Bytes)> {
    let bytes = Bytes::from(STANDARD_NO_PAD.decode(text).ok()?);
    let length = usize::from(u16::from_be_bytes([*bytes.get(4)?, *bytes.get(5)?]));
    let end = HEAD_BYTES + length;
    if bytes.len() < end {
        return None;
    }
    Some((bytes.slice(HEAD_BYTES..end), bytes.slice(end..)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_largest_message_fits_exactly() {
        let channel = "topics/app/room:1";
        let largest = vec![0; message_bytes_max(channel)];
        assert!(write(u32::MAX, channel, &largest).is_some_and(|text| text.len() == TEXT_BYTES));
        assert!(write(0, channel, &[largest, vec![0]].concat()).is_none());
        assert_eq!(write(0, &"x".repeat(8000), b""), None);
        assert_eq!(message_bytes_max(&"x".repeat(8000)), 0);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(number: u32, channel in ".{0,40}", message in prop::collection::vec(any::<u8>(), 0..100)) {
            let text = write(number, &channel, &message).expect("it is short");
            prop_assert_eq!(read(&text), Some((Bytes::from(channel), Bytes::from(message))));
        }

        #[test]
        fn no_text_makes_reading_panic(text in "[A-Za-z0-9+/= ü]{0,40}") {
            let _ = read(&text);
        }
    }
}
