//! The hooks of a server on a disk, without the server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as Atomic};
use std::time::Duration;

use tidings_egress::{Egress, EgressOptions, Guard, SystemResolver};
use tidings_embedded::Embedded;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_engine::log::{Logs, Record, Rows, Span};
use tidings_engine::{Bus, Clock, ManualClock, Metrics, Rng};
use tidings_hooks::rows::{attempts, dead_letters};
use tidings_hooks::store::Found;
use tidings_hooks::{AttemptOutcome, DeadLetter, Event, Hook, HookError, Hooks, Options, Ordering, Parts};
use tidings_model::{LogId, Position, ProjectId};
use tidings_server::Catalog;
use tidings_testing::until;
use tokio::task::JoinHandle;

use super::Tally;
use super::calls::{Calls, HANDLERS};

/// Long enough for every retry.
const LONG: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub struct World {
    pub store: Embedded<Catalog>,
    pub hooks: Hooks,
    pub clock: ManualClock,
    pub calls: Calls,
}

/// What runs while hooks deliver.
pub struct Duties(Vec<JoinHandle<()>>);

impl Duties {
    pub async fn end(self) {
        for duty in self.0 {
            duty.abort();
            // It holds the store until it has ended.
            let _ = duty.await;
        }
    }
}

pub fn shop() -> ProjectId {
    ProjectId::parse("shop").expect("an id")
}

impl World {
    pub fn open(
        disk: &SimulatedDisk,
        seed: u64,
        clock: &ManualClock,
        calls: &Calls,
    ) -> Result<Self, tidings_embedded::OpenError> {
        let (bus, shared): (_, Arc<dyn Clock>) = (Bus::new(), Arc::new(clock.clone()));
        let small = tidings_embedded::Options {
            // What a replay queues at a time must fit.
            wal_file_bytes: 1 << 20,
            memtable_bytes: 16 << 10,
            reserve_bytes: 0,
            secret: seed,
            ..Default::default()
        };
        let store = Embedded::<Catalog>::open(Arc::new(disk.clone()), small, bus.clone(), shared.clone())?;
        let metrics = Metrics::new();
        let egress = EgressOptions::default();
        let egress =
            Egress::new(egress, Guard::default(), Arc::new(SystemResolver), shared.clone(), &metrics);
        // Ids must differ between the lives of a store, as real random numbers do.
        let drawn = AtomicU64::new(fastrand::u64(..));
        let hooks = Hooks::new(Parts {
            store: Arc::new(store.clone()),
            bus,
            clock: shared,
            rng: Arc::new(Rng::seeded(seed)),
            randomness: Arc::new(move |bytes| {
                let mut rng = fastrand::Rng::with_seed(drawn.fetch_add(1, Atomic::Relaxed));
                bytes.iter_mut().for_each(|byte| *byte = rng.u8(..));
            }),
            egress,
            sources: Arc::new(|_, _| false),
            // A notice that several hooks hear takes several commits.
            options: Options { deliveries_per_commit: 2, breaker_failures: u32::MAX, ..Options::default() },
            metrics,
        });
        for (name, temper) in HANDLERS {
            hooks.bind(name, calls.handler(temper));
        }
        Ok(Self { store, hooks, clock: clock.clone(), calls: calls.clone() })
    }

    pub fn duties(&self) -> Duties {
        Duties(vec![
            tokio::spawn(self.hooks.clone().dispatch()),
            tokio::spawn(self.hooks.clone().match_journals()),
            tokio::spawn(self.hooks.clone().replay_events()),
        ])
    }

    /// Does what the server does every few seconds.
    pub async fn look(&self) -> Result<(), HookError> {
        self.hooks.look_for_more().await?;
        self.hooks.look_at_hooks().await
    }

