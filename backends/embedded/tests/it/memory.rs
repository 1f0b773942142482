//! What the store keeps in memory: nothing but what it counts, and of files only parts at a time.

use bytes::Bytes;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_embedded::{Disk, Embedded, Options};
use tidings_engine::log::{Append, Commit, Commits, Logs, Of, Operation, Record, Refer, Span};
use tidings_model::{LogId, Position};

use crate::book::{Book, open, small};

const ALL: Span =
    Span { after: Position::ZERO, through: Position::MAX, bytes: usize::MAX, records: usize::MAX };

/// Options with memtables that are flushed only when a test says so.
fn by_hand() -> Options {
    Options { memtable_bytes: 1 << 30, wal_file_bytes: 64 << 20, ..small() }
}

async fn new_logs<const N: usize>(store: &Embedded<Book>) -> [LogId; N] {
    let mut logs = [LogId::new(0); N];
    for log in &mut logs {
        *log = store.reserve().await.expect("a number");
        store.commit(Commit::new().with(Operation::create(*log))).await.expect("created");
    }
    logs
}

/// Appends records, in one commit. Returns the position of the last.
async fn append(store: &Embedded<Book>, log: LogId, payloads: Vec<Bytes>) -> Position {
    store.commit(Commit::new().with(Append::new(log, payloads))).await.expect("appended").appended().last
}

/// Refers to the records between two positions.
async fn refer(store: &Embedded<Book>, log: LogId, after: Position, through: Position, into: &[LogId]) {
    let of = Of::Stored { log, after, through };
    store.commit(Commit::new().with(Refer { of, into: into.into() })).await.expect("referred");
}

async fn records(store: &Embedded<Book>, log: LogId) -> Vec<Record> {
    store.read(log, ALL).await.expect("readable").records
}

/// Bytes of memory that a record keeps, which nobody else may have.
fn kept_by(record: Record) -> usize {
    record.payload.try_into_mut().expect("nobody else has it").capacity()
}

#[tokio::test]
async fn a_reference_to_one_of_many_records_keeps_only_that_one_in_memory() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, by_hand()).expect("new");
    let [log, target] = new_logs(&store).await;
    let first = append(&store, log, vec![Bytes::from_static(&[1; 100])]).await;
    append(&store, log, vec![Bytes::from_static(&[2; 100]); 300]).await;
    for _ in 0..2 {
        // The records lie in a segment, and in no memtable that is kept.
        store.flush().expect("written");
        append(&store, log, vec![Bytes::from_static(b"later")]).await;
    }
    let read = store.read(log, Span { records: 1, ..ALL }).await.expect("readable").records.remove(0);
    assert!(kept_by(read) > 30_000, "who reads it has the whole run");
    refer(&store, log, Position::ZERO, first, &[target]).await;
    let disk_reads = store.disk_reads();
    let referred = records(&store, target).await.remove(0);
    assert_eq!(store.disk_reads(), disk_reads, "it is in memory");
    drop(store);
    assert_eq!(kept_by(referred), 100);
}

#[tokio::test]
async fn a_record_does_not_keep_what_fills_up_its_frame_after_a_restart() {
    let disk = SimulatedDisk::new();
    let store = open(&disk, by_hand()).expect("new");
    let [log] = new_logs(&store).await;
    append(&store, log, vec![Bytes::from_static(&[1; 100])]).await;
    drop(store);
    let store = open(&disk, by_hand()).expect("opens");
    let record = records(&store, log).await.remove(0);
    drop(store);
    assert!(kept_by(record) < 200, "a frame takes 4 KiB on the disk");
}

