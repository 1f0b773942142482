//! The hash function of the tables in an arena.

use std::hash::{BuildHasher, RandomState};

use super::path::Label;

/// A keyed hash of short texts and edges. The key is random, so that nobody can choose patterns that collide.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hasher {
    keys: [u64; 2],
}

/// An odd number whose bits look random (the golden ratio).
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher {
    /// A hash function with a new key. No result of matching depends on the key.
    pub fn random() -> Self {
        let random = RandomState::new();
        Self { keys: [random.hash_one(0), random.hash_one(1)] }
    }

    /// Hash of a segment's text.
    pub fn text(&self, text: &[u8]) -> u64 {
        let [first, second] = self.keys;
        let mut hash = first ^ text.len() as u64;
        let mut rest = text;
        while rest.len() > 16 {
            hash = folded(word(&rest[..8]) ^ hash, word(&rest[8..16]) ^ second);
            rest = &rest[16..];
        }
        let (low, high) = match rest.len() {
            // The two reads may overlap.
            8..=16 => (word(&rest[..8]), word(&rest[rest.len() - 8..])),
            4..=7 => (half(&rest[..4]), half(&rest[rest.len() - 4..])),
            1..=3 => (
                u64::from(rest[0]) << 16
                    | u64::from(rest[rest.len() / 2]) << 8
                    | u64::from(rest[rest.len() - 1]),
                0,
            ),
            _ => (0, 0),
        };
        folded(folded(low ^ hash, high ^ second), MIX ^ first)
    }

    /// Hash of an edge of a trie.
    pub fn edge(&self, parent: u32, label: Label) -> u64 {
        let [first, second] = self.keys;
        let edge = u64::from(parent) << 32 | u64::from(label.bits());
        folded(folded(edge ^ first, MIX ^ second), second | 1)
    }
}

/// The product of two numbers, its upper half folded into the lower.
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

fn half(bytes: &[u8]) -> u64 {
    u64::from(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
}

/// The slot where the search for a hash begins in a table of any size. Keeps the order of hashes, so that a table is
/// moved into a larger one from front to back.
pub(super) fn home(hash: u64, slots: usize) -> usize {
    ((u128::from(hash) * slots as u128) >> 64) as usize
}
