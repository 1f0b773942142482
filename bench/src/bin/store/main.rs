//! Benchmark of the embedded store, compared with the raw sync of the same disk: `store [DIR [PART]]`. Prints
//! a table in Markdown.
//!
//! `store DIR compact STORE` is started by the benchmark itself, for a process whose memory is that of one
//! store.

mod rows;

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use tidings_bench::{Failed, Raw, Times, Usage, device_bytes, report};
use tidings_embedded::codec::{DecodeError, Reader};
use tidings_embedded::field::Field;
use tidings_embedded::{Access, Embedded, Folder, Options, StoredState};
use tidings_engine::log::{
    Append, Change, Commit, Commits, Logs, Of, Operation, Refer, Snapshots, Span, StateMachine,
};
use tidings_engine::{Bus, WallClock};
use tidings_model::{LogId, Position, ProjectId, StreamId, Timestamp};
use tidings_streams::{ContentType, Expiry, Owner, Stream, StreamKey, StreamState};

/// A state machine without tables.
#[derive(Default)]
struct Nothing;

enum Never {}

impl Change for Never {
    type Refusal = Infallible;
}

impl StateMachine for Nothing {
    type Change = Never;

    fn validate(&self, change: &Never) -> Result<(), Infallible> {
        match *change {}
    }

    fn apply(&mut self, change: Never) {
        match change {}
    }
}

impl Field for Never {
    fn put(&self, _: &mut Vec<u8>) {
        match *self {}
    }

    fn take(_: &mut Reader) -> Result<Self, DecodeError> {
        Err(DecodeError)
    }
}

impl Snapshots for Nothing {
    type Row = Never;

    fn begin_snapshot(&mut self) {}

    fn next_rows(&mut self, _: usize) -> Option<Vec<Never>> {
        None
    }

    fn end_snapshot(&mut self) {}

    fn restore(row: Never, _: &mut dyn FnMut(Never)) {
        match row {}
    }
}

impl StoredState for Nothing {
    fn takes_space(&self, change: &Never) -> bool {
        match *change {}
    }

    fn conflict_keys(&self, change: &Never, _: &mut dyn FnMut(Access, u64)) {
        match *change {}
    }
}

type Store = Embedded<Nothing>;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let parent = std::env::args().nth(1).unwrap_or_else(|| "target".to_owned());
    if let Some(store) = std::env::args().nth(3) {
        return compact(Path::new(&store)).await;
    }
    let folder = tempfile::Builder::new().prefix("bench-store-").tempdir_in(parent)?;
    let raw = Raw::measure(folder.path(), Duration::from_secs(2))?;
    raw.print();
    println!("\n| what | measured | goal | |\n|---|---|---|---|");
    let only = std::env::args().nth(2);
    let wanted = |part: &str| only.as_deref().is_none_or(|only| only == part);
    if wanted("one") {
        one_in_flight(&folder.path().join("one"), &raw).await?;
    }
    if wanted("many") {
        many_in_flight(&folder.path().join("many"), &raw).await?;
    }
    if wanted("fan-out") {
        fan_out(&folder.path().join("fan-out"), &raw).await?;
    }
    if wanted("logs") {
        many_logs(&folder.path().join("logs")).await?;
    }
    if wanted("reads") {
        reads(&folder.path().join("reads")).await?;
    }
    if wanted("rows") {
        rows::rows(&folder.path().join("rows")).await?;
    }
    if wanted("delete") {
        delete(&folder.path().join("delete")).await?;
    }
    if wanted("idle") {
        idle_logs(&folder.path().join("idle")).await?;
        idle_streams(&folder.path().join("streams")).await?;
    }
    if wanted("compact") {
        let store = folder.path().join("compact");
        fill_with_streams(&store).await?;
        let mut child = std::process::Command::new(std::env::current_exe()?);
        if !child.args(["", "compact"]).arg(store).status()?.success() {
            return Err("the process that compacts has failed".into());
        }
    }
    Ok(())
}

