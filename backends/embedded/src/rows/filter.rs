//! A Bloom filter over the keys of a file: tells without reading the file that it does not have a key.

use bytes::Bytes;

/// Bits for each key. With [`PROBES`] probes about one lookup of a hundred reads the file in vain.
const BITS_PER_KEY: u64 = 10;
const PROBES: u64 = 7;
/// The bits of a new filter are a multiple of this many, so that it can be halved a few times.
const STEP: u64 = 1024;

/// A filter that is read.
#[derive(Clone, Debug)]
pub struct Filter(Bytes);

/// A filter under construction.
#[derive(Debug)]
pub struct FilterBuilder {
    bits: Vec<u8>,
    keys: u64,
}

/// The hash of a key that all filters use. It is part of the files' format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Hashes a key.
    pub fn of(key: &[u8]) -> Self {
        let mut state = 0x243f_6a88_85a3_08d3;
        for part in key.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            state = fold(state ^ u64::from_le_bytes(word), 0x9e37_79b9_7f4a_7c15);
        }
        Self(fold(state ^ key.len() as u64, 0xd1b5_4a32_d192_ed03))
    }

    /// The bits of a key in a filter of `bits` bits.
    fn bits(self, bits: u64) -> impl Iterator<Item = u64> {
        let step = self.0.rotate_left(32) | 1;
        (0..PROBES).map(move |probe| self.0.wrapping_add(probe.wrapping_mul(step)) % bits)
    }
}

/// Multiplies to 128 bits and combines both halves.
fn fold(one: u64, other: u64) -> u64 {
    let wide = u128::from(one) * u128::from(other);
    wide as u64 ^ (wide >> 64) as u64
}

impl Filter {
    /// A filter as it was built.
    pub fn new(bits: Bytes) -> Self {
        Self(bits)
    }

    /// Whether the file may have a key. `false` is certain.
    pub fn may_have(&self, key: KeyHash) -> bool {
        let bits = self.0.len() as u64 * 8;
        bits > 0 && key.bits(bits).all(|bit| self.0[(bit / 8) as usize] & (1 << (bit % 8)) != 0)
    }
}

impl FilterBuilder {
    /// A filter for at most so many keys.
    pub fn for_keys(keys: u64) -> Self {
        let bits = (keys * BITS_PER_KEY).max(1).next_multiple_of(STEP);
        Self { bits: vec![0; (bits / 8) as usize], keys: 0 }
    }

    /// Adds a key.
    pub fn add(&mut self, key: KeyHash) {
        let bits = self.bits.len() as u64 * 8;
        for bit in key.bits(bits) {
            self.bits[(bit / 8) as usize] |= 1 << (bit % 8);
        }
        self.keys += 1;
    }

    /// The filter, smaller if there were much fewer keys than expected; empty without keys.
    pub fn finish(mut self) -> Vec<u8> {
        if self.keys == 0 {
            return Vec::new();
        }
        // A bit is a number modulo the size, so the halves of a filter laid over each other are a filter of half the size.
        while self.bits.len().is_multiple_of(16) && self.bits.len() as u64 * 4 >= self.keys * BITS_PER_KEY {
            let upper = self.bits.split_off(self.bits.len() / 2);
            self.bits.iter_mut().zip(upper).for_each(|(bits, more)| *bits |= more);
        }
        self.bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(expected: u64, keys: std::ops::Range<u64>) -> Filter {
        let mut builder = FilterBuilder::for_keys(expected);
        keys.for_each(|n| builder.add(KeyHash::of(&n.to_be_bytes())));
        Filter::new(builder.finish().into())
    }

    #[test]
    fn a_filter_has_its_keys_and_few_others() {
        for (expected, keys) in [(1, 1), (100, 100), (5_000, 5_000), (1 << 20, 1 << 16), (70_000, 3_000)] {
            let filter = filter(expected, 0..keys);
            assert!((0..keys).all(|n| filter.may_have(KeyHash::of(&n.to_be_bytes()))));
            let others = (1_000_000..1_100_000u64).map(|n| KeyHash::of(&n.to_be_bytes()));
            let wrong = others.filter(|&key| filter.may_have(key)).count();
            assert!(wrong < 1_500, "{wrong} of 100,000 with {keys} keys of {expected} expected");
        }
    }

    #[test]
    fn a_filter_that_was_made_for_more_keys_becomes_smaller() {
        assert_eq!(filter(1_000_000, 0..1_000_000).0.len(), 1_250_048);
        assert!(filter(1_000_000, 0..200_000).0.len() < 400_000);
        assert_eq!(filter(1_000, 0..0).0.len(), 0);
        assert!(!filter(1_000, 0..0).may_have(KeyHash::of(b"")));
    }

    #[test]
    fn hashes_are_those_of_the_files_format() {
        let hash = |key: &[u8]| KeyHash::of(key).0;
        assert_eq!([hash(b""), hash(b"a"), hash(b"a\0"), hash(b"12345678")], HASHES);
    }

    /// Computed when the format was made. A change of these needs another version of the files.
    const HASHES: [u64; 4] = [
        1_034_098_277_363_031_553,
        13_402_086_673_373_572_591,
        2_782_634_935_056_618_723,
        10_392_127_972_769_218_835,
    ];
}
