//! Encoding of the table of histories of topics: its changes in frames and deltas, and its rows in the checkpoint.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidings_topics::table::{Change, Row, Table};

use crate::field::stored;
use crate::stored_state::{Access, StoredState};

stored! {
    enum Change {
        1 => Create { project, topic, row },
        2 => Remove { project, topic, log },
    }
    struct Row { log, number }
}

impl StoredState for Table {
    fn takes_space(&self, change: &Change) -> bool {
        match change {
            Change::Create { .. } => true,
            Change::Remove { .. } => false,
        }
    }

    fn conflict_keys(&self, change: &Change, touch: &mut dyn FnMut(Access, u64)) {
        match change {
            // All of a project: it has only so many.
            Change::Create { project, .. } | Change::Remove { project, .. } => {
                let mut hasher = DefaultHasher::new();
                ("histories", project).hash(&mut hasher);
                touch(Access::Writes, hasher.finish());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidings_engine::log::StateMachine;
    use tidings_model::{LogId, ProjectId};

    use super::*;
    use crate::codec::Reader;
    use crate::field::Field;

    fn project(name: &str) -> ProjectId {
        ProjectId::parse(name).expect("an id")
    }

    fn create(name: &str, topic: &str, log: u64) -> Change {
        let row = Row { log: LogId::new(log), number: u64::MAX - log };
        Change::Create { project: project(name), topic: topic.into(), row }
    }

    /// Applies changes, each after an encoding round trip.
    fn play(table: &mut Table, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            let mut bytes = Vec::new();
            change.put(&mut bytes);
            let read = Change::take_whole(Reader(bytes.into())).expect("as it was written");
            assert_eq!(read, change);
            table.validate(&read).unwrap_or_else(|refusal| panic!("{change:?}: {refusal}"));
            table.apply(read);
        }
    }

    #[test]
    fn a_dump_makes_the_same_table() {
        let mut table = Table::default();
        let removed = Change::Remove { project: project("shop"), topic: "a:1".into(), log: LogId::new(1) };
        let changes =
            [create("shop", "a:1", 1), create("shop", "a:2", 2), create("other", "a:1", 3), removed.clone()];
        play(&mut table, changes);
        let mut again = Table::default();
        play(&mut again, crate::stored_state::snapshot_of(&mut table));
        assert_eq!(again.rows().collect::<Vec<_>>(), table.rows().collect::<Vec<_>>());
        assert_eq!(again.rows().count(), 2);
        assert!(again.validate(&create("shop", "a:2", 9)).is_err() && again.validate(&removed).is_err());
        assert_eq!(again.histories_of(&project("shop"), 9).len(), 1);
    }

    #[test]
    fn bytes_that_are_no_change_are_refused() {
        let mut whole = Vec::new();
        create("shop", "chat:1", 300).put(&mut whole);
        for length in 0..whole.len() {
            assert!(Change::take_whole(Reader(whole[..length].to_vec().into())).is_err(), "{length} bytes");
        }
        whole.push(0);
        assert!(Change::take_whole(Reader(whole.into())).is_err());
    }
}
