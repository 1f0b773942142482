//! Metrics of the store: counters that the committer updates, and gauges that are computed when metrics are
//! read.

use std::sync::Arc;
use std::time::Duration;

use tidings_engine::log::plan::Effect;
use tidings_engine::metrics::{Buckets, Counter, Histogram, Kind, Metrics, Name};

use crate::store::StoreInner;
use crate::stored_state::StoredState;

/// Counters and histograms that the committer updates.
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
            commits: counter("tidings_commits_total", "Commits made durable."),
            records: counter(
                "tidings_records_total",
                "Records appended; a reference counts once for each target log.",
            ),
            record_bytes: counter(
                "tidings_record_bytes_total",
                "Payload bytes of the records appended, without references.",
            ),
            frame_commits: histogram(
                "tidings_frame_commits",
                "Commits per frame of the write-ahead log.",
                Buckets::COUNT,
            ),
            frame_bytes: counter("tidings_frame_bytes_total", "Bytes written to the write-ahead log."),
            sync_time: histogram(
                "tidings_sync_seconds",
                "Time to write and sync one frame of the write-ahead log, in seconds.",
                Buckets::LATENCY,
            ),
        }
    }

    /// Counts a frame that became durable: its commits, its bytes and the time to write and sync it.
    pub(crate) fn frame(&self, commits: usize, bytes: usize, took: Duration) {
        self.commits.add(commits as u64);
        self.frame_commits.observe(commits as u64);
        self.frame_bytes.add(bytes as u64);
        self.sync_time.observe_time(took);
    }

    /// Counts the records of one effect of a commit.
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

/// Registers the gauges that are computed from the store's state when metrics are read.
pub(crate) fn show<T: StoredState>(metrics: &Metrics, shared: &Arc<StoreInner<T>>) {
    let gauge = |name, help, value: fn(&StoreInner<T>) -> f64| {
        // Weak, so that a registered gauge does not keep a closed store alive; it then reads zero.
        let shared = Arc::downgrade(shared);
        let value = move || shared.upgrade().map_or(0.0, |shared| value(&shared));
        metrics.compute(Name { name, help }, Kind::Gauge, &[], value);
    };
    gauge("tidings_logs", "Logs in the store.", |shared| shared.read().logs.len() as f64);
    gauge("tidings_store_generations", "Memtables in memory, including the active one.", |shared| {
        (shared.read().memtables.len() + 1) as f64
    });
    gauge(
        "tidings_store_generation_bytes",
        "Approximate size of the current memtable in memory, in bytes.",
        |shared| shared.read().memtable_bytes as f64,
    );
    gauge(
        "tidings_store_queue_bytes",
        "Bytes of commits waiting to become durable; each commit is rounded up to whole KiB.",
        |shared| shared.queued_bytes() as f64,
    );
    gauge("tidings_store_segments", "Number of segment files.", |shared| shared.read().segments.len() as f64);
    gauge("tidings_store_segment_bytes", "Total size of segment files, in bytes.", |shared| {
        shared.read().segments.iter().map(|segment| segment.bytes()).sum::<u64>() as f64
    });
    gauge("tidings_store_row_files", "Number of files of cold rows.", |shared| {
        shared.read().row_files.len() as f64
    });
    gauge("tidings_store_row_bytes", "Total size of files of cold rows, in bytes.", |shared| {
        shared.read().row_files.iter().map(|file| file.bytes()).sum::<u64>() as f64
    });
    gauge(
        "tidings_store_row_index_bytes",
        "Approximate memory of the indexes, filters and floors of files of cold rows, in bytes.",
        |shared| shared.read().row_files.iter().map(|file| file.resident_bytes()).sum::<u64>() as f64,
    );
    gauge("tidings_store_available_bytes", "Bytes available on the disk of the data folder.", |shared| {
        shared.disk.available().unwrap_or_default() as f64
    });
    let reads = Arc::downgrade(shared);
    let name = Name {
        name: "tidings_store_disk_reads_total",
        help: "Reads of records or rows that memory could not serve alone, so that files were read.",
    };
    let value = move || reads.upgrade().map_or(0.0, |shared| shared.disk_reads() as f64);
    metrics.compute(name, Kind::Counter, &[], value);
}
