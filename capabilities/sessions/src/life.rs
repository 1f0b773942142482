//! What is known of a session, and how it lives on or ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tidings_engine::log::Commit;
use tidings_model::{LogId, StreamId, Timestamp, limits};
use tidings_streams::{ContentType, Ended, Found, Owner, Stream, StreamError, StreamKey};

use crate::table::{Change, Session};
use crate::{SessionError, Sessions};

/// How many sessions are ended at the same time, so that they share commits.
const ENDED_AT_A_TIME: usize = 64;

/// What is known of a session.
#[derive(Clone, Debug)]
pub struct Described {
    /// When it expires if nobody uses it.
    pub expires_at: Timestamp,
    /// What its records are.
    pub content_type: ContentType,
    /// What it hears, in the order in which it began to.
    pub subscriptions: Vec<(StreamId, Timestamp, bool)>,
}

/// What a clean-up did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanedUp {
    /// Sessions that had expired, and their streams.
    pub expired: usize,
    /// Subscriptions that went with them.
    pub subscriptions: usize,
}

/// Whether subscribers of a source had expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lapsed {
    /// None had.
    None,
    /// Some had, and have ended or live on.
    Some,
}

impl Sessions {
    /// What is known of a session. Does not renew it.
    pub async fn describe(&self, key: &StreamKey) -> Result<Described, SessionError> {
        let found = self.found(key).await?;
        let row = self.store.session(found.stream.log).await?.ok_or(SessionError::NotFound)?;
        Ok(Described {
            expires_at: found.stream.expires_at.unwrap_or_default(),
            content_type: found.stream.content_type.clone(),
            subscriptions: in_order(&row),
        })
    }

    /// Keeps a session alive. Tells when it expires now.
    pub async fn touch(&self, key: &StreamKey) -> Result<Timestamp, SessionError> {
        let began = self.clock.elapsed();
        let found = self.found(key).await?;
        if let Some(renewal) = self.streams.touch(key, &found.stream) {
            let renewal = Commit::new().changing(Change::Streams(renewal));
            self.store.commit(renewal).await.map_err(gone)?;
        }
        self.events.session_touch.took(self.clock.elapsed().saturating_sub(began));
        let found = self.found(key).await?;
        Ok(found.stream.expires_at.unwrap_or_default())
    }

    /// Ends a session, its stream and its subscriptions.
    pub async fn delete(&self, key: &StreamKey) -> Result<(), SessionError> {
        let began = self.clock.elapsed();
        self.found(key).await?;
        self.streams.delete(key).await.map_err(|error| gone(SessionError::Stream(error)))?;
        self.events.session_delete.took(self.clock.elapsed().saturating_sub(began));
        Ok(())
    }

    /// Ends sessions whose time is over, each with its stream and its subscriptions in one commit. One that cannot be ended
    /// does not keep the others; the error is that of the last.
    pub async fn clean_up(&self) -> Result<CleanedUp, SessionError> {
        let began = self.clock.elapsed();
        self.streams.keep_heard().await;
        let cleaned = self.end_expired().await;
        self.events.cleanup.took(self.clock.elapsed().saturating_sub(began));
        cleaned
    }

    async fn end_expired(&self) -> Result<CleanedUp, SessionError> {
        let mut cleaned = CleanedUp::default();
        loop {
            let expired = self.streams.expired(Owner::Session).await?;
            if expired.is_empty() {
                return Ok(cleaned);
            }
            let end = |(key, stream): (StreamKey, Arc<Stream>)| async move {
                // What goes with a session is only known before it goes.
                let row = self.store.session(stream.log).await?;
                let subscriptions = row.map_or(0, |row| row.subscriptions().count());
                let ended = self.streams.end_expired(&key, &stream).await?;
                Ok::<_, SessionError>((ended, subscriptions))
            };
            let (mut failed, mut others) = (None, false);
            let mut ending = stream::iter(expired).map(end).buffer_unordered(ENDED_AT_A_TIME);
            while let Some(ended) = ending.next().await {
                match ended {
                    Ok((Ended::Now, subscriptions)) => {
                        cleaned.expired += 1;
                        cleaned.subscriptions += subscriptions;
                        self.count_ended(subscriptions);
                        others = true;
                    }
                    Ok((Ended::NotByThis, _)) => others = true,
                    Err(error) => {
                        self.events.cleaned.failed.count();
                        failed = Some(error);
                    }
                }
            }
            // Those that failed are found again, before others whose time was over later.
            if let Some(error) = failed.filter(|_| !others) {
                return Err(error);
            }
        }
    }

    /// Ends subscribers of a source that have expired and that nobody reads, many in one commit.
    pub(crate) async fn end_lapsed(&self, source: LogId) -> Result<Lapsed, SessionError> {
        let mut seen = Lapsed::None;
        loop {
            let now = self.clock.now();
            let lapsed = self.store.lapsed(source, now, limits::ENDED_PER_COMMIT).await?;
            if lapsed.is_empty() {
                return Ok(seen);
            }
            seen = Lapsed::Some;
            let mut subscriptions = HashMap::new();
            for (log, _) in &lapsed {
                let row = self.store.session(*log).await?;
                subscriptions.insert(*log, row.map_or(0, |row| row.subscriptions().count()));
            }
            let keys = lapsed.into_iter().map(|(_, key)| key).collect();
            let ended = self.streams.end_lapsed(keys).await?;
            for (_, log) in &ended {
                self.count_ended(subscriptions.get(log).copied().unwrap_or(0));
            }
            // Those that are left live on, or somebody else has ended them.
            if ended.is_empty() {
                return Ok(seen);
            }
        }
    }

    fn count_ended(&self, subscriptions: usize) {
        self.events.session_expire.took(Duration::ZERO);
        self.events.cleaned.expired.count();
        self.events.cleaned.streams.count();
        self.events.cleaned.subscriptions.add(subscriptions as u64);
    }

    async fn found(&self, key: &StreamKey) -> Result<Found, SessionError> {
        match self.streams.describe(key).await {
            Ok(found) if found.stream.owner == Owner::Session => Ok(found),
            Ok(_) | Err(StreamError::NotFound | StreamError::Gone) => Err(SessionError::NotFound),
            Err(error) => Err(error.into()),
        }
    }
}

/// A session that went meanwhile is not there.
fn gone(error: impl Into<SessionError>) -> SessionError {
    match error.into() {
        SessionError::Stream(StreamError::NotFound | StreamError::Gone) => SessionError::NotFound,
        error => error,
    }
}

fn in_order(session: &Session) -> Vec<(StreamId, Timestamp, bool)> {
    let told = session.subscriptions().map(|one| (one.id.clone(), one.at, one.envelope()));
    let mut told: Vec<_> = told.collect();
    told.sort_by(|(a, a_at, _), (b, b_at, _)| (a_at, a).cmp(&(b_at, b)));
    told
}