    /// Waits until all deliveries of active hooks are made or given up.
    pub async fn rest(&self, what: &str) {
        for _ in 0..3000 {
            self.look().await.expect("readable");
            let waiting = until("hooks have nothing to do", || self.hooks.is_at_rest());
            if tokio::time::timeout(Duration::from_secs(20), waiting).await.is_err() {
                self.hopeless(what);
            }
            let left = self.found().into_iter().filter(|found| found.hook.is_active() && found.has_work());
            if left.count() == 0 && self.hooks.is_at_rest() {
                return;
            }
            self.clock.advance(LONG);
        }
        self.hopeless(what);
    }

    fn hopeless(&self, what: &str) -> ! {
        let left: Vec<_> = self
            .found()
            .iter()
            .filter(|found| found.hook.is_active() && found.has_work())
            .map(|found| {
                format!("{:?}: {} pending, {:?}", found.hook.settings, found.pending(), found.progress)
            })
            .collect();
        panic!(
            "{what}: at {:?} it never ends, queued {}: {left:#?}",
            self.clock.now(),
            self.hooks.is_queued()
        );
    }

    /// All hooks with the state of their deliveries.
    pub fn found(&self) -> Vec<Found> {
        self.store.look(|catalog, status| {
            let table = &catalog.hooks;
            let found = |queue, hook: &Arc<Hook>| Found {
                queue,
                hook: hook.clone(),
                progress: table.progress(queue).cloned().unwrap_or_default(),
                status: status(queue).expect("a hook has a queue"),
            };
            table.hooks().map(|(queue, hook)| found(queue, hook)).collect()
        })
    }

    async fn records(&self, log: LogId) -> Vec<Record> {
        let span = Span { bytes: usize::MAX, records: usize::MAX, ..Span::after(Position::ZERO) };
        self.store.read(log, span).await.expect("what is there can be read").records
    }

    /// The events in a log, with their positions.
    pub async fn events_in(&self, log: LogId) -> Vec<(Position, Event)> {
        let event =
            |record: Record| (record.position, Event::from_record(&record.payload).expect("an event"));
        self.records(log).await.into_iter().map(event).collect()
    }

    /// All events of the project.
    pub async fn events(&self) -> Vec<Event> {
        let log = self.store.look(|catalog, _| catalog.hooks.feed(&shop()).map(|feed| feed.events));
        match log {
            Some(log) => self.events_in(log).await.into_iter().map(|(_, event)| event).collect(),
            None => Vec::new(),
        }
    }

    /// Keys of all events that were accepted: those of the project, and those in its journal, which are still to be matched.
    pub async fn keys(&self) -> BTreeSet<String> {
        let journal = self.store.look(|catalog, _| catalog.hooks.feed(&shop()).map(|feed| feed.journal));
        let mut events = self.events().await;
        if let Some(journal) = journal {
            let floor = self.store.look(|_, status| status(journal).expect("it is there").floor);
            let span = Span { bytes: usize::MAX, records: usize::MAX, ..Span::after(floor) };
            let records = self.store.read(journal, span).await.expect("what is there can be read").records;
            events.extend(records.iter().filter_map(|record| Event::from_record(&record.payload)));
        }
        let key = |event: &Event| event.value()["key"].as_str().map(str::to_owned);
        events.iter().filter_map(key).collect()
    }

    async fn letters(&self, queue: LogId) -> BTreeMap<Position, DeadLetter> {
        let rows = self.store.rows(dead_letters::TABLE, dead_letters::older(queue, None, usize::MAX)).await;
        let rows = rows.expect("readable");
        let letters: Vec<_> = rows.iter().map(|row| dead_letters::read(row).expect("a letter")).collect();
        letters.into_iter().map(|letter| (letter.position, letter)).collect()
    }

