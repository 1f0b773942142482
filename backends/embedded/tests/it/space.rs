//! A full disk: writes are refused and accepted again when there is space, without a restart, and nothing is lost.

use bytes::Bytes;
use tidings_embedded::Options;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_engine::log::{Append, Commit, CommitError, Commits, Logs, Operation, Span, StoreError};
use tidings_model::Position;

use crate::book::{open, small};

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
            Commit::new().with(Append::new(log, vec![Bytes::from(payload)]))
        };
        let full = loop {
            // With the disk full the store would keep what it cannot write in memory, up to a point; so must this.
            match store.commit(append(acknowledged)).await {
                Ok(_) => acknowledged += 1,
                Err(error) => break error,
            }
            assert!(acknowledged < 5_000, "it was never full at {capacity} KiB");
        };
        assert!(matches!(full, CommitError::Store(StoreError::NoSpace)), "{full}");
        disk.set_capacity(None);
        for _ in 0..200 {
            // What waits for space in memory goes first; that takes a moment.
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
    // Twice in one batch: the second would be a repeat of the first, which is refused for want of space.
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
            Commit::new().with(Append::new(log, vec![Bytes::from(payload)]))
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
        store.tend().expect("merged");
        assert_eq!(*failure.lock().expect("no panic"), None, "the store has not stopped");
        drop(store);
        let store = open(&disk, small()).expect("opens");
        let records = store.read(log, all).await.expect("readable").records;
        assert_eq!(records.len() as u32, acknowledged);
        assert!(records.iter().zip(0u32..).all(|(record, n)| record.payload[..4] == n.to_be_bytes()));
    }
}
