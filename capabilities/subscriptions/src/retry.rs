//! When a failed attempt to wake a worker is repeated. Pure.

use std::time::Duration;

/// Delay after the first failed attempt, without jitter. It doubles with each further one.
pub const BASE_DELAY: Duration = Duration::from_secs(1);
/// Longest delay, without jitter.
pub const MAX_DELAY: Duration = Duration::from_secs(60);
/// A delay is longer or shorter by up to this part of it, in thousandths.
pub const JITTER: u64 = 200;

/// The delay after `failures` failed attempts in a row. `jitter` is a random number from 0 to twice [`JITTER`]. The endpoint may
/// ask for more time, up to the longest delay.
pub fn delay(failures: u32, jitter: u64, retry_after: Option<Duration>) -> Duration {
    let doubled = BASE_DELAY.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(MAX_DELAY);
    let thousandths = 1000 - JITTER + jitter.min(2 * JITTER);
    let jittered = doubled * u32::try_from(thousandths).unwrap_or(1000) / 1000;
    jittered.max(retry_after.unwrap_or_default().min(MAX_DELAY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_from_one_second_to_a_minute_and_vary_by_a_fifth() {
        let delays = [1, 2, 4, 8, 16, 32, 60, 60];
        for (failures, seconds) in (1..).zip(delays) {
            let millis = |jitter| delay(failures, jitter, None).as_millis() as u64;
            assert_eq!(
                (millis(0), millis(200), millis(400)),
                (seconds * 800, seconds * 1000, seconds * 1200)
            );
        }
        assert_eq!(delay(u32::MAX, 200, None), MAX_DELAY);
    }

    #[test]
    fn an_endpoint_may_ask_for_more_time_but_not_for_less() {
        let asking = |seconds| delay(1, 200, Some(Duration::from_secs(seconds))).as_secs();
        assert_eq!((asking(0), asking(30), asking(3600)), (1, 30, 60));
    }
}
