//! From what a commit asks to what it does. Pure: every store validates alike, and replays what was validated.
//!
//! [`Plan::validate`] takes the operations of a commit in order, each against the logs as those before it leave
//! them, and gives the [`Effect`]s: what will be, with positions given and refusals sorted out. A store makes the
//! effects durable and then [applies](Effect) them; after a crash it applies them again from its files.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use tidings_model::{CommitNumber, LogId, Position, Timestamp, limits};

use super::{
    Append, Appended, Boundary, LogState, LogTotals, Of, Operation, Origin, Outcome, Record, Refer, Referred,
    Refusal, Validated,
};

/// A record without its position: one for all logs that refer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The commit that put it there.
    pub commit: CommitNumber,
    /// When that was.
    pub at: Timestamp,
    /// Its bytes.
    pub payload: Bytes,
    /// The record it refers to, when it is a reference.
    pub origin: Option<Origin>,
    /// Where it stands in its append.
    pub boundary: Boundary,
}

impl Stored {
    /// The record at a position.
    pub fn at(&self, position: Position) -> Record {
        let Self { commit, at, payload, origin, boundary } = self.clone();
        Record { position, commit, at, payload, head: None, origin, boundary }
    }
}

/// Something that a commit does to logs, validated good. Applying it cannot fail.
#[derive(Clone, Debug)]
pub enum Effect {
    /// A log begins.
    Created {
        /// Its number.
        log: LogId,
        /// The tail it begins with.
        tail: Position,
    },
    /// Records are appended, the log is closed, or both. The expected tail does not matter any more.
    Appended {
        /// What was asked.
        append: Append,
        /// Where its records lie.
        positions: Vec<Position>,
    },
    /// References are appended to logs, at the next position that each has.
    Referred {
        /// What each target gets, in order.
        sources: Vec<Arc<Stored>>,
        /// The logs that get it, in ascending order.
        targets: Vec<LogId>,
    },
    /// Records are let go.
    Trimmed {
        /// Of this log.
        log: LogId,
        /// Up to and with this.
        floor: Position,
    },
    /// A log ends.
    Ended {
        /// Its number.
        log: LogId,
    },
}

/// The records of an append, each with its position.
pub fn records<'a>(
    append: &'a Append,
    positions: &'a [Position],
    commit: CommitNumber,
    at: Timestamp,
) -> impl Iterator<Item = (Position, Stored)> + 'a {
    positions.iter().zip(&append.payloads).enumerate().map(move |(n, (&position, payload))| {
        let boundary = if n + 1 == positions.len() { Boundary::Last } else { Boundary::Inside };
        (position, Stored { commit, at, payload: payload.clone(), origin: None, boundary })
    })
}

/// The logs as a commit finds them.
pub trait View {
    /// What is known of a log.
    fn log(&self, log: LogId) -> Known<'_>;

    /// Records of a log that is there: what the operation at this place among the commit's refers to.
    fn stored(&self, operation: usize, of: &Of) -> Result<Vec<Record>, Refusal>;
}

/// What is known of a log.
#[derive(Clone, Copy, Debug)]
pub enum Known<'a> {
    /// Nothing: its number is free.
    Nothing,
    /// It has ended.
    Ended,
    /// It is there.
    Live(&'a LogState),
}

/// Logs that commits have touched and that are not yet visible so, as they leave them; none for one that ends.
pub type Overlay = HashMap<LogId, Option<LogState>, LogHash>;

/// What a commit will do.
#[derive(Debug, Default)]
pub struct Plan {
    /// In order.
    pub effects: Vec<Effect>,
    /// What came of each operation.
    pub outcomes: Vec<Outcome>,
}

impl Plan {
    /// Validates the operations of a commit against the view and, before it, the overlay, in which the commit leaves the
    /// logs it touches. A refused commit leaves the overlay as it was.
    pub fn validate(
        view: &impl View,
        overlay: &mut Overlay,
        operations: Vec<Operation>,
        number: CommitNumber,
        now: Timestamp,
    ) -> Result<Self, Refusal> {
        let undoable = !matches!(operations[..], [] | [Operation::Append(_)]);
        let mut validating =
            Judging { view, overlay, number, now, plan: Self::default(), undoable, undo: Vec::new() };
        for (place, operation) in operations.into_iter().enumerate() {
            match validating.operation(place, operation) {
                Ok((outcome, effect)) => {
                    validating.plan.outcomes.push(outcome);
                    validating.plan.effects.push(effect);
                }
                Err(refusal) => {
                    validating.undo();
                    return Err(refusal);
                }
            }
        }
        Ok(validating.plan)
    }
}

struct Judging<'a, V> {
    view: &'a V,
    overlay: &'a mut Overlay,
    number: CommitNumber,
    now: Timestamp,
    plan: Plan,
    /// An append changes nothing before it is validated good, so a commit of one append has nothing to undo.
    undoable: bool,
    /// What the overlay had before each change, in order.
    undo: Vec<(LogId, Option<Box<Option<LogState>>>)>,
}

