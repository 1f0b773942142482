//! Rooms through power cuts: everything that was acknowledged is still there, no cursor is assigned twice, and
//! the journal of the project has the events that the rooms have.
//!
//! A player writes to rooms, changes their members and marks messages as seen, one request after the other,
//! with a model of the answers. The power is cut at a random operation of the disk, and the rooms are opened
//! again on what is left. A further test checks what a live reader receives while many write, because this
//! store commits and answers on a thread of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_embedded::{Embedded, OpenError, Options};
use tidings_engine::deliver::{Batch, Encode, FrameChunks, Step};
use tidings_engine::duty::Leadership;
use tidings_engine::journal::Journals;
use tidings_engine::journal::fixture::{HeardByTests, heard};
use tidings_engine::log::{Commit, Commits, Logs, Operation, Span, StoreError};
use tidings_engine::{Bus, Clock, ManualClock, Metrics, Rng};
use tidings_model::{DeviceId, LogId, Position, Producer, ProducerId, ProjectId, RoomId, Timestamp, UserId};
use tidings_rooms::{Cursor, Event, Kind, NewEvent, Room, RoomError, Rooms, Table};

use crate::book::small;

/// Power cuts in a normal run of the tests; `make test-all` sets more.
const CUTS: u64 = 200;
const CUTS_PER_STORE: u64 = 4;
const ROOMS: [&str; 3] = ["a", "b", "c"];

fn cuts() -> u64 {
    std::env::var("TIDINGS_POWER_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(CUTS)
}

/// What was acknowledged about a room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Acknowledged {
    events: Vec<(Cursor, Bytes)>,
    members: BTreeSet<UserId>,
    seen: Option<Cursor>,
}

/// A request that was not answered when the power was cut.
#[derive(Clone, Debug)]
enum Unanswered {
    Write(Vec<Bytes>, bool),
    Members(BTreeSet<UserId>),
    See(Cursor),
}

#[derive(Default)]
struct Player {
    rooms: BTreeMap<&'static str, Acknowledged>,
    unanswered: Option<(&'static str, Unanswered)>,
    /// Highest cursor that was returned for each room, ephemeral events included.
    highest: BTreeMap<&'static str, Cursor>,
    /// Next sequence number of the player's producer in each room.
    sequences: BTreeMap<&'static str, u64>,
    epoch: u64,
    written: u64,
    journal: Journal,
}

/// The journal of the project, once it was created, and who hears it.
#[derive(Default)]
struct Journal {
    hearer: Arc<HeardByTests>,
    log: Option<LogId>,
}

impl Journal {
    /// Creates the log, unless it was created before.
    async fn begin(&mut self, store: &Embedded<Table>) -> Option<()> {
        if self.log.is_none() {
            let log = store.reserve().await.ok()?;
            store.commit(Commit::new().with(Operation::create(log))).await.ok()?;
            self.hearer.hear(&project(), "room", Some(log));
            self.log = Some(log);
        }
        Some(())
    }
}

struct Server {
    store: Embedded<Table>,
    rooms: Rooms,
}

/// Opens the rooms; `None` when the power is cut.
async fn open(disk: &SimulatedDisk, seed: u64, clock: &ManualClock, journal: &mut Journal) -> Option<Server> {
    let options = Options { secret: seed, ..small() };
    let shared = Arc::new(clock.clone());
    let store = match Embedded::<Table>::open(Arc::new(disk.clone()), options, Bus::new(), shared) {
        Ok(store) => store,
        Err(OpenError::Io { .. }) => return None,
        Err(error) => panic!("seed {seed}: {error}"),
    };
    journal.begin(&store).await?;
    let rooms = take_over(&store, clock).await.ok()?.journaled(Journals::new(journal.hearer.clone()));
    Some(Server { rooms, store })
}

async fn take_over(store: &Embedded<Table>, clock: &ManualClock) -> Result<Rooms, StoreError> {
    let (clock, rng): (Arc<dyn Clock>, _) = (Arc::new(clock.clone()), Arc::new(Rng::seeded(7)));
    let (store, metrics) = (Arc::new(store.clone()), Metrics::new());
    Rooms::open(store, Bus::new(), clock, rng, <_>::default(), &metrics, Leadership::alone()).await
}

fn project() -> ProjectId {
    ProjectId::parse("shop").expect("an id")
}

fn ann() -> (UserId, DeviceId) {
    (UserId::parse("ann").expect("an id"), DeviceId::parse("phone").expect("an id"))
}

impl Player {
    /// Plays until the store fails.
    async fn play(&mut self, server: &Server, rng: &mut fastrand::Rng, clock: &ManualClock) {
        for _ in 0..10_000 {
            let name = ROOMS[rng.usize(..ROOMS.len())];
            // The clock advances, and is set back now and then.
            clock.advance(Duration::from_millis(rng.u64(..3)));
            if rng.u8(..20) == 0 {
                clock.set(clock.now() - Duration::from_millis(rng.u64(..20_000)));
            }
            let played = match server.rooms.find(&project(), &RoomId::parse(name).expect("an id")).await {
                Ok(Some(room)) => self.step(server, name, &room, rng).await,
                Ok(None) => self.members(server, name, rng).await,
                Err(error) => Err(error.into()),
            };
            match played {
                Ok(()) => self.unanswered = None,
                Err(RoomError::Store(StoreError::Unavailable(_))) => return,
                Err(error) => panic!("{:?}: {error}", self.unanswered),
            }
            if rng.u8(..60) == 0 {
                let store = server.store.clone();
                // Fails when the power is cut; the next commit will fail, too.
                let _ = tokio::task::spawn_blocking(move || store.flush()).await;
            }
        }
    }

