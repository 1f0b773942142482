//! The contract suite of hooks: what every store that keeps them must do, as tests that each store runs on itself.
//!
//! A store implements [`Fixture`] for its tests and calls [`hooks_contract!`](crate::hooks_contract) with a function
//! that makes an empty one. Each promise writes, has the store opened again if it can be, and asks.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join;
use tidings_engine::log::fixture::Fixture;
use tidings_engine::log::{Append, Commit, CommitError, Commits, Logs, Of, Operation, Refer, Rows};
use tidings_model::{LogId, Position, ProjectId, Timestamp, Ulid};

use crate::Store;
use crate::delivery::{Attempt, AttemptOutcome, DeadLetter, DeathReason, DeliveryId, IdMask};
use crate::hook::{Hook, HookId, HookState, Settings};
use crate::rows::{Matched, Remembered, RememberedIds, attempts, dead_letters};
use crate::signature::{Secret, Secrets};
use crate::table::{Change, Cursor, Declined, Feed, Parked, Partly, Replay, Settled};

/// Makes a `#[tokio::test]` of each promise, on an empty store from `$make`.
#[macro_export]
macro_rules! hooks_contract {
    ($make:expr) => {
        $crate::hooks_contract!(@each $make;
            a_feed_is_found_by_its_project_and_by_its_journal
            a_journal_is_unmatched_while_it_has_entries_after_its_cursor
            a_cursor_moves_only_from_where_it_is
            a_hook_is_found_by_its_id_and_by_its_queue
            of_two_equal_hooks_one_wins
            all_hooks_of_a_store_have_one_mask
            of_two_changes_of_a_hook_one_wins
            a_commit_that_rests_on_other_hooks_is_refused
            hooks_are_paged_newest_first
            hooks_with_work_are_told_from_those_without
            what_attempts_came_to_is_kept
            replays_go_on_where_they_were
            attempts_and_dead_letters_of_a_queue_are_read_in_their_order
            an_id_is_remembered
            a_removed_hook_is_in_no_index
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

fn shop() -> ProjectId {
    ProjectId::parse("shop").expect("an id")
}

fn time(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn hook(number: u128, project: &ProjectId) -> Arc<Hook> {
    Arc::new(Hook {
        id: HookId(Ulid::new(number)),
        project: project.clone(),
        settings: Settings { url: Some(format!("https://example.com/{number}")), ..Settings::new("a.*") },
        secrets: Secrets { current: Secret::from_bytes(b"secret"), previous: None },
        state: HookState::Active,
        id_mask: IdMask::default(),
        created_at: time(1),
        updated_at: time(1),
    })
}

/// Opens the feed of a project.
async fn open(store: &impl Store, project: &ProjectId) -> Feed {
    let (events, journal) =
        (store.reserve().await.expect("a number"), store.reserve().await.expect("a number"));
    let feed = Feed { events, journal, cursor: Cursor::default(), version: 0 };
    let open = Change::Open { project: project.clone(), feed: feed.clone() };
    let commit =
        Commit::new().with(Operation::create(events)).with(Operation::create(journal)).changing(open);
    store.commit(commit).await.expect("the commit is good");
    feed
}

/// Creates a hook and its queue.
async fn create(store: &impl Store, hook: Arc<Hook>) -> LogId {
    let queue = store.reserve().await.expect("a number");
    let create = Change::Create { queue, hook, most: 100 };
    store
        .commit(Commit::new().with(Operation::create(queue)).changing(create))
        .await
        .expect("the commit is good");
    queue
}

/// Appends an event and queues it. Returns its position in the queue.
async fn queue_event(store: &impl Store, feed: &Feed, queue: LogId) -> Position {
    let append = Append::new(feed.events, vec![Bytes::from_static(b"event")]);
    let refer = Refer { of: Of::Append(0), into: Arc::new([queue]) };
    store.commit(Commit::new().with(append).with(refer)).await.expect("the commit is good");
    store.status(queue).await.expect("a queue").tail
}

async fn change(store: &impl Store, change: Change) -> Result<(), Declined> {
    match store.commit(Commit::new().changing(change)).await {
        Ok(_) => Ok(()),
        Err(CommitError::Declined(declined)) => Err(declined),
        Err(error) => panic!("the store refuses: {error}"),
    }
}

// The promises.

/// The feed of a project is found by the project and by its journal, with the status of its logs.
pub async fn a_feed_is_found_by_its_project_and_by_its_journal(mut store: impl Fixture<Store: Store>) {
    let feed = open(store.store(), &shop()).await;
    store.reopen().await;
    let found = store.store().feed(&shop()).await.expect("a store").expect("open");
    assert_eq!((*found.feed).clone(), feed);
    let (project, by_journal) = store.store().feed_of(feed.journal).await.expect("a store").expect("open");
    assert_eq!((project, by_journal.feed), (shop(), found.feed));
    assert_eq!(store.store().projects().await.expect("a store"), [shop()]);
    assert!(store.store().feed(&ProjectId::default_project()).await.expect("a store").is_none());
    assert!(store.store().feed_of(feed.events).await.expect("a store").is_none(), "not a journal");
    let again = Change::Open { project: shop(), feed };
    assert_eq!(change(store.store(), again).await, Err(Declined::Moved));
}

/// Journals with entries after their cursor are listed.
pub async fn a_journal_is_unmatched_while_it_has_entries_after_its_cursor(
    mut store: impl Fixture<Store: Store>,
) {
    let feed = open(store.store(), &shop()).await;
    assert!(store.store().unmatched().await.expect("a store").is_empty());
    let append = Append::new(feed.journal, vec![Bytes::from_static(b"entry")]);
    store.store().commit(Commit::new().with(append)).await.expect("the commit is good");
    store.reopen().await;
    assert_eq!(store.store().unmatched().await.expect("a store"), [feed.journal]);
    let done = store.store().status(feed.journal).await.expect("a log").tail;
    let now = Cursor { done, partly: None };
    let advance = Change::Advance { project: shop(), was: feed.cursor, now };
    change(store.store(), advance).await.expect("the change is good");
    store.reopen().await;
    assert!(store.store().unmatched().await.expect("a store").is_empty());
}

/// The cursor of a journal moves as a compare-and-set.
pub async fn a_cursor_moves_only_from_where_it_is(mut store: impl Fixture<Store: Store>) {
    open(store.store(), &shop()).await;
    let cursor = |done: u128, partly| Cursor { done: Position::new(done), partly };
    let partly =
        Some(Partly { after: Position::new(4), through: Position::new(9), reached: Some(LogId::new(77)) });
    let advance = |was, now| Change::Advance { project: shop(), was, now };
    let to = cursor(5, partly);
    let (one, other) = join(
        change(store.store(), advance(Cursor::default(), to)),
        change(store.store(), advance(Cursor::default(), to)),
    )
    .await;
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    store.reopen().await;
    let found = store.store().feed(&shop()).await.expect("a store").expect("open");
    assert_eq!(found.feed.cursor, to);
    assert_eq!(change(store.store(), advance(cursor(5, None), cursor(6, None))).await, Err(Declined::Moved));
    assert_eq!(change(store.store(), advance(to, cursor(9, None))).await, Ok(()));
}

/// A hook is found by its id and by its queue, with everything its owner chose.
pub async fn a_hook_is_found_by_its_id_and_by_its_queue(mut store: impl Fixture<Store: Store>) {
    open(store.store(), &shop()).await;
    let mut hook = Hook::clone(&hook(5, &shop()));
    hook.settings.headers = vec![("x-key".into(), "value".into())];
    hook.settings.retry_schedule = vec![1, 20, 300];
    hook.secrets.previous = Some((Secret::from_bytes(b"older"), time(99)));
    let queue = create(store.store(), Arc::new(hook.clone())).await;
    store.reopen().await;
    let found = store.store().hook(hook.id).await.expect("a store").expect("a hook");
    assert_eq!((found.queue, &*found.hook, found.pending(), found.has_work()), (queue, &hook, 0, false));
    let by_queue = store.store().found(queue).await.expect("a store").expect("a hook");
    assert_eq!(by_queue.hook, found.hook);
    assert!(store.store().hook(HookId(Ulid::new(6))).await.expect("a store").is_none());
}

/// Two hooks with the same target, pattern and method cannot be created, not even at the same moment.
pub async fn of_two_equal_hooks_one_wins(mut store: impl Fixture<Store: Store>) {
    open(store.store(), &shop()).await;
    let like = |id: u128| Arc::new(Hook { id: HookId(Ulid::new(id)), ..Hook::clone(&hook(1, &shop())) });
    let make = async |id| {
        let queue = store.store().reserve().await.expect("a number");
        let create = Change::Create { queue, hook: like(id), most: 100 };
        store.store().commit(Commit::new().with(Operation::create(queue)).changing(create)).await
    };
    let (one, other) = join(make(1), make(2)).await;
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    store.reopen().await;
    assert_eq!(store.store().hooks_of(&shop()).await.expect("a store"), 1);
}

/// Of two hooks with different masks that would be the first ones, one is refused; while there is one, others too.
pub async fn all_hooks_of_a_store_have_one_mask(mut store: impl Fixture<Store: Store>) {
    let other = ProjectId::default_project();
    for project in [&shop(), &other] {
        open(store.store(), project).await;
    }
    let make = async |id, project: &ProjectId, mask| {
        let hook = Arc::new(Hook { id_mask: IdMask(mask), ..Hook::clone(&hook(id, project)) });
        let queue = store.store().reserve().await.expect("a number");
        let create = Change::Create { queue, hook, most: 100 };
        store.store().commit(Commit::new().with(Operation::create(queue)).changing(create)).await
    };
    let (one, two) = join(make(1, &shop(), 5), make(2, &other, 6)).await;
    assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
    let (mask, wrong) = if one.is_ok() { (5, 6) } else { (6, 5) };
    assert!(matches!(make(3, &shop(), wrong).await, Err(CommitError::Declined(Declined::Moved))));
    assert!(make(4, &shop(), mask).await.is_ok());
    store.reopen().await;
    let found = store.store().newest(None, None, 9).await.expect("a store");
    assert!(found.iter().all(|found| found.hook.id_mask == IdMask(mask)) && found.len() == 2);
}

/// A hook is replaced as a compare-and-set on the time of its last change.
pub async fn of_two_changes_of_a_hook_one_wins(mut store: impl Fixture<Store: Store>) {
    open(store.store(), &shop()).await;
    let queue = create(store.store(), hook(1, &shop())).await;
    let set = |retries| {
        let mut hook = Hook::clone(&hook(1, &shop()));
        hook.settings.max_retries = retries;
        hook.updated_at = time(2);
        Change::Set { queue, was: time(1), hook: Arc::new(hook) }
    };
    let (one, other) = join(change(store.store(), set(7)), change(store.store(), set(8))).await;
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    store.reopen().await;
    let found = store.store().found(queue).await.expect("a store").expect("a hook");
    assert_eq!(found.hook.settings.max_retries, if one.is_ok() { 7 } else { 8 });
}

/// A commit states the hooks that it rests on, and is refused if they changed, in whatever order the two were made.
pub async fn a_commit_that_rests_on_other_hooks_is_refused(mut store: impl Fixture<Store: Store>) {
    let feed = open(store.store(), &shop()).await;
    let queue = create(store.store(), hook(1, &shop())).await;
    let version = store.store().feed(&shop()).await.expect("a store").expect("open").feed.version;
    store.reopen().await;
    let expect = |version| Change::Expect { project: shop(), version };
    let append = || Append::new(feed.events, vec![Bytes::from_static(b"event")]);
    let resting = |version| Commit::new().with(append()).changing(expect(version));
    store.store().commit(resting(version)).await.expect("they are the same");
    let deactivate = Change::Deactivate { queue, since: Position::new(1), at: time(5) };
    let (changed, _) = join(
        store.store().commit(Commit::new().changing(deactivate)),
        store.store().commit(resting(version)),
    )
    .await;
    changed.expect("the commit is good");
    let refused = store.store().commit(resting(version)).await;
    assert!(matches!(refused, Err(CommitError::Declined(Declined::Moved))), "{refused:?}");
    let now = store.store().feed(&shop()).await.expect("a store").expect("open").feed.version;
    store.reopen().await;
    store.store().commit(resting(now)).await.expect("matched again");
}

/// Hooks of a project, or of all, are listed newest first.
pub async fn hooks_are_paged_newest_first(mut store: impl Fixture<Store: Store>) {
    let other = ProjectId::default_project();
    for project in [&shop(), &other] {
        open(store.store(), project).await;
    }
    for number in 1..=4 {
        let project = if number == 3 { other.clone() } else { shop() };
        create(store.store(), hook(number, &project)).await;
    }
    store.reopen().await;
    let page = async |project: Option<&ProjectId>, before: Option<u128>, most| -> Vec<u128> {
        let before = before.map(|number| HookId(Ulid::new(number)));
        let found = store.store().newest(project, before, most).await.expect("a store");
        found.iter().map(|found| found.hook.id.0.get()).collect()
    };
    assert_eq!(page(None, None, 9).await, [4, 3, 2, 1]);
    assert_eq!(page(Some(&shop()), None, 2).await, [4, 2]);
    assert_eq!(page(Some(&shop()), Some(2), 2).await, [1]);
    assert_eq!(page(Some(&other), None, 9).await, [3]);
}

/// Hooks with deliveries that are pending or wait are told from those without, in pages.
pub async fn hooks_with_work_are_told_from_those_without(mut store: impl Fixture<Store: Store>) {
    let feed = open(store.store(), &shop()).await;
    let mut queues = Vec::new();
    for number in 1..=3 {
        queues.push(create(store.store(), hook(number, &shop())).await);
    }
    let position = queue_event(store.store(), &feed, queues[1]).await;
    store.reopen().await;
    let first = store.store().examine(None, 2).await.expect("a store");
    assert_eq!(
        (&*first.queues, &*first.with_work, first.last),
        (&queues[..2], &queues[1..2], Some(queues[1]))
    );
    let rest = store.store().examine(first.last, 2).await.expect("a store");
    assert_eq!((&*rest.queues, rest.with_work.len(), rest.last), (&queues[2..], 0, None));
    let settled = Settled { done: position, delivered: 1, attempts: 1, ..Settled::default() };
    change(store.store(), Change::Settle { queue: queues[1], settled }).await.expect("the change is good");
    store.reopen().await;
    assert!(store.store().examine(None, 9).await.expect("a store").with_work.is_empty());
}

/// Progress is kept: what is done, what is above, what waits, and the counts.
pub async fn what_attempts_came_to_is_kept(mut store: impl Fixture<Store: Store>) {
    let feed = open(store.store(), &shop()).await;
    let queue = create(store.store(), hook(1, &shop())).await;
    let mut positions = Vec::new();
    for _ in 0..4 {
        positions.push(queue_event(store.store(), &feed, queue).await);
    }
    let parked = Parked { attempts: 3, due: time(90), delay_ms: 4000 };
    let settled = Settled {
        done: positions[0],
        above: vec![positions[1], positions[3]],
        parked: vec![(positions[1], parked)],
        delivered: 1,
        dead: 1,
        attempts: 5,
        ..Settled::default()
    };
    change(store.store(), Change::Settle { queue, settled }).await.expect("the change is good");
    store.reopen().await;
    let found = store.store().found(queue).await.expect("a store").expect("a hook");
    assert_eq!(found.progress.parked, [(positions[1], parked)].into());
    let settled: Vec<_> = positions.iter().map(|position| found.progress.is_settled(*position)).collect();
    assert_eq!(settled, [true, true, false, true]);
    assert_eq!((found.pending(), found.progress.dead_letters, found.progress.attempts), (1, 1, 5));
    let unparked = Settled { unparked: vec![positions[1]], delivered: 1, attempts: 1, ..Settled::default() };
    change(store.store(), Change::Settle { queue, settled: unparked }).await.expect("the change is good");
    let forget = Change::Forget { queue, dead_letters: 1, deliveries: 2, attempts: 3 };
    change(store.store(), forget).await.expect("the change is good");
    store.reopen().await;
    let progress = store.store().found(queue).await.expect("a store").expect("a hook").progress;
    assert!(progress.parked.is_empty());
    assert_eq!((progress.delivered, progress.dead, progress.dead_letters), (2, 1, 0));
    assert_eq!((progress.forgotten_deliveries, progress.forgotten_attempts), (2, 3));
}

/// Replays have cursors of their own, which move as a compare-and-set.
pub async fn replays_go_on_where_they_were(mut store: impl Fixture<Store: Store>) {
    open(store.store(), &shop()).await;
    let queue = create(store.store(), hook(1, &shop())).await;
    let replay = |cursor| Replay { cursor: Position::new(cursor), through: Position::new(9) };
    for cursor in [1, 2] {
        let begin = Change::BeginReplay { queue, replay: replay(cursor), most: 2 };
        change(store.store(), begin).await.expect("the change is good");
    }
    let more = Change::BeginReplay { queue, replay: replay(3), most: 2 };
    assert_eq!(change(store.store(), more).await, Err(Declined::TooManyReplays { most: 2 }));
    store.reopen().await;
    assert_eq!(
        store.store().replays().await.expect("a store"),
        [((queue, 0), replay(1)), ((queue, 1), replay(2))]
    );
    let advance = |was, now| {
        let (was, now) = (Position::new(was), Position::new(now));
        Change::AdvanceReplay { replay: (queue, 0), was, now }
    };
    assert_eq!(change(store.store(), advance(2, 9)).await, Err(Declined::Moved));
    assert_eq!(change(store.store(), advance(1, 4)).await, Ok(()));
    store.reopen().await;
    assert_eq!(store.store().replay((queue, 0)).await.expect("a store"), Some(replay(4)));
    assert_eq!(change(store.store(), advance(4, 9)).await, Ok(()));
    store.reopen().await;
    assert_eq!(store.store().replay((queue, 0)).await.expect("a store"), None);
}

/// Attempts are read in the order of positions and numbers, dead letters newest first, and both go with their queue.
pub async fn attempts_and_dead_letters_of_a_queue_are_read_in_their_order(
    mut store: impl Fixture<Store: Store>,
) {
    let (queue, other) = (LogId::new(1_000_001), LogId::new(1_000_002));
    let position = |number: u128| Position::new(number);
    let attempt = |number| {
        let outcome = AttemptOutcome::Failed(format!("attempt {number}"));
        Attempt { number, at: time(7), duration_ms: 12, outcome }
    };
    let letter = |id| DeadLetter {
        id: Ulid::new(id),
        position: position(id),
        reason: DeathReason::Expired,
        last_error: String::new(),
        at: time(8),
    };
    let mut commit: Commit<Change> = Commit::new();
    for of in [queue, other] {
        for (at, number) in [(5, 2), (5, 1), (6, 1), (4, 1)] {
            let id = DeliveryId { queue: of, position: position(at), mask: IdMask::default() };
            commit.rows.push(attempts::put(id, &attempt(number)));
        }
        commit.rows.extend([1, 3, 2].map(|id| dead_letters::put(of, &letter(id))));
    }
    store.store().commit(commit).await.expect("the commit is good");
    store.reopen().await;
    let read = async |store: &dyn Store| -> Vec<(u128, u32)> {
        let span = attempts::between(queue, position(5), position(6), 10);
        let rows = store.rows(attempts::TABLE, span).await.expect("a store");
        let read = rows.iter().map(|row| attempts::read(row).expect("an attempt"));
        read.map(|(position, attempt)| (position.get(), attempt.number)).collect()
    };
    let letters = async |store: &dyn Store, of| -> Vec<u128> {
        let rows = store.rows(dead_letters::TABLE, dead_letters::older(of, None, 10)).await.expect("a store");
        rows.iter().map(|row| dead_letters::read(row).expect("a letter").id.get()).collect()
    };
    assert_eq!(read(store.store()).await, [(5, 1), (5, 2), (6, 1)]);
    assert_eq!(letters(store.store(), queue).await, [3, 2, 1]);
    let mut commit: Commit<Change> = Commit::new();
    commit.rows = vec![
        attempts::remove_through(queue, position(5)),
        dead_letters::delete(queue, Ulid::new(2)),
        dead_letters::remove_all(other),
    ];
    store.store().commit(commit).await.expect("the commit is good");
    store.reopen().await;
    assert_eq!(read(store.store()).await, [(6, 1)]);
    assert_eq!(letters(store.store(), queue).await, [3, 1]);
    assert!(letters(store.store(), other).await.is_empty());
}

/// Ids are remembered with what they matched, and forgotten by period and by project.
pub async fn an_id_is_remembered(mut store: impl Fixture<Store: Store>) {
    let ids = RememberedIds::of_events(std::time::Duration::from_secs(40));
    let (events, now) = (LogId::new(1_000_001), time(1_000_000));
    let remembered = Remembered { at: now, matched: Matched::These([LogId::new(4), LogId::new(9)].into()) };
    let commit: Commit<Change> = Commit::new().with_row(ids.put(events, "evt", &remembered));
    store.store().commit(commit).await.expect("the commit is good");
    store.reopen().await;
    let known = async |store: &dyn Store, now| {
        for key in ids.keys(events, "evt", now) {
            if let Some(value) = store.row(ids.table(), &key).await.expect("a store") {
                return ids.read(&value, now);
            }
        }
        None
    };
    assert_eq!(known(store.store(), now).await, Some(remembered));
    let later = now + std::time::Duration::from_secs(60);
    let commit: Commit<Change> = Commit::new().with_row(ids.forget_old(events, later));
    store.store().commit(commit).await.expect("the commit is good");
    store.reopen().await;
    assert_eq!(known(store.store(), now).await, None);
}

/// Nothing is left of a removed hook, and an equal one can be created.
pub async fn a_removed_hook_is_in_no_index(mut store: impl Fixture<Store: Store>) {
    let feed = open(store.store(), &shop()).await;
    let queue = create(store.store(), hook(1, &shop())).await;
    let position = queue_event(store.store(), &feed, queue).await;
    let replay = Replay { cursor: Position::ZERO, through: position };
    change(store.store(), Change::BeginReplay { queue, replay, most: 2 }).await.expect("the change is good");
    let remove = Commit::new().with(Operation::Delete(queue)).changing(Change::Remove { queue });
    store.store().commit(remove).await.expect("the commit is good");
    store.reopen().await;
    assert!(store.store().hook(HookId(Ulid::new(1))).await.expect("a store").is_none());
    assert!(store.store().found(queue).await.expect("a store").is_none());
    assert!(store.store().newest(None, None, 9).await.expect("a store").is_empty());
    assert!(store.store().examine(None, 9).await.expect("a store").queues.is_empty());
    assert!(store.store().replays().await.expect("a store").is_empty());
    assert_eq!(change(store.store(), Change::Remove { queue }).await, Err(Declined::NoSuchHook));
    let settled = Settled { done: position, delivered: 1, ..Settled::default() };
    change(store.store(), Change::Settle { queue, settled }).await.expect("it changes nothing");
    create(store.store(), hook(1, &shop())).await;
    assert_eq!(store.store().hooks_of(&shop()).await.expect("a store"), 1);
    let close = || Change::Close { project: shop() };
    assert_eq!(change(store.store(), close()).await, Err(Declined::Moved), "it has a hook");
}

/// Nothing of a commit takes effect if one of its changes is refused.
pub async fn a_refused_change_leaves_no_trace(mut store: impl Fixture<Store: Store>) {
    let feed = open(store.store(), &shop()).await;
    let queue = create(store.store(), hook(1, &shop())).await;
    let version = store.store().feed(&shop()).await.expect("a store").expect("open").feed.version;
    let id = DeliveryId { queue, position: Position::new(1), mask: IdMask::default() };
    let outcome = AttemptOutcome::Success(String::new());
    let attempt = Attempt { number: 1, at: time(1), duration_ms: 1, outcome };
    let commit = Commit::new()
        .with(Append::new(feed.events, vec![Bytes::from_static(b"event")]))
        .with_row(attempts::put(id, &attempt))
        .changing(Change::Deactivate { queue, since: Position::ZERO, at: time(9) })
        .changing(Change::Expect { project: shop(), version: version + 1 });
    assert!(matches!(store.store().commit(commit).await, Err(CommitError::Declined(Declined::Moved))));
    store.reopen().await;
    assert!(store.store().status(feed.events).await.expect("a log").tail.is_zero());
    assert!(store.store().found(queue).await.expect("a store").expect("a hook").hook.is_active());
    let span = attempts::between(queue, Position::ZERO, Position::MAX, 9);
    assert!(store.store().rows(attempts::TABLE, span).await.expect("a store").is_empty());
}

#[cfg(test)]
mod tests {
    use tidings_engine::log::Memory;
    use tidings_engine::{Bus, WallClock};

    use crate::Table;

    async fn memory() -> Memory<Table> {
        Memory::new(Bus::new(), std::sync::Arc::new(WallClock))
    }

    hooks_contract!(memory);
}
