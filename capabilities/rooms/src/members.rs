//! Who belongs to a room.

use tidings_model::{ProjectId, RoomId, UserId};

use crate::{Cursor, Room, RoomError, Rooms, Seat};

/// A member of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The head of the room when it came.
    pub joined: Cursor,
}

impl Rooms {
    /// Adds members to a room, which is created if it is not there, and removes others. Returns all, in order.
    pub async fn change_members(
        &self,
        project: &ProjectId,
        room: &RoomId,
        add: Vec<UserId>,
        remove: Vec<UserId>,
    ) -> Result<Vec<UserId>, RoomError> {
        todo!("{project} {room} {add:?} {remove:?}")
    }

    /// All members of a room, in order.
    pub async fn members(&self, room: &Room) -> Result<Vec<UserId>, RoomError> {
        todo!("{room:?}")
    }

    /// What there is to know of a member; none if the user is none.
    pub async fn member(&self, room: &Room, user: &UserId) -> Result<Option<Member>, RoomError> {
        todo!("{room:?} {user}")
    }

    /// Takes a seat in a room, which holds as long as the user is a member. First the seat, then [`Rooms::member`]: who is
    /// removed in between is noticed by one or the other.
    pub fn attend(&self, room: &Room, user: &UserId) -> Seat {
        self.inner.seats.take(room.log, user)
    }
}
