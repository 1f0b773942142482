//! The table of streams: what is stored beside the records, its changes, and the queries that a store answers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::log::{self, BeforeImages, Commits, ReadsTable, Snapshots, Status, StoreError};
use tidings_model::{LogId, Position, ProjectId, StreamId, Timestamp};

use crate::{ContentType, Floor, Retained};

/// The store contract of streams, beside that of its logs.
pub trait Store: Commits<Table> {
    /// The stream under a key and the status of its log, at one moment.
    fn find<'a>(&'a self, key: &'a StreamKey) -> BoxFuture<'a, Result<Option<Found>, StoreError>>;

    /// Keys of an owner's streams that are due for removal: expired at the moment, earliest first, or, for
    /// any owner, deleted and without forks. At most `limit` of them.
    fn due(
        &self,
        owner: Owner,
        now: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<StreamKey>, StoreError>>;

    /// Streams of a project whose ids have the prefix and sort after the id, in order, at one moment. At most
    /// `limit` of them, including those that have ended but are not removed yet.
    fn list<'a>(
        &'a self,
        project: &'a ProjectId,
        prefix: &'a str,
        after: Option<&'a StreamId>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(StreamId, Found)>, StoreError>>;

    /// Number of session streams of a project. An expired one counts until it is removed.
    fn sessions<'a>(&'a self, project: &'a ProjectId) -> BoxFuture<'a, Result<usize, StoreError>>;

    /// Keys of streams with limits, in order, after the given one. At most `limit` of them.
    fn retained<'a>(
        &'a self,
        after: Option<&'a StreamKey>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<StreamKey>, StoreError>>;
}

/// The name of a stream, unique in the server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey {
    /// The project of the stream.
    pub project: ProjectId,
    /// The id of the stream, unique in its project.
    pub id: StreamId,
}

impl fmt::Display for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.project, self.id)
    }
}

/// A stream and the status of its log.
#[derive(Clone, Debug)]
pub struct Found {
    /// The stream.
    pub stream: Arc<Stream>,
    /// Status of the stream's log.
    pub status: Status,
}

/// One incarnation of a stream.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Log of the stream's own records.
    pub log: LogId,
    /// Content type of the records. Never changes.
    pub content_type: ContentType,
    /// When the stream expires, as its creator asked. Never changes.
    pub expiry: Expiry,
    /// Time of expiry as of the last renewal; `None` if it never expires.
    pub expires_at: Option<Timestamp>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// The source, if the stream is a fork.
    pub fork: Option<Arc<Fork>>,
    /// Number of existing forks of the stream.
    pub forks: u32,
    /// Whether the stream can be used.
    pub state: StreamState,
    /// Who appends to the stream and ends it when it has expired. Never changes.
    pub owner: Owner,
    /// Limits and floor; `None` if everything is kept.
    pub retained: Option<Box<Retained>>,
}

impl Stream {
    /// Whether the stream has expired.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Whether the stream was retired and has no forks any more.
    pub(crate) fn is_unreferenced(&self) -> bool {
        self.state == StreamState::Retired && self.forks == 0
    }
}

/// Who appends to a stream and ends it when it has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Clients append, and the sweep of streams ends it.
    Clients,
    /// A session: its subscriptions fill the stream, and the sweep of sessions ends it.
    Session,
}

/// When a stream expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// The stream never expires.
    Never,
    /// The stream expires this long after the last read or write.
    Idle(Duration),
    /// The stream expires at a moment, whether it is used or not.
    At(Timestamp),
}

impl Expiry {
    /// The time of expiry of a stream that is used now.
    pub fn from(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Never => None,
            Self::Idle(ttl) => Some(now + ttl),
            Self::At(at) => Some(at),
        }
    }
}

/// Whether a stream can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// The stream can be used.
    Active,
    /// The stream was deleted or has expired, and is kept for its forks.
    Retired,
}

