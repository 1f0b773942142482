//! History: what is published under some topics is a log of the store, so that who was away hears what it has missed.
//!
//! A publish is one append, whose position is the message's offset, and it is delivered when that is durable, in the order of
//! the offsets ([`TopicLog`]). A subscription begins at the last offset that was delivered; what comes after an earlier one
//! is read from the log first (`replay`).
//!
//! Invariants: an offset is given once within an epoch, and an epoch ends when messages may have been lost: it names the
//! store's era and a number that no other history has. Nothing is delivered that is not durable.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::json;
use tidings_engine::log::{
    Append, Commit, CommitError, Conditions, Operation, Positions, ReadError, Refusal, Span, Status,
    StoreError, Then,
};
use tidings_engine::{Clock, Rng};
use tidings_model::{LogId, Position as LogPosition, ProjectId, limits};
use tokio::sync::oneshot;

use crate::driver::{DriverError, PubSubDriver, Route};
use crate::envelope::PublishEnvelope;
use crate::local::Member;
use crate::parcel;
use crate::result::{PublishError, PublishFailure, Sent};
use crate::store::Store;
use crate::table::{Change, Declined, Found, Key, Row};
use crate::topic::Keep;

/// Attempts of an operation on a history that is created or removed meanwhile.
const ATTEMPTS: usize = 8;
/// Histories of which the end is kept in memory, unless more are in use.
const OPEN: usize = 10_000;
/// Histories fetched from the store at a time.
const AT_A_TIME: usize = 256;

/// The histories of all projects of a server. Clones share them.
#[derive(Clone)]
pub struct Histories(Arc<Shared>);

struct Shared {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    rng: Arc<Rng>,
    /// Those that were used last.
    open: Mutex<HashMap<Key, Arc<TopicLog>>>,
}

/// The histories of one project.
#[derive(Clone)]
pub struct History {
    all: Histories,
    project: ProjectId,
}

/// One life of a history. Offsets of different ones cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch {
    era: u16,
    number: u64,
}

/// A place in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The life of the history.
    pub epoch: Epoch,
    /// Number of a message, from 1; 0 is before all.
    pub offset: u64,
}

/// A place as a client names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since {
    /// The text of an epoch.
    pub epoch: String,
    /// The last message that was heard.
    pub offset: u64,
}

/// A part of a history.
#[derive(Clone, Debug)]
pub struct HistoryPage {
    /// Its end.
    pub head: Position,
    /// The messages with their positions, ascending.
    pub messages: Vec<PublishEnvelope>,
    /// Whether it begins just after what was asked for; `None` if nothing was.
    pub recovered: Option<bool>,
}

/// What is known of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryState {
    /// Its end.
    pub head: Position,
    /// Messages that are kept.
    pub count: u64,
}

/// The end of one topic's history.
pub(crate) struct TopicLog {
    row: Row,
    pub(crate) epoch: Epoch,
    order: Mutex<Order>,
}

/// What is on its way to subscribers.
struct Order {
    /// Offset of the last message that was delivered.
    delivered: u64,
    /// Publishes that have not been made durable or not been noted in `waiting`.
    committing: usize,
    /// Durable messages that follow one that is not there yet.
    waiting: BTreeMap<u64, Durable>,
    /// Offset up to which the log was trimmed by publishes.
    trimmed: u64,
}

/// A message that is durable and was not delivered.
struct Durable {
    envelope: PublishEnvelope,
    exclude: Option<Member>,
    done: oneshot::Sender<Result<Sent, PublishFailure>>,
}

/// A message to publish.
pub(crate) struct Outgoing {
    pub(crate) envelope: PublishEnvelope,
    pub(crate) exclude: Option<Member>,
    /// Who does not hear it, also when it is replayed.
    pub(crate) sender: Option<Arc<str>>,
}

/// Why a history could not be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HistoryError {
    /// The project has as many as it may.
    #[error(transparent)]
    Full(Declined),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// What was to be read is not kept any more.
    #[error("a part of the history is not kept any more")]
    Gone,
    /// A record is not one of ours.
    #[error("a record is not readable: {0}")]
    Unreadable(String),
}

