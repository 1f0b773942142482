use std::cell::Cell;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use tidings_model::{CommitNumber, Position};

use super::fixture::{Heard, HeardByTests, heard};
use super::*;
use crate::log::contract::{Note, NoteExists, Notes};
use crate::log::{Commits, Logs, Memory, Outcome, ReadError, Then};
use crate::{Bus, WallClock};

struct World {
    store: Memory<Notes>,
    hearer: Arc<HeardByTests>,
    journals: Journals,
    project: ProjectId,
    log: LogId,
    journal: LogId,
}

type Made = Result<Committed, CommitError<NoteExists>>;

impl World {
    /// A project whose source `thing` is heard.
    async fn new() -> Self {
        let store = Memory::new(Bus::new(), Arc::new(WallClock));
        let hearer = Arc::new(HeardByTests::default());
        let project = ProjectId::default_project();
        let (log, journal) = (new_log(&store).await, new_log(&store).await);
        hearer.hear(&project, "thing", Some(journal));
        let journals = Journals::new(hearer.clone());
        Self { store, hearer, journals, project, log, journal }
    }

    async fn commit(&self, commit: Commit<Note>, append: usize) -> Made {
        let make = |commit| self.store.commit(commit);
        self.journals.commit(&self.project, "thing", commit, append, described, make).await
    }

    async fn heard(&self, journal: LogId) -> Vec<String> {
        let heard = heard(&self.store, journal).await;
        heard.iter().map(Heard::event).map(|(_, content)| content.to_owned()).collect()
    }

    async fn records(&self, log: LogId) -> u64 {
        self.store.status(log).await.expect("there").total.records
    }
}

async fn new_log(store: &Memory<Notes>) -> LogId {
    let log = store.reserve().await.expect("a number");
    store.commit(Commit::new().with(Operation::create(log))).await.expect("made");
    log
}

fn texts(log: LogId, texts: &[&'static str]) -> Append {
    Append::new(log, texts.iter().map(|text| Bytes::from_static(text.as_bytes())).collect())
}

fn described(payloads: &[Bytes]) -> Entry<'static> {
    let message =
        |payload: &Bytes| Described { event_type: "thing.t".into(), skip: 0, bytes: payload.len() as u64 };
    let messages = payloads.iter().map(message).collect();
    Entry { field: "thing", name: "t", content_type: "text/plain", messages }
}

fn undescribed(_: &[Bytes]) -> Entry<'static> {
    panic!("nobody asked")
}

#[tokio::test]
async fn what_is_heard_is_in_the_commit_of_the_append_and_its_outcomes_are_not_shown() {
    let world = World::new().await;
    let commit = Commit::new()
        .with(texts(world.log, &["before"]))
        .with(texts(world.log, &["one", "two"]))
        .changing(Note { key: "k".to_owned(), text: "t".to_owned() });
    let committed = world.commit(commit, 1).await.expect("made");
    assert!(matches!(committed.outcomes[..], [Outcome::Appended(_), Outcome::Appended(_)]), "{committed:?}");
    assert_eq!(world.hearer.appended(), [world.journal]);
    let heard = heard(&world.store, world.journal).await;
    let Outcome::Appended(appended) = committed.outcomes[1] else { panic!("an append") };
    let places: Vec<_> = heard.iter().map(|heard| (heard.origin.log, heard.origin.position)).collect();
    assert_eq!(places, [(world.log, appended.first), (world.log, appended.last)]);
    assert!(heard.iter().all(|heard| heard.commit == committed.number));
    assert_eq!(world.heard(world.journal).await, ["one", "two"]);
}

#[tokio::test]
async fn what_is_refused_leaves_no_entry() {
    let world = World::new().await;
    let note = || Note { key: "k".to_owned(), text: "t".to_owned() };
    world.commit(Commit::new().with(texts(world.log, &["one"])).changing(note()), 0).await.expect("made");
    world.hearer.appended();
    let declined = world.commit(Commit::new().with(texts(world.log, &["two"])).changing(note()), 0).await;
    assert!(matches!(declined, Err(CommitError::Declined(NoteExists(_)))), "{declined:?}");
    let mut late = texts(world.log, &["two"]);
    late.conditions.tail = Some(Position::MAX);
    let refused = world.commit(Commit::new().with(late), 0).await;
    assert!(matches!(refused, Err(CommitError::Refused(Refusal::TailMoved { .. }))), "{refused:?}");
    let nowhere = LogId::new(99);
    let refused = world.commit(Commit::new().with(texts(nowhere, &["two"])), 0).await;
    assert!(matches!(refused, Err(CommitError::Refused(Refusal::NoSuchLog(log))) if log == nowhere));
    assert_eq!(world.heard(world.journal).await, ["one"]);
    assert!(world.hearer.appended().is_empty());
}

