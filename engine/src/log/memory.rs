//! A store in memory, for tests and experiments. Nothing survives the process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_model::{CommitNumber, Era, LogId, Position, Timestamp};
use tokio::sync::OwnedRwLockWriteGuard;

use super::plan::{Effect, Known, Overlay, Plan, Stored, View, records};
use super::rows::take_into;
use super::{
    ChangeFeed, Commit, CommitError, Commits, Committed, HasTable, LogState, LogTotals, Logs, Observer,
    Observers, Of, Page, ReadError, ReadsTable, Record, Refusal, Refused, Row, RowChange, RowSpan, RowTable,
    Rows, Span, StateMachine, Status, StoreError,
};
use crate::{Bus, Clock};

/// The in-memory store. Clones share the same content.
pub struct Memory<T: StateMachine> {
    shared: Arc<MemoryInner<T>>,
}

struct MemoryInner<T: StateMachine> {
    content: RwLock<Content<T>>,
    last_log: AtomicU64,
    bus: Bus,
    clock: Arc<dyn Clock>,
    /// Stands in for the disk: while it is locked for writing, no commit becomes durable.
    disk: Arc<tokio::sync::RwLock<()>>,
}

struct Content<T: StateMachine> {
    last_commit: CommitNumber,
    logs: HashMap<LogId, Log>,
    ended: HashSet<LogId>,
    tables: T,
    rows: BTreeMap<(RowTable, Bytes), Bytes>,
    observers: Observers<T>,
}

#[derive(Default)]
struct Log {
    state: LogState,
    records: BTreeMap<Position, Arc<Stored>>,
}

impl<T: StateMachine> Clone for Memory<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<T: StateMachine> Memory<T> {
    /// Creates an empty store that wakes listeners on the bus.
    pub fn new(bus: Bus, clock: Arc<dyn Clock>) -> Self {
        let content = Content {
            last_commit: CommitNumber::new(Era::default(), 0),
            logs: HashMap::new(),
            ended: HashSet::new(),
            tables: T::default(),
            rows: BTreeMap::new(),
            observers: Observers::default(),
        };
        Self {
            shared: Arc::new(MemoryInner {
                content: RwLock::new(content),
                last_log: AtomicU64::new(0),
                bus,
                clock,
                disk: Arc::default(),
            }),
        }
    }

    /// Reads the tables and the status of logs at one moment, under one lock.
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
        for change in &commit.rows {
            change.validate_size().map_err(CommitError::Store)?;
        }
        let now = self.shared.clock.now();
        let mut content = self.shared.content.write().expect("nobody panics while writing");
        for change in &commit.changes {
            content.tables.validate(change).map_err(CommitError::Declined)?;
        }
        let number = content.last_commit.next();
        let mut overlay = Overlay::default();
        let plan = Plan::validate(&*content, &mut overlay, commit.operations, number, now)?;
        content.last_commit = number;
        for effect in plan.effects {
            content.apply(effect, number, now);
        }
        let Content { tables, observers, .. } = &mut *content;
        for change in commit.changes {
            observers.tell(&change);
            tables.apply(change);
        }
        for change in commit.rows {
            content.change_rows(change);
        }
        drop(content);
        for log in overlay.into_keys() {
            self.shared.bus.wake(log);
        }
        Ok(Committed { number, outcomes: plan.outcomes })
    }
}

impl<T: StateMachine> Logs for Memory<T> {
    fn reserve(&self) -> BoxFuture<'_, Result<LogId, StoreError>> {
        let number = self.shared.last_log.fetch_add(1, Ordering::Relaxed) + 1;
        std::future::ready(Ok(LogId::new(number))).boxed()
    }

    fn era(&self) -> Era {
        Era::default()
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

    fn accepting(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl<T: StateMachine> Rows for Memory<T> {
    fn row<'a>(&'a self, table: RowTable, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        let value = self.content().rows.get(&(table, Bytes::copy_from_slice(key))).cloned();
        std::future::ready(Ok(value)).boxed()
    }

    fn rows(&self, table: RowTable, mut span: RowSpan) -> BoxFuture<'_, Result<Vec<Row>, StoreError>> {
        let mut rows = Vec::new();
        if span.from < span.to {
            let within = (table, span.from.clone())..(table, span.to.clone());
            for ((_, key), value) in self.content().rows.range(within) {
                if !take_into(&mut rows, &mut span, Row { key: key.clone(), value: value.clone() }) {
                    break;
                }
            }
        }
        std::future::ready(Ok(rows)).boxed()
    }
}

