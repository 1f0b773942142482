//! Who watches what: from entities and types to connections.

use std::collections::{HashMap, HashSet};

use crate::entity::{EntityCode, EntityId};

/// Number of a connection in its project. Not used again while the connection exists.
pub(crate) type Slot = u32;

/// The connections by entity and by type.
#[derive(Debug, Default)]
pub(crate) struct Index {
    codes: HashMap<EntityCode, Watchers>,
}

/// Who watches a type, and entities of it.
#[derive(Debug, Default)]
struct Watchers {
    entities: HashMap<EntityId, Slots>,
    whole: HashSet<Slot>,
}

/// Some connections, usually one.
#[derive(Debug)]
enum Slots {
    One(Slot),
    /// In ascending order.
    Many(Vec<Slot>),
}

/// What one connection watches. Ids share their text with the index.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    codes: HashMap<EntityCode, OfType>,
    count: usize,
}

/// What one connection watches of a type.
#[derive(Debug, Default)]
pub(crate) struct OfType {
    pub(crate) whole: bool,
    pub(crate) ids: HashSet<EntityId>,
}

impl Index {
    /// The connections that watch an entity, each once, whether by its id or by its type.
    pub(crate) fn watchers_of(&self, code: &EntityCode, id: &EntityId, slots: &mut Vec<Slot>) {
        slots.clear();
        let Some(watchers) = self.codes.get(code) else { return };
        let by_id = watchers.entities.get(id);
        slots.extend(by_id.into_iter().flat_map(Slots::iter));
        let once = |slot: &&Slot| by_id.is_none_or(|by_id| !by_id.contains(**slot));
        slots.extend(watchers.whole.iter().filter(once));
    }

    /// Number of entities of each type that somebody watches. A whole type counts as one.
    pub(crate) fn entities(&self) -> impl Iterator<Item = (&EntityCode, u64)> {
        let count =
            |watchers: &Watchers| watchers.entities.len() as u64 + u64::from(!watchers.whole.is_empty());
        self.codes.iter().map(move |(code, watchers)| (code, count(watchers)))
    }

    /// Adds an entity that a connection watches. Returns whether it did not watch it before.
    pub(crate) fn add(
        &mut self,
        slot: Slot,
        of: &mut Subscriptions,
        code: &EntityCode,
        id: &EntityId,
    ) -> bool {
        let watchers = self.codes.entry(code.clone()).or_default();
        let id = watchers.entities.get_key_value(id).map_or(id, |(known, _)| known).clone();
        let is_new = of.codes.entry(code.clone()).or_default().ids.insert(id.clone());
        if is_new {
            of.count += 1;
            watchers.entities.entry(id).and_modify(|slots| slots.insert(slot)).or_insert(Slots::One(slot));
        }
        is_new
    }

    /// Adds a whole type. Returns whether the connection did not watch it before.
    pub(crate) fn add_whole(&mut self, slot: Slot, of: &mut Subscriptions, code: &EntityCode) -> bool {
        let of_type = of.codes.entry(code.clone()).or_default();
        let is_new = !std::mem::replace(&mut of_type.whole, true);
        if is_new {
            of.count += 1;
            self.codes.entry(code.clone()).or_default().whole.insert(slot);
        }
        is_new
    }

    /// Removes an entity that a connection watches by its id. Returns whether it did.
    pub(crate) fn remove(
        &mut self,
        slot: Slot,
        of: &mut Subscriptions,
        code: &EntityCode,
        id: &EntityId,
    ) -> bool {
        let was = of.codes.get_mut(code).is_some_and(|of_type| of_type.ids.remove(id));
        if was {
            of.count -= 1;
            of.forget_empty(code);
            self.leave(slot, code, id);
        }
        was
    }

    /// Removes a whole type, not the ids of it. Returns whether the connection watched it.
    pub(crate) fn remove_whole(&mut self, slot: Slot, of: &mut Subscriptions, code: &EntityCode) -> bool {
        let was = of.codes.get_mut(code).is_some_and(|of_type| std::mem::take(&mut of_type.whole));
        if was {
            of.count -= 1;
            of.forget_empty(code);
            self.leave_whole(slot, code);
        }
        was
    }

    /// Removes a type and all ids of it. Returns how many subscriptions that were.
    pub(crate) fn remove_type(&mut self, slot: Slot, of: &mut Subscriptions, code: &EntityCode) -> usize {
        let Some(of_type) = of.codes.remove(code) else { return 0 };
        let count = of_type.len();
        of.count -= count;
        of_type.ids.iter().for_each(|id| self.leave(slot, code, id));
        if of_type.whole {
            self.leave_whole(slot, code);
        }
        count
    }

    /// Removes everything that a connection watches.
    pub(crate) fn remove_all(&mut self, slot: Slot, of: &mut Subscriptions) -> usize {
        let codes: Vec<_> = of.codes.keys().cloned().collect();
        codes.iter().map(|code| self.remove_type(slot, of, code)).sum()
    }

    fn leave(&mut self, slot: Slot, code: &EntityCode, id: &EntityId) {
        let Some(watchers) = self.codes.get_mut(code) else { return };
        if watchers.entities.get_mut(id).is_some_and(|slots| slots.remove(slot)) {
            watchers.entities.remove(id);
            shrink(&mut watchers.entities);
        }
        self.forget_empty(code);
    }

    fn leave_whole(&mut self, slot: Slot, code: &EntityCode) {
        if let Some(watchers) = self.codes.get_mut(code) {
            watchers.whole.remove(&slot);
        }
        self.forget_empty(code);
    }

