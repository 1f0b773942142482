//! Stored state of sessions beside their streams: subscriptions, indexed from both sides, and fan-out progress.
//!
//! A log belongs to a session, to a source or to neither. The row of a source lists the logs of its subscribers and
//! says how records reach them ([`Progress`]); the row of a session lists its subscriptions. One [`Change`] updates
//! both rows of a subscription, so neither is ever seen without the other. When a stream ends, the rows of its log end
//! with it: [`StandsOn::on_base_change`] is called with each change of streams.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::log::plan::LogHash;
use tidings_engine::log::{
    self, Commits, ReadsTable, SnapshotMap, Snapshots, StandsOn, StateMachine, Status, StoreError,
};
use tidings_model::{LogId, Position, StreamId, Timestamp, limits};
use tidings_streams::{Owner, StreamKey, StreamState};

use crate::targets::Targets;

/// Queries that sessions need from a store beside its logs.
pub trait Store: Commits<Table> {
    /// Looks up the row of a log as a source.
    fn source(&self, log: LogId) -> BoxFuture<'_, Result<Option<Arc<Source>>, StoreError>>;

    /// Looks up the row of a log as a session.
    fn session(&self, log: LogId) -> BoxFuture<'_, Result<Option<Arc<Session>>, StoreError>>;

    /// Lists the sources for which the follower has a backlog, as of one moment.
    fn behind(&self) -> BoxFuture<'_, Result<Vec<LogId>, StoreError>>;

    /// Lists subscribers of a source that have expired at `now` and have not ended yet, at most `limit` of them.
    fn lapsed(
        &self,
        source: LogId,
        now: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(LogId, StreamKey)>, StoreError>>;
}

/// Row of a session: its current subscriptions, and ended ones whose records may still be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Subscriptions sorted by source.
    subscriptions: Vec<Subscription>,
}

impl Session {
    /// Active subscriptions.
    pub fn subscriptions(&self) -> impl Iterator<Item = &Subscription> {
        self.subscriptions.iter().filter(|subscription| subscription.state == SubscriptionState::Active)
    }

    /// The active or ended subscription to a source.
    pub fn of(&self, source: LogId) -> Option<&Subscription> {
        self.find(source).ok().map(|at| &self.subscriptions[at])
    }

    /// All subscriptions to be stored, active and ended.
    pub fn rows(&self) -> &[Subscription] {
        &self.subscriptions
    }

    fn find(&self, source: LogId) -> Result<usize, usize> {
        self.subscriptions.binary_search_by_key(&source, |subscription| subscription.source)
    }

    /// Ends an active subscription. If its records may be shown in envelopes, it is kept as ended so that they still
    /// are.
    fn end(&mut self, source: LogId) {
        let Ok(at) = self.find(source) else { return };
        let row = &mut self.subscriptions[at];
        match row.state {
            SubscriptionState::Ended { .. } => {}
            SubscriptionState::Active if row.envelopes.is_empty() => {
                self.subscriptions.remove(at);
            }
            SubscriptionState::Active => row.state = SubscriptionState::Ended { by: None },
        }
    }

    /// Ends the subscriptions to sources that have ended.
    fn leave(&mut self, ended: &BTreeMap<LogId, Targets>) {
        let gone = self.subscriptions().map(|one| one.source).filter(|source| ended.contains_key(source));
        for source in gone.collect::<Vec<_>>() {
            self.end(source);
        }
    }

    /// Removes ended subscriptions whose records can no longer be read, and sets the end time of the others.
    fn tidy(&mut self, now: Timestamp, unreadable: Option<Timestamp>) {
        self.subscriptions.retain_mut(|row| {
            let stays = row.is_needed(now, unreadable);
            if let SubscriptionState::Ended { by } = &mut row.state {
                by.get_or_insert(now);
            }
            stays
        });
    }

