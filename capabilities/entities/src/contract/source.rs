//! What a source promises.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join, join_all};

use crate::change::{Action, Change, Entry, NewChange};
use crate::cursor::Cursor;
use crate::entity::{EntityCode, EntityId};
use crate::source::{Read, ResyncReason, Source, SourceError};

/// A source under the contract suite, at first without any change.
pub trait SourceFixture: Send + 'static {
    /// The source as it is open now.
    fn source(&self) -> &dyn Source;

    /// An id in the form of the source, another one for each number.
    fn id(&self, number: u64) -> EntityId;

    /// Closes the source and opens it again, as after a restart.
    fn reopen(&mut self) -> BoxFuture<'_, ()>;

    /// Lets all changes become so old that they are not kept any more.
    fn expire(&mut self) -> BoxFuture<'_, ()>;

    /// Replaces the source by another one without any change.
    fn replace(&mut self) -> BoxFuture<'_, ()>;

    /// Begins a transaction that makes changes, and returns its commit. `None` if the source has no transactions.
    fn begin(&self, changes: Vec<NewChange>) -> BoxFuture<'_, Option<BoxFuture<'static, ()>>> {
        let _ = changes;
        std::future::ready(None).boxed()
    }
}

/// Makes a `#[tokio::test]` of each promise of a source, on an empty one from `$make`.
#[macro_export]
macro_rules! source_contract {
    ($make:expr) => {
        $crate::source_contract!(@each $make;
            what_is_published_is_read_after_the_cursor_before_it
            whoever_resumes_after_a_publish_does_not_hear_it
            versions_of_an_entity_grow
            pages_have_everything_once
            changes_that_are_published_together_by_many_are_all_read
            a_reader_that_waits_is_told_of_a_change
            a_transaction_that_is_committed_late_is_not_missed
            what_is_not_kept_any_more_is_said
            a_source_that_was_replaced_is_said
            what_is_no_cursor_is_refused
            a_publish_of_nothing_changes_nothing
            a_publish_is_as_large_as_may_be
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

const ACTIONS: [Action; 3] = [Action::Create, Action::Update, Action::Delete];

fn change(fixture: &impl SourceFixture, number: u64, action: Action) -> NewChange {
    let code = EntityCode::parse("project").expect("a code");
    NewChange { code, id: fixture.id(number), action }
}

async fn publish(fixture: &impl SourceFixture, changes: Vec<NewChange>) -> Cursor {
    let count = changes.len();
    let published = fixture.source().publish(changes).await.expect("published");
    assert_eq!(published.accepted, count);
    published.cursor
}

async fn now(fixture: &impl SourceFixture) -> Cursor {
    fixture.source().now().await.expect("a cursor")
}

/// Reads everything after a cursor, in pages.
async fn read(fixture: &impl SourceFixture, after: &Cursor, most: usize) -> (Vec<Change>, Cursor) {
    let (mut changes, mut cursor) = (Vec::new(), after.clone());
    loop {
        match fixture.source().read(&cursor, most).await.expect("a page") {
            Read::Entries { entries, cursor: next, more } => {
                assert!(!more || !entries.is_empty() || next != cursor, "a reader would never get on");
                for entry in entries {
                    match entry {
                        Entry::Changed(change) => changes.push(change),
                        Entry::Truncated(code) => panic!("nobody removed all of {code}"),
                    }
                }
                cursor = next;
                if !more {
                    return (changes, cursor);
                }
            }
            Read::Lost { reason, .. } => panic!("{}", reason.as_str()),
        }
    }
}

/// What was read of each entity, in order.
fn by_entity(changes: &[Change]) -> BTreeMap<EntityId, Vec<Action>> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for change in changes {
        found.entry(change.id.clone()).or_default().push(change.action);
    }
    found
}

/// All that was published is read, of each entity in its order, with a version that a client can use.
pub async fn what_is_published_is_read_after_the_cursor_before_it(mut fixture: impl SourceFixture) {
    let before = now(&fixture).await;
    publish(&fixture, vec![change(&fixture, 1, Action::Create), change(&fixture, 2, Action::Create)]).await;
    publish(&fixture, vec![change(&fixture, 1, Action::Update)]).await;
    publish(&fixture, vec![change(&fixture, 1, Action::Delete)]).await;
    fixture.reopen().await;
    let (changes, cursor) = read(&fixture, &before, 100).await;
    let expected = [(fixture.id(1), ACTIONS.to_vec()), (fixture.id(2), vec![Action::Create])];
    assert_eq!(by_entity(&changes), BTreeMap::from(expected));
    for change in &changes {
        assert_eq!(change.code.as_str(), "project");
        assert!((1..1 << 53).contains(&change.version), "{}", change.version);
        assert_eq!(change.reason, None);
    }
    assert_eq!(read(&fixture, &cursor, 100).await.0, []);
}

/// The cursor of a publish lies after it, and after a restart it is still good.
pub async fn whoever_resumes_after_a_publish_does_not_hear_it(mut fixture: impl SourceFixture) {
    let after = publish(&fixture, vec![change(&fixture, 1, Action::Create)]).await;
    assert_eq!(read(&fixture, &after, 100).await.0, []);
    fixture.reopen().await;
    assert_eq!(read(&fixture, &after, 100).await.0, []);
    publish(&fixture, vec![change(&fixture, 2, Action::Create)]).await;
    let (changes, _) = read(&fixture, &after, 100).await;
    assert_eq!(changes.iter().map(|change| change.id.clone()).collect::<Vec<_>>(), [fixture.id(2)]);
}

/// Also over restarts, and within one publish.
pub async fn versions_of_an_entity_grow(mut fixture: impl SourceFixture) {
    let before = now(&fixture).await;
    for _ in 0..3 {
        let changes = ACTIONS.map(|action| change(&fixture, 1, action));
        publish(&fixture, changes.to_vec()).await;
        fixture.reopen().await;
    }
    let (changes, _) = read(&fixture, &before, 2).await;
    assert_eq!(changes.len(), 9);
    assert!(changes.is_sorted_by(|one, next| one.version < next.version), "{changes:?}");
}

/// Whatever the size of a page, the pages have everything once.
pub async fn pages_have_everything_once(fixture: impl SourceFixture) {
    let before = now(&fixture).await;
    for first in (0..100).step_by(10) {
        let changes = (first..first + 10).map(|number| change(&fixture, number, Action::Create));
        publish(&fixture, changes.collect()).await;
    }
    let expected: BTreeSet<_> = (0..100).map(|number| fixture.id(number)).collect();
    for most in [1, 7, 100, 1000] {
        let (changes, _) = read(&fixture, &before, most).await;
        assert_eq!(changes.len(), 100, "pages of {most}");
        assert_eq!(changes.into_iter().map(|change| change.id).collect::<BTreeSet<_>>(), expected);
    }
}

/// A reader that is in the middle of it misses nothing.
pub async fn changes_that_are_published_together_by_many_are_all_read(fixture: impl SourceFixture) {
    let before = now(&fixture).await;
    let publishes = (0..50).map(|number| publish(&fixture, vec![change(&fixture, number, Action::Create)]));
    let reading = async {
        let (mut seen, mut cursor) = (BTreeSet::new(), before.clone());
        while seen.len() < 50 {
            fixture.source().changed(&cursor).await;
            let (changes, next) = read(&fixture, &cursor, 3).await;
            for change in changes {
                assert!(seen.insert(change.id.clone()), "{} was read twice", change.id);
            }
            cursor = next;
        }
    };
    join(join_all(publishes), reading).await;
}

/// Whether the change comes after it began to wait or before.
pub async fn a_reader_that_waits_is_told_of_a_change(fixture: impl SourceFixture) {
    for number in 0..3 {
        let before = now(&fixture).await;
        let publishing = publish(&fixture, vec![change(&fixture, number, Action::Update)]);
        let waiting = async {
            loop {
                fixture.source().changed(&before).await;
                // It may resolve without a reason.
                if !read(&fixture, &before, 10).await.0.is_empty() {
                    break;
                }
            }
        };
        join(waiting, publishing).await;
        fixture.source().changed(&before).await;
    }
}

/// A transaction that began before the cursor, and was committed after it, is read after the cursor.
pub async fn a_transaction_that_is_committed_late_is_not_missed(fixture: impl SourceFixture) {
    let before = now(&fixture).await;
    let Some(commit) = fixture.begin(vec![change(&fixture, 1, Action::Create)]).await else { return };
    publish(&fixture, vec![change(&fixture, 2, Action::Create)]).await;
    let (changes, between) = read(&fixture, &before, 100).await;
    assert_eq!(changes.into_iter().map(|change| change.id).collect::<Vec<_>>(), [fixture.id(2)]);
    commit.await;
    let (changes, _) = read(&fixture, &between, 100).await;
    assert_eq!(changes.into_iter().map(|change| change.id).collect::<Vec<_>>(), [fixture.id(1)]);
    assert_eq!(read(&fixture, &now(&fixture).await, 100).await.0, []);
}

/// Whoever was away for too long is told, and can go on from there.
pub async fn what_is_not_kept_any_more_is_said(mut fixture: impl SourceFixture) {
    publish(&fixture, vec![change(&fixture, 1, Action::Create)]).await;
    let before = now(&fixture).await;
    publish(&fixture, vec![change(&fixture, 1, Action::Update), change(&fixture, 2, Action::Update)]).await;
    let at_the_end = now(&fixture).await;
    fixture.expire().await;
    let lost = fixture.source().read(&before, 100).await.expect("an answer");
    let Read::Lost { reason: ResyncReason::CursorExpired, cursor } = lost else { panic!("{lost:?}") };
    publish(&fixture, vec![change(&fixture, 1, Action::Delete)]).await;
    for cursor in [cursor, at_the_end] {
        let (changes, _) = read(&fixture, &cursor, 100).await;
        assert_eq!(by_entity(&changes), BTreeMap::from([(fixture.id(1), vec![Action::Delete])]));
    }
}

/// A cursor of another life of the source is recognised, and can be gone on from.
pub async fn a_source_that_was_replaced_is_said(mut fixture: impl SourceFixture) {
    let mut cursors = vec![publish(&fixture, vec![change(&fixture, 1, Action::Create)]).await];
    publish(&fixture, vec![change(&fixture, 1, Action::Update)]).await;
    cursors.push(now(&fixture).await);
    fixture.replace().await;
    for _ in 0..2 {
        for before in &cursors {
            let lost = fixture.source().read(before, 100).await.expect("an answer");
            let Read::Lost { reason: ResyncReason::SourceReset, cursor } = lost else { panic!("{lost:?}") };
            publish(&fixture, vec![change(&fixture, 2, Action::Create)]).await;
            let (changes, _) = read(&fixture, &cursor, 100).await;
            assert_eq!(by_entity(&changes), BTreeMap::from([(fixture.id(2), vec![Action::Create])]));
        }
    }
}

/// A text that no source of this kind has given is an error, not an empty page.
pub async fn what_is_no_cursor_is_refused(fixture: impl SourceFixture) {
    publish(&fixture, vec![change(&fixture, 1, Action::Create)]).await;
    let good = now(&fixture).await;
    for bad in ["x", "-1", "not-a-cursor", &format!("{good}~"), &format!("~{good}")] {
        let refused = fixture.source().read(&Cursor::new(bad), 100).await;
        assert!(matches!(refused, Err(SourceError::InvalidCursor(_))), "{bad}: {refused:?}");
    }
}

/// It has a cursor all the same.
pub async fn a_publish_of_nothing_changes_nothing(fixture: impl SourceFixture) {
    let before = now(&fixture).await;
    let after = publish(&fixture, Vec::new()).await;
    assert_eq!(read(&fixture, &before, 100).await.0, []);
    publish(&fixture, vec![change(&fixture, 1, Action::Create)]).await;
    for cursor in [before, after] {
        assert_eq!(read(&fixture, &cursor, 100).await.0.len(), 1);
    }
}

/// Ten thousand changes, all or none.
pub async fn a_publish_is_as_large_as_may_be(fixture: impl SourceFixture) {
    let before = now(&fixture).await;
    let most = tidings_model::limits::ENTITY_CHANGES_PER_POST as u64;
    let changes = (0..most).map(|number| change(&fixture, number, Action::Create));
    publish(&fixture, changes.collect()).await;
    let (changes, _) = read(&fixture, &before, 1000).await;
    assert_eq!(by_entity(&changes).len() as u64, most);
}
