//! Subscriptions: what their owners choose, and the states of their wakes. Transitions are pure.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tidings_model::{ProjectId, StreamId, Timestamp, limits};

use crate::Glob;

/// Id of a subscription, chosen by its owner, unique in its project: any text without control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId(Arc<str>);

impl SubscriptionId {
    /// Parses an id that is already percent-decoded. The error is a message for the client that sent it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > limits::SUBSCRIPTION_ID_BYTES {
            return Err(format!("the id of a subscription has 1 to {} bytes", limits::SUBSCRIPTION_ID_BYTES));
        }
        if text.chars().any(char::is_control) {
            return Err("the id of a subscription has no control characters".to_owned());
        }
        Ok(Self(text.into()))
    }

    /// The id that no other sorts before.
    pub(crate) fn least() -> Self {
        Self(" ".into())
    }

    /// Id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SubscriptionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the owner of a subscription chooses. Never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How workers are woken.
    pub delivery: Delivery,
    /// Streams that are linked by their ids.
    pub pattern: Option<Glob>,
    /// Time that a worker has before it must be heard of again.
    pub lease_ms: u64,
    /// Description for people.
    pub description: Option<Box<str>>,
    /// Whether webhooks bring messages.
    pub payload: bool,
    /// Failed attempts in a row after which the subscription is a dead letter.
    pub max_attempts: u32,
}

/// How workers are woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// By a request to an endpoint.
    Webhook {
        /// URL of the endpoint.
        url: Box<str>,
    },
    /// By an event in a stream, after which workers claim the work.
    PullWake {
        /// The stream.
        stream: StreamId,
    },
}

impl Config {
    /// A digest of the configuration and the streams that were linked explicitly with it, in any order.
    pub fn digest(&self, streams: &[StreamId]) -> Box<str> {
        let mut streams: Vec<_> = streams.iter().map(StreamId::as_str).collect();
        streams.sort_unstable();
        streams.dedup();
        let (kind, target) = match &self.delivery {
            Delivery::Webhook { url } => ("webhook", &**url),
            Delivery::PullWake { stream } => ("pull-wake", stream.as_str()),
        };
        let canonical = serde_json::json!([
            kind,
            target,
            self.pattern.as_ref().map(Glob::as_str),
            streams,
            self.lease_ms,
            self.description,
            self.payload,
            self.max_attempts,
        ]);
        Sha256::digest(canonical.to_string())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
            .into()
    }

    /// The lease.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    /// Whether a stream is linked by the pattern. The stream that wakes workers never is: each wake would cause the next.
    pub fn links(&self, stream: &StreamId) -> bool {
        let wakes = matches!(&self.delivery, Delivery::PullWake { stream: own } if own == stream);
        !wakes && self.pattern.as_ref().is_some_and(|pattern| pattern.matches(stream.as_str()))
    }
}

/// A subscription as it is stored, without its links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Project of the subscription and its streams.
    pub project: ProjectId,
    /// Id, unique in the project.
    pub id: SubscriptionId,
    /// What its owner chose.
    pub config: Arc<Config>,
    /// [`Config::digest`] of what it was created with.
    pub digest: Box<str>,
    /// URL of the root of the project's streams, as the owner reached it.
    pub root: Box<str>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Whether it is in use.
    pub phase: Phase,
    /// State of its wakes.
    pub state: State,
    /// Streams that match the pattern and were not linked because of a limit.
    pub unlinked: u64,
}

/// Whether a subscription is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Streams that existed before it are being linked, in the order of their ids.
    Linking {
        /// The last one that was.
        after: Option<StreamId>,
    },
    /// In use.
    Active,
    /// Removed. Its links are being removed.
    Ended,
}

/// State of the wakes of a subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Number of changes of this state. A change names the one that it rests on.
    pub version: u64,
    /// Number of the last wake.
    pub generation: u64,
    /// The wake that is not done.
    pub wake: Option<Wake>,
    /// Failed attempts in a row.
    pub failures: u32,
    /// Time before which there is no further attempt.
    pub next_attempt_at: Option<Timestamp>,
    /// Why the last attempt failed.
    pub last_error: Option<Box<str>>,
    /// When the last allowed attempt failed. Nothing is attempted any more.
    pub dead_since: Option<Timestamp>,
}

/// A wake that is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// Unique id.
    pub id: Box<str>,
    /// Whether the endpoint was told, or the event appended.
    pub announced: bool,
    /// Name of the worker that claimed it.
    pub holder: Option<Box<str>>,
    /// When the wake ends if nobody is heard of. `None` while a pull-wake is not claimed.
    pub lease_until: Option<Timestamp>,
}

impl Wake {
    /// Whether the lease is over.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.lease_until.is_some_and(|until| until <= now)
    }
}

/// Whether an attempt ended the subscription's attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Delay before the next attempt.
    pub delay: Duration,
    /// Failed attempts in a row after which there are no more.
    pub max_attempts: u32,
}

impl State {
    /// The wake that is not done, if its lease is not over.
    pub fn current(&self, now: Timestamp) -> Option<&Wake> {
        self.wake.as_ref().filter(|wake| !wake.is_over(now))
    }

    /// Begins a wake. The one before, if it is not done, is over.
    #[must_use]
    pub fn begun(&self, id: Box<str>, lease_until: Option<Timestamp>) -> Self {
        let wake = Wake { id, announced: false, holder: None, lease_until };
        Self { generation: self.generation + 1, wake: Some(wake), ..self.next() }
    }

