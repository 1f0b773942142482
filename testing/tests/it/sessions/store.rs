//! What only somebody who holds the store can bring about: sessions that are missing, slow disks, work done twice.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_api::Envelopes;
use tidings_engine::follow::{Left, Work};
use tidings_engine::log::fixture::StandIn;
use tidings_engine::log::{
    Commit, CommitError, Commits, Conditions, Logs, Memory, Of, Operation, ReadError, Refer, Span,
    StoreError, Then,
};
use tidings_engine::{Bus, Clock, ManualClock, Metrics};
use tidings_model::{LogId, Position, ProjectId, StreamId, Timestamp};
use tidings_server::Catalog;
use tidings_sessions::table::{Cursor, Progress};
use tidings_sessions::{
    Change, Declined, Fanout, Mode, Options, Sessions, Store, SubscribeRequest, Table as SessionTable,
    Undelivered,
};
use tidings_streams::{
    AppendRequest, Body, Cleared, ContentType, CreateRequest, ForkRequest, From, Retention, StreamError,
    StreamKey, Streams,
};
use tidings_testing::until;

use super::*;

/// Sessions on a store that the test holds too. Nobody follows unless the test does.
struct Bench {
    store: Memory<Catalog>,
    streams: Streams,
    sessions: Sessions,
    clock: ManualClock,
}

fn id(text: &str) -> StreamId {
    StreamId::parse(text).expect("a valid id")
}

fn project() -> ProjectId {
    ProjectId::parse("app").expect("a valid id")
}

fn key(text: &str) -> StreamKey {
    StreamKey { project: project(), id: id(text) }
}

impl Bench {
    /// A source `news` with so many subscribers, `s0` and so on.
    async fn with(options: Options, subscribers: usize) -> Self {
        Self::keeping(Retention::default(), options, subscribers).await
    }

    /// The same with a source that does not keep everything.
    async fn keeping(retention: Retention, options: Options, subscribers: usize) -> Self {
        let (bus, clock) = (Bus::new(), ManualClock::at(Timestamp::from_millis(1_763_294_400_000)));
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let store = Memory::<Catalog>::new(bus.clone(), shared.clone());
        let streams = Streams::new(Arc::new(store.clone()), bus, shared, Default::default())
            .with_rewriter(Arc::new(Envelopes::new(Arc::new(store.clone()))))
            .held(Arc::new(Undelivered::new(Arc::new(store.clone()))));
        let sessions = Sessions::new(streams.clone(), Arc::new(store.clone()), options, &Metrics::new());
        let bench = Self { store, streams, sessions, clock };
        bench.create("news", "text/plain", retention).await;
        for n in 0..subscribers {
            bench.subscribe(&format!("s{n}")).await;
        }
        bench
    }

    async fn create(&self, source: &str, content_type: &str, retention: Retention) {
        let source_is = CreateRequest {
            content_type: ContentType::parse(content_type),
            retention,
            expiry: None,
            body: Bytes::new(),
            then: Then::StayOpen,
            fork: None,
        };
        self.streams.create(&key(source), &source_is).await.expect("created");
    }

    async fn subscribe(&self, session: &str) {
        let request =
            SubscribeRequest { project: project(), session: id(session), source: id("news"), envelope: None };
        self.sessions.subscribe(&request).await.expect("subscribed");
    }

    async fn publish(&self, text: &str) -> Fanout {
        self.publish_to("news", "text/plain", text).await
    }

    async fn publish_to(&self, source: &str, content_type: &str, text: &str) -> Fanout {
        let content = ContentType::parse(content_type).expect("valid");
        let request = AppendRequest {
            body: Body::Content(content, Bytes::copy_from_slice(text.as_bytes())),
            conditions: Conditions::default(),
            then: Then::StayOpen,
        };
        self.sessions.publish(&key(source), &request).await.expect("published").fanout
    }

    async fn log(&self, stream: &str) -> LogId {
        self.streams.describe(&key(stream)).await.expect("there").stream.log
    }

    async fn content(&self, session: &str) -> String {
        let page =
            self.store.read(self.log(session).await, Span::after(Position::ZERO)).await.expect("there");
        page.records.iter().map(|record| String::from_utf8_lossy(&record.payload).into_owned()).collect()
    }

    /// Takes a session's log away as nothing in the server would.
    async fn lose(&self, log: LogId) {
        let commit = Commit::new().with(Operation::Delete(log));
        Commits::<SessionTable>::commit(&self.store, commit).await.expect("made");
    }

