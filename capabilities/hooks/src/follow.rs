//! Matching what is in the journals of projects: messages of other capabilities, notices, and batches that matched too many
//! hooks to be queued when they came. Events are queued in the order of the journal.
//!
//! A step takes some entries of a journal, appends them to the log of events as complete events, and queues them, in one
//! commit that moves the journal's cursor and removes the entries. A commit is limited in bytes and in deliveries. An entry
//! that exceeds that takes several commits: some of its events at a time, or one event for some of its hooks at a time.
//! In between, the cursor says where to look for what has been done of the entry ([`Partly`]).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tidings_engine::follow::{self, Delivered, Left, MovesCursor, Work};
use tidings_engine::journal::{HEADER, Header};
use tidings_engine::log::{Commit, Of, Operation, Record, Span};
use tidings_model::{LogId, Position, ProjectId, Ulid};
use tokio::sync::OwnedRwLockWriteGuard;

use crate::event::{self, EVENT};
use crate::ingest::{Candidate, Plan, matching, refer, time_text};
use crate::rows::{Matched, Remembered};
use crate::table::{Cursor, Declined, Feed, Partly};
use crate::{Change, Event, HookError, Hooks, Table};

/// Records of a journal that one step reads, unless a single append brought more.
const RECORDS: usize = 512;
/// Bytes of records that one step reads. A single larger one is read all the same.
const BYTES: usize = 1024 * 1024;
/// Bytes of events that one commit appends. A single larger one is appended all the same.
const COMMIT_BYTES: usize = 8 * 1024 * 1024;
/// Times that a step is beaten by changes of hooks before these have to wait for it.
const LOST: usize = 4;

impl Hooks {
    /// Matches what is in the journals. Never returns.
    pub async fn match_journals(self) {
        self.0.matching.run(&Journals(&self), &*self.0.clock).await;
    }

    /// Makes one commit with entries of a journal, if any are left. [`Self::match_journals`] does so for all journals.
    pub async fn match_some(&self, journal: LogId) -> Result<Left, HookError> {
        Journals(self).step(journal).await
    }
}

/// The work of matching journals.
pub(crate) struct Journals<'a>(pub(crate) &'a Hooks);

/// What one commit does with the entries of a journal.
pub(crate) struct Step {
    project: ProjectId,
    feed: Arc<Feed>,
    now: Cursor,
    work: StepWork,
    /// Times that this was worked out in vain before.
    lost: usize,
    /// Keeps hooks from changing.
    _changes_wait: Option<OwnedRwLockWriteGuard<()>>,
}

enum StepWork {
    /// Appends events and queues each for some hooks.
    Append(Vec<(Candidate, Vec<LogId>)>),
    /// Queues an event that was appended before for further hooks.
    Refer { candidate: Candidate, position: Position, queues: Vec<LogId> },
}

/// The events of one append to a journal, or one event.
struct Entry {
    events: Vec<Event>,
    /// Position of its last record.
    through: Position,
}

impl Work for Journals<'_> {
    const NAME: &'static str = "hooks";

    type Batch = Step;
    type Error = HookError;

    async fn backlog(&self) -> Result<Vec<LogId>, HookError> {
        Ok(self.0.0.store.unmatched().await?)
    }

    async fn next(&self, journal: LogId, stale: Option<Step>) -> Result<Option<Step>, HookError> {
        let lost = stale.as_ref().map_or(0, |stale| stale.lost + 1);
        drop(stale);
        let _changes_wait = match lost < LOST {
            true => None,
            false => Some(self.0.0.changing.clone().write_owned().await),
        };
        let Some((project, found)) = self.0.0.store.feed_of(journal).await? else { return Ok(None) };
        let (feed, tail) = (found.feed, found.events.tail);
        let Some(entries) = self.entries(&feed).await? else { return Ok(None) };
        let (work, now) = match feed.cursor.partly {
            None => self.whole(&project, &feed, entries, tail).await?,
            Some(partly) => self.rest(&project, &feed, entries, partly).await?,
        };
        Ok(Some(Step { project, feed, now, work, lost, _changes_wait }))
    }

    async fn deliver(&self, journal: LogId, step: &Step) -> Result<Delivered, HookError> {
        let Step { project, feed, now, .. } = step;
        let mut commit = step.commit(self.0);
        if now.done > feed.cursor.done {
            commit.operations.push(Operation::Trim { log: journal, floor: now.done });
        }
        commit.changes.push(Change::Expect { project: project.clone(), version: feed.version });
        let cursor = Change::Advance { project: project.clone(), was: feed.cursor, now: *now };
        if follow::advance::<Table, _>(&*self.0.0.store, journal, cursor, commit).await?.is_none() {
            return Ok(Delivered::Stale);
        }
        self.0.0.counts.queued_later.add(step.queues().count() as u64);
        self.0.notify_each(step.queues());
        Ok(Delivered::Yes)
    }
}

impl MovesCursor for Change {
    fn is_stale(refusal: &Declined) -> bool {
        matches!(refusal, Declined::Moved)
    }
}

