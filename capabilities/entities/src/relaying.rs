//! Relaying: changes of databases are entered into the journal of their project, by the node that holds the lease.
//!
//! The cursor is stored where the lease is, after the journal has the events. So another node goes on where this one has
//! stopped, and what was entered in between is entered again, under the same ids.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select};
use tidings_engine::log::{Commit, CommitError, Committed, StoreError};
use tidings_model::{CommitNumber, ProjectId};

use crate::change::Entry;
use crate::cursor::Cursor;
use crate::entities::{Entities, Inner};
use crate::events::{EventOf, SOURCE, derived_id};
use crate::relay::{Claim, Relay};
use crate::source::{Read, Source, SourceError};
use crate::table::Change;

/// Entries read at a time, and events of one commit.
const AT_A_TIME: usize = 1024;
/// Interval at which it is tried to take the lease, and at which it is noted that nothing is to be relayed.
const INTERVAL: Duration = Duration::from_secs(5);
/// A lease is renewed when this part of its time has passed.
const RENEW_AFTER_PART: u32 = 3;

/// Relays the changes of one source.
struct Relaying<'a> {
    inner: &'a Inner,
    project: &'a ProjectId,
    source: Arc<dyn Source>,
    relay: Arc<dyn Relay>,
}

/// A lease that is held.
struct Lease {
    term: u64,
    /// When it is renewed.
    renew_at: Duration,
    /// How far was relayed.
    relayed: Cursor,
    /// When that was stored last.
    stored_at: Duration,
}

/// The lease is not held any more, or was never got.
struct NotHeld;

impl Entities {
    /// Tells the changes of databases to hooks, while this node holds the lease. Runs on each node and never returns.
    pub async fn relay(self) {
        let relaying = self.inner.backings.iter().filter_map(|(project, backing)| {
            let (source, relay) = (backing.source.clone(), backing.relay.clone()?);
            Some(Relaying { inner: &self.inner, project, source, relay }.run())
        });
        join_all(relaying).await;
        std::future::pending().await
    }
}

