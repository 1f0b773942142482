//! Encoding of the table of rooms: its changes in frames and deltas, and its rows in the checkpoint.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidings_model::UserId;
use tidings_rooms::table::{LowerReceipt, Row};
use tidings_rooms::{Change, Table};

use crate::field::stored;
use crate::stored_state::{Access, StoredState};

stored! {
    enum Change {
        1 => TakeOver { epoch },
        2 => Owned { by },
        3 => Create { log, row },
        4 => Remove { log },
        5 => Members { log, add, remove, joined, most },
        6 => Reserve { log, through },
        7 => Collapse { log, positions },
        8 => Prune { log, through },
        9 => See { log, user, device, through, at, lower },
        11 => Forget { log, user, before },
        13 => Kept { log, since },
        14 => Reacted { log, waiting },
    }
    enum LowerReceipt {
        0 => Ignore,
        1 => Store,
    }
    struct Row { project, id, members, reserved, collapsed, kept_since, reacted }
}

impl StoredState for Table {
    fn takes_space(&self, change: &Change) -> bool {
        match change {
            Change::Create { .. } | Change::Collapse { .. } => true,
            Change::Members { log, add, .. } => self.row(*log).is_none_or(|row| {
                let new = |user: &UserId| !row.members.contains_key(user);
                add.iter().any(new)
            }),
            Change::See { log, user, device, .. } => {
                self.seen(*log, user).is_none_or(|devices| !devices.contains_key(device))
            }
            // A server takes over when it starts, also with a full disk.
            Change::TakeOver { .. }
            | Change::Owned { .. }
            | Change::Remove { .. }
            | Change::Reserve { .. }
            | Change::Kept { .. }
            | Change::Reacted { .. }
            | Change::Prune { .. }
            | Change::Forget { .. } => false,
        }
    }

    fn is_precondition(change: &Change) -> bool {
        matches!(change, Change::Owned { .. })
    }

    fn conflict_keys(&self, change: &Change, touch: &mut dyn FnMut(Access, u64)) {
        match change {
            Change::TakeOver { .. } => touch(Access::Writes, hash("epoch")),
            // Only a read: commits of one owner do not conflict with each other.
            Change::Owned { .. } => touch(Access::Reads, hash("epoch")),
            Change::Create { log, row } => {
                touch(Access::Writes, hash(log));
                touch(Access::Writes, hash((&row.project, &row.id)));
            }
            Change::Remove { log }
            | Change::Members { log, .. }
            | Change::Reserve { log, .. }
            | Change::Collapse { log, .. }
            | Change::Kept { log, .. }
            | Change::Reacted { log, .. }
            | Change::Prune { log, .. } => touch(Access::Writes, hash(log)),
            Change::See { log, user, .. } | Change::Forget { log, user, .. } => {
                touch(Access::Reads, hash(log));
                touch(Access::Writes, hash((log, user)));
            }
        }
    }
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("rooms", of).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use crate::codec::Reader;
    use crate::field::Field;
    use std::sync::Arc;

    use super::*;
    use tidings_engine::log::StateMachine;
    use tidings_model::{DeviceId, LogId, Position, ProjectId, RoomId, Timestamp};

    fn log(number: u64) -> LogId {
        LogId::new(number)
    }

    fn at(high: u64, low: u64) -> Position {
        crate::codec::whole(high, low)
    }

    fn user(id: &str) -> UserId {
        UserId::parse(id).expect("an id")
    }

    fn create(number: u64, id: &str, members: &[&str]) -> Change {
        let members = members.iter().map(|id| (user(id), Position::ZERO)).collect();
        let row = Row {
            project: ProjectId::parse("shop").expect("an id"),
            id: RoomId::parse(id).expect("an id"),
            members: Arc::new(members),
            reserved: Position::ZERO,
            collapsed: Arc::default(),
            kept_since: None,
            reacted: false,
        };
        Change::Create { log: log(number), row }
    }

