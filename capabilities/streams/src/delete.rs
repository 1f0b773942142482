//! How streams end: deleted, expired, or let go by their last fork.

use tidings_engine::log::{Commit, Operation};
use tidings_model::ProjectId;

use crate::table::{Cause, Change, Life};
use crate::{Stream, StreamError, StreamKey, Streams};

/// How many streams one sweep looks at before it lets others work.
const SWEEP_BATCH: usize = 256;

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

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Streams that have gone.
    pub removed: usize,
}

impl Streams {
    /// Deletes a stream. One with forks is kept for them, and its name with it.
    pub async fn delete(&self, key: &StreamKey) -> Result<(), StreamError> {
        let found = self.describe(key).await?;
        self.end(key, &found.stream, Cause::Deleted).await
    }

    /// Ends streams whose time is over and those that a crash left behind without forks.
    pub async fn sweep(&self) -> Result<Swept, StreamError> {
        let mut swept = Swept::default();
        loop {
            let due = self.store.due(self.clock.now(), SWEEP_BATCH).await?;
            if due.is_empty() {
                return Ok(swept);
            }
            for key in due {
                if let Some(found) = self.store.find(&key).await? {
                    let cause = match found.stream.life {
                        crate::Life::Active => Cause::Expired(self.clock.now()),
                        crate::Life::Retired => Cause::Unreferenced,
                    };
                    match self.end(&key, &found.stream, cause).await {
                        Ok(()) => swept.removed += 1,
                        Err(StreamError::NotFound | StreamError::Contended) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }

    /// Ends all streams of a project that has gone. Tells whether nothing is left of them; if something is, it is a
    /// source whose last fork has just gone, or a stream that somebody made meanwhile, and the caller comes again.
    pub async fn clear(&self, project: &ProjectId) -> Result<Cleared, StreamError> {
        let mut after = None;
        loop {
            let ids = self.store.of_project(project, after.as_ref(), CLEAR_BATCH).await?;
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
        let rest = self.store.of_project(project, None, 1).await?;
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
