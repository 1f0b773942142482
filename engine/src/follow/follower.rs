//! The loop: one task that works for all sources of a capability.

use std::sync::Arc;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tidings_model::LogId;

use super::backlog::Backlog;
use super::backoff::{Backoff, RETRY_AFTER};
use super::{Left, Work};
use crate::Clock;

/// Knows which sources of a capability may have something left, and has it delivered. Clones are the same follower; one of
/// them runs.
#[derive(Clone, Default)]
pub struct Follower {
    backlog: Arc<Backlog>,
}

impl Follower {
    /// Delivers what is left, for ever. It may be dropped at any moment and run again later.
    pub async fn run<W: Work>(&self, work: &W, clock: &dyn Clock) {
        // A run before this one may have been dropped in the middle of its work.
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
                    // Others get their turn in between.
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

    /// Tells that a source may have something left. Nothing is lost by telling too often, and no source by not telling: it
    /// waits until somebody looks for more.
    pub fn notify(&self, source: LogId) {
        self.backlog.add(source);
    }

    /// Asks for all sources with something left. To be called now and then: a writer that stops waiting while its commit is
    /// made tells nobody of it.
    pub async fn look_for_more<W: Work>(&self, work: &W) -> Result<(), W::Error> {
        work.backlog().await?.into_iter().for_each(|source| self.notify(source));
        Ok(())
    }

    /// Whether no source is known to have something left.
    pub fn is_at_rest(&self) -> bool {
        self.backlog.is_empty()
    }
}
