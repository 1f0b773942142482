//! The circuit breaker of a source: when deliveries during a publish fail again and again, they are left to the
//! follower for a while, so that publishing stays quick.

use std::time::Duration;

use tidings_model::Timestamp;

/// When a circuit opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerOptions {
    /// So many fan-outs with failures, one after the other, open it.
    pub failures: u32,
    /// So long after the last failure one fan-out is tried again.
    pub recovery: Duration,
}

/// The state of one source's circuit. In memory only: a restart closes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breaker {
    /// Fan-out goes on; so many of the last ones had failures.
    Closed {
        /// How many, one after the other.
        failures: u32,
    },
    /// There is none.
    Open {
        /// When the last failure was.
        since: Timestamp,
    },
    /// One is being tried.
    HalfOpen {
        /// When the last failure was.
        since: Timestamp,
        /// Since when it is being tried. If nothing is heard of it, somebody else tries.
        trial: Timestamp,
    },
}

impl Default for Breaker {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

/// Whether a fan-out may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// It may.
    Granted,
    /// It may, to see whether things are better.
    Trial,
    /// It may not.
    Denied,
}

impl Breaker {
    /// Asks whether a fan-out may be made now. A trial must be [recorded](Self::record) or [abandoned](Self::abandon).
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

    /// What came of a fan-out.
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

    /// A fan-out that was permitted was not made after all.
    pub fn abandon(&mut self) {
        if let Self::HalfOpen { since, .. } = *self {
            *self = Self::Open { since };
        }
    }

    /// Whether fan-out goes on.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed { .. })
    }

    /// Whether it has nothing to remember.
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
