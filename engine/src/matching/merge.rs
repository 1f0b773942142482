//! Merging levels into one.

use super::arena::Arena;
use super::builder::Builder;
use super::hash::Hasher;
use super::level::Level;
use super::trie::fits;

/// How much smaller than a level those after it are, together, before they are merged into it.
const RATIO: usize = 4;
/// The part of a level that may be removed before the level is made anew.
const DEAD_PART: usize = 4;

/// The result of merging levels.
#[derive(Debug)]
pub(super) struct Merged<K> {
    pub arena: Arena<K>,
    /// For each level that was merged, the node that each of its nodes has become. 0 for nodes that were dropped.
    nodes: Vec<Vec<u32>>,
}

impl<K: Copy + Ord> Merged<K> {
    /// Merges levels, without the keys that were removed.
    pub fn of(levels: &[Level<K>], hasher: Hasher) -> Self {
        let largest = levels.iter().map(|level| level.arena.trie().nodes as usize).max();
        let mut builder = Builder::with_capacity(largest.unwrap_or(0), hasher);
        let nodes = levels.iter().map(|level| copy(level, &mut builder)).collect();
        Self { arena: builder.finish(), nodes }
    }

    /// The slot that has become of one of a level that was merged.
    pub fn slot(&self, index: usize, level: &Level<K>, slot: u32) -> Option<u32> {
        let node = self.nodes[index][level.arena.owner(slot) as usize];
        self.arena.slot(node, level.arena.keys()[slot as usize])
    }
}

/// Adds what is in a level to a builder. Returns what has become of each node.
fn copy<K: Copy + Ord>(level: &Level<K>, builder: &mut Builder<K>) -> Vec<u32> {
    let trie = level.arena.trie();
    let incoming = trie.incoming();
    let live_keys = |node: usize| {
        let slots = level.arena.slots(node as u32);
        slots.filter(|&slot| !level.dead.contains(slot as u32))
    };
    let mut needed: Vec<bool> = (0..incoming.len()).map(|node| live_keys(node).next().is_some()).collect();
    for node in (1..incoming.len()).rev() {
        if needed[node] {
            needed[incoming[node].parent as usize] = true;
        }
    }
    let mut becomes = vec![0; incoming.len()];
    for node in 1..incoming.len() {
        if !needed[node] {
            continue;
        }
        let edge = incoming[node];
        let mut label = edge.label;
        if label.kind().has_text() {
            label = builder.intern(label, trie.segments.at(label.place()));
        }
        becomes[node] = builder.child(becomes[edge.parent as usize], label);
        for slot in live_keys(node) {
            builder.add(becomes[node], level.arena.keys()[slot]);
        }
    }
    becomes
}

/// The first level to merge, with all that come after it; none if nothing is to be done.
pub(super) fn first_due<K: Copy + Ord>(levels: &[Level<K>]) -> Option<usize> {
    let mut first = None;
    let (mut slots, mut text, mut nodes) = (0, 0, 0);
    for (at, level) in levels.iter().enumerate().rev() {
        text += level.arena.trie().segments.text_bytes();
        nodes += level.arena.trie().nodes as usize;
        let last = at + 1 == levels.len();
        if !last && !fits(text, nodes) {
            break;
        }
        if slots * RATIO > level.slots() || level.dead.len() * DEAD_PART > level.slots() {
            first = Some(at);
        }
        slots += level.slots();
    }
    first
}
