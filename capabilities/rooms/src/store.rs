//! What rooms need of a store, and how a store that holds their tables in memory gives it.

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

    /// The log of the room of that name.
    fn room<'a>(
        &'a self,
        project: &'a ProjectId,
        id: &'a RoomId,
    ) -> BoxFuture<'a, Result<Option<LogId>, StoreError>>;

    /// A room and its log, as they are at one moment.
    fn found(&self, log: LogId) -> BoxFuture<'_, Result<Option<Found>, StoreError>>;

    /// Whether a user is a member of a room, and where the room's head was when it became one; none if it is not.
    fn member<'a>(
        &'a self,
        log: LogId,
        user: &'a UserId,
    ) -> BoxFuture<'a, Result<Option<Position>, StoreError>>;

    /// The members of a room after one, in order, so many at most; none if there is no such room.
    fn members<'a>(
        &'a self,
        log: LogId,
        after: Option<&'a UserId>,
        most: usize,
    ) -> BoxFuture<'a, Result<Option<MemberPage>, StoreError>>;

    /// Whether some may become members and others cease to be: what [`Change::Members`](crate::Change::Members) would be told.
    fn judge_members<'a>(
        &'a self,
        log: LogId,
        change: MemberChange<'a>,
    ) -> BoxFuture<'a, Result<Result<(), Declined>, StoreError>>;

    /// Rooms whose oldest event may be from that moment or before it, oldest first, so many at most and after one.
    fn old<'a>(
        &'a self,
        through: Timestamp,
        after: Option<Old>,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<Old>, StoreError>>;

    /// Rooms with reactions that nobody has looked through for redundant ones, after one, in order, so many at most.
    fn reacted(&self, after: Option<LogId>, most: usize) -> BoxFuture<'_, Result<Vec<LogId>, StoreError>>;

    /// The logs of some rooms of a project, as many as can be removed in one commit.
    fn rooms_of<'a>(
        &'a self,
        project: &'a ProjectId,
        most: Removal,
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

/// A room and its log, as they are at one moment. Without its members, of whom there may be many.
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
    /// Its log.
    pub status: Status,
}

/// Some members of a room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberPage {
    /// They, in order.
    pub users: Vec<UserId>,
    /// Whether there are more behind the last of them.
    pub more: bool,
}

/// Who is to become a member of a room, and who is to cease to be one.
#[derive(Clone, Copy, Debug)]
pub struct MemberChange<'a> {
    /// Users to add.
    pub add: &'a [UserId],
    /// Users to remove.
    pub remove: &'a [UserId],
    /// How many members there may be.
    pub most: usize,
}

/// A room by the age of what it keeps: the time before which none of its events was written, and its log.
pub type Old = (Timestamp, LogId);

/// How many rooms are removed in one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Rooms.
    pub rooms: usize,
    /// Members of all of them together. The first room may have more.
    pub members: usize,
}

/// Some users that were looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Silent {
    /// Those among them that have a silent device.
    pub users: Vec<(LogId, UserId)>,
    /// The last that was looked at, if there are more behind.
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

    fn judge_members<'a>(
        &'a self,
        log: LogId,
        change: MemberChange<'a>,
    ) -> BoxFuture<'a, Result<Result<(), Declined>, StoreError>> {
        std::future::ready(Ok(self.with_table(|table, _| table.judge_members(log, change)))).boxed()
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