impl<V: View> Judging<'_, V> {
    fn operation(&mut self, place: usize, operation: Operation) -> Result<(Outcome, Effect), Refusal> {
        match operation {
            Operation::Create { log, tail } => {
                let known = self.overlay.contains_key(&log) || !matches!(self.view.log(log), Known::Nothing);
                if known {
                    return Err(Refusal::LogExists(log));
                }
                self.undo.push((log, None));
                self.overlay.insert(log, Some(LogState::beginning(tail)));
                Ok((Outcome::Done, Effect::Created { log, tail }))
            }
            Operation::Append(append) => self.append(append),
            Operation::Refer(refer) => self.refer(place, &refer),
            Operation::Trim { log, floor } => {
                self.state(log)?.trim(floor);
                Ok((Outcome::Done, Effect::Trimmed { log, floor }))
            }
            Operation::Delete(log) => {
                self.state(log)?;
                self.overlay.insert(log, None);
                Ok((Outcome::Done, Effect::Ended { log }))
            }
        }
    }

    /// The state of a log as it is now, to be changed.
    fn state(&mut self, log: LogId) -> Result<&mut LogState, Refusal> {
        use std::collections::hash_map::Entry;
        let place = match self.overlay.entry(log) {
            Entry::Occupied(known) => {
                let known = known.into_mut();
                if self.undoable {
                    self.undo.push((log, Some(Box::new(known.clone()))));
                }
                known
            }
            Entry::Vacant(place) => match self.view.log(log) {
                Known::Live(state) => {
                    self.undo.push((log, None));
                    place.insert(Some(state.clone()))
                }
                Known::Nothing | Known::Ended => return Err(Refusal::NoSuchLog(log)),
            },
        };
        place.as_mut().ok_or(Refusal::NoSuchLog(log))
    }

    fn undo(&mut self) {
        while let Some((log, before)) = self.undo.pop() {
            match before {
                Some(known) => self.overlay.insert(log, *known),
                None => self.overlay.remove(&log),
            };
        }
    }

    fn append(&mut self, append: Append) -> Result<(Outcome, Effect), Refusal> {
        let (number, now) = (self.number, self.now);
        let state = self.state(append.log)?;
        let Validated { positions } = state.validate(&append, number, now)?;
        let appended: Appended = state.apply(&append, &positions, now);
        Ok((Outcome::Appended(appended), Effect::Appended { append, positions }))
    }

    fn refer(&mut self, place: usize, refer: &Refer) -> Result<(Outcome, Effect), Refusal> {
        if refer.into.len() > limits::TARGETS_PER_COMMIT {
            return Err(Refusal::Malformed("a reference to more targets than one commit may have"));
        }
        let sources = self.sources(place, &refer.of)?;
        let mut wanted: Vec<LogId> = refer.into.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let totals = LogTotals::of(sources.iter().map(|source| &source.payload));
        let mut referred = Referred::default();
        let mut targets = Vec::with_capacity(wanted.len());
        for target in wanted {
            let number = self.number;
            match self.state(target) {
                Err(_) => referred.missing.push(target),
                Ok(state) if state.status().closed => referred.closed.push(target),
                Ok(state) => {
                    state.refer(number, totals)?;
                    targets.push(target);
                }
            }
        }
        Ok((Outcome::Referred(referred), Effect::Referred { sources, targets }))
    }

    /// The records to refer to, as they will stand in each target.
    fn sources(&mut self, place: usize, of: &Of) -> Result<Vec<Arc<Stored>>, Refusal> {
        let (commit, at) = (self.number, self.now);
        let reference = |log: LogId, position: Position, source: Stored| {
            // A reference to a reference leads to the record itself.
            let origin = Some(source.origin.unwrap_or(Origin { log, position, at: source.at }));
            Arc::new(Stored { commit, at, origin, ..source })
        };
        match of {
            Of::Append(operation) => {
                let Some(Effect::Appended { append, positions }) = self.plan.effects.get(*operation) else {
                    return Err(Refusal::Malformed("a reference to an earlier append"));
                };
                let made = records(append, positions, commit, at);
                Ok(made.map(|(position, stored)| reference(append.log, position, stored)).collect())
            }
            Of::Stored { log, .. } => {
                self.state(*log)?;
                let stored = self.view.stored(place, of)?;
                Ok(stored.into_iter().map(|record| reference(*log, record.position, record.into())).collect())
            }
        }
    }
}

impl From<Record> for Stored {
    fn from(record: Record) -> Self {
        let Record { commit, at, payload, origin, boundary, .. } = record;
        Self { commit, at, payload, origin, boundary }
    }
}

/// Hashes log numbers and positions. They come from the store itself and count up, so spreading them is enough.
pub type LogHash = BuildHasherDefault<LogHasher>;

/// See [`LogHash`].
#[derive(Clone, Copy, Debug, Default)]
pub struct LogHasher(u64);

impl Hasher for LogHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut number = [0; 8];
            number[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(number));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // Fibonacci hashing; the table takes its buckets from the low bits and its tags from the high ones.
        let spread = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ (spread >> 32);
    }
}
