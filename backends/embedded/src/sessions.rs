//! How the tables of sessions are kept.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use tidings_model::{LogId, Position, StreamId};
use tidings_sessions::table::{Cursor, Expected, Hearing, Is, Progress, Row};
use tidings_sessions::{Change, Subscription, Table};
use tidings_streams::Change as StreamChange;

use crate::checkpoint::{put_option, take_option};
use crate::codec::{DecodeError, Reader, Writer};
use crate::stored_state::{Access, StoredBase, StoredState};

const STREAMS: u8 = 1;
const SUBSCRIBE: u8 = 2;
const UNSUBSCRIBE: u8 = 3;
const EXPECT_INLINE: u8 = 4;
const EXPECT_FOLLOWING: u8 = 5;
const FOLLOW: u8 = 6;
const REST: u8 = 7;
const ADVANCE: u8 = 8;
const RESTORE_SOURCE: u8 = 9;
const RESTORE_SESSION: u8 = 10;
const EXPECT_NOBODY: u8 = 11;

/// How a subscription stands.
const ACTIVE: u8 = 0;
const ENDED: u8 = 1;
const ENDED_BY: u8 = 2;

impl StoredState for Table {
    type Row = Row;

    fn encode(change: &Change, out: &mut Vec<u8>) {
        match change {
            Change::Streams(change) => {
                out.byte(STREAMS);
                tidings_streams::Table::encode(change, out);
            }
            Change::Subscribe { session, session_is, source, id, at, since, envelope, unreadable } => {
                put_logs(out, SUBSCRIBE, &[*session, *source]);
                out.byte(u8::from(*session_is == Is::New));
                out.text(id.as_str());
                out.number(at.as_millis());
                out.position(*since);
                put_option(out, *envelope, |out, envelope| out.byte(u8::from(envelope)));
                put_option(out, *unreadable, |out, unreadable| out.number(unreadable.as_millis()));
            }
            Change::Unsubscribe { session, source } => put_logs(out, UNSUBSCRIBE, &[*session, *source]),
            Change::Expect { source, expected: Expected::Inline { version } } => {
                put_logs(out, EXPECT_INLINE, &[*source]);
                out.number(*version);
            }
            Change::Expect { source, expected: Expected::Following } => {
                put_logs(out, EXPECT_FOLLOWING, &[*source]);
            }
            Change::Expect { source, expected: Expected::Nobody } => put_logs(out, EXPECT_NOBODY, &[*source]),
            Change::Follow { source, after } => {
                put_logs(out, FOLLOW, &[*source]);
                out.position(*after);
            }
            Change::Rest { source, version, at } => {
                put_logs(out, REST, &[*source]);
                out.number(*version);
                out.position(*at);
            }
            Change::Advance { source, was, now, version } => {
                put_logs(out, ADVANCE, &[*source]);
                put_cursor(out, was);
                put_cursor(out, now);
                out.number(*version);
            }
            Change::RestoreSource { source, id, progress } => {
                put_logs(out, RESTORE_SOURCE, &[*source]);
                out.text(id.as_str());
                put_progress(out, progress);
            }
            Change::RestoreSession { session, subscriptions } => {
                put_logs(out, RESTORE_SESSION, &[*session]);
                out.number(subscriptions.len() as u64);
                subscriptions.iter().for_each(|subscription| put_subscription(out, subscription));
            }
        }
    }

    fn decode(mut reader: Reader) -> Result<Change, DecodeError> {
        let tag = reader.byte()?;
        if tag == STREAMS {
            return tidings_streams::Table::decode(reader).map(Change::Streams);
        }
        let log = reader.log()?;
        let change = match tag {
            SUBSCRIBE => Change::Subscribe {
                session: log,
                source: reader.log()?,
                session_is: if reader.byte()? == 0 { Is::There } else { Is::New },
                id: take_id(&mut reader)?,
                at: reader.time()?,
                since: reader.position()?,
                envelope: take_option(&mut reader, |reader| Ok(reader.byte()? != 0))?,
                unreadable: take_option(&mut reader, Reader::time)?,
            },
            UNSUBSCRIBE => Change::Unsubscribe { session: log, source: reader.log()? },
            EXPECT_INLINE => {
                Change::Expect { source: log, expected: Expected::Inline { version: reader.number()? } }
            }
            EXPECT_FOLLOWING => Change::Expect { source: log, expected: Expected::Following },
            EXPECT_NOBODY => Change::Expect { source: log, expected: Expected::Nobody },
            FOLLOW => Change::Follow { source: log, after: reader.position()? },
            REST => Change::Rest { source: log, version: reader.number()?, at: reader.position()? },
            ADVANCE => Change::Advance {
                source: log,
                was: take_cursor(&mut reader)?,
                now: take_cursor(&mut reader)?,
                version: reader.number()?,
            },
            RESTORE_SOURCE => Change::RestoreSource {
                source: log,
                id: take_id(&mut reader)?,
                progress: take_progress(&mut reader)?,
            },
            RESTORE_SESSION => {
                let count = reader.count()?;
                let subscriptions = (0..count).map(|_| take_subscription(&mut reader));
                Change::RestoreSession {
                    session: log,
                    subscriptions: subscriptions.collect::<Result<_, _>>()?,
                }
            }
            _ => return Err(DecodeError),
        };
        if reader.is_empty() { Ok(change) } else { Err(DecodeError) }
    }

