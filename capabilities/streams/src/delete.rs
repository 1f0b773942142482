//! The end of streams: deleted, expired, or no longer needed by a fork.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use tidings_engine::deliver::Source;
use tidings_engine::log::{Commit, CommitError, Operation, StoreError};
use tidings_model::{LogId, ProjectId, Timestamp, limits};

use crate::table::{Cause, Change, Owner, StreamState};
use crate::{Found, Stream, StreamError, StreamKey, Streams};

/// Streams that a sweep fetches from the store at a time.
const SWEEP_BATCH: usize = 256;

/// Streams ended concurrently, so that they share commits.
const ENDED_AT_A_TIME: usize = 64;

/// Streams renewed concurrently, so that they share commits.
const KEPT_AT_A_TIME: usize = 64;

/// Whether all streams of a project were removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleared {
    /// No stream is left.
    Whole,
    /// Some streams are left.
    InPart,
}

/// Whether a call ended a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The stream was ended by this call.
    Now,
    /// The stream had ended before, or was renewed.
    NotByThis,
}

/// The results of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of streams that were removed.
    pub removed: usize,
    /// Number of streams that were trimmed.
    pub trimmed: usize,
}

/// Whether a stream was renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// The stream was renewed.
    Now,
    /// The stream is gone, needs no renewal, or the store accepts no writes.
    Not,
}

impl Streams {
    /// Deletes a stream. A stream with forks is kept for them, together with its name.
    pub async fn delete(&self, key: &StreamKey) -> Result<(), StreamError> {
        let found = self.describe(key).await?;
        self.end(key, &found.stream, Cause::Deleted).await
    }

    /// Removes expired streams and those that a crash left behind without forks, and trims streams to their
    /// limits.
    pub async fn sweep(&self) -> Result<Swept, StreamError> {
        Ok(Swept { removed: self.expire_due().await?, trimmed: self.trim_retained().await? })
    }

    /// Removes expired streams and those that a crash left behind without forks. Returns how many.
    pub async fn expire_due(&self) -> Result<usize, StreamError> {
        self.renew_live().await;
        let mut removed = 0;
        loop {
            let expired = self.expired(Owner::Clients).await?;
            if expired.is_empty() {
                return Ok(removed);
            }
            let now = self.clock.now();
            removed += count(&self.end_many(&expired, |stream| Cause::of_sweep(stream, now)).await?);
        }
    }

    /// Removes streams that were kept only for forks, if a crash came between the end of the last fork and
    /// theirs. Must be called before requests are served, so that no client finds such a name taken. Returns
    /// how many were removed.
    pub async fn release_unreferenced(&self) -> Result<usize, StreamError> {
        let mut removed = 0;
        loop {
            // Asking for the beginning of time returns no expired streams.
            let due = self.store.due(Owner::Clients, Timestamp::from_millis(0), SWEEP_BATCH).await?;
            let mut retired = Vec::new();
            for key in due {
                let found = self.store.find(&key).await?;
                retired.extend(found.map(|found| (key, found.stream)));
            }
            if retired.is_empty() {
                return Ok(removed);
            }
            let ended = count(&self.end_many(&retired, |_| Cause::Unreferenced).await?);
            if ended == 0 {
                return Ok(removed);
            }
            removed += ended;
        }
    }

    /// Ends those of the streams that have expired, many in one commit. A stream with live readers is renewed
    /// instead. Returns the streams ended by this call.
    pub async fn end_lapsed(&self, keys: Vec<StreamKey>) -> Result<Vec<(StreamKey, LogId)>, StreamError> {
        let (expired, _) = self.overdue(keys).await?;
        let mut all = Vec::new();
        for batch in expired.chunks(limits::ENDED_PER_COMMIT) {
            let now = self.clock.now();
            let ended = self.end_many(batch, |stream| Cause::of_sweep(stream, now)).await?;
            let ended = batch.iter().zip(ended).filter(|(_, ended)| *ended == Ended::Now);
            all.extend(ended.map(|((key, stream), _)| (key.clone(), stream.log)));
        }
        Ok(all)
    }

    /// Some expired streams of an owner. A stream with live readers is renewed instead.
    pub async fn expired(&self, owner: Owner) -> Result<Vec<(StreamKey, Arc<Stream>)>, StreamError> {
        loop {
            let due = self.store.due(owner, self.clock.now(), SWEEP_BATCH).await?;
            let (expired, heard) = self.overdue(due).await?;
            // Only renewed ones were found; there may be expired ones behind them.
            if !expired.is_empty() || heard == 0 {
                return Ok(expired);
            }
        }
    }

    /// Splits due streams into those that have to end and a count of those renewed because of live readers.
    async fn overdue(
        &self,
        keys: Vec<StreamKey>,
    ) -> Result<(Vec<(StreamKey, Arc<Stream>)>, usize), StreamError> {
        let (mut expired, mut heard) = (Vec::new(), 0);
        for key in keys {
            let Some(Found { stream, .. }) = self.store.find(&key).await? else { continue };
            if stream.state == StreamState::Active && self.is_heard(&stream) {
                heard += usize::from(self.renew(&key, &stream).await? == Renewed::Now);
            } else {
                expired.push((key, stream));
            }
        }
        Ok((expired, heard))
    }

