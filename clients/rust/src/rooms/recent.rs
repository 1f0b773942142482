//! Recently handled cursors, to recognize duplicates.

use std::collections::{HashSet, VecDeque};

use super::{Cursor, RECENT_CURSORS};

/// Recognizes events that arrive again. Cursors have no order for a client, so the last [`RECENT_CURSORS`]
/// are remembered; a server resends only the event at the cursor.
#[derive(Debug, Default)]
pub(super) struct Recent {
    cursors: HashSet<Cursor>,
    order: VecDeque<Cursor>,
}

impl Recent {
    pub(super) fn knows(&self, cursor: &Cursor) -> bool {
        self.cursors.contains(cursor)
    }

    pub(super) fn add(&mut self, cursor: Cursor) {
        if !self.cursors.insert(cursor.clone()) {
            return;
        }
        self.order.push_back(cursor);
        if self.order.len() > RECENT_CURSORS
            && let Some(oldest) = self.order.pop_front()
        {
            self.cursors.remove(&oldest);
        }
    }

    pub(super) fn clear(&mut self) {
        self.cursors.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_cursors_are_known_and_no_more_are_kept() {
        let cursor = |number: usize| number.to_string().parse::<Cursor>().unwrap();
        let mut recent = Recent::default();
        for number in 0..=RECENT_CURSORS {
            recent.add(cursor(number));
            recent.add(cursor(number));
        }
        assert!(!recent.knows(&cursor(0)));
        assert!((1..=RECENT_CURSORS).all(|number| recent.knows(&cursor(number))));
        assert_eq!((recent.cursors.len(), recent.order.len()), (RECENT_CURSORS, RECENT_CURSORS));
    }
}