/// How a fork continues its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The source stream.
    pub source: StreamKey,
    /// Log of the source: the incarnation that was forked.
    pub source_log: LogId,
    /// The requested offset; `None` means the tail of the source.
    pub offset: Option<Position>,
    /// The requested sub-offset.
    pub sub_offset: u64,
    /// Segments of the inherited records, oldest first.
    pub lineage: Vec<Segment>,
}

/// A segment of the records that a fork inherits: those of a log, from its start or the end of the segment
/// before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The log of the records.
    pub log: LogId,
    /// Position of the last inherited record.
    pub through: Position,
}

/// A change of the table of streams. Each names the incarnation it is about, so that it cannot affect a later
/// stream of the same name.
#[derive(Clone, Debug)]
pub enum Change {
    /// Creates a stream.
    Create {
        /// Name of the stream.
        key: StreamKey,
        /// The new stream.
        stream: Stream,
    },
    /// Changes nothing, but refuses the commit if the stream cannot be used.
    Expect {
        /// Name of the stream.
        key: StreamKey,
        /// Log of the stream.
        log: LogId,
    },
    /// Extends the life of a stream that was used.
    Renew {
        /// Name of the stream.
        key: StreamKey,
        /// Log of the stream.
        log: LogId,
        /// The new time of expiry.
        expires_at: Timestamp,
    },
    /// Raises the floor of a stream. A floor never sinks; a lower one changes nothing.
    Trim {
        /// Name of the stream.
        key: StreamKey,
        /// Log of the stream.
        log: LogId,
        /// The new floor.
        floor: Floor,
        /// Whether the records below the floor are removed.
        below: BelowFloor,
    },
    /// Retires a stream: it cannot be used any more, but is kept for its forks.
    Retire {
        /// Name of the stream.
        key: StreamKey,
        /// Log of the stream.
        log: LogId,
        /// Why the stream ends.
        cause: Cause,
    },
    /// Removes a stream without forks.
    Remove {
        /// Name of the stream.
        key: StreamKey,
        /// Log of the stream.
        log: LogId,
        /// Why the stream ends.
        cause: Cause,
    },
    /// Restores a stream from a snapshot, with its number of forks.
    Restore {
        /// Name of the stream.
        key: StreamKey,
        /// The stream as it was stored.
        stream: Stream,
    },
}

/// Whether records below a stream's floor are removed. Validated with the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BelowFloor {
    /// The same commit trims the log, as far as it is not needed otherwise. There must be no forks.
    Trimmed,
    /// Forks need the records; the log is not trimmed.
    Held,
}

/// Why a stream ends. Validated with the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A client deleted the stream.
    Deleted,
    /// The stream had expired at this moment.
    Expired(Timestamp),
    /// The stream was retired, and its last fork is gone.
    Unreferenced,
}

/// Why a change is refused: the table was changed between look-up and commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// A stream of that name exists.
    #[error("the stream exists")]
    Exists,
    /// The source of a fork is gone.
    #[error("the source is gone")]
    SourceGone,
    /// Records that a fork was to inherit were removed.
    #[error("the source was trimmed")]
    SourceTrimmed,
    /// The incarnation of the stream is gone.
    #[error("the stream is gone")]
    NotThere,
    /// The stream has forks.
    #[error("the stream has forks")]
    HasForks,
    /// The stream was renewed, or still has forks.
    #[error("the stream is not due")]
    NotDue,
}

impl log::Change for Change {
    type Refusal = Declined;
}

/// The table of all streams, in memory.
#[derive(Debug, Default)]
pub struct Table {
    streams: HashMap<StreamKey, Arc<Stream>>,
    /// The ids of each project's streams, in order. The project's id is shared by all keys.
    projects: BTreeMap<ProjectId, BTreeSet<StreamId>>,
    /// Number of session streams of each project that has any.
    sessions: HashMap<ProjectId, usize>,
    expiring: BTreeSet<(Timestamp, StreamKey)>,
    /// Expiring session streams, which the sweep of sessions removes.
    expiring_sessions: BTreeSet<(Timestamp, StreamKey)>,
    unreferenced: BTreeSet<StreamKey>,
    retained: BTreeSet<StreamKey>,
    /// Before-images of the rows that changed since a snapshot began.
    before: BeforeImages<StreamKey, Arc<Stream>>,
}

