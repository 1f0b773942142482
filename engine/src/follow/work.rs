//! What a capability implements to use the follower: list its sources, compute the next batch of a source, deliver it.

use std::fmt::Display;

use tidings_model::LogId;

/// Maximum times a batch is computed in one step when concurrent changes keep making it stale.
const ATTEMPTS: usize = 16;

/// Deliveries of a capability from its sources, each of which has a stored cursor.
pub trait Work: Send + Sync {
    /// Name of the capability in log messages: `could not deliver to {NAME}`.
    const NAME: &'static str;

    /// Maximum sources delivered concurrently, so that they share syncs and a slow one does not block the others.
    /// Default: 16.
    const SOURCES_AT_A_TIME: usize = 16;

    /// Records of a source and their recipients, computed from the cursor and the tables at one moment.
    type Batch: Send + Sync;

    /// Error of a delivery. The source is tried again later.
    type Error: Display + Send;

    /// Lists all sources whose cursor is before their tail.
    fn backlog(&self) -> impl Future<Output = Result<Vec<LogId>, Self::Error>> + Send;

    /// Computes the next batch of a source. Returns `None` when nothing is left. `stale` is the batch that was computed
    /// just before and could not be delivered because of a concurrent change.
    fn next(
        &self,
        source: LogId,
        stale: Option<Self::Batch>,
    ) -> impl Future<Output = Result<Option<Self::Batch>, Self::Error>> + Send;

    /// Delivers a batch in one or more commits, each of which moves the cursor.
    fn deliver(
        &self,
        source: LogId,
        batch: &Self::Batch,
    ) -> impl Future<Output = Result<Delivered, Self::Error>> + Send;

    /// Delivers one batch of a source, if any is left. A stale batch is computed again, up to a limit; then the source
    /// is queued again.
    fn step(&self, source: LogId) -> impl Future<Output = Result<Left, Self::Error>> + Send {
        async move {
            let mut stale = None;
            for _ in 0..ATTEMPTS {
                let Some(batch) = self.next(source, stale).await? else { return Ok(Left::Nothing) };
                if self.deliver(source, &batch).await? == Delivered::Yes {
                    break;
                }
                stale = Some(batch);
            }
            Ok(Left::More)
        }
    }
}

/// Whether a source may have more to deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The source may have more records.
    More,
    /// The cursor is at the tail, or the source no longer exists.
    Nothing,
}

/// Outcome of delivering a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// The whole batch was delivered, and the cursor has moved past it.
    Yes,
    /// The cursor or other state the batch was computed from has changed. The batch must be computed again.
    Stale,
}
