//! Offsets: positions as the protocol prints them, 16 digits `_` 16 digits; zero is the start.
//!
//! The first half is the commit number with its era in the first three digits, the second half the index in
//! that commit. As text they sort in the order of positions.

use axum::http::HeaderValue;
use tidings_model::{CommitNumber, Position};

use crate::error::ApiError;

const HALF: usize = 16;
const HALF_END: u64 = 10_000_000_000_000_000;

/// Prints a position.
pub fn print(position: Position) -> String {
    let (commit, index) = position.parts();
    debug_assert!(commit.get() < HALF_END && index < HALF_END, "positions of the store fit in 16 digits");
    format!("{:0HALF$}_{:0HALF$}", commit.get(), index)
}

/// A position as the value of a header.
pub fn value(position: Position) -> HeaderValue {
    HeaderValue::from_str(&print(position)).expect("digits and an underscore are a header value")
}

/// Parses what [`print()`] has written.
pub fn parse(text: &str) -> Option<Position> {
    let (commit, index) = text.split_once('_')?;
    Some(Position::in_commit(CommitNumber::from_number(half(commit)?), half(index)?))
}

/// Parses the offset of a request.
pub fn required(name: &str, text: &str) -> Result<Position, ApiError> {
    let message = || format!("{name} must be an offset that this server gave: 16 digits, `_`, 16 digits");
    parse(text).ok_or_else(|| ApiError::bad_request("invalid_offset", message()))
}

fn half(text: &str) -> Option<u64> {
    let digits = text.len() == HALF && text.bytes().all(|b| b.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn offsets_round_trip_and_sort_as_positions_do(
            a in (0..HALF_END, 0..HALF_END), b in (0..HALF_END, 0..HALF_END),
        ) {
            let position = |(commit, index)| Position::in_commit(CommitNumber::from_number(commit), index);
            let (a, b) = (position(a), position(b));
            prop_assert_eq!(parse(&print(a)), Some(a));
            prop_assert_eq!(print(a).cmp(&print(b)), a.cmp(&b));
        }

        #[test]
        fn no_text_makes_parsing_panic(text in "\\PC{0,40}") {
            let _ = parse(&text);
        }
    }

    #[test]
    fn the_start_is_all_zeros_and_anything_else_is_refused() {
        assert_eq!(print(Position::ZERO), "0000000000000000_0000000000000000");
        for bad in ["", "-1", "now", "0_0", "0000000000000000", "0000000000000000_000000000000000x"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
        assert_eq!(parse("00000000000000000_0000000000000000"), None, "too long");
        assert_eq!(parse("+000000000000000_0000000000000000"), None, "a sign");
    }
}
