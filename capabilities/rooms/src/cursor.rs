//! Cursors: the positions of a room's events as clients see them, printed as ULIDs.

use std::fmt;

use tidings_model::{InvalidUlid, Position, Timestamp, Ulid};

/// Position of an event in its room: 48 bits of milliseconds and 80 random bits, compared as one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor(Position);

/// Why a text is not a cursor. The message may be shown to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCursor {
    /// The text does not have 26 characters.
    #[error("a cursor must have 26 characters")]
    Length,
    /// The text has a character that is not a digit of Crockford's base 32.
    #[error(
        "a cursor must consist of the digits and letters of Crockford's base 32, which omits I, L, O and U"
    )]
    Character,
    /// The text is larger than 128 bits; 26 digits can hold 130. Truncating it would give a different cursor.
    #[error("a cursor must begin with a digit from 0 to 7")]
    TooLarge,
}

impl Cursor {
    /// The cursor before every event.
    pub const ZERO: Self = Self(Position::ZERO);

    /// Parses a printed cursor. Letters may be lower-case.
    pub fn parse(text: &str) -> Result<Self, InvalidCursor> {
        let ulid = Ulid::parse(text).map_err(|invalid| match invalid {
            InvalidUlid::Length => InvalidCursor::Length,
            InvalidUlid::Character => InvalidCursor::Character,
            InvalidUlid::TooLarge => InvalidCursor::TooLarge,
        })?;
        Ok(Self(Position::new(ulid.get())))
    }

    /// The cursor of a position in a room's log.
    pub const fn at(position: Position) -> Self {
        Self(position)
    }

    /// The lowest cursor of a moment, with all random bits zero.
    pub fn first_of(moment: Timestamp) -> Self {
        Self(Position::new(Ulid::at(moment, 0).get()))
    }

    /// The position in the room's log.
    pub const fn position(self) -> Position {
        self.0
    }

    /// Milliseconds since 1970 in the cursor.
    pub const fn millis(self) -> u64 {
        Ulid::new(self.0.get()).millis()
    }
}

impl From<Position> for Cursor {
    fn from(position: Position) -> Self {
        Self(position)
    }
}

impl From<Cursor> for Position {
    fn from(cursor: Cursor) -> Self {
        cursor.0
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ulid::new(self.0.get()).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_a_cursor_is_refused() {
        let cases = [
            ("", InvalidCursor::Length),
            ("01J9ZK0S5V6ZB9WQ0ZP3S9WJ7", InvalidCursor::Length),
            ("01J9ZK0S5V6ZB9WQ0ZP3S9WJ7HH", InvalidCursor::Length),
            ("8ZZZZZZZZZZZZZZZZZZZZZZZZZ", InvalidCursor::TooLarge),
            ("zZZZZZZZZZZZZZZZZZZZZZZZZZ", InvalidCursor::TooLarge),
            ("01J9ZK0S5V6ZB9WQ0ZP3S9WJ7O", InvalidCursor::Character),
            ("01J9ZK0S5V6ZB9WQ0ZP3S9WJ7i", InvalidCursor::Character),
            ("01J9ZK0S5V6ZB9WQ0ZP3S9WJ7L", InvalidCursor::Character),
            ("U1J9ZK0S5V6ZB9WQ0ZP3S9WJ7H", InvalidCursor::Character),
            ("' OR 1=1; DROP TABLE x; --", InvalidCursor::Character),
            ("01J9ZK0S5V6ZB9WQ0ZP3S9WJ\u{fc}", InvalidCursor::Character),
        ];
        for (text, why) in cases {
            assert_eq!(Cursor::parse(text), Err(why), "{text:?}");
        }
    }

    #[test]
    fn small_letters_are_taken_and_printed_large() {
        let cursor = Cursor::parse("01j9zk0s5v6zb9wq0zp3s9wj7h").expect("a cursor");
        assert_eq!(cursor.to_string(), "01J9ZK0S5V6ZB9WQ0ZP3S9WJ7H");
        assert_eq!(Cursor::parse("7ZZZZZZZZZZZZZZZZZZZZZZZZZ"), Ok(Cursor(Position::MAX)));
    }

    #[test]
    fn the_first_ten_characters_are_the_milliseconds() {
        let moment = Timestamp::from_millis(1_469_918_176_385);
        let cursor = Cursor::first_of(moment);
        assert_eq!(cursor.millis(), moment.as_millis());
        assert_eq!(cursor.to_string(), "01ARYZ6S410000000000000000");
        assert_eq!(Cursor::first_of(Timestamp::from_millis(u64::MAX)).millis(), (1u64 << 48) - 1);
    }

    proptest! {
        #[test]
        fn a_cursor_is_read_back_as_it_was_printed_and_sorts_as_its_text(a: u128, b: u128) {
            let [a, b] = [a, b].map(|value| Cursor::at(Position::new(value)));
            prop_assert_eq!(Cursor::parse(&a.to_string()), Ok(a));
            prop_assert_eq!(a.to_string().cmp(&b.to_string()), a.cmp(&b));
        }
    }
}
