//! What owners see of the past: deliveries with their attempts, dead letters, statistics; and how they retry dead letters.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use tidings_engine::log::{Commit, ReadError, Record, Refer, Row, Span};
use tidings_model::{LogId, Position, ProjectId, Timestamp, Ulid, limits};

use crate::delivery::{Attempt, AttemptOutcome, DeadLetter, DeliveryId, DeliveryStatus};
use crate::follow::only;
use crate::hook::HookId;
use crate::hooks::is_within;
use crate::in_flight_ids::HeldIds;
use crate::replay::record_at;
use crate::rows::{attempts, dead_letters};
use crate::store::Found;
use crate::{Change, Event, Hook, HookError, Hooks};

/// Deliveries that one request looks at, in search of those with a status.
const LOOKED_AT: usize = 10_000;
/// Deliveries that are read at a time, with all their attempts.
const READ_AT_A_TIME: usize = 100;
/// Bytes of events after which a page ends early.
const PAGE_BYTES: usize = 8 * 1024 * 1024;
/// Dead letters of which a retry of many handles this many in one commit.
const RETRIED_AT_A_TIME: usize = 256;

/// A hook with statistics of its deliveries.
#[derive(Clone, Debug)]
pub struct Described {
    /// The hook.
    pub hook: Arc<Hook>,
    /// Deliveries of which no attempt has ended.
    pub pending: u64,
    /// Deliveries that wait for a retry.
    pub failed: u64,
    /// Dead letters that there are now.
    pub dead_letters: u64,
    /// Deliveries that were accepted, ever.
    pub delivered: u64,
    /// Attempts that ended, ever.
    pub attempts: u64,
}

impl Described {
    fn of(found: Found) -> Self {
        Self {
            pending: found.pending(),
            failed: found.progress.parked.len() as u64,
            dead_letters: found.progress.dead_letters,
            delivered: found.progress.delivered,
            attempts: found.progress.attempts,
            hook: found.hook,
        }
    }

    /// Accepted deliveries per attempt; zero when there were no attempts.
    pub fn success_rate(&self) -> f64 {
        if self.attempts == 0 { 0.0 } else { self.delivered as f64 / self.attempts as f64 }
    }
}

/// A delivery as its owner sees it.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Id of the delivery.
    pub id: DeliveryId,
    /// The event without its content. `None` if it cannot be decoded.
    pub event: Option<Event>,
    /// Where the delivery stands.
    pub status: DeliveryStatus,
    /// Attempts that ended.
    pub attempts: u32,
    /// Time at which it was queued.
    pub created_at: Timestamp,
    /// Time at which it was accepted.
    pub delivered_at: Option<Timestamp>,
    /// Error of the last failed attempt.
    pub last_error: Option<String>,
    /// Position of the event among those of the project, from which a replay can begin.
    pub event_position: Position,
}

/// Some deliveries of a hook, oldest first.
#[derive(Clone, Debug, Default)]
pub struct DeliveryPage {
    /// The deliveries.
    pub deliveries: Vec<Delivery>,
    /// Where the next page begins, if there may be more.
    pub next: Option<Position>,
}

/// A dead letter with its event.
#[derive(Clone, Debug)]
pub struct Letter {
    /// The dead letter.
    pub letter: DeadLetter,
    /// The delivery that was given up.
    pub delivery: DeliveryId,
    /// The hook.
    pub hook: HookId,
    /// The event. `None` if it is no longer kept.
    pub event: Option<Event>,
}

/// Which dead letters to retry.
#[derive(Clone, Debug, Default)]
pub struct LetterFilter {
    /// Those given up at this time or later.
    pub from: Option<Timestamp>,
    /// Those given up before this time.
    pub to: Option<Timestamp>,
    /// Those whose last error contains this text.
    pub error: Option<String>,
}

impl LetterFilter {
    fn accepts(&self, letter: &DeadLetter) -> bool {
        self.from.is_none_or(|from| letter.at >= from)
            && self.to.is_none_or(|to| letter.at < to)
            && self.error.as_ref().is_none_or(|text| letter.last_error.contains(text))
    }
}

