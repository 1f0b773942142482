//! How a log validates an append. The rules are pure, so that every store applies the same ones and tests
//! need no store.

use std::collections::HashMap;
use std::sync::Arc;

use tidings_model::{CommitNumber, LogId, Position, Producer, ProducerId, Timestamp, limits};

use super::{Append, Appended, Conditions, LogTotals, Positions, Status, Then};

/// Why a log refuses an operation. Carries the part of the log's state that the refusal rests on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The log does not exist, or has been deleted.
    #[error("{0} does not exist")]
    NoSuchLog(LogId),
    /// The log to be created exists, or has existed.
    #[error("{0} was created before")]
    LogExists(LogId),
    /// The log is closed.
    #[error("the log is closed")]
    Closed {
        /// Position of the last record.
        tail: Position,
    },
    /// The same request was accepted before. Its producer may treat this as success.
    #[error("the request was made before")]
    Duplicate {
        /// Current epoch of the producer.
        epoch: u64,
        /// Highest sequence number accepted from the producer.
        sequence: u64,
        /// Status of the log.
        status: Status,
    },
    /// The producer may not write this request now.
    #[error(transparent)]
    Producer(#[from] ProducerRefusal),
    /// The order text of the append does not sort after the previous one.
    #[error("the sequence does not sort after the last one")]
    OutOfOrder,
    /// The tail is not the one that the append expects.
    #[error("the tail is not at the expected position")]
    TailMoved {
        /// The actual tail.
        tail: Position,
    },
    /// The given positions are not ascending, or do not lie above the tail.
    #[error("positions must be ascending and above the tail")]
    PositionNotAbove {
        /// The actual tail.
        tail: Position,
    },
    /// The operation is inconsistent in itself. This is a bug of the caller, never the fault of a client.
    #[error("malformed operation: {0}")]
    Malformed(&'static str),
}

/// Why a log refuses a request of a producer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProducerRefusal {
    /// A later epoch of the producer has written.
    #[error("a later epoch of this producer has written")]
    Fenced {
        /// Current epoch of the producer.
        epoch: u64,
    },
    /// The producer's sequence number skips a request.
    #[error("expected producer sequence {expected}, received {received}")]
    Gap {
        /// The sequence number that would be accepted.
        expected: u64,
        /// The sequence number of the request.
        received: u64,
    },
    /// The first request of a new producer epoch does not have sequence number 0.
    #[error("a new producer epoch begins with sequence 0")]
    EpochStart,
    /// The log knows its maximum number of producers already.
    #[error("there are {} active producers already", limits::PRODUCERS_PER_LOG)]
    TooMany,
}

/// Everything that a store knows about a log, except its records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogState {
    tail: Position,
    floor: Position,
    closed: bool,
    total: LogTotals,
    /// Producers and order text. `None` in most logs, which never use them.
    memory: Option<Box<Memory>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Memory {
    producers: Producers,
    order: Option<Box<str>>,
    closed_by: Option<Producer>,
}

/// The last request of each producer. Stores copy log states to try commits out on them, so copies share the
/// large map, and recent changes are held in a short list beside it.
#[derive(Clone, Debug, Default)]
struct Producers {
    settled: Arc<HashMap<ProducerId, ProducerState>>,
    fresh: Vec<(ProducerId, ProducerState)>,
}

/// Entries in the list of recent changes before they are merged into the map.
const FRESH_MAX: usize = 64;

impl Producers {
    fn get(&self, id: &ProducerId) -> Option<&ProducerState> {
        let fresh = self.fresh.iter().find(|(known, _)| known == id).map(|(_, seen)| seen);
        fresh.or_else(|| self.settled.get(id))
    }

    fn insert(&mut self, id: &ProducerId, seen: ProducerState) {
        if let Some((_, known)) = self.fresh.iter_mut().find(|(known, _)| known == id) {
            *known = seen;
            return;
        }
        self.fresh.push((id.clone(), seen));
        if self.fresh.len() > FRESH_MAX {
            self.settle();
        }
    }

    fn settle(&mut self) {
        Arc::make_mut(&mut self.settled).extend(self.fresh.drain(..));
    }

