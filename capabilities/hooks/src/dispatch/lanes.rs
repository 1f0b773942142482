//! Which deliveries of a hook wait for earlier ones. Pure.
//!
//! Each delivery belongs to a lane: all of a hook to the same one, or those with the same key. Only the first delivery of a
//! lane may be attempted, and it stays the first until it is delivered or given up.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use tidings_model::Position;

use crate::event::Event;
use crate::hook::{Ordering, Settings};

/// The deliveries of a hook that are not finished, by lane.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: HashMap<u64, VecDeque<Position>>,
    /// The lane of each delivery.
    of: BTreeMap<Position, u64>,
}

/// How the lane of a delivery is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Deliveries do not wait for each other.
    None,
    /// All deliveries are in one lane.
    Whole,
    /// Deliveries with the same value at this JSON pointer are in one lane. Those without a value are in none.
    Key(String),
}

impl Order {
    /// The order that a hook asks for.
    pub(super) fn of(settings: &Settings) -> Self {
        match settings.ordering {
            Ordering::None => Self::None,
            Ordering::Subscription => Self::Whole,
            Ordering::Key => Self::Key(settings.ordering_key.clone().unwrap_or_default()),
        }
    }

    /// The lane of an event, given its record.
    pub(super) fn lane(&self, record: &Bytes) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Whole => Some(0),
            Self::Key(pointer) => {
                let event = Event::from_record(record)?.value();
                let key = event.pointer(pointer)?;
                let mut hasher = DefaultHasher::new();
                key.to_string().hash(&mut hasher);
                Some(hasher.finish())
            }
        }
    }
}

impl Lanes {
    /// Adds a delivery. Returns whether it is the first of its lane.
    pub(super) fn enter(&mut self, position: Position, lane: Option<u64>) -> bool {
        let Some(lane) = lane else { return true };
        if self.of.insert(position, lane).is_none() {
            let queue = self.lanes.entry(lane).or_default();
            let at = queue.partition_point(|other| *other < position);
            queue.insert(at, position);
        }
        self.is_first(position)
    }

    /// Whether no earlier delivery of its lane is unfinished.
    pub(super) fn is_first(&self, position: Position) -> bool {
        let lane = self.of.get(&position).and_then(|lane| self.lanes.get(lane));
        lane.is_none_or(|queue| queue.front() == Some(&position))
    }

    /// Removes a delivery. Returns the one that is the first of its lane now and was not before.
    pub(super) fn leave(&mut self, position: Position) -> Option<Position> {
        let lane = self.of.remove(&position)?;
        let queue = self.lanes.get_mut(&lane)?;
        let was_first = queue.front() == Some(&position);
        if was_first {
            queue.pop_front();
        } else if let Ok(at) = queue.binary_search(&position) {
            queue.remove(at);
        }
        let next = queue.front().copied();
        if next.is_none() {
            self.lanes.remove(&lane);
        }
        next.filter(|_| was_first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(position: u128) -> Position {
        Position::new(position)
    }

    fn record(json: &str) -> Bytes {
        let json = Bytes::copy_from_slice(json.as_bytes());
        let text = |text: &str| text.to_owned();
        let (event_type, id, ts) = (text("a"), text("i"), text("t"));
        Event { event_type, id, ts, about: None, id_chosen: false, json }.to_record()
    }

    #[test]
    fn events_with_the_same_value_at_the_pointer_share_a_lane() {
        let order = Order::Key("/user/id".into());
        let lane = |json| order.lane(&record(json));
        let first = lane(r#"{"user":{"id":7},"n":1}"#);
        assert!(first.is_some());
        assert_eq!(first, lane(r#"{"n":2,"user":{"id":7}}"#));
        assert_ne!(first, lane(r#"{"user":{"id":"7"}}"#));
        assert_eq!(lane(r#"{"user":{}}"#), None);
        assert!(lane(r#"{"user":{"id":null}}"#).is_some());
        assert_eq!(Order::None.lane(&record("{}")), None);
        assert_eq!(Order::Whole.lane(&record("{}")), Some(0));
    }

    #[test]
    fn a_delivery_is_first_when_all_earlier_ones_have_left() {
        let mut lanes = Lanes::default();
        assert!(lanes.enter(at(2), Some(7)));
        assert!(!lanes.enter(at(3), Some(7)));
        assert!(lanes.enter(at(4), Some(8)));
        assert!(lanes.enter(at(5), None));
        assert!(lanes.enter(at(1), Some(7)), "an earlier one goes in front");
        assert!(!lanes.is_first(at(2)));
        assert_eq!(lanes.leave(at(2)), None, "1 is still the first");
        assert_eq!(lanes.leave(at(1)), Some(at(3)));
        assert_eq!(lanes.leave(at(3)), None);
        assert_eq!(lanes.leave(at(5)), None);
        assert_eq!(lanes.leave(at(4)), None);
        assert!(lanes.lanes.is_empty() && lanes.of.is_empty());
    }

    proptest! {
        #[test]
        fn exactly_one_delivery_of_each_lane_is_first(
            entries in prop::collection::vec((0u128..50, 0u64..4), 0..60), leaving in prop::collection::vec(0u128..50, 0..60),
        ) {
            let mut lanes = Lanes::default();
            let mut model: BTreeMap<Position, u64> = BTreeMap::new();
            for (position, lane) in entries {
                let lane = *model.entry(at(position)).or_insert(lane);
                lanes.enter(at(position), Some(lane));
            }
            let first = |model: &BTreeMap<Position, u64>, lane: u64| {
                model.iter().find(|(_, other)| **other == lane).map(|(position, _)| *position)
            };
            for position in leaving.into_iter().map(at) {
                let next = lanes.leave(position);
                let before = model.clone();
                let expected = model.remove(&position).and_then(|lane| {
                    (first(&before, lane) == Some(position)).then(|| first(&model, lane)).flatten()
                });
                prop_assert_eq!(next, expected);
                for (&position, &lane) in &model {
                    prop_assert_eq!(lanes.is_first(position), first(&model, lane) == Some(position));
                }
            }
        }
    }
}
