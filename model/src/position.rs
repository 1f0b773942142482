//! Logs, commits and positions: where a record is stored.

/// One life of one log. The store assigns each number once, so a log that is deleted and created again under
/// the same name has another `LogId`: an old handle cannot reach new data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(u64);

impl LogId {
    /// Wraps a number that a store assigned.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number that a store assigned.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl std::fmt::Display for LogId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "log {}", self.0)
    }
}

/// Generation of a store. It is raised when a store is restored or truncated, so that no commit number is
/// used twice and readers from before receive everything new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Era(u16);

impl Era {
    /// The last era: a printed offset has three digits for it.
    pub const MAX: Era = Era(999);

    /// An era; `None` above [`Era::MAX`].
    pub const fn new(number: u16) -> Option<Self> {
        if number <= Self::MAX.0 { Some(Self(number)) } else { None }
    }

    /// The era as a number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// Number of a commit: an era and a count within it. The commits of one store are totally ordered.
///
/// Represented as `era * 10^13 + count`, which is the first half of a printed offset and keeps the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitNumber(u64);

impl CommitNumber {
    /// Before every commit.
    pub const ZERO: CommitNumber = CommitNumber(0);
    /// Number of commits in an era: thirteen decimal digits.
    pub const PER_ERA: u64 = 10_000_000_000_000;

    /// The `count`-th commit of an era; the first is 1.
    ///
    /// # Panics
    /// If the era is full, which takes four months at a million commits a second. Raise the era before that.
    pub fn new(era: Era, count: u64) -> Self {
        assert!(count < Self::PER_ERA, "an era has room for 10^13 commits");
        Self(u64::from(era.0) * Self::PER_ERA + count)
    }

    /// The next number in the same era.
    #[must_use]
    pub fn next(self) -> Self {
        Self::new(self.era(), self.0 % Self::PER_ERA + 1)
    }

    /// Era of the commit.
    pub fn era(self) -> Era {
        Era((self.0 / Self::PER_ERA) as u16)
    }

    /// Era and count as one ordered number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Inverse of [`CommitNumber::get`].
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// Position of a record in one log. Opaque, increasing, not dense, never reused.
///
/// A position assigned by the store is a commit number and an index in that commit; one assigned by the
/// caller (a room's ULID) is any 128-bit value. Zero is before every record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(u128);

impl Position {
    /// Before every record; also the tail of an empty log.
    pub const ZERO: Position = Position(0);
    /// At or after every record.
    pub const MAX: Position = Position(u128::MAX);

    /// A position that the caller chose.
    pub const fn new(value: u128) -> Self {
        Self(value)
    }

    /// Position of the `index`-th record that a commit appended to a log.
    pub const fn in_commit(commit: CommitNumber, index: u64) -> Self {
        Self(((commit.0 as u128) << 64) | index as u128)
    }

    /// The position as a number.
    pub const fn get(self) -> u128 {
        self.0
    }

    /// Commit and index, for a position that the store assigned.
    pub const fn parts(self) -> (CommitNumber, u64) {
        (CommitNumber((self.0 >> 64) as u64), self.0 as u64)
    }

    /// The position `by` further on; `None` on overflow.
    pub const fn further(self, by: u64) -> Option<Self> {
        match self.0.checked_add(by as u128) {
            Some(value) => Some(Self(value)),
            None => None,
        }
    }

    /// Whether this is the start of a log.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn positions_of_a_store_sort_by_commit_and_then_by_index(
            a in (0u16..=999, 1u64..CommitNumber::PER_ERA, any::<u64>()),
            b in (0u16..=999, 1u64..CommitNumber::PER_ERA, any::<u64>()),
        ) {
            let position = |(era, count, index): (u16, u64, u64)| {
                Position::in_commit(CommitNumber::new(Era::new(era).expect("in range"), count), index)
            };
            prop_assert_eq!(position(a).cmp(&position(b)), a.cmp(&b));
        }

        #[test]
        fn a_position_gives_back_its_commit_and_index(era in 0u16..=999, count in 1u64..CommitNumber::PER_ERA - 1, index in any::<u64>()) {
            let commit = CommitNumber::new(Era::new(era).expect("in range"), count);
            prop_assert_eq!(Position::in_commit(commit, index).parts(), (commit, index));
            prop_assert_eq!(commit.era().get(), era);
            prop_assert!(commit.next() > commit);
            prop_assert_eq!(commit.next().era(), commit.era());
        }
    }

    #[test]
    fn an_era_above_three_digits_does_not_exist() {
        assert_eq!(Era::new(1000), None);
    }
}
