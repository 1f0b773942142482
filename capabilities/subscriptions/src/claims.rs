//! What workers do: claim a wake, acknowledge, be heard of, be done, release.

use tidings_engine::log::CommitError;
use tidings_model::{LogId, Position, ProjectId, StreamId};

use crate::keys::Seed;
use crate::manage::ATTEMPTS;
use crate::store::Numbered;
use crate::subscription::{Delivery, Subscription, SubscriptionId};
use crate::table::{Change, Declined};
use crate::wake::Snapshot;
use crate::{SubscriptionError, Subscriptions};

/// Which of the two ways of waking a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Webhooks.
    Webhook,
    /// Events and claims.
    PullWake,
}

/// A request of a worker about the current wake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Token that the worker was given.
    pub token: String,
    /// Id of the wake.
    pub wake_id: String,
    /// Number of the wake.
    pub generation: u64,
    /// What was processed: up to and including these positions.
    pub acks: Vec<(StreamId, Position)>,
    /// What follows.
    pub then: Then,
}

/// What follows a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The worker goes on, with a new lease.
    GoOn,
    /// The wake is over.
    Done,
}

/// A claim.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Id of the wake.
    pub wake_id: Box<str>,
    /// Number of the wake.
    pub generation: u64,
    /// Token for what the worker reports.
    pub token: String,
    /// The streams.
    pub snapshot: Snapshot,
    /// Time until the worker must be heard of, in milliseconds.
    pub lease_ms: u64,
}

impl Subscriptions {
    /// Takes a worker's report. Returns whether another wake follows.
    pub async fn report(
        &self,
        project: &ProjectId,
        id: &SubscriptionId,
        way: Way,
        report: &Report,
    ) -> Result<bool, SubscriptionError> {
        for _ in 0..ATTEMPTS {
            let (number, subscription) = self.authorised(project, id, way, report).await?;
            self.check_acks(number, report).await?;
            let (now, state) = (self.now(), &subscription.state);
            let (was, next) = match report.then {
                Then::Done => (state.version, state.released()),
                Then::GoOn => (state.version, state.extended(now + subscription.config.lease())),
            };
            match self.commit(Change::Update { number, was, state: next, acks: report.acks.clone() }).await {
                Err(CommitError::Declined(Declined::Moved)) => {}
                Err(error) => return Err(error.into()),
                Ok(()) if report.then == Then::Done => return self.has_pending(number).await,
                Ok(()) => return Ok(false),
            }
        }
        Err(SubscriptionError::Contended)
    }

    /// Checks a token before the body of its request is read: that it is one of this subscription, and not too old.
    pub async fn check_token(
        &self,
        project: &ProjectId,
        id: &SubscriptionId,
        token: &str,
    ) -> Result<(), SubscriptionError> {
        let (number, _) = self.get(project, id).await?;
        self.read_token(project, number, token).await.map(|_| ())
    }

    /// Claims the work of a subscription for a worker.
    pub async fn claim(
        &self,
        project: &ProjectId,
        id: &SubscriptionId,
        worker: &str,
    ) -> Result<Claim, SubscriptionError> {
        for _ in 0..ATTEMPTS {
            let (number, subscription) = self.get(project, id).await?;
            expect(&subscription, Way::PullWake)?;
            let (now, state) = (self.now(), &subscription.state);
            let current = state.current(now);
            if let Some(holder) = current.and_then(|wake| wake.holder.clone()) {
                return Err(SubscriptionError::AlreadyClaimed { holder, generation: state.generation });
            }
            if !self.has_pending(number).await? {
                return Err(SubscriptionError::NoPendingWork);
            }
            let begun = match current {
                Some(_) => state.clone(),
                None => state.begun(self.wake_id(), None),
            };
            let claimed = begun.claimed(worker, now + subscription.config.lease());
            let (generation, wake_id) =
                (claimed.generation, claimed.wake.as_ref().map(|wake| wake.id.clone()).unwrap_or_default());
            let was = state.version;
            match self.commit(Change::Update { number, was, state: claimed, acks: Vec::new() }).await {
                Err(CommitError::Declined(Declined::Moved)) => continue,
                done => done?,
            }
            let seed = self.keys(project).await?;
            return Ok(Claim {
                token: self.token(&seed, number, generation),
                wake_id,
                generation,
                snapshot: self.snapshot(number).await?,
                lease_ms: subscription.config.lease_ms,
            });
        }
        Err(SubscriptionError::Contended)
    }

    /// The subscription of a report that is about its current wake.
    async fn authorised(
        &self,
        project: &ProjectId,
        id: &SubscriptionId,
        way: Way,
        report: &Report,
    ) -> Result<Numbered, SubscriptionError> {
        let (number, subscription) = self.get(project, id).await?;
        expect(&subscription, way)?;
        let generation = self.read_token(project, number, &report.token).await?;
        let state = &subscription.state;
        let is_current = state.current(self.now()).is_some_and(|wake| *wake.id == *report.wake_id)
            && generation == state.generation
            && report.generation == state.generation;
        if is_current { Ok((number, subscription)) } else { Err(SubscriptionError::Fenced) }
    }

    /// The generation that a token is for.
    async fn read_token(
        &self,
        project: &ProjectId,
        number: LogId,
        token: &str,
    ) -> Result<u64, SubscriptionError> {
        let seed = self.0.store.key(project).await?;
        let token = seed.as_ref().and_then(|seed: &Seed| seed.read(number, token));
        match token {
            None => Err(SubscriptionError::TokenInvalid),
            Some(token) if token.expires_at <= self.now() => Err(SubscriptionError::TokenExpired),
            Some(token) => Ok(token.generation),
        }
    }

    async fn check_acks(&self, number: LogId, report: &Report) -> Result<(), SubscriptionError> {
        let print = self.0.print;
        for (stream, offset) in &report.acks {
            let invalid = |why: String| SubscriptionError::InvalidOffset(format!("`{stream}`: {why}"));
            let Some(linked) = self.0.store.link(number, stream).await? else {
                return Err(invalid("the subscription is not linked to this stream".to_owned()));
            };
            if *offset < linked.link.acked {
                let acked = print(linked.link.acked);
                return Err(invalid(format!("{} is before {acked}, which was acknowledged", print(*offset))));
            }
            // A link may begin beyond the tail of a stream that was created again.
            if *offset > linked.tail.max(linked.link.acked) {
                let tail = print(linked.tail);
                return Err(invalid(format!("{} is beyond the tail, {tail}", print(*offset))));
            }
        }
        Ok(())
    }
}

fn expect(subscription: &Subscription, way: Way) -> Result<(), SubscriptionError> {
    match (&subscription.config.delivery, way) {
        (Delivery::Webhook { .. }, Way::Webhook) | (Delivery::PullWake { .. }, Way::PullWake) => Ok(()),
        (Delivery::Webhook { .. }, Way::PullWake) => {
            Err(SubscriptionError::Invalid("the subscription is not of type `pull-wake`".to_owned()))
        }
        (Delivery::PullWake { .. }, Way::Webhook) => {
            Err(SubscriptionError::Invalid("the subscription is not of type `webhook`".to_owned()))
        }
    }
}
