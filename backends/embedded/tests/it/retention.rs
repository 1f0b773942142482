//! A stream keeps the same records as a plain list with the same limits, through kills, flushes and merges.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidings_embedded::Embedded;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_engine::log::{Conditions, LogTotals, Memory, Then};
use tidings_engine::{Bus, Clock, ManualClock};
use tidings_model::{Position, ProjectId, StreamId, Timestamp};
use tidings_streams::{
    AppendRequest, Body, ContentType, CreateRequest, ForkRequest, From, Options, Retention, Store,
    StreamError, StreamKey, Streams, Table,
};

use crate::book::small;

/// Streams on a store that can be closed and opened again.
struct Subject {
    disk: Option<SimulatedDisk>,
    embedded: Option<Embedded<Table>>,
    store: Arc<dyn Store>,
    streams: Streams,
    clock: ManualClock,
}

impl Subject {
    fn in_memory() -> Self {
        let clock = ManualClock::at(Timestamp::from_millis(1_763_294_400_000));
        let bus = Bus::new();
        let store: Arc<dyn Store> =
            Arc::new(Memory::<Table>::new(bus.clone(), Arc::new(clock.clone()) as Arc<dyn Clock>));
        let streams = Streams::new(store.clone(), bus, Arc::new(clock.clone()), Options::default());
        Self { disk: None, embedded: None, store, streams, clock }
    }

    fn in_files() -> Self {
        let mut subject = Self::in_memory();
        subject.disk = Some(SimulatedDisk::new());
        subject.open();
        subject
    }

    /// Opens the store on its disk, if it has one.
    fn open(&mut self) {
        let Some(disk) = self.disk.clone() else { return };
        let (bus, clock) = (Bus::new(), Arc::new(self.clock.clone()));
        let embedded = Embedded::open(Arc::new(disk), small(), bus.clone(), clock.clone()).expect("opens");
        self.store = Arc::new(embedded.clone());
        self.streams = Streams::new(self.store.clone(), bus, clock, Options::default());
        self.embedded = Some(embedded);
    }

    /// Kills the process and starts it again.
    fn kill(&mut self) {
        self.disk = self.disk.as_ref().map(SimulatedDisk::after_kill);
        self.open();
    }

    async fn upkeep(&self, rng: &mut fastrand::Rng) {
        if let Some(embedded) = self.embedded.clone() {
            let flush = rng.bool();
            let done = move || if flush { embedded.flush() } else { embedded.merge_now() };
            tokio::task::spawn_blocking(done).await.expect("no panic").expect("the disk is well");
        }
    }
}

/// What a stream should keep.
#[derive(Clone, Default)]
struct Model {
    limits: Retention,
    /// Position before the first record.
    start: Position,
    records: Vec<(Position, Timestamp, Bytes)>,
    forks: usize,
}

impl Model {
    /// Number of oldest records that are no longer kept.
    fn gone(&self, now: Timestamp) -> usize {
        let mut kept = LogTotals::of(self.records.iter().map(|(_, _, payload)| payload));
        let mut gone = 0;
        for (_, at, payload) in &self.records {
            let over = self.limits.messages.is_some_and(|max| kept.records > max)
                || self.limits.bytes.is_some_and(|max| kept.bytes > max && kept.records > 1)
                || self.limits.age.is_some_and(|age| *at + age <= now);
            if !over {
                break;
            }
            kept = kept - LogTotals::one(payload);
            gone += 1;
        }
        gone
    }
}

fn key(name: &str) -> StreamKey {
    StreamKey { project: ProjectId::default_project(), id: StreamId::parse(name).expect("valid") }
}

fn plain_text() -> ContentType {
    ContentType::parse("text/plain").expect("valid")
}

async fn create(streams: &Streams, name: &str, retention: Retention, fork: Option<ForkRequest>) {
    let (content_type, body) = (Some(plain_text()), Bytes::new());
    let request = CreateRequest { content_type, retention, expiry: None, body, then: Then::StayOpen, fork };
    streams.create(&key(name), &request).await.expect("created");
}

