//! Encoding of the table of change logs: its changes in frames and deltas, and its rows in the checkpoint.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidings_entities::Table;
use tidings_entities::table::{Change, Row};

use crate::field::stored;
use crate::stored_state::{Access, StoredState};

stored! {
    enum Change {
        1 => Create { project, row },
        2 => Remove { project, log },
    }
    struct Row { log, epoch }
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
            Change::Create { project, .. } | Change::Remove { project, .. } => {
                let mut hasher = DefaultHasher::new();
                ("entities", project).hash(&mut hasher);
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

    fn create(project: &str, log: u64, epoch: u64) -> Change {
        let project = ProjectId::parse(project).expect("an id");
        Change::Create { project, row: Row { log: LogId::new(log), epoch } }
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
        let gone = ProjectId::parse("gone").expect("an id");
        let mut table = Table::default();
        let changes = [
            create("shop", 1, u64::MAX),
            create("gone", 2, 7),
            create("_default", 3, 0),
            Change::Remove { project: gone, log: LogId::new(2) },
        ];
        play(&mut table, changes);
        let mut again = Table::default();
        play(&mut again, crate::stored_state::snapshot_of(&mut table));
        assert_eq!(again.rows().collect::<Vec<_>>(), table.rows().collect::<Vec<_>>());
        assert_eq!(again.rows().count(), 2);
        assert!(again.validate(&create("shop", 9, 9)).is_err());
        let other = Change::Remove { project: ProjectId::parse("shop").expect("an id"), log: LogId::new(9) };
        assert!(again.validate(&other).is_err(), "that is another log");
    }

    #[test]
    fn bytes_that_are_no_change_are_refused() {
        let mut whole = Vec::new();
        create("shop", 1, 300).put(&mut whole);
        for length in 0..whole.len() {
            assert!(Change::take_whole(Reader(whole[..length].to_vec().into())).is_err(), "{length} bytes");
        }
        whole.push(0);
        assert!(Change::take_whole(Reader(whole.into())).is_err());
        assert!(Change::take_whole(Reader(vec![99].into())).is_err());
    }
}
