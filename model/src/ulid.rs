//! ULIDs: 128-bit ids that sort by time, printed as 26 digits of Crockford's base 32.

use std::fmt;

use crate::Timestamp;

/// Number of characters of a printed ULID.
const LENGTH: usize = 26;
/// The digits of Crockford's base 32, which omits I, L, O and U.
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Number of random bits, below the milliseconds.
const RANDOM_BITS: u32 = 80;
/// The largest timestamp that a ULID can hold, in milliseconds.
const MILLIS_MAX: u64 = (1 << 48) - 1;

/// A 128-bit id: 48 bits of milliseconds and 80 other bits, compared as one number.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ulid(u128);

/// Why a text is not a ULID. The message may be shown to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUlid {
    /// The text does not have 26 characters.
    #[error("expected 26 characters")]
    Length,
    /// The text has a character that is not a digit of Crockford's base 32.
    #[error("expected the digits and letters of Crockford's base 32, which omits I, L, O and U")]
    Character,
    /// The text is larger than 128 bits; 26 digits can hold 130. Truncating it would give a different id.
    #[error("expected a first digit from 0 to 7")]
    TooLarge,
}

impl Ulid {
    /// The ULID with this number.
    pub const fn new(number: u128) -> Self {
        Self(number)
    }

    /// The ULID of a moment whose other 80 bits are the low bits of `random`.
    pub fn at(moment: Timestamp, random: u128) -> Self {
        let mask = (1 << RANDOM_BITS) - 1;
        Self(u128::from(moment.as_millis().min(MILLIS_MAX)) << RANDOM_BITS | random & mask)
    }

    /// Parses a printed ULID. Letters may be lower-case.
    pub fn parse(text: &str) -> Result<Self, InvalidUlid> {
        if text.len() != LENGTH {
            return Err(InvalidUlid::Length);
        }
        let mut value = 0u128;
        for (at, byte) in text.bytes().enumerate() {
            let byte = byte.to_ascii_uppercase();
            let digit = DIGITS.iter().position(|&digit| digit == byte).ok_or(InvalidUlid::Character)?;
            if at == 0 && digit > 7 {
                return Err(InvalidUlid::TooLarge);
            }
            value = value << 5 | digit as u128;
        }
        Ok(Self(value))
    }

    /// The id as a number.
    pub const fn get(self) -> u128 {
        self.0
    }

    /// Milliseconds since 1970 in the id.
    pub const fn millis(self) -> u64 {
        (self.0 >> RANDOM_BITS) as u64
    }
}

impl fmt::Display for Ulid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digit = |at: usize| DIGITS[(self.0 >> (5 * (LENGTH - 1 - at))) as usize & 31];
        let text: [u8; LENGTH] = std::array::from_fn(digit);
        f.write_str(std::str::from_utf8(&text).expect("digits are text"))
    }
}

impl fmt::Debug for Ulid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ulid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_moment_gives_the_first_48_bits() {
        let id = Ulid::at(Timestamp::from_millis(1_700_000_000_000), u128::MAX);
        assert_eq!(id.millis(), 1_700_000_000_000);
        assert!(id.to_string().ends_with("ZZZZZZZZZZZZZZZZ"));
        assert_eq!(Ulid::at(Timestamp::from_millis(u64::MAX), 0).to_string(), "7ZZZZZZZZZ0000000000000000");
    }

    proptest! {
        #[test]
        fn a_printed_id_is_parsed_as_the_same_and_sorts_alike(one in any::<u128>(), other in any::<u128>()) {
            let (a, b) = (Ulid::new(one), Ulid::new(other));
            prop_assert_eq!(Ulid::parse(&a.to_string()), Ok(a));
            prop_assert_eq!(Ulid::parse(&a.to_string().to_lowercase()), Ok(a));
            prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
        }
    }
}
