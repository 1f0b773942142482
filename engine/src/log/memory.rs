//! A store in memory, for tests and for trying things out. Nothing survives the process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_model::{CommitNumber, Era, LogId, Position, Timestamp};
use tokio::sync::OwnedRwLockWriteGuard;

use super::{
    Append, Boundary, Change, Commit, CommitError, Commits, Committed, Judged, LogState, Logs, Of, Operation,
    Origin, Outcome, Page, ReadError, Record, Refer, Referred, Refusal, Span, Status, StoreError, Tables,
};
use crate::{Bus, Clock};

/// The store. Clones are the same store.
pub struct Memory<T: Tables> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    content: RwLock<Content<T>>,
    last_log: AtomicU64,
    bus: Bus,
    clock: Arc<dyn Clock>,
    /// Stands for the disk: whoever holds it for writing keeps commits from becoming durable.
    disk: Arc<tokio::sync::RwLock<()>>,
}

struct Content<T> {
    last_commit: CommitNumber,
    logs: HashMap<LogId, Log>,
    ended: HashSet<LogId>,
    tables: T,
}

#[derive(Default)]
struct Log {
    state: LogState,
    records: BTreeMap<Position, Stored>,
}

#[derive(Clone)]
struct Stored {
    commit: CommitNumber,
    at: Timestamp,
    payload: Bytes,
    origin: Option<Origin>,
    boundary: Boundary,
}

impl<T: Tables> Clone for Memory<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<T: Tables> Memory<T> {
    /// An empty store that wakes listeners on the bus.
    pub fn new(bus: Bus, clock: Arc<dyn Clock>) -> Self {
        let content = Content {
            last_commit: CommitNumber::new(Era::default(), 0),
            logs: HashMap::new(),
            ended: HashSet::new(),
            tables: T::default(),
        };
        Self {
            shared: Arc::new(Shared {
                content: RwLock::new(content),
                last_log: AtomicU64::new(0),
                bus,
                clock,
                disk: Arc::default(),
            }),
        }
    }

    /// Looks at the tables and, with the function given to `look`, at logs, both at one moment.
    pub fn look<R>(&self, look: impl FnOnce(&T, &dyn Fn(LogId) -> Option<Status>) -> R) -> R {
        let content = self.content();
        look(&content.tables, &|log| content.logs.get(&log).map(|log| log.state.status()))
    }

    /// The bus on which the store wakes listeners.
    pub fn bus(&self) -> &Bus {
        &self.shared.bus
    }

    /// Keeps commits from becoming durable until the guard is dropped.
    pub async fn hold(&self) -> OwnedRwLockWriteGuard<()> {
        self.shared.disk.clone().write_owned().await
    }

    fn content(&self) -> RwLockReadGuard<'_, Content<T>> {
        self.shared.content.read().expect("nobody panics while writing")
    }

    fn commit_now(&self, commit: Commit<T::Change>) -> Result<Committed, CommitError<Refused<T>>> {
        let now = self.shared.clock.now();
        let mut content = self.shared.content.write().expect("nobody panics while writing");
        for change in &commit.changes {
            content.tables.judge(change).map_err(CommitError::Declined)?;
        }
        let plan = Plan::judge(&content, &commit.operations, now)?;
        let touched = plan.touched();
        let number = plan.number;
        let outcomes = content.make(plan);
        for change in commit.changes {
            content.tables.apply(change);
        }
        drop(content);
        for log in touched {
            self.shared.bus.wake(log);
        }
        Ok(Committed { number, outcomes })
    }
}

type Refused<T> = <<T as Tables>::Change as Change>::Refusal;

impl<T: Tables> Logs for Memory<T> {
    fn reserve(&self) -> BoxFuture<'_, Result<LogId, StoreError>> {
        let number = self.shared.last_log.fetch_add(1, Ordering::Relaxed) + 1;
        std::future::ready(Ok(LogId::new(number))).boxed()
    }

    fn status(&self, log: LogId) -> BoxFuture<'_, Result<Status, ReadError>> {
        let status = self.content().logs.get(&log).map(|log| log.state.status());
        std::future::ready(status.ok_or(ReadError::NoSuchLog(log))).boxed()
    }

    fn read(&self, log: LogId, span: Span) -> BoxFuture<'_, Result<Page, ReadError>> {
        let page = match self.content().logs.get(&log) {
            Some(log) => log.read(span),
            None => Err(ReadError::NoSuchLog(log)),
        };
        std::future::ready(page).boxed()
    }
}

