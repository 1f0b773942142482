//! Cold rows of hooks: attempts, dead letters, and the ids of events and batches.
//!
//! These may be too many for memory, so the store keeps them on disk ([`tidings_engine::log::Rows`]). They are written
//! without being validated: whatever must hold is a condition on the tables.
//!
//! | table | key | value |
//! |---|---|---|
//! | attempts | queue, position, number | time, duration, outcome; or, with the highest number, that the delivery was given up |
//! | dead letters | queue, id descending | position, reason, time, error |
//! | event ids | events log, period, id | time, queues that matched |
//! | batch ids | events log, period, id | time |
//!
//! Ids are kept in periods, so that those of old periods are removed at once. An id is looked up in all periods that
//! its time to live reaches into.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tidings_engine::log::{Row, RowChange, RowSpan, RowTable};
use tidings_model::{LogId, Position, Timestamp, Ulid};

use crate::delivery::{Attempt, AttemptOutcome, DeadLetter, DeathReason, DeliveryId};

/// Attempts of deliveries.
const ATTEMPTS: RowTable = RowTable(1);
/// Dead letters.
const DEAD_LETTERS: RowTable = RowTable(2);
/// Ids of events that were ingested.
const EVENT_IDS: RowTable = RowTable(3);
/// Ids of batches that were ingested.
const BATCH_IDS: RowTable = RowTable(4);

/// Rows of attempts.
pub mod attempts {
    use super::*;

    /// The table.
    pub const TABLE: RowTable = ATTEMPTS;

    /// Tags of outcomes.
    const SUCCESS: u8 = 0;
    const FAILED: u8 = 1;
    /// Number in the key of the row which says that a delivery was given up. No attempt has it; spans end behind it.
    const GIVEN_UP: u32 = u32::MAX - 1;

    fn key(queue: LogId, position: Position, number: u32) -> Bytes {
        let mut key = BytesMut::with_capacity(28);
        key.put_u64(queue.get());
        key.put_u128(position.get());
        key.put_u32(number);
        key.freeze()
    }

    /// Records an attempt.
    pub fn put(id: DeliveryId, attempt: &Attempt) -> RowChange {
        let (tag, text) = match &attempt.outcome {
            AttemptOutcome::Success(text) => (SUCCESS, text),
            AttemptOutcome::Failed(text) => (FAILED, text),
        };
        let mut value = BytesMut::with_capacity(13 + text.len());
        value.put_u64(attempt.at.as_millis());
        value.put_u32(attempt.duration_ms);
        value.put_u8(tag);
        value.put_slice(text.as_bytes());
        RowChange::Put {
            table: TABLE,
            key: key(id.queue, id.position, attempt.number),
            value: value.freeze(),
        }
    }

    /// Records that a delivery was given up. Its dead letter goes when it is retried or cleaned up; this stays as long as
    /// the delivery.
    pub fn put_given_up(id: DeliveryId) -> RowChange {
        RowChange::Put { table: TABLE, key: key(id.queue, id.position, GIVEN_UP), value: Bytes::new() }
    }

    /// The position of a delivery that was given up, if that is what a row says.
    pub fn read_given_up(row: &Row) -> Option<Position> {
        let mut key = &row.key[..];
        if key.len() != 28 {
            return None;
        }
        key.advance(8);
        let position = Position::new(key.get_u128());
        (key.get_u32() == GIVEN_UP).then_some(position)
    }

    /// Reads an attempt back, with the position of its delivery. `None` for a row that says something else.
    pub fn read(row: &Row) -> Option<(Position, Attempt)> {
        let (mut key, mut value) = (&row.key[..], &row.value[..]);
        if key.len() != 28 || value.len() < 13 {
            return None;
        }
        key.advance(8);
        let (position, number) = (Position::new(key.get_u128()), key.get_u32());
        let at = Timestamp::from_millis(value.get_u64());
        let duration_ms = value.get_u32();
        let tag = value.get_u8();
        let text = String::from_utf8_lossy(value).into_owned();
        let outcome =
            if tag == SUCCESS { AttemptOutcome::Success(text) } else { AttemptOutcome::Failed(text) };
        Some((position, Attempt { number, at, duration_ms, outcome }))
    }

