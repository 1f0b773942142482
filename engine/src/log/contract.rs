//! The contract suite: what every store promises, as tests that each store runs on itself.
//!
//! A store implements [`Subject`] in its tests and calls [`log_contract!`](crate::log_contract) with a
//! function that creates an empty one. The suite has a small capability of its own, [`Notes`], so that it can
//! check that changes of tables and operations on logs are committed together. What it says about cold rows is in [`rows`].

pub mod rows;

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tidings_model::{LogId, Position, Producer, ProducerId};

use super::{
    Append, Boundary, Change, ChangeFeed, Commit, CommitError, Commits, Committed, LogTotals, Memory,
    Observer, Of, Operation, Origin, Outcome, Page, Positions, ProducerRefusal, ReadError, Record, Refer,
    Referred, Refusal, Span, StateMachine, Status, Then,
};
use crate::{Bus, Listener};

/// Generates a `#[tokio::test]` for each promise, on an empty store from `$make`.
#[macro_export]
macro_rules! log_contract {
    ($make:expr) => {
        $crate::log_contract!(@each $make;
            an_append_is_read_back_in_order
            an_unknown_log_is_refused_and_not_read
            a_log_number_is_never_used_twice
            a_page_ends_at_its_limits_but_has_at_least_one_record
            a_span_ends_where_it_says
            positions_of_the_store_grow_over_all_logs
            a_log_may_begin_where_another_is
            positions_of_the_caller_must_grow
            a_least_position_holds_unless_the_tail_is_above_it
            appends_with_a_least_position_need_not_know_of_each_other
            every_record_knows_its_commit
            the_last_record_of_an_append_is_marked
            a_commit_holds_whole_or_not_at_all
            a_refused_change_leaves_the_logs_untouched
            a_repeated_request_is_a_duplicate_and_adds_nothing
            producers_are_fenced_by_epoch_and_gaps_are_told
            a_refused_append_does_not_count_as_a_request
            order_texts_compare_byte_by_byte
            an_expected_tail_lets_one_of_two_win
            a_closed_log_takes_nothing_more
            the_request_that_closed_a_log_may_be_repeated
            references_share_the_payload_and_know_their_origin
            references_can_follow_later_and_only_once_above_the_cursor
            references_outlive_their_record_and_its_log
            missing_and_closed_targets_are_told_and_refuse_nothing
            a_journal_hears_every_append_of_its_logs
            a_floor_hides_records_and_never_sinks
            a_log_counts_what_it_ever_took
            a_deleted_log_is_gone_and_its_readers_are_woken
            nothing_is_visible_before_it_is_durable
            observers_hear_changes_in_order_before_the_writer_is_answered
            an_observer_does_not_hear_what_is_not_durable_or_was_refused
            a_reader_hears_everything_once_across_the_seam
            concurrent_appends_all_hold_in_one_order
            random_commits_agree_with_a_plain_model
        );
    };
    (@each $make:expr; $($promise:ident)+) => {
        $(
            #[tokio::test]
            async fn $promise() {
                $crate::log::contract::$promise($make().await).await;
            }
        )+
    };
}

/// A store under test.
pub trait Subject: Commits<Self::StateMachine> + ChangeFeed<Self::StateMachine> + Clone {
    /// What it keeps notes in.
    type StateMachine: StateMachine<Change = Note>;

    /// The bus on which the store wakes listeners.
    fn bus(&self) -> Bus;

    /// Reads a note from the store's tables.
    fn note(&self, key: &str) -> Option<String>;

    /// Keeps commits from becoming durable until the returned guard is dropped.
    fn hold(&self) -> BoxFuture<'_, Box<dyn Any + Send>>;
}

/// A capability for the suite: texts by key.
#[derive(Debug, Default)]
pub struct Notes(BTreeMap<String, String>);

impl Notes {
    /// The text of a key.
    pub fn get(&self, key: &str) -> Option<&String> {
        self.0.get(key)
    }

    /// All texts.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &String)> {
        self.0.iter()
    }
}

/// A change that writes a text under a key that has none yet.
#[derive(Clone, Debug)]
pub struct Note {
    /// The key.
    pub key: String,
    /// The text.
    pub text: String,
}

/// The refusal of a [`Note`] whose key has a text already.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is a note `{0}`")]
pub struct NoteExists(pub String);

impl Change for Note {
    type Refusal = NoteExists;
}

impl StateMachine for Notes {
    type Change = Note;

    fn validate(&self, change: &Note) -> Result<(), NoteExists> {
        if self.0.contains_key(&change.key) { Err(NoteExists(change.key.clone())) } else { Ok(()) }
    }

    fn apply(&mut self, change: Note) {
        self.0.insert(change.key, change.text);
    }
}

impl Subject for Memory<Notes> {
    type StateMachine = Notes;

    fn bus(&self) -> Bus {
        Memory::bus(self).clone()
    }

    fn note(&self, key: &str) -> Option<String> {
        self.look(|notes, _| notes.get(key).cloned())
    }

    fn hold(&self) -> BoxFuture<'_, Box<dyn Any + Send>> {
        Box::pin(async { Box::new(Memory::hold(self).await) as Box<dyn Any + Send> })
    }
}

// Helpers of the promises below.

async fn new_log(store: &impl Subject) -> LogId {
    let log = store.reserve().await.expect("a number");
    make(store, Commit::new().with(Operation::create(log))).await;
    log
}

async fn make(store: &impl Subject, commit: Commit<Note>) -> Committed {
    store.commit(commit).await.expect("the commit is good")
}

