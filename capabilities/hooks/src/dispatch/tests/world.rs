//! A dispatcher with a store, a clock and endpoints.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderMap, StatusCode};
use tidings_egress::{Answer, Scope, SendError, Target};
use tidings_engine::log::{
    Append, ChangeFeed, Commit, CommitError, Commits, Committed, Logs, Memory, Observer, Of, Operation,
    Outcome, Page, ReadError, ReadsTable, Refer, Row, RowSpan, RowTable, Rows, Span, Status, StoreError,
};
use tidings_engine::{Bus, Clock, ManualClock, Metrics, Rng};
use tidings_model::{Era, LogId, Position, ProjectId, Timestamp, Ulid};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::delivery::{Attempt, DeadLetter, DeliveryId};
use crate::dispatch::sender::{Post, Route, Sender};
use crate::dispatch::{Context, Dispatcher, Notices};
use crate::hook::{Hook, HookId, HookState, Settings};
use crate::hooks::Handler;
use crate::journal::Notice;
use crate::rows::{attempts, dead_letters};
use crate::signature::{Secret, Secrets};
use crate::table::{Cursor, Feed, Progress};
use crate::{Change, Declined, Event, Found, Options, Store, Table};

pub const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);
pub const URL: &str = "http://one.example/in";

/// A dispatcher with everything around it.
pub struct World {
    pub store: Memory<Table>,
    pub trouble: Arc<Trouble>,
    pub clock: ManualClock,
    pub endpoints: Endpoints,
    pub notices: Arc<Mutex<Vec<Notice>>>,
    pub dispatcher: Dispatcher,
    pub options: Options,
    pub events: LogId,
    pub metrics: Metrics,
    ids: Arc<AtomicU64>,
    task: Option<JoinHandle<()>>,
}

/// What goes wrong in the store.
#[derive(Default)]
pub struct Trouble {
    /// Commits that fail with this.
    pub commits: Mutex<VecDeque<StoreError>>,
    /// Whether commits with rows or operations fail for lack of space.
    pub full: Mutex<bool>,
    /// Whether commits with operations are refused.
    pub refuses_operations: Mutex<bool>,
    /// Number of the commits that were made.
    pub made: AtomicU64,
    /// Reads that fail.
    pub reads: AtomicU64,
    /// Records that were read.
    pub records: AtomicU64,
}

struct Troubled(Memory<Table>, Arc<Trouble>);

/// A request that arrived.
#[derive(Clone, Debug)]
pub struct Call {
    pub url: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// How an endpoint answers.
#[derive(Clone, Debug)]
pub enum Reply {
    Status(u16),
    RetryAfter(u16, u64),
    Text(u16, &'static str),
    Error(SendError),
    /// It does not answer until it is told to.
    Hangs,
}

/// Endpoints that answer as told.
#[derive(Clone, Default)]
pub struct Endpoints(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    /// Replies by URL; the last one repeats.
    replies: HashMap<String, VecDeque<Reply>>,
    hanging: Vec<(String, oneshot::Sender<Reply>)>,
    handlers: HashMap<String, Handler>,
    /// Requests that are under way, by host, and the most there were at a time.
    running: HashMap<String, usize>,
    most: HashMap<String, usize>,
}

impl World {
    pub async fn new() -> Self {
        Self::with(Options::default()).await
    }

    pub async fn with(options: Options) -> Self {
        let clock = ManualClock::at(START);
        let store = Memory::<Table>::new(Bus::new(), Arc::new(clock.clone()));
        let endpoints = Endpoints::default();
        let [events, journal] = [store.reserve().await, store.reserve().await].map(|log| log.expect("a log"));
        let feed = Feed { events, journal, cursor: Cursor::default(), version: 0 };
        let open: Commit<Change> = Commit::new()
            .with(Operation::create(events))
            .with(Operation::create(journal))
            .changing(Change::Open { project: project(), feed });
        Commits::<Table>::commit(&store, open).await.expect("made");
        let mut world = Self {
            store,
            trouble: Arc::default(),
            clock,
            endpoints,
            notices: Arc::default(),
            dispatcher: Dispatcher::default(),
            options,
            events,
            metrics: Metrics::new(),
            ids: Arc::new(AtomicU64::new(1)),
            task: None,
        };
        world.start();
        world
    }

