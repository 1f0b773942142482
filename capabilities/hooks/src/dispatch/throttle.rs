//! The rate of a destination that asked for fewer deliveries. Pure.

use std::time::Duration;

use super::bucket::Bucket;

/// Slowest rate, in attempts per second.
const SLOWEST: f64 = 1.0;
/// Time after a step within which the rate is not halved again: what was sent before it says nothing about it.
const STEP: Duration = Duration::from_secs(1);
/// Seconds in which the rate grows by as much as it was at first.
const RECOVERY: f64 = 10.0;

/// Limits the rate of a destination after it answered 429. The rate is halved, then grows steadily, and the limit ends when
/// twice the rate of before is reached.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    limit: Option<Limit>,
    /// Attempts that began in the current second and in the one before.
    begun: [u32; 2],
    /// The current second.
    second: u64,
}

#[derive(Debug)]
struct Limit {
    bucket: Bucket,
    /// Rate before the first step, in attempts per second.
    before: f64,
    /// Time of the last step.
    stepped: Duration,
    /// Time up to which the rate has grown.
    grown: Duration,
}

impl Throttle {
    /// Time at which an attempt may begin; not after `now` if one may now.
    pub(super) fn next(&mut self, now: Duration) -> Duration {
        self.recover(now);
        self.limit.as_mut().map_or(now, |limit| limit.bucket.next(now))
    }

    /// Whether the rate is limited.
    pub(super) fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// An attempt begins.
    pub(super) fn begin(&mut self, now: Duration) {
        self.turn(now);
        self.begun[0] += 1;
        if let Some(limit) = &mut self.limit {
            // Whoever asked `next` finds a token.
            let _ = limit.bucket.take(now);
        }
    }

    /// The destination asked for fewer deliveries.
    pub(super) fn slow_down(&mut self, now: Duration) {
        self.turn(now);
        match &mut self.limit {
            Some(limit) if now < limit.stepped + STEP => {}
            Some(limit) => {
                let rate = (limit.bucket.rate() / 2.0).max(SLOWEST);
                limit.bucket.change(rate, 1.0, now);
                (limit.stepped, limit.grown) = (now, now);
            }
            None => {
                let before = f64::from(self.begun[0].max(self.begun[1])).max(2.0 * SLOWEST);
                let bucket = Bucket::new(before / 2.0, 1.0, now);
                self.limit = Some(Limit { bucket, before, stepped: now, grown: now });
            }
        }
    }

    fn recover(&mut self, now: Duration) {
        let Some(limit) = &mut self.limit else { return };
        let passed = now.saturating_sub(limit.grown.max(limit.stepped + STEP));
        if passed.is_zero() {
            return;
        }
        let rate = limit.bucket.rate() + limit.before / RECOVERY * passed.as_secs_f64();
        limit.grown = now;
        limit.bucket.change(rate, 1.0, now);
        if rate >= 2.0 * limit.before {
            self.limit = None;
        }
    }

    /// Turns to the current second.
    fn turn(&mut self, now: Duration) {
        let second = now.as_secs();
        if second != self.second {
            let last = if second == self.second + 1 { self.begun[0] } else { 0 };
            (self.begun, self.second) = ([0, last], second);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// Attempts that may begin from one time to another, one after the other.
    fn begin(throttle: &mut Throttle, from: f64, to: f64) -> u32 {
        let (mut now, mut begun) = (seconds(from), 0);
        loop {
            now = throttle.next(now).max(now);
            if now >= seconds(to) || begun == 100_000 {
                return begun;
            }
            throttle.begin(now);
            begun += 1;
        }
    }

    #[test]
    fn the_rate_is_halved_and_recovers() {
        let mut throttle = Throttle::default();
        for n in 0..100 {
            throttle.begin(seconds(10.0 + f64::from(n) / 100.0));
        }
        throttle.slow_down(seconds(10.99));
        assert!((48..=53).contains(&begin(&mut throttle, 11.0, 12.0)), "half of 100 per second");
        let recovering = begin(&mut throttle, 12.0, 13.0);
        assert!((52..=66).contains(&recovering), "{recovering}");
        let later = begin(&mut throttle, 20.0, 21.0);
        assert!(later > 120, "{later}");
        throttle.next(seconds(40.0));
        assert!(!throttle.is_limited());
        assert_eq!(begin(&mut throttle, 40.0, 41.0), 100_000);
    }

    #[test]
    fn answers_of_one_moment_halve_it_once_and_later_ones_again() {
        let mut throttle = Throttle::default();
        for _ in 0..100 {
            throttle.begin(seconds(1.0));
        }
        for _ in 0..50 {
            throttle.slow_down(seconds(1.5));
        }
        assert!((22..=27).contains(&begin(&mut throttle, 1.5, 2.0)));
        throttle.slow_down(seconds(2.5));
        assert!((24..=27).contains(&begin(&mut throttle, 2.5, 3.5)));
    }

    #[test]
    fn a_destination_that_always_asks_for_less_is_still_tried_once_a_second() {
        let mut throttle = Throttle::default();
        for n in 0..100 {
            throttle.slow_down(seconds(f64::from(n)));
        }
        let begun = begin(&mut throttle, 100.0, 110.0);
        assert!((9..=25).contains(&begun), "{begun}");
    }
}
