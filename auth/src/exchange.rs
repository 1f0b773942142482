//! The exchange of revocations between nodes that have a bus and no store in common.
//!
//! A node publishes each revocation that is made on it, and commits those of others to its own store, once each. What is
//! lost on the way is found by comparing: whenever a node may have missed something, it publishes the digests of all its
//! revocations; nodes that have others publish what differs, and their own digests, so that it can do the same.
//!
//! Read [`Exchange::run`], then [`message`] (what is said), and `revocation::digests`.
//!
//! Invariants: nothing is queued but a bounded number of rows and a set of buckets, and one message at a time is on its way
//! to the bus. Only questions make a node tell its digests, so nodes that cannot agree do not go on for ever.
//! Not here: what a revocation does (`revocation`), and cutting live connections, which follows what is applied.

mod message;

use std::future::pending;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{BoxFuture, OptionFuture, join_all};
use tidings_engine::bus::messages::{Arrival, BusError, Joined, MessageBus};
use tidings_engine::metrics::{Counter, Name};
use tidings_engine::{Clock, Metrics};
use tidings_model::limits;
use tokio::sync::broadcast::error::RecvError;

use self::message::Message;
use crate::revocation::digests::BucketSet;
use crate::revocation::{self, Revocation, Row, RowPage, has_expired};
use crate::{ProjectError, Projects};

/// The channel of the bus.
const CHANNEL: &str = "revocations";

const EXCHANGED: Name = Name {
    name: "tidings_revocations_exchanged_total",
    help: "Revocations of other nodes on the bus, by outcome: taken over or refused.",
};

/// Exchanges the revocations of this node with those of others.
pub struct Exchange {
    projects: Projects,
    bus: Arc<dyn MessageBus>,
    node: u64,
    clock: Arc<dyn Clock>,
    taken: Counter,
    refused: Counter,
}

/// What is still to be said.
#[derive(Default)]
struct Unsaid {
    /// Revocations, in messages of their own.
    rows: Vec<Row>,
    /// Buckets in which another node differs.
    buckets: BucketSet,
    /// Where in these buckets to go on; `None` to begin.
    from: Option<revocation::Key>,
    summary: Option<Summary>,
}

/// Why a node tells its digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Summary {
    /// It was asked.
    Answer,
    /// It may have missed something, and asks the others.
    Question,
}

/// The store failed, so that revocations of another node are missing.
#[derive(Debug)]
struct NotStored;

type Publishing<'a> = BoxFuture<'a, Result<(), BusError>>;

impl Exchange {
    /// Creates the exchange of a node, whose number no other node on the bus has.
    pub fn new(
        projects: Projects,
        bus: Arc<dyn MessageBus>,
        node: u64,
        clock: Arc<dyn Clock>,
        metrics: &Metrics,
    ) -> Self {
        let [taken, refused] =
            ["taken", "refused"].map(|outcome| metrics.counter(EXCHANGED, &[("outcome", outcome)]));
        Self { projects, bus, node, clock, taken, refused }
    }

    /// Exchanges revocations for as long as it is polled.
    pub async fn run(&self) {
        let Joined { interest, mut arrivals } = self.bus.join(limits::BUS_ARRIVALS_BYTES);
        let mut revoked = self.projects.revoked_here();
        // As long as the broker is away, nothing can be said. What is revoked meanwhile is found by the first question.
        if let Err(error) = interest.subscribe(CHANNEL).await {
            tracing::error!(%error, "revocations of other nodes are not heard");
            return pending().await;
        }
        let mut unsaid = Unsaid { summary: Some(Summary::Question), ..Unsaid::default() };
        let mut publishing: Option<Publishing<'_>> = None;
        let mut pause: Option<BoxFuture<'static, ()>> = None;
        loop {
            if publishing.is_none() && pause.is_none() {
                let next = self.next(&mut unsaid).await;
                publishing = next.map(|message| self.bus.publish(CHANNEL, message));
            }
            tokio::select! {
                arrival = arrivals.next() => match arrival {
                    Some(Arrival::Message { message, .. }) => {
                        if let Err(NotStored) = self.heard(message, &mut unsaid).await {
                            unsaid.say(Summary::Question);
                            pause = Some(self.pause());
                        }
                    }
                    // All subscriptions are in effect again, so the bus is there.
                    Some(Arrival::Lost { .. }) => {
                        unsaid.say(Summary::Question);
                        pause = None;
                    }
                    None => return pending().await,
                },
                heard = revoked.recv() => match heard {
                    Ok(revocation) if unsaid.rows.len() < limits::REVOCATIONS_PAGE => {
                        unsaid.rows.extend(revocation.rows());
                    }
                    // More than there is room for: they are found by comparing.
                    Ok(_) | Err(RecvError::Lagged(_)) => unsaid.say(Summary::Question),
                    Err(RecvError::Closed) => return pending().await,
                },
                // What others revoked of it before was not taken over.
                () = self.projects.some_created() => unsaid.say(Summary::Question),
                Some(published) = OptionFuture::from(publishing.as_mut()) => {
                    publishing = None;
                    if let Err(error) = published {
                        tracing::debug!(%error, "revocations could not be told to other nodes yet");
                        // What was not said is found by comparing.
                        unsaid = Unsaid { summary: Some(Summary::Question), ..Unsaid::default() };
                        pause = Some(self.pause());
                    }
                }
                Some(()) = OptionFuture::from(pause.as_mut()) => pause = None,
            }
        }
    }

