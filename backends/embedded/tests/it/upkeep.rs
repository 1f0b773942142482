//! Maintenance: memory and disk space are freed, and reading recent records touches no file.

use std::sync::{Arc, Mutex, mpsc};

use bytes::Bytes;
use futures_util::FutureExt;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_embedded::{Disk, Embedded, Options};
use tidings_engine::log::contract::Note;
use tidings_engine::log::{Append, Commit, Commits, Logs, Of, Operation, Outcome, Refer, Span};
use tidings_model::{LogId, Position, limits};

use crate::book::{Book, ObservedDisk, open, open_on, small};

async fn new_logs(store: &Embedded<Book>, count: usize) -> Vec<LogId> {
    let mut logs = Vec::new();
    for _ in 0..count {
        let log = store.reserve().await.expect("a number");
        store.commit(Commit::new().with(Operation::create(log))).await.expect("created");
        logs.push(log);
    }
    logs
}

fn segment_bytes(disk: &SimulatedDisk) -> u64 {
    let names = disk.list("segments").expect("listed");
    let length =
        |name: &String| disk.open(&format!("segments/{name}")).and_then(|file| file.len()).expect("there");
    names.iter().map(length).sum()
}

fn append(log: LogId, payload: &[u8]) -> Commit<Note> {
    Commit::new().with(Append::new(log, vec![Bytes::copy_from_slice(payload)]))
}

#[tokio::test]
async fn space_of_deleted_and_trimmed_logs_is_given_back() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, small()).expect("new");
    let logs = new_logs(&store, 3).await;
    for _ in 0..200 {
        for &log in &logs {
            store.commit(append(log, &[7; 1000])).await.expect("appended");
        }
    }
    store.flush().expect("written");
    store.merge_now().expect("merged");
    let full = disk.used();
    store.commit(Commit::new().with(Operation::Delete(logs[0]))).await.expect("deleted");
    let trim = Operation::Trim { log: logs[1], floor: Position::MAX };
    store.commit(Commit::new().with(trim)).await.expect("trimmed");
    store.flush().expect("written");
    store.merge_now().expect("merged");
    let freed = full.saturating_sub(disk.used());
    assert!(freed > 350_000, "of 400,000 dead bytes {freed} were given back");
    let span = Span { bytes: usize::MAX, records: usize::MAX, ..Span::after(Position::ZERO) };
    assert_eq!(store.read(logs[2], span).await.expect("readable").records.len(), 200);
}

#[tokio::test]
async fn a_payload_is_stored_once_whatever_the_number_of_references() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, Options { memtable_bytes: 1 << 30, ..small() }).expect("new");
    let logs = new_logs(&store, 101).await;
    for n in 0..20u8 {
        let publish = append(logs[0], &[n; 10_000]).with(Refer { of: Of::Append(0), into: logs[1..].into() });
        store.commit(publish).await.expect("published");
    }
    store.flush().expect("written");
    store.merge_now().expect("merged");
    let bytes = segment_bytes(&disk);
    assert!(bytes < 20 * 10_000 + 20 * 100 * 20, "{bytes} bytes for 200,000 of payload and 2,000 references");
    // The source is deleted; the references stay, and so does the payload, once.
    store.commit(Commit::new().with(Operation::Delete(logs[0]))).await.expect("deleted");
    store.flush().expect("written");
    store.merge_now().expect("merged");
    let bytes = segment_bytes(&disk);
    assert!(bytes < 20 * 10_000 + 20 * 100 * 20, "{bytes} bytes after the source has gone");
    drop(store);
    let store = open(&disk, small()).expect("opens");
    let span = Span { bytes: usize::MAX, records: usize::MAX, ..Span::after(Position::ZERO) };
    for &log in &logs[1..] {
        let records = store.read(log, span).await.expect("readable").records;
        assert!(records.iter().zip(0u8..).all(|(record, n)| record.payload[..] == [n; 10_000]));
        assert_eq!(records.len(), 20);
    }
}

#[tokio::test]
async fn a_reader_that_keeps_up_touches_no_file() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, small()).expect("new");
    let log = new_logs(&store, 1).await[0];
    let mut after = Position::ZERO;
    for _ in 0..500 {
        store.commit(append(log, &[1; 300])).await.expect("appended");
        let page = store.read(log, Span::after(after)).await.expect("readable");
        assert_eq!(page.records.len(), 1);
        after = page.last(after);
    }
    assert_eq!(store.disk_reads(), 0, "while many segments were written");
    store.read(log, Span::after(Position::ZERO)).await.expect("readable");
    assert_eq!(store.disk_reads(), 1, "what is old comes from files");
}

