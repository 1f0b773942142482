//! Subscribing a session to a source, and unsubscribing.

use std::sync::Arc;

use tidings_engine::log::{Commit, CommitError, LogTotals, Operation};
use tidings_model::{LogId, ProjectId, StreamId, Timestamp};
use tidings_streams::table::Declined as StreamDeclined;
use tidings_streams::{
    Change as StreamChange, Expiry, Floor, Found, Owner, Retained, Retention, Stream, StreamError, StreamKey,
    StreamState,
};

use crate::table::{Change, SessionIs};
use crate::{Declined, SessionError, Sessions};

/// Maximum attempts of an operation that collides with concurrent changes.
pub(crate) const ATTEMPTS: usize = 16;

/// Request to subscribe a session to a source.
#[derive(Clone, Debug)]
pub struct SubscribeRequest {
    /// Project of the session and the source.
    pub project: ProjectId,
    /// Id of the session.
    pub session: StreamId,
    /// Id of the stream to subscribe to.
    pub source: StreamId,
    /// Whether records are shown in envelopes. `None` keeps the current setting, which is off for a new subscription.
    pub envelope: Option<bool>,
}

/// Result of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribed {
    /// When the session expires if it is not used.
    pub expires_at: Timestamp,
    /// Whether the session was created by this subscription.
    pub is_new: bool,
}

impl Sessions {
    /// Subscribes a session to a source, and creates the session if it does not exist. Everything is one commit.
    pub async fn subscribe(&self, request: &SubscribeRequest) -> Result<Subscribed, SessionError> {
        let began = self.clock.elapsed();
        for _ in 0..ATTEMPTS {
            let Some(subscribed) = self.try_subscribe(request).await? else { continue };
            let took = self.clock.elapsed().saturating_sub(began);
            self.events.subscribe.took(took);
            if subscribed.is_new {
                self.events.session_create.took(took);
            }
            return Ok(subscribed);
        }
        Err(SessionError::Contended)
    }

    /// Returns `None` when a concurrent change interfered.
    async fn try_subscribe(&self, request: &SubscribeRequest) -> Result<Option<Subscribed>, SessionError> {
        let key = |id: &StreamId| StreamKey { project: request.project.clone(), id: id.clone() };
        let (session_key, source_key) = (key(&request.session), key(&request.source));
        let source = match self.streams.describe(&source_key).await {
            Err(StreamError::NotFound | StreamError::Gone) => return Err(SessionError::SourceNotFound),
            source => source?,
        };
        if source.stream.owner == Owner::Session {
            return Err(SessionError::SourceIsSession);
        }
        if request.envelope == Some(true) && !source.stream.content_type.is_json() {
            return Err(SessionError::EnvelopeNeedsJson);
        }
        let now = self.clock.now();
        let mut commit = Commit::new()
            .changing(Change::Streams(StreamChange::Expect { key: source_key, log: source.stream.log }));
        let mut unreadable = None;
        let mut beginning = None;
        let (session, session_is, expiry) = match self.streams.occupant(&session_key).await? {
            Some(found) => {
                fits(&found, &source)?;
                let renewal = self.streams.touch(&session_key, &found.stream);
                commit.changes.extend(renewal.map(Change::Streams));
                // A fork may keep records it inherited for longer.
                let keep = found.stream.retention().age.filter(|_| found.stream.forks == 0);
                unreadable = keep.map(|keep| now - keep);
                (found.stream.log, SessionIs::Existing, found.stream.expiry)
            }
            None => {
                beginning = Some(self.begin_one(&request.project).await?);
                let log = self.store.reserve().await?;
                let stream = self.new_stream(log, &source.stream, now);
                let create = StreamChange::Create { key: session_key, stream };
                commit = commit.with(Operation::create(log)).changing(Change::Streams(create));
                (log, SessionIs::New, Expiry::Idle(self.options.ttl))
            }
        };
        let commit = commit.changing(Change::Subscribe {
            session,
            session_is,
            source: source.stream.log,
            id: request.source.clone(),
            at: now,
            since: source.status.tail,
            envelope: request.envelope,
            unreadable,
        });
        let committed = self.store.commit(commit).await;
        drop(beginning);
        match committed {
            Ok(_) => {
                // A publisher that saw no subscriber yet may have appended in the meantime.
                self.follower.notify(source.stream.log);
                let expires_at = expiry.from(now).unwrap_or_default();
                Ok(Some(Subscribed { expires_at, is_new: session_is == SessionIs::New }))
            }
            Err(CommitError::Declined(
                Declined::Moved | Declined::Streams(StreamDeclined::Exists | StreamDeclined::NotThere),
            )) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn new_stream(&self, log: LogId, source: &Stream, now: Timestamp) -> Stream {
        let limits = Retention { age: Some(self.options.keep), ..Retention::default() };
        let retained = Retained { limits, inherited: LogTotals::default(), floor: Floor::default() };
        let expiry = Expiry::Idle(self.options.ttl);
        Stream {
            log,
            content_type: source.content_type.clone(),
            expiry,
            expires_at: expiry.from(now),
            created_at: now,
            fork: None,
            forks: 0,
            state: StreamState::Active,
            owner: Owner::Session,
            retained: Some(Box::new(retained)),
        }
    }

    /// Unsubscribes a session from a source. Does nothing if it was not subscribed.
    pub async fn unsubscribe(
        &self,
        project: &ProjectId,
        session: &StreamId,
        source: &StreamId,
    ) -> Result<(), SessionError> {
        let began = self.clock.elapsed();
        if let Some((session, row)) = self.find(project, session).await?
            && let Some(subscription) = row.subscriptions().find(|subscription| subscription.id == *source)
        {
            let change = Change::Unsubscribe { session, source: subscription.source };
            self.store.commit(Commit::new().changing(change)).await?;
        }
        self.events.unsubscribe.took(self.clock.elapsed().saturating_sub(began));
        Ok(())
    }

    async fn find(
        &self,
        project: &ProjectId,
        session: &StreamId,
    ) -> Result<Option<(LogId, Arc<crate::Session>)>, SessionError> {
        let key = StreamKey { project: project.clone(), id: session.clone() };
        let found = match self.streams.describe(&key).await {
            Err(StreamError::NotFound | StreamError::Gone) => return Ok(None),
            found => found?,
        };
        let row = self.store.session(found.stream.log).await?;
        Ok(row.map(|row| (found.stream.log, row)))
    }
}

/// Checks that the stream is a session and that records of the source fit its content type.
fn fits(session: &Found, source: &Found) -> Result<(), SessionError> {
    if session.stream.owner != Owner::Session {
        return Err(SessionError::NotASession);
    }
    let (session, source_type) = (&session.stream.content_type, &source.stream.content_type);
    if session.same_media_type(source_type) {
        return Ok(());
    }
    Err(SessionError::ContentTypeMismatch { session: session.clone(), source_type: source_type.clone() })
}
