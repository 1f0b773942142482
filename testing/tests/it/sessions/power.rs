//! Who hears what and what was heard hold when the power goes at any moment.
//!
//! On a simulated disk, some publish, some subscribe, leave and end sessions, time passes and sessions expire, and the
//! follower delivers. The power is cut at a random operation of the disk. On what is left both registries must agree, and
//! every live subscriber must have each message from where it began, in order and once; the journal of the project must
//! have each message of a source, and nothing else. Then it all goes on, until the next cut.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tidings_embedded::Embedded;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_engine::follow::{Left, Work};
use tidings_engine::journal::Journals;
use tidings_engine::journal::fixture::{HeardByTests, heard};
use tidings_engine::log::{Commit, Commits, Conditions, Logs, Operation, Record, Span, StoreError, Then};
use tidings_engine::{Bus, Clock, ManualClock, Metrics};
use tidings_model::{LogId, Position, ProjectId, StreamId, Timestamp};
use tidings_server::Catalog;
use tidings_sessions::{Change, Mode, Options, SessionError, Sessions, Store, SubscribeRequest, Undelivered};
use tidings_streams::{
    AppendRequest, Body, ContentType, CreateRequest, Owner, Retention, StreamError, StreamKey, Streams,
};

/// Power cuts in every run of the tests; `make test-all` sets more.
const CUTS: u64 = 160;
const CUTS_PER_STORE: u64 = 4;
const PEOPLE: u64 = 3;
const SOURCES: [&str; 2] = ["news", "sport"];
const TTL: Duration = Duration::from_secs(60);