    async fn subscribers(&self) -> usize {
        let source = self.store.source(self.log("news").await).await.expect("readable");
        source.map_or(0, |source| source.targets.len())
    }

    async fn cursor(&self) -> Option<Cursor> {
        let source = self.store.source(self.log("news").await).await.expect("readable")?;
        match source.progress {
            Progress::Inline => None,
            Progress::Following { cursor, .. } => Some(cursor),
        }
    }

    async fn follow(&self) {
        self.follow_source("news").await;
    }

    async fn follow_source(&self, source: &str) {
        let source = self.log(source).await;
        while self.sessions.step(source).await.expect("delivered") == Left::More {}
    }
}

fn queued() -> Options {
    Options { fanout_queue_threshold: 0, ..Options::default() }
}

#[tokio::test]
async fn sessions_that_are_missing_are_neither_successes_nor_failures_and_are_removed() {
    let bench = Bench::with(Options::default(), 5).await;
    for session in ["s1", "s3"] {
        bench.lose(bench.log(session).await).await;
    }
    let told = bench.publish("a").await;
    assert_eq!(told, Fanout { mode: Mode::Inline, count: 5, successes: 3, failures: 0 });
    assert_eq!(bench.subscribers().await, 3);
    let told = bench.publish("b").await;
    assert_eq!(told, Fanout { mode: Mode::Inline, count: 3, successes: 3, failures: 0 });
    for session in ["s0", "s2", "s4"] {
        assert_eq!(bench.content(session).await, "ab");
    }
}

#[tokio::test]
async fn missing_sessions_do_not_open_the_circuit() {
    let bench = Bench::with(Options::default(), 12).await;
    for n in 0..10 {
        bench.lose(bench.log(&format!("s{n}")).await).await;
        assert_eq!(bench.publish("x").await.mode, Mode::Inline, "{n}");
    }
}

#[tokio::test]
async fn the_follower_removes_sessions_that_are_missing_and_goes_on() {
    let bench = Bench::with(queued(), 5).await;
    assert_eq!(bench.publish("a").await.mode, Mode::Queued);
    bench.lose(bench.log("s2").await).await;
    bench.follow().await;
    assert_eq!(bench.subscribers().await, 4);
    for session in ["s0", "s1", "s3", "s4"] {
        assert_eq!(bench.content(session).await, "a");
    }
}

#[tokio::test]
async fn the_follower_does_not_deliver_to_sessions_that_have_expired_meanwhile() {
    let bench = Bench::with(queued(), 5).await;
    bench.clock.advance(Duration::from_secs(1000));
    bench.sessions.touch(&key("s3")).await.expect("there");
    assert_eq!(bench.publish("a").await, Fanout { mode: Mode::Queued, count: 5, successes: 0, failures: 0 });
    let expired = bench.log("s0").await;
    bench.clock.advance(Duration::from_secs(800));
    bench.follow().await;
    assert_eq!(bench.subscribers().await, 1);
    assert_eq!(bench.content("s3").await, "a");
    let left = bench.store.status(expired).await;
    assert!(matches!(left, Err(ReadError::NoSuchLog(_))), "{left:?}");
}

#[tokio::test]
async fn more_sessions_than_one_commit_ends_have_expired_and_none_of_them_counts() {
    let most = tidings_model::limits::ENDED_PER_COMMIT;
    let bench = Bench::with(Options { queue: false, ..Options::default() }, most + 2).await;
    bench.clock.advance(Duration::from_secs(1799));
    bench.sessions.touch(&key("s7")).await.expect("there");
    bench.clock.advance(Duration::from_secs(1));
    let told = bench.publish("a").await;
    assert_eq!(told, Fanout { mode: Mode::Inline, count: 1, successes: 1, failures: 0 });
    assert_eq!(bench.streams.sessions(&project()).await.expect("readable"), 1);
}

