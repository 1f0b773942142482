//! Ingest: events from outside, accepted once and durably, and queued for every hook that hears them.
//!
//! The events of a batch, the references in the queues, and what is remembered of their ids are one commit. It rests on
//! the hooks as they were matched ([`Change::Expect`]): if they change before it is made, the batch is matched again. A
//! batch that matches very many hooks is put into the project's journal instead, and the [follower](crate::follow) queues
//! it. Until it has, later batches of the project follow there, so that none overtakes another.

mod parse;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Mutex;

use bytes::Bytes;
use tidings_engine::log::{Append, Commit, CommitError, Committed, Of, Operation, Refer};
use tidings_model::{LogId, Position, ProjectId, Timestamp, limits};

pub use parse::{Batch, InvalidBatch, InvalidEvents, NewEvent, time_text};

use crate::matchers::ProjectMatcher;
use crate::rows::{Matched, Remembered, RememberedIds};
use crate::store::FoundFeed;
use crate::table::{Cursor, Declined, Feed};
use crate::{Change, Event, HookError, Hooks};

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ingested {
    /// Events of the batch.
    pub received: usize,
    /// Whether a batch with the same id was accepted before, so that this one was ignored.
    pub deduplicated: bool,
}

/// Attempts to commit a batch while hooks change concurrently. After that, changes of hooks wait for it.
const ATTEMPTS: usize = 8;

/// Journals with ingested events that are not matched yet, by project.
#[derive(Debug, Default)]
pub(crate) struct Deferred(Mutex<HashMap<ProjectId, Position>>);

impl Deferred {
    /// Whether ingested events of a project may still be in its journal. After a start that is assumed of whatever is.
    fn is_behind(&self, project: &ProjectId, found: &FoundFeed) -> bool {
        let mut last = self.0.lock().expect("nobody panics while holding it");
        found.feed.cursor.done < *last.entry(project.clone()).or_insert(found.journal.tail)
    }

    fn add(&self, project: &ProjectId, through: Position) {
        let mut last = self.0.lock().expect("nobody panics while holding it");
        let last = last.entry(project.clone()).or_insert(through);
        *last = through.max(*last);
    }

    pub(crate) fn forget(&self, project: &ProjectId) {
        self.0.lock().expect("nobody panics while holding it").remove(project);
    }
}

/// An event that is about to be queued, and the queues that have had one of its id.
pub(crate) struct Candidate {
    pub(crate) event: Event,
    pub(crate) earlier: Option<Matched>,
}

/// What a commit does with some events.
#[derive(Default)]
pub(crate) struct Plan {
    /// Consecutive events with the same queues.
    groups: Vec<(Vec<Bytes>, Vec<LogId>)>,
    /// Ids to remember, with the queues that have had an event of the id.
    ids: Vec<(String, Matched)>,
    /// Deliveries that are queued.
    pub(crate) deliveries: usize,
}

impl Plan {
    /// Adds an event for some queues, which are in ascending order.
    pub(crate) fn add(&mut self, Candidate { event, earlier }: &Candidate, mut queues: Vec<LogId>) {
        match earlier {
            Some(Matched::Many) => return,
            Some(Matched::These(had)) => {
                queues.retain(|queue| !had.contains(queue));
                if queues.is_empty() {
                    return;
                }
            }
            None => {}
        }
        self.deliveries += queues.len();
        if event.id_chosen {
            let had = match earlier {
                Some(Matched::These(had)) => had.clone(),
                Some(Matched::Many) | None => BTreeSet::new(),
            };
            let matched = match had.len() + queues.len() > limits::MATCHES_PER_INGEST {
                true => Matched::Many,
                false => Matched::These(had.into_iter().chain(queues.iter().copied()).collect()),
            };
            self.ids.push((event.id.clone(), matched));
        }
        let record = event.to_record();
        match self.groups.last_mut() {
            Some((records, same)) if *same == queues => records.push(record),
            _ => self.groups.push((vec![record], queues)),
        }
    }

    /// The commit that appends the events and queues them.
    pub(crate) fn commit(&self, feed: &Feed, ids: RememberedIds, now: Timestamp) -> Commit<Change> {
        let mut commit = Commit::new();
        for (records, queues) in &self.groups {
            commit.operations.push(Append::new(feed.events, records.clone()).into());
            let of = Of::Append(commit.operations.len() - 1);
            refer(&mut commit, &of, queues);
        }
        for (id, matched) in &self.ids {
            commit.rows.push(ids.put(feed.events, id, &Remembered { at: now, matched: matched.clone() }));
        }
        commit
    }

