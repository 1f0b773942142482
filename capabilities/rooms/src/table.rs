//! What is stored of rooms beside their events: who has them, who belongs to them, and how far everybody has seen.
//!
//! The rooms of a store belong to one server at a time, who says so by raising the epoch ([`Change::TakeOver`]). Everything
//! it commits from then on carries [`Change::Owned`], which is refused once somebody else has taken over.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::log::{self, Commits, HoldsTables, SnapshotMap, Status, StoreError, Tables};
use tidings_model::{DeviceId, LogId, Position, ProjectId, RoomId, Timestamp, UserId, limits};

/// What rooms need of a store beside its logs.
pub trait Store: Commits<Table> {
    /// Who has the rooms.
    fn epoch(&self) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// The log of the room of that name.
    fn room<'a>(
        &'a self,
        project: &'a ProjectId,
        id: &'a RoomId,
    ) -> BoxFuture<'a, Result<Option<LogId>, StoreError>>;

    /// A room and its log, as they are at one moment.
    fn found(&self, log: LogId) -> BoxFuture<'_, Result<Option<Found>, StoreError>>;

    /// The logs of rooms after one, in order, so many at most.
    fn rooms(&self, after: Option<LogId>, most: usize) -> BoxFuture<'_, Result<Vec<LogId>, StoreError>>;

    /// The logs of some rooms of a project, so many at most.
    fn rooms_of<'a>(
        &'a self,
        project: &'a ProjectId,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<LogId>, StoreError>>;

    /// How far a user has seen a room on each device.
    fn seen<'a>(
        &'a self,
        log: LogId,
        user: &'a UserId,
    ) -> BoxFuture<'a, Result<Option<Arc<Devices>>, StoreError>>;

    /// Looks at so many users, in order, for those with a device that was silent since before a moment.
    fn silent<'a>(
        &'a self,
        after: Option<&'a (LogId, UserId)>,
        before: Timestamp,
        most: usize,
    ) -> BoxFuture<'a, Result<Silent, StoreError>>;
}

/// A room and its log, as they are at one moment.
#[derive(Clone, Debug)]
pub struct Found {
    /// What is stored of the room.
    pub row: Arc<Row>,
    /// Its log.
    pub status: Status,
}

/// A room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The project it belongs to.
    pub project: ProjectId,
    /// Its name there.
    pub id: RoomId,
    /// Who belongs to it, and where its head was when they came.
    pub members: Arc<BTreeMap<UserId, Position>>,
    /// Cursors up to this may have been given to what is not in the log.
    pub reserved: Position,
    /// Events that are left out because later ones replace them, in order.
    pub collapsed: Arc<Vec<Position>>,
}

impl Row {
    /// Whether some may come and some may go.
    pub(crate) fn judge_members(
        &self,
        add: &[UserId],
        remove: &[UserId],
        most: usize,
    ) -> Result<(), Declined> {
        let members = &self.members;
        let leaving = remove.iter().filter(|user| members.contains_key(*user)).count();
        let coming = add.iter().filter(|user| !members.contains_key(*user)).count();
        let left = members.len().saturating_sub(leaving);
        // Who has more than it may, because the limit is lower now, may still let some go.
        if coming > 0 && left + coming > most { Err(Declined::TooManyMembers { most }) } else { Ok(()) }
    }
}

/// How far a user has seen a room on each device, and when that was told.
pub type Devices = BTreeMap<DeviceId, (Position, Timestamp)>;

/// Some users that were looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Silent {
    /// Those among them that have a silent device.
    pub users: Vec<(LogId, UserId)>,
    /// The last that was looked at, if there are more behind.
    pub last: Option<(LogId, UserId)>,
}