fn cuts() -> u64 {
    std::env::var("TIDINGS_POWER_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(CUTS)
}

fn key(id: &str) -> StreamKey {
    let project = ProjectId::parse("app").expect("a valid id");
    StreamKey { project, id: StreamId::parse(id).expect("a valid id") }
}

fn text_plain() -> ContentType {
    ContentType::parse("text/plain").expect("valid")
}

/// Whether it could not be done because the power is gone.
fn is_cut(error: &SessionError) -> bool {
    matches!(error, SessionError::Stream(StreamError::Store(StoreError::Unavailable(_))))
}

/// A server's sessions on a disk, without the server.
#[derive(Clone)]
struct World {
    store: Embedded<Catalog>,
    streams: Streams,
    sessions: Sessions,
    clock: ManualClock,
    journal: Journal,
}

/// The journal of the project, and who hears it.
#[derive(Clone, Default)]
struct Journal {
    hearer: Arc<HeardByTests>,
    log: Arc<OnceLock<LogId>>,
}

impl World {
    fn open(
        disk: &SimulatedDisk,
        seed: u64,
        clock: &ManualClock,
        journal: &Journal,
    ) -> Result<Self, tidings_embedded::OpenError> {
        let (bus, shared): (_, Arc<dyn Clock>) = (Bus::new(), Arc::new(clock.clone()));
        let small = tidings_embedded::Options {
            wal_file_bytes: 64 << 10,
            memtable_bytes: 16 << 10,
            reserve_bytes: 0,
            secret: seed,
            ..Default::default()
        };
        let store = Embedded::<Catalog>::open(Arc::new(disk.clone()), small, bus.clone(), shared.clone())?;
        let kept: Arc<dyn Store> = Arc::new(store.clone());
        let streams = Streams::new(Arc::new(store.clone()), bus, shared, Default::default())
            .held(Arc::new(Undelivered::new(kept.clone())))
            .journaled(Journals::new(journal.hearer.clone()));
        // Sources have about as many subscribers, so that publishes are inline and queued in turn, in several commits.
        let options =
            Options { ttl: TTL, fanout_queue_threshold: 4, targets_per_commit: 2, ..Options::default() };
        let sessions = Sessions::new(streams.clone(), kept, options, &Metrics::new());
        Ok(Self { store, streams, sessions, clock: clock.clone(), journal: journal.clone() })
    }

    async fn records(&self, log: LogId) -> Vec<Record> {
        let span = Span { bytes: usize::MAX, records: usize::MAX, ..Span::after(Position::ZERO) };
        self.store.read(log, span).await.expect("what is there can be read").records
    }

    async fn source(&self, source: &str) -> (LogId, Position) {
        let found = self.streams.describe(&key(source)).await.expect("sources stay");
        (found.stream.log, found.status.tail)
    }

    /// The log of a session that can be used.
    async fn session(&self, session: &str) -> Option<LogId> {
        Some(self.streams.describe(&key(session)).await.ok()?.stream.log)
    }

    async fn hears(&self, session: LogId, source: LogId) -> bool {
        let row = self.store.session(session).await.expect("readable");
        row.is_some_and(|row| row.subscriptions().any(|subscription| subscription.source == source))
    }

    /// What a source's row says is what the rows of sessions say, and each session has a stream.
    fn check_registries(&self, what: &str) {
        self.store.look(|catalog, _| {
            let (mut heard, mut hearing) = (BTreeSet::new(), BTreeSet::new());
            for row in catalog.sessions.written() {
                match row {
                    Change::RestoreSource { source, .. } => {
                        let row = catalog.sessions.source(source).expect("written down");
                        assert!(!row.targets.is_empty(), "{what}: a source that nobody hears");
                        heard.extend(row.targets.iter().map(|session| (session, source)));
                    }
                    Change::RestoreSession { session, .. } => {
                        let row = catalog.sessions.session(session).expect("written down");
                        hearing.extend(row.subscriptions().map(|one| (session, one.source)));
                    }
                    other => panic!("{what}: {other:?}"),
                }
            }
            assert_eq!(heard, hearing, "{what}: both registries agree");
            let of_sessions = catalog.streams.iter().filter(|(_, stream)| stream.owner == Owner::Session);
            let streams: BTreeSet<_> = of_sessions.map(|(_, stream)| stream.log).collect();
            assert!(hearing.iter().all(|(session, _)| streams.contains(session)), "{what}: no stream");
            assert_eq!(catalog.sessions.len(), streams.len(), "{what}: each has a row");
        });
    }

    /// Each message of each source is in the journal, in order and once, and nothing else is.
    async fn check_journal(&self, what: &str) {
        let entered = heard(&self.store, *self.journal.log.get().expect("begun")).await;
        let mut messages = 0;
        for source in SOURCES {
            let (log, _) = self.source(source).await;
            let records = self.records(log).await;
            let of_it: Vec<_> = entered
                .iter()
                .filter(|heard| heard.header.name == source)
                .map(|heard| (heard.origin.position, heard.commit, &heard.content))
                .collect();
            let expected: Vec<_> =
                records.iter().map(|record| (record.position, record.commit, &record.payload)).collect();
            assert_eq!(of_it, expected, "{what}: the journal of {source}");
            messages += records.len();
        }
        assert_eq!(entered.len(), messages, "{what}: the journal has something else");
    }

    /// Delivers all that is left.
    async fn deliver(&self) {
        for source in self.store.behind().await.expect("readable") {
            while self.sessions.step(source).await.expect("delivered") == Left::More {}
        }
        assert_eq!(self.store.behind().await.expect("readable"), []);
    }
}

/// What happened, to see that the play is one.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    inline: u64,
    queued: u64,
    unsubscribed: u64,
    deleted: u64,
    expired: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.inline += other.inline;
        self.queued += other.queued;
        self.unsubscribed += other.unsubscribed;
        self.deleted += other.deleted;
        self.expired += other.expired;
    }
}

/// What is known of a session by whoever made it.
#[derive(Debug)]
struct Known {
    /// It was told that it lives at least so long.
    lives_until: Timestamp,
    /// Somebody has tried to end it.
    ended: bool,
    hears: BTreeMap<&'static str, Hears>,
}

/// What is known of a subscription.
#[derive(Debug)]
struct Hears {
    /// The source's tail before it was asked for,
    asked_at: Position,
    /// and when it held for sure.
    held_at: Option<Position>,
    /// Somebody has tried to end it.
    ended: bool,
}