    /// Checks that a subscription stays within the limits, without dropping the envelope setting of readable records.
    fn validate(&self, request: &SubscriptionRequest) -> Result<(), Declined> {
        let rows = || self.subscriptions.iter().filter(|row| row.is_needed(request.at, request.unreadable));
        let Some(row) = rows().find(|row| row.source == request.source) else {
            let active = rows().filter(|row| row.state == SubscriptionState::Active).count();
            return match rows().count() {
                _ if active >= limits::SOURCES_PER_SESSION => Err(Declined::TooManySources),
                all if all >= limits::SOURCES_PER_SESSION + limits::LEFT_PER_SESSION => {
                    Err(Declined::TooManyLeft)
                }
                _ => Ok(()),
            };
        };
        if row.state != SubscriptionState::Active
            && self.subscriptions().count() >= limits::SOURCES_PER_SESSION
        {
            return Err(Declined::TooManySources);
        }
        match row.form(request.envelope) {
            Some(envelope) if row.shown(envelope, request.since).len() > limits::ENVELOPE_CHANGES => {
                Err(Declined::TooManyEnvelopeChanges)
            }
            _ => Ok(()),
        }
    }
}

/// Parameters of a subscription to be validated.
struct SubscriptionRequest {
    source: LogId,
    at: Timestamp,
    since: Position,
    envelope: Option<bool>,
    unreadable: Option<Timestamp>,
}

/// Subscription of a session to one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Log of the source.
    pub source: LogId,
    /// Id of the source.
    pub id: StreamId,
    /// When the session subscribed.
    pub at: Timestamp,
    /// Whether the subscription is active.
    pub state: SubscriptionState,
    /// Changes of the envelope setting: from after each position of the source on, whether records are shown in
    /// envelopes. Records before the first entry are not.
    pub envelopes: Vec<(Position, bool)>,
}

/// State of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionState {
    /// The session receives records of the source.
    Active,
    /// The session no longer receives records, but those it received keep their envelope setting.
    Ended {
        /// A time by which the subscription had ended. `None` until the session subscribes to something again.
        by: Option<Timestamp>,
    },
}

impl Subscription {
    /// Whether a record at this position of the source is shown in an envelope.
    pub fn envelope_at(&self, position: Position) -> bool {
        self.envelopes
            .iter()
            .rev()
            .find(|(after, _)| *after < position)
            .is_some_and(|(_, envelope)| *envelope)
    }

    /// Whether new records are shown in envelopes.
    pub fn envelope(&self) -> bool {
        self.envelopes.last().is_some_and(|(_, envelope)| *envelope)
    }

    /// Whether the row must be kept: the subscription is active, or its records may still be read.
    fn is_needed(&self, now: Timestamp, unreadable: Option<Timestamp>) -> bool {
        match self.state {
            SubscriptionState::Active => true,
            SubscriptionState::Ended { by } => {
                unreadable.is_none_or(|unreadable| by.unwrap_or(now) > unreadable)
            }
        }
    }

    /// Envelope setting after subscribing again, or `None` if that does not change it.
    fn form(&self, envelope: Option<bool>) -> Option<bool> {
        match self.state {
            SubscriptionState::Active => envelope,
            SubscriptionState::Ended { .. } => Some(envelope.unwrap_or(false)),
        }
    }

    /// History of the envelope setting when records after a position are shown this way.
    fn shown(&self, envelope: bool, after: Position) -> Vec<(Position, bool)> {
        if self.envelope() == envelope {
            return self.envelopes.clone();
        }
        // Entries at or after this position apply to no record and are dropped.
        let earlier = self.envelopes.iter().filter(|(earlier, _)| *earlier < after);
        let mut envelopes: Vec<_> = earlier.copied().collect();
        if envelopes.last().is_some_and(|(_, last)| *last) != envelope {
            envelopes.push((after, envelope));
        }
        envelopes
    }
}

/// Row of a source: a stream with subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Id of the stream.
    pub id: StreamId,
    /// Version of the subscribers. A new number is assigned whenever they change.
    pub version: u64,
    /// Version at which the last subscriber joined that must receive everything the follower has not delivered yet.
    joined: u64,
    /// Logs of the subscribers.
    pub targets: Targets,
    /// How records reach the subscribers.
    pub progress: Progress,
}

/// How the records of a source reach its subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Each record is delivered in the commit that appends it, so there is no backlog.
    Inline,
    /// The follower delivers the records.
    Following {
        /// How far the follower has delivered.
        cursor: Cursor,
        /// Subscribers that joined while the follower had a backlog, with the position after which each receives
        /// records.
        late: BTreeMap<LogId, Position>,
    },
}

impl Progress {
    fn following(done: Position) -> Self {
        Self::Following { cursor: Cursor::at_rest(done), late: BTreeMap::new() }
    }
}

