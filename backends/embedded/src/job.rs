//! A commit in the committer's queue.

use std::collections::HashMap;

use tidings_engine::log::plan::Overlay;
use tidings_engine::log::{
    Commit, CommitError, Committed, Conditions, LogState, Of, Operation, Record, Refused, Status,
};
use tidings_model::{LogId, Position};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::field::Field;
use crate::rows::RowWrites;
use crate::state::StoreState;
use crate::stored_state::StoredState;

/// A commit in the queue.
pub(crate) struct Job<T: StoredState> {
    pub(crate) commit: Commit<T::Change>,
    /// Records that the commit's references refer to, by index of the operation.
    pub(crate) stored: HashMap<usize, StoredRead>,
    /// What is written of the changes.
    pub(crate) written: Written,
    /// Upper bound of the bytes it takes in a frame.
    pub(crate) size: usize,
    /// Its share of the queue's bytes.
    pub(crate) share: OwnedSemaphorePermit,
    pub(crate) answer: ReplySender<T>,
}

/// The changes of a commit as they are written.
pub(crate) struct Written {
    /// Encoded changes of tables, in order; `None` for a precondition, which is validated and not written.
    pub(crate) changes: Vec<Option<Vec<u8>>>,
    /// Changes of cold rows.
    pub(crate) rows: RowWrites,
}

/// Encodes the changes of a commit, and takes those of cold rows out of it. The caller's task does this, to keep it off the
/// committer thread.
pub(crate) fn written<T: StoredState>(commit: &mut Commit<T::Change>) -> Written {
    let write = |change: &T::Change| {
        let mut bytes = Vec::new();
        change.put(&mut bytes);
        bytes
    };
    let changes = commit.changes.iter();
    Written {
        changes: changes.map(|change| (!T::is_precondition(change)).then(|| write(change))).collect(),
        rows: RowWrites::of(&std::mem::take(&mut commit.rows)),
    }
}

/// Records that a reference refers to, as they were when read.
pub(crate) struct StoredRead {
    pub(crate) log: LogId,
    pub(crate) through: Position,
    pub(crate) status: Status,
    pub(crate) records: Vec<Record>,
}

/// Reply to a queued commit.
pub(crate) enum Reply<T: StoredState> {
    /// The commit was made or refused.
    Done(Answer<T>),
    /// A record that it refers to has changed since it was read. The caller reads again and retries.
    Stale(Commit<T::Change>, Written),
}

/// Channel to the caller that waits for the reply.
pub(crate) type ReplySender<T> = oneshot::Sender<Reply<T>>;
pub(crate) type Answer<T> = Result<Committed, CommitError<Refused<T>>>;

impl StoredRead {
    /// Whether reading now would give other records.
    pub(crate) fn is_stale<T: StoredState>(&self, state: &StoreState<T>, batch: &Overlay) -> bool {
        let visible = || state.logs.get(self.log).map(|slot| slot.state.status());
        let now = match batch.get(&self.log) {
            Some(known) => known.as_ref().map(LogState::status),
            None => visible(),
        };
        // A log that no longer exists is reported by validation.
        now.is_some_and(|now| {
            let grown = self.through > self.status.tail && now.tail != self.status.tail;
            grown || now.floor != self.status.floor
        })
    }
}

/// Upper bound of the bytes that a commit takes in a frame.
pub(crate) fn size<C>(commit: &Commit<C>, stored: &HashMap<usize, StoredRead>, written: &Written) -> usize {
    /// Bytes of an item without payloads: a tag, and a few numbers and positions.
    const ITEM: usize = 64;
    let payloads = |operation: &Operation| match operation {
        Operation::Append(append) => append.payloads.len(),
        _ => 0,
    };
    let operation = |operation: &Operation| match operation {
        Operation::Append(append) => {
            let Conditions { producer, order, tail: _ } = &append.conditions;
            let producer = producer.as_ref().map_or(0, |producer| producer.id.as_str().len());
            let order = order.as_ref().map_or(0, |order| order.len());
            let records = append.payloads.iter().map(|payload| payload.len() + ITEM).sum::<usize>();
            2 * ITEM + producer + order + records
        }
        Operation::Refer(refer) => {
            let of = match refer.of {
                Of::Append(place) => commit.operations.get(place).map_or(0, payloads),
                Of::Stored { .. } => 0,
            };
            (1 + of) * ITEM + refer.into.len() * 10
        }
        Operation::Create { .. } | Operation::Trim { .. } | Operation::Delete(_) => ITEM,
    };
    let stored = stored.values().flat_map(|read| &read.records).map(|record| record.payload.len() + ITEM);
    let changes = written.changes.iter().flatten().map(|bytes| bytes.len() + ITEM);
    let rows = written.rows.encoded.len() + ITEM;
    commit.operations.iter().map(operation).sum::<usize>()
        + stored.sum::<usize>()
        + changes.sum::<usize>()
        + rows
}