#[tokio::test]
async fn nothing_is_described_when_nobody_hears_or_nothing_is_appended() {
    let world = World::new().await;
    let make = |commit| world.store.commit(commit);
    let (project, other) = (&world.project, ProjectId::parse("other").expect("an id"));
    let append = || Commit::new().with(texts(world.log, &["x"]));
    let closing = || Append { then: Then::Close, ..texts(world.log, &[]) };
    let journals = &world.journals;
    Journals::default().commit(project, "thing", append(), 0, undescribed, make).await.expect("made");
    journals.commit(project, "another", append(), 0, undescribed, make).await.expect("made");
    journals.commit(&other, "thing", append(), 0, undescribed, make).await.expect("made");
    journals.commit(project, "thing", append(), 1, undescribed, make).await.expect("made");
    journals
        .commit(project, "thing", Commit::new().with(closing()), 0, undescribed, make)
        .await
        .expect("made");
    assert_eq!(world.records(world.log).await, 4);
    assert_eq!(world.records(world.journal).await, 0);
    assert!(world.hearer.appended().is_empty());
}

#[tokio::test]
async fn an_append_succeeds_without_its_entry_when_the_journal_is_gone() {
    let world = World::new().await;
    world.store.commit(Commit::new().with(Operation::Delete(world.journal))).await.expect("made");
    // Whoever hears does not know it yet.
    world.commit(Commit::new().with(texts(world.log, &["x"])), 0).await.expect("made all the same");
    assert_eq!(world.records(world.log).await, 1);
    let read = world.store.status(world.journal).await;
    assert!(matches!(read, Err(ReadError::NoSuchLog(_))), "it is not created again");
    assert!(world.hearer.appended().is_empty());
}

#[tokio::test]
async fn an_entry_goes_to_the_journal_that_replaced_the_one_that_is_gone() {
    let world = World::new().await;
    let (next, tries) = (new_log(&world.store).await, Cell::new(0));
    let make = |commit| {
        let first = tries.replace(tries.get() + 1) == 0;
        let world = &world;
        async move {
            if first {
                let gone = Commit::new().with(Operation::Delete(world.journal));
                world.store.commit(gone).await.expect("made");
                world.hearer.hear(&world.project, "thing", Some(next));
            }
            world.store.commit(commit).await
        }
    };
    let commit = Commit::new().with(texts(world.log, &["x"]));
    let made = world.journals.commit(&world.project, "thing", commit, 0, described, make).await;
    assert_eq!(made.expect("made").outcomes.len(), 1);
    assert_eq!((tries.get(), world.records(world.log).await), (2, 1));
    assert_eq!(world.heard(next).await, ["x"]);
    assert_eq!(world.hearer.appended(), [next]);
}

/// An entry whose headers take about this many bytes.
fn large(bytes: usize) -> impl Fn(&[Bytes]) -> Entry<'static> {
    let event_type: Arc<str> = "t".repeat(30_000).into();
    move |_| {
        let message = Described { event_type: event_type.clone(), skip: 0, bytes: 1 };
        let messages = vec![message; bytes.div_ceil(30_000)];
        Entry { field: "thing", name: "t", content_type: "", messages }
    }
}

#[tokio::test]
async fn an_entry_whose_headers_take_too_much_is_refused_before_they_are_made() {
    let world = World::new().await;
    let make = |_: Commit<Note>| -> std::future::Ready<Made> { panic!("too large") };
    let commit = Commit::new().with(texts(world.log, &["x"]));
    let describe = large(limits::JOURNAL_ENTRY_BYTES + 1);
    let refused = world.journals.commit(&world.project, "thing", commit, 0, describe, make).await;
    assert!(matches!(refused, Err(CommitError::Store(StoreError::TooLarge { .. }))), "{refused:?}");
}