    fn takes_space(&self, change: &Change) -> bool {
        match change {
            // Another shape of what a session hears already is a few bytes, and there are at most so many of them.
            Change::Subscribe { .. } | Change::RestoreSource { .. } | Change::RestoreSession { .. } => true,
            // Streams are asked themselves.
            Change::Streams(_)
            | Change::Unsubscribe { .. }
            | Change::Expect { .. }
            | Change::Follow { .. }
            | Change::Rest { .. }
            | Change::Advance { .. } => false,
        }
    }

    fn begin_snapshot(&mut self) {
        Table::begin_snapshot(self);
    }

    fn next_rows(&mut self, most: usize) -> Option<Vec<Row>> {
        Table::next_rows(self, most)
    }

    fn end_snapshot(&mut self) {
        Table::end_snapshot(self);
    }

    fn restore(row: Row, change: &mut dyn FnMut(Change)) {
        change(row.restored());
    }

    fn is_precondition(change: &Change) -> bool {
        matches!(change, Change::Expect { .. })
    }

    fn conflict_keys(&self, change: &Change, touch: &mut dyn FnMut(Access, u64)) {
        match change {
            Change::Streams(_) => {}
            Change::Subscribe { session, source, .. } | Change::Unsubscribe { session, source } => {
                touch(Access::Writes, hash(*session));
                touch(Access::Writes, hash(*source));
            }
            // Appends to one source do not stand in each other's way.
            Change::Expect { source, .. } => touch(Access::Reads, hash(*source)),
            Change::Follow { source, .. }
            | Change::Rest { source, .. }
            | Change::Advance { source, .. }
            | Change::RestoreSource { source, .. } => touch(Access::Writes, hash(*source)),
            Change::RestoreSession { session, .. } => touch(Access::Writes, hash(*session)),
        }
    }
}

impl StoredBase<tidings_streams::Table> for Table {
    /// The end of a stream changes its row as a session or a source.
    fn base_conflict_keys(change: &StreamChange, touch: &mut dyn FnMut(Access, u64)) {
        match change {
            StreamChange::Remove { log, .. } | StreamChange::Retire { log, .. } => {
                touch(Access::Writes, hash(*log));
            }
            StreamChange::Create { .. }
            | StreamChange::Expect { .. }
            | StreamChange::Renew { .. }
            | StreamChange::Trim { .. }
            | StreamChange::Restore { .. } => {}
        }
    }
}

fn hash(log: LogId) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("sessions", log).hash(&mut hasher);
    hasher.finish()
}

fn put_logs(out: &mut Vec<u8>, tag: u8, logs: &[LogId]) {
    out.byte(tag);
    logs.iter().for_each(|&log| out.log(log));
}

fn take_id(reader: &mut Reader) -> Result<StreamId, DecodeError> {
    StreamId::parse(&reader.text()?).map_err(|_| DecodeError)
}

fn put_cursor(out: &mut Vec<u8>, cursor: &Cursor) {
    let Cursor { done, through, reached } = cursor;
    out.position(*done);
    put_option(out, *reached, |out, reached| {
        out.log(reached);
        out.position(*through);
    });
}

fn take_cursor(reader: &mut Reader) -> Result<Cursor, DecodeError> {
    let done = reader.position()?;
    let part = take_option(reader, |reader| Ok((reader.log()?, reader.position()?)))?;
    Ok(part.map_or(Cursor::at_rest(done), |(reached, through)| Cursor {
        done,
        through,
        reached: Some(reached),
    }))
}

fn put_progress(out: &mut Vec<u8>, progress: &Progress) {
    match progress {
        Progress::Inline => out.byte(0),
        Progress::Following { cursor, late } => {
            out.byte(1);
            put_cursor(out, cursor);
            out.number(late.len() as u64);
            for (&log, &since) in late {
                out.log(log);
                out.position(since);
            }
        }
    }
}

fn take_progress(reader: &mut Reader) -> Result<Progress, DecodeError> {
    match reader.byte()? {
        0 => Ok(Progress::Inline),
        1 => {
            let cursor = take_cursor(reader)?;
            let late = (0..reader.count()?).map(|_| Ok((reader.log()?, reader.position()?)));
            Ok(Progress::Following { cursor, late: late.collect::<Result<BTreeMap<_, _>, DecodeError>>()? })
        }
        _ => Err(DecodeError),
    }
}

