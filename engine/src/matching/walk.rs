//! Following a name through an arena.

use tidings_model::pattern::segments;

use super::arena::Arena;
use super::hash::Hasher;
use super::path::{Kind, Label, Separator};
use super::trie::ROOT;

/// Memory that is kept between walks, in nodes.
const KEPT: usize = 64 * 1024;

/// Finds the nodes of arenas at which patterns that match a name end. Reused from one name to the next.
///
/// All places that the name may have led to are followed at once. A node's only edge comes from one parent, so it is
/// reached twice at the same segment only if it stands behind a `**`: as one that has consumed segments, and again
/// as one that has consumed none. The first includes the second, and lasts until the end of the name.
#[derive(Debug, Default)]
pub(super) struct Walk {
    parts: Vec<Part>,
    /// First separator of the name, if there is one.
    first: Option<Separator>,
    /// Whether all separators are the same.
    is_uniform: bool,
    /// Nodes where the name has led to, without those in `held`.
    at: Vec<u32>,
    next: Vec<u32>,
    held: Held,
    /// Nodes that were visited for the name, each as often as it was visited.
    #[cfg(test)]
    pub visits: usize,
}

/// One segment of a name.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: usize,
    end: usize,
    separator: Separator,
    hash: u64,
}

impl Walk {
    /// Prepares for a name.
    pub fn begin(&mut self, name: &str, hasher: &Hasher) {
        if self.at.capacity().max(self.next.capacity()).max(self.parts.capacity()) > KEPT {
            *self = Self::default();
        }
        self.parts.clear();
        #[cfg(test)]
        (self.visits = 0);
        let mut start = 0;
        self.parts.extend(segments(name).map(|segment| {
            let end = start + segment.text.len();
            let hash = hasher.text(segment.text.as_bytes());
            let part = Part { start, end, separator: Separator::of(segment.separator), hash };
            start = end + 1;
            part
        }));
        let separators = self.parts[1..].iter().map(|part| part.separator);
        self.first = self.parts.get(1).map(|part| part.separator);
        self.is_uniform = separators.into_iter().all(|separator| Some(separator) == self.first);
    }

    /// Follows the name that was prepared. Returns the nodes that it has led to at its end, each once.
    pub fn follow<K: Copy + Ord>(&mut self, name: &str, arena: &Arena<K>) -> impl Iterator<Item = u32> {
        let Self {
            parts,
            first,
            is_uniform,
            at,
            next,
            held,
            #[cfg(test)]
            visits,
        } = self;
        at.clear();
        held.clear();
        at.push(ROOT);
        at.extend(arena.wild(ROOT).iter().filter_map(|wild| {
            let follows = match wild.label.kind() {
                Kind::Uniform => *is_uniform && first.is_none_or(|first| first == wild.label.separator()),
                Kind::Mixed => !*is_uniform,
                _ => false,
            };
            follows.then_some(wild.child)
        }));
        skip_deep(arena, at, held);
        for part in &*parts {
            #[cfg(test)]
            (*visits += visited(at, held, &[]));
            next.clear();
            let mut step = Step { arena, part, text: &name[part.start..part.end], place: None };
            // What is added to `held` meanwhile has consumed this segment already.
            let before = held.len();
            for &node in &*at {
                step.take(node, next, held);
            }
            for index in 0..before {
                step.take(held.node(index), next, held);
            }
            std::mem::swap(at, next);
            skip_deep(arena, at, held);
            if at.is_empty() && held.len() == 0 {
                break;
            }
        }
        next.clear();
        next.extend(at.iter().chain(&held.nodes).flat_map(|&node| arena.aliases(node)));
        #[cfg(test)]
        (*visits += visited(at, held, next));
        at.iter().chain(&held.nodes).chain(&*next).copied()
    }
}

/// Number of nodes that are visited at the same segment, each of which must be there once.
#[cfg(test)]
fn visited(at: &[u32], held: &Held, more: &[u32]) -> usize {
    let mut nodes: Vec<_> = at.iter().chain(&held.nodes).chain(more).collect();
    nodes.sort();
    assert!(
        nodes.windows(2).all(|pair| pair[0] != pair[1]),
        "a node is visited twice at one segment: {nodes:?}"
    );
    nodes.len()
}

/// Adds the nodes behind each `**` that stands for nothing.
fn skip_deep<K: Copy + Ord>(arena: &Arena<K>, at: &mut Vec<u32>, held: &Held) {
    for &node in &held.nodes {
        at.extend(arena.deep(node).filter(|&child| !held.contains(child)));
    }
    let mut index = 0;
    while let Some(&node) = at.get(index) {
        at.extend(arena.deep(node).filter(|&child| !held.contains(child)));
        index += 1;
    }
}

