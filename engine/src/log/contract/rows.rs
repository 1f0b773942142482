//! The part of the contract suite about cold rows. A store runs it with [`rows_contract!`](crate::rows_contract), on a
//! [`Fixture`] that may close the store and open it again between writing and asking.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidings_model::{LogId, limits};

use super::{Note, Subject, all_texts, make, new_log, texts};
use crate::log::fixture::Fixture;
use crate::log::{
    Append, Commit, CommitError, Commits, Logs, Operation, Row, RowChange, RowSpan, RowTable, Rows,
    StoreError,
};

/// Generates a `#[tokio::test]` for each promise about cold rows, on an empty store from `$make`.
#[macro_export]
macro_rules! rows_contract {
    ($make:expr) => {
        $crate::rows_contract!(@each $make;
            a_row_is_read_under_its_key
            the_last_change_of_a_row_counts
            a_deleted_row_is_gone_and_may_come_back
            tables_do_not_share_rows
            rows_are_read_in_the_order_of_their_keys
            a_page_of_rows_ends_at_its_limits_but_has_at_least_one_row
            a_floor_removes_what_is_below_it_and_nothing_that_is_written_later
            a_floor_stays_within_its_prefix
            changes_of_rows_in_one_commit_take_effect_in_their_order
            rows_hold_with_their_commit_or_not_at_all
            rows_are_visible_exactly_when_their_commit_is
            a_read_of_rows_sees_one_moment
            what_is_too_large_for_a_row_is_refused
            random_changes_of_rows_agree_with_a_plain_model
        );
    };
    (@each $make:expr; $($promise:ident)+) => {
        $(
            #[tokio::test]
            async fn $promise() {
                $crate::log::contract::rows::$promise($make().await).await;
            }
        )+
    };
}

/// A store under this part of the suite.
pub trait RowFixture: Fixture<Store: Subject + Rows> {}

impl<F: Fixture<Store: Subject + Rows>> RowFixture for F {}

const ONE: RowTable = RowTable(1);
const TWO: RowTable = RowTable(2);

fn put(table: RowTable, key: &str, value: &str) -> RowChange {
    let (key, value) = (key.to_owned().into(), value.to_owned().into());
    RowChange::Put { table, key, value }
}

fn delete(table: RowTable, key: &str) -> RowChange {
    RowChange::Delete { table, key: key.to_owned().into() }
}

fn floor(table: RowTable, prefix: &str, below: &str) -> RowChange {
    RowChange::Floor { table, prefix: prefix.to_owned().into(), below: below.to_owned().into() }
}

fn rows_of(changes: impl IntoIterator<Item = RowChange>) -> Commit<Note> {
    Commit { rows: changes.into_iter().collect(), ..Commit::new() }
}

async fn write(fixture: &impl RowFixture, changes: impl IntoIterator<Item = RowChange>) {
    make(fixture.store(), rows_of(changes)).await;
}

async fn value(store: &impl Rows, table: RowTable, key: &str) -> Option<String> {
    let value = store.row(table, key.as_bytes()).await.expect("readable");
    value.map(|value| String::from_utf8(value.to_vec()).expect("the suite writes text"))
}

async fn all_rows(store: &impl Rows, table: RowTable) -> Vec<Row> {
    store.rows(table, RowSpan::of_prefix(Bytes::new())).await.expect("readable")
}

/// Keys and values of a table in a row: `a=1 b=2`.
async fn listed(store: &impl Rows, table: RowTable) -> String {
    shown(&all_rows(store, table).await)
}

fn shown(rows: &[Row]) -> String {
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).expect("the suite writes text");
    let shown: Vec<_> = rows.iter().map(|row| format!("{}={}", text(&row.key), text(&row.value))).collect();
    shown.join(" ")
}

/// A row is found under its key and under no other. Keys and values may be empty.
pub async fn a_row_is_read_under_its_key(mut fixture: impl RowFixture) {
    write(&fixture, [put(ONE, "b", "2"), put(ONE, "a", "1"), put(ONE, "", "nothing"), put(ONE, "ab", "")])
        .await;
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(value(store, ONE, "a").await.as_deref(), Some("1"));
    assert_eq!(value(store, ONE, "b").await.as_deref(), Some("2"));
    assert_eq!(value(store, ONE, "").await.as_deref(), Some("nothing"));
    assert_eq!(value(store, ONE, "ab").await.as_deref(), Some(""));
    assert_eq!(value(store, ONE, "aa").await, None);
    assert_eq!(value(store, ONE, "c").await, None);
}

