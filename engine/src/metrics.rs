//! Metrics: numbers that a monitoring system reads, in the text that Prometheus reads.
//!
//! Whoever counts asks [`Metrics`] for a handle once, when it is made, and keeps it; counting is then an atomic
//! addition without a lock or a lookup. What is known elsewhere anyway is [computed](Metrics::compute) when somebody
//! reads. Here and not in `api`, so that stores and capabilities can count without knowing HTTP. A label's values are
//! few and known in advance: never an id.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidings_model::limits::Limit;

/// All metrics of a server. Clones are the same metrics.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Mutex<BTreeMap<&'static str, Family>>>);

/// What a metric is called, and what it tells.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    /// Its name, which begins with `tidings_`.
    pub name: &'static str,
    /// A sentence for people.
    pub help: &'static str,
}

/// What has happened. Each capability has its own categories and kinds.
pub const EVENTS: Name =
    Name { name: "tidings_events_total", help: "What has happened, by category and kind." };
/// How long that took.
pub const EVENT_TIME: Name =
    Name { name: "tidings_event_latency_seconds", help: "How long it took, by category and kind." };

/// Labels and their values.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

struct Family {
    help: &'static str,
    kind: Kind,
    /// By their labels, as they are written.
    series: BTreeMap<String, Series>,
}

/// Whether a number only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows while the process lives.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It is many numbers: how many observations there were up to each bound.
    Histogram,
}

enum Series {
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
    Computed(Box<dyn Fn() -> f64 + Send + Sync>),
}

/// A number that only grows. Clones are the same number.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

/// A number that goes up and down. Clones are the same number.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicI64>);

/// One of something that a gauge counts, until it is dropped.
#[derive(Debug)]
pub struct Held(Gauge);

/// How often observations were up to some bounds. Clones are the same histogram.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Observations>);

#[derive(Debug)]
struct Observations {
    buckets: Buckets,
    /// One for each bound, and one for what is beyond.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// The bounds of a histogram. Observations are whole numbers of a unit, so that counting needs no fractions.
#[derive(Clone, Copy, Debug)]
pub struct Buckets {
    /// Upper bounds, growing.
    pub bounds: &'static [u64],
    /// How many units make one of what is written.
    pub per_one: u32,
}

impl Buckets {
    /// From a tenth of a millisecond to ten seconds; observed in microseconds, written in seconds.
    pub const LATENCY: Self = Self {
        bounds: &[
            100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
            2_500_000, 5_000_000, 10_000_000,
        ],
        per_one: 1_000_000,
    };
    /// Powers of four from one.
    pub const COUNT: Self = Self { bounds: &[1, 4, 16, 64, 256, 1024, 4096], per_one: 1 };
}

impl Metrics {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The counter of that name and labels.
    pub fn counter(&self, name: Name, labels: Labels<'_>) -> Counter {
        let series = |series: &mut Series| match series {
            Series::Counter(counter) => Some(counter.clone()),
            _ => None,
        };
        self.get(name, Kind::Counter, labels, || Series::Counter(Counter::default()), series)
    }

    /// The gauge of that name and labels.
    pub fn gauge(&self, name: Name, labels: Labels<'_>) -> Gauge {
        let series = |series: &mut Series| match series {
            Series::Gauge(gauge) => Some(gauge.clone()),
            _ => None,
        };
        self.get(name, Kind::Gauge, labels, || Series::Gauge(Gauge::default()), series)
    }

    /// The histogram of that name and labels.
    pub fn histogram(&self, name: Name, labels: Labels<'_>, buckets: Buckets) -> Histogram {
        let series = |series: &mut Series| match series {
            Series::Histogram(histogram) => Some(histogram.clone()),
            _ => None,
        };
        self.get(name, Kind::Histogram, labels, || Series::Histogram(Histogram::new(buckets)), series)
    }

    /// Shows a histogram under another name as well.
    pub fn show(&self, name: Name, labels: Labels<'_>, histogram: &Histogram) {
        self.put(name, Kind::Histogram, labels, Series::Histogram(histogram.clone()));
    }

    /// A number that is worked out when somebody reads.
    pub fn compute(
        &self,
        name: Name,
        kind: Kind,
        labels: Labels<'_>,
        value: impl Fn() -> f64 + Send + Sync + 'static,
    ) {
        self.put(name, kind, labels, Series::Computed(Box::new(value)));
    }

    /// All metrics as text.
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
    /// One more.
    pub fn count(&self) {
        self.add(1);
    }

    /// Some more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// How many so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Gauge {
    /// The number.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Up, or down.
    pub fn add(&self, change: i64) {
        self.0.fetch_add(change, Ordering::Relaxed);
    }

    /// How many there are.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// One more, until what is returned is dropped.
    pub fn hold(&self) -> Held {
        self.add(1);
        Held(self.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

impl Histogram {
    fn new(buckets: Buckets) -> Self {
        let counts = (0..=buckets.bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Observations { buckets, counts, sum: AtomicU64::new(0) }))
    }

    /// Takes an observation, in the unit of the buckets.
    pub fn observe(&self, value: u64) {
        let bucket = self.0.buckets.bounds.partition_point(|&bound| bound < value);
        self.0.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.0.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Takes a time, for buckets in microseconds.
    pub fn observe_time(&self, time: Duration) {
        self.observe(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// How many observations there were.
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

/// Labels as Prometheus reads them.
fn written(labels: Labels<'_>) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let all: Vec<_> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    all.join(",")
}

/// How often each limit was hit.
#[derive(Clone, Debug)]
pub struct LimitHits(Arc<[Counter]>);

impl LimitHits {
    /// Counted in the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        const NAME: Name =
            Name { name: "tidings_limit_hits_total", help: "How often a limit was hit, by the limit." };
        Self(Limit::ALL.iter().map(|limit| metrics.counter(NAME, &[("limit", limit.name())])).collect())
    }

    /// It was hit once more.
    pub fn count(&self, limit: Limit) {
        self.of(limit).count();
    }

    /// How often it was hit.
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
