//! Turns the operations of a commit into their effects. Pure, so that every store validates by the same
//! rules.
//!
//! [`Plan::validate`] takes the operations in order, each against the logs as the operations before it leave
//! them, and returns [`Effect`]s with all positions assigned. A store makes the effects durable and then
//! applies them; after a crash it applies them again from its files. Applying an effect cannot fail.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use tidings_model::{CommitNumber, LogId, Position, Timestamp, limits};

use super::{
    Append, Appended, Boundary, LogState, LogTotals, Of, Operation, Origin, Outcome, Record, Refer, Referred,
    Refusal, Validated,
};

/// A record without its position, so that all logs that refer to it can share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The commit that appended the record.
    pub commit: CommitNumber,
    /// Time of that commit.
    pub at: Timestamp,
    /// The payload.
    pub payload: Bytes,
    /// The referenced record, if this one is a reference.
    pub origin: Option<Origin>,
    /// Whether more records of the same append follow.
    pub boundary: Boundary,
}

impl Stored {
    /// Completes the record with its position.
    pub fn at(&self, position: Position) -> Record {
        let Self { commit, at, payload, origin, boundary } = self.clone();
        Record { position, commit, at, payload, head: None, origin, boundary }
    }
}

/// A validated effect of a commit on logs. Applying it cannot fail.
#[derive(Clone, Debug)]
pub enum Effect {
    /// A log is created.
    Created {
        /// Id of the new log.
        log: LogId,
        /// Initial tail of the log.
        tail: Position,
    },
    /// Records are appended, the log is closed, or both. The expected tail has been checked and no longer
    /// matters.
    Appended {
        /// The append as it was requested.
        append: Append,
        /// Positions of its records.
        positions: Vec<Position>,
    },
    /// References are appended to logs, each at the next position of its log.
    Referred {
        /// The references that each target gets, in order.
        sources: Vec<Arc<Stored>>,
        /// The logs that get the references, in ascending order.
        targets: Vec<LogId>,
    },
    /// Records are removed.
    Trimmed {
        /// The log that is trimmed.
        log: LogId,
        /// The last position that is removed.
        floor: Position,
    },
    /// A log is deleted.
    Ended {
        /// Id of the deleted log.
        log: LogId,
    },
}

/// The records of an append with their positions.
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

/// The logs as they are before a commit.
pub trait View {
    /// Looks up a log.
    fn log(&self, log: LogId) -> Known<'_>;

    /// The stored records that an operation refers to. `operation` is its index in the commit; the log exists.
    fn stored(&self, operation: usize, of: &Of) -> Result<Vec<Record>, Refusal>;
}

/// What a view knows about a log id.
#[derive(Clone, Copy, Debug)]
pub enum Known<'a> {
    /// The id was never used.
    Nothing,
    /// The log was deleted.
    Ended,
    /// The log exists.
    Live(&'a LogState),
}

/// States of logs after commits that are not visible yet; `None` for a log that such a commit deletes.
pub type Overlay = HashMap<LogId, Option<LogState>, LogHash>;

/// The validated effects and outcomes of a commit.
#[derive(Debug, Default)]
pub struct Plan {
    /// Effects on logs, in order.
    pub effects: Vec<Effect>,
    /// Outcomes of the operations, in order.
    pub outcomes: Vec<Outcome>,
}

impl Plan {
    /// Validates the operations of a commit against the overlay and, for logs that it does not contain, the
    /// view. The overlay is updated with the commit's effects; a refused commit leaves it unchanged.
    pub fn validate(
        view: &impl View,
        overlay: &mut Overlay,
        operations: Vec<Operation>,
        number: CommitNumber,
        now: Timestamp,
    ) -> Result<Self, Refusal> {
        let undoable = !matches!(operations[..], [] | [Operation::Append(_)]);
        let mut validation =
            Validation { view, overlay, number, now, plan: Self::default(), undoable, undo: Vec::new() };
        for (place, operation) in operations.into_iter().enumerate() {
            match validation.operation(place, operation) {
                Ok((outcome, effect)) => {
                    validation.plan.outcomes.push(outcome);
                    validation.plan.effects.push(effect);
                }
                Err(refusal) => {
                    validation.undo();
                    return Err(refusal);
                }
            }
        }
        Ok(validation.plan)
    }
}

struct Validation<'a, V> {
    view: &'a V,
    overlay: &'a mut Overlay,
    number: CommitNumber,
    now: Timestamp,
    plan: Plan,
    /// Whether changes must be undone on a refusal. A commit of one append changes nothing before it is
    /// validated.
    undoable: bool,
    /// The previous overlay entries of changed logs, in the order of the changes.
    undo: Vec<(LogId, Option<Box<Option<LogState>>>)>,
}

impl<V: View> Validation<'_, V> {
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

    /// The current state of a log, copied into the overlay to be changed.
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

    /// The references that each target gets.
    fn sources(&mut self, place: usize, of: &Of) -> Result<Vec<Arc<Stored>>, Refusal> {
        let (commit, at) = (self.number, self.now);
        let reference = |log: LogId, position: Position, source: Stored| {
            // A reference to a reference points to the original record.
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

/// A fast hasher for log ids and positions. The store assigns them in ascending order, so no defence is needed.
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
        // Fibonacci hashing; the table takes its buckets from the low bits and its tags from the high bits.
        let spread = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ (spread >> 32);
    }
}
