//! Stored events of rooms as events of their project: they are entered into its journal.
//!
//! Each message and each reaction is an event `room.<room>.<kind>`, when it is written: a reaction that the sweep removes
//! later was one all the same. Typing is no event, because it is not stored.

use std::sync::Arc;

use bytes::Bytes;
use tidings_engine::journal::{Described, Entry, event_type};

use crate::{Kind, NewEvent, Room};

/// Source of the events of rooms, and the field that holds the room's id.
pub const SOURCE: &str = "room";

/// What an entry needs to know of an event beside its stored form.
pub(crate) struct EventInfo {
    pub(crate) kind: Kind,
    /// Bytes of the payload, with which the stored form ends.
    payload_bytes: usize,
}

impl EventInfo {
    pub(crate) fn of(event: &NewEvent) -> Self {
        Self { kind: event.kind, payload_bytes: event.payload.len() }
    }
}

/// The entry for events of a room, given their stored forms.
pub(crate) fn entry<'a>(room: &'a Room, events: &[EventInfo], stored: &[Bytes]) -> Entry<'a> {
    let types: [Arc<str>; Kind::ALL.len()] =
        Kind::ALL.map(|kind| event_type(SOURCE, room.id.as_str(), Some(kind.name())).into());
    let type_of = |kind| {
        let at = Kind::ALL.into_iter().position(|known| known == kind);
        types[at.expect("it has all kinds")].clone()
    };
    let describe = |(event, stored): (&EventInfo, &Bytes)| Described {
        event_type: type_of(event.kind),
        skip: (stored.len() - event.payload_bytes) as u32,
        bytes: stored.len() as u64,
    };
    Entry {
        field: SOURCE,
        name: room.id.as_str(),
        content_type: "application/json",
        messages: events.iter().zip(stored).map(describe).collect(),
    }
}