/// A stream and its name.
pub type Row = (StreamKey, Arc<Stream>);

impl Table {
    /// The stream under a key.
    pub fn get(&self, key: &StreamKey) -> Option<&Arc<Stream>> {
        self.streams.get(key)
    }

    /// See [`Store::find`]. `status` returns the status of a log at the same moment.
    pub fn find(&self, key: &StreamKey, status: &dyn Fn(LogId) -> Option<Status>) -> Option<Found> {
        let stream = self.get(key)?.clone();
        let status = status(stream.log).expect("a stream and its log live and die in one commit");
        Some(Found { stream, status })
    }

    /// Number of streams, including those kept for their forks.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether there are no streams.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// All streams, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&StreamKey, &Arc<Stream>)> {
        self.streams.iter()
    }

    /// See [`Store::due`].
    pub fn due(&self, owner: Owner, now: Timestamp, limit: usize) -> Vec<StreamKey> {
        let expiring = match owner {
            Owner::Clients => &self.expiring,
            Owner::Session => &self.expiring_sessions,
        };
        let expired = expiring.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| key);
        self.unreferenced.iter().chain(expired).take(limit).cloned().collect()
    }

    /// See [`Store::list`]. `status` returns the status of a log at the same moment.
    pub fn list(
        &self,
        project: &ProjectId,
        prefix: &str,
        after: Option<&StreamId>,
        limit: usize,
        status: &dyn Fn(LogId) -> Option<Status>,
    ) -> Vec<(StreamId, Found)> {
        let Some((project, ids)) = self.projects.get_key_value(project) else { return Vec::new() };
        let start = match after.map(StreamId::as_str) {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let ids = ids.range::<str, _>((start, Bound::Unbounded));
        let found = |id: &StreamId| {
            let key = StreamKey { project: project.clone(), id: id.clone() };
            self.find(&key, status).map(|found| (key.id, found))
        };
        ids.take_while(|id| id.as_str().starts_with(prefix)).take(limit).filter_map(found).collect()
    }

    /// See [`Store::sessions`].
    pub fn sessions(&self, project: &ProjectId) -> usize {
        self.sessions.get(project).copied().unwrap_or(0)
    }

    /// See [`Store::retained`].
    pub fn retained(&self, after: Option<&StreamKey>, limit: usize) -> Vec<StreamKey> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.retained.range((start, Bound::Unbounded)).take(limit).cloned().collect()
    }

    fn living(&self, key: &StreamKey, log: LogId) -> Result<&Stream, Declined> {
        self.streams
            .get(key)
            .map(|stream| &**stream)
            .filter(|stream| stream.log == log)
            .ok_or(Declined::NotThere)
    }

    /// Changes a stream and updates the indexes.
    fn replace(&mut self, key: &StreamKey, change: impl FnOnce(&mut Stream)) {
        self.keep(key);
        let Some(stream) = self.streams.get_mut(key) else { return };
        let before = Due::of(stream);
        change(Arc::make_mut(stream));
        let after = Due::of(stream);
        if before != after {
            let key = self.streams.get_key_value(key).expect("just found").0.clone();
            self.leave(&key, before);
            self.enter(&key, after);
        }
    }

    fn keep(&mut self, key: &StreamKey) {
        let Self { streams, before, .. } = self;
        before.keep(key, || streams.get(key).cloned());
    }

    fn put(&mut self, key: StreamKey, stream: Arc<Stream>) {
        self.keep(&key);
        let key = self.count_in(key);
        self.enter(&key, Due::of(&stream));
        if stream.owner == Owner::Session {
            *self.sessions.entry(key.project.clone()).or_default() += 1;
        }
        if stream.retained.is_some() {
            self.retained.insert(key.clone());
        }
        self.streams.insert(key, stream);
    }

    fn enter(&mut self, key: &StreamKey, due: Due) {
        match due {
            Due::Never => {}
            Due::At(at, owner) => {
                self.expiring(owner).insert((at, key.clone()));
            }
            Due::Now => {
                self.unreferenced.insert(key.clone());
            }
        }
    }

    fn expiring(&mut self, owner: Owner) -> &mut BTreeSet<(Timestamp, StreamKey)> {
        match owner {
            Owner::Clients => &mut self.expiring,
            Owner::Session => &mut self.expiring_sessions,
        }
    }

    fn leave(&mut self, key: &StreamKey, due: Due) {
        match due {
            Due::Never => {}
            Due::At(at, owner) => {
                self.expiring(owner).remove(&(at, key.clone()));
            }
            Due::Now => {
                self.unreferenced.remove(key);
            }
        }
    }

    /// Counts the stream in its project. Returns the key with the shared copy of the project's id.
    fn count_in(&mut self, key: StreamKey) -> StreamKey {
        let project = match self.projects.get_key_value(&key.project) {
            Some((project, _)) => project.clone(),
            None => key.project,
        };
        self.projects.entry(project.clone()).or_default().insert(key.id.clone());
        StreamKey { project, id: key.id }
    }

    fn count_out(&mut self, key: &StreamKey) {
        if let Some(ids) = self.projects.get_mut(&key.project) {
            ids.remove(&key.id);
            if ids.is_empty() {
                self.projects.remove(&key.project);
            }
        }
    }

    fn take(&mut self, key: &StreamKey) -> Option<Arc<Stream>> {
        self.keep(key);
        let stream = self.streams.remove(key)?;
        self.count_out(key);
        self.leave(key, Due::of(&stream));
        self.retained.remove(key);
        if stream.owner == Owner::Session
            && let Some(count) = self.sessions.get_mut(&key.project)
        {
            *count -= 1;
            if *count == 0 {
                self.sessions.remove(&key.project);
            }
        }
        Some(stream)
    }
}

