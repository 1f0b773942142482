//! Stored state of subscriptions: what owners chose, states of wakes, keys of projects, and links.
//!
//! A link is a subscription's cursor on one stream. Links by pattern are made and removed where the table of streams applies the
//! creation and the end of a stream, in the same commit: [`StandsOn::on_base_change`]. An append changes nothing here; what is
//! pending is told by the tail of the stream's log.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use tidings_engine::log::{self, SnapshotMap, Snapshots, StandsOn, StateMachine, Status};
use tidings_engine::matching::Matcher;
use tidings_model::{LogId, Position, ProjectId, StreamId, limits};
use tidings_streams::{Change as StreamChange, StreamKey};

use crate::glob;
use crate::keys::Seed;
use crate::subscription::{Phase, State, Subscription, SubscriptionId};

/// A subscription's cursor on one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Log of the stream. `None` while there is no stream of that id.
    pub log: Option<LogId>,
    /// Position up to which the stream was acknowledged.
    pub acked: Position,
    /// Whether the pattern links the stream.
    pub glob: bool,
    /// Whether the owner named the stream.
    pub explicit: bool,
}

/// A link to be made. One that exists keeps its cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLink {
    /// Id of the stream.
    pub stream: StreamId,
    /// Log of the stream, if it exists.
    pub log: Option<LogId>,
    /// Position up to which nothing is pending.
    pub acked: Position,
    /// Who links the stream.
    pub kind: LinkKind,
}

/// Who links a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// The pattern.
    Glob,
    /// The owner.
    Explicit,
}

/// A change of the table of subscriptions. Subscriptions are named by their number, which is never used again.
#[derive(Clone, Debug)]
pub enum Change {
    /// A change of streams in the same commit.
    Streams(StreamChange),
    /// Gives a project its keys.
    Key {
        /// The project.
        project: ProjectId,
        /// The seed of the keys.
        seed: Seed,
    },
    /// Creates a subscription.
    Create {
        /// Number of the subscription.
        number: LogId,
        /// The subscription.
        subscription: Arc<Subscription>,
        /// The most subscriptions that the project may have with it.
        most: usize,
    },
    /// Links streams.
    Link {
        /// Number of the subscription.
        number: LogId,
        /// The links.
        links: Vec<NewLink>,
        /// The phase that the subscription must be in, and its next one. `None` for any but the end.
        phase: Option<(Phase, Phase)>,
    },
    /// Removes what an owner linked explicitly. Changes nothing if there is no such link.
    Unlink {
        /// Number of the subscription.
        number: LogId,
        /// Id of the stream.
        stream: StreamId,
    },
    /// Sets the state of the wakes, and moves cursors.
    Update {
        /// Number of the subscription.
        number: LogId,
        /// Version of the state that it rests on.
        was: u64,
        /// The new state.
        state: State,
        /// New cursors. None moves backwards.
        acks: Vec<(StreamId, Position)>,
    },
    /// Ends a subscription: it is found by its number only, and its id is free.
    End {
        /// Number of the subscription.
        number: LogId,
    },
    /// Removes links of a subscription that has ended, and the subscription with the last of them.
    Clear {
        /// Number of the subscription.
        number: LogId,
        /// Ids of the streams.
        streams: Vec<StreamId>,
    },
    /// Removes the keys of a project.
    Forget {
        /// The project.
        project: ProjectId,
    },
    /// Restores a link from storage.
    Restore {
        /// Number of the subscription.
        number: LogId,
        /// Id of the stream.
        stream: StreamId,
        /// The link.
        link: Link,
    },
}

/// Why the table refuses a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// The table of streams refuses its change.
    #[error(transparent)]
    Streams(#[from] tidings_streams::table::Declined),
    /// The state has changed since the caller read it, or the subscription is gone.
    #[error("somebody else changed it")]
    Moved,
    /// The project has a subscription of this id.
    #[error("the subscription exists")]
    Exists,
    /// The project has too many subscriptions.
    #[error("the project has too many subscriptions")]
    TooMany,
    /// The subscription, or the project, has too many links.
    #[error("there are too many links")]
    TooManyLinks,
}

impl log::Change for Change {
    type Refusal = Declined;
}

/// A row of a snapshot.
#[derive(Clone, Debug)]
pub enum Row {
    /// Keys of a project.
    Key(ProjectId, Seed),
    /// A subscription.
    Subscription(LogId, Arc<Subscription>),
    /// A link.
    Link(LogId, StreamId, Link),
}

