//! The tables of hooks: the feed of each project, the hooks, and how far their deliveries have come.
//!
//! Each project with hooks has a *feed*: a log of its events, and a journal of messages of other capabilities that have
//! not been matched yet. Each hook has a *queue*, a log of references to the events it is to receive, by whose number
//! it is known here. What is too large for memory is in cold rows ([`crate::rows`]).
//!
//! [`Store`](crate::Store) lists the queries on these tables.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use tidings_engine::log::{self, SnapshotMap, Snapshots, StateMachine};
use tidings_model::{LogId, Position, ProjectId, Timestamp};

use crate::delivery::IdMask;
use crate::hook::{Hook, HookId, Identity};

/// The feed of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// Log of the events, each a complete record.
    pub events: LogId,
    /// Log of what is still to be matched.
    pub journal: LogId,
    /// How far the journal was matched.
    pub cursor: Cursor,
    /// Number of changes that affect which hooks hear an event.
    pub version: u64,
}

/// How far a journal was matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Every entry up to this one was matched and queued.
    pub done: Position,
    /// What was done of the entry after it, if that takes several commits.
    pub partly: Option<Partly>,
}

/// An entry of a journal of which something was done. Its events are appended to the log of events in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partly {
    /// Its events lie after this position in the log of events, as far as they are there.
    pub after: Position,
    /// Last record of the entry in the journal.
    pub through: Position,
    /// The last of them that is there was queued for hooks up to this queue; `None` if it was for all, as the others were.
    pub reached: Option<LogId>,
}

/// How far the deliveries of a hook have come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Every delivery up to here is finished or parked.
    pub done: Position,
    /// Deliveries after that which are finished or parked, too.
    pub above: BTreeSet<Position>,
    /// Deliveries that wait for a retry.
    pub parked: BTreeMap<Position, Parked>,
    /// Deliveries that the endpoint accepted, ever.
    pub delivered: u64,
    /// Deliveries that were given up, ever.
    pub dead: u64,
    /// Attempts that ended, ever.
    pub attempts: u64,
    /// Dead letters that there are now.
    pub dead_letters: u64,
    /// Deliveries that were removed by clean-up, ever.
    pub forgotten_deliveries: u64,
    /// Attempts whose records were removed by clean-up, ever.
    pub forgotten_attempts: u64,
}

impl Progress {
    /// Whether a delivery is finished or parked.
    pub fn is_settled(&self, position: Position) -> bool {
        position <= self.done || self.above.contains(&position)
    }

    /// Deliveries of which no attempt has ended, given how many were ever queued.
    pub fn pending(&self, queued: u64) -> u64 {
        queued.saturating_sub(self.delivered + self.dead + self.parked.len() as u64)
    }
}

/// A delivery that waits for a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parked {
    /// Attempts that failed.
    pub attempts: u32,
    /// Time of the next attempt.
    pub due: Timestamp,
    /// Delay that was chosen, in milliseconds. However the clock is set, the retry waits no longer.
    pub delay_ms: u32,
}

/// What attempts changed in the state of a hook's deliveries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// New value of [`Progress::done`], if it is higher.
    pub done: Position,
    /// Deliveries above it that were finished or parked.
    pub above: Vec<Position>,
    /// Deliveries that now wait for a retry.
    pub parked: Vec<(Position, Parked)>,
    /// Deliveries that no longer wait for a retry.
    pub unparked: Vec<Position>,
    /// Deliveries that were accepted.
    pub delivered: u64,
    /// Deliveries that were given up and became dead letters.
    pub dead: u64,
    /// Attempts that ended.
    pub attempts: u64,
}

/// Events that are being put into the queue of a hook once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Events up to here were looked at.
    pub cursor: Position,
    /// Last event to look at.
    pub through: Position,
}

/// A replay: the queue of its hook and its number.
pub type ReplayId = (LogId, u64);

