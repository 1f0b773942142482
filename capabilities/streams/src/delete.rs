//! How streams end: deleted, expired, or let go by their last fork.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use tidings_engine::deliver::Source;
use tidings_engine::log::{Commit, Operation, StoreError};
use tidings_model::ProjectId;

use crate::table::{Cause, Change, Life, Owner};
use crate::{Found, Stream, StreamError, StreamKey, Streams};

/// How many streams one sweep looks at before it lets others work.
const SWEEP_BATCH: usize = 256;

/// How many streams are ended at the same time, so that they share commits.
const ENDED_AT_A_TIME: usize = 64;

/// How many streams are kept at the same time, so that they share commits.
const KEPT_AT_A_TIME: usize = 64;

/// How many streams of a project that has gone are looked up at a time.
const CLEAR_BATCH: usize = 4096;

/// What is left after a project's streams were ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleared {
    /// Nothing.
    Whole,
    /// Something.
    InPart,
}

/// Whether a stream that was to end did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It did.
    Now,
    /// It had ended, or lives on.
    NotByThis,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Streams that have gone.
    pub removed: usize,
    /// Streams of which records have gone.
    pub trimmed: usize,
}

/// Whether a stream lives longer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// It does.
    Now,
    /// It has gone, need not, or cannot where nothing can be written.
    Not,
}

impl Streams {
    /// Deletes a stream. One with forks is kept for them, and its name with it.
    pub async fn delete(&self, key: &StreamKey) -> Result<(), StreamError> {
        let found = self.describe(key).await?;
        self.end(key, &found.stream, Cause::Deleted).await
    }

    /// Ends streams whose time is over and those that a crash left behind without forks. Lets go of records that their
    /// streams do not keep.
    pub async fn sweep(&self) -> Result<Swept, StreamError> {
        self.keep_heard().await;
        let mut removed = 0;
        loop {
            let expired = self.expired(Owner::Clients).await?;
            if expired.is_empty() {
                return Ok(Swept { removed, trimmed: self.sweep_retained().await? });
            }
            let end = |(key, stream): (StreamKey, Arc<Stream>)| async move {
                self.end_expired(&key, &stream).await
            };
            let mut ended = stream::iter(expired).map(end).buffer_unordered(ENDED_AT_A_TIME);
            while let Some(ended) = ended.next().await {
                removed += usize::from(ended? == Ended::Now);
            }
        }
    }

    /// Some streams of an owner whose time is over. If somebody listens to one, it lives on instead.
    pub async fn expired(&self, owner: Owner) -> Result<Vec<(StreamKey, Arc<Stream>)>, StreamError> {
        loop {
            let due = self.store.due(owner, self.clock.now(), SWEEP_BATCH).await?;
            let (mut expired, mut heard) = (Vec::new(), 0);
            for key in due {
                let Some(Found { stream, .. }) = self.store.find(&key).await? else { continue };
                if stream.life == Life::Active && self.is_heard(&stream) {
                    heard += usize::from(self.renew(&key, &stream).await? == Renewed::Now);
                } else {
                    expired.push((key, stream));
                }
            }
            // Where those were there may be others.
            if !expired.is_empty() || heard == 0 {
                return Ok(expired);
            }
        }
    }

    /// Ends a stream whose time is over, unless somebody else has, or has renewed it.
    pub async fn end_expired(&self, key: &StreamKey, stream: &Stream) -> Result<Ended, StreamError> {
        let cause = match stream.life {
            Life::Active => Cause::Expired(self.clock.now()),
            Life::Retired => Cause::Unreferenced,
        };
        match self.end(key, stream, cause).await {
            Ok(()) => Ok(Ended::Now),
            Err(StreamError::NotFound | StreamError::Contended) => Ok(Ended::NotByThis),
            Err(error) => Err(error),
        }
    }

    /// Keeps streams that somebody listens to from expiring.
    pub async fn keep_heard(&self) {
        let keeping: Vec<_> = self.channels.sources().into_iter().map(keep).collect();
        stream::iter(keeping).buffer_unordered(KEPT_AT_A_TIME).collect::<()>().await;
    }

