//! Change logs of entities on this store: through restarts, restored backups and power cuts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_embedded::tools::backup;
use tidings_embedded::{Embedded, OpenError, Options};
use tidings_engine::journal::fixture::HeardByTests;
use tidings_engine::journal::{EventRecord, Journals};
use tidings_engine::log::{Commit, Commits, Logs, Operation, Span, StoreError};
use tidings_engine::{Bus, ManualClock, Metrics, Rng};
use tidings_entities::contract::SourceFixture;
use tidings_entities::{
    Action, Change, ChangeLog, Cursor, Entities, EntityCode, EntityId, Entry, IdForm, NewChange, Parts, Read,
    ResyncReason, Source, SourceError, Table,
};
use tidings_hooks::Event;
use tidings_model::{LogId, Position, ProjectId, Timestamp};

use crate::book::small;

/// Power cuts in a normal run of the tests; `make test-all` sets more.
const CUTS: u64 = 120;
const CUTS_PER_STORE: u64 = 4;

fn cuts() -> u64 {
    std::env::var("TIDINGS_POWER_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(CUTS)
}

fn project() -> ProjectId {
    ProjectId::parse("shop").expect("an id")
}

fn start() -> ManualClock {
    ManualClock::at(Timestamp::from_millis(1_763_294_400_000))
}

fn id(number: u64) -> EntityId {
    IdForm::Text.parse(&format!("id {number}")).expect("an id")
}

fn change(number: u64, action: Action) -> NewChange {
    NewChange { code: EntityCode::parse("project").expect("a code"), id: id(number), action }
}

/// A store and the change log of a project on it.
struct Opened {
    store: Embedded<Table>,
    log: ChangeLog,
    entities: Entities,
}

fn try_open(
    disk: &SimulatedDisk,
    options: Options,
    clock: &ManualClock,
    hearer: &Arc<HeardByTests>,
) -> Result<Opened, OpenError> {
    let (bus, time, seed) = (Bus::new(), Arc::new(clock.clone()), options.secret);
    let store = Embedded::<Table>::open(Arc::new(disk.clone()), options, bus.clone(), time.clone())?;
    let (shared, rng) = (Arc::new(store.clone()), Arc::new(Rng::seeded(seed)));
    let journals = Journals::new(hearer.clone());
    let log =
        ChangeLog::new(&project(), shared.clone(), bus.clone(), time.clone(), rng.clone(), journals.clone());
    let entities = Entities::new(Parts {
        store: shared,
        bus,
        clock: time,
        rng,
        journals,
        metrics: Metrics::new(),
        options: Default::default(),
        backings: HashMap::new(),
        authorize: None,
    });
    Ok(Opened { store, log, entities })
}

/// Opens a store that takes commits of any size that clients may ask for.
fn open(disk: &SimulatedDisk, seed: u64, clock: &ManualClock) -> Opened {
    let options = Options { wal_file_bytes: 4 << 20, memtable_bytes: 1 << 20, secret: seed, ..small() };
    try_open(disk, options, clock, &Arc::default()).expect("the disk is good")
}

/// Everything after a cursor.
async fn read(log: &ChangeLog, after: &Cursor) -> Vec<Change> {
    let (mut changes, mut cursor) = (Vec::new(), after.clone());
    loop {
        match log.read(&cursor, 7).await.expect("a page") {
            Read::Entries { entries, cursor: next, more } => {
                changes.extend(entries.into_iter().map(|entry| match entry {
                    Entry::Changed(change) => change,
                    Entry::Truncated(code) => panic!("nobody removed all of {code}"),
                }));
                cursor = next;
                if !more {
                    return changes;
                }
            }
            Read::Lost { reason, .. } => panic!("{}", reason.as_str()),
        }
    }
}

mod contract {
    use super::*;

    async fn source() -> OnDisk {
        OnDisk::new()
    }

    tidings_entities::source_contract!(source);

    struct OnDisk {
        disk: SimulatedDisk,
        clock: ManualClock,
        seed: u64,
        /// None only while it is opened again.
        opened: Option<Opened>,
    }

    impl OnDisk {
        fn new() -> Self {
            let (disk, clock, seed) = (SimulatedDisk::new(), start(), 1);
            let opened = Some(open(&disk, seed, &clock));
            Self { disk, clock, seed, opened }
        }

        fn opened(&self) -> &Opened {
            self.opened.as_ref().expect("it is open")
        }

        fn open(&mut self) {
            self.seed += 1;
            self.opened = Some(open(&self.disk, self.seed, &self.clock));
        }
    }

    impl SourceFixture for OnDisk {
        fn source(&self) -> &dyn Source {
            &self.opened().log
        }

        fn id(&self, number: u64) -> EntityId {
            super::id(number)
        }

        fn reopen(&mut self) -> BoxFuture<'_, ()> {
            async {
                self.opened().store.flush().expect("the disk is good");
                self.opened = None;
                self.open();
            }
            .boxed()
        }

        fn expire(&mut self) -> BoxFuture<'_, ()> {
            async {
                self.clock.advance(Duration::from_secs(15 * 60 + 1));
                assert!(self.opened().entities.trim().await.expect("trimmed") > 0);
            }
            .boxed()
        }

        fn replace(&mut self) -> BoxFuture<'_, ()> {
            async {
                self.opened = None;
                self.disk = SimulatedDisk::new();
                self.open();
            }
            .boxed()
        }
    }
}

