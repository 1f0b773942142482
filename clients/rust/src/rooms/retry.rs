//! Decides how long to wait before the next connection, and when to stop. Pure: it neither waits nor reads
//! the clock.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::{BackoffReason, MissedEvents, Refusal, Stopped};
use crate::Rng;

/// Range of the wait after a stream that ended, or was ended for being slow, in milliseconds.
pub(super) const PAUSE: RangeInclusive<u64> = 250..=1000;
/// Maximum of the first wait after a failure. It doubles with each further failure.
const FIRST: Duration = Duration::from_secs(1);
/// Maximum wait after failures.
pub(super) const LONGEST: Duration = Duration::from_secs(30);
/// Duration of a stream after which earlier failures no longer count.
pub(super) const SETTLED: Duration = Duration::from_secs(10);
/// Maximum wait that a server can ask for.
pub(super) const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// How a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// Another attempt is worthwhile.
    Again { why: BackoffReason, retry_after: Option<Duration> },
    /// The server refused the cursor. It must not do so if it was given none.
    Gone { skip: MissedEvents, had_cursor: bool, retry_after: Option<Duration> },
    /// The server refused the token.
    Unauthorized(Refusal),
    /// Another attempt is pointless.
    Stop(Stopped),
}

impl End {
    pub(super) fn again(why: BackoffReason) -> Self {
        Self::Again { why, retry_after: None }
    }

    pub(super) fn network(error: impl ToString) -> Self {
        Self::again(BackoffReason::Network(error.to_string()))
    }
}

/// What to do next.
#[derive(Debug)]
pub(super) enum Next {
    /// Wait, then connect.
    Wait(Duration, BackoffReason),
    /// Obtain a new token; then wait and connect, or stop if there is none.
    Refresh(Duration, Refusal),
    Stop(Stopped),
}

/// What earlier connections mean for the next one.
#[derive(Debug, Default)]
pub(super) struct Retry {
    /// Failures since a stream has lasted for [`SETTLED`].
    failures: u32,
    /// Whether a new token was obtained since a stream has lasted for [`SETTLED`].
    refreshed: bool,
    /// Wait that the server's last `retry:` asked for.
    asked: Duration,
}

impl Retry {
    /// Sets the minimum wait that the server asks for.
    pub(super) fn asked(&mut self, wait: Duration) {
        self.asked = wait.min(RETRY_AFTER_MAX);
    }

    /// Records that a stream lasted for a time.
    pub(super) fn streamed(&mut self, lasted: Duration) {
        if lasted >= SETTLED {
            self.failures = 0;
            self.refreshed = false;
        }
    }

    /// Decides what to do after a connection has ended.
    pub(super) fn after(&mut self, end: End, rng: &dyn Rng) -> Next {
        match end {
            End::Stop(stopped) => Next::Stop(stopped),
            End::Again { why, retry_after } => {
                let wait = match &why {
                    BackoffReason::Unavailable(_) | BackoffReason::Network(_) => self.failure_wait(rng),
                    BackoffReason::SlowConsumer
                    | BackoffReason::Ended
                    | BackoffReason::ServerRestart
                    | BackoffReason::Skipped
                    | BackoffReason::TokenRefused => pause(rng),
                };
                Next::Wait(self.at_least(wait, retry_after), why)
            }
            End::Gone { had_cursor: true, retry_after, .. } => {
                Next::Wait(self.at_least(pause(rng), retry_after), BackoffReason::Skipped)
            }
            // Connecting again at once would give the same answer.
            End::Gone { had_cursor: false, retry_after, .. } => {
                let wait = self.failure_wait(rng);
                Next::Wait(self.at_least(wait, retry_after), BackoffReason::Unavailable(410))
            }
            End::Unauthorized(refusal) if std::mem::replace(&mut self.refreshed, true) => {
                Next::Stop(Stopped::Unauthorized(refusal))
            }
            End::Unauthorized(refusal) => Next::Refresh(self.at_least(pause(rng), None), refusal),
        }
    }

    fn at_least(&self, wait: Duration, retry_after: Option<Duration>) -> Duration {
        wait.max(self.asked).max(retry_after.unwrap_or_default())
    }

    /// A wait after a failure: between half the maximum and the maximum, so that clients that were
    /// disconnected together do not return together.
    fn failure_wait(&mut self, rng: &dyn Rng) -> Duration {
        let longest = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let millis = longest.as_millis() as u64;
        Duration::from_millis(rng.within(millis / 2..=millis))
    }
}

