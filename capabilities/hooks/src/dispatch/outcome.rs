//! What came of an attempt, and what becomes of its delivery. Pure.

use std::time::Duration;

use tidings_model::limits;

use crate::delivery::DeathReason;
use crate::retry::RetryPolicy;

/// What came of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The endpoint accepted the delivery. Holds the beginning of its response.
    Accepted(String),
    /// The attempt failed.
    Failed(Failure),
    /// There was no attempt, because all sockets were in use.
    NotMade,
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// What went wrong, as the delivery log has it.
    pub(super) error: String,
    /// What it says about the endpoint.
    pub(super) kind: FailureKind,
    /// Time that the endpoint asked to wait.
    pub(super) retry_after: Option<Duration>,
}

/// What a failed attempt says about the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// It is gone and wants no more deliveries: status 410.
    Gone,
    /// It wants fewer deliveries: status 429.
    Throttled,
    /// It did not answer.
    Unreachable,
    /// It answered something else.
    Refused,
}

/// What becomes of a delivery after an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is finished.
    Delivered,
    /// It is tried again after this time.
    Retried(Duration),
    /// It is given up.
    Dead(DeathReason),
    /// It stays as it was.
    Unchanged,
}

impl Outcome {
    /// The outcome of a response with this status. `body` is the beginning of the response's body.
    pub(super) fn of_response(status: u16, retry_after: Option<Duration>, body: &[u8]) -> Self {
        let kind = match status {
            200..=299 => return Self::Accepted(shown(&String::from_utf8_lossy(body))),
            410 => FailureKind::Gone,
            429 => FailureKind::Throttled,
            _ => FailureKind::Refused,
        };
        let error = shown(&format!("HTTP {status}: {}", String::from_utf8_lossy(body)));
        Self::Failed(Failure { error, kind, retry_after })
    }

    /// The outcome of an attempt without a response.
    pub(super) fn failed(kind: FailureKind, error: &str) -> Self {
        Self::Failed(Failure { error: shown(error), kind, retry_after: None })
    }

    /// What becomes of the delivery, given that this was its `attempt`-th attempt, the first being 1. `jitter` is a random
    /// number up to [`JITTER_MS`](crate::retry::JITTER_MS).
    pub(super) fn fate(&self, attempt: u32, policy: &RetryPolicy<'_>, jitter: u64) -> Fate {
        match self {
            Self::Accepted(_) => Fate::Delivered,
            Self::NotMade => Fate::Unchanged,
            Self::Failed(Failure { kind: FailureKind::Gone, .. }) => Fate::Dead(DeathReason::EndpointGone),
            Self::Failed(failure) => match policy.delay(attempt, jitter, failure.retry_after) {
                Some(delay) => Fate::Retried(delay),
                None => Fate::Dead(DeathReason::MaxRetriesExceeded),
            },
        }
    }
}

/// As much of a text as the delivery log keeps.
fn shown(text: &str) -> String {
    let most = text.len().min(limits::HOOK_RESPONSE_BYTES);
    let end = (0..=most).rev().find(|&end| text.is_char_boundary(end));
    text[..end.unwrap_or_default()].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy<'static> = RetryPolicy { max_retries: 2, schedule: &[] };

    #[test]
    fn only_a_status_from_200_to_299_accepts_a_delivery() {
        for status in [200, 201, 202, 204, 226, 299] {
            assert!(matches!(Outcome::of_response(status, None, b"{"), Outcome::Accepted(_)), "{status}");
        }
        for status in [100, 199, 300, 301, 302, 304, 307, 308, 400, 404, 410, 429, 500, 503, 600, 999] {
            assert!(matches!(Outcome::of_response(status, None, b""), Outcome::Failed(_)), "{status}");
        }
    }

    #[test]
    fn the_error_of_a_response_has_its_status_and_the_beginning_of_its_body() {
        let error = |status, body: &[u8]| match Outcome::of_response(status, None, body) {
            Outcome::Failed(failure) => failure.error,
            outcome => panic!("{outcome:?}"),
        };
        assert_eq!(error(500, b"no"), "HTTP 500: no");
        assert_eq!(error(301, b""), "HTTP 301: ");
        let long = error(500, &"ä".repeat(4000).into_bytes());
        assert!((1020..=1024).contains(&long.len()), "{}", long.len());
        let invalid = error(500, &[0xff; 1024]);
        assert!((1020..=1024).contains(&invalid.len()), "{}", invalid.len());
    }

    #[test]
    fn a_delivery_is_tried_again_until_no_attempt_is_left() {
        let failed = Outcome::of_response(500, Some(Duration::from_secs(60)), b"");
        assert_eq!(failed.fate(1, &POLICY, 0), Fate::Retried(Duration::from_secs(60)));
        assert_eq!(failed.fate(2, &POLICY, 0), Fate::Dead(DeathReason::MaxRetriesExceeded));
        let refused = Outcome::failed(FailureKind::Unreachable, "timeout");
        assert_eq!(refused.fate(1, &POLICY, 7), Fate::Retried(Duration::from_millis(1007)));
        assert_eq!(Outcome::of_response(204, None, b"").fate(2, &POLICY, 0), Fate::Delivered);
        assert_eq!(Outcome::NotMade.fate(2, &POLICY, 0), Fate::Unchanged);
    }

    #[test]
    fn status_410_gives_a_delivery_up_whatever_attempts_are_left() {
        let gone = Outcome::of_response(410, Some(Duration::from_secs(1)), b"");
        assert_eq!(gone.fate(1, &POLICY, 0), Fate::Dead(DeathReason::EndpointGone));
    }
}
