//! Cold rows: how fast they are written and found, and what they take on disk and in memory.

use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::join_all;
use tidings_bench::{Failed, Times, Usage, device_bytes, report};
use tidings_embedded::rows::{RowLayer, RowWrites};
use tidings_engine::log::{Commit, Commits, RowChange, RowSpan, RowTable, Rows};

use crate::{Store, open};

const TABLE: RowTable = RowTable(1);
const ROWS: u64 = 1_000_000;
/// Bytes of a key: those of a log, a position and an attempt.
const KEY_BYTES: usize = 26;
/// Bytes of a value, so that a row has 60.
const VALUE_BYTES: usize = 34;
/// Commits in flight, and rows of each.
const WRITERS: u64 = 64;
const ROWS_PER_COMMIT: u64 = 10;
/// Deliveries of one subscription, in the keys.
const PER_GROUP: u64 = 1_000;

/// The key of the n-th row: the subscriptions write in turn.
fn key(n: u64) -> Bytes {
    let (group, place) = (n % (ROWS / PER_GROUP), n / (ROWS / PER_GROUP));
    let mut key = Vec::with_capacity(KEY_BYTES);
    key.extend_from_slice(&group.to_be_bytes());
    key.extend_from_slice(&(u128::from(place) << 64).to_be_bytes());
    key.extend_from_slice(&[0, 1]);
    key.into()
}

fn value(n: u64) -> Bytes {
    let mut rng = fastrand::Rng::with_seed(n);
    (0..VALUE_BYTES).map(|_| rng.u8(..)).collect()
}

pub async fn rows(path: &Path) -> Result<(), Failed> {
    let store = open(path)?;
    write(&store, path).await?;
    store.flush()?;
    store.merge_now()?;
    drop(store);
    let files: Vec<_> = std::fs::read_dir(path.join("rows"))?.collect::<Result<_, _>>()?;
    let bytes: u64 = files.iter().map(|file| file.metadata().map_or(0, |file| file.len())).sum();
    let (per_row, count) = (bytes as f64 / ROWS as f64, files.len());
    report(
        "disk for a row of 60 bytes",
        &format!("{per_row:.1} bytes, {count} files"),
        "<= 64 bytes",
        per_row <= 64.0,
    );
    let before = Usage::now();
    let start = Instant::now();
    let store = open(path)?;
    let opened = start.elapsed().as_secs_f64() * 1000.0;
    let resident = (Usage::now().resident - before.resident) / ROWS as f64;
    report("memory for a row in files", &format!("{resident:.2} bytes"), "<= 2 bytes", resident <= 2.0);
    report("start with 1,000,000 rows", &format!("{opened:.0} ms"), "", true);
    find(&store).await?;
    clear(&store, path).await?;
    memtable();
    Ok(())
}

/// Encodes rows as the caller of a commit does, and puts them into a memtable as the committer does, until it is full.
fn memtable() {
    const FULL: u64 = 350_000;
    let random = |n: u64| -> Bytes {
        let mut rng = fastrand::Rng::with_seed(n);
        (0..KEY_BYTES).map(|_| rng.u8(..)).collect()
    };
    for (what, key) in [("in turn", &key as &dyn Fn(u64) -> Bytes), ("at random", &random)] {
        let row = |n| RowChange::Put { table: TABLE, key: key(n), value: value(n) };
        let commits: Vec<Vec<_>> =
            (0..FULL / 10).map(|commit| (commit * 10..commit * 10 + 10).map(row).collect()).collect();
        let start = Usage::now().cpu;
        let encoded: Vec<_> = commits.iter().map(|rows| RowWrites::of(rows)).collect();
        let encoding = (Usage::now().cpu - start) * 1e6 / FULL as f64;
        let (mut layer, start) = (RowLayer::default(), Usage::now().cpu);
        for writes in encoded {
            writes.writes.into_iter().for_each(|write| {
                layer.apply(write);
            });
        }
        let applying = (Usage::now().cpu - start) * 1e6 / FULL as f64;
        report(
            &format!("a row of 60 bytes, keys {what}"),
            &format!("{encoding:.2} us to encode, {applying:.2} us to put into a memtable"),
            "<= 1 us",
            encoding + applying <= 1.0,
        );
    }
}

