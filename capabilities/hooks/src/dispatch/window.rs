//! Which deliveries of a queue are finished, in the order of the queue. Pure.
//!
//! Deliveries finish in any order, but what is stored of them is small: a position up to which all are finished, and a
//! bounded number of those that finished above it. The window holds the deliveries in between. A delivery stays in it until
//! what came of it is recorded in the store, so a commit that failed is simply made again.

use std::collections::{BTreeSet, VecDeque};

use tidings_model::{Position, limits};

/// The deliveries of a queue from the first one that is not recorded.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Every delivery up to here is recorded.
    done: Position,
    /// Position that was last recorded as [`done`](Self::record).
    recorded: Position,
    /// Every delivery up to here was read from the queue.
    read: Position,
    /// Deliveries that were recorded before they were read.
    ahead: BTreeSet<Position>,
    /// Deliveries that were read, in order.
    entries: VecDeque<Entry>,
    /// Deliveries that are being recorded.
    recording: Vec<Position>,
    /// Position that is being recorded as [`done`](Self::record).
    recording_done: Position,
}

#[derive(Debug)]
struct Entry {
    position: Position,
    step: Step,
}

/// How far a delivery has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Its first attempt has not begun.
    Waiting,
    /// Its first attempt has begun.
    Running,
    /// It is finished, or waits for a retry.
    Settled,
    /// That is being recorded.
    Recording,
    /// That is recorded.
    Recorded,
}

impl Window {
    /// A window of which nothing was read, for deliveries that are recorded up to a position, and some after it.
    pub(super) fn new(done: Position, above: impl IntoIterator<Item = Position>) -> Self {
        let ahead = above.into_iter().filter(|position| *position > done).collect();
        Self { done, recorded: done, read: done, ahead, ..Self::default() }
    }

    /// Position after which the queue is to be read.
    pub(super) fn read(&self) -> Position {
        self.read
    }

    /// Last position that was recorded before it was read. Zero if there is none.
    pub(super) fn ahead(&self) -> Position {
        self.ahead.last().copied().unwrap_or_default()
    }

    /// Deliveries that may still be read.
    pub(super) fn room(&self) -> usize {
        limits::HOOK_WINDOW.saturating_sub(self.entries.len())
    }

    /// Whether every delivery that was read is recorded.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether everything is recorded, but not that it is everything: the last deliveries were recorded before a restart, and
    /// only then those before them.
    pub(super) fn lags(&self) -> bool {
        self.entries.is_empty() && self.recording.is_empty() && self.recorded < self.done
    }

    /// Adds a delivery that was read. Returns whether it is to be delivered.
    pub(super) fn push(&mut self, position: Position) -> bool {
        if position <= self.read {
            return false;
        }
        self.read = position;
        let recorded = self.ahead.remove(&position);
        let step = if recorded { Step::Recorded } else { Step::Waiting };
        self.entries.push_back(Entry { position, step });
        self.pop();
        !recorded
    }

    /// Records up to this position are gone, or there are none.
    pub(super) fn skip_to(&mut self, position: Position) {
        self.read = self.read.max(position);
        self.ahead.retain(|ahead| *ahead > position);
        self.pop();
    }

    /// Gives back the deliveries at the end that still wait, to be read again later.
    pub(super) fn unread(&mut self) -> Vec<Position> {
        let mut unread = Vec::new();
        while self.entries.back().is_some_and(|entry| entry.step == Step::Waiting) {
            unread.extend(self.entries.pop_back().map(|entry| entry.position));
        }
        if !unread.is_empty() {
            self.read = self.entries.back().map_or(self.done, |entry| entry.position);
        }
        unread
    }

    /// Whether a delivery was read and its first attempt has not begun.
    pub(super) fn is_waiting(&self, position: Position) -> bool {
        let entry = self.entries.get(self.place(position));
        entry.is_some_and(|entry| entry.position == position && entry.step == Step::Waiting)
    }

    /// The first attempt of a delivery begins.
    pub(super) fn begin(&mut self, position: Position) {
        self.step(position, Step::Waiting, Step::Running);
    }