/// What can happen to rooms.
#[derive(Clone, Debug)]
pub enum Change {
    /// Somebody takes all rooms over.
    TakeOver {
        /// One more than it was.
        epoch: u64,
    },
    /// Nothing happens; but the rest of the commit is only made if nobody else has taken over.
    Owned {
        /// The epoch of who commits.
        by: u64,
    },
    /// A room begins, or is as it was written down.
    Create {
        /// Its log.
        log: LogId,
        /// The room.
        row: Row,
    },
    /// A room and all that is known of it ends.
    Remove {
        /// Its log.
        log: LogId,
    },
    /// A room has other members.
    Members {
        /// Its log.
        log: LogId,
        /// They belong to it from now on, if they did not.
        add: Vec<UserId>,
        /// They do not any more.
        remove: Vec<UserId>,
        /// The head of the room.
        joined: Position,
        /// How many there may be.
        most: usize,
    },
    /// Cursors may be given to what is not in the log.
    Reserve {
        /// The room's log.
        log: LogId,
        /// Up to this.
        through: Position,
    },
    /// Some events are left out from now on.
    Collapse {
        /// The room's log.
        log: LogId,
        /// They, in order.
        positions: Vec<Position>,
    },
    /// What was left out up to a position is gone.
    Prune {
        /// The room's log.
        log: LogId,
        /// The position.
        through: Position,
    },
    /// A device has seen a room so far.
    See {
        /// The room's log.
        log: LogId,
        /// Whose device.
        user: UserId,
        /// The device.
        device: DeviceId,
        /// So far.
        through: Position,
        /// Now. Counts also if it has seen just as much before.
        at: Timestamp,
        /// What to do if it has seen more before.
        back: Back,
    },
    /// What devices of a user have seen is forgotten if they were silent since before a moment.
    Forget {
        /// The room's log.
        log: LogId,
        /// The user.
        user: UserId,
        /// The moment.
        before: Timestamp,
    },
}

/// What to do when somebody has seen less than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    /// The highest counts.
    Stay,
    /// The last counts.
    Go,
}

/// Why the table refuses a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// Somebody else has taken over.
    #[error("somebody else has taken over")]
    Fenced,
    /// It is not as it was when somebody looked.
    #[error("somebody else changed it")]
    Moved,
    /// There is no such room, or no longer.
    #[error("there is no such room")]
    NoSuchRoom,
    /// There would be too many members.
    #[error("a room has at most {most} members")]
    TooManyMembers {
        /// The limit.
        most: usize,
    },
}

impl log::Change for Change {
    type Refusal = Declined;
}

/// All rooms, in memory.
#[derive(Debug, Default)]
pub struct Table {
    epoch: u64,
    names: HashMap<ProjectId, BTreeMap<RoomId, LogId>>,
    rows: SnapshotMap<LogId, Arc<Row>>,
    seen: SnapshotMap<(LogId, UserId), Arc<Devices>>,
    /// The epoch of a snapshot, until it is read.
    epoch_before: Option<u64>,
}

/// A row of one of the tables of rooms, to be written down.
#[derive(Clone, Debug)]
pub enum Kept {
    /// Who has the rooms.
    Epoch(u64),
    /// A room.
    Room(LogId, Arc<Row>),
    /// How far a user has seen a room.
    Seen(LogId, UserId, Arc<Devices>),
}

impl Kept {
    /// Gives the changes that make the row. A room comes before what was seen of it.
    pub fn restore(self, change: &mut dyn FnMut(Change)) {
        match self {
            Self::Epoch(epoch) => change(Change::TakeOver { epoch }),
            Self::Room(log, row) => change(Change::Create { log, row: Row::clone(&row) }),
            Self::Seen(log, user, devices) => {
                for (device, &(through, at)) in &*devices {
                    let (user, device) = (user.clone(), device.clone());
                    change(Change::See { log, user, device, through, at, back: Back::Go });
                }
            }
        }
    }
}

impl Table {
    /// See [`Store::epoch`].
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// See [`Store::room`].
    pub fn room(&self, project: &ProjectId, id: &RoomId) -> Option<LogId> {
        self.names.get(project)?.get(id).copied()
    }

    /// A room, by its log.
    pub fn row(&self, log: LogId) -> Option<&Arc<Row>> {
        self.rows.get(&log)
    }

    /// See [`Store::found`]; `status` is that of a log at the same moment.
    pub fn found(&self, log: LogId, status: &dyn Fn(LogId) -> Option<Status>) -> Option<Found> {
        Some(Found { row: self.rows.get(&log)?.clone(), status: status(log)? })
    }

