//! The tables of rooms: epoch, members and read receipts. Events are in the logs.
//!
//! The rooms of a store belong to one node at a time, which says so by raising the epoch ([`Change::TakeOver`]). Everything
//! it commits from then on carries [`Change::Owned`], which is refused once somebody else has taken over.
//!
//! [`Store`](crate::Store) lists the queries on these tables.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use tidings_engine::log::{self, SnapshotMap, Snapshots, StateMachine, Status};
use tidings_model::{DeviceId, LogId, Position, ProjectId, RoomId, Timestamp, UserId, limits};

use crate::store::{Found, MemberChange, MemberPage, Old, Removal, Silent};

/// The row of a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The project of the room.
    pub project: ProjectId,
    /// The name of the room, unique in its project.
    pub id: RoomId,
    /// The members, and the head of the room when each of them joined.
    pub members: Arc<BTreeMap<UserId, Position>>,
    /// Ephemeral events may have been given cursors up to this one.
    pub reserved: Position,
    /// Positions of collapsed events, in order. Readers skip them, because later ones replace them.
    pub collapsed: Arc<Vec<Position>>,
    /// No stored event was written before this time; `None` while there are no stored events.
    pub kept_since: Option<Timestamp>,
    /// Whether there are reactions that have not been examined for redundant ones.
    pub reacted: bool,
}

impl Row {
    /// Checks a change of members.
    fn validate_members(&self, MemberChange { add, remove, most }: MemberChange<'_>) -> Result<(), Declined> {
        let members = &self.members;
        let leaving = remove.iter().filter(|user| members.contains_key(*user)).count();
        let coming = add.iter().filter(|user| !members.contains_key(*user)).count();
        let left = members.len().saturating_sub(leaving);
        // A room that exceeds a lowered limit may still remove members.
        if coming > 0 && left + coming > most { Err(Declined::TooManyMembers { most }) } else { Ok(()) }
    }
}

/// The read receipts of a user in a room: by device, the last seen cursor and the time of the receipt.
pub type Devices = BTreeMap<DeviceId, (Position, Timestamp)>;

/// A change of the tables of rooms.
#[derive(Clone, Debug)]
pub enum Change {
    /// Takes over all rooms.
    TakeOver {
        /// The new epoch: the current one plus one.
        epoch: u64,
    },
    /// Changes nothing, but refuses the commit if another server has taken over.
    Owned {
        /// Epoch of the server that commits.
        by: u64,
    },
    /// Creates a room, or restores one from a snapshot.
    Create {
        /// Log of the room.
        log: LogId,
        /// The row of the room.
        row: Row,
    },
    /// Deletes a room with its members and read receipts.
    Remove {
        /// Log of the room.
        log: LogId,
    },
    /// Changes the members of a room.
    Members {
        /// Log of the room.
        log: LogId,
        /// Users to add, unless they are members already.
        add: Vec<UserId>,
        /// Users to remove.
        remove: Vec<UserId>,
        /// The head of the room, stored with the added members.
        joined: Position,
        /// Maximum number of members.
        most: usize,
    },
    /// Reserves cursors for ephemeral events.
    Reserve {
        /// Log of the room.
        log: LogId,
        /// The last reserved cursor.
        through: Position,
    },
    /// Collapses events: readers skip them from now on.
    Collapse {
        /// Log of the room.
        log: LogId,
        /// Positions of the events, in order.
        positions: Vec<Position>,
    },
    /// Sets the age of the oldest stored event.
    Kept {
        /// Log of the room.
        log: LogId,
        /// New value of [`Row::kept_since`].
        since: Option<Timestamp>,
    },
    /// Sets whether there are reactions to examine.
    Reacted {
        /// Log of the room.
        log: LogId,
        /// New value of [`Row::reacted`].
        waiting: bool,
    },
    /// Forgets the collapsed positions that were trimmed.
    Prune {
        /// Log of the room.
        log: LogId,
        /// The last position that was trimmed.
        through: Position,
    },
    /// Stores a read receipt.
    See {
        /// Log of the room.
        log: LogId,
        /// The user.
        user: UserId,
        /// The user's device.
        device: DeviceId,
        /// The last seen position.
        through: Position,
        /// Time of the receipt. Stored even if the position is unchanged.
        at: Timestamp,
        /// What to do if the device has seen more before.
        lower: LowerReceipt,
    },
    /// Removes the read receipts of a user's silent devices.
    Forget {
        /// Log of the room.
        log: LogId,
        /// The user.
        user: UserId,
        /// Receipts older than this are removed.
        before: Timestamp,
    },
}

/// What to do with a read receipt that is lower than the stored one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LowerReceipt {
    /// Ignore the lower one.
    Ignore,
    /// Store the lower one.
    Store,
}

