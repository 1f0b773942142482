//! What tasks of the dispatcher do: attempts to wake workers, ends of leases, removal of links.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidings_egress::{Answer, Outgoing, SendError, Target};
use tidings_engine::log::CommitError;
use tidings_model::{LogId, Position, StreamId, limits};
use tidings_streams::StreamKey;

use super::step::Step;
use crate::manage::ATTEMPTS;
use crate::retry;
use crate::subscription::{Delivery, Failed, State, Subscription};
use crate::table::{Change, Declined};
use crate::wake::Told;
use crate::{SubscriptionError, Subscriptions};

/// The user agent of webhooks.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("tidings/", env!("CARGO_PKG_VERSION")));
/// The signature of a webhook.
const SIGNATURE: &str = "webhook-signature";

/// What came of an attempt.
enum Outcome {
    /// The endpoint was told, or the event appended.
    Announced,
    /// The endpoint has done the work, up to these positions.
    Done(Vec<(StreamId, Position)>),
    /// It failed, for this reason. The endpoint may ask for time.
    Failed(String, Option<std::time::Duration>),
    /// No attempt was possible now.
    Busy,
}

/// The body of a webhook.
#[derive(Serialize)]
struct WakeBody<'a> {
    subscription_id: &'a str,
    wake_id: Option<&'a str>,
    generation: u64,
    streams: Vec<Told>,
    callback_url: String,
    callback_token: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
}

/// The answer of an endpoint.
#[derive(Deserialize)]
struct Said {
    done: Option<Value>,
}

impl Subscriptions {
    /// Ends the wake of a subscription, if its lease is over or nothing is pending.
    pub(super) async fn expire(&self, number: LogId) -> Result<(), SubscriptionError> {
        let Some(subscription) = self.0.store.subscription(number).await? else { return Ok(()) };
        let pending = self.has_pending(number).await?;
        let now = self.now();
        if Step::of(&subscription, pending, now) != Step::Expire {
            return Ok(());
        }
        if subscription.state.wake.as_ref().is_some_and(|wake| wake.announced && wake.is_over(now)) {
            self.0.counts.expired.count();
        }
        let (was, state) = (subscription.state.version, subscription.state.expired());
        self.unless_moved(Change::Update { number, was, state, acks: Vec::new() }).await
    }

    /// Removes some links of a subscription that has ended, and it with the last.
    pub(super) async fn clear_links(&self, number: LogId) -> Result<(), SubscriptionError> {
        let links = self.0.store.links(number, None, limits::LINKS_PER_COMMIT).await?;
        let streams = links.into_iter().map(|linked| linked.stream).collect();
        self.unless_moved(Change::Clear { number, streams }).await
    }