/// What is known of a project with subscriptions.
#[derive(Debug, Default)]
struct Project {
    subscriptions: usize,
    links: usize,
    /// Patterns of the subscriptions in use. Shared, because compacting it takes longer than a change may.
    patterns: Arc<Matcher<LogId>>,
}

/// How many links there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    /// Maximum number of streams that one subscription is linked to.
    pub per_subscription: usize,
    /// Maximum number of links of all subscriptions of a project.
    pub per_project: usize,
}

impl Default for LinkLimits {
    fn default() -> Self {
        Self { per_subscription: limits::LINKS_PER_SUBSCRIPTION, per_project: limits::LINKS_PER_PROJECT }
    }
}

/// The table of subscriptions, in memory.
#[derive(Debug, Default)]
pub struct Table {
    limits: LinkLimits,
    keys: SnapshotMap<ProjectId, Seed>,
    subscriptions: SnapshotMap<LogId, Arc<Subscription>>,
    links: SnapshotMap<(LogId, StreamId), Link>,
    names: BTreeMap<(ProjectId, SubscriptionId), LogId>,
    projects: HashMap<ProjectId, Project>,
    /// Number of links of each subscription that has any.
    counts: HashMap<LogId, usize>,
    /// The subscriptions that each stream is linked to.
    streams: HashMap<StreamKey, BTreeSet<LogId>>,
}

/// A link, with the tail of its stream at the same moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linked {
    /// Id of the stream.
    pub stream: StreamId,
    /// The link.
    pub link: Link,
    /// Tail of the stream; zero if there is none.
    pub tail: Position,
}

impl Linked {
    /// Whether the stream has records that were not acknowledged.
    pub fn is_pending(&self) -> bool {
        self.tail > self.link.acked
    }
}

impl Table {
    /// An empty table with other limits than those of [`limits`], for tests.
    #[cfg(any(test, feature = "contract-suite"))]
    pub fn with_limits(limits: LinkLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// The keys of a project.
    pub fn key(&self, project: &ProjectId) -> Option<&Seed> {
        self.keys.get(project)
    }

    /// The subscription of this id that has not ended.
    pub fn find(&self, project: &ProjectId, id: &SubscriptionId) -> Option<(LogId, &Arc<Subscription>)> {
        let number = *self.names.get(&(project.clone(), id.clone()))?;
        self.get(number).map(|subscription| (number, subscription))
    }

    /// A subscription, also one that has ended.
    pub fn get(&self, number: LogId) -> Option<&Arc<Subscription>> {
        self.subscriptions.get(&number)
    }

    /// Subscriptions after this one, also those that have ended, at most so many.
    pub fn numbers(&self, after: Option<LogId>, most: usize) -> Vec<LogId> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.subscriptions.range((start, Bound::Unbounded)).take(most).map(|(number, _)| *number).collect()
    }

    /// Subscriptions of a project whose ids sort after this one, at most so many.
    pub fn list(
        &self,
        project: &ProjectId,
        after: Option<&SubscriptionId>,
        most: usize,
    ) -> Vec<(LogId, Arc<Subscription>)> {
        let start = match after {
            Some(after) => Bound::Excluded((project.clone(), after.clone())),
            None => Bound::Included((project.clone(), SubscriptionId::least())),
        };
        let own =
            self.names.range((start, Bound::Unbounded)).take_while(|((of, _), _)| of == project).take(most);
        own.filter_map(|(_, number)| self.get(*number).map(|one| (*number, one.clone()))).collect()
    }

    /// Number of links of a subscription.
    pub fn link_count(&self, number: LogId) -> usize {
        self.counts.get(&number).copied().unwrap_or(0)
    }

    /// Links of a subscription whose stream ids sort after this one, at most so many.
    pub fn links(
        &self,
        number: LogId,
        after: Option<&StreamId>,
        most: usize,
        status: &dyn Fn(LogId) -> Option<Status>,
    ) -> Vec<Linked> {
        self.links_after(number, after)
            .take(most)
            .map(|(stream, link)| linked(stream.clone(), *link, status))
            .collect()
    }

    fn links_after(
        &self,
        number: LogId,
        after: Option<&StreamId>,
    ) -> impl Iterator<Item = (&StreamId, &Link)> {
        let start = match after {
            Some(after) => Bound::Excluded((number, after.clone())),
            None => Bound::Included((number, least())),
        };
        let rows = self.links.range((start, Bound::Unbounded));
        rows.take_while(move |((of, _), _)| *of == number).map(|((_, stream), link)| (stream, link))
    }

