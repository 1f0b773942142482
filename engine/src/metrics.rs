//! Metrics: counters, gauges and histograms, in the Prometheus text format.
//!
//! A component asks [`Metrics`] for a handle once, when it is created, and keeps it; counting is then an
//! atomic addition without a lock or a lookup. Values that are known elsewhere are
//! [computed](Metrics::compute) when the metrics are read. This module is here and not in `api`, so that
//! stores and capabilities can count without knowing HTTP. Label values must be few and known in advance:
//! never use an id.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidings_model::limits::Limit;

/// The registry of all metrics of a server. Clones share the same registry.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Mutex<BTreeMap<&'static str, Family>>>);

/// Name and description of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    /// Name of the metric; begins with `tidings_`.
    pub name: &'static str,
    /// Description of the metric: one sentence, shown as its `# HELP` line.
    pub help: &'static str,
}

/// Counts events of the capabilities, by category and kind; each capability defines its own.
pub const EVENTS: Name =
    Name { name: "tidings_events_total", help: "Events of the capabilities, by category and kind." };
/// Measures the duration of events of the capabilities, by category and kind.
pub const EVENT_TIME: Name = Name {
    name: "tidings_event_latency_seconds",
    help: "Duration of events of the capabilities, by category and kind.",
};

/// Label names and values of one series.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

struct Family {
    help: &'static str,
    kind: Kind,
    /// The series of the family, by their labels as they are printed.
    series: BTreeMap<String, Series>,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows while the process lives.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Counts of observations, one for each upper bound.
    Histogram,
}

enum Series {
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
    Computed(Box<dyn Fn() -> f64 + Send + Sync>),
}

/// A number that only grows. Clones share the same number.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

/// A number that goes up and down. Clones share the same number.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicI64>);

/// Adds one to a gauge for as long as it lives.
#[derive(Debug)]
pub struct GaugeGuard(Gauge);

/// Counts observations by upper bound. Clones share the same counts.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Observations>);

#[derive(Debug)]
struct Observations {
    buckets: Buckets,
    /// One count for each bound, and a last one for observations above all bounds.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// The bounds of a histogram. Observations are integers in a small unit, so that counting needs no floating
/// point.
#[derive(Clone, Copy, Debug)]
pub struct Buckets {
    /// Upper bounds, inclusive, in ascending order.
    pub bounds: &'static [u64],
    /// Divisor from the unit of observations to the unit that is printed.
    pub per_one: u32,
}

impl Buckets {
    /// From 0.1 ms to 10 s. Observed in microseconds, printed in seconds.
    pub const LATENCY: Self = Self {
        bounds: &[
            100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
            2_500_000, 5_000_000, 10_000_000,
        ],
        per_one: 1_000_000,
    };
    /// Powers of four from 1 to 4096, for counts.
    pub const COUNT: Self = Self { bounds: &[1, 4, 16, 64, 256, 1024, 4096], per_one: 1 };
}

impl Metrics {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the counter with this name and these labels, creating it if needed.
    pub fn counter(&self, name: Name, labels: Labels<'_>) -> Counter {
        let series = |series: &mut Series| match series {
            Series::Counter(counter) => Some(counter.clone()),
            _ => None,
        };
        self.get(name, Kind::Counter, labels, || Series::Counter(Counter::default()), series)
    }

    /// Returns the gauge with this name and these labels, creating it if needed.
    pub fn gauge(&self, name: Name, labels: Labels<'_>) -> Gauge {
        let series = |series: &mut Series| match series {
            Series::Gauge(gauge) => Some(gauge.clone()),
            _ => None,
        };
        self.get(name, Kind::Gauge, labels, || Series::Gauge(Gauge::default()), series)
    }

    /// Returns the histogram with this name and these labels, creating it if needed.
    pub fn histogram(&self, name: Name, labels: Labels<'_>, buckets: Buckets) -> Histogram {
        let series = |series: &mut Series| match series {
            Series::Histogram(histogram) => Some(histogram.clone()),
            _ => None,
        };
        self.get(name, Kind::Histogram, labels, || Series::Histogram(Histogram::new(buckets)), series)
    }