    /// Does not remember the ids of the events.
    pub(crate) fn forget_ids(&mut self) {
        self.ids.clear();
    }

    /// The queues that get deliveries, some of them several times.
    pub(crate) fn queues(&self) -> impl Iterator<Item = LogId> + '_ {
        self.groups.iter().flat_map(|(_, queues)| queues.iter().copied())
    }
}

impl Hooks {
    /// Accepts a batch of events. Durable when it returns. Limits come first, then the id of the batch, then its events.
    pub async fn ingest(&self, project: &ProjectId, batch: Batch) -> Result<Ingested, HookError> {
        let Batch { id, received, events } = batch;
        let inner = &self.0;
        inner.ingest_limits.admit(project, received as u64, inner.clock.elapsed(), &inner.options)?;
        let events = match events {
            Ok(events) => events,
            Err(_) if self.is_repeated(project, id.as_deref()).await? => {
                return Ok(Ingested { received, deduplicated: true });
            }
            Err(invalid) => {
                inner.ingest_limits.take_back(project, received as u64);
                return Err(invalid.into());
            }
        };
        let feed = self.open_feed(project).await?.feed;
        let _held = self.hold_ids(&feed, id.as_deref(), &events).await;
        if self.is_repeated(project, id.as_deref()).await? {
            return Ok(Ingested { received, deduplicated: true });
        }
        let candidates = self.candidates(&feed, events).await?;
        if candidates.is_empty() && id.is_none() {
            return Ok(Ingested { received, deduplicated: false });
        }
        for _ in 0..ATTEMPTS {
            if self.try_ingest(project, &id, &candidates).await? {
                return Ok(Ingested { received, deduplicated: false });
            }
        }
        let _changes_wait = inner.changing.write().await;
        match self.try_ingest(project, &id, &candidates).await? {
            true => Ok(Ingested { received, deduplicated: false }),
            false => Err(HookError::Contended),
        }
    }

    /// Whether a batch with this id was accepted before. A project without events has had none, and gets no feed by this.
    async fn is_repeated(&self, project: &ProjectId, id: Option<&str>) -> Result<bool, HookError> {
        let Some(id) = id else { return Ok(false) };
        let Some(found) = self.0.store.feed(project).await? else { return Ok(false) };
        let repeated = self.remembered(self.batch_ids(), &found.feed, id).await?.is_some();
        if repeated {
            self.0.counts.repeated.count();
        }
        Ok(repeated)
    }