/// How far the follower has delivered a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Position up to which records are delivered to all subscribers.
    pub done: Position,
    /// End of the batch being delivered. Equal to `done` when no batch is partly delivered.
    pub through: Position,
    /// Last subscriber, in the order of logs, that has the batch. `None` when no batch is partly delivered.
    pub reached: Option<LogId>,
}

impl Cursor {
    /// Cursor without a partly delivered batch.
    pub fn at_rest(done: Position) -> Self {
        Self { done, through: done, reached: None }
    }

    /// Whether no batch is partly delivered.
    pub fn is_at_rest(&self) -> bool {
        self.reached.is_none()
    }
}

/// Change of the sessions table.
#[derive(Clone, Debug)]
pub enum Change {
    /// A change of streams in the same commit.
    Streams(tidings_streams::Change),
    /// Subscribes a session to a source, or changes the envelope setting of a subscription.
    Subscribe {
        /// Log of the session.
        session: LogId,
        /// Whether the session exists already.
        session_is: SessionIs,
        /// Log of the source.
        source: LogId,
        /// Id of the source.
        id: StreamId,
        /// Current time.
        at: Timestamp,
        /// Tail of the source. The session receives records after it.
        since: Position,
        /// Whether records are shown in envelopes. `None` keeps the current setting.
        envelope: Option<bool>,
        /// Time up to which records in the session can no longer be read. `None` when unknown.
        unreadable: Option<Timestamp>,
    },
    /// Unsubscribes a session from a source. Changes nothing if the session is not subscribed.
    Unsubscribe {
        /// Log of the session.
        session: LogId,
        /// Log of the source.
        source: LogId,
    },
    /// Precondition that changes nothing: the commit is refused unless the source has the expected delivery mode.
    Expect {
        /// Log of the source.
        source: LogId,
        /// Delivery mode that the commit relies on.
        expected: Expected,
    },
    /// Leaves records after the tail of a source to the follower.
    Follow {
        /// Log of the source.
        source: LogId,
        /// Tail of the source.
        after: Position,
    },
    /// Switches a source back to inline delivery. The follower must have delivered everything up to the tail.
    Rest {
        /// Log of the source.
        source: LogId,
        /// Expected version of the subscribers.
        version: u64,
        /// Tail of the source.
        at: Position,
    },
    /// Moves the cursor of the follower.
    Advance {
        /// Log of the source.
        source: LogId,
        /// Expected current cursor.
        was: Cursor,
        /// New cursor.
        now: Cursor,
        /// Version of the subscribers when the batch was computed. Sessions that joined later do not matter if they
        /// need not receive the delivered records.
        version: u64,
    },
    /// Restores a source from storage, without its subscribers.
    RestoreSource {
        /// Log of the source.
        source: LogId,
        /// Id of the source.
        id: StreamId,
        /// How records reach the subscribers.
        progress: Progress,
    },
    /// Restores a session from storage. Its sources must be restored before.
    RestoreSession {
        /// Log of the session.
        session: LogId,
        /// Active and ended subscriptions.
        subscriptions: Vec<Subscription>,
    },
}

/// Whether a session exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionIs {
    /// The commit creates the session.
    New,
    /// The session exists.
    Existing,
}

/// Delivery mode of a source that a commit relies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Records are delivered inline, and the subscribers have this version.
    Inline {
        /// Version of the subscribers.
        version: u64,
    },
    /// The follower delivers the records.
    Following,
    /// The source has no subscribers.
    Nobody,
}

/// Reason for which the table refuses a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// The streams table refused its change.
    #[error(transparent)]
    Streams(#[from] tidings_streams::table::Declined),
    /// The state has changed since the caller read it.
    #[error("somebody else changed it")]
    Moved,
    /// The source is itself a session.
    #[error("a session cannot be subscribed to")]
    SourceIsSession,
    /// The session has reached its limit of subscriptions.
    #[error("a session subscribes to at most {} streams", limits::SOURCES_PER_SESSION)]
    TooManySources,
    /// The session has too many ended subscriptions whose records are still kept.
    #[error(
        "the session has left more than {} streams whose messages in envelopes are still kept",
        limits::LEFT_PER_SESSION
    )]
    TooManyLeft,
    /// The envelope setting of the subscription was changed too often.
    #[error(
        "`envelope` was changed {} times for this stream; what was delivered keeps its form, so it cannot be changed again",
        limits::ENVELOPE_CHANGES
    )]
    TooManyEnvelopeChanges,
    /// The source has reached its limit of subscribers.
    #[error("a stream has at most {} subscribers", limits::SUBSCRIBERS_PER_SOURCE)]
    TooManySubscribers,
}

