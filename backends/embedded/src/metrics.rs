//! The store's numbers: what the committer counts, and what is looked up when somebody asks.

use std::sync::Arc;
use std::time::Duration;

use tidings_engine::log::plan::Effect;
use tidings_engine::metrics::{Buckets, Counter, Histogram, Kind, Metrics, Name};

use crate::store::StoreInner;
use crate::stored_state::StoredState;

/// What the committer counts.
pub(crate) struct Counts {
    commits: Counter,
    records: Counter,
    record_bytes: Counter,
    frame_commits: Histogram,
    frame_bytes: Counter,
    sync_time: Histogram,
}

impl Counts {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let counter = |name, help| metrics.counter(Name { name, help }, &[]);
        let histogram = |name, help, buckets| metrics.histogram(Name { name, help }, &[], buckets);
        Self {
            commits: counter("tidings_commits_total", "Commits made."),
            records: counter(
                "tidings_records_total",
                "Records appended; a reference counts for each of its logs.",
            ),
            record_bytes: counter(
                "tidings_record_bytes_total",
                "Bytes of the records appended, without references.",
            ),
            frame_commits: histogram(
                "tidings_frame_commits",
                "Commits that were made durable together.",
                Buckets::COUNT,
            ),
            frame_bytes: counter("tidings_frame_bytes_total", "Bytes written to the write-ahead log."),
            sync_time: histogram(
                "tidings_sync_seconds",
                "Time to write and sync a frame of the write-ahead log.",
                Buckets::LATENCY,
            ),
        }
    }

    /// A frame is durable.
    pub(crate) fn frame(&self, commits: usize, bytes: usize, took: Duration) {
        self.commits.add(commits as u64);
        self.frame_commits.observe(commits as u64);
        self.frame_bytes.add(bytes as u64);
        self.sync_time.observe_time(took);
    }

    /// What a commit of it does.
    pub(crate) fn effect(&self, effect: &Effect) {
        match effect {
            Effect::Appended { append, .. } => {
                self.records.add(append.payloads.len() as u64);
                self.record_bytes.add(append.payloads.iter().map(|payload| payload.len() as u64).sum());
            }
            Effect::Referred { sources, targets } => self.records.add((sources.len() * targets.len()) as u64),
            Effect::Created { .. } | Effect::Trimmed { .. } | Effect::Ended { .. } => {}
        }
    }
}

/// Shows what the store knows of itself. Asked seldom, by whoever reads the metrics.
pub(crate) fn show<T: StoredState>(metrics: &Metrics, shared: &Arc<StoreInner<T>>) {
    let gauge = |name, help, value: fn(&StoreInner<T>) -> f64| {
        // A store that is gone has nothing to show, and must not be kept by its numbers.
        let shared = Arc::downgrade(shared);
        let value = move || shared.upgrade().map_or(0.0, |shared| value(&shared));
        metrics.compute(Name { name, help }, Kind::Gauge, &[], value);
    };
    gauge("tidings_logs", "Logs in the store.", |shared| shared.read().logs.len() as f64);
    gauge("tidings_store_generations", "Memtables in memory, the current one included.", |shared| {
        (shared.read().memtables.len() + 1) as f64
    });
    gauge("tidings_store_generation_bytes", "About what the current memtable takes in memory.", |shared| {
        shared.read().memtable_bytes as f64
    });
    gauge(
        "tidings_store_queue_bytes",
        "Bytes of commits that wait to be made durable, in whole KiB a commit.",
        |shared| shared.queued_bytes() as f64,
    );
    gauge("tidings_store_segments", "Segment files.", |shared| shared.read().segments.len() as f64);
    gauge("tidings_store_segment_bytes", "Bytes of segment files.", |shared| {
        shared.read().segments.iter().map(|segment| segment.bytes()).sum::<u64>() as f64
    });
    gauge("tidings_store_available_bytes", "Bytes that the disk has left.", |shared| {
        shared.disk.available().unwrap_or_default() as f64
    });
    let reads = Arc::downgrade(shared);
    let name = Name { name: "tidings_store_disk_reads_total", help: "Reads that needed files." };
    let value = move || reads.upgrade().map_or(0.0, |shared| shared.disk_reads() as f64);
    metrics.compute(name, Kind::Counter, &[], value);
}
