//! Messages as they travel between nodes: a version, the sender's number, that of the message, a header of JSON, and the payload.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::envelope::{Payload, PublishEnvelope};

const VERSION: u8 = 2;

#[derive(Serialize, Deserialize)]
struct Header<'a> {
    topic: std::borrow::Cow<'a, str>,
    kind: std::borrow::Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    meta: Map<String, Value>,
    payload: Kind,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    None,
    Json,
    Binary,
}

/// A parcel that this version cannot read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("version {0} is not known")]
    Version(u8),
    #[error("it is too short")]
    Short,
    #[error("its header is not valid: {0}")]
    Header(String),
}

/// Packs a message of a node, which numbers its messages.
pub(crate) fn pack(node: u64, number: u64, envelope: &PublishEnvelope) -> Bytes {
    let (kind, payload) = match &envelope.payload {
        Payload::None => (Kind::None, &Bytes::new()),
        Payload::Json(text) => (Kind::Json, text),
        Payload::Binary(bytes) => (Kind::Binary, bytes),
    };
    let header = Header {
        topic: envelope.topic.as_str().into(),
        kind: envelope.kind.as_str().into(),
        meta: envelope.meta.clone(),
        payload: kind,
    };
    let header = serde_json::to_vec(&header).expect("text and JSON values can be written as JSON");
    let mut parcel = BytesMut::with_capacity(21 + header.len() + payload.len());
    parcel.put_u8(VERSION);
    parcel.put_u64(node);
    parcel.put_u64(number);
    parcel.put_u32(u32::try_from(header.len()).expect("a header is far smaller than 4 GiB"));
    parcel.put_slice(&header);
    parcel.put_slice(payload);
    parcel.freeze()
}

/// Unpacks the sender's number, that of the message, and the message.
pub(crate) fn unpack(mut parcel: Bytes) -> Result<(u64, u64, PublishEnvelope), Unreadable> {
    match parcel.first() {
        Some(&VERSION) => {}
        Some(&version) => return Err(Unreadable::Version(version)),
        None => return Err(Unreadable::Short),
    }
    if parcel.len() < 21 {
        return Err(Unreadable::Short);
    }
    parcel.advance(1);
    let (node, number) = (parcel.get_u64(), parcel.get_u64());
    let length = parcel.get_u32() as usize;
    if parcel.len() < length {
        return Err(Unreadable::Short);
    }
    let header = parcel.split_to(length);
    let header: Header<'_> =
        serde_json::from_slice(&header).map_err(|error| Unreadable::Header(error.to_string()))?;
    let payload = match header.payload {
        Kind::None => Payload::None,
        Kind::Json => Payload::Json(parcel),
        Kind::Binary => Payload::Binary(parcel),
    };
    let (topic, kind) = (header.topic.into_owned(), header.kind.into_owned());
    Ok((node, number, PublishEnvelope { topic, kind, meta: header.meta, payload }))
}

/// Packs a message for a history, with the name of the sender that does not hear it.
pub(crate) fn pack_record(sender: Option<&str>, envelope: &PublishEnvelope) -> Bytes {
    let (sender, message) = (sender.unwrap_or_default(), pack(0, 0, envelope));
    let mut record = BytesMut::with_capacity(2 + sender.len() + message.len());
    record.put_u16(u16::try_from(sender.len()).expect("names are short"));
    record.put_slice(sender.as_bytes());
    record.put_slice(&message);
    record.freeze()
}

/// Unpacks a message of a history, and the name of its sender.
pub(crate) fn unpack_record(mut record: Bytes) -> Result<(Option<Arc<str>>, PublishEnvelope), Unreadable> {
    if record.len() < 2 {
        return Err(Unreadable::Short);
    }
    let length = usize::from(record.get_u16());
    if record.len() < length {
        return Err(Unreadable::Short);
    }
    let sender = record.split_to(length);
    let sender = std::str::from_utf8(&sender).map_err(|error| Unreadable::Header(error.to_string()))?;
    let sender = (!sender.is_empty()).then(|| sender.into());
    let (.., envelope) = unpack(record)?;
    Ok((sender, envelope))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(
            node: u64,
            number: u64,
            topic in ".{0,20}",
            kind in ".{0,20}",
            meta in prop::collection::btree_map(".{0,5}", ".{0,5}", 0..3),
            which in 0..3,
            bytes in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let payload = match which {
                0 => Payload::None,
                1 => Payload::Json(bytes.into()),
                _ => Payload::Binary(bytes.into()),
            };
            let meta = meta.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
            let envelope = PublishEnvelope { topic, kind, meta, payload };
            let sender = (node % 2 == 0).then_some("s_1");
            let record = unpack_record(pack_record(sender, &envelope)).expect("as it was packed");
            prop_assert_eq!(record, (sender.map(Into::into), envelope.clone()));
            prop_assert_eq!(unpack(pack(node, number, &envelope)), Ok((node, number, envelope)));
        }

        #[test]
        fn no_bytes_make_unpacking_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut bytes = bytes;
            let _ = unpack(bytes.clone().into());
            let _ = unpack_record(bytes.clone().into());
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            let _ = unpack(bytes.into());
        }
    }

    #[test]
    fn a_parcel_of_another_version_or_cut_short_is_refused() {
        let parcel = pack(7, 1, &PublishEnvelope::new("t", "X"));
        assert_eq!(unpack(Bytes::from_static(&[1, 0])), Err(Unreadable::Version(1)));
        for length in 0..parcel.len() {
            assert!(unpack(parcel.slice(..length)).is_err(), "{length}");
        }
    }
}
