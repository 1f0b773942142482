//! What nodes tell each other of revocations: a version, the sender's number, a kind, and what it is about.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tidings_model::{Pattern, ProjectId, Timestamp, limits};

use crate::revocation::digests::{BUCKETS, Digests};
use crate::revocation::{Row, Subject};

const VERSION: u8 = 1;
/// Version, sender and kind.
const HEAD_BYTES: usize = 10;

const ROWS: u8 = 0;
const SUMMARY: u8 = 1;
const QUESTION: u8 = 2;

/// Flags of a row.
const OF_TOKEN: u8 = 1;
const WITH_TOPIC: u8 = 2;

/// What a node tells the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Revocations that it has.
    Rows(Vec<Row>),
    /// Digests of all revocations that it has.
    Summary {
        digests: Digests,
        /// Whether those that have others are to tell theirs.
        asks: bool,
    },
}

/// A message that this version cannot read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("version {0} is not known")]
    Version(u8),
    #[error("kind {0} is not known")]
    Kind(u8),
    #[error("it is too short")]
    Short,
    #[error("it has a row that is not valid")]
    Row,
}

fn head(node: u64, kind: u8, room: usize) -> BytesMut {
    let mut out = BytesMut::with_capacity(HEAD_BYTES + room);
    out.put_u8(VERSION);
    out.put_u64(node);
    out.put_u8(kind);
    out
}

/// The message with as many of some revocations as have room in one; those are removed from them. `None` if there are
/// none.
pub(super) fn pack_rows(node: u64, rows: &mut Vec<Row>) -> Option<Bytes> {
    let mut out = head(node, ROWS, 0);
    while let Some(row) = rows.last() {
        if out.len() > HEAD_BYTES && out.len() + bytes_of(row) > limits::REVOCATIONS_MESSAGE_BYTES {
            break;
        }
        put(&mut out, row);
        rows.pop();
    }
    (out.len() > HEAD_BYTES).then(|| out.freeze())
}

pub(super) fn pack_summary(node: u64, digests: &Digests, asks: bool) -> Bytes {
    let mut out = head(node, if asks { QUESTION } else { SUMMARY }, 8 * BUCKETS);
    for digest in digests.as_array() {
        out.put_u64(*digest);
    }
    out.freeze()
}

fn parts(row: &Row) -> (u8, [&str; 3], Timestamp) {
    let ((project, subject, topic), at) = row;
    let (token, id) = match subject {
        Subject::User(id) => (0, id),
        Subject::Token(id) => (OF_TOKEN, id),
    };
    let flags = token | if topic.is_some() { WITH_TOPIC } else { 0 };
    (flags, [project.as_str(), id, topic.as_ref().map_or("", |topic| topic.as_str())], *at)
}

fn bytes_of(row: &Row) -> usize {
    let (_, texts, _) = parts(row);
    9 + texts.iter().map(|text| 2 + text.len()).sum::<usize>()
}

fn put(out: &mut BytesMut, row: &Row) {
    let (flags, texts, at) = parts(row);
    out.put_u8(flags);
    out.put_u64(at.as_millis());
    for text in texts {
        out.put_u16(u16::try_from(text.len()).expect("ids and patterns are far shorter"));
        out.put_slice(text.as_bytes());
    }
}

/// Unpacks the sender's number and the message.
pub(super) fn unpack(mut message: Bytes) -> Result<(u64, Message), Unreadable> {
    match message.first() {
        Some(&VERSION) => {}
        Some(&version) => return Err(Unreadable::Version(version)),
        None => return Err(Unreadable::Short),
    }
    if message.len() < HEAD_BYTES {
        return Err(Unreadable::Short);
    }
    message.advance(1);
    let (node, kind) = (message.get_u64(), message.get_u8());
    let told = match kind {
        ROWS => {
            let mut rows = Vec::new();
            while message.has_remaining() {
                rows.push(row(&mut message)?);
            }
            Message::Rows(rows)
        }
        SUMMARY | QUESTION => {
            let mut digests = Box::new([0; BUCKETS]);
            for digest in digests.iter_mut() {
                *digest = message.try_get_u64().map_err(|_| Unreadable::Short)?;
            }
            Message::Summary { digests: Digests::new(digests), asks: kind == QUESTION }
        }
        other => return Err(Unreadable::Kind(other)),
    };
    Ok((node, told))
}