    /// Lets a stream live as long as it can. One that has gone meanwhile is no error.
    pub(crate) async fn renew(&self, key: &StreamKey, stream: &Stream) -> Result<Renewed, StreamError> {
        let Some(renewal) = self.touch(key, stream) else { return Ok(Renewed::Not) };
        match self.store.commit(Commit::new().changing(renewal)).await.map_err(StreamError::from) {
            Ok(_) => Ok(Renewed::Now),
            Err(StreamError::NotFound | StreamError::Store(StoreError::NoSpace)) => Ok(Renewed::Not),
            Err(error) => Err(error),
        }
    }

    /// Ends all streams of a project that has gone. Tells whether nothing is left of them; if something is, it is a
    /// source whose last fork has just gone, or a stream that somebody made meanwhile, and the caller comes again.
    pub async fn clear(&self, project: &ProjectId) -> Result<Cleared, StreamError> {
        let mut after = None;
        loop {
            let listed = self.store.list(project, "", after.as_ref(), CLEAR_BATCH).await?;
            let ids: Vec<_> = listed.into_iter().map(|(id, _)| id).collect();
            let Some(last) = ids.last() else { break };
            after = Some(last.clone());
            for id in ids {
                let key = StreamKey { project: project.clone(), id };
                let Some(found) = self.store.find(&key).await? else { continue };
                if found.stream.life == Life::Active {
                    match self.end(&key, &found.stream, Cause::Deleted).await {
                        Ok(()) | Err(StreamError::NotFound | StreamError::Contended) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        let rest = self.store.list(project, "", None, 1).await?;
        Ok(if rest.is_empty() { Cleared::Whole } else { Cleared::InPart })
    }

    /// Ends a stream that was found expired. Others may have ended or renewed it meanwhile; the caller looks again.
    pub(crate) async fn expire(&self, key: &StreamKey, stream: &Stream) -> Result<(), StreamError> {
        match self.end(key, stream, Cause::Expired(self.clock.now())).await {
            Ok(()) | Err(StreamError::NotFound | StreamError::Contended) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn end(&self, key: &StreamKey, stream: &Stream, cause: Cause) -> Result<(), StreamError> {
        match self.remove(key, stream, cause).await {
            Err(StreamError::Contended) if stream.forks > 0 || self.has_forks(key, stream).await? => {
                self.retire(key, stream, cause).await
            }
            Ok(()) => self.release_source(stream).await,
            Err(error) => Err(error),
        }
    }

    async fn remove(&self, key: &StreamKey, stream: &Stream, cause: Cause) -> Result<(), StreamError> {
        let log = stream.log;
        let change = Change::Remove { key: key.clone(), log, cause };
        self.store.commit(Commit::new().with(Operation::Delete(log)).changing(change)).await?;
        Ok(())
    }

    async fn retire(&self, key: &StreamKey, stream: &Stream, cause: Cause) -> Result<(), StreamError> {
        let log = stream.log;
        self.store.commit(Commit::new().changing(Change::Retire { key: key.clone(), log, cause })).await?;
        // The log lives on for the forks, but whoever reads the stream itself must hear that it is gone.
        self.bus.wake(log);
        Ok(())
    }

    /// Ends the sources, one behind the other, that were only kept for the fork that ended.
    async fn release_source(&self, stream: &Stream) -> Result<(), StreamError> {
        let mut fork = stream.fork.clone();
        while let Some(ended) = fork {
            let Some(source) = self.store.find(&ended.source).await? else { return Ok(()) };
            match self.remove(&ended.source, &source.stream, Cause::Unreferenced).await {
                Ok(()) => fork = source.stream.fork.clone(),
                // It is in use, has other forks, or somebody else ended it.
                Err(StreamError::NotFound | StreamError::Contended) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn has_forks(&self, key: &StreamKey, stream: &Stream) -> Result<bool, StreamError> {
        let found = self.store.find(key).await?;
        Ok(found.is_some_and(|found| found.stream.log == stream.log && found.stream.forks > 0))
    }
}

fn keep(source: Arc<dyn Source>) -> BoxFuture<'static, ()> {
    async move { source.keep().await }.boxed()
}
