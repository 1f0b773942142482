//! The follower's loop: one task that delivers all sources of a capability.

use std::sync::Arc;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tidings_model::LogId;

use super::backlog::Backlog;
use super::backoff::{Backoff, RETRY_AFTER};
use super::{Left, Work};
use crate::Clock;

/// Tracks the sources of a capability that may have records to deliver, and delivers them. Clones share the same state;
/// only one of them may run.
#[derive(Clone, Default)]
pub struct Follower {
    backlog: Arc<Backlog>,
}

impl Follower {
    /// Runs the delivery loop. Never returns. The future may be dropped at any time and run again later.
    pub async fn run<W: Work>(&self, work: &W, clock: &dyn Clock) {
        // A previous run may have been dropped while it was delivering.
        self.backlog.put_all_back();
        while let Err(error) = self.look_for_more(work).await {
            tracing::warn!(%error, "could not see what is left to deliver to {}; trying again", W::NAME);
            clock.sleep(RETRY_AFTER).await;
        }
        let mut working = FuturesUnordered::new();
        let mut backoff = Backoff::new(W::NAME);
        loop {
            while working.len() < W::SOURCES_AT_A_TIME
                && let Some(source) = self.backlog.take()
            {
                working.push(work.step(source).map(move |left| (source, left)));
            }
            tokio::select! {
                Some((source, left)) = working.next() => match left {
                    Ok(Left::Nothing) => self.backlog.finish(source),
                    // Queued behind the other sources, so that each gets its turn.
                    Ok(Left::More) => self.backlog.put_back(source),
                    Err(error) => {
                        self.backlog.rest(source);
                        backoff.add(source, clock.elapsed(), &error);
                    }
                },
                source = backoff.next(clock) => self.backlog.put_back(source),
                () = self.backlog.more() => {}
            }
        }
    }

    /// Notifies the follower that a source may have records to deliver. Superfluous calls are harmless. A missing call
    /// only delays delivery until the next [`look_for_more`](Self::look_for_more).
    pub fn notify(&self, source: LogId) {
        self.backlog.add(source);
    }

    /// Notifies the follower of all sources with a backlog. Call it periodically: a writer that is cancelled while its
    /// commit is being made never calls [`notify`](Self::notify).
    pub async fn look_for_more<W: Work>(&self, work: &W) -> Result<(), W::Error> {
        work.backlog().await?.into_iter().for_each(|source| self.notify(source));
        Ok(())
    }

    /// Whether no source is known to have records to deliver.
    pub fn is_at_rest(&self) -> bool {
        self.backlog.is_empty()
    }
}
