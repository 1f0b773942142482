//! Pattern matching: finds which of many patterns match a name.
//!
//! [`PatternIndex`] is a trie of pattern segments. A lookup walks it once per name; patterns that do not
//! match cost nothing. [`tidings_model::pattern`] defines what a pattern means. A property test checks that
//! the index finds exactly the patterns that a linear scan finds.

use std::collections::{BTreeSet, HashMap};

use tidings_model::Pattern;
use tidings_model::pattern::{Matcher, NameSegment, SEPARATORS, Segment, segments};

/// An index from patterns to keys that finds the keys whose patterns match a name.
#[derive(Debug)]
pub struct PatternIndex<K> {
    root: Node<K>,
    len: usize,
}

#[derive(Debug)]
struct Node<K> {
    keys: BTreeSet<K>,
    /// Children for literal segments. The key is the separator followed by the text, as both stand in a name.
    literals: HashMap<Box<str>, Node<K>>,
    /// Children for wildcard segments. There are few at any node, so they are tried one by one.
    wildcards: Vec<(Segment, Node<K>)>,
}

impl<K> Default for Node<K> {
    fn default() -> Self {
        Self { keys: BTreeSet::new(), literals: HashMap::new(), wildcards: Vec::new() }
    }
}

impl<K> Default for PatternIndex<K> {
    fn default() -> Self {
        Self { root: Node::default(), len: 0 }
    }
}

impl<K: Ord + Clone> PatternIndex<K> {
    /// Creates an empty index.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key under a pattern. Returns false when the pair was present already.
    pub fn insert(&mut self, pattern: &Pattern, key: K) -> bool {
        let mut node = &mut self.root;
        for segment in pattern.segments() {
            node = node.child(segment);
        }
        let added = node.keys.insert(key);
        self.len += usize::from(added);
        added
    }

    /// Removes a key from a pattern. Returns false when the pair was not present.
    pub fn remove(&mut self, pattern: &Pattern, key: &K) -> bool {
        let removed = self.root.remove(pattern.segments(), key);
        self.len -= usize::from(removed);
        removed
    }

    /// Number of pairs of pattern and key.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the index has no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The keys of all patterns that match the name, each once, in ascending order.
    pub fn matches(&self, name: &str) -> BTreeSet<K> {
        let mut at = Places::default();
        at.reach(&self.root, Hold::Pass);
        let mut start = 0;
        for part in segments(name) {
            let end = start + part.text.len() + part.separator.map_or(0, char::len_utf8);
            at = at.step(part, &name[start..end]);
            start = end;
        }
        at.places.iter().flat_map(|(node, _)| node.keys.iter().cloned()).collect()
    }
}

impl<K: Ord> Node<K> {
    fn child(&mut self, segment: &Segment) -> &mut Node<K> {
        if let Matcher::Literal(text) = &segment.matcher {
            return self.literals.entry(literal_key(segment.separator, text)).or_default();
        }
        let at = match self.wildcards.iter().position(|(known, _)| known == segment) {
            Some(at) => at,
            None => {
                self.wildcards.push((segment.clone(), Node::default()));
                self.wildcards.len() - 1
            }
        };
        &mut self.wildcards[at].1
    }

    /// Removes the key at the end of the path, and the nodes that become empty.
    fn remove(&mut self, path: &[Segment], key: &K) -> bool {
        let Some((segment, rest)) = path.split_first() else { return self.keys.remove(key) };
        if let Matcher::Literal(text) = &segment.matcher {
            let edge = literal_key(segment.separator, text);
            let Some(child) = self.literals.get_mut(&edge) else { return false };
            let removed = child.remove(rest, key);
            if child.is_empty() {
                self.literals.remove(&edge);
            }
            return removed;
        }
        let Some(at) = self.wildcards.iter().position(|(known, _)| known == segment) else { return false };
        let child = &mut self.wildcards[at].1;
        let removed = child.remove(rest, key);
        if child.is_empty() {
            self.wildcards.swap_remove(at);
        }
        removed
    }

    fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.literals.is_empty() && self.wildcards.is_empty()
    }
}

fn literal_key(separator: Option<char>, text: &str) -> Box<str> {
    separator.into_iter().chain(text.chars()).collect::<String>().into()
}

/// Whether a node may consume further segments without moving on, as a `**` that has consumed one may.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    Pass,
    Stay,
}

/// All nodes of the trie that the part of the name read so far leads to.
struct Places<'a, K> {
    places: Vec<(&'a Node<K>, Hold)>,
}

impl<K> Default for Places<'_, K> {
    fn default() -> Self {
        Self { places: Vec::new() }
    }
}

impl<'a, K> Places<'a, K> {
    /// Adds a node, and the nodes behind a `**` that matches nothing.
    fn reach(&mut self, node: &'a Node<K>, hold: Hold) {
        if self.places.iter().any(|&(known, held)| std::ptr::eq(known, node) && held == hold) {
            return;
        }
        self.places.push((node, hold));
        for (segment, child) in &node.wildcards {
            if segment.matcher == Matcher::Deep {
                self.reach(child, Hold::Pass);
            }
        }
    }

    /// Consumes one segment of the name. `written` is the segment with its separator.
    fn step(&self, part: NameSegment<'_>, written: &str) -> Self {
        let mut next = Self::default();
        for &(node, hold) in &self.places {
            if hold == Hold::Stay {
                next.reach(node, Hold::Stay);
            }
            if let Some(child) = node.literals.get(written) {
                next.reach(child, Hold::Pass);
            }
            if part.separator.is_none() {
                // The first segment of a name has no separator, so it matches a literal behind any of them.
                for separator in SEPARATORS {
                    if let Some(child) = node.literals.get(&literal_key(Some(separator), part.text)) {
                        next.reach(child, Hold::Pass);
                    }
                }
            }
            for (segment, child) in &node.wildcards {
                if part.follows(segment.separator) && segment.matcher.accepts(part.text) {
                    let hold = if segment.matcher == Matcher::Deep { Hold::Stay } else { Hold::Pass };
                    next.reach(child, hold);
                }
            }
        }
        next
    }
}
