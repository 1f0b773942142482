//! The change log of a project: the source of changes where there is no database.
//!
//! It is a log of the engine. The store assigns positions without gaps, and the position of a change is its version. A
//! cursor names the log's epoch, a position and the commit that made the change there, so that a log that was created anew
//! and a store that went back in time are recognised.

mod entry;
mod position;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select};
use tidings_engine::journal::Journals;
use tidings_engine::log::{
    Append, Commit, CommitError, Committed, Observer, Operation, Positions, ReadError, Refusal, Span,
    StoreError,
};
use tidings_engine::{Bus, Clock, Rng};
use tidings_model::{CommitNumber, LogId, Position, ProjectId, Ulid};
use tokio::sync::watch;

use self::position::Place;
use crate::change::{Entry, NewChange};
use crate::cursor::Cursor;
use crate::entity::IdForm;
use crate::events::{EventOf, SOURCE};
use crate::source::{Published, Read, ResyncReason, Source, SourceError};
use crate::store::Store;
use crate::table::{Change, Declined, Found, Row, Table};

/// Attempts to publish, if the change log is created or removed meanwhile.
const ATTEMPTS: usize = 8;

/// The change logs of all projects. Clones share the same state.
#[derive(Clone)]
pub(crate) struct ChangeLogs {
    pub(crate) store: Arc<dyn Store>,
    bus: Bus,
    clock: Arc<dyn Clock>,
    rng: Arc<Rng>,
    journals: Journals,
    created: Arc<Created>,
}

/// The change log of one project.
#[derive(Clone)]
pub struct ChangeLog {
    logs: ChangeLogs,
    project: ProjectId,
}

/// Follows which change logs are created and removed.
#[derive(Default)]
struct Created {
    /// The last log of each project, also if it was removed: its readers are still to hear of that.
    logs: Mutex<HashMap<ProjectId, LogId>>,
    /// Told of each change of the table, before it is visible.
    changed: watch::Sender<()>,
}

impl ChangeLogs {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        bus: Bus,
        clock: Arc<dyn Clock>,
        rng: Arc<Rng>,
        journals: Journals,
    ) -> Self {
        let created = Arc::<Created>::default();
        let observer: Arc<dyn Observer<Table>> = created.clone();
        store.observe(&observer);
        Self { store, bus, clock, rng, journals, created }
    }

    /// The change log of a project, which need not exist yet.
    pub(crate) fn of(&self, project: &ProjectId) -> ChangeLog {
        ChangeLog { logs: self.clone(), project: project.clone() }
    }
}

impl ChangeLog {
    /// Creates a handle to the change log of a project, which need not exist yet.
    pub fn new(
        project: &ProjectId,
        store: Arc<dyn Store>,
        bus: Bus,
        clock: Arc<dyn Clock>,
        rng: Arc<Rng>,
        journals: Journals,
    ) -> Self {
        ChangeLogs::new(store, bus, clock, rng, journals).of(project)
    }

    /// Removes the change log and all that is in it.
    pub async fn clear(&self) -> Result<(), StoreError> {
        for _ in 0..ATTEMPTS {
            let Some(Found { row, .. }) = self.found().await? else { return Ok(()) };
            let project = self.project.clone();
            let commit = Commit::new()
                .with(Operation::Delete(row.log))
                .changing(Change::Remove { project, log: row.log });
            match self.logs.store.commit(commit).await {
                Ok(_) => return Ok(()),
                Err(CommitError::Declined(Declined::Moved) | CommitError::Refused(_)) => {}
                Err(CommitError::Store(error)) => return Err(error),
            }
        }
        Err(contended())
    }

    async fn found(&self) -> Result<Option<Found>, StoreError> {
        self.logs.store.change_log(&self.project).await
    }

    /// The place after everything that is visible.
    async fn end(&self) -> Result<Place, StoreError> {
        let Some(Found { row, status }) = self.found().await? else { return Ok(Place::Start) };
        let tail = status.tail;
        let mut commit = CommitNumber::ZERO;
        if tail > status.floor {
            let span = Span { through: tail, records: 1, ..Span::after(just_before(tail)) };
            match self.logs.store.read(row.log, span).await {
                Ok(page) => commit = page.records.first().map_or(commit, |record| record.commit),
                // Trimmed since. Then nothing needs to be recognised: the next read finds whatever comes after.
                Err(ReadError::Trimmed { .. }) => {}
                Err(ReadError::NoSuchLog(_)) => return Ok(Place::Start),
                Err(ReadError::Store(error)) => return Err(error),
            }
        }
        Ok(Place::After { epoch: row.epoch, position: number(tail), commit })
    }