impl log::Change for Change {
    type Refusal = Declined;
}

/// Row of the table, with its log.
#[derive(Clone, Debug)]
pub enum Row {
    /// Row of a source.
    Source(LogId, Arc<Source>),
    /// Row of a session.
    Session(LogId, Arc<Session>),
}

impl Row {
    /// The change that restores the row. Sources must be restored before the sessions that subscribe to them.
    pub fn restored(self) -> Change {
        match self {
            Self::Source(source, row) => {
                Change::RestoreSource { source, id: row.id.clone(), progress: row.progress.clone() }
            }
            Self::Session(session, row) => {
                Change::RestoreSession { session, subscriptions: row.subscriptions.clone() }
            }
        }
    }
}

/// All sessions and sources, in memory.
#[derive(Debug, Default)]
pub struct Table {
    sessions: SnapshotMap<LogId, Arc<Session>>,
    sources: SnapshotMap<LogId, Arc<Source>>,
    following: BTreeSet<LogId>,
    /// Sources that have ended, with the sessions whose rows may still list them as active. Lookups hide such
    /// subscriptions, and the rows are updated a few at a time.
    ended: BTreeMap<LogId, Targets>,
    /// Lifetimes of active session streams, including expired ones that have not ended yet.
    expiries: HashMap<LogId, Lifetime, LogHash>,
    /// The same sessions ordered by expiry.
    due: BTreeSet<(Timestamp, LogId)>,
    /// Last version assigned to the subscribers of any source. A version is not reused while the process runs, so that
    /// a row that is removed and created again cannot be mistaken for the old one.
    versions: u64,
}

/// Expiry and key of a session's stream.
#[derive(Clone, Debug)]
struct Lifetime {
    key: StreamKey,
    expires_at: Timestamp,
}

/// Number of subscribers up to which checking each of them is cheaper than scanning all expired sessions.
const FEW_TARGETS: usize = 1024;

impl Table {
    /// See [`Store::source`].
    pub fn source(&self, log: LogId) -> Option<&Arc<Source>> {
        self.sources.get(&log)
    }

    /// See [`Store::session`].
    pub fn session(&self, log: LogId) -> Option<Arc<Session>> {
        let row = self.sessions.get(&log)?;
        if !row.subscriptions().any(|subscription| self.ended.contains_key(&subscription.source)) {
            return Some(row.clone());
        }
        let mut row = Session::clone(row);
        row.leave(&self.ended);
        Some(Arc::new(row))
    }

    /// See [`Store::lapsed`].
    pub fn lapsed(&self, source: LogId, now: Timestamp, limit: usize) -> Vec<(LogId, StreamKey)> {
        let (Some(source), Some((first, _))) = (self.sources.get(&source), self.due.first()) else {
            return Vec::new();
        };
        if *first > now {
            return Vec::new();
        }
        let lapsed = |log: LogId| {
            let lifetime = self.expiries.get(&log).filter(|lifetime| lifetime.expires_at <= now)?;
            Some((log, lifetime.key.clone()))
        };
        if source.targets.len() <= FEW_TARGETS {
            return source.targets.iter().filter_map(lapsed).take(limit).collect();
        }
        let due = self.due.iter().take_while(|(at, _)| *at <= now).map(|(_, log)| *log);
        due.filter(|log| source.targets.contains(*log)).filter_map(lapsed).take(limit).collect()
    }

    /// Number of session rows that may still list an ended source.
    pub fn attached(&self) -> usize {
        self.ended.values().map(Targets::len).sum()
    }