impl Relaying<'_> {
    async fn run(self) {
        loop {
            match self.hold().await {
                Ok(NotHeld) => {}
                Err(error) => {
                    tracing::warn!(%error, project = %self.project, "could not tell changes of entities to hooks; trying again");
                }
            }
            self.pause().await;
        }
    }

    /// Waits, but not as long as other nodes do.
    async fn pause(&self) {
        let most = INTERVAL.as_millis() as u64;
        self.inner.clock.sleep(Duration::from_millis(self.inner.rng.within(most / 2..=most))).await;
    }

    /// Takes the lease, and relays for as long as it is held.
    async fn hold(&self) -> Result<NotHeld, SourceError> {
        let Some(Claim { term, relayed, lasts }) = self.relay.claim().await? else { return Ok(NotHeld) };
        let now = self.inner.clock.elapsed();
        let relayed = match relayed {
            Some(relayed) => relayed,
            None => {
                let relayed = self.source.now().await?;
                if !self.relay.advance(term, &relayed).await? {
                    return Ok(NotHeld);
                }
                relayed
            }
        };
        let mut lease = Lease { term, renew_at: now + lasts / RENEW_AFTER_PART, relayed, stored_at: now };
        loop {
            if let Err(NotHeld) = self.renew(&mut lease).await? {
                return Ok(NotHeld);
            }
            match self.step(&mut lease).await {
                Ok(Ok(())) => {}
                Ok(Err(NotHeld)) => return Ok(NotHeld),
                Err(error @ SourceError::Store(_)) => {
                    // This node cannot store anything, but another may.
                    self.relay.release(lease.term).await;
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn renew(&self, lease: &mut Lease) -> Result<Result<(), NotHeld>, SourceError> {
        let now = self.inner.clock.elapsed();
        if now < lease.renew_at {
            return Ok(Ok(()));
        }
        match self.relay.claim().await? {
            Some(Claim { term, lasts, .. }) if term == lease.term => {
                lease.renew_at = now + lasts / RENEW_AFTER_PART;
                Ok(Ok(()))
            }
            _ => Ok(Err(NotHeld)),
        }
    }

    /// Relays some changes, or waits for more.
    async fn step(&self, lease: &mut Lease) -> Result<Result<(), NotHeld>, SourceError> {
        let are_heard = || self.inner.journals.are_heard(self.project, SOURCE);
        if !are_heard() {
            let end = self.source.now().await?;
            // Again, so that whoever has begun to hear meanwhile hears what came meanwhile.
            if !are_heard() {
                if end != lease.relayed && !self.store(lease, end).await? {
                    return Ok(Err(NotHeld));
                }
                self.wait(lease, std::future::pending()).await;
                return Ok(Ok(()));
            }
        }
        match self.source.read(&lease.relayed, AT_A_TIME).await? {
            Read::Entries { entries, cursor, more } => {
                for some in entries.chunks(AT_A_TIME) {
                    self.enter(some).await?;
                }
                let is_due = self.inner.clock.elapsed() >= lease.stored_at + INTERVAL;
                if entries.is_empty() && !is_due {
                    lease.relayed = cursor;
                } else if cursor != lease.relayed && !self.store(lease, cursor).await? {
                    return Ok(Err(NotHeld));
                }
                if !more {
                    let relayed = lease.relayed.clone();
                    self.wait(lease, self.source.changed(&relayed)).await;
                }
            }
            Read::Lost { reason, cursor } => {
                let reason = reason.as_str();
                tracing::warn!(project = %self.project, reason, "hooks do not hear changes of entities that were lost");
                if !self.store(lease, cursor).await? {
                    return Ok(Err(NotHeld));
                }
            }
        }
        Ok(Ok(()))
    }

    /// Stores how far was relayed. Returns whether the lease is still held.
    async fn store(&self, lease: &mut Lease, relayed: Cursor) -> Result<bool, SourceError> {
        let is_held = self.relay.advance(lease.term, &relayed).await?;
        lease.relayed = relayed;
        lease.stored_at = self.inner.clock.elapsed();
        Ok(is_held)
    }

    /// Waits for something, not longer than until there is something else to do.
    async fn wait(&self, lease: &Lease, until: impl Future<Output = ()>) {
        let rest = lease.renew_at.saturating_sub(self.inner.clock.elapsed());
        let timer = self.inner.clock.sleep(rest.min(INTERVAL));
        select(Box::pin(until), timer).await;
    }

    /// Enters changes into the journal of the project.
    async fn enter(&self, entries: &[Entry]) -> Result<(), StoreError> {
        let changed = |entry: &Entry| match entry {
            Entry::Changed(change) => Some(change.clone()),
            Entry::Truncated(_) => None,
        };
        let changes: Vec<_> = entries.iter().filter_map(changed).collect();
        let events = || {
            let now = self.inner.clock.now();
            let record = |change: &crate::Change| {
                let (event_id, may_come_again) = (&*derived_id(change), true);
                let crate::Change { code, id, action, .. } = change;
                EventOf { code, id, action: *action, event_id, may_come_again }.record(now)
            };
            changes.iter().map(record).collect()
        };
        let store = &self.inner.logs.store;
        let make = |commit: Commit<Change>| async {
            // Nobody hears them any more.
            if commit.operations.is_empty() {
                return Ok(Committed { number: CommitNumber::ZERO, outcomes: Vec::new() });
            }
            store.commit(commit).await
        };
        match self.inner.journals.commit_events(self.project, SOURCE, Commit::new(), events, make).await {
            Ok(_) => {
                self.inner.counts.relayed.add(changes.len() as u64);
                Ok(())
            }
            Err(CommitError::Store(error)) => Err(error),
            Err(error) => Err(StoreError::Unavailable(error.to_string())),
        }
    }
}