    /// Tells a worker of the wake of a subscription, or of a new one.
    pub(super) async fn attempt(&self, number: LogId) -> Result<(), SubscriptionError> {
        let Some(subscription) = self.0.store.subscription(number).await? else { return Ok(()) };
        let pending = self.has_pending(number).await?;
        let now = self.now();
        if Step::of(&subscription, pending, now) != Step::Attempt {
            return Ok(());
        }
        let state = match subscription.state.current(now) {
            Some(_) => subscription.state.clone(),
            None => {
                let lease_until = match subscription.config.delivery {
                    Delivery::Webhook { .. } => Some(now + subscription.config.lease()),
                    Delivery::PullWake { .. } => None,
                };
                let begun = subscription.state.begun(self.wake_id(), lease_until);
                let (was, state) = (subscription.state.version, begun.clone());
                match self.commit(Change::Update { number, was, state, acks: Vec::new() }).await {
                    Ok(()) => begun,
                    Err(CommitError::Declined(Declined::Moved)) => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
        };
        let outcome = match &subscription.config.delivery {
            Delivery::Webhook { url } => self.call(number, &subscription, &state, url).await?,
            Delivery::PullWake { stream } => self.announce(number, &subscription, &state, stream).await?,
        };
        self.record(number, &state, outcome).await
    }

    /// Calls the endpoint of a subscription.
    async fn call(
        &self,
        number: LogId,
        subscription: &Subscription,
        state: &State,
        url: &str,
    ) -> Result<Outcome, SubscriptionError> {
        let target = match Target::parse(url) {
            Ok(target) => target,
            Err(error) => return Ok(Outcome::Failed(error.to_string(), None)),
        };
        let seed = self.keys(&subscription.project).await?;
        let token = self.token(&seed, number, state.generation);
        let (body, done) = self.body(number, subscription, state, &token).await?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, AGENT);
        let signature = seed.sign(self.now(), &body);
        headers.insert(SIGNATURE, HeaderValue::try_from(signature).expect("digits and base64 are printable"));
        let timeout = subscription.config.lease().min(limits::WAKE_TIMEOUT);
        let (method, keep) = (http::Method::POST, limits::WAKE_ANSWER_BYTES);
        let outgoing = Outgoing { method, target: &target, headers, body, timeout, keep };
        Ok(match self.0.egress.send(outgoing).await {
            Ok(Answer { status, body, .. }) if status.is_success() => {
                let said = serde_json::from_slice::<Said>(&body).ok().and_then(|said| said.done);
                if said == Some(Value::Bool(true)) { Outcome::Done(done) } else { Outcome::Announced }
            }
            Ok(Answer { status, retry_after, .. }) => {
                Outcome::Failed(format!("the endpoint answered {status}"), retry_after)
            }
            Err(SendError::TooManySockets(_)) => Outcome::Busy,
            Err(error) => Outcome::Failed(error.to_string(), None),
        })
    }

    /// The body of a webhook, and what is acknowledged if the endpoint answers that it is done.
    async fn body(
        &self,
        number: LogId,
        subscription: &Subscription,
        state: &State,
        token: &str,
    ) -> Result<(Bytes, Vec<(StreamId, Position)>), SubscriptionError> {
        let snapshot = self.snapshot(number).await?;
        let (mut streams, mut done) = (Vec::new(), Vec::new());
        let mut room = limits::WAKE_PAYLOAD_BYTES;
        for linked in &snapshot.streams {
            // Who is brought messages acknowledges what was brought.
            let payload = match subscription.config.payload && linked.is_pending() {
                true if room == 0 => {
                    streams.push(self.told_with(linked, None));
                    continue;
                }
                true => self.payload(subscription, linked, &mut room).await?,
                false => None,
            };
            match &payload {
                Some(payload) => done.push((linked.stream.clone(), payload.through)),
                None if linked.is_pending() => done.push((linked.stream.clone(), linked.tail)),
                None => {}
            }
            streams.push(self.told_with(linked, payload));
        }
        let body = WakeBody {
            subscription_id: subscription.id.as_str(),
            wake_id: state.wake.as_ref().map(|wake| &*wake.id),
            generation: state.generation,
            streams,
            callback_url: self.url(subscription, "/callback"),
            callback_token: token,
            more: snapshot.more,
        };
        Ok((serde_json::to_vec(&body).expect("texts and numbers are JSON").into(), done))
    }

    /// Appends the event that wakes workers.
    async fn announce(
        &self,
        number: LogId,
        subscription: &Subscription,
        state: &State,
        stream: &StreamId,
    ) -> Result<Outcome, SubscriptionError> {
        let first = self.first_pending(number, 1).await?;
        let event = json!({
            "type": "wake",
            "subscription_id": subscription.id.as_str(),
            "stream": first.first().map(StreamId::as_str),
            "generation": state.generation,
            "ts": self.now().as_millis(),
        });
        let key = StreamKey { project: subscription.project.clone(), id: stream.clone() };
        Ok(match self.0.wake_streams.append(&key, event.to_string().into()).await {
            Ok(()) => Outcome::Announced,
            Err(error) => Outcome::Failed(format!("wake_stream: {error}"), None),
        })
    }

    /// Records what came of an attempt, unless the wake is over by now.
    async fn record(&self, number: LogId, begun: &State, outcome: Outcome) -> Result<(), SubscriptionError> {
        for _ in 0..ATTEMPTS {
            let Some(subscription) = self.0.store.subscription(number).await? else { return Ok(()) };
            let (state, now) = (&subscription.state, self.now());
            let is_same =
                |wake: &crate::subscription::Wake| begun.wake.as_ref().is_some_and(|own| own.id == wake.id);
            // A failure counts even if the lease ended meanwhile.
            if !state.wake.as_ref().is_some_and(is_same) {
                return Ok(());
            }
            let (next, acks) = match &outcome {
                Outcome::Announced => (state.announced(), Vec::new()),
                Outcome::Done(_) if state.current(now).is_none() => (state.announced(), Vec::new()),
                Outcome::Done(acks) => (state.released(), acks.clone()),
                Outcome::Busy => (state.postponed(now + retry::BASE_DELAY), Vec::new()),
                Outcome::Failed(error, retry_after) => {
                    let jitter = self.0.rng.within(0..=2 * retry::JITTER);
                    let delay = retry::delay(state.failures.saturating_add(1), jitter, *retry_after);
                    let failed = Failed { delay, max_attempts: subscription.config.max_attempts };
                    (state.failed(now, error, failed), Vec::new())
                }
            };
            let is_dead = next.dead_since.is_some();
            match self.commit(Change::Update { number, was: state.version, state: next, acks }).await {
                Err(CommitError::Declined(Declined::Moved)) => {}
                Err(error) => return Err(error.into()),
                Ok(()) => {
                    self.count(&subscription, &outcome, is_dead);
                    return Ok(());
                }
            }
        }
        Err(SubscriptionError::Contended)
    }

    fn count(&self, subscription: &Subscription, outcome: &Outcome, is_dead: bool) {
        let counts = &self.0.counts;
        match (outcome, &subscription.config.delivery) {
            (Outcome::Announced, Delivery::Webhook { .. }) => counts.delivered.count(),
            (Outcome::Announced, Delivery::PullWake { .. }) => counts.announced.count(),
            (Outcome::Done(_), _) => counts.done.count(),
            (Outcome::Failed(..), _) => counts.failed.count(),
            (Outcome::Busy, _) => {}
        }
        if is_dead {
            counts.dead.count();
            let (project, id) = (subscription.project.as_str(), subscription.id.as_str());
            tracing::warn!(project, id, "gave up waking the workers of a subscription");
        }
    }

    async fn unless_moved(&self, change: Change) -> Result<(), SubscriptionError> {
        match self.commit(change).await {
            Ok(()) | Err(CommitError::Declined(Declined::Moved)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