impl Journals<'_> {
    /// Takes as many entries as one commit can, or the beginning of the first one.
    async fn whole(
        &self,
        project: &ProjectId,
        feed: &Feed,
        entries: Vec<Entry>,
        tail: Position,
    ) -> Result<(StepWork, Cursor), HookError> {
        let mut ends = Vec::with_capacity(entries.len());
        let mut events = Vec::new();
        for Entry { events: more, through } in entries {
            events.extend(more);
            ends.push((events.len(), through));
        }
        let (mut taken, reached) = self.take(project, feed, events).await?;
        let complete =
            ends.iter().take_while(|(end, _)| *end <= taken.len()).last().filter(|_| reached.is_none());
        let now = match (complete, ends.first()) {
            (Some(&(end, done)), _) => {
                taken.truncate(end);
                Cursor { done, partly: None }
            }
            (None, Some(&(_, through))) => {
                Cursor { done: feed.cursor.done, partly: Some(Partly { after: tail, through, reached }) }
            }
            (None, None) => feed.cursor,
        };
        Ok((StepWork::Append(taken), now))
    }

    /// Goes on with an entry of which something was done.
    async fn rest(
        &self,
        project: &ProjectId,
        feed: &Feed,
        entries: Vec<Entry>,
        partly: Partly,
    ) -> Result<(StepWork, Cursor), HookError> {
        let events: Vec<Event> = entries.into_iter().flat_map(|entry| entry.events).collect();
        let mut appended = self.appended(feed, partly.after, &events).await?;
        let finished = Cursor { done: partly.through, partly: None };
        let unfinished = |reached| Cursor { partly: Some(Partly { reached, ..partly }), ..feed.cursor };
        let count = events.iter().filter(|event| appended.contains_key(&event.id)).count();
        if let Some(reached) = partly.reached
            && let Some(event) = count.checked_sub(1).and_then(|last| events.get(last))
        {
            let candidate = self.candidate(feed, event.clone()).await?;
            let mut queues = self.queues(project, &candidate);
            queues.retain(|queue| *queue > reached);
            let most = self.0.0.options.deliveries_per_commit;
            let more = queues.len() > most;
            queues.truncate(most);
            let now = match (more, queues.last()) {
                (true, Some(&last)) => unfinished(Some(last)),
                _ if count == events.len() => finished,
                _ => unfinished(None),
            };
            let position = appended.remove(&event.id).unwrap_or_default();
            return Ok((StepWork::Refer { candidate, position, queues }, now));
        }
        let rest: Vec<Event> = events.into_iter().skip(count).collect();
        let left = rest.len();
        let (taken, reached) = self.take(project, feed, rest).await?;
        let now = if taken.len() == left && reached.is_none() { finished } else { unfinished(reached) };
        Ok((StepWork::Append(taken), now))
    }

    /// Takes as many of the events as one commit can append and queue. Of an event that is heard by more hooks it takes
    /// the first ones and says up to which; such an event is the only one.
    async fn take(
        &self,
        project: &ProjectId,
        feed: &Feed,
        events: Vec<Event>,
    ) -> Result<(Vec<(Candidate, Vec<LogId>)>, Option<LogId>), HookError> {
        let most = self.0.0.options.deliveries_per_commit;
        let (mut taken, mut bytes, mut deliveries): (Vec<_>, usize, usize) = (Vec::new(), 0, 0);
        for event in events {
            let candidate = self.candidate(feed, event).await?;
            let mut queues = self.queues(project, &candidate);
            bytes += candidate.event.json.len();
            deliveries += queues.len();
            if !taken.is_empty() && (bytes > COMMIT_BYTES || deliveries > most) {
                break;
            }
            let more = queues.len() > most;
            queues.truncate(most);
            let last = queues.last().copied().filter(|_| more);
            taken.push((candidate, queues));
            if last.is_some() {
                return Ok((taken, last));
            }
        }
        Ok((taken, None))
    }

    async fn candidate(&self, feed: &Feed, event: Event) -> Result<Candidate, HookError> {
        let earlier = match event.id_chosen {
            true => self.0.remembered(self.0.event_ids(), feed, &event.id).await?,
            false => None,
        };
        Ok(Candidate { event, earlier })
    }

    /// Queues of the hooks that are to get an event, in ascending order.
    fn queues(&self, project: &ProjectId, Candidate { event, earlier }: &Candidate) -> Vec<LogId> {
        let mut queues = matching(self.0.0.matchers.of(project).as_deref(), event);
        match earlier {
            Some(Matched::Many) => queues.clear(),
            Some(Matched::These(had)) => queues.retain(|queue| !had.contains(queue)),
            None => {}
        }
        queues
    }

    /// Which of some events lie in the log of events after a position, and where.
    async fn appended(
        &self,
        feed: &Feed,
        mut after: Position,
        events: &[Event],
    ) -> Result<HashMap<String, Position>, HookError> {
        let mut appended = HashMap::new();
        let wanted: HashSet<&str> = events.iter().map(|event| &*event.id).collect();
        while let Some(extent) =
            follow::read_extent(&*self.0.0.store, feed.events, Span::after(after)).await?
        {
            for record in &extent.records {
                if let Some(event) = Event::from_record(&record.payload)
                    && wanted.contains(&*event.id)
                {
                    appended.insert(event.id, record.position);
                }
            }
            after = extent.through;
        }
        Ok(appended)
    }

    /// Reads complete entries after the cursor: an append's headers together with its messages.
    async fn entries(&self, feed: &Feed) -> Result<Option<Vec<Entry>>, HookError> {
        let mut span = Span { records: RECORDS, bytes: BYTES, ..Span::after(feed.cursor.done) };
        if let Some(partly) = feed.cursor.partly {
            span = Span { through: partly.through, records: usize::MAX, bytes: usize::MAX, ..span };
        }
        loop {
            let store = &*self.0.0.store;
            let Some(extent) = follow::read_extent(store, feed.journal, span).await? else { return Ok(None) };
            if extent.records.is_empty() {
                return Ok(Some(vec![Entry { events: Vec::new(), through: extent.through }]));
            }
            match decode(feed.journal, &extent.records) {
                Decoded::Entries(entries) => return Ok(Some(entries)),
                Decoded::Cut { records } => span = Span { records, bytes: usize::MAX, ..span },
            }
        }
    }
}