    /// See [`Store::rooms`].
    pub fn rooms(&self, after: Option<LogId>, most: usize) -> Vec<LogId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.rows.range((from, Bound::Unbounded)).map(|(log, _)| *log).take(most).collect()
    }

    /// See [`Store::rooms_of`].
    pub fn rooms_of(&self, project: &ProjectId, most: usize) -> Vec<LogId> {
        self.names.get(project).into_iter().flat_map(|names| names.values().copied()).take(most).collect()
    }

    /// How many rooms there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// See [`Store::seen`].
    pub fn seen(&self, log: LogId, user: &UserId) -> Option<&Arc<Devices>> {
        self.seen.get(&(log, user.clone()))
    }

    /// See [`Store::silent`].
    pub fn silent(&self, after: Option<&(LogId, UserId)>, before: Timestamp, most: usize) -> Silent {
        let from = after.cloned().map_or(Bound::Unbounded, Bound::Excluded);
        let mut silent = Silent::default();
        for (looked, (key, devices)) in self.seen.range((from, Bound::Unbounded)).enumerate() {
            if looked == most {
                return silent;
            }
            if devices.values().any(|(_, at)| *at < before) {
                silent.users.push(key.clone());
            }
            silent.last = Some(key.clone());
        }
        Silent { last: None, ..silent }
    }

    /// Begins a snapshot of all that is stored now.
    pub fn begin_snapshot(&mut self) {
        self.epoch_before = Some(self.epoch).filter(|&epoch| epoch > 0);
        self.rows.begin_snapshot();
        self.seen.begin_snapshot();
    }

    /// Gives the snapshot up, if there is one.
    pub fn end_snapshot(&mut self) {
        self.epoch_before = None;
        self.rows.end_snapshot();
        self.seen.end_snapshot();
    }

    /// The next rows of the snapshot, rooms first; none when it is over. Looks at so many at most.
    pub fn next_rows(&mut self, most: usize) -> Option<Vec<Kept>> {
        if let Some(epoch) = self.epoch_before.take() {
            return Some(vec![Kept::Epoch(epoch)]);
        }
        if let Some(rows) = self.rows.next_rows(most) {
            return Some(rows.into_iter().map(|(log, row)| Kept::Room(log, row)).collect());
        }
        let rows = self.seen.next_rows(most)?;
        Some(rows.into_iter().map(|((log, user), devices)| Kept::Seen(log, user, devices)).collect())
    }

    fn remove(&mut self, log: LogId) {
        let from = self.seen.range((log, UserId::least())..).take_while(|((of, _), _)| *of == log);
        let users: Vec<_> = from.map(|(key, _)| key.clone()).collect();
        for key in users {
            self.seen.remove(&key);
        }
        let Some(row) = self.rows.remove(&log) else { return };
        if let Some(names) = self.names.get_mut(&row.project) {
            names.remove(&row.id);
            if names.is_empty() {
                self.names.remove(&row.project);
            }
        }
    }

    fn see(&mut self, log: LogId, user: UserId, device: DeviceId, seen: (Position, Timestamp), back: Back) {
        if !self.rows.contains_key(&log) {
            return;
        }
        let devices = Arc::make_mut(self.seen.or_insert_with((log, user), Arc::default));
        let (through, at) = seen;
        let known = devices.entry(device.clone()).or_insert(seen);
        if back == Back::Go || through > known.0 {
            *known = (through, at);
        } else if through == known.0 {
            // It is still there, and not to be forgotten because nobody writes.
            known.1 = known.1.max(at);
        }
        if devices.len() > limits::DEVICES_PER_MEMBER {
            let others = devices.iter().filter(|(other, _)| **other != device);
            let oldest = others.min_by_key(|(_, (_, at))| *at).map(|(oldest, _)| oldest.clone());
            if let Some(oldest) = oldest {
                devices.remove(&oldest);
            }
        }
    }

    fn forget(&mut self, log: LogId, user: &UserId, before: Timestamp) {
        let key = (log, user.clone());
        let Some(devices) = self.seen.get_mut(&key) else { return };
        let devices = Arc::make_mut(devices);
        devices.retain(|_, (_, at)| *at >= before);
        if devices.is_empty() {
            self.seen.remove(&key);
        }
    }

    /// Does something to a room that is there.
    fn with_row(&mut self, log: LogId, act: impl FnOnce(&mut Row)) {
        if let Some(row) = self.rows.get_mut(&log) {
            act(Arc::make_mut(row));
        }
    }
}

impl Tables for Table {
    type Change = Change;