    fn forget_empty(&mut self, code: &EntityCode) {
        if self
            .codes
            .get(code)
            .is_some_and(|watchers| watchers.entities.is_empty() && watchers.whole.is_empty())
        {
            self.codes.remove(code);
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.codes.is_empty()
    }
}

impl Subscriptions {
    /// Number of subscriptions.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// What is watched of a type.
    pub(crate) fn of_type(&self, code: &EntityCode) -> Option<&OfType> {
        self.codes.get(code)
    }

    /// Whether an entity is watched, by its id or by its type.
    pub(crate) fn covers(&self, code: &EntityCode, id: &EntityId) -> bool {
        self.codes.get(code).is_some_and(|of_type| of_type.whole || of_type.ids.contains(id))
    }

    /// What is watched, by type.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&EntityCode, &OfType)> {
        self.codes.iter()
    }

    fn forget_empty(&mut self, code: &EntityCode) {
        if self.codes.get(code).is_some_and(|of_type| of_type.len() == 0) {
            self.codes.remove(code);
        }
    }
}

impl OfType {
    pub(crate) fn len(&self) -> usize {
        self.ids.len() + usize::from(self.whole)
    }
}

impl Slots {
    fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        let (one, many) = match self {
            Self::One(slot) => (Some(*slot), None),
            Self::Many(slots) => (None, Some(slots.iter().copied())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    fn contains(&self, slot: Slot) -> bool {
        match self {
            Self::One(one) => *one == slot,
            Self::Many(slots) => slots.binary_search(&slot).is_ok(),
        }
    }

    fn insert(&mut self, slot: Slot) {
        match self {
            Self::One(one) if *one == slot => {}
            Self::One(one) => *self = Self::Many(vec![(*one).min(slot), (*one).max(slot)]),
            Self::Many(slots) => {
                if let Err(at) = slots.binary_search(&slot) {
                    slots.insert(at, slot);
                }
            }
        }
    }

    /// Removes a connection. Returns whether none is left.
    fn remove(&mut self, slot: Slot) -> bool {
        match self {
            Self::One(one) => *one == slot,
            Self::Many(slots) => {
                if let Ok(at) = slots.binary_search(&slot) {
                    slots.remove(at);
                }
                slots.is_empty()
            }
        }
    }
}

/// Gives back memory once most of it is unused.
fn shrink<V>(map: &mut HashMap<EntityId, V>) {
    if map.capacity() > 64 && map.len() < map.capacity() / 4 {
        map.shrink_to(2 * map.len());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::entity::IdForm;

    fn code(number: u8) -> EntityCode {
        EntityCode::parse(&format!("c{number}")).expect("a code")
    }

    fn id(number: u8) -> EntityId {
        IdForm::Text.parse(&number.to_string()).expect("an id")
    }

    proptest! {
        /// The model is a set of (connection, code, id), where no id is the whole type.
        #[test]
        fn the_index_finds_what_a_scan_of_all_subscriptions_finds(
            steps in prop::collection::vec((0..6u8, 0..4u32, 0..3u8, 0..5u8), 0..200),
        ) {
            let mut index = Index::default();
            let mut of: Vec<Subscriptions> = (0..4).map(|_| Subscriptions::default()).collect();
            let mut model = BTreeSet::<(Slot, u8, Option<u8>)>::new();
            for (action, slot, c, i) in steps {
                let mine = &mut of[slot as usize];
                match action {
                    0 | 1 => {
                        let is_new = index.add(slot, mine, &code(c), &id(i));
                        prop_assert_eq!(is_new, model.insert((slot, c, Some(i))));
                    }
                    2 => {
                        let is_new = index.add_whole(slot, mine, &code(c));
                        prop_assert_eq!(is_new, model.insert((slot, c, None)));
                    }
                    3 => {
                        let was = index.remove(slot, mine, &code(c), &id(i));
                        prop_assert_eq!(was, model.remove(&(slot, c, Some(i))));
                    }
                    4 if i % 2 == 0 => {
                        let was = index.remove_whole(slot, mine, &code(c));
                        prop_assert_eq!(was, model.remove(&(slot, c, None)));
                    }
                    4 => {
                        let count = index.remove_type(slot, mine, &code(c));
                        let before = model.len();
                        model.retain(|(of, code, _)| *of != slot || *code != c);
                        prop_assert_eq!(count, before - model.len());
                    }
                    _ if i == 0 => {
                        let count = index.remove_all(slot, mine);
                        let before = model.len();
                        model.retain(|(of, _, _)| *of != slot);
                        prop_assert_eq!(count, before - model.len());
                    }
                    _ => {}
                }
                let mut found = Vec::new();
                for (c, i) in (0..3).flat_map(|c| (0..5).map(move |i| (c, i))) {
                    index.watchers_of(&code(c), &id(i), &mut found);
                    found.sort_unstable();
                    let expected: Vec<_> = (0..4)
                        .filter(|slot| model.contains(&(*slot, c, Some(i))) || model.contains(&(*slot, c, None)))
                        .collect();
                    prop_assert_eq!(&found, &expected);
                    for slot in 0..4 {
                        prop_assert_eq!(of[slot as usize].covers(&code(c), &id(i)), expected.contains(&slot));
                    }
                }
                for slot in 0..4 {
                    let count = model.iter().filter(|(of, _, _)| *of == slot).count();
                    prop_assert_eq!(of[slot as usize].len(), count);
                }
                let entities: u64 = index.entities().map(|(_, count)| count).sum();
                let distinct: BTreeSet<_> = model.iter().map(|(_, c, i)| (c, i)).collect();
                prop_assert_eq!(entities, distinct.len() as u64);
                prop_assert_eq!(index.is_empty(), model.is_empty());
            }
        }
    }
}