#[tokio::test]
async fn the_streams_of_a_project_end_many_in_one_commit() {
    let bench = Bench::with(Options::default(), 40).await;
    for n in 0..60 {
        bench.create(&format!("plain{n}"), "text/plain", Retention::default()).await;
    }
    let fork = |source: &str| CreateRequest {
        content_type: None,
        retention: Retention::default(),
        expiry: None,
        body: Bytes::new(),
        then: Then::StayOpen,
        fork: Some(ForkRequest { source: key(source), offset: None, sub_offset: 0 }),
    };
    // In the order of their names a source comes before its fork, and a fork before its source.
    bench.streams.create(&key("plain1.fork"), &fork("plain1")).await.expect("created");
    bench.streams.create(&key("a.fork"), &fork("plain2")).await.expect("created");
    let other = StreamKey { project: ProjectId::parse("other").expect("a valid id"), id: id("stays") };
    let stays = CreateRequest { fork: None, ..fork("plain1") };
    bench.streams.create(&other, &stays).await.expect("created");
    // The offset of a record begins with the number of its commit.
    let number = async || {
        let content = ContentType::parse("application/octet-stream").expect("valid");
        let (body, conditions) = (Body::Content(content, Bytes::from_static(b"x")), Conditions::default());
        let append = AppendRequest { body, conditions, then: Then::StayOpen };
        bench.streams.append(&other, &append).await.expect("appended").next.parts().0.get()
    };
    let before = number().await;
    while bench.streams.clear(&project()).await.expect("cleared") == Cleared::InPart {}
    let commits = number().await - before - 1;
    assert!((1..10).contains(&commits), "{commits} commits for 103 streams");
    assert!(bench.streams.describe(&other).await.is_ok());
    for name in ["news", "s0", "plain1", "plain1.fork", "plain2", "a.fork"] {
        let gone = bench.streams.describe(&key(name)).await;
        assert!(matches!(gone, Err(StreamError::NotFound)), "{name}: {gone:?}");
    }
}

#[tokio::test]
async fn a_delivery_that_takes_too_long_counts_as_failed_and_is_there_once() {
    for (timeout, late) in [(10_000, true), (10_001, false)] {
        let options = Options { fanout_timeout: Duration::from_millis(timeout), ..Options::default() };
        let bench = Arc::new(Bench::with(options, 3).await);
        assert_eq!(bench.publish("a").await.successes, 3);
        let held = bench.store.hold().await;
        let publishing = tokio::spawn({
            let bench = bench.clone();
            async move { bench.publish("b").await }
        });
        tokio::task::yield_now().await;
        bench.clock.advance(Duration::from_millis(10_001));
        drop(held);
        let told = publishing.await.expect("no panic");
        let (successes, failures) = if late { (0, 3) } else { (3, 0) };
        assert_eq!(told, Fanout { mode: Mode::Inline, count: 3, successes, failures });
        assert_eq!(bench.content("s0").await, "ab");
        assert_eq!(bench.publish("c").await.successes, 3);
        assert_eq!(bench.content("s0").await, "abc", "and not once more");
    }
}

#[tokio::test]
async fn a_delivery_that_is_made_again_is_declined_whole() {
    let bench = Bench::with(queued(), 3).await;
    bench.publish("a").await;
    bench.publish("b").await;
    let (news, was) = (bench.log("news").await, bench.cursor().await.expect("it follows"));
    let targets = [bench.log("s0").await, bench.log("s1").await];
    let tail = bench.store.status(news).await.expect("there").tail;
    let now = Cursor { done: was.done, through: tail, reached: Some(targets[1]) };
    let part = || {
        let of = Of::Stored { log: news, after: was.done, through: tail };
        Commit::new().with(Refer { of, into: Arc::new(targets) }).changing(Change::Advance {
            source: news,
            was,
            now,
            version: u64::MAX,
        })
    };
    Commits::<SessionTable>::commit(&bench.store, part()).await.expect("made");
    for _ in 0..2 {
        let again = Commits::<SessionTable>::commit(&bench.store, part()).await;
        assert!(matches!(again, Err(CommitError::Declined(Declined::Moved))), "{again:?}");
    }
    assert_eq!(bench.content("s0").await, "ab");
    assert_eq!(bench.content("s2").await, "", "that was the part that is done");
    assert_eq!(bench.publish("c").await.mode, Mode::Queued, "nothing overtakes what is left");
    bench.follow().await;
    assert_eq!(
        bench.cursor().await,
        Some(Cursor::at_rest(bench.store.status(news).await.expect("there").tail))
    );
    for session in ["s0", "s1", "s2"] {
        assert_eq!(bench.content(session).await, "abc", "{session}");
    }
}

