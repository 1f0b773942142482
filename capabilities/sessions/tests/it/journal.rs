//! A published message is one event of its project, whoever subscribes and however it is delivered.

use std::sync::Arc;

use bytes::Bytes;
use tidings_engine::follow::{Left, Work};
use tidings_engine::journal::Journals;
use tidings_engine::journal::fixture::{Heard, HeardByTests, heard};
use tidings_engine::log::{Commit, Commits, Conditions, Logs, Memory, Operation, Record, Span, Then};
use tidings_engine::{Bus, Clock, ManualClock, Metrics};
use tidings_model::{LogId, Position, Producer, ProducerId, ProjectId, StreamId, Timestamp};
use tidings_sessions::contract::StreamsAndSessions;
use tidings_sessions::{Fanout, Mode, Options, Published, SessionError, Sessions, SubscribeRequest, Table};
use tidings_streams::{
    AppendRequest, Body, ContentType, CreateRequest, Freshness, Retention, StreamKey, Streams,
};

struct World {
    store: Memory<StreamsAndSessions>,
    hearer: Arc<HeardByTests>,
    metrics: Metrics,
    streams: Streams,
    sessions: Sessions,
    journal: LogId,
}

/// Whether somebody hears the journal.
#[derive(Clone, Copy, PartialEq)]
enum Hearing {
    On,
    Off,
}

impl World {
    /// A source `news`, and so many sessions that subscribe to it. A publish delivers to three by itself.
    async fn new(hearing: Hearing, sessions: usize, retention: Retention) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(Timestamp::from_millis(1_000_000)));
        let (bus, metrics) = (Bus::new(), Metrics::new());
        let store = Memory::<StreamsAndSessions>::new(bus.clone(), clock.clone());
        let hearer = Arc::new(HeardByTests::default());
        let streams = Streams::new(Arc::new(store.clone()), bus, clock, Default::default())
            .journaled(Journals::new(hearer.clone()));
        let options = Options { fanout_queue_threshold: 3, targets_per_commit: 2, ..Options::default() };
        let handle = Sessions::new(streams.clone(), Arc::new(store.clone()), options, &metrics);
        let journal = store.reserve().await.expect("a number");
        let world = Self { store, hearer, metrics, streams, sessions: handle, journal };
        world.commit(Operation::create(journal)).await;
        if hearing == Hearing::On {
            world.hearer.hear(&key("news").project, "stream", Some(journal));
        }
        let request = CreateRequest {
            content_type: ContentType::parse("application/json"),
            retention,
            expiry: None,
            body: Bytes::new(),
            then: Then::StayOpen,
            fork: None,
        };
        world.streams.create(&key("news"), &request).await.expect("created");
        for number in 0..sessions {
            world.subscribe(&format!("s{number}")).await;
        }
        world
    }

    async fn commit(&self, operation: Operation) {
        Commits::<Table>::commit(&self.store, Commit::new().with(operation)).await.expect("made");
    }

    async fn subscribe(&self, session: &str) {
        let (StreamKey { project, id: session }, source) = (key(session), key("news").id);
        let request = SubscribeRequest { project, session, source, envelope: None };
        self.sessions.subscribe(&request).await.expect("subscribed");
    }

    async fn publish(&self, request: &AppendRequest) -> Published {
        self.sessions.publish(&key("news"), request).await.expect("published")
    }

    async fn events(&self) -> Vec<String> {
        let heard = heard(&self.store, self.journal).await;
        assert!(heard.iter().all(|heard| heard.header.event_type == "stream.news"));
        assert!(heard.iter().all(|heard| (&*heard.header.field, &*heard.header.name) == ("stream", "news")));
        heard.iter().map(Heard::event).map(|(_, content)| content.to_owned()).collect()
    }

    async fn records(&self, stream: &str) -> Vec<Record> {
        let log = self.streams.describe(&key(stream)).await.expect("there").stream.log;
        self.store.read(log, Span::after(Position::ZERO)).await.expect("readable").records
    }

    async fn texts(&self, stream: &str) -> Vec<Bytes> {
        self.records(stream).await.into_iter().map(|record| record.payload).collect()
    }

    async fn source(&self) -> LogId {
        self.streams.describe(&key("news")).await.expect("there").stream.log
    }

    /// Lets the follower deliver all that is left.
    async fn deliver(&self) {
        let source = self.source().await;
        while self.sessions.step(source).await.expect("delivered") == Left::More {}
    }

    fn delivered(&self) -> String {
        let text = self.metrics.text();
        let is_count = |line: &&str| line.starts_with("tidings_session_deliveries_total");
        text.lines().filter(is_count).collect::<Vec<_>>().join("\n")
    }
}

fn key(id: &str) -> StreamKey {
    let project = ProjectId::parse("app").expect("valid");
    StreamKey { project, id: StreamId::parse(id).expect("valid") }
}

fn json(body: &'static str) -> AppendRequest {
    let content_type = ContentType::parse("application/json").expect("valid");
    AppendRequest {
        body: Body::Content(content_type, Bytes::from_static(body.as_bytes())),
        conditions: Conditions::default(),
        then: Then::StayOpen,
    }
}

