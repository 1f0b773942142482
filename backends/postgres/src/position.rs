//! [`Position`]: how far a reader of the outbox has got, as the text of a cursor.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tidings_entities::{Cursor, InvalidCursor};

use crate::snapshot::Snapshot;

/// Transactions in progress that a cursor names, at most. If there are more, the cursor is a little further back, and some
/// changes are read twice.
const NAMED_TRANSACTIONS: usize = 700;

/// First byte of every cursor, for the day when its form changes.
const FORM: u8 = 1;

/// Last byte of a cursor whose scan goes over what was read before.
const AGAIN: u8 = 1;

/// A position in the outbox of one database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The database, its timeline and the installation in it. A position is worth nothing in another.
    pub life: u64,
    /// Changes whenever the database recovers from a crash, after which numbers of transactions may be used again.
    pub recovery: u32,
    /// Everything visible in it has been read.
    pub read: Snapshot,
    /// Highest number in the outbox among what has been read. A lower number that is read later is out of order.
    pub highest: u64,
    /// Where in a scan the reader is, when there was too much to be read at once.
    pub scan: Option<Scan>,
}

/// A walk through the outbox in the order of numbers, for what is visible in one snapshot and not in the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// What is being read is visible in it.
    pub target: Snapshot,
    /// Everything up to this number has been read.
    pub at: u64,
    /// The walk ends here.
    pub end: u64,
    /// Whether it goes over what was read before the database recovered from a crash.
    pub again: bool,
}

impl Position {
    /// Position as a cursor.
    pub fn cursor(self) -> Cursor {
        let mut bytes = vec![FORM];
        bytes.extend(self.life.to_be_bytes());
        bytes.extend(self.recovery.to_be_bytes());
        put(&mut bytes, self.highest);
        put_snapshot(&mut bytes, self.read);
        if let Some(scan) = self.scan {
            put_snapshot(&mut bytes, scan.target);
            put(&mut bytes, scan.at);
            put(&mut bytes, scan.end);
            if scan.again {
                bytes.push(AGAIN);
            }
        }
        Cursor::new(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Reads a cursor, which may come from a client.
    pub fn of(cursor: &Cursor) -> Result<Self, InvalidCursor> {
        let bytes = URL_SAFE_NO_PAD.decode(cursor.as_str()).map_err(|_| InvalidCursor)?;
        let mut rest = &bytes[..];
        Self::take(&mut rest).filter(|_| rest.is_empty()).ok_or(InvalidCursor)
    }

    fn take(rest: &mut &[u8]) -> Option<Self> {
        if take_bytes::<1>(rest)? != [FORM] {
            return None;
        }
        let life = u64::from_be_bytes(take_bytes(rest)?);
        let recovery = u32::from_be_bytes(take_bytes(rest)?);
        let highest = take(rest)?;
        let read = take_snapshot(rest)?;
        let scan = match rest.is_empty() {
            true => None,
            false => Some(Scan {
                target: take_snapshot(rest)?,
                at: take(rest)?,
                end: take(rest)?,
                again: match rest.is_empty() {
                    true => false,
                    false => take_bytes(rest)? == [AGAIN],
                },
            }),
        };
        Some(Self { life, recovery, read, highest, scan })
    }
}

fn put_snapshot(bytes: &mut Vec<u8>, snapshot: Snapshot) {
    let snapshot = snapshot.at_most(NAMED_TRANSACTIONS);
    put(bytes, snapshot.xmax());
    put(bytes, snapshot.in_progress().len() as u64);
    // Downwards from the end, so that recent transactions take a byte or two.
    let mut last = snapshot.xmax();
    for &xid in snapshot.in_progress().iter().rev() {
        put(bytes, last - xid);
        last = xid;
    }
}

fn take_snapshot(rest: &mut &[u8]) -> Option<Snapshot> {
    // PostgreSQL prints and reads numbers of transactions as signed.
    let xmax = take(rest).filter(|xmax| (1..1 << 63).contains(xmax))?;
    let count = take(rest).filter(|&count| count <= NAMED_TRANSACTIONS as u64)?;
    let mut last = xmax;
    let mut in_progress = Vec::new();
    for _ in 0..count {
        last = last.checked_sub(take(rest)?).filter(|&xid| xid > 0)?;
        in_progress.push(last);
    }
    Some(Snapshot::new(xmax, in_progress))
}

/// Writes a number, seven bits in a byte.
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..).step_by(7).take(10) {
        let [byte] = take_bytes(rest)?;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take_bytes<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, others) = rest.split_first_chunk()?;
    *rest = others;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidings_model::limits;

    use super::*;

    fn snapshots() -> impl Strategy<Value = Snapshot> {
        (1_u64..1 << 62, proptest::collection::vec(1_u64..1 << 20, 0..40)).prop_map(|(xmax, below)| {
            Snapshot::new(xmax, below.iter().map(|by| xmax.saturating_sub(*by).max(1)))
        })
    }

    fn positions() -> impl Strategy<Value = Position> {
        let scan = proptest::option::of(
            (snapshots(), any::<u64>(), any::<u64>(), any::<bool>())
                .prop_map(|(target, at, end, again)| Scan { target, at, end, again }),
        );
        (any::<u64>(), any::<u32>(), snapshots(), any::<u64>(), scan).prop_map(
            |(life, recovery, read, highest, scan)| Position { life, recovery, read, highest, scan },
        )
    }

    proptest! {
        #[test]
        fn a_position_is_read_back_from_its_cursor(position in positions()) {
            let cursor = position.clone().cursor();
            let given = Cursor::parse(cursor.as_str()).expect("the server takes it back");
            prop_assert_eq!(Position::of(&given), Ok(position));
        }

        #[test]
        fn no_text_of_a_client_is_more_than_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Position::of(&Cursor::new(URL_SAFE_NO_PAD.encode([&[FORM][..], &bytes].concat())));
        }
    }

    #[test]
    fn a_cursor_fits_however_many_transactions_are_in_progress() {
        let crowd = |xmax| Snapshot::new(xmax, (1..5000).map(|at| at * 1_000_000));
        let position = Position {
            life: u64::MAX,
            recovery: u32::MAX,
            read: crowd(1 << 40),
            highest: u64::MAX,
            scan: Some(Scan { target: crowd(1 << 41), at: u64::MAX, end: u64::MAX, again: true }),
        };
        let cursor = position.clone().cursor();
        assert!(cursor.as_str().len() <= limits::ENTITY_CURSOR_BYTES, "{}", cursor.as_str().len());
        let back = Position::of(&Cursor::parse(cursor.as_str()).expect("it fits")).expect("a position");
        assert!(position.read.covers(&back.read), "nothing counts as read that was not");
    }

    #[test]
    fn other_texts_are_not_cursors() {
        for bad in ["x", "AQ", "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz", "2024-01-01"] {
            assert_eq!(Position::of(&Cursor::new(bad)), Err(InvalidCursor), "{bad}");
        }
    }
}