#[tokio::test]
async fn who_subscribes_while_the_follower_is_behind_hears_from_there_on() {
    let bench = Bench::with(queued(), 2).await;
    bench.publish("a").await;
    bench.subscribe("late").await;
    bench.publish("b").await;
    bench.subscribe("later").await;
    bench.publish("c").await;
    bench.follow().await;
    assert_eq!(bench.content("s0").await, "abc");
    assert_eq!(bench.content("late").await, "bc");
    assert_eq!(bench.content("later").await, "c");
}

#[tokio::test]
async fn an_envelope_tells_when_its_message_was_published_however_late_it_is_delivered() {
    let bench = Bench::with(queued(), 0).await;
    bench.create("orders", "application/json", Retention::default()).await;
    let request = SubscribeRequest {
        project: project(),
        session: id("alice"),
        source: id("orders"),
        envelope: Some(true),
    };
    bench.sessions.subscribe(&request).await.expect("subscribed");
    let published = bench.clock.now();
    assert_eq!(bench.publish_to("orders", "application/json", "1").await.mode, Mode::Queued);
    bench.clock.advance(Duration::from_secs(60));
    bench.follow_source("orders").await;
    let (_, read) = bench.streams.read(&key("alice"), From::Start).await.expect("readable");
    let record = &read.records[0];
    let head = record.head.as_deref().expect("it is in an envelope");
    let envelope = [head.as_bytes(), &record.payload, b"}"].concat();
    let envelope: Value = serde_json::from_slice(&envelope).expect("JSON");
    assert_eq!(envelope["ts"], published.as_millis());
}

#[tokio::test]
async fn what_is_left_to_deliver_stays_whatever_its_source_keeps() {
    let retention = Retention { messages: Some(1), ..Retention::default() };
    let bench = Bench::keeping(retention, queued(), 2).await;
    let news = bench.log("news").await;
    // So many that appends trim, too.
    let messages: Vec<String> = (0..200).map(|n| format!("{n},")).collect();
    for message in &messages {
        bench.publish(message).await;
    }
    bench.streams.sweep().await.expect("swept");
    let (_, kept) = bench.streams.read(&key("news"), From::Start).await.expect("readable");
    assert_eq!(kept.records.len(), 1, "its readers see what it keeps");
    assert!(bench.store.status(news).await.expect("there").floor.is_zero());
    bench.subscribe("late").await;
    bench.follow().await;
    for session in ["s0", "s1"] {
        assert_eq!(bench.content(session).await, messages.concat(), "{session}");
    }
    assert_eq!(bench.content("late").await, "");
    assert_eq!(bench.streams.sweep().await.expect("swept").trimmed, 1, "nobody needs it any more");
    let left = bench.store.read(news, Span::after(Position::ZERO)).await.expect("there");
    assert_eq!(left.records.len(), 1);
    assert_eq!(bench.streams.sweep().await.expect("swept").trimmed, 0);
}

#[tokio::test]
async fn what_a_publish_writes_does_not_grow_with_its_size_times_its_subscribers() {
    let server = Harness::with(Setup { store: TestStore::Embedded, ..Setup::default() }).await;
    create(&server, "news", "text/plain").await;
    for n in 0..100 {
        subscribe(&server, &format!("s{n}"), "news").await;
    }
    let written = || server.metric("tidings_frame_bytes_total").expect("it is counted");
    let before = written();
    let text = "x".repeat(100_000);
    assert_eq!(publish(&server, "news", &text).await, inline(100));
    let once = written() - before;
    assert!((100_000.0..150_000.0).contains(&once), "{once}");
    assert_eq!(content(&server, "s99").await, text);
}

/// A store that cannot, for a while.
struct Failing {
    store: Memory<Catalog>,
    fails: AtomicBool,
    /// The only log whose records cannot be delivered, if it is not all.
    only: Option<LogId>,
    /// Whether it does not even say so.
    hangs: bool,
}

impl Failing {
    fn concerns(&self, operations: &[Operation]) -> bool {
        let is_concerned = |operation: &Operation| match operation {
            Operation::Refer(Refer { of: Of::Stored { log, .. }, .. }) => Some(*log) == self.only,
            _ => false,
        };
        self.only.is_none() || operations.iter().any(is_concerned)
    }
}

impl StandIn for Failing {
    type Store = Memory<Catalog>;

    fn store(&self) -> &Memory<Catalog> {
        &self.store
    }

