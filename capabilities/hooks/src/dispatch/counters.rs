//! Metrics of deliveries.

use tidings_engine::Metrics;
use tidings_engine::metrics::{Buckets, Counter, Gauge, Histogram, Name};

use super::outcome::{FailureKind, Outcome};
use super::results::{End, Finished};

/// Metrics of deliveries.
#[derive(Clone)]
pub(super) struct Counters {
    accepted: Counter,
    refused: Counter,
    throttled: Counter,
    gone: Counter,
    unreachable: Counter,
    not_made: Counter,
    time: Histogram,
    delivered: Counter,
    parked: Counter,
    dead: Counter,
    /// Circuit breakers that opened.
    pub(super) opened: Counter,
    /// Commits that failed.
    pub(super) failed_commits: Counter,
    /// Results in a commit.
    pub(super) batches: Histogram,
    /// Attempts that are running.
    pub(super) running: Gauge,
    /// Results that are not recorded.
    pub(super) unrecorded: Gauge,
}

impl Counters {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let attempt = |outcome| {
            let help = "Attempts of hook deliveries, by outcome (accepted, refused, throttled, gone, unreachable, not_made).";
            metrics.counter(Name { name: "tidings_hook_attempts_total", help }, &[("outcome", outcome)])
        };
        let delivery = |end| {
            let help = "Hook deliveries whose attempt was recorded, by what became of them (delivered, parked, dead).";
            metrics.counter(Name { name: "tidings_hook_deliveries_total", help }, &[("end", end)])
        };
        let counter = |name, help| metrics.counter(Name { name, help }, &[]);
        let gauge = |name, help| metrics.gauge(Name { name, help }, &[]);
        let histogram = |name, help, buckets| metrics.histogram(Name { name, help }, &[], buckets);
        Self {
            accepted: attempt("accepted"),
            refused: attempt("refused"),
            throttled: attempt("throttled"),
            gone: attempt("gone"),
            unreachable: attempt("unreachable"),
            not_made: attempt("not_made"),
            time: histogram(
                "tidings_hook_attempt_seconds",
                "Duration of attempts of hook deliveries.",
                Buckets::LATENCY,
            ),
            delivered: delivery("delivered"),
            parked: delivery("parked"),
            dead: delivery("dead"),
            opened: counter(
                "tidings_hook_breakers_opened_total",
                "Circuit breakers of hook destinations that opened.",
            ),
            failed_commits: counter(
                "tidings_hook_failed_commits_total",
                "Commits of hook deliveries that failed and are made again.",
            ),
            batches: histogram(
                "tidings_hook_results_per_commit",
                "Results of hook deliveries that one commit records.",
                Buckets::COUNT,
            ),
            running: gauge("tidings_hook_attempts_running", "Attempts of hook deliveries that are running."),
            unrecorded: gauge(
                "tidings_hook_results_unrecorded",
                "Results of hook deliveries that are not recorded yet.",
            ),
        }
    }

    /// An attempt ended.
    pub(super) fn ended(&self, outcome: &Outcome, took: std::time::Duration) {
        let counter = match outcome {
            Outcome::Accepted(_) => &self.accepted,
            Outcome::NotMade => return self.not_made.count(),
            Outcome::Failed(failure) => match failure.kind {
                FailureKind::Gone => &self.gone,
                FailureKind::Throttled => &self.throttled,
                FailureKind::Unreachable => &self.unreachable,
                FailureKind::Refused => &self.refused,
            },
        };
        counter.count();
        self.time.observe(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// Results were recorded.
    pub(super) fn recorded(&self, results: &[Finished]) {
        for result in results {
            match result.end {
                End::Delivered => self.delivered.count(),
                End::Parked(_) => self.parked.count(),
                End::Dead { .. } => self.dead.count(),
            }
        }
    }
}
