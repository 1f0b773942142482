//! Replay: events of the past are put into the queue of a hook once more.
//!
//! A replay is a row with a cursor in the log of events. Steps of bounded size queue the events that match, in commits
//! that move the cursor, so a restart goes on where it was. A replay pauses while many deliveries of its hook wait, and goes
//! on as soon as few enough do ([`PausedReplays`](crate::paused::PausedReplays)).

use std::sync::Arc;

use bytes::Bytes;
use tidings_engine::follow::{self, Delivered, Work};
use tidings_engine::log::{Commit, Of, ReadError, Record, Refer, Span};
use tidings_model::{LogId, Pattern, Position, ProjectId, Timestamp, limits};

use crate::hooks::Inner;
use crate::store::Found;
use crate::table::{Replay, ReplayId};
use crate::{Change, Event, Filter, Hook, HookError, HookId, Hooks, Store, Table, pattern};

/// Events that one step looks at.
const EVENTS: usize = 1024;
/// Bytes of events that one step looks at. A single larger one is taken all the same.
const BYTES: usize = 4 * 1024 * 1024;

/// Where a replay begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// With the events that arrived at this time or later, or until it.
    Time(Timestamp),
    /// After the event at this position of the project's events, or with it.
    Position(Position),
}

impl Hooks {
    /// Puts the events of a range that match a hook into its queue once more. Returns how many there are. Durable when it
    /// returns; they are queued in the background.
    pub async fn replay(
        &self,
        project: Option<&ProjectId>,
        id: HookId,
        from: Point,
        to: Option<Point>,
    ) -> Result<u64, HookError> {
        let found = self.find(project, id).await?;
        let Some(feed) = self.0.store.feed(&found.hook.project).await? else { return Ok(0) };
        let range = self.range(feed.feed.events, feed.events.tail, from, to).await?;
        self.begin_replay(&found, feed.feed.events, range, limits::HOOK_REPLAYS).await
    }

    /// Counts the events of a range that a hook hears, and begins their replay if there are any. It may have `most` replays.
    pub(crate) async fn begin_replay(
        &self,
        found: &Found,
        events: LogId,
        replay: Replay,
        most: usize,
    ) -> Result<u64, HookError> {
        let count = self.count_heard(found, events, replay).await?;
        if count > 0 {
            let begin = Change::BeginReplay { queue: found.queue, replay, most };
            self.0.store.commit(Commit::new().changing(begin)).await?;
        }
        self.0.replaying.notify(found.queue);
        Ok(count)
    }

    /// Events of a range that a hook hears.
    pub(crate) async fn count_heard(
        &self,
        found: &Found,
        events: LogId,
        range: Replay,
    ) -> Result<u64, HookError> {
        let heard = Heard::of(&found.hook);
        let (mut count, mut cursor) = (0, range.cursor);
        while cursor < range.through {
            let Some(extent) = self.events_after(events, Replay { cursor, ..range }, EVENTS).await? else {
                break;
            };
            count += extent.records.iter().filter(|record| heard.hears(found.queue, &record.payload)).count()
                as u64;
            cursor = extent.through;
            // There may be millions.
            tokio::task::yield_now().await;
        }
        Ok(count)
    }

    /// Queues the events of replays. Never returns.
    pub async fn replay_events(self) {
        self.0.replaying.run(&Replays(&self), &*self.0.clock).await;
    }

    /// The range of events between two points. Times are those at which events arrived.
    async fn range(
        &self,
        events: LogId,
        tail: Position,
        from: Point,
        to: Option<Point>,
    ) -> Result<Replay, HookError> {
        let through = match to {
            None => tail,
            Some(Point::Position(position)) => position.min(tail),
            Some(Point::Time(time)) => self.last_until(events, Position::ZERO, tail, time).await?,
        };
        let cursor = match from {
            Point::Position(position) => position,
            Point::Time(time) => {
                let before = Timestamp::from_millis(time.as_millis().saturating_sub(1));
                match time.as_millis() {
                    0 => Position::ZERO,
                    _ => self.last_until(events, Position::ZERO, tail, before).await?,
                }
            }
        };
        Ok(Replay { cursor, through })
    }

    /// Position of the last event that arrived at a time or earlier. Events lie in the order of their arrival.
    async fn last_until(
        &self,
        events: LogId,
        after: Position,
        through: Position,
        time: Timestamp,
    ) -> Result<Position, HookError> {
        let mut cursor = after;
        while cursor < through {
            let span = Replay { cursor, through };
            let Some(extent) = self.events_after(events, span, EVENTS).await? else { break };
            for record in &extent.records {
                if record.at > time {
                    return Ok(cursor);
                }
                cursor = record.position;
            }
            cursor = extent.through;
        }
        Ok(cursor)
    }

    async fn events_after(
        &self,
        events: LogId,
        range: Replay,
        records: usize,
    ) -> Result<Option<follow::Extent>, HookError> {
        let span = Span { after: range.cursor, through: range.through, bytes: BYTES, records };
        Ok(follow::read_extent(&*self.0.store, events, span).await?)
    }
}

/// The work of replays. Its sources are the queues of hooks that have replays.
pub(crate) struct Replays<'a>(pub(crate) &'a Hooks);

