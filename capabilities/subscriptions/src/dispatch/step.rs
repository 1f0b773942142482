//! What is to be done next for a subscription. Pure.

use tidings_model::Timestamp;

use crate::subscription::{Phase, Subscription};

/// What is to be done next for a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing, until it or its streams change.
    Rest,
    /// Nothing, until a moment.
    Wait(Timestamp),
    /// End its wake.
    Expire,
    /// Tell a worker of its wake, or of a new one.
    Attempt,
    /// Remove its links.
    Clear,
}

impl Step {
    /// The next step of a subscription, which has something pending or not.
    pub(super) fn of(subscription: &Subscription, pending: bool, now: Timestamp) -> Self {
        match subscription.phase {
            Phase::Linking { .. } => return Self::Rest,
            Phase::Ended => return Self::Clear,
            Phase::Active => {}
        }
        let state = &subscription.state;
        let attempt_at = state.next_attempt_at.filter(|at| *at > now);
        match &state.wake {
            Some(wake) if wake.is_over(now) => Self::Expire,
            Some(wake) if wake.announced => wake.lease_until.map_or(Self::Rest, Self::Wait),
            Some(_) if !pending => Self::Expire,
            Some(wake) if state.dead_since.is_some() => wake.lease_until.map_or(Self::Rest, Self::Wait),
            Some(wake) => match attempt_at {
                Some(at) => Self::Wait(wake.lease_until.map_or(at, |until| until.min(at))),
                None => Self::Attempt,
            },
            None if !pending || state.dead_since.is_some() => Self::Rest,
            None => attempt_at.map_or(Self::Attempt, Self::Wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tidings_model::ProjectId;

    use super::*;
    use crate::subscription::{Config, Delivery, Failed, State, SubscriptionId};

    fn at(second: u64) -> Timestamp {
        Timestamp::from_millis(second * 1000)
    }

    fn step(state: State, pending: bool, now: u64) -> Step {
        let delivery = Delivery::Webhook { url: "https://example.com/".into() };
        let config = Config {
            delivery,
            pattern: None,
            lease_ms: 30_000,
            description: None,
            payload: false,
            max_attempts: 2,
        };
        let subscription = Subscription {
            project: ProjectId::default_project(),
            id: SubscriptionId::parse("s").expect("valid"),
            config: Arc::new(config),
            digest: "".into(),
            root: "".into(),
            created_at: at(0),
            phase: Phase::Active,
            state,
            unlinked: 0,
        };
        Step::of(&subscription, pending, at(now))
    }

    const FAILED: Failed = Failed { delay: Duration::from_secs(5), max_attempts: 2 };

    #[test]
    fn an_idle_subscription_waits_for_something_pending() {
        assert_eq!(step(State::default(), false, 0), Step::Rest);
        assert_eq!(step(State::default(), true, 0), Step::Attempt);
    }

    #[test]
    fn a_wake_that_was_told_waits_for_the_end_of_its_lease() {
        let told = State::default().begun("w".into(), Some(at(30))).announced();
        assert_eq!(step(told.clone(), true, 29), Step::Wait(at(30)));
        assert_eq!(step(told, true, 30), Step::Expire);
        // A pull-wake that nobody has claimed waits for ever.
        assert_eq!(step(State::default().begun("w".into(), None).announced(), true, 99), Step::Rest);
    }

    #[test]
    fn a_wake_that_could_not_be_told_is_tried_again_at_its_time_or_ends_before() {
        let failed = State::default().begun("w".into(), Some(at(30))).failed(at(10), "500", FAILED);
        assert_eq!(step(failed.clone(), true, 11), Step::Wait(at(15)));
        assert_eq!(step(failed.clone(), true, 15), Step::Attempt);
        assert_eq!(step(failed.clone(), false, 15), Step::Expire);
        let late = State::default().begun("w".into(), Some(at(12))).failed(at(10), "500", FAILED);
        assert_eq!(step(late.clone(), true, 11), Step::Wait(at(12)));
        assert_eq!(step(late.clone(), true, 12), Step::Expire);
        // The schedule outlives the wake.
        assert_eq!(step(late.expired(), true, 13), Step::Wait(at(15)));
    }

    #[test]
    fn nothing_is_attempted_for_a_dead_letter() {
        let once = State::default().begun("w".into(), Some(at(30))).failed(at(1), "500", FAILED);
        let dead = once.failed(at(10), "500", FAILED);
        assert_eq!(step(dead.clone(), true, 20), Step::Wait(at(30)));
        assert_eq!(step(dead.expired(), true, 99), Step::Rest);
        assert_eq!(step(dead.expired().revived(), true, 99), Step::Attempt);
    }
}
