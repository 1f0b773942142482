//! Circuit breaker of a destination. Pure.

use std::time::Duration;

/// When a circuit breaker opens, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct BreakerOptions {
    /// Consecutive failures after which it opens.
    pub(super) failures: u32,
    /// Time until one attempt is allowed again.
    pub(super) open: Duration,
}

/// A circuit breaker. While it is open no attempt begins; then one attempt decides whether it closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breaker {
    /// Attempts begin as usual.
    Closed {
        /// Consecutive failures so far.
        failures: u32,
    },
    /// No attempt begins before this time on the monotonic clock.
    Open {
        /// The time.
        until: Duration,
    },
    /// One attempt is running that decides.
    Probing,
}

impl Default for Breaker {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

impl Breaker {
    /// Time at which an attempt may begin; not after `now` if one may now. `None` while the probe is running.
    pub(super) fn next(&self, now: Duration) -> Option<Duration> {
        match *self {
            Self::Closed { .. } => Some(now),
            Self::Open { until } => Some(until),
            Self::Probing => None,
        }
    }

    /// An attempt begins. Returns whether it is the probe.
    pub(super) fn begin(&mut self) -> bool {
        let is_probe = matches!(self, Self::Open { .. });
        if is_probe {
            *self = Self::Probing;
        }
        is_probe
    }

    /// An attempt ended well.
    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// An attempt failed. Returns whether the breaker has opened by it.
    pub(super) fn failed(&mut self, was_probe: bool, now: Duration, options: BreakerOptions) -> bool {
        let failures = match *self {
            Self::Closed { failures } => failures + 1,
            Self::Probing if was_probe => options.failures,
            // What began before it opened decides nothing.
            Self::Open { .. } | Self::Probing => return false,
        };
        let opens = failures >= options.failures.max(1);
        *self = if opens { Self::Open { until: now + options.open } } else { Self::Closed { failures } };
        opens
    }

    /// An attempt ended without telling whether the destination works, or was not made.
    pub(super) fn undecided(&mut self, was_probe: bool, now: Duration) {
        if was_probe && *self == Self::Probing {
            *self = Self::Open { until: now };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: BreakerOptions = BreakerOptions { failures: 3, open: Duration::from_secs(30) };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn open() -> Breaker {
        let mut breaker = Breaker::default();
        let opened = [1, 2, 3].map(|second| breaker.failed(false, at(second), OPTIONS));
        assert_eq!(opened, [false, false, true]);
        breaker
    }

    #[test]
    fn it_opens_after_consecutive_failures_only() {
        let mut breaker = Breaker::default();
        for second in 0..10 {
            assert!(!breaker.failed(false, at(second), OPTIONS));
            assert!(!breaker.failed(false, at(second), OPTIONS));
            breaker.succeeded();
        }
        assert_eq!(open().next(at(3)), Some(at(33)));
    }

    #[test]
    fn one_attempt_decides_whether_it_closes() {
        for works in [true, false] {
            let mut breaker = open();
            assert!(!breaker.failed(false, at(20), OPTIONS), "an attempt from before it opened");
            assert_eq!(breaker.next(at(33)), Some(at(33)));
            assert!(breaker.begin());
            assert_eq!(breaker.next(at(34)), None, "only one");
            assert!(!breaker.failed(false, at(34), OPTIONS));
            if works {
                breaker.succeeded();
                assert_eq!(breaker, Breaker::default());
            } else {
                assert!(breaker.failed(true, at(35), OPTIONS));
                assert_eq!(breaker.next(at(35)), Some(at(65)));
            }
        }
    }

    #[test]
    fn a_probe_that_tells_nothing_is_followed_by_another() {
        let mut breaker = open();
        assert!(breaker.begin());
        breaker.undecided(true, at(40));
        assert_eq!(breaker.next(at(40)), Some(at(40)));
        assert!(breaker.begin());
    }
}