impl<T: HasTable<P>, P: StateMachine> ChangeFeed<P> for Memory<T> {
    fn observe(&self, observer: &Arc<dyn Observer<P>>) {
        let mut content = self.shared.content.write().expect("nobody panics while writing");
        let Content { tables, observers, .. } = &mut *content;
        observers.add(tables, observer);
    }
}

impl<T: HasTable<P>, P: StateMachine> ReadsTable<P> for Memory<T> {
    fn with_table<R>(&self, look: impl FnOnce(&P, &dyn Fn(LogId) -> Option<Status>) -> R) -> R {
        self.look(|tables, status| look(tables.table(), status))
    }
}

impl<T: HasTable<P>, P: StateMachine> Commits<P> for Memory<T> {
    fn commit(&self, commit: Commit<P::Change>) -> BoxFuture<'_, Result<Committed, CommitError<Refused<P>>>> {
        async move {
            let _durable = self.shared.disk.read().await;
            self.commit_now(commit.wrapped::<T, P>()).map_err(CommitError::of_part::<T, P>)
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
                records.push(stored.at(position));
            }
        }
        Ok(Page { records, status })
    }
}

impl<T: StateMachine> View for Content<T> {
    fn log(&self, log: LogId) -> Known<'_> {
        match self.logs.get(&log) {
            Some(known) => Known::Live(&known.state),
            None if self.ended.contains(&log) => Known::Ended,
            None => Known::Nothing,
        }
    }

    fn stored(&self, _: usize, of: &Of) -> Result<Vec<Record>, Refusal> {
        let Of::Stored { log, after, through } = *of else { return Ok(Vec::new()) };
        let Some(source) = self.logs.get(&log) else { return Err(Refusal::NoSuchLog(log)) };
        let after = after.max(source.state.status().floor);
        let page = source.read(Span { after, through, bytes: usize::MAX, records: usize::MAX });
        Ok(page.map_or_else(|_| Vec::new(), |page| page.records))
    }
}

impl<T: StateMachine> Content<T> {
    fn change_rows(&mut self, change: RowChange) {
        match change {
            RowChange::Put { table, key, value } => {
                self.rows.insert((table, key), value);
            }
            RowChange::Delete { table, key } => {
                self.rows.remove(&(table, key));
            }
            RowChange::Floor { table, prefix, below } => {
                self.rows.retain(|(of, key), _| !(*of == table && key.starts_with(&prefix) && *key < below));
            }
        }
    }

    fn apply(&mut self, effect: Effect, number: CommitNumber, now: Timestamp) {
        match effect {
            Effect::Created { log, tail } => {
                self.logs.insert(log, Log { state: LogState::beginning(tail), records: BTreeMap::new() });
            }
            Effect::Appended { append, positions } => {
                let log = self.logs.entry(append.log).or_default();
                log.state.apply(&append, &positions, now);
                let made = records(&append, &positions, number, now);
                log.records.extend(made.map(|(position, stored)| (position, Arc::new(stored))));
            }
            Effect::Referred { sources, targets } => {
                for target in targets {
                    let log = self.logs.entry(target).or_default();
                    for source in &sources {
                        let position = log.state.next_position(number);
                        log.state.refer(number, LogTotals::one(&source.payload)).expect("validated good");
                        log.records.insert(position, source.clone());
                    }
                }
            }
            Effect::Trimmed { log, floor } => {
                let log = self.logs.entry(log).or_default();
                log.state.trim(floor);
                let floor = log.state.status().floor;
                log.records.retain(|&position, _| position > floor);
            }
            Effect::Ended { log } => {
                self.logs.remove(&log);
                self.ended.insert(log);
            }
        }
    }
}
