//! How far somebody has seen a room, on each device.

use std::collections::BTreeMap;

use tidings_model::{DeviceId, Timestamp, UserId};

use crate::{Cursor, Room, RoomError, Rooms};

/// How far a user has seen a room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// On each device, and when that was told.
    pub devices: BTreeMap<DeviceId, (Cursor, Timestamp)>,
}

impl Seen {
    /// How far on a device, or on that which has seen most.
    pub fn last(&self, device: Option<&DeviceId>) -> Option<Cursor> {
        match device {
            Some(device) => self.devices.get(device).map(|(cursor, _)| *cursor),
            None => self.devices.values().map(|(cursor, _)| *cursor).max(),
        }
    }
}

/// What was noted and is not written yet.
#[derive(Default)]
pub(crate) struct Noted;

impl Rooms {
    /// A device has seen a room up to a cursor. Durable when it returns. The highest counts, unless it is forced, and what
    /// lies above the head does not.
    pub async fn see(
        &self,
        room: &Room,
        user: &UserId,
        device: &DeviceId,
        cursor: Cursor,
        force: bool,
    ) -> Result<(), RoomError> {
        todo!("{room:?} {user} {device} {cursor} {force}")
    }

    /// The same, to be written within about a second, once for all that is noted until then.
    pub fn note_seen(&self, room: &Room, user: &UserId, device: &DeviceId, cursor: Cursor) {
        todo!("{room:?} {user} {device} {cursor}")
    }

    /// How far a user has seen a room, also what is only noted.
    pub async fn seen(&self, room: &Room, user: &UserId) -> Result<Seen, RoomError> {
        todo!("{room:?} {user}")
    }
}
