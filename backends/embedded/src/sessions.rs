//! Encoding of the table of sessions: its changes in frames and deltas, and its rows in the checkpoint.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidings_model::LogId;
use tidings_sessions::table::{Cursor, Expected, Progress, SessionIs, SubscriptionState};
use tidings_sessions::{Change, Subscription, Table};
use tidings_streams::Change as StreamChange;

use crate::field::stored;
use crate::stored_state::{Access, StoredBase, StoredState};

stored! {
    enum Change {
        1 => Streams(change),
        2 => Subscribe { session, session_is, source, id, at, since, envelope, unreadable },
        3 => Unsubscribe { session, source },
        4 => Expect { source, expected },
        6 => Follow { source, after },
        7 => Rest { source, version, at },
        8 => Advance { source, was, now, version },
        9 => RestoreSource { source, id, progress },
        10 => RestoreSession { session, subscriptions },
    }
    enum SessionIs {
        0 => Existing,
        1 => New,
    }
    enum Expected {
        0 => Inline { version },
        1 => Following,
        2 => Nobody,
    }
    struct Cursor { done, through, reached }
    enum Progress {
        0 => Inline,
        1 => Following { cursor, late },
    }
    enum SubscriptionState {
        0 => Active,
        1 => Ended { by },
    }
    struct Subscription { source, id, at, state, envelopes }
}

impl StoredState for Table {
    fn takes_space(&self, change: &Change) -> bool {
        match change {
            // A change of an existing subscription's shape takes a few bytes, and the number of subscriptions
            // is bounded.
            Change::Subscribe { .. } | Change::RestoreSource { .. } | Change::RestoreSession { .. } => true,
            // The table of streams decides about these.
            Change::Streams(_)
            | Change::Unsubscribe { .. }
            | Change::Expect { .. }
            | Change::Follow { .. }
            | Change::Rest { .. }
            | Change::Advance { .. } => false,
        }
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
            // Only a read: appends to one source do not conflict with each other.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Reader;
    use crate::field::Field;
    use tidings_engine::log::StateMachine;
    use tidings_model::{Position, StreamId, Timestamp};

    fn log(number: u64) -> LogId {
        LogId::new(number)
    }

    fn subscribe(
        session: u64,
        source: u64,
        session_is: SessionIs,
        since: u64,
        envelope: Option<bool>,
    ) -> Change {
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

    /// Applies changes, each after an encoding round trip.
    fn play(table: &mut Table, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            let mut bytes = Vec::new();
            change.put(&mut bytes);
            let change = Change::take_whole(Reader(bytes.into())).expect("as it was written");
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
                subscribe(10, 1, SessionIs::New, 5, Some(true)),
                subscribe(11, 1, SessionIs::New, 5, None),
                subscribe(10, 2, SessionIs::Existing, 0, None),
                subscribe(10, 1, SessionIs::Existing, 9, Some(false)),
                Change::Advance { source: log(1), was: Cursor::at_rest(at(5)), now: part, version: 2 },
                subscribe(12, 1, SessionIs::New, 8, None),
                Change::Rest { source: log(2), version: 3, at: at(0) },
                Change::Expect { source: log(2), expected: Expected::Inline { version: 3 } },
                Change::Expect { source: log(1), expected: Expected::Following },
                Change::Expect { source: log(9), expected: Expected::Nobody },
                subscribe(13, 3, SessionIs::New, 0, Some(true)),
                Change::Unsubscribe { session: log(13), source: log(3) },
                subscribe(15, 3, SessionIs::New, 0, Some(true)),
                Change::Unsubscribe { session: log(15), source: log(3) },
                subscribe(15, 2, SessionIs::Existing, 0, None),
                subscribe(14, 2, SessionIs::New, 4, None),
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