    async fn step(
        &mut self,
        server: &Server,
        name: &'static str,
        room: &Room,
        rng: &mut fastrand::Rng,
    ) -> Result<(), RoomError> {
        match rng.u8(..10) {
            0 => self.members(server, name, rng).await,
            1 => self.see(server, name, room).await,
            2..5 => {
                let event = NewEvent::parse(Kind::Typing, Bytes::from_static(b"{}")).expect("good");
                let typed = server.rooms.write(room, &ann().0, vec![event], None).await?.events[0].0;
                self.rise(name, typed);
                Ok(())
            }
            _ => self.write(server, name, room, rng).await,
        }
    }

    async fn write(
        &mut self,
        server: &Server,
        name: &'static str,
        room: &Room,
        rng: &mut fastrand::Rng,
    ) -> Result<(), RoomError> {
        let count = rng.u64(1..4);
        let payload = |n: u64| {
            let text = "x".repeat(rng.usize(..400));
            Bytes::from(format!(r#"{{"messageView":{{"n":{n},"text":"{text}"}}}}"#))
        };
        let payloads: Vec<_> = (self.written..self.written + count).map(payload).collect();
        self.written += count;
        let stamped = rng.bool();
        let (acknowledged, sequence) =
            (self.rooms.entry(name).or_default(), self.sequences.entry(name).or_default());
        let producer = stamped.then(|| Producer {
            id: ProducerId::parse("player").expect("an id"),
            epoch: 0,
            sequence: *sequence,
        });
        self.unanswered = Some((name, Unanswered::Write(payloads.clone(), stamped)));
        let event = |payload: &Bytes| NewEvent::parse(Kind::Message, payload.clone()).expect("good");
        let events: Vec<_> = payloads.iter().map(event).collect();
        let written = server.rooms.write(room, &ann().0, events, producer).await?;
        assert!(!written.duplicate);
        *sequence += u64::from(stamped);
        let cursors: Vec<_> = written.events.into_iter().map(|(cursor, _)| cursor).collect();
        acknowledged.events.extend(cursors.iter().copied().zip(payloads));
        cursors.into_iter().for_each(|cursor| self.rise(name, cursor));
        Ok(())
    }

    async fn members(
        &mut self,
        server: &Server,
        name: &'static str,
        rng: &mut fastrand::Rng,
    ) -> Result<(), RoomError> {
        let all: Vec<_> = (0..6).map(|n| UserId::parse(&format!("user {n}")).expect("an id")).collect();
        let (add, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|_| rng.u8(..3) == 0);
        let remove: Vec<_> = rest.into_iter().filter(|_| rng.bool()).collect();
        let acknowledged = self.rooms.entry(name).or_default();
        let mut then = acknowledged.members.clone();
        then.retain(|user| !remove.contains(user));
        then.extend(add.iter().cloned());
        self.unanswered = Some((name, Unanswered::Members(then.clone())));
        let id = RoomId::parse(name).expect("an id");
        let members = server.rooms.change_members(&project(), &id, add, remove).await?;
        acknowledged.members = then;
        assert!(members.users.iter().eq(&acknowledged.members));
        Ok(())
    }

    async fn see(&mut self, server: &Server, name: &'static str, room: &Room) -> Result<(), RoomError> {
        let acknowledged = self.rooms.entry(name).or_default();
        let Some((cursor, _)) = acknowledged.events.last() else { return Ok(()) };
        self.unanswered = Some((name, Unanswered::See(*cursor)));
        let (user, device) = ann();
        server.rooms.see(room, &user, &device, *cursor, false).await?;
        acknowledged.seen = Some(*cursor);
        Ok(())
    }

    fn rise(&mut self, name: &'static str, cursor: Cursor) {
        let before = self.highest.insert(name, cursor).unwrap_or_default();
        assert!(before < cursor, "{name}: {cursor} is not above {before}");
    }

    /// Compares the store with the model, with or without the unanswered request.
    async fn settle(&mut self, server: &Server, what: &str) {
        assert!(server.rooms.epoch() > self.epoch, "{what}: who has the rooms");
        self.epoch = server.rooms.epoch();
        let unanswered = self.unanswered.take();
        let entered = heard(&server.store, self.journal.log.expect("begun")).await;
        for name in ROOMS {
            let acknowledged = self.rooms.entry(name).or_default();
            let seen = seen(server, name).await;
            let of_room = entered.iter().filter(|heard| heard.header.name == name);
            let events = of_room.map(|heard| (Cursor::at(heard.origin.position), heard.content.clone()));
            assert!(events.eq(seen.events.iter().cloned()), "{what}: the journal of {name}");
            let open = unanswered.as_ref().filter(|(of, _)| *of == name).map(|(_, step)| step);
            if seen != *acknowledged {
                let with = with(acknowledged, open, &seen);
                assert!(
                    with.as_ref() == Some(&seen),
                    "{what}: {name} has {seen:?}, not {acknowledged:?}; {open:?}"
                );
                let stamped = matches!(open, Some(Unanswered::Write(_, true)));
                *self.sequences.entry(name).or_default() += u64::from(stamped);
                *acknowledged = seen;
            }
            let last = acknowledged.events.last().map_or(Cursor::ZERO, |(cursor, _)| *cursor);
            let highest = self.highest.entry(name).or_default();
            *highest = (*highest).max(last);
            if *highest > Cursor::ZERO {
                let room = find(server, name).await.expect("the room was acknowledged");
                let ceiling = server.rooms.bounds(&room).await.expect("bounds").ceiling;
                assert!(ceiling >= *highest, "{what}: {name}: {highest} would be of the future");
            }
        }
    }
}

/// The model with the unanswered request applied.
fn with(acknowledged: &Acknowledged, open: Option<&Unanswered>, seen: &Acknowledged) -> Option<Acknowledged> {
    let mut with = acknowledged.clone();
    match open? {
        Unanswered::Write(payloads, _) => {
            // Its positions were not returned, so they are taken from the store.
            let added = seen.events.get(acknowledged.events.len()..)?;
            let cursors = added.iter().map(|(cursor, _)| *cursor);
            with.events.extend(cursors.zip(payloads.iter().cloned()));
            if added.len() != payloads.len() {
                return None;
            }
        }
        Unanswered::Members(members) => with.members = members.clone(),
        Unanswered::See(cursor) => with.seen = Some(*cursor),
    }
    Some(with)
}

async fn find(server: &Server, name: &str) -> Option<Room> {
    server.rooms.find(&project(), &RoomId::parse(name).expect("an id")).await.expect("a store")
}

/// What the store has of a room.
async fn seen(server: &Server, name: &str) -> Acknowledged {
    let Some(room) = find(server, name).await else { return Acknowledged::default() };
    let span = Span { bytes: usize::MAX, records: usize::MAX, ..Span::after(Position::ZERO) };
    let page = server.store.read(room.log, span).await.expect("it can be read");
    let event = |record| Event::of(record).map(|event| (event.cursor, event.payload));
    let (user, device) = ann();
    let devices = server.rooms.seen(&room, &user).await.expect("a room").devices;
    Acknowledged {
        events: page.records.iter().filter_map(event).collect(),
        members: server.rooms.members(&room, None, 100).await.expect("a room").users.into_iter().collect(),
        seen: devices.get(&device).map(|(cursor, _)| *cursor),
    }
}

/// Runs one store through its power cuts.
async fn life(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let clock = ManualClock::at(Timestamp::from_millis(1_763_294_400_000));
    let mut disk = SimulatedDisk::new();
    let mut player = Player::default();
    for cut in 0..CUTS_PER_STORE {
        let what = format!("seed {seed}, cut {cut}");
        disk.cut_power_at(rng.u64(1..if cut == 0 { 60 } else { 900 }));
        if let Some(server) = open(&disk, seed, &clock, &mut player.journal).await {
            player.play(&server, &mut rng, &clock).await;
        }
        disk = disk.after_power_cut(&mut rng);
        let server = open(&disk, seed, &clock, &mut player.journal).await.expect("the power is back");
        player.settle(&server, &what).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_room_has_told_survives_power_cuts_at_any_moment() {
    for seed in 0..cuts() / CUTS_PER_STORE {
        life(seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_could_not_take_over_for_want_of_space_does_not_write_when_somebody_else_has() {
    let (disk, clock) = (SimulatedDisk::new(), ManualClock::at(Timestamp::from_millis(1_763_294_400_000)));
    let server = open(&disk, 1, &clock, &mut Journal::default()).await.expect("new");
    let id = RoomId::parse("r").expect("an id");
    server.rooms.change_members(&project(), &id, Vec::new(), Vec::new()).await.expect("made");
    let room = find(&server, "r").await.expect("made");
    disk.set_capacity(Some(disk.used()));
    let message = || vec![NewEvent::parse(Kind::Message, r#"{"messageView":{}}"#.into()).expect("good")];
    let full = loop {
        if let Err(error) = server.rooms.write(&room, &ann().0, message(), None).await {
            break error;
        }
    };
    assert!(matches!(full, RoomError::Store(StoreError::NoSpace)), "{full}");
    let early = take_over(&server.store, &clock).await.expect("rooms can be read");
    assert!(early.bounds(&room).await.expect("bounds").head > Cursor::ZERO);
    disk.set_capacity(None);
    let late = loop {
        let late = take_over(&server.store, &clock).await.expect("there is space");
        // Memtables that wait for space are flushed first, which takes a moment.
        if late.write(&room, &ann().0, message(), None).await.is_ok() {
            break late;
        }
    };
    let fenced = early.write(&room, &ann().0, message(), None).await;
    assert!(matches!(fenced, Err(RoomError::Fenced)), "{fenced:?}");
    late.write(&room, &ann().0, message(), None).await.expect("the rooms are its own");
}

/// Encodes the kinds of the events in a frame, by their first letters.
struct Kinds;

impl Encode for Kinds {
    fn encode(&self, batch: &Batch<'_>, _: u64) -> FrameChunks {
        let kinds = batch.records.iter().filter_map(Event::of).map(|event| &event.kind.name()[..1]);
        Bytes::from(kinds.collect::<String>()).into()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_there_hears_all_typing_that_is_not_counted_as_dropped_while_many_write() {
    const WRITERS: usize = 16;
    const ROUNDS: usize = 50;
    let (bus, metrics) = (Bus::new(), Metrics::new());
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_763_294_400_000)));
    let disk = Arc::new(SimulatedDisk::new());
    let store = Embedded::<Table>::open(disk, small(), bus.clone(), clock.clone()).expect("new");
    let rng = Arc::new(Rng::seeded(7));
    let opened = Rooms::open(Arc::new(store), bus, clock, rng, <_>::default(), &metrics, Leadership::alone());
    let rooms = opened.await.expect("open");
    let id = RoomId::parse("r").expect("an id");
    rooms.change_members(&project(), &id, Vec::new(), Vec::new()).await.expect("made");
    let room = rooms.find(&project(), &id).await.expect("a store").expect("made");
    let bounds = rooms.bounds(&room).await.expect("bounds");
    let mut reader = rooms.listen(&room, &bounds, Cursor::ZERO, "kinds", Arc::new(Kinds));
    // Now it waits at the tail, and will receive ephemeral events.
    assert_eq!(reader.next(0, |_| ()).await, Step::Frames);
    assert!(reader.next(0, |_| ()).now_or_never().is_none());
    let writers = (0..WRITERS).map(|_| {
        let (rooms, room) = (rooms.clone(), room.clone());
        tokio::spawn(async move {
            for n in 0..2 * ROUNDS {
                let (kind, payload) = match n % 2 {
                    0 => (Kind::Message, r#"{"messageView":{}}"#),
                    _ => (Kind::Typing, "{}"),
                };
                let event = NewEvent::parse(kind, payload.into()).expect("good");
                rooms.write(&room, &ann().0, vec![event], None).await.expect("written");
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("no panic");
    }
    let last = rooms.bounds(&room).await.expect("bounds").ceiling.position();
    let mut heard = String::new();
    while reader.position() < last {
        let step = reader.next(0, |frame| {
            heard += std::str::from_utf8(&frame.bytes.clone().joined()).expect("text");
        });
        assert_eq!(step.await, Step::Frames);
    }
    let metrics = metrics.text();
    let dropped = metrics.lines().find(|line| line.starts_with("tidings_room_typing_dropped_total"));
    let dropped = dropped.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    let count = |kind: char| heard.chars().filter(|heard| *heard == kind).count();
    assert_eq!(count('m'), WRITERS * ROUNDS);
    assert_eq!(
        dropped.map(|dropped: usize| count('t') + dropped),
        Some(WRITERS * ROUNDS),
        "{dropped:?} dropped"
    );
}