/// Why a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// Another server has taken over the rooms.
    #[error("another server has taken over the rooms")]
    Fenced,
    /// The row was changed concurrently.
    #[error("the room was changed concurrently")]
    Moved,
    /// The room does not exist, or was deleted.
    #[error("there is no such room")]
    NoSuchRoom,
    /// The room would have more members than the limit.
    #[error("a room has at most {most} members")]
    TooManyMembers {
        /// The limit, in members.
        most: usize,
    },
}

impl log::Change for Change {
    type Refusal = Declined;
}

/// The tables of all rooms, in memory.
#[derive(Debug, Default)]
pub struct Table {
    epoch: u64,
    names: HashMap<ProjectId, BTreeMap<RoomId, LogId>>,
    rows: SnapshotMap<LogId, Arc<Row>>,
    /// Rooms with stored events, by [`Row::kept_since`].
    old: BTreeSet<Old>,
    /// Rooms whose [`Row::reacted`] is true.
    reacted: BTreeSet<LogId>,
    seen: SnapshotMap<(LogId, UserId), Arc<Devices>>,
    /// The epoch when a snapshot began, until it is read.
    epoch_before: Option<u64>,
}

/// A row of the tables of rooms, as it is stored.
#[derive(Clone, Debug)]
pub enum Kept {
    /// The epoch.
    Epoch(u64),
    /// A room.
    Room(LogId, Arc<Row>),
    /// The read receipts of a user in a room.
    Seen(LogId, UserId, Arc<Devices>),
}

impl Kept {
    /// Passes on the changes that restore the row. Rooms must be restored before their read receipts.
    pub fn restore(self, change: &mut dyn FnMut(Change)) {
        match self {
            Self::Epoch(epoch) => change(Change::TakeOver { epoch }),
            Self::Room(log, row) => change(Change::Create { log, row: Row::clone(&row) }),
            Self::Seen(log, user, devices) => {
                for (device, &(through, at)) in &*devices {
                    let (user, device) = (user.clone(), device.clone());
                    change(Change::See { log, user, device, through, at, lower: LowerReceipt::Store });
                }
            }
        }
    }
}

impl Table {
    /// See [`crate::Store::epoch`].
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// See [`crate::Store::room`].
    pub fn room(&self, project: &ProjectId, id: &RoomId) -> Option<LogId> {
        self.names.get(project)?.get(id).copied()
    }

    /// The row of a room, by its log.
    pub fn row(&self, log: LogId) -> Option<&Arc<Row>> {
        self.rows.get(&log)
    }

    /// See [`crate::Store::found`]. `status` returns the status of a log at the same moment.
    pub fn found(&self, log: LogId, status: &dyn Fn(LogId) -> Option<Status>) -> Option<Found> {
        let Row { reserved, collapsed, kept_since, reacted, .. } = &**self.rows.get(&log)?;
        Some(Found {
            reserved: *reserved,
            collapsed: collapsed.clone(),
            kept_since: *kept_since,
            reacted: *reacted,
            status: status(log)?,
        })
    }

    /// See [`crate::Store::member`].
    pub fn member(&self, log: LogId, user: &UserId) -> Option<Position> {
        self.rows.get(&log)?.members.get(user).copied()
    }

