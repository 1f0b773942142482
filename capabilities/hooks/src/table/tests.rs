use proptest::prelude::*;
use tidings_model::Ulid;

use super::*;
use crate::hook::{HookState, Settings};
use crate::signature::{Secret, Secrets};

const A: LogId = LogId::new(10);
const B: LogId = LogId::new(11);

fn shop() -> ProjectId {
    ProjectId::parse("shop").expect("an id")
}

fn at(number: u128) -> Position {
    Position::new(number)
}

fn hook(id: u128, url: &str) -> Arc<Hook> {
    Arc::new(Hook {
        id: HookId(Ulid::new(id)),
        project: shop(),
        settings: Settings { url: Some(url.into()), ..Settings::new("a.*") },
        secrets: Secrets { current: Secret::from_bytes(b"x"), previous: None },
        state: HookState::Active,
        id_mask: crate::IdMask::default(),
        created_at: Timestamp::from_millis(1),
        updated_at: Timestamp::from_millis(1),
    })
}

fn create(queue: LogId, hook: Arc<Hook>) -> Change {
    Change::Create { queue, hook, most: 2 }
}

fn open() -> Change {
    let feed = Feed { events: LogId::new(1), journal: LogId::new(2), cursor: Cursor::default(), version: 0 };
    Change::Open { project: shop(), feed }
}

fn make(table: &mut Table, change: Change) -> Result<(), Declined> {
    table.validate(&change)?;
    table.apply(change);
    Ok(())
}

fn with(changes: impl IntoIterator<Item = Change>) -> Table {
    let mut table = Table::default();
    for change in changes {
        make(&mut table, change.clone()).unwrap_or_else(|declined| panic!("{change:?}: {declined}"));
    }
    table
}

#[test]
fn a_hook_is_unique_in_its_project_and_the_number_of_hooks_is_limited() {
    let mut table = with([open(), create(A, hook(1, "https://a/"))]);
    assert_eq!(make(&mut table, create(B, hook(2, "https://a/"))), Err(Declined::Exists));
    assert_eq!(make(&mut table, create(B, hook(2, "https://b/"))), Ok(()));
    assert_eq!(
        make(&mut table, create(LogId::new(12), hook(3, "https://c/"))),
        Err(Declined::TooMany { most: 2 })
    );
    let was = Timestamp::from_millis(1);
    let same = Change::Set { queue: B, was, hook: hook(2, "https://a/") };
    assert_eq!(make(&mut table, same), Err(Declined::Exists));
    assert_eq!(make(&mut table, Change::Remove { queue: A }), Ok(()));
    assert_eq!(make(&mut table, Change::Set { queue: B, was, hook: hook(2, "https://a/") }), Ok(()));
    assert_eq!(table.queue(HookId(Ulid::new(2))), Some(B));
    assert_eq!((table.queue(HookId(Ulid::new(1))), table.hooks_of(&shop())), (None, 1));
}

#[test]
fn the_version_of_a_feed_tells_whether_other_hooks_would_hear_an_event() {
    let mut table = with([open()]);
    let version = |table: &Table| table.feed(&shop()).expect("open").version;
    let mut last = version(&table);
    let mut changes = |table: &mut Table, change: Change| {
        make(table, change).expect("valid");
        let before = std::mem::replace(&mut last, version(table));
        last > before
    };
    assert!(changes(&mut table, create(A, hook(1, "https://a/"))));
    let set = |was, now, change: &dyn Fn(&mut Hook)| {
        let mut hook = Hook::clone(&hook(1, "https://a/"));
        hook.updated_at = Timestamp::from_millis(now);
        change(&mut hook);
        Change::Set { queue: A, was: Timestamp::from_millis(was), hook: Arc::new(hook) }
    };
    assert!(!changes(&mut table, set(1, 2, &|hook| hook.settings.max_retries = 1)));
    assert!(changes(&mut table, set(2, 3, &|hook| hook.settings.filter = Some("{}".into()))));
    assert!(changes(
        &mut table,
        Change::Deactivate { queue: A, since: at(1), at: Timestamp::from_millis(4) }
    ));
    assert!(!changes(
        &mut table,
        Change::Deactivate { queue: A, since: at(9), at: Timestamp::from_millis(5) }
    ));
    assert_eq!(table.hook(A).expect("there").state, HookState::Inactive { since: at(1) }, "the first counts");
    assert!(changes(&mut table, Change::Remove { queue: A }));
    let (project, stale) = (shop(), version(&table) - 1);
    assert_eq!(make(&mut table, Change::Expect { project, version: stale }), Err(Declined::Moved));
}

