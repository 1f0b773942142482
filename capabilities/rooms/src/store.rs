//! Queries that rooms make to a store, and their implementation for stores that hold the tables in memory.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::log::{ChangeFeed, Commits, ReadsTable, Status, StoreError};
use tidings_model::{LogId, Position, ProjectId, RoomId, Timestamp, UserId};

use crate::table::{Declined, Devices, Table};

/// Queries that rooms need from a store beside its logs.
pub trait Store: Commits<Table> + ChangeFeed<Table> {
    /// Current ownership epoch of the rooms.
    fn epoch(&self) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// Looks up the log of a room by project and id.
    fn room<'a>(
        &'a self,
        project: &'a ProjectId,
        id: &'a RoomId,
    ) -> BoxFuture<'a, Result<Option<LogId>, StoreError>>;

    /// Reads a room and the status of its log, as of one moment.
    fn found(&self, log: LogId) -> BoxFuture<'_, Result<Option<Found>, StoreError>>;

    /// Head of the room when a user became a member, or `None` if the user is not a member.
    fn member<'a>(
        &'a self,
        log: LogId,
        user: &'a UserId,
    ) -> BoxFuture<'a, Result<Option<Position>, StoreError>>;

    /// Lists up to `most` members of a room after the given one, in order. `None` if the room does not exist.
    fn members<'a>(
        &'a self,
        log: LogId,
        after: Option<&'a UserId>,
        most: usize,
    ) -> BoxFuture<'a, Result<Option<MemberPage>, StoreError>>;

    /// Validates a change of members without making it. The check is the same as that of
    /// [`Change::Members`](crate::Change::Members).
    fn validate_members<'a>(
        &'a self,
        log: LogId,
        change: MemberChange<'a>,
    ) -> BoxFuture<'a, Result<Result<(), Declined>, StoreError>>;

    /// Lists up to `most` rooms whose oldest event may be from `through` or earlier, oldest first, after the given one.
    fn old<'a>(
        &'a self,
        through: Timestamp,
        after: Option<Old>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Old>, StoreError>>;

    /// Lists up to `most` rooms with reactions that have not been collapsed yet, in order, after the given one.
    fn reacted(&self, after: Option<LogId>, most: usize) -> BoxFuture<'_, Result<Vec<LogId>, StoreError>>;

    /// Lists logs of rooms of a project, as many as one commit may remove.
    fn rooms_of<'a>(
        &'a self,
        project: &'a ProjectId,
        most: Removal,
    ) -> BoxFuture<'a, Result<Vec<LogId>, StoreError>>;

    /// Read receipts of a user in a room, by device.
    fn seen<'a>(
        &'a self,
        log: LogId,
        user: &'a UserId,
    ) -> BoxFuture<'a, Result<Option<Arc<Devices>>, StoreError>>;

    /// Examines up to `most` users in order, after the given one, for devices without a receipt since `before`.
    fn silent<'a>(
        &'a self,
        after: Option<&'a (LogId, UserId)>,
        before: Timestamp,
        most: usize,
    ) -> BoxFuture<'a, Result<Silent, StoreError>>;
}

/// A room and the status of its log, as of one moment. Members are left out because there may be many.
#[derive(Clone, Debug)]
pub struct Found {
    /// See [`crate::table::Row::reserved`].
    pub reserved: Position,
    /// See [`crate::table::Row::collapsed`].
    pub collapsed: Arc<Vec<Position>>,
    /// See [`crate::table::Row::kept_since`].
    pub kept_since: Option<Timestamp>,
    /// See [`crate::table::Row::reacted`].
    pub reacted: bool,
    /// Status of the room's log.
    pub status: Status,
}

/// A page of the members of a room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberPage {
    /// Members in order.
    pub users: Vec<UserId>,
    /// Whether there are more members after the last one.
    pub more: bool,
}

/// A change of the members of a room.
#[derive(Clone, Copy, Debug)]
pub struct MemberChange<'a> {
    /// Users to add.
    pub add: &'a [UserId],
    /// Users to remove.
    pub remove: &'a [UserId],
    /// Maximum number of members.
    pub most: usize,
}

/// A room by the age of its events: a lower bound of the time of its oldest event, and the room's log.
pub type Old = (Timestamp, LogId);

/// Limits of a commit that removes rooms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Maximum number of rooms.
    pub rooms: usize,
    /// Maximum number of members of all rooms together. The first room may have more.
    pub members: usize,
}

/// Result of examining users for silent devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Silent {
    /// Users that have a silent device.
    pub users: Vec<(LogId, UserId)>,
    /// Last user examined, or `None` if no users are left.
    pub last: Option<(LogId, UserId)>,
}

impl<S: ReadsTable<Table> + ChangeFeed<Table>> Store for S {
    fn epoch(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.epoch()))).boxed()
    }

    fn room<'a>(
        &'a self,
        project: &'a ProjectId,
        id: &'a RoomId,
    ) -> BoxFuture<'a, Result<Option<LogId>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.room(project, id)))).boxed()
    }

    fn found(&self, log: LogId) -> BoxFuture<'_, Result<Option<Found>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, status| table.found(log, status)))).boxed()
    }

    fn member<'a>(
        &'a self,
        log: LogId,
        user: &'a UserId,
    ) -> BoxFuture<'a, Result<Option<Position>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.member(log, user)))).boxed()
    }

    fn members<'a>(
        &'a self,
        log: LogId,
        after: Option<&'a UserId>,
        most: usize,
    ) -> BoxFuture<'a, Result<Option<MemberPage>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.members(log, after, most)))).boxed()
    }

    fn validate_members<'a>(
        &'a self,
        log: LogId,
        change: MemberChange<'a>,
    ) -> BoxFuture<'a, Result<Result<(), Declined>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.validate_members(log, change)))).boxed()
    }

    fn old<'a>(
        &'a self,
        through: Timestamp,
        after: Option<Old>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Old>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.old(through, after, most)))).boxed()
    }

    fn reacted(&self, after: Option<LogId>, most: usize) -> BoxFuture<'_, Result<Vec<LogId>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.reacted(after, most)))).boxed()
    }

    fn rooms_of<'a>(
        &'a self,
        project: &'a ProjectId,
        most: Removal,
    ) -> BoxFuture<'a, Result<Vec<LogId>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.rooms_of(project, most)))).boxed()
    }

    fn seen<'a>(
        &'a self,
        log: LogId,
        user: &'a UserId,
    ) -> BoxFuture<'a, Result<Option<Arc<Devices>>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.seen(log, user).cloned()))).boxed()
    }

    fn silent<'a>(
        &'a self,
        after: Option<&'a (LogId, UserId)>,
        before: Timestamp,
        most: usize,
    ) -> BoxFuture<'a, Result<Silent, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.silent(after, before, most)))).boxed()
    }
}
