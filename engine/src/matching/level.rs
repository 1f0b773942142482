//! A level: an arena and what was removed from it.

use std::sync::Arc;

use super::arena::Arena;
use super::dead::Dead;
use super::path::Step;

/// An arena whose keys may have been removed since it was made.
#[derive(Clone, Debug)]
pub(super) struct Level<K> {
    pub arena: Arc<Arena<K>>,
    pub dead: Dead,
}

impl<K: Copy + Ord> Level<K> {
    pub fn new(arena: Arena<K>) -> Self {
        Self { arena: Arc::new(arena), dead: Dead::default() }
    }

    /// The slot of a key at the end of a path, unless it was removed.
    pub fn find(&self, path: &[Step<'_>], key: K) -> Option<u32> {
        self.arena.find(path, key).filter(|&slot| !self.dead.contains(slot))
    }

    /// Slots, with those of removed keys.
    pub fn slots(&self) -> usize {
        self.arena.keys().len()
    }

    /// Appends the keys of a node that were not removed.
    pub fn keys_at(&self, node: u32, keys: &mut Vec<K>) {
        let slots = self.arena.slots(node);
        if self.dead.len() == 0 {
            keys.extend_from_slice(&self.arena.keys()[slots]);
        } else {
            let live = slots.filter(|&slot| !self.dead.contains(slot as u32));
            keys.extend(live.map(|slot| self.arena.keys()[slot]));
        }
    }

    pub fn bytes(&self) -> usize {
        self.arena.bytes() + self.dead.bytes()
    }
}
