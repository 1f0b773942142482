//! Wiring of streams: configuration keys, duties, metrics and opening.

use std::sync::Arc;
use std::time::Duration;

use tidings_engine::metrics::{Kind, Name};
use tidings_streams::{Options, Streams};

use super::{Foundation, Wiring};
use crate::config::keys::{HOUR_MS, Key, MIB, key};
use crate::duties::Duty;

/// Interval at which expired streams and unreferenced records are removed. Clients cannot see them after their
/// expiry, so the interval only affects disk space.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

const STREAMS: Name = Name { name: "tidings_streams", help: "Streams in the store." };

pub const WIRING: Wiring = Wiring {
    keys: KEYS,
    tables: &[],
    duties: |all| {
        let (expiring, retaining) = (all.streams.clone(), all.streams.clone());
        vec![
            Duty::every("stream-expiry", SWEEP_INTERVAL, move || expire(expiring.clone())),
            Duty::every("stream-retention", SWEEP_INTERVAL, move || trim(retaining.clone())),
        ]
    },
    clear: |all, project| {
        Box::pin(async move {
            let cleared = all.streams.clear(project).await;
            cleared.map_err(|error| format!("could not remove its streams: {error}"))
        })
    },
};

const KEYS: &[Key] = &[
    key("streams.long_poll_timeout_ms", |config, given| {
        let timeout = given.number(1..=HOUR_MS)?;
        config.capabilities.streams.long_poll_timeout = Duration::from_millis(timeout);
        Ok(())
    }),
    key("streams.sse_max_seconds", |config, given| {
        let seconds = given.number(1..=24 * 60 * 60)?;
        config.capabilities.streams.sse_duration = Duration::from_secs(seconds);
        Ok(())
    }),
    // The largest append, with its framing, must fit into one file of the write-ahead log.
    key("streams.max_append_bytes", |config, given| {
        given.count(1..=32 * MIB).map(|bytes| config.capabilities.streams.max_append_bytes = bytes)
    }),
    key("streams.read_chunk_bytes", |config, given| {
        given.count(1..=64 * MIB).map(|bytes| config.capabilities.streams.read_chunk_bytes = bytes)
    }),
    key("streams.max_readers_per_stream", |config, given| {
        given
            .count(1..=10_000_000)
            .map(|readers| config.capabilities.streams.max_readers_per_stream = readers)
    }),
    key("streams.slow_reader_bytes", |config, given| {
        given.count(4096..=1024 * MIB).map(|bytes| config.capabilities.streams.slow_reader_bytes = bytes)
    }),
    key("streams.slow_reader_ms", |config, given| {
        let timeout = given.number(100..=HOUR_MS)?;
        config.capabilities.streams.slow_reader_timeout = Duration::from_millis(timeout);
        Ok(())
    }),
];

/// Opens the streams and registers their metrics.
pub fn open(foundation: &Foundation, options: Options) -> Streams {
    let Foundation { store, bus, clock, metrics, journals, .. } = foundation;
    // A weak reference, so that the metrics do not keep the store open.
    let counted = Arc::downgrade(store);
    metrics.compute(STREAMS, Kind::Gauge, &[], move || {
        let mut count = 0;
        if let Some(store) = counted.upgrade() {
            store.show(&mut |catalog| count = catalog.streams.len());
        }
        count as f64
    });
    Streams::new(store.clone(), bus.clone(), clock.clone(), options).journaled(journals.clone())
}

/// Removes streams that were kept only for forks which no longer exist, in case a crash interrupted their removal.
pub async fn recover(streams: &Streams) {
    if let Err(error) = streams.release_unreferenced().await {
        tracing::warn!(%error, "could not remove sources whose forks have gone; trying again later");
    }
}

async fn expire(streams: Streams) {
    match streams.expire_due().await {
        Ok(0) => {}
        Ok(removed) => tracing::debug!(removed, "removed expired streams"),
        Err(error) => tracing::warn!(%error, "could not remove expired streams; trying again later"),
    }
}

async fn trim(streams: Streams) {
    match streams.trim_retained().await {
        Ok(0) => {}
        Ok(trimmed) => tracing::debug!(trimmed, "trimmed streams"),
        Err(error) => tracing::warn!(%error, "could not trim streams; trying again later"),
    }
}