    /// Starts the dispatcher.
    pub fn start(&mut self) {
        let (dispatcher, context) = (self.dispatcher.clone(), self.context());
        self.task = Some(tokio::spawn(async move { dispatcher.dispatch(context).await }));
    }

    /// Stops the dispatcher wherever it is.
    pub async fn stop(&mut self) {
        let task = self.task.take().expect("it runs");
        task.abort();
        let _ = task.await;
        self.endpoints.forget_requests();
    }

    pub async fn restart(&mut self) {
        self.stop().await;
        self.start();
    }

    fn context(&self) -> Context {
        let (ids, clock) = (self.ids.clone(), self.clock.clone());
        Context {
            store: Arc::new(Troubled(self.store.clone(), self.trouble.clone())),
            clock: Arc::new(self.clock.clone()),
            rng: Arc::new(Rng::seeded(7)),
            fresh_id: Arc::new(move || {
                Ulid::at(clock.now(), u128::from(ids.fetch_add(1, Ordering::Relaxed)))
            }),
            sender: Arc::new(self.endpoints.clone()),
            options: self.options.clone(),
            notices: Arc::new(Heard(self.notices.clone(), self.events)),
            metrics: self.metrics.clone(),
        }
    }

    /// Creates a hook with the URL, and without jitter in its retries. Returns its queue.
    pub async fn hook(&self, change: impl FnOnce(&mut Settings)) -> LogId {
        let queue = self.store.reserve().await.expect("a log");
        let mut settings = Settings::new("**");
        settings.url = Some(URL.into());
        settings.retry_schedule = vec![1000, 2000, 4000];
        settings.rpc_method = Some(format!("m{}", queue.get()));
        change(&mut settings);
        let hook = Arc::new(Hook {
            id: HookId(Ulid::at(START, u128::from(queue.get()))),
            project: project(),
            settings,
            secrets: Secrets { current: Secret::from_bytes(&[7; 32]), previous: None },
            state: HookState::Active,
            id_mask: crate::IdMask::default(),
            created_at: START,
            updated_at: START,
        });
        let create = Change::Create { queue, hook, most: usize::MAX };
        let commit: Commit<Change> = Commit::new().with(Operation::create(queue)).changing(create);
        Commits::<Table>::commit(&self.store, commit).await.expect("made");
        queue
    }

    /// Changes a hook.
    pub async fn change(&self, queue: LogId, change: impl FnOnce(&mut Hook)) {
        let mut hook = Hook::clone(&self.found(queue).await.hook);
        let was = hook.updated_at;
        change(&mut hook);
        hook.updated_at = hook.updated_after(self.clock.now());
        let set = Change::Set { queue, was, hook: Arc::new(hook) };
        Commits::<Table>::commit(&self.store, Commit::new().changing(set)).await.expect("made");
        self.dispatcher.notify(queue);
    }

    pub async fn deactivate(&self, queue: LogId) {
        self.change(queue, |hook| hook.state = HookState::Inactive { since: Position::ZERO }).await;
    }

    pub async fn activate(&self, queue: LogId) {
        self.change(queue, |hook| hook.state = HookState::Active).await;
    }

    pub async fn remove(&self, queue: LogId) {
        let commit: Commit<Change> =
            Commit::new().with(Operation::Delete(queue)).changing(Change::Remove { queue });
        Commits::<Table>::commit(&self.store, commit).await.expect("made");
        self.dispatcher.forget(queue).await;
    }

    /// Publishes an event to some hooks. Returns its position in their queues.
    pub async fn publish(&self, queues: &[LogId], json: &str) -> Position {
        self.publish_all(queues, [event(json)]).await[0]
    }