/// A change of the tables of hooks.
#[derive(Clone, Debug)]
pub enum Change {
    /// Opens the feed of a project. Refused if it is open.
    Open {
        /// The project.
        project: ProjectId,
        /// The feed.
        feed: Feed,
    },
    /// Closes the feed of a project. Refused while it has hooks.
    Close {
        /// The project.
        project: ProjectId,
    },
    /// Changes nothing. Refused if hooks of the project have changed since.
    Expect {
        /// The project.
        project: ProjectId,
        /// The expected version of the feed.
        version: u64,
    },
    /// Moves the cursor of a journal. Refused if it is not where it is expected to be.
    Advance {
        /// The project.
        project: ProjectId,
        /// The expected cursor.
        was: Cursor,
        /// The new cursor.
        now: Cursor,
    },
    /// Creates a hook. Refused if an equal one exists, or if the project has too many.
    Create {
        /// Queue of the hook.
        queue: LogId,
        /// The hook.
        hook: Arc<Hook>,
        /// Maximum number of hooks of the project.
        most: usize,
    },
    /// Replaces a hook. Refused if it was changed since, or if an equal one exists.
    Set {
        /// Queue of the hook.
        queue: LogId,
        /// Time of its last change, as it is expected to be.
        was: Timestamp,
        /// The hook.
        hook: Arc<Hook>,
    },
    /// Deactivates a hook. Changes nothing if it is inactive or does not exist.
    Deactivate {
        /// Queue of the hook.
        queue: LogId,
        /// Tail of the project's events.
        since: Position,
        /// Time of the change.
        at: Timestamp,
    },
    /// Removes a hook, its deliveries and its replays. Refused if it does not exist.
    Remove {
        /// Queue of the hook.
        queue: LogId,
    },
    /// Records what attempts came to. Changes nothing if the hook does not exist.
    Settle {
        /// Queue of the hook.
        queue: LogId,
        /// What changed.
        settled: Settled,
    },
    /// Records that dead letters or finished deliveries were removed. Changes nothing if the hook does not exist.
    Forget {
        /// Queue of the hook.
        queue: LogId,
        /// Dead letters that were removed.
        dead_letters: u64,
        /// Deliveries that were removed.
        deliveries: u64,
        /// Attempts whose records were removed.
        attempts: u64,
    },
    /// Begins a replay. Refused if the hook does not exist or has too many.
    BeginReplay {
        /// Queue of the hook.
        queue: LogId,
        /// Events to replay.
        replay: Replay,
        /// Maximum number of replays of the hook.
        most: usize,
    },
    /// Moves the cursor of a replay. The replay ends when it has reached its end. Refused if the cursor is not where it is
    /// expected to be.
    AdvanceReplay {
        /// The replay.
        replay: ReplayId,
        /// The expected cursor.
        was: Position,
        /// The new cursor.
        now: Position,
    },
    /// Restores the state of a hook's deliveries from a snapshot.
    RestoreProgress {
        /// Queue of the hook.
        queue: LogId,
        /// The state.
        progress: Arc<Progress>,
    },
    /// Restores a replay from a snapshot.
    RestoreReplay {
        /// The replay.
        id: ReplayId,
        /// Its state.
        replay: Replay,
    },
}

/// Why a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// The row was changed concurrently.
    #[error("the hooks were changed concurrently")]
    Moved,
    /// The hook does not exist.
    #[error("there is no such hook")]
    NoSuchHook,
    /// A hook with the same target, pattern and method exists.
    #[error("there is such a hook already")]
    Exists,
    /// The project has the maximum number of hooks.
    #[error("a project has at most {most} hooks")]
    TooMany {
        /// The limit.
        most: usize,
    },
    /// The hook has the maximum number of replays under way.
    #[error("a hook has at most {most} replays at a time")]
    TooManyReplays {
        /// The limit.
        most: usize,
    },
}

impl log::Change for Change {
    type Refusal = Declined;
}

/// The tables of all hooks, in memory.
#[derive(Debug, Default)]
pub struct Table {
    feeds: SnapshotMap<ProjectId, Arc<Feed>>,
    hooks: SnapshotMap<LogId, Arc<Hook>>,
    progress: SnapshotMap<LogId, Arc<Progress>>,
    replays: SnapshotMap<ReplayId, Replay>,
    /// Projects by their journals.
    journals: HashMap<LogId, ProjectId>,
    /// Queues by the ids of hooks.
    ids: BTreeMap<HookId, LogId>,
    /// Queues of each project, by the ids of their hooks.
    of_projects: HashMap<ProjectId, BTreeMap<HookId, LogId>>,
    identities: HashMap<Identity, LogId>,
}

/// A row of the tables of hooks, as it is stored.
#[derive(Clone, Debug)]
pub enum Kept {
    /// The feed of a project.
    Feed(ProjectId, Arc<Feed>),
    /// A hook.
    Hook(LogId, Arc<Hook>),
    /// The state of a hook's deliveries.
    Progress(LogId, Arc<Progress>),
    /// A replay.
    Replay(ReplayId, Replay),
}