/// Of several changes of a row the last one counts, in one commit and over many.
pub async fn the_last_change_of_a_row_counts(mut fixture: impl RowFixture) {
    write(&fixture, [put(ONE, "a", "1"), put(ONE, "b", "1"), put(ONE, "c", "1")]).await;
    fixture.reopen().await;
    write(&fixture, [put(ONE, "b", "2"), put(ONE, "b", "3")]).await;
    assert_eq!(value(fixture.store(), ONE, "b").await.as_deref(), Some("3"));
    fixture.reopen().await;
    assert_eq!(listed(fixture.store(), ONE).await, "a=1 b=3 c=1");
}

/// A deleted row is not read, whatever was written under its key before. It can be written again.
pub async fn a_deleted_row_is_gone_and_may_come_back(mut fixture: impl RowFixture) {
    write(&fixture, [put(ONE, "a", "1"), put(ONE, "b", "1")]).await;
    fixture.reopen().await;
    write(&fixture, [put(ONE, "b", "2")]).await;
    write(&fixture, [delete(ONE, "b"), delete(ONE, "unknown")]).await;
    assert_eq!(listed(fixture.store(), ONE).await, "a=1");
    fixture.reopen().await;
    assert_eq!(value(fixture.store(), ONE, "b").await, None);
    assert_eq!(listed(fixture.store(), ONE).await, "a=1");
    write(&fixture, [put(ONE, "b", "3")]).await;
    fixture.reopen().await;
    assert_eq!(listed(fixture.store(), ONE).await, "a=1 b=3");
}

/// The same key in two tables is two rows.
pub async fn tables_do_not_share_rows(mut fixture: impl RowFixture) {
    let (low, high) = (RowTable(0), RowTable(u8::MAX));
    for table in [low, ONE, TWO, high] {
        write(&fixture, [put(table, "a", &table.0.to_string()), put(table, "b", "x")]).await;
    }
    fixture.reopen().await;
    write(&fixture, [delete(ONE, "b"), RowChange::clear(TWO, Bytes::new()), floor(high, "", "b")]).await;
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(listed(store, low).await, "a=0 b=x");
    assert_eq!(listed(store, ONE).await, "a=1");
    assert_eq!(listed(store, TWO).await, "");
    assert_eq!(listed(store, high).await, "b=x");
}

/// A span has the rows from its first key on and ends before its last one.
pub async fn rows_are_read_in_the_order_of_their_keys(mut fixture: impl RowFixture) {
    for (n, keys) in [["c", "a/2"], ["a/1", "b"], ["a", "a/10"]].into_iter().enumerate() {
        write(&fixture, keys.map(|key| put(ONE, key, &n.to_string()))).await;
        fixture.reopen().await;
    }
    let store = fixture.store();
    assert_eq!(listed(store, ONE).await, "a=2 a/1=1 a/10=2 a/2=0 b=1 c=0");
    let span = async |from: &'static str, to: &'static str| {
        let span = RowSpan { from: from.into(), to: to.into(), rows: usize::MAX, bytes: usize::MAX };
        shown(&store.rows(ONE, span).await.expect("readable"))
    };
    assert_eq!(span("a/1", "b").await, "a/1=1 a/10=2 a/2=0");
    assert_eq!(span("a/", "a/1").await, "");
    assert_eq!(span("bb", "d").await, "c=0");
    assert_eq!(span("b", "b").await, "");
    assert_eq!(span("c", "a").await, "", "a span that ends before it begins is empty");
    let within = store.rows(ONE, RowSpan::of_prefix(Bytes::from_static(b"a/"))).await.expect("readable");
    assert_eq!(shown(&within), "a/1=1 a/10=2 a/2=0");
}

