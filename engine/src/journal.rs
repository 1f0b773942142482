//! Journals: one log per project that refers to every event of the project that somebody may hear.
//!
//! Whoever must hear everything of a project follows its journal, not each of its logs. A capability that appends
//! messages makes its commits by [`Journals::commit`]. If somebody hears the source, that adds an [`Entry`] to the
//! journal in the same commit: one [`Header`] record per message, then references to the messages. A header says what
//! the message is, so that it can be matched and delivered even when the log that it was appended to is gone. The
//! payload is stored once.
//!
//! What has no message to refer to enters complete events instead, by [`Journals::commit_events`].
//!
//! Invariant: messages and their entry are in one commit, so one is never there without the other.
//! Not here: who hears, and how. A [`Journal`] is injected.

mod event_record;
#[cfg(any(test, feature = "contract-suite"))]
pub mod fixture;
mod header;

use std::sync::Arc;

use bytes::Bytes;
use tidings_model::{LogId, ProjectId, limits};
use tokio::sync::{Semaphore, SemaphorePermit};

pub use self::event_record::{EVENT, EventRecord};
pub use self::header::{HEADER, Header};
use crate::log::{Append, Commit, CommitError, Committed, Of, Operation, Refer, Refusal, StoreError};

/// A place for the events of projects.
pub trait Journal: Send + Sync + 'static {
    /// Returns the journal that events of a source belong to, or `None` when nobody hears them. Cheap: asked for each
    /// append. Follows applied changes: a journal whose deletion was applied is not returned.
    fn log(&self, project: &ProjectId, source: &'static str) -> Option<LogId>;

    /// Tells that entries were committed to a journal. A missing call only delays their delivery.
    fn appended(&self, journal: LogId);
}

/// The journals of all projects, for capabilities that append. Nobody hears anything by default. Clones share the same
/// state.
#[derive(Clone, Default)]
pub struct Journals {
    inner: Option<Arc<Inner>>,
}

struct Inner {
    journal: Arc<dyn Journal>,
    /// Bytes of headers that may still be built; see [`limits::JOURNAL_BYTES_IN_FLIGHT`].
    room: Semaphore,
}

/// Attempts to add an entry, if the journal is replaced meanwhile.
const ATTEMPTS: usize = 3;

impl Journals {
    /// Journals that somebody may hear.
    pub fn new(journal: Arc<dyn Journal>) -> Self {
        let room = Semaphore::new(limits::JOURNAL_BYTES_IN_FLIGHT);
        Self { inner: Some(Arc::new(Inner { journal, room })) }
    }

    /// Makes a commit whose operation number `append` may append messages, with an entry in the project's journal if
    /// somebody hears the source. `describe` describes the messages, given their payloads. The outcomes are those of
    /// the given operations alone.
    ///
    /// When the journal is deleted meanwhile, the commit is made without the entry: nobody hears it any more.
    pub async fn commit<'a, C: Clone, R: std::error::Error + 'static, F>(
        &self,
        project: &ProjectId,
        source: &'static str,
        commit: Commit<C>,
        append: usize,
        describe: impl Fn(&[Bytes]) -> Entry<'a>,
        make: impl Fn(Commit<C>) -> F,
    ) -> Result<Committed, CommitError<R>>
    where
        F: Future<Output = Result<Committed, CommitError<R>>>,
    {
        let Some(Operation::Append(Append { payloads, .. })) = commit.operations.get(append) else {
            return make(commit).await;
        };
        if payloads.is_empty() {
            return make(commit).await;
        }
        let describe = || describe(payloads);
        let add = |entry: &Entry<'_>, commit: &mut Commit<C>, log| entry.add_to(commit, append, log);
        self.enter(project, source, &commit, (describe, Entry::header_bytes, add), make).await
    }

