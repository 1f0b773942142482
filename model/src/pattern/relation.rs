//! How the names that two patterns match relate: whether one pattern [covers](Pattern::covers) or
//! [overlaps](Pattern::overlaps) another.
//!
//! A pattern is an automaton that reads segments. In state `at(i)` its first *i* segments have matched; in state
//! `inside(i)` its segment *i* is a `**` that has matched at least one segment.

use std::collections::HashSet;

use super::{Matcher, Pattern, SEPARATORS, Segment};
use crate::limits;

impl Pattern {
    /// Whether this pattern matches every name that the other matches.
    ///
    /// Never wrongly true. It is exact unless telling takes more than [`limits::PATTERN_COVER_STEPS`] steps, which needs
    /// dozens of segments of which many are `**`; then it is false, except for equal patterns.
    pub fn covers(&self, other: &Self) -> bool {
        self.text == other.text || Covering::new(self, other).holds(limits::PATTERN_COVER_STEPS)
    }

    /// Whether some name matches both patterns. Exact. Takes time in proportion to the product of their numbers of
    /// segments.
    pub fn overlaps(&self, other: &Self) -> bool {
        let mut places = Places::default();
        places.enter(Place::START);
        while let Some(place) = places.waiting.pop() {
            if place.left.at == self.segments.len() && place.right.at == other.segments.len() {
                return true;
            }
            place.skip_deep(self, other, &mut places);
            place.read_segment(self, other, &mut places);
        }
        false
    }
}

/// The question whether `wide` covers `narrow`.
///
/// It is enough to try those names of `narrow` in which each `*` stands for one character that is nowhere in `wide`. Such a
/// segment is matched by no more segments of `wide` than any other text in its place would be, because only a
/// wildcard can match that character.
struct Covering<'a> {
    wide: &'a Pattern,
    narrow: &'a Pattern,
    /// For each segment of `narrow`, which segments of `wide` match it, as bits.
    matched_by: Vec<u128>,
    /// Which segments of `wide` are `**`.
    deep: u128,
    /// Which segments of `wide` come after each separator.
    after: [u128; SEPARATORS.len()],
}

/// States in which an automaton may be: bit *i* of `at` is the state `at(i)`, and so for `inside`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct States {
    at: u128,
    inside: u128,
}

/// A state of `narrow`, and those that `wide` may be in after the same segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Situation {
    narrow: State,
    wide: States,
    /// Whether no segment was read yet. The first one follows any separator.
    first: bool,
}

/// A state of an automaton.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    at: usize,
    inside: bool,
}

impl State {
    /// The first `at` segments have matched.
    fn at(at: usize) -> Self {
        Self { at, inside: false }
    }

    /// The segment `at` is a `**` that has matched something.
    fn inside(at: usize) -> Self {
        Self { at, inside: true }
    }
}

impl<'a> Covering<'a> {
    fn new(wide: &'a Pattern, narrow: &'a Pattern) -> Self {
        let fresh = fresh(wide);
        let example = |segment: &Segment| match &segment.matcher {
            Matcher::Literal(text) => text.to_string(),
            Matcher::One | Matcher::Deep => fresh.to_string(),
            Matcher::Glob(pieces) => pieces.join(fresh.encode_utf8(&mut [0; 4])),
        };
        let matched_by = |segment: &Segment| {
            let example = example(segment);
            bits(wide, |segment| segment.matcher.accepts(&example))
        };
        Self {
            wide,
            narrow,
            matched_by: narrow.segments.iter().map(matched_by).collect(),
            deep: bits(wide, |segment| segment.matcher == Matcher::Deep),
            after: SEPARATORS.map(|separator| bits(wide, |segment| segment.separator == Some(separator))),
        }
    }

    /// False if telling takes more than so many steps.
    fn holds(&self, steps_max: usize) -> bool {
        let start = States { at: self.skip_deep(1), inside: 0 };
        let mut waiting = vec![Situation { narrow: State::at(0), wide: start, first: true }];
        let mut seen = HashSet::new();
        while let Some(situation) = waiting.pop() {
            if !seen.insert(situation) {
                continue;
            }
            let Situation { narrow, wide, .. } = situation;
            let has_matched = wide.at & (1 << self.wide.segments.len()) != 0;
            let is_complete = narrow.at == self.narrow.segments.len();
            // From each state of `narrow` some name can be completed.
            let is_lost = wide.at == 0 && wide.inside == 0;
            if is_lost || (is_complete && !has_matched) || seen.len() > steps_max {
                return false;
            }
            if !is_complete {
                self.go_on(situation, &mut waiting);
            }
        }
        true
    }

