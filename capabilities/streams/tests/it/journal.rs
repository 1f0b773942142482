//! Whoever hears the journal of a project hears each message that a client appends to a stream, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::journal::Journals;
use tidings_engine::journal::fixture::{Heard, HeardByTests, heard};
use tidings_engine::log::fixture::StandIn;
use tidings_engine::log::{
    Commit, Commits, Conditions, Logs, Memory, Operation, Record, Span, StoreError, Then,
};
use tidings_engine::{Bus, Clock, ManualClock};
use tidings_model::{LogId, Position, Producer, ProducerId, ProjectId, StreamId, Timestamp};
use tidings_streams::{
    AppendRequest, Body, ContentType, CreateRequest, Created, ForkRequest, Freshness, Retention, StreamError,
    StreamKey, Streams, Table,
};

/// Streams of a project whose journal is heard.
struct World {
    store: Memory<Table>,
    full: Arc<AtomicBool>,
    hearer: Arc<HeardByTests>,
    streams: Streams,
    journal: LogId,
}

/// A store whose disk may be full.
struct Disk {
    memory: Memory<Table>,
    full: Arc<AtomicBool>,
}

impl StandIn for Disk {
    type Store = Memory<Table>;

    fn store(&self) -> &Memory<Table> {
        &self.memory
    }

    fn before_commit<'a>(&'a self, _: &'a [Operation]) -> BoxFuture<'a, Result<(), StoreError>> {
        let full = self.full.load(Ordering::SeqCst);
        std::future::ready(if full { Err(StoreError::NoSpace) } else { Ok(()) }).boxed()
    }
}

impl World {
    async fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_millis(1_000_000)));
        let (bus, full) = (Bus::new(), Arc::new(AtomicBool::default()));
        let store = Memory::new(bus.clone(), clock.clone());
        let journal = store.reserve().await.expect("a number");
        store.commit(Commit::new().with(Operation::create(journal))).await.expect("made");
        let hearer = Arc::new(HeardByTests::default());
        hearer.hear(&key("s").project, "stream", Some(journal));
        let disk = Disk { memory: store.clone(), full: full.clone() };
        let streams = Streams::new(Arc::new(disk), bus, clock, Default::default())
            .journaled(Journals::new(hearer.clone()));
        Self { store, full, hearer, streams, journal }
    }

    async fn create(&self, key: &StreamKey, request: CreateRequest) -> Created {
        self.streams.create(key, &request).await.expect("created")
    }

    async fn append(&self, key: &StreamKey, request: &AppendRequest) -> Result<Freshness, StreamError> {
        self.streams.append(key, request).await.map(|appended| appended.freshness)
    }

    async fn heard(&self) -> Vec<Heard> {
        heard(&self.store, self.journal).await
    }

    /// Types and contents of all events.
    async fn events(&self) -> Vec<(String, String)> {
        let heard = self.heard().await;
        heard.iter().map(Heard::event).map(|(event, content)| (event.into(), content.into())).collect()
    }

    async fn records(&self, key: &StreamKey) -> Vec<Record> {
        let log = self.streams.describe(key).await.expect("there").stream.log;
        self.store.read(log, Span::after(Position::ZERO)).await.expect("readable").records
    }
}

fn key(id: &str) -> StreamKey {
    let project = ProjectId::parse("app").expect("valid");
    StreamKey { project, id: StreamId::parse(id).expect("valid") }
}

fn with_body(content_type: &str, body: &'static str) -> CreateRequest {
    CreateRequest {
        content_type: ContentType::parse(content_type),
        retention: Retention::default(),
        expiry: None,
        body: Bytes::from_static(body.as_bytes()),
        then: Then::StayOpen,
        fork: None,
    }
}

fn empty(content_type: &str) -> CreateRequest {
    with_body(content_type, "")
}

fn fork_of(source: &str, sub_offset: u64, body: &'static str) -> CreateRequest {
    let fork = ForkRequest { source: key(source), offset: Some(Position::ZERO), sub_offset };
    CreateRequest { fork: Some(fork), content_type: None, ..with_body("text/plain", body) }
}

