//! Source of randomness, provided by the caller so that tests can control it.

use std::ops::RangeInclusive;

/// A source of random numbers. Not for secrets.
pub trait Rng: Send + Sync + 'static {
    /// A random number in the range.
    fn within(&self, range: RangeInclusive<u64>) -> u64;
}

/// A generator that is seeded at random in each process.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRng;

impl Rng for SystemRng {
    fn within(&self, range: RangeInclusive<u64>) -> u64 {
        fastrand::u64(range)
    }
}
