//! What a capability brings to be followed: its sources, the next batch of one, and how a batch is delivered.

use std::fmt::Display;

use tidings_model::LogId;

/// How often a batch is worked out again in one step when others keep changing what it rests on.
const ATTEMPTS: usize = 16;

/// Deliveries of a capability from its sources, each of which has a stored cursor.
pub trait Work: Send + Sync {
    /// What it delivers to, for the log: `could not deliver to {NAME}`.
    const NAME: &'static str;

    /// Sources that are delivered at the same time, so that they share syncs and none waits for a slow one.
    const SOURCES_AT_A_TIME: usize = 16;

    /// Some records of a source and who gets them, as worked out from the cursor and the tables at one moment.
    type Batch: Send + Sync;

    /// Why something could not be delivered. The source is tried again later.
    type Error: Display + Send;

    /// All sources with something between their cursor and their tail.
    fn backlog(&self) -> impl Future<Output = Result<Vec<LogId>, Self::Error>> + Send;

    /// The next batch of a source; none when nothing is left. `stale` is the batch that was worked out just before and could
    /// not be delivered because something had changed.
    fn next(
        &self,
        source: LogId,
        stale: Option<Self::Batch>,
    ) -> impl Future<Output = Result<Option<Self::Batch>, Self::Error>> + Send;

    /// Delivers a batch, in one commit or several, each of which moves the cursor.
    fn deliver(
        &self,
        source: LogId,
        batch: &Self::Batch,
    ) -> impl Future<Output = Result<Delivered, Self::Error>> + Send;

    /// Delivers one batch of a source, if something is left. A batch that is stale is worked out again; when that happens
    /// again and again, the source has to wait for its next turn.
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
    /// It may.
    More,
    /// Its cursor is at its tail, or the source has gone.
    Nothing,
}

/// Whether a batch was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// All of it was, and the cursor has moved past it.
    Yes,
    /// The cursor or what the batch rests on has changed; the batch has to be worked out again.
    Stale,
}
