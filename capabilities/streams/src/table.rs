//! What is stored of a stream beside its records, how it changes, and what a store must be able to answer.

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

/// What streams need of a store beside its logs.
pub trait Store: Commits<Table> {
    /// The stream under a key and the status of its log, at one moment.
    fn find<'a>(&'a self, key: &'a StreamKey) -> BoxFuture<'a, Result<Option<Found>, StoreError>>;

    /// Keys of streams of an owner that are due to go: expired by the moment, earliest first, or deleted and without
    /// forks, whoever had them. At most `limit` of them.
    fn due(
        &self,
        owner: Owner,
        now: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<StreamKey>, StoreError>>;

    /// Streams of a project whose ids begin with the prefix and sort after the id, in the order of their ids, as they
    /// are at one moment. At most `limit` of them; those that have ended and are still there are among them.
    fn list<'a>(
        &'a self,
        project: &'a ProjectId,
        prefix: &'a str,
        after: Option<&'a StreamId>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(StreamId, Found)>, StoreError>>;

    /// How many streams of sessions a project has. Those that have expired count until they have gone.
    fn sessions<'a>(&'a self, project: &'a ProjectId) -> BoxFuture<'a, Result<usize, StoreError>>;

    /// Keys of streams that do not keep everything, in order, after the given one. At most `limit` of them.
    fn retained<'a>(
        &'a self,
        after: Option<&'a StreamKey>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<StreamKey>, StoreError>>;
}

/// The name of a stream among all projects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey {
    /// Whose it is.
    pub project: ProjectId,
    /// Its name there.
    pub id: StreamId,
}

impl fmt::Display for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.project, self.id)
    }
}

/// A stream and its log.
#[derive(Clone, Debug)]
pub struct Found {
    /// The stream.
    pub stream: Arc<Stream>,
    /// Its log's status.
    pub status: Status,
}

/// One life of one stream.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Its log.
    pub log: LogId,
    /// What its records are. Never changes.
    pub content_type: ContentType,
    /// When it goes by itself, as its creator said. Never changes.
    pub expiry: Expiry,
    /// When that is, as of the last renewal.
    pub expires_at: Option<Timestamp>,
    /// When it was created.
    pub created_at: Timestamp,
    /// What it continues, when it is a fork.
    pub fork: Option<Arc<Fork>>,
    /// How many living streams are forks of it.
    pub forks: u32,
    /// Whether it can still be used.
    pub state: StreamState,
    /// Who appends to it and ends it when its time is over. Never changes.
    pub owner: Owner,
    /// What it keeps, when that is not everything.
    pub retained: Option<Box<Retained>>,
}

impl Stream {
    /// Whether its time is over.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Whether it is only there for its forks.
    pub(crate) fn is_unreferenced(&self) -> bool {
        self.state == StreamState::Retired && self.forks == 0
    }
}

/// Who appends to a stream and ends it when its time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Whoever may append to streams; it is swept up with them.
    Clients,
    /// A session: what it subscribes to fills it, and nobody else.
    Session,
}

/// When a stream goes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Never.
    Never,
    /// This long after it was last read or written.
    Idle(Duration),
    /// At a moment, whatever happens.
    At(Timestamp),
}

impl Expiry {
    /// When a stream goes that is used now.
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
    /// It can.
    Active,
    /// It was deleted or has expired, and is kept for its forks.
    Retired,
}

/// How a stream continues another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The stream it continues.
    pub source: StreamKey,
    /// That life of it.
    pub source_log: LogId,
    /// The offset that was asked for; none means the source's tail.
    pub offset: Option<Position>,
    /// The sub-offset that was asked for.
    pub sub_offset: u64,
    /// Where the inherited records are, oldest first, each stretch up to a position.
    pub lineage: Vec<Segment>,
}

/// A stretch of records that a fork inherits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// From the start of this log
    pub log: LogId,
    /// up to and with this position.
    pub through: Position,
}

