//! [`Subscriptions`], the handle of the capability.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tidings_egress::Egress;
use tidings_engine::log::{ChangeFeed, Commit, CommitError, Observer};
use tidings_engine::{Bus, Clock, Metrics, Rng};
use tidings_model::{LogId, Position, ProjectId, StreamId, Timestamp, limits};
use tidings_streams::{StreamKey, Streams};

use crate::counts::Counts;
use crate::keys::{PublicKey, Seed, Token};
use crate::pending::{Notes, Pending};
use crate::subscription::Subscription;
use crate::table::{Change, Declined, Table};
use crate::{Store, SubscriptionError};

/// The subscriptions of a server. Clones share the same state.
#[derive(Clone)]
pub struct Subscriptions(pub(crate) Arc<Inner>);

/// Fills bytes with unpredictable ones.
pub type Randomness = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

/// Appends the events that wake workers, as a client would.
pub trait WakeStreams: Send + Sync + 'static {
    /// Appends an event, a JSON object, to a stream. The error says why not.
    fn append<'a>(&'a self, stream: &'a StreamKey, event: Bytes) -> BoxFuture<'a, Result<(), String>>;
}

/// Settings of subscriptions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Maximum number of subscriptions of a project.
    pub max_per_project: usize,
    /// Attempts at a time to wake workers.
    pub max_attempts: usize,
    /// Attempts at a time to one destination.
    pub max_attempts_per_destination: usize,
    /// URL under which clients and endpoints reach the server. Empty: as the owner of a subscription reached it.
    pub public_url: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_per_project: limits::STREAM_SUBSCRIPTIONS_PER_PROJECT,
            max_attempts: limits::WAKE_ATTEMPTS,
            max_attempts_per_destination: limits::WAKE_ATTEMPTS_PER_DESTINATION,
            public_url: String::new(),
        }
    }
}

/// What subscriptions are made of.
pub struct Parts {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The store's bus.
    pub bus: Bus,
    /// The streams.
    pub streams: Streams,
    /// Where events that wake workers go.
    pub wake_streams: Arc<dyn WakeStreams>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Random numbers for jitter.
    pub rng: Arc<Rng>,
    /// Random bytes for keys and ids.
    pub randomness: Randomness,
    /// Sends webhooks.
    pub egress: Egress,
    /// Prints a position as clients know it.
    pub print: fn(Position) -> String,
    /// Options.
    pub options: Options,
    /// Registry of metrics.
    pub metrics: Metrics,
}

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) streams: Streams,
    pub(crate) wake_streams: Arc<dyn WakeStreams>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<Rng>,
    pub(crate) randomness: Randomness,
    pub(crate) egress: Egress,
    pub(crate) print: fn(Position) -> String,
    pub(crate) options: Options,
    pub(crate) pending: Pending,
    pub(crate) notes: Arc<Notes>,
    pub(crate) counts: Counts,
}

impl Subscriptions {
    /// Creates the handle. Nobody is woken until its duties run: [`Subscriptions::dispatch`] and
    /// [`Subscriptions::compact_patterns`].
    pub fn new(parts: Parts) -> Self {
        let Parts {
            store,
            bus,
            streams,
            wake_streams,
            clock,
            rng,
            randomness,
            egress,
            print,
            options,
            metrics,
        } = parts;
        let notes = Arc::new(Notes::default());
        let observer: Arc<dyn Observer<Table>> = notes.clone();
        ChangeFeed::<Table>::observe(&*store, &observer);
        let observer: Arc<dyn Observer<tidings_streams::Table>> = notes.clone();
        ChangeFeed::<tidings_streams::Table>::observe(&*store, &observer);
        Self(Arc::new(Inner {
            pending: Pending::new(bus, notes.clone()),
            counts: Counts::new(&metrics),
            store,
            streams,
            wake_streams,
            clock,
            rng,
            randomness,
            egress,
            print,
            options,
            notes,
        }))
    }

    /// Options.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// The public keys that verify webhooks of a project.
    pub async fn public_keys(&self, project: &ProjectId) -> Result<Vec<PublicKey>, SubscriptionError> {
        Ok(self.0.store.key(project).await?.iter().map(Seed::public).collect())
    }

    /// Compacts patterns when they are due. Never returns.
    pub async fn compact_patterns(self) {
        loop {
            self.0.notes.patterns.notified().await;
            for patterns in self.0.store.patterns_due() {
                // A failure to start or end the task only delays the next compaction.
                let _ = tokio::task::spawn_blocking(move || patterns.compact()).await;
            }
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// The keys of a project, made now if it has none.
    pub(crate) async fn keys(&self, project: &ProjectId) -> Result<Seed, SubscriptionError> {
        if let Some(seed) = self.0.store.key(project).await? {
            return Ok(seed);
        }
        let mut bytes = [0; Seed::BYTES];
        (self.0.randomness)(&mut bytes);
        let seed = Seed::from_bytes(bytes);
        match self.commit(Change::Key { project: project.clone(), seed: seed.clone() }).await {
            Ok(()) => Ok(seed),
            // Somebody else was faster.
            Err(CommitError::Declined(Declined::Moved)) => {
                self.0.store.key(project).await?.ok_or(SubscriptionError::Contended)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A token for a wake.
    pub(crate) fn token(&self, seed: &Seed, subscription: LogId, generation: u64) -> String {
        let expires_at = self.now() + limits::WAKE_TOKEN_TTL;
        seed.token(Token { subscription, generation, expires_at })
    }

    /// A new id of a wake.
    pub(crate) fn wake_id(&self) -> Box<str> {
        let mut bytes = [0; 12];
        (self.0.randomness)(&mut bytes);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("w_{hex}").into()
    }

    /// Commits one change.
    pub(crate) async fn commit(&self, change: Change) -> Result<(), CommitError<Declined>> {
        self.0.store.commit(Commit::new().changing(change)).await.map(|_| ())
    }

    /// Whether a subscription has anything pending.
    pub(crate) async fn has_pending(&self, number: LogId) -> Result<bool, SubscriptionError> {
        Ok(!self.first_pending(number, 1).await?.is_empty())
    }

    /// The first streams of a subscription with something pending.
    pub(crate) async fn first_pending(
        &self,
        number: LogId,
        most: usize,
    ) -> Result<Vec<StreamId>, SubscriptionError> {
        Ok(self.0.pending.streams(&*self.0.store, number, most).await?)
    }
}

impl Subscriptions {
    /// The URL of something of a subscription; `path` begins with a slash or is empty.
    pub fn url(&self, subscription: &Subscription, path: &str) -> String {
        let id = percent_encoded(subscription.id.as_str());
        format!("{}/__ds/subscriptions/{id}{path}", subscription.root)
    }
}

/// A text as one segment of a path.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte))
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_segment_of_a_path() {
        assert_eq!(percent_encoded("sub-1"), "sub-1");
        assert_eq!(percent_encoded("a/b c?é"), "a%2Fb%20c%3F%C3%A9");
    }
}