    /// Every delivery has come to its end, with what was recorded of it; no handler was called for anything else, or
    /// again. All that can be done is done.
    pub async fn check(&self, what: &str) -> Tally {
        let mut tally = Tally::default();
        let mut queued = BTreeSet::new();
        let events: BTreeMap<String, Event> =
            self.events().await.into_iter().map(|event| (event.id.clone(), event)).collect();
        for found in self.found() {
            let name = found.hook.settings.rpc_method.clone().expect("each has a name");
            let what = format!("{what}: {name}");
            let letters = self.letters(found.queue).await;
            let (mut positions, mut order) = (0, Vec::new());
            for (position, event) in self.events_in(found.queue).await {
                positions += 1;
                assert_eq!(events.get(&event.id), Some(&event), "{what}: it refers to an event");
                let id = found.hook.delivery(found.queue, position).to_string();
                order.push(id.clone());
                queued.insert(id.clone());
                let span = attempts::between(found.queue, position, position, usize::MAX);
                let rows = self.store.rows(attempts::TABLE, span).await.expect("readable");
                let log: Vec<_> = rows.iter().filter_map(|row| Some(attempts::read(row)?.1)).collect();
                let is_given_up = rows.iter().any(|row| attempts::read_given_up(row).is_some());
                let numbers: Vec<u32> = log.iter().map(|attempt| attempt.number).collect();
                assert_eq!(numbers, (1..=log.len() as u32).collect::<Vec<_>>(), "{what}: {id}");
                let successes =
                    log.iter().filter(|one| matches!(one.outcome, AttemptOutcome::Success(_))).count();
                let mut known = self.calls.known();
                let calls = known.deliveries.get(&id).cloned().unwrap_or_default();
                assert!(
                    calls.calls as usize >= log.len(),
                    "{what}: {id} was called for each of its attempts"
                );
                if !found.progress.is_settled(position) || found.progress.parked.contains_key(&position) {
                    assert!(!found.hook.is_active(), "{what}: {id} is left although its hook is active");
                    continue;
                }
                known.ended.insert(id.clone());
                drop(known);
                tally.failed += (log.len() - successes) as u64;
                let is_dead = letters.contains_key(&position);
                match successes {
                    // It was given up, and its dead letter may have been retried.
                    0 => assert!(is_given_up && log.len() == 2, "{what}: {id} was given up after {log:?}"),
                    1 => {
                        assert!(
                            !is_given_up && !is_dead && calls.accepted > 0,
                            "{what}: {id} was accepted: {calls:?}"
                        );
                        assert!(matches!(log.last().expect("one").outcome, AttemptOutcome::Success(_)));
                        tally.delivered += 1;
                    }
                    _ => panic!("{what}: {id} succeeded twice: {log:?}"),
                }
                tally.dead += u64::from(is_dead);
            }
            let progress = &found.progress;
            assert_eq!(progress.dead_letters, letters.len() as u64, "{what}: dead letters are counted");
            assert_eq!(found.status.total.records, positions, "{what}: nothing was removed");
            let ended = progress.delivered + progress.dead + progress.parked.len() as u64;
            assert_eq!(found.pending(), positions - ended, "{what}: each counts once");
            if found.hook.settings.pattern != "**" {
                let told = events.values().filter(|event| event.event_type == "hook.delivery.dead");
                let told =
                    told.map(Event::value).filter(|told| told["subscriptionId"] == found.hook.id.to_string());
                let told: u64 = told.map(|told| told["count"].as_u64().expect("a number")).sum();
                assert_eq!(told, progress.dead, "{what}: notices tell of all that were given up");
            }
            if found.hook.settings.ordering == Ordering::Subscription {
                let known = self.calls.known();
                let called = known.order.get(&name).cloned().unwrap_or_default();
                let expected = order.into_iter().filter(|id| known.deliveries.contains_key(id));
                assert!(expected.eq(called), "{what}: in order");
            }
        }
        let known = self.calls.known();
        assert_eq!(known.wrong, Vec::<String>::new(), "{what}");
        let names: BTreeSet<String> =
            self.found().iter().filter_map(|found| found.hook.settings.rpc_method.clone()).collect();
        for (id, delivered) in &known.deliveries {
            let is_there = queued.contains(id) || !names.contains(&delivered.hook);
            assert!(is_there, "{what}: {id} was made and is not known: {delivered:?}");
        }
        tally
    }
}
