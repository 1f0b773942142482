//! The contract suite of subscriptions: what every store that keeps them must do, as tests that each store runs on itself.
//!
//! A store implements [`Fixture`] for its tests and calls [`subscriptions_contract!`](crate::subscriptions_contract) with a function
//! that makes an empty one. The store holds streams as well, because links begin and end with them. Stores that hold tables in
//! memory may use [`StreamsAndSubscriptions`] as their catalog. Each promise writes, has the store opened again if it can be, and asks.

mod catalog;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join;
use tidings_engine::log::fixture::Fixture;
use tidings_engine::log::{Append, Commit, CommitError, Commits, Logs, Operation};
use tidings_model::{LogId, Position, ProjectId, StreamId, Timestamp, limits};
use tidings_streams::table::Cause;
use tidings_streams::{Change as StreamChange, ContentType, Expiry, Owner, Stream, StreamKey, StreamState};

pub use catalog::StreamsAndSubscriptions;

use crate::keys::Seed;
use crate::subscription::{Config, Delivery, Phase, State, Subscription, SubscriptionId};
use crate::table::{Change, Declined, Link, LinkKind, NewLink};
use crate::{Glob, Store};

/// Makes a `#[tokio::test]` of each promise, on an empty store from `$make`.
#[macro_export]
macro_rules! subscriptions_contract {
    ($make:expr) => {
        $crate::subscriptions_contract!(@each $make;
            a_subscription_is_found_by_its_id_and_by_its_number
            of_two_subscriptions_of_one_id_one_wins
            a_project_has_so_many_subscriptions
            subscriptions_are_paged_in_the_order_of_their_ids
            the_state_of_a_wake_is_kept
            of_two_changes_of_a_state_one_wins
            a_project_has_one_key_for_ever
            a_stream_is_linked_by_its_creation_if_a_pattern_matches
            a_stream_that_ends_is_linked_no_more_unless_its_owner_named_it
            a_stream_that_is_created_again_is_pending_from_its_beginning
            a_link_is_pending_while_its_stream_is_beyond_its_cursor
            a_link_keeps_its_cursor_when_it_is_made_again
            an_explicit_link_leaves_that_of_the_pattern_behind
            links_are_paged_and_counted
            a_link_to_a_stream_that_is_gone_is_refused
            cursors_never_move_backwards
            a_subscription_that_ended_frees_its_id_and_is_cleared_in_steps
            a_refused_change_leaves_no_trace
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

const MOST: usize = 100;

fn shop() -> ProjectId {
    ProjectId::parse("shop").expect("an id")
}

fn id(text: &str) -> SubscriptionId {
    SubscriptionId::parse(text).expect("an id")
}

fn stream_id(text: &str) -> StreamId {
    StreamId::parse(text).expect("an id")
}

fn key(text: &str) -> StreamKey {
    StreamKey { project: shop(), id: stream_id(text) }
}

fn time(second: u64) -> Timestamp {
    Timestamp::from_millis(second * 1000)
}

fn subscription(name: &str, pattern: Option<&str>) -> Subscription {
    let config = Config {
        delivery: Delivery::PullWake { stream: stream_id("wake") },
        pattern: pattern.map(|text| Glob::parse(text).expect("a glob")),
        lease_ms: 1000,
        description: Some("words".into()),
        payload: false,
        max_attempts: 3,
    };
    Subscription {
        project: shop(),
        id: id(name),
        digest: config.digest(&[]),
        config: Arc::new(config),
        root: "http://localhost/v1/shop/stream".into(),
        created_at: time(1),
        phase: Phase::Active,
        state: State::default(),
        unlinked: 0,
    }
}

async fn change(store: &impl Store, change: Change) -> Result<(), Declined> {
    match store.commit(Commit::new().changing(change)).await {
        Ok(_) => Ok(()),
        Err(CommitError::Declined(declined)) => Err(declined),
        Err(error) => panic!("the store refuses: {error}"),
    }
}

async fn make(store: &impl Store, one: Change) {
    change(store, one).await.expect("the change is good");
}

async fn create(store: &impl Store, name: &str, pattern: Option<&str>) -> LogId {
    let number = store.reserve().await.expect("a number");
    let subscription = Arc::new(subscription(name, pattern));
    make(store, Change::Create { number, subscription, most: MOST }).await;
    number
}

/// Creates a stream with so many messages.
async fn stream(store: &impl Store, name: &str, messages: usize) -> LogId {
    let log = store.reserve().await.expect("a number");
    let stream = Stream {
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
    };
    let create = Change::Streams(StreamChange::Create { key: key(name), stream });
    let mut commit = Commit::new().with(Operation::create(log)).changing(create);
    if messages > 0 {
        commit = commit.with(Append::new(log, vec![Bytes::from_static(b"m"); messages]));
    }
    store.commit(commit).await.expect("the name is free");
    log
}

async fn append(store: &impl Store, log: LogId) -> Position {
    let append = Append::new(log, vec![Bytes::from_static(b"m")]);
    store.commit(Commit::new().with(append)).await.expect("the log is open").appended().last
}

async fn end_stream(store: &impl Store, name: &str, log: LogId) {
    let remove = StreamChange::Remove { key: key(name), log, cause: Cause::Deleted };
    let commit = Commit::new().with(Operation::Delete(log)).changing(Change::Streams(remove));
    store.commit(commit).await.expect("it is there");
}

fn explicit(name: &str, log: Option<LogId>, acked: Position) -> NewLink {
    NewLink { stream: stream_id(name), log, acked, kind: LinkKind::Explicit }
}

fn links(number: LogId, links: Vec<NewLink>) -> Change {
    Change::Link { number, links, phase: None }
}

async fn link(store: &impl Store, number: LogId, name: &str) -> Option<Link> {
    store.link(number, &stream_id(name)).await.expect("it answers").map(|linked| linked.link)
}

async fn is_pending(store: &impl Store, number: LogId, name: &str) -> bool {
    store.link(number, &stream_id(name)).await.expect("it answers").expect("it is linked").is_pending()
}

async fn linked_names(store: &impl Store, number: LogId) -> Vec<String> {
    let links = store.links(number, None, MOST).await.expect("it answers");
    links.into_iter().map(|linked| linked.stream.to_string()).collect()
}

async fn numbers_of(store: &impl Store, name: &str) -> Vec<LogId> {
    let links = store.of_stream(&key(name)).await.expect("it answers");
    links.into_iter().map(|(number, _)| number).collect()
}

// The promises.

/// A subscription is found by its id in its project, and by its number.
pub async fn a_subscription_is_found_by_its_id_and_by_its_number(mut store: impl Fixture<Store: Store>) {
    let number = create(store.store(), "s", Some("a/*")).await;
    store.reopen().await;
    let expected = Arc::new(subscription("s", Some("a/*")));
    let found = store.store().find(&shop(), &id("s")).await.expect("it answers");
    assert_eq!(found, Some((number, expected.clone())));
    assert_eq!(store.store().subscription(number).await, Ok(Some(expected)));
    assert_eq!(store.store().find(&shop(), &id("t")).await, Ok(None));
    assert_eq!(store.store().find(&ProjectId::default_project(), &id("s")).await, Ok(None));
}

/// Of two subscriptions of one id that are created at the same time, one is refused.
pub async fn of_two_subscriptions_of_one_id_one_wins(store: impl Fixture<Store: Store>) {
    let numbers = [(); 2].map(|()| store.store().reserve());
    let [first, second] = numbers;
    let (first, second) = (first.await.expect("a number"), second.await.expect("a number"));
    let create =
        |number| Change::Create { number, subscription: Arc::new(subscription("s", None)), most: MOST };
    let both = join(change(store.store(), create(first)), change(store.store(), create(second))).await;
    assert!(matches!(both, (Ok(()), Err(Declined::Exists)) | (Err(Declined::Exists), Ok(()))), "{both:?}");
    assert_eq!(store.store().numbers(None, MOST).await.map(|numbers| numbers.len()), Ok(1));
}

/// A subscription beyond the project's most is refused.
pub async fn a_project_has_so_many_subscriptions(mut store: impl Fixture<Store: Store>) {
    create(store.store(), "a", None).await;
    create(store.store(), "b", None).await;
    store.reopen().await;
    let number = store.store().reserve().await.expect("a number");
    let third = |most| Change::Create { number, subscription: Arc::new(subscription("c", None)), most };
    assert_eq!(change(store.store(), third(2)).await, Err(Declined::TooMany));
    assert_eq!(change(store.store(), third(3)).await, Ok(()));
}

/// Subscriptions are listed in the order of their ids, page by page, each project by itself.
pub async fn subscriptions_are_paged_in_the_order_of_their_ids(mut store: impl Fixture<Store: Store>) {
    for name in ["c", "a", "b"] {
        create(store.store(), name, None).await;
    }
    store.reopen().await;
    let ids = async |after: Option<&str>, most| {
        let after = after.map(id);
        let listed = store.store().list(&shop(), after.as_ref(), most).await.expect("it answers");
        listed.into_iter().map(|(_, one)| one.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ids(None, 2).await, ["a", "b"]);
    assert_eq!(ids(Some("b"), 2).await, ["c"]);
    assert_eq!(ids(Some("c"), 2).await, [] as [&str; 0]);
    let other = store.store().list(&ProjectId::default_project(), None, MOST).await;
    assert_eq!(other.map(|listed| listed.len()), Ok(0));
}

/// The state of a wake is as it was set, with all its parts.
pub async fn the_state_of_a_wake_is_kept(mut store: impl Fixture<Store: Store>) {
    let number = create(store.store(), "s", None).await;
    let claimed = State::default().begun("w_1".into(), None).claimed("worker", time(9));
    let failed = crate::subscription::Failed { delay: std::time::Duration::from_secs(2), max_attempts: 1 };
    let state = claimed.failed(time(3), "500", failed);
    make(store.store(), Change::Update { number, was: 0, state: state.clone(), acks: Vec::new() }).await;
    store.reopen().await;
    let found = store.store().subscription(number).await.expect("it answers").expect("it is there");
    assert_eq!(found.state, state);
}

/// Of two changes that rest on the same version of a state, one is refused.
pub async fn of_two_changes_of_a_state_one_wins(store: impl Fixture<Store: Store>) {
    let number = create(store.store(), "s", None).await;
    let update = |wake: &str| {
        let state = State::default().begun(wake.into(), None);
        change(store.store(), Change::Update { number, was: 0, state, acks: Vec::new() })
    };
    let both = join(update("w_1"), update("w_2")).await;
    assert!(matches!(both, (Ok(()), Err(Declined::Moved)) | (Err(Declined::Moved), Ok(()))), "{both:?}");
}

/// A project has the key that it was given first, until it is forgotten.
pub async fn a_project_has_one_key_for_ever(mut store: impl Fixture<Store: Store>) {
    let give = |byte| Change::Key { project: shop(), seed: Seed::from_bytes([byte; 32]) };
    make(store.store(), give(1)).await;
    store.reopen().await;
    assert_eq!(change(store.store(), give(2)).await, Err(Declined::Moved));
    assert_eq!(store.store().key(&shop()).await, Ok(Some(Seed::from_bytes([1; 32]))));
    make(store.store(), Change::Forget { project: shop() }).await;
    store.reopen().await;
    assert_eq!(store.store().key(&shop()).await, Ok(None));
}

/// A stream is linked by the commit that creates it, to every subscription whose pattern matches.
pub async fn a_stream_is_linked_by_its_creation_if_a_pattern_matches(mut store: impl Fixture<Store: Store>) {
    let one = create(store.store(), "one", Some("a/*")).await;
    let all = create(store.store(), "all", Some("**")).await;
    let other = create(store.store(), "other", Some("b/*")).await;
    let log = stream(store.store(), "a/x.y", 1).await;
    stream(store.store(), "wake", 0).await;
    store.reopen().await;
    let expected = Link { log: Some(log), acked: Position::ZERO, glob: true, explicit: false };
    assert_eq!(link(store.store(), one, "a/x.y").await, Some(expected));
    assert_eq!(linked_names(store.store(), all).await, ["a/x.y"], "not its own stream of wakes");
    assert_eq!(linked_names(store.store(), other).await, [] as [&str; 0]);
    assert_eq!(numbers_of(store.store(), "a/x.y").await, [one, all]);
    assert_eq!(store.store().linked_to(&key("a/x.y")).await, Ok(2));
    assert_eq!(store.store().linked_to(&key("wake")).await, Ok(0));
}

/// The end of a stream removes what the pattern linked; what the owner named stays and waits.
pub async fn a_stream_that_ends_is_linked_no_more_unless_its_owner_named_it(
    mut store: impl Fixture<Store: Store>,
) {
    let (glob, named) =
        (create(store.store(), "glob", Some("a")).await, create(store.store(), "named", None).await);
    let log = stream(store.store(), "a", 1).await;
    let tail = append(store.store(), log).await;
    make(store.store(), links(named, vec![explicit("a", Some(log), tail)])).await;
    end_stream(store.store(), "a", log).await;
    store.reopen().await;
    assert_eq!(link(store.store(), glob, "a").await, None);
    let expected = Link { log: None, acked: Position::ZERO, glob: false, explicit: true };
    assert_eq!(link(store.store(), named, "a").await, Some(expected));
    assert!(!is_pending(store.store(), named, "a").await);
}

/// A stream that is created again has nothing to do with the one before: everything in it is pending.
pub async fn a_stream_that_is_created_again_is_pending_from_its_beginning(
    mut store: impl Fixture<Store: Store>,
) {
    let number = create(store.store(), "s", None).await;
    let first = stream(store.store(), "a", 1).await;
    let tail = append(store.store(), first).await;
    make(store.store(), links(number, vec![explicit("a", Some(first), tail)])).await;
    end_stream(store.store(), "a", first).await;
    store.reopen().await;
    let second = stream(store.store(), "a", 1).await;
    assert_eq!(link(store.store(), number, "a").await.and_then(|link| link.log), Some(second));
    assert!(is_pending(store.store(), number, "a").await);
}

/// A link is pending while the tail of its stream, at the same moment, is beyond its cursor.
pub async fn a_link_is_pending_while_its_stream_is_beyond_its_cursor(mut store: impl Fixture<Store: Store>) {
    let number = create(store.store(), "s", Some("a")).await;
    let log = stream(store.store(), "a", 0).await;
    assert!(!is_pending(store.store(), number, "a").await);
    let tail = append(store.store(), log).await;
    store.reopen().await;
    assert!(is_pending(store.store(), number, "a").await);
    let state = State::default().expired();
    make(store.store(), Change::Update { number, was: 0, state, acks: vec![(stream_id("a"), tail)] }).await;
    store.reopen().await;
    assert!(!is_pending(store.store(), number, "a").await);
    append(store.store(), log).await;
    assert!(is_pending(store.store(), number, "a").await);
}

/// A link that is made again keeps its cursor.
pub async fn a_link_keeps_its_cursor_when_it_is_made_again(store: impl Fixture<Store: Store>) {
    let number = create(store.store(), "s", Some("a")).await;
    let log = stream(store.store(), "a", 1).await;
    let tail = append(store.store(), log).await;
    make(store.store(), links(number, vec![explicit("a", Some(log), tail)])).await;
    let expected = Link { log: Some(log), acked: Position::ZERO, glob: true, explicit: true };
    assert_eq!(link(store.store(), number, "a").await, Some(expected));
}

/// Removing an explicit link leaves that of the pattern, and nothing else.
pub async fn an_explicit_link_leaves_that_of_the_pattern_behind(mut store: impl Fixture<Store: Store>) {
    let number = create(store.store(), "s", Some("a")).await;
    let log = stream(store.store(), "a", 0).await;
    let made = vec![
        explicit("a", Some(log), Position::ZERO),
        explicit("b", None, Position::ZERO),
        explicit("c", None, Position::ZERO),
    ];
    make(store.store(), links(number, made)).await;
    for name in ["a", "b", "unknown"] {
        make(store.store(), Change::Unlink { number, stream: stream_id(name) }).await;
    }
    store.reopen().await;
    let expected = Link { log: Some(log), acked: Position::ZERO, glob: true, explicit: false };
    assert_eq!(link(store.store(), number, "a").await, Some(expected));
    assert_eq!(linked_names(store.store(), number).await, ["a", "c"]);
}

/// Links are listed in the order of the streams' ids, page by page, and counted.
pub async fn links_are_paged_and_counted(mut store: impl Fixture<Store: Store>) {
    let (number, other) =
        (create(store.store(), "s", None).await, create(store.store(), "other", None).await);
    let named = ["d", "a", "c", "b"].map(|name| explicit(name, None, Position::ZERO));
    make(store.store(), links(number, named.to_vec())).await;
    make(store.store(), links(other, vec![explicit("x", None, Position::ZERO)])).await;
    store.reopen().await;
    let page = async |after: Option<&str>| {
        let after = after.map(stream_id);
        let links = store.store().links(number, after.as_ref(), 3).await.expect("it answers");
        links.into_iter().map(|linked| linked.stream.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(page(None).await, ["a", "b", "c"]);
    assert_eq!(page(Some("c")).await, ["d"]);
    assert_eq!(page(Some("d")).await, [] as [&str; 0]);
    assert_eq!(store.store().link_count(number).await, Ok(4));
    assert_eq!(store.store().link_count(other).await, Ok(1));
}

/// A commit that links a stream on the condition that it exists is refused if it is gone.
pub async fn a_link_to_a_stream_that_is_gone_is_refused(store: impl Fixture<Store: Store>) {
    let number = create(store.store(), "s", None).await;
    let log = stream(store.store(), "a", 0).await;
    end_stream(store.store(), "a", log).await;
    let expect = Change::Streams(StreamChange::Expect { key: key("a"), log });
    let commit = Commit::new()
        .changing(expect)
        .changing(links(number, vec![explicit("a", Some(log), Position::ZERO)]));
    let refused = store.store().commit(commit).await;
    assert!(matches!(refused, Err(CommitError::Declined(Declined::Streams(_)))), "{refused:?}");
    assert_eq!(store.store().link_count(number).await, Ok(0));
}

/// A cursor is never set to a position before its own, and one that has no link is left out.
pub async fn cursors_never_move_backwards(mut store: impl Fixture<Store: Store>) {
    let number = create(store.store(), "s", Some("a")).await;
    let log = stream(store.store(), "a", 1).await;
    let (first, second) = (append(store.store(), log).await, append(store.store(), log).await);
    for (was, acked) in [(0, second), (1, first)] {
        let state = State { version: was + 1, ..State::default() };
        let acks = vec![(stream_id("a"), acked), (stream_id("b"), acked)];
        make(store.store(), Change::Update { number, was, state, acks }).await;
    }
    store.reopen().await;
    assert_eq!(link(store.store(), number, "a").await.map(|link| link.acked), Some(second));
    assert_eq!(linked_names(store.store(), number).await, ["a"]);
}

/// A subscription that has ended is not found by its id and hears no new streams; its links go in steps, and it with the last.
pub async fn a_subscription_that_ended_frees_its_id_and_is_cleared_in_steps(
    mut store: impl Fixture<Store: Store>,
) {
    let number = create(store.store(), "s", Some("**")).await;
    stream(store.store(), "a", 0).await;
    stream(store.store(), "b", 0).await;
    make(store.store(), Change::End { number }).await;
    store.reopen().await;
    assert_eq!(store.store().find(&shop(), &id("s")).await, Ok(None));
    let again = create(store.store(), "s", None).await;
    stream(store.store(), "c", 0).await;
    assert_eq!(linked_names(store.store(), number).await, ["a", "b"]);
    let update = Change::Update { number, was: 0, state: State::default(), acks: Vec::new() };
    assert_eq!(change(store.store(), update).await, Err(Declined::Moved));
    let clear = |name| Change::Clear { number, streams: vec![stream_id(name)] };
    assert_eq!(
        change(store.store(), Change::Clear { number: again, streams: Vec::new() }).await,
        Err(Declined::Moved)
    );
    make(store.store(), clear("a")).await;
    store.reopen().await;
    assert_eq!(store.store().numbers(None, MOST).await, Ok(vec![number, again]));
    make(store.store(), clear("b")).await;
    store.reopen().await;
    assert_eq!(store.store().numbers(None, MOST).await, Ok(vec![again]));
    assert_eq!(store.store().linked_to(&key("a")).await, Ok(0));
}

/// A commit that is refused changes nothing, also not in its other parts.
pub async fn a_refused_change_leaves_no_trace(mut store: impl Fixture<Store: Store>) {
    let number = create(store.store(), "s", None).await;
    let refused = store
        .store()
        .commit(
            Commit::new()
                .changing(Change::Key { project: shop(), seed: Seed::from_bytes([1; 32]) })
                .changing(links(number, vec![explicit("a", None, Position::ZERO)]))
                .changing(Change::Update { number, was: 7, state: State::default(), acks: Vec::new() }),
        )
        .await;
    assert!(matches!(refused, Err(CommitError::Declined(Declined::Moved))), "{refused:?}");
    let phase = Some((Phase::Linking { after: None }, Phase::Active));
    let unphased = change(store.store(), Change::Link { number, links: Vec::new(), phase }).await;
    assert_eq!(unphased, Err(Declined::Moved));
    let many = (0..=limits::LINKS_PER_COMMIT).map(|n| explicit(&format!("s{n}"), None, Position::ZERO));
    make(store.store(), links(number, many.collect())).await;
    store.reopen().await;
    assert_eq!(store.store().key(&shop()).await, Ok(None));
    assert_eq!(link(store.store(), number, "a").await, None);
    assert_eq!(store.store().link_count(number).await, Ok(limits::LINKS_PER_COMMIT + 1));
}

#[cfg(test)]
mod tests {
    use tidings_engine::log::Memory;
    use tidings_engine::{Bus, WallClock};

    use super::*;

    async fn store() -> Memory<StreamsAndSubscriptions> {
        Memory::new(Bus::new(), Arc::new(WallClock))
    }

    crate::subscriptions_contract!(store);
}
