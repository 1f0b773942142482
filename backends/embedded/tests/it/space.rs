//! A full disk: writes are refused, are accepted again without a restart when there is space, and nothing is
//! lost.

use std::sync::Arc;

use bytes::Bytes;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_embedded::{Disk, Embedded, Options};
use tidings_engine::log::contract::Note;
use tidings_engine::log::{Append, Commit, CommitError, Commits, Logs, Operation, Span, StoreError};
use tidings_model::{LogId, Position};

use crate::book::{Book, ObservedDisk, open, open_on, small};
use crate::row_model::{RowModel, key, put};

/// The reserve of these tests, in bytes.
const RESERVE: u64 = 1 << 20;

/// Options with memtables that are flushed only when a test says so.
fn by_hand() -> Options {
    Options { reserve_bytes: RESERVE, memtable_bytes: 32 << 20, wal_file_bytes: 2 << 20, ..small() }
}

async fn new_log(store: &Embedded<Book>) -> LogId {
    let log = store.reserve().await.expect("a number");
    store.commit(Commit::new().with(Operation::create(log))).await.expect("created");
    log
}

/// Writes a segment with `records` records of 1,000 bytes for each log.
async fn write_segment(store: &Embedded<Book>, logs: &[LogId], records: usize) {
    for &log in logs {
        let payloads = vec![Bytes::from(vec![7; 1_000]); records];
        store.commit(Commit::new().with(Append::new(log, payloads))).await.expect("appended");
    }
    store.flush().expect("written");
    store.merge_now().expect("looked after");
}

fn segments(disk: &SimulatedDisk) -> usize {
    disk.list("segments").expect("listed").len()
}

async fn records(store: &Embedded<Book>, log: LogId) -> usize {
    let all = Span { bytes: usize::MAX, records: usize::MAX, ..Span::after(Position::ZERO) };
    store.read(log, all).await.expect("readable").records.len()
}

