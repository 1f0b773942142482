//! Members of a room.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidings_engine::log::{Commit, CommitError, Operation, StoreError};
use tidings_model::{LogId, Position, ProjectId, RoomId, UserId, limits};

use crate::rooms::Inner;
use crate::store::{MemberChange, Removal};
use crate::table::{Change, Row};
use crate::{Cursor, MembershipLease, Room, RoomError, Rooms};

/// Maximum attempts of a change that collides with concurrent changes.
const ATTEMPTS: usize = 16;
/// Maximum rooms and members removed in one commit when a project is removed.
const REMOVAL: Removal = Removal { rooms: limits::ROOMS_PER_REMOVAL, members: limits::MEMBERS_PER_ROOM };

/// Membership of a user in a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Head of the room when the user joined.
    pub joined: Cursor,
}

/// A page of the members of a room, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Users on this page.
    pub users: Vec<UserId>,
    /// Last user of this page if there are more members after it, otherwise `None`.
    pub next: Option<UserId>,
}

impl Rooms {
    /// Adds members to a room, which is created if it does not exist, and removes others. Returns the first page of the
    /// resulting members, as [`Rooms::members`] does. A removed user receives no event written after this has returned,
    /// and may miss events written while it runs.
    pub async fn change_members(
        &self,
        project: &ProjectId,
        room: &RoomId,
        add: Vec<UserId>,
        remove: Vec<UserId>,
    ) -> Result<Members, RoomError> {
        let (add, remove): (BTreeSet<_>, BTreeSet<_>) =
            (add.into_iter().collect(), remove.into_iter().collect());
        if !add.is_disjoint(&remove) {
            return Err(RoomError::AddedAndRemoved);
        }
        let (add, remove): (Vec<_>, Vec<_>) = (add.into_iter().collect(), remove.into_iter().collect());
        for _ in 0..ATTEMPTS {
            let changed = match self.find(project, room).await? {
                Some(found) => {
                    let changing = self.inner.clone().change(found.log, add.clone(), remove.clone());
                    // Runs in its own task: if the caller is cancelled, the commit may still be made, and until its
                    // outcome is known no user being removed may take a lease that holds.
                    let changing = tokio::spawn(changing);
                    changing.await.map_err(|error| StoreError::Unavailable(error.to_string()))?
                }
                None => self.inner.create(project, room, &add).await,
            };
            match changed {
                Ok(log) => return self.inner.members(log, None, limits::LISTED_MEMBERS).await,
                // The room was created or removed concurrently.
                Err(RoomError::Contended | RoomError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Err(RoomError::Contended)
    }

    /// Returns up to `most` members of a room after the given one, in order.
    pub async fn members(
        &self,
        room: &Room,
        after: Option<&UserId>,
        most: usize,
    ) -> Result<Members, RoomError> {
        self.inner.members(room.log, after, most).await
    }

    /// Returns the membership of a user, or `None` if the user is not a member.
    pub async fn member(&self, room: &Room, user: &UserId) -> Result<Option<Member>, RoomError> {
        let joined = self.inner.store.member(room.log, user).await?;
        Ok(joined.map(|joined| Member { joined: Cursor::at(joined) }))
    }

    /// Takes a lease that holds as long as the user is a member. Call it before [`Rooms::member`], so that a removal in
    /// between is noticed by one of the two.
    pub fn take_lease(&self, room: &Room, user: &UserId) -> MembershipLease {
        self.inner.caches.leases.take(room.log, user)
    }

    /// Removes all rooms of a removed project, many in one commit.
    pub async fn clear(&self, project: &ProjectId) -> Result<(), RoomError> {
        loop {
            let logs = self.inner.store.rooms_of(project, REMOVAL).await?;
            if logs.is_empty() {
                return Ok(());
            }
            let commit = Commit {
                operations: logs.iter().copied().map(Operation::Delete).collect(),
                changes: logs.iter().map(|&log| Change::Remove { log }).collect(),
                ..Commit::new()
            };
            match self.inner.commit(commit).await.map_err(RoomError::from) {
                // If one of the rooms was removed concurrently, the remaining ones are listed again.
                Ok(_) | Err(RoomError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Inner {
    async fn members(&self, log: LogId, after: Option<&UserId>, most: usize) -> Result<Members, RoomError> {
        let page = self.store.members(log, after, most).await?.ok_or(RoomError::NotFound)?;
        let next = page.users.last().filter(|_| page.more).cloned();
        Ok(Members { users: page.users, next })
    }

    async fn create(&self, project: &ProjectId, id: &RoomId, add: &[UserId]) -> Result<LogId, RoomError> {
        let most = self.options.max_members;
        if add.len() > most {
            return Err(RoomError::TooManyMembers { most });
        }
        let log = self.store.reserve().await?;
        let members: BTreeMap<_, _> = add.iter().map(|user| (user.clone(), Position::ZERO)).collect();
        let row = Row {
            project: project.clone(),
            id: id.clone(),
            members: Arc::new(members),
            reserved: Position::ZERO,
            collapsed: Arc::default(),
            kept_since: None,
            reacted: false,
        };
        self.commit(Commit::new().with(Operation::create(log)).changing(Change::Create { log, row })).await?;
        Ok(log)
    }

    async fn change(
        self: Arc<Self>,
        log: LogId,
        add: Vec<UserId>,
        remove: Vec<UserId>,
    ) -> Result<LogId, RoomError> {
        let tenure = self.writing().await?;
        let most = self.options.max_members;
        let active;
        let _alone = if self.options.history_for_new_members || add.is_empty() {
            None
        } else {
            // A new member that may not read earlier events must not read events written while it joins either. Appends
            // are therefore blocked, so that the tail is the last event before the commit.
            active = self.active(log).await?;
            Some(active.appending.write().await)
        };
        // Validated before leases stop holding, because that disturbs readers even if the change then fails.
        let wanted = MemberChange { add: &add, remove: &remove, most };
        self.store.validate_members(log, wanted).await?.map_err(CommitError::Declined)?;
        let _leaving = self.caches.leases.leave(log, &remove);
        let joined = self.store.status(log).await?.tail;
        let change = Change::Members { log, add, remove, joined, most };
        self.commit_in(&tenure, Commit::new().changing(change)).await?;
        Ok(log)
    }
}