    /// Sources whose records are delivered by the follower.
    pub fn following(&self) -> impl Iterator<Item = LogId> + '_ {
        self.following.iter().copied()
    }

    /// See [`Store::behind`]. `status` returns the status of a log at the same moment.
    pub fn behind(&self, status: &dyn Fn(LogId) -> Option<Status>) -> Vec<LogId> {
        let is_behind = |log: &LogId| match self.sources.get(log).map(|row| &row.progress) {
            Some(Progress::Following { cursor, .. }) => {
                status(*log).is_some_and(|status| status.tail > cursor.done)
            }
            Some(Progress::Inline) | None => false,
        };
        self.following().filter(is_behind).collect()
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there are no sessions.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Changes that rebuild this table from an empty one.
    pub fn written(&self) -> Vec<Change> {
        let sources = self.sources.iter().map(|(&log, row)| Row::Source(log, row.clone()));
        let sessions = self.sessions.iter().map(|(&log, row)| Row::Session(log, row.clone()));
        sources.chain(sessions).map(Row::restored).collect()
    }

    fn set_expiry(&mut self, session: LogId, lifetime: Option<Lifetime>) {
        if let Some(before) = self.expiries.remove(&session) {
            self.due.remove(&(before.expires_at, session));
        }
        if let Some(lifetime) = lifetime {
            self.due.insert((lifetime.expires_at, session));
            self.expiries.insert(session, lifetime);
        }
    }

    /// Ends all subscriptions of a session.
    fn silence(&mut self, session: LogId) {
        let Some(row) = self.sessions.get(&session) else { return };
        let sources: Vec<_> = row.subscriptions().map(|subscription| subscription.source).collect();
        for source in sources {
            self.unsubscribe(session, source);
        }
    }

    fn end_source(&mut self, source: LogId) {
        let Some(row) = self.sources.remove(&source) else { return };
        self.following.remove(&source);
        // There may be a million subscribers, and this runs under the store's lock, so their rows are updated later.
        self.ended.insert(source, row.targets.clone());
        self.detach(limits::DETACHED_PER_CHANGE);
    }

    /// Ends subscriptions to an ended source in the rows of up to `most` sessions.
    fn detach(&mut self, most: usize) {
        let Some(mut first) = self.ended.first_entry() else { return };
        let source = *first.key();
        let sessions = first.get_mut().pop(most);
        if first.get().is_empty() {
            first.remove();
        }
        for session in sessions {
            if let Some(row) = self.sessions.get_mut(&session) {
                Arc::make_mut(row).end(source);
            }
        }
    }

    fn unsubscribe(&mut self, session: LogId, source: LogId) {
        if let Some(row) = self.sessions.get_mut(&session) {
            Arc::make_mut(row).end(source);
        }
        let Some(row) = self.sources.get_mut(&source) else { return };
        let row = Arc::make_mut(row);
        if row.targets.remove(session) {
            self.versions += 1;
            row.version = self.versions;
        }
        if let Progress::Following { late, .. } = &mut row.progress {
            late.remove(&session);
        }
        if row.targets.is_empty() {
            self.sources.remove(&source);
            self.following.remove(&source);
        }
    }

    /// The row of a source, created if it does not exist. A new row starts with the follower, which delivers records
    /// that are appended before any publisher sees the row.
    fn source_row(&mut self, source: LogId, id: StreamId, since: Position) -> &mut Source {
        let following = &mut self.following;
        let row = self.sources.or_insert_with(source, || {
            following.insert(source);
            let progress = Progress::following(since);
            Arc::new(Source { id, version: 0, joined: 0, targets: Targets::default(), progress })
        });
        Arc::make_mut(row)
    }

    fn enter(&mut self, session: LogId, source: LogId, id: StreamId, since: Position) -> StreamId {
        self.versions += 1;
        let version = self.versions;
        let row = self.source_row(source, id, since);
        if row.targets.insert(session) {
            row.version = version;
            match &mut row.progress {
                Progress::Following { cursor, late } if since > cursor.done => {
                    late.insert(session, since);
                }
                Progress::Following { .. } => row.joined = version,
                Progress::Inline => {}
            }
        }
        // All subscriptions share one string.
        row.id.clone()
    }

    fn validate_subscribe(
        &self,
        session: LogId,
        is: SessionIs,
        request: &SubscriptionRequest,
    ) -> Result<(), Declined> {
        let source = request.source;
        if self.sessions.contains_key(&source) {
            return Err(Declined::SourceIsSession);
        }
        let known = self.session(session);
        if known.is_some() != (is == SessionIs::Existing) || self.sources.contains_key(&session) {
            return Err(Declined::Moved);
        }
        known.map_or(Ok(()), |known| known.validate(request))?;
        let full = |row: &Arc<Source>| {
            row.targets.len() >= limits::SUBSCRIBERS_PER_SOURCE && !row.targets.contains(session)
        };
        if self.sources.get(&source).is_some_and(full) { Err(Declined::TooManySubscribers) } else { Ok(()) }
    }

    fn validate_source(&self, source: LogId, holds: impl Fn(&Source) -> bool) -> Result<(), Declined> {
        let found = self.sources.get(&source);
        if found.is_some_and(|row| holds(row)) { Ok(()) } else { Err(Declined::Moved) }
    }

    fn set_progress(&mut self, source: LogId, progress: Progress) {
        let Some(row) = self.sources.get_mut(&source) else { return };
        match progress {
            Progress::Inline => self.following.remove(&source),
            Progress::Following { .. } => self.following.insert(source),
        };
        Arc::make_mut(row).progress = progress;
    }

    fn restore_session(&mut self, session: LogId, subscriptions: Vec<Subscription>) {
        let mut row = Session { subscriptions };
        let mut gone = Vec::new();
        for subscription in &mut row.subscriptions {
            match (subscription.state, self.sources.get_mut(&subscription.source)) {
                (SubscriptionState::Active, Some(row)) => {
                    Arc::make_mut(row).targets.insert(session);
                    subscription.id = row.id.clone();
                }
                // The source had ended, but this row had not been updated yet when it was stored.
                (SubscriptionState::Active, None) => gone.push(subscription.source),
                (SubscriptionState::Ended { .. }, _) => {}
            }
        }
        gone.into_iter().for_each(|source| row.end(source));
        self.sessions.insert(session, Arc::new(row));
    }
}

