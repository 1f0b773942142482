//! Contract suite of sessions: tests that every store of sessions runs on itself.
//!
//! A store implements [`Fixture`] for its tests and calls [`sessions_contract!`](crate::sessions_contract) with a
//! function that creates an empty fixture. The store holds streams as well, because a session is a stream and ends with
//! it. Stores that hold tables in memory may use [`StreamsAndSessions`] as their catalog. Each test writes, reopens the
//! store if that is possible, and checks what it reads.

mod catalog;
mod delivery;
mod endings;

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;
use tidings_engine::log::fixture::Fixture;
use tidings_engine::log::{
    Append, Commit, CommitError, Commits, Logs, Operation, Positions, ReadError, Refusal,
};
use tidings_model::{LogId, Position, ProjectId, StreamId, Timestamp};
use tidings_streams::table::Cause;
use tidings_streams::{ContentType, Expiry, Owner, Stream, StreamKey, StreamState};

pub use catalog::StreamsAndSessions;
pub use delivery::*;
pub use endings::*;

use crate::table::{Change, Declined, Expected, SessionIs, Store};

/// Generates a `#[tokio::test]` for each promise, on an empty fixture from `$make`.
#[macro_export]
macro_rules! sessions_contract {
    ($make:expr) => {
        $crate::sessions_contract!(@each $make;
            a_subscription_is_seen_from_both_sides
            a_subscription_that_ends_is_seen_from_neither_side
            what_was_delivered_is_shown_as_it_was
            a_refused_change_leaves_no_trace
            a_refused_operation_leaves_no_trace
            of_two_who_begin_a_session_one_wins
            of_two_who_deliver_a_batch_one_wins
            an_append_does_not_pass_a_new_subscriber_by
            progress_of_a_source_is_kept
            sources_are_behind_until_all_is_delivered
            whether_a_source_is_behind_is_of_one_moment
            subscribers_lapse_when_their_time_is_over_unless_it_is_renewed
            a_session_ends_with_its_stream
            a_source_ends_for_all_its_subscribers_at_once
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

// Helpers of the tests.

/// Limit that no answer of the tests reaches.
const ALL: usize = 10_000;

fn key(name: &str) -> StreamKey {
    let id = StreamId::parse(name).expect("a valid id");
    StreamKey { project: ProjectId::default_project(), id }
}

fn time(second: u64) -> Timestamp {
    Timestamp::from_millis(second * 1000)
}

fn at(number: u128) -> Position {
    Position::new(number)
}

fn stream(log: LogId, owner: Owner, expires_at: Option<Timestamp>) -> Stream {
    Stream {
        log,
        content_type: ContentType::octet_stream(),
        expiry: expires_at.map_or(Expiry::Never, |_| Expiry::Idle(Duration::from_secs(10))),
        expires_at,
        created_at: time(1),
        fork: None,
        forks: 0,
        state: StreamState::Active,
        owner,
        retained: None,
    }
}

fn subscribe(session: LogId, session_is: SessionIs, source: LogId, since: Position) -> Change {
    Change::Subscribe {
        session,
        session_is,
        source,
        id: key("source").id,
        at: time(1),
        since,
        envelope: None,
        unreadable: None,
    }
}

async fn reserve(store: &impl Store) -> LogId {
    store.reserve().await.expect("a number")
}

async fn commit(store: &impl Store, commit: Commit<Change>) -> Result<(), Declined> {
    match store.commit(commit).await {
        Ok(_) => Ok(()),
        Err(CommitError::Declined(declined)) => Err(declined),
        Err(error) => panic!("the store refuses: {error}"),
    }
}

async fn change(store: &impl Store, change: Change) -> Result<(), Declined> {
    commit(store, Commit::new().changing(change)).await
}

async fn make(store: &impl Store, changes: impl IntoIterator<Item = Change>) {
    for one in changes {
        change(store, one).await.expect("the change is good");
    }
}

fn creation(log: LogId, name: &str, stream: Stream) -> Commit<Change> {
    let create = tidings_streams::Change::Create { key: key(name), stream };
    Commit::new().with(Operation::create(log)).changing(Change::Streams(create))
}

/// Creates a stream that any client may append to.
async fn source(store: &impl Store, name: &str) -> LogId {
    let log = reserve(store).await;
    commit(store, creation(log, name, stream(log, Owner::Clients, None))).await.expect("the name is free");
    log
}

/// Commit that creates a session subscribed to a source.
fn beginning(log: LogId, name: &str, expires_at: Timestamp, source: LogId) -> Commit<Change> {
    creation(log, name, stream(log, Owner::Session, Some(expires_at))).changing(subscribe(
        log,
        SessionIs::New,
        source,
        Position::ZERO,
    ))
}

async fn session(store: &impl Store, name: &str, expires_at: Timestamp, source: LogId) -> LogId {
    let log = reserve(store).await;
    commit(store, beginning(log, name, expires_at, source)).await.expect("the name is free");
    log
}

/// Deletes a stream and its log.
async fn end(store: &impl Store, name: &str, log: LogId) {
    let removal = tidings_streams::Change::Remove { key: key(name), log, cause: Cause::Deleted };
    let ends = Commit::new().with(Operation::Delete(log)).changing(Change::Streams(removal));
    commit(store, ends).await.expect("it is there");
}

fn append(log: LogId, position: Position) -> Append {
    let append = Append::new(log, vec![Bytes::from_static(b"text")]);
    Append { positions: Positions::Given(vec![position]), ..append }
}

/// Sources that a session is subscribed to.
async fn heard(store: &impl Store, session: LogId) -> Option<Vec<LogId>> {
    let session = store.session(session).await.expect("an answer")?;
    Some(session.subscriptions().map(|subscription| subscription.source).collect())
}

/// Sessions that are subscribed to a source.
async fn hearing(store: &impl Store, source: LogId) -> Option<Vec<LogId>> {
    let source = store.source(source).await.expect("an answer")?;
    Some(source.targets.iter().collect())
}

async fn lapsed(store: &impl Store, source: LogId, second: u64) -> Vec<LogId> {
    let lapsed = store.lapsed(source, time(second), ALL).await.expect("an answer");
    let mut logs: Vec<_> = lapsed.iter().map(|(log, _)| *log).collect();
    logs.sort();
    logs
}

// Tests of subscriptions. Tests of delivery are in `delivery`, tests of endings in `endings`.

/// A subscription is visible when its commit returns: in the row of the session and in that of the source.
pub async fn a_subscription_is_seen_from_both_sides(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let sources = [source(store, "news").await, source(store, "sports").await];
    assert_eq!(hearing(store, sources[0]).await, None);
    let one = session(store, "one", time(9), sources[0]).await;
    let two = session(store, "two", time(9), sources[0]).await;
    make(store, [subscribe(two, SessionIs::Existing, sources[1], Position::ZERO)]).await;
    for _ in 0..2 {
        let store = fixture.store();
        assert_eq!(heard(store, one).await, Some(vec![sources[0]]));
        assert_eq!(heard(store, two).await, Some(sources.to_vec()));
        assert_eq!(hearing(store, sources[0]).await, Some(vec![one, two]));
        assert_eq!(hearing(store, sources[1]).await, Some(vec![two]));
        assert_eq!(heard(store, sources[0]).await, None, "a source is no session");
        assert_eq!(hearing(store, one).await, None, "a session is no source");
        fixture.reopen().await;
    }
}

/// The row of a source is removed with its last subscription.
pub async fn a_subscription_that_ends_is_seen_from_neither_side(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let source = source(store, "news").await;
    let sessions =
        [session(store, "one", time(9), source).await, session(store, "two", time(9), source).await];
    let leave = |at: usize| Change::Unsubscribe { session: sessions[at], source };
    make(store, [leave(0), leave(0)]).await;
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(heard(store, sessions[0]).await, Some(vec![]));
    assert_eq!(hearing(store, source).await, Some(vec![sessions[1]]));
    make(store, [leave(1)]).await;
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(hearing(store, source).await, None);
    assert_eq!(change(store, Change::Expect { source, expected: Expected::Nobody }).await, Ok(()));
}

/// The envelope setting of a record is known by its position, even after the subscription has ended.
pub async fn what_was_delivered_is_shown_as_it_was(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let source = source(store, "news").await;
    let log = session(store, "one", time(9), source).await;
    for (since, form) in [(4, true), (8, false)] {
        let mut again = subscribe(log, SessionIs::Existing, source, at(since));
        if let Change::Subscribe { envelope, .. } = &mut again {
            *envelope = Some(form);
        }
        make(store, [again]).await;
    }
    make(store, [Change::Unsubscribe { session: log, source }]).await;
    for _ in 0..2 {
        let session = fixture.store().session(log).await.expect("an answer").expect("there");
        assert_eq!(session.subscriptions().count(), 0);
        let was = session.of(source).expect("its records can still be read");
        assert_eq!([4, 5, 8, 9].map(|position| was.envelope_at(at(position))), [false, true, true, false]);
        fixture.reopen().await;
    }
}

/// When one change of a commit is refused, none of its other changes and operations take effect.
pub async fn a_refused_change_leaves_no_trace(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let source = source(store, "news").await;
    let one = session(store, "one", time(9), source).await;
    let log = reserve(store).await;
    let to_a_session =
        beginning(log, "two", time(9), source).changing(subscribe(log, SessionIs::New, one, at(0)));
    assert_eq!(commit(store, to_a_session).await, Err(Declined::SourceIsSession));
    let taken = beginning(log, "one", time(9), source);
    let exists = Declined::Streams(tidings_streams::table::Declined::Exists);
    assert_eq!(commit(store, taken).await, Err(exists), "streams refuse for sessions, too");
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(heard(store, log).await, None);
    assert_eq!(hearing(store, source).await, Some(vec![one]));
    assert_eq!(hearing(store, one).await, None);
    assert_eq!(lapsed(store, source, 9).await, [one]);
    assert_eq!(store.status(log).await, Err(ReadError::NoSuchLog(log)));
}

/// When a log refuses an operation of a commit, none of its changes take effect.
pub async fn a_refused_operation_leaves_no_trace(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let source = source(store, "news").await;
    let log = reserve(store).await;
    let refused = beginning(log, "one", time(9), source).with(Operation::create(source));
    let refused = store.commit(refused).await.expect_err("there is such a log");
    assert!(matches!(refused, CommitError::Refused(Refusal::LogExists(log)) if log == source), "{refused}");
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(heard(store, log).await, None);
    assert_eq!(hearing(store, source).await, None);
}

/// Two concurrent first subscriptions do not both create the session.
pub async fn of_two_who_begin_a_session_one_wins(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let sources = [source(store, "news").await, source(store, "sports").await];
    let log = reserve(store).await;
    commit(store, creation(log, "one", stream(log, Owner::Session, None))).await.expect("the name is free");
    let by = |at: usize| change(store, subscribe(log, SessionIs::New, sources[at], Position::ZERO));
    let winner = match join(by(0), by(1)).await {
        (Ok(()), Err(Declined::Moved)) => 0,
        (Err(Declined::Moved), Ok(())) => 1,
        both => panic!("{both:?}"),
    };
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(heard(store, log).await, Some(vec![sources[winner]]));
    assert_eq!(hearing(store, sources[1 - winner]).await, None);
}

#[cfg(test)]
mod in_memory {
    use std::sync::Arc;

    use tidings_engine::log::Memory;
    use tidings_engine::{Bus, WallClock};

    async fn empty() -> Memory<super::StreamsAndSessions> {
        Memory::new(Bus::new(), Arc::new(WallClock))
    }

    crate::sessions_contract!(empty);
}
