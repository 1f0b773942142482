//! The commit that delivers and moves the cursor, as a compare-and-set.

use tidings_model::LogId;

use crate::log::{Change, Commit, CommitError, Commits, Committed, Refusal, Refused, StateMachine};

/// A capability's change, one kind of which moves the cursor of a source: it says where the cursor was, and the tables refuse
/// it when the cursor is elsewhere.
pub trait MovesCursor: Change {
    /// Whether a refusal means that the cursor, or what the batch rests on, has changed since it was read.
    fn is_stale(refusal: &Self::Refusal) -> bool;
}

/// Makes a commit together with the change that moves the cursor of a source. None when the cursor or what the batch rests on
/// has changed, or when the source has gone: then nothing of the commit holds, and the caller looks again.
pub async fn advance<P, S>(
    store: &S,
    source: LogId,
    cursor: P::Change,
    commit: Commit<P::Change>,
) -> Result<Option<Committed>, CommitError<Refused<P>>>
where
    P: StateMachine<Change: MovesCursor>,
    S: Commits<P> + ?Sized,
{
    match store.commit(commit.changing(cursor)).await {
        Ok(committed) => Ok(Some(committed)),
        Err(CommitError::Declined(refusal)) if P::Change::is_stale(&refusal) => Ok(None),
        Err(CommitError::Refused(Refusal::NoSuchLog(log))) if log == source => Ok(None),
        Err(error) => Err(error),
    }
}
