use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tidings_engine::Clock;
use tidings_model::Timestamp;

use crate::encoded::Encoded;

/// All answers that stay. Once in a while each is asked whether it may go on.
#[derive(Default)]
pub struct LiveConnections {
    list: Mutex<List>,
    encoded: Arc<Encoded>,
}

#[derive(Default)]
struct List {
    live_connections: Vec<Weak<dyn LiveConnection>>,
    /// Since when the server has been about to stop.
    draining: Option<Timestamp>,
}

/// One answer that stays.
pub trait LiveConnection: Send + Sync {
    /// Time has passed. Ends, or asks the other side for a sign, if it is time for that.
    fn tick(self: Arc<Self>, now: Timestamp);

    /// The server is about to stop.
    fn drain(self: Arc<Self>, now: Timestamp);

    /// It has had its time. Ends at once.
    fn cut(&self);
}

impl LiveConnections {
    /// From now on it is asked, until it is dropped.
    pub(super) fn enter(&self, connection: Arc<dyn LiveConnection>) {
        let mut list = self.lock();
        // The room of those who left is used before there is more: amortised, each is looked at once.
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

    /// What was written for one of them and others may hear as well.
    pub(crate) fn encoded(&self) -> &Arc<Encoded> {
        &self.encoded
    }

    /// Asks one at a moment that is not to be missed by the time between two sweeps.
    pub(super) fn remind(
        connection: &Arc<impl LiveConnection + 'static>,
        at: Timestamp,
        clock: Arc<dyn Clock>,
    ) {
        let connection = Arc::downgrade(connection);
        // Ends by itself.
        tokio::spawn(async move {
            clock.sleep_until(at).await;
            if let Some(connection) = connection.upgrade() {
                connection.tick(clock.now());
            }
        });
    }

    /// Asks all.
    pub fn sweep(&self, now: Timestamp) {
        self.encoded.sweep();
        self.all().into_iter().for_each(|connection| tell(connection, |connection| connection.tick(now)));
    }

    /// Tells all, also those to come, that the server is about to stop.
    pub fn drain(&self, now: Timestamp) {
        self.lock().draining = Some(now);
        self.all().into_iter().for_each(|connection| tell(connection, |connection| connection.drain(now)));
    }

    /// Ends all at once.
    pub fn cut(&self) {
        self.all().iter().for_each(|connection| connection.cut());
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Without the lock while they are asked: asking may end one, and another may come.
    fn all(&self) -> Vec<Arc<dyn LiveConnection>> {
        let mut list = self.lock();
        list.live_connections.retain(|connection| connection.strong_count() > 0);
        list.live_connections.iter().filter_map(Weak::upgrade).collect()
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().expect("nobody panics while holding the list")
    }
}

/// Tells one something. If it panics, it is cut, and all others are told.
fn tell(connection: Arc<dyn LiveConnection>, what: impl FnOnce(Arc<dyn LiveConnection>)) {
    let told = connection.clone();
    if catch_unwind(AssertUnwindSafe(|| what(told))).is_err() {
        tracing::error!("a live answer panicked; its connection is cut");
        connection.cut();
    }
}
