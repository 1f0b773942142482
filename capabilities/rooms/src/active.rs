//! The in-memory state of a room in use: the generator of its cursors, appends in flight, and ephemeral events.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tidings_engine::log::Record;
use tidings_model::{LogId, Position, Timestamp, limits};
use tokio::sync::watch;

use crate::Cursor;
use crate::generator::Generator;
use crate::rooms::Inner;
use crate::store::Found;

/// Cursors that are ahead of the clock by more than this are counted and logged.
const AHEAD: Duration = Duration::from_secs(5);

/// Minimum number of cursors to reserve for ephemeral events. They span a tiny part of a millisecond.
const CURSORS_RESERVED: u64 = 1 << 20;
/// More cursors are reserved when no more than this are left. Enough for one write.
const CURSORS_LEFT: u64 = limits::EVENTS_PER_WRITE as u64;

/// The in-memory state of a room in use.
pub(crate) struct Active {
    state: Mutex<ActiveState>,
    /// The last ephemeral cursor that may be shown: nothing below it is in flight any more.
    told: watch::Sender<Position>,
    /// Shared by appends. Held exclusively by whoever must know the tail that its commit will find.
    pub(crate) appending: tokio::sync::RwLock<()>,
    /// Held while cursors are reserved, so that concurrent writers reserve once.
    pub(crate) reserving: tokio::sync::Mutex<()>,
}

struct ActiveState {
    generator: Generator,
    /// Ephemeral events may have cursors up to this one.
    reserved: Position,
    /// Number of the next append.
    next: u64,
    /// Numbers of the appends in flight.
    in_flight: BTreeSet<u64>,
    /// A position that the log is known to have reached. Appends in flight land above it, so nothing below is
    /// missing.
    landed: Position,
    /// Ephemeral events that must not be shown yet, in order.
    waiting: VecDeque<Waiting>,
    /// Ephemeral events that may be shown, in order.
    recent: VecDeque<Record>,
    /// The last ephemeral event that a reader has taken.
    heard: Position,
    /// Position of the oldest stored event; `None` if it is not known.
    oldest: Option<Position>,
    marks: Marks,
}

/// The marks of a room that are known to be stored; the sweep finds the room by them. An append adds the
/// missing ones. They are removed only while [`Active::appending`] is held exclusively.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// The room has stored events, see [`crate::table::Row::kept_since`].
    pub(crate) kept: bool,
    /// The room has reactions to collapse, see [`crate::table::Row::reacted`].
    pub(crate) reacted: bool,
}

impl Marks {
    /// The stored marks of a room.
    pub(crate) fn stored(found: &Found) -> Self {
        Self { kept: found.kept_since.is_some(), reacted: found.reacted }
    }
}

struct Waiting {
    /// The records may be shown when all appends with a lower number are complete.
    before: u64,
    last: Position,
    records: Vec<Record>,
}

impl Active {
    pub(crate) fn new(found: &Found) -> Self {
        let (tail, reserved) = (found.status.tail, found.reserved);
        let state = ActiveState {
            generator: Generator::new(tail, reserved),
            reserved,
            next: 0,
            in_flight: BTreeSet::new(),
            landed: tail,
            waiting: VecDeque::new(),
            recent: VecDeque::new(),
            heard: Position::ZERO,
            oldest: None,
            marks: Marks::stored(found),
        };
        // A reader may come back with any cursor that was reserved before a restart.
        Self {
            state: Mutex::new(state),
            told: watch::Sender::new(reserved),
            appending: <_>::default(),
            reserving: <_>::default(),
        }
    }

    /// The last ephemeral cursor that may be shown. Must be read before the log's tail.
    pub(crate) fn told(&self) -> Position {
        *self.told.borrow()
    }

    /// Waits until an ephemeral cursor may be shown.
    pub(crate) async fn until_told(&self, cursor: Position) {
        // Never an error: `self` holds the sender.
        let _ = self.told.subscribe().wait_for(|told| *told >= cursor).await;
    }

    /// Drops ephemeral events older than a moment. Returns whether any are left.
    pub(crate) fn forget_recent(&self, before: Timestamp) -> bool {
        let mut state = self.lock();
        state.recent.retain(|record| record.at >= before);
        if state.recent.is_empty() {
            state.recent = VecDeque::new();
        }
        !state.recent.is_empty()
    }

