//! A change as it is stored: the action, the length of the code, the code, the id.

use bytes::{BufMut, Bytes, BytesMut};

use crate::change::{Action, Change, NewChange};
use crate::entity::{EntityCode, IdForm};

/// Encodes changes, one record each. They share one allocation.
pub(super) fn encode(changes: &[NewChange]) -> Vec<Bytes> {
    let length = |change: &NewChange| 3 + change.code.as_str().len() + change.id.as_str().len();
    let mut out = BytesMut::with_capacity(changes.iter().map(length).sum());
    let record = |change: &NewChange| {
        let (code, id) = (change.code.as_str(), change.id.as_str());
        out.put_u8(match change.action {
            Action::Create => 1,
            Action::Update => 2,
            Action::Delete => 3,
        });
        out.put_u16_le(u16::try_from(code.len()).expect("a code has at most 400 bytes"));
        out.put_slice(code.as_bytes());
        out.put_slice(id.as_bytes());
        out.split().freeze()
    };
    changes.iter().map(record).collect()
}

/// Decodes a record. `None` if it is not a change.
pub(super) fn decode(record: &[u8], version: u64) -> Option<Change> {
    let (&action, rest) = record.split_first()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (code, id) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    let action = match action {
        1 => Action::Create,
        2 => Action::Update,
        3 => Action::Delete,
        _ => return None,
    };
    let code = EntityCode::parse(std::str::from_utf8(code).ok()?).ok()?;
    let id = IdForm::Text.parse(std::str::from_utf8(id).ok()?).ok()?;
    Some(Change { code, id, action, version, reason: None })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_change_is_read_as_it_was_written(
            code in "[^\\p{C}]{1,100}", id in "[^\0]{1,128}", action in 0..3usize, version in 1..1u64 << 53,
        ) {
            let action = [Action::Create, Action::Update, Action::Delete][action];
            let code = EntityCode::parse(&code).expect("a code");
            let id = IdForm::Text.parse(&id).expect("an id");
            let records = encode(&[NewChange { code: code.clone(), id: id.clone(), action }]);
            let head = 3 + code.as_str().len();
            for length in 0..=head {
                prop_assert_eq!(decode(&records[0][..length], version), None);
            }
            let expected = Change { code, id, action, version, reason: None };
            prop_assert_eq!(decode(&records[0], version), Some(expected));
        }
    }

    #[test]
    fn bytes_that_are_no_change_are_not_taken_for_one() {
        for bad in
            [&b""[..], b"\x01", b"\x01\x01\x00p", b"\x04\x01\x00pq", b"\x01\x00\x00q", b"\x01\x01\x00\xffq"]
        {
            assert_eq!(decode(bad, 1), None, "{bad:?}");
        }
    }
}
