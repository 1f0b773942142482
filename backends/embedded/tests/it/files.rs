//! Problems with files are reported by name, and damage of acknowledged data is never ignored.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_embedded::tools::{Snapshot, backup, check, truncate};
use tidings_embedded::{DirectoryLock, Disk, Embedded, Folder, OpenError, Options};
use tidings_engine::log::contract::Note;
use tidings_engine::log::{Append, Commit, Commits, Logs, Operation, Span};
use tidings_model::{LogId, Position};

use crate::book::{Book, open, small};

/// Options with memtables so large that they are never flushed automatically.
fn roomy() -> Options {
    Options { wal_file_bytes: 256 << 10, memtable_bytes: 1 << 30, ..small() }
}

async fn new_log(store: &Embedded<Book>) -> LogId {
    let log = store.reserve().await.expect("a number");
    store.commit(Commit::new().with(Operation::create(log))).await.expect("created");
    log
}

async fn append(store: &Embedded<Book>, log: LogId, payload: impl Into<Bytes>) {
    store.commit(Commit::new().with(Append::new(log, vec![payload.into()]))).await.expect("appended");
}

async fn payloads(store: &Embedded<Book>, log: LogId) -> Vec<Bytes> {
    let span = Span { bytes: usize::MAX, records: usize::MAX, ..Span::after(Position::ZERO) };
    store.read(log, span).await.expect("readable").records.into_iter().map(|record| record.payload).collect()
}

/// Offset of the n-th frame; each takes one block here.
fn frame_at(n: usize) -> usize {
    8192 + 4096 * n
}

#[tokio::test]
async fn rot_of_an_acknowledged_commit_is_told_and_can_be_cut_off() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, roomy()).expect("new");
    let log = new_log(&store).await;
    for n in 0..10 {
        append(&store, log, format!("record {n}")).await;
    }
    let before = store.status(log).await.expect("there").tail;
    drop(store);
    // Frame 0 creates the log; frame 6 has record 5.
    disk.rot("wal/000001", frame_at(6) + 30);
    let error = open(&disk, roomy()).err().expect("refused");
    let OpenError::Rot { name, offset, .. } = &error else { panic!("{error}") };
    assert_eq!((name.as_str(), *offset as usize), ("wal/000001", frame_at(6)));
    assert!(error.to_string().contains("tidings store truncate"), "{error}");
    assert_eq!(check::<Book>(&disk).len(), 1);
    assert!(truncate(&disk).expect("cut").is_some());
    assert_eq!(truncate(&disk).expect("nothing to cut"), None);
    let store = open(&disk, roomy()).expect("what is left can be read");
    assert_eq!(payloads(&store, log).await.len(), 5);
    append(&store, log, "new").await;
    let after = store.status(log).await.expect("there").tail;
    assert!(after > before, "whoever has an offset from before hears everything new");
    assert_eq!(after.parts().0.era().get(), 1);
}

#[tokio::test]
async fn a_torn_end_is_cut_off_without_a_word() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, roomy()).expect("new");
    let log = new_log(&store).await;
    append(&store, log, "kept").await;
    append(&store, log, "torn").await;
    // Killed, because a store that is closed records the end of its log.
    let disk = disk.after_kill();
    drop(store);
    disk.rot("wal/000001", frame_at(2) + 26);
    let store = open(&disk, roomy()).expect("the end of a log may be torn");
    assert_eq!(payloads(&store, log).await, ["kept"]);
    append(&store, log, "again").await;
    drop(store);
    let store = open(&disk, roomy()).expect("goes on");
    assert_eq!(payloads(&store, log).await, ["kept", "again"]);
}

#[tokio::test]
async fn a_payload_cannot_pass_for_a_frame() {
    // A frame as this store would write it, except for the salt, which clients do not know.
    let disk = SimulatedDisk::new();
    let store = open(&disk, roomy()).expect("new");
    let log = new_log(&store).await;
    append(&store, log, "victim").await;
    drop(store);
    let mut page = vec![0; 4096];
    disk.open("wal/000001").expect("there").read_at(frame_at(1) as u64, &mut page).expect("readable");
    let disk = SimulatedDisk::new();
    let store = open(&disk, Options { secret: 8, ..roomy() }).expect("new");
    let log = new_log(&store).await;
    // Wherever the payload starts in its block, one of the copies starts at a block.
    let forged: Vec<u8> =
        (0..4096).map(|n| page[n % 64]).chain(page.iter().copied().cycle().take(40_000)).collect();
    append(&store, log, forged.clone()).await;
    let disk = disk.after_kill();
    drop(store);
    // The frame that holds it is torn: its content must not be taken for a later frame.
    disk.rot("wal/000001", frame_at(1) + 30);
    let store = open(&disk, Options { secret: 8, ..roomy() }).expect("a torn end");
    assert!(payloads(&store, log).await.is_empty());
}

