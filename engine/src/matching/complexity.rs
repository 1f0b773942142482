//! How much work a name can cause.

use super::path::Kind;
use super::trie::{ROOT, Trie};

/// Cost of finding a part of a glob in the middle of a segment, in nodes.
const MIDDLE: u32 = 32;

/// An upper bound of the nodes that a name of so many segments, with one kind of separator, can lead to, also several times. Among literal
/// edges of a node a name can take one, so only the costliest counts; it can take all others. Behind a `**` a name can go on at each of its
/// segments, behind the second one at each after that, and so on.
pub(super) fn complexity(trie: &Trie, segments: u32) -> u32 {
    let incoming = trie.incoming();
    let nodes = incoming.len();
    // How many `**` are on the way to a node, itself included.
    let mut deep = vec![0u8; nodes];
    for node in 1..nodes {
        let edge = incoming[node];
        deep[node] = deep[edge.parent as usize].saturating_add(u8::from(edge.label.kind() == Kind::Deep));
    }
    // Costs of the children of a node: of those it can take together, and of the costliest of the others.
    let mut all = vec![0u32; nodes];
    let mut one_of = vec![0u32; nodes];
    let mut behind_deep = vec![0u32; nodes];
    for node in (0..nodes).rev() {
        let edge = incoming[node];
        let kind = edge.label.kind();
        let (visits, starts) = match kind {
            Kind::Deep if node != ROOT as usize => (segments + 1, starts(deep[node], edge.parent, segments)),
            _ => (1, 1),
        };
        let children = all[node].saturating_add(one_of[node]).saturating_mul(starts);
        let cost = visits.saturating_add(children).saturating_add(behind_deep[node]);
        if node == ROOT as usize {
            return cost;
        }
        let parent = edge.parent as usize;
        match kind {
            Kind::Literal => one_of[parent] = one_of[parent].max(cost),
            Kind::Deep => behind_deep[parent] = behind_deep[parent].saturating_add(cost),
            Kind::One | Kind::Alias | Kind::Uniform => all[parent] = all[parent].saturating_add(cost),
            Kind::Mixed => {}
            Kind::Glob => {
                let stars = trie.segments.at(edge.label.place()).iter().filter(|&&byte| byte == b'*').count();
                let search = MIDDLE.saturating_mul(stars.saturating_sub(1) as u32);
                all[parent] = all[parent].saturating_add(cost).saturating_add(search);
            }
        }
    }
    0
}

/// Segments at which a name can go on behind the n-th `**`, so that the product over several is at least the number
/// of ways to choose as many of its segments.
fn starts(nth: u8, parent: u32, segments: u32) -> u32 {
    let nth = u32::from(nth.max(1));
    let starts = (segments + 1).saturating_sub(nth).div_ceil(nth).max(1);
    // The first segment of a name matches behind each of three separators.
    if parent == ROOT { starts + 2 } else { starts }
}