    fn pause(&self) -> BoxFuture<'static, ()> {
        self.clock.sleep(limits::REVOCATIONS_RETRY)
    }

    /// The next message to publish.
    async fn next(&self, unsaid: &mut Unsaid) -> Option<Bytes> {
        loop {
            if let Some(message) = message::pack_rows(self.node, &mut unsaid.rows) {
                return Some(message);
            }
            // Before the own digests: who has taken over these rows differs in less.
            if !unsaid.buckets.is_empty() {
                let (from, most) = (unsaid.from.take(), limits::REVOCATIONS_PAGE);
                let RowPage { rows, next } =
                    self.projects.revocations_of(&unsaid.buckets, from.as_ref(), most);
                if next.is_none() {
                    unsaid.buckets = BucketSet::default();
                }
                (unsaid.rows, unsaid.from) = (rows, next);
                // There may be many pages.
                tokio::task::yield_now().await;
                continue;
            }
            let asks = unsaid.summary.take()? == Summary::Question;
            return Some(message::pack_summary(self.node, &self.projects.revocation_digests(), asks));
        }
    }

    async fn heard(&self, message: Bytes, unsaid: &mut Unsaid) -> Result<(), NotStored> {
        match message::unpack(message) {
            Ok((sender, _)) if sender == self.node => {}
            Ok((_, Message::Rows(rows))) => return self.take_over(rows).await,
            Ok((_, Message::Summary { digests, asks })) => {
                let differing = self.projects.revocation_digests().differing(&digests);
                if differing.is_empty() {
                    return Ok(());
                }
                unsaid.buckets.insert_all(differing);
                // Buckets that were not among those of the pages before have to be looked at from the beginning.
                unsaid.from = None;
                if asks {
                    unsaid.say(Summary::Answer);
                }
            }
            Err(error) => tracing::warn!(%error, "a message of another node on revocations is not readable"),
        }
        Ok(())
    }

    /// Commits revocations of another node. Those that this node must not have are left out.
    async fn take_over(&self, rows: Vec<Row>) -> Result<(), NotStored> {
        let now = self.clock.now();
        let new = rows.into_iter().filter(|(key, at)| {
            let known = self.projects.revoked_up_to(key).is_some_and(|known| known >= *at);
            !known && !has_expired(*at, now) && self.projects.exists(&key.0)
        });
        // A moment in the far future would let all others expire.
        let (new, ahead): (Vec<_>, Vec<_>) =
            new.partition(|(_, at)| at.since(now) <= limits::REVOCATION_AHEAD);
        if !ahead.is_empty() {
            self.refused.add(ahead.len() as u64);
            tracing::error!(
                count = ahead.len(),
                "revocations of another node were not taken over: its clock is far ahead"
            );
        }
        let taking = new.into_iter().map(|(key, at)| self.projects.take_over(Revocation::of_row(key, at)));
        let mut stored = Ok(());
        for taken in join_all(taking).await {
            match taken {
                Ok(()) => self.taken.count(),
                Err(ProjectError::Declined(declined)) => {
                    self.refused.count();
                    tracing::error!(%declined, "a revocation of another node was not taken over");
                }
                Err(error) => {
                    stored = Err(NotStored);
                    tracing::warn!(%error, "a revocation of another node could not be stored yet");
                }
            }
        }
        stored
    }
}

impl Unsaid {
    fn say(&mut self, summary: Summary) {
        self.summary = self.summary.max(Some(summary));
    }
}

#[cfg(test)]
mod tests;
