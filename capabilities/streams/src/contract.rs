//! The contract suite of streams: what every store that keeps them must do, as tests that each store runs on itself.
//!
//! A store implements [`Fixture`] for its tests and calls [`streams_contract!`](crate::streams_contract) with a function
//! that makes an empty one. Each promise writes, has the store opened again if it can be, and asks.

mod indexes;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;
use tidings_engine::log::fixture::{Fixture, observe};
use tidings_engine::log::{
    Append, Commit, CommitError, Commits, LogTotals, Logs, Operation, ReadError, Refusal, Then,
};
use tidings_model::{LogId, Position, ProjectId, StreamId, Timestamp};

pub use indexes::*;

use crate::table::{BelowFloor, Cause, Declined};
use crate::{
    Change, ContentType, Expiry, Floor, Fork, Found, Owner, Retained, Retention, Segment, Store, Stream,
    StreamKey, StreamState,
};

/// Makes a `#[tokio::test]` of each promise, on an empty store from `$make`.
#[macro_export]
macro_rules! streams_contract {
    ($make:expr) => {
        $crate::streams_contract!(@each $make;
            a_stream_is_found_as_it_was_committed
            a_stream_is_found_with_the_status_of_its_log
            a_stream_and_its_log_are_of_one_moment
            a_refused_change_leaves_no_trace
            a_refused_operation_leaves_no_trace
            a_change_does_not_hit_a_later_stream_of_the_same_name
            of_two_who_create_a_stream_one_wins
            of_a_renewal_and_an_expiry_one_wins
            expired_streams_are_due_earliest_first
            a_renewed_stream_is_due_later_and_never_earlier
            a_deleted_stream_is_due_when_its_last_fork_has_gone
            a_list_is_paged_in_the_order_of_ids
            streams_that_do_not_keep_everything_are_paged_in_the_order_of_keys
            streams_of_sessions_are_counted_until_they_have_gone
            a_removed_stream_is_in_no_index
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

/// Streams in all indexes are few enough to be given whole.
const ALL: usize = 1000;

fn project(text: &str) -> ProjectId {
    ProjectId::parse(text).expect("a valid id")
}

/// The key of a name such as `shop/orders`: a project, and an id there.
fn key(name: &str) -> StreamKey {
    let (owner, id) = name.split_once('/').expect("a project and an id");
    StreamKey { project: project(owner), id: StreamId::parse(id).expect("a valid id") }
}

fn time(second: u64) -> Timestamp {
    Timestamp::from_millis(second * 1000)
}

fn plain(log: LogId) -> Stream {
    Stream {
        log,
        content_type: ContentType::octet_stream(),
        expiry: Expiry::Never,
        expires_at: None,
        created_at: time(1),
        fork: None,
        forks: 0,
        state: StreamState::Active,
        owner: Owner::Clients,
        retained: None,
    }
}

fn expiring(log: LogId, second: u64) -> Stream {
    Stream { expiry: Expiry::At(time(second)), expires_at: Some(time(second)), ..plain(log) }
}

fn retained(log: LogId) -> Stream {
    let limits = Retention { messages: Some(3), ..Retention::default() };
    let retained = Retained { limits, inherited: LogTotals::default(), floor: Floor::default() };
    Stream { retained: Some(Box::new(retained)), ..plain(log) }
}

fn fork(log: LogId, source: &StreamKey, source_log: LogId) -> Stream {
    let lineage = vec![Segment { log: source_log, through: Position::new(9) }];
    let fork = Fork { source: source.clone(), source_log, offset: None, sub_offset: 2, lineage };
    Stream { fork: Some(Arc::new(fork)), ..plain(log) }
}

/// Creates a stream and its log.
async fn create(store: &impl Store, name: &str, stream: impl FnOnce(LogId) -> Stream) -> LogId {
    let log = store.reserve().await.expect("a number");
    let change = Change::Create { key: key(name), stream: stream(log) };
    let commit = Commit::new().with(Operation::create(log)).changing(change);
    store.commit(commit).await.expect("the commit is good");
    log
}

/// Ends a stream and its log.
async fn remove(store: &impl Store, name: &str, log: LogId, cause: Cause) {
    let change = Change::Remove { key: key(name), log, cause };
    let commit = Commit::new().with(Operation::Delete(log)).changing(change);
    store.commit(commit).await.expect("the commit is good");
}

async fn change(store: &impl Store, change: Change) -> Result<(), Declined> {
    match store.commit(Commit::new().changing(change)).await {
        Ok(_) => Ok(()),
        Err(CommitError::Declined(declined)) => Err(declined),
        Err(error) => panic!("the store refuses: {error}"),
    }
}

async fn append(store: &impl Store, log: LogId, then: Then) -> Position {
    let append = Append { then, ..Append::new(log, vec![Bytes::from_static(b"text")]) };
    store.commit(Commit::new().with(append)).await.expect("the commit is good").appended().last
}

async fn find(store: &impl Store, name: &str) -> Option<Found> {
    store.find(&key(name)).await.expect("an answer")
}

async fn due(store: &impl Store, owner: Owner, second: u64, limit: usize) -> Vec<String> {
    let due = store.due(owner, time(second), limit).await.expect("an answer");
    due.iter().map(ToString::to_string).collect()
}

async fn list(store: &impl Store, of: &str, prefix: &str, after: Option<&str>, limit: usize) -> Vec<String> {
    let after = after.map(|id| StreamId::parse(id).expect("a valid id"));
    let found = store.list(&project(of), prefix, after.as_ref(), limit).await.expect("an answer");
    found.iter().map(|(id, _)| id.to_string()).collect()
}

async fn retained_after(store: &impl Store, after: Option<&StreamKey>, limit: usize) -> Vec<StreamKey> {
    store.retained(after, limit).await.expect("an answer")
}

// The promises about one stream. Those about many of them are in `indexes`.

/// A stream is there when its commit returns, and all that was said of it is kept.
pub async fn a_stream_is_found_as_it_was_committed(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    assert!(find(store, "shop/source").await.is_none());
    let source = create(store, "shop/source", plain).await;
    let log = store.reserve().await.expect("a number");
    let floor = Floor { position: Position::new(5), gone: LogTotals { records: 2, bytes: 30 } };
    let limits = Retention { age: Some(Duration::from_secs(60)), bytes: Some(1 << 40), messages: Some(7) };
    let stream = Stream {
        content_type: ContentType::parse("application/json; charset=utf-8").expect("a content type"),
        expiry: Expiry::Idle(Duration::from_secs(90)),
        expires_at: Some(time(100)),
        created_at: time(10),
        owner: Owner::Session,
        retained: Some(Box::new(Retained { limits, inherited: LogTotals { records: 3, bytes: 40 }, floor })),
        ..fork(log, &key("shop/source"), source)
    };
    let begins = Operation::Create { log, tail: Position::new(9) };
    let creation = Change::Create { key: key("shop/a/b c"), stream: stream.clone() };
    store.commit(Commit::new().with(begins).changing(creation)).await.expect("the commit is good");
    let as_it_was = format!("{stream:?}");
    let found = find(store, "shop/a/b c").await.expect("there");
    assert_eq!(format!("{:?}", found.stream), as_it_was);
    fixture.reopen().await;
    let found = find(fixture.store(), "shop/a/b c").await.expect("there");
    assert_eq!(format!("{:?}", found.stream), as_it_was);
    assert_eq!(found.status.tail, Position::new(9));
    assert_eq!(find(fixture.store(), "shop/source").await.expect("there").stream.forks, 1);
    assert!(find(fixture.store(), "shop/a").await.is_none());
    assert!(find(fixture.store(), "other/source").await.is_none(), "another project");
}

/// Whoever finds or lists a stream is told what its log took, and whether it is closed.
pub async fn a_stream_is_found_with_the_status_of_its_log(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let log = create(store, "shop/s", plain).await;
    let first = append(store, log, Then::StayOpen).await;
    assert_eq!(find(store, "shop/s").await.expect("there").status.tail, first);
    let tail = append(store, log, Then::Close).await;
    fixture.reopen().await;
    let store = fixture.store();
    let status = find(store, "shop/s").await.expect("there").status;
    assert_eq!(Ok(status), store.status(log).await);
    assert_eq!((status.tail, status.closed), (tail, true));
    assert_eq!(status.total, LogTotals { records: 2, bytes: 8 });
    let listed = store.list(&project("shop"), "", None, ALL).await.expect("an answer");
    assert_eq!(listed[0].1.status, status);
}

/// What one commit does to a stream and to its log is never seen in part.
pub async fn a_stream_and_its_log_are_of_one_moment(fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let log = create(store, "shop/s", retained).await;
    let work = async {
        for _ in 0..50 {
            let position = append(store, log, Then::StayOpen).await;
            let floor = Floor { position, gone: LogTotals::default() };
            let change = Change::Trim { key: key("shop/s"), log, floor, below: BelowFloor::Trimmed };
            let trim = Operation::Trim { log, floor: position };
            store.commit(Commit::new().with(trim).changing(change)).await.expect("the commit is good");
        }
        remove(store, "shop/s", log, Cause::Deleted).await;
    };
    let agrees = |found: &Found| {
        let retained = found.stream.retained.as_ref().expect("it has limits");
        assert_eq!(retained.floor.position, found.status.floor);
    };
    observe(work, async || {
        find(store, "shop/s").await.iter().for_each(agrees);
        let listed = store.list(&project("shop"), "", None, ALL).await.expect("an answer");
        listed.iter().for_each(|(_, found)| agrees(found));
    })
    .await;
    assert!(find(store, "shop/s").await.is_none());
}

/// When one change of a commit is refused, neither its other changes nor its operations hold.
pub async fn a_refused_change_leaves_no_trace(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let there = create(store, "shop/there", plain).await;
    let log = store.reserve().await.expect("a number");
    let commit = Commit::new()
        .with(Operation::create(log))
        .changing(Change::Create { key: key("shop/new"), stream: expiring(log, 1) })
        .changing(Change::Create { key: key("shop/there"), stream: expiring(log, 1) });
    let refused = store.commit(commit).await.expect_err("there is such a stream");
    assert!(matches!(refused, CommitError::Declined(Declined::Exists)), "{refused}");
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(find(store, "shop/there").await.expect("there").stream.log, there);
    assert_eq!(list(store, "shop", "", None, ALL).await, ["there"]);
    assert!(due(store, Owner::Clients, 1, ALL).await.is_empty());
    assert_eq!(store.status(log).await, Err(ReadError::NoSuchLog(log)));
}

/// When a log refuses an operation of a commit, no change of it holds.
pub async fn a_refused_operation_leaves_no_trace(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let taken = create(store, "shop/there", plain).await;
    let commit = Commit::new()
        .with(Operation::create(taken))
        .changing(Change::Create { key: key("shop/new"), stream: retained(taken) });
    let refused = store.commit(commit).await.expect_err("there is such a log");
    assert!(matches!(refused, CommitError::Refused(Refusal::LogExists(log)) if log == taken), "{refused}");
    fixture.reopen().await;
    let store = fixture.store();
    assert!(find(store, "shop/new").await.is_none());
    assert_eq!(list(store, "shop", "", None, ALL).await, ["there"]);
    assert!(retained_after(store, None, ALL).await.is_empty());
}

/// A change names the life that it means: it is refused when the name is that of another stream by now.
pub async fn a_change_does_not_hit_a_later_stream_of_the_same_name(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let before = create(store, "shop/s", plain).await;
    remove(store, "shop/s", before, Cause::Deleted).await;
    let now = create(store, "shop/s", |log| expiring(log, 10)).await;
    fixture.reopen().await;
    let store = fixture.store();
    let key = key("shop/s");
    for late in [
        Change::Expect { key: key.clone(), log: before },
        Change::Renew { key: key.clone(), log: before, expires_at: time(99) },
        Change::Remove { key: key.clone(), log: before, cause: Cause::Deleted },
    ] {
        assert_eq!(change(store, late).await, Err(Declined::NotThere));
    }
    let found = find(store, "shop/s").await.expect("there");
    assert_eq!((found.stream.log, found.stream.expires_at), (now, Some(time(10))));
}

/// Two commits that are under way at the same time do not both create the stream.
pub async fn of_two_who_create_a_stream_one_wins(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let by = async || {
        let log = store.reserve().await.expect("a number");
        let creation = Change::Create { key: key("shop/s"), stream: plain(log) };
        (log, store.commit(Commit::new().with(Operation::create(log)).changing(creation)).await)
    };
    let (winner, loser) = match join(by(), by()).await {
        ((winner, Ok(_)), (loser, Err(CommitError::Declined(Declined::Exists)))) => (winner, loser),
        ((loser, Err(CommitError::Declined(Declined::Exists))), (winner, Ok(_))) => (winner, loser),
        both => panic!("{both:?}"),
    };
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(find(store, "shop/s").await.expect("there").stream.log, winner);
    assert_eq!(store.status(loser).await, Err(ReadError::NoSuchLog(loser)));
}

/// A stream that is used at the moment when it expires either is renewed or is gone.
pub async fn of_a_renewal_and_an_expiry_one_wins(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let log = create(store, "shop/s", |log| expiring(log, 10)).await;
    let renewal = change(store, Change::Renew { key: key("shop/s"), log, expires_at: time(20) });
    let cause = Cause::Expired(time(15));
    let removal = Change::Remove { key: key("shop/s"), log, cause };
    let removal = store.commit(Commit::new().with(Operation::Delete(log)).changing(removal));
    let renewed = match join(renewal, removal).await {
        (Ok(()), Err(CommitError::Declined(Declined::NotDue))) => true,
        (Err(Declined::NotThere), Ok(_)) => false,
        both => panic!("{both:?}"),
    };
    fixture.reopen().await;
    let store = fixture.store();
    let found = find(store, "shop/s").await;
    assert_eq!(found.map(|found| found.stream.expires_at), renewed.then_some(Some(time(20))));
    assert_eq!(store.status(log).await.is_ok(), renewed);
}

#[cfg(test)]
mod in_memory {
    use std::sync::Arc;

    use tidings_engine::log::Memory;
    use tidings_engine::{Bus, WallClock};

    async fn empty() -> Memory<crate::Table> {
        Memory::new(Bus::new(), Arc::new(WallClock))
    }

    crate::streams_contract!(empty);
}
