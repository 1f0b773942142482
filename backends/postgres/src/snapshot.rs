//! [`Snapshot`]: which transactions of a database were visible at a moment.

use std::fmt;

/// A snapshot as `pg_current_snapshot()` prints it: `xmin:xmax:xip`. Everything before `xmax` was visible, except for the
/// transactions in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    xmax: u64,
    /// Transactions below `xmax` that were in progress, in rising order.
    in_progress: Vec<u64>,
}

impl Snapshot {
    /// Makes a snapshot of its end and the transactions in progress below it, in any order.
    pub fn new(xmax: u64, in_progress: impl IntoIterator<Item = u64>) -> Self {
        let mut in_progress: Vec<u64> = in_progress.into_iter().filter(|&xid| xid < xmax).collect();
        in_progress.sort_unstable();
        in_progress.dedup();
        Self { xmax, in_progress }
    }

    /// Parses what PostgreSQL prints.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (_, xmax, xip) = (parts.next()?.parse::<u64>().ok()?, parts.next()?.parse().ok()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let xip: Option<Vec<u64>> =
            xip.split(',').filter(|xid| !xid.is_empty()).map(|xid| xid.parse().ok()).collect();
        Some(Self::new(xmax, xip?))
    }

    /// First transaction that is not visible, and neither is any after it.
    pub fn xmax(&self) -> u64 {
        self.xmax
    }

    /// Transactions below [`xmax`](Self::xmax) that were in progress, in rising order.
    pub fn in_progress(&self) -> &[u64] {
        &self.in_progress
    }

    /// Whether a transaction was visible.
    pub fn shows(&self, xid: u64) -> bool {
        xid < self.xmax && self.in_progress.binary_search(&xid).is_err()
    }

    /// Whether everything that is visible in another snapshot is visible in this one.
    pub fn covers(&self, other: &Self) -> bool {
        let unseen = |xid: &u64| *xid < other.xmax && other.shows(*xid);
        self.xmax >= other.xmax && !self.in_progress.iter().any(unseen)
    }

    /// A snapshot in which less was visible: nothing of the last `by` transactions.
    pub fn back(&self, by: u64) -> Self {
        Self::new(self.xmax.saturating_sub(by).max(1), self.in_progress.iter().copied())
    }

    /// The part of this snapshot up to a transaction, which is given.
    pub fn up_to(&self, last: u64) -> Self {
        Self::new(self.xmax.min(last.saturating_add(1)), self.in_progress.iter().copied())
    }

    /// A snapshot with at most so many transactions in progress, in which less was visible if there were more.
    pub fn at_most(self, most: usize) -> Self {
        match self.in_progress.get(most) {
            Some(&end) => Self::new(end, self.in_progress),
            None => self,
        }
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let xmin = self.in_progress.first().unwrap_or(&self.xmax);
        write!(f, "{xmin}:{}:", self.xmax)?;
        for (at, xid) in self.in_progress.iter().enumerate() {
            write!(f, "{}{xid}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn snapshots() -> impl Strategy<Value = Snapshot> {
        (1_u64..24, proptest::collection::vec(1_u64..24, 0..6))
            .prop_map(|(xmax, xip)| Snapshot::new(xmax, xip))
    }

    #[test]
    fn what_postgresql_prints_is_read() {
        let snapshot = Snapshot::parse("10:20:10,14,15").expect("a snapshot");
        assert_eq!((snapshot.xmax(), snapshot.in_progress()), (20, &[10, 14, 15][..]));
        assert_eq!(Snapshot::parse("725:725:").expect("a snapshot"), Snapshot::new(725, []));
        for bad in ["", "1:2", "1:2:3:4", "a:2:", "1:2:x", "1:-2:"] {
            assert_eq!(Snapshot::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(snapshot in snapshots()) {
            prop_assert_eq!(Snapshot::parse(&snapshot.to_string()), Some(snapshot));
        }

        #[test]
        fn a_snapshot_covers_another_if_it_shows_all_that_the_other_shows(one in snapshots(), other in snapshots()) {
            let expected = (0..30).all(|xid| one.shows(xid) || !other.shows(xid));
            // The ends may differ by transactions that nobody sees; then the answer may be the careful one.
            if one.covers(&other) {
                prop_assert!(expected);
            } else if expected {
                prop_assert!(one.xmax() < other.xmax());
            }
        }

        #[test]
        fn a_snapshot_that_went_back_or_was_cut_shows_nothing_more(
            snapshot in snapshots(), by in 0_u64..30, most in 0_usize..6
        ) {
            let (back, cut) = (snapshot.back(by), snapshot.clone().at_most(most));
            prop_assert!(cut.in_progress().len() <= most);
            for xid in 1..30 {
                prop_assert!(snapshot.shows(xid) || !back.shows(xid));
                prop_assert!(snapshot.shows(xid) || !cut.shows(xid));
            }
        }
    }
}