fn put_subscription(out: &mut Vec<u8>, subscription: &Subscription) {
    let Subscription { source, id, at, state, envelopes } = subscription;
    out.log(*source);
    out.text(id.as_str());
    out.number(at.as_millis());
    match state {
        Hearing::Active => out.byte(ACTIVE),
        Hearing::Ended { by: None } => out.byte(ENDED),
        Hearing::Ended { by: Some(by) } => {
            out.byte(ENDED_BY);
            out.number(by.as_millis());
        }
    }
    out.number(envelopes.len() as u64);
    for (after, envelope) in envelopes {
        out.position(*after);
        out.byte(u8::from(*envelope));
    }
}

fn take_subscription(reader: &mut Reader) -> Result<Subscription, DecodeError> {
    let one = |reader: &mut Reader| -> Result<(Position, bool), DecodeError> {
        Ok((reader.position()?, reader.byte()? != 0))
    };
    Ok(Subscription {
        source: reader.log()?,
        id: take_id(reader)?,
        at: reader.time()?,
        state: match reader.byte()? {
            ACTIVE => Hearing::Active,
            ENDED => Hearing::Ended { by: None },
            ENDED_BY => Hearing::Ended { by: Some(reader.time()?) },
            _ => return Err(DecodeError),
        },
        envelopes: (0..reader.count()?).map(|_| one(reader)).collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_engine::log::StateMachine;
    use tidings_model::Timestamp;

    fn log(number: u64) -> LogId {
        LogId::new(number)
    }

    fn subscribe(session: u64, source: u64, session_is: Is, since: u64, envelope: Option<bool>) -> Change {
        Change::Subscribe {
            session: log(session),
            session_is,
            source: log(source),
            id: StreamId::parse(&format!("source-{source}")).expect("a valid id"),
            at: Timestamp::from_millis(session * 1000 + source),
            since: Position::new(since.into()),
            envelope,
            unreadable: None,
        }
    }

    /// Each change goes through its written form.
    fn play(table: &mut Table, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            let mut bytes = Vec::new();
            Table::encode(&change, &mut bytes);
            let change = Table::decode(Reader(bytes.into())).expect("as it was written");
            table.validate(&change).unwrap_or_else(|refusal| panic!("{change:?}: {refusal}"));
            table.apply(change);
        }
    }

    #[test]
    fn a_dump_makes_the_same_table() {
        let at = |number: u64| Position::new(number.into());
        let part = Cursor { done: at(5), through: at(7), reached: Some(log(10)) };
        let mut table = Table::default();
        play(
            &mut table,
            [
                subscribe(10, 1, Is::New, 5, Some(true)),
                subscribe(11, 1, Is::New, 5, None),
                subscribe(10, 2, Is::There, 0, None),
                subscribe(10, 1, Is::There, 9, Some(false)),
                Change::Advance { source: log(1), was: Cursor::at_rest(at(5)), now: part, version: 2 },
                subscribe(12, 1, Is::New, 8, None),
                Change::Rest { source: log(2), version: 3, at: at(0) },
                Change::Expect { source: log(2), expected: Expected::Inline { version: 3 } },
                Change::Expect { source: log(1), expected: Expected::Following },
                Change::Expect { source: log(9), expected: Expected::Nobody },
                subscribe(13, 3, Is::New, 0, Some(true)),
                Change::Unsubscribe { session: log(13), source: log(3) },
                subscribe(15, 3, Is::New, 0, Some(true)),
                Change::Unsubscribe { session: log(15), source: log(3) },
                subscribe(15, 2, Is::There, 0, None),
                subscribe(14, 2, Is::New, 4, None),
                Change::Follow { source: log(2), after: at(30) },
            ],
        );
        let alone = Change::Expect { source: log(1), expected: Expected::Nobody };
        assert!(
            table.validate(&alone).is_err(),
            "somebody subscribes to it: an append must not pass them by"
        );
        let mut again = Table::default();
        play(&mut again, crate::stored_state::snapshot_of(&mut table));
        for source in [1, 2, 3].map(log) {
            let row = |table: &Table| {
                let row = table.source(source)?;
                Some((row.id.clone(), row.targets.clone(), row.progress.clone()))
            };
            assert_eq!(row(&table), row(&again), "{source}");
        }
        assert!(table.source(log(3)).is_none(), "nobody hears it any more");
        for session in [10, 11, 12, 13, 14, 15].map(log) {
            assert_eq!(table.session(session), again.session(session), "{session}");
        }
        for table in [&table, &again] {
            assert!(table.following().eq([log(1), log(2)]));
        }
    }
}
