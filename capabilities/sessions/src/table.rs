//! What is stored of sessions beside their streams: who hears what, from both sides, and how far fan-out has come.
//!
//! A log is a session's, a source's or neither. A source's row has its subscribers as a list of their logs and says how
//! its records reach them ([`Progress`]); a session's row has what it subscribes to. Both rows of a subscription are
//! changed by one [`Change`], so that neither is ever seen without the other. When a stream ends, what is known of its log
//! ends with it: [`StandsOn::on_base_change`] is called with each change of streams.

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

/// What sessions need of a store beside its logs.
pub trait Store: Commits<Table> {
    /// What is known of a log as a source.
    fn source(&self, log: LogId) -> BoxFuture<'_, Result<Option<Arc<Source>>, StoreError>>;

    /// What is known of a log as that of a session.
    fn session(&self, log: LogId) -> BoxFuture<'_, Result<Option<Arc<Session>>, StoreError>>;

    /// Sources of which the follower has something left to deliver, as they are at one moment.
    fn behind(&self) -> BoxFuture<'_, Result<Vec<LogId>, StoreError>>;

    /// Subscribers of a source whose time was over at the moment and that have not ended yet. At most `limit` of them.
    fn lapsed(
        &self,
        source: LogId,
        now: Timestamp,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(LogId, StreamKey)>, StoreError>>;
}

/// A session: what it hears, and what it has heard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// In the order of their sources.
    subscriptions: Vec<Subscription>,
}

impl Session {
    /// What it hears now.
    pub fn subscriptions(&self) -> impl Iterator<Item = &Subscription> {
        self.subscriptions.iter().filter(|subscription| subscription.state == Hearing::Active)
    }

    /// What it hears, or has heard, of a source.
    pub fn of(&self, source: LogId) -> Option<&Subscription> {
        self.find(source).ok().map(|at| &self.subscriptions[at])
    }

    /// What there is to store of it.
    pub fn rows(&self) -> &[Subscription] {
        &self.subscriptions
    }

    fn find(&self, source: LogId) -> Result<usize, usize> {
        self.subscriptions.binary_search_by_key(&source, |subscription| subscription.source)
    }

    /// Ends a subscription that has not ended. How its records are shown is kept as long as they may be read.
    fn end(&mut self, source: LogId) {
        let Ok(at) = self.find(source) else { return };
        let row = &mut self.subscriptions[at];
        match row.state {
            Hearing::Ended { .. } => {}
            Hearing::Active if row.envelopes.is_empty() => {
                self.subscriptions.remove(at);
            }
            Hearing::Active => row.state = Hearing::Ended { by: None },
        }
    }

    /// Ends subscriptions to sources that have ended.
    fn leave(&mut self, ended: &BTreeMap<LogId, Targets>) {
        let gone = self.subscriptions().map(|one| one.source).filter(|source| ended.contains_key(source));
        for source in gone.collect::<Vec<_>>() {
            self.end(source);
        }
    }

    /// Forgets those whose records cannot be read any more, and notes that the others had ended by now.
    fn tidy(&mut self, now: Timestamp, unreadable: Option<Timestamp>) {
        self.subscriptions.retain_mut(|row| {
            let stays = row.is_needed(now, unreadable);
            if let Hearing::Ended { by } = &mut row.state {
                by.get_or_insert(now);
            }
            stays
        });
    }

    /// Whether it may hear a source in this form from here on, without forgetting how anything is shown.
    fn validate(&self, wanted: &Wanted) -> Result<(), Declined> {
        let rows = || self.subscriptions.iter().filter(|row| row.is_needed(wanted.at, wanted.unreadable));
        let Some(row) = rows().find(|row| row.source == wanted.source) else {
            let active = rows().filter(|row| row.state == Hearing::Active).count();
            return match rows().count() {
                _ if active >= limits::SOURCES_PER_SESSION => Err(Declined::TooManySources),
                all if all >= limits::SOURCES_PER_SESSION + limits::LEFT_PER_SESSION => {
                    Err(Declined::TooManyLeft)
                }
                _ => Ok(()),
            };
        };
        if row.state != Hearing::Active && self.subscriptions().count() >= limits::SOURCES_PER_SESSION {
            return Err(Declined::TooManySources);
        }
        match row.form(wanted.envelope) {
            Some(envelope) if row.shown(envelope, wanted.since).len() > limits::ENVELOPE_CHANGES => {
                Err(Declined::TooManyEnvelopeChanges)
            }
            _ => Ok(()),
        }
    }
}

