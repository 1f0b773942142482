//! The rate limit of one connection: a token bucket.

use std::time::Duration;

use tidings_model::Timestamp;

/// Thousandths of a token that a frame takes.
const FRAME: u64 = 1000;

/// Tokens of one connection.
#[derive(Debug)]
pub struct Bucket {
    capacity: u32,
    per_second: u32,
    /// Thousandths of tokens that are left.
    left: u64,
    /// Time at which `left` was true.
    at: Timestamp,
}

impl Bucket {
    /// A full bucket.
    pub fn new(capacity: u32, per_second: u32, now: Timestamp) -> Self {
        Self { capacity, per_second, left: u64::from(capacity) * FRAME, at: now }
    }

    /// Takes a token. If there is none, the time after which there will be one.
    pub fn take(&mut self, now: Timestamp) -> Result<(), Duration> {
        let passed = u64::try_from(now.since(self.at).as_millis()).unwrap_or(u64::MAX);
        self.at = now;
        let rate = u64::from(self.per_second);
        self.left =
            self.left.saturating_add(passed.saturating_mul(rate)).min(u64::from(self.capacity) * FRAME);
        match self.left.checked_sub(FRAME) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Duration::from_millis((FRAME - self.left).div_ceil(rate.max(1)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(1_000_000 + millis)
    }

    #[test]
    fn a_bucket_has_its_capacity_at_once_and_its_rate_afterwards() {
        let mut bucket = Bucket::new(3, 2, at(0));
        for _ in 0..3 {
            assert_eq!(bucket.take(at(0)), Ok(()));
        }
        assert_eq!(bucket.take(at(0)), Err(Duration::from_millis(500)));
        assert_eq!(bucket.take(at(499)), Err(Duration::from_millis(1)));
        assert_eq!(bucket.take(at(500)), Ok(()));
        assert_eq!(bucket.take(at(500)), Err(Duration::from_millis(500)));
        for _ in 0..3 {
            assert_eq!(bucket.take(at(1_000_000)), Ok(()), "it never has more than its capacity");
        }
        assert!(bucket.take(at(1_000_000)).is_err());
    }

    #[test]
    fn a_clock_that_is_set_back_adds_nothing_and_takes_nothing() {
        let mut bucket = Bucket::new(1, 1000, at(1000));
        assert_eq!(bucket.take(at(1000)), Ok(()));
        assert_eq!(bucket.take(at(0)), Err(Duration::from_millis(1)));
        assert_eq!(bucket.take(at(1)), Ok(()));
    }
}