/// What can happen to streams. Each names the life it means, so that it cannot hit a later stream of the
/// same name.
#[derive(Clone, Debug)]
pub enum Change {
    /// A stream begins.
    Create {
        /// Its name.
        key: StreamKey,
        /// All that is known of it.
        stream: Stream,
    },
    /// Nothing happens; but the rest of the commit is only made if the stream can be used.
    Expect {
        /// Its name.
        key: StreamKey,
        /// Its log.
        log: LogId,
    },
    /// A stream was used and goes later.
    Renew {
        /// Its name.
        key: StreamKey,
        /// Its log.
        log: LogId,
        /// When it goes now.
        expires_at: Timestamp,
    },
    /// Records of a stream are no longer kept. A floor never sinks; a lower one changes nothing.
    Trim {
        /// Its name.
        key: StreamKey,
        /// Its log.
        log: LogId,
        /// Where the kept ones begin now.
        floor: Floor,
        /// What becomes of the others.
        below: Below,
    },
    /// A stream cannot be used any more, but is kept for its forks.
    Retire {
        /// Its name.
        key: StreamKey,
        /// Its log.
        log: LogId,
        /// Why.
        cause: Cause,
    },
    /// A stream without forks ends.
    Remove {
        /// Its name.
        key: StreamKey,
        /// Its log.
        log: LogId,
        /// Why.
        cause: Cause,
    },
    /// A stream as it was written down, with the number of its forks.
    Restore {
        /// Its name.
        key: StreamKey,
        /// All that is known of it.
        stream: Stream,
    },
}

/// What becomes of records below a stream's floor. Validated with the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// The same commit trims the log, as far as nobody else needs it: there must be no forks.
    Gone,
    /// Forks hold them; the log is left as it is.
    Held,
}

/// Why a stream ends. Validated with the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Somebody asked for it.
    Deleted,
    /// Its time was over at this moment.
    Expired(Timestamp),
    /// It was retired and its last fork has gone.
    Unreferenced,
}

/// Why the table refuses a change: it changed between looking and writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// There is a stream of that name.
    #[error("the stream exists")]
    Exists,
    /// The source of a fork is not there any more.
    #[error("the source is gone")]
    SourceGone,
    /// Records that a fork was to inherit have gone.
    #[error("the source was trimmed")]
    SourceTrimmed,
    /// That life of the stream is over.
    #[error("the stream is gone")]
    NotThere,
    /// Forks hold it.
    #[error("the stream has forks")]
    HasForks,
    /// It was renewed, or its last fork is not gone.
    #[error("the stream is not due")]
    NotDue,
}

impl log::Change for Change {
    type Refusal = Declined;
}

/// All streams, in memory.
#[derive(Debug, Default)]
pub struct Table {
    streams: HashMap<StreamKey, Arc<Stream>>,
    /// Each project's id once, shared by the keys of its streams, and their ids in order.
    projects: BTreeMap<ProjectId, BTreeSet<StreamId>>,
    /// How many of them are of sessions, for projects that have any.
    sessions: HashMap<ProjectId, usize>,
    expiring: BTreeSet<(Timestamp, StreamKey)>,
    /// The same of sessions, which are swept up by themselves.
    expiring_sessions: BTreeSet<(Timestamp, StreamKey)>,
    unreferenced: BTreeSet<StreamKey>,
    retained: BTreeSet<StreamKey>,
    /// Rows of a snapshot that have changed since it began.
    before: BeforeImages<StreamKey, Arc<Stream>>,
}

/// A stream and its name.
pub type Row = (StreamKey, Arc<Stream>);

impl Table {
    /// The stream under a key.
    pub fn get(&self, key: &StreamKey) -> Option<&Arc<Stream>> {
        self.streams.get(key)
    }

    /// See [`Store::find`]; `status` is that of a log at the same moment.
    pub fn find(&self, key: &StreamKey, status: &dyn Fn(LogId) -> Option<Status>) -> Option<Found> {
        let stream = self.get(key)?.clone();
        let status = status(stream.log).expect("a stream and its log live and die in one commit");
        Some(Found { stream, status })
    }

    /// How many streams there are, those kept for their forks included.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// All streams.
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

    /// See [`Store::list`]; `status` is that of a log at the same moment.
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

    /// Puts what `change` makes of the stream in its place and keeps the indexes in step.
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

    /// The same key, with the project's id that the others have.
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

/// When a stream is to be swept up.
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
                    // What a fork inherits must not have gone between looking and writing.
                    Ok(source) if source.floor().position > stream.floor().position => {
                        Err(Declined::SourceTrimmed)
                    }
                    Ok(source) if source.state == StreamState::Active => Ok(()),
                    _ => Err(Declined::SourceGone),
                }
            }
            Change::Trim { key, log, below, .. } => match self.living(key, *log)? {
                stream if stream.state == StreamState::Retired => Err(Declined::NotThere),
                stream if *below == Below::Gone && stream.forks > 0 => Err(Declined::HasForks),
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