/// What a session asks of a source.
struct Wanted {
    source: LogId,
    at: Timestamp,
    since: Position,
    envelope: Option<bool>,
    unreadable: Option<Timestamp>,
}

/// What a session hears of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The source's log.
    pub source: LogId,
    /// The source's name.
    pub id: StreamId,
    /// Since when.
    pub at: Timestamp,
    /// Whether it still does.
    pub state: Hearing,
    /// After which positions of the source its records are shown in an envelope, and after which bare. Bare at first.
    pub envelopes: Vec<(Position, bool)>,
}

/// Whether a session still hears a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hearing {
    /// It does.
    Active,
    /// It did, and what it heard is to be shown as it was.
    Ended {
        /// It had ended by this moment, if somebody has looked since.
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

    /// Whether records that come now are.
    pub fn envelope(&self) -> bool {
        self.envelopes.last().is_some_and(|(_, envelope)| *envelope)
    }

    /// Whether it is needed: somebody hears the source, or what came from it can still be read.
    fn is_needed(&self, now: Timestamp, unreadable: Option<Timestamp>) -> bool {
        match self.state {
            Hearing::Active => true,
            Hearing::Ended { by } => unreadable.is_none_or(|unreadable| by.unwrap_or(now) > unreadable),
        }
    }

    /// The form that its records get when it is subscribed to once more; none if that changes nothing.
    fn form(&self, envelope: Option<bool>) -> Option<bool> {
        match self.state {
            Hearing::Active => envelope,
            Hearing::Ended { .. } => Some(envelope.unwrap_or(false)),
        }
    }

    /// Its envelopes when records after a position are shown so.
    fn shown(&self, envelope: bool, after: Position) -> Vec<(Position, bool)> {
        if self.envelope() == envelope {
            return self.envelopes.clone();
        }
        // Those after which nothing came do not matter any more.
        let earlier = self.envelopes.iter().filter(|(earlier, _)| *earlier < after);
        let mut envelopes: Vec<_> = earlier.copied().collect();
        if envelopes.last().is_some_and(|(_, last)| *last) != envelope {
            envelopes.push((after, envelope));
        }
        envelopes
    }
}

/// A stream that sessions hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name.
    pub id: StreamId,
    /// Another number whenever its subscribers are others.
    pub version: u64,
    /// The version of the last subscriber that hears what the follower has not delivered yet.
    joined: u64,
    /// The logs of its subscribers.
    pub targets: Targets,
    /// How its records reach them.
    pub progress: Progress,
}

/// How the records of a source reach its subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Each with the commit that appends it. There is nothing left to do for what is there.
    Inline,
    /// By the follower, which has come so far.
    Following {
        /// So far.
        cursor: Cursor,
        /// Subscribers that came when there were records still to be delivered, and after which they begin to hear.
        late: BTreeMap<LogId, Position>,
    },
}

impl Progress {
    fn following(done: Position) -> Self {
        Self::Following { cursor: Cursor::at_rest(done), late: BTreeMap::new() }
    }
}

/// How far the follower has come with a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Records up to this are delivered to all.
    pub done: Position,
    /// Those up to this are delivered to some:
    pub through: Position,
    /// to subscribers up to this log.
    pub reached: Option<LogId>,
}

impl Cursor {
    /// Nothing is delivered in part.
    pub fn at_rest(done: Position) -> Self {
        Self { done, through: done, reached: None }
    }

    /// Whether nothing is delivered in part.
    pub fn is_at_rest(&self) -> bool {
        self.reached.is_none()
    }
}

