//! Rng comes from outside, so that a test can repeat it.

use std::sync::Mutex;

/// A source of random numbers. Not for secrets.
#[derive(Debug)]
pub struct Rng(Mutex<fastrand::Rng>);

impl Rng {
    /// The same seed gives the same numbers.
    pub fn seeded(seed: u64) -> Self {
        Self(Mutex::new(fastrand::Rng::with_seed(seed)))
    }

    /// A number in the range.
    pub fn within(&self, range: std::ops::RangeInclusive<u64>) -> u64 {
        self.0.lock().expect("nobody panics while drawing").u64(range)
    }
}