/// Memory that a store takes in addition while its checkpoint is compacted and others write.
async fn compact(path: &Path) -> Result<(), Failed> {
    let files = || -> Result<Vec<_>, Failed> {
        let mut names: Vec<_> = std::fs::read_dir(path.join("checkpoint"))?
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<Result<_, _>>()?;
        names.sort();
        Ok(names)
    };
    let store: Embedded<tidings_streams::Table> = open_with(path)?;
    let project = ProjectId::parse("bench")?;
    let renewal = |first: usize, at: u64| -> Result<Commit<tidings_streams::Change>, Failed> {
        let mut commit = Commit::new();
        for n in first..first + 2000 {
            let n = n % STREAMS;
            let key = StreamKey { project: project.clone(), id: StreamId::parse(&format!("user-{n:08}"))? };
            let log = LogId::new(n as u64 + 1);
            let expires_at = Timestamp::from_millis(at);
            commit = commit.changing(tidings_streams::Change::Renew { key, log, expires_at });
        }
        Ok(commit)
    };
    for round in 1..100 {
        for first in (0..100_000).step_by(2000) {
            store.commit(renewal(round * 100_000 + first, round as u64 + 1)?).await?;
        }
        let (before, resident) = (files()?, Usage::now().resident);
        Usage::forget_peak()?;
        let start = Instant::now();
        let flushing = store.clone();
        let flushing = tokio::task::spawn_blocking(move || {
            // The second flush waits until everything that the first has started is done.
            flushing.flush().and_then(|()| flushing.flush())
        });
        for first in (0..50_000).step_by(2000) {
            store.commit(renewal(round * 200_000 + first, round as u64 + 2)?).await?;
        }
        flushing.await??;
        let (took, peak) = (start.elapsed().as_secs_f64(), Usage::peak());
        if before.first().is_some_and(|first| files().is_ok_and(|now| !now.contains(first))) {
            let ratio = peak / resident;
            let mb = |bytes: f64| bytes / 1e6;
            report(
                "peak memory while the checkpoint of 1,000,000 streams is compacted",
                &format!("{:.0} MB = {ratio:.2} x {:.0} MB, {took:.1} s", mb(peak), mb(resident)),
                "<= 1.3 x resident",
                ratio <= 1.3,
            );
            return Ok(());
        }
    }
    Err("the checkpoint was never compacted".into())
}

const STREAMS: usize = 1_000_000;

fn open(path: &Path) -> Result<Store, Failed> {
    open_with(path)
}

fn open_with<T: StoredState>(path: &Path) -> Result<Embedded<T>, Failed> {
    std::fs::create_dir_all(path)?;
    let options = Options { secret: 42, ..Options::default() };
    Ok(Embedded::open(Arc::new(Folder::open(path)?), options, Bus::new(), Arc::new(WallClock))?)
}

async fn new_logs(store: &Store, count: usize) -> Result<Vec<LogId>, Failed> {
    let mut logs = Vec::with_capacity(count);
    for _ in 0..count {
        logs.push(store.reserve().await?);
    }
    for chunk in logs.chunks(2000) {
        let commit = chunk.iter().fold(Commit::new(), |commit, &log| commit.with(Operation::create(log)));
        store.commit(commit).await?;
    }
    Ok(logs)
}

fn append(log: LogId, payload: &Bytes) -> Commit<Never> {
    Commit::new().with(Append::new(log, vec![payload.clone()]))
}

async fn one_in_flight(path: &Path, raw: &Raw) -> Result<(), Failed> {
    let store = open(path)?;
    let log = new_logs(&store, 1).await?[0];
    let payload = Bytes::from(vec![b'x'; 100]);
    let mut times = Times::default();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        let begun = Instant::now();
        store.commit(append(log, &payload)).await?;
        times.add(begun.elapsed());
    }
    let (p50, p99, rate) = (times.quantile(0.5), times.quantile(0.99), times.rate());
    let ratio = p50 / raw.p50;
    report(
        "1 append in flight, p50",
        &format!("{p50:.0} us = {ratio:.2} x raw"),
        "<= 1.25 x raw",
        ratio <= 1.25,
    );
    let ratio = p99 / raw.p99;
    report("1 append in flight, p99", &format!("{p99:.0} us = {ratio:.2} x raw"), "<= 3 x raw", ratio <= 3.0);
    let ratio = rate / raw.rate;
    report(
        "1 append in flight, rate",
        &format!("{rate:.0}/s = {ratio:.2} x raw"),
        ">= 0.85 x raw",
        ratio >= 0.85,
    );
    Ok(())
}

async fn many_in_flight(path: &Path, raw: &Raw) -> Result<(), Failed> {
    const CLIENTS: usize = 1024;
    let store = open(path)?;
    let logs = new_logs(&store, CLIENTS).await?;
    let payload = Bytes::from(vec![b'x'; 100]);
    let start = Instant::now();
    let clients = logs.into_iter().map(|log| {
        let (store, payload) = (store.clone(), payload.clone());
        tokio::spawn(async move {
            let mut times = Vec::new();
            while start.elapsed() < Duration::from_secs(4) {
                let begun = Instant::now();
                store.commit(append(log, &payload)).await.expect("acknowledged");
                times.push(begun.elapsed());
            }
            times
        })
    });
    let mut times = Times::default();
    let mut acknowledged = 0;
    for client in join_all(clients.collect::<Vec<_>>()).await {
        for time in client? {
            times.add(time);
            acknowledged += 1;
        }
    }
    let rate = f64::from(acknowledged) / start.elapsed().as_secs_f64();
    report("1,024 appends in flight", &format!("{rate:.0} acks/s"), ">= 400,000/s", rate >= 400_000.0);
    let share = rate / (raw.rate_64k * 512.0);
    report("the same, of what 64 KiB syncs could carry", &format!("{share:.3}"), ">= 0.12", share >= 0.12);
    let (p50, p99) = (times.quantile(0.5), times.quantile(0.99));
    let ratio = p99 / raw.p50;
    report(
        "the same, p50 / p99",
        &format!("{p50:.0} / {p99:.0} us = {ratio:.0} x raw p50"),
        "p99 <= 40 x raw p50",
        ratio <= 40.0,
    );
    Ok(())
}