    /// Adds what may come after a situation in which a segment of `narrow` is left.
    fn go_on(&self, situation: Situation, waiting: &mut Vec<Situation>) {
        let Situation { narrow: State { at, inside }, wide, first } = situation;
        let Segment { separator, matcher } = &self.narrow.segments[at];
        let mut read = |separator: Option<char>, narrow| {
            let wide = self.step(wide, separator.filter(|_| !first), self.matched_by[at]);
            waiting.push(Situation { narrow, wide, first: false });
        };
        match matcher {
            Matcher::Deep if inside => {
                SEPARATORS.into_iter().for_each(|separator| read(Some(separator), State::inside(at)));
            }
            Matcher::Deep => read(*separator, State::inside(at)),
            _ => read(*separator, State::at(at + 1)),
        }
        if *matcher == Matcher::Deep {
            waiting.push(Situation { narrow: State::at(at + 1), wide, first });
        }
    }

    /// The states of `wide` after one more segment, which follows a separator unless it is the first, and is matched
    /// by these segments of `wide`.
    fn step(&self, states: States, separator: Option<char>, matched_by: u128) -> States {
        let follows = match separator {
            None => u128::MAX,
            Some(separator) => {
                let same = SEPARATORS.iter().position(|other| *other == separator);
                self.after[same.expect("segments are split at these separators")]
            }
        };
        let takes = states.at & follows;
        let inside = states.inside | (takes & self.deep);
        let next = (takes & matched_by & !self.deep) << 1;
        States { at: self.skip_deep(next | (inside << 1)), inside }
    }

    /// Adds the states that are reached when `**` matches nothing.
    fn skip_deep(&self, mut at: u128) -> u128 {
        loop {
            let more = at | ((at & self.deep) << 1);
            if more == at {
                return at;
            }
            at = more;
        }
    }
}

/// A character that is not in the pattern, and neither a wildcard nor a separator.
fn fresh(pattern: &Pattern) -> char {
    ('\u{e000}'..).find(|c| !pattern.text.contains(*c)).expect("a pattern does not have all characters")
}

/// The segments for which something is so, as bits.
fn bits(pattern: &Pattern, is_so: impl Fn(&Segment) -> bool) -> u128 {
    let one = |(i, segment): (usize, &Segment)| u128::from(is_so(segment)) << i;
    pattern.segments.iter().enumerate().map(one).fold(0, |all, bit| all | bit)
}

/// States of two automata that have read the same segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    left: State,
    right: State,
    /// Whether no segment was read yet.
    first: bool,
}

/// Places that were reached.
#[derive(Default)]
struct Places {
    seen: HashSet<Place>,
    waiting: Vec<Place>,
}

impl Places {
    fn enter(&mut self, place: Place) {
        if self.seen.insert(place) {
            self.waiting.push(place);
        }
    }
}

impl Place {
    const START: Self =
        Self { left: State { at: 0, inside: false }, right: State { at: 0, inside: false }, first: true };

    /// Enters the places that are reached when a `**` matches nothing more.
    fn skip_deep(self, left: &Pattern, right: &Pattern, places: &mut Places) {
        let is_deep = |pattern: &Pattern, state: State| {
            pattern.segments.get(state.at).is_some_and(|segment| segment.matcher == Matcher::Deep)
        };
        if is_deep(left, self.left) {
            places.enter(Self { left: State::at(self.left.at + 1), ..self });
        }
        if is_deep(right, self.right) {
            places.enter(Self { right: State::at(self.right.at + 1), ..self });
        }
    }

    /// Enters the place that is reached by reading one segment that both patterns match, if there is such a segment.
    fn read_segment(self, left: &Pattern, right: &Pattern, places: &mut Places) {
        let segments = (left.segments.get(self.left.at), right.segments.get(self.right.at));
        let (Some(of_left), Some(of_right)) = segments else { return };
        // The first segment of a name, and those that a `**` goes on with, follow any separator.
        let after =
            |state: State, segment: &Segment| segment.separator.filter(|_| !self.first && !state.inside);
        let separators = (after(self.left, of_left), after(self.right, of_right));
        let may_follow = !matches!(separators, (Some(left), Some(right)) if left != right);
        if may_follow && of_left.matcher.overlaps(&of_right.matcher) {
            let next = |state: State, segment: &Segment| match segment.matcher {
                Matcher::Deep => State::inside(state.at),
                _ => State::at(state.at + 1),
            };
            let (left, right) = (next(self.left, of_left), next(self.right, of_right));
            places.enter(Self { left, right, first: false });
        }
    }
}

impl Matcher {
    /// Whether there is a segment that both accept.
    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::One | Self::Deep, _) | (_, Self::One | Self::Deep) => true,
            (Self::Literal(text), matcher) | (matcher, Self::Literal(text)) => matcher.accepts(text),
            (Self::Glob(one), Self::Glob(other)) => globs_overlap(one, other),
        }
    }
}

/// Whether some text has the pieces of both globs in order. If their ends fit, the pieces between them can be
/// put behind each other.
fn globs_overlap(one: &[Box<str>], other: &[Box<str>]) -> bool {
    let ([first, .., last], [other_first, .., other_last]) = (one, other) else { return false };
    let starts_fit = first.starts_with(&**other_first) || other_first.starts_with(&**first);
    let ends_fit = last.ends_with(&**other_last) || other_last.ends_with(&**last);
    starts_fit && ends_fit
}

#[cfg(test)]
mod tests;