#[tokio::test]
async fn every_damaged_file_is_named_and_nothing_wrong_is_read() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, small()).expect("new");
    let log = new_log(&store).await;
    for n in 0..200 {
        append(&store, log, vec![n as u8; 300]).await;
    }
    store.commit(Commit::new().changing(Note { key: "k".into(), text: "v".into() })).await.expect("noted");
    store.flush().expect("written");
    store.merge_now().expect("merged");
    drop(store);
    assert!(check::<Book>(&disk).is_empty());
    for folder in ["segments", "checkpoint", ""] {
        for short in disk.list(folder).expect("listed") {
            if short.ends_with('/') {
                continue;
            }
            let name = if folder.is_empty() { short } else { format!("{folder}/{short}") };
            let length = disk.open(&name).expect("there").len().expect("a length") as usize;
            for offset in [0, 9, length / 3, length / 2, length - 9, length - 1] {
                let damaged = disk.after_kill();
                damaged.rot(&name, offset);
                let found = check::<Book>(&damaged);
                assert!(
                    found.iter().any(|error| error.to_string().contains(&name)),
                    "{name} at {offset}: {found:?}"
                );
                // Opening fails, or reading does; neither returns anything that was not written.
                if let Ok(store) = open(&damaged, small()) {
                    let span = Span { bytes: usize::MAX, records: usize::MAX, ..Span::after(Position::ZERO) };
                    if let Ok(page) = store.read(log, span).await {
                        assert!(
                            page.records.iter().enumerate().all(|(n, r)| r.payload == vec![n as u8; 300])
                        );
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn an_unknown_format_version_is_told() {
    let disk = SimulatedDisk::new();
    drop(open(&disk, small()).expect("new"));
    // The version follows eight bytes of magic and is not covered by the checksum.
    disk.rot("MANIFEST", 8);
    let error = open(&disk, small()).err().expect("refused");
    assert!(matches!(&error, OpenError::Version { name, expected: 6, .. } if name == "MANIFEST"), "{error}");
}

#[tokio::test]
async fn a_folder_with_other_things_in_it_is_left_alone() {
    let disk = SimulatedDisk::new();
    disk.create("holiday.jpg").expect("made");
    let error = open(&disk, small()).err().expect("refused");
    assert!(matches!(&error, OpenError::Foreign { name, .. } if name == "holiday.jpg"), "{error}");
    assert_eq!(disk.list("").expect("listed"), ["holiday.jpg"]);
}

#[test]
fn a_new_folder_is_for_its_user_alone() {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("new");
    let _lock = DirectoryLock::take(&folder).expect("free");
    let mode = std::fs::metadata(&folder).expect("made").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_folder_in_use_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let lock = DirectoryLock::take(folder.path()).expect("free");
    let error = DirectoryLock::take(folder.path()).expect_err("in use");
    assert!(error.to_string().contains("in use by another process"), "{error}");
    drop(lock);
    DirectoryLock::take(folder.path()).expect("free again");
}

#[test]
fn a_folder_stays_in_use_while_a_store_uses_it_although_the_lock_is_let_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let lock = DirectoryLock::take(folder.path()).expect("free");
    assert!(!lock.is_in_use());
    let (disk, clock) = (std::sync::Arc::new(lock.folder()), std::sync::Arc::new(tidings_engine::WallClock));
    let store = Embedded::<Book>::open(disk, small(), tidings_engine::Bus::new(), clock).expect("new");
    assert!(lock.is_in_use());
    drop(lock);
    // Two stores in one folder would replace each other's files.
    DirectoryLock::take(folder.path()).expect_err("in use");
    drop(store);
    DirectoryLock::take(folder.path()).expect("free again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_a_busy_store_has_all_that_was_acknowledged_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = std::sync::Arc::new(Folder::open(folder.path()).expect("there"));
    let clock = std::sync::Arc::new(tidings_engine::WallClock);
    let store = Embedded::<Book>::open(disk.clone(), small(), tidings_engine::Bus::new(), clock.clone())
        .expect("new");
    let logs = [new_log(&store).await, new_log(&store).await];
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0..3_000u32 {
                append(&store, logs[n as usize % 2], n.to_be_bytes().to_vec()).await;
            }
        })
    };
    let mut copies = 0;
    while !writer.is_finished() {
        let mut before = BTreeMap::new();
        for log in logs {
            before.insert(log, payloads(&store, log).await.len());
        }
        let target = tempfile::tempdir().expect("a folder");
        let (from, to) = (disk.clone(), Folder::open(target.path()).expect("there"));
        let copied = tokio::task::spawn_blocking(move || backup(&*from, &to)).await.expect("no panic");
        copied.expect("copied");
        let copy = std::sync::Arc::new(Folder::open(target.path()).expect("there"));
        assert!(check::<Book>(&*copy).is_empty());
        let restored =
            Embedded::<Book>::open(copy, small(), tidings_engine::Bus::new(), clock.clone()).expect("opens");
        for (n, log) in logs.into_iter().enumerate() {
            let records = payloads(&restored, log).await;
            assert!(records.len() >= before[&log], "{} of {}", records.len(), before[&log]);
            let expected =
                (0..records.len() as u32).map(|i| Bytes::from((i * 2 + n as u32).to_be_bytes().to_vec()));
            assert!(records.iter().cloned().eq(expected), "a prefix of what was written");
        }
        append(&restored, logs[0], "restored").await;
        let tail = restored.status(logs[0]).await.expect("there").tail;
        assert_eq!(tail.parts().0.era().get(), 1, "the era is raised");
        copies += 1;
    }
    writer.await.expect("no panic");
    assert!(copies > 0);
}

#[tokio::test]
async fn a_snapshot_shows_what_a_start_would() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, small()).expect("new");
    let log = new_log(&store).await;
    for n in 0..300 {
        append(&store, log, format!("{n:0>200}")).await;
    }
    let expected = payloads(&store, log).await;
    drop(store);
    let snapshot = Snapshot::<Book>::load(&disk).expect("readable");
    let mut seen = Vec::new();
    let mut after = Position::ZERO;
    loop {
        let records = snapshot.records(log, after).expect("readable");
        let Some(last) = records.last() else { break };
        after = last.position;
        seen.extend(records.into_iter().map(|record| record.payload));
    }
    assert_eq!(seen, expected);
    let stats = snapshot.stats(&disk).expect("counted");
    assert_eq!((stats.logs, stats.era), (1, 0));
    assert!(
        stats.segments > 0 && stats.segment_bytes > 0 && stats.wal_bytes > 0 && stats.checkpoint_bytes > 0
    );
}