async fn fan_out(path: &Path, raw: &Raw) -> Result<(), Failed> {
    let store = open(path)?;
    let source = new_logs(&store, 1).await?[0];
    let targets = new_logs(&store, 100_000).await?;
    store.flush()?;
    let payload = Bytes::from(vec![b'x'; 1024]);
    let publish = |into: &[LogId]| {
        let refer = Refer { of: Of::Append(0), into: into.into() };
        append(source, &payload).with(refer)
    };
    let (before, written, start) = (Usage::now(), device_bytes(path)?, Instant::now());
    let (mut times, mut references) = (Times::default(), 0usize);
    let mut turn = 0;
    while start.elapsed() < Duration::from_secs(5) {
        let into = &targets[turn * 1000 % 100_000..][..1000];
        let begun = Instant::now();
        store.commit(publish(into)).await?;
        times.add(begun.elapsed());
        references += 1000;
        turn += 1;
    }
    let elapsed = start.elapsed().as_secs_f64();
    store.flush()?;
    store.merge_now()?;
    let after = Usage::now();
    let (p50, rate) = (times.quantile(0.5), references as f64 / elapsed);
    let ratio = p50 / raw.p50;
    report("publish to 1,000, p50", &format!("{p50:.0} us = {ratio:.2} x raw"), "<= 2 x raw", ratio <= 2.0);
    report("references, 1 publisher", &format!("{rate:.0}/s"), ">= 2,000,000/s", rate >= 2e6);
    let bytes = (device_bytes(path)? - written) / references as f64;
    report("device bytes per reference, merged", &format!("{bytes:.1}"), "<= 30", bytes <= 30.0);
    let cpu = (after.cpu - before.cpu) * 1e6 / references as f64;
    report("CPU per reference", &format!("{cpu:.2} us"), "<= 0.5 us", cpu <= 0.5);
    let mut whole = Times::default();
    for _ in 0..10 {
        let begun = Instant::now();
        let after = store.status(source).await?.tail;
        let through = store.commit(append(source, &payload)).await?.appended().last;
        let of = Of::Stored { log: source, after, through };
        let chunks = targets.chunks(4096).map(|into| {
            let refer = Refer { of: of.clone(), into: into.into() };
            store.commit(Commit::new().with(refer))
        });
        for chunk in join_all(chunks).await {
            chunk?;
        }
        whole.add(begun.elapsed());
    }
    let p50 = whole.quantile(0.5) / 1000.0;
    report("100,000 targets, last reference durable", &format!("{p50:.1} ms"), "<= 10 ms", p50 <= 10.0);
    Ok(())
}

async fn many_logs(path: &Path) -> Result<(), Failed> {
    const LOGS: usize = 10_000;
    let store = open(path)?;
    let logs = new_logs(&store, LOGS).await?;
    let payload = Bytes::from(vec![b'x'; 100]);
    let (written, start) = (device_bytes(path)?, Instant::now());
    let (mut records, mut times) = (0usize, Times::default());
    while start.elapsed() < Duration::from_secs(6) {
        let first = records % LOGS;
        let batch = logs[first..first + 1000].iter();
        let commit =
            batch.fold(Commit::new(), |commit, &log| commit.with(Append::new(log, vec![payload.clone()])));
        let begun = Instant::now();
        store.commit(commit).await?;
        times.add(begun.elapsed());
        records += 1000;
    }
    let rate = records as f64 / start.elapsed().as_secs_f64();
    store.flush()?;
    report("100-byte records over 10,000 logs", &format!("{rate:.0}/s"), ">= 1,500,000/s", rate >= 1.5e6);
    let amplification = (device_bytes(path)? - written) / (records as f64 * 100.0);
    report("write amplification", &format!("{amplification:.2}"), "<= 2.5", amplification <= 2.5);
    let worst = times.quantile(1.0) / 1000.0;
    report("worst commit while segments are written", &format!("{worst:.0} ms"), "<= 50 ms", worst <= 50.0);
    Ok(())
}