    /// Upper bound of the number of producers: one that is in both collections counts twice.
    fn len(&self) -> usize {
        self.settled.len() + self.fresh.len()
    }

    /// Each producer once, with its last request.
    fn iter(&self) -> impl Iterator<Item = (&ProducerId, &ProducerState)> {
        let settled = self.settled.iter().filter(|(id, _)| self.fresh.iter().all(|(fresh, _)| fresh != *id));
        self.fresh.iter().map(|(id, seen)| (id, seen)).chain(settled)
    }

    fn forget_idle(&mut self, now: Timestamp) {
        self.settle();
        Arc::make_mut(&mut self.settled).retain(|_, seen| !is_idle(seen, now));
    }
}

impl PartialEq for Producers {
    fn eq(&self, other: &Self) -> bool {
        self.iter().collect::<HashMap<_, _>>() == other.iter().collect::<HashMap<_, _>>()
    }
}

impl Eq for Producers {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProducerState {
    epoch: u64,
    sequence: u64,
    at: Timestamp,
}

/// The state of a log as plain values, to be stored and read back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogParts {
    /// Status of the log as readers see it.
    pub status: Status,
    /// The last request of each producer, with the time at which it was accepted.
    pub producers: Vec<(Producer, Timestamp)>,
    /// Order text of the last append that had one.
    pub order: Option<Box<str>>,
    /// The producer request that closed the log.
    pub closed_by: Option<Producer>,
}

impl From<LogParts> for LogState {
    fn from(parts: LogParts) -> Self {
        let LogParts { status: Status { tail, floor, closed, total }, producers, order, closed_by } = parts;
        let bare = producers.is_empty() && order.is_none() && closed_by.is_none();
        let memory = (!bare).then(|| {
            let seen = |producer: &Producer, at| ProducerState {
                epoch: producer.epoch,
                sequence: producer.sequence,
                at,
            };
            let settled = producers.into_iter().map(|(p, at)| (p.id.clone(), seen(&p, at))).collect();
            let producers = Producers { settled: Arc::new(settled), fresh: Vec::new() };
            Box::new(Memory { producers, order, closed_by })
        });
        Self { tail, floor, closed, total, memory }
    }
}

impl From<&LogState> for LogParts {
    fn from(state: &LogState) -> Self {
        let Some(memory) = &state.memory else { return Self { status: state.status(), ..Self::default() } };
        let stamp = |(id, seen): (&ProducerId, &ProducerState)| {
            (Producer { id: id.clone(), epoch: seen.epoch, sequence: seen.sequence }, seen.at)
        };
        Self {
            status: state.status(),
            producers: memory.producers.iter().map(stamp).collect(),
            order: memory.order.clone(),
            closed_by: memory.closed_by.clone(),
        }
    }
}

/// A valid append, with the positions of its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validated {
    /// Positions, one for each payload.
    pub positions: Vec<Position>,
}

impl LogState {
    /// An empty, open log with the given tail.
    pub fn beginning(tail: Position) -> Self {
        Self { tail, ..Self::default() }
    }

    /// The log as readers see it.
    pub fn status(&self) -> Status {
        Status { tail: self.tail, floor: self.floor, closed: self.closed, total: self.total }
    }

    /// Validates an append that is to be made in the given commit.
    pub fn validate(
        &self,
        append: &Append,
        commit: CommitNumber,
        now: Timestamp,
    ) -> Result<Validated, Refusal> {
        if append.payloads.is_empty() && append.then == Then::StayOpen {
            return Err(Refusal::Malformed("an append of nothing that closes nothing"));
        }
        self.validate_open(append)?;
        if let Some(producer) = &append.conditions.producer {
            self.validate_producer(producer, now)?;
        }
        if let (Some(order), Some(last)) = (&append.conditions.order, self.last_order())
            && order.as_bytes() <= last.as_bytes()
        {
            return Err(Refusal::OutOfOrder);
        }
        if append.conditions.tail.is_some_and(|expected| expected != self.tail) {
            return Err(Refusal::TailMoved { tail: self.tail });
        }
        let positions = self.positions(append, commit)?;
        Ok(Validated { positions })
    }

