//! Records as the body of an answer.

use bytes::{BufMut, Bytes, BytesMut};
use tidings_engine::log::Record;

/// The records one behind the other; in JSON mode as one array.
pub fn body(records: &[Record], json: bool) -> Bytes {
    match records {
        [] if json => Bytes::from_static(b"[]"),
        [] => Bytes::new(),
        [record] if !json => record.payload.clone(),
        records => {
            let bytes: usize = records.iter().map(|record| record.payload.len() + 1).sum();
            let mut body = BytesMut::with_capacity(bytes + 1);
            write(&mut body, records, json);
            body.freeze()
        }
    }
}

fn write(body: &mut BytesMut, records: &[Record], json: bool) {
    for (n, record) in records.iter().enumerate() {
        if json {
            body.put_u8(if n == 0 { b'[' } else { b',' });
        }
        body.put_slice(&record.payload);
    }
    if json {
        body.put_u8(b']');
    }
}