#[tokio::test]
async fn a_lost_manifest_is_told_and_nothing_is_removed() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, small()).expect("new");
    let log = new_log(&store).await;
    for _ in 0..100 {
        append(&store, log, vec![7; 500]).await;
    }
    store.flush().expect("written");
    drop(store);
    let segments = disk.list("segments").expect("listed");
    assert!(!segments.is_empty());
    disk.remove("MANIFEST").expect("removed");
    let error = open(&disk, small()).err().expect("refused");
    assert!(error.to_string().contains("MANIFEST is damaged (it is missing"), "{error}");
    assert_eq!(disk.list("segments").expect("listed"), segments);
}

#[tokio::test]
async fn both_copies_of_a_header_damaged_is_told() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, roomy()).expect("new");
    let log = new_log(&store).await;
    append(&store, log, "acknowledged").await;
    drop(store);
    disk.rot("wal/000001", 9);
    drop(open(&disk, roomy()).expect("one copy is enough"));
    disk.rot("wal/000001", 4096 + 9);
    let error = open(&disk, roomy()).err().expect("refused");
    assert!(error.to_string().contains("wal/000001 is damaged (both copies of its header"), "{error}");
}

#[tokio::test]
async fn damage_among_what_is_no_longer_needed_does_not_hide_what_is() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, roomy()).expect("new");
    let log = new_log(&store).await;
    for n in 0..5 {
        append(&store, log, format!("written as a segment {n}")).await;
    }
    store.flush().expect("written");
    for n in 0..5 {
        append(&store, log, format!("only in the log {n}")).await;
    }
    drop(store);
    disk.rot("wal/000001", frame_at(3) + 30);
    let store = open(&disk, roomy()).expect("nothing that is needed is damaged");
    assert_eq!(payloads(&store, log).await.len(), 10);
}

#[tokio::test]
async fn cutting_off_rot_may_be_interrupted_anywhere() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, roomy()).expect("new");
    let log = new_log(&store).await;
    for n in 0..10 {
        append(&store, log, format!("record {n}")).await;
    }
    drop(store);
    disk.rot("wal/000001", frame_at(6) + 30);
    for operation in 1.. {
        let disk = disk.after_kill();
        disk.cut_power_at(operation);
        let done = truncate(&disk).is_ok();
        let disk = disk.after_power_cut(&mut fastrand::Rng::with_seed(operation));
        truncate(&disk).expect("it can be done again");
        let store = open(&disk, roomy()).expect("opens");
        assert_eq!(payloads(&store, log).await.len(), 5);
        append(&store, log, "new").await;
        let era = store.status(log).await.expect("there").tail.parts().0.era();
        assert!(era.get() > 0, "interrupted at {operation}: numbers would be given out twice");
        if done {
            return;
        }
    }
}

