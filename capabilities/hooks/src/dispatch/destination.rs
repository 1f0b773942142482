//! How many attempts at a time a destination gets. Pure.

use std::time::Duration;

use super::breaker::{Breaker, BreakerOptions};
use super::outcome::{FailureKind, Outcome};
use super::throttle::Throttle;

/// Attempts at a time of a destination about which nothing is known.
const FIRST_ALLOWANCE: usize = 4;
/// Time for which nothing begins after all sockets were in use.
const PAUSE: Duration = Duration::from_millis(50);

/// An endpoint's scheme, host and port, or a handler in this process: what attempts share that go to the same place.
#[derive(Debug)]
pub(super) struct Destination {
    breaker: Breaker,
    throttle: Throttle,
    /// Attempts that may run at a time. It grows while the destination answers, and shrinks when it does not.
    allowance: usize,
    standing: Standing,
    /// Attempts that are running.
    running: usize,
    /// Nothing begins before this time on the monotonic clock.
    paused: Duration,
}

/// What is known about a destination. It decides which share of all attempts destinations of its kind may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It answered the last attempt that ended.
    Answering,
    /// No attempt has ended yet.
    New,
    /// It did not answer the last attempt that ended.
    Silent,
}

/// Attempts that are running, by the standing of their destinations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shares {
    answering: usize,
    new: usize,
    silent: usize,
}

/// Limits of attempts at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttemptLimits {
    /// Of all destinations.
    pub(super) all: usize,
    /// Of one destination.
    pub(super) each: usize,
    /// Circuit breaker of a destination.
    pub(super) breaker: BreakerOptions,
}

/// Whether an attempt may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It may.
    Now,
    /// Not before this time on the monotonic clock.
    At(Duration),
    /// Not before another attempt of this destination ends.
    AfterOwn,
    /// Not before destinations of the same standing take less. It has no attempt running.
    AfterAny,
}

impl Default for Destination {
    fn default() -> Self {
        Self {
            breaker: Breaker::default(),
            throttle: Throttle::default(),
            allowance: FIRST_ALLOWANCE,
            standing: Standing::New,
            running: 0,
            paused: Duration::ZERO,
        }
    }
}

impl Destination {
    /// Attempts that are running.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// Whether nothing is remembered of it that matters.
    pub(super) fn is_ordinary(&self) -> bool {
        self.breaker == Breaker::default() && !self.throttle.is_limited() && self.running == 0
    }

    /// Whether an attempt may begin.
    pub(super) fn admission(&mut self, now: Duration, shares: &Shares, limits: &AttemptLimits) -> Admission {
        let Some(next) = self.breaker.next(now) else { return Admission::AfterOwn };
        let next = next.max(self.throttle.next(now)).max(self.paused);
        if next > now {
            return Admission::At(next);
        }
        if self.running >= self.allowance.min(limits.each) {
            return Admission::AfterOwn;
        }
        // The less is left, the less one destination may take, so that many have their turn, and something is left for the
        // others even if several destinations stop to answer at once. The last eighth is for those that have nothing running.
        let all = limits.all;
        let free = all.saturating_sub(shares.total());
        let left = match self.standing {
            Standing::Answering => free,
            Standing::New => free.min((3 * all / 4).max(1).saturating_sub(shares.new + shares.silent)),
            Standing::Silent => free.min((all / 2).max(1).saturating_sub(shares.silent)),
        };
        match self.running {
            0 if left > 0 => Admission::Now,
            0 => Admission::AfterAny,
            running if left > 2 * running && free > all / 8 => Admission::Now,
            _ => Admission::AfterOwn,
        }
    }

    /// What is known about it.
    pub(super) fn standing(&self) -> Standing {
        self.standing
    }

    /// An attempt begins that was admitted. Returns whether the circuit breaker decides by it.
    pub(super) fn begin(&mut self, now: Duration, shares: &mut Shares) -> bool {
        self.running += 1;
        *shares.of(self.standing) += 1;
        self.throttle.begin(now);
        self.breaker.begin()
    }

