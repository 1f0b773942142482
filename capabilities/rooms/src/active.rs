//! What is in memory of a room that is used: where its next event lies, what is on its way, and what only those hear
//! who are there.

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

/// Cursors of a room that are further ahead of the clock than this are worth an alarm.
const AHEAD: Duration = Duration::from_secs(5);

/// Cursors of ephemeral events that are reserved at a time, however little time that is: a tiny part of a millisecond.
const CURSORS_RESERVED: u64 = 1 << 20;
/// When so few are left, more are reserved. Enough for a write.
const CURSORS_LEFT: u64 = limits::EVENTS_PER_WRITE as u64;

/// A room that is used.
pub(crate) struct Active {
    state: Mutex<ActiveState>,
    /// The last cursor of ephemeral events that everybody may know of: nothing below it is still on its way.
    told: watch::Sender<Position>,
    /// Who appends shares it with others who do; who must know the tail as it will be when a commit is made has it alone.
    pub(crate) appending: tokio::sync::RwLock<()>,
    /// One reserves at a time; the others find it done.
    pub(crate) reserving: tokio::sync::Mutex<()>,
}

struct ActiveState {
    generator: Generator,
    /// Up to here ephemeral events may be given cursors.
    reserved: Position,
    /// The number of the next append that sets out.
    next: u64,
    /// Those on their way.
    in_flight: BTreeSet<u64>,
    /// A place that the log is known to have reached. Who is on its way lands above it: nothing below is missing any more.
    landed: Position,
    /// Ephemeral events and may not be told yet, in order.
    waiting: VecDeque<Waiting>,
    /// Ephemeral events and may be heard, in order.
    recent: VecDeque<Record>,
    /// The last of it that somebody has heard.
    heard: Position,
    /// The first event that is kept, if somebody has looked.
    oldest: Option<Position>,
    marks: Marks,
}

/// What is known to be stored of a room so that its upkeep finds it. An append adds what is missing. Taken back by who has
/// the room for itself, see [`Active::appending`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Since when events are kept.
    pub(crate) kept: bool,
    /// That there are reactions to look through.
    pub(crate) reacted: bool,
}

impl Marks {
    /// Those of a room as it was found.
    pub(crate) fn stored(found: &Found) -> Self {
        Self { kept: found.kept_since.is_some(), reacted: found.reacted }
    }
}

struct Waiting {
    /// All appends with a lower number must have arrived.
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
        // Whoever was told one of those in an earlier life may come back with it.
        Self {
            state: Mutex::new(state),
            told: watch::Sender::new(reserved),
            appending: <_>::default(),
            reserving: <_>::default(),
        }
    }

    /// The last cursor of ephemeral events that everybody may know of. To be asked before the log's tail.
    pub(crate) fn told(&self) -> Position {
        *self.told.borrow()
    }

    /// Resolves when everybody may know of a cursor of ephemeral events.
    pub(crate) async fn until_told(&self, cursor: Position) {
        // The sender is ours.
        let _ = self.told.subscribe().wait_for(|told| *told >= cursor).await;
    }

    /// Lets go of ephemeral events since before a moment. Returns whether anything is left.
    pub(crate) fn forget_recent(&self, before: Timestamp) -> bool {
        let mut state = self.lock();
        state.recent.retain(|record| record.at >= before);
        if state.recent.is_empty() {
            state.recent = VecDeque::new();
        }
        !state.recent.is_empty()
    }

    /// Up to where cursors should be reserved for ephemeral events, so much ahead of the time, if what is reserved does
    /// not last for the time it must. Where cursors are ahead of the clock already, as they are after a restart, only as many
    /// are added as are needed there: otherwise each restart would move them further.
    pub(crate) fn to_reserve(&self, now: Timestamp, ahead: Duration, must: Duration) -> Option<Position> {
        let state = self.lock();
        let reach = |time: Duration, cursors: u64| {
            let counted = state.generator.bound().position().further(cursors).unwrap_or(Position::MAX);
            Cursor::first_of(now + time).position().max(counted)
        };
        (state.reserved < reach(must, CURSORS_LEFT)).then(|| reach(ahead, CURSORS_RESERVED))
    }

    /// Somebody has reserved up to here.
    pub(crate) fn reserved(&self, through: Position) {
        let mut state = self.lock();
        state.reserved = state.reserved.max(through);
    }

    /// The first event that is kept, if somebody has looked since the floor was here.
    pub(crate) fn oldest(&self, floor: Position) -> Option<Position> {
        self.lock().oldest.filter(|oldest| *oldest > floor)
    }

    /// Somebody has looked.
    pub(crate) fn note_oldest(&self, oldest: Option<Position>) {
        self.lock().oldest = oldest;
    }

    /// No cursor of the room is above this.
    pub(crate) fn bound(&self) -> Cursor {
        self.lock().generator.bound()
    }

    /// What is known to be stored. Nothing is taken back as long as the caller appends.
    pub(crate) fn marks(&self) -> Marks {
        self.lock().marks
    }

    /// These are stored, beside what was before.
    pub(crate) fn marked(&self, stored: Marks) {
        let marks = &mut self.lock().marks;
        *marks = Marks { kept: marks.kept || stored.kept, reacted: marks.reacted || stored.reacted };
    }

    /// Just these are stored. The caller has the room for itself.
    pub(crate) fn set_marks(&self, stored: Marks) {
        self.lock().marks = stored;
    }

    fn lock(&self) -> MutexGuard<'_, ActiveState> {
        self.state.lock().expect("nobody panics while holding a room")
    }
}

