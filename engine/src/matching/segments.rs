//! The texts of a trie's segments, each once.

use super::edges::slots_for;
use super::hash::home;

/// Texts, each with a place by which labels refer to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Segments {
    /// Each text after its length in two bytes.
    text: Vec<u8>,
    slots: Vec<Slot>,
    len: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Lower half of the hash; the upper half says where the slot is.
    tag: u32,
    /// Place of the text plus one; 0 in an empty slot.
    place: u32,
}

const LENGTH_BYTES: usize = 2;

impl Segments {
    /// The place of a text, if it is there.
    pub fn find(&self, hash: u64, text: &[u8]) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let mut at = home(hash, self.slots.len());
        loop {
            let slot = self.slots[at];
            if slot.place == 0 {
                return None;
            }
            if slot.tag == hash as u32 && self.at(slot.place - 1) == text {
                return Some(slot.place - 1);
            }
            at += 1;
            if at == self.slots.len() {
                at = 0;
            }
        }
    }

    /// The place of a text, which is added if it is not there.
    pub fn intern(&mut self, hash: u64, text: &[u8], rehash: impl Fn(&[u8]) -> u64) -> u32 {
        if let Some(place) = self.find(hash, text) {
            return place;
        }
        if slots_for(self.len + 1) > self.slots.len() {
            self.resize(slots_for((self.len * 2).max(16)), rehash);
        }
        let place = self.text.len() as u32;
        self.text.extend_from_slice(&(text.len() as u16).to_le_bytes());
        self.text.extend_from_slice(text);
        self.len += 1;
        self.put(hash, place);
        place
    }

    /// The text at a place.
    pub fn at(&self, place: u32) -> &[u8] {
        let start = place as usize + LENGTH_BYTES;
        let length = [self.text[start - 2], self.text[start - 1]];
        &self.text[start..start + usize::from(u16::from_le_bytes(length))]
    }

    /// Bytes of all texts.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// Frees what is not needed.
    pub fn shrink(&mut self, rehash: impl Fn(&[u8]) -> u64) {
        let slots = slots_for(self.len);
        if slots < self.slots.len() {
            self.resize(slots, rehash);
        }
        self.text.shrink_to_fit();
    }

    pub fn bytes(&self) -> usize {
        self.text.capacity() + self.slots.capacity() * size_of::<Slot>()
    }

    fn put(&mut self, hash: u64, place: u32) {
        let mut at = home(hash, self.slots.len());
        while self.slots[at].place != 0 {
            at += 1;
            if at == self.slots.len() {
                at = 0;
            }
        }
        self.slots[at] = Slot { tag: hash as u32, place: place + 1 };
    }

    fn resize(&mut self, slots: usize, rehash: impl Fn(&[u8]) -> u64) {
        self.slots = vec![Slot::default(); slots];
        let mut place = 0;
        while (place as usize) < self.text.len() {
            let text = self.at(place);
            let (hash, length) = (rehash(text), text.len());
            self.put(hash, place);
            place += (LENGTH_BYTES + length) as u32;
        }
    }
}
