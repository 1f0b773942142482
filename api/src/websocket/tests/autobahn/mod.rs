//! The cases of the Autobahn test suite, by their numbers.
//!
//! The suite (autobahntestsuite 25.10.1, the newest of PyPI) is for Python 2.7 only: it prints by statement, which is
//! a syntax error to Python 3.11, and needs autobahn 0.10.9 and Twisted 19.10.0. `make autobahn` runs it where there
//! is a Python 2.7 ([`suite`]). Everywhere else these tables say the same: what the suite sends, and what must come
//! of it. Each row is fed whole, byte by byte and in random pieces, so that cases that differ only in how they are cut
//! (1.1.8, 2.6, 2.11, 3.4, 5.4, 5.5 and the like) are as their neighbours.
//!
//! Not here: 12 and 13 (compression), which is declined: `handshake` of the tests beside, and `topics::frames` of the
//! server's.

mod closes;
mod frames;
mod large;
mod suite;
mod utf8;

use super::*;

/// Room for the largest messages of the suite: 16 MiB, and 4 MiB in fragments of 64 bytes, of which the first and the
/// last may be empty. A server takes less by default, which `large` shows.
const LARGEST: Limits =
    Limits { frame_bytes: 16 << 20, message_bytes: 16 << 20, fragments: (1 << 16) + 2, ..LIMITS };

/// What must come of a case.
enum Expected {
    /// These events and answers. The connection goes on.
    GoesOn(Vec<Event>, Vec<Bytes>),
    /// These events, then a violation.
    Fails(Vec<Event>, Violation),
}

use Expected::{Fails, GoesOn};

/// Checks a group of cases: rows of number, bytes and outcome.
fn check(group: &str, numbers: std::ops::RangeInclusive<u32>, rows: Vec<(&str, Vec<u8>, Expected)>) {
    complete(group, numbers, rows.iter().map(|(case, ..)| *case));
    for (case, bytes, outcome) in rows {
        match outcome {
            GoesOn(events, written) => goes_on(case, &bytes, &events, &written),
            Fails(before, violation) => fails(case, &bytes, &before, violation),
        }
    }
}

/// Checks that no case of a group is missing.
fn complete<'c>(
    group: &str,
    numbers: std::ops::RangeInclusive<u32>,
    cases: impl IntoIterator<Item = &'c str>,
) {
    let expected: Vec<String> = numbers.map(|number| format!("{group}.{number}")).collect();
    assert_eq!(cases.into_iter().collect::<Vec<_>>(), expected, "all cases of {group}");
}

/// The frames one after the other.
fn all<const N: usize>(frames: [Vec<u8>; N]) -> Vec<u8> {
    frames.concat()
}
