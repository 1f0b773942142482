//! Circuit breaker of a source. When fan-outs during publishes keep failing, publishes leave delivery to the follower
//! for a while, so that publishing stays fast.

use std::time::Duration;

use tidings_model::Timestamp;

/// Thresholds of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerOptions {
    /// Consecutive fan-outs with failures after which the circuit opens.
    pub failures: u32,
    /// Time after the last failure until one fan-out is tried again.
    pub recovery: Duration,
}

/// State of one source's circuit breaker. It is kept in memory only: a restart closes the circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breaker {
    /// Publishes fan out inline.
    Closed {
        /// Consecutive fan-outs with failures so far.
        failures: u32,
    },
    /// Publishes do not fan out inline.
    Open {
        /// Time of the last failure.
        since: Timestamp,
    },
    /// One fan-out is being tried.
    HalfOpen {
        /// Time of the last failure.
        since: Timestamp,
        /// Start of the trial. If no result is recorded within the recovery time, another fan-out is tried.
        trial: Timestamp,
    },
}

impl Default for Breaker {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

/// Answer to whether a publish may fan out inline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// The publish may fan out.
    Granted,
    /// The publish may fan out as a trial of whether deliveries succeed again.
    Trial,
    /// The publish must not fan out.
    Denied,
}

impl Breaker {
    /// Returns whether a fan-out may be made now. A trial must be [recorded](Self::record) or
    /// [abandoned](Self::abandon).
    pub fn ask(&mut self, now: Timestamp, options: BreakerOptions) -> Permission {
        match *self {
            Self::Closed { .. } => Permission::Granted,
            Self::Open { since } if now >= since + options.recovery => {
                *self = Self::HalfOpen { since, trial: now };
                Permission::Trial
            }
            Self::HalfOpen { since, trial } if now >= trial + options.recovery => {
                *self = Self::HalfOpen { since, trial: now };
                Permission::Trial
            }
            Self::Open { .. } | Self::HalfOpen { .. } => Permission::Denied,
        }
    }

    /// Records the outcome of a fan-out: the number of sessions reached and the number that failed.
    pub fn record(&mut self, successes: usize, failures: usize, now: Timestamp, options: BreakerOptions) {
        *self = match *self {
            _ if failures == 0 => Self::default(),
            Self::Closed { failures: before } if before + 1 < options.failures => {
                Self::Closed { failures: before + 1 }
            }
            Self::HalfOpen { .. } if successes > 0 => Self::default(),
            Self::Closed { .. } | Self::HalfOpen { .. } | Self::Open { .. } => Self::Open { since: now },
        };
    }

    /// Gives a permission back: the permitted fan-out was not made.
    pub fn abandon(&mut self) {
        if let Self::HalfOpen { since, .. } = *self {
            *self = Self::Open { since };
        }
    }

    /// Whether the circuit is closed, so that publishes fan out inline.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed { .. })
    }

    /// Whether the breaker is in its default state and need not be kept.
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: BreakerOptions = BreakerOptions { failures: 5, recovery: Duration::from_secs(60) };
    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 0..5 {
            assert_eq!(breaker.ask(NOW, OPTIONS), Permission::Granted);
            breaker.record(3, 1, NOW, OPTIONS);
        }
        assert_eq!(breaker, Breaker::Open { since: NOW });
        breaker
    }

    fn half_open() -> (Breaker, Timestamp) {
        let (mut breaker, later) = (opened(), NOW + OPTIONS.recovery);
        assert_eq!(breaker.ask(later, OPTIONS), Permission::Trial);
        (breaker, later)
    }

    #[test]
    fn closed_opens_after_five_fan_outs_with_failures_one_after_the_other() {
        let mut breaker = Breaker::default();
        for _ in 0..4 {
            breaker.record(0, 1, NOW, OPTIONS);
        }
        assert_eq!(breaker.ask(NOW, OPTIONS), Permission::Granted, "four leave it closed");
        breaker.record(1, 0, NOW, OPTIONS);
        for _ in 0..4 {
            breaker.record(0, 1, NOW, OPTIONS);
        }
        assert_eq!(breaker.ask(NOW, OPTIONS), Permission::Granted, "a good one starts the count anew");
        breaker.record(9, 1, NOW, OPTIONS);
        assert_eq!(breaker.ask(NOW, OPTIONS), Permission::Denied, "one failure among successes counts");
    }

    #[test]
    fn open_lets_exactly_one_try_after_its_time() {
        let mut breaker = opened();
        let almost = NOW + (OPTIONS.recovery - Duration::from_millis(1));
        assert_eq!(breaker.ask(almost, OPTIONS), Permission::Denied);
        let later = NOW + OPTIONS.recovery;
        assert_eq!(breaker.ask(later, OPTIONS), Permission::Trial);
        assert_eq!(breaker.ask(later, OPTIONS), Permission::Denied, "while it runs there is no other");
        breaker.abandon();
        assert_eq!(breaker.ask(later, OPTIONS), Permission::Trial, "one that was not made does not count");
        let much_later = later + OPTIONS.recovery;
        assert_eq!(breaker.ask(much_later, OPTIONS), Permission::Trial, "nor one that nobody heard of again");
    }

    #[test]
    fn half_open_closes_with_any_success_and_opens_with_none() {
        let (mut breaker, later) = half_open();
        breaker.record(1, 7, later, OPTIONS);
        assert_eq!(breaker, Breaker::default());
        let (mut breaker, later) = half_open();
        breaker.record(0, 1, later, OPTIONS);
        assert_eq!(breaker, Breaker::Open { since: later });
        let almost = later + (OPTIONS.recovery - Duration::from_millis(1));
        assert_eq!(breaker.ask(almost, OPTIONS), Permission::Denied, "its time runs again");
    }

    #[test]
    fn any_state_closes_when_a_fan_out_has_no_failures() {
        for mut breaker in [Breaker::Closed { failures: 4 }, opened(), half_open().0] {
            breaker.record(0, 0, NOW, OPTIONS);
            assert_eq!(breaker, Breaker::default());
        }
    }
}