    /// Makes a commit, together with complete events in the project's journal if somebody hears the source. The events are
    /// [records](EventRecord) that refer to nothing. The outcomes are those of the given operations alone.
    pub async fn commit_events<C: Clone, R: std::error::Error + 'static, F>(
        &self,
        project: &ProjectId,
        source: &'static str,
        commit: Commit<C>,
        events: impl Fn() -> Vec<Bytes>,
        make: impl Fn(Commit<C>) -> F,
    ) -> Result<Committed, CommitError<R>>
    where
        F: Future<Output = Result<Committed, CommitError<R>>>,
    {
        let bytes = |events: &Vec<Bytes>| events.iter().map(Bytes::len).sum();
        let add = |events: &Vec<Bytes>, commit: &mut Commit<C>, log| {
            if !events.is_empty() {
                commit.operations.push(Append::new(log, events.clone()).into());
            }
        };
        self.enter(project, source, &commit, (events, bytes, add), make).await
    }

    /// Whether somebody hears the source.
    pub fn are_heard(&self, project: &ProjectId, source: &'static str) -> bool {
        self.inner.as_deref().is_some_and(|inner| inner.journal.log(project, source).is_some())
    }

    /// Makes a commit, with an entry in the project's journal if somebody hears the source. `build` makes the entry, `bytes`
    /// says how large it is, and `add` adds it to the commit.
    async fn enter<C: Clone, E, R: std::error::Error + 'static, F>(
        &self,
        project: &ProjectId,
        source: &'static str,
        commit: &Commit<C>,
        (build, bytes, add): (impl Fn() -> E, impl Fn(&E) -> usize, impl Fn(&E, &mut Commit<C>, LogId)),
        make: impl Fn(Commit<C>) -> F,
    ) -> Result<Committed, CommitError<R>>
    where
        F: Future<Output = Result<Committed, CommitError<R>>>,
    {
        let Some(inner) = self.inner.as_deref() else { return make(commit.clone()).await };
        let mut gone = None;
        for _ in 0..ATTEMPTS {
            let log = inner.journal.log(project, source).filter(|&log| gone != Some(log));
            let Some(log) = log else { break };
            let entry = build();
            let _room = inner.room_for(bytes(&entry)).await.map_err(CommitError::Store)?;
            let mut entered = commit.clone();
            add(&entry, &mut entered, log);
            match make(entered).await {
                Ok(mut committed) => {
                    committed.outcomes.truncate(commit.operations.len());
                    inner.journal.appended(log);
                    return Ok(committed);
                }
                Err(CommitError::Refused(Refusal::NoSuchLog(missing))) if missing == log => gone = Some(log),
                Err(error) => return Err(error),
            }
        }
        make(commit.clone()).await
    }
}

impl Inner {
    /// Waits until the records of an entry may be committed. The limit bounds the memory that small messages take beside
    /// their request, because a header may be larger than its message.
    async fn room_for(&self, bytes: usize) -> Result<SemaphorePermit<'_>, StoreError> {
        let most = limits::JOURNAL_ENTRY_BYTES;
        if bytes > most {
            return Err(StoreError::TooLarge { bytes, most });
        }
        let permits = u32::try_from(bytes).expect("an entry is smaller than 4 GiB");
        Ok(self.room.acquire_many(permits).await.expect("it is never closed"))
    }
}

/// A message of an append, as its entry in a journal describes it.
#[derive(Clone, Debug)]
pub struct Described {
    /// Type of the event.
    pub event_type: Arc<str>,
    /// Bytes of the stored message before the content.
    pub skip: u32,
    /// Bytes of the stored message.
    pub bytes: u64,
}

/// An entry for a journal: the messages of one append.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// Field of the events that holds the name, such as `stream`.
    pub field: &'static str,
    /// Name of what the messages are appended to.
    pub name: &'a str,
    /// Content type of the messages.
    pub content_type: &'a str,
    /// The messages, in the order of the append.
    pub messages: Vec<Described>,
}

impl Entry<'_> {
    /// Adds the entry to the commit that appends the messages. `append` is the index of that operation.
    pub fn add_to<C>(&self, commit: &mut Commit<C>, append: usize, journal: LogId) {
        commit.operations.push(Append::new(journal, self.headers()).into());
        commit.operations.push(Refer { of: Of::Append(append), into: Arc::new([journal]) }.into());
    }
}

/// Makes an event type of a prefix, a name and an optional last segment: `stream.` and the id of a stream. In the name,
/// `/` and `:` separate segments as `.` does; other characters that a type may not have become `_`; empty segments
/// are left out. The name is cut so that the type has at most [`limits::EVENT_TYPE_SEGMENTS`] segments and
/// [`limits::EVENT_TYPE_BYTES`] bytes.
pub fn event_type(prefix: &str, name: &str, last: Option<&str>) -> String {
    let room = limits::EVENT_TYPE_BYTES - last.map_or(0, |last| last.len() + 1);
    let segments = limits::EVENT_TYPE_SEGMENTS - 1 - usize::from(last.is_some());
    let mut made = String::with_capacity(limits::EVENT_TYPE_BYTES);
    made.push_str(prefix);
    let parts = name.split(['.', '/', ':']).filter(|part| !part.is_empty());
    for part in parts.take(segments) {
        if made.len() + 1 >= room {
            break;
        }
        made.push('.');
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
        made.extend(part.chars().map(plain).take(room - made.len()));
    }
    if let Some(last) = last {
        made.push('.');
        made.push_str(last);
    }
    made
}

#[cfg(test)]
mod tests;