fn row(message: &mut Bytes) -> Result<Row, Unreadable> {
    let flags = message.try_get_u8().map_err(|_| Unreadable::Short)?;
    let at = message.try_get_u64().map_err(|_| Unreadable::Short)?;
    let [project, id, topic] = [text(message)?, text(message)?, text(message)?];
    let text = |bytes: &Bytes| std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Unreadable::Row);
    let project = ProjectId::parse(&text(&project)?).map_err(|_| Unreadable::Row)?;
    let is_token = flags & OF_TOKEN != 0;
    let bytes_max = if is_token { limits::TOKEN_ID_BYTES } else { limits::USER_ID_BYTES };
    if id.is_empty() || id.len() > bytes_max {
        return Err(Unreadable::Row);
    }
    let id = text(&id)?.into();
    let subject = if is_token { Subject::Token(id) } else { Subject::User(id) };
    let topic = match flags & WITH_TOPIC != 0 {
        true => Some(Pattern::parse(&text(&topic)?).map_err(|_| Unreadable::Row)?),
        false => None,
    };
    Ok(((project, subject, topic), Timestamp::from_millis(at)))
}

fn text(message: &mut Bytes) -> Result<Bytes, Unreadable> {
    let length = usize::from(message.try_get_u16().map_err(|_| Unreadable::Short)?);
    if message.len() < length {
        return Err(Unreadable::Short);
    }
    Ok(message.split_to(length))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows() -> impl Strategy<Value = Vec<Row>> {
        let row = ("[a-z]{1,20}", any::<bool>(), ".{1,100}", prop::option::of("[a-z:*]{1,30}"), any::<u64>());
        prop::collection::vec(row, 0..80).prop_map(|rows| {
            let row = |(project, is_token, id, topic, at): (String, bool, String, Option<String>, u64)| {
                let project = ProjectId::parse(&project).ok()?;
                let topic = topic.map(|topic| Pattern::parse(&topic)).transpose().ok()?;
                let subject = if is_token { Subject::Token(id.into()) } else { Subject::User(id.into()) };
                Some(((project, subject, topic), Timestamp::from_millis(at)))
            };
            rows.into_iter().filter_map(row).collect()
        })
    }

    proptest! {
        #[test]
        fn all_rows_are_packed_into_messages_of_the_limited_size(node: u64, rows in rows()) {
            let (mut left, mut unpacked) = (rows.clone(), Vec::new());
            while let Some(message) = pack_rows(node, &mut left) {
                prop_assert!(message.len() <= limits::REVOCATIONS_MESSAGE_BYTES);
                let Ok((sender, Message::Rows(some))) = unpack(message) else { panic!("it is one of rows") };
                prop_assert_eq!(sender, node);
                unpacked.extend(some);
            }
            unpacked.reverse();
            prop_assert_eq!(unpacked, rows);
        }

        #[test]
        fn no_bytes_make_unpacking_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0..4u8) {
            let mut bytes = bytes;
            let _ = unpack(bytes.clone().into());
            if bytes.len() >= HEAD_BYTES {
                (bytes[0], bytes[HEAD_BYTES - 1]) = (VERSION, kind);
                let _ = unpack(bytes.into());
            }
        }
    }

    #[test]
    fn a_message_of_another_version_or_kind_or_cut_short_is_refused() {
        let summary = pack_summary(7, &Digests::default(), true);
        let is = unpack(summary.clone());
        assert_eq!(is, Ok((7, Message::Summary { digests: Digests::default(), asks: true })));
        for length in 0..summary.len() {
            assert_eq!(unpack(summary.slice(..length)), Err(Unreadable::Short), "{length}");
        }
        let mut other = summary.to_vec();
        other[HEAD_BYTES - 1] = 9;
        assert_eq!(unpack(other.clone().into()), Err(Unreadable::Kind(9)));
        other[0] = 2;
        assert_eq!(unpack(other.into()), Err(Unreadable::Version(2)));
    }
}
