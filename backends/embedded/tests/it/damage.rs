//! A write-ahead log with files that are lost, swapped, shortened or zeroed is refused, or everything that
//! the manifest recorded as durable is still there.
//!
//! A store takes appends, is flushed now and then, and is closed or killed. Then every file of its log is
//! damaged in every way, each time on a copy of the disk. Opening must name the file, or show every record
//! that was acknowledged up to the commit that the manifest has recorded. `truncate` must yield a store that
//! opens.

use std::time::Duration;

use bytes::Bytes;
use tidings_embedded::checkpoint::Manifest;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_embedded::tools::{backup, check, truncate};
use tidings_embedded::{Disk, Embedded, Options};
use tidings_engine::log::{Append, Commit, Commits, Logs, Operation, Span};
use tidings_model::{CommitNumber, LogId, Position};

use crate::book::{Book, open, small};

const HISTORIES: u64 = 24;
const FILE_BYTES: usize = 64 << 10;
const FIRST_FRAME: usize = 8192;

/// Damage to a file of the log.
#[derive(Clone, Debug)]
enum Damage {
    Lost,
    SwappedWith(String),
    CopyOf(String),
    Shortened(usize),
    Zeroed(std::ops::Range<usize>),
}

impl Damage {
    fn apply(&self, disk: &SimulatedDisk, name: &str) {
        match self {
            Self::Lost => disk.lose(name),
            Self::SwappedWith(other) => disk.swap(name, other),
            Self::CopyOf(other) => disk.overwrite_with_copy(name, other),
            Self::Shortened(length) => disk.shorten(name, *length),
            Self::Zeroed(part) => disk.zero(name, part.clone()),
        }
    }

    /// Whether it destroys more than frames: then the file is refused, whatever it contains.
    fn shows(&self) -> bool {
        !matches!(self, Self::Zeroed(part) if part.start >= FIRST_FRAME)
    }

    fn all(rng: &mut fastrand::Rng, others: &[String]) -> Vec<Self> {
        let block = |rng: &mut fastrand::Rng| FIRST_FRAME + 4096 * rng.usize(..14);
        let (one, two) = (block(rng), block(rng));
        let mut all = vec![
            Self::Lost,
            Self::Shortened(0),
            Self::Shortened(FIRST_FRAME),
            Self::Shortened(FILE_BYTES / 2),
            Self::Shortened(FILE_BYTES - 1),
            Self::Shortened(rng.usize(..FILE_BYTES)),
            Self::Zeroed(0..FILE_BYTES),
            Self::Zeroed(FIRST_FRAME..FILE_BYTES),
            Self::Zeroed(FILE_BYTES / 2..FILE_BYTES),
            Self::Zeroed(one.min(two)..one.max(two) + 4096),
            Self::Zeroed(one..FILE_BYTES),
        ];
        all.extend(others.iter().cloned().map(Self::SwappedWith));
        all.extend(others.iter().cloned().map(Self::CopyOf));
        all
    }
}

/// How a history ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    Killed,
}

struct History {
    disk: SimulatedDisk,
    log: LogId,
    /// Acknowledged records with their commits, in order.
    acknowledged: Vec<(CommitNumber, Bytes)>,
}

fn options(seed: u64) -> Options {
    // The end of the log is recorded all the time, or only with other changes of the manifest.
    let record_interval = Duration::from_millis(if seed.is_multiple_of(3) { 1 } else { 600_000 });
    // Memtables so large that several files of the log hold commits that are nowhere else.
    Options { secret: seed, record_interval, memtable_bytes: 200 << 10, ..small() }
}