    /// An attempt ended. Returns whether the circuit breaker has opened by it.
    pub(super) fn end(
        &mut self,
        outcome: &Outcome,
        was_probe: bool,
        now: Duration,
        shares: &mut Shares,
        limits: &AttemptLimits,
    ) -> bool {
        *shares.of(self.standing) -= 1;
        self.running -= 1;
        let kind = match outcome {
            Outcome::Accepted(_) => None,
            Outcome::Failed(failure) => Some(failure.kind),
            Outcome::NotMade => {
                self.breaker.undecided(was_probe, now);
                self.paused = now + PAUSE;
                return false;
            }
        };
        let answers = kind != Some(FailureKind::Unreachable);
        self.stand(if answers { Standing::Answering } else { Standing::Silent }, shares);
        self.allowance =
            if answers { (self.allowance + 1).min(limits.each) } else { (self.allowance / 2).max(1) };
        match kind {
            None => self.breaker.succeeded(),
            // It works, but wants less, or nothing for this hook.
            Some(FailureKind::Throttled) => {
                self.breaker.undecided(was_probe, now);
                self.throttle.slow_down(now);
            }
            Some(FailureKind::Gone) => self.breaker.undecided(was_probe, now),
            Some(FailureKind::Unreachable | FailureKind::Refused) => {
                return self.breaker.failed(was_probe, now, limits.breaker);
            }
        }
        false
    }

    fn stand(&mut self, standing: Standing, shares: &mut Shares) {
        *shares.of(self.standing) -= self.running;
        *shares.of(standing) += self.running;
        self.standing = standing;
    }
}

impl Shares {
    /// Attempts that are running.
    pub(super) fn total(&self) -> usize {
        self.answering + self.new + self.silent
    }