impl Table {
    /// The feed of a project.
    pub fn feed(&self, project: &ProjectId) -> Option<&Arc<Feed>> {
        self.feeds.get(project)
    }

    /// All feeds.
    pub fn feeds(&self) -> impl Iterator<Item = (&ProjectId, &Arc<Feed>)> {
        self.feeds.iter()
    }

    /// The project whose journal this is.
    pub fn project_of_journal(&self, journal: LogId) -> Option<&ProjectId> {
        self.journals.get(&journal)
    }

    /// A hook, by its queue.
    pub fn hook(&self, queue: LogId) -> Option<&Arc<Hook>> {
        self.hooks.get(&queue)
    }

    /// The queue of a hook.
    pub fn queue(&self, id: HookId) -> Option<LogId> {
        self.ids.get(&id).copied()
    }

    /// All hooks, by their queues.
    pub fn hooks(&self) -> impl Iterator<Item = (LogId, &Arc<Hook>)> {
        self.hooks.iter().map(|(queue, hook)| (*queue, hook))
    }

    /// Hooks of a project, or of all projects, newest first, older than the given one.
    pub fn newest<'a>(
        &'a self,
        project: Option<&ProjectId>,
        before: Option<HookId>,
    ) -> Box<dyn Iterator<Item = (LogId, &'a Arc<Hook>)> + 'a> {
        let range = (Bound::Unbounded, before.map_or(Bound::Unbounded, Bound::Excluded));
        let ids = match project {
            None => Some(&self.ids),
            Some(project) => self.of_projects.get(project),
        };
        let queues = ids.into_iter().flat_map(move |ids| ids.range(range).rev().map(|(_, queue)| *queue));
        Box::new(queues.filter_map(|queue| Some((queue, self.hooks.get(&queue)?))))
    }

    /// The mask of all hooks, if there are any.
    pub fn id_mask(&self) -> Option<IdMask> {
        self.hooks.iter().next().map(|(_, hook)| hook.id_mask)
    }

    /// Number of hooks of a project.
    pub fn hooks_of(&self, project: &ProjectId) -> usize {
        self.of_projects.get(project).map_or(0, BTreeMap::len)
    }

    /// Number of hooks.
    pub fn len(&self) -> usize {
        self.hooks.len()
    }

    /// Whether there are no hooks.
    pub fn is_empty(&self) -> bool {
        self.hooks.is_empty()
    }

    /// State of a hook's deliveries. `None` if the hook does not exist or nothing was attempted yet.
    pub fn progress(&self, queue: LogId) -> Option<&Arc<Progress>> {
        self.progress.get(&queue)
    }

    /// Queues up to `most`, in order, after the given one.
    pub fn queues(&self, after: Option<LogId>, most: usize) -> Vec<LogId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.hooks.range((from, Bound::Unbounded)).take(most).map(|(queue, _)| *queue).collect()
    }

    /// A replay.
    pub fn replay(&self, id: ReplayId) -> Option<&Replay> {
        self.replays.get(&id)
    }

    /// All replays.
    pub fn replays(&self) -> impl Iterator<Item = (ReplayId, &Replay)> {
        self.replays.iter().map(|(id, replay)| (*id, replay))
    }

    /// Replays of a hook.
    pub fn replays_of(&self, queue: LogId) -> impl Iterator<Item = (ReplayId, &Replay)> {
        self.replays.range((queue, 0)..=(queue, u64::MAX)).map(|(id, replay)| (*id, replay))
    }

    /// Whether a hook other than the one with this queue has this identity.
    fn is_taken(&self, identity: &Identity, queue: LogId) -> bool {
        self.identities.get(identity).is_some_and(|other| *other != queue)
    }

    fn insert(&mut self, queue: LogId, hook: Arc<Hook>) {
        self.ids.insert(hook.id, queue);
        self.of_projects.entry(hook.project.clone()).or_default().insert(hook.id, queue);
        self.identities.insert(hook.settings.identity(&hook.project), queue);
        self.touch(&hook.project);
        self.hooks.insert(queue, hook);
    }

    fn remove(&mut self, queue: LogId) {
        let replays: Vec<_> = self.replays_of(queue).map(|(id, _)| id).collect();
        for id in replays {
            self.replays.remove(&id);
        }
        self.progress.remove(&queue);
        let Some(hook) = self.hooks.remove(&queue) else { return };
        self.ids.remove(&hook.id);
        self.identities.remove(&hook.settings.identity(&hook.project));
        if let Some(hooks) = self.of_projects.get_mut(&hook.project) {
            hooks.remove(&hook.id);
            if hooks.is_empty() {
                self.of_projects.remove(&hook.project);
            }
        }
        self.touch(&hook.project);
    }

    /// Counts a change of the hooks of a project.
    fn touch(&mut self, project: &ProjectId) {
        if let Some(feed) = self.feeds.get_mut(project) {
            Arc::make_mut(feed).version += 1;
        }
    }

    fn replace(&mut self, queue: LogId, hook: Arc<Hook>) {
        let Some(before) = self.hooks.get(&queue) else { return };
        let (old, new) = (before.settings.identity(&before.project), hook.settings.identity(&hook.project));
        let hears_alike = before.settings.pattern == hook.settings.pattern
            && before.settings.filter == hook.settings.filter
            && before.is_active() == hook.is_active();
        if old != new {
            self.identities.remove(&old);
            self.identities.insert(new, queue);
        }
        if !hears_alike {
            self.touch(&hook.project);
        }
        self.hooks.insert(queue, hook);
    }

    fn deactivate(&mut self, queue: LogId, since: Position, at: Timestamp) {
        let Some(hook) = self.hooks.get(&queue).filter(|hook| hook.is_active()) else { return };
        let hook = Arc::new(hook.deactivated(since, at));
        self.replace(queue, hook);
    }

    fn settle(&mut self, queue: LogId, settled: Settled) {
        if !self.hooks.contains_key(&queue) {
            return;
        }
        let progress = Arc::make_mut(self.progress.or_insert_with(queue, Arc::default));
        progress.done = progress.done.max(settled.done);
        progress.above.extend(settled.above);
        if progress.above.first().is_some_and(|first| *first <= progress.done) {
            progress.above = progress.above.split_off(&progress.done);
            progress.above.remove(&progress.done);
        }
        for position in &settled.unparked {
            progress.parked.remove(position);
        }
        progress.parked.extend(settled.parked);
        progress.delivered += settled.delivered;
        progress.dead += settled.dead;
        progress.dead_letters += settled.dead;
        progress.attempts += settled.attempts;
    }

    fn forget(&mut self, queue: LogId, dead_letters: u64, deliveries: u64, attempts: u64) {
        let Some(progress) = self.progress.get_mut(&queue) else { return };
        let progress = Arc::make_mut(progress);
        progress.dead_letters = progress.dead_letters.saturating_sub(dead_letters);
        progress.forgotten_deliveries += deliveries;
        progress.forgotten_attempts += attempts;
    }

    /// Number for a new replay of a hook.
    fn next_replay(&self, queue: LogId) -> ReplayId {
        let last = self.replays.range((queue, 0)..=(queue, u64::MAX)).last();
        (queue, last.map_or(0, |((_, number), _)| number + 1))
    }
}

