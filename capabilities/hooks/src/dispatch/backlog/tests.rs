//! Whatever happens in whatever order, each delivery ends once, and what is stored agrees with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as Atomic};
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use tidings_engine::log::{Boundary, LogTotals, Record, StateMachine, Status};
use tidings_model::{CommitNumber, LogId, Position, ProjectId, Timestamp, Ulid};

use super::{AttemptEnd, Backlog, Turn, Want};
use crate::delivery::{Attempt, AttemptOutcome, DeathReason};
use crate::dispatch::attempt::Loaded;
use crate::dispatch::moment::{Moment, Rules};
use crate::dispatch::outcome::Fate;
use crate::dispatch::results::{End, Part};
use crate::hook::{Hook, HookId, HookState, Ordering, Settings};
use crate::signature::{Secret, Secrets};
use crate::store::Found;
use crate::{Change, Event, Table};

const QUEUE: LogId = LogId::new(5);
const START: u64 = 1_800_000_000_000;
const RULES: Rules = Rules { retention: Duration::from_secs(3600), max_queue: 40 };

/// A queue, the tables, and what ought to be true.
struct Model {
    records: Vec<Record>,
    table: Table,
    backlog: Backlog,
    elapsed: Duration,
    ids: Arc<AtomicU64>,
    running: Vec<Loaded>,
    want: Option<Want>,
    /// Deliveries whose end is recorded.
    ended: BTreeMap<Position, &'static str>,
    ordering: Ordering,
    /// Deliveries that ended in this life of the backlog.
    finished: BTreeSet<Position>,
}

#[derive(Clone, Debug)]
enum Action {
    Publish(usize),
    Begin,
    End(usize, u8),
    Read,
    FailToRead,
    Pass(u64),
    Record(bool),
    RecordWithoutDead,
    Unload,
    Toggle,
    Crash,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        3 => (1usize..20).prop_map(Action::Publish),
        8 => Just(Action::Begin),
        8 => (any::<usize>(), 0u8..10).prop_map(|(at, how)| Action::End(at, how)),
        8 => Just(Action::Read),
        1 => Just(Action::FailToRead),
        3 => prop_oneof![1u64..3000, Just(2_000_000)].prop_map(Action::Pass),
        3 => any::<bool>().prop_map(Action::Record),
        1 => Just(Action::RecordWithoutDead),
        1 => Just(Action::Unload),
        1 => Just(Action::Toggle),
        1 => Just(Action::Crash),
    ];
    prop::collection::vec(action, 0..300)
}

fn hook(ordering: Ordering) -> Hook {
    let mut settings = Settings::new("**");
    settings.url = Some("http://one.example/".into());
    settings.ordering = ordering;
    settings.ordering_key = Some("/key".into());
    settings.concurrency = 4;
    Hook {
        id: HookId(Ulid::new(1)),
        project: ProjectId::default_project(),
        settings,
        secrets: Secrets { current: Secret::from_bytes(&[1; 32]), previous: None },
        state: HookState::Active,
        id_mask: crate::IdMask::default(),
        created_at: Timestamp::from_millis(START),
        updated_at: Timestamp::from_millis(START),
    }
}

impl Model {
    fn new(ordering: Ordering) -> Self {
        let mut table = Table::default();
        let create = Change::Create { queue: QUEUE, hook: Arc::new(hook(ordering)), most: 1 };
        table.apply(create);
        let elapsed = Duration::from_secs(100);
        let ids = Arc::new(AtomicU64::new(1));
        let backlog = Self::with_moment(elapsed, &ids, |moment| Backlog::new(&found(&table, &[]), moment));
        Self {
            records: Vec::new(),
            table,
            backlog,
            elapsed,
            ids,
            running: Vec::new(),
            want: None,
            ended: BTreeMap::new(),
            ordering,
            finished: BTreeSet::new(),
        }
    }

