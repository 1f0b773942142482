//! Rng comes from outside, so that a test can choose it.

use std::ops::RangeInclusive;

/// A source of random numbers. Not for secrets.
pub trait Rng: Send + Sync + 'static {
    /// A number in the range.
    fn within(&self, range: RangeInclusive<u64>) -> u64;
}

/// A generator that each process seeds anew.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemChance;

impl Rng for SystemChance {
    fn within(&self, range: RangeInclusive<u64>) -> u64 {
        fastrand::u64(range)
    }
}