fn pause(rng: &dyn Rng) -> Duration {
    Duration::from_millis(rng.within(PAUSE))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Draws a fixed fraction of the range.
    struct Share(f64);

    impl crate::Rng for Share {
        fn within(&self, range: RangeInclusive<u64>) -> u64 {
            range.start() + ((range.end() - range.start()) as f64 * self.0) as u64
        }
    }

    fn refusal() -> Refusal {
        Refusal { status: 401, error: "TokenExpired".to_owned(), message: String::new() }
    }

    fn waited(next: Next) -> Duration {
        match next {
            Next::Wait(wait, _) | Next::Refresh(wait, _) => wait,
            Next::Stop(stopped) => panic!("stopped: {stopped}"),
        }
    }

    #[test]
    fn trouble_doubles_the_wait_up_to_half_a_minute() {
        for (share, expected) in [
            (0.0, [500, 1000, 2000, 4000, 8000, 15_000, 15_000]),
            (1.0, [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]),
        ] {
            let mut retry = Retry::default();
            let waits =
                expected.map(|_| waited(retry.after(End::network("cut"), &Share(share))).as_millis() as u64);
            assert_eq!(waits, expected);
        }
    }

    #[test]
    fn only_a_stream_that_lasts_ten_seconds_ends_the_growth() {
        let mut retry = Retry::default();
        let longest = |retry: &mut Retry| waited(retry.after(End::network("cut"), &Share(1.0))).as_secs();
        assert_eq!([longest(&mut retry), longest(&mut retry)], [1, 2]);
        retry.streamed(SETTLED - Duration::from_millis(1));
        assert_eq!(longest(&mut retry), 4);
        retry.streamed(SETTLED);
        assert_eq!(longest(&mut retry), 1);
    }

    #[test]
    fn a_second_refused_token_is_the_end_until_a_stream_has_lasted() {
        let mut retry = Retry::default();
        let refused = |retry: &mut Retry| {
            matches!(retry.after(End::Unauthorized(refusal()), &Share(0.0)), Next::Stop(_))
        };
        assert!(!refused(&mut retry));
        retry.streamed(Duration::from_secs(9));
        assert!(refused(&mut retry));
        retry.streamed(SETTLED);
        assert!(!refused(&mut retry));
    }

    fn ends() -> impl Strategy<Value = End> {
        let retry_after = || proptest::option::of((0..400_000u64).prop_map(Duration::from_millis));
        let why = prop_oneof![
            Just(BackoffReason::SlowConsumer),
            Just(BackoffReason::Ended),
            Just(BackoffReason::ServerRestart),
            Just(BackoffReason::Unavailable(503)),
            Just(BackoffReason::Network("cut".to_owned())),
        ];
        prop_oneof![
            4 => (why, retry_after()).prop_map(|(why, retry_after)| End::Again { why, retry_after }),
            1 => (any::<bool>(), retry_after()).prop_map(|(had_cursor, retry_after)| End::Gone {
                skip: MissedEvents::of("CursorCompacted", &serde_json::Value::Null),
                had_cursor,
                retry_after
            }),
            1 => Just(()).prop_map(|()| End::Unauthorized(refusal())),
        ]
    }

    proptest! {
        #[test]
        fn whatever_happens_nothing_is_tried_without_a_wait(
            ends in proptest::collection::vec((ends(), 0..20u64, 0..2000u64), 1..40),
            share in 0.0..=1.0f64,
        ) {
            let mut retry = Retry::default();
            for (end, lasted, asked) in ends {
                retry.streamed(Duration::from_secs(lasted));
                retry.asked(Duration::from_millis(asked));
                let wanted = match &end {
                    End::Again { retry_after, .. } | End::Gone { retry_after, .. } => retry_after.unwrap_or_default(),
                    End::Unauthorized(_) | End::Stop(_) => Duration::ZERO,
                };
                let wait = match retry.after(end, &Share(share)) {
                    Next::Wait(wait, _) | Next::Refresh(wait, _) => wait,
                    Next::Stop(_) => continue,
                };
                prop_assert!(wait >= Duration::from_millis(*PAUSE.start()));
                prop_assert!(wait >= wanted.max(Duration::from_millis(asked)));
                prop_assert!(wait <= LONGEST.max(wanted));
            }
        }
    }
}
