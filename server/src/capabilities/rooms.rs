//! Wiring of rooms: configuration keys, duties and opening.

use std::time::Duration;

use tidings_model::limits;
use tidings_rooms::{Options, Rooms};
use tidings_streams::Cleared;

use super::{CapabilityError, Foundation, Wiring};
use crate::config::keys::{Key, MIB, key};
use crate::duties::Duty;

const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const YEARS: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

pub const WIRING: Wiring = Wiring {
    keys: KEYS,
    tables: &[],
    duties: |all| {
        let rooms = all.rooms.clone();
        vec![Duty::lasting("rooms", move || rooms.clone().maintain())]
    },
    clear: |all, project| {
        Box::pin(async move {
            let cleared = all.rooms.clear(project).await.map(|()| Cleared::Whole);
            cleared.map_err(|error| format!("could not remove its rooms: {error}"))
        })
    },
};

const KEYS: &[Key] = &[
    key("rooms.retention", |config, given| {
        given.duration(Duration::from_secs(1)..=YEARS).map(|time| config.capabilities.rooms.retention = time)
    }),
    key("rooms.sweep_interval", |config, given| {
        given
            .duration(Duration::from_secs(1)..=DAY)
            .map(|time| config.capabilities.rooms.sweep_interval = time)
    }),
    key("rooms.reaction_min_lag", |config, given| {
        given.duration(Duration::ZERO..=DAY).map(|time| config.capabilities.rooms.reaction_min_lag = time)
    }),
    key("rooms.ring", |config, given| {
        given.count(1..=limits::RING_FRAMES).map(|frames| config.capabilities.rooms.ring = frames)
    }),
    key("rooms.max_lag", |config, given| {
        given.number(1..=1_000_000_000).map(|events| config.capabilities.rooms.max_lag = events)
    }),
    key("rooms.stall", |config, given| {
        given.duration(Duration::from_millis(100)..=HOUR).map(|time| config.capabilities.rooms.stall = time)
    }),
    key("rooms.heartbeat", |config, given| {
        given.duration(Duration::from_secs(1)..=HOUR).map(|time| config.capabilities.rooms.heartbeat = time)
    }),
    key("rooms.max_streams_per_user", |config, given| {
        given.count(1..=1_000_000).map(|streams| config.capabilities.rooms.max_streams_per_user = streams)
    }),
    key("rooms.payload_bytes", |config, given| {
        given.count(2..=MIB).map(|bytes| config.capabilities.rooms.payload_bytes = bytes)
    }),
    key("rooms.max_members", |config, given| {
        given
            .count(1..=limits::MEMBERS_PER_ROOM)
            .map(|members| config.capabilities.rooms.max_members = members)
    }),
    key("rooms.history_for_new_members", |config, given| {
        given.truth().map(|history| config.capabilities.rooms.history_for_new_members = history)
    }),
];

/// Opens the rooms.
pub async fn open(foundation: &Foundation, options: Options) -> Result<Rooms, CapabilityError> {
    let Foundation { store, bus, clock, rng, metrics, leadership, journals, .. } = foundation.clone();
    let opening = Rooms::open(store, bus, clock, rng, options, &metrics, leadership);
    let opened = opening.await.map_err(|error| CapabilityError::Store { capability: "rooms", error })?;
    Ok(opened.journaled(journals))
}