    async fn lost(&self, reason: ResyncReason) -> Result<Read, SourceError> {
        Ok(Read::Lost { reason, cursor: self.end().await?.cursor() })
    }

    async fn read_after(&self, after: &Cursor, most: usize) -> Result<Read, SourceError> {
        let place = Place::parse(after)?;
        let found = self.found().await?;
        let (found, position, commit) = match (place, found) {
            (Place::Start, None) => {
                return Ok(Read::Entries { entries: Vec::new(), cursor: after.clone(), more: false });
            }
            (Place::Start, Some(found)) => (found, 0, CommitNumber::ZERO),
            (Place::After { epoch, position, commit }, Some(found))
                if epoch == found.row.epoch && position <= number(found.status.tail) =>
            {
                (found, position, commit)
            }
            (Place::After { .. }, _) => return self.lost(ResyncReason::SourceReset).await,
        };
        let (Found { row, status }, after) = (found, Position::new(u128::from(position)));
        if after < status.floor {
            return self.lost(ResyncReason::CursorExpired).await;
        }
        // The change at the cursor is read again, to see that it is still the same.
        let verify = after > status.floor;
        let from = if verify { just_before(after) } else { after };
        let records = most.saturating_add(usize::from(verify));
        let page = match self.logs.store.read(row.log, Span { records, ..Span::after(from) }).await {
            Ok(page) => page,
            Err(ReadError::Trimmed { .. }) => return self.lost(ResyncReason::CursorExpired).await,
            Err(ReadError::NoSuchLog(_)) => return self.lost(ResyncReason::SourceReset).await,
            Err(ReadError::Store(error)) => return Err(error.into()),
        };
        let same = |at: Position, by| {
            page.records.first().is_some_and(|first| first.position == at && first.commit == by)
        };
        if verify && !same(after, commit) {
            return self.lost(ResyncReason::SourceReset).await;
        }
        let (mut position, mut commit) = (position, commit);
        let mut entries = Vec::with_capacity(page.records.len());
        for record in &page.records[usize::from(verify)..] {
            (position, commit) = (number(record.position), record.commit);
            match entry::decode(&record.payload, position) {
                Some(change) => entries.push(Entry::Changed(change)),
                None => tracing::warn!(log = %row.log, position, "skipping a change that cannot be decoded"),
            }
        }
        let more = position < number(page.status.tail);
        let cursor = Place::After { epoch: row.epoch, position, commit }.cursor();
        Ok(Read::Entries { entries, cursor, more })
    }

    /// Whether a read after this place would return anything.
    async fn has_changed(&self, place: Place) -> bool {
        match (place, self.found().await) {
            // The reader is to learn of the error.
            (_, Err(_)) => true,
            (Place::Start, Ok(found)) => found.is_some_and(|found| found.status.tail > Position::ZERO),
            (Place::After { .. }, Ok(None)) => true,
            (Place::After { epoch, position, .. }, Ok(Some(found))) => {
                epoch != found.row.epoch || position != number(found.status.tail)
            }
        }
    }

    async fn until_changed(&self, after: &Cursor) {
        let Ok(place) = Place::parse(after) else { return };
        loop {
            let mut changed = self.logs.created.changed.subscribe();
            let log = self.logs.created.lock().get(&self.project).copied();
            // Listens before it looks, so that no change is missed in between.
            let listener = log.map(|log| self.logs.bus.listen(log));
            if self.has_changed(place).await {
                return;
            }
            let another = async {
                let _ = changed.changed().await;
            };
            match listener {
                Some(mut listener) => drop(select(Box::pin(listener.woken()), Box::pin(another)).await),
                None => another.await,
            }
        }
    }

