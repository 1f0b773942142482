//! Power cuts at random moments: no acknowledged commit is lost, and no commit is applied in part.
//!
//! Several writers work on one store, each on logs of its own and with a plain model of what was
//! acknowledged. The power is cut at a random operation of the disk; unsynced data is lost, kept or torn,
//! sector by sector. The store is opened again on what is left, and each writer's logs must match its model,
//! with or without the one commit that was not answered. Then the writers go on until the next cut.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_embedded::{Embedded, Options};
use tidings_engine::log::contract::Note;
use tidings_engine::log::{
    Append, Commit, CommitError, Commits, LogTotals, Logs, Of, Operation, Refer, Refusal, RowChange, RowSpan,
    Rows, Span, StoreError, Then,
};
use tidings_model::{LogId, Position, Producer, ProducerId};

use crate::book::{Book, open, small};
use crate::row_model::{RowModel, TABLE, key, random_change};

/// Power cuts in a normal run of the tests; `make test-all` sets more.
const CUTS: u64 = 500;
const WRITERS: u64 = 3;
const CUTS_PER_STORE: u64 = 4;

fn cuts() -> u64 {
    std::env::var("TIDINGS_POWER_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(CUTS)
}

/// What was acknowledged to a writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    logs: BTreeMap<LogId, ModelLog>,
    notes: u64,
    /// Rows whose keys begin with the writer's number.
    rows: RowModel,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ModelLog {
    payloads: Vec<Bytes>,
    trimmed: usize,
    closed: bool,
    /// Next sequence number of the writer's producer.
    sequence: u64,
}

/// One request of a writer.
#[derive(Clone, Debug)]
enum Step {
    Create(LogId),
    Append {
        log: LogId,
        payloads: Vec<Bytes>,
        stamped: bool,
        close: bool,
        note: bool,
        rows: Vec<RowChange>,
    },
    Rows(Vec<RowChange>),
    Publish {
        log: LogId,
        payload: Bytes,
        into: Vec<LogId>,
    },
    /// References to the stored records after the first `skip`.
    Catch {
        log: LogId,
        skip: usize,
        into: LogId,
    },
    Trim {
        log: LogId,
        keep: usize,
    },
    Delete(LogId),
}

impl Model {
    /// The model after a step, or `None` if the step must be refused.
    fn after(&self, step: &Step) -> Option<Self> {
        let mut next = self.clone();
        match step {
            Step::Create(log) => {
                next.logs.insert(*log, ModelLog::default());
            }
            Step::Append { log, payloads, stamped, close, note, rows } => {
                let log = next.logs.get_mut(log).filter(|log| !log.closed)?;
                log.payloads.extend(payloads.iter().cloned());
                log.sequence += u64::from(*stamped);
                log.closed = *close;
                next.notes += u64::from(*note);
                rows.iter().for_each(|change| next.rows.apply(change));
            }
            Step::Rows(changes) => changes.iter().for_each(|change| next.rows.apply(change)),
            Step::Publish { log, payload, into } => {
                next.logs.get_mut(log).filter(|log| !log.closed)?.payloads.push(payload.clone());
                for target in into {
                    if let Some(target) = next.logs.get_mut(target).filter(|target| !target.closed) {
                        target.payloads.push(payload.clone());
                    }
                }
            }
            Step::Catch { log, skip, into } => {
                let source = self.logs.get(log)?;
                let records = source.payloads[(*skip).max(source.trimmed)..].to_vec();
                if let Some(target) = next.logs.get_mut(into).filter(|target| !target.closed) {
                    target.payloads.extend(records);
                }
            }
            Step::Trim { log, keep } => {
                let log = next.logs.get_mut(log)?;
                log.trimmed = log.trimmed.max(log.payloads.len() - keep);
            }
            Step::Delete(log) => {
                next.logs.remove(log)?;
            }
        }
        Some(next)
    }
}

struct Writer {
    number: u64,
    rng: fastrand::Rng,
    model: Model,
    /// The step that was not answered when the power was cut.
    unanswered: Option<Step>,
}

impl Writer {
    fn new(seed: u64, number: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed * WRITERS + number);
        Self { number, rng, model: Model::default(), unanswered: None }
    }

    /// Works until the store fails.
    async fn work(mut self, store: Embedded<Book>) -> Self {
        for _ in 0..10_000 {
            let step = self.choose(&store).await;
            let Some(commit) = self.commit(&store, &step).await else { break };
            match store.commit(commit).await {
                Ok(_) => {
                    self.model =
                        self.model.after(&step).unwrap_or_else(|| panic!("{step:?} should be refused"));
                }
                Err(CommitError::Store(StoreError::Unavailable(_))) => {
                    self.unanswered = Some(step);
                    break;
                }
                Err(error) => assert!(self.model.after(&step).is_none(), "{step:?} refused: {error}"),
            }
            if self.rng.u8(..30) == 0 {
                assert_eq!(self.seen(&store).await, self.model, "while running");
            }
            if self.rng.u8(..60) == 0 {
                let (store, flush) = (store.clone(), self.rng.bool());
                // Fails when the power is cut; the next commit will fail, too.
                let _ = tokio::task::spawn_blocking(
                    move || if flush { store.flush() } else { store.merge_now() },
                )
                .await;
            }
        }
        self
    }

    async fn choose(&mut self, store: &Embedded<Book>) -> Step {
        let logs: Vec<LogId> = self.model.logs.keys().copied().collect();
        if logs.len() < 2 || (logs.len() < 12 && self.rng.u8(..12) == 0) {
            return Step::Create(store.reserve().await.expect("numbers are free"));
        }
        let log = logs[self.rng.usize(..logs.len())];
        match self.rng.u8(..100) {
            0..12 => Step::Rows(self.row_changes(12)),
            12..60 => Step::Append {
                log,
                payloads: (0..self.rng.usize(1..4)).map(|_| self.payload()).collect(),
                stamped: self.rng.bool(),
                close: self.rng.u8(..60) == 0,
                note: self.rng.u8(..8) == 0,
                rows: self.row_changes(4),
            },
            60..78 => {
                let into = logs.iter().copied().filter(|_| self.rng.bool()).collect();
                Step::Publish { log, payload: self.payload(), into }
            }
            78..84 => {
                let into = logs[self.rng.usize(..logs.len())];
                let records = self.model.logs[&log].payloads.len();
                Step::Catch { log, skip: records - self.rng.usize(..=records.min(5)), into }
            }
            84..94 => {
                let known = &self.model.logs[&log];
                Step::Trim { log, keep: self.rng.usize(..=known.payloads.len() - known.trimmed) }
            }
            _ => Step::Delete(log),
        }
    }

    fn row_changes(&mut self, most: usize) -> Vec<RowChange> {
        let group = self.number as u32;
        (0..self.rng.usize(..most)).map(|_| random_change(&mut self.rng, group..group + 1)).collect()
    }

    fn payload(&mut self) -> Bytes {
        let length = match self.rng.u8(..20) {
            0 => self.rng.usize(4_000..12_000),
            1..5 => self.rng.usize(500..3_000),
            _ => self.rng.usize(..100),
        };
        (0..length).map(|_| self.rng.u8(..)).collect()
    }

    /// The commit for a step; `None` if the store cannot be asked for what it needs.
    async fn commit(&mut self, store: &Embedded<Book>, step: &Step) -> Option<Commit<Note>> {
        Some(match step {
            Step::Create(log) => Commit::new().with(Operation::create(*log)),
            Step::Rows(changes) => Commit { rows: changes.clone(), ..Commit::new() },
            Step::Append { log, payloads, stamped, close, note, rows } => {
                let mut append = Append::new(*log, payloads.clone());
                append.then = if *close { Then::Close } else { Then::StayOpen };
                if *stamped {
                    append.conditions.producer = Some(self.stamp(*log));
                }
                let commit = Commit { rows: rows.clone(), ..Commit::new() }.with(append);
                let key = format!("{}/{}", self.number, self.model.notes);
                if *note { commit.changing(Note { key, text: "x".into() }) } else { commit }
            }
            Step::Publish { log, payload, into } => {
                let refer = Refer { of: Of::Append(0), into: into.clone().into() };
                Commit::new().with(Append::new(*log, vec![payload.clone()])).with(refer)
            }
            Step::Catch { log, skip, into } => {
                let trimmed = self.model.logs[log].trimmed;
                let after = match skip.saturating_sub(trimmed) {
                    0 => Position::ZERO,
                    n => records(store, *log).await?.get(n - 1)?.0,
                };
                let of = Of::Stored { log: *log, after, through: Position::MAX };
                Commit::new().with(Refer { of, into: Arc::new([*into]) })
            }
            Step::Trim { log, keep } => {
                let all = records(store, *log).await?;
                let floor = match all.len().checked_sub(keep + 1) {
                    Some(last_gone) => all[last_gone].0,
                    None => Position::ZERO,
                };
                Commit::new().with(Operation::Trim { log: *log, floor })
            }
            Step::Delete(log) => Commit::new().with(Operation::Delete(*log)),
        })
    }

    fn stamp(&self, log: LogId) -> Producer {
        let sequence = self.model.logs[&log].sequence;
        Producer { id: ProducerId::parse("writer").expect("valid"), epoch: 0, sequence }
    }

    /// What the store shows of this writer's logs.
    async fn seen(&self, store: &Embedded<Book>) -> Model {
        let mut seen = Model::default();
        let candidates = self.model.logs.keys().copied().chain(match self.unanswered {
            Some(Step::Create(log)) => Some(log),
            _ => None,
        });
        for log in candidates {
            let Ok(status) = store.status(log).await else { continue };
            let kept = records(store, log).await.expect("what is there can be read");
            assert!(kept.is_sorted_by(|a, b| a.0 < b.0), "positions grow");
            assert!(kept.last().is_none_or(|(last, _)| *last <= status.tail));
            let known = self.model.logs.get(&log).cloned().unwrap_or_default();
            // Trimmed records cannot be read; they are taken from the model.
            let grown = known.payloads.len() - known.trimmed;
            let (trimmed, hidden) = match self.unanswered {
                Some(Step::Trim { log: of, keep }) if of == log && kept.len() == keep && keep != grown => {
                    (known.payloads.len() - keep, known.payloads.len() - keep)
                }
                _ => (known.trimmed, known.trimmed),
            };
            let mut payloads = known.payloads[..hidden].to_vec();
            payloads.extend(kept.into_iter().map(|(_, payload)| payload));
            assert_eq!(status.total, LogTotals::of(&payloads), "{log} counts what it ever took");
            let sequence = self.sequence_in(store, log, &known).await;
            seen.logs.insert(log, ModelLog { payloads, trimmed, closed: status.closed, sequence });
        }
        let note = |n: u64| store.look(|book, _| book.notes.get(&format!("{}/{n}", self.number)).is_some());
        seen.notes = (0..).take_while(|&n| note(n)).count() as u64;
        seen.rows = self.rows_in(store).await;
        seen
    }

    /// The rows that the store shows of this writer.
    async fn rows_in(&self, store: &Embedded<Book>) -> RowModel {
        let group = self.number as u32;
        let span = RowSpan::of_prefix(group.to_be_bytes().to_vec().into());
        let rows = RowModel::in_span(store, span).await.expect("what is there can be read");
        // Rows that are looked up must agree with those that are listed.
        for n in (0..200).step_by(9) {
            let key = key(group, n);
            assert_eq!(store.row(TABLE, &key).await.expect("readable").as_ref(), rows.0.get(&key));
        }
        rows
    }

    /// The next sequence number that the store accepts, determined by requests that change nothing.
    async fn sequence_in(&self, store: &Embedded<Book>, log: LogId, known: &ModelLog) -> u64 {
        for sequence in [known.sequence, known.sequence + 1] {
            let mut append = Append::new(log, vec![Bytes::new()]);
            append.conditions.producer = Some(Producer { sequence, ..self.stamp_of(sequence) });
            append.conditions.tail = Some(Position::MAX);
            match store.commit(Commit::new().with(append)).await {
                Err(CommitError::Refused(Refusal::TailMoved { .. })) => return sequence,
                Err(CommitError::Refused(Refusal::Closed { .. })) => return known.sequence,
                Err(CommitError::Refused(Refusal::Duplicate { status, .. })) if status.closed => {
                    return known.sequence + 1;
                }
                Err(CommitError::Store(_)) => return known.sequence,
                _ => {}
            }
        }
        panic!("producer of {log} is neither at {} nor at the next", known.sequence)
    }

    fn stamp_of(&self, sequence: u64) -> Producer {
        Producer { id: ProducerId::parse("writer").expect("valid"), epoch: 0, sequence }
    }

    /// Compares the store with the model after a crash, with or without the unanswered step.
    async fn settle(&mut self, store: &Embedded<Book>, what: &str) {
        let seen = self.seen(store).await;
        let with = self.unanswered.as_ref().and_then(|step| self.model.after(step));
        if with.as_ref() == Some(&seen) {
            self.model = seen;
        } else if seen != self.model {
            let lost = difference(&self.model, &seen);
            panic!("{what}: writer {} sees {lost}; unanswered: {:?}", self.number, self.unanswered);
        }
        self.unanswered = None;
    }
}