    fn with_moment<R>(elapsed: Duration, ids: &AtomicU64, with: impl FnOnce(&Moment<'_>) -> R) -> R {
        let fresh_id = || Ulid::new(u128::from(ids.fetch_add(1, Atomic::Relaxed)));
        let at = Timestamp::from_millis(START) + elapsed;
        with(&Moment { at, elapsed, rules: &RULES, fresh_id: &fresh_id })
    }

    fn then<R>(&mut self, then: impl FnOnce(&mut Backlog, &Moment<'_>) -> R) -> R {
        let Self { backlog, elapsed, ids, .. } = self;
        Self::with_moment(*elapsed, ids, |moment| then(backlog, moment))
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(START) + self.elapsed
    }

    fn look(&mut self) {
        self.then(|backlog, moment| backlog.look(moment));
        if let Some(want) = self.backlog.take_want() {
            assert_eq!(self.want, None, "one read at a time");
            self.want = Some(want);
        }
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Publish(count) => {
                for _ in 0..count {
                    let n = self.records.len() as u128 + 1;
                    self.records.push(record(n, self.now()));
                }
                self.refresh();
            }
            Action::Begin => self.begin(),
            Action::End(at, how) => self.end(at, how),
            Action::Read => self.read(),
            Action::FailToRead => {
                if self.want.take().is_some() {
                    self.backlog.not_read();
                }
            }
            Action::Pass(ms) => self.elapsed += Duration::from_millis(ms),
            Action::Record(succeeds) => self.record(true, succeeds),
            Action::RecordWithoutDead => self.record(false, true),
            Action::Unload => self.backlog.unload(),
            Action::Toggle => {
                let before = self.table.hook(QUEUE).expect("a hook").clone();
                let inactive = HookState::Inactive { since: Position::ZERO };
                let state = if before.is_active() { inactive } else { HookState::Active };
                self.set(state);
            }
            Action::Crash => {
                self.running.clear();
                self.want = None;
                self.finished.clear();
                let found = found(&self.table, &self.records);
                let Self { elapsed, ids, .. } = self;
                self.backlog = Self::with_moment(*elapsed, ids, |moment| Backlog::new(&found, moment));
            }
        }
        self.look();
        self.check();
    }

    fn set(&mut self, state: HookState) {
        let before = self.table.hook(QUEUE).expect("a hook").clone();
        let after = Hook { state, updated_at: before.updated_after(self.now()), ..Hook::clone(&before) };
        self.table.apply(Change::Set { queue: QUEUE, was: before.updated_at, hook: Arc::new(after) });
        self.refresh();
    }

    fn refresh(&mut self) {
        let found = found(&self.table, &self.records);
        assert!(self.then(|backlog, moment| backlog.refresh(&found, moment)));
    }

    fn begin(&mut self) {
        let turn = self.then(|backlog, moment| backlog.turn(moment, true));
        // Some are given up without an attempt.
        let ended = self.backlog.results.iter().filter(|result| !matches!(result.end, End::Parked(_)));
        self.finished.extend(ended.map(|result| result.position));
        let Turn::Begin(loaded) = turn else { return };
        assert!(self.table.hook(QUEUE).expect("a hook").is_active());
        assert!(!self.finished.contains(&loaded.position), "it has ended");
        let lane = |loaded: &Loaded| match self.ordering {
            Ordering::None => None,
            Ordering::Subscription => Some(0),
            Ordering::Key => Some(loaded.position.get() % 3),
        };
        for other in &self.running {
            assert_ne!(other.position, loaded.position, "it is running");
            assert!(lane(other).is_none() || lane(other) != lane(&loaded), "its lane is busy");
        }
        if lane(&loaded).is_some() {
            let unfinished = |record: &&Record| {
                record.position < loaded.position
                    && !self.finished.contains(&record.position)
                    && !self.ended.contains_key(&record.position)
            };
            let same = |record: &&Record| match self.ordering {
                Ordering::Key => record.position.get() % 3 == loaded.position.get() % 3,
                _ => true,
            };
            let earlier = self.records.iter().filter(unfinished).find(same);
            assert!(earlier.is_none(), "{:?} before {earlier:?}", loaded.position);
        }
        self.running.push(loaded);
        assert!(self.running.len() <= 4);
    }

    fn end(&mut self, at: usize, how: u8) {
        if self.running.is_empty() {
            return;
        }
        let loaded = self.running.swap_remove(at % self.running.len());
        let number = loaded.attempts + 1;
        let (fate, error) = match how {
            0..=4 => (Fate::Delivered, ""),
            5..=7 if number < 4 => (Fate::Retried(Duration::from_millis(1000)), "HTTP 500: "),
            8 => (Fate::Unchanged, ""),
            _ => (Fate::Dead(DeathReason::MaxRetriesExceeded), "HTTP 500: "),
        };
        if !matches!(fate, Fate::Unchanged | Fate::Retried(_)) {
            self.finished.insert(loaded.position);
        }
        let outcome = AttemptOutcome::Failed(error.into());
        let attempt =
            (fate != Fate::Unchanged).then(|| Attempt { number, at: self.now(), duration_ms: 1, outcome });
        let end = AttemptEnd { attempt, fate, error: error.into() };
        self.then(|backlog, moment| backlog.settle(loaded, end, moment));
    }

    fn read(&mut self) {
        let (Some(want), status) = (self.want.take(), status(&self.records)) else { return };
        let records = self.records.clone();
        self.then(|backlog, moment| match want {
            Want::Page { after, records: most, .. } => {
                let page = records.into_iter().filter(|record| record.position > after).take(most).collect();
                backlog.read_page(after, page, status, moment);
            }
            Want::One(position, purpose) => {
                let record = records.into_iter().find(|record| record.position == position);
                backlog.read_one(position, purpose, record, moment);
            }
        });
    }

    fn record(&mut self, with_dead: bool, succeeds: bool) {
        let results = self.backlog.take_results(usize::MAX, with_dead);
        if results.is_empty() && !self.backlog.is_dirty() {
            return;
        }
        let hook = self.backlog.hook().clone();
        let part = Part::new((QUEUE, 1), hook, results, self.backlog.window());
        if !succeeds {
            return self.backlog.not_recorded(part.results);
        }
        self.backlog.recorded(part.results.len());
        self.table.apply(Change::Settle { queue: QUEUE, settled: part.settled });
        for result in part.results {
            let end = match result.end {
                End::Delivered => "delivered",
                End::Dead { .. } => "dead",
                End::Parked(_) => continue,
            };
            let before = self.ended.insert(result.position, end);
            assert_eq!(before, None, "{:?} ended twice", result.position);
        }
    }

    fn check(&self) {
        let found = found(&self.table, &self.records);
        let progress = &found.progress;
        let count = |what| self.ended.values().filter(|end| **end == what).count() as u64;
        assert_eq!((progress.delivered, progress.dead), (count("delivered"), count("dead")));
        assert_eq!(
            found.pending() + progress.delivered + progress.dead + progress.parked.len() as u64,
            self.records.len() as u64
        );
        for record in &self.records {
            let position = record.position;
            let settled = self.ended.contains_key(&position) || progress.parked.contains_key(&position);
            assert_eq!(progress.is_settled(position), settled, "{position:?}");
        }
        assert!(self.ended.keys().all(|position| !progress.parked.contains_key(position)));
    }

    /// Lets everything end well.
    fn drain(&mut self) {
        self.set(HookState::Active);
        for _ in 0..5000 {
            self.look();
            self.read();
            self.begin();
            self.end(0, 0);
            self.record(true, true);
            self.elapsed += Duration::from_millis(100);
            if self.ended.len() == self.records.len() && !self.backlog.has_work() {
                break;
            }
        }
        self.check();
        assert_eq!(self.ended.len(), self.records.len());
        assert!(!self.backlog.has_work());
        let found = found(&self.table, &self.records);
        assert!(found.progress.above.is_empty() && found.progress.parked.is_empty());
        assert_eq!(self.backlog.bytes(), 0);
    }
}

fn found(table: &Table, records: &[Record]) -> Found {
    let hook = table.hook(QUEUE).expect("a hook").clone();
    let progress = table.progress(QUEUE).cloned().unwrap_or_default();
    Found { queue: QUEUE, hook, progress, status: status(records) }
}

fn status(records: &[Record]) -> Status {
    let total = LogTotals { records: records.len() as u64, bytes: 0 };
    let tail = records.last().map_or(Position::ZERO, |record| record.position);
    Status { tail, floor: Position::ZERO, closed: false, total }
}

/// The `n`-th record of the queue, whose key is one of three.
fn record(n: u128, at: Timestamp) -> Record {
    let json = Bytes::from(format!("{{\"key\":{}}}", n % 3));
    let text = |text: &str| text.to_owned();
    let (event_type, id, ts) = (text("a"), n.to_string(), text("t"));
    let event = Event { event_type, id, ts, about: None, id_chosen: false, json };
    Record {
        position: Position::new(n),
        commit: CommitNumber::ZERO,
        at,
        payload: event.to_record(),
        head: None,
        origin: None,
        boundary: Boundary::Last,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn each_delivery_ends_once_whatever_happens(
        actions in actions(), ordering in prop_oneof![
            Just(Ordering::None), Just(Ordering::Subscription), Just(Ordering::Key),
        ],
    ) {
        let mut model = Model::new(ordering);
        for action in &actions {
            model.act(action);
        }
        model.drain();
    }
}