/// Consuming one segment.
struct Step<'a, K> {
    arena: &'a Arena<K>,
    part: &'a Part,
    text: &'a str,
    /// Place of the text among the arena's, once it was looked up.
    place: Option<Option<u32>>,
}

impl<K: Copy + Ord> Step<'_, K> {
    /// Adds the nodes where the segment leads to from a node.
    fn take(&mut self, node: u32, next: &mut Vec<u32>, held: &mut Held) {
        if self.arena.node(node).has_literal() {
            self.take_literal(node, next);
        }
        let is_first = self.part.separator == Separator::None;
        for wild in self.arena.wild(node) {
            // The first segment of a name has no separator and matches behind any.
            if !is_first && wild.label.separator() != self.part.separator {
                continue;
            }
            match wild.label.kind() {
                Kind::Deep => held.insert(wild.child),
                Kind::One => next.push(wild.child),
                Kind::Glob => {
                    if accepts(self.arena.trie().segments.at(wild.label.place()), self.text.as_bytes()) {
                        next.push(wild.child);
                    }
                }
                Kind::Literal | Kind::Alias | Kind::Uniform | Kind::Mixed => {}
            }
        }
    }

    fn take_literal(&mut self, node: u32, next: &mut Vec<u32>) {
        let trie = self.arena.trie();
        let place =
            self.place.get_or_insert_with(|| trie.segments.find(self.part.hash, self.text.as_bytes()));
        let Some(place) = *place else { return };
        let mut look = |separator| {
            let label = Label::new(Kind::Literal, separator, place);
            next.extend(trie.edges.find(node, label, &trie.hasher));
        };
        match self.part.separator {
            // The root's edges have no separator. Those of other nodes that are reached without consuming anything may
            // have any, or none.
            Separator::None if node != ROOT => {
                [Separator::None, Separator::Colon, Separator::Dot, Separator::Slash]
                    .into_iter()
                    .for_each(look);
            }
            separator => look(separator),
        }
    }
}

/// Whether a segment is accepted by a text in which each `*` stands for any characters.
fn accepts(glob: &[u8], mut segment: &[u8]) -> bool {
    let mut pieces = glob.split(|&byte| byte == b'*');
    let first = pieces.next().unwrap_or_default();
    let last = pieces.next_back().unwrap_or_default();
    let Some(rest) = segment.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else {
        return false;
    };
    segment = rest;
    for piece in pieces {
        match find(segment, piece) {
            Some(at) => segment = &segment[at + piece.len()..],
            None => return false,
        }
    }
    true
}

fn find(text: &[u8], piece: &[u8]) -> Option<usize> {
    if piece.is_empty() { Some(0) } else { text.windows(piece.len()).position(|window| window == piece) }
}

/// Nodes behind a `**` that has consumed a segment.
#[derive(Debug, Default)]
struct Held {
    nodes: Vec<u32>,
    /// The same nodes in a hash table, if there are many. 0, the root, is an empty slot.
    table: Vec<u32>,
}

/// Nodes above which they are kept in a table, too.
const FEW: usize = 8;

impl Held {
    fn len(&self) -> usize {
        self.nodes.len()
    }

    fn node(&self, index: usize) -> u32 {
        self.nodes[index]
    }

    fn clear(&mut self) {
        self.nodes.clear();
        if self.table.len() > 2 * KEPT {
            *self = Self::default();
        }
        self.table.clear();
    }

    fn contains(&self, node: u32) -> bool {
        if self.table.is_empty() {
            return self.nodes.contains(&node);
        }
        self.table[self.slot(node)] == node
    }

    fn insert(&mut self, node: u32) {
        if self.contains(node) {
            return;
        }
        self.nodes.push(node);
        if self.nodes.len() > FEW && self.nodes.len() * 2 > self.table.len() {
            self.table.clear();
            self.table.resize((self.nodes.len() * 4).next_power_of_two(), 0);
            for index in 0..self.nodes.len() {
                let slot = self.slot(self.nodes[index]);
                self.table[slot] = self.nodes[index];
            }
        } else if !self.table.is_empty() {
            let slot = self.slot(node);
            self.table[slot] = node;
        }
    }

    /// The slot that has a node, or the one where it would be put.
    fn slot(&self, node: u32) -> usize {
        let mask = self.table.len() - 1;
        let mut at = (u64::from(node).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        while self.table[at] != node && self.table[at] != 0 {
            at = (at + 1) & mask;
        }
        at
    }
}