    /// The cursor up to which to reserve, `ahead` of the time, or `None` if what is reserved lasts for
    /// `must`. If the cursors are ahead of the clock already, as after a restart, only as many as needed are
    /// added: otherwise each restart would move them further ahead.
    pub(crate) fn to_reserve(&self, now: Timestamp, ahead: Duration, must: Duration) -> Option<Position> {
        let state = self.lock();
        let reach = |time: Duration, cursors: u64| {
            let counted = state.generator.bound().position().further(cursors).unwrap_or(Position::MAX);
            Cursor::first_of(now + time).position().max(counted)
        };
        (state.reserved < reach(must, CURSORS_LEFT)).then(|| reach(ahead, CURSORS_RESERVED))
    }

    /// Registers that cursors up to `through` are reserved.
    pub(crate) fn reserved(&self, through: Position) {
        let mut state = self.lock();
        state.reserved = state.reserved.max(through);
    }

    /// Position of the oldest stored event, if it is known and above the floor.
    pub(crate) fn oldest(&self, floor: Position) -> Option<Position> {
        self.lock().oldest.filter(|oldest| *oldest > floor)
    }

    /// Remembers the position of the oldest stored event.
    pub(crate) fn note_oldest(&self, oldest: Option<Position>) {
        self.lock().oldest = oldest;
    }

    /// Upper bound of all cursors of the room.
    pub(crate) fn bound(&self) -> Cursor {
        self.lock().generator.bound()
    }

    /// The marks that are known to be stored. None is removed while the caller holds [`Active::appending`].
    pub(crate) fn marks(&self) -> Marks {
        self.lock().marks
    }

    /// Registers that these marks are stored, too.
    pub(crate) fn marked(&self, stored: Marks) {
        let marks = &mut self.lock().marks;
        *marks = Marks { kept: marks.kept || stored.kept, reacted: marks.reacted || stored.reacted };
    }

    /// Replaces the marks. The caller holds [`Active::appending`] exclusively.
    pub(crate) fn set_marks(&self, stored: Marks) {
        self.lock().marks = stored;
    }

    fn lock(&self) -> MutexGuard<'_, ActiveState> {
        self.state.lock().expect("nobody panics while holding a room")
    }
}

impl Inner {
    /// The time from which cursors are made.
    pub(crate) fn now(&self) -> Timestamp {
        let told = self.guard.ask(&*self.clock);
        if told.jumped {
            self.counts.clock_ahead.count();
            tracing::warn!(
                clock = self.clock.now().as_millis(),
                believed = told.now.as_millis(),
                "the clock has jumped ahead and is not followed yet"
            );
        }
        told.now
    }

    /// Draws 80 random bits.
    fn draw(&self) -> u128 {
        (u128::from(self.rng.within(0..=0xffff)) << 64) | u128::from(self.rng.within(0..=u64::MAX))
    }

    fn watch_clock(&self, generator: &Generator, now: Timestamp) {
        let highest = Timestamp::from_millis(generator.bound().millis());
        if highest.since(now) > AHEAD {
            self.counts.clock_behind.count();
            if self.guard.may_warn(&*self.clock) {
                let behind = highest.since(now).as_millis() as u64;
                tracing::warn!(behind, "the clock is behind the cursors of a room, in milliseconds");
            }
        }
    }
}

/// An append in flight to the log of a room. Dropping it completes the append, made or not.
pub(crate) struct InFlight {
    inner: Arc<Inner>,
    log: LogId,
    active: Arc<Active>,
    number: u64,
    records: u64,
    last: Option<Position>,
}

impl InFlight {
    /// Registers an append. Returns the least position of its first record.
    pub(crate) fn begin_append(
        inner: &Arc<Inner>,
        log: LogId,
        active: Arc<Active>,
        records: u64,
        now: Timestamp,
    ) -> (Position, Self) {
        let mut state = active.lock();
        let least = state.generator.begin_append(records, now, || inner.draw());
        inner.watch_clock(&state.generator, now);
        let number = state.next;
        state.next += 1;
        state.in_flight.insert(number);
        drop(state);
        (least, Self { inner: inner.clone(), log, active, number, records, last: None })
    }