impl StandsOn<tidings_streams::Table> for Table {
    fn base_change(change: Change) -> Result<tidings_streams::Change, Change> {
        match change {
            Change::Streams(change) => Ok(change),
            change => Err(change),
        }
    }

    fn base_refusal(refusal: tidings_streams::table::Declined) -> Declined {
        Declined::Streams(refusal)
    }

    /// Removes the rows of a log when its stream ends, and tracks the expiry of sessions.
    fn on_base_change(&mut self, change: &tidings_streams::Change) {
        use tidings_streams::Change as Stream;
        self.detach(limits::DETACHED_PER_CHANGE);
        match change {
            Stream::Remove { log, .. } => {
                self.end_source(*log);
                self.silence(*log);
                self.sessions.remove(log);
                self.set_expiry(*log, None);
            }
            // Forks of the stream still show the records it received, so its row is kept.
            Stream::Retire { log, .. } => {
                self.end_source(*log);
                self.silence(*log);
                self.set_expiry(*log, None);
            }
            Stream::Create { key, stream } | Stream::Restore { key, stream } => {
                let is_session = stream.owner == Owner::Session && stream.state == StreamState::Active;
                if let Some(expires_at) = stream.expires_at.filter(|_| is_session) {
                    self.set_expiry(stream.log, Some(Lifetime { key: key.clone(), expires_at }));
                }
            }
            Stream::Renew { log, expires_at, .. } => {
                if let Some(lifetime) = self.expiries.get(log) {
                    let expires_at = lifetime.expires_at.max(*expires_at);
                    let lifetime = Lifetime { key: lifetime.key.clone(), expires_at };
                    self.set_expiry(*log, Some(lifetime));
                }
            }
            Stream::Expect { .. } | Stream::Trim { .. } => {}
        }
    }
}

impl Snapshots for Table {
    type Row = Row;

    fn begin_snapshot(&mut self) {
        self.sources.begin_snapshot();
        self.sessions.begin_snapshot();
    }

    fn next_rows(&mut self, most: usize) -> Option<Vec<Row>> {
        if let Some(rows) = self.sources.next_rows(most) {
            return Some(rows.into_iter().map(|(log, row)| Row::Source(log, row)).collect());
        }
        let rows = self.sessions.next_rows(most)?;
        Some(rows.into_iter().map(|(log, row)| Row::Session(log, row)).collect())
    }

    fn end_snapshot(&mut self) {
        self.sources.end_snapshot();
        self.sessions.end_snapshot();
    }

    fn restore(row: Row, change: &mut dyn FnMut(Change)) {
        change(row.restored());
    }
}

impl StateMachine for Table {
    type Change = Change;