/// Somebody who publishes and has sessions, and remembers what was acknowledged.
struct Person {
    number: u64,
    rng: fastrand::Rng,
    /// Messages that were acknowledged.
    published: Vec<(&'static str, Bytes)>,
    messages: u64,
    sessions: BTreeMap<String, Known>,
    begun: u64,
    seen: Tally,
}

impl Person {
    fn new(seed: u64, number: u64) -> Self {
        Self {
            number,
            rng: fastrand::Rng::with_seed(seed * PEOPLE + number),
            published: Vec::new(),
            messages: 0,
            sessions: BTreeMap::new(),
            begun: 0,
            seen: Tally::default(),
        }
    }

    /// Works until the power is gone.
    async fn work(mut self, world: World) -> Self {
        for _ in 0..10_000 {
            let done = match self.rng.u8(..100) {
                0..60 => self.publish(&world).await,
                60..76 => self.subscribe(&world).await,
                76..84 => self.unsubscribe(&world).await,
                84..90 => self.touch(&world).await,
                90..94 => self.delete(&world).await,
                94..97 => self.let_time_pass(&world).await,
                _ => {
                    let (store, flush) = (world.store.clone(), self.rng.bool());
                    // Fails when the power is gone; the next step will too.
                    let work = move || if flush { store.flush() } else { store.merge_now() };
                    let _ = tokio::task::spawn_blocking(work).await;
                    Ok(())
                }
            };
            match done {
                Ok(()) => {}
                Err(error) if is_cut(&error) => break,
                // It was told to try again, or a session has expired meanwhile.
                Err(SessionError::Contended | SessionError::NotFound) => {}
                Err(error) => panic!("{error}"),
            }
        }
        self
    }

    fn any_session(&mut self) -> Option<String> {
        let count = self.sessions.len();
        (count > 0).then(|| self.sessions.keys().nth(self.rng.usize(..count)).expect("counted").clone())
    }

    fn any_source(&mut self) -> &'static str {
        SOURCES[self.rng.usize(..SOURCES.len())]
    }

    async fn publish(&mut self, world: &World) -> Result<(), SessionError> {
        let source = self.any_source();
        self.messages += 1;
        let most = if self.rng.u8(..8) == 0 { 3000 } else { 40 };
        let padding = "x".repeat(self.rng.usize(..most));
        let text = Bytes::from(format!("{}.{}{padding}", self.number, self.messages));
        let request = AppendRequest {
            body: Body::Content(text_plain(), text.clone()),
            conditions: Conditions::default(),
            then: Then::StayOpen,
        };
        let published = world.sessions.publish(&key(source), &request).await?;
        self.published.push((source, text));
        match published.fanout.mode {
            Mode::Inline if published.fanout.count > 0 => self.seen.inline += 1,
            Mode::Queued => self.seen.queued += 1,
            _ => {}
        }
        Ok(())
    }

    /// A session hears each source at most once in its life, so that it is plain what it must have.
    async fn subscribe(&mut self, world: &World) -> Result<(), SessionError> {
        let known = if self.rng.bool() { self.any_session() } else { None };
        let session = known.unwrap_or_else(|| {
            self.begun += 1;
            format!("p{}-{}", self.number, self.begun)
        });
        let source = self.any_source();
        let now = world.clock.now();
        let known = self.sessions.entry(session.clone()).or_insert_with(|| Known {
            lives_until: now + TTL,
            ended: false,
            hears: BTreeMap::new(),
        });
        // An id is used for one session only.
        if known.ended || known.hears.contains_key(source) || known.lives_until < now {
            return Ok(());
        }
        let asked_at = world.source(source).await.1;
        known.hears.insert(source, Hears { asked_at, held_at: None, ended: false });
        let request = SubscribeRequest {
            project: key(source).project,
            session: key(&session).id,
            source: key(source).id,
            envelope: None,
        };
        let subscribed = world.sessions.subscribe(&request).await;
        let known = self.sessions.get_mut(&session).expect("just there");
        if subscribed.as_ref().is_err_and(|error| !is_cut(error)) {
            known.hears.remove(source);
        }
        let (subscribed, held_at) = (subscribed?, world.source(source).await.1);
        known.lives_until = subscribed.expires_at;
        known.hears.get_mut(source).expect("just there").held_at = Some(held_at);
        if subscribed.is_new {
            // It had expired just before: what it heard is gone with it.
            known.hears.retain(|heard, _| *heard == source);
        }
        Ok(())
    }