    /// The row of the change log, which is created if there is none.
    async fn created(&self) -> Result<Row, StoreError> {
        for _ in 0..ATTEMPTS {
            if let Some(found) = self.found().await? {
                return Ok(found.row);
            }
            let log = self.logs.store.reserve().await?;
            let row = Row { log, epoch: self.logs.rng.within(1..=u64::MAX) };
            let project = self.project.clone();
            let commit = Commit::new().with(Operation::create(log)).changing(Change::Create { project, row });
            match self.logs.store.commit(commit).await {
                Ok(_) => return Ok(row),
                Err(CommitError::Declined(Declined::Moved) | CommitError::Refused(_)) => {}
                Err(CommitError::Store(error)) => return Err(error),
            }
        }
        Err(contended())
    }

    async fn publish_all(&self, changes: Vec<NewChange>) -> Result<Published, SourceError> {
        if changes.is_empty() {
            return Ok(Published { accepted: 0, cursor: self.end().await?.cursor() });
        }
        let payloads = entry::encode(&changes);
        for _ in 0..ATTEMPTS {
            let Row { log, epoch } = self.created().await?;
            let append = Append {
                positions: Positions::AtLeast(Position::new(1)),
                ..Append::new(log, payloads.clone())
            };
            match self.commit(Commit::new().with(append), &changes).await {
                Ok(committed) => {
                    let position = number(committed.appended().last);
                    let place = Place::After { epoch, position, commit: committed.number };
                    return Ok(Published { accepted: changes.len(), cursor: place.cursor() });
                }
                // The change log was removed meanwhile.
                Err(CommitError::Refused(Refusal::NoSuchLog(missing))) if missing == log => {}
                Err(CommitError::Store(error)) => return Err(error.into()),
                Err(error) => return Err(StoreError::Unavailable(error.to_string()).into()),
            }
        }
        Err(contended().into())
    }

    /// Commits changes, with their events if somebody hears them.
    async fn commit(
        &self,
        commit: Commit<Change>,
        changes: &[NewChange],
    ) -> Result<Committed, CommitError<Declined>> {
        let ChangeLogs { store, clock, rng, journals, .. } = &self.logs;
        let events = || {
            let now = clock.now();
            let record = |NewChange { code, id, action }: &NewChange| {
                let random =
                    u128::from(rng.within(0..=u64::MAX)) << 64 | u128::from(rng.within(0..=u64::MAX));
                let event_id = Ulid::at(now, random).to_string();
                EventOf { code, id, action: *action, event_id: &event_id, may_come_again: false }.record(now)
            };
            changes.iter().map(record).collect()
        };
        journals.commit_events(&self.project, SOURCE, commit, events, |commit| store.commit(commit)).await
    }
}

impl Source for ChangeLog {
    fn ids(&self) -> IdForm {
        IdForm::Text
    }

    fn now(&self) -> BoxFuture<'_, Result<Cursor, SourceError>> {
        async { Ok(self.end().await?.cursor()) }.boxed()
    }

    fn read<'a>(&'a self, after: &'a Cursor, most: usize) -> BoxFuture<'a, Result<Read, SourceError>> {
        self.read_after(after, most).boxed()
    }

    fn changed<'a>(&'a self, after: &'a Cursor) -> BoxFuture<'a, ()> {
        self.until_changed(after).boxed()
    }

    fn publish(&self, changes: Vec<NewChange>) -> BoxFuture<'_, Result<Published, SourceError>> {
        self.publish_all(changes).boxed()
    }
}

impl Created {
    fn lock(&self) -> MutexGuard<'_, HashMap<ProjectId, LogId>> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer<Table> for Created {
    fn begin(&self, table: &Table) {
        self.lock().extend(table.rows().map(|(project, row)| (project.clone(), row.log)));
    }

    fn applied(&self, change: &Change) {
        if let Change::Create { project, row } = change {
            self.lock().insert(project.clone(), row.log);
        }
        self.changed.send_replace(());
    }
}

fn contended() -> StoreError {
    StoreError::Unavailable("the change log was created and removed again and again".to_owned())
}

/// Positions of a change log are numbers from 1.
pub(crate) fn number(position: Position) -> u64 {
    u64::try_from(position.get()).unwrap_or(u64::MAX)
}

fn just_before(position: Position) -> Position {
    Position::new(position.get().saturating_sub(1))
}
