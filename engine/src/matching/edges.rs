//! The table of all edges of a trie.

use super::hash::{Hasher, home};
use super::path::Label;

/// One edge. `child` is 0, the root, in an empty slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Edge {
    pub parent: u32,
    pub label: Label,
    pub child: u32,
}

/// All edges of a trie in one hash table with open addressing.
#[derive(Clone, Debug, Default)]
pub(super) struct Edges {
    slots: Vec<Edge>,
    len: usize,
}

impl Edges {
    pub fn with_capacity(edges: usize) -> Self {
        Self { slots: vec![Edge::default(); slots_for(edges)], len: 0 }
    }

    pub fn find(&self, parent: u32, label: Label, hasher: &Hasher) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let mut at = home(hasher.edge(parent, label), self.slots.len());
        loop {
            let edge = &self.slots[at];
            if edge.child == 0 {
                return None;
            }
            if edge.parent == parent && edge.label == label {
                return Some(edge.child);
            }
            at += 1;
            if at == self.slots.len() {
                at = 0;
            }
        }
    }

    /// Adds an edge that is not there yet.
    pub fn add(&mut self, edge: Edge, hasher: &Hasher) {
        if slots_for(self.len + 1) > self.slots.len() {
            self.resize(slots_for((self.len * 2).max(16)), hasher);
        }
        self.place(edge, hasher);
        self.len += 1;
    }

    /// Frees the slots that are not needed.
    pub fn shrink(&mut self, hasher: &Hasher) {
        let slots = slots_for(self.len);
        if slots < self.slots.len() {
            self.resize(slots, hasher);
        }
    }

    /// All edges, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Edge> {
        self.slots.iter().copied().filter(|edge| edge.child != 0)
    }

    pub fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Edge>()
    }

    fn place(&mut self, edge: Edge, hasher: &Hasher) {
        let mut at = home(hasher.edge(edge.parent, edge.label), self.slots.len());
        while self.slots[at].child != 0 {
            at += 1;
            if at == self.slots.len() {
                at = 0;
            }
        }
        self.slots[at] = edge;
    }

    fn resize(&mut self, slots: usize, hasher: &Hasher) {
        let old = std::mem::replace(&mut self.slots, vec![Edge::default(); slots]);
        for edge in old {
            if edge.child != 0 {
                self.place(edge, hasher);
            }
        }
    }
}

/// Slots of a table that is at most seven tenths full. A search for what is not there ends at an empty slot, so there is
/// always one.
pub(super) fn slots_for(entries: usize) -> usize {
    if entries == 0 { 0 } else { entries * 10 / 7 + 1 }
}
