//! An immutable trie of patterns in a few flat arrays.

use std::ops::Range;
use std::sync::OnceLock;

use super::complexity::complexity;
use super::path::{Kind, Label, Step};
use super::trie::Trie;

/// A trie of patterns with keys. Whatever a node has stands in one run of its array; the next node's run begins at
/// its end.
#[derive(Debug)]
pub(super) struct Arena<K> {
    trie: Trie,
    /// One more than there are nodes: the last one ends the runs of the one before it.
    nodes: Box<[Node]>,
    /// Edges that are not literal.
    wild: Box<[Wild]>,
    /// Keys, in ascending order within a run.
    keys: Box<[K]>,
    complexity: OnceLock<u32>,
}

/// Where the runs of a node begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    keys: u32,
    /// Its upper two bits say whether there are literal edges, and whether there are `**` edges.
    wild: u32,
}

/// An edge that is not literal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wild {
    pub label: Label,
    pub child: u32,
}

const LITERAL: u32 = 1 << 31;
const DEEP: u32 = 1 << 30;

impl Node {
    pub fn new(keys: u32, wild: u32) -> Self {
        Self { keys, wild }
    }

    pub fn set_literal(&mut self) {
        self.wild |= LITERAL;
    }

    pub fn set_deep(&mut self) {
        self.wild |= DEEP;
    }

    /// Whether the node has a literal edge.
    pub fn has_literal(self) -> bool {
        self.wild & LITERAL != 0
    }

    fn has_deep(self) -> bool {
        self.wild & DEEP != 0
    }

    fn wild(self) -> usize {
        (self.wild & !(LITERAL | DEEP)) as usize
    }
}

impl<K: Copy + Ord> Arena<K> {
    pub fn new(trie: Trie, nodes: Vec<Node>, wild: Vec<Wild>, keys: Vec<K>) -> Self {
        let (nodes, wild, keys) = (nodes.into(), wild.into(), keys.into());
        Self { trie, nodes, wild, keys, complexity: OnceLock::new() }
    }

    /// The slot of a key at the end of a path.
    pub fn find(&self, path: &[Step<'_>], key: K) -> Option<u32> {
        self.slot(self.trie.find(path)?, key)
    }

    /// The slot of a key at a node.
    pub fn slot(&self, node: u32, key: K) -> Option<u32> {
        let slots = self.slots(node);
        let at = self.keys[slots.clone()].binary_search(&key).ok()?;
        Some((slots.start + at) as u32)
    }

    /// The node that has a slot.
    pub fn owner(&self, slot: u32) -> u32 {
        (self.nodes.partition_point(|node| node.keys <= slot) - 1) as u32
    }

    /// The slots of a node's keys.
    pub fn slots(&self, node: u32) -> Range<usize> {
        let node = node as usize;
        self.nodes[node].keys as usize..self.nodes[node + 1].keys as usize
    }

    /// All keys, by slot.
    pub fn keys(&self) -> &[K] {
        &self.keys
    }

    pub fn node(&self, node: u32) -> Node {
        self.nodes[node as usize]
    }

    /// The edges of a node without the literal ones, those of `**` first.
    pub fn wild(&self, node: u32) -> &[Wild] {
        let node = node as usize;
        &self.wild[self.nodes[node].wild()..self.nodes[node + 1].wild()]
    }

    /// The children of a node behind `**`.
    pub fn deep(&self, node: u32) -> impl Iterator<Item = u32> {
        let wild = if self.node(node).has_deep() { self.wild(node) } else { &[] };
        wild.iter().take_while(|wild| wild.label.kind() == Kind::Deep).map(|wild| wild.child)
    }

    /// The children of a node behind an alias.
    pub fn aliases(&self, node: u32) -> impl Iterator<Item = u32> {
        let wild = self.wild(node).iter().rev();
        wild.take_while(|wild| wild.label.kind() == Kind::Alias).map(|wild| wild.child)
    }

    /// Number of patterns, each as often as it has a key. Takes time linear in the arena's size.
    pub fn pairs(&self) -> usize {
        let incoming = self.trie.incoming();
        let mut is_second = vec![false; incoming.len()];
        for (node, edge) in incoming.iter().enumerate().skip(1) {
            is_second[node] = edge.label.kind() == Kind::Uniform || is_second[edge.parent as usize];
        }
        let counted = (0..incoming.len()).filter(|&node| !is_second[node]);
        counted.map(|node| self.slots(node as u32).len()).sum()
    }

    pub fn trie(&self) -> &Trie {
        &self.trie
    }

    /// See [`complexity`]. Computed when it is first asked for, in time linear in the arena's size.
    /// Asked for names of the same number of segments each time.
    pub fn complexity(&self, segments: u32) -> u32 {
        *self.complexity.get_or_init(|| complexity(&self.trie, segments))
    }

    pub fn bytes(&self) -> usize {
        self.trie.edges.bytes()
            + self.trie.segments.bytes()
            + size_of_val(&*self.nodes)
            + size_of_val(&*self.wild)
            + size_of_val(&*self.keys)
    }
}