impl Hooks {
    /// A hook with its statistics.
    pub async fn get(&self, project: Option<&ProjectId>, id: HookId) -> Result<Described, HookError> {
        Ok(Described::of(self.find(project, id).await?))
    }

    /// Up to `most` hooks of a project, or of all projects, newest first, older than the given one, of those that `wanted`
    /// accepts, after leaving out `skip` of them.
    pub async fn list(
        &self,
        project: Option<&ProjectId>,
        before: Option<HookId>,
        skip: usize,
        most: usize,
        wanted: impl Fn(&Hook) -> bool,
    ) -> Result<Vec<Described>, HookError> {
        let (mut listed, mut before, mut skip) = (Vec::new(), before, skip);
        while listed.len() < most {
            tokio::task::yield_now().await;
            let page = self.0.store.newest(project, before, limits::HOOK_PAGE).await?;
            let Some(last) = page.last() else { break };
            before = Some(last.hook.id);
            for found in page.into_iter().filter(|found| wanted(&found.hook)) {
                match skip {
                    0 if listed.len() < most => listed.push(Described::of(found)),
                    0 => break,
                    _ => skip -= 1,
                }
            }
        }
        Ok(listed)
    }

    /// The active hooks of a project whose pattern matches an event type, oldest first, at most `most`. Filters are left
    /// out, since there is no event.
    pub async fn matching(
        &self,
        project: &ProjectId,
        event_type: &str,
        most: usize,
    ) -> Result<Vec<Described>, HookError> {
        let mut queues = Vec::new();
        if let Some(matcher) = self.0.matchers.of(project) {
            matcher.matches_type(event_type, &mut queues);
        }
        let mut matching = Vec::new();
        for queue in queues.into_iter().take(most) {
            matching.extend(self.0.store.found(queue).await?.map(Described::of));
        }
        Ok(matching)
    }

