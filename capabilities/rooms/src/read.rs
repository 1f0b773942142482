//! Reading: what is there, then what comes.

use std::sync::Arc;

use tidings_engine::deliver::{Encode, Subscription};

use crate::{Cursor, Room, RoomError, Rooms};

/// From where to where a room can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Events at or below this are gone; who has not seen all of them has missed some.
    pub floor: Cursor,
    /// The first event that is kept.
    pub oldest: Option<Cursor>,
    /// The last cursor that an event has, or had. What lies above was never given.
    pub head: Cursor,
    /// The last cursor that was ever given, also to an event that only those heard who were there.
    pub ceiling: Cursor,
}

impl Rooms {
    /// From where to where a room can be read.
    pub async fn bounds(&self, room: &Room) -> Result<Bounds, RoomError> {
        todo!("{room:?}")
    }

    /// Begins to listen to a room after a cursor that is not below the floor. The subscription reads what is there, then
    /// what comes.
    pub fn listen(
        &self,
        room: &Room,
        bounds: &Bounds,
        after: Cursor,
        form: &'static str,
        encode: Arc<dyn Encode>,
    ) -> Subscription {
        drop(encode);
        todo!("{room:?} {bounds:?} {after} {form}")
    }
}
