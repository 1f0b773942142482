//! The sessions that hear a source: their logs, in order, in pieces that can be handed to a commit as they are.

use std::sync::Arc;

use tidings_model::LogId;

/// Logs in one piece. Adding one copies its piece, so it is not large; a fan-out hands over whole pieces, so it is not
/// small.
const PIECE: usize = 1024;

/// A sorted list of logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// None is empty, and each begins above the end of the one before.
    pieces: Vec<Arc<[LogId]>>,
    count: usize,
}

impl Targets {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All of them, in pieces.
    pub fn pieces(&self) -> &[Arc<[LogId]>] {
        &self.pieces
    }

    /// All of them in order.
    pub fn iter(&self) -> impl Iterator<Item = LogId> + '_ {
        self.pieces.iter().flat_map(|piece| piece.iter().copied())
    }

    /// Those above a log, in order.
    pub fn above(&self, log: LogId) -> impl Iterator<Item = LogId> + '_ {
        let first = self.pieces.partition_point(|piece| piece.last().is_some_and(|&last| last <= log));
        let pieces = self.pieces[first..].iter();
        pieces.flat_map(|piece| piece.iter().copied()).skip_while(move |&target| target <= log)
    }

    /// Whether it is among them.
    pub fn contains(&self, log: LogId) -> bool {
        self.piece_of(log).is_some_and(|at| self.pieces[at].binary_search(&log).is_ok())
    }

    /// Adds one; whether it was not among them.
    pub fn insert(&mut self, log: LogId) -> bool {
        let Some(at) = self.piece_of(log).or(self.pieces.len().checked_sub(1)) else {
            self.pieces.push(Arc::new([log]));
            self.count = 1;
            return true;
        };
        let piece = &self.pieces[at];
        let Err(place) = piece.binary_search(&log) else { return false };
        let (before, after) = piece.split_at(place);
        let grown: Vec<LogId> = before.iter().copied().chain([log]).chain(after.iter().copied()).collect();
        if grown.len() <= PIECE {
            self.pieces[at] = grown.into();
        } else {
            // Sessions are mostly made one after the other: then the full piece is left full.
            let cut = if place == PIECE { PIECE } else { grown.len() / 2 };
            let (low, high) = grown.split_at(cut);
            self.pieces.splice(at..=at, [low.into(), high.into()]);
        }
        self.count += 1;
        true
    }

    /// Takes one out; whether it was among them.
    pub fn remove(&mut self, log: LogId) -> bool {
        let Some(at) = self.piece_of(log) else { return false };
        let Ok(place) = self.pieces[at].binary_search(&log) else { return false };
        let (before, after) = self.pieces[at].split_at(place);
        let left: Vec<LogId> = before.iter().chain(&after[1..]).copied().collect();
        if left.is_empty() {
            self.pieces.remove(at);
        } else {
            self.pieces[at] = left.into();
        }
        self.count -= 1;
        true
    }

    /// Takes out up to so many of the last piece.
    pub fn pop(&mut self, most: usize) -> Vec<LogId> {
        let Some(piece) = self.pieces.pop() else { return Vec::new() };
        let (left, taken) = piece.split_at(piece.len().saturating_sub(most));
        if !left.is_empty() {
            self.pieces.push(left.into());
        }
        self.count -= taken.len();
        taken.to_vec()
    }

    /// The first piece that ends at or above a log.
    fn piece_of(&self, log: LogId) -> Option<usize> {
        let at = self.pieces.partition_point(|piece| piece.last().is_some_and(|&last| last < log));
        (at < self.pieces.len()).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_sorted_set_in_pieces(steps in prop::collection::vec((any::<bool>(), 0..6000u64), 0..300)) {
            let (mut targets, mut model) = (Targets::default(), BTreeSet::new());
            // Many to begin with, so that there are several pieces.
            for number in 2000..4100 {
                targets.insert(LogId::new(number));
                model.insert(LogId::new(number));
            }
            for (add, number) in steps {
                let log = LogId::new(number);
                if add {
                    prop_assert_eq!(targets.insert(log), model.insert(log));
                } else {
                    prop_assert_eq!(targets.remove(log), model.remove(&log));
                }
                prop_assert_eq!(targets.contains(log), model.contains(&log));
            }
            prop_assert_eq!(targets.len(), model.len());
            prop_assert!(targets.iter().eq(model.iter().copied()));
            let middle = LogId::new(3000);
            let above: Vec<_> = targets.above(middle).collect();
            prop_assert!(above.iter().eq(model.range(LogId::new(3001)..)));
            prop_assert!(targets.pieces().iter().all(|piece| (1..=PIECE).contains(&piece.len())));
            while !targets.is_empty() {
                let popped = targets.pop(700);
                prop_assert!((1..=700).contains(&popped.len()));
                prop_assert!(popped.iter().all(|log| model.remove(log)));
                prop_assert_eq!(targets.len(), model.len());
            }
            prop_assert!(targets.pop(700).is_empty());
        }
    }
}