#[tokio::test]
async fn a_cursor_of_before_a_backup_was_restored_is_recognised() {
    let (disk, clock) = (SimulatedDisk::new(), start());
    let before = open(&disk, 1, &clock);
    let kept = before.log.publish(vec![change(1, Action::Create)]).await.expect("published").cursor;
    let copy = SimulatedDisk::new();
    backup(&disk, &copy).expect("copied");
    let mut lost = Vec::new();
    for number in 2..6 {
        lost.push(before.log.publish(vec![change(number, Action::Create)]).await.expect("published").cursor);
    }
    drop(before);
    let restored = open(&copy, 2, &clock);
    assert_eq!(read(&restored.log, &kept).await, []);
    let reason = async |cursor: &Cursor| match restored.log.read(cursor, 10).await.expect("an answer") {
        Read::Lost { reason, .. } => Some(reason),
        Read::Entries { .. } => None,
    };
    assert_eq!(reason(&lost[0]).await, Some(ResyncReason::SourceReset), "it is of the future");
    for number in 12..16 {
        restored.log.publish(vec![change(number, Action::Create)]).await.expect("published");
    }
    for cursor in &lost {
        assert_eq!(reason(cursor).await, Some(ResyncReason::SourceReset), "{cursor} is of another history");
    }
    assert_eq!(read(&restored.log, &kept).await.len(), 4);
}

#[tokio::test]
async fn hooks_read_the_events_of_changes() {
    let (disk, clock, hearer) = (SimulatedDisk::new(), start(), Arc::<HeardByTests>::default());
    let Opened { store, log, .. } = try_open(&disk, small(), &clock, &hearer).expect("the disk is good");
    let journal = new_log(&store).await.expect("created");
    hearer.hear(&project(), "collection", Some(journal));
    log.publish(vec![change(1, Action::Create), change(1, Action::Delete)]).await.expect("published");
    let events = events(&store, journal).await;
    let kinds: Vec<_> = events.iter().map(|event| &*event.event_type).collect();
    assert_eq!(kinds, ["collection.project.insert", "collection.project.delete"]);
    for event in &events {
        assert_eq!((&*event.ts, event.id_chosen, event.about), ("2025-11-16T12:00:00.000Z", false, None));
        let value = event.value();
        assert_eq!((&value["collection"], &value["docId"]), (&"project".into(), &"id 1".into()));
        assert_eq!((&value["type"], &value["ts"]), (&(*event.event_type).into(), &(*event.ts).into()));
    }
    assert_ne!(events[0].id, events[1].id);

    let json = br#"{"type":"collection.p.update","ts":"now"}"#;
    let relayed =
        EventRecord { event_type: "collection.p.update", id: "chg_1", may_come_again: true, ts: "now", json };
    let event = Event::from_record(&relayed.encode()).expect("an event");
    assert_eq!((&*event.event_type, &*event.id, &*event.ts), ("collection.p.update", "chg_1", "now"));
    assert_eq!((event.id_chosen, &event.json[..]), (true, &json[..]), "it is heard once under its id");
}

async fn new_log(store: &Embedded<Table>) -> Option<LogId> {
    let log = store.reserve().await.ok()?;
    store.commit(Commit::new().with(Operation::create(log))).await.ok()?;
    Some(log)
}

