//! Writing: what is to be kept is committed, and what is not is told to those who are there.

use tidings_model::{Producer, Timestamp};

use crate::{Cursor, NewEvent, Room, RoomError, Rooms};

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Where each event lies and when it was written, in the order in which they were given.
    pub events: Vec<(Cursor, Timestamp)>,
    /// Whether the same request was made before; this is the answer it got then.
    pub duplicate: bool,
}

impl Rooms {
    /// Writes events, all or none. Durable when it returns, but for typing, which lies behind all else of the same write.
    pub async fn write(
        &self,
        room: &Room,
        events: Vec<NewEvent>,
        producer: Option<Producer>,
    ) -> Result<Written, RoomError> {
        todo!("{room:?} {events:?} {producer:?}")
    }
}