#[test]
fn a_change_of_a_hook_that_rests_on_an_older_one_is_refused() {
    let mut table = with([open(), create(A, hook(1, "https://a/"))]);
    let mut edited = Hook::clone(&hook(1, "https://a/"));
    edited.updated_at = edited.updated_after(edited.updated_at);
    let set = Change::Set { queue: A, was: Timestamp::from_millis(1), hook: Arc::new(edited) };
    assert_eq!(make(&mut table, set.clone()), Ok(()));
    assert_eq!(make(&mut table, set), Err(Declined::Moved), "even within one millisecond");
}

#[test]
fn what_is_recorded_of_a_removed_hook_changes_nothing() {
    let mut table = with([open(), create(A, hook(1, "https://a/")), Change::Remove { queue: A }]);
    let settled = Settled { done: at(3), delivered: 1, attempts: 1, ..Settled::default() };
    assert_eq!(make(&mut table, Change::Settle { queue: A, settled }), Ok(()));
    let forget = Change::Forget { queue: A, dead_letters: 1, deliveries: 1, attempts: 1 };
    assert_eq!(make(&mut table, forget), Ok(()));
    assert!(table.progress(A).is_none());
    let deactivate = Change::Deactivate { queue: A, since: at(1), at: Timestamp::from_millis(4) };
    assert_eq!(make(&mut table, deactivate), Ok(()));
    assert_eq!(make(&mut table, Change::Remove { queue: A }), Err(Declined::NoSuchHook));
}

#[test]
fn replays_of_a_hook_are_limited_and_end_where_they_were_to() {
    let mut table = with([open(), create(A, hook(1, "https://a/"))]);
    let replay = Replay { cursor: at(1), through: at(9) };
    let begin = || Change::BeginReplay { queue: A, replay, most: 2 };
    assert_eq!((make(&mut table, begin()), make(&mut table, begin())), (Ok(()), Ok(())));
    assert_eq!(make(&mut table, begin()), Err(Declined::TooManyReplays { most: 2 }));
    let advance = |was, now| Change::AdvanceReplay { replay: (A, 0), was: at(was), now: at(now) };
    assert_eq!(make(&mut table, advance(1, 5)), Ok(()));
    assert_eq!(make(&mut table, advance(1, 5)), Err(Declined::Moved));
    assert_eq!(make(&mut table, advance(5, 9)), Ok(()));
    assert_eq!(table.replays().map(|(id, _)| id).collect::<Vec<_>>(), [(A, 1)]);
    assert_eq!(make(&mut table, begin()), Ok(()));
    make(&mut table, Change::Remove { queue: A }).expect("there");
    assert_eq!(table.replays().count(), 0);
}

proptest! {
    #[test]
    fn done_and_above_tell_of_each_delivery_whether_it_is_settled(
        steps in prop::collection::vec((1u128..60, prop::collection::vec(1u128..60, 0..8)), 1..20),
    ) {
        let mut table = with([open(), create(A, hook(1, "https://a/"))]);
        let (mut done, mut settled) = (0, BTreeSet::new());
        for (through, above) in steps {
            done = done.max(through);
            settled.extend(above.iter().copied());
            let change = Settled { done: at(through), above: above.into_iter().map(at).collect(), ..Settled::default() };
            make(&mut table, Change::Settle { queue: A, settled: change }).expect("valid");
            let progress = table.progress(A).expect("settled");
            for position in 1..60 {
                prop_assert_eq!(progress.is_settled(at(position)), position <= done || settled.contains(&position));
            }
            prop_assert!(progress.above.iter().all(|position| *position > progress.done), "nothing is kept twice");
        }
    }
}
