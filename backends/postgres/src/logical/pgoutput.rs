//! What the output plugin `pgoutput` sends, version 1 of its protocol, as far as keys of rows need it.

use bytes::{Buf, Bytes};

/// A message of the plugin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A transaction begins, whose commit is at this position.
    Begin { commit: u64 },
    /// The transaction ends. What comes next is at this position or after it.
    Commit { end: u64 },
    /// Describes a table, before its first row and after each change of it.
    Relation(Relation),
    /// A row was inserted.
    Insert { relation: u32, new: Row },
    /// A row was changed. The old row is there if its key has changed, or if the table says so.
    Update { relation: u32, old: Option<Row>, new: Row },
    /// A row was deleted.
    Delete { relation: u32, old: Row },
    /// Tables were emptied.
    Truncate { relations: Vec<u32> },
    /// Something of no interest here, such as a type.
    Other,
}

/// A table as the plugin sends it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Relation {
    pub(crate) id: u32,
    /// Names of the columns that are sent, in order.
    pub(crate) columns: Vec<String>,
}

/// The columns of a row as text; `None` is `NULL`, or a value that was not sent because it has not changed.
pub(crate) type Row = Vec<Option<Bytes>>;

/// Parses a message. `None` if it is not one.
pub(crate) fn parse(mut body: Bytes) -> Option<Message> {
    Some(match number::<1>(&mut body)?[0] {
        b'B' => Message::Begin { commit: long(&mut body)? },
        b'C' => {
            skip(&mut body, 1 + 8)?;
            Message::Commit { end: long(&mut body)? }
        }
        b'R' => {
            let id = int(&mut body)?;
            text(&mut body)?;
            text(&mut body)?;
            skip(&mut body, 1)?;
            let mut columns = Vec::new();
            for _ in 0..short(&mut body)? {
                skip(&mut body, 1)?;
                columns.push(text(&mut body)?);
                skip(&mut body, 4 + 4)?;
            }
            Message::Relation(Relation { id, columns })
        }
        b'I' => {
            let relation = int(&mut body)?;
            expect(&mut body, b'N')?;
            Message::Insert { relation, new: row(&mut body)? }
        }
        b'U' => {
            let relation = int(&mut body)?;
            let old = match *body.first()? {
                b'K' | b'O' => {
                    skip(&mut body, 1)?;
                    Some(row(&mut body)?)
                }
                _ => None,
            };
            expect(&mut body, b'N')?;
            Message::Update { relation, old, new: row(&mut body)? }
        }
        b'D' => {
            let relation = int(&mut body)?;
            if !matches!(number::<1>(&mut body)?[0], b'K' | b'O') {
                return None;
            }
            Message::Delete { relation, old: row(&mut body)? }
        }
        b'T' => {
            let count = int(&mut body)?;
            skip(&mut body, 1)?;
            let relations: Option<_> = (0..count).map(|_| int(&mut body)).collect();
            Message::Truncate { relations: relations? }
        }
        _ => Message::Other,
    })
}

fn row(body: &mut Bytes) -> Option<Row> {
    let mut row = Vec::new();
    for _ in 0..short(body)? {
        row.push(match number::<1>(body)?[0] {
            b'n' | b'u' => None,
            b't' | b'b' => {
                let length = usize::try_from(int(body)?).ok()?;
                if body.len() < length {
                    return None;
                }
                Some(body.split_to(length))
            }
            _ => return None,
        });
    }
    Some(row)
}

fn text(body: &mut Bytes) -> Option<String> {
    let end = body.iter().position(|byte| *byte == 0)?;
    let text = body.split_to(end);
    body.advance(1);
    Some(String::from_utf8_lossy(&text).into_owned())
}

fn expect(body: &mut Bytes, tag: u8) -> Option<()> {
    (number::<1>(body)?[0] == tag).then_some(())
}

fn skip(body: &mut Bytes, count: usize) -> Option<()> {
    if body.len() < count {
        return None;
    }
    body.advance(count);
    Some(())
}

fn short(body: &mut Bytes) -> Option<u16> {
    number(body).map(u16::from_be_bytes)
}

fn int(body: &mut Bytes) -> Option<u32> {
    number(body).map(u32::from_be_bytes)
}

fn long(body: &mut Bytes) -> Option<u64> {
    number(body).map(u64::from_be_bytes)
}

fn number<const N: usize>(body: &mut Bytes) -> Option<[u8; N]> {
    let bytes = *body.first_chunk()?;
    body.advance(N);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with(parts: &[&[u8]]) -> Option<Message> {
        parse(Bytes::from(parts.concat()))
    }

    #[test]
    fn rows_are_read_with_their_old_keys() {
        let old = Some(Bytes::from_static(b"a"));
        let new = Some(Bytes::from_static(b"bc"));
        let (a, bc): (&[u8], &[u8]) = (b"\0\x01t\0\0\0\x01a", b"\0\x02t\0\0\0\x02bcn");
        assert_eq!(
            with(&[b"I\0\0\0\x07N", bc]),
            Some(Message::Insert { relation: 7, new: vec![new.clone(), None] })
        );
        let update = |old| Some(Message::Update { relation: 7, old, new: vec![new.clone(), None] });
        assert_eq!(with(&[b"U\0\0\0\x07N", bc]), update(None));
        assert_eq!(with(&[b"U\0\0\0\x07K", a, b"N", bc]), update(Some(vec![old.clone()])));
        assert_eq!(with(&[b"U\0\0\0\x07O", a, b"N", bc]), update(Some(vec![old.clone()])));
        assert_eq!(with(&[b"D\0\0\0\x07K", a]), Some(Message::Delete { relation: 7, old: vec![old] }));
    }

    #[test]
    fn transactions_tables_and_truncates_are_read() {
        let position = 0x1122_3344_5566_7788_u64.to_be_bytes();
        let commit = 0x1122_3344_5566_7788;
        assert_eq!(with(&[b"B", &position, &[0; 12]]), Some(Message::Begin { commit }));
        assert_eq!(with(&[b"C\0", &[0; 8], &position, &[0; 8]]), Some(Message::Commit { end: commit }));
        let table = with(&[b"R\0\0\0\x07public\0todos\0d\0\x01\x01id\0\0\0\0\0\0\0\0\0"]);
        assert_eq!(table, Some(Message::Relation(Relation { id: 7, columns: vec!["id".to_owned()] })));
        assert_eq!(
            with(&[b"T\0\0\0\x02\0\0\0\0\x07\0\0\0\x08"]),
            Some(Message::Truncate { relations: vec![7, 8] })
        );
        assert_eq!(with(&[b"Y\0\0\0\x07"]), Some(Message::Other));
    }

    proptest! {
        #[test]
        fn bytes_that_are_no_message_are_refused_and_do_no_harm(
            tag in prop::sample::select(b"BCRIUDT".to_vec()), rest in prop::collection::vec(any::<u8>(), 0..60)
        ) {
            let _ = parse([&[tag][..], &rest].concat().into());
        }
    }
}
