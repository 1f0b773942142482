//! Reading a room: stored events first, then new ones as they come.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::deliver::{Encode, Join, Lost, Source, Subscription};
use tidings_engine::log::{Page, ReadError, Record, Span};
use tidings_model::{LogId, Position};

use crate::event::is_reaction;
use crate::rooms::Inner;
use crate::{Cursor, Room, RoomError, Rooms};

/// Attempts to find the oldest event while the room is being trimmed.
const ATTEMPTS: usize = 16;

/// The readable range of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Events at or below this cursor were trimmed. A reader that resumes below it has missed events.
    pub floor: Cursor,
    /// The oldest stored event; `None` if there is none.
    pub oldest: Option<Cursor>,
    /// The last durable event ever written, stored or trimmed.
    pub head: Cursor,
    /// The highest cursor ever assigned, including those of ephemeral events. A higher cursor cannot be
    /// genuine.
    pub ceiling: Cursor,
}

impl Rooms {
    /// The readable range of a room.
    pub async fn bounds(&self, room: &Room) -> Result<Bounds, RoomError> {
        for _ in 0..ATTEMPTS {
            let active = self.inner.active(room.log).await?;
            // Read before the tail: all appends below it are in the log by now.
            let told = active.told();
            let found = self.inner.store.found(room.log).await?.ok_or(RoomError::NotFound)?;
            let (floor, tail) = (found.status.floor, found.status.tail);
            let known = active.oldest(floor).filter(|oldest| !is_among(*oldest, &found.collapsed));
            let oldest = match known {
                Some(oldest) => Some(oldest),
                None if floor == tail => None,
                None => match self.inner.oldest(room.log, floor).await {
                    // The room was trimmed meanwhile.
                    Err(RoomError::Contended) => continue,
                    oldest => oldest?,
                },
            };
            active.note_oldest(oldest);
            return Ok(Bounds {
                floor: Cursor::at(floor),
                oldest: oldest.map(Cursor::at),
                head: Cursor::at(tail),
                ceiling: Cursor::at(tail.max(told)),
            });
        }
        Err(RoomError::Contended)
    }

    /// Upper bound of all cursors ever assigned in a room; `None` if the room is not in memory.
    pub fn ceiling(&self, room: &Room) -> Option<Cursor> {
        self.inner.caches.active.bound(room.log)
    }

    /// Subscribes to a room after a cursor, which must not be below the floor. The subscription reads the
    /// stored events, then new ones.
    pub fn listen(
        &self,
        room: &Room,
        bounds: &Bounds,
        after: Cursor,
        form: &'static str,
        encode: Arc<dyn Encode>,
    ) -> Subscription {
        self.inner.channels.join(Join {
            log: room.log,
            form,
            source: Arc::new(Reading { inner: self.inner.clone(), log: room.log }),
            encode,
            tail: bounds.ceiling.position(),
            after: after.position(),
            stamp: 0,
        })
    }
}

impl Inner {
    /// The highest cursor that was ever assigned in a room.
    pub(crate) async fn ceiling(&self, log: LogId) -> Result<Cursor, RoomError> {
        let told = self.active(log).await?.told();
        Ok(Cursor::at(self.store.status(log).await?.tail.max(told)))
    }

    async fn oldest(&self, log: LogId, floor: Position) -> Result<Option<Position>, RoomError> {
        let range = self.range(log, Span { records: 1, ..Span::after(floor) }).await?;
        Ok(range.page.records.first().map(|record| record.position))
    }

    /// Reads events in order without the collapsed ones. An empty page means that the span has no more events.
    async fn range(&self, log: LogId, span: Span) -> Result<LogRange, ReadError> {
        let mut after = span.after;
        loop {
            let mut page = self.store.read(log, Span { after, ..span }).await?;
            let last = page.last(after);
            let whole = page.records.is_empty() || last >= page.status.tail.min(span.through);
            // Only reactions are ever collapsed.
            if page.records.iter().any(is_reaction) {
                let found = self.store.found(log).await?.ok_or(ReadError::NoSuchLog(log))?;
                page.records.retain(|record| !is_among(record.position, &found.collapsed));
            }
            if whole || !page.records.is_empty() {
                return Ok(LogRange { page, last, whole });
            }
            after = last;
        }
    }
}

/// Consecutive events of the log without the collapsed ones.
struct LogRange {
    page: Page,
    /// Position up to which the log was read.
    last: Position,
    /// Whether the span was read to its end.
    whole: bool,
}

fn is_among(position: Position, sorted: &[Position]) -> bool {
    !sorted.is_empty() && sorted.binary_search(&position).is_ok()
}

/// The source of a room's channel: its log, and its ephemeral events.
struct Reading {
    inner: Arc<Inner>,
    log: LogId,
}

impl Source for Reading {
    fn read(&self, span: Span) -> BoxFuture<'_, Result<Page, Lost>> {
        async move {
            let range = self.inner.range(self.log, span).await;
            range.map(|range| range.page).map_err(Lost::from)
        }
        .boxed()
    }

    fn fresh(&self, span: Span) -> BoxFuture<'_, Result<Page, Lost>> {
        async move {
            let active = self.inner.active(self.log).await.map_err(lost)?;
            // Read before the log: all appends below it are in the log by now.
            let told = active.told();
            let LogRange { mut page, last, whole } =
                self.inner.range(self.log, span).await.map_err(Lost::from)?;
            // Read after the log: an ephemeral event below a record that was read must be delivered now or
            // never, whether or not the appends it waits for are known to be complete. All of them are there:
            // whatever gets a cursor from now on gets one above that record, and so does every append that
            // has not landed.
            let through = if whole { told.max(last) } else { last };
            let ephemeral = active.ephemeral_between(&self.inner, self.log, (span.after, through), last);
            if let Some(last) = ephemeral.last() {
                page.status.tail = page.status.tail.max(last.position);
                page.records = merge(std::mem::take(&mut page.records), ephemeral);
            }
            Ok(page)
        }
        .boxed()
    }
}

fn lost(error: RoomError) -> Lost {
    if matches!(error, RoomError::NotFound) { Lost::Gone } else { Lost::Failed }
}

/// Merges two sorted lists.
fn merge(mut records: Vec<Record>, mut others: Vec<Record>) -> Vec<Record> {
    records.append(&mut others);
    // The sort is adaptive: it merges two sorted runs in one pass.
    records.sort_by_key(|record| record.position);
    records
}