    /// Publishes an existing histogram under this name and these labels.
    pub fn show(&self, name: Name, labels: Labels<'_>, histogram: &Histogram) {
        self.put(name, Kind::Histogram, labels, Series::Histogram(histogram.clone()));
    }

    /// Registers a series whose value is computed each time the metrics are read.
    pub fn compute(
        &self,
        name: Name,
        kind: Kind,
        labels: Labels<'_>,
        value: impl Fn() -> f64 + Send + Sync + 'static,
    ) {
        self.put(name, kind, labels, Series::Computed(Box::new(value)));
    }

    /// All metrics in the Prometheus text format.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (name, family) in self.lock().iter() {
            family.write(&mut out, name);
        }
        out
    }

    fn put(&self, name: Name, kind: Kind, labels: Labels<'_>, series: Series) {
        let mut families = self.lock();
        let family = families.entry(name.name).or_insert_with(|| Family {
            help: name.help,
            kind,
            series: BTreeMap::new(),
        });
        family.series.insert(written(labels), series);
    }

    fn get<T>(
        &self,
        name: Name,
        kind: Kind,
        labels: Labels<'_>,
        new: impl FnOnce() -> Series,
        handle: impl FnOnce(&mut Series) -> Option<T>,
    ) -> T {
        let mut families = self.lock();
        let family = families.entry(name.name).or_insert_with(|| Family {
            help: name.help,
            kind,
            series: BTreeMap::new(),
        });
        handle(family.series.entry(written(labels)).or_insert_with(new))
            .unwrap_or_else(|| panic!("{} is a metric of one kind", name.name))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, Family>> {
        self.0.lock().expect("nobody panics while holding the metrics")
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Counter {
    /// Adds one.
    pub fn count(&self) {
        self.add(1);
    }

    /// Adds `more`.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// The current count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Gauge {
    /// Replaces the value.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds `change`, which may be negative.
    pub fn add(&self, change: i64) {
        self.0.fetch_add(change, Ordering::Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds one until the returned guard is dropped.
    pub fn hold(&self) -> GaugeGuard {
        self.add(1);
        GaugeGuard(self.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

impl Histogram {
    fn new(buckets: Buckets) -> Self {
        let counts = (0..=buckets.bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Observations { buckets, counts, sum: AtomicU64::new(0) }))
    }

    /// Records an observation, in the unit of the buckets.
    pub fn observe(&self, value: u64) {
        let bucket = self.0.buckets.bounds.partition_point(|&bound| bound < value);
        self.0.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.0.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Records a duration. The buckets must be in microseconds.
    pub fn observe_time(&self, time: Duration) {
        self.observe(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// Number of observations so far.
    pub fn count(&self) -> u64 {
        self.0.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

impl Family {
    fn write(&self, out: &mut String, name: &str) {
        let kind = match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        line(out, format_args!("# HELP {name} {}\n# TYPE {name} {kind}", self.help));
        for (labels, series) in &self.series {
            let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
            match series {
                Series::Counter(counter) => line(out, format_args!("{name}{braced} {}", counter.get())),
                Series::Gauge(gauge) => line(out, format_args!("{name}{braced} {}", gauge.get())),
                Series::Computed(value) => line(out, format_args!("{name}{braced} {}", value())),
                Series::Histogram(histogram) => histogram.0.write(out, name, labels, &braced),
            }
        }
    }
}

impl Observations {
    fn write(&self, out: &mut String, name: &str, labels: &str, braced: &str) {
        let one = f64::from(self.buckets.per_one);
        let comma = if labels.is_empty() { "" } else { "," };
        let mut total = 0;
        for (at, count) in self.counts.iter().enumerate() {
            total += count.load(Ordering::Relaxed);
            let bound = match self.buckets.bounds.get(at) {
                Some(&bound) => (bound as f64 / one).to_string(),
                None => "+Inf".to_owned(),
            };
            line(out, format_args!("{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {total}"));
        }
        let sum = self.sum.load(Ordering::Relaxed) as f64 / one;
        line(out, format_args!("{name}_sum{braced} {sum}\n{name}_count{braced} {total}"));
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a string takes all");
}

/// Formats labels as the Prometheus text format wants them.
fn written(labels: Labels<'_>) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let all: Vec<_> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    all.join(",")
}

/// Counts how often each limit was hit, in `tidings_limit_hits_total`.
#[derive(Clone, Debug)]
pub struct LimitHits(Arc<[Counter]>);

impl LimitHits {
    /// Registers a counter for each limit.
    pub fn new(metrics: &Metrics) -> Self {
        const NAME: Name = Name {
            name: "tidings_limit_hits_total",
            help: "Requests and readers refused or cut because of a limit, by limit.",
        };
        Self(Limit::ALL.iter().map(|limit| metrics.counter(NAME, &[("limit", limit.name())])).collect())
    }

    /// Counts a hit of the limit.
    pub fn count(&self, limit: Limit) {
        self.of(limit).count();
    }

    /// Number of hits of the limit so far.
    pub fn get(&self, limit: Limit) -> u64 {
        self.of(limit).get()
    }

    fn of(&self, limit: Limit) -> &Counter {
        let at = Limit::ALL.iter().position(|&one| one == limit);
        &self.0[at.expect("all limits are listed")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: Name = Name { name: "tidings_things_total", help: "Things." };

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let metrics = Metrics::new();
        metrics.counter(NAME, &[("kind", "a \"b\"\n")]).add(3);
        metrics.gauge(Name { name: "tidings_now", help: "Now." }, &[]).set(-2);
        let times = Name { name: "tidings_time_seconds", help: "Time." };
        let time = metrics.histogram(
            times,
            &[("of", "x")],
            Buckets { bounds: &[500_000, 2_000_000], per_one: 1_000_000 },
        );
        time.observe_time(Duration::from_millis(500));
        time.observe_time(Duration::from_secs(1));
        time.observe_time(Duration::from_secs(9));
        let expected = "# HELP tidings_now Now.\n# TYPE tidings_now gauge\ntidings_now -2\n\
            # HELP tidings_things_total Things.\n# TYPE tidings_things_total counter\n\
            tidings_things_total{kind=\"a \\\"b\\\"\\n\"} 3\n\
            # HELP tidings_time_seconds Time.\n# TYPE tidings_time_seconds histogram\n\
            tidings_time_seconds_bucket{of=\"x\",le=\"0.5\"} 1\n\
            tidings_time_seconds_bucket{of=\"x\",le=\"2\"} 2\n\
            tidings_time_seconds_bucket{of=\"x\",le=\"+Inf\"} 3\n\
            tidings_time_seconds_sum{of=\"x\"} 10.5\n\
            tidings_time_seconds_count{of=\"x\"} 3\n";
        assert_eq!(metrics.text(), expected);
    }

    #[test]
    fn the_same_name_and_labels_are_the_same_number() {
        let metrics = Metrics::new();
        metrics.counter(NAME, &[("kind", "a")]).count();
        metrics.counter(NAME, &[("kind", "b")]).count();
        assert_eq!(metrics.counter(NAME, &[("kind", "a")]).get(), 1);
        let gauge = Gauge::default();
        let held = gauge.hold();
        assert_eq!(gauge.get(), 1);
        drop(held);
        assert_eq!(gauge.get(), 0);
    }

    #[test]
    fn every_limit_has_a_number_from_the_start() {
        let metrics = Metrics::new();
        let hits = LimitHits::new(&metrics);
        hits.count(Limit::BodyBytes);
        let text = metrics.text();
        assert!(text.contains("tidings_limit_hits_total{limit=\"body_bytes\"} 1\n"), "{text}");
        assert!(text.contains("tidings_limit_hits_total{limit=\"connections\"} 0\n"), "{text}");
    }
}
