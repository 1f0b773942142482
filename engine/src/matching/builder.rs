//! A trie that is being built.

use super::arena::{Arena, Node, Wild};
use super::hash::Hasher;
use super::path::{Kind, Label, Step};
use super::trie::{ROOT, Trie};

/// A growing trie with keys at its nodes, from which arenas are made.
#[derive(Debug)]
pub(super) struct Builder<K> {
    trie: Trie,
    /// Edges that are not literal, and the node where each begins.
    wild: Vec<(u32, Wild)>,
    /// Nodes that have a literal edge, by the first of them.
    literal: Vec<u32>,
    /// Keys, and the node of each.
    pairs: Vec<(u32, K)>,
}

impl<K: Copy + Ord> Builder<K> {
    pub fn new(hasher: Hasher) -> Self {
        Self::with_capacity(0, hasher)
    }

    /// A builder with room for so many edges.
    pub fn with_capacity(edges: usize, hasher: Hasher) -> Self {
        Self {
            trie: Trie::with_capacity(edges, hasher),
            wild: Vec::new(),
            literal: Vec::new(),
            pairs: Vec::new(),
        }
    }

    /// Adds a key at the end of a path.
    pub fn insert(&mut self, path: &[Step<'_>], key: K) {
        let mut node = ROOT;
        for step in path {
            let label = self.trie.intern(step);
            node = self.child(node, label);
        }
        self.add(node, key);
    }

    /// Removes a key from the end of a path. Its nodes stay.
    pub fn remove(&mut self, path: &[Step<'_>], key: K) {
        let node = self.trie.find(path);
        self.pairs.retain(|&(owner, found)| (Some(owner), found) != (node, key));
    }

    /// The child of a node behind a label, which is added if it is not there.
    pub fn child(&mut self, parent: u32, label: Label) -> u32 {
        let (child, added) = self.trie.child(parent, label);
        if added && label.kind() == Kind::Literal {
            self.literal.push(parent);
        } else if added {
            self.wild.push((parent, Wild { label, child }));
        }
        child
    }

    /// Adds a key at a node.
    pub fn add(&mut self, node: u32, key: K) {
        self.pairs.push((node, key));
    }

    /// The label here that is like one of another trie, which has this text.
    pub fn intern(&mut self, like: Label, text: &[u8]) -> Label {
        let hasher = self.trie.hasher;
        let place = self.trie.segments.intern(hasher.text(text), text, |text| hasher.text(text));
        Label::new(like.kind(), like.separator(), place)
    }

    /// Pairs of pattern and key; a pair that was added twice counts twice until an arena is made.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Nodes, with those that have lost their keys.
    pub fn nodes(&self) -> usize {
        self.trie.nodes as usize
    }

    /// Whether another pattern might not fit.
    pub fn is_full(&self) -> bool {
        self.trie.is_full()
    }

    /// An arena with what is here now.
    pub fn arena(&mut self) -> Arena<K> {
        self.sort();
        let (nodes, wild, keys) = self.parts();
        Arena::new(self.trie.clone(), nodes, wild, keys)
    }

    /// The arena that was built.
    pub fn finish(mut self) -> Arena<K> {
        self.sort();
        let (nodes, wild, keys) = self.parts();
        self.trie.shrink();
        Arena::new(self.trie, nodes, wild, keys)
    }

    fn sort(&mut self) {
        self.pairs.sort();
        self.pairs.dedup();
        self.wild.sort_by_key(|(node, wild)| (*node, wild.label));
        self.literal.sort_unstable();
        self.literal.dedup();
    }

    /// The arrays of an arena: each node's edges and keys in one run, in the order of nodes.
    fn parts(&self) -> (Vec<Node>, Vec<Wild>, Vec<K>) {
        let mut nodes = Vec::with_capacity(self.nodes() + 1);
        let (mut wild, mut keys) = (0, 0);
        let mut literal = self.literal.iter().peekable();
        for node in 0..self.trie.nodes {
            let mut entry = Node::new(keys as u32, wild as u32);
            if literal.next_if(|&&parent| parent == node).is_some() {
                entry.set_literal();
            }
            while let Some((_, edge)) = self.wild.get(wild).filter(|(parent, _)| *parent == node) {
                if edge.label.kind() == Kind::Deep {
                    entry.set_deep();
                }
                wild += 1;
            }
            while self.pairs.get(keys).is_some_and(|(owner, _)| *owner == node) {
                keys += 1;
            }
            nodes.push(entry);
        }
        nodes.push(Node::new(keys as u32, wild as u32));
        let wild = self.wild.iter().map(|&(_, wild)| wild).collect();
        let keys = self.pairs.iter().map(|&(_, key)| key).collect();
        (nodes, wild, keys)
    }
}