    /// See [`crate::Store::members`].
    pub fn members(&self, log: LogId, after: Option<&UserId>, most: usize) -> Option<MemberPage> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut members = self.rows.get(&log)?.members.range((from, Bound::Unbounded));
        let users = members.by_ref().take(most).map(|(user, _)| user.clone()).collect();
        Some(MemberPage { users, more: members.next().is_some() })
    }

    /// See [`crate::Store::validate_members`].
    pub fn validate_members(&self, log: LogId, change: MemberChange<'_>) -> Result<(), Declined> {
        self.rows.get(&log).ok_or(Declined::NoSuchRoom)?.validate_members(change)
    }

    /// The logs of all rooms, in order.
    pub fn rooms(&self) -> impl Iterator<Item = LogId> + '_ {
        self.rows.iter().map(|(log, _)| *log)
    }

    /// See [`crate::Store::old`].
    pub fn old(&self, through: Timestamp, after: Option<Old>, most: usize) -> Vec<Old> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let all = self.old.range((from, Bound::Unbounded)).copied();
        all.take_while(|(since, _)| *since <= through).take(most).collect()
    }

    /// See [`crate::Store::reacted`].
    pub fn reacted(&self, after: Option<LogId>, most: usize) -> Vec<LogId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.reacted.range((from, Bound::Unbounded)).copied().take(most).collect()
    }

    /// See [`crate::Store::rooms_of`].
    pub fn rooms_of(&self, project: &ProjectId, most: Removal) -> Vec<LogId> {
        let logs = self.names.get(project).into_iter().flat_map(|names| names.values().copied());
        let mut members = 0;
        let fits = |log: &LogId| {
            let is_first = members == 0;
            // One more for the room itself.
            members += 1 + self.rows.get(log).map_or(0, |row| row.members.len());
            is_first || members <= most.members
        };
        logs.take(most.rooms).take_while(fits).collect()
    }

    /// Number of rooms.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rooms.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// See [`crate::Store::seen`].
    pub fn seen(&self, log: LogId, user: &UserId) -> Option<&Arc<Devices>> {
        self.seen.get(&(log, user.clone()))
    }

    /// See [`crate::Store::silent`].
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

    fn remove(&mut self, log: LogId) {
        let from = self.seen.range((log, UserId::least())..).take_while(|((of, _), _)| *of == log);
        let users: Vec<_> = from.map(|(key, _)| key.clone()).collect();
        for key in users {
            self.seen.remove(&key);
        }
        let Some(row) = self.rows.remove(&log) else { return };
        self.reacted.remove(&log);
        if let Some(since) = row.kept_since {
            self.old.remove(&(since, log));
        }
        if let Some(names) = self.names.get_mut(&row.project) {
            names.remove(&row.id);
            if names.is_empty() {
                self.names.remove(&row.project);
            }
        }
    }

    fn see(
        &mut self,
        log: LogId,
        user: UserId,
        device: DeviceId,
        seen: (Position, Timestamp),
        lower: LowerReceipt,
    ) {
        if !self.rows.contains_key(&log) {
            return;
        }
        let devices = Arc::make_mut(self.seen.or_insert_with((log, user), Arc::default));
        let (through, at) = seen;
        let known = devices.entry(device.clone()).or_insert(seen);
        if lower == LowerReceipt::Store || through > known.0 {
            *known = (through, at);
        } else if through == known.0 {
            // The device is still in use: an unchanged receipt must not be removed as silent.
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

    fn keep(&mut self, log: LogId, since: Option<Timestamp>) {
        let Some(row) = self.rows.get_mut(&log) else { return };
        let before = std::mem::replace(&mut Arc::make_mut(row).kept_since, since);
        if let Some(before) = before {
            self.old.remove(&(before, log));
        }
        self.old.extend(since.map(|since| (since, log)));
    }

    fn react(&mut self, log: LogId, waiting: bool) {
        let Some(row) = self.rows.get_mut(&log) else { return };
        Arc::make_mut(row).reacted = waiting;
        if waiting {
            self.reacted.insert(log);
        } else {
            self.reacted.remove(&log);
        }
    }

    /// Changes a room, if it exists.
    fn with_row(&mut self, log: LogId, act: impl FnOnce(&mut Row)) {
        if let Some(row) = self.rows.get_mut(&log) {
            act(Arc::make_mut(row));
        }
    }
}

impl Snapshots for Table {
    type Row = Kept;

    fn begin_snapshot(&mut self) {
        self.epoch_before = Some(self.epoch).filter(|&epoch| epoch > 0);
        self.rows.begin_snapshot();
        self.seen.begin_snapshot();
    }

    fn next_rows(&mut self, most: usize) -> Option<Vec<Kept>> {
        if let Some(epoch) = self.epoch_before.take() {
            return Some(vec![Kept::Epoch(epoch)]);
        }
        if let Some(rows) = self.rows.next_rows(most) {
            return Some(rows.into_iter().map(|(log, row)| Kept::Room(log, row)).collect());
        }
        let rows = self.seen.next_rows(most)?;
        Some(rows.into_iter().map(|((log, user), devices)| Kept::Seen(log, user, devices)).collect())
    }

    fn end_snapshot(&mut self) {
        self.epoch_before = None;
        self.rows.end_snapshot();
        self.seen.end_snapshot();
    }

    fn restore(row: Kept, change: &mut dyn FnMut(Change)) {
        row.restore(change);
    }
}

impl StateMachine for Table {
    type Change = Change;

    fn validate(&self, change: &Change) -> Result<(), Declined> {
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
                self.validate_members(*log, MemberChange { add, remove, most: *most })
            }
            Change::Remove { log }
            | Change::Reserve { log, .. }
            | Change::Collapse { log, .. }
            | Change::Kept { log, .. }
            | Change::Reacted { log, .. }
            | Change::Prune { log, .. } => there(log),
            // Valid even if the room is gone; then it changes nothing.
            Change::See { .. } | Change::Forget { .. } => Ok(()),
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::TakeOver { epoch } => self.epoch = epoch,
            Change::Owned { .. } => {}
            Change::Create { log, row } => {
                self.names.entry(row.project.clone()).or_default().insert(row.id.clone(), log);
                self.old.extend(row.kept_since.map(|since| (since, log)));
                self.reacted.extend(row.reacted.then_some(log));
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
            Change::Kept { log, since } => self.keep(log, since),
            Change::Reacted { log, waiting } => self.react(log, waiting),
            Change::Prune { log, through } => self.with_row(log, |row| {
                let collapsed = Arc::make_mut(&mut row.collapsed);
                let gone = collapsed.partition_point(|position| *position <= through);
                collapsed.drain(..gone);
                collapsed.shrink_to(2 * collapsed.len());
            }),
            Change::See { log, user, device, through, at, lower } => {
                self.see(log, user, device, (through, at), lower);
            }
            Change::Forget { log, user, before } => self.forget(log, &user, before),
        }
    }
}
