//! Random numbers from a seed that the caller gives, so that a test can repeat them.

use std::sync::Mutex;

/// A seeded source of random numbers. Not cryptographically secure: never use it for secrets.
#[derive(Debug)]
pub struct Rng(Mutex<fastrand::Rng>);

impl Rng {
    /// Creates a generator. The same seed gives the same sequence of numbers.
    pub fn seeded(seed: u64) -> Self {
        Self(Mutex::new(fastrand::Rng::with_seed(seed)))
    }

    /// Draws a number from the range, both ends included.
    pub fn within(&self, range: std::ops::RangeInclusive<u64>) -> u64 {
        self.0.lock().expect("nobody panics while drawing").u64(range)
    }
}
