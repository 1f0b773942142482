//! The registry of live responses, which are ticked once a second and ended when the server stops.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tidings_auth::Revocation;
use tidings_engine::Clock;
use tidings_model::Timestamp;

use crate::encoded::Encoded;

/// The registry of all live responses. Each is ticked about once a second.
#[derive(Default)]
pub struct LiveConnections {
    list: Mutex<List>,
    encoded: Arc<Encoded>,
}

#[derive(Default)]
struct List {
    live_connections: Vec<Weak<dyn LiveConnection>>,
    /// Time since when the server has been stopping.
    draining: Option<Timestamp>,
}

/// A live response in the registry.
pub trait LiveConnection: Send + Sync {
    /// Handles the passing of time: may end the response, or ping the client.
    fn tick(self: Arc<Self>, now: Timestamp);

    /// Ends the response because the server is stopping.
    fn drain(self: Arc<Self>, now: Timestamp);

    /// Ends the response, or some subscriptions, if a revocation touches its token.
    fn revoke(self: Arc<Self>, revocation: &Revocation, now: Timestamp) -> Cut;

    /// Cuts the connection at once.
    fn cut(&self);
}

/// What a revocation ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Number of live responses.
    pub connections: usize,
    /// Number of subscriptions within live responses that go on.
    pub subscriptions: usize,
}

impl LiveConnections {
    /// Registers a live response until it is dropped.
    pub(super) fn enter(&self, connection: Arc<dyn LiveConnection>) {
        let mut list = self.lock();
        // Entries of dropped ones are reused before the list grows, so the cost is amortised.
        if list.live_connections.len() == list.live_connections.capacity() {
            list.live_connections.retain(|connection| connection.strong_count() > 0);
        }
        list.live_connections.push(Arc::downgrade(&connection));
        let draining = list.draining;
        drop(list);
        if let Some(since) = draining {
            connection.drain(since);
        }
    }

    /// The cache of encoded records that readers of several sessions share.
    pub(crate) fn encoded(&self) -> &Arc<Encoded> {
        &self.encoded
    }

    /// Ticks a live response at a given moment, in addition to the sweeps.
    pub(super) fn tick_at(
        connection: &Arc<impl LiveConnection + 'static>,
        at: Timestamp,
        clock: Arc<dyn Clock>,
    ) {
        let connection = Arc::downgrade(connection);
        // The task ends by itself.
        tokio::spawn(async move {
            clock.sleep_until(at).await;
            if let Some(connection) = connection.upgrade() {
                connection.tick(clock.now());
            }
        });
    }

    /// Ticks all live responses.
    pub fn sweep(&self, now: Timestamp) {
        self.encoded.sweep();
        self.all().into_iter().for_each(|connection| tell(connection, |connection| connection.tick(now)));
    }

    /// Ends all live responses, also those to come, because the server is stopping.
    pub fn drain(&self, now: Timestamp) {
        self.lock().draining = Some(now);
        self.all().into_iter().for_each(|connection| tell(connection, |connection| connection.drain(now)));
    }

    /// Ends what a revocation touches, and returns how much that was. The revocation must have been applied.
    pub fn revoke(&self, revocation: &Revocation, now: Timestamp) -> Cut {
        let mut all = Cut::default();
        for connection in self.all() {
            tell(connection, |connection| {
                let cut = connection.revoke(revocation, now);
                all.connections += cut.connections;
                all.subscriptions += cut.subscriptions;
            });
        }
        all
    }

    /// Cuts all connections at once.
    pub fn cut(&self) {
        self.all().iter().for_each(|connection| connection.cut());
    }

    /// Number of live responses.
    pub fn len(&self) -> usize {
        self.all().len()
    }

    /// Whether there are no live responses.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of the list, so that the lock is not held during ticks: a tick may end a response, and another
    /// may be added.
    fn all(&self) -> Vec<Arc<dyn LiveConnection>> {
        let mut list = self.lock();
        list.live_connections.retain(|connection| connection.strong_count() > 0);
        list.live_connections.iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().expect("nobody panics while holding the list")
    }
}

/// Calls a live response. If it panics, its connection is cut, and the others are unaffected.
fn tell(connection: Arc<dyn LiveConnection>, what: impl FnOnce(Arc<dyn LiveConnection>)) {
    let told = connection.clone();
    if catch_unwind(AssertUnwindSafe(|| what(told))).is_err() {
        tracing::error!("a live answer panicked; its connection is cut");
        connection.cut();
    }
}
