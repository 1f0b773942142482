//! The queries that rooms make to a store, and their implementation for stores that have the tables in memory.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::log::{ChangeFeed, Commits, ReadsTable, Status, StoreError};
use tidings_model::{LogId, Position, ProjectId, RoomId, Timestamp, UserId};

use crate::table::{Declined, Devices, Table};

/// What rooms need of a store beside its logs.
pub trait Store: Commits<Table> + ChangeFeed<Table> {
    /// Who has the rooms.
    fn epoch(&self) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// The log of a room, by its name.
    fn room<'a>(
        &'a self,
        project: &'a ProjectId,
        id: &'a RoomId,
    ) -> BoxFuture<'a, Result<Option<LogId>, StoreError>>;

    /// A room and its log at one moment.
    fn found(&self, log: LogId) -> BoxFuture<'_, Result<Option<Found>, StoreError>>;

    /// The head of the room when a user became a member; `None` if the user is not a member.
    fn member<'a>(
        &'a self,
        log: LogId,
        user: &'a UserId,
    ) -> BoxFuture<'a, Result<Option<Position>, StoreError>>;

    /// The members of a room after one, in order, up to a number; `None` if the room does not exist.
    fn members<'a>(
        &'a self,
        log: LogId,
        after: Option<&'a UserId>,
        most: usize,
    ) -> BoxFuture<'a, Result<Option<MemberPage>, StoreError>>;

    /// Whether a change of members is valid, without making it; the same check as of
    /// [`Change::Members`](crate::Change::Members).
    fn validate_members<'a>(
        &'a self,
        log: LogId,
        change: MemberChange<'a>,
    ) -> BoxFuture<'a, Result<Result<(), Declined>, StoreError>>;

    /// Rooms whose oldest event may be from `through` or earlier, oldest first, after one and up to a number.
    fn old<'a>(
        &'a self,
        through: Timestamp,
        after: Option<Old>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Old>, StoreError>>;

    /// Rooms with reactions that have not been collapsed yet, after one, in order, up to a number.
    fn reacted(&self, after: Option<LogId>, most: usize) -> BoxFuture<'_, Result<Vec<LogId>, StoreError>>;

    /// The logs of some rooms of a project, as many as one commit may remove.
    fn rooms_of<'a>(
        &'a self,
        project: &'a ProjectId,
        most: Removal,
    ) -> BoxFuture<'a, Result<Vec<LogId>, StoreError>>;

    /// The read receipts of a user in a room, by device.
    fn seen<'a>(
        &'a self,
        log: LogId,
        user: &'a UserId,
    ) -> BoxFuture<'a, Result<Option<Arc<Devices>>, StoreError>>;

    /// Examines a number of users, in order, for devices without a receipt since `before`.
    fn silent<'a>(
        &'a self,
        after: Option<&'a (LogId, UserId)>,
        before: Timestamp,
        most: usize,
    ) -> BoxFuture<'a, Result<Silent, StoreError>>;
}

/// A room and its log at one moment. Without the members, of whom there may be many.
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
    /// Members, in order.
    pub users: Vec<UserId>,
    /// Whether there are more members behind the last one.
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

/// A room by the age of its events: a time before which none of them was written, and the room's log.
pub type Old = (Timestamp, LogId);

/// Limits of a commit that removes rooms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Number of rooms.
    pub rooms: usize,
    /// Number of members of all rooms together. The first room may have more.
    pub members: usize,
}

/// The result of examining users for silent devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Silent {
    /// The users that have a silent device.
    pub users: Vec<(LogId, UserId)>,
    /// The last user examined; `None` if there are no more behind.
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