    /// The attempts of all deliveries of a queue in a range of positions, both ends included, by position and number.
    pub fn between(queue: LogId, first: Position, last: Position, rows: usize) -> RowSpan {
        let from = key(queue, first, 0);
        let to = key(queue, last, u32::MAX);
        RowSpan { from, to, rows, bytes: usize::MAX }
    }

    /// Removes the attempts of all deliveries of a queue up to a position.
    pub fn remove_through(queue: LogId, position: Position) -> RowChange {
        let below = key(queue, position, u32::MAX);
        RowChange::Floor { table: TABLE, prefix: prefix(queue), below }
    }
}

/// Rows of dead letters.
pub mod dead_letters {
    use super::*;

    /// The table.
    pub const TABLE: RowTable = DEAD_LETTERS;

    fn key(queue: LogId, id: Ulid) -> Bytes {
        let mut key = BytesMut::with_capacity(24);
        key.put_u64(queue.get());
        // Descending, so that the newest come first.
        key.put_u128(!id.get());
        key.freeze()
    }

    /// Adds a dead letter.
    pub fn put(queue: LogId, letter: &DeadLetter) -> RowChange {
        let reason = DeathReason::ALL.iter().position(|reason| *reason == letter.reason).unwrap_or_default();
        let mut value = BytesMut::with_capacity(25 + letter.last_error.len());
        value.put_u128(letter.position.get());
        value.put_u64(letter.at.as_millis());
        value.put_u8(reason as u8);
        value.put_slice(letter.last_error.as_bytes());
        RowChange::Put { table: TABLE, key: key(queue, letter.id), value: value.freeze() }
    }

    /// Removes a dead letter.
    pub fn delete(queue: LogId, id: Ulid) -> RowChange {
        RowChange::Delete { table: TABLE, key: key(queue, id) }
    }

    /// Key of a dead letter, to look it up.
    pub fn key_of(queue: LogId, id: Ulid) -> Bytes {
        key(queue, id)
    }

    /// Reads a dead letter back.
    pub fn read(row: &Row) -> Option<DeadLetter> {
        let (mut key, mut value) = (&row.key[..], &row.value[..]);
        if key.len() != 24 || value.len() < 25 {
            return None;
        }
        key.advance(8);
        let id = Ulid::new(!key.get_u128());
        let position = Position::new(value.get_u128());
        let at = Timestamp::from_millis(value.get_u64());
        let reason = *DeathReason::ALL.get(usize::from(value.get_u8()))?;
        Some(DeadLetter { id, position, reason, at, last_error: String::from_utf8_lossy(value).into_owned() })
    }

    /// Dead letters of a queue older than `after`, newest first. `None` for the newest.
    pub fn older(queue: LogId, after: Option<Ulid>, rows: usize) -> RowSpan {
        let mut from = BytesMut::from(&key(queue, after.unwrap_or(Ulid::new(u128::MAX)))[..]);
        if after.is_some() {
            from.put_u8(0);
        }
        RowSpan { from: from.freeze(), to: end(queue), rows, bytes: usize::MAX }
    }

    /// Removes all dead letters of a queue.
    pub fn remove_all(queue: LogId) -> RowChange {
        RowChange::Floor { table: TABLE, prefix: prefix(queue), below: end(queue) }
    }
}

/// Rows of remembered ids, of events or of batches.
#[derive(Clone, Copy, Debug)]
pub struct RememberedIds {
    table: RowTable,
    /// Time for which an id is remembered.
    ttl: Duration,
}

/// Periods that a time to live spans, at most, beside the current one.
const PERIODS: u64 = 4;

/// An id as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Time at which it was used last.
    pub at: Timestamp,
    /// What matched an event of this id.
    pub matched: Matched,
}

