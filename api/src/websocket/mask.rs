//! Masks: a client XORs its payload with a key of four bytes.

/// A masking key, rotated so that its first byte applies to the next byte of the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask([u8; 4]);

impl Mask {
    /// The key as it stands in the header of a frame.
    pub fn new(key: [u8; 4]) -> Self {
        Self(key)
    }

    /// The key for the payload after `count` bytes.
    pub fn after(self, count: usize) -> Self {
        let mut key = self.0;
        key.rotate_left(count % 4);
        Self(key)
    }

    /// Masks or unmasks bytes; both are the same XOR.
    pub fn apply(self, bytes: &mut [u8]) {
        let [a, b, c, d] = self.0;
        let word = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
        // Compilers turn this loop over eight bytes into vector instructions.
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for eight in words {
            *eight = (u64::from_ne_bytes(*eight) ^ word).to_ne_bytes();
        }
        for (byte, key) in rest.iter_mut().zip(self.0.iter().cycle()) {
            *byte ^= key;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_one_byte_of_four_in_turn_wherever_the_payload_is_cut() {
        let key = [0x37, 0xfa, 0x21, 0x3d];
        for len in 0..100 {
            let payload: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let slowly: Vec<u8> = payload.iter().enumerate().map(|(i, byte)| byte ^ key[i % 4]).collect();
            for cut in 0..=payload.len() {
                let mut masked = payload.clone();
                let (first, second) = masked.split_at_mut(cut);
                Mask::new(key).apply(first);
                Mask::new(key).after(cut).apply(second);
                assert_eq!(masked, slowly, "{len} bytes cut at {cut}");
            }
        }
    }
}