    fn of(&mut self, standing: Standing) -> &mut usize {
        match standing {
            Standing::Answering => &mut self.answering,
            Standing::New => &mut self.new,
            Standing::Silent => &mut self.silent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: AttemptLimits = AttemptLimits {
        all: 1024,
        each: 256,
        breaker: BreakerOptions { failures: 10, open: Duration::from_secs(30) },
    };
    const NOW: Duration = Duration::from_secs(100);

    fn fill(destination: &mut Destination, shares: &mut Shares) -> usize {
        let mut begun = 0;
        while destination.admission(NOW, shares, &LIMITS) == Admission::Now {
            destination.begin(NOW, shares);
            begun += 1;
        }
        begun
    }

    fn end(destination: &mut Destination, outcome: &Outcome, shares: &mut Shares) {
        destination.end(outcome, false, NOW, shares, &LIMITS);
    }

    fn silence() -> Outcome {
        Outcome::failed(FailureKind::Unreachable, "timeout")
    }

    fn accepted() -> Outcome {
        Outcome::Accepted(String::new())
    }

    /// A destination that has answered for long.
    fn proven(shares: &mut Shares) -> Destination {
        let mut destination = Destination::default();
        for _ in 0..300 {
            destination.begin(NOW, shares);
            end(&mut destination, &accepted(), shares);
        }
        destination
    }

    #[test]
    fn a_destination_earns_its_attempts_by_answering() {
        let mut shares = Shares::default();
        let mut destination = Destination::default();
        assert_eq!(fill(&mut destination, &mut shares), 4);
        (0..4).for_each(|_| end(&mut destination, &accepted(), &mut shares));
        assert_eq!(fill(&mut destination, &mut shares), 8);
        assert_eq!(fill(&mut proven(&mut Shares::default()), &mut Shares::default()), 256);
        (0..8).for_each(|_| end(&mut destination, &silence(), &mut shares));
        assert_eq!(fill(&mut destination, &mut shares), 1);
        assert_eq!(shares.total(), 1);
    }

    #[test]
    fn many_silent_destinations_leave_room_for_those_that_answer() {
        let mut shares = Shares::default();
        let mut silent: Vec<_> = (0..2000).map(|_| Destination::default()).collect();
        for destination in &mut silent {
            fill(destination, &mut shares);
        }
        assert_eq!(shares.total(), 768);
        for destination in silent.iter_mut().filter(|destination| destination.running > 0) {
            end(destination, &silence(), &mut shares);
        }
        for destination in &mut silent {
            fill(destination, &mut shares);
        }
        assert!(shares.silent <= 600 && shares.total() <= 768, "{shares:?}");
        let mut good = proven(&mut shares);
        assert!(fill(&mut good, &mut shares) >= 60);
    }

    #[test]
    fn destinations_that_stop_to_answer_at_once_leave_room_for_others() {
        let mut shares = Shares::default();
        let mut stopped: Vec<_> = (0..10).map(|_| proven(&mut shares)).collect();
        for destination in &mut stopped {
            fill(destination, &mut shares);
        }
        assert!(shares.total() <= 910, "{shares:?}");
        for _ in 0..50 {
            assert!(fill(&mut Destination::default(), &mut shares) > 0);
            assert!(fill(&mut proven(&mut shares), &mut shares) > 0);
        }
    }

    #[test]
    fn throttling_and_a_gone_endpoint_do_not_open_the_breaker() {
        let mut shares = Shares::default();
        let mut destination = Destination::default();
        for status in [429, 410, 429, 410, 429, 410, 429, 410, 429, 410, 429, 410] {
            destination.begin(NOW, &mut shares);
            end(&mut destination, &Outcome::of_response(status, None, b""), &mut shares);
        }
        assert!(matches!(destination.breaker, Breaker::Closed { .. }));
        assert!(!destination.is_ordinary(), "its rate is limited");
    }

    #[test]
    fn a_lack_of_sockets_is_waited_for_and_says_nothing_about_the_destination() {
        let mut shares = Shares::default();
        let mut destination = Destination::default();
        for _ in 0..20 {
            destination.begin(NOW, &mut shares);
            end(&mut destination, &Outcome::NotMade, &mut shares);
        }
        assert_eq!(destination.admission(NOW, &shares, &LIMITS), Admission::At(NOW + PAUSE));
        assert!(destination.is_ordinary());
    }

    #[test]
    fn any_other_failures_open_the_breaker() {
        let mut shares = Shares::default();
        let mut destination = Destination::default();
        for status in [500, 404, 301, 503, 400, 500, 500, 500, 500, 500] {
            assert!(matches!(destination.breaker, Breaker::Closed { .. }));
            destination.begin(NOW, &mut shares);
            end(&mut destination, &Outcome::of_response(status, None, b""), &mut shares);
        }
        let until = NOW + LIMITS.breaker.open;
        assert_eq!(destination.admission(NOW, &shares, &LIMITS), Admission::At(until));
        assert_eq!(destination.admission(until, &shares, &LIMITS), Admission::Now);
        assert!(destination.begin(until, &mut shares));
        assert_eq!(destination.admission(until, &shares, &LIMITS), Admission::AfterOwn);
    }

    proptest! {
        #[test]
        fn shares_are_those_of_the_attempts_that_run(actions in prop::collection::vec((0usize..4, 0u8..6), 0..400)) {
            let mut shares = Shares::default();
            let mut destinations: Vec<_> = (0..4).map(|_| Destination::default()).collect();
            for (at, action) in actions {
                let destination = &mut destinations[at];
                let outcome = match action {
                    0..=2 => {
                        if destination.admission(NOW, &shares, &LIMITS) == Admission::Now {
                            destination.begin(NOW, &mut shares);
                        }
                        continue;
                    }
                    3 => accepted(),
                    4 => silence(),
                    _ => Outcome::NotMade,
                };
                if destination.running > 0 {
                    end(destination, &outcome, &mut shares);
                }
                let of = |standing| {
                    let all = destinations.iter().filter(|destination| destination.standing == standing);
                    all.map(|destination| destination.running).sum::<usize>()
                };
                let expected = Shares {
                    answering: of(Standing::Answering), new: of(Standing::New), silent: of(Standing::Silent),
                };
                prop_assert_eq!(shares, expected);
            }
        }
    }
}