#[tokio::test]
async fn headers_that_are_not_committed_are_bounded_and_later_ones_wait() {
    let world = World::new().await;
    let begun = Cell::new(0);
    let gate = tokio::sync::Semaphore::new(0);
    let make = |_: Commit<Note>| {
        begun.set(begun.get() + 1);
        async {
            gate.acquire().await.expect("open").forget();
            Made::Err(CommitError::Store(StoreError::NoSpace))
        }
    };
    let (most, each) = (limits::JOURNAL_BYTES_IN_FLIGHT, limits::JOURNAL_ENTRY_BYTES - 100_000);
    let at_once = most / each;
    let describe = large(each);
    let commit = || {
        let commit = Commit::new().with(texts(world.log, &["x"]));
        Box::pin(world.journals.commit(&world.project, "thing", commit, 0, &describe, make))
    };
    let mut context = Context::from_waker(Waker::noop());
    let mut appends: Vec<_> = (0..at_once + 1).map(|_| commit()).collect();
    for append in &mut appends {
        assert!(append.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(begun.get(), at_once);
    gate.add_permits(1);
    assert!(appends.remove(0).await.is_err());
    let mut last = pin!(appends.pop().expect("the last"));
    assert!(matches!(last.as_mut().poll(&mut context), Poll::Pending));
    assert_eq!(begun.get(), at_once + 1, "the one that waited");
}

#[test]
fn a_name_becomes_segments_of_a_type() {
    for (name, made) in [
        ("orders", "stream.orders"),
        ("a/b:c.d", "stream.a.b.c.d"),
        ("über uns", "stream._ber_uns"),
        ("//a..b/", "stream.a.b"),
        ("/", "stream"),
        ("1.2.3.4.5.6.7.8.9.10.11", "stream.1.2.3.4.5.6.7.8.9"),
    ] {
        assert_eq!(event_type("stream", name, None), made, "{name}");
    }
    assert_eq!(event_type("room", "a/b", Some("messageEvent")), "room.a.b.messageEvent");
    let long = event_type("room", &"x".repeat(500), Some("messageEvent"));
    assert_eq!(long.len(), limits::EVENT_TYPE_BYTES);
    assert!(long.ends_with("x.messageEvent"));
}

#[test]
fn an_entry_has_a_header_for_each_message_before_the_references() {
    let described = |event_type: &str| Described { event_type: event_type.into(), skip: 3, bytes: 9 };
    let entry = Entry {
        field: "room",
        name: "r",
        content_type: "application/json",
        messages: vec![described("room.r.a"), described("room.r.b")],
    };
    let payloads = vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")];
    let mut commit = Commit::<()>::new().with(Append::new(LogId::new(1), payloads));
    entry.add_to(&mut commit, 0, LogId::new(2));
    let [_, Operation::Append(headers), Operation::Refer(refer)] = &commit.operations[..] else {
        panic!("{commit:?}");
    };
    let header = Header::read(&headers.payloads[1]).expect("a header");
    assert_eq!((header.event_type.as_str(), header.field.as_str(), header.skip), ("room.r.b", "room", 3));
    let at = Position::in_commit(CommitNumber::from_number(5), 1);
    assert_eq!(header.message(at).parts().1, 3, "two headers, then the messages");
    assert_eq!((&refer.of, &refer.into[..]), (&Of::Append(0), &[LogId::new(2)][..]));
}

proptest! {
    #[test]
    fn a_made_type_is_always_valid(name in ".{1,600}", last in prop::option::of("[a-z]{1,20}")) {
        let made = event_type("stream", &name, last.as_deref());
        prop_assert!(made.len() <= limits::EVENT_TYPE_BYTES);
        prop_assert!(made.split('.').count() <= limits::EVENT_TYPE_SEGMENTS);
        prop_assert!(made.split('.').all(|part| !part.is_empty()), "{}", made);
    }
}

#[tokio::test]
async fn complete_events_are_in_the_commit_that_makes_them() {
    let world = World::new().await;
    let event = EventRecord { event_type: "thing.t", id: "e1", may_come_again: true, ts: "now", json: b"{}" };
    let commit = Commit::new().with(texts(world.log, &["one"]));
    let make = |commit| world.store.commit(commit);
    let events = || vec![event.encode(), event.encode()];
    let committed = world.journals.commit_events(&world.project, "thing", commit.clone(), events, make).await;
    assert_eq!(committed.expect("made").outcomes.len(), 1);
    assert_eq!((world.records(world.log).await, world.records(world.journal).await), (1, 2));
    assert_eq!(world.hearer.appended(), [world.journal]);
    assert!(world.journals.are_heard(&world.project, "thing"));
    let page =
        world.store.read(world.journal, crate::log::Span::after(Position::ZERO)).await.expect("a page");
    assert_eq!(&page.records[0].payload[..], b"\x01\x02\x07\x00\x02\x00\x03\x00thing.te1now{}");

    assert!(!world.journals.are_heard(&world.project, "other"));
    let unasked = || panic!("nobody hears them");
    let make = |commit| world.store.commit(commit);
    let committed = world.journals.commit_events(&world.project, "other", commit, unasked, make).await;
    assert_eq!(committed.expect("made").outcomes.len(), 1);
    assert_eq!(world.records(world.journal).await, 2);
}
