//! The shape of a trie: its edges and the texts on them.

use super::edges::{Edge, Edges};
use super::hash::Hasher;
use super::path::{Label, PLACES, Step};
use super::segments::Segments;

/// Index of the node where every path begins.
pub(super) const ROOT: u32 = 0;

/// Nodes that a trie may have; two bits of a node's index are used otherwise.
const NODES: u32 = 1 << 30;
/// More than a pattern can add to a trie, in text or nodes.
const MARGIN: usize = 64 * 1024;

/// Nodes, which are only numbers here, and the edges between them. A child's number is greater than its parent's.
#[derive(Clone, Debug)]
pub(super) struct Trie {
    pub hasher: Hasher,
    pub edges: Edges,
    pub segments: Segments,
    pub nodes: u32,
}

impl Trie {
    /// A trie that has only a root, with room for so many edges.
    pub fn with_capacity(edges: usize, hasher: Hasher) -> Self {
        Self { hasher, edges: Edges::with_capacity(edges), segments: Segments::default(), nodes: 1 }
    }

    /// The node at the end of a path, if it is there.
    pub fn find(&self, path: &[Step<'_>]) -> Option<u32> {
        path.iter().try_fold(ROOT, |node, step| {
            let label = self.label(step)?;
            self.edges.find(node, label, &self.hasher)
        })
    }

    /// The child of a node behind a label, which is added if it is not there; and whether it was added.
    pub fn child(&mut self, parent: u32, label: Label) -> (u32, bool) {
        if let Some(child) = self.edges.find(parent, label, &self.hasher) {
            return (child, false);
        }
        let child = self.nodes;
        self.nodes += 1;
        self.edges.add(Edge { parent, label, child }, &self.hasher);
        (child, true)
    }

    /// The label of a step, whose text is added if it is not there.
    pub fn intern(&mut self, step: &Step<'_>) -> Label {
        let hasher = self.hasher;
        let mut place = 0;
        if step.kind.has_text() {
            place = self.segments.intern(step.hash, step.text.as_bytes(), |text| hasher.text(text));
        }
        Label::new(step.kind, step.separator, place)
    }

    /// Whether another pattern might not fit.
    pub fn is_full(&self) -> bool {
        !fits(self.segments.text_bytes(), self.nodes as usize)
    }

    /// Frees what is not needed.
    pub fn shrink(&mut self) {
        let hasher = self.hasher;
        self.edges.shrink(&hasher);
        self.segments.shrink(|text| hasher.text(text));
    }

    /// The edge to each node, by the node's number. The root's entry has no meaning.
    pub fn incoming(&self) -> Vec<Incoming> {
        let mut incoming = vec![Incoming::default(); self.nodes as usize];
        for edge in self.edges.iter() {
            incoming[edge.child as usize] = Incoming { parent: edge.parent, label: edge.label };
        }
        incoming
    }

    fn label(&self, step: &Step<'_>) -> Option<Label> {
        let mut place = 0;
        if step.kind.has_text() {
            place = self.segments.find(step.hash, step.text.as_bytes())?;
        }
        Some(Label::new(step.kind, step.separator, place))
    }
}

/// The edge to a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Incoming {
    pub parent: u32,
    pub label: Label,
}

/// Whether a trie of this size has room for another pattern.
pub(super) fn fits(text_bytes: usize, nodes: usize) -> bool {
    text_bytes + MARGIN <= PLACES && nodes + MARGIN <= NODES as usize
}
