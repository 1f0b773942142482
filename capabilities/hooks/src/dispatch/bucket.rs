//! Token buckets: how many attempts may begin per second. Pure.

use std::time::Duration;

/// A bucket that fills with a number of tokens per second, up to its capacity.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// Tokens per second.
    rate: f64,
    capacity: f64,
    tokens: f64,
    /// Time up to which tokens were added.
    filled: Duration,
}

impl Bucket {
    /// A full bucket. `now` is time on the monotonic clock.
    pub(super) fn new(rate: f64, capacity: f64, now: Duration) -> Self {
        Self { rate, capacity, tokens: capacity, filled: now }
    }

    /// Takes a token, or tells when there will be one.
    pub(super) fn take(&mut self, now: Duration) -> Result<(), Duration> {
        self.fill(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(self.time_of(1.0))
    }

    /// Puts a token back that was not used.
    pub(super) fn put_back(&mut self) {
        self.tokens = (self.tokens + 1.0).min(self.capacity);
    }

    /// Time at which there is a token; not after `now` if there is one.
    pub(super) fn next(&mut self, now: Duration) -> Duration {
        self.fill(now);
        if self.tokens >= 1.0 { now } else { self.time_of(1.0) }
    }

    /// Time at which the bucket is full; not after `now` if it is.
    pub(super) fn full(&mut self, now: Duration) -> Duration {
        self.fill(now);
        if self.tokens >= self.capacity { now } else { self.time_of(self.capacity) }
    }

    /// Tokens per second.
    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// Changes how fast the bucket fills and what it holds.
    pub(super) fn change(&mut self, rate: f64, capacity: f64, now: Duration) {
        self.fill(now);
        (self.rate, self.capacity) = (rate, capacity);
        self.tokens = self.tokens.min(capacity);
    }

    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.filled);
        self.filled = self.filled.max(now);
        self.tokens = (self.tokens + passed.as_secs_f64() * self.rate).min(self.capacity);
    }

    fn time_of(&self, tokens: f64) -> Duration {
        let seconds = (tokens - self.tokens) / self.rate;
        // A little later, so that rounding does not leave it just below.
        self.filled + Duration::from_secs_f64(seconds.max(0.0)) + Duration::from_micros(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_burst_is_followed_by_the_rate() {
        let mut bucket = Bucket::new(2.0, 10.0, at(100.0));
        assert_eq!((0..20).filter(|_| bucket.take(at(100.0)).is_ok()).count(), 10);
        let next = bucket.take(at(100.0)).expect_err("empty");
        assert!((at(100.5)..at(100.51)).contains(&next), "{next:?}");
        assert!(bucket.take(next).is_ok());
        assert!(bucket.take(next).is_err());
        assert_eq!((0..20).filter(|_| bucket.take(at(103.6)).is_ok()).count(), 6);
    }

    #[test]
    fn time_that_goes_back_adds_no_tokens() {
        let mut bucket = Bucket::new(1.0, 1.0, at(10.0));
        assert!(bucket.take(at(10.0)).is_ok());
        assert!(bucket.take(at(0.0)).is_err());
        assert!(bucket.take(at(10.5)).is_err());
    }

    proptest! {
        #[test]
        fn no_more_is_taken_than_the_capacity_and_the_rate_allow(
            rate in 1u32..1000, steps in prop::collection::vec(0u64..50, 1..300),
        ) {
            let mut bucket = Bucket::new(f64::from(rate), 10.0, Duration::ZERO);
            let (mut now, mut taken) = (Duration::ZERO, 0u32);
            for step in steps {
                now += Duration::from_millis(step);
                match bucket.take(now) {
                    Ok(()) => taken += 1,
                    Err(next) => prop_assert!(next > now && bucket.clone().take(next).is_ok()),
                }
                prop_assert!(f64::from(taken) <= 10.0 + now.as_secs_f64() * f64::from(rate) + 1e-6);
            }
        }
    }
}
