//! The contract suite of rooms: what every store that keeps them must do, as tests that each store runs on itself.
//!
//! A store implements [`Fixture`] for its tests and calls [`rooms_contract!`](crate::rooms_contract) with a function
//! that makes an empty one. Each promise writes, has the store opened again if it can be, and asks.

mod indexes;
mod membership;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join;
use tidings_engine::log::fixture::{Fixture, observe};
use tidings_engine::log::{
    Append, Commit, CommitError, Commits, Logs, Operation, Positions, ReadError, Refusal,
};
use tidings_model::{DeviceId, LogId, Position, ProjectId, RoomId, Timestamp, UserId};

pub use indexes::*;
pub use membership::*;

use crate::Store;
use crate::store::Found;
use crate::table::{Change, Declined, LowerReceipt, Row};

/// Makes a `#[tokio::test]` of each promise, on an empty store from `$make`.
#[macro_export]
macro_rules! rooms_contract {
    ($make:expr) => {
        $crate::rooms_contract!(@each $make;
            a_room_is_found_by_its_name_and_by_its_log
            a_room_and_its_log_are_of_one_moment
            what_is_left_out_of_a_room_is_known_until_it_is_pruned
            reserved_cursors_never_sink
            a_refused_change_leaves_no_trace
            a_refused_operation_leaves_no_trace
            of_two_who_create_a_room_one_wins
            of_two_who_take_over_one_wins
            only_who_took_over_last_commits
            a_member_is_known_with_the_head_at_which_it_joined
            what_is_validated_of_members_is_what_a_commit_is_told
            of_two_who_take_the_last_place_one_wins
            a_device_has_seen_as_much_as_it_told
            members_are_paged_in_order
            old_rooms_are_paged_oldest_first
            rooms_with_reactions_are_paged_in_order
            rooms_of_a_project_are_as_many_as_one_commit_removes
            silent_users_are_looked_for_in_order
            a_forgotten_device_is_silent_no_more
            a_removed_room_is_in_no_index
        );
    };
    (@each $make:expr; $($promise:ident)+) => {
        $(
            #[tokio::test]
            async fn $promise() {
                $crate::contract::$promise($make().await).await;
            }
        )+
    };
}

// What the promises are told with.

/// Rows in all indexes are few enough to be given whole.
const ALL: usize = 1000;

fn project(text: &str) -> ProjectId {
    ProjectId::parse(text).expect("a valid id")
}

fn room_id(text: &str) -> RoomId {
    RoomId::parse(text).expect("a valid id")
}

fn user(text: &str) -> UserId {
    UserId::parse(text).expect("a valid id")
}

fn users(texts: &[&str]) -> Vec<UserId> {
    texts.iter().map(|text| user(text)).collect()
}

fn device(text: &str) -> DeviceId {
    DeviceId::parse(text).expect("a valid id")
}

fn at(number: u128) -> Position {
    Position::new(number)
}

fn time(second: u64) -> Timestamp {
    Timestamp::from_millis(second * 1000)
}

/// The row of a room with a name such as `shop/lobby`: a project, and an id there.
fn row(name: &str, members: &[&str]) -> Row {
    let (of, id) = name.split_once('/').expect("a project and an id");
    let members: BTreeMap<_, _> = members.iter().map(|name| (user(name), Position::ZERO)).collect();
    Row {
        project: project(of),
        id: room_id(id),
        members: Arc::new(members),
        reserved: Position::ZERO,
        collapsed: Arc::default(),
        kept_since: None,
        reacted: false,
    }
}

/// Creates a room and its log.
async fn create(store: &impl Store, row: Row) -> LogId {
    let log = store.reserve().await.expect("a number");
    let commit = Commit::new().with(Operation::create(log)).changing(Change::Create { log, row });
    store.commit(commit).await.expect("the commit is good");
    log
}

/// Ends a room and its log.
async fn remove(store: &impl Store, log: LogId) {
    let commit = Commit::new().with(Operation::Delete(log)).changing(Change::Remove { log });
    store.commit(commit).await.expect("the commit is good");
}

async fn change(store: &impl Store, change: Change) -> Result<(), Declined> {
    match store.commit(Commit::new().changing(change)).await {
        Ok(_) => Ok(()),
        Err(CommitError::Declined(declined)) => Err(declined),
        Err(error) => panic!("the store refuses: {error}"),
    }
}

async fn make(store: &impl Store, changes: impl IntoIterator<Item = Change>) {
    for one in changes {
        change(store, one).await.expect("the change is good");
    }
}

fn append(log: LogId, position: Position) -> Append {
    let append = Append::new(log, vec![Bytes::from_static(b"text")]);
    Append { positions: Positions::Given(vec![position]), ..append }
}

fn join_room(log: LogId, add: &[&str], joined: Position, most: usize) -> Change {
    Change::Members { log, add: users(add), remove: Vec::new(), joined, most }
}

fn see(log: LogId, who: &str, on: &str, through: Position, second: u64, lower: LowerReceipt) -> Change {
    Change::See { log, user: user(who), device: device(on), through, at: time(second), lower }
}

