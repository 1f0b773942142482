//! Which slots of an arena hold keys that were removed.

use std::sync::Arc;

const WORDS: usize = 64;
const CHUNK: usize = WORDS * 64;

/// A set of slots. A copy shares its chunks, so that copying and changing it is cheap.
#[derive(Clone, Debug, Default)]
pub(super) struct Dead {
    chunks: Vec<Option<Arc<[u64; WORDS]>>>,
    len: usize,
}

impl Dead {
    pub fn contains(&self, slot: u32) -> bool {
        let (chunk, word, bit) = place(slot);
        let chunk = self.chunks.get(chunk).and_then(Option::as_ref);
        chunk.is_some_and(|words| words[word] & bit != 0)
    }

    pub fn insert(&mut self, slot: u32) {
        let (chunk, word, bit) = place(slot);
        if chunk >= self.chunks.len() {
            self.chunks.resize(chunk + 1, None);
        }
        let words = Arc::make_mut(self.chunks[chunk].get_or_insert_with(|| Arc::new([0; WORDS])));
        self.len += usize::from(words[word] & bit == 0);
        words[word] |= bit;
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The slots that have been added since an earlier copy.
    pub fn since(&self, earlier: &Self) -> Vec<u32> {
        let mut added = Vec::new();
        for (at, words) in self.chunks.iter().enumerate() {
            let before = earlier.chunks.get(at).and_then(Option::as_ref);
            let Some(words) = words else { continue };
            if before.is_some_and(|before| Arc::ptr_eq(before, words)) {
                continue;
            }
            for (word, &bits) in words.iter().enumerate() {
                let mut new = bits & !before.map_or(0, |before| before[word]);
                while new != 0 {
                    added.push((at * CHUNK + word * 64) as u32 + new.trailing_zeros());
                    new &= new - 1;
                }
            }
        }
        added
    }

    pub fn bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Option<Arc<[u64; WORDS]>>>()
            + self.chunks.iter().flatten().count() * size_of::<[u64; WORDS]>()
    }
}

fn place(slot: u32) -> (usize, usize, u64) {
    let slot = slot as usize;
    (slot / CHUNK, slot % CHUNK / 64, 1 << (slot % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_since_a_copy_is_known() {
        let mut dead = Dead::default();
        dead.insert(5);
        dead.insert(9000);
        let earlier = dead.clone();
        for slot in [5, 6, 63, 64, 9001, 70_000] {
            dead.insert(slot);
        }
        assert_eq!(dead.since(&earlier), [6, 63, 64, 9001, 70_000]);
        assert_eq!((dead.len(), earlier.len()), (7, 2));
        assert!(dead.contains(6) && !earlier.contains(6) && dead.contains(5) && !dead.contains(7));
    }
}