async fn append(subject: &Subject, name: &str, model: &mut Model, payload: Bytes) {
    let body = Body::Content(plain_text(), payload.clone());
    let request = AppendRequest { body, conditions: Conditions::default(), then: Then::StayOpen };
    let appended = subject.streams.append(&key(name), &request).await.expect("appended");
    model.records.push((appended.next, subject.clock.now(), payload));
}

/// Compares a read of everything, and one from a random offset.
async fn compare(subject: &Subject, name: &str, model: &Model, rng: &mut fastrand::Rng, what: &str) {
    let gone = model.gone(subject.clock.now());
    let (mut read, mut from) = (Vec::new(), From::Start);
    loop {
        let (_, chunk) =
            subject.streams.read(&key(name), from).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        read.extend(chunk.records.into_iter().map(|record| record.payload));
        from = From::After(chunk.next);
        if chunk.up_to_date {
            break;
        }
    }
    let kept: Vec<_> = model.records[gone..].iter().map(|(_, _, payload)| payload.clone()).collect();
    assert!(read == kept, "{what}: {name} has {} records of {}", read.len(), kept.len());
    if model.records.is_empty() {
        return;
    }
    let n = rng.usize(..model.records.len());
    let answer = subject.streams.read(&key(name), From::After(model.records[n].0)).await;
    match answer {
        Ok((_, chunk)) => {
            assert!(n + 1 >= gone, "{what}: {name} answers offset {n} below {gone}");
            assert_eq!(chunk.records.first().map(|r| &r.payload), model.records.get(n + 1).map(|r| &r.2));
        }
        Err(StreamError::Trimmed { floor, .. }) => {
            assert!(n + 1 < gone, "{what}: {name} refuses offset {n} at {gone}");
            assert_eq!(floor, model.records[gone - 1].0, "{what}: the oldest offset");
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

fn limits(rng: &mut fastrand::Rng) -> Retention {
    loop {
        let mut some = |max: u64| rng.bool().then(|| rng.u64(1..max));
        let (age, bytes, messages) = (some(40), some(15_000), some(100));
        let limits = Retention { age: age.map(Duration::from_secs), bytes, messages };
        if !limits.is_unlimited() {
            return limits;
        }
    }
}

async fn life(mut subject: Subject, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut models: BTreeMap<String, Model> = BTreeMap::new();
    for step in 0..1_500 {
        let what = format!("seed {seed}, step {step}");
        let names: Vec<String> = models.keys().cloned().collect();
        if names.is_empty() || (names.len() < 4 && rng.u8(..100) == 0) {
            let limits = limits(&mut rng);
            create(&subject.streams, &what, limits, None).await;
            models.insert(what, Model { limits, ..Model::default() });
            continue;
        }
        let name = &names[rng.usize(..names.len())];
        match rng.u8(..100) {
            0..75 => {
                let model = models.get_mut(name).expect("known");
                for _ in 0..rng.usize(1..4) {
                    let length = if rng.u8(..30) == 0 { 20_000 } else { rng.usize(1..1_500) };
                    let payload: Bytes = (0..length).map(|_| rng.alphanumeric() as u8).collect();
                    append(&subject, name, model, payload).await;
                }
            }
            75..82 => subject.clock.advance(Duration::from_millis(rng.u64(1..8_000))),
            82..90 => compare(&subject, name, &models[name], &mut rng, &what).await,
            90..93 => {
                subject.streams.sweep().await.expect("swept");
                for (name, model) in models.iter().filter(|(_, model)| model.forks == 0) {
                    let found = subject.streams.describe(&key(name)).await.expect("there");
                    let gone = model.gone(subject.clock.now());
                    let floor = gone.checked_sub(1).map_or(Position::ZERO, |last| model.records[last].0);
                    assert!(found.status.floor >= floor, "{what}: the sweep lets go of what is not kept");
                }
            }
            93..95 if models.len() < 6 => {
                let now = subject.clock.now();
                let source = models.get_mut(name).expect("known");
                let gone = source.gone(now);
                let at = rng.usize(gone..=source.records.len());
                let position =
                    |at: usize| at.checked_sub(1).map_or(source.start, |last| source.records[last].0);
                let (start, offset) = (position(gone), position(at));
                let wanted = Retention { messages: rng.bool().then_some(7), ..Retention::default() };
                let request = ForkRequest { source: key(name), offset: Some(offset), sub_offset: 0 };
                create(&subject.streams, &what, wanted, Some(request)).await;
                let inherited =
                    Retention { messages: wanted.messages.or(source.limits.messages), ..source.limits };
                source.forks += 1;
                let records = source.records[gone..at].to_vec();
                models.insert(what, Model { limits: inherited, start, records, forks: 0 });
            }
            95..97 => subject.upkeep(&mut rng).await,
            97 => subject.kill(),
            _ => {}
        }
    }
    for (name, model) in &models {
        compare(&subject, name, model, &mut rng, &format!("seed {seed}, at the end")).await;
    }
}

#[tokio::test]
async fn a_stream_in_memory_keeps_what_a_plain_list_keeps() {
    for seed in 0..8 {
        life(Subject::in_memory(), seed).await;
    }
}

#[tokio::test]
async fn a_stream_in_files_keeps_what_a_plain_list_keeps_through_kills_and_merges() {
    for seed in 0..8 {
        life(Subject::in_files(), seed).await;
    }
}

#[tokio::test]
async fn appends_let_go_of_records_without_commits_of_their_own() {
    let subject = Subject::in_memory();
    let limits = Retention { messages: Some(10), ..Retention::default() };
    create(&subject.streams, "s", limits, None).await;
    let mut model = Model { limits, ..Model::default() };
    let mut floors = Vec::new();
    for _ in 0..1_000 {
        append(&subject, "s", &mut model, Bytes::from_static(b"x")).await;
        floors.push(subject.streams.describe(&key("s")).await.expect("there").status.floor);
    }
    floors.dedup();
    assert!((10..=17).contains(&floors.len()), "a trim every 64 appends: {}", floors.len());
    let (last, _, _) = model.records.last().expect("records");
    assert_eq!(last.parts().0.get(), 1_001, "one commit each: the creation and the appends");
}

#[tokio::test]
async fn records_that_a_fork_holds_go_after_the_fork() {
    let subject = Subject::in_memory();
    let limits = Retention { messages: Some(1), ..Retention::default() };
    create(&subject.streams, "s", limits, None).await;
    let mut model = Model { limits, ..Model::default() };
    append(&subject, "s", &mut model, Bytes::from_static(b"held")).await;
    let fork = ForkRequest { source: key("s"), offset: None, sub_offset: 0 };
    create(&subject.streams, "fork", Retention::default(), Some(fork)).await;
    append(&subject, "s", &mut model, Bytes::from_static(b"kept")).await;
    subject.streams.sweep().await.expect("swept");
    let found = subject.streams.describe(&key("s")).await.expect("there");
    assert_eq!((found.stream.floor().position, found.status.floor), (model.records[0].0, Position::ZERO));
    let (_, chunk) = subject.streams.read(&key("fork"), From::Start).await.expect("read");
    assert_eq!(chunk.records[0].payload, "held");
    subject.streams.delete(&key("fork")).await.expect("deleted");
    assert_eq!(subject.streams.sweep().await.expect("swept").trimmed, 1);
    let found = subject.streams.describe(&key("s")).await.expect("there");
    assert_eq!(found.status.floor, model.records[0].0);
    assert_eq!(subject.streams.sweep().await.expect("swept").trimmed, 0, "nothing is left to do");
}