impl Histories {
    /// Creates a handle to the histories of a store.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, rng: Arc<Rng>) -> Self {
        Self(Arc::new(Shared { store, clock, rng, open: Mutex::default() }))
    }

    /// The histories of a project.
    pub fn of(&self, project: &ProjectId) -> History {
        History { all: self.clone(), project: project.clone() }
    }

    /// Removes the histories of a project.
    pub async fn clear(&self, project: &ProjectId) -> Result<(), StoreError> {
        loop {
            let some = self.0.store.histories_of(project, AT_A_TIME).await?;
            if some.is_empty() {
                return Ok(());
            }
            for (topic, row) in some {
                self.remove(&(project.clone(), topic), row.log, None).await?;
            }
        }
    }

    /// Removes what is not to be kept any more. `keep` says what is of a topic. Returns the number of messages.
    pub async fn trim(&self, keep: impl Fn(&str) -> Option<Keep>) -> Result<u64, StoreError> {
        let (mut trimmed, mut after) = (0, None);
        loop {
            let some = self.0.store.histories(after.as_ref(), AT_A_TIME).await?;
            let Some((last, _)) = some.last() else { return Ok(trimmed) };
            after = Some(last.clone());
            for (key, _) in &some {
                let Some(Found { row, status }) = self.0.store.history(key).await? else { continue };
                let floor = match keep(&key.1) {
                    Some(keep) => match self.floor(row.log, status, keep).await {
                        Ok(floor) => floor,
                        Err(HistoryError::Store(error)) => return Err(error),
                        // Removed meanwhile.
                        Err(_) => continue,
                    },
                    None => offset(status.tail),
                };
                let before = offset(status.floor);
                if floor > before {
                    let position = LogPosition::new(u128::from(floor));
                    let trim = Operation::Trim { log: row.log, floor: position };
                    match self.0.store.commit(Commit::new().with(trim)).await {
                        Ok(_) => trimmed += floor - before,
                        Err(CommitError::Store(error)) => return Err(error),
                        Err(CommitError::Refused(_) | CommitError::Declined(_)) => {}
                    }
                } else if before == offset(status.tail) && before > 0 && !self.is_used(key) {
                    // Nothing has been kept since the last time.
                    self.remove(key, row.log, Some(status.tail)).await?;
                }
            }
        }
    }

    /// Whether somebody publishes or replays now.
    fn is_used(&self, key: &Key) -> bool {
        self.lock().get(key).is_some_and(|log| Arc::strong_count(log) > 1)
    }

    /// Removes a history, if its end is still where it was.
    async fn remove(
        &self,
        (project, topic): &Key,
        log: LogId,
        tail: Option<LogPosition>,
    ) -> Result<(), StoreError> {
        let change = Change::Remove { project: project.clone(), topic: topic.clone(), log };
        let mut commit = Commit::new().changing(change);
        if tail.is_some() {
            // Refused if somebody has published meanwhile.
            let conditions = Conditions { tail, ..Conditions::default() };
            let close = Append { conditions, then: Then::Close, ..Append::new(log, Vec::new()) };
            commit = commit.with(close);
        }
        let commit = commit.with(Operation::Delete(log));
        let removed = self.0.store.commit(commit).await;
        self.forget(&(project.clone(), topic.clone()), log);
        match removed {
            // Somebody else was faster.
            Ok(_) | Err(CommitError::Declined(_) | CommitError::Refused(_)) => Ok(()),
            Err(CommitError::Store(error)) => Err(error),
        }
    }

    fn forget(&self, key: &Key, log: LogId) {
        let mut open = self.lock();
        if open.get(key).is_some_and(|known| known.row.log == log) {
            open.remove(key);
        }
    }

    /// The last offset that is not kept: by number, and by age.
    async fn floor(&self, log: LogId, status: Status, keep: Keep) -> Result<u64, HistoryError> {
        let tail = offset(status.tail);
        let mut low = offset(status.floor).max(tail.saturating_sub(keep.messages));
        let Some(age) = keep.age else { return Ok(low) };
        let before = self.0.clock.now() - age;
        // Everything up to `low` is older, and what is above `high` is not.
        let mut high = tail;
        let mut look_at = low + 1;
        while low < high {
            let after = LogPosition::new(u128::from(look_at - 1));
            let span = Span { records: 1, ..Span::after(after) };
            let page = self.0.store.read(log, span).await.map_err(HistoryError::of_read)?;
            match page.records.first() {
                Some(record) if record.at < before => low = look_at,
                _ => high = look_at - 1,
            }
            look_at = low + (high - low).div_ceil(2);
        }
        Ok(low)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<TopicLog>>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl History {
    fn store(&self) -> &Arc<dyn Store> {
        &self.all.0.store
    }

    /// The history of a topic, which is created if there is none.
    pub(crate) async fn open(&self, topic: &str) -> Result<Arc<TopicLog>, HistoryError> {
        let key = (self.project.clone(), Arc::from(topic));
        for _ in 0..ATTEMPTS {
            if let Some(log) = self.all.lock().get(&key) {
                return Ok(log.clone());
            }
            if let Some(found) = self.store().history(&key).await.map_err(HistoryError::Store)? {
                return Ok(self.remember(key, found));
            }
            let log = self.store().reserve().await.map_err(HistoryError::Store)?;
            let row = Row { log, number: self.all.0.rng.within(0..=u64::MAX) };
            let (project, topic) = key.clone();
            let create = Change::Create { project, topic, row };
            let commit = Commit::new().with(Operation::create(log)).changing(create);
            match self.store().commit(commit).await {
                Ok(_) | Err(CommitError::Declined(Declined::Moved)) => {}
                Err(CommitError::Declined(full @ Declined::Full)) => return Err(HistoryError::Full(full)),
                Err(CommitError::Refused(refusal)) => return Err(HistoryError::refused(&refusal)),
                Err(CommitError::Store(error)) => return Err(HistoryError::Store(error)),
            }
        }
        Err(HistoryError::Store(StoreError::Unavailable("a history changes all the time".to_owned())))
    }

    fn remember(&self, key: Key, found: Found) -> Arc<TopicLog> {
        let epoch = Epoch { era: self.store().era().get(), number: found.row.number };
        let order = Order {
            delivered: offset(found.status.tail),
            committing: 0,
            waiting: BTreeMap::new(),
            trimmed: offset(found.status.floor),
        };
        let log = Arc::new(TopicLog { row: found.row, epoch, order: Mutex::new(order) });
        let mut open = self.all.lock();
        if open.len() >= OPEN {
            // Who is using one has a handle.
            open.retain(|_, log| Arc::strong_count(log) > 1);
        }
        open.entry(key).or_insert(log).clone()
    }

    /// Makes a message durable and then delivers it. To be run to its end.
    pub(crate) async fn publish(
        self,
        keep: Keep,
        outgoing: Outgoing,
        driver: Arc<dyn PubSubDriver>,
    ) -> Result<Sent, PublishFailure> {
        let Outgoing { envelope, exclude, sender } = outgoing;
        let failed = |error: HistoryError| error.into_failure(driver.name());
        let payload = parcel::pack_record(sender.as_deref(), &envelope);
        for _ in 0..ATTEMPTS {
            let log = self.open(&envelope.topic).await.map_err(failed)?;
            let floor = log.begin(keep);
            let append = Append {
                positions: Positions::AtLeast(LogPosition::ZERO),
                ..Append::new(log.row.log, vec![payload.clone()])
            };
            let mut commit = Commit::new().with(append);
            if let Some(floor) = floor {
                let floor = LogPosition::new(u128::from(floor));
                commit = commit.with(Operation::Trim { log: log.row.log, floor });
            }
            match self.store().commit(commit).await {
                Ok(committed) => {
                    let (done, result) = oneshot::channel();
                    let offset = offset(committed.appended().last);
                    log.deliver(Some((offset, Durable { envelope, exclude, done })), &*driver);
                    let ended = || PublishFailure::new(PublishError::AdapterError).by(driver.name());
                    return result.await.unwrap_or_else(|_| Err(ended()));
                }
                Err(error) => {
                    log.deliver(None, &*driver);
                    match error {
                        // Removed meanwhile.
                        CommitError::Refused(Refusal::NoSuchLog(_)) => {
                            let key = (self.project.clone(), Arc::from(envelope.topic.as_str()));
                            self.all.forget(&key, log.row.log);
                        }
                        CommitError::Refused(refusal) => return Err(failed(HistoryError::refused(&refusal))),
                        CommitError::Declined(declined) => return Err(failed(HistoryError::Full(declined))),
                        CommitError::Store(error) => return Err(failed(HistoryError::Store(error))),
                    }
                }
            }
        }
        Err(failed(HistoryError::Gone))
    }

    /// Whether everything after an offset is kept, of a history whose end is `head`.
    pub(crate) async fn keeps(
        &self,
        log: &TopicLog,
        since: &Since,
        head: u64,
        keep: Keep,
    ) -> Result<bool, HistoryError> {
        if since.epoch != log.epoch.to_string() || since.offset > head {
            return Ok(false);
        }
        if since.offset == head {
            return Ok(true);
        }
        let status = self.store().status(log.row.log).await.map_err(HistoryError::of_read)?;
        Ok(since.offset >= self.all.floor(log.row.log, status, keep).await?)
    }

    /// Messages after an offset and up to another one, with their senders and positions. At least one, unless there is none.
    pub(crate) async fn read(
        &self,
        log: &TopicLog,
        after: u64,
        through: u64,
        most: usize,
    ) -> Result<Vec<(u64, Option<Arc<str>>, PublishEnvelope)>, HistoryError> {
        let span = Span {
            after: LogPosition::new(u128::from(after)),
            through: LogPosition::new(u128::from(through)),
            bytes: limits::HISTORY_PAGE_BYTES,
            records: most,
        };
        let page = self.store().read(log.row.log, span).await.map_err(HistoryError::of_read)?;
        let read = page.records.into_iter().map(|record| {
            let offset = offset(record.position);
            let (sender, mut envelope) = parcel::unpack_record(record.payload)
                .map_err(|error| HistoryError::Unreadable(error.to_string()))?;
            Position { epoch: log.epoch, offset }.put(&mut envelope);
            Ok((offset, sender, envelope))
        });
        read.collect()
    }

    /// A part of a topic's history: what comes after a place, or the end.
    pub(crate) async fn page(
        &self,
        topic: &str,
        since: Option<&Since>,
        most: usize,
        keep: Keep,
    ) -> Result<HistoryPage, HistoryError> {
        let log = self.open(topic).await?;
        let ((), head) = log.at_head(|| ());
        let most = most.min(limits::HISTORY_PAGE);
        let recovered = match since {
            Some(since) => Some(self.keeps(&log, since, head.offset, keep).await?),
            None => None,
        };
        let status = self.store().status(log.row.log).await.map_err(HistoryError::of_read)?;
        let floor = self.all.floor(log.row.log, status, keep).await?;
        let after = match (since, recovered) {
            (Some(since), Some(true)) => since.offset,
            // A client that has lost its place gets the oldest that there is.
            (Some(_), _) => floor,
            (None, _) => floor.max(head.offset.saturating_sub(most as u64)),
        };
        let mut messages = Vec::new();
        if after < head.offset {
            let mut read = self.read(&log, after, head.offset, most).await?;
            // The newest ones, if not all of them fit.
            while since.is_none()
                && let Some((last, ..)) = read.last()
                && *last < head.offset
            {
                let last = *last;
                let more = self.read(&log, last, head.offset, most).await?;
                if more.is_empty() {
                    break;
                }
                read = more;
            }
            messages.extend(read.into_iter().map(|(_, _, envelope)| envelope));
        }
        Ok(HistoryPage { head, messages, recovered })
    }

    /// What is known of a topic's history; `None` if nothing was ever published or subscribed to.
    pub(crate) async fn state(&self, topic: &str, keep: Keep) -> Result<Option<HistoryState>, HistoryError> {
        let key = (self.project.clone(), Arc::from(topic));
        let found = self.store().history(&key).await.map_err(HistoryError::Store)?;
        let Some(Found { row, status }) = found else { return Ok(None) };
        let epoch = Epoch { era: self.store().era().get(), number: row.number };
        let tail = offset(status.tail);
        let count = tail - self.all.floor(row.log, status, keep).await?;
        Ok(Some(HistoryState { head: Position { epoch, offset: tail }, count }))
    }
}

impl TopicLog {
    /// Calls a function while nothing is delivered. The result has the position of the last message that was.
    pub(crate) fn at_head<T>(&self, call: impl FnOnce() -> T) -> (T, Position) {
        let order = self.lock();
        let result = call();
        (result, Position { epoch: self.epoch, offset: order.delivered })
    }

    /// Notes that a message is about to be made durable. Returns the offset up to which the log is to be trimmed with it.
    fn begin(&self, keep: Keep) -> Option<u64> {
        let mut order = self.lock();
        order.committing += 1;
        let floor = (order.delivered + 1).saturating_sub(keep.messages);
        // A few at a time, since what is beyond the limit is not shown anyway.
        if floor < order.trimmed + (keep.messages / 8).clamp(1, 1024) {
            return None;
        }
        order.trimmed = floor;
        Some(floor)
    }

    /// Delivers a message that is durable, after those with lower offsets; or notes that one will never be.
    fn deliver(&self, durable: Option<(u64, Durable)>, driver: &dyn PubSubDriver) {
        let mut order = self.lock();
        order.committing -= 1;
        order.waiting.extend(durable);
        while let Some(first) = order.waiting.first_entry() {
            let next = *first.key();
            // A lower offset that nobody is making durable does not come.
            if next > order.delivered + 1 && order.committing > 0 {
                return;
            }
            let Some((offset, durable)) = order.waiting.pop_first() else { return };
            let Durable { mut envelope, exclude, done } = durable;
            let position = Position { epoch: self.epoch, offset };
            position.put(&mut envelope);
            let route = Route { exclude: exclude.as_ref(), ..Route::default() };
            // In memory, so that it is delivered in order; a driver that has to wait cannot have history.
            let sent = driver.publish(&envelope, route).now_or_never();
            let sent = sent.unwrap_or_else(|| {
                Err(PublishFailure::new(PublishError::Unsupported)
                    .with("feature", "history")
                    .by(driver.name()))
            });
            order.delivered = order.delivered.max(offset);
            // Whoever has dropped the receiver does not want to know.
            let _ = done.send(sent.map(|sent| sent.at(position)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Position {
    /// Notes the position in a message.
    fn put(self, envelope: &mut PublishEnvelope) {
        envelope.meta.insert("epoch".to_owned(), json!(self.epoch.to_string()));
        envelope.meta.insert("offset".to_owned(), json!(self.offset));
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.era, self.number)
    }
}

impl HistoryError {
    fn of_read(error: ReadError) -> Self {
        match error {
            ReadError::NoSuchLog(_) | ReadError::Trimmed { .. } => Self::Gone,
            ReadError::Store(error) => Self::Store(error),
        }
    }

    fn refused(refusal: &Refusal) -> Self {
        Self::Store(StoreError::Unavailable(format!("a history refused a message: {refusal}")))
    }

    /// The failure of a publish.
    fn into_failure(self, adapter: &'static str) -> PublishFailure {
        match &self {
            Self::Full(_) => PublishFailure::new(PublishError::Backpressure).with("reason", "histories"),
            Self::Store(StoreError::TooLarge { most, .. }) => {
                PublishFailure::new(PublishError::PayloadTooLarge).with("limit", *most)
            }
            Self::Store(_) | Self::Gone | Self::Unreadable(_) => {
                PublishFailure::new(PublishError::AdapterError).with("transient", true)
            }
        }
        .by(adapter)
        .because(self)
    }
}

impl From<HistoryError> for DriverError {
    fn from(error: HistoryError) -> Self {
        Self { cause: Some(Arc::new(error.clone())), ..Self::new(error.to_string()).transient(true) }
    }
}

/// Removes what is not to be kept any more, for ever.
pub async fn maintain(histories: Histories, keep: impl Fn(&str) -> Option<Keep>, interval: Duration) {
    loop {
        histories.0.clock.sleep(interval).await;
        match histories.trim(&keep).await {
            Ok(0) => {}
            Ok(trimmed) => tracing::debug!(trimmed, "trimmed the history of topics"),
            Err(error) => tracing::warn!(%error, "could not trim the history of topics; trying again later"),
        }
    }
}

/// The offset that a position of a log is.
fn offset(position: LogPosition) -> u64 {
    // They begin at 1 and grow by 1.
    u64::try_from(position.get()).unwrap_or(u64::MAX)
}