    /// Publishes events to some hooks in one commit. Returns their positions in the queues.
    pub async fn publish_all(
        &self,
        queues: &[LogId],
        events: impl IntoIterator<Item = Event>,
    ) -> Vec<Position> {
        let records: Vec<Bytes> = events.into_iter().map(|event| event.to_record()).collect();
        let count = records.len();
        let commit: Commit<Change> = Commit::new()
            .with(Append::new(self.events, records))
            .with(Refer { of: Of::Append(0), into: queues.into() });
        let made: Committed = Commits::<Table>::commit(&self.store, commit).await.expect("made");
        assert!(matches!(&made.outcomes[1], Outcome::Referred(referred) if referred.missing.is_empty()));
        queues.iter().for_each(|queue| self.dispatcher.notify(*queue));
        let page = Logs::read(&self.store, queues[0], Span::after(Position::ZERO)).await.expect("a page");
        page.records.iter().rev().take(count).rev().map(|record| record.position).collect()
    }

    /// Publishes a number of events to some hooks.
    pub async fn publish_many(&self, queues: &[LogId], count: usize) -> Vec<Position> {
        self.publish_all(queues, (0..count).map(|n| event(&format!("{{\"n\":{n}}}")))).await
    }

    /// Waits until nothing is left to do before time goes on.
    pub async fn rest(&self) {
        self.until("the dispatcher rests", || self.dispatcher.is_at_rest()).await;
    }

    /// Waits until a condition holds.
    pub async fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        for _ in 0..200_000 {
            if holds() {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{what}: never; {} calls", self.endpoints.calls().len());
    }

    /// Lets everything run that can run, without waiting for rest.
    pub async fn run(&self) {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }

    pub async fn calls(&self, count: usize) -> Vec<Call> {
        self.until(&format!("{count} calls"), || self.endpoints.calls().len() >= count).await;
        self.run().await;
        let calls = self.endpoints.calls();
        assert_eq!(calls.len(), count, "{calls:?}");
        calls
    }

    /// Lets time pass, and waits for rest.
    pub async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.rest().await;
    }

    pub async fn found(&self, queue: LogId) -> Found {
        Store::found(&self.store, queue).await.expect("a store").expect("a hook")
    }

    pub async fn progress(&self, queue: LogId) -> Progress {
        Progress::clone(&self.found(queue).await.progress)
    }

    pub async fn letters(&self, queue: LogId) -> Vec<DeadLetter> {
        let span = dead_letters::older(queue, None, usize::MAX);
        let rows = Rows::rows(&self.store, dead_letters::TABLE, span).await.expect("rows");
        rows.iter().rev().map(|row| dead_letters::read(row).expect("a dead letter")).collect()
    }

    pub async fn attempts(&self, queue: LogId) -> Vec<(Position, Attempt)> {
        let span = attempts::between(queue, Position::ZERO, Position::MAX, usize::MAX);
        let rows = Rows::rows(&self.store, attempts::TABLE, span).await.expect("rows");
        rows.iter().filter_map(attempts::read).collect()
    }

    /// Checks that the counters of a hook agree with what was queued.
    pub async fn check(&self, queue: LogId) {
        let found = self.found(queue).await;
        let progress = &found.progress;
        let queued = found.status.total.records;
        let settled = progress.delivered + progress.dead + progress.parked.len() as u64;
        assert_eq!(found.pending() + settled, queued, "{progress:?}");
        assert_eq!(progress.dead, self.letters(queue).await.len() as u64);
        assert!(progress.above.iter().all(|position| *position > progress.done));
    }
}

pub fn project() -> ProjectId {
    ProjectId::parse("shop").expect("an id")
}

pub fn event(json: &str) -> Event {
    Event {
        event_type: "orders.paid".into(),
        id: "event-1".into(),
        ts: "2026-01-15T10:30:00.000Z".into(),
        about: None,
        id_chosen: false,
        json: Bytes::copy_from_slice(json.as_bytes()),
    }
}

pub fn id(queue: LogId, position: Position) -> String {
    DeliveryId { queue, position, mask: crate::IdMask::default() }.to_string()
}

pub fn timeout() -> Reply {
    let phase = tidings_egress::Phase::Waiting;
    Reply::Error(SendError::Timeout { phase, after: Duration::from_secs(30) })
}

pub fn no_socket() -> Reply {
    Reply::Error(SendError::TooManySockets(Scope::All))
}

impl Call {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    pub fn id(&self) -> &str {
        self.header("webhook-id")
    }

