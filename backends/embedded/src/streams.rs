//! Encoding of the table of streams: its changes in frames and deltas, and its rows in the checkpoint.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidings_streams::table::{BelowFloor, Cause};
use tidings_streams::{
    Change, ContentType, Expiry, Floor, Fork, Owner, Retained, Retention, Segment, Stream, StreamKey,
    StreamState, Table,
};

use crate::codec::{DecodeError, Reader, Writer};
use crate::field::{Field, stored};
use crate::stored_state::{Access, StoredState};

stored! {
    enum Change {
        1 => Create { key, stream },
        2 => Renew { key, log, expires_at },
        3 => Retire { key, log, cause },
        4 => Remove { key, log, cause },
        5 => Trim { key, log, floor, below },
        6 => Expect { key, log },
        7 => Restore { key, stream },
    }
    struct StreamKey { project, id }
    struct Stream {
        log, content_type, expiry, expires_at, created_at, fork, forks, state, owner, retained,
    }
    enum Expiry {
        0 => Never,
        1 => Idle(ttl),
        2 => At(at),
    }
    enum StreamState {
        0 => Active,
        1 => Retired,
    }
    enum Owner {
        0 => Clients,
        1 => Session,
    }
    struct Fork { source, source_log, offset, sub_offset, lineage }
    struct Segment { log, through }
    struct Retained { limits, inherited, floor }
    struct Retention { age, bytes, messages }
    struct Floor { position, gone }
    enum BelowFloor {
        0 => Trimmed,
        1 => Held,
    }
    enum Cause {
        0 => Deleted,
        1 => Expired(now),
        2 => Unreferenced,
    }
}

impl Field for ContentType {
    fn put(&self, out: &mut Vec<u8>) {
        out.text(self.as_str());
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        Self::parse(&reader.text()?).ok_or(DecodeError)
    }
}

impl StoredState for Table {
    fn takes_space(&self, change: &Change) -> bool {
        match change {
            Change::Create { .. } | Change::Restore { .. } => true,
            Change::Expect { .. }
            | Change::Renew { .. }
            | Change::Trim { .. }
            | Change::Retire { .. }
            | Change::Remove { .. } => false,
        }
    }

    fn conflict_keys(&self, change: &Change, touch: &mut dyn FnMut(Access, u64)) {
        let (Change::Create { key, .. }
        | Change::Expect { key, .. }
        | Change::Renew { key, .. }
        | Change::Trim { key, .. }
        | Change::Retire { key, .. }
        | Change::Remove { key, .. }
        | Change::Restore { key, .. }) = change;
        let access = if matches!(change, Change::Expect { .. }) { Access::Reads } else { Access::Writes };
        touch(access, hash(key));
        // A fork that is created or removed changes its source.
        let fork = match change {
            Change::Create { stream, .. } => stream.fork.as_ref(),
            Change::Remove { key, .. } => self.get(key).and_then(|stream| stream.fork.as_ref()),
            Change::Expect { .. }
            | Change::Renew { .. }
            | Change::Trim { .. }
            | Change::Retire { .. }
            | Change::Restore { .. } => None,
        };
        if let Some(fork) = fork {
            touch(Access::Writes, hash(&fork.source));
        }
    }
}

fn hash(key: &StreamKey) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use tidings_engine::log::StateMachine;
    use tidings_model::{LogId, Position, ProjectId, StreamId, Timestamp};

    fn key(id: &str) -> StreamKey {
        let project = ProjectId::parse("shop").expect("an id");
        StreamKey { project, id: StreamId::parse(id).expect("an id") }
    }

    fn create(id: &str, log: u64, source: Option<(&str, u64)>) -> Change {
        let fork = source.map(|(source, log)| {
            let source_log = LogId::new(log);
            let lineage = vec![Segment { log: source_log, through: Position::new(3) }];
            Arc::new(Fork { source: key(source), source_log, offset: None, sub_offset: 0, lineage })
        });
        let stream = Stream {
            log: LogId::new(log),
            content_type: ContentType::octet_stream(),
            expiry: Expiry::Idle(Duration::from_secs(60)),
            expires_at: Some(Timestamp::from_millis(log)),
            created_at: Timestamp::from_millis(7),
            fork,
            forks: 0,
            state: StreamState::Active,
            owner: Owner::Clients,
            retained: None,
        };
        Change::Create { key: key(id), stream }
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
    fn a_snapshot_makes_the_same_table_whatever_the_names_of_forks_and_sources() {
        let mut table = Table::default();
        let retire =
            |id: &str, log: u64| Change::Retire { key: key(id), log: LogId::new(log), cause: Cause::Deleted };
        play(
            &mut table,
            [
                create("m", 1, None),
                create("a", 2, Some(("m", 1))),
                create("z", 3, Some(("m", 1))),
                create("b", 4, Some(("z", 3))),
                retire("m", 1),
                retire("z", 3),
                create("gone", 5, None),
                Change::Remove { key: key("gone"), log: LogId::new(5), cause: Cause::Deleted },
            ],
        );
        let mut again = Table::default();
        play(&mut again, crate::stored_state::snapshot_of(&mut table));
        let rows = |table: &Table| {
            let mut rows: Vec<_> = table.iter().map(|row| format!("{row:?}")).collect();
            rows.sort();
            rows
        };
        assert_eq!(rows(&again), rows(&table));
        assert_eq!(again.get(&key("m")).expect("kept for its forks").forks, 2);
        // Removing the last fork also removes the source that was kept for it.
        for table in [&mut table, &mut again] {
            play(table, [Change::Remove { key: key("b"), log: LogId::new(4), cause: Cause::Deleted }]);
            assert_eq!(table.due(Owner::Clients, Timestamp::from_millis(0), 9), [key("z")]);
        }
    }
}