#[tokio::test]
async fn a_publish_fans_out_alike_whether_it_is_heard_or_not() {
    for sessions in [0, 1, 3, 5] {
        let mut seen = Vec::new();
        for hearing in [Hearing::On, Hearing::Off] {
            let world = World::new(hearing, sessions, Retention::default()).await;
            let mut fanouts = Vec::new();
            for body in ["[1,2,3]", "4", "[5,6]"] {
                fanouts.push(world.publish(&json(body)).await.fanout);
            }
            world.deliver().await;
            let mut streams = Vec::new();
            for number in 0..sessions {
                streams.push(world.texts(&format!("s{number}")).await);
            }
            assert!(streams.iter().all(|texts| *texts == ["1", "2", "3", "4", "5", "6"]), "{streams:?}");
            match hearing {
                Hearing::On => assert_eq!(world.events().await, ["1", "2", "3", "4", "5", "6"]),
                Hearing::Off => assert!(world.events().await.is_empty()),
            }
            seen.push((fanouts, world.delivered()));
        }
        assert_eq!(seen[0], seen[1], "with {sessions} sessions");
        let (mode, successes) = if sessions > 3 { (Mode::Queued, 0) } else { (Mode::Inline, sessions) };
        let expected = Fanout { mode, count: sessions, successes, failures: 0 };
        assert!(seen[0].0.iter().all(|fanout| *fanout == expected), "{seen:?}");
    }
}

#[tokio::test]
async fn an_event_is_in_the_commit_of_its_message_however_that_is_delivered() {
    let world = World::new(Hearing::On, 0, Retention::default()).await;
    for number in 0..5 {
        world.publish(&json("[1,2]")).await;
        world.subscribe(&format!("s{number}")).await;
    }
    world.deliver().await;
    world.publish(&json("3")).await;
    let heard = heard(&world.store, world.journal).await;
    let events: Vec<_> = heard.iter().map(|heard| (heard.origin.position, heard.commit)).collect();
    let records = world.records("news").await;
    let expected: Vec<_> = records.iter().map(|record| (record.position, record.commit)).collect();
    assert_eq!((events.len(), events), (11, expected));
    assert_eq!(world.hearer.appended().len(), 6, "once for each publish");
}

#[tokio::test]
async fn what_the_follower_delivers_and_what_closes_a_stream_is_no_event() {
    let world = World::new(Hearing::On, 5, Retention::default()).await;
    world.publish(&json("1")).await;
    world.hearer.appended();
    world.deliver().await;
    let close = AppendRequest { body: Body::Nothing, then: Then::Close, ..json("") };
    world.sessions.append(&key("s0"), &close).await.expect("a session's stream can be closed");
    world.publish(&close).await;
    let refused = world.sessions.append(&key("s1"), &json("2")).await;
    assert!(matches!(refused, Err(SessionError::SessionStream)));
    assert_eq!(world.events().await, ["1"]);
    assert!(world.hearer.appended().is_empty());
    assert_eq!(world.texts("s1").await, ["1"]);
}

#[tokio::test]
async fn a_repeated_publish_is_not_heard_again() {
    for sessions in [0, 2, 5] {
        let world = World::new(Hearing::On, sessions, Retention::default()).await;
        let producer = Producer { id: ProducerId::parse("p").expect("valid"), epoch: 0, sequence: 0 };
        let conditions = Conditions { producer: Some(producer), ..Conditions::default() };
        let request = AppendRequest { conditions, ..json("1") };
        assert_eq!(world.publish(&request).await.appended.freshness, Freshness::New);
        let repeated = world.publish(&request).await;
        assert!(matches!(repeated.appended.freshness, Freshness::Repeated { .. }));
        assert_eq!(world.events().await, ["1"]);
        assert_eq!(world.hearer.appended().len(), 1);
    }
}

#[tokio::test]
async fn a_publish_that_also_trims_its_source_is_heard() {
    for sessions in [0, 2] {
        let retention = Retention { messages: Some(1), ..Retention::default() };
        let world = World::new(Hearing::On, sessions, retention).await;
        for _ in 0..4 {
            let published =
                world.publish(&json("[0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7]")).await;
            let Fanout { count, successes, failures, .. } = published.fanout;
            assert_eq!((count, successes, failures), (sessions, sessions, 0));
        }
        assert!(world.records("news").await.len() < 112, "it was trimmed by a publish");
        assert_eq!(world.events().await.len(), 112);
    }
}

#[tokio::test]
async fn a_publish_succeeds_when_the_journal_was_deleted_meanwhile() {
    for sessions in [0, 2, 5] {
        let world = World::new(Hearing::On, sessions, Retention::default()).await;
        world.commit(Operation::Delete(world.journal)).await;
        let Published { appended, fanout } = world.publish(&json("1")).await;
        assert_eq!((appended.freshness, fanout.count), (Freshness::New, sessions));
        world.deliver().await;
        for number in 0..sessions {
            assert_eq!(world.texts(&format!("s{number}")).await, ["1"]);
        }
        assert!(world.hearer.appended().is_empty());
    }
}