impl<T: Tables> Commits<T::Change> for Memory<T> {
    fn commit(&self, commit: Commit<T::Change>) -> BoxFuture<'_, Result<Committed, CommitError<Refused<T>>>> {
        async move {
            let _durable = self.shared.disk.read().await;
            self.commit_now(commit)
        }
        .boxed()
    }
}

impl Log {
    fn read(&self, span: Span) -> Result<Page, ReadError> {
        let status = self.state.status();
        if span.after < status.floor && !span.after.is_zero() {
            return Err(ReadError::Trimmed { floor: status.floor, tail: status.tail });
        }
        let mut records = Vec::new();
        let mut bytes = 0;
        if span.after < span.through {
            let after = (std::ops::Bound::Excluded(span.after), std::ops::Bound::Included(span.through));
            for (&position, stored) in self.records.range(after) {
                bytes += stored.payload.len();
                if !records.is_empty() && (bytes > span.bytes || records.len() >= span.records) {
                    break;
                }
                records.push(stored.clone().at(position));
            }
        }
        Ok(Page { records, status })
    }
}

impl Stored {
    fn at(self, position: Position) -> Record {
        let Self { commit, at, payload, origin, boundary } = self;
        Record { position, commit, at, payload, origin, boundary }
    }
}

impl<T> Content<T> {
    /// Makes a plan that was judged good; nothing can go wrong from here on.
    fn make(&mut self, plan: Plan) -> Vec<Outcome> {
        self.last_commit = plan.number;
        for log in plan.ended {
            self.logs.remove(&log);
            self.ended.insert(log);
        }
        for (id, state) in plan.states {
            let log = self.logs.entry(id).or_default();
            let floor = state.status().floor;
            if floor > log.state.status().floor {
                log.records = log.records.split_off(&Position::new(floor.get() + 1));
            }
            log.state = state;
        }
        for (log, position, stored) in plan.records {
            if let Some(log) = self.logs.get_mut(&log)
                && position > log.state.status().floor
            {
                log.records.insert(position, stored);
            }
        }
        plan.outcomes
    }
}

/// What a commit will do, worked out on copies of the states it touches.
struct Plan {
    number: CommitNumber,
    now: Timestamp,
    states: BTreeMap<LogId, LogState>,
    ended: Vec<LogId>,
    records: Vec<(LogId, Position, Stored)>,
    outcomes: Vec<Outcome>,
    /// Where in `records` the records of each operation begin and end.
    spans: Vec<std::ops::Range<usize>>,
}

impl Plan {
    fn judge<T>(content: &Content<T>, operations: &[Operation], now: Timestamp) -> Result<Self, Refusal> {
        let mut plan = Self {
            number: content.last_commit.next(),
            now,
            states: BTreeMap::new(),
            ended: Vec::new(),
            records: Vec::new(),
            outcomes: Vec::new(),
            spans: Vec::new(),
        };
        for operation in operations {
            let start = plan.records.len();
            let outcome = match operation {
                Operation::Create { log, tail } => plan.create(content, *log, *tail)?,
                Operation::Append(append) => plan.append(content, append)?,
                Operation::Refer(refer) => plan.refer(content, refer)?,
                Operation::Trim { log, floor } => {
                    plan.state(content, *log)?.trim(*floor);
                    Outcome::Done
                }
                Operation::Delete(log) => {
                    plan.state(content, *log)?;
                    plan.states.remove(log);
                    plan.ended.push(*log);
                    Outcome::Done
                }
            };
            plan.outcomes.push(outcome);
            plan.spans.push(start..plan.records.len());
        }
        Ok(plan)
    }

    fn touched(&self) -> Vec<LogId> {
        self.states.keys().chain(&self.ended).copied().collect()
    }