    async fn unsubscribe(&mut self, world: &World) -> Result<(), SessionError> {
        let (Some(session), source) = (self.any_session(), self.any_source()) else { return Ok(()) };
        let known = self.sessions.get_mut(&session).expect("one of them");
        let Some(hears) = known.hears.get_mut(source) else { return Ok(()) };
        hears.ended = true;
        let key = key(&session);
        world.sessions.unsubscribe(&key.project, &key.id, &StreamId::parse(source).expect("valid")).await?;
        if let Some(log) = world.session(&session).await {
            assert!(!world.hears(log, world.source(source).await.0).await);
        }
        self.seen.unsubscribed += 1;
        Ok(())
    }

    async fn touch(&mut self, world: &World) -> Result<(), SessionError> {
        let Some(session) = self.any_session() else { return Ok(()) };
        let lives_until = world.sessions.touch(&key(&session)).await?;
        self.sessions.get_mut(&session).expect("one of them").lives_until = lives_until;
        Ok(())
    }

    async fn delete(&mut self, world: &World) -> Result<(), SessionError> {
        let Some(session) = self.any_session() else { return Ok(()) };
        self.sessions.get_mut(&session).expect("one of them").ended = true;
        world.sessions.delete(&key(&session)).await?;
        self.sessions.remove(&session);
        self.seen.deleted += 1;
        Ok(())
    }

    async fn let_time_pass(&mut self, world: &World) -> Result<(), SessionError> {
        world.clock.advance(TTL / 8);
        self.seen.expired += world.sessions.clean_up().await?.expired as u64;
        Ok(())
    }

    /// Compares what there is with what was acknowledged. Nobody publishes, and nothing is left to deliver.
    async fn settle(&mut self, world: &World, what: &str) {
        let mut sources = BTreeMap::new();
        for source in SOURCES {
            let (log, tail) = world.source(source).await;
            sources.insert(source, (log, tail, world.records(log).await));
        }
        for (source, text) in &self.published {
            let found = sources[source].2.iter().filter(|record| record.payload == text).count();
            assert_eq!(found, 1, "{what}: {text:?} was acknowledged in {source}");
        }
        let mut gone = Vec::new();
        for (session, known) in &mut self.sessions {
            // It may have expired; if it is there, it may be another one.
            if known.lives_until <= world.clock.now() {
                gone.push(session.clone());
                continue;
            }
            let Some(log) = world.session(session).await else {
                let was_told = known.hears.values().any(|hears| hears.held_at.is_some());
                assert!(known.ended || !was_told, "{what}: {session} is missing: {known:?}");
                gone.push(session.clone());
                continue;
            };
            known.ended = false;
            let got = world.records(log).await;
            let mut never = Vec::new();
            for (source, hears) in &mut known.hears {
                let (source_log, tail, all) = &sources[source];
                let is_heard = world.hears(log, *source_log).await;
                let of_it: Vec<_> = got.iter().filter(|record| origin(record).0 == *source_log).collect();
                if hears.held_at.is_none() && !is_heard {
                    // It was asked for, and not answered, and does not hold.
                    assert!(of_it.is_empty(), "{what}: {session} heard {source}");
                    never.push(*source);
                    continue;
                }
                assert!(is_heard || hears.ended, "{what}: {session} does not hear {source} any more");
                check_heard(&of_it, all, hears, is_heard, &format!("{what}: {session} of {source}"));
                if is_heard {
                    hears.ended = false;
                    hears.held_at.get_or_insert(*tail);
                }
            }
            known.hears.retain(|source, _| !never.contains(source));
        }
        self.sessions.retain(|session, _| !gone.contains(session));
    }
}

fn origin(record: &Record) -> (LogId, Position) {
    let origin = record.origin.expect("a session has only references");
    (origin.log, origin.position)
}