#[tokio::test]
async fn a_commit_larger_than_a_file_is_refused_alone() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, small()).expect("new");
    let log = new_log(&store).await;
    let large = Commit::new().with(Append::new(log, vec![Bytes::from(vec![7; 100_000])]));
    let fits = || Commit::new().with(Append::new(log, vec![Bytes::from(vec![7; 30_000])]));
    let (large, one, two, three) =
        tokio::join!(store.commit(large), store.commit(fits()), store.commit(fits()), store.commit(fits()));
    assert!(large.is_err());
    assert!(one.is_ok() && two.is_ok() && three.is_ok());
    assert_eq!(payloads(&store, log).await.len(), 3);
}

#[tokio::test]
async fn a_damaged_segment_stops_merging_and_nothing_else() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, roomy()).expect("new");
    let (old, new) = (new_log(&store).await, new_log(&store).await);
    for _ in 0..7 {
        append(&store, old, vec![7; 5_000]).await;
        store.flush().expect("written");
    }
    store.merge_now().expect("merged");
    drop(store);
    let segments = disk.list("segments").expect("listed");
    assert_eq!(segments.len(), 7, "one more makes a merge");
    disk.rot(&format!("segments/{}", segments[0]), 2_000);
    let store = open(&disk, roomy()).expect("the damage is not seen at once");
    append(&store, new, vec![7; 5_000]).await;
    store.flush().expect("written");
    store.merge_now().expect("the merge is given up");
    append(&store, new, "goes on").await;
    assert_eq!(payloads(&store, new).await.len(), 2);
    assert!(store.read(old, Span::after(Position::ZERO)).await.is_err(), "who reads what is damaged is told");
}

/// A store in a locked folder of the real file system, and the message with which it stops.
fn open_locked(path: &std::path::Path) -> (DirectoryLock, Embedded<Book>, Arc<OnceLock<String>>) {
    let lock = DirectoryLock::take(path).expect("free");
    let stopped = Arc::new(OnceLock::new());
    let on_failure: tidings_embedded::Failure = {
        let stopped = stopped.clone();
        Arc::new(move |why| {
            let _ = stopped.set(why.to_owned());
        })
    };
    let (disk, options) = (Arc::new(lock.folder()), Options { on_failure, ..small() });
    let clock = Arc::new(tidings_engine::WallClock);
    let store = Embedded::open(disk, options, tidings_engine::Bus::new(), clock).expect("opens");
    (lock, store, stopped)
}

#[tokio::test]
async fn a_store_whose_folder_was_replaced_stops_and_writes_nothing_there() {
    for whole in [true, false] {
        let parent = tempfile::tempdir().expect("a folder");
        let path = parent.path().join("data");
        let (_lock, first, stopped) = open_locked(&path);
        let log = new_log(&first).await;
        append(&first, log, "before").await;
        // From here on no thread of the store writes by itself, which would disturb the removal.
        first.flush().expect("written");
        // Replace the folder itself, or only its content.
        if whole {
            std::fs::remove_dir_all(&path).expect("removed");
        } else {
            for entry in std::fs::read_dir(&path).expect("there") {
                let entry = entry.expect("readable").path();
                let removed = if entry.is_dir() {
                    std::fs::remove_dir_all(&entry)
                } else {
                    std::fs::remove_file(&entry)
                };
                removed.expect("removed");
            }
        }
        let (lock, second, _) = open_locked(&path);
        let log_of_second = new_log(&second).await;
        let commit = Commit::new().with(Append::new(log, vec![Bytes::from_static(b"lost")]));
        first.commit(commit).await.expect_err("nobody would find it again");
        let why = stopped.get().expect("the store says that it has stopped");
        assert!(why.contains("was removed or replaced"), "{why}");
        first.flush().expect_err("nothing is written");
        drop(first);
        for n in 0..100 {
            append(&second, log_of_second, vec![n; 2_000]).await;
        }
        drop(second);
        assert_eq!(check::<Book>(&lock.folder()).len(), 0);
        assert!(DirectoryLock::take(&path).is_err(), "the second has the lock");
    }
}

#[tokio::test]
async fn a_store_whose_lock_file_was_taken_away_stops() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_lock, store, stopped) = open_locked(folder.path());
    let log = new_log(&store).await;
    std::fs::remove_file(folder.path().join("LOCK")).expect("removed");
    let _second = DirectoryLock::take(folder.path()).expect("nothing keeps another process out");
    store
        .commit(Commit::new().with(Append::new(log, vec![Bytes::from_static(b"x")])))
        .await
        .expect_err("another process may have the folder");
    assert!(stopped.get().is_some());
}