impl Step {
    fn commit(&self, hooks: &Hooks) -> Commit<Change> {
        let now = hooks.now();
        match &self.work {
            StepWork::Append(events) => {
                let mut plan = Plan::default();
                for (candidate, queues) in events {
                    plan.add(candidate, queues.clone());
                }
                if self.now.partly.is_some_and(|partly| partly.reached.is_some()) {
                    // Remembered with the last commit of the event, so that until then it is known what its id matched
                    // before.
                    plan.forget_ids();
                }
                plan.commit(&self.feed, hooks.event_ids(), now)
            }
            StepWork::Refer { candidate, position, queues } => {
                let mut commit = Commit::new();
                refer(&mut commit, &only(self.feed.events, *position), queues);
                if candidate.event.id_chosen && self.now.partly.is_none_or(|partly| partly.reached.is_none())
                {
                    let remembered = Remembered { at: now, matched: Matched::Many };
                    let put = hooks.event_ids().put(self.feed.events, &candidate.event.id, &remembered);
                    commit.rows.push(put);
                }
                commit
            }
        }
    }

    /// The queues that get deliveries.
    fn queues(&self) -> impl Iterator<Item = LogId> + '_ {
        let (appended, referred) = match &self.work {
            StepWork::Append(events) => (&events[..], &[][..]),
            StepWork::Refer { queues, .. } => (&[][..], &queues[..]),
        };
        appended.iter().flat_map(|(_, queues)| queues).chain(referred).copied()
    }
}

/// Names one record.
pub(crate) fn only(log: LogId, position: Position) -> Of {
    Of::Stored { log, after: Position::new(position.get() - 1), through: position }
}

enum Decoded {
    Entries(Vec<Entry>),
    /// Not even the first entry is complete. It has this many records.
    Cut {
        records: usize,
    },
}

/// Decodes the complete entries among records of a journal.
fn decode(journal: LogId, records: &[Record]) -> Decoded {
    let mut entries = Vec::new();
    let mut rest = records;
    while let Some(first) = rest.first() {
        let header = match first.payload.first() {
            Some(&HEADER) => Header::read(&first.payload),
            _ => None,
        };
        let Some(header) = header else {
            let event = Event::from_record(&first.payload).filter(|_| first.payload.first() == Some(&EVENT));
            if event.is_none() {
                tracing::warn!(%journal, position = ?first.position, "skipping an entry that cannot be decoded");
            }
            entries.push(Entry { events: event.into_iter().collect(), through: first.position });
            rest = &rest[1..];
            continue;
        };
        let messages = usize::try_from(header.distance).unwrap_or(usize::MAX);
        let length = messages.saturating_mul(2);
        if rest.len() < length {
            if entries.is_empty() {
                return Decoded::Cut { records: length };
            }
            break;
        }
        let (headers, bodies) = rest[..length].split_at(messages);
        let described = headers.iter().zip(bodies);
        let events = described.filter_map(|(header, body)| of_message(header, body)).collect();
        entries.push(Entry { events, through: rest[length - 1].position });
        rest = &rest[length..];
    }
    Decoded::Entries(entries)
}

/// The event of a message of another capability.
fn of_message(header: &Record, message: &Record) -> Option<Event> {
    let Header { event_type, field, name, content_type, skip, .. } = Header::read(&header.payload)?;
    let ts = time_text(header.at);
    let content = message.payload.get(usize::try_from(skip).ok()?..)?;
    let json = event::of_message(&event_type, &ts, &field, &name, &content_type, content);
    // Derived, so that the event has one id however often it is looked at.
    let (commit, index) = header.position.parts();
    let id = Ulid::at(header.at, u128::from(commit.get()) << 26 | u128::from(index)).to_string();
    Some(Event { event_type, id, ts, about: None, id_chosen: false, json })
}