    /// The number in the event `{"n":…}`.
    pub fn n(&self) -> u64 {
        let body: serde_json::Value = serde_json::from_slice(&self.body).expect("JSON");
        body.pointer("/payload/n").and_then(serde_json::Value::as_u64).expect("a number")
    }
}

impl Endpoints {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("not poisoned")
    }

    /// How the endpoint at a URL answers. The last reply repeats.
    pub fn answer(&self, url: &str, replies: impl IntoIterator<Item = Reply>) {
        self.lock().replies.insert(url.into(), replies.into_iter().collect());
    }

    pub fn bind(&self, name: &str, handler: Handler) {
        self.lock().handlers.insert(name.into(), handler);
    }

    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    /// Number of requests to a URL.
    pub fn count(&self, url: &str) -> usize {
        self.lock().calls.iter().filter(|call| call.url == url).count()
    }

    pub fn clear(&self) {
        self.lock().calls.clear();
    }

    /// Lets requests that hang at a URL be answered, the oldest first.
    pub fn release(&self, url: &str, count: usize, reply: &Reply) {
        let mut state = self.lock();
        let (mut released, mut kept) = (0, Vec::new());
        for (at, answer) in std::mem::take(&mut state.hanging) {
            if at == url && released < count && !answer.is_closed() {
                released += 1;
                let _ = answer.send(reply.clone());
            } else {
                kept.push((at, answer));
            }
        }
        state.hanging = kept;
        assert_eq!(released, count, "requests that hang");
    }

    pub fn hanging(&self, url: &str) -> usize {
        self.lock().hanging.iter().filter(|(at, answer)| at == url && !answer.is_closed()).count()
    }

    /// The most requests that were under way at a time to a URL.
    pub fn most(&self, url: &str) -> usize {
        self.lock().most.get(url).copied().unwrap_or_default()
    }

    fn forget_requests(&self) {
        let mut state = self.lock();
        state.hanging.clear();
        state.running.clear();
    }
}

impl Sender for Endpoints {
    fn route(&self, hook: &Hook) -> Route {
        let binding = hook.settings.worker_binding.as_ref();
        if let Some((name, handler)) =
            binding.and_then(|name| Some((name, self.lock().handlers.get(name)?.clone())))
        {
            return Route::Handler { name: name.clone(), handler };
        }
        let Some(url) = &hook.settings.url else { return Route::Nowhere("there is no target".into()) };
        Target::parse(url).map_or_else(|error| Route::Nowhere(error.to_string()), Route::Endpoint)
    }

    fn post(&self, post: Post) -> BoxFuture<'static, Result<Answer, SendError>> {
        let endpoints = self.clone();
        Box::pin(async move {
            let url = post.target.to_string();
            let (mut reply, mut released) = (Reply::Status(200), None);
            {
                let state = &mut *endpoints.lock();
                let call = Call { url: url.clone(), headers: post.headers, body: post.body };
                state.calls.push(call);
                let running = state.running.entry(url.clone()).or_default();
                *running += 1;
                let most = state.most.entry(url.clone()).or_default();
                *most = (*most).max(*running);
                if let Some(replies) = state.replies.get_mut(&url) {
                    reply = replies.front().cloned().expect("a reply");
                    if replies.len() > 1 {
                        replies.pop_front();
                    }
                }
                if matches!(reply, Reply::Hangs) {
                    let (answer, answered) = oneshot::channel();
                    state.hanging.push((url.clone(), answer));
                    released = Some(answered);
                }
            }
            if let Some(released) = released {
                reply = released.await.map_err(|_| SendError::Closed)?;
            }
            if let Some(running) = endpoints.lock().running.get_mut(&url) {
                *running -= 1;
            }
            let (status, retry_after, body) = match reply {
                Reply::Status(status) => (status, None, ""),
                Reply::RetryAfter(status, seconds) => (status, Some(Duration::from_secs(seconds)), ""),
                Reply::Text(status, text) => (status, None, text),
                Reply::Error(error) => return Err(error),
                Reply::Hangs => panic!("released to hang again"),
            };
            let status = StatusCode::from_u16(status).expect("a status");
            Ok(Answer { status, retry_after, body: Bytes::from_static(body.as_bytes()) })
        })
    }
}