#[tokio::test]
async fn a_large_fan_out_is_made_in_chunks_and_resumes_at_its_cursor_after_a_crash() {
    const TARGETS: usize = 10_000;
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, Options { wal_file_bytes: 1 << 20, ..small() }).expect("new");
    let logs = new_logs(&store, TARGETS + 1).await;
    let last = store.commit(append(logs[0], b"to all")).await.expect("appended").appended().last;
    let whole = Refer { of: Of::Append(0), into: logs[1..].into() };
    store.commit(append(logs[0], b"x").with(whole)).await.expect_err("more targets than one commit may have");
    let chunks: Vec<&[LogId]> = logs[1..].chunks(limits::TARGETS_PER_COMMIT).collect();
    let mut disk = disk;
    for (n, chunk) in chunks.iter().enumerate() {
        // The cursor is a note in the same commit: if it is there, so are the references.
        let of = Of::Stored { log: logs[0], after: Position::ZERO, through: last };
        let refer = Refer { of, into: (*chunk).into() };
        let cursor = Note { key: format!("chunk {n}"), text: String::new() };
        let made =
            store.commit(Commit::new().with(refer.clone()).changing(cursor.clone())).await.expect("made");
        assert!(matches!(&made.outcomes[0], Outcome::Referred(referred) if referred.missing.is_empty()));
        drop(store);
        disk = disk.after_power_cut(&mut fastrand::Rng::with_seed(n as u64));
        store = open(&disk, Options { wal_file_bytes: 1 << 20, ..small() }).expect("opens");
        store.commit(Commit::new().with(refer).changing(cursor)).await.expect_err("that chunk is done");
    }
    for &log in &logs[1..] {
        let records = store.read(log, Span::after(Position::ZERO)).await.expect("readable").records;
        assert_eq!(records.len(), 1, "once each");
        assert_eq!(records[0].payload, "to all");
    }
}

#[tokio::test]
async fn commits_without_records_do_not_make_the_log_grow_for_ever() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, small()).expect("new");
    for _ in 0..1_500 {
        let log = new_logs(&store, 1).await[0];
        store.commit(Commit::new().with(Operation::Delete(log))).await.expect("deleted");
    }
    store.flush().expect("written");
    let files = disk.list("wal").expect("listed").len();
    assert!(files <= 10, "{files} files of the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn references_have_all_that_was_committed_before_them() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, Options { memtable_bytes: 1 << 20, ..small() }).expect("new");
    let logs = new_logs(&store, 101).await;
    for (n, &target) in logs[1..].iter().enumerate() {
        let of = Of::Stored { log: logs[0], after: Position::ZERO, through: Position::MAX };
        let refer = Commit::new().with(Refer { of, into: vec![target].into() });
        let (appended, referred) = tokio::join!(store.commit(append(logs[0], b"x")), store.commit(refer));
        let (appended, referred) = (appended.expect("appended").number, referred.expect("referred").number);
        let records = store.read(target, Span::after(Position::ZERO)).await.expect("readable").records.len();
        let least = if appended < referred { n + 1 } else { n };
        assert!(records >= least, "{records} of {least}: append was commit {appended:?}, refer {referred:?}");
    }
}

