//! Assigns the cursors of a room. Pure: time and randomness are passed in.
//!
//! A durable event is appended to the log at the next position above the tail, or at the least position named
//! here if that is higher ([`Positions::AtLeast`](tidings_engine::log::Positions::AtLeast)); so its cursor is
//! known once it is durable. An *ephemeral* event, which is not stored, gets its cursor here and at once. Its
//! cursor must be above those of all appends in flight, and all later appends must lie above it.
//!
//! In whatever order the appends in flight are committed, the last of their records lies at most as many
//! positions above the highest least position, or the tail, as they have records in total. That is the
//! [bound](Generator::bound).

use tidings_model::{Position, Timestamp};

use crate::Cursor;

/// Random bits in a new cursor. The highest bit below the milliseconds is zero, which leaves room to count up.
const FRESH_RANDOM_BITS: u32 = 79;

/// The state from which the next cursors of a room are derived.
#[derive(Clone, Debug)]
pub struct Generator {
    /// The highest of: positions of events, and positions just below the least position of an append in flight.
    peak: Position,
    /// Number of records in flight to the log.
    in_flight: u64,
    /// The last cursor that was assigned to an ephemeral event.
    ephemeral: Position,
}

impl Generator {
    /// For a room whose log ends at `tail`, and whose ephemeral events may have had cursors up to `reserved`.
    pub fn new(tail: Position, reserved: Position) -> Self {
        Self { peak: tail.max(reserved), in_flight: 0, ephemeral: reserved }
    }

    /// Upper bound of all cursors, including those of records in flight.
    pub fn bound(&self) -> Cursor {
        Cursor::at(self.peak.further(self.in_flight).unwrap_or(Position::MAX))
    }

    /// Registers an append of so many records. Returns the least position of its first record.
    pub fn begin_append(&mut self, records: u64, now: Timestamp, rng: impl FnOnce() -> u128) -> Position {
        let least = match self.fresh(now, rng) {
            Some(fresh) => {
                self.peak = Position::new(fresh.get() - 1);
                fresh
            }
            // Right above the tail, and above all ephemeral events.
            None => self.ephemeral.further(1).unwrap_or(Position::MAX),
        };
        self.in_flight = self.in_flight.saturating_add(records);
        least
    }

    /// Completes an append. `last` is the position of its last record, or `None` if it was not made.
    pub fn end_append(&mut self, records: u64, last: Option<Position>) {
        self.in_flight = self.in_flight.saturating_sub(records);
        self.peak = self.peak.max(last.unwrap_or_default());
    }

    /// Assigns consecutive cursors to ephemeral events and returns the first. Assigns none and returns `None`
    /// if the last one would be above the highest that may be assigned.
    pub fn add_ephemeral(
        &mut self,
        count: u64,
        now: Timestamp,
        rng: impl FnOnce() -> u128,
        reserved: Position,
    ) -> Option<Position> {
        let first = match self.fresh(now, rng) {
            Some(fresh) => fresh,
            None => self.bound().position().further(1)?,
        };
        let last = first.further(count.checked_sub(1)?)?;
        if last > reserved {
            return None;
        }
        (self.ephemeral, self.peak) = (last, last);
        Some(first)
    }

