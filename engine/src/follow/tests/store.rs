//! Work on a store: copies a log into another, with a cursor in the tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tidings_model::{LogId, Position};

use crate::follow::{Delivered, Extent, Follower, Left, MovesCursor, Work, advance, read_extent};
use crate::log::{
    Append, Change, Commit, CommitError, Commits, Logs, Memory, Of, Operation, Refer, Refused, Span,
    StateMachine, StoreError,
};
use crate::{Bus, WallClock};

/// A cursor for the only source.
#[derive(Default)]
struct Cursor(Position);

struct Move {
    was: Position,
    now: Position,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Declined {
    #[error("the cursor is elsewhere")]
    Moved,
    #[error("a cursor never goes back")]
    Backwards,
}

impl Change for Move {
    type Refusal = Declined;
}

impl MovesCursor for Move {
    fn is_stale(refusal: &Declined) -> bool {
        *refusal == Declined::Moved
    }
}

impl StateMachine for Cursor {
    type Change = Move;

    fn validate(&self, change: &Move) -> Result<(), Declined> {
        match change {
            Move { was, now } if now < was => Err(Declined::Backwards),
            Move { was, .. } if *was != self.0 => Err(Declined::Moved),
            Move { .. } => Ok(()),
        }
    }

    fn apply(&mut self, change: Move) {
        self.0 = change.now;
    }
}

type Store = Memory<Cursor>;

/// Copies two records at a time.
#[derive(Clone)]
struct Copy {
    store: Store,
    source: LogId,
    target: LogId,
    stale: Arc<AtomicUsize>,
}

impl Copy {
    async fn new() -> Self {
        let store = Store::new(Bus::new(), Arc::new(WallClock));
        let source = store.reserve().await.expect("reserved");
        let target = store.reserve().await.expect("reserved");
        let copy = Self { store, source, target, stale: Arc::default() };
        copy.commit(Commit::new().with(Operation::create(source)).with(Operation::create(target))).await;
        copy
    }

    async fn commit(&self, commit: Commit<Move>) {
        Commits::<Cursor>::commit(&self.store, commit).await.expect("made");
    }

    async fn append(&self, records: usize) -> Position {
        let payloads = (0..records).map(|n| Bytes::from(n.to_string())).collect();
        self.commit(Commit::new().with(Append::new(self.source, payloads))).await;
        self.store.status(self.source).await.expect("there").tail
    }

    async fn texts(&self, log: LogId) -> Vec<Bytes> {
        let page = self.store.read(log, Span::after(Position::ZERO)).await.expect("readable");
        page.records.into_iter().map(|record| record.payload).collect()
    }

    fn cursor(&self) -> Position {
        self.store.look(|cursor, _| cursor.0)
    }

    async fn extent(&self, span: Span) -> Option<Extent> {
        read_extent(&self.store, self.source, span).await.expect("readable")
    }
}

impl Work for Copy {
    const NAME: &'static str = "tests";

    type Batch = (Position, Extent);
    type Error = CommitError<Refused<Cursor>>;

    async fn backlog(&self) -> Result<Vec<LogId>, Self::Error> {
        Ok(vec![self.source])
    }

    async fn next(
        &self,
        source: LogId,
        stale: Option<Self::Batch>,
    ) -> Result<Option<Self::Batch>, Self::Error> {
        self.stale.fetch_add(usize::from(stale.is_some()), Ordering::Relaxed);
        let cursor = self.cursor();
        let span = Span { records: 2, ..Span::after(cursor) };
        let extent = read_extent(&self.store, source, span).await.map_err(CommitError::Store)?;
        // Somebody else may be quicker.
        tokio::task::yield_now().await;
        Ok(extent.map(|extent| (cursor, extent)))
    }