/// The events in a journal.
async fn events(store: &Embedded<Table>, journal: LogId) -> Vec<Event> {
    let span = Span { bytes: usize::MAX, records: usize::MAX, ..Span::after(Position::ZERO) };
    let page = store.read(journal, span).await.expect("it can be read");
    page.records.iter().map(|record| Event::from_record(&record.payload).expect("an event")).collect()
}

/// What was acknowledged, and what was not when the power was cut.
#[derive(Default)]
struct Player {
    hearer: Arc<HeardByTests>,
    journal: Option<LogId>,
    changes: Vec<NewChange>,
    /// Cursors that were given, and how many changes come before each.
    cursors: Vec<(usize, Cursor)>,
    unanswered: Vec<NewChange>,
    made: u64,
}

impl Player {
    /// Opens the store; `None` when the power is cut.
    async fn open(&mut self, disk: &SimulatedDisk, seed: u64, clock: &ManualClock) -> Option<Opened> {
        let options = Options { secret: seed, ..small() };
        let opened = match try_open(disk, options, clock, &self.hearer) {
            Ok(opened) => opened,
            Err(OpenError::Io { .. }) => return None,
            Err(error) => panic!("seed {seed}: {error}"),
        };
        if self.journal.is_none() {
            self.journal = Some(new_log(&opened.store).await?);
            self.hearer.hear(&project(), "collection", self.journal);
        }
        Some(opened)
    }

    /// Publishes until the store fails.
    async fn play(&mut self, opened: &Opened, rng: &mut fastrand::Rng) {
        for _ in 0..10_000 {
            let count = rng.u64(1..5);
            let action =
                |rng: &mut fastrand::Rng| [Action::Create, Action::Update, Action::Delete][rng.usize(..3)];
            let changes: Vec<_> = (0..count).map(|n| change(self.made + n, action(rng))).collect();
            self.made += count;
            self.unanswered.clone_from(&changes);
            match opened.log.publish(changes.clone()).await {
                Ok(published) => {
                    assert_eq!(published.accepted, changes.len());
                    self.changes.extend(changes);
                    self.cursors.push((self.changes.len(), published.cursor));
                    self.unanswered.clear();
                }
                Err(SourceError::Store(StoreError::Unavailable(_))) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Compares the store with what was acknowledged, with or without what was not answered.
    async fn compare(&mut self, opened: &Opened, what: &str) {
        let stored = read(&opened.log, &Cursor::new("0")).await;
        let told: Vec<_> =
            stored.iter().map(|change| (change.id.clone(), change.action, change.version)).collect();
        let expected = |changes: &[NewChange]| -> Vec<_> {
            let versions = 1..=changes.len() as u64;
            let change = |(change, version): (&NewChange, u64)| (change.id.clone(), change.action, version);
            changes.iter().zip(versions).map(change).collect()
        };
        if told != expected(&self.changes) {
            self.changes.append(&mut self.unanswered);
            assert_eq!(told, expected(&self.changes), "{what}: all or nothing of what was not answered");
        }
        self.unanswered.clear();
        let events = events(&opened.store, self.journal.expect("begun")).await;
        let heard = events.iter().map(|event| event.value()["docId"].as_str().expect("an id").to_owned());
        assert!(heard.eq(told.iter().map(|(id, _, _)| id.to_string())), "{what}: the journal");
        for (count, cursor) in self.cursors.iter().rev().take(5) {
            let after = read(&opened.log, cursor).await;
            assert_eq!(after, stored[*count..], "{what}: a cursor that was given is still good");
        }
    }
}

/// Runs one store through its power cuts.
async fn life(seed: u64) {
    let (mut rng, clock) = (fastrand::Rng::with_seed(seed), start());
    let (mut disk, mut player) = (SimulatedDisk::new(), Player::default());
    for cut in 0..CUTS_PER_STORE {
        disk.cut_power_at(rng.u64(1..if cut == 0 { 60 } else { 600 }));
        if let Some(opened) = player.open(&disk, seed, &clock).await {
            player.play(&opened, &mut rng).await;
        }
        disk = disk.after_power_cut(&mut rng);
        let opened = player.open(&disk, seed, &clock).await.expect("the power is back");
        player.compare(&opened, &format!("seed {seed}, cut {cut}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_published_survives_power_cuts_at_any_moment() {
    for seed in 0..cuts() / CUTS_PER_STORE {
        life(seed).await;
    }
}