    /// One link of a subscription.
    pub fn link(
        &self,
        number: LogId,
        stream: &StreamId,
        status: &dyn Fn(LogId) -> Option<Status>,
    ) -> Option<Linked> {
        let link = self.links.get(&(number, stream.clone()))?;
        Some(linked(stream.clone(), *link, status))
    }

    /// The links of a stream, each with its subscription.
    pub fn of_stream(
        &self,
        key: &StreamKey,
        status: &dyn Fn(LogId) -> Option<Status>,
    ) -> Vec<(LogId, Linked)> {
        let numbers = self.streams.get(key).into_iter().flatten();
        numbers.filter_map(|number| self.link(*number, &key.id, status).map(|one| (*number, one))).collect()
    }

    /// Number of subscriptions that a stream is linked to.
    pub fn linked_to(&self, key: &StreamKey) -> usize {
        self.streams.get(key).map_or(0, BTreeSet::len)
    }

    /// Matchers that are to be compacted. Compact them without the lock of the store.
    pub fn patterns_due(&self) -> Vec<Arc<Matcher<LogId>>> {
        let due = self.projects.values().filter(|project| project.patterns.compact_due());
        due.map(|project| project.patterns.clone()).collect()
    }

    /// Whether the project's patterns stay cheap to match with this one.
    pub fn admits(&self, project: &ProjectId, pattern: &tidings_model::Pattern) -> bool {
        self.projects.get(project).is_none_or(|project| project.patterns.admits(pattern))
    }

    fn put(&mut self, number: LogId, subscription: Arc<Subscription>) {
        let project = self.projects.entry(subscription.project.clone()).or_default();
        project.subscriptions += 1;
        if subscription.phase != Phase::Ended {
            self.names.insert((subscription.project.clone(), subscription.id.clone()), number);
            if let Some(pattern) = &subscription.config.pattern {
                project.patterns.insert(pattern.pattern(), number);
            }
        }
        self.subscriptions.insert(number, subscription);
    }

    fn put_link(&mut self, number: LogId, project: &ProjectId, stream: StreamId, link: Link) {
        let key = StreamKey { project: project.clone(), id: stream.clone() };
        if self.links.insert((number, stream), link).is_none() {
            *self.counts.entry(number).or_default() += 1;
            self.projects.entry(project.clone()).or_default().links += 1;
            self.streams.entry(key).or_default().insert(number);
        }
    }