    /// Deliveries of a hook after a position of its queue, oldest first, of those with a status, if one is given. Fewer than
    /// `most` if their events are large.
    pub async fn deliveries(
        &self,
        project: Option<&ProjectId>,
        id: HookId,
        status: Option<DeliveryStatus>,
        after: Position,
        most: usize,
    ) -> Result<DeliveryPage, HookError> {
        let found = self.find(project, id).await?;
        let mut page = DeliveryPage::default();
        let (mut cursor, mut looked_at, mut bytes) = (after.max(found.status.floor), 0, 0);
        while looked_at < LOOKED_AT && bytes < PAGE_BYTES {
            let span = Span { records: most.min(READ_AT_A_TIME), ..Span::after(cursor) };
            let records = match self.0.store.read(found.queue, span).await {
                Ok(read) => read.records,
                Err(ReadError::Trimmed { floor, .. }) => {
                    cursor = floor;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let (Some(first), Some(last)) = (records.first(), records.last()) else { return Ok(page) };
            let mut recorded = self.recorded_between(found.queue, first.position, last.position).await?;
            for record in &records {
                looked_at += 1;
                cursor = record.position;
                let of_delivery = recorded.remove(&record.position).unwrap_or_default();
                let delivery = describe(&found, record, &of_delivery);
                if status.is_none_or(|status| delivery.status == status) {
                    bytes += record.payload.len();
                    page.deliveries.push(delivery);
                }
                if page.deliveries.len() == most {
                    page.next = Some(cursor).filter(|cursor| *cursor < found.status.tail);
                    return Ok(page);
                }
            }
        }
        page.next = Some(cursor);
        Ok(page)
    }

    /// The attempts of a delivery, oldest first. Empty if there is no such delivery.
    pub async fn attempts(
        &self,
        project: Option<&ProjectId>,
        id: DeliveryId,
    ) -> Result<Vec<Attempt>, HookError> {
        let found = self.0.store.found(id.queue).await?;
        if found.is_none_or(|found| !is_within(&found.hook, project)) {
            return Ok(Vec::new());
        }
        let mut recorded = self.recorded_between(id.queue, id.position, id.position).await?;
        Ok(recorded.remove(&id.position).unwrap_or_default().attempts)
    }

    /// The hook that a delivery belongs to, if there is one. Whether there is such a delivery is not checked.
    pub async fn hook_of(
        &self,
        project: Option<&ProjectId>,
        id: DeliveryId,
    ) -> Result<Option<HookId>, HookError> {
        let found = self.0.store.found(id.queue).await?;
        Ok(found.filter(|found| is_within(&found.hook, project)).map(|found| found.hook.id))
    }

    async fn recorded_between(
        &self,
        queue: LogId,
        first: Position,
        last: Position,
    ) -> Result<HashMap<Position, Recorded>, HookError> {
        let span = attempts::between(queue, first, last, usize::MAX);
        let mut by_position: HashMap<Position, Recorded> = HashMap::new();
        for row in self.0.store.rows(attempts::TABLE, span).await? {
            if let Some((position, attempt)) = attempts::read(&row) {
                by_position.entry(position).or_default().attempts.push(attempt);
            } else if let Some(position) = attempts::read_given_up(&row) {
                by_position.entry(position).or_default().is_given_up = true;
            }
        }
        Ok(by_position)
    }

    /// Dead letters of a hook, newest first, older than the given one. Empty if there is no such hook. Fewer than `most` if
    /// their events are large.
    pub async fn dead_letters(
        &self,
        project: Option<&ProjectId>,
        id: HookId,
        after: Option<Ulid>,
        most: usize,
    ) -> Result<Vec<Letter>, HookError> {
        let found = match self.find(project, id).await {
            Ok(found) => found,
            Err(HookError::NoSuchHook) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let (mut letters, mut bytes) = (Vec::new(), 0);
        for letter in self.letters_older(found.queue, after, most).await? {
            if bytes >= PAGE_BYTES {
                break;
            }
            let record = record_at(&*self.0.store, found.queue, letter.position).await?;
            let delivery = found.hook.delivery(found.queue, letter.position);
            bytes += letter.last_error.len() + record.as_ref().map_or(0, |record| record.payload.len());
            let event = record.and_then(|record| Event::from_record(&record.payload));
            letters.push(Letter { letter, delivery, hook: id, event });
        }
        Ok(letters)
    }

    pub(crate) async fn letters_older(
        &self,
        queue: LogId,
        after: Option<Ulid>,
        most: usize,
    ) -> Result<Vec<DeadLetter>, HookError> {
        let rows = self.0.store.rows(dead_letters::TABLE, dead_letters::older(queue, after, most)).await?;
        Ok(rows.iter().filter_map(dead_letters::read).collect())
    }

    /// Delivers a dead letter again, as a new delivery, at once. Returns the new delivery.
    pub async fn retry_dead_letter(
        &self,
        project: Option<&ProjectId>,
        id: HookId,
        letter: Ulid,
    ) -> Result<DeliveryId, HookError> {
        let found = self.find(project, id).await?;
        let _alone = self.hold_letters(found.queue).await;
        let key = dead_letters::key_of(found.queue, letter);
        let row = self.0.store.row(dead_letters::TABLE, &key).await?;
        let row = row.map(|value| Row { key, value });
        let letter = row.as_ref().and_then(dead_letters::read).ok_or(HookError::NoSuchDeadLetter)?;
        let record = record_at(&*self.0.store, found.queue, letter.position).await?;
        let record = record.ok_or(HookError::NoSuchDeadLetter)?;
        self.requeue(found.queue, &[letter]).await?;
        let position = self.first_copy(found.queue, found.status.tail, &record).await?;
        Ok(found.hook.delivery(found.queue, position))
    }

    /// Position of the first reference to the event of a record after a position.
    async fn first_copy(
        &self,
        queue: LogId,
        mut after: Position,
        of: &Record,
    ) -> Result<Position, HookError> {
        loop {
            let records = self.0.store.read(queue, Span::after(after)).await?.records;
            if let Some(copy) = records.iter().find(|record| record.payload == of.payload) {
                return Ok(copy.position);
            }
            after = records.last().ok_or(HookError::NoSuchDeadLetter)?.position;
        }
    }

    /// Delivers the dead letters of a hook again that a filter accepts, in the order in which they were given up. Returns
    /// how many.
    pub async fn retry_dead_letters(
        &self,
        project: Option<&ProjectId>,
        id: HookId,
        filter: &LetterFilter,
    ) -> Result<u64, HookError> {
        let found = self.find(project, id).await?;
        let _alone = self.hold_letters(found.queue).await;
        // Dead letters are stored newest first, so the pages are found before the last of them is retried.
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let letters = self.letters_older(found.queue, after, RETRIED_AT_A_TIME).await?;
            let (Some(first), Some(last)) = (letters.first(), letters.last()) else { break };
            pages.push(first.id);
            after = Some(last.id);
        }
        let mut retried = 0;
        for first in pages.into_iter().rev() {
            let newer = Ulid::new(first.get().saturating_add(1));
            let letters = self.letters_older(found.queue, Some(newer), RETRIED_AT_A_TIME).await?;
            let accepted: Vec<_> =
                letters.into_iter().rev().filter(|letter| filter.accepts(letter)).collect();
            if !accepted.is_empty() {
                self.requeue(found.queue, &accepted).await?;
                retried += accepted.len() as u64;
            }
        }
        Ok(retried)
    }

    /// Refers to the deliveries of dead letters once more and removes the dead letters.
    async fn requeue(&self, queue: LogId, letters: &[DeadLetter]) -> Result<(), HookError> {
        let mut commit: Commit<Change> = Commit::new();
        for letter in letters {
            commit
                .operations
                .push(Refer { of: only(queue, letter.position), into: Arc::new([queue]) }.into());
            commit.rows.push(dead_letters::delete(queue, letter.id));
        }
        let dead_letters = letters.len() as u64;
        commit.changes.push(Change::Forget { queue, dead_letters, deliveries: 0, attempts: 0 });
        self.0.store.commit(commit).await?;
        self.notify([queue]);
        Ok(())
    }

    /// Serializes whatever removes dead letters of a hook, so that none is retried twice.
    pub(crate) async fn hold_letters(&self, queue: LogId) -> HeldIds {
        self.0.letters.take([Box::from(&queue.get().to_be_bytes()[..])]).await
    }
}

/// What is recorded of a delivery. An attempt that was made while the disk was full is not.
#[derive(Default)]
struct Recorded {
    attempts: Vec<Attempt>,
    is_given_up: bool,
}

fn describe(found: &Found, record: &Record, recorded: &Recorded) -> Delivery {
    let position = record.position;
    let Recorded { attempts, is_given_up } = recorded;
    let succeeded = attempts.iter().find(|attempt| matches!(attempt.outcome, AttemptOutcome::Success(_)));
    let last_error = attempts.iter().rev().find_map(|attempt| match &attempt.outcome {
        AttemptOutcome::Failed(error) => Some(error.clone()),
        AttemptOutcome::Success(_) => None,
    });
    let status = match found.progress.parked.contains_key(&position) {
        true => DeliveryStatus::Failed,
        false if !found.progress.is_settled(position) => DeliveryStatus::Pending,
        false if *is_given_up => DeliveryStatus::Dead,
        false => DeliveryStatus::Delivered,
    };
    Delivery {
        id: found.hook.delivery(found.queue, position),
        // Without its content, which would keep the whole record in memory as long as the page.
        event: Event::from_record(&record.payload).map(|event| Event { json: Bytes::new(), ..event }),
        status,
        attempts: u32::try_from(attempts.len()).unwrap_or(u32::MAX),
        created_at: record.at,
        delivered_at: succeeded.map(|attempt| attempt.at),
        last_error,
        event_position: record.origin.map_or(position, |origin| origin.position),
    }
}