async fn reads(path: &Path) -> Result<(), Failed> {
    let store = open(path)?;
    let log = new_logs(&store, 1).await?[0];
    let payload = Bytes::from(vec![b'x'; 100]);
    store.commit(Commit::new().with(Append::new(log, vec![payload; 500]))).await?;
    for (what, flushed) in [("read 500 records, in memory", false), ("read 500 records, warm segment", true)]
    {
        if flushed {
            store.flush()?;
            let other = new_logs(&store, 1).await?[0];
            store.commit(append(other, &Bytes::from_static(b"x"))).await?;
            store.flush()?;
        }
        let disk_reads = store.disk_reads();
        let mut times = Times::default();
        for _ in 0..2000 {
            let begun = Instant::now();
            let page = store.read(log, Span::after(Position::ZERO)).await?;
            times.add(begun.elapsed());
            assert_eq!(page.records.len(), 500);
        }
        let p50 = times.quantile(0.5);
        let reads = store.disk_reads() - disk_reads;
        report(what, &format!("{p50:.0} us, {reads} of 2000 from files"), "<= 40 us", p50 <= 40.0);
    }
    Ok(())
}

async fn delete(path: &Path) -> Result<(), Failed> {
    let store = open(path)?;
    let log = new_logs(&store, 1).await?[0];
    let payload = Bytes::from(vec![b'x'; 100]);
    for _ in 0..100 {
        store.commit(Commit::new().with(Append::new(log, vec![payload.clone(); 1000]))).await?;
    }
    store.flush()?;
    let begun = Instant::now();
    store.commit(Commit::new().with(Operation::Delete(log))).await?;
    let deleted = begun.elapsed().as_secs_f64() * 1e6;
    let begun = Instant::now();
    store.flush()?;
    store.merge_now()?;
    let segments = std::fs::read_dir(path.join("segments"))?.count();
    let freed = begun.elapsed().as_secs_f64();
    report("delete a log of 100,000 records", &format!("{deleted:.0} us, one commit"), "one commit", true);
    report(
        "its space is back",
        &format!("{freed:.2} s, {segments} segments left"),
        "<= 10 min",
        segments == 0,
    );
    Ok(())
}

/// Memory and start time of idle streams, with their names and rows.
async fn idle_streams(path: &Path) -> Result<(), Failed> {
    fill_with_streams(path).await?;
    let before = Usage::now();
    let start = Instant::now();
    let store: Embedded<tidings_streams::Table> = open_with(path)?;
    let opened = start.elapsed().as_secs_f64();
    let bytes = (Usage::now().resident - before.resident) / STREAMS as f64;
    report("memory per idle stream, name and all", &format!("{bytes:.0} bytes"), "", true);
    report("start with 1,000,000 streams", &format!("{opened:.2} s"), "<= 2 s", opened <= 2.0);
    drop(store);
    Ok(())
}

async fn fill_with_streams(path: &Path) -> Result<(), Failed> {
    let store: Embedded<tidings_streams::Table> = open_with(path)?;
    let project = ProjectId::parse("bench")?;
    for first in (0..STREAMS).step_by(2000) {
        let mut commit = Commit::new();
        for n in first..first + 2000 {
            let log = store.reserve().await?;
            let key = StreamKey { project: project.clone(), id: StreamId::parse(&format!("user-{n:08}"))? };
            let stream = Stream {
                log,
                content_type: ContentType::octet_stream(),
                expiry: Expiry::Never,
                expires_at: None,
                created_at: Timestamp::from_millis(0),
                fork: None,
                forks: 0,
                state: StreamState::Active,
                owner: Owner::Clients,
                retained: None,
            };
            let change = tidings_streams::Change::Create { key, stream };
            commit = commit.with(Operation::create(log)).changing(change);
        }
        store.commit(commit).await?;
    }
    store.flush()?;
    Ok(())
}

async fn idle_logs(path: &Path) -> Result<(), Failed> {
    const LOGS: usize = 1_000_000;
    let store = open(path)?;
    let start = Instant::now();
    new_logs(&store, LOGS).await?;
    let created = LOGS as f64 / start.elapsed().as_secs_f64();
    store.flush()?;
    drop(store);
    let before = Usage::now();
    let start = Instant::now();
    let store = open(path)?;
    let opened = start.elapsed().as_secs_f64();
    let bytes = (Usage::now().resident - before.resident) / LOGS as f64;
    report("create 1,000,000 logs", &format!("{created:.0}/s"), "", true);
    report("memory per idle log", &format!("{bytes:.0} bytes"), "<= 256 bytes", bytes <= 256.0);
    report("start with 1,000,000 logs", &format!("{opened:.2} s"), "<= 2 s", opened <= 2.0);
    drop(store);
    Ok(())
}
