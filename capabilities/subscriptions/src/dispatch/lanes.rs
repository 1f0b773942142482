//! Whose turn it is: destinations take turns, and each is allowed so many attempts at a time.

use std::collections::{HashMap, VecDeque};

use tidings_model::LogId;

/// What attempts share: a destination of webhooks, or a project whose streams get events.
pub(super) type Lane = String;

/// Subscriptions that wait for an attempt, by lane.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: HashMap<Lane, Waiting>,
    /// Lanes with somebody whose turn may come.
    turns: VecDeque<Lane>,
    under_way: usize,
    most: usize,
    most_per_lane: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    under_way: usize,
    queue: VecDeque<LogId>,
    /// Whether the lane is among the turns.
    has_turn: bool,
}

impl Lanes {
    pub(super) fn new(most: usize, most_per_lane: usize) -> Self {
        Self { lanes: HashMap::new(), turns: VecDeque::new(), under_way: 0, most, most_per_lane }
    }

    /// A subscription waits for an attempt.
    pub(super) fn push(&mut self, lane: Lane, number: LogId) {
        self.lanes.entry(lane.clone()).or_default().queue.push_back(number);
        self.give_turn(lane);
    }

    /// The next subscription whose attempt may begin.
    pub(super) fn begin(&mut self) -> Option<(Lane, LogId)> {
        if self.under_way >= self.most {
            return None;
        }
        let lane = self.turns.pop_front()?;
        let waiting = self.lanes.get_mut(&lane)?;
        waiting.has_turn = false;
        let number = waiting.queue.pop_front()?;
        waiting.under_way += 1;
        self.under_way += 1;
        self.give_turn(lane.clone());
        Some((lane, number))
    }

    /// An attempt has ended.
    pub(super) fn end(&mut self, lane: &Lane) {
        self.under_way -= 1;
        let Some(waiting) = self.lanes.get_mut(lane) else { return };
        waiting.under_way -= 1;
        if waiting.under_way == 0 && waiting.queue.is_empty() {
            self.lanes.remove(lane);
        } else {
            self.give_turn(lane.clone());
        }
    }

    fn give_turn(&mut self, lane: Lane) {
        let Some(waiting) = self.lanes.get_mut(&lane) else { return };
        if !waiting.has_turn && !waiting.queue.is_empty() && waiting.under_way < self.most_per_lane {
            waiting.has_turn = true;
            self.turns.push_back(lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(lanes: &mut Lanes) -> Option<u64> {
        lanes.begin().map(|(_, number)| number.get())
    }

    #[test]
    fn lanes_take_turns_and_none_has_more_than_its_part() {
        let mut lanes = Lanes::new(3, 2);
        for number in 1..=4 {
            lanes.push("slow".to_owned(), LogId::new(number));
        }
        lanes.push("other".to_owned(), LogId::new(9));
        let begun: Vec<_> = std::iter::from_fn(|| begin(&mut lanes)).collect();
        assert_eq!(begun, [1, 9, 2]);
        lanes.end(&"other".to_owned());
        assert_eq!(begin(&mut lanes), None, "the slow lane has its part");
        lanes.end(&"slow".to_owned());
        assert_eq!((begin(&mut lanes), begin(&mut lanes)), (Some(3), None));
        lanes.end(&"slow".to_owned());
        lanes.end(&"slow".to_owned());
        assert_eq!(begin(&mut lanes), Some(4));
        lanes.end(&"slow".to_owned());
        assert!(lanes.lanes.is_empty() && lanes.turns.is_empty() && lanes.under_way == 0);
    }
}