fn difference(model: &Model, seen: &Model) -> String {
    let mut text = format!("notes {} of {}", seen.notes, model.notes);
    let rows = |one: &Model, other: &Model| {
        one.rows.0.iter().filter(|(key, value)| other.rows.0.get(*key) != Some(value)).count()
    };
    text += &format!(
        "; {} rows too many or changed, {} missing or changed",
        rows(seen, model),
        rows(model, seen)
    );
    for (log, known) in &model.logs {
        match seen.logs.get(log) {
            Some(found) if found == known => {}
            Some(found) => {
                text += &format!(
                    "; {log}: {} of {} records, trimmed {} of {}, closed {} of {}, sequence {} of {}",
                    found.payloads.len(),
                    known.payloads.len(),
                    found.trimmed,
                    known.trimmed,
                    found.closed,
                    known.closed,
                    found.sequence,
                    known.sequence
                );
            }
            None => text += &format!("; {log} is missing"),
        }
    }
    for log in seen.logs.keys().filter(|log| !model.logs.contains_key(log)) {
        text += &format!("; {log} should not be there");
    }
    text
}

async fn records(store: &Embedded<Book>, log: LogId) -> Option<Vec<(Position, Bytes)>> {
    let span = Span { bytes: usize::MAX, records: usize::MAX, ..Span::after(Position::ZERO) };
    let page = store.read(log, span).await.ok()?;
    Some(page.records.into_iter().map(|record| (record.position, record.payload)).collect())
}