/// A read stops at its limits, but returns one whole row even if it exceeds them.
pub async fn a_page_of_rows_ends_at_its_limits_but_has_at_least_one_row(mut fixture: impl RowFixture) {
    write(&fixture, [put(ONE, "a", "1234"), put(ONE, "b", "1"), put(ONE, "c", "1"), put(ONE, "d", "1")])
        .await;
    fixture.reopen().await;
    write(&fixture, [delete(ONE, "b"), put(ONE, "c", "123"), put(ONE, "e", "1")]).await;
    fixture.reopen().await;
    let store = fixture.store();
    let page = async |rows, bytes| {
        let span = RowSpan { rows, bytes, ..RowSpan::of_prefix(Bytes::new()) };
        shown(&store.rows(ONE, span).await.expect("readable"))
    };
    assert_eq!(page(usize::MAX, 0).await, "a=1234");
    assert_eq!(page(0, usize::MAX).await, "a=1234");
    assert_eq!(page(1, usize::MAX).await, "a=1234");
    assert_eq!(page(2, usize::MAX).await, "a=1234 c=123");
    assert_eq!(page(usize::MAX, 8).await, "a=1234");
    assert_eq!(page(usize::MAX, 9).await, "a=1234 c=123");
    assert_eq!(page(3, 100).await, "a=1234 c=123 d=1");
    assert_eq!(page(9, 100).await, "a=1234 c=123 d=1 e=1");
}

/// A floor removes rows that were written before it. What is written later stays, and so does what lies at it or above.
pub async fn a_floor_removes_what_is_below_it_and_nothing_that_is_written_later(
    mut fixture: impl RowFixture,
) {
    write(&fixture, ["1", "2", "3", "4"].map(|key| put(ONE, key, "old"))).await;
    fixture.reopen().await;
    write(&fixture, [put(ONE, "25", "recent")]).await;
    write(&fixture, [floor(ONE, "", "3")]).await;
    assert_eq!(listed(fixture.store(), ONE).await, "3=old 4=old");
    fixture.reopen().await;
    assert_eq!(listed(fixture.store(), ONE).await, "3=old 4=old");
    assert_eq!(value(fixture.store(), ONE, "2").await, None);
    write(&fixture, [put(ONE, "2", "new")]).await;
    fixture.reopen().await;
    assert_eq!(value(fixture.store(), ONE, "2").await.as_deref(), Some("new"));
    assert_eq!(listed(fixture.store(), ONE).await, "2=new 3=old 4=old");
    // A lower floor removes what lies below it by now, and raises nothing.
    write(&fixture, [put(ONE, "0", "newer"), floor(ONE, "", "1")]).await;
    fixture.reopen().await;
    assert_eq!(listed(fixture.store(), ONE).await, "2=new 3=old 4=old");
    write(&fixture, [floor(ONE, "", "4")]).await;
    fixture.reopen().await;
    assert_eq!(listed(fixture.store(), ONE).await, "4=old");
}

/// A floor removes only rows whose keys begin with its prefix, wherever it lies.
pub async fn a_floor_stays_within_its_prefix(mut fixture: impl RowFixture) {
    write(&fixture, ["a", "b/1", "b/2", "b/3", "b0", "c/1"].map(|key| put(ONE, key, "x"))).await;
    fixture.reopen().await;
    write(&fixture, [floor(ONE, "b/", "b/2")]).await;
    assert_eq!(listed(fixture.store(), ONE).await, "a=x b/2=x b/3=x b0=x c/1=x");
    fixture.reopen().await;
    assert_eq!(listed(fixture.store(), ONE).await, "a=x b/2=x b/3=x b0=x c/1=x");
    write(&fixture, [floor(ONE, "b/", "b"), floor(ONE, "b/", "a")]).await;
    fixture.reopen().await;
    assert_eq!(listed(fixture.store(), ONE).await, "a=x b/2=x b/3=x b0=x c/1=x", "it lies below the prefix");
    write(&fixture, [floor(ONE, "b/", "zzz")]).await;
    fixture.reopen().await;
    assert_eq!(listed(fixture.store(), ONE).await, "a=x b0=x c/1=x", "it lies above the prefix");
    write(&fixture, [RowChange::clear(ONE, "b".into())]).await;
    fixture.reopen().await;
    assert_eq!(listed(fixture.store(), ONE).await, "a=x c/1=x");
    write(&fixture, [RowChange::clear(ONE, Bytes::new())]).await;
    fixture.reopen().await;
    assert_eq!(listed(fixture.store(), ONE).await, "");
}