async fn history(seed: u64, end: End) -> History {
    let mut rng = fastrand::Rng::with_seed(seed);
    let disk = SimulatedDisk::new();
    let mut store = open(&disk, options(seed)).expect("new");
    let log = store.reserve().await.expect("a number");
    store.commit(Commit::new().with(Operation::create(log))).await.expect("created");
    let mut acknowledged = Vec::new();
    for n in 0..rng.u32(1..60) {
        let mut payload = n.to_be_bytes().to_vec();
        payload.resize(rng.usize(4..9_000), rng.u8(..));
        let payload = Bytes::from(payload);
        let commit = Commit::new().with(Append::new(log, vec![payload.clone()]));
        acknowledged.push((store.commit(commit).await.expect("appended").number, payload));
        if rng.u8(..50) == 0 {
            store.flush().expect("written");
        }
        if rng.u8(..60) == 0 {
            drop(store);
            store = open(&disk, options(seed)).expect("opens");
        }
    }
    let disk = if end == End::Killed { disk.after_kill() } else { disk };
    drop(store);
    History { disk, log, acknowledged }
}

async fn records(store: &Embedded<Book>, log: LogId) -> Vec<Bytes> {
    let all = Span { bytes: usize::MAX, records: usize::MAX, ..Span::after(Position::ZERO) };
    let Ok(page) = store.read(log, all).await else { return Vec::new() };
    page.records.into_iter().map(|record| record.payload).collect()
}

impl History {
    async fn survives(&self, seed: u64, end: End, name: &str, damage: &Damage) {
        let what = format!("seed {seed}, {end:?}, {name} {damage:?}");
        let manifest = Manifest::load(&self.disk).expect("readable").expect("there");
        let counts = manifest.log.iter().any(|file| file.name() == name);
        let last = self.acknowledged.last().map_or(CommitNumber::default(), |(number, _)| *number);
        if end == End::Closed {
            assert!(manifest.reached.number >= last, "{what}: closing records the end");
        }
        let disk = self.disk.after_kill();
        damage.apply(&disk, name);
        let problems = check::<Book>(&disk);
        match open(&disk, options(seed)) {
            Ok(store) => {
                assert!(problems.is_empty(), "{what}: {problems:?}, though it opens");
                assert!(!counts || !damage.shows(), "{what}: not refused");
                let found = records(&store, self.log).await;
                let known = self.acknowledged.iter().filter(|(number, _)| *number <= manifest.reached.number);
                assert!(found.len() >= known.count(), "{what}: acknowledged records are gone");
                assert!(
                    found.iter().eq(self.acknowledged.iter().map(|(_, payload)| payload).take(found.len()))
                );
            }
            Err(error) => {
                let told = error.to_string();
                assert!(told.contains("tidings store truncate"), "{what}: {told}");
                // If a crash came between two files of the log, the earlier one may be named.
                let exact = end == End::Closed || damage.shows();
                let named = told.contains(name)
                    || matches!(damage, Damage::SwappedWith(other) if told.contains(other));
                assert!(!exact || named, "{what}: {told}");
                assert!(problems.iter().any(|problem| problem.to_string() == told), "{what}: {problems:?}");
                // A copy may contain part of what was not recorded.
                assert!(
                    !exact || backup(&disk, &SimulatedDisk::new()).is_err(),
                    "{what}: half a store copied"
                );
                self.can_be_cut(seed, &disk, &what).await;
            }
        }
    }

    async fn can_be_cut(&self, seed: u64, disk: &SimulatedDisk, what: &str) {
        assert!(truncate(disk).expect("cut").is_some(), "{what}");
        assert_eq!(truncate(disk).expect("nothing to cut"), None, "{what}");
        assert!(check::<Book>(disk).is_empty(), "{what}");
        let store = open(disk, options(seed)).unwrap_or_else(|error| panic!("{what}, cut: {error}"));
        let found = records(&store, self.log).await;
        assert!(
            found.iter().eq(self.acknowledged.iter().map(|(_, payload)| payload).take(found.len())),
            "{what}"
        );
        let other = store.reserve().await.expect("a number");
        let created = store.commit(Commit::new().with(Operation::create(other))).await.expect("goes on");
        assert_eq!(created.number.era().get(), 1, "{what}: numbers would be given out twice");
        drop(store);
        open(disk, options(seed)).unwrap_or_else(|error| panic!("{what}, cut and written: {error}"));
    }
}