/// More references than are in memory at a time while a segment is written, to records of the same segment and of others,
/// some to the same record.
#[tokio::test]
async fn very_many_references_survive_flushes_and_merges_and_share_their_payloads() {
    const ROUNDS: u32 = 8;
    const RECORDS: u32 = 10_000;
    let payload = |n: u32| Bytes::from([n.to_be_bytes().as_slice(), &[7; 96]].concat());
    let disk = SimulatedDisk::new();
    let store = open(&disk, by_hand()).expect("new");
    let [log, one, other, late] = new_logs(&store).await;
    let mut before = Position::ZERO;
    let mut expected = Vec::new();
    let mut first_round = Position::ZERO;
    for round in 0..ROUNDS {
        let numbers = round * RECORDS..(round + 1) * RECORDS;
        let through = append(&store, log, numbers.clone().map(payload).collect()).await;
        // To those of this round and of the one before, together in two logs.
        let after = if round == 0 { Position::ZERO } else { before };
        if round == 0 {
            first_round = through;
        }
        refer(&store, log, after, through, &[one, other]).await;
        expected.extend(numbers);
        before = through;
        // To those of the first round, in each segment.
        refer(&store, log, Position::ZERO, first_round, &[late]).await;
        store.flush().expect("written");
    }
    let late_expected: Vec<u32> = (0..ROUNDS).flat_map(|_| 0..RECORDS).collect();
    let origins: Vec<(Position, Position)> = records(&store, one)
        .await
        .iter()
        .map(|record| (record.position, record.origin.expect("a reference").position))
        .collect();
    let check = async |store: &Embedded<Book>| {
        let numbers = |records: &[Record]| -> Vec<u32> {
            records
                .iter()
                .map(|record| {
                    let (number, rest) = record.payload.split_first_chunk().expect("four bytes");
                    assert_eq!(rest, [7; 96]);
                    u32::from_be_bytes(*number)
                })
                .collect()
        };
        for target in [one, other] {
            let records = records(store, target).await;
            assert_eq!(numbers(&records), expected);
            let found = records.iter().map(|record| (record.position, record.origin.expect("one").position));
            assert!(found.eq(origins.iter().copied()));
        }
        assert_eq!(numbers(&records(store, late).await), late_expected);
    };
    let segments = || disk.list("segments").expect("listed");
    store.merge_now().expect("merged");
    assert_eq!(segments().len(), 1, "all are merged");
    check(&store).await;
    let bytes = |name: &String| {
        disk.open(&format!("segments/{name}")).and_then(|file| file.len()).expect("it is there")
    };
    let merged: u64 = segments().iter().map(bytes).sum();
    let payloads = u64::from(ROUNDS * RECORDS) * 100;
    // 72 bytes for each of the records that are referred to by a commit, and a few for each record and reference.
    let most = payloads + u64::from(2 * ROUNDS * RECORDS) * 72 + u64::from(4 * ROUNDS * RECORDS) * 12;
    assert!(merged < most, "{merged} bytes, of which {payloads} are payload, each once");
    // The records go, and some of the references. What is still referred to stays.
    store.commit(Commit::new().with(Operation::Delete(log))).await.expect("deleted");
    store.commit(Commit::new().with(Operation::Delete(other))).await.expect("deleted");
    drop(store);
    let store = open(&disk, by_hand()).expect("opens");
    store.flush().expect("written");
    store.merge_now().expect("rewritten");
    let records_of_one = records(&store, one).await;
    assert_eq!(records_of_one.len(), expected.len());
    assert!(records_of_one.iter().zip(&expected).all(|(record, n)| record.payload == payload(*n)));
    let floor = records(&store, late).await[(ROUNDS * RECORDS / 2) as usize - 1].position;
    let trims = [(one, Position::MAX), (late, floor)].map(|(log, floor)| Operation::Trim { log, floor });
    for trim in trims {
        store.commit(Commit::new().with(trim)).await.expect("trimmed");
    }
    store.flush().expect("written");
    store.merge_now().expect("rewritten");
    let rewritten: u64 = segments().iter().map(bytes).sum();
    assert!(rewritten < merged / 2, "{rewritten} bytes of {merged}");
    drop(store);
    let store = open(&disk, by_hand()).expect("opens");
    let left = records(&store, late).await;
    assert_eq!(left.len() as u32, ROUNDS * RECORDS / 2);
    assert!(left.iter().zip((0..RECORDS).cycle()).all(|(record, n)| record.payload == payload(n)));
}
