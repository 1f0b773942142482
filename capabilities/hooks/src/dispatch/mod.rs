//! The dispatcher: takes deliveries from the queues of hooks and brings them to their endpoints.
//!
//! What is stored is small: how far each queue was delivered, and the deliveries that wait for a retry. Everything else is
//! in memory and is made anew from the store. One task, which waits for nothing in particular, decides ([`scheduler`]) and
//! has it done ([`run`]); [`workers`] make the attempts ([`attempt`]). For each hook with deliveries it keeps a [`backlog`],
//! for each destination what it may take ([`destination`]), and it records what came of many deliveries in one commit
//! ([`results`]).
//!
//! Invariants: only the dispatcher writes the progress of hooks, and there is one commit of it at a time. A delivery is
//! settled when that is recorded; until then it is delivered again after a crash, with the same id. Memory is bounded by
//! named limits, apart from the deliveries that wait for a retry, which the tables keep, too.

mod attempt;
mod backlog;
mod bodies;
mod breaker;
mod bucket;
mod counters;
mod destination;
mod destinations;
mod inbox;
mod lanes;
mod moment;
mod outcome;
mod parked;
mod results;
mod run;
mod scheduler;
mod sender;
mod throttle;
mod timers;
mod window;
mod wiring;
mod workers;

use std::sync::Arc;

use tidings_engine::log::Commit;
use tidings_engine::{Clock, Metrics, Rng};
use tidings_model::{LogId, Ulid};

use self::inbox::Inbox;
use self::sender::Sender;
use crate::journal::Notice;
use crate::options::Options;
use crate::{Change, Store};

/// Brings deliveries to endpoints, while [`run`](Self::run) runs. Clones are handles of the same.
#[derive(Clone, Default)]
pub(crate) struct Dispatcher(Arc<Inbox>);

/// What a dispatcher needs.
pub(crate) struct Context {
    /// The store.
    pub(crate) store: Arc<dyn Store>,
    /// The clock.
    pub(crate) clock: Arc<dyn Clock>,
    /// Random numbers for jitter.
    pub(crate) rng: Arc<Rng>,
    /// Makes ids of dead letters.
    pub(crate) fresh_id: Arc<dyn Fn() -> Ulid + Send + Sync>,
    /// Sends deliveries.
    pub(crate) sender: Arc<dyn Sender>,
    /// Options.
    pub(crate) options: Options,
    /// Takes notices.
    pub(crate) notices: Arc<dyn Notices>,
    /// Registry of metrics.
    pub(crate) metrics: Metrics,
}

/// Takes notices about hooks, which other hooks may hear of.
pub(crate) trait Notices: Send + Sync + 'static {
    /// Adds a notice to a commit. Returns the journal that it is appended to, if it is.
    fn add(&self, notice: &Notice, commit: &mut Commit<Change>) -> Option<LogId>;

    /// The commit with a notice was made.
    fn added(&self, journal: LogId);
}

impl Dispatcher {
    /// The deliveries of a queue may have changed: there are more, or the hook has changed. Never waits.
    pub(crate) fn notify(&self, queue: LogId) {
        self.0.notify(queue);
    }

    /// A hook was removed. Returns when nothing of its deliveries will be recorded any more.
    pub(crate) async fn forget(&self, queue: LogId) {
        if let Some(forgotten) = self.0.forget(queue) {
            // An error means that it was forgotten, or that the dispatcher ended.
            let _ = forgotten.await;
        }
    }

    /// Dispatches deliveries. Never returns. It may be dropped at any time and be run again, also on another node: it starts
    /// from the store.
    pub(crate) async fn dispatch(&self, context: Context) {
        run::run(&self.0, context).await;
    }

    /// Whether nothing is running, nothing is due and everything is recorded.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.0.is_at_rest()
    }
}

#[cfg(test)]
mod tests;
