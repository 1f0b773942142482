//! Cold rows in files: whatever is flushed, merged and opened again, reads agree with a plain map; damaged files are refused or
//! named.

use bytes::Bytes;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_embedded::tools::{Snapshot, backup, check, truncate};
use tidings_embedded::{Disk, OpenError, Options};
use tidings_engine::log::contract::Note;
use tidings_engine::log::{Append, Commit, Commits, Logs, Operation, Row, RowSpan, Rows, Span, StoreError};
use tidings_model::{LogId, Position, limits};

use crate::book::{Book, open, small};
use crate::row_model::{
    RowModel, TABLE, by_hand, bytes_in, delete, files, floor, flush_and_merge, key, put, random_change, write,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_agree_with_a_plain_map_whatever_is_flushed_merged_and_opened_again() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = SimulatedDisk::new();
        let options = Options {
            memtable_bytes: 1 << rng.u32(8..20),
            wal_file_bytes: 512 << 10,
            secret: seed,
            ..small()
        };
        let mut store = open(&disk, options.clone()).expect("new");
        let mut model = RowModel::default();
        for step in 0..rng.u32(20..250) {
            let changes: Vec<_> = (0..rng.usize(1..8)).map(|_| random_change(&mut rng, 0..6)).collect();
            changes.iter().for_each(|change| model.apply(change));
            write(&store, changes).await;
            match rng.u8(..20) {
                0 => store.flush().expect("written"),
                1 => store.merge_now().expect("merged"),
                2 if rng.u8(..5) == 0 => {
                    drop(store);
                    store = open(&disk, options.clone()).expect("opens");
                }
                _ => {}
            }
            let asked = key(rng.u32(..6), rng.u32(..200));
            let found = store.row(TABLE, &asked).await.expect("readable");
            assert_eq!(found.as_ref(), model.0.get(&asked), "seed {seed}, step {step}");
            let (from, to) = (key(rng.u32(..6), rng.u32(..200)), key(rng.u32(..6), rng.u32(..200)));
            let span = RowSpan { from, to, rows: rng.usize(1..9), bytes: usize::MAX };
            let expected = model.within(&span);
            let found = RowModel::in_span(&store, span).await.expect("readable");
            assert_eq!(found, expected, "seed {seed}, step {step}");
        }
        assert_eq!(RowModel::of(&store).await, model, "seed {seed}");
        flush_and_merge(&store);
        assert_eq!(RowModel::of(&store).await, model, "seed {seed}, merged");
        drop(store);
        assert!(check::<Book>(&disk).is_empty(), "seed {seed}");
        let store = open(&disk, options).expect("opens");
        assert_eq!(RowModel::of(&store).await, model, "seed {seed}, opened again");
    }
}

/// A store with a log, a note and three files of rows, the rows it has, and the log.
async fn with_files(disk: &SimulatedDisk, value: u8) -> (RowModel, LogId) {
    let store = open(disk, by_hand()).expect("new");
    let log = store.reserve().await.expect("a number");
    store.commit(Commit::new().with(Operation::create(log))).await.expect("created");
    let mut model = RowModel::default();
    for file in 0..3u32 {
        let group = |n: u32| if n.is_multiple_of(2) { file } else { 9 };
        // No file hides much of another, so none is rewritten.
        let rows = (0..600u32).map(|n| put(key(group(n), 3 * n + file), vec![value; 60]));
        let gone = [floor(key(9, 0).slice(..4), key(9, 100)), delete(key(9, 300 + file))];
        let changes: Vec<_> = rows.chain(gone).collect();
        changes.iter().for_each(|change| model.apply(change));
        write(&store, changes).await;
        let note = Note { key: file.to_string(), text: "x".into() };
        let append = Append::new(log, vec![Bytes::from(vec![7; 100])]);
        store.commit(Commit::new().with(append).changing(note)).await.expect("made");
        store.flush().expect("written");
    }
    assert_eq!(files(disk).len(), 3);
    assert_eq!(RowModel::of(&store).await, model);
    (model, log)
}

