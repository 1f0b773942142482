use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tidings_auth::{Action, Admission, Gate, Given, Projects, Randomness, Resource, Route, Table};
use tidings_engine::deliver::{
    Batch, Channels, Encode, FrameChunks, Join, Limits, Lost, Source, Subscription,
};
use tidings_engine::log::{Append, Commit, Commits, Logs, Memory, Operation, Page, Span};
use tidings_engine::{Bus, ManualClock};
use tidings_model::{LogId, Position, ProjectId};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;
use crate::live::FeedOptions;
use crate::live::feed::Wire;
use crate::live::protocol::FeedProtocol;

/// Panics when it is asked whether something may be heard, or what is said in silence, once it was told to.
#[derive(Clone, Default)]
struct Broken(Arc<AtomicBool>);

impl Broken {
    fn check(&self) {
        assert!(!self.0.load(Ordering::SeqCst), "a feed that panics");
    }
}

impl FeedProtocol for Broken {
    fn may_receive(&self) -> bool {
        self.check();
        true
    }

    fn heartbeat(&mut self, _: Position) -> Option<Bytes> {
        self.check();
        None
    }
}

struct NoRandomness;

impl Randomness for NoRandomness {
    fn fill(&self, _: &mut [u8]) {}
}

struct OfLog(Arc<Memory<Table>>, LogId);

impl Source for OfLog {
    fn read(&self, span: Span) -> BoxFuture<'_, Result<Page, Lost>> {
        Box::pin(async move { self.0.read(self.1, span).await.map_err(Lost::from) })
    }
}

/// Writes payloads one behind the other.
struct Payloads;

impl Encode for Payloads {
    fn encode(&self, batch: &Batch<'_>, _: u64) -> FrameChunks {
        let payloads: Vec<_> = batch.records.iter().map(|record| &record.payload[..]).collect();
        Bytes::from(payloads.concat()).into()
    }
}

/// A log, and everybody who reads it live.
struct World {
    clock: ManualClock,
    store: Arc<Memory<Table>>,
    channels: Channels,
    live_connections: Arc<LiveConnections>,
    log: LogId,
}

impl World {
    async fn new() -> Self {
        let (bus, clock) = (Bus::new(), ManualClock::at(Timestamp::from_millis(1)));
        let store = Arc::new(Memory::<Table>::new(bus.clone(), Arc::new(clock.clone())));
        let log = store.reserve().await.expect("a number");
        store.commit(Commit::new().with(Operation::create(log))).await.expect("a new log");
        Self {
            clock,
            store,
            channels: Channels::new(bus, Limits::default()),
            live_connections: Arc::default(),
            log,
        }
    }

    fn subscription(&self) -> Subscription {
        self.channels.join(Join {
            log: self.log,
            form: "payloads",
            source: Arc::new(OfLog(self.store.clone(), self.log)),
            encode: Arc::new(Payloads),
            tail: Position::ZERO,
            after: Position::ZERO,
            stamp: 0,
        })
    }

    /// A client that reads live, and the task of its socket.
    async fn reader(&self, protocol: Broken) -> (TcpStream, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let client = TcpStream::connect(listener.local_addr().expect("an address"));
        let (client, accepted) = tokio::join!(client, listener.accept());
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let projects = Projects::open(self.store.clone(), Arc::new(NoRandomness), Given::default());
        let gate = Gate::new(projects, Admission::Everybody, clock.clone());
        let project = ProjectId::default_project();
        let route = Route { action: Action::Read, project, resource: Resource::Project };
        let pass = gate.enter(route, None).await.expect("everybody is let in");
        let options = FeedOptions::new(None, Duration::from_secs(60), pass, clock.now()).expect("it holds");
        let options = options.with_heartbeat(Duration::from_secs(1)).with_protocol(Box::new(protocol));
        let feed = Feed::new(Some(self.subscription().into()), Wire::Plain, options);
        let (stream, live_connections) = (accepted.expect("a connection").0, &self.live_connections);
        let serving = Socket::serve(stream, feed, clock, live_connections);
        (client.expect("a connection"), tokio::spawn(serving))
    }

    async fn append(&self, text: &'static str) {
        let append = Append::new(self.log, vec![Bytes::from_static(text.as_bytes())]);
        self.store.commit(Commit::new().with(append)).await.expect("appended");
    }
}

async fn hears(client: &mut TcpStream, expected: &str) {
    let mut heard = vec![0; expected.len()];
    client.read_exact(&mut heard).await.expect("it goes on");
    assert_eq!(heard, expected.as_bytes());
}

async fn is_cut(mut client: TcpStream, serving: JoinHandle<()>) {
    serving.await.expect("its task ends well");
    assert_eq!(client.read(&mut [0; 16]).await.expect("an end"), 0);
}

#[tokio::test]
async fn a_live_answer_that_panics_when_it_is_woken_is_cut_and_the_others_hear() {
    let world = World::new().await;
    let protocol = Broken::default();
    let (mut broken, serving) = world.reader(protocol.clone()).await;
    let (mut well, _) = world.reader(Broken::default()).await;
    world.append("one ").await;
    hears(&mut broken, "one ").await;
    hears(&mut well, "one ").await;
    protocol.0.store(true, Ordering::SeqCst);
    world.append("two ").await;
    hears(&mut well, "two ").await;
    is_cut(broken, serving).await;
    world.append("three").await;
    hears(&mut well, "three").await;
    assert_eq!(
        (world.live_connections.len(), world.channels.readers(world.log)),
        (1, 1),
        "nothing is left of it"
    );
}

#[tokio::test]
async fn a_live_answer_that_panics_when_it_is_asked_is_cut_and_the_others_are_asked() {
    let world = World::new().await;
    let protocol = Broken::default();
    let (mut broken, serving) = world.reader(protocol.clone()).await;
    let (mut well, _) = world.reader(Broken::default()).await;
    world.append("one ").await;
    hears(&mut broken, "one ").await;
    hears(&mut well, "one ").await;
    protocol.0.store(true, Ordering::SeqCst);
    for _ in 0..5 {
        world.clock.advance(Duration::from_secs(1));
        world.live_connections.sweep(world.clock.now());
    }
    is_cut(broken, serving).await;
    world.append("two").await;
    hears(&mut well, "two").await;
    assert_eq!(world.live_connections.len(), 1, "nothing is left of it");
}
