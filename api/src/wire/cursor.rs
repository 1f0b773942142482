//! `Stream-Cursor`: a number that grows with time, so that caches in front of long-polls collapse readers of
//! the same interval and never serve an old answer for ever.

use tidings_engine::Rng;
use tidings_model::Timestamp;

/// 2024-10-09T00:00Z, the epoch of the protocol's cursors.
const EPOCH: Timestamp = Timestamp::from_millis(1_728_432_000_000);
const INTERVAL_SECONDS: u64 = 20;
/// The number of intervals in an hour.
const JITTER_INTERVALS: u64 = 3600 / INTERVAL_SECONDS;

/// The cursor of a moment.
pub fn current(now: Timestamp) -> u64 {
    now.since(EPOCH).as_secs() / INTERVAL_SECONDS
}

/// The cursor to answer with. A client whose cursor is current or ahead is moved forward by a random number
/// of intervals, so that clients that came together do not stay together.
pub fn next(now: Timestamp, client: Option<u64>, rng: &Rng) -> u64 {
    let current = current(now);
    match client {
        Some(client) if client >= current => client.saturating_add(rng.within(1..=JITTER_INTERVALS)),
        _ => current,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_cursor_counts_intervals_and_never_goes_backwards() {
        let rng = Rng::seeded(1);
        let now = EPOCH + Duration::from_secs(1000);
        assert_eq!(next(now, None, &rng), 50);
        assert_eq!(next(now, Some(3), &rng), 50);
        for client in [50, 51, 10_000, u64::MAX] {
            let moved = next(now, Some(client), &rng);
            assert!(moved > client || client == u64::MAX, "{client} -> {moved}");
            assert!(moved - client <= JITTER_INTERVALS);
        }
    }
}
