//! Space and memory of cold rows: what is cleared, deleted or replaced is given back, merging keeps to the reserve, and memory does
//! not grow with the rows.

use std::sync::Arc;

use bytes::Bytes;
use tidings_embedded::Options;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_engine::Metrics;
use tidings_engine::log::{Commit, CommitError, Commits, Logs, RowChange, Rows, StoreError};

use crate::book::{ObservedDisk, open, open_on};
use crate::row_model::{
    RowModel, TABLE, by_hand, bytes_in, delete, files, floor, flush_and_merge, key, put, write,
};

/// The reserve of these tests, in bytes.
const RESERVE: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn space_of_rows_that_are_cleared_deleted_or_replaced_is_given_back() {
    const ROWS: u32 = 4_000;
    let clear_all = || vec![RowChange::clear(TABLE, Bytes::new())];
    // The older half of each of 40 groups: no page has rows of one group alone.
    let clear_older =
        || (0..40).map(|group| floor(key(group, 0).slice(..4), key(group, 60))).collect::<Vec<_>>();
    let delete_most =
        || (0..40).flat_map(|group| (0..60).map(move |n| delete(key(group, n)))).collect::<Vec<_>>();
    let replace =
        || (0..40).flat_map(|group| (0..60).map(move |n| put(key(group, n), "short"))).collect::<Vec<_>>();
    let cases: [(&str, Vec<RowChange>, u64); 4] = [
        ("cleared", clear_all(), 100),
        ("cleared in part", clear_older(), 42),
        ("deleted", delete_most(), 42),
        ("replaced", replace(), 42),
    ];
    for (what, changes, percent) in cases {
        let disk = SimulatedDisk::new();
        let store = open(&disk, by_hand()).expect("new");
        for file in 0..4 {
            let rows = (0..ROWS).filter(|n| n % 4 == file).map(|n| put(key(n / 100, n % 100), vec![7; 200]));
            write(&store, rows).await;
            flush_and_merge(&store);
        }
        let (full, before) = (bytes_in(&disk), RowModel::of(&store).await);
        assert!(full > 800_000);
        write(&store, changes).await;
        let after = RowModel::of(&store).await;
        assert_ne!(before, after);
        flush_and_merge(&store);
        assert_eq!(RowModel::of(&store).await, after, "{what}");
        let freed = full.saturating_sub(bytes_in(&disk));
        assert!(freed * 100 >= full * percent, "{what}: {freed} of {full} bytes were given back");
        drop(store);
        let store = open(&disk, by_hand()).expect("opens");
        assert_eq!(RowModel::of(&store).await, after, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_rows_stay_few_and_so_do_floors_and_deleted_rows_in_them() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, by_hand()).expect("new");
    let mut most = 0;
    for n in 0..300u32 {
        // A queue: each round adds rows, deletes some and clears what is older.
        let rows = (0..20).map(|row| put(key(n, row), vec![7; 100]));
        let gone = (0..10).map(|row| delete(key(n.saturating_sub(1), row)));
        let floor = floor(Bytes::new(), key(n.saturating_sub(20), 0));
        write(&store, rows.chain(gone).chain([floor])).await;
        flush_and_merge(&store);
        most = most.max(files(&disk).len());
    }
    assert!(most <= 24, "{most} files");
    assert_eq!(RowModel::of(&store).await.0.len(), 20 * 10 + 20 - 10 + 10);
    let live = 220 * 110;
    assert!(bytes_in(&disk) < 3 * live, "{} bytes for about {live} of rows", bytes_in(&disk));
}

#[tokio::test]
async fn rows_are_refused_before_the_last_space_is_gone_and_may_always_be_removed() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, Options { reserve_bytes: 1 << 20, ..by_hand() }).expect("new");
    write(&store, [put("a", "1"), put("b", "1")]).await;
    store.flush().expect("the files of the log are made");
    disk.set_capacity(Some(disk.used() + (1 << 20) - 1));
    let refused = store.commit(Commit::new().with_row(put("c", "1"))).await;
    assert!(matches!(refused, Err(CommitError::Store(StoreError::NoSpace))), "{refused:?}");
    write(&store, [delete("a"), floor("", "b")]).await;
    assert_eq!(RowModel::of(&store).await.0.len(), 1);
}

/// Rows that do not hide each other, about 100,000 bytes.
fn hundred(file: u32) -> impl Iterator<Item = RowChange> {
    (0..100).map(move |n| put(key(file, n), vec![7; 1_000]))
}

