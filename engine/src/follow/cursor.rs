//! The commit that delivers a batch and moves the cursor, as a compare-and-set.

use tidings_model::LogId;

use crate::log::{Change, Commit, CommitError, Commits, Committed, Refusal, Refused, StateMachine};

/// A capability's change type with a variant that moves the cursor of a source. That variant states the expected
/// cursor, and the tables refuse it when the cursor differs.
pub trait MovesCursor: Change {
    /// Whether a refusal means that the cursor, or other state the batch was computed from, has changed since it was
    /// read.
    fn is_stale(refusal: &Self::Refusal) -> bool;
}

/// Makes a commit together with the change that moves the cursor of a source. Returns `None` when the cursor or other
/// state the batch was computed from has changed, or when the source no longer exists: then nothing was committed, and
/// the caller computes the batch again.
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