async fn work_until_cut(store: Embedded<Book>, writers: Vec<Writer>) -> Vec<Writer> {
    let tasks: Vec<_> = writers.into_iter().map(|writer| tokio::spawn(writer.work(store.clone()))).collect();
    let mut writers = Vec::new();
    for task in tasks {
        writers.push(task.await.expect("the writer found nothing wrong"));
    }
    writers
}

/// Runs one store through its power cuts.
async fn life(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut disk = SimulatedDisk::new();
    let mut writers: Vec<_> = (0..WRITERS).map(|number| Writer::new(seed, number)).collect();
    for cut in 0..CUTS_PER_STORE {
        let what = format!("seed {seed}, cut {cut}");
        // The first cuts come while the store is created or opened.
        disk.cut_power_at(rng.u64(1..if cut == 0 { 60 } else { 900 }));
        match open(&disk, options(seed)) {
            Ok(store) => {
                for writer in &mut writers {
                    writer.settle_unless_cut(&store, &disk, &what).await;
                }
                writers = work_until_cut(store, writers).await;
            }
            Err(tidings_embedded::OpenError::Io { .. }) => {}
            Err(error) => panic!("{what}: {error}"),
        }
        // The process may be killed and restarted before the power is cut.
        if rng.bool() {
            disk = disk.after_kill();
            let store = open(&disk, options(seed)).unwrap_or_else(|error| panic!("{what}, killed: {error}"));
            for writer in &mut writers {
                writer.settle(&store, &format!("{what}, killed")).await;
            }
            drop(store);
        }
        disk = disk.after_power_cut(&mut rng);
        let store = open(&disk, options(seed)).unwrap_or_else(|error| panic!("{what}: {error}"));
        for writer in &mut writers {
            writer.settle(&store, &what).await;
        }
    }
}