/// What a session has of a source is a range of it, without a gap and nothing twice: from where it began, and, if it
/// still hears it, up to the end.
fn check_heard(got: &[&Record], all: &[Record], hears: &Hears, is_heard: bool, what: &str) {
    let first = match got.first() {
        Some(first) => origin(first).1,
        None => Position::MAX,
    };
    let begin = all.partition_point(|record| record.position < first);
    let range = &all[begin..];
    let positions: Vec<_> = got.iter().map(|record| origin(record).1).collect();
    let expected: Vec<_> = range.iter().map(|record| record.position).take(got.len()).collect();
    assert_eq!(positions, expected, "{what}");
    for (record, original) in got.iter().zip(range) {
        assert_eq!(record.payload, original.payload, "{what}");
        assert_eq!(record.origin.expect("a reference").at, original.at, "{what}");
    }
    assert!(first > hears.asked_at, "{what}: something from before it subscribed");
    if is_heard {
        assert_eq!(got.len(), range.len(), "{what}: all up to the end");
        if let Some(held_at) = hears.held_at {
            let missed = all[..begin].iter().filter(|record| record.position > held_at).count();
            assert_eq!(missed, 0, "{what}: all from where it began");
        }
    }
}

/// One store and its power cuts.
async fn life(seed: u64) -> Tally {
    let mut rng = fastrand::Rng::with_seed(seed);
    let clock = ManualClock::at(Timestamp::from_millis(1_763_294_400_000));
    let mut disk = SimulatedDisk::new();
    let journal = Journal::default();
    begin(&World::open(&disk, seed, &clock, &journal).expect("a new store")).await;
    let mut people: Vec<_> = (0..PEOPLE).map(|number| Person::new(seed, number)).collect();
    for cut in 0..CUTS_PER_STORE {
        let what = format!("seed {seed}, cut {cut}");
        disk.cut_power_at(rng.u64(1..900));
        match World::open(&disk, seed, &clock, &journal) {
            Ok(world) => people = work_until_cut(world, people).await,
            Err(tidings_embedded::OpenError::Io { .. }) => {}
            Err(error) => panic!("{what}: {error}"),
        }
        disk = if rng.u8(..4) == 0 { disk.after_kill() } else { disk.after_power_cut(&mut rng) };
        let world =
            World::open(&disk, seed, &clock, &journal).unwrap_or_else(|error| panic!("{what}: {error}"));
        world.check_registries(&what);
        world.check_journal(&what).await;
        world.deliver().await;
        for person in &mut people {
            person.settle(&world, &what).await;
        }
        world.sessions.clean_up().await.expect("cleaned up");
        world.check_registries(&format!("{what}, cleaned up"));
    }
    let mut seen = Tally::default();
    people.iter().for_each(|person| seen += person.seen);
    seen
}

async fn begin(world: &World) {
    let log = world.store.reserve().await.expect("a number");
    let create = Commit::new().with(Operation::create(log));
    Commits::<tidings_streams::Table>::commit(&world.store, create).await.expect("made");
    world.journal.log.set(log).expect("begun once");
    world.journal.hearer.hear(&key(SOURCES[0]).project, "stream", Some(log));
    for source in SOURCES {
        let source_is = CreateRequest {
            content_type: Some(text_plain()),
            retention: Retention::default(),
            expiry: None,
            body: Bytes::new(),
            then: Then::StayOpen,
            fork: None,
        };
        world.streams.create(&key(source), &source_is).await.expect("created");
    }
}

async fn work_until_cut(world: World, people: Vec<Person>) -> Vec<Person> {
    let following = tokio::spawn(world.sessions.clone().follow());
    let work = |person: Person| tokio::spawn(person.work(world.clone()));
    let tasks: Vec<_> = people.into_iter().map(work).collect();
    let mut people = Vec::new();
    for task in tasks {
        people.push(task.await.expect("nothing was wrong"));
    }
    following.abort();
    // It holds the store until it has ended.
    let _ = following.await;
    people
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_registries_agree_and_nothing_is_lost_or_comes_twice_when_the_power_goes() {
    let mut seen = Tally::default();
    for seed in 0..cuts() / CUTS_PER_STORE {
        seen += life(seed).await;
    }
    let Tally { inline, queued, unsubscribed, deleted, expired } = seen;
    assert!([inline, queued, unsubscribed, deleted, expired].iter().all(|&times| times > 0), "{seen:?}");
}