async fn room(store: &impl Store, name: &str) -> Option<LogId> {
    let (of, id) = name.split_once('/').expect("a project and an id");
    store.room(&project(of), &room_id(id)).await.expect("an answer")
}

async fn found(store: &impl Store, log: LogId) -> Option<Found> {
    store.found(log).await.expect("an answer")
}

async fn member(store: &impl Store, log: LogId, name: &str) -> Option<Position> {
    store.member(log, &user(name)).await.expect("an answer")
}

async fn seen(store: &impl Store, log: LogId, name: &str) -> Vec<(String, Position, Timestamp)> {
    let devices = store.seen(log, &user(name)).await.expect("an answer").unwrap_or_default();
    devices.iter().map(|(device, &(through, at))| (device.to_string(), through, at)).collect()
}

// The promises about one room. Those about its members are in `membership`, those about many rooms in `indexes`.

/// A room is there when its commit returns, and all that was said of it is kept.
pub async fn a_room_is_found_by_its_name_and_by_its_log(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    assert_eq!(room(store, "shop/lobby").await, None);
    let lobby = Row {
        reserved: at(40),
        collapsed: Arc::new(vec![at(3), at(7)]),
        kept_since: Some(time(5)),
        reacted: true,
        ..row("shop/lobby", &["ann"])
    };
    let log = create(store, lobby).await;
    assert_eq!(room(store, "shop/lobby").await, Some(log));
    let other = create(store, row("other/lobby", &[])).await;
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(room(store, "shop/lobby").await, Some(log));
    assert_eq!(room(store, "other/lobby").await, Some(other));
    assert_eq!(room(store, "shop/lob").await, None);
    let room = found(store, log).await.expect("there");
    assert_eq!((room.reserved, room.kept_since, room.reacted), (at(40), Some(time(5)), true));
    assert_eq!(*room.collapsed, [at(3), at(7)]);
    assert_eq!(member(store, log, "ann").await, Some(Position::ZERO));
    assert_eq!(member(store, other, "ann").await, None);
}

/// What one commit does to a room and to its log is never seen in part.
pub async fn a_room_and_its_log_are_of_one_moment(fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let log = create(store, row("shop/lobby", &[])).await;
    let work = async {
        for number in 1..=50 {
            let reserve = Change::Reserve { log, through: at(number) };
            let commit = Commit::new().with(append(log, at(number))).changing(reserve);
            store.commit(commit).await.expect("the commit is good");
        }
        remove(store, log).await;
    };
    observe(work, async || {
        if let Some(room) = found(store, log).await {
            assert_eq!(room.reserved, room.status.tail);
        }
    })
    .await;
    assert!(found(store, log).await.is_none());
}

/// Positions that are left out are kept in order, each once, and go when they are pruned.
pub async fn what_is_left_out_of_a_room_is_known_until_it_is_pruned(mut fixture: impl Fixture<Store: Store>) {
    let log = create(fixture.store(), row("shop/lobby", &[])).await;
    let collapse =
        |numbers: &[u128]| Change::Collapse { log, positions: numbers.iter().copied().map(at).collect() };
    make(fixture.store(), [collapse(&[5, 9]), collapse(&[2, 5, 12])]).await;
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(*found(store, log).await.expect("there").collapsed, [2, 5, 9, 12].map(at));
    make(store, [Change::Prune { log, through: at(5) }]).await;
    fixture.reopen().await;
    assert_eq!(*found(fixture.store(), log).await.expect("there").collapsed, [9, 12].map(at));
}

/// A cursor that may have been given is reserved for good.
pub async fn reserved_cursors_never_sink(mut fixture: impl Fixture<Store: Store>) {
    let log = create(fixture.store(), row("shop/lobby", &[])).await;
    let reserve = |number| Change::Reserve { log, through: at(number) };
    make(fixture.store(), [reserve(100), reserve(60)]).await;
    fixture.reopen().await;
    assert_eq!(found(fixture.store(), log).await.expect("there").reserved, at(100));
}

/// When one change of a commit is refused, neither its other changes nor its operations hold.
pub async fn a_refused_change_leaves_no_trace(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let lobby = create(store, row("shop/lobby", &[])).await;
    let log = store.reserve().await.expect("a number");
    let again = Row { reacted: true, kept_since: Some(time(1)), ..row("shop/lobby", &["ann"]) };
    let commit = Commit::new()
        .with(Operation::create(log))
        .with(append(lobby, at(1)))
        .changing(join_room(lobby, &["bob"], at(1), 10))
        .changing(Change::Create { log, row: again });
    let refused = store.commit(commit).await.expect_err("there is such a room");
    assert!(matches!(refused, CommitError::Declined(Declined::Moved)), "{refused}");
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(room(store, "shop/lobby").await, Some(lobby));
    assert_eq!(member(store, lobby, "bob").await, None);
    assert_eq!(found(store, lobby).await.expect("there").status.tail, Position::ZERO);
    assert!(store.reacted(None, ALL).await.expect("an answer").is_empty());
    assert!(store.old(time(9), None, ALL).await.expect("an answer").is_empty());
    assert_eq!(store.status(log).await, Err(ReadError::NoSuchLog(log)));
}