    fn validate(&self, change: &Change) -> Result<(), Declined> {
        match change {
            Change::Streams(_) | Change::Unsubscribe { .. } => Ok(()),
            Change::RestoreSource { .. } | Change::RestoreSession { .. } => Ok(()),
            &Change::Subscribe { session, session_is, source, at, since, envelope, unreadable, .. } => self
                .validate_subscribe(
                    session,
                    session_is,
                    &SubscriptionRequest { source, at, since, envelope, unreadable },
                ),
            Change::Expect { source, expected: Expected::Nobody } => {
                if self.sources.contains_key(source) {
                    Err(Declined::Moved)
                } else {
                    Ok(())
                }
            }
            Change::Expect { source, expected } => self.validate_source(*source, |row| match *expected {
                Expected::Inline { version } => row.progress == Progress::Inline && row.version == version,
                Expected::Following => row.progress != Progress::Inline,
                Expected::Nobody => false,
            }),
            Change::Follow { source, .. } => {
                self.validate_source(*source, |row| row.progress == Progress::Inline)
            }
            Change::Rest { source, version, at } => {
                self.validate_source(*source, |row| match &row.progress {
                    Progress::Inline => false,
                    Progress::Following { cursor, .. } => {
                        *cursor == Cursor::at_rest(*at) && row.version == *version
                    }
                })
            }
            Change::Advance { source, was, now, version } => {
                self.validate_source(*source, |row| match &row.progress {
                    Progress::Inline => false,
                    Progress::Following { cursor, late } => {
                        // A partly delivered batch contains only records from before any session that joined since.
                        let misses_nobody = !was.is_at_rest()
                            || (row.joined <= *version && late.values().all(|since| *since >= now.through));
                        cursor == was && now.through >= was.through && misses_nobody
                    }
                })
            }
        }
    }

    fn apply(&mut self, change: Change) {
        self.detach(limits::DETACHED_PER_CHANGE);
        match change {
            Change::Streams(_) | Change::Expect { .. } => {}
            Change::Subscribe { session, source, id, at, since, envelope, unreadable, .. } => {
                let id = self.enter(session, source, id, since);
                let row = Arc::make_mut(self.sessions.or_insert_with(session, Arc::default));
                row.leave(&self.ended);
                row.tidy(at, unreadable);
                let place = match row.find(source) {
                    Ok(place) => place,
                    Err(place) => {
                        let state = SubscriptionState::Ended { by: None };
                        let fresh = Subscription { source, id: id.clone(), at, state, envelopes: Vec::new() };
                        row.subscriptions.insert(place, fresh);
                        place
                    }
                };
                let subscription = &mut row.subscriptions[place];
                if let Some(envelope) = subscription.form(envelope) {
                    subscription.envelopes = subscription.shown(envelope, since);
                }
                if subscription.state != SubscriptionState::Active {
                    subscription.at = at;
                }
                (subscription.state, subscription.id) = (SubscriptionState::Active, id);
            }
            Change::Unsubscribe { session, source } => self.unsubscribe(session, source),
            Change::Follow { source, after } => self.set_progress(source, Progress::following(after)),
            Change::Rest { source, .. } => self.set_progress(source, Progress::Inline),
            Change::Advance { source, now, .. } => {
                let Some(row) = self.sources.get_mut(&source) else { return };
                if let Progress::Following { cursor, late } = &mut Arc::make_mut(row).progress {
                    *cursor = now;
                    late.retain(|_, since| *since > now.done);
                }
            }
            Change::RestoreSource { source, id, progress } => {
                self.source_row(source, id, Position::ZERO);
                self.set_progress(source, progress);
            }
            Change::RestoreSession { session, subscriptions } => self.restore_session(session, subscriptions),
        }
    }
}

impl<S: ReadsTable<Table>> Store for S {
    fn source(&self, log: LogId) -> BoxFuture<'_, Result<Option<Arc<Source>>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.source(log).cloned()))).boxed()
    }

    fn session(&self, log: LogId) -> BoxFuture<'_, Result<Option<Arc<Session>>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.session(log)))).boxed()
    }

    fn behind(&self) -> BoxFuture<'_, Result<Vec<LogId>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, status| table.behind(status)))).boxed()
    }

    fn lapsed(
        &self,
        source: LogId,
        now: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(LogId, StreamKey)>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.lapsed(source, now, limit)))).boxed()
    }
}

#[cfg(test)]
mod tests;