    /// Completes the append; `last` is the position of its last record.
    pub(crate) fn committed(mut self, last: Position) {
        self.last = Some(last);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.active.lock();
        state.generator.end_append(self.records, self.last);
        state.in_flight.remove(&self.number);
        state.landed = state.landed.max(self.last.unwrap_or_default());
        let Some(told) = state.release_waiting(&self.inner, self.log) else { return };
        drop(state);
        self.active.announce(told, &self.inner, self.log);
    }
}

impl Active {
    /// Adds ephemeral events; `record` makes each one for its position. Returns the position of the first.
    /// Adds none and returns `None` if more cursors must be reserved first.
    pub(crate) fn add_ephemeral(
        self: &Arc<Self>,
        inner: &Inner,
        log: LogId,
        now: Timestamp,
        count: usize,
        record: impl Fn(usize, Position) -> Record,
    ) -> Option<Position> {
        let mut state = self.lock();
        let ActiveState { generator, reserved, .. } = &mut *state;
        let first = generator.add_ephemeral(count as u64, now, || inner.draw(), *reserved)?;
        inner.watch_clock(generator, now);
        let place = |n: usize| first.further(n as u64).expect("below what is reserved");
        let records: Vec<_> = (0..count).map(|n| record(n, place(n))).collect();
        let waiting = Waiting { before: state.next, last: place(count - 1), records };
        state.waiting.push_back(waiting);
        // There are as few waiting entries as writers, but each may have many records.
        let mut held: usize = state.waiting.iter().map(|waiting| waiting.records.len()).sum();
        for waiting in &mut state.waiting {
            if held <= limits::TYPING_PER_ROOM {
                break;
            }
            let dropped = waiting.records.len().min(held - limits::TYPING_PER_ROOM);
            waiting.records.drain(..dropped);
            held -= dropped;
            inner.counts.typing_dropped.add(dropped as u64);
        }
        let told = state.release_waiting(inner, log);
        drop(state);
        if let Some(told) = told {
            self.announce(told, inner, log);
        }
        Some(first)
    }

    /// The ephemeral events of a span, in order. The log was read up to `landed`, so events that wait below
    /// it are released.
    pub(crate) fn ephemeral_between(
        self: &Arc<Self>,
        inner: &Inner,
        log: LogId,
        span: (Position, Position),
        landed: Position,
    ) -> Vec<Record> {
        let (after, through) = span;
        let mut state = self.lock();
        state.landed = state.landed.max(landed);
        let told = state.release_waiting(inner, log);
        let from = state.recent.partition_point(|record| record.position <= after);
        let heard = state.recent.range(from..).take_while(|record| record.position <= through);
        let heard: Vec<_> = heard.cloned().collect();
        state.heard = heard.last().map_or(state.heard, |last| last.position.max(state.heard));
        drop(state);
        if let Some(told) = told {
            self.announce(told, inner, log);
        }
        heard
    }

    /// Makes an ephemeral cursor visible and wakes the readers.
    fn announce(self: &Arc<Self>, told: Position, inner: &Inner, log: LogId) {
        self.told.send_if_modified(|before| std::mem::replace(before, told.max(*before)) < told);
        if !self.lock().recent.is_empty() {
            inner.caches.active.typed_in(log, self.clone());
            inner.bus.wake(log);
        }
    }
}

impl ActiveState {
    /// Releases waiting events for which all earlier appends are complete, or which the log has passed, so
    /// that appends in flight land above them. Returns the last cursor released.
    fn release_waiting(&mut self, inner: &Inner, log: LogId) -> Option<Position> {
        let first_in_flight = self.in_flight.first().copied().unwrap_or(u64::MAX);
        let landed = self.landed;
        let is_free = |waiting: &Waiting| waiting.before <= first_in_flight || waiting.last < landed;
        let mut told = None;
        while self.waiting.front().is_some_and(is_free) {
            let Some(waiting) = self.waiting.pop_front() else { break };
            told = Some(waiting.last);
            if inner.channels.readers(log) == 0 {
                inner.counts.typing_dropped.add(waiting.records.len() as u64);
                continue;
            }
            self.recent.extend(waiting.records);
        }
        let surplus = self.recent.len().saturating_sub(limits::TYPING_PER_ROOM);
        let unheard = self.recent.drain(..surplus).filter(|record| record.position > self.heard).count();
        inner.counts.typing_dropped.add(unheard as u64);
        told
    }
}