#[tokio::test]
async fn commits_that_come_while_the_committer_gathers_are_in_one_frame() {
    let (gathering, gathers) = mpsc::channel::<()>();
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let gather = Arc::new(move || {
        // When the test is over the channels are closed, so sending and receiving may fail.
        let _ = gathering.send(());
        let _ = released.lock().expect("only this thread waits here").recv();
    });
    let store = open(&SimulatedDisk::new(), Options { gather: Some(gather), ..small() }).expect("new");
    let logs = [store.reserve().await.expect("a number"), store.reserve().await.expect("a number")];
    let [mut first, mut second] = logs.map(|log| store.commit(Commit::new().with(Operation::create(log))));
    assert!((&mut first).now_or_never().is_none());
    gathers.recv().expect("the committer has the first");
    assert!((&mut second).now_or_never().is_none(), "it is in the queue");
    release.send(()).expect("the committer waits");
    let (first, second) = (first.await.expect("committed"), second.await.expect("committed"));
    assert_eq!(first.number, second.number);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compacted_checkpoint_is_that_of_one_moment_though_commits_go_on() {
    let disk = SimulatedDisk::new();
    let (making, made) = mpsc::channel::<()>();
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let before_create = Box::new(move |name: &str| {
        if name.starts_with("checkpoint/") && making.send(()).is_ok() {
            // When the test has seen enough it drops the sender, and everything goes on.
            let _ = released.lock().expect("only one thread waits here").recv();
        }
    });
    let told = Arc::new(ObservedDisk { before_create, ..ObservedDisk::on(disk.clone()) });
    let options = Options { memtable_bytes: 256 << 10, wal_file_bytes: 16 << 20, ..small() };
    let store = open_on(told, options.clone()).expect("new");
    let logs = new_logs(&store, 400).await;
    for &log in &logs {
        store.commit(append(log, b"before")).await.expect("appended");
    }
    for n in 0..400 {
        let note = Note { key: format!("before {n:04}"), text: "x".repeat(40) };
        store.commit(Commit::new().changing(note)).await.expect("noted");
    }
    let flushing = store.clone();
    let flushing = std::thread::spawn(move || flushing.flush());
    made.recv().expect("the delta is being written");
    release.send(()).expect("it waits");
    flushing.join().expect("no panic").expect("written");
    made.recv().expect("the base is being written, of the same moment");
    // Commits do not wait for the compaction, and it contains none of them.
    for (n, &log) in logs.iter().enumerate() {
        let commit = match n % 4 {
            0 => append(log, b"after"),
            1 => Commit::new().with(Operation::Delete(log)),
            2 => Commit::new().with(Operation::Trim { log, floor: Position::MAX }),
            _ => Commit::new().changing(Note { key: format!("after {n}"), text: "y".into() }),
        };
        store.commit(commit).await.expect("made");
    }
    let later = new_logs(&store, 3).await;
    drop((release, made));
    while disk.list("checkpoint").expect("listed").len() != 1 {
        tokio::task::yield_now().await;
    }
    let mut expected = Vec::new();
    for &log in logs.iter().chain(&later) {
        expected.push(store.status(log).await.ok());
    }
    let notes = |store: &Embedded<Book>| {
        store.look(|book, _| {
            book.notes.iter().map(|(key, text)| (key.clone(), text.clone())).collect::<Vec<_>>()
        })
    };
    let expected_notes = notes(&store);
    assert_eq!(expected_notes.len(), 500);
    let left = disk.after_power_cut(&mut fastrand::Rng::with_seed(1));
    drop(store);
    let store = open(&left, options).expect("opens");
    for (n, &log) in logs.iter().chain(&later).enumerate() {
        assert_eq!(store.status(log).await.ok(), expected[n], "{log}");
    }
    assert_eq!(notes(&store), expected_notes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_finds_no_space_to_be_compacted_is_compacted_later() {
    let disk = SimulatedDisk::new();
    let options = Options { memtable_bytes: 256 << 10, wal_file_bytes: 1 << 20, ..small() };
    let store = open(&disk, options.clone()).expect("new");
    let mut notes = 0;
    let mut note = |bytes: usize| {
        notes += 1;
        Commit::new().changing(Note { key: format!("{notes:04}"), text: "x".repeat(bytes) })
    };
    let checkpoints = || disk.list("checkpoint").expect("listed").len();
    for _ in 0..100 {
        store.commit(note(500)).await.expect("noted");
    }
    // Enough for the delta, but not for the base.
    disk.set_capacity(Some(disk.used() + 70_000));
    store.flush().expect("written");
    store.commit(note(10)).await.expect("noted");
    store.flush().expect("written");
    assert_eq!(checkpoints(), 2, "two deltas");
    disk.set_capacity(None);
    // A flush may come while the failed compaction is still being abandoned; the one after it begins another.
    let mut deltas = 2;
    while checkpoints() >= deltas {
        store.commit(note(10)).await.expect("noted");
        store.flush().expect("written");
        deltas += 1;
        tokio::task::yield_now().await;
    }
    drop(store);
    let store = open(&disk, options).expect("opens");
    assert_eq!(store.look(|book, _| book.notes.iter().count()), notes);
}