    /// The first attempt of a delivery was not made after all.
    pub(super) fn put_back(&mut self, position: Position) {
        self.step(position, Step::Running, Step::Waiting);
    }

    /// A delivery is finished, or waits for a retry. Returns false if that is so already.
    pub(super) fn settle(&mut self, position: Position) -> bool {
        self.step(position, Step::Waiting, Step::Settled) || self.step(position, Step::Running, Step::Settled)
    }

    /// Begins to record deliveries that are settled. Returns the position up to which all will be recorded, and which of
    /// these deliveries lie above it.
    pub(super) fn record(
        &mut self,
        positions: impl IntoIterator<Item = Position>,
    ) -> (Position, Vec<Position>) {
        for position in positions {
            if self.step(position, Step::Settled, Step::Recording) {
                self.recording.push(position);
            }
        }
        let recorded = |entry: &&Entry| matches!(entry.step, Step::Recording | Step::Recorded);
        let through = self.entries.iter().take_while(recorded).last();
        let done = through.map_or(self.done, |entry| entry.position);
        self.recording_done = done;
        (done, self.recording.iter().copied().filter(|position| *position > done).collect())
    }

    /// Ends what [`Window::record`] has begun: it is recorded now.
    pub(super) fn recorded(&mut self) {
        for position in std::mem::take(&mut self.recording) {
            self.step(position, Step::Recording, Step::Recorded);
        }
        self.recorded = self.recorded.max(self.recording_done);
        self.pop();
    }

    /// Ends what [`Window::record`] has begun: it could not be recorded.
    pub(super) fn not_recorded(&mut self) {
        for position in std::mem::take(&mut self.recording) {
            self.step(position, Step::Recording, Step::Settled);
        }
    }

    fn pop(&mut self) {
        while let Some(first) = self.entries.front().filter(|entry| entry.step == Step::Recorded) {
            self.done = first.position;
            self.entries.pop_front();
        }
        if self.entries.is_empty() {
            self.done = self.done.max(self.read);
        }
    }

    /// Index of a delivery, if it is there.
    fn place(&self, position: Position) -> usize {
        self.entries.partition_point(|entry| entry.position < position)
    }