    /// Applies an append that was validated.
    pub fn apply(&mut self, append: &Append, positions: &[Position], now: Timestamp) -> Appended {
        self.tail = positions.last().copied().unwrap_or(self.tail);
        self.total = self.total + LogTotals::of(&append.payloads);
        self.remember(&append.conditions, append.then, now);
        Appended { first: positions.first().copied().unwrap_or(self.tail), last: self.tail }
    }

    /// Validates and applies references with these totals.
    pub fn refer(&mut self, commit: CommitNumber, totals: LogTotals) -> Result<(), Refusal> {
        if totals.records == 0 {
            return Ok(());
        }
        let first = self.next_position(commit);
        if first <= self.tail {
            return Err(Refusal::PositionNotAbove { tail: self.tail });
        }
        let (commit, index) = first.parts();
        self.tail = Position::in_commit(commit, index.saturating_add(totals.records - 1));
        self.total = self.total + totals;
        Ok(())
    }

    /// Raises the tail while a log is restored from files. A lower one changes nothing.
    pub fn extend(&mut self, tail: Position) {
        self.tail = self.tail.max(tail);
    }

    /// Sets the totals while a log is restored from files.
    pub fn set_totals(&mut self, total: LogTotals) {
        self.total = total;
    }

    /// Position of the next record that this commit would append.
    pub fn next_position(&self, commit: CommitNumber) -> Position {
        let (last_commit, last_index) = self.tail.parts();
        let index = if last_commit == commit { last_index.saturating_add(1) } else { 0 };
        Position::in_commit(commit, index)
    }

    /// Raises the floor, at most to the tail. A lower floor changes nothing.
    pub fn trim(&mut self, floor: Position) {
        self.floor = self.floor.max(floor.min(self.tail));
    }

    fn validate_open(&self, append: &Append) -> Result<(), Refusal> {
        if !self.closed {
            return Ok(());
        }
        let closed_by = self.memory.as_ref().and_then(|memory| memory.closed_by.as_ref());
        match &append.conditions.producer {
            Some(producer) if Some(producer) == closed_by => {
                Err(self.duplicate(producer.epoch, producer.sequence))
            }
            _ => Err(Refusal::Closed { tail: self.tail }),
        }
    }

    fn validate_producer(&self, producer: &Producer, now: Timestamp) -> Result<(), Refusal> {
        let Some(seen) = self.seen(&producer.id) else {
            if producer.sequence != 0 {
                return Err(ProducerRefusal::Gap { expected: 0, received: producer.sequence }.into());
            }
            return if self.has_room(now) { Ok(()) } else { Err(ProducerRefusal::TooMany.into()) };
        };
        if producer.epoch < seen.epoch {
            return Err(ProducerRefusal::Fenced { epoch: seen.epoch }.into());
        }
        if producer.epoch > seen.epoch {
            return if producer.sequence == 0 { Ok(()) } else { Err(ProducerRefusal::EpochStart.into()) };
        }
        if producer.sequence <= seen.sequence {
            return Err(self.duplicate(seen.epoch, seen.sequence));
        }
        if producer.sequence != seen.sequence + 1 {
            return Err(
                ProducerRefusal::Gap { expected: seen.sequence + 1, received: producer.sequence }.into()
            );
        }
        Ok(())
    }

    fn positions(&self, append: &Append, commit: CommitNumber) -> Result<Vec<Position>, Refusal> {
        let positions = match &append.positions {
            Positions::ByStore => {
                let (_, first) = self.next_position(commit).parts();
                (first..)
                    .take(append.payloads.len())
                    .map(|index| Position::in_commit(commit, index))
                    .collect()
            }
            Positions::Given(positions) => positions.clone(),
            Positions::AtLeast(least) => {
                let full = Refusal::PositionNotAbove { tail: self.tail };
                let first = self.tail.further(1).map(|above| above.max(*least));
                let place = |n: usize| first.and_then(|first| first.further(n as u64));
                (0..append.payloads.len()).map(place).collect::<Option<_>>().ok_or(full)?
            }
        };
        if positions.len() != append.payloads.len() {
            return Err(Refusal::Malformed("as many positions as payloads"));
        }
        let above_tail = positions.first().is_none_or(|&first| first > self.tail);
        if !above_tail || !positions.is_sorted_by(|a, b| a < b) {
            return Err(Refusal::PositionNotAbove { tail: self.tail });
        }
        Ok(positions)
    }