fn content(content_type: &str, body: &'static str) -> AppendRequest {
    let content_type = ContentType::parse(content_type).expect("valid");
    AppendRequest {
        body: Body::Content(content_type, Bytes::from_static(body.as_bytes())),
        conditions: Conditions::default(),
        then: Then::StayOpen,
    }
}

fn text(body: &'static str) -> AppendRequest {
    content("text/plain", body)
}

fn pair(event: &str, content: &str) -> (String, String) {
    (event.to_owned(), content.to_owned())
}

#[tokio::test]
async fn each_message_of_an_append_is_an_event_in_its_commit() {
    let world = World::new().await;
    let (orders, chat) = (key("team/a:orders"), key("chat"));
    world.create(&orders, empty("application/json")).await;
    world.create(&chat, empty("text/plain;charset=utf-8")).await;
    world.append(&orders, &content("application/json", r#"[{"n":1}, 2,"three"]"#)).await.expect("appended");
    world.append(&chat, &text("hello")).await.expect("appended");
    world.append(&orders, &content("application/json", r#"{"n":4}"#)).await.expect("appended");
    let events = world.events().await;
    let orders_event = |content| pair("stream.team.a.orders", content);
    let expected = [
        orders_event(r#"{"n":1}"#),
        orders_event("2"),
        orders_event(r#""three""#),
        pair("stream.chat", "hello"),
        orders_event(r#"{"n":4}"#),
    ];
    assert_eq!(events, expected);
    assert_eq!(world.hearer.appended(), [world.journal; 3], "once for each append");
    let heard = world.heard().await;
    for (key, content_type) in [(&orders, "application/json"), (&chat, "text/plain;charset=utf-8")] {
        let own: Vec<_> = heard.iter().filter(|heard| heard.header.name == key.id.as_str()).collect();
        let records = world.records(key).await;
        assert_eq!(own.len(), records.len());
        for (event, record) in own.iter().zip(&records) {
            assert_eq!((event.origin.position, event.commit), (record.position, record.commit));
            assert_eq!((&*event.header.field, &*event.header.content_type), ("stream", content_type));
        }
    }
}

#[tokio::test]
async fn initial_content_is_heard_and_what_a_fork_inherits_is_not() {
    let world = World::new().await;
    world.create(&key("empty"), empty("text/plain")).await;
    world.create(&key("json"), with_body("application/json", "[1,2]")).await;
    world.create(&key("source"), with_body("text/plain", "abcdef")).await;
    world.create(&key("closed"), CreateRequest { then: Then::Close, ..with_body("text/plain", "all") }).await;
    world.create(&key("bare"), CreateRequest { then: Then::Close, ..empty("text/plain") }).await;
    // The first fork inherits a whole record, the second and the third a part of it, which is copied.
    world.create(&key("fork"), fork_of("source", 6, "")).await;
    world.create(&key("part"), fork_of("source", 3, "")).await;
    world.create(&key("more"), fork_of("source", 3, "own")).await;
    world.create(&key("shut"), CreateRequest { then: Then::Close, ..fork_of("source", 2, "") }).await;
    assert_eq!(world.records(&key("more")).await.len(), 2, "the part, and its own");
    let repeated = world.create(&key("json"), with_body("application/json", "[1,2]")).await;
    assert!(matches!(repeated, Created::Existed(_)));
    let expected = [
        pair("stream.json", "1"),
        pair("stream.json", "2"),
        pair("stream.source", "abcdef"),
        pair("stream.closed", "all"),
        pair("stream.more", "own"),
    ];
    assert_eq!(world.events().await, expected);
    assert_eq!(world.hearer.appended().len(), 4);
}

#[tokio::test]
async fn the_last_message_is_heard_and_closing_alone_is_not() {
    let world = World::new().await;
    for id in ["s", "t"] {
        world.create(&key(id), empty("text/plain")).await;
    }
    let last = AppendRequest { then: Then::Close, ..text("last") };
    world.append(&key("s"), &last).await.expect("appended");
    let close = AppendRequest { body: Body::Nothing, ..last };
    assert_eq!(world.append(&key("t"), &close).await.expect("closed"), Freshness::ClosedNow);
    assert_eq!(world.append(&key("t"), &close).await.expect("closed"), Freshness::WasClosed);
    assert_eq!(world.events().await, [pair("stream.s", "last")]);
}

#[tokio::test]
async fn what_is_repeated_or_refused_is_not_heard() {
    let world = World::new().await;
    world.create(&key("s"), empty("text/plain")).await;
    let stamped = |sequence, body| {
        let producer = Producer { id: ProducerId::parse("p").expect("valid"), epoch: 0, sequence };
        AppendRequest {
            conditions: Conditions { producer: Some(producer), ..Conditions::default() },
            ..text(body)
        }
    };
    assert_eq!(world.append(&key("s"), &stamped(0, "one")).await.expect("new"), Freshness::New);
    let repeated = world.append(&key("s"), &stamped(0, "one")).await.expect("known");
    assert!(matches!(repeated, Freshness::Repeated { .. }));
    assert!(world.append(&key("s"), &stamped(2, "gap")).await.is_err());
    let mut moved = text("late");
    moved.conditions.tail = Some(Position::ZERO);
    assert!(matches!(world.append(&key("s"), &moved).await, Err(StreamError::TailMoved { .. })));
    assert!(world.append(&key("s"), &content("application/json", "1")).await.is_err());
    world.full.store(true, Ordering::SeqCst);
    let refused = world.append(&key("s"), &text("no space")).await;
    assert!(matches!(refused, Err(StreamError::Store(StoreError::NoSpace))));
    world.full.store(false, Ordering::SeqCst);
    world.append(&key("s"), &text("two")).await.expect("there is space again");
    assert_eq!(world.events().await, [pair("stream.s", "one"), pair("stream.s", "two")]);
    assert_eq!(world.records(&key("s")).await.len(), 2);
    assert_eq!(world.hearer.appended().len(), 2);
}

#[tokio::test]
async fn nothing_is_entered_where_nobody_hears() {
    let world = World::new().await;
    let project = ProjectId::parse("other").expect("valid");
    let elsewhere = StreamKey { project, ..key("s") };
    world.create(&elsewhere, with_body("text/plain", "x")).await;
    world.append(&elsewhere, &text("y")).await.expect("appended");
    assert_eq!(world.hearer.asked(), 2, "once for each append");
    world.hearer.hear(&key("s").project, "stream", None);
    world.create(&key("s"), with_body("text/plain", "x")).await;
    assert_eq!(world.events().await, []);
    assert_eq!(world.records(&elsewhere).await.len(), 2);
}

#[tokio::test]
async fn an_append_succeeds_when_the_journal_was_deleted_meanwhile() {
    let world = World::new().await;
    world.store.commit(Commit::new().with(Operation::Delete(world.journal))).await.expect("made");
    world.create(&key("s"), with_body("text/plain", "x")).await;
    assert_eq!(world.append(&key("s"), &text("y")).await.expect("appended"), Freshness::New);
    assert_eq!(world.records(&key("s")).await.len(), 2);
    assert!(world.hearer.appended().is_empty());
}

#[tokio::test]
async fn events_stay_when_their_stream_is_trimmed_or_deleted() {
    let world = World::new().await;
    let retention = Retention { messages: Some(1), ..Retention::default() };
    world.create(&key("s"), CreateRequest { retention, ..empty("application/json") }).await;
    // So much that the append is trimmed in its own commit.
    let many = "[0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9]";
    for _ in 0..3 {
        world.append(&key("s"), &content("application/json", many)).await.expect("appended");
    }
    assert!(world.records(&key("s")).await.len() < 120, "it was trimmed by an append");
    world.streams.delete(&key("s")).await.expect("deleted");
    let expected: Vec<_> = (0..120).map(|n| pair("stream.s", &(n % 10).to_string())).collect();
    assert_eq!(world.events().await, expected);
}