/// The queues that an event was put into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matched {
    /// These.
    These(BTreeSet<LogId>),
    /// More than are remembered one by one.
    Many,
}

impl RememberedIds {
    /// Ids of events.
    pub fn of_events(ttl: Duration) -> Self {
        Self { table: EVENT_IDS, ttl }
    }

    /// Ids of batches.
    pub fn of_batches(ttl: Duration) -> Self {
        Self { table: BATCH_IDS, ttl }
    }

    /// The table.
    pub fn table(self) -> RowTable {
        self.table
    }

    fn period(self, at: Timestamp) -> u64 {
        let length = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX) / PERIODS;
        at.as_millis() / length.max(1)
    }

    fn key(self, events: LogId, period: u64, id: &str) -> Bytes {
        let mut key = BytesMut::with_capacity(16 + id.len());
        key.put_u64(events.get());
        key.put_u64(period);
        key.put_slice(id.as_bytes());
        key.freeze()
    }

    /// Remembers an id.
    pub fn put(self, events: LogId, id: &str, remembered: &Remembered) -> RowChange {
        let mut value = BytesMut::new();
        value.put_u64(remembered.at.as_millis());
        match &remembered.matched {
            Matched::Many => value.put_u8(1),
            Matched::These(queues) => {
                value.put_u8(0);
                queues.iter().for_each(|queue| value.put_u64(queue.get()));
            }
        }
        let key = self.key(events, self.period(remembered.at), id);
        RowChange::Put { table: self.table, key, value: value.freeze() }
    }

    /// Keys under which an id may be remembered at `now`, the most recent period first. One period ahead is included,
    /// in case the clock was set back.
    pub fn keys(self, events: LogId, id: &str, now: Timestamp) -> Vec<Bytes> {
        let current = self.period(now);
        let first = current.saturating_sub(PERIODS);
        (first..=current + 1).rev().map(|period| self.key(events, period, id)).collect()
    }

    /// Reads what is remembered. Returns `None` if it is older than the time to live.
    pub fn read(self, mut value: &[u8], now: Timestamp) -> Option<Remembered> {
        if value.len() < 9 {
            return None;
        }
        let at = Timestamp::from_millis(value.get_u64());
        if now.since(at) > self.ttl {
            return None;
        }
        let matched = match value.get_u8() {
            1 => Matched::Many,
            _ => Matched::These(value.chunks_exact(8).map(|mut queue| LogId::new(queue.get_u64())).collect()),
        };
        Some(Remembered { at, matched })
    }

    /// Removes the ids of periods that are over for longer than the time to live.
    pub fn forget_old(self, events: LogId, now: Timestamp) -> RowChange {
        let below = self.key(events, self.period(now).saturating_sub(PERIODS), "");
        RowChange::Floor { table: self.table, prefix: prefix(events), below }
    }

    /// Removes all ids of a project.
    pub fn forget_all(self, events: LogId) -> RowChange {
        RowChange::Floor { table: self.table, prefix: prefix(events), below: end(events) }
    }
}

/// Beginning of all keys that belong to a log.
fn prefix(log: LogId) -> Bytes {
    Bytes::copy_from_slice(&log.get().to_be_bytes())
}