    fn remove_link(&mut self, number: LogId, project: &ProjectId, stream: &StreamId) {
        if self.links.remove(&(number, stream.clone())).is_none() {
            return;
        }
        if let Some(count) = self.counts.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&number);
            }
        }
        if let Some(project) = self.projects.get_mut(project) {
            project.links -= 1;
        }
        let key = StreamKey { project: project.clone(), id: stream.clone() };
        if let Some(numbers) = self.streams.get_mut(&key) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.streams.remove(&key);
            }
        }
    }

    /// Makes a link, or adds to one.
    fn join(&mut self, number: LogId, subscription: &Subscription, new: NewLink) {
        let glob = subscription.config.links(&new.stream);
        let (glob, explicit) = (glob || new.kind == LinkKind::Glob, new.kind == LinkKind::Explicit);
        let link = match self.links.get(&(number, new.stream.clone())) {
            None => Link { log: new.log, acked: new.acked, glob, explicit },
            Some(now) => Link {
                log: now.log.or(new.log),
                acked: now.acked,
                glob: glob || now.glob,
                explicit: explicit || now.explicit,
            },
        };
        self.put_link(number, &subscription.project, new.stream, link);
    }

    fn has_room(&self, project: &ProjectId, number: LogId, more: usize) -> bool {
        let all = self.projects.get(project).map_or(0, |project| project.links);
        self.link_count(number) + more <= self.limits.per_subscription
            && all + more <= self.limits.per_project
    }

    fn begin_stream(&mut self, key: &StreamKey, log: LogId) {
        let Some(project) = self.projects.get(&key.project) else { return };
        let mut numbers = Vec::new();
        project.patterns.matches(&glob::name(key.id.as_str()), &mut numbers);
        let named = self.streams.get(key).into_iter().flatten();
        let named: Vec<_> = named.filter(|number| !numbers.contains(number)).copied().collect();
        for number in numbers.into_iter().chain(named) {
            let Some(subscription) = self.get(number).cloned() else { continue };
            let glob = subscription.phase != Phase::Ended && subscription.config.links(&key.id);
            match self.links.get(&(number, key.id.clone())).copied() {
                // Everything in it is pending, also what it begins with.
                Some(link) => {
                    let link =
                        Link { log: Some(log), acked: Position::ZERO, glob: glob || link.glob, ..link };
                    self.put_link(number, &key.project, key.id.clone(), link);
                }
                None if !glob => {}
                None if self.has_room(&key.project, number, 1) => {
                    let link = Link { log: Some(log), acked: Position::ZERO, glob, explicit: false };
                    self.put_link(number, &key.project, key.id.clone(), link);
                }
                None => {
                    if let Some(row) = self.subscriptions.get_mut(&number) {
                        Arc::make_mut(row).unlinked += 1;
                    }
                }
            }
        }
    }

    fn end_stream(&mut self, key: &StreamKey, log: LogId) {
        let Some(numbers) = self.streams.get(key) else { return };
        for number in numbers.iter().copied().collect::<Vec<_>>() {
            let Some(link) = self.links.get(&(number, key.id.clone())).copied() else { continue };
            match link {
                Link { log: of, .. } if of != Some(log) => {}
                // Its owner named it, and may create it again.
                Link { explicit: true, .. } => {
                    let link = Link { log: None, acked: Position::ZERO, ..link };
                    self.put_link(number, &key.project, key.id.clone(), link);
                }
                Link { .. } => self.remove_link(number, &key.project, &key.id),
            }
        }
    }

    fn clear(&mut self, number: LogId, streams: &[StreamId]) {
        let Some(subscription) = self.get(number).cloned() else { return };
        streams.iter().for_each(|stream| self.remove_link(number, &subscription.project, stream));
        if self.link_count(number) > 0 {
            return;
        }
        self.subscriptions.remove(&number);
        if let Some(project) = self.projects.get_mut(&subscription.project) {
            project.subscriptions -= 1;
            if project.subscriptions == 0 {
                self.projects.remove(&subscription.project);
            }
        }
    }

    fn living(&self, number: LogId) -> Result<&Arc<Subscription>, Declined> {
        self.get(number).filter(|subscription| subscription.phase != Phase::Ended).ok_or(Declined::Moved)
    }
}

/// The id that no stream id sorts before.
fn least() -> StreamId {
    StreamId::parse(" ").expect("a space is no control character")
}

fn linked(stream: StreamId, link: Link, status: &dyn Fn(LogId) -> Option<Status>) -> Linked {
    let tail = link.log.and_then(status).map_or(Position::ZERO, |status| status.tail);
    Linked { stream, link, tail }
}

impl StandsOn<tidings_streams::Table> for Table {
    fn base_change(change: Change) -> Result<StreamChange, Change> {
        match change {
            Change::Streams(change) => Ok(change),
            change => Err(change),
        }
    }

    fn base_refusal(refusal: tidings_streams::table::Declined) -> Declined {
        Declined::Streams(refusal)
    }

    fn on_base_change(&mut self, change: &StreamChange) {
        if self.projects.is_empty() {
            return;
        }
        match change {
            StreamChange::Create { key, stream } => self.begin_stream(key, stream.log),
            StreamChange::Retire { key, log, .. } | StreamChange::Remove { key, log, .. } => {
                self.end_stream(key, *log);
            }
            StreamChange::Expect { .. }
            | StreamChange::Renew { .. }
            | StreamChange::Trim { .. }
            | StreamChange::Restore { .. } => {}
        }
    }
}

impl Snapshots for Table {
    type Row = Row;

    fn begin_snapshot(&mut self) {
        self.keys.begin_snapshot();
        self.subscriptions.begin_snapshot();
        self.links.begin_snapshot();
    }

    fn next_rows(&mut self, most: usize) -> Option<Vec<Row>> {
        if let Some(rows) = self.keys.next_rows(most) {
            return Some(rows.into_iter().map(|(project, seed)| Row::Key(project, seed)).collect());
        }
        if let Some(rows) = self.subscriptions.next_rows(most) {
            return Some(rows.into_iter().map(|(number, row)| Row::Subscription(number, row)).collect());
        }
        let rows = self.links.next_rows(most)?;
        Some(rows.into_iter().map(|((number, stream), link)| Row::Link(number, stream, link)).collect())
    }