/// Within one commit a later change sees what an earlier one did.
pub async fn changes_of_rows_in_one_commit_take_effect_in_their_order(mut fixture: impl RowFixture) {
    write(&fixture, [put(ONE, "a", "0"), put(ONE, "b", "0"), put(ONE, "c", "0")]).await;
    fixture.reopen().await;
    let changes = [
        put(ONE, "a", "1"),
        put(ONE, "a2", "1"),
        floor(ONE, "", "b"),
        put(ONE, "a2", "2"),
        delete(ONE, "b"),
        put(ONE, "b", "2"),
        put(ONE, "c", "2"),
        delete(ONE, "c"),
    ];
    write(&fixture, changes).await;
    assert_eq!(listed(fixture.store(), ONE).await, "a2=2 b=2");
    fixture.reopen().await;
    assert_eq!(listed(fixture.store(), ONE).await, "a2=2 b=2");
}

/// Rows are committed with operations on logs and changes of tables, or none of them is.
pub async fn rows_hold_with_their_commit_or_not_at_all(mut fixture: impl RowFixture) {
    let store = fixture.store();
    let log = new_log(store).await;
    let all = |n: &str| {
        let note = Note { key: "note".to_owned(), text: n.to_owned() };
        Commit::new().with(texts(log, &[n])).changing(note).with_row(put(ONE, "row", n))
    };
    make(store, all("1")).await;
    let declined = store.commit(all("2")).await;
    assert!(matches!(declined, Err(CommitError::Declined(_))), "{declined:?}");
    let unknown = Append::new(LogId::new(u64::MAX), vec![Bytes::new()]);
    let refused = store.commit(Commit::new().with(unknown).with_row(put(ONE, "other", "2"))).await;
    assert!(matches!(refused, Err(CommitError::Refused(_))), "{refused:?}");
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(all_texts(store, log).await, ["1"]);
    assert_eq!(store.note("note").as_deref(), Some("1"));
    assert_eq!(listed(store, ONE).await, "row=1");
}