/// Sets the capacity of a disk so that `bytes` are free.
fn leave(disk: &SimulatedDisk, bytes: u64) {
    disk.set_capacity(Some(disk.used() + bytes));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merging_of_rows_leaves_the_reserve_to_those_who_write() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, Options { reserve_bytes: RESERVE, ..by_hand() }).expect("new");
    for file in 0..7 {
        write(&store, hundred(file)).await;
        flush_and_merge(&store);
    }
    assert_eq!(files(&disk).len(), 7, "too few to be merged");
    write(&store, hundred(7)).await;
    // Enough for the eighth file and for writers, but not for a merge of all eight.
    leave(&disk, RESERVE + 300_000);
    store.flush().expect("written");
    store.merge_now().expect("it ends, though there is no space to merge");
    assert_eq!(files(&disk).len(), 8);
    assert_eq!(store.accepting(), Ok(()), "the reserve is untouched");
    leave(&disk, RESERVE + 1_000_000);
    store.merge_now().expect("merged");
    assert_eq!(files(&disk).len(), 1);
    assert_eq!(RowModel::of(&store).await.0.len(), 800);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_rows_is_not_rewritten_with_the_last_half_of_the_reserve() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, Options { reserve_bytes: RESERVE, ..by_hand() }).expect("new");
    for file in 0..3 {
        write(&store, hundred(file)).await;
    }
    store.flush().expect("written");
    // Of the second group one row stays, so that the page with it is not cleared as a whole.
    write(&store, [RowChange::clear(TABLE, key(0, 0).slice(..4)), floor(key(1, 0).slice(..4), key(1, 99))])
        .await;
    leave(&disk, RESERVE / 2 + 80_000);
    store.flush().expect("written");
    for (left, is_rewritten) in [(RESERVE / 2 + 80_000, false), (RESERVE / 2 + 200_000, true)] {
        leave(&disk, left);
        let before = bytes_in(&disk);
        store.merge_now().expect("it ends");
        assert_eq!(before - bytes_in(&disk) > 150_000, is_rewritten, "with {left} bytes left");
    }
    assert_eq!(RowModel::of(&store).await.0.len(), 101);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merge_of_rows_that_finds_no_space_is_given_up_without_a_trace() {
    let disk = SimulatedDisk::new();
    // The disk claims to have space, as if another process took it meanwhile.
    let told = ObservedDisk { claims: Some(u64::MAX), ..ObservedDisk::on(disk.clone()) };
    let store = open_on(Arc::new(told), Options { reserve_bytes: RESERVE, ..by_hand() }).expect("new");
    for file in 0..7 {
        write(&store, hundred(file)).await;
        flush_and_merge(&store);
    }
    write(&store, hundred(7)).await;
    leave(&disk, 300_000);
    store.flush().expect("written");
    let before = disk.used();
    store.merge_now().expect("it ends");
    assert_eq!((files(&disk).len(), disk.used()), (8, before), "nothing is left of what was begun");
    assert_eq!(store.accepting(), Ok(()), "a merge that waits for space keeps nobody from writing");
    disk.set_capacity(None);
    store.merge_now().expect("merged");
    assert_eq!(files(&disk).len(), 1);
    assert_eq!(RowModel::of(&store).await.0.len(), 800);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_rows_is_removed_on_a_full_disk_when_all_of_it_is_cleared() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, Options { reserve_bytes: RESERVE, ..by_hand() }).expect("new");
    write(&store, (0..3).flat_map(hundred)).await;
    store.flush().expect("written");
    leave(&disk, 50_000);
    write(&store, [RowChange::clear(TABLE, Bytes::new())]).await;
    flush_and_merge(&store);
    assert_eq!(files(&disk).len(), 0);
    assert!(RowModel::of(&store).await.0.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_does_not_grow_with_the_rows_but_for_their_filter() {
    const ROWS: u32 = 100_000;
    const MEMTABLE: usize = 1 << 20;
    let metrics = Metrics::new();
    let options = Options { memtable_bytes: MEMTABLE, metrics: metrics.clone(), ..by_hand() };
    let store = open(&SimulatedDisk::new(), options).expect("new");
    let value = |name: &str| {
        let text = metrics.text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse::<f64>().ok()).expect("it is shown")
    };
    for first in (0..ROWS).step_by(500) {
        write(&store, (first..first + 500).map(|n| put(key(n % 100, n), vec![7; 52]))).await;
        let bytes = value("tidings_store_generation_bytes");
        assert!(bytes <= (2 * MEMTABLE + (200 << 10)) as f64, "{bytes} bytes in the memtable");
    }
    flush_and_merge(&store);
    let (files, bytes) = (value("tidings_store_row_files"), value("tidings_store_row_bytes"));
    assert!(files < 24.0 && bytes < 65.0 * f64::from(ROWS), "{bytes} bytes in {files} files");
    let index = value("tidings_store_row_index_bytes") / f64::from(ROWS);
    assert!(index < 2.0, "{index} bytes of memory for a row in a file");
    for n in (0..ROWS).step_by(997) {
        assert!(store.row(TABLE, &key(n % 100, n)).await.expect("readable").is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floors_in_memory_are_bounded() {
    const FLOORS: u32 = 70_000;
    let metrics = Metrics::new();
    let options = Options { wal_file_bytes: 8 << 20, metrics: metrics.clone(), ..by_hand() };
    let store = open(&SimulatedDisk::new(), options).expect("new");
    // Rows at both ends, so that no floor is known to be needless, and a floor for each of many prefixes between them.
    write(&store, [put(key(0, 0), "first"), put(key(u32::MAX, 0), "last")]).await;
    flush_and_merge(&store);
    for half in 0..2 {
        let floors = (0..FLOORS).filter(|n| n % 2 == half);
        let floors = floors.map(|n| floor(key(1 + 2 * n, 0).slice(..4), key(1 + 2 * n, 5)));
        write(&store, floors.collect::<Vec<_>>()).await;
        flush_and_merge(&store);
    }
    let text = metrics.text();
    let index = text.lines().find_map(|line| line.strip_prefix("tidings_store_row_index_bytes "));
    let index: f64 = index.and_then(|value| value.parse().ok()).expect("it is shown");
    assert!(index < 10_000.0, "all files were merged, so no floor is needed any more: {index} bytes");
    assert_eq!(RowModel::of(&store).await.0.len(), 2);
}