impl Snapshots for Table {
    type Row = Kept;

    fn begin_snapshot(&mut self) {
        self.feeds.begin_snapshot();
        self.hooks.begin_snapshot();
        self.progress.begin_snapshot();
        self.replays.begin_snapshot();
    }

    fn next_rows(&mut self, most: usize) -> Option<Vec<Kept>> {
        if let Some(rows) = self.hooks.next_rows(most) {
            return Some(rows.into_iter().map(|(queue, hook)| Kept::Hook(queue, hook)).collect());
        }
        // After the hooks, so that restoring those does not raise its version.
        if let Some(rows) = self.feeds.next_rows(most) {
            return Some(rows.into_iter().map(|(project, feed)| Kept::Feed(project, feed)).collect());
        }
        if let Some(rows) = self.progress.next_rows(most) {
            return Some(rows.into_iter().map(|(queue, progress)| Kept::Progress(queue, progress)).collect());
        }
        let rows = self.replays.next_rows(most)?;
        Some(rows.into_iter().map(|(id, replay)| Kept::Replay(id, replay)).collect())
    }

    fn end_snapshot(&mut self) {
        self.feeds.end_snapshot();
        self.hooks.end_snapshot();
        self.progress.end_snapshot();
        self.replays.end_snapshot();
    }