impl Inner {
    /// The time by which cursors are made.
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

    /// 80 bits.
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

/// An append on its way to the log of a room, until it is dropped. Then it has arrived, or never will.
pub(crate) struct InFlight {
    inner: Arc<Inner>,
    log: LogId,
    active: Arc<Active>,
    number: u64,
    records: u64,
    last: Option<Position>,
}

impl InFlight {
    /// Sets out. Returns the least place of the first record.
    pub(crate) fn set_out(
        inner: &Arc<Inner>,
        log: LogId,
        active: Arc<Active>,
        records: u64,
        now: Timestamp,
    ) -> (Position, Self) {
        let mut state = active.lock();
        let least = state.generator.set_out(records, now, || inner.draw());
        inner.watch_clock(&state.generator, now);
        let number = state.next;
        state.next += 1;
        state.in_flight.insert(number);
        drop(state);
        (least, Self { inner: inner.clone(), log, active, number, records, last: None })
    }

    /// The last record lies here.
    pub(crate) fn arrived(mut self, last: Position) {
        self.last = Some(last);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.active.lock();
        state.generator.arrive(self.records, self.last);
        state.in_flight.remove(&self.number);
        state.landed = state.landed.max(self.last.unwrap_or_default());
        let Some(told) = state.tell(&self.inner, self.log) else { return };
        drop(state);
        self.active.announce(told, &self.inner, self.log);
    }
}

impl Active {
    /// Lays some records ephemeral, each of which `record` makes for its position. Returns the position of the first, or none,
    /// and lays none ephemeral, if more must be reserved for that.
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
        // Those that wait are as few as those that write, but each may bring many.
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
        let told = state.tell(inner, log);
        drop(state);
        if let Some(told) = told {
            self.announce(told, inner, log);
        }
        Some(first)
    }

    /// Ephemeral events after a position, up to another, in order. The log was read up to a place: what waits below it waits
    /// no longer.
    pub(crate) fn hear(
        self: &Arc<Self>,
        inner: &Inner,
        log: LogId,
        span: (Position, Position),
        landed: Position,
    ) -> Vec<Record> {
        let (after, through) = span;
        let mut state = self.lock();
        state.landed = state.landed.max(landed);
        let told = state.tell(inner, log);
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

    /// Everybody may know of a cursor.
    fn announce(self: &Arc<Self>, told: Position, inner: &Inner, log: LogId) {
        self.told.send_if_modified(|before| std::mem::replace(before, told.max(*before)) < told);
        if !self.lock().recent.is_empty() {
            inner.caches.active.typed_in(log, self.clone());
            inner.bus.wake(log);
        }
    }
}

impl ActiveState {
    /// Shows what waits no longer: all that it waits for has arrived, or the log has passed it, so that what has not arrived
    /// lands above it. Returns its last cursor.
    fn tell(&mut self, inner: &Inner, log: LogId) -> Option<Position> {
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