    /// The endpoint was told, or the event appended.
    #[must_use]
    pub fn announced(&self) -> Self {
        let mut state = self.recovered();
        if let Some(wake) = &mut state.wake {
            wake.announced = true;
        }
        state
    }

    /// An attempt failed.
    #[must_use]
    pub fn failed(&self, now: Timestamp, error: &str, failed: Failed) -> Self {
        let failures = self.failures.saturating_add(1);
        let dead = failures >= failed.max_attempts;
        let end = error
            .char_indices()
            .map(|(at, c)| at + c.len_utf8())
            .take_while(|end| *end <= limits::WAKE_ERROR_BYTES);
        let error = &error[..end.last().unwrap_or(0)];
        Self {
            failures,
            last_error: Some(error.into()),
            next_attempt_at: (!dead).then(|| now + failed.delay),
            dead_since: dead.then_some(now),
            ..self.next()
        }
    }

    /// An attempt could not be made for a reason that the endpoint is not to blame for.
    #[must_use]
    pub fn postponed(&self, until: Timestamp) -> Self {
        Self { next_attempt_at: Some(until), ..self.next() }
    }

    /// A worker claims the wake.
    #[must_use]
    pub fn claimed(&self, worker: &str, lease_until: Timestamp) -> Self {
        let mut state = self.recovered();
        if let Some(wake) = &mut state.wake {
            *wake = Wake {
                announced: true,
                holder: Some(worker.into()),
                lease_until: Some(lease_until),
                id: std::mem::take(&mut wake.id),
            };
        }
        state
    }

    /// A worker is heard of.
    #[must_use]
    pub fn extended(&self, lease_until: Timestamp) -> Self {
        let mut state = self.recovered();
        if let Some(wake) = &mut state.wake {
            wake.announced = true;
            wake.lease_until = Some(lease_until);
        }
        state
    }

    /// A worker is done, or gives up its claim.
    #[must_use]
    pub fn released(&self) -> Self {
        Self { wake: None, ..self.recovered() }
    }

    /// The lease is over, or nothing is pending any more. Failures count on.
    #[must_use]
    pub fn expired(&self) -> Self {
        Self { wake: None, ..self.next() }
    }

    /// The owner asks for further attempts.
    #[must_use]
    pub fn revived(&self) -> Self {
        self.recovered()
    }

    fn recovered(&self) -> Self {
        Self { failures: 0, next_attempt_at: None, last_error: None, dead_since: None, ..self.next() }
    }

    fn next(&self) -> Self {
        Self { version: self.version + 1, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            delivery: Delivery::PullWake { stream: stream("wake/pool") },
            pattern: Some(Glob::parse("**").expect("valid")),
            lease_ms: 1000,
            description: None,
            payload: false,
            max_attempts: 3,
        }
    }

    fn stream(id: &str) -> StreamId {
        StreamId::parse(id).expect("valid")
    }

    fn at(second: u64) -> Timestamp {
        Timestamp::from_millis(second * 1000)
    }

    const FAILED: Failed = Failed { delay: Duration::from_secs(1), max_attempts: 3 };

    #[test]
    fn a_digest_does_not_depend_on_the_order_of_streams() {
        let digest = |ids: &[&str]| config().digest(&ids.iter().map(|id| stream(id)).collect::<Vec<_>>());
        assert_eq!(digest(&["a", "b"]), digest(&["b", "a", "b"]));
        assert_ne!(digest(&["a", "b"]), digest(&["a"]));
        assert_ne!(config().digest(&[]), Config { payload: true, ..config() }.digest(&[]));
    }

    #[test]
    fn the_stream_of_wakes_is_not_linked_by_the_pattern() {
        assert!(config().links(&stream("a")) && !config().links(&stream("wake/pool")));
    }

    #[test]
    fn a_wake_that_is_begun_has_a_new_generation_and_no_holder() {
        let first = State::default().begun("w_1".into(), None);
        let held = first.claimed("worker", at(1));
        assert_eq!(held.wake.as_ref().and_then(|wake| wake.holder.as_deref()), Some("worker"));
        assert!(held.current(at(0)).is_some() && held.current(at(1)).is_none());
        let second = held.expired().begun("w_2".into(), None);
        assert_eq!((second.generation, second.version), (2, 4));
        assert_eq!(second.wake.and_then(|wake| wake.holder), None);
    }

    #[test]
    fn the_last_allowed_failure_makes_a_dead_letter_until_it_is_revived() {
        let begun = State::default().begun("w_1".into(), Some(at(30)));
        let twice = begun.failed(at(1), "status 500", FAILED).failed(at(2), "status 503", FAILED);
        assert_eq!((twice.failures, twice.next_attempt_at, twice.dead_since), (2, Some(at(3)), None));
        let dead = twice.expired().failed(at(3), &"é".repeat(200), FAILED);
        assert_eq!((dead.next_attempt_at, dead.dead_since), (None, Some(at(3))));
        assert_eq!(dead.last_error.as_ref().map(|error| error.len()), Some(limits::WAKE_ERROR_BYTES));
        let revived = dead.revived();
        assert_eq!((revived.failures, revived.dead_since, revived.last_error), (0, None, None));
    }
}