    fn restore(row: Kept, change: &mut dyn FnMut(Change)) {
        change(match row {
            Kept::Feed(project, feed) => Change::Open { project, feed: Feed::clone(&feed) },
            Kept::Hook(queue, hook) => Change::Create { queue, hook, most: usize::MAX },
            Kept::Progress(queue, progress) => Change::RestoreProgress { queue, progress },
            Kept::Replay(id, replay) => Change::RestoreReplay { id, replay },
        });
    }
}

impl StateMachine for Table {
    type Change = Change;

    fn validate(&self, change: &Change) -> Result<(), Declined> {
        let holds = |holds: bool, declined: Declined| if holds { Ok(()) } else { Err(declined) };
        match change {
            Change::Open { project, .. } => holds(!self.feeds.contains_key(project), Declined::Moved),
            Change::Close { project } => holds(self.hooks_of(project) == 0, Declined::Moved),
            Change::Expect { project, version } => {
                holds(self.feed(project).is_some_and(|feed| feed.version == *version), Declined::Moved)
            }
            Change::Advance { project, was, .. } => {
                holds(self.feed(project).is_some_and(|feed| feed.cursor == *was), Declined::Moved)
            }
            Change::Create { queue, hook, most } => {
                let taken = self.is_taken(&hook.settings.identity(&hook.project), *queue);
                holds(!taken, Declined::Exists)?;
                let fresh = !self.hooks.contains_key(queue) && !self.ids.contains_key(&hook.id);
                let same = self.id_mask().is_none_or(|mask| mask == hook.id_mask);
                holds(fresh && same, Declined::Moved)?;
                holds(self.hooks_of(&hook.project) < *most, Declined::TooMany { most: *most })
            }
            Change::Set { queue, was, hook } => {
                let before = self.hook(*queue).ok_or(Declined::NoSuchHook)?;
                holds(before.updated_at == *was, Declined::Moved)?;
                let taken = self.is_taken(&hook.settings.identity(&hook.project), *queue);
                holds(!taken, Declined::Exists)
            }
            Change::Remove { queue } => holds(self.hooks.contains_key(queue), Declined::NoSuchHook),
            Change::BeginReplay { queue, most, .. } => {
                holds(self.hooks.contains_key(queue), Declined::NoSuchHook)?;
                let few = self.replays_of(*queue).count() < *most;
                holds(few, Declined::TooManyReplays { most: *most })
            }
            Change::AdvanceReplay { replay, was, .. } => {
                holds(self.replay(*replay).is_some_and(|replay| replay.cursor == *was), Declined::Moved)
            }
            // Valid even if the hook is gone; then they change nothing.
            Change::Deactivate { .. } | Change::Settle { .. } | Change::Forget { .. } => Ok(()),
            Change::RestoreProgress { .. } | Change::RestoreReplay { .. } => Ok(()),
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Open { project, feed } => {
                self.journals.insert(feed.journal, project.clone());
                self.feeds.insert(project, Arc::new(feed));
            }
            Change::Close { project } => {
                if let Some(feed) = self.feeds.remove(&project) {
                    self.journals.remove(&feed.journal);
                }
            }
            Change::Expect { .. } => {}
            Change::Advance { project, now, .. } => {
                if let Some(feed) = self.feeds.get_mut(&project) {
                    Arc::make_mut(feed).cursor = now;
                }
            }
            Change::Create { queue, hook, .. } => self.insert(queue, hook),
            Change::Set { queue, hook, .. } => self.replace(queue, hook),
            Change::Deactivate { queue, since, at } => self.deactivate(queue, since, at),
            Change::Remove { queue } => self.remove(queue),
            Change::Settle { queue, settled } => self.settle(queue, settled),
            Change::Forget { queue, dead_letters, deliveries, attempts } => {
                self.forget(queue, dead_letters, deliveries, attempts);
            }
            Change::BeginReplay { queue, replay, .. } => {
                let id = self.next_replay(queue);
                self.replays.insert(id, replay);
            }
            Change::AdvanceReplay { replay: id, now, .. } => {
                let Some(replay) = self.replays.get_mut(&id) else { return };
                replay.cursor = now;
                if replay.cursor >= replay.through {
                    self.replays.remove(&id);
                }
            }
            Change::RestoreProgress { queue, progress } => {
                self.progress.insert(queue, progress);
            }
            Change::RestoreReplay { id, replay } => {
                self.replays.insert(id, replay);
            }
        }
    }
}

#[cfg(test)]
#[path = "table/tests.rs"]
mod tests;