/// A key above all that belong to a log.
fn end(log: LogId) -> Bytes {
    prefix(LogId::new(log.get() + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::IdMask;

    const QUEUE: LogId = LogId::new(7);

    fn row(change: RowChange) -> Row {
        match change {
            RowChange::Put { key, value, .. } => Row { key, value },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn attempts_are_read_as_they_were_written_and_lie_within_their_span() {
        let id = |queue: u64, position| DeliveryId {
            queue: LogId::new(queue),
            position: Position::new(position),
            mask: IdMask::default(),
        };
        let attempt =
            |number, outcome| Attempt { number, at: Timestamp::from_millis(5), duration_ms: 9, outcome };
        let written =
            row(attempts::put(id(7, 50), &attempt(2, AttemptOutcome::Failed("HTTP 500: ä".into()))));
        assert_eq!(attempts::read_given_up(&written), None);
        let given_up = row(attempts::put_given_up(id(7, 50)));
        assert_eq!(attempts::read_given_up(&given_up), Some(Position::new(50)));
        assert_eq!(attempts::read(&given_up), None);
        let read = attempts::read(&written).expect("an attempt");
        assert_eq!(read, (Position::new(50), attempt(2, AttemptOutcome::Failed("HTTP 500: ä".into()))));
        let span = attempts::between(QUEUE, Position::new(50), Position::new(60), 10);
        assert!(span.from <= written.key && written.key < given_up.key && given_up.key < span.to);
        assert!(row(attempts::put_given_up(id(7, 60))).key < span.to);
        for (queue, position, within) in
            [(7, 50, true), (7, 60, true), (7, 49, false), (7, 61, false), (8, 50, false)]
        {
            let key =
                row(attempts::put(id(queue, position), &attempt(1, AttemptOutcome::Success(String::new()))))
                    .key;
            assert_eq!(span.from <= key && key < span.to, within, "{queue} {position}");
        }
        let RowChange::Floor { prefix, below, .. } = attempts::remove_through(QUEUE, Position::new(50))
        else {
            panic!()
        };
        let key = |position, number| {
            row(attempts::put(id(7, position), &attempt(number, AttemptOutcome::Success(String::new())))).key
        };
        assert!(key(50, 100).starts_with(&prefix) && key(50, 100) < below && key(51, 1) >= below);
        assert!(given_up.key < below);
    }

    #[test]
    fn dead_letters_are_listed_newest_first() {
        let letter = |id: u128| DeadLetter {
            id: Ulid::new(id),
            position: Position::new(id + 100),
            reason: DeathReason::Expired,
            last_error: "e".into(),
            at: Timestamp::from_millis(3),
        };
        let rows: Vec<_> = [1, 2, 3].map(|id| row(dead_letters::put(QUEUE, &letter(id)))).into();
        assert!(rows[2].key < rows[1].key && rows[1].key < rows[0].key);
        assert_eq!(dead_letters::read(&rows[1]), Some(letter(2)));
        let span = dead_letters::older(QUEUE, Some(Ulid::new(2)), 9);
        let within: Vec<_> = rows.iter().map(|row| span.from <= row.key && row.key < span.to).collect();
        assert_eq!(within, [true, false, false], "older than the one given");
        let all = dead_letters::older(QUEUE, None, 9);
        assert!(rows.iter().all(|row| all.from <= row.key && row.key < all.to));
    }

    #[test]
    fn an_id_is_found_until_its_time_to_live_is_over() {
        let ids = RememberedIds::of_events(Duration::from_secs(40));
        let at = Timestamp::from_millis(1_000_000);
        let matched = Matched::These([LogId::new(3), LogId::new(9)].into());
        let written = row(ids.put(QUEUE, "evt", &Remembered { at, matched: matched.clone() }));
        for (later, known) in [(0, true), (10, true), (39, true), (40, true), (41, false)] {
            let now = at + Duration::from_secs(later);
            let found = ids.keys(QUEUE, "evt", now).contains(&written.key);
            let read = ids.read(&written.value, now);
            assert_eq!(found && read.is_some(), known, "{later} s later");
            if known {
                assert_eq!(read.expect("known").matched, matched);
                let RowChange::Floor { below, .. } = ids.forget_old(QUEUE, now) else { panic!() };
                assert!(written.key >= below, "an id that counts is not removed");
            }
        }
        let RowChange::Floor { below, .. } = ids.forget_old(QUEUE, at + Duration::from_secs(51)) else {
            panic!()
        };
        assert!(written.key < below);
        let many = Remembered { at, matched: Matched::Many };
        assert_eq!(ids.read(&row(ids.put(QUEUE, "evt", &many)).value, at), Some(many));
    }
}