    /// Matches and commits a batch. Returns whether that was done; otherwise hooks have changed meanwhile.
    async fn try_ingest(
        &self,
        project: &ProjectId,
        batch: &Option<String>,
        candidates: &[Candidate],
    ) -> Result<bool, HookError> {
        let inner = &self.0;
        let now = self.now();
        let found = self.open_feed(project).await?;
        let feed = &*found.feed;
        let plan = match inner.deferred.is_behind(project, &found) {
            true => None,
            false => self.plan(project, candidates),
        };
        let mut commit = match &plan {
            Some(plan) => {
                let version = feed.version;
                let expect = Change::Expect { project: project.clone(), version };
                plan.commit(feed, self.event_ids(), now).changing(expect)
            }
            None => {
                let records = candidates.iter().map(|candidate| candidate.event.to_record()).collect();
                Commit::new().with(Append::new(feed.journal, records))
            }
        };
        if let Some(id) = batch {
            let remembered = Remembered { at: now, matched: Matched::These(BTreeSet::new()) };
            commit.rows.push(self.batch_ids().put(feed.events, id, &remembered));
        }
        let committed = match inner.store.commit(commit).await {
            Ok(committed) => committed,
            Err(CommitError::Declined(Declined::Moved)) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        inner.counts.ingested.add(candidates.len() as u64);
        match plan {
            Some(plan) => {
                inner.counts.queued_inline.add(plan.deliveries as u64);
                self.notify_each(plan.queues());
            }
            None => {
                inner.deferred.add(project, last_of(&committed));
                inner.matching.notify(feed.journal);
            }
        }
        Ok(true)
    }

    /// Matches events. Returns `None` if they match more hooks than one commit should queue them for.
    fn plan(&self, project: &ProjectId, candidates: &[Candidate]) -> Option<Plan> {
        let matcher = self.0.matchers.of(project);
        let mut plan = Plan::default();
        for candidate in candidates {
            plan.add(candidate, matching(matcher.as_deref(), &candidate.event));
            if plan.deliveries > limits::MATCHES_PER_INGEST {
                return None;
            }
        }
        Some(plan)
    }

    /// The events that are not known yet, with what their ids have matched before. Of several with the same id the first
    /// counts.
    async fn candidates(&self, feed: &Feed, events: Vec<NewEvent>) -> Result<Vec<Candidate>, HookError> {
        let mut seen = HashSet::new();
        let mut candidates = Vec::with_capacity(events.len());
        for NewEvent { event_type, id, ts, json } in events {
            let id_chosen = id.is_some();
            let earlier = match &id {
                Some(id) if !seen.insert(id.clone()) => {
                    self.0.counts.repeated.count();
                    continue;
                }
                Some(id) => self.remembered(self.event_ids(), feed, id).await?,
                None => None,
            };
            let id = id.unwrap_or_else(|| self.fresh_id().to_string());
            let event = Event { event_type, id, ts, about: None, id_chosen, json };
            candidates.push(Candidate { event, earlier });
        }
        Ok(candidates)
    }

    /// What is remembered of an id.
    pub(crate) async fn remembered(
        &self,
        ids: RememberedIds,
        feed: &Feed,
        id: &str,
    ) -> Result<Option<Matched>, HookError> {
        let now = self.now();
        for key in ids.keys(feed.events, id, now) {
            if let Some(value) = self.0.store.row(ids.table(), &key).await?
                && let Some(remembered) = ids.read(&value, now)
            {
                return Ok(Some(remembered.matched));
            }
        }
        Ok(None)
    }

    /// Keeps other requests with an id of this batch waiting.
    async fn hold_ids(
        &self,
        feed: &Feed,
        batch: Option<&str>,
        events: &[NewEvent],
    ) -> Option<crate::in_flight_ids::HeldIds> {
        let key = |kind: u8, id: &str| -> Box<[u8]> {
            let mut key = vec![kind];
            key.extend_from_slice(&feed.events.get().to_be_bytes());
            key.extend_from_slice(id.as_bytes());
            key.into()
        };
        let events = events.iter().filter_map(|event| event.id.as_ref()).map(|id| key(0, id));
        // Collected before anything is awaited: a closure over references would make the future's type too specific.
        let ids: Vec<_> = events.chain(batch.map(|id| key(1, id))).collect();
        if ids.is_empty() {
            return None;
        }
        Some(self.0.ids.take(ids).await)
    }

    pub(crate) fn event_ids(&self) -> RememberedIds {
        RememberedIds::of_events(self.0.options.event_retention)
    }

    pub(crate) fn batch_ids(&self) -> RememberedIds {
        RememberedIds::of_batches(limits::BATCH_ID_TTL)
    }

    /// Announces deliveries, each queue once.
    pub(crate) fn notify_each(&self, queues: impl Iterator<Item = LogId>) {
        let mut last = None;
        for queue in queues {
            if last != Some(queue) {
                self.0.dispatcher.notify(queue);
            }
            last = Some(queue);
        }
    }

    /// The feed of a project, opened first if there is none.
    pub(crate) async fn open_feed(&self, project: &ProjectId) -> Result<FoundFeed, HookError> {
        let store = &self.0.store;
        for _ in 0..ATTEMPTS {
            if let Some(found) = store.feed(project).await? {
                return Ok(found);
            }
            let (events, journal) = (store.reserve().await?, store.reserve().await?);
            let feed = Feed { events, journal, cursor: Cursor::default(), version: 0 };
            let open = Change::Open { project: project.clone(), feed };
            let commit: Commit<Change> =
                Commit::new().with(Operation::create(events)).with(Operation::create(journal)).changing(open);
            match store.commit(commit).await {
                Ok(_) | Err(CommitError::Declined(Declined::Moved)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(HookError::Contended)
    }
}

/// Adds references to records to a commit, in operations of as many targets as one may have.
pub(crate) fn refer(commit: &mut Commit<Change>, of: &Of, queues: &[LogId]) {
    let refers = queues.chunks(limits::TARGETS_PER_COMMIT);
    commit.operations.extend(refers.map(|queues| Refer { of: of.clone(), into: queues.into() }.into()));
}

/// Queues of the hooks that hear an event, in ascending order.
pub(crate) fn matching(matcher: Option<&ProjectMatcher>, event: &Event) -> Vec<LogId> {
    let mut queues = Vec::new();
    if let Some(matcher) = matcher {
        matcher.matches(event, &mut queues);
    }
    queues
}

fn last_of(committed: &Committed) -> Position {
    committed.appended().last
}
