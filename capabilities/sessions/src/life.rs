//! Life cycle of a session: describe, touch, delete, expire.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tidings_engine::log::Commit;
use tidings_model::{LogId, StreamId, Timestamp, limits};
use tidings_streams::{ContentType, Ended, Found, Owner, Stream, StreamError, StreamKey};

use crate::table::{Change, Session};
use crate::{SessionError, Sessions};

/// Maximum sessions ended concurrently, so that they share commits.
const ENDED_AT_A_TIME: usize = 64;

/// Description of a session.
#[derive(Clone, Debug)]
pub struct Described {
    /// When the session expires if it is not used.
    pub expires_at: Timestamp,
    /// Content type of the session's records.
    pub content_type: ContentType,
    /// Subscriptions in the order they were made: the source, when it was subscribed to, and whether its records are
    /// shown in envelopes.
    pub subscriptions: Vec<(StreamId, Timestamp, bool)>,
}

/// Result of a clean-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanedUp {
    /// Expired sessions that were ended, with their streams.
    pub expired: usize,
    /// Subscriptions that ended with these sessions.
    pub subscriptions: usize,
}

/// Whether a source had expired subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpiredSubscribers {
    /// No subscriber had expired.
    None,
    /// Some subscribers had expired. They have been ended, or were renewed in the meantime.
    Some,
}

impl Sessions {
    /// Describes a session without renewing it.
    pub async fn describe(&self, key: &StreamKey) -> Result<Described, SessionError> {
        let found = self.found(key).await?;
        let row = self.store.session(found.stream.log).await?.ok_or(SessionError::NotFound)?;
        Ok(Described {
            expires_at: found.stream.expires_at.unwrap_or_default(),
            content_type: found.stream.content_type.clone(),
            subscriptions: in_order(&row),
        })
    }

    /// Renews a session and returns when it now expires.
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

    /// Ends expired sessions, each with its stream and its subscriptions in one commit. A session that cannot be ended
    /// does not stop the others; the error returned is that of the last one that failed.
    pub async fn clean_up(&self) -> Result<CleanedUp, SessionError> {
        let began = self.clock.elapsed();
        self.streams.renew_live().await;
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
                // The subscriptions can be counted only before the session ends.
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
            // Failed sessions are found again, ahead of sessions that expired later. Stop when only failures are left.
            if let Some(error) = failed.filter(|_| !others) {
                return Err(error);
            }
        }
    }

    /// Ends expired subscribers of a source that no client is reading, many in one commit.
    pub(crate) async fn end_lapsed(&self, source: LogId) -> Result<ExpiredSubscribers, SessionError> {
        let mut seen = ExpiredSubscribers::None;
        loop {
            let now = self.clock.now();
            let lapsed = self.store.lapsed(source, now, limits::ENDED_PER_COMMIT).await?;
            if lapsed.is_empty() {
                return Ok(seen);
            }
            seen = ExpiredSubscribers::Some;
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
            // The remaining sessions were renewed, or a concurrent call has ended them.
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

/// Maps the error of a stream that ended in the meantime to [`SessionError::NotFound`].
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