    async fn deliver(&self, source: LogId, (was, extent): &Self::Batch) -> Result<Delivered, Self::Error> {
        let (was, now) = (*was, extent.through);
        let of = Of::Stored { log: source, after: was, through: now };
        let commit = Commit::new().with(Refer { of, into: Arc::new([self.target]) });
        let committed = advance::<Cursor, _>(&self.store, source, Move { was, now }, commit).await?;
        Ok(if committed.is_some() { Delivered::Yes } else { Delivered::Stale })
    }
}

#[tokio::test]
async fn two_followers_of_one_source_deliver_each_record_once() {
    let copy = Copy::new().await;
    let tail = copy.append(101).await;
    let running: Vec<_> = (0..2)
        .map(|_| {
            let copy = copy.clone();
            tokio::spawn(async move { Follower::default().run(&copy, &WallClock).await })
        })
        .collect();
    while copy.cursor() < tail {
        tokio::task::yield_now().await;
    }
    running.iter().for_each(tokio::task::JoinHandle::abort);
    assert_eq!(copy.texts(copy.target).await, copy.texts(copy.source).await);
    assert!(copy.stale.load(Ordering::Relaxed) > 0, "they never met");
}

#[tokio::test]
async fn a_step_delivers_a_batch_and_tells_when_nothing_is_left() {
    let copy = Copy::new().await;
    copy.append(3).await;
    for (left, delivered) in [(Left::More, 2), (Left::More, 3), (Left::Nothing, 3)] {
        assert_eq!(copy.step(copy.source).await.expect("delivered"), left);
        assert_eq!(copy.texts(copy.target).await.len(), delivered);
    }
}

#[tokio::test]
async fn a_commit_that_lost_the_race_for_the_cursor_holds_in_no_part() {
    let copy = Copy::new().await;
    let tail = copy.append(2).await;
    let batch = copy.next(copy.source, None).await.expect("readable").expect("something is left");
    assert_eq!(copy.deliver(copy.source, &batch).await.expect("made"), Delivered::Yes);
    assert_eq!(copy.deliver(copy.source, &batch).await.expect("refused"), Delivered::Stale);
    assert_eq!((copy.texts(copy.target).await.len(), copy.cursor()), (2, tail));
}

#[tokio::test]
async fn a_batch_of_a_source_that_has_gone_is_stale_and_other_refusals_are_errors() {
    let copy = Copy::new().await;
    let tail = copy.append(2).await;
    let batch = copy.next(copy.source, None).await.expect("readable").expect("something is left");
    let back = (tail, Extent { through: Position::ZERO, records: Vec::new() });
    let refused = copy.deliver(copy.source, &back).await;
    assert!(matches!(refused, Err(CommitError::Declined(Declined::Backwards))), "{refused:?}");
    copy.commit(Commit::new().with(Operation::Delete(copy.source))).await;
    assert_eq!(copy.deliver(copy.source, &batch).await.expect("refused"), Delivered::Stale);
    assert_eq!(copy.step(copy.source).await.expect("nothing to do"), Left::Nothing);
}

#[tokio::test]
async fn an_extent_ends_at_its_last_record_or_where_the_span_has_none() {
    let copy = Copy::new().await;
    assert_eq!(copy.extent(Span::after(Position::ZERO)).await, None, "there is nothing yet");
    let first = copy.append(2).await;
    let last = copy.append(1).await;
    let extent = copy.extent(Span::after(Position::ZERO)).await.expect("something is left");
    assert_eq!((extent.through, extent.records.len()), (last, 3));
    let extent = copy.extent(Span { through: first, ..Span::after(Position::ZERO) }).await;
    assert_eq!(extent.map(|extent| (extent.through, extent.records.len())), Some((first, 2)));
    let empty = copy.extent(Span { through: first, ..Span::after(first) }).await;
    assert_eq!(empty, Some(Extent { through: first, records: Vec::new() }));
    assert_eq!(copy.extent(Span::after(last)).await, None);
}

#[tokio::test]
async fn an_extent_passes_over_records_that_are_trimmed() {
    let copy = Copy::new().await;
    copy.append(1).await;
    let cursor = copy.append(1).await;
    let floor = copy.append(1).await;
    copy.append(1).await;
    copy.commit(Commit::new().with(Operation::Trim { log: copy.source, floor })).await;
    let trimmed = copy.extent(Span::after(cursor)).await;
    assert_eq!(trimmed, Some(Extent { through: floor, records: Vec::new() }));
    let kept = copy.extent(Span::after(floor)).await.expect("something is left");
    assert_eq!(kept.records.len(), 1);
    let unknown: Result<_, StoreError> =
        read_extent(&copy.store, LogId::new(u64::MAX), Span::after(floor)).await;
    assert_eq!(unknown, Ok(None));
}