    /// A new cursor from the current millisecond, if it is above the bound.
    fn fresh(&self, now: Timestamp, rng: impl FnOnce() -> u128) -> Option<Position> {
        let first = Cursor::first_of(now);
        let is_later = first.millis() > self.bound().millis();
        is_later.then(|| Position::new(first.position().get() | (rng() & ((1 << FRESH_RANDOM_BITS) - 1))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const NOW: Timestamp = Timestamp::from_millis(1_763_294_400_000);
    const TOP: u128 = (1 << FRESH_RANDOM_BITS) - 1;

    fn next(generator: &mut Generator, now: Timestamp, rng: u128) -> Position {
        let tail = generator.peak;
        let place = generator.begin_append(1, now, || rng).max(tail.further(1).expect("room"));
        generator.end_append(1, Some(place));
        place
    }

    #[test]
    fn a_million_events_of_one_millisecond_follow_each_other_without_a_gap() {
        let mut generator = Generator::new(Position::ZERO, Position::ZERO);
        let first = next(&mut generator, NOW, TOP);
        assert_eq!(Cursor::at(first).millis(), NOW.as_millis());
        for n in 1..1_000_000u64 {
            assert_eq!(Some(next(&mut generator, NOW, 0)), first.further(n));
        }
        assert_eq!(Cursor::at(generator.peak).millis(), NOW.as_millis(), "the highest bit of rng was clear");
    }

    #[test]
    fn a_later_millisecond_draws_anew_and_an_earlier_one_counts_on() {
        let mut generator = Generator::new(Position::ZERO, Position::ZERO);
        let first = next(&mut generator, NOW, 5);
        let later = next(&mut generator, NOW + std::time::Duration::from_millis(1), 3);
        assert_eq!(later.get() - first.get(), (1 << 80) - 2);
        let back = next(&mut generator, NOW - std::time::Duration::from_secs(10), 1 << 70);
        assert_eq!(Some(back), later.further(1), "the clock has gone back");
    }

    #[test]
    fn when_all_bits_of_chance_are_set_the_next_cursor_is_in_the_next_millisecond() {
        let full = Position::new((u128::from(NOW.as_millis()) << 80) | ((1 << 80) - 1));
        let mut generator = Generator::new(full, Position::ZERO);
        let carried = next(&mut generator, NOW, 7);
        assert_eq!(Some(carried), full.further(1));
        assert_eq!(Cursor::at(carried), Cursor::first_of(NOW + std::time::Duration::from_millis(1)));
        assert_eq!(Cursor::parse(&Cursor::at(carried).to_string()), Ok(Cursor::at(carried)));
    }

    #[test]
    fn a_fresh_cursor_has_its_highest_bit_of_chance_clear() {
        let mut generator = Generator::new(Position::ZERO, Position::ZERO);
        let fresh = next(&mut generator, NOW, u128::MAX).get() & ((1 << 80) - 1);
        assert_eq!(fresh, TOP);
    }

    #[test]
    fn at_the_very_top_nothing_is_given_twice() {
        let mut generator = Generator::new(Position::MAX, Position::ZERO);
        assert_eq!(generator.bound().position(), Position::MAX);
        assert_eq!(generator.add_ephemeral(1, NOW, || 0, Position::MAX), None);
        generator.begin_append(3, NOW, || 0);
        assert_eq!(generator.bound().position(), Position::MAX);
    }

    /// What can happen to a room.
    #[derive(Clone, Debug)]
    enum Step {
        /// Begins an append of so many records.
        SetOut(u64),
        /// One of those under way is committed, or lost; the generator does not know yet.
        Commit {
            which: prop::sample::Index,
            made: bool,
        },
        /// The generator hears of one that was committed or lost.
        Arrive(prop::sample::Index),
        LayApart(u64),
        /// The clock is set, to and fro.
        Clock(i64),
        /// The server starts again; what was under way is lost.
        Restart,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1u64..5).prop_map(Step::SetOut),
            4 => (any::<prop::sample::Index>(), prop::bool::weighted(0.8))
                .prop_map(|(which, made)| Step::Commit { which, made }),
            4 => any::<prop::sample::Index>().prop_map(Step::Arrive),
            3 => (1u64..4).prop_map(Step::LayApart),
            3 => (-5i64..10).prop_map(Step::Clock),
            1 => Just(Step::Restart),
        ]
    }

    /// An append between the generator and the log.
    struct InFlight {
        records: u64,
        least: Position,
        /// What was given to those that lay ephemeral before it set out.
        ephemeral: Position,
        landed: Option<Option<Position>>,
    }

    proptest! {
        #[test]
        fn no_cursor_is_given_twice_and_what_lies_apart_separates_before_from_after(
            steps in prop::collection::vec(step(), 1..200),
            seed: u64,
        ) {
            let mut rng = seed;
            // Small numbers now and then, so that there are collisions to be found.
            let mut draw = || {
                rng = rng.wrapping_mul(6364136223846793005).wrapping_add(1);
                u128::from(rng >> 33) % 7
            };
            let (mut tail, mut reserved, mut now) = (Position::ZERO, Position::ZERO, 1000i64);
            let mut generator = Generator::new(tail, reserved);
            let mut in_flight: Vec<InFlight> = Vec::new();
            let mut given = BTreeSet::new();
            let mut ephemeral = Position::ZERO;
            for step in steps {
                let moment = Timestamp::from_millis(now as u64);
                match step {
                    Step::SetOut(records) => {
                        let least = generator.begin_append(records, moment, &mut draw);
                        in_flight.push(InFlight { records, least, ephemeral, landed: None });
                    }
                    Step::Commit { which, made } => {
                        let open: Vec<_> = in_flight.iter_mut().filter(|one| one.landed.is_none()).collect();
                        if open.is_empty() { continue }
                        let at = which.index(open.len());
                        let one = open.into_iter().nth(at).expect("there");
                        if !made { one.landed = Some(None); continue }
                        let first = one.least.max(tail.further(1).expect("room"));
                        prop_assert!(first > one.ephemeral, "above what lay ephemeral before it set out");
                        for n in 0..one.records {
                            let place = first.further(n).expect("room");
                            prop_assert!(given.insert(place), "{place:?} was given before");
                            tail = place;
                        }
                        one.landed = Some(Some(tail));
                        prop_assert!(Cursor::at(tail) <= generator.bound());
                    }
                    Step::Arrive(which) => {
                        let landed: Vec<_> = (0..in_flight.len()).filter(|&at| in_flight[at].landed.is_some()).collect();
                        if landed.is_empty() { continue }
                        let one = in_flight.remove(landed[which.index(landed.len())]);
                        generator.end_append(one.records, one.landed.expect("landed"));
                    }
                    Step::LayApart(count) => {
                        let first = match generator.add_ephemeral(count, moment, &mut draw, reserved) {
                            Some(first) => first,
                            None => {
                                let highest = generator.bound().max(Cursor::first_of(moment));
                                reserved = Cursor::first_of(Timestamp::from_millis(highest.millis() + 4)).position();
                                generator.add_ephemeral(count, moment, &mut draw, reserved).expect("reserved")
                            }
                        };
                        prop_assert!(first > ephemeral && first > tail);
                        // Whatever comes of those under way, they stay below.
                        let open: Vec<_> = in_flight.iter().filter(|one| one.landed.is_none()).collect();
                        let highest = open.iter().map(|one| one.least.get() - 1).max().unwrap_or(0).max(tail.get());
                        let records: u64 = open.iter().map(|one| one.records).sum();
                        prop_assert!(highest + u128::from(records) < first.get());
                        for n in 0..count {
                            ephemeral = first.further(n).expect("room");
                            prop_assert!(given.insert(ephemeral), "{ephemeral:?} was given before");
                        }
                    }
                    Step::Clock(by) => now = (now + by).max(1),
                    Step::Restart => {
                        in_flight.clear();
                        ephemeral = reserved;
                        generator = Generator::new(tail, reserved);
                    }
                }
            }
        }
    }
}