/// What can happen to sessions.
#[derive(Clone, Debug)]
pub enum Change {
    /// Something happens to streams in the same commit.
    Streams(tidings_streams::Change),
    /// A session hears a source from now on, or hears it in another shape.
    Subscribe {
        /// The session.
        session: LogId,
        /// Whether it is there already.
        session_is: Is,
        /// The source.
        source: LogId,
        /// The source's name.
        id: StreamId,
        /// Now.
        at: Timestamp,
        /// The source's tail.
        since: Position,
        /// Whether records are shown in an envelope; none leaves that as it is.
        envelope: Option<bool>,
        /// What the session got at this moment or before cannot be read any more; none when that is not known.
        unreadable: Option<Timestamp>,
    },
    /// A session does not hear a source any more. Changes nothing if it did not.
    Unsubscribe {
        /// The session.
        session: LogId,
        /// The source.
        source: LogId,
    },
    /// Nothing happens; but the rest of the commit is only made if records of the source reach its subscribers so.
    Expect {
        /// The source.
        source: LogId,
        /// So.
        expected: Expected,
    },
    /// Records of a source after this position, its tail, are left to the follower.
    Follow {
        /// The source.
        source: LogId,
        /// The tail.
        after: Position,
    },
    /// The follower has delivered everything up to this position, the tail, and has nothing more to do.
    Rest {
        /// The source.
        source: LogId,
        /// Its subscribers as they were.
        version: u64,
        /// The tail.
        at: Position,
    },
    /// The follower has come further.
    Advance {
        /// With this source.
        source: LogId,
        /// It was here.
        was: Cursor,
        /// It is here.
        now: Cursor,
        /// Its subscribers as they were. Others may have come since, if they do not have to hear what was delivered.
        version: u64,
    },
    /// A source as it was written down, without its subscribers.
    RestoreSource {
        /// Its log.
        source: LogId,
        /// Its name.
        id: StreamId,
        /// How its records reach its subscribers.
        progress: Progress,
    },
    /// A session as it was written down. Its sources are there.
    RestoreSession {
        /// Its log.
        session: LogId,
        /// What it subscribes to.
        subscriptions: Vec<Subscription>,
    },
}

/// Whether a session is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Is {
    /// It begins with the commit.
    New,
    /// It is.
    There,
}

/// How records of a source reach its subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// With the commit that appends them, and the subscribers are those of this version.
    Inline {
        /// The version.
        version: u64,
    },
    /// By the follower.
    Following,
    /// Not at all: nobody subscribes to it.
    Nobody,
}

/// Why the table refuses a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// Streams refuse theirs.
    #[error(transparent)]
    Streams(#[from] tidings_streams::table::Declined),
    /// It is not as it was when somebody looked.
    #[error("somebody else changed it")]
    Moved,
    /// The source is itself a session.
    #[error("a session cannot be subscribed to")]
    SourceIsSession,
    /// The session hears as much as it may.
    #[error("a session subscribes to at most {} streams", limits::SOURCES_PER_SESSION)]
    TooManySources,
    /// The session has left so many streams whose records are still kept that it may not subscribe to another.
    #[error(
        "the session has left more than {} streams whose messages in envelopes are still kept",
        limits::LEFT_PER_SESSION
    )]
    TooManyLeft,
    /// The form of a subscription was changed as often as it may be.
    #[error(
        "`envelope` was changed {} times for this stream; what was delivered keeps its form, so it cannot be changed again",
        limits::ENVELOPE_CHANGES
    )]
    TooManyEnvelopeChanges,
    /// The source has as many subscribers as it may.
    #[error("a stream has at most {} subscribers", limits::SUBSCRIBERS_PER_SOURCE)]
    TooManySubscribers,
}

impl log::Change for Change {
    type Refusal = Declined;
}

/// A row of the table, by its log.
#[derive(Clone, Debug)]
pub enum Row {
    /// A source.
    Source(LogId, Arc<Source>),
    /// A session.
    Session(LogId, Arc<Session>),
}