    fn before_commit<'a>(&'a self, operations: &'a [Operation]) -> BoxFuture<'a, Result<(), StoreError>> {
        if !self.fails.load(Ordering::SeqCst) || !self.concerns(operations) {
            return Box::pin(std::future::ready(Ok(())));
        }
        if self.hangs {
            return Box::pin(std::future::pending());
        }
        Box::pin(std::future::ready(Err(StoreError::NoSpace)))
    }
}

#[tokio::test]
async fn the_follower_tries_again_until_the_store_can() {
    let bench = Bench::with(queued(), 3).await;
    bench.publish("a").await;
    bench.publish("b").await;
    let (store, fails) = (bench.store.clone(), AtomicBool::new(true));
    let failing = Arc::new(Failing { store, fails, only: None, hangs: false });
    let sessions = Sessions::new(bench.streams.clone(), failing.clone(), queued(), &Metrics::new());
    let following = tokio::spawn(sessions.clone().follow());
    for _ in 0..3 {
        until("it waits to try again", || bench.clock.sleepers() == 1).await;
        assert_eq!(bench.content("s0").await, "");
        bench.clock.advance(Duration::from_secs(1));
    }
    until("it waits to try again", || bench.clock.sleepers() == 1).await;
    failing.fails.store(false, Ordering::SeqCst);
    bench.clock.advance(Duration::from_secs(1));
    until("it has nothing left", || sessions.is_at_rest()).await;
    for session in ["s0", "s1", "s2"] {
        assert_eq!(bench.content(session).await, "ab");
    }
    following.abort();
}

#[tokio::test]
async fn a_source_that_cannot_be_delivered_does_not_hold_up_the_others() {
    for hangs in [false, true] {
        let bench = Bench::with(queued(), 1).await;
        bench.create("sport", "text/plain", Retention::default()).await;
        let request =
            SubscribeRequest { project: project(), session: id("s0"), source: id("sport"), envelope: None };
        bench.sessions.subscribe(&request).await.expect("subscribed");
        let (store, only) = (bench.store.clone(), Some(bench.log("news").await));
        let failing = Arc::new(Failing { store, fails: AtomicBool::new(true), only, hangs });
        let sessions = Sessions::new(bench.streams.clone(), failing.clone(), queued(), &Metrics::new());
        bench.publish("news,").await;
        bench.publish_to("sport", "text/plain", "sport,").await;
        let following = tokio::spawn(sessions.clone().follow());
        eventually("sport is delivered", async || bench.content("s0").await == "sport,").await;
        if !hangs {
            until("it waits to try again", || bench.clock.sleepers() == 1).await;
            failing.fails.store(false, Ordering::SeqCst);
            bench.clock.advance(Duration::from_secs(1));
            until("it has nothing left", || sessions.is_at_rest()).await;
            assert_eq!(bench.content("s0").await, "sport,news,");
        }
        following.abort();
    }
}

/// A store for streams in which one log cannot be deleted.
struct Stuck {
    store: Memory<Catalog>,
    log: Arc<Mutex<Option<LogId>>>,
}

impl StandIn for Stuck {
    type Store = Memory<Catalog>;

    fn store(&self) -> &Memory<Catalog> {
        &self.store
    }

    fn before_commit<'a>(&'a self, operations: &'a [Operation]) -> BoxFuture<'a, Result<(), StoreError>> {
        let stuck = *self.log.lock().expect("nobody panics");
        let is_stuck =
            |operation: &Operation| matches!(operation, Operation::Delete(log) if Some(*log) == stuck);
        let is_refused = operations.iter().any(is_stuck);
        Box::pin(std::future::ready(if is_refused { Err(StoreError::NoSpace) } else { Ok(()) }))
    }
}

#[tokio::test]
async fn a_session_that_cannot_be_cleaned_up_does_not_keep_the_others() {
    let bench = Bench::with(Options::default(), 0).await;
    let stuck = Arc::new(Stuck { store: bench.store.clone(), log: Arc::default() });
    let shared: Arc<dyn Clock> = Arc::new(bench.clock.clone());
    let streams = Streams::new(stuck.clone(), Bus::new(), shared, Default::default());
    let kept = Arc::new(bench.store.clone());
    let sessions = Sessions::new(streams, kept, Options::default(), &Metrics::new());
    // More than one round looks at.
    for n in 0..300 {
        bench.subscribe(&format!("s{n}")).await;
    }
    *stuck.log.lock().expect("nobody panics") = Some(bench.log("s0").await);
    bench.clock.advance(Options::default().ttl);
    sessions.clean_up().await.expect_err("one is left");
    assert_eq!(bench.subscribers().await, 1);
    *stuck.log.lock().expect("nobody panics") = None;
    assert_eq!(sessions.clean_up().await.expect("cleaned up").expired, 1);
    assert_eq!(bench.subscribers().await, 0);
}

