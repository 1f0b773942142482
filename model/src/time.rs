//! Points in time, in milliseconds since the Unix epoch.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time, in milliseconds since 1970-01-01T00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// A timestamp from milliseconds since 1970.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to this; zero if this is not later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    /// Saturates, because a client may ask for a time to live of a billion years.
    fn add(self, later: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(u64::try_from(later.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Timestamp;

    fn sub(self, earlier: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(u64::try_from(earlier.as_millis()).unwrap_or(u64::MAX)))
    }
}