    fn see(number: u64, device: &str, through: Position, lower: LowerReceipt) -> Change {
        Change::See {
            log: log(number),
            user: user("ann"),
            device: DeviceId::parse(device).expect("an id"),
            through,
            at: Timestamp::from_millis(through.get() as u64),
            lower,
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
        let members = |add: &[&str], remove: &[&str], joined| Change::Members {
            log: log(1),
            add: add.iter().map(|id| user(id)).collect(),
            remove: remove.iter().map(|id| user(id)).collect(),
            joined,
            most: 3,
        };
        let mut table = Table::default();
        play(
            &mut table,
            [
                Change::TakeOver { epoch: 1 },
                Change::TakeOver { epoch: 7 },
                Change::Owned { by: 7 },
                create(1, "r", &["ann", "bob"]),
                create(2, "übung/2", &[]),
                create(3, "gone", &["ann"]),
                members(&["cid"], &["bob"], at(5, 3)),
                members(&["dan", "ann"], &[], at(6, 0)),
                Change::Reserve { log: log(1), through: at(9, 9) },
                Change::Reserve { log: log(1), through: at(8, 0) },
                Change::Collapse { log: log(1), positions: vec![at(1, 5), at(2, 3), at(2, 4), at(7, 0)] },
                Change::Collapse { log: log(1), positions: vec![at(1, 2), at(3, u64::MAX)] },
                Change::Prune { log: log(1), through: at(1, 5) },
                Change::Kept { log: log(1), since: Some(Timestamp::from_millis(0)) },
                Change::Kept { log: log(1), since: Some(Timestamp::from_millis(70)) },
                Change::Kept { log: log(2), since: Some(Timestamp::from_millis(60)) },
                Change::Kept { log: log(2), since: None },
                Change::Kept { log: log(3), since: Some(Timestamp::from_millis(50)) },
                Change::Reacted { log: log(1), waiting: true },
                Change::Reacted { log: log(1), waiting: false },
                Change::Reacted { log: log(2), waiting: true },
                Change::Reacted { log: log(3), waiting: true },
                see(1, "phone", at(0, 5), LowerReceipt::Ignore),
                see(1, "phone", at(0, 3), LowerReceipt::Ignore),
                see(1, "laptop", at(0, 9), LowerReceipt::Ignore),
                see(1, "laptop", at(0, 2), LowerReceipt::Store),
                see(2, "watch", at(0, 1), LowerReceipt::Ignore),
                see(3, "phone", at(0, 1), LowerReceipt::Ignore),
                Change::Forget { log: log(2), user: user("ann"), before: Timestamp::from_millis(2) },
                Change::Remove { log: log(3) },
            ],
        );
        let mut again = Table::default();
        play(&mut again, crate::stored_state::snapshot_of(&mut table));
        for table in [&table, &again] {
            assert_eq!(table.epoch(), 7);
            assert_eq!(table.rooms().collect::<Vec<_>>(), [log(1), log(2)]);
            let old = |through, after| table.old(Timestamp::from_millis(through), after, 9);
            assert_eq!(old(70, None), [(Timestamp::from_millis(70), log(1))]);
            assert_eq!(old(69, None), []);
            assert_eq!(old(70, Some((Timestamp::from_millis(70), log(1)))), []);
            assert_eq!((table.reacted(None, 9), table.reacted(Some(log(2)), 9)), (vec![log(2)], vec![]));
            let row = table.row(log(1)).expect("a room");
            let members: Vec<_> = row.members.iter().map(|(user, joined)| (user.as_str(), *joined)).collect();
            assert_eq!(members, [("ann", Position::ZERO), ("cid", at(5, 3)), ("dan", at(6, 0))]);
            assert_eq!(row.reserved, at(9, 9));
            assert_eq!(**row.collapsed, [at(2, 3), at(2, 4), at(3, u64::MAX), at(7, 0)]);
            let seen = table.seen(log(1), &user("ann")).expect("seen");
            assert_eq!(seen.values().map(|(through, _)| *through).collect::<Vec<_>>(), [at(0, 2), at(0, 5)]);
            assert!(table.seen(log(2), &user("ann")).is_none() && table.seen(log(3), &user("ann")).is_none());
            let shop = ProjectId::parse("shop").expect("an id");
            assert_eq!(table.room(&shop, &RoomId::parse("übung/2").expect("an id")), Some(log(2)));
            assert_eq!(table.room(&shop, &RoomId::parse("gone").expect("an id")), None);
        }
        assert_eq!(table.row(log(1)), again.row(log(1)));
        let late = Change::Owned { by: 6 };
        assert!(again.validate(&late).is_err(), "who was replaced stays so");
        assert!(
            again.validate(&members(&["eve"], &[], Position::ZERO)).is_err(),
            "there are as many as may be"
        );
    }

    #[test]
    fn only_what_makes_the_table_larger_takes_space() {
        let mut table = Table::default();
        play(&mut table, [create(1, "r", &["ann"]), see(1, "phone", at(0, 1), LowerReceipt::Ignore)]);
        let members = |add: &[&str], remove: &[&str]| Change::Members {
            log: log(1),
            add: add.iter().map(|id| user(id)).collect(),
            remove: remove.iter().map(|id| user(id)).collect(),
            joined: Position::ZERO,
            most: 9,
        };
        for grows in [
            create(2, "s", &[]),
            members(&["ann", "bob"], &[]),
            see(1, "watch", at(0, 1), LowerReceipt::Ignore),
            Change::Collapse { log: log(1), positions: vec![at(0, 1)] },
        ] {
            assert!(table.takes_space(&grows), "{grows:?}");
        }
        for let_through in [
            members(&["ann"], &["bob"]),
            see(1, "phone", at(0, 2), LowerReceipt::Ignore),
            Change::TakeOver { epoch: 1 },
            Change::Remove { log: log(1) },
            Change::Prune { log: log(1), through: at(0, 1) },
            Change::Kept { log: log(1), since: Some(Timestamp::from_millis(1)) },
            Change::Reacted { log: log(1), waiting: true },
            Change::Forget { log: log(1), user: user("ann"), before: Timestamp::from_millis(2) },
        ] {
            assert!(!table.takes_space(&let_through), "{let_through:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_change_are_refused() {
        let mut whole = Vec::new();
        create(1, "r", &["ann"]).put(&mut whole);
        for length in 0..whole.len() {
            assert!(Change::take_whole(Reader(whole[..length].to_vec().into())).is_err(), "{length} bytes");
        }
        whole.push(0);
        assert!(Change::take_whole(Reader(whole.into())).is_err());
        assert!(Change::take_whole(Reader(vec![99, 1].into())).is_err());
    }
}