/// When a stream is due for removal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    Never,
    At(Timestamp, Owner),
    Now,
}

impl Due {
    fn of(stream: &Stream) -> Self {
        match (stream.state, stream.expires_at) {
            (StreamState::Active, Some(at)) => Self::At(at, stream.owner),
            (StreamState::Retired, _) if stream.is_unreferenced() => Self::Now,
            _ => Self::Never,
        }
    }
}

impl Snapshots for Table {
    type Row = Row;

    fn begin_snapshot(&mut self) {
        self.before.begin();
    }

    fn next_rows(&mut self, most: usize) -> Option<Vec<Row>> {
        let Self { streams, projects, before, .. } = self;
        before.next(most, |after| {
            let after = after.cloned();
            let first = after.as_ref().map_or(Bound::Unbounded, |key| Bound::Included(key.project.clone()));
            let keys = projects.range((first, Bound::Unbounded)).flat_map(move |(project, ids)| {
                let start = match &after {
                    Some(key) if key.project == *project => Bound::Excluded(key.id.clone()),
                    _ => Bound::Unbounded,
                };
                let ids = ids.range((start, Bound::Unbounded));
                ids.map(|id| StreamKey { project: project.clone(), id: id.clone() })
            });
            keys.filter_map(|key| streams.get(&key).cloned().map(|stream| (key, stream)))
        })
    }

    fn end_snapshot(&mut self) {
        self.before.end();
    }

    fn restore(row: Row, change: &mut dyn FnMut(Change)) {
        let (key, stream) = row;
        change(Change::Restore { key, stream: Stream::clone(&stream) });
    }
}

impl log::StateMachine for Table {
    type Change = Change;