impl Row {
    /// The change that makes the row. Sources come before the sessions that hear them.
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
    /// Sources that have ended, and sessions whose rows may still say that they hear them. Whoever looks at a row is shown
    /// that they do not; the rows are changed a few at a time.
    ended: BTreeMap<LogId, Targets>,
    /// Streams of sessions that can be used, or have expired and are still there.
    expiries: HashMap<LogId, Lifetime, LogHash>,
    /// The same by when they expire.
    due: BTreeSet<(Timestamp, LogId)>,
    /// The last version of the subscribers of any source. One is never given twice while the process lives, so that a row
    /// that goes and comes again cannot pass for what it was.
    versions: u64,
}

/// When a session expires, and how its stream is called.
#[derive(Clone, Debug)]
struct Lifetime {
    key: StreamKey,
    expires_at: Timestamp,
}

/// Subscribers of a source up to which it is cheaper to look at each of them than at all sessions that have expired.
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

    /// Sessions whose rows may still name a source that has ended.
    pub fn attached(&self) -> usize {
        self.ended.values().map(Targets::len).sum()
    }

    /// Sources whose records are delivered by the follower.
    pub fn following(&self) -> impl Iterator<Item = LogId> + '_ {
        self.following.iter().copied()
    }

    /// See [`Store::behind`]; `status` is that of a log at the same moment.
    pub fn behind(&self, status: &dyn Fn(LogId) -> Option<Status>) -> Vec<LogId> {
        let is_behind = |log: &LogId| match self.sources.get(log).map(|row| &row.progress) {
            Some(Progress::Following { cursor, .. }) => {
                status(*log).is_some_and(|status| status.tail > cursor.done)
            }
            Some(Progress::Inline) | None => false,
        };
        self.following().filter(is_behind).collect()
    }

    /// How many sessions there are.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Changes that make the same table from an empty one.
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
        // Who hears it may be a million, and nobody reads or writes while a change is made.
        self.ended.insert(source, row.targets.clone());
        self.detach(limits::DETACHED_PER_CHANGE);
    }

    /// Takes up to so many sessions off sources that have ended.
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

    /// The row of a source, new if there is none. What comes to a new one while nobody has looked at it yet is found by
    /// the follower.
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
        // One text for all who hear it.
        row.id.clone()
    }

    fn validate_subscribe(&self, session: LogId, is: Is, wanted: &Wanted) -> Result<(), Declined> {
        let source = wanted.source;
        if self.sessions.contains_key(&source) {
            return Err(Declined::SourceIsSession);
        }
        let known = self.session(session);
        if known.is_some() != (is == Is::There) || self.sources.contains_key(&session) {
            return Err(Declined::Moved);
        }
        known.map_or(Ok(()), |known| known.validate(wanted))?;
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
                (Hearing::Active, Some(row)) => {
                    Arc::make_mut(row).targets.insert(session);
                    subscription.id = row.id.clone();
                }
                // The source had ended, and the row had not been changed yet when it was written down.
                (Hearing::Active, None) => gone.push(subscription.source),
                (Hearing::Ended { .. }, _) => {}
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

    /// Nothing is known of a log whose stream has ended.
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
            // Its forks go on showing what it has heard.
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
                .validate_subscribe(session, session_is, &Wanted { source, at, since, envelope, unreadable }),
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
                        // A stretch that has begun was there before anybody who has come since.
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
                        let state = Hearing::Ended { by: None };
                        let fresh = Subscription { source, id: id.clone(), at, state, envelopes: Vec::new() };
                        row.subscriptions.insert(place, fresh);
                        place
                    }
                };
                let subscription = &mut row.subscriptions[place];
                if let Some(envelope) = subscription.form(envelope) {
                    subscription.envelopes = subscription.shown(envelope, since);
                }
                if subscription.state != Hearing::Active {
                    subscription.at = at;
                }
                (subscription.state, subscription.id) = (Hearing::Active, id);
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