/// Remembers notices, and appends something for each.
struct Heard(Arc<Mutex<Vec<Notice>>>, LogId);

impl Notices for Heard {
    fn add(&self, notice: &Notice, commit: &mut Commit<Change>) -> Option<LogId> {
        self.0.lock().expect("not poisoned").push(notice.clone());
        commit.operations.push(Append::new(self.1, vec![Bytes::from_static(b"notice")]).into());
        Some(self.1)
    }

    fn added(&self, _: LogId) {}
}

impl Logs for Troubled {
    fn reserve(&self) -> BoxFuture<'_, Result<LogId, StoreError>> {
        self.0.reserve()
    }

    fn era(&self) -> Era {
        self.0.era()
    }

    fn status(&self, log: LogId) -> BoxFuture<'_, Result<Status, ReadError>> {
        self.0.status(log)
    }

    fn read(&self, log: LogId, span: Span) -> BoxFuture<'_, Result<Page, ReadError>> {
        let fails =
            self.1.reads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if fails.is_ok() {
            let error = ReadError::Store(StoreError::Unavailable("told to".into()));
            return std::future::ready(Err(error)).boxed();
        }
        async move {
            let page = self.0.read(log, span).await;
            let count = page.as_ref().map_or(0, |page| page.records.len());
            self.1.records.fetch_add(count as u64, Ordering::Relaxed);
            page
        }
        .boxed()
    }

    fn accepting(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl Rows for Troubled {
    fn row<'a>(&'a self, table: RowTable, key: &'a [u8]) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        self.0.row(table, key)
    }

    fn rows(&self, table: RowTable, span: RowSpan) -> BoxFuture<'_, Result<Vec<Row>, StoreError>> {
        self.0.rows(table, span)
    }
}

impl ChangeFeed<Table> for Troubled {
    fn observe(&self, observer: &Arc<dyn Observer<Table>>) {
        self.0.observe(observer);
    }
}

impl Commits<Table> for Troubled {
    fn commit(&self, commit: Commit<Change>) -> BoxFuture<'_, Result<Committed, CommitError<Declined>>> {
        if let Some(error) = self.1.commits.lock().expect("not poisoned").pop_front() {
            return std::future::ready(Err(CommitError::Store(error))).boxed();
        }
        let takes_space = !commit.operations.is_empty() || commit.rows.iter().any(|row| row.takes_space());
        if takes_space && *self.1.full.lock().expect("not poisoned") {
            return std::future::ready(Err(CommitError::Store(StoreError::NoSpace))).boxed();
        }
        if !commit.operations.is_empty() && *self.1.refuses_operations.lock().expect("not poisoned") {
            return std::future::ready(Err(CommitError::Declined(Declined::Moved))).boxed();
        }
        self.1.made.fetch_add(1, Ordering::Relaxed);
        Commits::<Table>::commit(&self.0, commit)
    }
}

impl ReadsTable<Table> for Troubled {
    fn with_table<R>(&self, look: impl FnOnce(&Table, &dyn Fn(LogId) -> Option<Status>) -> R) -> R {
        self.0.with_table(look)
    }
}