impl Writer {
    /// Compares unless the power is cut while comparing.
    async fn settle_unless_cut(&mut self, store: &Embedded<Book>, disk: &SimulatedDisk, what: &str) {
        if self.unanswered.is_some() && !disk.has_failed() {
            self.settle(store, what).await;
        }
    }
}

fn options(seed: u64) -> Options {
    // With every other seed the end of the log is recorded all the time.
    let record_interval = Duration::from_millis(if seed.is_multiple_of(2) { 1 } else { 10_000 });
    Options { secret: seed, record_interval, ..small() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_power_cuts_at_any_moment() {
    for seed in 0..cuts() / CUTS_PER_STORE {
        life(seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_operation_of_the_disk_may_fail() {
    let mut survived = 0;
    for operation in 1.. {
        let disk = SimulatedDisk::new();
        disk.fail_at(operation);
        let Ok(store) = open(&disk, options(1)) else { continue };
        let mut writer = Writer::new(operation, 0);
        writer.rng = fastrand::Rng::with_seed(5);
        let mut writer = work_a_while(writer, &store).await;
        drop(store);
        for (disk, what) in [
            (disk.after_kill(), "killed"),
            (disk.after_power_cut(&mut fastrand::Rng::with_seed(operation)), "cut"),
        ] {
            let store =
                open(&disk, options(1)).unwrap_or_else(|error| panic!("{operation}, {what}: {error}"));
            let mut copy =
                Writer { rng: writer.rng.clone(), model: writer.model.clone(), ..Writer::new(0, 0) };
            copy.unanswered = writer.unanswered.clone();
            copy.settle(&store, &format!("operation {operation}, {what}")).await;
            drop(store);
            // What readers saw after the start must be on the disk.
            let disk = disk.after_power_cut(&mut fastrand::Rng::with_seed(operation + 1));
            let store =
                open(&disk, options(1)).unwrap_or_else(|error| panic!("{operation}, {what}: {error}"));
            copy.settle(&store, &format!("operation {operation}, {what} and cut")).await;
        }
        writer.unanswered = None;
        if !disk.has_failed() {
            survived += 1;
            if survived == 3 {
                assert!(operation > 200, "the work takes many operations, not {operation}");
                return;
            }
        }
    }
}

/// A fixed number of steps.
async fn work_a_while(mut writer: Writer, store: &Embedded<Book>) -> Writer {
    for n in 0..120 {
        let step = writer.choose(store).await;
        let Some(commit) = writer.commit(store, &step).await else { break };
        match store.commit(commit).await {
            Ok(_) => writer.model = writer.model.after(&step).expect("acknowledged"),
            Err(CommitError::Store(_)) => {
                writer.unanswered = Some(step);
                break;
            }
            Err(_) => assert!(writer.model.after(&step).is_none()),
        }
        if n % 40 == 39 {
            let store = store.clone();
            let _ = tokio::task::spawn_blocking(move || store.flush().and_then(|()| store.merge_now())).await;
        }
    }
    writer
}