/// A store in which something happens between looking at a source and delivering what it has.
struct Interrupted {
    store: Memory<Catalog>,
    before_read: Meanwhile,
    before_commit: Meanwhile,
}

/// What happens, once.
type Meanwhile = Mutex<Option<BoxFuture<'static, ()>>>;

async fn let_happen(meanwhile: &Meanwhile) {
    let meanwhile = meanwhile.lock().expect("nobody panics").take();
    if let Some(meanwhile) = meanwhile {
        meanwhile.await;
    }
}

impl StandIn for Interrupted {
    type Store = Memory<Catalog>;

    fn store(&self) -> &Memory<Catalog> {
        &self.store
    }

    fn before_commit<'a>(&'a self, _: &'a [Operation]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(let_happen(&self.before_commit).map(Ok))
    }

    fn before_read(&self) -> BoxFuture<'_, ()> {
        Box::pin(let_happen(&self.before_read))
    }
}

#[tokio::test]
async fn who_subscribes_while_the_follower_is_about_to_deliver_hears_what_comes_then() {
    for left in ["", "a"] {
        let bench = Arc::new(Bench::with(queued(), 1).await);
        if !left.is_empty() {
            bench.publish(left).await;
        }
        let at_work = bench.clone();
        let meanwhile = Box::pin(async move {
            at_work.subscribe("new").await;
            at_work.publish("b").await;
        });
        let (store, before_read) =
            (bench.store.clone(), Mutex::new(Some(meanwhile as BoxFuture<'static, ()>)));
        let interrupted = Arc::new(Interrupted { store, before_read, before_commit: Meanwhile::default() });
        let sessions = Sessions::new(bench.streams.clone(), interrupted, queued(), &Metrics::new());
        let news = bench.log("news").await;
        while sessions.step(news).await.expect("delivered") == Left::More {}
        assert_eq!(bench.content("s0").await, format!("{left}b"));
        assert_eq!(bench.content("new").await, "b");
    }
}

#[tokio::test]
async fn who_subscribes_when_nobody_else_does_any_more_hears_nothing_from_before() {
    let bench = Arc::new(Bench::with(queued(), 1).await);
    bench.publish("a").await;
    let at_work = bench.clone();
    let meanwhile = Box::pin(async move {
        at_work.sessions.unsubscribe(&project(), &id("s0"), &id("news")).await.expect("unsubscribed");
        at_work.publish("b").await;
        at_work.subscribe("new").await;
        at_work.publish("c").await;
    });
    let (store, before_commit) = (bench.store.clone(), Mutex::new(Some(meanwhile as BoxFuture<'static, ()>)));
    let interrupted = Arc::new(Interrupted { store, before_read: Meanwhile::default(), before_commit });
    let sessions = Sessions::new(bench.streams.clone(), interrupted, queued(), &Metrics::new());
    let news = bench.log("news").await;
    while sessions.step(news).await.expect("delivered") == Left::More {}
    assert_eq!(bench.content("new").await, "c");
    assert_eq!(bench.content("s0").await, "");
}

#[tokio::test]
async fn what_a_publisher_that_went_away_left_is_found() {
    let bench = Bench::with(queued(), 2).await;
    bench.follow().await;
    let held = bench.store.hold().await;
    {
        let publishing = bench.publish("a");
        tokio::pin!(publishing);
        assert!(futures_util::poll!(&mut publishing).is_pending());
        // It goes away here; whether its append is made is open.
    }
    drop(held);
    // The same of one whose append was made.
    let content = Commit::new()
        .with(tidings_engine::log::Append::new(bench.log("news").await, vec![Bytes::from_static(b"b")]));
    Commits::<SessionTable>::commit(&bench.store, content).await.expect("made");
    let following = tokio::spawn(bench.sessions.clone().follow());
    bench.sessions.look_for_more().await.expect("it can be seen");
    eventually("it is delivered", async || bench.content("s1").await == bench.content("news").await).await;
    following.abort();
}