/// Sets the capacity of a disk so that `bytes` are free.
fn leave(disk: &SimulatedDisk, bytes: u64) {
    disk.set_capacity(Some(disk.used() + bytes));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_writes_until_there_is_space_again() {
    for capacity in (200..1_600).step_by(100) {
        let disk = SimulatedDisk::new();
        let options = Options { reserve_bytes: 0, ..small() };
        let store = open(&disk, options.clone()).expect("new");
        let log = store.reserve().await.expect("a number");
        store.commit(Commit::new().with(Operation::create(log))).await.expect("created");
        disk.set_capacity(Some(capacity << 10));
        let mut acknowledged = 0u32;
        let append = |n: u32| {
            let mut payload = n.to_be_bytes().to_vec();
            payload.resize(2_000, 7);
            Commit::new()
                .with(Append::new(log, vec![Bytes::from(payload)]))
                .with_row(put(key(0, n), vec![7; 500]))
        };
        let full = loop {
            // With a full disk the store keeps what it cannot flush in memory, up to a bound, so this loop
            // ends.
            match store.commit(append(acknowledged)).await {
                Ok(_) => acknowledged += 1,
                Err(error) => break error,
            }
            assert!(acknowledged < 5_000, "it was never full at {capacity} KiB");
        };
        assert!(matches!(full, CommitError::Store(StoreError::NoSpace)), "{full}");
        disk.set_capacity(None);
        for _ in 0..200 {
            // Memtables that wait for space are flushed first, which takes a moment.
            while let Err(error) = store.commit(append(acknowledged)).await {
                assert!(matches!(error, CommitError::Store(StoreError::NoSpace)), "{error}");
                tokio::task::yield_now().await;
            }
            acknowledged += 1;
        }
        let all = Span { bytes: usize::MAX, records: usize::MAX, ..Span::after(Position::ZERO) };
        let whole = |records: Vec<tidings_engine::log::Record>| {
            records.len() as u32 == acknowledged
                && records.iter().zip(0u32..).all(|(record, n)| record.payload[..4] == n.to_be_bytes())
        };
        assert!(whole(store.read(log, all).await.expect("readable").records), "at {capacity} KiB");
        drop(store);
        let store =
            open(&disk.after_power_cut(&mut fastrand::Rng::with_seed(capacity)), options).expect("opens");
        assert!(
            whole(store.read(log, all).await.expect("readable").records),
            "at {capacity} KiB, after a power cut"
        );
        let rows = RowModel::of(&store).await.0;
        assert!(
            rows.keys().eq((0..acknowledged).map(|n| key(0, n)).collect::<Vec<_>>().iter()),
            "at {capacity} KiB"
        );
    }
}

#[tokio::test]
async fn writes_are_refused_before_the_last_space_is_gone() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, Options { reserve_bytes: 1 << 20, ..small() }).expect("new");
    let log = store.reserve().await.expect("a number");
    disk.set_capacity(Some(disk.used() + (1 << 20) - 1));
    let create = || Commit::new().with(Operation::create(log));
    let error = store.commit(create()).await.expect_err("too little is left");
    assert!(matches!(error, CommitError::Store(StoreError::NoSpace)), "{error}");
    assert_eq!(store.accepting(), Err(StoreError::NoSpace));
    disk.set_capacity(Some(disk.used() + (1 << 21)));
    assert_eq!(store.accepting(), Ok(()));
    store.commit(create()).await.expect("enough is left");
    disk.set_capacity(Some(disk.used() + 1_000));
    let append = Commit::new().with(Append::new(log, vec![Bytes::from_static(b"x")]));
    store.commit(append).await.expect_err("too little is left");
    store
        .commit(Commit::new().with(Operation::Delete(log)))
        .await
        .expect("what frees space is always accepted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_does_not_rest_on_what_could_not_be_written() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, Options { reserve_bytes: 1 << 20, ..small() }).expect("new");
    let log = store.reserve().await.expect("a number");
    store.commit(Commit::new().with(Operation::create(log))).await.expect("created");
    disk.set_capacity(Some(disk.used() + 1_000));
    let mut stamped = Append::new(log, vec![Bytes::from_static(b"x")]);
    let id = tidings_model::ProducerId::parse("p").expect("valid");
    stamped.conditions.producer = Some(tidings_model::Producer { id, epoch: 0, sequence: 0 });
    // Twice in one batch: the second would repeat the first, which is refused for lack of space.
    for _ in 0..500 {
        let commit = || store.commit(Commit::new().with(stamped.clone()));
        let (first, second) = tokio::join!(commit(), commit());
        for answer in [first, second] {
            assert!(matches!(answer, Err(CommitError::Store(StoreError::NoSpace))), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn a_store_that_has_stopped_says_so() {
    let disk = SimulatedDisk::new();
    let metrics = tidings_engine::Metrics::new();
    let store = open(&disk, Options { metrics: metrics.clone(), ..small() }).expect("new");
    let log = store.reserve().await.expect("a number");
    store.commit(Commit::new().with(Operation::create(log))).await.expect("created");
    let append = || Commit::new().with(Append::new(log, vec![Bytes::from_static(b"four")]));
    store.commit(append()).await.expect("appended");
    assert_eq!(store.accepting(), Ok(()));
    let text = metrics.text();
    for line in [
        "tidings_commits_total 2",
        "tidings_records_total 1",
        "tidings_record_bytes_total 4",
        "tidings_logs 1",
    ] {
        assert!(text.lines().any(|one| one == line), "{line} in {text}");
    }
    disk.cut_power_at(1);
    store.commit(append()).await.expect_err("the disk fails");
    assert!(matches!(store.accepting(), Err(StoreError::Unavailable(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn want_of_file_descriptors_refuses_writes_until_there_are_some_again() {
    for before in [0, 5, 40, 150] {
        let disk = SimulatedDisk::new();
        let failure = std::sync::Arc::new(std::sync::Mutex::new(None));
        let failed = failure.clone();
        let on_failure: tidings_embedded::Failure =
            std::sync::Arc::new(move |why| *failed.lock().expect("no panic") = Some(why.to_owned()));
        let record_interval = std::time::Duration::from_millis(1);
        let store = open(&disk, Options { on_failure, record_interval, ..small() }).expect("new");
        let log = store.reserve().await.expect("a number");
        store.commit(Commit::new().with(Operation::create(log))).await.expect("created");
        let append = |n: u32| {
            let mut payload = n.to_be_bytes().to_vec();
            payload.resize(2_000, 7);
            Commit::new()
                .with(Append::new(log, vec![Bytes::from(payload)]))
                .with_row(put(key(0, n), vec![7; 500]))
        };
        let mut acknowledged = 0u32;
        while acknowledged < before {
            store.commit(append(acknowledged)).await.expect("appended");
            acknowledged += 1;
        }
        disk.refuse_descriptors(true);
        let refused = loop {
            match store.commit(append(acknowledged)).await {
                Ok(_) => acknowledged += 1,
                Err(error) => break error,
            }
            assert!(acknowledged < 5_000, "files are needed now and then");
        };
        assert!(matches!(refused, CommitError::Store(StoreError::NoSpace)), "{refused}");
        let all = Span { bytes: usize::MAX, records: usize::MAX, ..Span::after(Position::ZERO) };
        let count = store.read(log, all).await.expect("readable").records.len();
        assert_eq!(count as u32, acknowledged, "reads go on");
        disk.refuse_descriptors(false);
        for _ in 0..100 {
            while let Err(error) = store.commit(append(acknowledged)).await {
                assert!(matches!(error, CommitError::Store(StoreError::NoSpace)), "{error}");
                tokio::task::yield_now().await;
            }
            acknowledged += 1;
        }
        store.merge_now().expect("merged");
        assert_eq!(*failure.lock().expect("no panic"), None, "the store has not stopped");
        drop(store);
        let store = open(&disk, small()).expect("opens");
        let records = store.read(log, all).await.expect("readable").records;
        assert_eq!(records.len() as u32, acknowledged);
        assert!(records.iter().zip(0u32..).all(|(record, n)| record.payload[..4] == n.to_be_bytes()));
        assert_eq!(RowModel::of(&store).await.0.len() as u32, acknowledged);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merging_leaves_the_reserve_to_those_who_write() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, by_hand()).expect("new");
    let log = new_log(&store).await;
    for _ in 0..7 {
        write_segment(&store, &[log], 100).await;
    }
    assert_eq!(segments(&disk), 7, "too few to be merged");
    let payloads = vec![Bytes::from(vec![7; 1_000]); 100];
    store.commit(Commit::new().with(Append::new(log, payloads))).await.expect("appended");
    // Enough for the eighth segment and for writers, but not for a merge of all eight.
    leave(&disk, RESERVE + 300_000);
    store.flush().expect("written");
    store.merge_now().expect("it ends, though there is no space to merge");
    assert_eq!(segments(&disk), 8);
    assert_eq!(store.accepting(), Ok(()), "the reserve is untouched");
    store
        .commit(Commit::new().with(Append::new(log, vec![Bytes::from_static(b"x")])))
        .await
        .expect("appended");
    leave(&disk, RESERVE + 1_000_000);
    store.merge_now().expect("merged");
    assert_eq!(segments(&disk), 1);
    assert_eq!(store.accepting(), Ok(()));
    assert_eq!(records(&store, log).await, 801);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_frees_space_comes_before_what_takes_some() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, by_hand()).expect("new");
    let mut logs = Vec::new();
    for _ in 0..4 {
        logs.push(new_log(&store).await);
    }
    disk.set_capacity(Some(disk.used() + 100 * RESERVE));
    // Two segments that will be dead, one of which a quarter will remain, another that will be dead, eight of
    // similar size.
    write_segment(&store, &logs[1..2], 1_000).await;
    write_segment(&store, &logs[1..2], 1_000).await;
    write_segment(&store, &[logs[2], logs[2], logs[2], logs[3]], 300).await;
    write_segment(&store, &logs[2..3], 600).await;
    for n in 0..8 {
        // There is never enough space to merge them.
        leave(&disk, RESERVE + 200_000);
        write_segment(&store, &logs[..1], 40).await;
        assert_eq!(segments(&disk), 5 + n);
    }
    leave(&disk, RESERVE / 2 + 400_000);
    for log in [logs[1], logs[2]] {
        store.commit(Commit::new().with(Operation::Delete(log))).await.expect("what frees space is accepted");
    }
    let before = disk.used();
    assert_eq!(store.accepting(), Err(StoreError::NoSpace));
    store.merge_now().expect("it ends");
    // Removed: both of the second log, and one of the third. Rewritten: the one with the fourth log. Then
    // there was space to merge the eight.
    assert_eq!(segments(&disk), 2);
    assert!(before - disk.used() > 3_300_000, "{} bytes were given back", before - disk.used());
    assert_eq!(store.accepting(), Ok(()));
    assert_eq!((records(&store, logs[0]).await, records(&store, logs[3]).await), (320, 300));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_is_not_written_anew_with_the_last_half_of_the_reserve() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, by_hand()).expect("new");
    let logs = [new_log(&store).await, new_log(&store).await];
    for records in [300, 500] {
        let log = if records == 300 { logs[0] } else { logs[1] };
        let payloads = vec![Bytes::from(vec![7; 1_000]); records];
        store.commit(Commit::new().with(Append::new(log, payloads))).await.expect("appended");
    }
    store.flush().expect("written");
    store.commit(Commit::new().with(Operation::Delete(logs[1]))).await.expect("deleted");
    for (left, is_written) in [(RESERVE / 2 + 250_000, false), (RESERVE / 2 + 350_000, true)] {
        leave(&disk, left);
        let before = disk.used();
        store.merge_now().expect("it ends");
        assert_eq!(before - disk.used() > 400_000, is_written, "with {left} bytes left");
    }
    assert_eq!(records(&store, logs[0]).await, 300);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merge_that_finds_no_space_is_given_up_and_nobody_waits_for_it() {
    let disk = SimulatedDisk::new();
    // The disk claims to have space, as if another process took it meanwhile.
    let told = ObservedDisk { claims: Some(u64::MAX), ..ObservedDisk::on(disk.clone()) };
    let store = open_on(Arc::new(told), by_hand()).expect("new");
    let log = new_log(&store).await;
    for _ in 0..7 {
        write_segment(&store, &[log], 100).await;
    }
    let payloads = vec![Bytes::from(vec![7; 1_000]); 100];
    store.commit(Commit::new().with(Append::new(log, payloads))).await.expect("appended");
    leave(&disk, 300_000);
    store.flush().expect("written");
    let before = disk.used();
    store.merge_now().expect("it ends");
    store.merge_now().expect("and again");
    assert_eq!(segments(&disk), 8, "nothing is left of what was begun");
    assert_eq!(disk.used(), before);
    assert_eq!(store.accepting(), Ok(()), "a merge that waits for space keeps nobody from writing");
    assert_eq!(records(&store, log).await, 800);
    disk.set_capacity(None);
    store.merge_now().expect("merged");
    assert_eq!(segments(&disk), 1);
    assert_eq!(records(&store, log).await, 800);
}

#[tokio::test]
async fn changes_that_make_tables_grow_are_refused_before_the_last_space_is_gone() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, Options { reserve_bytes: RESERVE, ..small() }).expect("new");
    store.flush().expect("the files of the log are made");
    let note = |key: &str, text: &str| Note { key: key.to_owned(), text: text.to_owned() };
    leave(&disk, RESERVE - 1);
    let error =
        store.commit(Commit::new().changing(note("a", "grows"))).await.expect_err("too little is left");
    assert!(matches!(error, CommitError::Store(StoreError::NoSpace)), "{error}");
    store.commit(Commit::new().changing(note("b", ""))).await.expect("what takes no space is accepted");
    leave(&disk, RESERVE);
    store.commit(Commit::new().changing(note("a", "grows"))).await.expect("enough is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_larger_than_a_file_of_the_log_is_refused_and_those_beside_it_are_made() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, small()).expect("new");
    let log = new_log(&store).await;
    let note = |key: &str, bytes: usize| Note { key: key.to_owned(), text: "x".repeat(bytes) };
    let append = || Commit::new().with(Append::new(log, vec![Bytes::from_static(b"x")]));
    for n in 0..50 {
        let large = Commit::new().changing(note(&format!("large {n}"), 64 << 10));
        let fits = Commit::new().changing(note(&format!("fits {n}"), 50 << 10));
        let also = Commit::new().changing(note(&format!("also {n}"), 50 << 10));
        let answers = tokio::join!(
            store.commit(append()),
            store.commit(fits),
            store.commit(large),
            store.commit(also),
            store.commit(append())
        );
        let error = answers.2.expect_err("more than a file holds");
        assert!(
            matches!(error, CommitError::Store(StoreError::TooLarge { bytes, .. }) if bytes > 64 << 10),
            "{error}"
        );
        for made in [answers.0, answers.1, answers.3, answers.4] {
            made.expect("it fits");
        }
    }
    assert_eq!(records(&store, log).await, 100);
    drop(store);
    let store = open(&disk, small()).expect("opens");
    assert_eq!(records(&store, log).await, 100);
    assert_eq!(store.look(|book, _| book.notes.iter().count()), 100);
}