    /// The state of a log as this commit has left it so far.
    fn state<T>(&mut self, content: &Content<T>, log: LogId) -> Result<&mut LogState, Refusal> {
        if self.ended.contains(&log) {
            return Err(Refusal::NoSuchLog(log));
        }
        match self.states.entry(log) {
            std::collections::btree_map::Entry::Occupied(known) => Ok(known.into_mut()),
            std::collections::btree_map::Entry::Vacant(place) => {
                let stored = content.logs.get(&log).ok_or(Refusal::NoSuchLog(log))?;
                Ok(place.insert(stored.state.clone()))
            }
        }
    }

    fn create<T>(&mut self, content: &Content<T>, log: LogId, tail: Position) -> Result<Outcome, Refusal> {
        let known = content.logs.contains_key(&log) || content.ended.contains(&log);
        if known || self.ended.contains(&log) || self.states.insert(log, LogState::beginning(tail)).is_some()
        {
            return Err(Refusal::LogExists(log));
        }
        Ok(Outcome::Done)
    }

    fn append<T>(&mut self, content: &Content<T>, append: &Append) -> Result<Outcome, Refusal> {
        let (number, now) = (self.number, self.now);
        let state = self.state(content, append.log)?;
        let judged = state.judge(append, number, now)?;
        let appended = state.apply(append, &judged, now);
        self.keep(append, judged);
        Ok(Outcome::Appended(appended))
    }

    fn keep(&mut self, append: &Append, judged: Judged) {
        let count = judged.positions.len();
        for (n, (position, payload)) in judged.positions.into_iter().zip(&append.payloads).enumerate() {
            let boundary = if n + 1 == count { Boundary::Last } else { Boundary::Inside };
            let (commit, at) = (self.number, self.now);
            let stored = Stored { commit, at, payload: payload.clone(), origin: None, boundary };
            self.records.push((append.log, position, stored));
        }
    }

    fn refer<T>(&mut self, content: &Content<T>, refer: &Refer) -> Result<Outcome, Refusal> {
        let sources = self.sources(content, &refer.of)?;
        let mut referred = Referred::default();
        for &target in refer.into.iter() {
            let number = self.number;
            let Ok(state) = self.state(content, target) else {
                referred.missing.push(target);
                continue;
            };
            if state.status().closed {
                referred.closed.push(target);
                continue;
            }
            let mut positions = Vec::with_capacity(sources.len());
            for _ in &sources {
                let position = state.next_position(number);
                if position <= state.status().tail {
                    return Err(Refusal::PositionNotAbove { tail: state.status().tail });
                }
                state.advance(position);
                positions.push(position);
            }
            for (position, source) in positions.into_iter().zip(&sources) {
                self.records.push((target, position, source.clone()));
            }
        }
        Ok(Outcome::Referred(referred))
    }

    /// The records to refer to, as they will stand in each target.
    fn sources<T>(&self, content: &Content<T>, of: &Of) -> Result<Vec<Stored>, Refusal> {
        let reference = |log: LogId, position: Position, source: &Stored| Stored {
            commit: self.number,
            at: self.now,
            // A reference to a reference leads to the record itself.
            origin: Some(source.origin.unwrap_or(Origin { log, position })),
            ..source.clone()
        };
        match of {
            Of::Append(operation) => {
                let span = self.spans.get(*operation).cloned();
                let made =
                    &self.records[span.ok_or(Refusal::Malformed("a reference to an earlier append"))?];
                Ok(made.iter().map(|(log, position, stored)| reference(*log, *position, stored)).collect())
            }
            Of::Stored { log, after, through } => {
                let source = content.logs.get(log).ok_or(Refusal::NoSuchLog(*log))?;
                let span = Span { after: *after, through: *through, bytes: usize::MAX, records: usize::MAX };
                let page = source.read(Span { after: span.after.max(source.state.status().floor), ..span });
                let records = page.map_err(|_| Refusal::Malformed("a span above the floor"))?.records;
                Ok(records
                    .into_iter()
                    .map(|record| reference(*log, record.position, &record.into()))
                    .collect())
            }
        }
    }
}

impl From<Record> for Stored {
    fn from(record: Record) -> Self {
        let Record { commit, at, payload, origin, boundary, .. } = record;
        Self { commit, at, payload, origin, boundary }
    }
}