    fn end_snapshot(&mut self) {
        self.keys.end_snapshot();
        self.subscriptions.end_snapshot();
        self.links.end_snapshot();
    }

    fn restore(row: Row, change: &mut dyn FnMut(Change)) {
        change(match row {
            Row::Key(project, seed) => Change::Key { project, seed },
            Row::Subscription(number, subscription) => {
                Change::Create { number, subscription, most: usize::MAX }
            }
            Row::Link(number, stream, link) => Change::Restore { number, stream, link },
        });
    }
}

impl StateMachine for Table {
    type Change = Change;

    fn validate(&self, change: &Change) -> Result<(), Declined> {
        match change {
            Change::Streams(_) | Change::Forget { .. } | Change::Restore { .. } => Ok(()),
            Change::Key { project, .. } if self.keys.contains_key(project) => Err(Declined::Moved),
            Change::Key { .. } => Ok(()),
            Change::Create { subscription, most, .. } => {
                let name = (subscription.project.clone(), subscription.id.clone());
                let others =
                    self.projects.get(&subscription.project).map_or(0, |project| project.subscriptions);
                match subscription.phase {
                    Phase::Ended => Ok(()),
                    _ if self.names.contains_key(&name) => Err(Declined::Exists),
                    _ if others >= *most => Err(Declined::TooMany),
                    _ => Ok(()),
                }
            }
            Change::Link { number, links, phase } => {
                let subscription = self.living(*number)?;
                if phase.as_ref().is_some_and(|(was, _)| *was != subscription.phase) {
                    return Err(Declined::Moved);
                }
                let is_new = |link: &&NewLink| !self.links.contains_key(&(*number, link.stream.clone()));
                let more = links.iter().filter(is_new).count();
                let room = more == 0 || self.has_room(&subscription.project, *number, more);
                if room { Ok(()) } else { Err(Declined::TooManyLinks) }
            }
            Change::Update { number, was, .. } => match self.living(*number)?.state.version == *was {
                true => Ok(()),
                false => Err(Declined::Moved),
            },
            Change::Unlink { number, .. } | Change::End { number } => self.living(*number).map(|_| ()),
            Change::Clear { number, .. } => match self.get(*number) {
                Some(subscription) if subscription.phase == Phase::Ended => Ok(()),
                _ => Err(Declined::Moved),
            },
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Streams(_) => {}
            Change::Key { project, seed } => {
                self.keys.insert(project, seed);
            }
            Change::Forget { project } => {
                self.keys.remove(&project);
            }
            Change::Create { number, subscription, .. } => self.put(number, subscription),
            Change::Link { number, links, phase } => {
                let Some(row) = self.subscriptions.get_mut(&number) else { return };
                if let Some((_, phase)) = phase {
                    Arc::make_mut(row).phase = phase;
                }
                let subscription = row.clone();
                links.into_iter().for_each(|new| self.join(number, &subscription, new));
            }
            Change::Unlink { number, stream } => {
                let Some(subscription) = self.get(number).cloned() else { return };
                let Some(link) = self.links.get(&(number, stream.clone())).copied() else { return };
                if link.glob && link.log.is_some() {
                    self.put_link(number, &subscription.project, stream, Link { explicit: false, ..link });
                } else {
                    self.remove_link(number, &subscription.project, &stream);
                }
            }
            Change::Update { number, state, acks, .. } => {
                let Some(row) = self.subscriptions.get_mut(&number) else { return };
                Arc::make_mut(row).state = state;
                for (stream, acked) in acks {
                    if let Some(link) = self.links.get_mut(&(number, stream)) {
                        link.acked = link.acked.max(acked);
                    }
                }
            }
            Change::End { number } => {
                let Some(row) = self.subscriptions.get_mut(&number) else { return };
                let subscription = Arc::make_mut(row);
                subscription.phase = Phase::Ended;
                self.names.remove(&(subscription.project.clone(), subscription.id.clone()));
                if let Some(project) = self.projects.get_mut(&subscription.project)
                    && let Some(pattern) = &subscription.config.pattern
                {
                    project.patterns.remove(pattern.pattern(), number);
                }
            }
            Change::Clear { number, streams } => self.clear(number, &streams),
            Change::Restore { number, stream, link } => {
                if let Some(project) = self.get(number).map(|subscription| subscription.project.clone()) {
                    self.put_link(number, &project, stream, link);
                }
            }
        }
    }
}
