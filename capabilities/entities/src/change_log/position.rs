//! Cursors of change logs as text.

use std::fmt;

use tidings_model::CommitNumber;

use crate::cursor::{Cursor, InvalidCursor};

/// A place in a change log: after one of its changes, or before the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Before everything: given while the project has no change log.
    Start,
    /// After a change, or after none if the position is zero.
    After {
        /// See [`Row::epoch`](crate::table::Row::epoch).
        epoch: u64,
        /// Position of the change, which is its version.
        position: u64,
        /// The commit that made it, by which a store that went back in time is recognised. Zero if it is not known, because
        /// the change was trimmed.
        commit: CommitNumber,
    },
}

impl Place {
    pub(super) fn parse(cursor: &Cursor) -> Result<Self, InvalidCursor> {
        if cursor.as_str() == "0" {
            return Ok(Self::Start);
        }
        let mut parts = cursor.as_str().split('-');
        let mut part = || parts.next().ok_or(InvalidCursor);
        let (epoch, position, commit) = (part()?, part()?, part()?);
        let place = Self::After {
            epoch: u64::from_str_radix(epoch, 16).map_err(|_| InvalidCursor)?,
            position: position.parse().map_err(|_| InvalidCursor)?,
            commit: CommitNumber::from_number(commit.parse().map_err(|_| InvalidCursor)?),
        };
        // One place has one text.
        if place.to_string() == cursor.as_str() { Ok(place) } else { Err(InvalidCursor) }
    }

    pub(super) fn cursor(self) -> Cursor {
        Cursor::new(self.to_string())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("0"),
            Self::After { epoch, position, commit } => write!(f, "{epoch:016x}-{position}-{}", commit.get()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_place_is_read_as_it_was_written(epoch in any::<u64>(), position in any::<u64>(), commit in any::<u64>()) {
            let place = Place::After { epoch, position, commit: CommitNumber::from_number(commit) };
            prop_assert_eq!(Place::parse(&place.cursor()), Ok(place));
        }
    }

    #[test]
    fn what_is_no_place_is_refused() {
        assert_eq!(Place::parse(&Cursor::new("0")), Ok(Place::Start));
        let good = "00000000000000ff-3-10";
        assert!(Place::parse(&Cursor::new(good)).is_ok());
        for bad in [
            "1",
            "-",
            "00",
            "ff-3-10",
            "00000000000000FF-3-10",
            "00000000000000ff-03-10",
            "00000000000000ff-3",
        ] {
            assert_eq!(Place::parse(&Cursor::new(bad)), Err(InvalidCursor), "{bad}");
        }
        assert_eq!(Place::parse(&Cursor::new(format!("{good}-1"))), Err(InvalidCursor));
    }
}