    fn judge(&self, change: &Change) -> Result<(), Declined> {
        let there = |log: &LogId| {
            if self.rows.contains_key(log) { Ok(()) } else { Err(Declined::NoSuchRoom) }
        };
        let holds = |holds: bool, declined: Declined| if holds { Ok(()) } else { Err(declined) };
        match change {
            Change::TakeOver { epoch } => holds(*epoch > self.epoch, Declined::Moved),
            Change::Owned { by } => holds(*by == self.epoch, Declined::Fenced),
            Change::Create { log, row } => {
                let free = !self.rows.contains_key(log) && self.room(&row.project, &row.id).is_none();
                holds(free, Declined::Moved)
            }
            Change::Members { log, add, remove, most, .. } => {
                self.rows.get(log).ok_or(Declined::NoSuchRoom)?.judge_members(add, remove, *most)
            }
            Change::Remove { log }
            | Change::Reserve { log, .. }
            | Change::Collapse { log, .. }
            | Change::Prune { log, .. } => there(log),
            // Nothing happens if there is nothing it could happen to.
            Change::See { .. } | Change::Forget { .. } => Ok(()),
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::TakeOver { epoch } => self.epoch = epoch,
            Change::Owned { .. } => {}
            Change::Create { log, row } => {
                self.names.entry(row.project.clone()).or_default().insert(row.id.clone(), log);
                self.rows.insert(log, Arc::new(row));
            }
            Change::Remove { log } => self.remove(log),
            Change::Members { log, add, remove, joined, .. } => self.with_row(log, |row| {
                let members = Arc::make_mut(&mut row.members);
                for user in &remove {
                    members.remove(user);
                }
                for user in add {
                    members.entry(user).or_insert(joined);
                }
            }),
            Change::Reserve { log, through } => {
                self.with_row(log, |row| row.reserved = row.reserved.max(through));
            }
            Change::Collapse { log, positions } => self.with_row(log, |row| {
                let collapsed = Arc::make_mut(&mut row.collapsed);
                collapsed.extend(positions);
                collapsed.sort_unstable();
                collapsed.dedup();
            }),
            Change::Prune { log, through } => self.with_row(log, |row| {
                let collapsed = Arc::make_mut(&mut row.collapsed);
                let gone = collapsed.partition_point(|position| *position <= through);
                collapsed.drain(..gone);
                collapsed.shrink_to(2 * collapsed.len());
            }),
            Change::See { log, user, device, through, at, back } => {
                self.see(log, user, device, (through, at), back);
            }
            Change::Forget { log, user, before } => self.forget(log, &user, before),
        }
    }
}

impl<S: HoldsTables<Table>> Store for S {
    fn epoch(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        std::future::ready(Ok(self.look_at(|table, _| table.epoch()))).boxed()
    }

    fn room<'a>(
        &'a self,
        project: &'a ProjectId,
        id: &'a RoomId,
    ) -> BoxFuture<'a, Result<Option<LogId>, StoreError>> {
        std::future::ready(Ok(self.look_at(|table, _| table.room(project, id)))).boxed()
    }

    fn found(&self, log: LogId) -> BoxFuture<'_, Result<Option<Found>, StoreError>> {
        std::future::ready(Ok(self.look_at(|table, status| table.found(log, status)))).boxed()
    }

    fn rooms(&self, after: Option<LogId>, most: usize) -> BoxFuture<'_, Result<Vec<LogId>, StoreError>> {
        std::future::ready(Ok(self.look_at(|table, _| table.rooms(after, most)))).boxed()
    }

    fn rooms_of<'a>(
        &'a self,
        project: &'a ProjectId,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<LogId>, StoreError>> {
        std::future::ready(Ok(self.look_at(|table, _| table.rooms_of(project, most)))).boxed()
    }

    fn seen<'a>(
        &'a self,
        log: LogId,
        user: &'a UserId,
    ) -> BoxFuture<'a, Result<Option<Arc<Devices>>, StoreError>> {
        std::future::ready(Ok(self.look_at(|table, _| table.seen(log, user).cloned()))).boxed()
    }

    fn silent<'a>(
        &'a self,
        after: Option<&'a (LogId, UserId)>,
        before: Timestamp,
        most: usize,
    ) -> BoxFuture<'a, Result<Silent, StoreError>> {
        std::future::ready(Ok(self.look_at(|table, _| table.silent(after, before, most)))).boxed()
    }
}