    /// Remembers the producer and order text of an append, and whether it closed the log.
    pub fn remember(&mut self, conditions: &Conditions, then: Then, now: Timestamp) {
        self.closed |= then == Then::Close;
        if conditions.producer.is_none() && conditions.order.is_none() {
            return;
        }
        let memory = self.memory.get_or_insert_default();
        if let Some(producer) = &conditions.producer {
            if memory.producers.len() >= limits::PRODUCERS_PER_LOG
                && memory.producers.get(&producer.id).is_none()
            {
                memory.producers.forget_idle(now);
            }
            let seen = ProducerState { epoch: producer.epoch, sequence: producer.sequence, at: now };
            memory.producers.insert(&producer.id, seen);
            if then == Then::Close {
                memory.closed_by = Some(producer.clone());
            }
        }
        if let Some(order) = &conditions.order {
            memory.order = Some(order.clone());
        }
    }

    fn seen(&self, producer: &ProducerId) -> Option<&ProducerState> {
        self.memory.as_ref()?.producers.get(producer)
    }

    fn has_room(&self, now: Timestamp) -> bool {
        self.memory.as_ref().is_none_or(|memory| {
            memory.producers.len() < limits::PRODUCERS_PER_LOG
                || memory.producers.iter().count() < limits::PRODUCERS_PER_LOG
                || memory.producers.iter().any(|(_, seen)| is_idle(seen, now))
        })
    }

    fn last_order(&self) -> Option<&str> {
        self.memory.as_ref()?.order.as_deref()
    }

    fn duplicate(&self, epoch: u64, sequence: u64) -> Refusal {
        Refusal::Duplicate { epoch, sequence, status: self.status() }
    }
}

fn is_idle(seen: &ProducerState, now: Timestamp) -> bool {
    now.since(seen.at) >= limits::PRODUCER_IDLE
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn append_by(id: &str, epoch: u64, sequence: u64) -> Append {
        let mut append = Append::new(LogId::new(1), vec![Bytes::from_static(b"x")]);
        let id = ProducerId::parse(id).expect("valid");
        append.conditions.producer = Some(Producer { id, epoch, sequence });
        append
    }

    fn make(state: &mut LogState, append: &Append, now: Timestamp) -> Result<Appended, Refusal> {
        let commit = state.tail.parts().0.next();
        let validated = state.validate(append, commit, now)?;
        Ok(state.apply(append, &validated.positions, now))
    }

    #[test]
    fn a_log_remembers_a_bounded_number_of_producers_and_forgets_idle_ones_first() {
        let mut state = LogState::default();
        for n in 0..limits::PRODUCERS_PER_LOG {
            make(&mut state, &append_by(&format!("p{n}"), 0, 0), NOW).expect("there is room");
        }
        assert_eq!(
            make(&mut state, &append_by("one too many", 0, 0), NOW),
            Err(ProducerRefusal::TooMany.into())
        );
        let later = NOW + limits::PRODUCER_IDLE;
        make(&mut state, &append_by("one too many", 0, 0), later).expect("the idle ones made room");
        assert_eq!(
            make(&mut state, &append_by("one too many", 0, 2), later),
            Err(ProducerRefusal::Gap { expected: 1, received: 2 }.into())
        );
    }

    #[test]
    fn two_appends_of_one_commit_follow_each_other() {
        let mut state = LogState::default();
        let append = Append::new(LogId::new(1), vec![Bytes::new(), Bytes::new()]);
        let commit = CommitNumber::from_number(7);
        for expected in [0, 2] {
            let validated = state.validate(&append, commit, NOW).expect("good");
            assert_eq!(validated.positions[0], Position::in_commit(commit, expected));
            state.apply(&append, &validated.positions, NOW);
        }
    }
}