async fn damage_everything(end: End) {
    let mut refused_zeros = 0;
    for seed in 0..HISTORIES {
        let history = history(seed, end).await;
        let mut rng = fastrand::Rng::with_seed(seed);
        let names: Vec<String> =
            history.disk.list("wal").expect("listed").iter().map(|short| format!("wal/{short}")).collect();
        for name in &names {
            let others: Vec<String> = names.iter().filter(|other| *other != name).cloned().collect();
            for damage in Damage::all(&mut rng, &others) {
                history.survives(seed, end, name, &damage).await;
                let damaged = history.disk.after_kill();
                damage.apply(&damaged, name);
                refused_zeros += u32::from(!damage.shows() && !check::<Book>(&damaged).is_empty());
            }
        }
    }
    assert!(refused_zeros > 20, "frames that were zeroed are told, not {refused_zeros} times");
}

#[tokio::test]
async fn a_damaged_log_of_a_closed_store_is_told_and_can_be_cut() {
    damage_everything(End::Closed).await;
}

#[tokio::test]
async fn a_damaged_log_of_a_killed_store_has_what_was_recorded_or_is_told() {
    damage_everything(End::Killed).await;
}

#[tokio::test]
async fn a_log_without_any_file_is_told() {
    for end in [End::Closed, End::Killed] {
        let history = history(1, end).await;
        for short in history.disk.list("wal").expect("listed") {
            history.disk.lose(&format!("wal/{short}"));
        }
        let error = open(&history.disk, options(1)).err().expect("refused");
        assert!(error.to_string().contains("is missing"), "{error}");
        let manifest = Manifest::load(&history.disk).expect("readable").expect("there");
        assert_eq!(check::<Book>(&history.disk).len(), manifest.log.len(), "each is named");
        history.can_be_cut(1, &history.disk, "all lost").await;
    }
}

#[tokio::test]
async fn how_far_the_log_went_is_recorded_while_the_store_runs() {
    let disk = SimulatedDisk::new();
    let options = Options { record_interval: Duration::from_millis(1), ..small() };
    let store = open(&disk, options).expect("new");
    let log = store.reserve().await.expect("a number");
    let created = store.commit(Commit::new().with(Operation::create(log))).await.expect("created").number;
    // The maintenance thread records it.
    while Manifest::load(&disk).expect("readable").expect("there").reached.number < created {
        tokio::task::yield_now().await;
    }
    let killed = disk.after_kill();
    killed.zero("wal/000001", FIRST_FRAME..FILE_BYTES);
    let error = open(&killed, small()).err().expect("refused");
    assert!(
        error.to_string().contains("wal/000001 is damaged at byte 8192: the log went up to commit 1"),
        "{error}"
    );
}

#[tokio::test]
async fn closing_records_which_files_are_full_even_if_its_end_was_recorded_before() {
    let disk = SimulatedDisk::new();
    let options = || Options { memtable_bytes: 32 << 20, ..small() };
    let store = open(&disk, options()).expect("new");
    let (kept, dropped) =
        (store.reserve().await.expect("a number"), store.reserve().await.expect("a number"));
    let create = Commit::new().with(Operation::create(kept)).with(Operation::create(dropped));
    store.commit(create).await.expect("created");
    let append = |log, bytes: usize| Commit::new().with(Append::new(log, vec![Bytes::from(vec![7; bytes])]));
    store.commit(append(dropped, 100)).await.expect("appended");
    store.flush().expect("written");
    store.commit(Commit::new().with(Operation::Delete(dropped))).await.expect("deleted");
    // There is no space for the file after the next one, so switching to the next one records nothing yet.
    disk.set_capacity(Some(disk.used() + FILE_BYTES as u64 / 2));
    let mut last = CommitNumber::default();
    for _ in 0..8 {
        last = store.commit(append(kept, 8_000)).await.expect("appended").number;
    }
    // Removing the dead segment records the end, but not the files.
    store.merge_now().expect("removed");
    let manifest = Manifest::load(&disk).expect("readable").expect("there");
    assert_eq!(manifest.reached.number, last, "recorded before it is closed");
    drop(store);
    disk.set_capacity(None);
    disk.zero("wal/000002", FIRST_FRAME..FILE_BYTES);
    let error = open(&disk, options()).err().expect("refused");
    assert!(error.to_string().contains("wal/000002 is damaged at byte 8192"), "{error}");
}
