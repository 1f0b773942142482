//! Reading: what is there, then what comes.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::deliver::{Encode, Join, Lost, Source, Subscription};
use tidings_engine::log::{Page, ReadError, Record, Span};
use tidings_model::{LogId, Position};

use crate::event::is_reaction;
use crate::rooms::Inner;
use crate::{Cursor, Room, RoomError, Rooms};

/// How often a look for the oldest event that met a trim looks again.
const ATTEMPTS: usize = 16;

/// From where to where a room can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Events at or below this are gone; who has not seen all of them has missed some.
    pub floor: Cursor,
    /// The first event that is kept.
    pub oldest: Option<Cursor>,
    /// The last event that was written, whether it is still kept or not.
    pub head: Cursor,
    /// The last cursor that was ever given, also to an event that only those heard who were there. What lies above was
    /// never given.
    pub ceiling: Cursor,
}

impl Rooms {
    /// From where to where a room can be read.
    pub async fn bounds(&self, room: &Room) -> Result<Bounds, RoomError> {
        for _ in 0..ATTEMPTS {
            let active = self.inner.active(room.log).await?;
            // Before the tail: all that lies below it is in the log by now.
            let told = active.told();
            let found = self.inner.store.found(room.log).await?.ok_or(RoomError::NotFound)?;
            let (floor, tail) = (found.status.floor, found.status.tail);
            let known = active.oldest(floor).filter(|oldest| !is_among(*oldest, &found.collapsed));
            let oldest = match known {
                Some(oldest) => Some(oldest),
                None if floor == tail => None,
                None => match self.inner.oldest(room.log, floor).await {
                    // Trimmed meanwhile.
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

    /// No cursor of a room was ever given above this, if the room is in memory.
    pub fn ceiling(&self, room: &Room) -> Option<Cursor> {
        self.inner.caches.active.bound(room.log)
    }

    /// Begins to listen to a room after a cursor that is not below the floor. The subscription reads what is there, then
    /// what comes.
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
    /// The last cursor that was ever given in a room.
    pub(crate) async fn ceiling(&self, log: LogId) -> Result<Cursor, RoomError> {
        let told = self.active(log).await?.told();
        Ok(Cursor::at(self.store.status(log).await?.tail.max(told)))
    }

    async fn oldest(&self, log: LogId, floor: Position) -> Result<Option<Position>, RoomError> {
        let range = self.range(log, Span { records: 1, ..Span::after(floor) }).await?;
        Ok(range.page.records.first().map(|record| record.position))
    }

    /// Events in order without those that are left out; only none if there are no more in the span.
    async fn range(&self, log: LogId, span: Span) -> Result<LogRange, ReadError> {
        let mut after = span.after;
        loop {
            let mut page = self.store.read(log, Span { after, ..span }).await?;
            let last = page.last(after);
            let whole = page.records.is_empty() || last >= page.status.tail.min(span.through);
            // Only reactions are ever left out.
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

/// Consecutive events, as far as they are not left out.
struct LogRange {
    page: Page,
    /// Up to here everything was read.
    last: Position,
    /// There are no more in the span.
    whole: bool,
}

fn is_among(position: Position, sorted: &[Position]) -> bool {
    !sorted.is_empty() && sorted.binary_search(&position).is_ok()
}

/// A room that is being read.
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
            // Before the log: all that lies below it is there by now.
            let told = active.told();
            let LogRange { mut page, last, whole } =
                self.inner.range(self.log, span).await.map_err(Lost::from)?;
            // After the log: ephemeral events below a record that was read is heard now or never, whether its writer and
            // those it waits for know yet or not. It is all there: whoever gets a cursor from now on gets one above that
            // record, and so does everything that has not landed.
            let through = if whole { told.max(last) } else { last };
            let ephemeral = active.hear(&self.inner, self.log, (span.after, through), last);
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

/// Two lists, each in order, as one.
fn merge(mut records: Vec<Record>, mut others: Vec<Record>) -> Vec<Record> {
    records.append(&mut others);
    // Two runs in order are merged in one go.
    records.sort_by_key(|record| record.position);
    records
}