#[tokio::test]
async fn a_lost_shortened_or_swapped_file_of_rows_is_refused_and_named() {
    let disk = SimulatedDisk::new();
    with_files(&disk, 7).await;
    // The same store with another history: a file that is whole and was never this one.
    let other = SimulatedDisk::new();
    with_files(&other, 8).await;
    let names = files(&disk);
    assert_eq!(names, files(&other));
    let length = |name: &str| disk.open(name).and_then(|file| file.len()).expect("there") as usize;
    for name in &names {
        let refuse = |what: &str, damage: &dyn Fn(&SimulatedDisk)| {
            let damaged = disk.after_kill();
            damage(&damaged);
            let error = open(&damaged, by_hand()).err().unwrap_or_else(|| panic!("{what}"));
            assert!(error.to_string().contains("rows/"), "{what}: {error}");
            let found = check::<Book>(&damaged);
            assert!(found.iter().any(|error| error.to_string().contains("rows/")), "{what}: {found:?}");
        };
        refuse("lost", &|disk| disk.lose(name));
        for length in [0, 8, 17, length(name) / 2, length(name) - 68, length(name) - 1] {
            refuse("shortened", &|disk| disk.shorten(name, length));
        }
        for other in names.iter().filter(|other| *other != name) {
            refuse("swapped", &|disk| disk.swap(name, other));
            refuse("a copy", &|disk| disk.overwrite_with_copy(name, other));
        }
        refuse("that of another store", &|disk| {
            let mut bytes = vec![0; length(name)];
            other.open(name).and_then(|file| file.read_at(0, &mut bytes)).expect("as long");
            disk.open(name).and_then(|file| file.write_at(0, &bytes)).expect("written");
        });
        // Zeroed parts of pages are found when they are read; those of the rest at once.
        let tail = length(name) - 68;
        refuse("zeroed", &|disk| disk.zero(name, 0..16));
        refuse("zeroed", &|disk| disk.zero(name, tail - 200..tail));
        refuse("zeroed", &|disk| disk.zero(name, tail..tail + 68));
    }
}