async fn write(store: &Store, path: &Path) -> Result<(), Failed> {
    let (usage, written, start) = (Usage::now(), device_bytes(path)?, Instant::now());
    let writers = (0..WRITERS).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            let commits = (writer..ROWS / ROWS_PER_COMMIT).step_by(WRITERS as usize);
            let (mut times, mut count) = (Vec::new(), 0);
            for commit in commits {
                let numbers = commit * ROWS_PER_COMMIT..(commit + 1) * ROWS_PER_COMMIT;
                let rows = numbers.map(|n| RowChange::Put { table: TABLE, key: key(n), value: value(n) });
                let begun = Instant::now();
                store.commit(Commit { rows: rows.collect(), ..Commit::new() }).await.expect("acknowledged");
                times.push(begun.elapsed());
                count += ROWS_PER_COMMIT;
            }
            (times, count)
        })
    });
    let (mut times, mut count) = (Times::default(), 0);
    for writer in join_all(writers.collect::<Vec<_>>()).await {
        let (taken, rows) = writer?;
        taken.into_iter().for_each(|time| times.add(time));
        count += rows;
    }
    let elapsed = start.elapsed().as_secs_f64();
    let cpu = (Usage::now().cpu - usage.cpu) * 1e6 / count as f64;
    let (rate, p50, p99) = (count as f64 / elapsed, times.quantile(0.5), times.quantile(0.99));
    report(
        "rows of 60 bytes, 10 in a commit, 64 commits in flight",
        &format!("{rate:.0}/s, {cpu:.2} us of CPU for each, p50 {p50:.0} us, p99 {p99:.0} us"),
        ">= 100,000/s",
        rate >= 100_000.0,
    );
    let bytes = (device_bytes(path)? - written) / count as f64;
    report("device bytes for each", &format!("{bytes:.0}"), "", true);
    Ok(())
}

async fn find(store: &Store) -> Result<(), Failed> {
    const LOOKUPS: u64 = 200_000;
    const TASKS: u64 = 16;
    for (what, offset, goal) in
        [("rows found by key", 0, 50_000.0), ("rows looked up that are not there", 1, 500_000.0)]
    {
        let (reads, start) = (store.disk_reads(), Instant::now());
        let tasks = (0..TASKS).map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut rng = fastrand::Rng::with_seed(task);
                for _ in 0..LOOKUPS / TASKS {
                    let n = rng.u64(..ROWS);
                    let mut key = key(n).to_vec();
                    key[KEY_BYTES - 2] += offset;
                    let found = store.row(TABLE, &key).await.expect("readable");
                    assert_eq!(found, (offset == 0).then(|| value(n)));
                }
            })
        });
        for task in join_all(tasks.collect::<Vec<_>>()).await {
            task?;
        }
        let rate = LOOKUPS as f64 / start.elapsed().as_secs_f64();
        let reads = (store.disk_reads() - reads) as f64 / LOOKUPS as f64;
        report(
            what,
            &format!("{rate:.0}/s, {reads:.2} reads of files for each"),
            &format!(">= {goal:.0}/s"),
            rate >= goal,
        );
    }
    let (mut times, mut rng) = (Times::default(), fastrand::Rng::with_seed(1));
    for _ in 0..2000 {
        let from = key(rng.u64(..ROWS / 2));
        let span = RowSpan { from, rows: 50, ..RowSpan::of_prefix(Bytes::new()) };
        let begun = Instant::now();
        assert_eq!(store.rows(TABLE, span).await?.len(), 50);
        times.add(begun.elapsed());
    }
    let p50 = times.quantile(0.5);
    report("50 rows in order, p50", &format!("{p50:.0} us"), "<= 500 us", p50 <= 500.0);
    Ok(())
}

/// Clears the older half of each group, and then everything.
async fn clear(store: &Store, path: &Path) -> Result<(), Failed> {
    let bytes = || -> Result<u64, Failed> {
        std::fs::read_dir(path.join("rows"))?.map(|file| Ok(file?.metadata()?.len())).sum()
    };
    let full = bytes()?;
    let start = Instant::now();
    let floors = (0..ROWS / PER_GROUP).map(|group| {
        let below = key(group + ROWS / PER_GROUP * (PER_GROUP * 6 / 10));
        RowChange::Floor { table: TABLE, prefix: below.slice(..8), below }
    });
    store.commit(Commit { rows: floors.collect(), ..Commit::new() }).await?;
    let committed = start.elapsed().as_secs_f64() * 1000.0;
    store.flush()?;
    store.merge_now()?;
    let (left, took) = (bytes()? as f64 / full as f64, start.elapsed().as_secs_f64());
    report(
        "1,000 floors that clear 60 % of the rows",
        &format!("{committed:.1} ms; {:.0} % of the space is left after {took:.2} s", left * 100.0),
        "<= 80 %, twice what is live",
        left <= 0.8,
    );
    store.commit(Commit::new().with_row(RowChange::clear(TABLE, Bytes::new()))).await?;
    store.flush()?;
    store.merge_now()?;
    report("the same after all are cleared", &format!("{} bytes", bytes()?), "0 bytes", bytes()? == 0);
    Ok(())
}
