//! Pauses between attempts to connect.

use std::time::Duration;

use tidings_engine::Rng;

/// Pauses that double up to a limit. Each is shortened at random by up to half, so that nodes that lost the same broker
/// do not come back at the same moment.
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, next: min }
    }

    /// The pause before the next attempt.
    pub(crate) fn pause(&mut self, rng: &Rng) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.max);
        let micros = u64::try_from(whole.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(rng.within(micros / 2..=micros))
    }

    /// Begins again with the shortest pause.
    pub(crate) fn reset(&mut self) {
        self.next = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit_and_differ() {
        let (min, max) = (Duration::from_millis(100), Duration::from_secs(1));
        let mut backoff = Backoff::new(min, max);
        let rng = Rng::seeded(1);
        let mut whole = min;
        let mut shortened = 0;
        for _ in 0..100 {
            let pause = backoff.pause(&rng);
            assert!(pause >= whole / 2 && pause <= whole, "{pause:?} of {whole:?}");
            shortened += usize::from(pause < whole);
            whole = (whole * 2).min(max);
        }
        assert!(shortened > 90);
        backoff.reset();
        assert!(backoff.pause(&rng) <= min);
    }
}