#[tokio::test]
async fn no_changed_byte_of_a_file_of_rows_is_ever_read_as_a_row() {
    let disk = SimulatedDisk::new();
    let (model, log) = with_files(&disk, 7).await;
    for name in files(&disk) {
        let length = disk.open(&name).and_then(|file| file.len()).expect("there") as usize;
        let (mut refused, mut read_in_part) = (0, 0);
        for offset in (0..length).step_by(97).chain(length - 70..length) {
            let damaged = disk.after_kill();
            damaged.rot(&name, offset);
            let found = check::<Book>(&damaged);
            assert!(found.iter().any(|error| error.to_string().contains(&name)), "{name} at {offset}");
            let Ok(store) = open(&damaged, by_hand()) else {
                refused += 1;
                continue;
            };
            let mut unreadable = 0;
            for (key, value) in model.0.iter().step_by(7) {
                match store.row(TABLE, key).await {
                    Ok(found) => assert_eq!(found.as_ref(), Some(value), "{name} at {offset}"),
                    Err(StoreError::Unavailable(why)) => {
                        assert!(why.contains(&name), "{why}");
                        unreadable += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            if unreadable > 0 {
                read_in_part += 1;
                assert!(unreadable < model.0.len() / 14, "only what lies in the page cannot be read");
                RowModel::in_span(&store, RowSpan::of_prefix(Bytes::new()))
                    .await
                    .expect_err("it has the page");
            }
            // Everything else goes on.
            write(&store, [put("new", "row")]).await;
            store.flush().expect("written");
            assert_eq!(store.row(TABLE, b"new").await.expect("readable").as_deref(), Some(&b"row"[..]));
            let records = store.read(log, Span::after(Position::ZERO)).await.expect("readable").records;
            assert_eq!(records.len(), 3);
        }
        assert!(refused > 70 && read_in_part > 100, "{refused} and {read_in_part}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_file_of_rows_stops_merging_of_rows_and_nothing_else() {
    let disk = SimulatedDisk::new();
    let (_, log) = with_files(&disk, 7).await;
    disk.rot(&files(&disk)[0], 100);
    let store = open(&disk, by_hand()).expect("pages are not read at a start");
    for n in 0..8u32 {
        store
            .commit(Commit::new().with(Append::new(log, vec![Bytes::from(vec![7; 100])])))
            .await
            .expect("appended");
        write(&store, [put(key(9, 1_000 + n), vec![7; 40_000])]).await;
        store.flush().expect("written");
    }
    store.merge_now().expect("it ends");
    assert!(disk.list("segments").expect("listed").len() < 8, "segments are merged");
    assert_eq!(files(&disk).len(), 11, "files of rows are not");
    assert_eq!(store.accepting(), Ok(()));
    for n in 0..8 {
        let value = store.row(TABLE, &key(9, 1_000 + n)).await.expect("readable").expect("there");
        assert_eq!(value.len(), 40_000);
    }
}

#[tokio::test]
async fn a_row_that_is_not_there_is_looked_up_without_reading_files() {
    let disk = SimulatedDisk::new();
    let (model, _) = with_files(&disk, 7).await;
    let store = open(&disk, by_hand()).expect("opens");
    for n in 0..1_000u32 {
        assert_eq!(store.row(TABLE, &key(1, 10_000 + n)).await.expect("readable"), None);
    }
    let in_vain = store.disk_reads();
    assert!(in_vain < 60, "{in_vain} of 1,000 look-ups read a file");
    for (key, value) in model.0.iter().take(50) {
        assert_eq!(store.row(TABLE, key).await.expect("readable").as_deref(), Some(&value[..]));
    }
    assert_eq!(store.disk_reads() - in_vain, 50);
}

#[tokio::test]
async fn a_value_of_the_largest_size_is_kept_and_merged() {
    let options = || Options { wal_file_bytes: 16 << 20, ..by_hand() };
    let disk = SimulatedDisk::new();
    let store = open(&disk, options()).expect("new");
    let value = |n: u8| Bytes::from(vec![n; limits::ROW_VALUE_BYTES]);
    for n in 0..2 {
        write(&store, [put("small", "x"), put(vec![n; limits::ROW_KEY_BYTES], value(n))]).await;
        store.flush().expect("written");
    }
    write(&store, [delete("small")]).await;
    flush_and_merge(&store);
    drop(store);
    let store = open(&disk, options()).expect("opens");
    for n in 0..2 {
        assert_eq!(store.row(TABLE, &[n; limits::ROW_KEY_BYTES]).await, Ok(Some(value(n))));
    }
    assert_eq!(RowModel::of(&store).await.0.len(), 2);
}

#[tokio::test]
async fn a_backup_and_the_tools_have_the_rows() {
    let disk = SimulatedDisk::new();
    let (mut model, _) = with_files(&disk, 7).await;
    let store = open(&disk, by_hand()).expect("opens");
    write(&store, [put("in the log", "only")]).await;
    model.apply(&put("in the log", "only"));
    let copy = SimulatedDisk::new();
    backup(&disk, &copy).expect("copied");
    drop(store);
    assert!(check::<Book>(&copy).is_empty());
    let snapshot = Snapshot::<Book>::load(&copy).expect("readable");
    let stats = snapshot.stats(&copy).expect("counted");
    assert_eq!((stats.row_files, stats.row_bytes), (3, bytes_in(&copy)));
    let mut seen = RowModel::default();
    let mut from = Bytes::new();
    while let Some(rows) =
        Some(snapshot.rows(TABLE, from.clone()).expect("readable")).filter(|rows| !rows.is_empty())
    {
        from = [&rows[rows.len() - 1].key[..], &[0]].concat().into();
        seen.0.extend(rows.into_iter().map(|Row { key, value }| (key, value)));
    }
    assert_eq!(seen, model);
    assert_eq!(RowModel::of(&open(&copy, by_hand()).expect("opens")).await, model);
}

#[tokio::test]
async fn a_file_of_rows_of_an_unknown_version_is_told() {
    let disk = SimulatedDisk::new();
    with_files(&disk, 7).await;
    let name = files(&disk).remove(1);
    disk.rot(&name, 8);
    let error = open(&disk, by_hand()).err().expect("refused");
    assert!(matches!(&error, OpenError::Version { name: of, expected: 1, .. } if *of == name), "{error}");
}

#[tokio::test]
async fn rows_of_commits_that_are_given_up_are_given_up_with_them() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, by_hand()).expect("new");
    write(&store, [put("in a file", "1")]).await;
    store.flush().expect("written");
    let log = store.reserve().await.expect("a number");
    store.commit(Commit::new().with(Operation::create(log)).with_row(put("kept", "2"))).await.expect("made");
    let append = || Append::new(log, vec![Bytes::from_static(b"x")]);
    store.commit(Commit::new().with(append()).with_row(delete("in a file"))).await.expect("made");
    store.commit(Commit::new().with(append()).with_row(put("later", "3"))).await.expect("made");
    drop(store);
    // Each commit has a block of its own in the log; the third is damaged.
    disk.rot("wal/000001", 8192 + 2 * 4096 + 30);
    let error = open(&disk, by_hand()).err().expect("refused");
    assert!(matches!(error, OpenError::Rot { .. }), "{error}");
    assert!(truncate(&disk).expect("cut").is_some());
    let store = open(&disk, by_hand()).expect("opens");
    let rows = RowModel::of(&store).await.0;
    assert!(rows.keys().eq(["in a file", "kept"]), "{rows:?}");
    assert!(store.read(log, Span::after(Position::ZERO)).await.expect("readable").records.is_empty());
}