/// No read shows a row that could still be lost, and every read that begins after the acknowledgement shows it.
pub async fn rows_are_visible_exactly_when_their_commit_is(fixture: impl RowFixture) {
    let store = fixture.store();
    write(&fixture, [put(ONE, "a", "1"), put(ONE, "b", "1"), put(ONE, "c", "1")]).await;
    let held = store.hold().await;
    let writing = tokio::spawn({
        let store = store.clone();
        async move { store.commit(rows_of([put(ONE, "a", "2"), delete(ONE, "b"), floor(ONE, "c", "d")])).await }
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!writing.is_finished(), "acknowledged before it was durable");
    assert_eq!(listed(store, ONE).await, "a=1 b=1 c=1");
    assert_eq!(value(store, ONE, "a").await.as_deref(), Some("1"));
    drop(held);
    writing.await.expect("no panic").expect("good");
    assert_eq!(listed(store, ONE).await, "a=2");
    assert_eq!(value(store, ONE, "b").await, None);
}

/// A read of many rows shows them as they are between two commits, and so does one that follows an acknowledgement.
pub async fn a_read_of_rows_sees_one_moment(fixture: impl RowFixture) {
    const COMMITS: usize = 150;
    const KEYS: usize = 20;
    let store = fixture.store().clone();
    let writing = tokio::spawn(async move {
        for n in 0..COMMITS {
            let keys = (0..KEYS).map(|key| put(ONE, &format!("{key:02}"), &n.to_string()));
            // Every other row comes and goes.
            let gone =
                (0..KEYS).filter(|key| (key + n) % 2 == 0).map(|key| delete(ONE, &format!("{key:02}")));
            make(&store, rows_of(keys.chain(gone))).await;
        }
    });
    while !writing.is_finished() {
        let rows = all_rows(fixture.store(), ONE).await;
        let values: Vec<_> = rows.iter().map(|row| &row.value).collect();
        assert!(values.iter().all(|value| *value == values[0]), "{}", shown(&rows));
        assert!(rows.is_empty() || rows.len() == KEYS / 2, "{}", shown(&rows));
        tokio::task::yield_now().await;
    }
    writing.await.expect("no panic");
    assert!(listed(fixture.store(), ONE).await.starts_with("00=149 02=149"));
}

/// A key or a value above its limit refuses the whole commit, and the store goes on.
pub async fn what_is_too_large_for_a_row_is_refused(fixture: impl RowFixture) {
    let store = fixture.store();
    let bytes = |length: usize| Bytes::from(vec![7; length]);
    let (key, value) = (limits::ROW_KEY_BYTES, limits::ROW_VALUE_BYTES);
    let good = RowChange::Put { table: ONE, key: bytes(key), value: bytes(1) };
    for large in [
        RowChange::Put { table: ONE, key: bytes(key + 1), value: Bytes::new() },
        RowChange::Put { table: ONE, key: bytes(1), value: bytes(value + 1) },
        RowChange::Delete { table: ONE, key: bytes(key + 1) },
        RowChange::Floor { table: ONE, prefix: bytes(key + 1), below: bytes(1) },
        RowChange::Floor { table: ONE, prefix: Bytes::new(), below: bytes(key + 2) },
    ] {
        let log = store.reserve().await.expect("a number");
        let commit = rows_of([good.clone(), large]).with(Operation::create(log));
        let refused = store.commit(commit).await;
        assert!(matches!(refused, Err(CommitError::Store(StoreError::TooLarge { .. }))), "{refused:?}");
        assert!(store.status(log).await.is_err(), "the commit took no effect");
    }
    assert!(all_rows(store, ONE).await.is_empty());
    make(store, rows_of([good])).await;
    assert_eq!(all_rows(store, ONE).await.len(), 1);
}

/// After each of many random commits, all reads equal those of a plain map.
pub async fn random_changes_of_rows_agree_with_a_plain_model(mut fixture: impl RowFixture) {
    let mut rng = fastrand::Rng::with_seed(11);
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    // Three prefixes of different length, so that floors cover some keys and not their neighbours.
    let key = |rng: &mut fastrand::Rng| {
        let prefix = *rng.choice(&["", "a/", "abc/"]).expect("not empty");
        format!("{prefix}{:03}", rng.u32(..150)).into_bytes()
    };
    for step in 0..600 {
        let mut commit = Commit::new();
        for _ in 0..rng.usize(1..12) {
            let key = key(&mut rng);
            commit = commit.with_row(match rng.u8(..100) {
                0..70 => {
                    // Now and then a value is larger than any page of a store.
                    let bytes = if rng.u8(..50) == 0 { 20_000 } else { rng.usize(..80) };
                    let value: Vec<u8> = (0..bytes).map(|n| (step + n) as u8).collect();
                    model.insert(key.clone(), value.clone());
                    RowChange::Put { table: ONE, key: key.into(), value: value.into() }
                }
                70..95 => {
                    model.remove(&key);
                    RowChange::Delete { table: ONE, key: key.into() }
                }
                _ => {
                    let prefix: &[u8] =
                        rng.choice([&b""[..], b"a", b"a/", b"abc/", b"abc/0"]).expect("not empty");
                    model.retain(|row, _| !(row.starts_with(prefix) && *row < key));
                    RowChange::Floor { table: ONE, prefix: prefix.to_vec().into(), below: key.into() }
                }
            });
        }
        make(fixture.store(), commit).await;
        if rng.u8(..10) == 0 {
            fixture.reopen().await;
        }
        let store = fixture.store();
        let one = key(&mut rng);
        let found = store.row(ONE, &one).await.expect("readable");
        assert_eq!(found.as_deref(), model.get(&one).map(|value| &value[..]), "step {step}");
        let (from, to) = (key(&mut rng), key(&mut rng));
        let (rows, bytes) = (rng.usize(1..40), rng.usize(..4000));
        let expected = modelled(&model, &from, &to, rows, bytes);
        let span = RowSpan { from: from.into(), to: to.into(), rows, bytes };
        assert_eq!(store.rows(ONE, span).await.expect("readable"), expected, "step {step}");
    }
    let everything = modelled(&model, b"", b"b", usize::MAX, usize::MAX);
    assert_eq!(all_rows(fixture.store(), ONE).await, everything);
}

fn modelled(
    model: &BTreeMap<Vec<u8>, Vec<u8>>,
    from: &[u8],
    to: &[u8],
    rows: usize,
    bytes: usize,
) -> Vec<Row> {
    let mut taken = Vec::new();
    let mut left = bytes;
    for (key, value) in model.iter().filter(|(key, _)| key[..] >= *from && key[..] < *to) {
        let size = key.len() + value.len();
        if !taken.is_empty() && (taken.len() >= rows || size > left) {
            break;
        }
        left = left.saturating_sub(size);
        taken.push(Row { key: key.clone().into(), value: value.clone().into() });
    }
    taken
}
