//! [`Outbox`]: the source of changes that reads a database.
//!
//! A read takes what became visible between two snapshots, so a transaction that began before the last read and is
//! committed after it is found, and one that stays open holds nobody back. What is too much for one read is scanned in
//! the order of its numbers, page by page, within one snapshot.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tidings_entities::{
    Action, Change, Cursor, EntityCode, Entry, IdForm, NewChange, Published, Read, Reason, ResyncReason,
    Source, SourceError,
};
use uuid::Uuid;

use crate::database::Shared;
use crate::error::DatabaseError;
use crate::late::{self, Known};
use crate::listen::Pace;
use crate::pool::Borrowed;
use crate::position::{Position, Scan};
use crate::reading::{self, Header, Raw};

/// Transactions before the end of a snapshot whose numbers may be used again after the database has recovered from a
/// crash, because nothing of them was on disk. Their changes are read again; all others could only be told twice.
const RECOVERY_SLACK: u64 = 100_000;

/// The action that stands for `TRUNCATE`.
pub(crate) const TRUNCATED: i16 = -1;

/// Changes of one database.
pub struct Outbox {
    shared: Arc<Shared>,
    pace: Pace,
}

impl Outbox {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, pace: Pace::default() }
    }

    /// Fails while changes do not reach the outbox.
    fn is_fed(&self) -> Result<(), SourceError> {
        self.shared.problem().map_or(Ok(()), Err)
    }

    async fn end(&self, link: &mut Borrowed) -> Result<Position, DatabaseError> {
        let (header, highest) = link.ask(async |link| reading::end(link).await).await?;
        Ok(Position {
            life: header.life(&link.life)?,
            recovery: reading::recovery(&link.life),
            read: header.now,
            highest,
            scan: None,
        })
    }

    async fn lost(&self, link: &mut Borrowed, reason: ResyncReason) -> Result<Read, DatabaseError> {
        Ok(Read::Lost { reason, cursor: self.end(link).await?.cursor() })
    }

    async fn read_after(&self, mut from: Position, most: usize) -> Result<Read, DatabaseError> {
        let most = most.max(1);
        let link = &mut self.shared.pool.borrow().await?;
        let kept = from.read.clone();
        let mut again = from.scan.as_ref().is_some_and(|scan| scan.again);
        if from.recovery != reading::recovery(&link.life) {
            from = Position {
                recovery: reading::recovery(&link.life),
                read: from.read.back(RECOVERY_SLACK),
                scan: None,
                ..from
            };
            again = true;
        }
        if from.scan.is_none() {
            let (header, found) =
                link.ask(async |link| reading::difference(link, &from.read, most).await).await?;
            if let Some(reason) = lost(&header, &from, &kept, link)? {
                return self.lost(link, reason).await;
            }
            if let Some(found) = found {
                let next = Position { read: header.now.clone(), ..from.clone() };
                return self.finish(link, Page { header, found, from, next, again, more: false }).await;
            }
            // Too much for one page.
            let (header, ends) = link.ask(async |link| reading::extent(link, &from.read).await).await?;
            if let Some(reason) = lost(&header, &from, &kept, link)? {
                return self.lost(link, reason).await;
            }
            match ends {
                Some((first, end)) => {
                    from.scan = Some(Scan { target: header.now, at: first.saturating_sub(1), end, again });
                }
                // Rolled back or moved in between.
                None => {
                    let next = Position { read: header.now.clone(), ..from.clone() };
                    let page = Page { header, found: Vec::new(), from, next, again, more: true };
                    return self.finish(link, page).await;
                }
            }
        }
        let scan = from.scan.clone().expect("a scan has begun");
        let (header, scanned) =
            link.ask(async |link| reading::page(link, &from.read, &scan, most).await).await?;
        if let Some(reason) = lost(&header, &from, &kept, link)? {
            return self.lost(link, reason).await;
        }
        let next = match scanned.last.filter(|last| *last < scan.end && scanned.count >= most) {
            Some(at) => Position { scan: Some(Scan { at, ..scan }), ..from.clone() },
            None => Position {
                read: scan.target,
                highest: from.highest.max(scan.end),
                scan: None,
                ..from.clone()
            },
        };
        self.finish(link, Page { header, found: scanned.found, from, next, again, more: true }).await
    }

    /// Makes entries of what was found, after what is out of order has been put into order.
    async fn finish(&self, link: &mut Borrowed, page: Page) -> Result<Read, DatabaseError> {
        let Page { header, mut found, from, mut next, again, mut more } = page;
        found.sort_unstable_by_key(|raw| raw.seq);
        if next.scan.is_none() {
            next.highest = next.highest.max(found.last().map_or(0, |raw| raw.seq));
        }
        self.shared.meters.read.add(found.len() as u64);
        if let Some(newest) = found.last() {
            self.shared.meters.lag.set((newest.age_micros / 1000).max(0));
        }
        let count = found.len();
        let moved =
            late::put_in_order(link, &mut found, &from, Known { again, trimmed: header.trimmed_seq }).await?;
        self.shared.meters.moved.add(moved);
        // What was taken out can be read at once, with another number or as a later change.
        more |= found.len() < count;
        let in_progress = !header.now.in_progress().is_empty() || header.now.xmax() != from.read.xmax();
        self.pace.looked(count > 0, in_progress);
        let entries = found.into_iter().filter_map(entry).collect();
        Ok(Read::Entries { entries, cursor: next.cursor(), more })
    }

    async fn insert(&self, changes: &[NewChange]) -> Result<Position, DatabaseError> {
        let link = &mut self.shared.pool.borrow().await?;
        if !changes.is_empty() {
            let mut columns: (Vec<&str>, Vec<Uuid>, Vec<i16>) = Default::default();
            for change in changes {
                let id = Uuid::parse_str(change.id.as_str())
                    .map_err(|_| DatabaseError::Refused(format!("the id `{}` is not a UUID", change.id)))?;
                columns.0.push(change.code.as_str());
                columns.1.push(id);
                columns.2.push(match change.action {
                    Action::Update => 1,
                    Action::Delete => 3,
                    Action::Create => 4,
                });
            }
            let (codes, ids, actions) = &columns;
            link.ask(async |link| reading::insert(link, codes, ids, actions).await).await?;
        }
        self.end(link).await
    }
}

