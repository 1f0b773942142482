//! Encodes records as the body of a response.

use bytes::{BufMut, Bytes, BytesMut};
use tidings_engine::log::Record;

use crate::envelope;

/// The concatenated records; in JSON mode one array.
pub fn body(records: &[Record], json: bool) -> Bytes {
    match records {
        [] if json => Bytes::from_static(b"[]"),
        [] => Bytes::new(),
        [record] if !json => record.payload.clone(),
        records => {
            let mut body = BytesMut::with_capacity(length(records, json));
            write(&mut body, records, json);
            body.freeze()
        }
    }
}

/// The length of [`body`] in bytes.
pub fn length(records: &[Record], json: bool) -> usize {
    let payloads: usize = records.iter().map(shown).sum();
    if json { payloads + records.len().max(1) + 1 } else { payloads }
}

/// The length of a record as it is shown, in bytes.
fn shown(record: &Record) -> usize {
    record.head.as_ref().map_or(0, |head| head.len() + 1) + record.payload.len()
}

fn write(body: &mut BytesMut, records: &[Record], json: bool) {
    for (n, record) in records.iter().enumerate() {
        if json {
            body.put_u8(if n == 0 { b'[' } else { b',' });
        }
        match &record.head {
            None => body.put_slice(&record.payload),
            Some(head) => {
                body.put_slice(head.as_bytes());
                body.put_slice(&record.payload);
                body.put_u8(envelope::END);
            }
        }
    }
    if json {
        body.put_u8(b']');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_engine::log::Boundary;
    use tidings_model::{CommitNumber, Position, Timestamp};

    #[test]
    fn the_length_is_known_before_the_body() {
        let record = |text: &'static str| Record {
            position: Position::ZERO,
            commit: CommitNumber::ZERO,
            at: Timestamp::from_millis(0),
            payload: Bytes::from_static(text.as_bytes()),
            head: None,
            origin: None,
            boundary: Boundary::Last,
        };
        for records in [vec![], vec![record("1")], vec![record("1"), record("[22]"), record("333")]] {
            for json in [false, true] {
                assert_eq!(length(&records, json), body(&records, json).len(), "{records:?}, {json}");
            }
        }
        let enveloped = Record { head: Some(r#"{"payload":"#.into()), ..record("1") };
        let records = [enveloped, record("2")];
        assert_eq!(body(&records, true), r#"[{"payload":1},2]"#);
        assert_eq!(length(&records, true), body(&records, true).len());
    }
}