    /// Changes the step of a delivery, if it is `from`.
    fn step(&mut self, position: Position, from: Step, to: Step) -> bool {
        let place = self.place(position);
        match self.entries.get_mut(place) {
            Some(entry) if entry.position == position && entry.step == from => {
                entry.step = to;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(position: u128) -> Position {
        Position::new(position)
    }

    fn window(through: u128) -> Window {
        let mut window = Window::new(Position::ZERO, []);
        (1..=through).for_each(|position| assert!(window.push(at(position))));
        window
    }

    #[test]
    fn done_stops_before_the_first_delivery_that_is_not_settled() {
        let mut window = window(4);
        for position in [1, 3, 4] {
            window.begin(at(position));
            assert!(window.settle(at(position)));
        }
        assert_eq!(window.record([at(1), at(3)]), (at(1), vec![at(3)]));
        window.recorded();
        assert!(window.settle(at(2)));
        assert!(!window.settle(at(2)), "only once");
        assert_eq!(window.record([at(2)]), (at(3), vec![]), "3 was recorded before");
        window.recorded();
        assert_eq!(window.record([at(4)]), (at(4), vec![]));
        window.recorded();
        assert!(window.is_empty());
    }

    #[test]
    fn what_could_not_be_recorded_is_recorded_again() {
        let mut window = window(2);
        window.settle(at(1));
        window.settle(at(2));
        assert_eq!(window.record([at(1)]), (at(1), vec![]));
        window.not_recorded();
        assert_eq!(window.record([at(2)]), (at(0), vec![at(2)]));
        window.not_recorded();
        assert_eq!(window.record([at(1), at(2)]), (at(2), vec![]));
    }

    #[test]
    fn deliveries_that_were_recorded_before_a_restart_are_not_made_again() {
        let mut window = Window::new(at(2), [at(1), at(4), at(5)]);
        assert_eq!((window.read(), window.ahead()), (at(2), at(5)));
        assert_eq!([3, 4, 5, 6].map(|position| window.push(at(position))), [true, false, false, true]);
        window.settle(at(3));
        assert_eq!(window.record([at(3)]), (at(5), vec![]));
    }

    #[test]
    fn deliveries_that_wait_are_read_again_after_they_were_given_back() {
        let mut window = window(5);
        window.begin(at(1));
        window.begin(at(3));
        assert_eq!(window.unread(), [at(5), at(4)]);
        assert_eq!(window.read(), at(3));
        assert!(window.push(at(4)));
        window.put_back(at(3));
        assert_eq!(window.unread(), [at(4), at(3), at(2)]);
        assert_eq!((window.read(), window.room()), (at(1), limits::HOOK_WINDOW - 1));
    }

    #[test]
    fn a_window_lags_when_the_last_deliveries_were_recorded_first() {
        let mut window = Window::new(at(0), [at(3), at(4)]);
        window.push(at(1));
        window.push(at(2));
        window.settle(at(1));
        window.settle(at(2));
        assert_eq!(window.record([at(1), at(2)]), (at(2), vec![]));
        window.recorded();
        assert!(!window.lags());
        window.push(at(3));
        window.push(at(4));
        assert!(window.lags());
        assert_eq!(window.record([]), (at(4), vec![]));
        window.recorded();
        assert!(!window.lags());
    }

    #[test]
    fn records_that_are_gone_count_as_done_once_all_before_them_are() {
        let mut window = window(2);
        window.skip_to(at(9));
        assert_eq!(window.read(), at(9));
        window.settle(at(1));
        window.settle(at(2));
        window.record([at(1), at(2)]);
        window.recorded();
        assert!(window.is_empty());
        assert_eq!(window.record([]), (at(9), vec![]));
    }

    #[derive(Clone, Copy, Debug)]
    enum Action {
        Read(u8),
        Begin(u8),
        PutBack(u8),
        Settle(u8),
        Record,
        Fail,
        Crash,
    }

    fn actions() -> impl Strategy<Value = Vec<Action>> {
        let action = prop_oneof![
            (1u8..9).prop_map(Action::Read),
            any::<u8>().prop_map(Action::Begin),
            any::<u8>().prop_map(Action::PutBack),
            any::<u8>().prop_map(Action::Settle),
            Just(Action::Record),
            Just(Action::Fail),
            Just(Action::Crash),
        ];
        prop::collection::vec(action, 0..200)
    }

    proptest! {
        /// The store keeps `done` and `above` as the tables do; whatever order things happen in, exactly what was settled
        /// and recorded is in them.
        #[test]
        fn only_recorded_deliveries_count_as_done(actions in actions()) {
            let (mut done, mut above) = (Position::ZERO, BTreeSet::new());
            let mut window = Window::new(done, []);
            let mut recorded = BTreeSet::new();
            let mut settled = BTreeSet::new();
            for action in actions {
                let position = |number: u8| at(u128::from(number));
                match action {
                    Action::Read(count) => {
                        for _ in 0..count {
                            let next = at(window.read().get() + 1);
                            prop_assert_eq!(window.push(next), !recorded.contains(&next));
                        }
                    }
                    Action::Begin(number) => window.begin(position(number)),
                    Action::PutBack(number) => window.put_back(position(number)),
                    Action::Settle(number) => {
                        if window.settle(position(number)) {
                            settled.insert(position(number));
                        }
                    }
                    Action::Record => {
                        let (through, extra) = window.record(settled.iter().copied());
                        recorded.extend(std::mem::take(&mut settled));
                        window.recorded();
                        prop_assert!(through >= done);
                        done = through;
                        above.extend(extra);
                        above.retain(|position| *position > done);
                    }
                    Action::Fail => {
                        window.record(settled.iter().copied());
                        window.not_recorded();
                    }
                    Action::Crash => {
                        settled.clear();
                        window = Window::new(done, above.iter().copied());
                    }
                }
                let stored = |position: &Position| *position <= done || above.contains(position);
                let all = (1..=window.read().get()).map(at);
                prop_assert!(all.clone().all(|position| stored(&position) == recorded.contains(&position)));
            }
        }
    }
}