impl Replays<'_> {
    /// A hook by its queue. `None` if it is gone, or if so many of its deliveries wait that its replays pause until some
    /// were made.
    async fn unless_many_wait(&self, queue: LogId) -> Result<Option<Found>, HookError> {
        let Inner { store, paused_replays, options, .. } = &*self.0.0;
        let mark = options.max_queue / 2;
        let Some(found) = store.found(queue).await? else { return Ok(None) };
        if found.pending() <= mark {
            return Ok(Some(found));
        }
        paused_replays.pause(queue);
        // The deliveries that it would wait for may have been made meanwhile.
        let found = store.found(queue).await?.filter(|found| found.pending() <= mark);
        if found.is_some() {
            paused_replays.resume(queue);
        }
        Ok(found)
    }
}

/// Events that are queued once more.
pub(crate) struct ReplayBatch {
    id: ReplayId,
    was: Position,
    now: Position,
    /// The log of events.
    events: LogId,
    /// Ranges of consecutive events that the hook hears: the position before the first, and that of the last.
    ranges: Vec<(Position, Position)>,
    count: u64,
}

impl Work for Replays<'_> {
    const NAME: &'static str = "replays of hooks";

    type Batch = ReplayBatch;
    type Error = HookError;

    async fn backlog(&self) -> Result<Vec<LogId>, HookError> {
        let mut queues: Vec<LogId> =
            self.0.0.store.replays().await?.iter().map(|((queue, _), _)| *queue).collect();
        queues.dedup();
        Ok(queues)
    }

    async fn next(&self, queue: LogId, _: Option<ReplayBatch>) -> Result<Option<ReplayBatch>, HookError> {
        let store = &self.0.0.store;
        let Some(found) = self.unless_many_wait(queue).await? else { return Ok(None) };
        let replays = store.replays().await?;
        let Some((id, replay)) = replays.into_iter().find(|((of, _), _)| *of == queue) else {
            return Ok(None);
        };
        let Some(feed) = store.feed(&found.hook.project).await? else { return Ok(None) };
        let events = feed.feed.events;
        let (mut ranges, mut count): (Vec<(Position, Position)>, u64) = (Vec::new(), 0);
        let (mut before, mut in_range) = (replay.cursor, false);
        // A step that is larger than what the queue has room for would push out what waits.
        let room = self.0.0.options.max_queue.div_ceil(2).clamp(1, EVENTS as u64) as usize;
        let now = match self.0.events_after(events, replay, room).await? {
            None => replay.through,
            Some(extent) => {
                let heard = Heard::of(&found.hook);
                for record in extent.records {
                    let hears = heard.hears(queue, &record.payload);
                    match ranges.last_mut() {
                        Some((_, last)) if hears && in_range => *last = record.position,
                        _ if hears => ranges.push((before, record.position)),
                        _ => {}
                    }
                    count += u64::from(hears);
                    (before, in_range) = (record.position, hears);
                }
                extent.through
            }
        };
        Ok(Some(ReplayBatch { id, was: replay.cursor, now, events, ranges, count }))
    }

    async fn deliver(&self, queue: LogId, batch: &ReplayBatch) -> Result<Delivered, HookError> {
        let ReplayBatch { id, was, now, events, ranges, count } = batch;
        let mut commit = Commit::new();
        for (after, through) in ranges {
            let of = Of::Stored { log: *events, after: *after, through: *through };
            commit.operations.push(Refer { of, into: Arc::new([queue]) }.into());
        }
        let cursor = Change::AdvanceReplay { replay: *id, was: *was, now: *now };
        if follow::advance::<Table, _>(&*self.0.0.store, queue, cursor, commit).await?.is_none() {
            return Ok(Delivered::Stale);
        }
        self.0.0.counts.queued_later.add(*count);
        self.0.notify([queue]);
        Ok(Delivered::Yes)
    }
}

/// What a hook hears.
struct Heard {
    pattern: Pattern,
    filter: Option<Filter>,
}

impl Heard {
    fn of(hook: &Hook) -> Self {
        Self { pattern: pattern::matching(&hook.settings.pattern), filter: hook.settings.parsed_filter() }
    }

    fn hears(&self, queue: LogId, record: &Bytes) -> bool {
        let Some(event) = Event::from_record(record) else { return false };
        self.pattern.matches(&event.event_type)
            && event.about != Some(queue)
            && self.filter.as_ref().is_none_or(|filter| filter.accepts(&event.value()))
    }
}

/// Reads the record at a position of a log. Returns `None` if it was removed.
pub(crate) async fn record_at(
    store: &dyn Store,
    log: LogId,
    position: Position,
) -> Result<Option<Record>, HookError> {
    let span = Span {
        through: position,
        records: 1,
        ..Span::after(Position::new(position.get().saturating_sub(1)))
    };
    match store.read(log, span).await {
        Ok(page) => Ok(page.records.into_iter().next().filter(|record| record.position == position)),
        Err(ReadError::NoSuchLog(_) | ReadError::Trimmed { .. }) => Ok(None),
        Err(ReadError::Store(error)) => Err(error.into()),
    }
}