/// When a log refuses an operation of a commit, no change of it holds.
pub async fn a_refused_operation_leaves_no_trace(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let lobby = create(store, row("shop/lobby", &[])).await;
    let commit = Commit::new()
        .with(Operation::create(lobby))
        .changing(Change::Reserve { log: lobby, through: at(9) })
        .changing(see(lobby, "ann", "phone", at(1), 1, LowerReceipt::Ignore));
    let refused = store.commit(commit).await.expect_err("there is such a log");
    assert!(matches!(refused, CommitError::Refused(Refusal::LogExists(log)) if log == lobby), "{refused}");
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(found(store, lobby).await.expect("there").reserved, Position::ZERO);
    assert!(seen(store, lobby, "ann").await.is_empty());
}

/// Two commits that are under way at the same time do not both create the room.
pub async fn of_two_who_create_a_room_one_wins(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let by = async || {
        let log = store.reserve().await.expect("a number");
        let creation = Change::Create { log, row: row("shop/lobby", &[]) };
        (log, store.commit(Commit::new().with(Operation::create(log)).changing(creation)).await)
    };
    let (winner, loser) = match join(by(), by()).await {
        ((winner, Ok(_)), (loser, Err(CommitError::Declined(Declined::Moved)))) => (winner, loser),
        ((loser, Err(CommitError::Declined(Declined::Moved))), (winner, Ok(_))) => (winner, loser),
        both => panic!("{both:?}"),
    };
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(room(store, "shop/lobby").await, Some(winner));
    assert!(found(store, loser).await.is_none());
}

/// No epoch is given twice.
pub async fn of_two_who_take_over_one_wins(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    assert_eq!(store.epoch().await, Ok(0));
    let take_over = || change(store, Change::TakeOver { epoch: 1 });
    let (one, other) = join(take_over(), take_over()).await;
    assert_ne!(one.is_ok(), other.is_ok());
    assert_eq!(one.and(other), Err(Declined::Moved));
    fixture.reopen().await;
    assert_eq!(fixture.store().epoch().await, Ok(1));
    assert_eq!(change(fixture.store(), Change::TakeOver { epoch: 1 }).await, Err(Declined::Moved));
}

/// Whoever had the rooms before writes nothing any more, neither to tables nor to logs.
pub async fn only_who_took_over_last_commits(mut fixture: impl Fixture<Store: Store>) {
    let log = create(fixture.store(), row("shop/lobby", &[])).await;
    make(fixture.store(), [1, 2].map(|epoch| Change::TakeOver { epoch })).await;
    fixture.reopen().await;
    let store = fixture.store();
    let by = |epoch, position| {
        store.commit(Commit::new().with(append(log, position)).changing(Change::Owned { by: epoch }))
    };
    let refused = by(1, at(1)).await.expect_err("it is not the owner any more");
    assert!(matches!(refused, CommitError::Declined(Declined::Fenced)), "{refused}");
    assert_eq!(found(store, log).await.expect("there").status.tail, Position::ZERO);
    by(2, at(2)).await.expect("it is the owner");
    let (next, late) = join(change(store, Change::TakeOver { epoch: 3 }), by(2, at(3))).await;
    next.expect("nobody has that epoch");
    let tail = found(store, log).await.expect("there").status.tail;
    assert_eq!(tail, if late.is_ok() { at(3) } else { at(2) });
}

/// The highest that a device told counts, or the last, as it says; devices and users do not touch each other.
pub async fn a_device_has_seen_as_much_as_it_told(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let log = create(store, row("shop/lobby", &["ann", "bob"])).await;
    let changes = [
        see(log, "ann", "phone", at(5), 1, LowerReceipt::Ignore),
        see(log, "ann", "phone", at(3), 2, LowerReceipt::Ignore),
        see(log, "ann", "laptop", at(5), 3, LowerReceipt::Ignore),
        see(log, "ann", "laptop", at(2), 4, LowerReceipt::Store),
        see(log, "bob", "phone", at(9), 5, LowerReceipt::Ignore),
        see(log, "bob", "phone", at(9), 6, LowerReceipt::Ignore),
    ];
    make(store, changes).await;
    let expected = |device: &str, number, second| (device.to_owned(), at(number), time(second));
    for _ in 0..2 {
        let store = fixture.store();
        assert_eq!(seen(store, log, "ann").await, [expected("laptop", 2, 4), expected("phone", 5, 1)]);
        assert_eq!(seen(store, log, "bob").await, [expected("phone", 9, 6)], "it is still there");
        assert!(seen(store, log, "eve").await.is_empty());
        fixture.reopen().await;
    }
}

#[cfg(test)]
mod in_memory {
    use std::sync::Arc;

    use tidings_engine::log::Memory;
    use tidings_engine::{Bus, WallClock};

    async fn empty() -> Memory<crate::Table> {
        Memory::new(Bus::new(), Arc::new(WallClock))
    }

    crate::rooms_contract!(empty);
}