async fn refused(store: &impl Subject, commit: Commit<Note>) -> Refusal {
    match store.commit(commit).await {
        Err(CommitError::Refused(refusal)) => refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

fn texts(log: LogId, texts: &[&str]) -> Append {
    Append::new(log, texts.iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect())
}

async fn append(store: &impl Subject, log: LogId, payloads: &[&str]) -> super::Appended {
    make(store, Commit::new().with(texts(log, payloads))).await.appended()
}

async fn page(store: &impl Subject, log: LogId, after: Position) -> Page {
    store
        .read(log, Span { bytes: usize::MAX, records: usize::MAX, ..Span::after(after) })
        .await
        .expect("readable")
}

async fn all(store: &impl Subject, log: LogId) -> Vec<Record> {
    page(store, log, Position::ZERO).await.records
}

async fn all_texts(store: &impl Subject, log: LogId) -> Vec<String> {
    all(store, log).await.iter().map(text).collect()
}

/// Reads a span of a log; waits at the tail until there is something in it. A page without records means that the log is
/// closed. Whoever listens before the first read misses nothing that is appended between a read and the wait.
async fn read_on(
    store: &impl Subject,
    log: LogId,
    listener: &mut Listener,
    span: Span,
) -> Result<Page, ReadError> {
    loop {
        let page = store.read(log, span).await?;
        if !page.records.is_empty() || page.status.closed {
            return Ok(page);
        }
        listener.woken().await;
    }
}

fn text(record: &Record) -> String {
    String::from_utf8(record.payload.to_vec()).expect("the suite writes text")
}

fn stamped(mut append: Append, id: &str, epoch: u64, sequence: u64) -> Append {
    let id = ProducerId::parse(id).expect("valid");
    append.conditions.producer = Some(Producer { id, epoch, sequence });
    append
}

fn closing(mut append: Append) -> Append {
    append.then = Then::Close;
    append
}

fn totals(texts: &[impl AsRef<str>]) -> LogTotals {
    let bytes = texts.iter().map(|text| text.as_ref().len() as u64).sum();
    LogTotals { records: texts.len() as u64, bytes }
}

// The promises.

/// Appended records are read back in order, and the tail is the last position.
pub async fn an_append_is_read_back_in_order(store: impl Subject) {
    let log = new_log(&store).await;
    assert_eq!(store.status(log).await, Ok(Status::default()));
    let first = append(&store, log, &["a", "b"]).await;
    let second = append(&store, log, &["c"]).await;
    assert!(Position::ZERO < first.first && first.first < first.last && first.last < second.first);
    assert_eq!(all_texts(&store, log).await, ["a", "b", "c"]);
    let after_first = page(&store, log, first.first).await;
    assert_eq!(after_first.records.iter().map(text).collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(
        after_first.status,
        Status { tail: second.last, total: totals(&["a", "b", "c"]), ..Status::default() }
    );
    assert!(page(&store, log, second.last).await.records.is_empty());
}

/// A log that was not created can be neither written nor read.
pub async fn an_unknown_log_is_refused_and_not_read(store: impl Subject) {
    let log = store.reserve().await.expect("a number");
    assert_eq!(store.status(log).await, Err(ReadError::NoSuchLog(log)));
    assert_eq!(store.read(log, Span::after(Position::ZERO)).await, Err(ReadError::NoSuchLog(log)));
    assert_eq!(refused(&store, Commit::new().with(texts(log, &["a"]))).await, Refusal::NoSuchLog(log));
    let trim = Operation::Trim { log, floor: Position::MAX };
    assert_eq!(refused(&store, Commit::new().with(trim)).await, Refusal::NoSuchLog(log));
    assert_eq!(refused(&store, Commit::new().with(Operation::Delete(log))).await, Refusal::NoSuchLog(log));
}

/// Log ids are unique, and that of a deleted log is not used again.
pub async fn a_log_number_is_never_used_twice(store: impl Subject) {
    let log = new_log(&store).await;
    assert_ne!(store.reserve().await.expect("a number"), log);
    let again = Commit::new().with(Operation::create(log));
    assert_eq!(refused(&store, again.clone()).await, Refusal::LogExists(log));
    make(&store, Commit::new().with(Operation::Delete(log))).await;
    assert_eq!(refused(&store, again).await, Refusal::LogExists(log));
}

/// A read stops at its limits, but returns one whole record even if it exceeds them.
pub async fn a_page_ends_at_its_limits_but_has_at_least_one_record(store: impl Subject) {
    let log = new_log(&store).await;
    append(&store, log, &["aaaa", "bbbb", "cc", "dd"]).await;
    let read = async |bytes, records| {
        let span = Span { bytes, records, ..Span::after(Position::ZERO) };
        store.read(log, span).await.expect("readable").records.len()
    };
    assert_eq!(read(1, 10).await, 1);
    assert_eq!(read(8, 10).await, 2);
    assert_eq!(read(9, 10).await, 2);
    assert_eq!(read(10, 10).await, 3);
    assert_eq!(read(100, 2).await, 2);
}

/// `through` is the last position that is read.
pub async fn a_span_ends_where_it_says(store: impl Subject) {
    let log = new_log(&store).await;
    let first = append(&store, log, &["a", "b"]).await;
    append(&store, log, &["c"]).await;
    let upto = |through| Span { through, ..Span::after(Position::ZERO) };
    let records = store.read(log, upto(first.last)).await.expect("readable").records;
    assert_eq!(records.iter().map(text).collect::<Vec<_>>(), ["a", "b"]);
    assert!(store.read(log, upto(Position::ZERO)).await.expect("readable").records.is_empty());
    let backwards = Span { through: first.first, ..Span::after(first.last) };
    assert!(store.read(log, backwards).await.expect("readable").records.is_empty());
}

/// A later acknowledged append lies after an earlier one in any log. Forks rely on it.
pub async fn positions_of_the_store_grow_over_all_logs(store: impl Subject) {
    let (one, two) = (new_log(&store).await, new_log(&store).await);
    let mut last = Position::ZERO;
    for n in 0..20 {
        let appended = append(&store, if n % 3 == 0 { one } else { two }, &["x", "y"]).await;
        assert!(appended.first > last && appended.last > appended.first);
        last = appended.last;
    }
}

/// A log that continues another begins with that log's tail and without records.
pub async fn a_log_may_begin_where_another_is(store: impl Subject) {
    let source = new_log(&store).await;
    let tail = append(&store, source, &["a", "b"]).await.last;
    let log = store.reserve().await.expect("a number");
    make(&store, Commit::new().with(Operation::Create { log, tail })).await;
    assert_eq!(store.status(log).await, Ok(Status { tail, ..Status::default() }));
    assert!(all(&store, log).await.is_empty());
    let mut expecting = texts(log, &["c"]);
    expecting.conditions.tail = Some(tail);
    assert!(make(&store, Commit::new().with(expecting)).await.appended().first > tail);
    assert_eq!(all_texts(&store, log).await, ["c"]);
}

/// Positions given by the caller must be ascending.
pub async fn positions_of_the_caller_must_grow(store: impl Subject) {
    let log = new_log(&store).await;
    let at = |positions: &[u128], payloads: &[&str]| {
        let positions = Positions::Given(positions.iter().map(|&p| Position::new(p)).collect());
        Commit::new().with(Append { positions, ..texts(log, payloads) })
    };
    let far = 1 << 100;
    let appended = make(&store, at(&[far, far + 5], &["a", "b"])).await.appended();
    assert_eq!((appended.first, appended.last), (Position::new(far), Position::new(far + 5)));
    let tail = Position::new(far + 5);
    for bad in [vec![far + 5], vec![far + 4], vec![0]] {
        assert_eq!(refused(&store, at(&bad, &["c"])).await, Refusal::PositionNotAbove { tail });
    }
    for bad in [[far + 7, far + 6], [far + 7, far + 7]] {
        assert_eq!(refused(&store, at(&bad, &["c", "d"])).await, Refusal::PositionNotAbove { tail });
    }
    assert!(matches!(refused(&store, at(&[far + 9], &["c", "d"])).await, Refusal::Malformed(_)));
    make(&store, at(&[u128::MAX], &["c"])).await;
    assert_eq!(all_texts(&store, log).await, ["a", "b", "c"]);
}

/// With `AtLeast`, the first record lies at the given position or just above the tail; the others follow.
pub async fn a_least_position_holds_unless_the_tail_is_above_it(store: impl Subject) {
    let log = new_log(&store).await;
    let at_least = |least: u128, payloads: &[&str]| {
        Commit::new()
            .with(Append { positions: Positions::AtLeast(Position::new(least)), ..texts(log, payloads) })
    };
    let far = 1u128 << 100;
    let place = |first, last| super::Appended { first: Position::new(first), last: Position::new(last) };
    assert_eq!(make(&store, at_least(0, &["a"])).await.appended(), place(1, 1));
    assert_eq!(make(&store, at_least(far, &["b", "c"])).await.appended(), place(far, far + 1));
    assert_eq!(make(&store, at_least(far, &["d"])).await.appended(), place(far + 2, far + 2));
    assert_eq!(make(&store, at_least(far + 3, &["e"])).await.appended(), place(far + 3, far + 3));
    let commit = at_least(far + 9, &["f"])
        .with(Append { positions: Positions::AtLeast(Position::ZERO), ..texts(log, &["g"]) });
    make(&store, commit).await;
    assert_eq!(page(&store, log, Position::ZERO).await.status.tail, Position::new(far + 10));
    let tail = Position::new(far + 10);
    assert_eq!(refused(&store, at_least(u128::MAX, &["x", "y"])).await, Refusal::PositionNotAbove { tail });
    make(&store, at_least(u128::MAX, &["h"])).await;
    let tail = Position::MAX;
    assert_eq!(refused(&store, at_least(0, &["x"])).await, Refusal::PositionNotAbove { tail });
    assert_eq!(all_texts(&store, log).await, ["a", "b", "c", "d", "e", "f", "g", "h"]);
}

/// Concurrent `AtLeast` appends are all made, share no position, and are not interleaved.
pub async fn appends_with_a_least_position_need_not_know_of_each_other(store: impl Subject) {
    let log = new_log(&store).await;
    let append = |least: u128| {
        let (store, positions) = (store.clone(), Positions::AtLeast(Position::new(least)));
        let append = Append { positions, ..texts(log, &["x", "y", "z"]) };
        tokio::spawn(async move { make(&store, Commit::new().with(append)).await.appended() })
    };
    let mut places = Vec::new();
    for task in (0..50u128).map(|n| append(1000 - n)).collect::<Vec<_>>() {
        places.push(task.await.expect("appended"));
    }
    places.sort_by_key(|place| place.first);
    assert!(places.iter().all(|place| place.last.get() == place.first.get() + 2));
    assert!(places.is_sorted_by(|a, b| a.last < b.first));
    let positions: Vec<_> = all(&store, log).await.iter().map(|record| record.position).collect();
    let expected = |place: &super::Appended| (place.first.get()..=place.last.get()).map(Position::new);
    assert_eq!(positions, places.iter().flat_map(expected).collect::<Vec<_>>());
}

/// A record at a position given by the caller has its commit number, too.
pub async fn every_record_knows_its_commit(store: impl Subject) {
    let (given, stored) = (new_log(&store).await, new_log(&store).await);
    let positions = Positions::Given(vec![Position::new(7)]);
    let commit = Commit::new().with(Append { positions, ..texts(given, &["a"]) }).with(texts(stored, &["b"]));
    let committed = make(&store, commit).await;
    let (a, b) = (all(&store, given).await.remove(0), all(&store, stored).await.remove(0));
    assert_eq!((a.commit, b.commit), (committed.number, committed.number));
    assert_eq!(b.position.parts().0, committed.number);
    let later = make(&store, Commit::new().with(texts(stored, &["c"]))).await;
    assert!(later.number > committed.number);
}

/// The boundary of an append is stored: two appends may share a commit.
pub async fn the_last_record_of_an_append_is_marked(store: impl Subject) {
    let log = new_log(&store).await;
    make(&store, Commit::new().with(texts(log, &["a", "b"])).with(texts(log, &["c"]))).await;
    let boundaries: Vec<_> = all(&store, log).await.iter().map(|record| record.boundary).collect();
    assert_eq!(boundaries, [Boundary::Inside, Boundary::Last, Boundary::Last]);
}

/// A refused operation undoes all others of its commit, those before and those after it.
pub async fn a_commit_holds_whole_or_not_at_all(store: impl Subject) {
    let (log, closed) = (new_log(&store).await, new_log(&store).await);
    make(&store, Commit::new().with(closing(texts(closed, &[])))).await;
    let born = store.reserve().await.expect("a number");
    let commit = Commit::new()
        .with(Operation::create(born))
        .with(texts(born, &["x"]))
        .with(texts(log, &["x"]))
        .with(texts(closed, &["x"]))
        .changing(Note { key: "k".into(), text: "v".into() });
    assert_eq!(refused(&store, commit).await, Refusal::Closed { tail: Position::ZERO });
    assert!(all(&store, log).await.is_empty());
    assert_eq!(store.status(born).await, Err(ReadError::NoSuchLog(born)));
    assert_eq!(store.note("k"), None);
    let good = Commit::new().with(texts(log, &["y"])).changing(Note { key: "k".into(), text: "v".into() });
    make(&store, good).await;
    assert_eq!(all_texts(&store, log).await, ["y"]);
    assert_eq!(store.note("k").as_deref(), Some("v"));
}

/// A refused change of a table refuses the commit's operations as well.
pub async fn a_refused_change_leaves_the_logs_untouched(store: impl Subject) {
    let log = new_log(&store).await;
    let commit =
        || Commit::new().with(texts(log, &["x"])).changing(Note { key: "k".into(), text: "v".into() });
    make(&store, commit()).await;
    let error = store.commit(commit()).await.expect_err("the note is there");
    assert!(matches!(error, CommitError::Declined(NoteExists(key)) if key == "k"));
    assert_eq!(all_texts(&store, log).await, ["x"]);
}

/// A repeated producer request is refused with the current state, and nothing is appended.
pub async fn a_repeated_request_is_a_duplicate_and_adds_nothing(store: impl Subject) {
    let log = new_log(&store).await;
    for sequence in 0..3 {
        make(&store, Commit::new().with(stamped(texts(log, &["x"]), "p", 4, sequence))).await;
    }
    let status = store.status(log).await.expect("there");
    for sequence in 0..3 {
        let again = Commit::new().with(stamped(texts(log, &["other"]), "p", 4, sequence));
        assert_eq!(refused(&store, again).await, Refusal::Duplicate { epoch: 4, sequence: 2, status });
    }
    assert_eq!(all(&store, log).await.len(), 3);
}

/// Producer epochs and sequence numbers are checked per log and producer.
pub async fn producers_are_fenced_by_epoch_and_gaps_are_told(store: impl Subject) {
    let (log, other) = (new_log(&store).await, new_log(&store).await);
    let by =
        |log, id: &str, epoch, sequence| Commit::new().with(stamped(texts(log, &["x"]), id, epoch, sequence));
    assert_eq!(
        refused(&store, by(log, "p", 0, 5)).await,
        ProducerRefusal::Gap { expected: 0, received: 5 }.into()
    );
    make(&store, by(log, "p", 2, 0)).await;
    assert_eq!(
        refused(&store, by(log, "p", 2, 2)).await,
        ProducerRefusal::Gap { expected: 1, received: 2 }.into()
    );
    assert_eq!(refused(&store, by(log, "p", 1, 0)).await, ProducerRefusal::Fenced { epoch: 2 }.into());
    assert_eq!(refused(&store, by(log, "p", 3, 1)).await, ProducerRefusal::EpochStart.into());
    make(&store, by(log, "p", 3, 0)).await;
    assert_eq!(refused(&store, by(log, "p", 2, 1)).await, ProducerRefusal::Fenced { epoch: 3 }.into());
    make(&store, by(log, "q", 0, 0)).await;
    make(&store, by(other, "p", 0, 0)).await;
}

/// A request that was refused for another reason can be repeated with the same producer stamp.
pub async fn a_refused_append_does_not_count_as_a_request(store: impl Subject) {
    let log = new_log(&store).await;
    let mut wrong_tail = stamped(texts(log, &["x"]), "p", 0, 0);
    wrong_tail.conditions.tail = Some(Position::new(99));
    let refusal = refused(&store, Commit::new().with(wrong_tail)).await;
    assert_eq!(refusal, Refusal::TailMoved { tail: Position::ZERO });
    make(&store, Commit::new().with(stamped(texts(log, &["x"]), "p", 0, 0))).await;
}

/// Order texts are compared byte by byte: "10" sorts before "2", and an equal text is refused.
pub async fn order_texts_compare_byte_by_byte(store: impl Subject) {
    let log = new_log(&store).await;
    let ordered = |order: &str| {
        let mut append = texts(log, &["x"]);
        append.conditions.order = Some(order.into());
        Commit::new().with(append)
    };
    make(&store, ordered("2")).await;
    assert_eq!(refused(&store, ordered("10")).await, Refusal::OutOfOrder);
    assert_eq!(refused(&store, ordered("2")).await, Refusal::OutOfOrder);
    append(&store, log, &["without"]).await;
    make(&store, ordered("20")).await;
    make(&store, ordered("a")).await;
    assert_eq!(refused(&store, ordered("B")).await, Refusal::OutOfOrder);
}

/// Compare-and-set: of two appends that expect the same tail, one is made.
pub async fn an_expected_tail_lets_one_of_two_win(store: impl Subject) {
    let log = new_log(&store).await;
    let expecting = |tail| {
        let mut append = texts(log, &["x"]);
        append.conditions.tail = Some(tail);
        Commit::new().with(append)
    };
    let (one, two) =
        tokio::join!(store.commit(expecting(Position::ZERO)), store.commit(expecting(Position::ZERO)));
    let tail = store.status(log).await.expect("there").tail;
    let lost = [one, two].into_iter().filter_map(Result::err).collect::<Vec<_>>();
    assert!(matches!(lost[..], [CommitError::Refused(Refusal::TailMoved { tail: told })] if told == tail));
    make(&store, expecting(tail)).await;
}

/// Closing is final; closing again returns the position of the end.
pub async fn a_closed_log_takes_nothing_more(store: impl Subject) {
    let log = new_log(&store).await;
    let last = make(&store, Commit::new().with(closing(texts(log, &["end"])))).await.appended().last;
    let status = Status { tail: last, closed: true, total: totals(&["end"]), ..Status::default() };
    assert_eq!(store.status(log).await, Ok(status));
    for more in [texts(log, &["more"]), closing(texts(log, &[])), stamped(texts(log, &["more"]), "p", 0, 0)] {
        assert_eq!(refused(&store, Commit::new().with(more)).await, Refusal::Closed { tail: last });
    }
    assert!(matches!(refused(&store, Commit::new().with(texts(log, &[]))).await, Refusal::Malformed(_)));
    assert_eq!(all_texts(&store, log).await, ["end"]);
}

/// The producer that closed a log may repeat the request; others may not.
pub async fn the_request_that_closed_a_log_may_be_repeated(store: impl Subject) {
    let log = new_log(&store).await;
    make(&store, Commit::new().with(stamped(texts(log, &["a"]), "p", 0, 0))).await;
    make(&store, Commit::new().with(closing(stamped(texts(log, &["b"]), "p", 0, 1)))).await;
    let status = store.status(log).await.expect("there");
    let again = Commit::new().with(closing(stamped(texts(log, &["b"]), "p", 0, 1)));
    assert_eq!(refused(&store, again).await, Refusal::Duplicate { epoch: 0, sequence: 1, status });
    for other in [stamped(texts(log, &["c"]), "p", 0, 2), stamped(texts(log, &["a"]), "p", 0, 0)] {
        let refusal = refused(&store, Commit::new().with(closing(other))).await;
        assert_eq!(refusal, Refusal::Closed { tail: status.tail });
    }
}

/// Many logs can refer to one payload.
pub async fn references_share_the_payload_and_know_their_origin(store: impl Subject) {
    let source = new_log(&store).await;
    let targets = [new_log(&store).await, new_log(&store).await];
    append(&store, targets[1], &["own"]).await;
    let refer = Refer { of: Of::Append(0), into: Arc::new(targets) };
    let committed = make(&store, Commit::new().with(texts(source, &["a", "b"])).with(refer)).await;
    assert_eq!(committed.outcomes[1], Outcome::Referred(Referred::default()));
    let originals = all(&store, source).await;
    for (target, own) in targets.into_iter().zip([0, 1]) {
        let references = all(&store, target).await.split_off(own);
        assert_eq!(references.len(), 2);
        for (reference, original) in references.iter().zip(&originals) {
            assert_eq!(reference.payload, original.payload);
            assert_eq!(
                reference.origin,
                Some(Origin { log: source, position: original.position, at: original.at })
            );
            assert_eq!(reference.commit, committed.number);
            assert_eq!(reference.boundary, original.boundary);
        }
        assert_eq!(store.status(target).await.expect("there").tail, references[1].position);
    }
}

/// References to stored records can be made later, and a reference to a reference points to the record.
pub async fn references_can_follow_later_and_only_once_above_the_cursor(store: impl Subject) {
    let (source, inbox, copy) = (new_log(&store).await, new_log(&store).await, new_log(&store).await);
    let first = append(&store, source, &["a"]).await.last;
    let last = append(&store, source, &["b", "c"]).await.last;
    append(&store, source, &["later"]).await;
    let refer = |log, after, through, into| {
        Commit::new().with(Refer { of: Of::Stored { log, after, through }, into: Arc::new([into]) })
    };
    make(&store, refer(source, Position::ZERO, first, inbox)).await;
    make(&store, refer(source, first, last, inbox)).await;
    assert_eq!(all_texts(&store, inbox).await, ["a", "b", "c"]);
    make(&store, refer(inbox, Position::ZERO, Position::MAX, copy)).await;
    let originals = all(&store, source).await;
    let originals = originals.iter().map(|r| Origin { log: source, position: r.position, at: r.at }).take(3);
    let origins = all(&store, copy).await;
    assert!(origins.iter().map(|r| r.origin.expect("a reference")).eq(originals));
    let missing = refer(LogId::new(u64::MAX), Position::ZERO, Position::MAX, inbox);
    assert_eq!(refused(&store, missing).await, Refusal::NoSuchLog(LogId::new(u64::MAX)));
}

/// A reference stays readable when the original is gone.
pub async fn references_outlive_their_record_and_its_log(store: impl Subject) {
    let (source, inbox) = (new_log(&store).await, new_log(&store).await);
    let refer = Refer { of: Of::Append(0), into: Arc::new([inbox]) };
    let tail = make(&store, Commit::new().with(texts(source, &["a", "b"])).with(refer)).await.appended().last;
    make(&store, Commit::new().with(Operation::Trim { log: source, floor: tail })).await;
    assert_eq!(all_texts(&store, inbox).await, ["a", "b"]);
    make(&store, Commit::new().with(Operation::Delete(source))).await;
    assert_eq!(all_texts(&store, inbox).await, ["a", "b"]);
}

/// A missing or closed target affects neither the other targets nor the append.
pub async fn missing_and_closed_targets_are_told_and_refuse_nothing(store: impl Subject) {
    let source = new_log(&store).await;
    let (gone, closed, alive) = (new_log(&store).await, new_log(&store).await, new_log(&store).await);
    make(&store, Commit::new().with(Operation::Delete(gone)).with(closing(texts(closed, &[])))).await;
    let refer = Refer { of: Of::Append(0), into: Arc::new([gone, closed, alive]) };
    let committed = make(&store, Commit::new().with(texts(source, &["a"])).with(refer)).await;
    let told = Referred { missing: vec![gone], closed: vec![closed] };
    assert_eq!(committed.outcomes[1], Outcome::Referred(told));
    assert_eq!(all_texts(&store, alive).await, ["a"]);
    assert!(all(&store, closed).await.is_empty());
}

/// A journal has every record that was appended with a reference to it.
pub async fn a_journal_hears_every_append_of_its_logs(store: impl Subject) {
    let journal = new_log(&store).await;
    let logs = [new_log(&store).await, new_log(&store).await, new_log(&store).await];
    for n in 0..12 {
        let payload = n.to_string();
        make(&store, Commit::new().with(texts(logs[n % 3], &[&payload])).journaled(journal)).await;
    }
    let heard = all(&store, journal).await;
    assert_eq!(
        heard.iter().map(text).collect::<Vec<_>>(),
        (0..12).map(|n| n.to_string()).collect::<Vec<_>>()
    );
    assert_eq!(heard[4].origin.expect("a reference").log, logs[1]);
}

/// Trimmed records are gone; the tail stays, and appends continue above it.
pub async fn a_floor_hides_records_and_never_sinks(store: impl Subject) {
    let log = new_log(&store).await;
    let first = append(&store, log, &["a", "b", "c"]).await;
    let second_position = page(&store, log, first.first).await.records[0].position;
    make(&store, Commit::new().with(Operation::Trim { log, floor: second_position })).await;
    make(&store, Commit::new().with(Operation::Trim { log, floor: first.first })).await;
    let total = totals(&["a", "b", "c"]);
    let status = Status { tail: first.last, floor: second_position, closed: false, total };
    assert_eq!(store.status(log).await, Ok(status));
    assert_eq!(all_texts(&store, log).await, ["c"], "zero means the oldest that is kept");
    let trimmed = ReadError::Trimmed { floor: second_position, tail: first.last };
    assert_eq!(store.read(log, Span::after(first.first)).await, Err(trimmed));
    assert_eq!(page(&store, log, second_position).await.records.len(), 1);
    make(&store, Commit::new().with(Operation::Trim { log, floor: Position::MAX })).await;
    let emptied = store.status(log).await.expect("there");
    assert_eq!((emptied.floor, emptied.tail), (first.last, first.last), "a floor is at most the tail");
    assert!(append(&store, log, &["d"]).await.first > first.last);
    assert_eq!(all_texts(&store, log).await, ["d"]);
}

/// Records and bytes are counted, references included; neither trimming nor a refused commit changes the count.
pub async fn a_log_counts_what_it_ever_took(store: impl Subject) {
    let (log, target) = (new_log(&store).await, new_log(&store).await);
    let refer = Refer { of: Of::Append(0), into: Arc::new([target]) };
    let last =
        make(&store, Commit::new().with(texts(log, &["a", "bcd", ""])).with(refer)).await.appended().last;
    for of in [log, target] {
        assert_eq!(store.status(of).await.expect("there").total, LogTotals { records: 3, bytes: 4 });
    }
    let nothing_new = texts(log, &["never"]);
    let twice = Commit::new().with(nothing_new).with(texts(LogId::new(u64::MAX >> 1), &["x"]));
    refused(&store, twice).await;
    make(&store, Commit::new().with(Operation::Trim { log, floor: last })).await;
    make(&store, Commit::new().with(closing(texts(log, &["ef"])))).await;
    let of = Of::Stored { log, after: Position::ZERO, through: Position::MAX };
    make(&store, Commit::new().with(Refer { of, into: Arc::new([target]) })).await;
    for of in [log, target] {
        assert_eq!(store.status(of).await.expect("there").total, LogTotals { records: 4, bytes: 6 });
    }
}

/// A listener is woken when its log is deleted.
pub async fn a_deleted_log_is_gone_and_its_readers_are_woken(store: impl Subject) {
    let log = new_log(&store).await;
    let tail = append(&store, log, &["a"]).await.last;
    let mut listener = store.bus().listen(log);
    let reader = store.clone();
    let waiting = tokio::spawn(async move { read_on(&reader, log, &mut listener, Span::after(tail)).await });
    tokio::task::yield_now().await;
    make(&store, Commit::new().with(Operation::Delete(log))).await;
    assert_eq!(waiting.await.expect("no panic"), Err(ReadError::NoSuchLog(log)));
}

/// A commit that is not durable is neither visible nor acknowledged, and a refusal that rests on it waits.
pub async fn nothing_is_visible_before_it_is_durable(store: impl Subject) {
    let log = new_log(&store).await;
    let held = store.hold().await;
    let write = |append| {
        let store = store.clone();
        tokio::spawn(async move { store.commit(Commit::new().with(append)).await })
    };
    let first = write(closing(texts(log, &["a"])));
    // The first commit must reach the store before the second.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let second = write(texts(log, &["b"]));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!first.is_finished(), "acknowledged before it was durable");
    assert!(!second.is_finished(), "refused on ground that could still be lost");
    assert_eq!(store.status(log).await, Ok(Status::default()));
    assert!(all(&store, log).await.is_empty());
    drop(held);
    let tail = first.await.expect("no panic").expect("good").appended().last;
    let refusal = second.await.expect("no panic").expect_err("closed");
    assert!(matches!(refusal, CommitError::Refused(Refusal::Closed { tail: told }) if told == tail));
    assert_eq!(all_texts(&store, log).await, ["a"]);
}

/// What an observer was told: the keys of notes, in order.
#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Heard {
    /// An observer of the store from now on, which is there as long as what is returned.
    fn of<S: Subject>(store: &S) -> (Arc<Self>, Arc<dyn Observer<S::StateMachine>>) {
        let heard = Arc::new(Self::default());
        let observer: Arc<dyn Observer<S::StateMachine>> = heard.clone();
        store.observe(&observer);
        (heard, observer)
    }

    fn keys(&self) -> Vec<String> {
        self.0.lock().expect("not poisoned").clone()
    }
}

impl<T: StateMachine<Change = Note>> Observer<T> for Heard {
    fn begin(&self, _: &T) {
        self.0.lock().expect("not poisoned").clear();
    }

    fn applied(&self, change: &Note) {
        self.0.lock().expect("not poisoned").push(change.key.clone());
    }
}

fn noting(key: impl Into<String>) -> Commit<Note> {
    Commit::new().changing(Note { key: key.into(), text: "text".into() })
}

/// Whoever is answered finds that all observers know, and all observers hear the same, in the order of commits.
pub async fn observers_hear_changes_in_order_before_the_writer_is_answered(store: impl Subject) {
    make(&store, noting("before")).await;
    let (first, _first) = Heard::of(&store);
    let (second, _second) = Heard::of(&store);
    let writers = (0..8).map(|writer| {
        let (store, heard) = (store.clone(), first.clone());
        tokio::spawn(async move {
            let mut made = Vec::new();
            for n in 0..25 {
                let key = format!("{writer}/{n}");
                let commit = noting(&key).changing(Note { key: format!("{key}/also"), text: "text".into() });
                let number = make(&store, commit).await.number;
                assert!(heard.keys().contains(&key), "answered before observers were told");
                made.push((key, number));
            }
            made
        })
    });
    let mut numbers = BTreeMap::new();
    for writer in writers.collect::<Vec<_>>() {
        numbers.extend(writer.await.expect("no panic"));
    }
    let keys = first.keys();
    assert_eq!((keys.len(), &keys), (400, &second.keys()));
    let pairs: Vec<_> = keys.chunks(2).collect();
    assert!(pairs.iter().all(|pair| pair[1] == format!("{}/also", pair[0])), "the changes of one commit");
    assert!(pairs.is_sorted_by_key(|pair| numbers[&pair[0]]), "the order of commits");
}

/// What could still be lost, and what is refused, is told to nobody.
pub async fn an_observer_does_not_hear_what_is_not_durable_or_was_refused(store: impl Subject) {
    let (heard, observer) = Heard::of(&store);
    let held = store.hold().await;
    let writing = tokio::spawn({
        let store = store.clone();
        async move { store.commit(noting("a")).await }
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(heard.keys().is_empty(), "it could still be lost");
    drop(held);
    writing.await.expect("no panic").expect("good");
    assert!(matches!(store.commit(noting("a")).await, Err(CommitError::Declined(_))));
    make(&store, noting("b")).await;
    assert_eq!(heard.keys(), ["a", "b"]);
    drop(observer);
    assert_eq!(Arc::strong_count(&heard), 1, "the store does not own its observers");
    make(&store, noting("c")).await;
    assert_eq!(heard.keys(), ["a", "b", "c"], "it is told as long as somebody owns it");
}

/// Catch-up and live join without a gap and without a double.
pub async fn a_reader_hears_everything_once_across_the_seam(store: impl Subject) {
    const RECORDS: usize = 300;
    let log = new_log(&store).await;
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0..RECORDS {
                let close = if n + 1 == RECORDS { Then::Close } else { Then::StayOpen };
                make(&store, Commit::new().with(Append { then: close, ..texts(log, &[&n.to_string()]) }))
                    .await;
                if n % 7 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        })
    };
    let readers = (0..4).map(|_| {
        let (store, mut listener) = (store.clone(), store.bus().listen(log));
        tokio::spawn(async move {
            let (mut heard, mut after) = (Vec::new(), Position::ZERO);
            loop {
                let span = Span { bytes: 50, ..Span::after(after) };
                let page = read_on(&store, log, &mut listener, span).await.expect("readable");
                if page.records.is_empty() {
                    return heard;
                }
                after = page.last(after);
                heard.extend(page.records.iter().map(text));
                tokio::task::yield_now().await;
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    writer.await.expect("no panic");
    for reader in readers {
        let heard = reader.await.expect("no panic");
        assert_eq!(heard, (0..RECORDS).map(|n| n.to_string()).collect::<Vec<_>>());
    }
    assert_eq!(store.bus().listened(), 0, "a reader that is gone listens to nothing");
}

/// Concurrent writers get one order, and nothing is lost.
pub async fn concurrent_appends_all_hold_in_one_order(store: impl Subject) {
    let log = new_log(&store).await;
    let writers = (0..8).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0..25 {
                append(&store, log, &[&format!("{writer}/{n}")]).await;
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("no panic");
    }
    let records = all(&store, log).await;
    assert_eq!(records.len(), 200);
    assert!(records.is_sorted_by(|a, b| a.position < b.position));
    for writer in 0..8 {
        let own: Vec<_> = records.iter().map(text).filter(|t| t.starts_with(&format!("{writer}/"))).collect();
        assert_eq!(own, (0..25).map(|n| format!("{writer}/{n}")).collect::<Vec<_>>());
    }
}

/// After each of thousands of random commits, the store equals a plain map.
pub async fn random_commits_agree_with_a_plain_model(store: impl Subject) {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut model: BTreeMap<LogId, ModelLog> = BTreeMap::new();
    let mut logs: Vec<LogId> = Vec::new();
    for step in 0..3_000 {
        let log = if logs.is_empty() { LogId::new(0) } else { logs[rng.usize(..logs.len())] };
        let open = model.get(&log).is_some_and(|known| !known.closed);
        match rng.u8(..100) {
            0..6 => {
                let log = new_log(&store).await;
                logs.push(log);
                model.insert(log, ModelLog::default());
            }
            6..60 => {
                let payloads: Vec<_> = (0..rng.usize(1..4)).map(|n| format!("{step}.{n}")).collect();
                let then = if rng.u8(..40) == 0 { Then::Close } else { Then::StayOpen };
                let borrowed: Vec<_> = payloads.iter().map(String::as_str).collect();
                let made = store.commit(Commit::new().with(Append { then, ..texts(log, &borrowed) })).await;
                assert_eq!(made.is_ok(), open, "step {step}");
                if let Some(known) = model.get_mut(&log).filter(|_| open) {
                    known.texts.extend(payloads);
                    known.closed = then == Then::Close;
                }
            }
            60..80 if !logs.is_empty() => {
                let into: Arc<[LogId]> = logs.iter().copied().filter(|_| rng.bool()).collect();
                let refer = Refer { of: Of::Append(0), into: into.clone() };
                let payload = format!("{step}");
                let made = store.commit(Commit::new().with(texts(log, &[&payload])).with(refer)).await;
                assert_eq!(made.is_ok(), open, "step {step}");
                if open {
                    model.get_mut(&log).expect("open").texts.push(payload.clone());
                    for target in into.iter() {
                        if let Some(known) = model.get_mut(target).filter(|known| !known.closed) {
                            known.texts.push(payload.clone());
                        }
                    }
                }
            }
            80..90 => {
                if let Some(known) = model.get_mut(&log) {
                    let keep = rng.usize(..=known.texts.len() - known.trimmed);
                    let records = all(&store, log).await;
                    let floor = records.len() - keep;
                    if floor > 0 {
                        let floor_at = records[floor - 1].position;
                        make(&store, Commit::new().with(Operation::Trim { log, floor: floor_at })).await;
                        known.trimmed += floor;
                    }
                }
            }
            90..92 => {
                let made = store.commit(Commit::new().with(Operation::Delete(log))).await;
                assert_eq!(made.is_ok(), model.remove(&log).is_some(), "step {step}");
            }
            _ => match model.get(&log) {
                Some(known) => {
                    assert_eq!(all_texts(&store, log).await, known.texts[known.trimmed..], "step {step}");
                    let status = store.status(log).await.expect("there");
                    assert_eq!((status.closed, status.total), (known.closed, totals(&known.texts)));
                }
                None => assert_eq!(store.status(log).await, Err(ReadError::NoSuchLog(log))),
            },
        }
    }
    for (log, known) in model {
        assert_eq!(all_texts(&store, log).await, known.texts[known.trimmed..]);
    }
}

#[derive(Default)]
struct ModelLog {
    texts: Vec<String>,
    trimmed: usize,
    closed: bool,
}