/// A page on its way to its entries.
struct Page {
    header: Header,
    found: Vec<Raw>,
    from: Position,
    next: Position,
    /// Whether it was read before the database recovered from a crash, and is read again.
    again: bool,
    more: bool,
}

/// Why what came after a position is not known any more. `kept` is what had been read before a recovery was allowed for.
fn lost(
    header: &Header,
    from: &Position,
    kept: &crate::snapshot::Snapshot,
    link: &Borrowed,
) -> Result<Option<ResyncReason>, DatabaseError> {
    if from.life != header.life(&link.life)? || kept.xmax() > header.now.xmax() {
        return Ok(Some(ResyncReason::SourceReset));
    }
    Ok(match &header.trimmed {
        Some(trimmed) if !kept.covers(trimmed) => Some(ResyncReason::CursorExpired),
        _ => None,
    })
}

fn entry(raw: Raw) -> Option<Entry> {
    // A code that no client can name is of no interest.
    let code = EntityCode::parse(&raw.code).ok()?;
    let Some(id) = raw.id else {
        return (raw.action == TRUNCATED).then_some(Entry::Truncated(code));
    };
    let id = IdForm::Uuid.parse(&id.to_string()).ok()?;
    let action = match raw.action {
        3 => Action::Delete,
        4 => Action::Create,
        _ => Action::Update,
    };
    let reason = raw.is_about_access().then_some(Reason::Access);
    Some(Entry::Changed(Change { code, id, action, version: raw.seq, reason }))
}

impl Source for Outbox {
    fn ids(&self) -> IdForm {
        IdForm::Uuid
    }

    fn now(&self) -> BoxFuture<'_, Result<Cursor, SourceError>> {
        Box::pin(async {
            self.is_fed()?;
            let link = &mut self.shared.pool.borrow().await?;
            Ok(self.end(link).await?.cursor())
        })
    }

    fn read<'a>(&'a self, after: &'a Cursor, most: usize) -> BoxFuture<'a, Result<Read, SourceError>> {
        Box::pin(async move {
            self.is_fed()?;
            Ok(self.read_after(Position::of(after)?, most).await?)
        })
    }

    fn changed<'a>(&'a self, after: &'a Cursor) -> BoxFuture<'a, ()> {
        if let Ok(position) = Position::of(after) {
            self.shared.note_read(position.read);
        }
        Box::pin(self.pace.wait(&self.shared))
    }

    fn publish(&self, changes: Vec<NewChange>) -> BoxFuture<'_, Result<Published, SourceError>> {
        Box::pin(async move {
            let cursor = self.insert(&changes).await?.cursor();
            Ok(Published { accepted: changes.len(), cursor })
        })
    }
}