    /// Ends an expired stream, unless it was ended or renewed meanwhile.
    pub async fn end_expired(&self, key: &StreamKey, stream: &Stream) -> Result<Ended, StreamError> {
        match self.end(key, stream, Cause::of_sweep(stream, self.clock.now())).await {
            Ok(()) => Ok(Ended::Now),
            Err(StreamError::NotFound | StreamError::Contended) => Ok(Ended::NotByThis),
            Err(error) => Err(error),
        }
    }

    /// Renews the streams that have live readers.
    pub async fn renew_live(&self) {
        let keeping: Vec<_> = self.channels.sources().into_iter().map(keep).collect();
        stream::iter(keeping).buffer_unordered(KEPT_AT_A_TIME).collect::<()>().await;
    }

    /// Extends the life of a stream as far as possible. A stream that is gone is not an error.
    pub(crate) async fn renew(&self, key: &StreamKey, stream: &Stream) -> Result<Renewed, StreamError> {
        let Some(renewal) = self.touch(key, stream) else { return Ok(Renewed::Not) };
        match self.store.commit(Commit::new().changing(renewal)).await.map_err(StreamError::from) {
            Ok(_) => Ok(Renewed::Now),
            Err(StreamError::NotFound | StreamError::Store(StoreError::NoSpace)) => Ok(Renewed::Not),
            Err(error) => Err(error),
        }
    }

    /// Ends all streams of a removed project. If some are left, because a last fork has just gone or a stream
    /// was created meanwhile, the caller must call again.
    pub async fn clear(&self, project: &ProjectId) -> Result<Cleared, StreamError> {
        let mut after = None;
        loop {
            let listed = self.store.list(project, "", after.as_ref(), limits::ENDED_PER_COMMIT).await?;
            let Some((last, _)) = listed.last() else { break };
            after = Some(last.clone());
            let living = listed.into_iter().filter(|(_, found)| found.stream.state == StreamState::Active);
            let key = |id| StreamKey { project: project.clone(), id };
            let living: Vec<_> = living.map(|(id, found)| (key(id), found.stream)).collect();
            self.end_many(&living, |_| Cause::Deleted).await?;
        }
        let rest = self.store.list(project, "", None, 1).await?;
        Ok(if rest.is_empty() { Cleared::Whole } else { Cleared::InPart })
    }

    /// Ends a stream that was found expired. It may have been ended or renewed meanwhile, so the caller looks
    /// again.
    pub(crate) async fn expire(&self, key: &StreamKey, stream: &Stream) -> Result<(), StreamError> {
        self.end_expired(key, stream).await.map(drop)
    }

    /// Ends streams in one commit. Those with forks are ended one by one, and so are all if any of them has
    /// changed meanwhile. Returns the streams ended by this call.
    async fn end_many(
        &self,
        streams: &[(StreamKey, Arc<Stream>)],
        cause: impl Fn(&Stream) -> Cause,
    ) -> Result<Vec<Ended>, StreamError> {
        let mut commit = Commit::new();
        for (key, stream) in streams.iter().filter(|(_, stream)| stream.forks == 0) {
            let change = Change::Remove { key: key.clone(), log: stream.log, cause: cause(stream) };
            commit = commit.with(Operation::Delete(stream.log)).changing(change);
        }
        let together = match commit.changes.is_empty() {
            true => false,
            false => match self.store.commit(commit).await {
                Ok(_) => true,
                Err(CommitError::Store(error)) => return Err(error.into()),
                Err(CommitError::Declined(_) | CommitError::Refused(_)) => false,
            },
        };
        let cause = &cause;
        let end = |(key, stream): &(StreamKey, Arc<Stream>)| {
            let (key, stream, cause) = (key.clone(), stream.clone(), cause(stream));
            async move {
                let ended = match together && stream.forks == 0 {
                    true => self.release_source(&stream).await,
                    false => self.end(&key, &stream, cause).await,
                };
                match ended {
                    Ok(()) => Ok(Ended::Now),
                    Err(StreamError::NotFound | StreamError::Contended) => Ok(Ended::NotByThis),
                    Err(error) => Err(error),
                }
            }
        };
        let ending: Vec<_> = streams.iter().map(end).collect();
        stream::iter(ending).buffered(ENDED_AT_A_TIME).try_collect().await
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
        // The log is kept for the forks, but readers of the stream itself must notice that it is gone.
        self.bus.wake(log);
        Ok(())
    }

    /// Removes the sources, one after the other, that were kept only for the fork that ended.
    async fn release_source(&self, stream: &Stream) -> Result<(), StreamError> {
        let mut fork = stream.fork.clone();
        while let Some(ended) = fork {
            let Some(source) = self.store.find(&ended.source).await? else { return Ok(()) };
            match self.remove(&ended.source, &source.stream, Cause::Unreferenced).await {
                Ok(()) => fork = source.stream.fork.clone(),
                // It is in use, has other forks, or was removed concurrently.
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

impl Cause {
    /// The cause with which a due stream ends.
    fn of_sweep(stream: &Stream, now: Timestamp) -> Self {
        match stream.state {
            StreamState::Active => Self::Expired(now),
            StreamState::Retired => Self::Unreferenced,
        }
    }
}

fn count(ended: &[Ended]) -> usize {
    ended.iter().filter(|ended| **ended == Ended::Now).count()
}

fn keep(source: Arc<dyn Source>) -> BoxFuture<'static, ()> {
    async move { source.keep().await }.boxed()
}
