//! Retention: change logs lose what is older than clients may come back for.

use std::time::Duration;

use tidings_engine::log::{Commit, CommitError, Operation, ReadError, Span, StoreError};
use tidings_model::{LogId, Position, Timestamp};

use crate::change_log::number;
use crate::entities::Entities;
use crate::table::Found;

/// Longest and shortest interval between trims.
const INTERVAL: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(1));
/// Change logs fetched from the store at a time.
const AT_A_TIME: usize = 1024;

impl Entities {
    /// Trims change logs regularly. Runs on the leader and never returns.
    pub async fn maintain(self) {
        let (longest, shortest) = INTERVAL;
        let interval = (self.inner.options.since_window / 10).clamp(shortest, longest);
        loop {
            self.inner.clock.sleep(interval).await;
            match self.trim().await {
                Ok(0) => {}
                Ok(trimmed) => tracing::debug!(trimmed, "trimmed changes of entities"),
                Err(error) => {
                    tracing::warn!(%error, "could not trim changes of entities; trying again later")
                }
            }
        }
    }

    /// Removes the changes that are older than [`Options::since_window`](crate::Options::since_window). Returns how many.
    pub async fn trim(&self) -> Result<u64, StoreError> {
        let before = self.inner.clock.now() - self.inner.options.since_window;
        let (mut trimmed, mut after) = (0, None);
        loop {
            let logs = self.inner.logs.store.change_logs(after.as_ref(), AT_A_TIME).await?;
            let Some((last, _)) = logs.last() else { return Ok(trimmed) };
            after = Some(last.clone());
            for (project, _) in &logs {
                if let Some(found) = self.inner.logs.store.change_log(project).await? {
                    trimmed += self.trim_log(found, before).await?;
                }
            }
        }
    }

    async fn trim_log(&self, found: Found, before: Timestamp) -> Result<u64, StoreError> {
        let (log, floor) = (found.row.log, number(found.status.floor));
        let floor_then = self.last_before(log, (floor, number(found.status.tail)), before).await?;
        if floor_then == floor {
            return Ok(0);
        }
        let trim = Operation::Trim { log, floor: Position::new(u128::from(floor_then)) };
        match self.inner.logs.store.commit(Commit::new().with(trim)).await {
            Ok(_) => Ok(floor_then - floor),
            // The project was removed meanwhile.
            Err(CommitError::Refused(_) | CommitError::Declined(_)) => Ok(0),
            Err(CommitError::Store(error)) => Err(error),
        }
    }

    /// The last position up to which all changes are older, or the floor. Positions are dense, so few changes are read.
    async fn last_before(
        &self,
        log: LogId,
        (floor, tail): (u64, u64),
        before: Timestamp,
    ) -> Result<u64, StoreError> {
        let (mut low, mut high) = (floor, tail);
        // Everything up to `low` is older, and what is above `high` is not.
        let mut look_at = floor + 1;
        while low < high {
            if self.is_before(log, look_at, before).await? {
                low = look_at;
            } else {
                high = look_at - 1;
            }
            look_at = low + (high - low).div_ceil(2);
        }
        Ok(low)
    }

    async fn is_before(&self, log: LogId, position: u64, before: Timestamp) -> Result<bool, StoreError> {
        let at = |position: u64| Position::new(u128::from(position));
        let span = Span { through: at(position), records: 1, ..Span::after(at(position - 1)) };
        match self.inner.logs.store.read(log, span).await {
            Ok(page) => Ok(page.records.first().is_none_or(|record| record.at < before)),
            Err(ReadError::Trimmed { .. }) => Ok(true),
            Err(ReadError::NoSuchLog(_)) => Ok(false),
            Err(ReadError::Store(error)) => Err(error),
        }
    }
}
