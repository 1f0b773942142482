//! When a failed delivery is tried again, and when it is given up. Pure.

use std::time::Duration;

use tidings_model::limits;

/// Delay after the first failed attempt of the default schedule.
pub const BASE_DELAY: Duration = Duration::from_secs(1);
/// Longest delay of the default schedule, without jitter.
pub const MAX_DELAY: Duration = Duration::from_secs(300);
/// Most that is added to a delay of the default schedule at random, in milliseconds.
pub const JITTER_MS: u64 = 1000;

/// The retry settings of a hook.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy<'a> {
    /// Attempts in all. Zero means one, as one means.
    pub max_retries: u32,
    /// Delays in milliseconds after the first, second, … failed attempt; the last one repeats. Empty for the default
    /// schedule.
    pub schedule: &'a [u64],
}

impl RetryPolicy<'_> {
    /// The delay after the `attempt`-th attempt failed, the first being 1. `None` when no attempt is left. `jitter` is a
    /// random number up to [`JITTER_MS`]; a schedule of the hook's own gets none. The endpoint may ask for more time by
    /// `Retry-After`, up to [`limits::RETRY_AFTER_MAX`].
    pub fn delay(&self, attempt: u32, jitter: u64, retry_after: Option<Duration>) -> Option<Duration> {
        if attempt >= self.max_retries {
            return None;
        }
        let delay = match self.schedule {
            [] => {
                let doubled = BASE_DELAY.saturating_mul(1 << (attempt.max(1) - 1).min(20));
                doubled.min(MAX_DELAY) + Duration::from_millis(jitter.min(JITTER_MS))
            }
            schedule => {
                let place = (attempt.max(1) as usize - 1).min(schedule.len() - 1);
                Duration::from_millis(schedule[place])
            }
        };
        Some(delay.max(retry_after.unwrap_or_default().min(limits::RETRY_AFTER_MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEFAULT: RetryPolicy<'static> = RetryPolicy { max_retries: 100, schedule: &[] };

    #[test]
    fn the_delay_doubles_from_one_second_to_five_minutes() {
        let delays = [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300];
        for (attempt, seconds) in (1..).zip(delays) {
            let delay = |jitter| DEFAULT.delay(attempt, jitter, None);
            assert_eq!(delay(0), Some(Duration::from_secs(seconds)), "attempt {attempt}");
            assert_eq!(delay(1000), Some(Duration::from_secs(seconds + 1)), "attempt {attempt}");
        }
        assert_eq!(DEFAULT.delay(99, 0, None), Some(MAX_DELAY));
    }

    #[test]
    fn the_number_of_retries_is_that_of_all_attempts() {
        for (max_retries, last) in [(0, 1), (1, 1), (2, 2), (5, 5)] {
            let policy = RetryPolicy { max_retries, ..DEFAULT };
            assert_eq!(policy.delay(last, 0, None), None, "{max_retries}");
            assert!(last == 1 || policy.delay(last - 1, 0, None).is_some(), "{max_retries}");
        }
    }

    #[test]
    fn a_schedule_has_no_jitter_and_its_last_delay_repeats() {
        let policy = RetryPolicy { max_retries: 5, schedule: &[10, 700] };
        let delays: Vec<_> = (1..=5).map(|attempt| policy.delay(attempt, 999, None)).collect();
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(delays, [ms(10), ms(700), ms(700), ms(700), None]);
    }

    #[test]
    fn retry_after_is_waited_for_up_to_an_hour() {
        let after = |seconds| DEFAULT.delay(1, 0, Some(Duration::from_secs(seconds)));
        assert_eq!(after(0), Some(Duration::from_secs(1)), "never earlier than the delay");
        assert_eq!(after(60), Some(Duration::from_secs(60)));
        assert_eq!(after(100_000), Some(Duration::from_secs(3600)));
    }

    proptest! {
        #[test]
        fn a_delay_is_never_below_the_base_nor_above_the_cap(attempt in 1u32..200, jitter in any::<u64>()) {
            let policy = RetryPolicy { max_retries: 1000, schedule: &[] };
            let delay = policy.delay(attempt, jitter, None).expect("attempts are left");
            prop_assert!((BASE_DELAY..=MAX_DELAY + Duration::from_secs(1)).contains(&delay));
        }
    }
}
