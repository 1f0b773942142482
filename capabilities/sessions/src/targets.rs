//! Subscribers of a source: a sorted list of log ids, in chunks that can be passed to a commit without copying.

use std::sync::Arc;

use tidings_model::LogId;

/// Maximum log ids in one chunk. An insertion copies a chunk, so it should not be large; a fan-out passes whole chunks,
/// so it should not be small.
const PIECE: usize = 1024;

/// Sorted set of log ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Non-empty sorted chunks. Each begins above the last id of the one before.
    pieces: Vec<Arc<[LogId]>>,
    count: usize,
}

impl Targets {
    /// Number of log ids.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All log ids, in chunks.
    pub fn pieces(&self) -> &[Arc<[LogId]>] {
        &self.pieces
    }

    /// All log ids in order.
    pub fn iter(&self) -> impl Iterator<Item = LogId> + '_ {
        self.pieces.iter().flat_map(|piece| piece.iter().copied())
    }

    /// Log ids above `log`, in order.
    pub fn above(&self, log: LogId) -> impl Iterator<Item = LogId> + '_ {
        let first = self.pieces.partition_point(|piece| piece.last().is_some_and(|&last| last <= log));
        let pieces = self.pieces[first..].iter();
        pieces.flat_map(|piece| piece.iter().copied()).skip_while(move |&target| target <= log)
    }

    /// Whether the set contains `log`.
    pub fn contains(&self, log: LogId) -> bool {
        self.piece_of(log).is_some_and(|at| self.pieces[at].binary_search(&log).is_ok())
    }

    /// Inserts a log id. Returns whether it was absent.
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
            // Most sessions are appended in increasing order: then the full chunk stays full instead of being split.
            let cut = if place == PIECE { PIECE } else { grown.len() / 2 };
            let (low, high) = grown.split_at(cut);
            self.pieces.splice(at..=at, [low.into(), high.into()]);
        }
        self.count += 1;
        true
    }

    /// Removes a log id. Returns whether it was present.
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

    /// Removes and returns up to `most` log ids of the last chunk.
    pub fn pop(&mut self, most: usize) -> Vec<LogId> {
        let Some(piece) = self.pieces.pop() else { return Vec::new() };
        let (left, taken) = piece.split_at(piece.len().saturating_sub(most));
        if !left.is_empty() {
            self.pieces.push(left.into());
        }
        self.count -= taken.len();
        taken.to_vec()
    }

    /// Index of the first chunk that ends at or above `log`.
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
            // Starts with many log ids, so that there are several chunks.
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