    fn validate(&self, change: &Change) -> Result<(), Declined> {
        match change {
            Change::Restore { key, .. } if self.streams.contains_key(key) => Err(Declined::Exists),
            Change::Restore { .. } => Ok(()),
            Change::Create { key, stream } => {
                if self.streams.contains_key(key) {
                    return Err(Declined::Exists);
                }
                let Some(fork) = &stream.fork else { return Ok(()) };
                match self.living(&fork.source, fork.source_log) {
                    // The records that a fork inherits must not have been removed between look-up and commit.
                    Ok(source) if source.floor().position > stream.floor().position => {
                        Err(Declined::SourceTrimmed)
                    }
                    Ok(source) if source.state == StreamState::Active => Ok(()),
                    _ => Err(Declined::SourceGone),
                }
            }
            Change::Trim { key, log, below, .. } => match self.living(key, *log)? {
                stream if stream.state == StreamState::Retired => Err(Declined::NotThere),
                stream if *below == BelowFloor::Trimmed && stream.forks > 0 => Err(Declined::HasForks),
                _ => Ok(()),
            },
            Change::Expect { key, log } | Change::Renew { key, log, .. } => {
                match self.living(key, *log)?.state {
                    StreamState::Active => Ok(()),
                    StreamState::Retired => Err(Declined::NotThere),
                }
            }
            Change::Retire { key, log, cause } => match self.living(key, *log)? {
                stream if stream.state == StreamState::Retired => Err(Declined::NotThere),
                stream => cause.validate(stream),
            },
            Change::Remove { key, log, cause } => match self.living(key, *log)? {
                stream if stream.forks > 0 => Err(Declined::HasForks),
                stream => cause.validate(stream),
            },
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Create { key, stream } => {
                if let Some(fork) = &stream.fork {
                    self.replace(&fork.source, |source| source.forks += 1);
                }
                self.put(key, Arc::new(stream));
            }
            Change::Restore { key, stream } => self.put(key, Arc::new(stream)),
            Change::Expect { .. } => {}
            Change::Renew { key, expires_at, .. } => {
                self.replace(&key, |stream| stream.expires_at = stream.expires_at.max(Some(expires_at)));
            }
            Change::Trim { key, floor, .. } => self.replace(&key, |stream| {
                if let Some(retained) = stream.retained.as_mut()
                    && retained.floor.position < floor.position
                {
                    retained.floor = floor;
                }
            }),
            Change::Retire { key, .. } => self.replace(&key, |stream| stream.state = StreamState::Retired),
            Change::Remove { key, .. } => {
                let ended = self.take(&key);
                if let Some(fork) = ended.as_ref().and_then(|stream| stream.fork.as_ref()) {
                    self.replace(&fork.source, |source| source.forks -= 1);
                }
            }
        }
    }
}

impl Cause {
    fn validate(self, stream: &Stream) -> Result<(), Declined> {
        let holds = match self {
            Self::Deleted => stream.state == StreamState::Active,
            Self::Expired(now) => stream.state == StreamState::Active && stream.is_expired(now),
            Self::Unreferenced => stream.is_unreferenced(),
        };
        if holds { Ok(()) } else { Err(Declined::NotDue) }
    }
}

impl<S: ReadsTable<Table>> Store for S {
    fn find<'a>(&'a self, key: &'a StreamKey) -> BoxFuture<'a, Result<Option<Found>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, status| table.find(key, status)))).boxed()
    }

    fn due(
        &self,
        owner: Owner,
        now: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<StreamKey>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.due(owner, now, limit)))).boxed()
    }

    fn list<'a>(
        &'a self,
        project: &'a ProjectId,
        prefix: &'a str,
        after: Option<&'a StreamId>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(StreamId, Found)>, StoreError>> {
        let listed = self.with_table(|table, status| table.list(project, prefix, after, limit, status));
        std::future::ready(Ok(listed)).boxed()
    }

    fn sessions<'a>(&'a self, project: &'a ProjectId) -> BoxFuture<'a, Result<usize, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.sessions(project)))).boxed()
    }

    fn retained<'a>(
        &'a self,
        after: Option<&'a StreamKey>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<StreamKey>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.retained(after, limit)))).boxed()
    }
}
